//! What one thread of this process does, seen from another thread.
//!
//! It tells a holder of a place that has blocked from one that computes.

use super::Process;
#[cfg(unix)]
use super::unix::thread_state::Thread;
#[cfg(windows)]
use super::windows::thread_state::Thread;

#[cfg(test)]
pub(super) mod tests;

/// In a few words, how the system shows what a thread does. `None` if it does not.
pub(crate) const METHOD: Option<&str> = Thread::METHOD;

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

/// What a thread has done since the last [glance](ThreadState::glance).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    not(target_os = "linux"),
    allow(dead_code, reason = "no other system shows this for less than a look")
)]
pub(crate) enum Glance {
    /// It has had a processor most of the time.
    Computed,
    /// It has had none.
    StoodStill,
    /// Anything else, or nothing can be seen.
    Unknown,
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
    pub(crate) fn glance(&self) -> Glance {
        if self.process.is_this() {
            self.thread.glance()
        } else {
            Glance::Unknown
        }
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
