//! [`ThreadState`]: whether a thread of this process runs or sleeps, read by another thread.

#[cfg_attr(
    all(target_os = "linux", not(any(interleavings, simulated))),
    path = "thread_state/linux.rs"
)]
#[cfg_attr(target_vendor = "apple", path = "thread_state/apple.rs")]
#[cfg_attr(
    any(target_os = "freebsd", target_os = "netbsd"),
    path = "thread_state/listed.rs"
)]
#[cfg_attr(simulated, path = "thread_state/simulated.rs")]
mod unknown;

use self::unknown::Thread;
use super::Process;

#[cfg(all(test, not(interleavings)))]
mod tests;

/// Whether this system shows what a thread does.
#[cfg(all(test, not(interleavings)))]
const IS_SHOWN: bool = cfg!(not(any(
    windows,
    target_os = "openbsd",
    target_os = "dragonfly"
)));

/// What a thread does, as far as the system shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    windows,
    allow(
        dead_code,
        reason = "Windows shows this only in a list of all processes' threads"
    )
)]
pub(crate) enum Activity {
    /// It runs, waits for a processor, or is stopped, for instance by a debugger.
    Running,
    /// It sleeps in the kernel.
    Asleep,
    /// It has ended.
    Ended,
    /// Nothing can be seen.
    Unknown,
}

pub(crate) use crate::values::snapshot::Description;

/// A thread, as the system shows it.
trait Look {
    fn activity(&self) -> Activity;

    /// Whether it is known to have ended. This opens nothing.
    fn has_ended(&self) -> bool {
        self.activity() == Activity::Ended
    }

    /// What people know it by, and what it is in now.
    fn describe(&self) -> Description {
        Description::default()
    }
}

/// What is needed to see what one thread does.
#[derive(Debug)]
pub(crate) struct ThreadState {
    process: Process,
    thread: Thread,
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

    /// Whether it can be looked at. A forked child sees nothing of its parent's.
    fn seen(&self) -> Option<&Thread> {
        self.process.is_this().then_some(&self.thread)
    }

    /// What people know the thread by, and what it is in now.
    pub(crate) fn describe(&self) -> Description {
        self.seen().map(Look::describe).unwrap_or_default()
    }

    /// Whether it is known to have ended. This opens nothing.
    pub(crate) fn has_ended(&self) -> bool {
        self.seen().is_some_and(Look::has_ended)
    }

    /// What the thread does now. [`Unknown`](Activity::Unknown) in a forked child.
    pub(crate) fn activity(&self) -> Activity {
        self.seen().map_or(Activity::Unknown, Look::activity)
    }
}
