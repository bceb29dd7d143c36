//! What one thread of this process does, seen from another thread.
//!
//! It tells a holder of a place that has blocked from one that computes.

use std::time::{Duration, Instant};

use super::Process;
#[cfg(unix)]
use super::unix::thread_state::Thread;
#[cfg(windows)]
use super::windows::thread_state::Thread;

#[cfg(test)]
pub(super) mod tests;

/// In a few words, how the system shows what a thread does. `None` if it does not.
pub(crate) const METHOD: Option<&str> = Thread::METHOD;

/// Where only a thread's processor time can be seen: without progress for this long it is blocked.
const NO_PROGRESS: Duration = Duration::from_millis(20);

/// What a thread does, as far as the system shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    not(target_os = "linux"),
    allow(dead_code, reason = "no other system shows all of this")
)]
pub(crate) enum Look {
    /// It runs, waits for a processor, or is stopped, for instance by a debugger.
    Running,
    /// It sleeps in the kernel.
    Blocked,
    /// Only its processor time can be seen, in nanoseconds or cycles. A time that stays the same for long suggests
    /// that it is blocked, or kept from a processor.
    Time(u64),
    /// It has ended.
    Ended,
    /// Nothing can be seen.
    Unknown,
}

/// Whether the processor time of a thread grows.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// The time, and since when it is the same.
    seen: Option<(u64, Instant)>,
}

impl Progress {
    /// It is seen to have this time now. True if that has not grown for so long that the thread is blocked, or kept from a
    /// processor for long.
    pub(crate) fn is_missing(&mut self, time: u64, now: Instant) -> bool {
        match self.seen {
            Some((before, since)) if before == time => {
                now.saturating_duration_since(since) >= NO_PROGRESS
            }
            _ => {
                self.seen = Some((time, now));
                false
            }
        }
    }

    /// It is seen to have this time now. True if that has grown.
    pub(crate) fn has_grown(&mut self, time: u64, now: Instant) -> bool {
        let before = self.seen.replace((time, now));
        before.is_some_and(|(before, _)| before != time)
    }
}

/// What a thread has done since the last call of [`activity`](ThreadState::activity).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    not(target_os = "linux"),
    allow(dead_code, reason = "no other system shows this for less than a look")
)]
pub(crate) enum Activity {
    /// It has had a processor most of the time.
    Computed,
    /// It has had none.
    StoodStill,
    /// Anything else, or nothing can be seen.
    Unknown,
}

/// What people know a thread by, and the system call that it is in, as far as the system says.
#[derive(Debug, Default)]
pub(crate) struct Description {
    pub(crate) id: Option<u32>,
    pub(crate) name: Option<String>,
    pub(crate) system_call: Option<&'static str>,
}

/// What is needed to see what one thread does.
#[derive(Debug)]
pub(crate) struct ThreadState {
    process: Process,
    pub(super) thread: Thread,
}

impl ThreadState {
    /// Of the calling thread.
    pub(crate) fn of_this() -> Self {
        let process = Process::this();
        ThreadState {
            process,
            thread: Thread::this(process),
        }
    }

    /// What the thread has done since the last call, where that costs less to see than what it does now.
    pub(crate) fn activity(&self) -> Activity {
        if self.process.is_this() {
            self.thread.activity()
        } else {
            Activity::Unknown
        }
    }

    /// What people know the thread by, and what it is in now.
    pub(crate) fn describe(&self) -> Description {
        #[cfg(target_os = "linux")]
        if self.process.is_this() {
            return self.thread.describe();
        }
        Description::default()
    }

    /// What the thread does now. [`Unknown`](Look::Unknown) in a forked child.
    ///
    /// The kind can change from one look to the next: a system that shows the state shows only the time while
    /// it lacks resources.
    pub(crate) fn look(&self) -> Look {
        if self.process.is_this() {
            self.thread.look()
        } else {
            Look::Unknown
        }
    }
}
