//! [`ThreadState`]: whether a thread of this process runs or sleeps, read by another thread.

#[cfg(target_vendor = "apple")]
mod apple;
#[cfg(all(target_os = "linux", not(any(interleavings, simulated))))]
mod linux;
#[cfg(any(target_os = "freebsd", target_os = "netbsd"))]
mod listed;
#[cfg(simulated)]
mod simulated;
#[cfg(any(
    all(target_os = "linux", interleavings),
    target_os = "openbsd",
    target_os = "dragonfly"
))]
mod unknown;

#[cfg(target_vendor = "apple")]
use self::apple::Thread;
#[cfg(all(target_os = "linux", not(any(interleavings, simulated))))]
use self::linux::Thread;
#[cfg(any(target_os = "freebsd", target_os = "netbsd"))]
use self::listed::Thread;
#[cfg(simulated)]
use self::simulated::Thread;
#[cfg(any(
    all(target_os = "linux", interleavings),
    target_os = "openbsd",
    target_os = "dragonfly"
))]
use self::unknown::Thread;
#[cfg(unix)]
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

/// What is needed to see what one thread does.
#[derive(Debug)]
pub(crate) struct ThreadState {
    #[cfg(unix)]
    process: Process,
    #[cfg(unix)]
    thread: Thread,
}

impl ThreadState {
    /// Of the calling thread.
    pub(crate) fn of_this() -> Self {
        #[cfg(unix)]
        let process = Process::this();
        ThreadState {
            #[cfg(unix)]
            process,
            #[cfg(unix)]
            thread: Thread::this(process),
        }
    }

    /// What people know the thread by, and what it is in now.
    pub(crate) fn describe(&self) -> Description {
        #[cfg(all(target_os = "linux", not(interleavings)))]
        if self.process.is_this() {
            return self.thread.describe();
        }
        Description::default()
    }

    /// Whether it is known to have ended. This opens nothing.
    pub(crate) fn has_ended(&self) -> bool {
        #[cfg(all(target_os = "linux", not(interleavings)))]
        if self.process.is_this() {
            return self.thread.has_ended();
        }
        cfg!(any(interleavings, not(target_os = "linux"))) && self.activity() == Activity::Ended
    }

    /// What the thread does now. [`Unknown`](Activity::Unknown) in a forked child.
    pub(crate) fn activity(&self) -> Activity {
        #[cfg(unix)]
        if self.process.is_this() {
            return self.thread.activity();
        }
        Activity::Unknown
    }
}
