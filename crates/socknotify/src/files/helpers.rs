//! [`Helpers`]: threads for blocking work.

use std::collections::{BTreeMap, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use super::{Operations, system};
use crate::Error;
use crate::default_concurrency;
use crate::os::Process;
use crate::support::drops::drop_all;
use crate::support::lock::lock;

/// The default for the maximum number of threads. They sleep most of the time.
pub(crate) const DEFAULT_THREADS: usize = 32;

/// How long a thread waits for work before it ends.
const IDLE: Duration = Duration::from_secs(1);

/// The place of a job in the queue.
pub(super) type Ticket = u64;

/// A device whose files may make a thread wait for long.
pub(super) type Device = u64;

/// Something for a helper thread to do.
enum Job {
    Run(Box<dyn FnOnce() + Send>),
    /// An operation, by its key.
    Perform(Arc<Operations>, usize, Option<Device>),
}

impl Job {
    fn device(&self) -> Option<Device> {
        match self {
            Job::Run(_) => None,
            Job::Perform(_, _, device) => *device,
        }
    }
}

/// Threads that start when there is work, and end when there was none for a while.
#[derive(Clone)]
pub(crate) struct Helpers(Arc<Shared>);

struct Shared {
    /// How many threads may work at once, besides those that are known to [wait](Helpers::waits).
    at_once: usize,
    /// What a thread does first.
    prepare: fn(),
    process: Process,
    state: Mutex<State>,
    /// Signalled when there is work, or none will come any more.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    most: usize,
    queue: BTreeMap<Ticket, Job>,
    next: Ticket,
    /// What waits for other operations on the same device.
    held_back: BTreeMap<(Device, Ticket), Job>,
    /// How many threads are busy with each device.
    busy: HashMap<Device, usize>,
    threads: usize,
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

    /// Whether a device has as many threads as it may have: half of them, so that one that hangs leaves the others.
    fn is_full(&self, device: Device) -> bool {
        let share = (self.most / 2).max(1);
        self.busy.get(&device).is_some_and(|&busy| busy >= share)
    }

    fn pop(&mut self) -> Option<Job> {
        while let Some((ticket, job)) = self.queue.pop_first() {
            match job.device() {
                Some(device) if self.is_full(device) => {
                    self.held_back.insert((device, ticket), job);
                }
                device => {
                    if let Some(device) = device {
                        *self.busy.entry(device).or_default() += 1;
                    }
                    return Some(job);
                }
            }
        }
        None
    }

    /// An operation on a device is over, so that the next may begin.
    fn leave(&mut self, device: Device) {
        if let Some(busy) = self.busy.get_mut(&device) {
            *busy -= 1;
            if *busy == 0 {
                self.busy.remove(&device);
            }
        }
        self.let_next(device);
    }

    /// Queue the first operation that waits for others on this device. False if there is none.
    fn let_next(&mut self, device: Device) -> bool {
        let range = (device, 0)..=(device, Ticket::MAX);
        let next = self.held_back.range(range).next().map(|(&key, _)| key);
        let next = next.and_then(|key| self.held_back.remove_entry(&key));
        let is_any = next.is_some();
        self.queue.extend(next.map(|(key, job)| (key.1, job)));
        is_any
    }
}

impl Helpers {
    /// At most [`DEFAULT_THREADS`], until [told otherwise](Self::set_most).
    pub(crate) fn new() -> Self {
        Self::with(usize::MAX, || {})
    }

    /// Such threads for operations on files. Each copies for as long as there is work, so they leave processors to the
    /// threads of the program: as many work at once as there are processors, with a lower priority.
    pub(crate) fn for_files() -> Self {
        let at_once = match system::CAN_READ_CACHED {
            true => processors(),
            false => usize::MAX,
        };
        Self::with(at_once, system::lower_priority)
    }

    fn with(at_once: usize, prepare: fn()) -> Self {
        Helpers(Arc::new(Shared {
            at_once,
            prepare,
            process: Process::this(),
            state: Mutex::new(State {
                most: DEFAULT_THREADS,
                ..State::default()
            }),
            changed: Condvar::new(),
        }))
    }

    /// At most this many threads, and at least one.
    pub(crate) fn set_most(&self, most: usize) {
        lock(&self.0.state).most = most.max(1);
    }

    /// Queue the work that this makes for a thread. Makes nothing if the helpers are closed, in a forked child, or if
    /// there is no thread and the system starts none.
    pub(crate) fn run(&self, make: impl FnOnce() -> Box<dyn FnOnce() + Send>) -> Result<(), Error> {
        self.submit(None, || Job::Run(make())).map(drop)
    }

    /// Queue an operation for a thread. Fails if no thread will perform it.
    pub(super) fn perform(
        &self,
        of: Arc<Operations>,
        key: usize,
        device: Option<Device>,
    ) -> Result<Ticket, Error> {
        self.submit(device, || Job::Perform(of, key, device))
    }

    fn submit(&self, device: Option<Device>, make: impl FnOnce() -> Job) -> Result<Ticket, Error> {
        let shared = &self.0;
        if !shared.process.is_this() {
            return Err(Error::OtherProcess);
        }
        let mut state = lock(&shared.state);
        if state.closed {
            return Err(Error::Closed);
        }
        let ticket = state.next;
        state.next += 1;
        if let Some(device) = device.filter(|&device| state.is_full(device)) {
            state.held_back.insert((device, ticket), make());
            return Ok(ticket);
        }
        match self.start_threads(&mut state, 1) {
            // The existing threads will do it.
            Err(_) if state.threads > 0 => {}
            started => started?,
        }
        state.queue.insert(ticket, make());
        let has_room = state.working() < shared.at_once;
        drop(state);
        if has_room {
            shared.changed.notify_one();
        }
        Ok(ticket)
    }

    /// Remove a job that no thread has begun.
    pub(super) fn withdraw(&self, ticket: Ticket, device: Option<Device>) {
        let mut state = lock(&self.0.state);
        let queued = state.queue.remove(&ticket);
        let held_back = device.and_then(|device| state.held_back.remove(&(device, ticket)));
        // Those that wait for others on the device may have waited for this one.
        let queued_device = device.filter(|_| queued.is_some());
        let has_next = queued_device.is_some_and(|device| state.let_next(device));
        drop(state);
        if has_next {
            self.0.changed.notify_one();
        }
        drop((queued, held_back));
    }

    /// Start a thread if there is need, and may be one, with this much more work.
    fn start_threads(&self, state: &mut State, more: usize) -> Result<(), Error> {
        let needs = state.queue.len() + more > state.idle;
        if !needs || state.threads >= state.most || state.threads - state.waiting >= self.0.at_once
        {
            return Ok(());
        }
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

    /// This thread, one of these, is about to wait for a device: until it does no longer, another one may work.
    pub(super) fn waits(&self) -> ThreadThatWaits<'_> {
        let mut state = lock(&self.0.state);
        state.waiting += 1;
        // If there is no thread to be had, the next operation tries again.
        let _ = self.start_threads(&mut state, 0);
        let has_work = !state.queue.is_empty();
        drop(state);
        if has_work {
            self.0.changed.notify_one();
        }
        ThreadThatWaits(&self.0)
    }

    /// The number of threads.
    pub(crate) fn threads(&self) -> usize {
        match self.0.process.is_this() {
            true => lock(&self.0.state).threads,
            false => 0,
        }
    }

    /// Drop work that was not begun, and accept no more. Work that was begun continues.
    pub(crate) fn close(&self) {
        if !self.0.process.is_this() {
            return;
        }
        let mut state = lock(&self.0.state);
        state.closed = true;
        let queue = std::mem::take(&mut state.queue);
        let held_back = std::mem::take(&mut state.held_back);
        drop(state);
        self.0.changed.notify_all();
        // Without a lock: dropping work may run any code.
        drop_all(queue.into_values().chain(held_back.into_values()));
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
            let may_work = state.working() <= self.at_once || state.closed;
            if let Some(job) = may_work.then(|| state.pop()).flatten() {
                drop(state);
                let device = job.device();
                // A panic here comes from dropping a result.
                drop_all([catch_unwind(AssertUnwindSafe(|| match job {
                    Job::Run(work) => work(),
                    Job::Perform(of, key, _) => of.perform(key),
                }))]);
                state = lock(&self.state);
                if let Some(device) = device {
                    state.leave(device);
                }
                continue;
            }
            state.idle += 1;
            let (woken, waited) = self
                .changed
                .wait_timeout_while(state, IDLE, |state| {
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
        Helpers::with(2, || {})
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
        let helpers = Helpers::new();
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

    /// Of each device, half of the threads at most, in the order of the queue; and what is withdrawn is gone at once.
    #[test]
    fn a_device_has_half_of_the_threads_at_most() {
        let port = crate::CompletionPort::new().expect("a port");
        let job = |key, device| Job::Perform(Arc::clone(port.operations()), key, device);
        let mut state = State {
            most: 4,
            ..State::default()
        };
        for key in 0..4 {
            state.queue.insert(key, job(key as usize, Some(7)));
        }
        state.queue.insert(4, job(4, Some(8)));
        state.queue.insert(5, job(5, None));
        let pop = |state: &mut State| match state.pop()? {
            Job::Perform(_, key, _) => Some(key),
            Job::Run(_) => None,
        };
        let taken: Vec<_> = std::iter::from_fn(|| pop(&mut state)).collect();
        assert_eq!(taken, [0, 1, 4, 5]);
        state.leave(7);
        assert_eq!(pop(&mut state), Some(2));
        assert_eq!(pop(&mut state), None);
        let helpers = Helpers::new();
        *lock(&helpers.0.state) = state;
        assert_eq!(
            helpers.perform(Arc::clone(port.operations()), 9, Some(7)),
            Ok(0)
        );
        helpers.withdraw(0, Some(7));
        helpers.withdraw(3, Some(7));
        assert!(lock(&helpers.0.state).held_back.is_empty());
        assert_eq!(helpers.threads(), 0, "nobody could begin it");
    }

    /// It would wait for one that has ended before it began.
    #[test]
    fn o5_what_waits_for_a_device_goes_on_when_the_one_before_it_is_withdrawn() {
        let port = crate::CompletionPort::new().expect("a port");
        let job = |key| Job::Perform(Arc::clone(port.operations()), key, Some(7));
        let mut state = State {
            most: 2,
            ..State::default()
        };
        for key in 0..3 {
            state.queue.insert(key, job(key as usize));
        }
        assert!(state.pop().is_some() && state.pop().is_none());
        state.leave(7);
        let helpers = Helpers::new();
        *lock(&helpers.0.state) = state;
        helpers.withdraw(1, Some(7));
        let state = lock(&helpers.0.state);
        assert!(state.queue.contains_key(&2) && state.held_back.is_empty());
    }

    #[cfg(target_os = "linux")]
    #[test]
    #[allow(unsafe_code, reason = "a call without pointers")]
    fn threads_for_files_have_a_lower_priority() -> Result<(), Error> {
        // SAFETY: no argument is a pointer.
        let priority = || unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
        let ours = priority();
        for (helpers, expected) in [
            (Helpers::new(), ours),
            (Helpers::for_files(), (ours + 10).min(19)),
        ] {
            let (send, receive) = mpsc::channel();
            helpers.run(|| Box::new(move || send.send(priority()).expect("the test waits")))?;
            assert_eq!(receive.recv_timeout(LONG), Ok(expected));
        }
        assert_eq!(priority(), ours);
        Ok(())
    }
}
