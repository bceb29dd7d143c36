//! Where threads run.

use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The processors that this process may use.
pub(crate) fn allowed() -> io::Result<Vec<usize>> {
    let set = sched_getaffinity(None)?;
    let all = 0..CpuSet::MAX_CPU;
    Ok(all.filter(|&processor| set.is_set(processor)).collect())
}

/// Have this thread, and those that it starts, run on one processor only.
pub(crate) fn stay_on(processor: usize) -> io::Result<()> {
    let mut set = CpuSet::new();
    set.set(processor);
    Ok(sched_setaffinity(None, &set)?)
}

/// Do this on a thread that, with the processes that it starts, runs on one processor only.
pub(crate) fn on_one<T: Send>(action: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    let on_first = || {
        if let [processor, ..] = *allowed()? {
            stay_on(processor)?;
        }
        action()
    };
    let outcome = std::thread::scope(|scope| scope.spawn(on_first).join());
    outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
