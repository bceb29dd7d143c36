//! [`Helpers`]: threads for blocking work.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use super::request::Apart;
use super::system;
use crate::Error;
use crate::default_concurrency;
use crate::drops::drop_all;
use crate::lock::lock;
use crate::sys::Process;

/// The default for the maximum number of threads. They sleep most of the time.
pub(crate) const DEFAULT_THREADS: usize = 32;

/// How long a thread usually waits for work before it ends.
const IDLE: Duration = Duration::from_secs(1);

/// How many operations that were cancelled stay in the queue in any case.
const WITHDRAWN: usize = 64;

/// Something for a helper thread to do.
enum Job {
    Run(Box<dyn FnOnce() + Send>),
    /// An operation, by its key.
    Perform(Arc<dyn Perform>, usize),
}

impl Job {
    fn key(&self) -> Option<usize> {
        match self {
            Job::Run(_) => None,
            Job::Perform(_, key) => Some(*key),
        }
    }
}

/// Knows what to do for a key.
pub(crate) trait Perform: Send + Sync {
    fn perform(&self, key: usize) -> Performed;

    /// The result of an operation that was performed [apart](Performed::Apart).
    fn performed_apart(&self, _key: usize, _result: io::Result<Vec<u8>>) {}
}

/// What a thread has done with an operation.
pub(crate) enum Performed {
    Done,
    /// It may never end: the thread performs it by itself, and keeps nothing of the port meanwhile.
    Apart(ThreadApart, Apart),
    /// It may never end, and [as many as there may be](Helpers::apart) are performed already.
    NotYet,
}

/// Threads that start when there is work, and end when there was none for a while.
#[derive(Clone)]
pub(crate) struct Helpers(Arc<Shared>);

struct Shared {
    most: usize,
    /// How many threads may work at once, besides those that are known to [wait](Helpers::waits).
    at_once: usize,
    /// What a thread does first.
    prepare: fn(),
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
    /// About how many operations in the queues were cancelled.
    withdrawn: usize,
    /// Without those that may never come back.
    threads: usize,
    /// Threads that may never come back.
    apart: usize,
    /// Threads that have nothing to do.
    idle: usize,
    /// Threads that wait for a device.
    waiting: usize,
    closed: bool,
}

