//! [`Helpers`]: threads for blocking work.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use crate::Error;
use crate::drops::drop_all;
use crate::lock::lock;
use crate::sys::Process;

/// The default for the maximum number of threads. They sleep most of the time.
pub(crate) const DEFAULT_THREADS: usize = 32;

/// How long a thread usually waits for work before it ends.
const IDLE: Duration = Duration::from_secs(1);

/// Something for a helper thread to do.
enum Job {
    Run(Box<dyn FnOnce() + Send>),
    /// An operation, by its key.
    Perform(Arc<dyn Perform>, usize),
}

/// Knows what to do for a key.
pub(crate) trait Perform: Send + Sync {
    fn perform(&self, key: usize) -> Performed;
}

/// What a thread has done with an operation.
pub(crate) enum Performed {
    Done,
    /// It may never end, and [as many as there may be](Helpers::apart) are performed already.
    NotYet,
}

/// Threads that start when there is work, and end when there was none for a while.
#[derive(Clone)]
pub(crate) struct Helpers(Arc<Shared>);

struct Shared {
    most: usize,
    /// How long a thread waits for work before it ends.
    idle: Duration,
    process: Process,
    state: Mutex<State>,
    /// Signalled when there is work, or none will come any more.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Job>,
    /// Operations that may never end, and wait for one of those to end.
    later: VecDeque<Job>,
    /// Without those that may never come back.
    threads: usize,
    /// Threads that may never come back.
    apart: usize,
    /// Threads that wait, and have no work assigned.
    idle: usize,
    closed: bool,
}

/// Counts the threads that perform operations, so that closing can wait for them.
#[derive(Default)]
pub(super) struct Gate {
    state: Mutex<GateState>,
    left: Condvar,
}

#[derive(Default)]
struct GateState {
    inside: usize,
    closed: bool,
}

/// A thread that is inside.
pub(super) struct Entered<'a>(&'a Gate);

impl Gate {
    /// `None` if it is closed.
    pub(super) fn enter(&self) -> Option<Entered<'_>> {
        let mut state = lock(&self.state);
        (!state.closed).then(|| {
            state.inside += 1;
            Entered(self)
        })
    }

    pub(super) fn is_closed(&self) -> bool {
        lock(&self.state).closed
    }

    /// Let no thread in any more, and wait until none is inside.
    pub(super) fn close(&self) {
        let mut state = lock(&self.state);
        state.closed = true;
        while state.inside > 0 {
            state = self
                .left
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        lock(&self.0.state).inside -= 1;
        self.0.left.notify_all();
    }
}

impl Helpers {
    /// At most this many threads, and at least one.
    pub(crate) fn new(most: usize) -> Self {
        Self::with_idle(most, IDLE)
    }

    /// Such threads that wait this long for work before they end.
    pub(super) fn with_idle(most: usize, idle: Duration) -> Self {
        Helpers(Arc::new(Shared {
            most: most.max(1),
            idle,
            process: Process::this(),
            state: Mutex::default(),
            changed: Condvar::new(),
        }))
    }

    /// Queue the work that this makes for a thread. Makes nothing if the helpers are closed, in a forked child, or if
    /// there is no thread and the system starts none.
    pub(crate) fn run(&self, make: impl FnOnce() -> Box<dyn FnOnce() + Send>) -> Result<(), Error> {
        self.submit(|| Job::Run(make()))
    }

    /// Queue an operation for a thread. Fails if no thread will perform it.
    pub(crate) fn perform(&self, of: Arc<dyn Perform>, key: usize) -> Result<(), Error> {
        self.submit(|| Job::Perform(of, key))
    }

