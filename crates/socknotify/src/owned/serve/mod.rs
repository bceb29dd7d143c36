//! [`Port::serve`]: the loop of a server's threads.

pub(crate) mod crew;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::thread::{self, Scope, ThreadId};
use std::time::{Duration, Instant};
use std::{fmt, io};

use crate::os::thread_state::ThreadState;
use crate::owned::serve::crew::{Crew, OnLimit};
use crate::owned::slot::connections::drop_all;
use crate::owned::{Event, Id, Port, Source, Worker};
use crate::port::slow::SlowWatch;
use crate::support::lock::lock;
use crate::{Error, SlowThread, default_concurrency};

/// How many threads [`Port::serve`] has, and what they are.
///
/// # Examples
///
/// ```
/// use socknotify::owned::Serving;
///
/// // No more than 64 handlers block at once.
/// let serving = Serving::default().threads(64).name("http");
/// let _ = serving.on_limit(|is_at_limit| eprintln!("all threads work: {is_at_limit}"));
/// ```
#[derive(Clone)]
#[must_use]
pub struct Serving {
    threads: usize,
    idle: Duration,
    name: String,
    stack_size: usize,
    on_start: Option<Arc<dyn Fn() + Send + Sync>>,
    on_limit: Option<Arc<OnLimit>>,
    on_slow: Option<(Duration, Arc<OnSlow>)>,
    on_stuck: Option<Arc<OnStuck>>,
}

/// Up to 512 threads, which end after ten seconds without an event, and are called `socknotify`.
impl Default for Serving {
    fn default() -> Self {
        Serving {
            threads: 512,
            idle: Duration::from_secs(10),
            name: "socknotify".into(),
            stack_size: 0,
            on_start: None,
            on_limit: None,
            on_slow: None,
            on_stuck: None,
        }
    }
}

impl Serving {
    /// The maximum number of threads, at least one: that many handlers can block at once. While all of them do, events
    /// wait.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads.max(1);
        self
    }

    /// How long a thread waits for an event before it ends, while another one waits, too. One that has to stay looks again after a
    /// tenth of a second at the earliest.
    pub fn idle(mut self, time: Duration) -> Self {
        self.idle = time;
        self
    }

    /// What the threads are called, up to a zero byte.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self.name
            .truncate(self.name.find('\0').unwrap_or(self.name.len()));
        self
    }

    /// The size of each thread's stack in bytes; 0, the default, means the system's.
    pub fn stack_size(mut self, size: usize) -> Self {
        self.stack_size = size;
        self
    }

    /// Calls this on each thread before it serves: to set its priority, or the processors that it runs on. If it panics, the
    /// thread serves all the same.
    pub fn on_start(mut self, call: impl Fn() + Send + Sync + 'static) -> Self {
        self.on_start = Some(Arc::new(call));
        self
    }

    /// Calls this with true when all [threads](Self::threads) are at work, so that events may wait, and with false when one of
    /// them waits again. It should return soon.
    pub fn on_limit(mut self, call: impl Fn(bool) + Send + Sync + 'static) -> Self {
        self.on_limit = Some(Arc::new(call));
        self
    }

    /// Calls this when a handler has blocked or computed for this time, and again whenever that has doubled: say in a log which
    /// connection that is, and in which system call. One that is in [`Worker::blocking`] does not count.
    ///
    /// The thread that has called [`Port::serve`], or that [`Port::serve_detached`] has started, does that, which looks four times
    /// in this time, each 1 to 250 ms; so to handle an event costs nothing more.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use socknotify::owned::Serving;
    ///
    /// let serving = Serving::default().on_slow(Duration::from_millis(100), |handler| {
    ///     let (id, thread) = (handler.id, &handler.thread);
    ///     eprintln!("{id:?}: for {:?}, in {:?}", thread.time, thread.system_call);
    /// });
    /// # drop(serving);
    /// ```
    pub fn on_slow(
        mut self,
        after: Duration,
        call: impl Fn(&SlowHandler) + Send + Sync + 'static,
    ) -> Self {
        self.on_slow = Some((after, Arc::new(call)));
        self
    }

    /// Calls this, once, with the handlers that still run a tenth of a second after the time of [`Port::drain`] has passed, or the
    /// port was [closed](Port::close): which connections these are, and in which system calls. Functions of listeners and timers
    /// count as handlers; threads that wait for an event do not, and no time in which the process itself is held up.
    ///
    /// [`Port::serve`] waits for them, since they borrow what it was given. A program that is to end all the same ends itself in
    /// this call, or uses [`Port::serve_detached`].
    ///
    /// # Examples
    ///
    /// ```
    /// use socknotify::owned::Serving;
    ///
    /// let serving = Serving::default().on_stuck(|handlers| {
    ///     for handler in handlers {
    ///         eprintln!("stuck: {:?} in {:?}", handler.id, handler.thread.system_call);
    ///     }
    ///     std::process::exit(1);
    /// });
    /// # drop(serving);
    /// ```
    pub fn on_stuck(mut self, call: impl Fn(&[SlowHandler]) + Send + Sync + 'static) -> Self {
        self.on_stuck = Some(Arc::new(call));
        self
    }
}