impl State {
    /// How many threads work, or are about to.
    fn working(&self) -> usize {
        self.threads - self.idle - self.waiting
    }
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
        Self::with(most, usize::MAX, IDLE, || {})
    }

    /// Such threads for operations on files. Each copies for as long as there is work, so they leave processors to the
    /// threads of the program: as many work at once as there are processors, with a lower priority.
    pub(crate) fn for_files(most: usize) -> Self {
        let at_once = match system::CAN_READ_CACHED {
            true => processors(),
            false => usize::MAX,
        };
        Self::with(most, at_once, IDLE, system::lower_priority)
    }

    /// One thread that ends when it had no work for this long. With the program's priority: it holds locks that a socket's
    /// thread wants, and with a lower one it would hold them without a processor.
    #[cfg_attr(windows, allow(dead_code, reason = "for rings"))]
    pub(super) fn one(idle: Duration) -> Self {
        Self::with(1, 1, idle, || {})
    }

    fn with(most: usize, at_once: usize, idle: Duration, prepare: fn()) -> Self {
        Helpers(Arc::new(Shared {
            most: most.max(1),
            at_once,
            prepare,
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
        match self.start_threads(&mut state, 1) {
            // The existing threads will do it.
            Err(_) if state.threads > 0 => {}
            started => started?,
        }
        state.queue.push_back(make());
        let has_room = state.working() < shared.at_once;
        drop(state);
        if has_room {
            shared.changed.notify_one();
        }
        Ok(())
    }

    /// Start a thread if there is need, and may be one, with this much more work.
    fn start_threads(&self, state: &mut State, more: usize) -> Result<(), Error> {
        let Shared { most, at_once, .. } = *self.0;
        let needs = state.queue.len() + more > state.idle;
        match needs && state.threads < most && state.threads - state.waiting < at_once {
            true => self.start_thread(state),
            false => Ok(()),
        }
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
    pub(super) fn apart(&self) -> Option<ThreadApart> {
        let mut state = lock(&self.0.state);
        if state.apart == self.0.most {
            return None;
        }
        state.apart += 1;
        state.threads -= 1;
        self.replace(state);
        Some(ThreadApart(Arc::clone(&self.0)))
    }

    /// This thread, one of these, is about to wait for a device: until it does no longer, another one may work.
    pub(super) fn waits(&self) -> ThreadThatWaits<'_> {
        let mut state = lock(&self.0.state);
        state.waiting += 1;
        self.replace(state);
        ThreadThatWaits(&self.0)
    }

    /// A thread does not work any more: if there is work, another one does.
    fn replace(&self, mut state: MutexGuard<'_, State>) {
        // If there is none to be had, the next operation tries again.
        let _ = self.start_threads(&mut state, 0);
        let has_work = !state.queue.is_empty();
        drop(state);
        if has_work {
            self.0.changed.notify_one();
        }
    }

    /// A queued operation was cancelled. When these are the most, they are removed.
    pub(super) fn on_withdrawn(&self, is_over: impl Fn(usize) -> bool) {
        let mut state = lock(&self.0.state);
        let queued = state.queue.len() + state.later.len();
        state.withdrawn += 1;
        if state.withdrawn < WITHDRAWN || state.withdrawn < queued / 2 {
            return;
        }
        state.withdrawn = 0;
        let jobs = state.queue.iter().chain(&state.later);
        let mut over: Vec<_> = jobs.filter_map(Job::key).collect();
        drop(state);
        // Without the lock: whether an operation is over is known in its slot, which may be locked for long. One that is
        // over stays over.
        over.retain(|&key| is_over(key));
        over.sort_unstable();
        let is_among = |job: &Job| {
            job.key()
                .is_some_and(|key| over.binary_search(&key).is_ok())
        };
        let mut guard = lock(&self.0.state);
        let State { queue, later, .. } = &mut *guard;
        let removed = [queue, later].map(|queue| {
            let (removed, left): (VecDeque<_>, _) =
                std::mem::take(queue).into_iter().partition(is_among);
            *queue = left;
            removed
        });
        drop(guard);
        drop_all(removed.into_iter().flatten());
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
pub(crate) struct ThreadApart(Arc<Shared>);

impl Drop for ThreadApart {
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

/// How many processors there are, which takes reading several files to find out.
///
/// Nobody waits for another thread to find out: a child that is forked meanwhile does not have that thread.
fn processors() -> usize {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    match COUNT.load(Ordering::Relaxed) {
        0 => {
            let count = default_concurrency();
            COUNT.store(count, Ordering::Relaxed);
            count
        }
        count => count,
    }
}

/// A thread that waits for a device.
pub(super) struct ThreadThatWaits<'a>(&'a Shared);

impl Drop for ThreadThatWaits<'_> {
    fn drop(&mut self) {
        lock(&self.0.state).waiting -= 1;
    }
}

impl Shared {
    /// The loop of a helper thread.
    fn serve(&self) {
        (self.prepare)();
        let mut state = lock(&self.state);
        loop {
            let job = match state.working() > self.at_once && !state.closed {
                true => None,
                false => state.queue.pop_front(),
            };
            if let Some(job) = job {
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
                        Performed::Apart(_thread, apart) => {
                            let port = Arc::downgrade(&of);
                            drop(of);
                            let result = apart.read();
                            if let Some(of) = port.upgrade() {
                                of.performed_apart(key, result);
                            }
                            None
                        }
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
                    !state.closed && (state.queue.is_empty() || state.working() >= self.at_once)
                })
                .unwrap_or_else(PoisonError::into_inner);
            state = woken;
            state.idle -= 1;
            if waited.timed_out() || state.closed && state.queue.is_empty() {
                state.threads -= 1;
                return;
            }
        }
    }
}

#[cfg(all(test, not(interleavings)))]
mod tests {
    use std::sync::mpsc;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn two_at_once() -> Helpers {
        Helpers::with(32, 2, IDLE, || {})
    }

    #[test]
    fn no_more_threads_start_than_may_work_at_once() -> Result<(), Error> {
        let helpers = two_at_once();
        let (release, wait) = mpsc::channel::<()>();
        let wait = Arc::new(Mutex::new(wait));
        let (done, ended) = mpsc::channel();
        for _ in 0..10 {
            let (wait, done) = (Arc::clone(&wait), done.clone());
            helpers.run(|| {
                Box::new(move || {
                    let _ = lock(&wait).recv();
                    let _ = done.send(());
                })
            })?;
            assert!(helpers.threads() <= 2);
        }
        drop(release);
        for _ in 0..10 {
            ended.recv_timeout(LONG).expect("all work is done");
        }
        assert!(helpers.threads() <= 2);
        Ok(())
    }

    #[test]
    fn o2_a_thread_is_started_for_work_that_waits_only() -> Result<(), Error> {
        let helpers = Helpers::with(32, 32, LONG, || {});
        assert_eq!(helpers.threads(), 0);
        for _ in 0..40 {
            let (done, ended) = mpsc::channel();
            helpers.run(|| Box::new(move || done.send(()).expect("it is awaited")))?;
            ended.recv_timeout(LONG).expect("it is done");
            let begin = std::time::Instant::now();
            while lock(&helpers.0.state).idle == 0 {
                assert!(begin.elapsed() < LONG);
                std::thread::yield_now();
            }
            assert_eq!(helpers.threads(), 1);
        }
        helpers.close();
        Ok(())
    }

    #[test]
    fn others_work_while_threads_wait_for_a_device() -> Result<(), Error> {
        let helpers = two_at_once();
        let (release, wait) = mpsc::channel::<()>();
        let wait = Arc::new(Mutex::new(wait));
        let (done, ended) = mpsc::channel();
        // The last one ends the wait of the others.
        let mut release = Some(release);
        for number in 0..10 {
            let release = release.take_if(|_| number == 9);
            let (this, wait, done) = (helpers.clone(), Arc::clone(&wait), done.clone());
            helpers.run(|| {
                Box::new(move || {
                    if number < 9 {
                        let _waits = this.waits();
                        let _ = lock(&wait).recv();
                    }
                    drop(release);
                    let _ = done.send(());
                })
            })?;
        }
        for _ in 0..10 {
            ended.recv_timeout(LONG).expect("all work is done");
        }
        // Those that are back are not too many for the next.
        for _ in 0..100 {
            let done = done.clone();
            helpers.run(|| Box::new(move || done.send(()).expect("the test waits")))?;
            ended.recv_timeout(LONG).expect("it is done");
        }
        Ok(())
    }

    #[test]
    fn operations_that_were_cancelled_leave_the_queue() -> Result<(), Error> {
        struct Nothing;

        impl Perform for Nothing {
            fn perform(&self, _: usize) -> Performed {
                Performed::Done
            }
        }

        const COUNT: usize = 10_000;
        let helpers = Helpers::new(1);
        // The only thread is busy.
        let (release, wait) = mpsc::channel::<()>();
        helpers.run(|| Box::new(move || assert!(wait.recv().is_err())))?;
        helpers.run(|| Box::new(|| ()))?;
        let nothing = Arc::new(Nothing);
        let stays = |key| key % 100 == 0;
        for key in 0..COUNT {
            helpers.perform(Arc::clone(&nothing) as _, key)?;
            if !stays(key) {
                helpers.on_withdrawn(|key| !stays(key));
            }
            let queued = lock(&helpers.0.state).queue.len();
            assert!(queued <= 2 * (WITHDRAWN + COUNT / 100), "{queued}");
        }
        for _ in 0..2 * COUNT {
            helpers.on_withdrawn(|key| !stays(key));
        }
        let left: Vec<_> = lock(&helpers.0.state).queue.iter().map(Job::key).collect();
        let keys = (0..COUNT).filter(|&key| stays(key)).map(Some);
        // What is no operation stays as well. The thread may have taken the first one or not.
        assert_eq!(left[left.len() - COUNT / 100..], keys.collect::<Vec<_>>());
        assert!(left[..left.len() - COUNT / 100].iter().all(Option::is_none));
        assert_eq!(Arc::strong_count(&nothing), 1 + COUNT / 100);
        helpers.close();
        drop(release);
        Ok(())
    }

    #[cfg(target_os = "linux")]
    #[test]
    #[allow(unsafe_code, reason = "a call without pointers")]
    fn threads_for_files_have_a_lower_priority_and_the_pump_has_not() -> Result<(), Error> {
        // SAFETY: no argument is a pointer.
        let priority = || unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
        let ours = priority();
        for (helpers, expected) in [
            (Helpers::new(1), ours),
            (Helpers::for_files(1), (ours + 10).min(19)),
            // The pump holds the ring's locks: who waits for them must not wait for others first.
            (Helpers::one(IDLE), ours),
        ] {
            let (send, receive) = mpsc::channel();
            helpers.run(|| Box::new(move || send.send(priority()).expect("the test waits")))?;
            assert_eq!(receive.recv_timeout(LONG), Ok(expected));
        }
        assert_eq!(priority(), ours);
        Ok(())
    }
}
