//! What the threads of a runtime have in common, and what each of them does.

use std::cell::Cell;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError, RwLock};
use std::task::Waker;
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

use socknotify::interface;
use socknotify::{CompletionPort, Entry, Error, RegisterError, default_concurrency};

use crate::context::{self, Doing, Role};
use crate::file::Files;
use crate::jobs::Jobs;
use crate::queue::{Call, Queue};
use crate::slow::{OnSlow, Slow};
use crate::source::Sources;
use crate::sync::{contain, lock, wake};
use crate::task::{Runnable, Tasks, wakes};
use crate::timers::Timers;

/// The keys of packets that are not of a socket: runnable tasks wait; the port's alarm; and operations on files.
const RUN: usize = usize::MAX;
pub(crate) const ALARM: usize = usize::MAX - 1;
pub(crate) const FILES: usize = usize::MAX - 2;

/// How many packets a thread dequeues at once.
const ROOM: usize = 64;
/// After so many tasks, or this time, a thread asks the port again.
const TASKS: u32 = 64;
const SLICE: Duration = Duration::from_micros(500);
/// It reads the clock after each of the first tasks, and then once for so many: that costs as much as a quick one.
const TIMED: u32 = 8;
/// How long tasks wait behind one that runs before another thread is called, in milliseconds: the first time, and at most,
/// while such calls find nothing that waits.
const SOON: u64 = 1;
const LATEST: u64 = 4;

/// Calls what it is given, inside of something.
pub(crate) type Scope = dyn Fn(&mut dyn FnMut()) + Send + Sync;

/// How many threads, and what they are called.
#[derive(Clone)]
pub(crate) struct Crew {
    pub(crate) name: String,
    /// Zero means the system's.
    pub(crate) stack_size: usize,
    pub(crate) threads: usize,
    /// How long a thread waits for a task before it ends, while another one waits, too.
    pub(crate) idle: Duration,
}

/// What the builder was given to call. It may own anything, whose drop may block or panic: so the thread that ends the runtime
/// drops it, and it is not in [`Shared`], whose last reference may be anywhere, in a waker for instance.
#[derive(Clone, Default)]
pub(crate) struct Calls {
    pub(crate) inside: Option<Arc<Scope>>,
    pub(crate) on_limit: Option<Arc<interface::OnLimit>>,
    /// The thread that calls this has it.
    pub(crate) on_slow: Option<(Duration, Arc<OnSlow>)>,
}

impl Calls {
    /// What tells the calls of `on_limit`, while there is one.
    fn on_limit(calls: &Arc<Mutex<Self>>) -> Option<Arc<interface::OnLimit>> {
        lock(calls).on_limit.as_ref()?;
        let calls = Arc::clone(calls);
        Some(Arc::new(move |is_at_limit| {
            let call = lock(&calls).on_limit.clone();
            call.into_iter().for_each(|call| call(is_at_limit));
        }))
    }
}

impl Crew {
    fn start(&self, run: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
        let mut thread = thread::Builder::new().name(self.name.clone());
        if self.stack_size > 0 {
            thread = thread.stack_size(self.stack_size);
        }
        thread.spawn(run)
    }
}

pub(crate) struct Shared {
    /// Different for each.
    pub(crate) id: usize,
    process: interface::Process,
    /// `None` when everything has ended.
    port: RwLock<Option<Arc<CompletionPort>>>,
    pub(crate) sources: Sources,
    pub(crate) timers: Timers,
    pub(crate) tasks: Tasks,
    pub(crate) files: Files,
    pub(crate) jobs: Jobs,
    queue: Queue<Runnable>,
    /// Threads were found to have left their places, and tasks have waited since.
    has_risen: AtomicBool,
    /// In how many milliseconds the next call comes that comes soon.
    soon: AtomicU64,
    crew: Crew,
    count: interface::Crew,
    calls: Arc<Mutex<Calls>>,
    /// How many threads are inside of what the builder was given.
    are_inside: AtomicUsize,
    pub(crate) slow: Option<Slow>,
    /// Those that have not been joined.
    started: Mutex<Vec<JoinHandle<()>>>,
    /// The thread that waits until it is closed, and then ends it: so one is there for it, whatever the others do, and though the
    /// system starts none by then.
    ends: OnceLock<Thread>,
    is_closed: AtomicBool,
    /// When it is closed and no more tasks than these are left, the port is closed. One: that which waits in `shutdown` for it.
    remain: AtomicUsize,
    /// It was closed, and all that were started have ended.
    has_ended: AtomicBool,
    /// Somebody waits for the last task or thread to end.
    is_awaited: AtomicBool,
    /// Signalled then.
    ended: (Mutex<()>, Condvar),
}

