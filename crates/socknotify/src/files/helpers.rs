//! [`Helpers`]: threads for blocking work.

use std::cell::Cell;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use super::{Operations, system};
use crate::Error;
use crate::default_concurrency;
use crate::os::Process;
use crate::support::burst;
use crate::support::drops::drop_all;
use crate::support::lock::lock;

/// The default for the maximum number of threads. They sleep most of the time.
pub(crate) const DEFAULT_THREADS: usize = 32;

/// How long a thread waits for work before it ends.
const IDLE: Duration = Duration::from_secs(1);

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

    /// Not of an operation that was cancelled.
    fn is_due(&self) -> bool {
        match self {
            Job::Run(_) => true,
            Job::Perform(of, key, _) => of.has(*key),
        }
    }
}

/// Threads that start when there is work, and end when there was none for a while.
#[derive(Clone)]
pub(crate) struct Helpers(Arc<Shared>);

struct Shared {
    /// How many threads may work at once, besides those that are known to wait for a device. Not known before there is work: it
    /// takes reading several files to find out.
    at_once: fn() -> usize,
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
    /// 0 until there is work.
    at_once: usize,
    queue: VecDeque<Job>,
    devices: HashMap<Device, DeviceQueue>,
    threads: usize,
    /// Threads that have nothing to do.
    idle: usize,
    /// Threads that wait for a device.
    waiting: usize,
    closed: bool,
}

/// The operations on a device.
#[derive(Default)]
struct DeviceQueue {
    /// How many are queued for a thread, or have one.
    admitted: usize,
    /// What waits for these.
    rest: VecDeque<Job>,
}

impl State {
    /// How many threads work, or are about to.
    fn working(&self) -> usize {
        self.threads - self.idle - self.waiting
    }

    /// How many operations on a device are admitted: half as many as there may be threads, so that one that hangs leaves
    /// the others.
    fn share(&self) -> usize {
        (self.most / 2).max(1)
    }

    fn is_full(&self, device: Device) -> bool {
        let of_device = self.devices.get(&device);
        of_device.is_some_and(|it| it.admitted >= self.share())
    }

    fn push(&mut self, job: Job) {
        if let Some(device) = job.device() {
            let share = self.share();
            let of_device = self.devices.entry(device).or_default();
            if of_device.admitted >= share {
                return burst::push(&mut of_device.rest, job, Job::is_due);
            }
            of_device.admitted += 1;
        }
        burst::push(&mut self.queue, job, |job| {
            job.device().is_some() || job.is_due()
        });
    }

    /// An operation on a device is over, so that the next may begin.
    fn leave(&mut self, device: Device) {
        let Entry::Occupied(mut of_device) = self.devices.entry(device) else {
            return;
        };
        match burst::pop(&mut of_device.get_mut().rest) {
            Some(next) => self.queue.push_back(next),
            None => {
                of_device.get_mut().admitted -= 1;
                if of_device.get().admitted == 0 {
                    of_device.remove();
                }
            }
        }
    }
}

impl Helpers {
    /// At most this many threads, and at least one.
    pub(crate) fn new(most: usize) -> Self {
        let helpers = Self::with(|| usize::MAX, || {});
        helpers.set_most(most);
        helpers
    }

    /// Such threads for operations on files. Each copies for as long as there is work, so they leave processors to the
    /// threads of the program: as many work at once as there are processors, with a lower priority.
    pub(crate) fn for_files() -> Self {
        let at_once = match system::CAN_READ_CACHED {
            true => default_concurrency,
            false => || usize::MAX,
        };
        Self::with(at_once, system::lower_priority)
    }

    fn with(at_once: fn() -> usize, prepare: fn()) -> Self {
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
        self.submit(None, || Job::Run(make()))
    }

    /// Queue an operation for a thread. Fails if no thread will perform it.
    pub(super) fn perform(
        &self,
        of: Arc<Operations>,
        key: usize,
        device: Option<Device>,
    ) -> Result<(), Error> {
        self.submit(device, || Job::Perform(of, key, device))
    }

    fn submit(&self, device: Option<Device>, make: impl FnOnce() -> Job) -> Result<(), Error> {
        let shared = &self.0;
        if !shared.process.is_this() {
            return Err(Error::OtherProcess);
        }
        let mut state = lock(&shared.state);
        if state.closed {
            return Err(Error::Closed);
        }
        if state.at_once == 0 {
            state.at_once = (shared.at_once)();
        }
        let waits = device.is_some_and(|device| state.is_full(device));
        if !waits {
            match shared.start_thread(&mut state, 1) {
                // The existing threads will do it.
                Err(_) if state.threads > 0 => {}
                started => started?,
            }
        }
        state.push(make());
        let has_room = !waits && state.working() < state.at_once;
        drop(state);
        if has_room {
            shared.changed.notify_one();
        }
        Ok(())
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
        let devices = std::mem::take(&mut state.devices);
        drop(state);
        self.0.changed.notify_all();
        // Without a lock: dropping work may run any code.
        drop_all(
            queue
                .into_iter()
                .chain(devices.into_values().flat_map(|it| it.rest)),
        );
    }
}