impl fmt::Debug for Serving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Serving")
            .field("threads", &self.threads)
            .field("idle", &self.idle)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl<T: Source + Send, M: Send> Port<T, M> {
    /// Serves connections until the port is closed or has [drained](Self::drain): calls `handler` for each event, on as
    /// many threads as are needed.
    ///
    /// A handler may block. It starts with as many threads as the [concurrency value](crate::owned::Builder::concurrency). When few of
    /// its threads wait, others start, up to the [limit](Serving::threads); so a handler that blocks keeps nobody waiting but
    /// its own connection. Threads that have nothing to do end after a while. No more handlers run at once than the concurrency
    /// value while they keep running and are quick; more do while they sleep, or take long. The thread that calls this starts the
    /// threads, and waits for them.
    ///
    /// A handler arms the connection again, with [`Worker::arm`], or drops it, which closes it. If it panics, its
    /// connection is closed, the thread goes on, and `handler` is called with [`Event::Panicked`], which
    /// says which one that was.
    ///
    /// **A handler that does not end keeps this from returning**, also when the time of `drain` has passed:
    /// [`Serving::on_stuck`] says which one that is, and [`serve_detached`](Self::serve_detached) leaves it behind.
    ///
    /// If the system cannot start a further thread, those that there are go on, and the thread that has called this tries again
    /// ten times a second.
    ///
    /// # Errors
    ///
    /// [`Error::OtherProcess`] in a forked child of the port's process, and the system's if it cannot start the first thread.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::io::{Read, Write};
    /// use std::net::{TcpListener, TcpStream};
    /// use std::time::Duration;
    /// use socknotify::owned::{Event, Interest, Limited, Port, Serving};
    ///
    /// # fn main() -> std::io::Result<()> {
    /// let port = Port::<TcpStream>::new()?;
    /// let listener = TcpListener::bind("127.0.0.1:0")?;
    /// # let address = listener.local_addr()?;
    /// port.listen(listener, Interest::IN, |client, _| client)?;
    /// # let (port, peer) = (std::sync::Arc::new(port), TcpStream::connect(address)?);
    /// # let closing = std::thread::spawn({
    /// #     let port = port.clone();
    /// #     move || {
    /// #         let mut peer = peer;
    /// #         peer.write_all(b"ping").unwrap();
    /// #         peer.read_exact(&mut [0; 4]).unwrap();
    /// #         port.close();
    /// #     }
    /// # });
    /// port.serve(Serving::default(), |worker, event| {
    ///     let Event::Ready(client, _) = event else { return };
    ///     // Its reads and writes may block, for ten seconds at most.
    ///     let mut stream = Limited::within(&*client, Duration::from_secs(10));
    ///     let mut buffer = [0; 4096];
    ///     if let Ok(length @ 1..) = stream.read(&mut buffer) {
    ///         if stream.write_all(&buffer[..length]).is_ok() {
    ///             worker.arm(client, Interest::IN);
    ///         }
    ///     }
    /// })?;
    /// # closing.join().unwrap();
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "CreateThreadpoolIo")]
    pub fn serve<F>(&self, serving: Serving, handler: F) -> Result<(), Error>
    where
        F: Fn(&mut Worker<T, M>, Event<T, M>) + Sync,
    {
        if !self.shared.connections.is_here() {
            return Err(Error::OtherProcess);
        }
        let on_limit = serving.on_limit.clone();
        let crew = Arc::new(Crew::new(serving.threads, self.concurrency(), on_limit));
        let mut crews = lock(&self.shared.crews);
        crews.retain(|crew| crew.strong_count() > 0);
        crews.push(Arc::downgrade(&crew));
        drop(crews);
        let server = Server {
            port: self,
            crew,
            serving,
            handler,
            threads: Mutex::default(),
        };
        thread::scope(|scope| {
            server.begin(scope)?;
            server.coordinate(scope);
            Ok(())
        })
    }

    /// Serves connections as [`serve`](Self::serve) does, on a thread that this starts for it, and returns in time, also beside
    /// handlers that do not end.
    ///
    /// It returns when all of its threads have ended and the handler is dropped, or a tenth of a second after the time of
    /// [`drain`](Self::drain) has passed or the port was [closed](Self::close): with the handlers that it leaves behind then, none
    /// if all have ended. Their threads keep the port and the handler alive. Each ends when its handler returns; the connection that
    /// it has is closed then. To end the process does not wait for them.
    ///
    /// # Errors
    ///
    /// As [`serve`](Self::serve), and the system's if it cannot start the thread.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::net::TcpStream;
    /// use std::sync::Arc;
    /// use std::time::Duration;
    /// use socknotify::owned::{Port, Serving};
    ///
    /// # fn main() -> std::io::Result<()> {
    /// let port = Arc::new(Port::<TcpStream, u32>::with_messages()?);
    /// port.send(7).expect("it is open");
    /// let draining = Arc::clone(&port);
    /// let left = port.serve_detached(Serving::default(), move |_, _| {
    ///     draining.drain(Duration::from_millis(10));
    ///     // A call that does not return.
    ///     loop {
    ///         std::thread::park();
    ///     }
    /// })?;
    /// for handler in &left {
    ///     eprintln!("left behind: {:?} in {:?}", handler.thread.name, handler.thread.system_call);
    /// }
    /// assert_eq!(left.len(), 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn serve_detached<F>(
        self: &Arc<Self>,
        mut serving: Serving,
        handler: F,
    ) -> Result<Vec<SlowHandler>, Error>
    where
        T: 'static,
        M: 'static,
        F: Fn(&mut Worker<T, M>, Event<T, M>) + Send + Sync + 'static,
    {
        if !self.shared.connections.is_here() {
            return Err(Error::OtherProcess);
        }
        let outcome = Arc::new((Mutex::new(None), Condvar::new()));
        let told = Arc::clone(&outcome);
        let tell = Arc::new(move |outcome| {
            *lock(&told.0) = Some(outcome);
            told.1.notify_all();
        });
        let (tell_left, on_stuck) = (Arc::clone(&tell), serving.on_stuck.take());
        serving.on_stuck = Some(Arc::new(move |handlers| {
            if let Some(call) = &on_stuck {
                drop_all([catch_unwind(AssertUnwindSafe(|| call(handlers)))]);
            }
            tell_left(Ok(Ok(handlers.to_vec())));
        }));
        let port = Arc::clone(self);
        let thread = thread::Builder::new().name(serving.name.clone());
        let serve = move || port.serve(serving, handler).map(|()| Vec::new());
        let run = move || tell(catch_unwind(AssertUnwindSafe(serve)));
        thread.spawn(run).map_err(not_started)?;
        let mut told = lock(&outcome.0);
        loop {
            if let Some(outcome) = told.take() {
                return outcome.unwrap_or_else(|panic| resume_unwind(panic));
            }
            let waited = outcome.1.wait(told);
            told = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

fn not_started(error: io::Error) -> Error {
    error.raw_os_error().map_or(Error::OutOfMemory, Error::Os)
}

impl<T, M> Port<T, M> {
    /// The threads of [`serve`](Self::serve) at this moment, for a dashboard: with [`Snapshot::limit`](crate::Snapshot::limit),
    /// how many of them may run. Those of all calls that serve, and all zero if none does.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// let port = socknotify::owned::Port::<std::net::TcpStream>::new()?;
    /// assert_eq!(port.serving().threads, 0);
    /// # Ok(())
    /// # }
    /// ```
    pub fn serving(&self) -> ServingThreads {
        let mut sum = ServingThreads::default();
        if !self.shared.connections.is_here() {
            return sum;
        }
        let crews = lock(&self.shared.crews).clone();
        for crew in crews.iter().filter_map(Weak::upgrade) {
            sum.threads += crew.threads();
            sum.most += crew.most();
            sum.waiting += crew.waiting();
            sum.is_short |= crew.is_short();
        }
        sum
    }

    /// The threads that have been with one event for this time at least: see [`CompletionPort::slow`](crate::CompletionPort::slow).
    /// [`Serving::on_slow`] tells of each one.
    pub fn slow(&self, time: Duration) -> Vec<SlowHandler> {
        let port = &self.shared.connections.port;
        let threads = port.system().slow(&mut |_, it| it >= time);
        let handlers = threads.into_iter();
        handlers.map(|it| self.slow_handler(it)).collect()
    }

    fn slow_handler(&self, (thread, key): (SlowThread, Option<usize>)) -> SlowHandler {
        let id = key.and_then(|key| self.shared.connections.id(key));
        SlowHandler { id, thread }
    }
}

/// The threads of [`Port::serve`]: see [`Port::serving`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServingThreads {
    /// How many there are.
    pub threads: usize,
    /// How many there may be: see [`Serving::threads`].
    pub most: usize,
    /// How many wait for an event, or have just been started.
    pub waiting: usize,
    /// The system has refused to start the last one that was needed.
    pub is_short: bool,
}

/// A handler that blocks or computes: see [`Port::slow`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SlowHandler {
    /// The connection or listener of the event that the thread has taken last. `None` for all other events, and if the
    /// connection is closed.
    pub id: Option<Id>,
    /// The thread, and what it does.
    pub thread: SlowThread,
}

