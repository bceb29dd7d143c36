//! Where threads run.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The processors that this process may use.
fn allowed() -> io::Result<Vec<usize>> {
    let set = sched_getaffinity(None)?;
    let all = 0..CpuSet::MAX_CPU;
    Ok(all.filter(|&processor| set.is_set(processor)).collect())
}

/// Have this thread, and those that it starts, run on one processor only.
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

/// Do this with every item, on a thread for each processor, which stays there with the processes that it starts. The
/// results are in the order of the items.
pub(crate) fn on_each<I: Sync, T: Send>(
    items: &[I],
    action: impl Fn(&I) -> io::Result<T> + Sync,
) -> io::Result<Vec<T>> {
    let (next, action) = (AtomicUsize::new(0), &action);
    let next = || {
        let index = next.fetch_add(1, Ordering::Relaxed);
        items.get(index).map(|item| (index, item))
    };
    let work = |processor| -> io::Result<Vec<(usize, T)>> {
        stay_on(processor)?;
        std::iter::from_fn(next)
            .map(|(index, item)| Ok((index, action(item)?)))
            .collect()
    };
    let work = &work;
    let processors = allowed()?.into_iter().take(items.len());
    let outcomes: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = processors
            .map(|processor| scope.spawn(move || work(processor)))
            .collect();
        threads.into_iter().map(|thread| thread.join()).collect()
    });
    let mut results = Vec::with_capacity(items.len());
    for outcome in outcomes {
        results.extend(outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
    }
    results.sort_by_key(|&(index, _)| index);
    Ok(results.into_iter().map(|(_, result)| result).collect())
}
