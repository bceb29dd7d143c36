//! Where threads run.

use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Have this thread, and the threads and processes that it starts, run on the first of its processors only.
pub(crate) fn stay_on_first() -> io::Result<()> {
    stay_on(first(&sched_getaffinity(None)?))
}

fn stay_on(processor: usize) -> io::Result<()> {
    let mut set = CpuSet::new();
    set.set(processor);
    Ok(sched_setaffinity(None, &set)?)
}

/// This thread's processors, divided between a server and its client.
pub(crate) struct Apart(CpuSet);

impl Apart {
    /// Have this thread, and the processes that it starts, run on all but the first: they are the client's.
    pub(crate) fn new() -> io::Result<Self> {
        let all = sched_getaffinity(None)?;
        let mut rest = all;
        rest.unset(first(&all));
        if rest.count() == 0 {
            return Err(io::Error::other("it needs two processors"));
        }
        sched_setaffinity(None, &rest)?;
        Ok(Apart(all))
    }

    /// Have it, and the threads that it starts, run on the first: they are the server.
    pub(crate) fn serve(&self) -> io::Result<()> {
        stay_on(first(&self.0))
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        let _ = sched_setaffinity(None, &self.0);
    }
}

fn first(set: &CpuSet) -> usize {
    let mut all = 0..CpuSet::MAX_CPU;
    all.find(|&it| set.is_set(it)).unwrap_or_default()
}