type OnSlow = dyn Fn(&SlowHandler) + Send + Sync;
type OnStuck = dyn Fn(&[SlowHandler]) + Send + Sync;

/// How long handlers may still run when the port is closed, before they count as stuck: what is cut off ends in this time.
const LEAVE: Duration = Duration::from_millis(100);
/// How much of it may pass between two looks: longer than that, the process itself was held up.
const STEP: Duration = Duration::from_millis(10);

/// One call of [`Port::serve`].
struct Server<'a, T, M, F> {
    port: &'a Port<T, M>,
    crew: Arc<Crew>,
    serving: Serving,
    handler: F,
    /// Those that have not ended.
    threads: Mutex<Vec<Arc<Thread>>>,
}

/// No connection has this key.
const NONE: usize = usize::MAX;

/// A thread of a server. It alone changes this.
struct Thread {
    id: ThreadId,
    state: ThreadState,
    /// It runs the caller's functions, and does not wait for an event.
    is_busy: AtomicBool,
    /// The key of the connection whose event it has.
    key: AtomicUsize,
}

impl<T: Source + Send, M: Send, F> Server<'_, T, M, F>
where
    F: Fn(&mut Worker<T, M>, Event<T, M>) + Sync,
{
    /// Start the first threads: one at least.
    fn begin<'s>(&'s self, scope: &'s Scope<'s, '_>) -> Result<(), Error> {
        // A port without a limit has more permits than there are processors.
        let first = self.port.concurrency().min(default_concurrency());
        for _ in 0..first.min(self.serving.threads) {
            let started = self.start_thread(scope);
            if self.crew.threads() == 0 {
                started.map_err(not_started)?;
            }
        }
        Ok(())
    }

    /// Wait until all threads have ended; meanwhile tell of slow handlers, and start threads that the system has refused. When the
    /// time for them has passed, close the port, and tell of those that are stuck.
    fn coordinate<'s>(&'s self, scope: &'s Scope<'s, '_>) {
        let connections = &self.port.shared.connections;
        let slow = self.serving.on_slow.as_ref();
        let mut slow = slow.map(|(after, call)| (SlowWatch::new(*after), call));
        let mut is_told = false;
        // How much of their time to leave has passed, and when that was.
        let (mut passed, mut before) = (Duration::ZERO, None);
        while self.crew.threads() > 0 {
            let end = connections.end.get();
            if let Some((watch, call)) = &mut slow {
                let name = |thread, key| self.port.slow_handler((thread, key));
                watch.look(&connections.port, name, |it| call(it));
            }
            let now = Instant::now();
            let next = match end.map(|end| end.saturating_duration_since(now)) {
                _ if is_told => None,
                Some(Duration::ZERO) => {
                    // All threads may be busy: nobody takes the packet that says so.
                    drop_all(connections.end(true));
                    let since = before.replace(now).map_or(Duration::ZERO, |it| now - it);
                    passed += since.min(STEP);
                    let handlers = match passed < LEAVE {
                        true => Vec::new(),
                        false => self.left(),
                    };
                    is_told = !handlers.is_empty();
                    if let (true, Some(call)) = (is_told, &self.serving.on_stuck) {
                        drop_all([catch_unwind(AssertUnwindSafe(|| call(&handlers)))]);
                    }
                    Some(STEP)
                }
                to_end => to_end,
            };
            let pause = slow.as_ref().map(|(watch, _)| watch.pause());
            // Nobody else tries again, if all others block.
            let is_short = self.crew.is_short();
            let retry = is_short.then_some(Crew::RETRY);
            let timeout = [next, pause, retry].into_iter().flatten().min();
            let is_same = || self.crew.threads() > 0 && self.crew.is_short() == is_short;
            let timeout = timeout.unwrap_or(Duration::MAX);
            connections.end.wait_while(end, timeout, is_same);
            if is_short && self.crew.is_short() {
                let _ = self.start_thread(scope);
            }
        }
    }

    /// The handlers that run.
    fn left(&self) -> Vec<SlowHandler> {
        let threads = lock(&self.threads).clone();
        let busy = threads
            .iter()
            .filter(|it| it.is_busy.load(Ordering::SeqCst));
        let slow = self.port.slow(Duration::ZERO);
        let handlers = busy.map(|it| {
            let slow = slow.iter().find(|slow| slow.thread.thread == it.id);
            slow.cloned().unwrap_or_else(|| {
                // It has said that it blocks, or the port does not know.
                let thread = SlowThread::of(it.id, it.state.describe());
                let key = Some(it.key.load(Ordering::Relaxed)).filter(|&key| key != NONE);
                self.port.slow_handler((thread, key))
            })
        });
        handlers.collect()
    }

    /// Start one thread more, if the limit and the system allow it.
    #[cold]
    fn start_thread<'s>(&'s self, scope: &'s Scope<'s, '_>) -> io::Result<()> {
        if self.crew.start().is_none() {
            return Ok(());
        }
        let mut thread = thread::Builder::new().name(self.serving.name.clone());
        if self.serving.stack_size > 0 {
            thread = thread.stack_size(self.serving.stack_size);
        }
        let started = thread.spawn_scoped(scope, || self.run(scope)).map(drop);
        self.crew.started(started.is_ok());
        if started.is_err() {
            self.port.shared.connections.end.notify();
        }
        started
    }

    /// One thread of the crew, which ends with it.
    fn run<'s>(&'s self, scope: &'s Scope<'s, '_>) {
        let worker = self.port.worker(1);
        let this = Arc::new(Thread {
            id: thread::current().id(),
            state: ThreadState::of_this(),
            // One that has only begun is no handler that is left behind.
            is_busy: AtomicBool::new(self.serving.on_start.is_some()),
            key: AtomicUsize::new(NONE),
        });
        lock(&self.threads).push(Arc::clone(&this));
        if !self.work(worker, &this, scope) {
            self.crew.ended();
        }
        lock(&self.threads).retain(|it| it.id != this.id);
        self.port.shared.connections.end.notify();
    }

    /// True if it ends for want of work, while others go on.
    fn work<'s>(
        &'s self,
        mut worker: Worker<T, M>,
        this: &Thread,
        scope: &'s Scope<'s, '_>,
    ) -> bool {
        if let Some(call) = &self.serving.on_start {
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| call())) {
                self.report(&mut worker, None, panic);
            }
        }
        this.is_busy.store(false, Ordering::SeqCst);
        let idle = Some(self.serving.idle);
        let mut timeout = idle;
        let on_busy = |is_now| {
            let was_busy = this.is_busy.swap(is_now, Ordering::SeqCst);
            if was_busy && !is_now {
                self.crew.end_work();
            } else if !was_busy && is_now && self.crew.begin_work() {
                let _ = self.start_thread(scope);
                if self.crew.needs_another() {
                    let _ = self.start_thread(scope);
                }
            }
        };
        loop {
            // Dropping what the caller has made may panic.
            let process = || worker.process_beside(timeout, &on_busy);
            let outcome = catch_unwind(AssertUnwindSafe(process));
            if let Ok(Ok(1..)) = outcome {
                on_busy(true);
            }
            if this.is_busy.load(Ordering::Relaxed) {
                self.handle_next(&mut worker, this);
                on_busy(false);
            }
            match outcome {
                Ok(Err(_)) => return false,
                Ok(Ok(0)) if self.crew.ends() => return true,
                Ok(Ok(0)) => timeout = self.crew.next_timeout(self.serving.idle),
                Ok(Ok(_)) => timeout = idle,
                Err(_) => {}
            }
        }
    }

    /// Take an event, if there is one, and handle it.
    fn handle_next(&self, worker: &mut Worker<T, M>, this: &Thread) {
        let mut id = None;
        let handle = || {
            let Some(event) = worker.take() else { return };
            id = event.id();
            let key = id.map(|id| self.port.shared.connections.slots.key(id.0));
            this.key.store(key.unwrap_or(NONE), Ordering::Relaxed);
            (self.handler)(worker, event);
        };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(handle)) {
            self.report(worker, id, panic);
        }
    }

    #[cold]
    fn report(&self, worker: &mut Worker<T, M>, id: Option<Id>, panic: Box<dyn Any + Send>) {
        let report = || (self.handler)(worker, Event::Panicked(id, panic));
        if let Err(panic) = catch_unwind(AssertUnwindSafe(report)) {
            // The panic hook has reported both. To drop this may panic as well.
            std::mem::forget(panic);
        }
    }
}
