//! The runtime, where no test needs a process of its own.

mod file;
mod net;
mod runtime;
mod shutdown;
mod time;
#[cfg(unix)]
mod unix;

use std::pin::Pin;
use std::task::{Context, Waker};
use std::thread;
use std::time::{Duration, Instant};

use socknotify_async::{Handle, Sleep, sleep};

/// A thread may still be in a task when `shutdown` returns.
pub(crate) fn until_it_has_ended(handle: &Handle) {
    let begin = Instant::now();
    while (handle.tasks(), handle.threads()) != (0, 0) {
        assert!(begin.elapsed() < Duration::from_secs(30), "{handle:?}");
        thread::yield_now();
    }
}

/// A timer of the current runtime in a future of anyone else's, with this waker. It waits before it is given its time: one whose
/// time has passed at its first poll keeps no waker, and this thread may be late.
pub(crate) fn sleeps_until(due: Instant, waker: &Waker) -> Sleep {
    let mut sleep = sleep(Duration::from_secs(3600));
    let poll = Pin::new(&mut sleep).poll(&mut Context::from_waker(waker));
    assert!(poll.is_pending());
    sleep.reset(due);
    sleep
}