    fn submit(&self, make: impl FnOnce() -> Job) -> Result<(), Error> {
        let shared = &self.0;
        if !shared.process.is_this() {
            return Err(Error::OtherProcess);
        }
        let mut state = lock(&shared.state);
        if state.closed {
            return Err(Error::Closed);
        }
        if state.queue.len() >= state.idle && state.threads < shared.most {
            match self.start_thread(&mut state) {
                // The existing threads will do it.
                Err(_) if state.threads > 0 => {}
                started => started?,
            }
        }
        state.queue.push_back(make());
        drop(state);
        shared.changed.notify_one();
        Ok(())
    }

    fn start_thread(&self, state: &mut State) -> Result<(), Error> {
        let this = Arc::clone(&self.0);
        let builder = thread::Builder::new().name("socknotify-helper".to_owned());
        match builder.spawn(move || this.serve()) {
            Ok(_) => {
                state.threads += 1;
                Ok(())
            }
            Err(error) => Err(error.raw_os_error().map_or(Error::OutOfMemory, Error::Os)),
        }
    }

    /// What this thread, one of these, does from here on may never end: until it does, another one may take its place.
    /// `None` if as many do so already as there may be threads.
    pub(super) fn apart(&self) -> Option<ThreadApart<'_>> {
        let shared = &*self.0;
        let mut state = lock(&shared.state);
        if state.apart == shared.most {
            return None;
        }
        state.apart += 1;
        state.threads -= 1;
        if state.queue.len() > state.idle && state.threads < shared.most {
            // If there is none to be had, the next operation tries again.
            let _ = self.start_thread(&mut state);
        }
        Some(ThreadApart(shared))
    }

    /// The number of threads.
    pub(crate) fn threads(&self) -> usize {
        if !self.0.process.is_this() {
            return 0;
        }
        let state = lock(&self.0.state);
        state.threads + state.apart
    }

    /// Drop work that was not begun, and accept no more. Work that was begun continues.
    pub(crate) fn close(&self) {
        if !self.0.process.is_this() {
            return;
        }
        let mut state = lock(&self.0.state);
        state.closed = true;
        let queues = [
            std::mem::take(&mut state.queue),
            std::mem::take(&mut state.later),
        ];
        drop(state);
        self.0.changed.notify_all();
        // Without a lock: dropping work may run any code.
        drop_all(queues.into_iter().flatten());
    }
}

/// A thread that may never come back.
pub(super) struct ThreadApart<'a>(&'a Shared);

impl Drop for ThreadApart<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        state.apart -= 1;
        state.threads += 1;
        if let Some(next) = state.later.pop_front() {
            state.queue.push_back(next);
            self.0.changed.notify_one();
        }
    }
}

impl Shared {
    /// The loop of a helper thread.
    fn serve(&self) {
        let mut state = lock(&self.state);
        loop {
            if let Some(job) = state.queue.pop_front() {
                drop(state);
                // A panic here comes from dropping a result.
                let outcome = catch_unwind(AssertUnwindSafe(|| match job {
                    Job::Run(work) => {
                        work();
                        None
                    }
                    Job::Perform(of, key) => match of.perform(key) {
                        Performed::Done => None,
                        Performed::NotYet => Some(Job::Perform(of, key)),
                    },
                }));
                state = lock(&self.state);
                match outcome {
                    // It is closed, or one has ended meanwhile.
                    Ok(Some(job)) if state.closed || state.apart < self.most => {
                        state.queue.push_back(job);
                    }
                    Ok(Some(job)) => state.later.push_back(job),
                    _ => {}
                }
                if state.threads <= self.most {
                    continue;
                }
                // It has come back, and another one has its place.
                state.threads -= 1;
                return;
            }
            state.idle += 1;
            let (woken, waited) = self
                .changed
                .wait_timeout_while(state, self.idle, |state| {
                    state.queue.is_empty() && !state.closed
                })
                .unwrap_or_else(PoisonError::into_inner);
            state = woken;
            state.idle -= 1;
            if state.queue.is_empty() && (state.closed || waited.timed_out()) {
                state.threads -= 1;
                return;
            }
        }
    }
}