impl Shared {
    /// Make a runtime, and start its first threads.
    pub(crate) fn start(
        port: CompletionPort,
        crew: Crew,
        mut calls: Calls,
    ) -> io::Result<Arc<Self>> {
        static RUNTIMES: AtomicUsize = AtomicUsize::new(0);
        // A port without a limit has more places than there are processors.
        let places = port.concurrency().min(default_concurrency());
        let on_slow = calls.on_slow.take();
        let calls = Arc::new(Mutex::new(calls));
        let shared = Arc::new(Shared {
            id: RUNTIMES.fetch_add(1, Ordering::Relaxed),
            process: interface::Process::this(),
            port: RwLock::new(Some(Arc::new(port))),
            sources: Sources::default(),
            timers: Timers::new(places),
            tasks: Tasks::new(places),
            files: Files::new(),
            jobs: Jobs::default(),
            queue: Queue::new(places),
            has_risen: AtomicBool::new(false),
            soon: AtomicU64::new(SOON),
            count: interface::Crew::new(crew.threads, places, Calls::on_limit(&calls)),
            calls,
            are_inside: AtomicUsize::new(0),
            slow: on_slow.as_ref().map(|(after, _)| Slow::new(*after)),
            started: Mutex::default(),
            ends: OnceLock::new(),
            is_closed: AtomicBool::new(false),
            remain: AtomicUsize::new(0),
            has_ended: AtomicBool::new(false),
            is_awaited: AtomicBool::new(false),
            ended: (Mutex::new(()), Condvar::new()),
            crew,
        });
        let ends = Arc::clone(&shared);
        let ends = shared.crew.start(move || ends.end_when_closed());
        let ends = ends.inspect_err(|_| drop(shared.take_calls()))?;
        let _ = shared.ends.set(ends.thread().clone());
        if let Err(error) = shared.start_threads(places, on_slow) {
            shared.close(0);
            return Err(error);
        }
        let weak = Arc::downgrade(&shared);
        // What is behind a task that blocks goes to another thread at once.
        let on_raise = move || {
            if let Some(shared) = weak.upgrade() {
                if !shared.queue.is_surely_empty() {
                    shared.has_risen.store(true, Ordering::Relaxed);
                    shared.call(Call::Now);
                }
            }
        };
        let _ = shared.with_port(|port| interface::on_raise(port, on_raise));
        Ok(shared)
    }

    fn port(&self) -> Option<Arc<CompletionPort>> {
        let port = self.port.read().unwrap_or_else(PoisonError::into_inner);
        port.clone()
    }

    /// Do something with the port, which nothing waits for. It fails when everything has ended.
    pub(crate) fn with_port<R>(&self, run: impl FnOnce(&CompletionPort) -> R) -> Result<R, Error> {
        let port = self.port.read().unwrap_or_else(PoisonError::into_inner);
        port.as_deref().map(run).ok_or(Error::Closed)
    }

    pub(crate) fn register(
        &self,
        run: impl FnOnce(&CompletionPort) -> Result<(), RegisterError>,
    ) -> Result<(), RegisterError> {
        self.with_port(run).map_err(RegisterError::Call)?
    }

    /// Whether this is the process that made the runtime.
    pub(crate) fn is_here(&self) -> bool {
        self.process.is_this()
    }