impl Shared {
    /// Start a thread if there is need, and may be one, with this much more work.
    fn start_thread(self: &Arc<Self>, state: &mut State, more: usize) -> Result<(), Error> {
        let needs = state.queue.len() + more > state.idle;
        if !needs || state.threads >= state.most || state.threads - state.waiting >= state.at_once {
            return Ok(());
        }
        let this = Arc::clone(self);
        let builder = thread::Builder::new().name("socknotify-helper".to_owned());
        match builder.spawn(move || this.serve()) {
            Ok(_) => {
                state.threads += 1;
                Ok(())
            }
            Err(error) => Err(error.raw_os_error().map_or(Error::OutOfMemory, Error::Os)),
        }
    }

    /// This thread is about to wait for a device: until its work is done, another one may work.
    fn wait(self: &Arc<Self>) {
        let mut state = lock(&self.state);
        state.waiting += 1;
        // If there is no thread to be had, who takes the next work tries again.
        let _ = self.start_thread(&mut state, 0);
        let has_work = !state.queue.is_empty();
        drop(state);
        if has_work {
            self.changed.notify_one();
        }
    }

    /// The loop of a helper thread.
    fn serve(self: &Arc<Self>) {
        (self.prepare)();
        let mut state = lock(&self.state);
        loop {
            let may_work = state.working() <= state.at_once || state.closed;
            if let Some(job) = may_work.then(|| burst::pop(&mut state.queue)).flatten() {
                // The system may have refused a thread for what is left.
                let _ = self.start_thread(&mut state, 0);
                drop(state);
                let device = job.device();
                let waits = Cell::new(false);
                let wait = || {
                    if !waits.replace(true) {
                        self.wait();
                    }
                };
                // A panic here comes from dropping a result.
                drop_all([catch_unwind(AssertUnwindSafe(|| match job {
                    Job::Run(work) => work(),
                    Job::Perform(of, key, _) => of.perform(key, &wait),
                }))]);
                state = lock(&self.state);
                state.waiting -= usize::from(waits.get());
                if let Some(device) = device {
                    state.leave(device);
                }
                continue;
            }
            state.idle += 1;
            let (woken, waited) = self
                .changed
                .wait_timeout_while(state, IDLE, |state| {
                    !state.closed && (state.queue.is_empty() || state.working() >= state.at_once)
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
        Helpers::with(|| 2, || {})
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
        let helpers = Helpers::new(DEFAULT_THREADS);
        assert_eq!(helpers.threads(), 0);
        for _ in 0..40 {
            let (done, ended) = mpsc::channel();
            helpers.run(|| Box::new(move || done.send(()).expect("it is awaited")))?;
            ended.recv_timeout(LONG).expect("it is done");
            // If this thread is held up meanwhile, the other one ends.
            let begin = std::time::Instant::now();
            let is_busy = || {
                let state = lock(&helpers.0.state);
                state.idle == 0 && state.threads > 0
            };
            while is_busy() {
                assert!(begin.elapsed() < LONG);
                std::thread::yield_now();
            }
            assert!(helpers.threads() <= 1);
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
                        this.0.wait();
                        let _ = lock(&wait).recv();
                        lock(&this.0.state).waiting -= 1;
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

    /// Of each device, half of the threads at most, in the order of the queue; and what is cancelled is gone.
    #[test]
    fn a_device_has_half_of_the_threads_at_most() {
        let port = crate::CompletionPort::new().expect("a port");
        let job = |key, device| Job::Perform(Arc::clone(port.operations()), key, device);
        let mut state = State {
            most: 4,
            ..State::default()
        };
        for key in 0..4 {
            state.push(job(key, Some(7)));
        }
        state.push(job(4, Some(8)));
        state.push(job(5, None));
        let pop = |state: &mut State| match burst::pop(&mut state.queue)? {
            Job::Perform(_, key, _) => Some(key),
            Job::Run(_) => None,
        };
        let taken: Vec<_> = std::iter::from_fn(|| pop(&mut state)).collect();
        assert_eq!(taken, [0, 1, 4, 5]);
        state.leave(7);
        assert_eq!(pop(&mut state), Some(2));
        assert_eq!(pop(&mut state), None);
        // No operation has these keys.
        for key in 0..10_000 {
            state.push(job(key, Some(7)));
            state.push(job(key, None));
        }
        assert!(state.devices[&7].rest.capacity() < 100);
        assert!(state.queue.capacity() < 100);
        while state.devices.contains_key(&7) {
            state.leave(7);
        }
        state.leave(8);
        assert!(state.devices.is_empty());
    }

    #[cfg(target_os = "linux")]
    #[test]
    #[allow(unsafe_code, reason = "a call without pointers")]
    fn threads_for_files_have_a_lower_priority() -> Result<(), Error> {
        // SAFETY: no argument is a pointer.
        let priority = || unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
        let ours = priority();
        for (helpers, expected) in [
            (Helpers::new(DEFAULT_THREADS), ours),
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
