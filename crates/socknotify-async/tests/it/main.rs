//! The runtime, where no test needs a process of its own.

mod file;
mod net;
mod runtime;
mod shutdown;
mod time;
#[cfg(unix)]
mod unix;

use std::thread;
use std::time::{Duration, Instant};

use socknotify_async::Handle;

/// A thread may still be in a task when `shutdown` returns.
pub(crate) fn until_it_has_ended(handle: &Handle) {
    let begin = Instant::now();
    while (handle.tasks(), handle.threads()) != (0, 0) {
        assert!(begin.elapsed() < Duration::from_secs(30), "{handle:?}");
        thread::yield_now();
    }
}