    /// Run this where the runtime's threads are inside of.
    pub(crate) fn inside<R>(&self, run: impl FnOnce() -> R) -> R {
        /// Also after a panic.
        struct Leaves<'a>(&'a Shared);
        impl Drop for Leaves<'_> {
            fn drop(&mut self) {
                self.0.are_inside.fetch_sub(1, Ordering::SeqCst);
                self.0.on_ended();
            }
        }
        let calls = lock(&self.calls);
        let Some(scope) = calls.inside.clone().filter(|_| !self.is_own_thread()) else {
            drop(calls);
            return run();
        };
        self.are_inside.fetch_add(1, Ordering::SeqCst);
        drop(calls);
        let _leaves = Leaves(self);
        // It is dropped before this has left.
        let scope = scope;
        let (mut run, mut result) = (Some(run), None);
        scope(&mut || {
            if let Some(run) = run.take() {
                result = Some(run());
            }
        });
        result.expect("`Builder::inside` calls what it is given")
    }

    /// The same for a thread, which nobody would miss: if `Builder::inside` fails, it runs this outside.
    fn inside_or_outside(&self, run: impl FnOnce()) {
        let mut run = Some(run);
        contain(|| self.inside(|| run.take().into_iter().for_each(|run| run())));
        run.into_iter().for_each(|run| run());
    }

    /// # Panics
    ///
    /// In a forked child.
    #[track_caller]
    pub(crate) fn check_process(&self) {
        assert!(
            self.is_here(),
            "the runtime belongs to the parent process: make one in the child"
        );
    }

    /// The list for what this thread puts in. None is for other threads than the runtime's.
    pub(crate) fn list(&self) -> Option<usize> {
        context::role(self.id).map(|role| role.list)
    }

    /// Have a task run. `has_run`: it was woken while this thread has polled it, which is over.
    pub(crate) fn schedule(&self, runnable: Runnable, has_run: bool) {
        self.queue.put(self.list(), runnable);
        match context::role(self.id).filter(|role| !role.blocks) {
            None => self.call(Call::Now),
            Some(role) if has_run || role.doing == Doing::Looking => return,
            Some(_) => self.call(Call::Soon),
        }
        // The other threads may all block, or have ended.
        if self.is_closed() {
            self.on_ended();
        }
    }

    /// Make sure that a thread looks at the tasks that wait.
    #[inline]
    fn call(&self, call: Call) {
        if self.queue.call(call) {
            self.send(call);
        }
    }

    #[cold]
    fn send(&self, call: Call) {
        let is_sent = match call {
            Call::Now => self.with_port(|port| port.post(Entry::new(RUN, 0, 0))) == Ok(Ok(())),
            Call::Soon => {
                let soon = Duration::from_millis(self.soon.load(Ordering::Relaxed));
                self.timers.alarm_by(self, Instant::now() + soon)
            }
        };
        if !is_sent {
            // The port is closed, or the system has no memory: the next one tries again.
            self.queue.answer(call);
        }
    }

    /// Run what blocks, while other threads go on with what this one has left.
    pub(crate) fn block<R>(&self, work: impl FnOnce() -> R) -> R {
        let role = context::any_role().filter(|it| it.doing != Doing::Looking && !it.blocks);
        let Some(role) = role else {
            return work();
        };
        let blocks = true;
        context::in_role(Some(Role { blocks, ..role }), || {
            // Another runtime's thread is seen to block.
            if role.runtime != self.id {
                return work();
            }
            if !self.queue.is_empty() {
                self.call(Call::Now);
            }
            match self.port() {
                Some(port) => port.blocking(work),
                None => work(),
            }
        })
    }

    /// Start the first threads.
    fn start_threads(
        self: &Arc<Self>,
        count: usize,
        on_slow: Option<(Duration, Arc<OnSlow>)>,
    ) -> io::Result<()> {
        for _ in 0..count.min(self.crew.threads) {
            let started = self.start_thread();
            if self.threads() == 0 {
                return started;
            }
        }
        self.retry_if_short();
        on_slow.map_or(Ok(()), |(_, call)| self.start_watch(call))
    }

    /// Start the thread that tells of slow tasks.
    fn start_watch(self: &Arc<Self>, call: Arc<OnSlow>) -> io::Result<()> {
        let shared = Arc::clone(self);
        let watch = move || {
            if let (Some(slow), Some(port)) = (&shared.slow, shared.port()) {
                slow.watch(&port, &*call, || shared.is_closed());
            }
        };
        let run = || contain(watch);
        let thread = self.crew.start(run)?;
        lock(&self.started).push(thread);
        Ok(())
    }

    /// Start one thread more, if the limit allows it.
    #[cold]
    fn start_thread(self: &Arc<Self>) -> io::Result<()> {
        let Some(number) = self.count.start() else {
            return Ok(());
        };
        let shared = Arc::clone(self);
        let started = self.crew.start(move || shared.run(number));
        self.count.started(started.is_ok());
        lock(&self.started).push(started?);
        Ok(())
    }

    /// Start another thread, or two. If the system refuses, those that there are go on.
    #[cold]
    fn start_another(self: &Arc<Self>) {
        let _ = self.start_thread();
        if self.count.needs_another() {
            let _ = self.start_thread();
        }
        self.retry_if_short();
    }

    fn retry_if_short(&self) {
        if self.count.is_short() {
            self.unpark_last();
        }
    }

    /// One thread.
    fn run(self: Arc<Self>, list: usize) {
        /// Also after a panic, which there is none of.
        struct Ends(Arc<Shared>, Cell<bool>);
        impl Drop for Ends {
            fn drop(&mut self) {
                context::set_role(None);
                self.0.slow.iter().for_each(Slow::end);
                if self.1.get() {
                    self.0.count.ended();
                }
                self.0.on_ended();
            }
        }
        self.slow.iter().for_each(Slow::begin);
        let ends = Ends(self, Cell::new(true));
        ends.0.inside_or_outside(|| {
            let is_counted = !ends.0.serve(list);
            ends.1.set(is_counted);
            context::set_role(None);
        });
        let shared = Arc::clone(&ends.0);
        drop(ends);
        shared.join_ended();
    }

    /// Join those that have ended before this thread, while their thread-locals may not have. Who waits for this one waits
    /// for them.
    fn join_ended(&self) {
        let mut started = lock(&self.started);
        let all = std::mem::take(&mut *started).into_iter();
        let (ended, others) = all.partition::<Vec<_>, _>(JoinHandle::is_finished);
        *started = others;
        drop(started);
        // None panics.
        ended.into_iter().for_each(|it| drop(it.join()));
    }

    /// True if the thread ends for want of work, while others go on: then it does not count any more.
    fn serve(self: &Arc<Self>, list: usize) -> bool {
        let shared = self;
        let _entered = context::enter(shared);
        let Some(port) = self.port() else {
            return false;
        };
        let mut entries = [Entry::default(); ROOM];
        let idle = Some(shared.crew.idle);
        let mut timeout = idle;
        let mut turn = 0;
        let looking = Role::looking(shared.id, list);
        context::set_role(Some(looking));
        loop {
            if let Some(job) = shared.jobs.next(shared) {
                // Whoever takes the packet has another thread started if this one was the last that waits.
                job.wake();
                shared.call(Call::Now);
            }
            match port.dequeue(&mut entries, timeout) {
                Ok(entries) => {
                    timeout = idle;
                    let needs_another = shared.count.begin_work();
                    let foreign = shared.dispatch(&port, entries);
                    if needs_another {
                        shared.start_another();
                    }
                    // They may block until another thread has run a task.
                    if !foreign.is_empty() {
                        shared.wake_foreign(foreign, looking);
                    }
                    shared.run_tasks(&port, looking, &mut turn);
                    shared.count.end_work();
                }
                Err(Error::TimedOut) => {
                    if shared.count.ends() {
                        return true;
                    }
                    timeout = shared.count.next_timeout(shared.crew.idle);
                }
                // A task that this thread has polled meanwhile may have been woken again.
                Err(_) => {
                    shared.run_last(looking);
                    return false;
                }
            }
        }
    }

    /// Wake the tasks of this runtime that wait for what has come. Returns those of anyone else's.
    fn dispatch(&self, port: &CompletionPort, entries: &[Entry]) -> Vec<Waker> {
        let mut sockets = 0;
        let mut foreign = Vec::new();
        for entry in entries {
            match entry.completion_key {
                RUN => self.queue.answer(Call::Now),
                ALARM => {
                    // In this order: whoever calls after the answer finds that the alarm is to be set.
                    let due = self.timers.on_alarm(self);
                    self.queue.answer(Call::Soon);
                    let soon = match self.queue.is_empty() {
                        true => (self.soon.load(Ordering::Relaxed) * 2).min(LATEST),
                        false => SOON,
                    };
                    self.soon.store(soon, Ordering::Relaxed);
                    due.for_each(|waiter| waiter.wake_own(&mut foreign));
                }
                FILES => {
                    let completion = port.take_completion(entry);
                    completion
                        .into_iter()
                        .for_each(|it| self.files.complete(it, &mut foreign));
                }
                _ => sockets += 1,
            }
        }
        if sockets > 0 {
            self.sources.dispatch(entries, &mut foreign);
        }
        foreign
    }

    /// Wake what may block, as a task may: others go on meanwhile.
    #[cold]
    fn wake_foreign(self: &Arc<Self>, wakers: Vec<Waker>, looking: Role) {
        let mut wakers = wakers.into_iter();
        let first = wakers.next();
        self.put_wakers(Some(looking.list), wakers);
        if !self.queue.is_empty() {
            self.call(Call::Soon);
        }
        let wake_first = || first.into_iter().for_each(wake);
        self.as_one_that(Doing::Calling, looking, wake_first);
    }

    /// Each of them may block: so those behind it may go to other threads.
    fn put_wakers(self: &Arc<Self>, list: Option<usize>, wakers: impl IntoIterator<Item = Waker>) {
        let runnables = wakers.into_iter().map(|waker| wakes(self, waker));
        runnables.for_each(|runnable| self.queue.put(list, runnable));
    }

    fn as_one_that(&self, doing: Doing, looking: Role, run: impl FnOnce()) {
        context::set_role(Some(Role { doing, ..looking }));
        run();
        #[cfg(unix)]
        self.register_put_off();
        context::set_role(Some(looking));
    }

    /// Run tasks, until there are none, or it is time for the port.
    fn run_tasks(&self, port: &CompletionPort, looking: Role, turn: &mut usize) {
        let mut begin = None;
        for number in 0..TASKS {
            *turn = turn.wrapping_add(1);
            let Some(runnable) = self.queue.take_in_turn(looking.list, *turn) else {
                if self.has_risen.load(Ordering::Relaxed) {
                    self.has_risen.store(false, Ordering::Relaxed);
                }
                if number == 0 {
                    // The task runs on another thread.
                    interface::in_vain(port);
                }
                return;
            };
            let is_last = self.queue.is_empty();
            if !is_last {
                // In a burst this one may block too, and another place be free by now.
                self.call(match self.has_risen.load(Ordering::Relaxed) {
                    true => Call::Now,
                    false => Call::Soon,
                });
            }
            self.as_one_that(Doing::Polling, looking, || {
                runnable.run();
            });
            // Most often there is one task alone, for which the clock need not be read.
            let is_timed = number < TIMED || number % TIMED == 0;
            if is_timed && !(is_last && self.queue.is_empty()) {
                let begin = begin.get_or_insert_with(Instant::now);
                if begin.elapsed() >= SLICE {
                    break;
                }
            }
        }
        // This thread takes the packet itself if nobody else does.
        if !self.queue.is_empty() {
            self.call(Call::Now);
            // It would do for the port otherwise.
            port.ask_next();
        }
    }

    /// Whether this is one of the runtime's threads.
    pub(crate) fn is_own_thread(&self) -> bool {
        context::role(self.id).is_some()
    }

    /// Whether this thread polls one of the runtime's tasks, and no other future inside of it.
    pub(crate) fn is_polling(&self) -> bool {
        context::role(self.id).is_some_and(|role| role.doing == Doing::Polling && !role.blocks)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::SeqCst)
    }

    /// Have all tasks dropped, and the threads end. Waits for nothing. Called again, it says how many tasks may remain by now.
    pub(crate) fn close(&self, remain: usize) {
        if !self.is_here() {
            return;
        }
        self.remain.store(remain, Ordering::SeqCst);
        if !self.is_closed.swap(true, Ordering::SeqCst) {
            self.unpark_last();
        }
    }

    fn unpark_last(&self) {
        self.ends.get().into_iter().for_each(Thread::unpark);
    }

    /// The thread that ends it. What is dropped, or woken, may block, and the runtime's other threads may all do so by then.
    ///
    /// Until then it starts those that the system has refused, which nobody else does if all others block.
    fn end_when_closed(self: Arc<Self>) {
        while !self.is_closed() {
            if self.count.is_short() {
                thread::park_timeout(interface::Crew::RETRY);
                if self.count.is_short() && !self.is_closed() {
                    let _ = self.start_thread();
                }
            } else {
                thread::park();
            }
        }
        self.inside_or_outside(|| self.end());
        self.say_ended();
    }

    fn end(self: &Arc<Self>) {
        // As tasks are dropped, they may look for it.
        let _entered = context::enter(self);
        let looking = Role::looking(self.id, 0);
        context::set_role(Some(looking));
        self.tasks.wake();
        let mut foreign = Vec::new();
        self.sources.close(&mut foreign);
        self.files.close(&mut foreign);
        self.jobs.close();
        let timers = self.timers.take_all().into_iter();
        timers.for_each(|waiter| waiter.wake_own(&mut foreign));
        self.put_wakers(None, foreign);
        self.call(Call::Now);
        // In this order: while one may remain that has closed it, that is one of those counted.
        let is_last = || self.tasks.count() <= self.remain.load(Ordering::SeqCst);
        loop {
            self.run_last(looking);
            if is_last() {
                break;
            }
            self.wait_until(Duration::MAX, || is_last() || !self.queue.is_surely_empty());
        }
        context::set_role(None);
        let _ = self.with_port(CompletionPort::close);
        loop {
            let started = std::mem::take(&mut *lock(&self.started));
            if started.is_empty() {
                break;
            }
            // The one that tells of slow tasks.
            started.iter().for_each(|it| it.thread().unpark());
            // None panics.
            started.into_iter().for_each(|it| drop(it.join()));
        }
        let mut port = self.port.write().unwrap_or_else(PoisonError::into_inner);
        let last = port.take();
        drop(port);
        // What the system has begun ends first.
        last.into_iter().for_each(|it| drop(it.end_operations()));
    }

    /// The runtime is closed: run what there is, until nothing is left. Tasks are dropped as they are polled.
    fn run_last(&self, looking: Role) {
        while let Some(runnable) = self.queue.take(looking.list) {
            if !self.queue.is_empty() {
                self.call(Call::Soon);
            }
            self.as_one_that(Doing::Polling, looking, || {
                runnable.run();
            });
        }
    }

    fn take_calls(&self) -> Calls {
        std::mem::take(&mut *lock(&self.calls))
    }

    /// All that were started have ended, but for this one. What the builder was given goes before anyone hears of it, unless
    /// somebody in `block_on` is still inside.
    fn say_ended(&self) {
        let Calls {
            inside, on_limit, ..
        } = self.take_calls();
        contain(|| drop(on_limit));
        let is_left = || self.are_inside.load(Ordering::SeqCst) == 0;
        if inside.is_some() && !is_left() {
            self.has_ended.store(true, Ordering::SeqCst);
            self.on_ended();
            self.wait_until(Duration::MAX, is_left);
        }
        contain(|| drop(inside));
        self.has_ended.store(true, Ordering::SeqCst);
        self.on_ended();
    }

    /// The last task, or the last but one, or a thread has ended; or the runtime is closed, and there is something to run.
    pub(crate) fn on_ended(&self) {
        if self.is_awaited.load(Ordering::SeqCst) {
            drop(lock(&self.ended.0));
            self.ended.1.notify_all();
        }
    }

    /// Wait until this holds, up to this time. False if it does not.
    fn wait_until(&self, time: Duration, holds: impl Fn() -> bool) -> bool {
        self.is_awaited.store(true, Ordering::SeqCst);
        // Whoever has not seen that has put in before what this looks at.
        fence(Ordering::SeqCst);
        let (guard, ended) = (lock(&self.ended.0), &self.ended.1);
        let waited = ended.wait_timeout_while(guard, time, |()| !holds());
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// How many tasks this thread polls, or drops, outside of which nothing is waited for.
    pub(crate) fn own_tasks(&self) -> usize {
        let role = context::role(self.id);
        usize::from(role.is_some_and(|role| role.doing == Doing::Polling))
    }

    /// Wait until no task is left, but for the one that waits, up to this time.
    pub(crate) fn wait_for_tasks(&self, time: Duration) -> bool {
        let own = self.own_tasks();
        self.wait_until(time, || self.tasks.count() <= own)
    }

    /// Wait until the threads have ended, but for this one, up to this time.
    pub(crate) fn wait_for_threads(&self, time: Duration) -> bool {
        let own = usize::from(self.is_own_thread());
        let has_ended = || own > 0 || self.has_ended.load(Ordering::SeqCst);
        self.wait_until(time, || self.threads() == own && has_ended())
    }

    /// How many have not ended. In a forked child, a thread that it does not have may hold a lock.
    pub(crate) fn tasks(&self) -> usize {
        match self.is_here() {
            true => self.tasks.count(),
            false => 0,
        }
    }

    pub(crate) fn threads(&self) -> usize {
        self.count.threads()
    }

    /// How many threads wait for events.
    pub(crate) fn waiting_threads(&self) -> usize {
        self.count.waiting()
    }

    /// Whether another thread can be started, as far as is known.
    pub(crate) fn may_start(&self) -> bool {
        self.threads() < self.count.most() && !self.count.is_short()
    }
}

impl Drop for Shared {
    /// In a forked child they are left, and nobody can drop them: this thread may be anyone's.
    fn drop(&mut self) {
        std::mem::forget(self.take_calls());
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runtime")
            .field("port", &self.port())
            .field("tasks", &self.tasks())
            .field("threads", &self.threads())
            .finish_non_exhaustive()
    }
}
