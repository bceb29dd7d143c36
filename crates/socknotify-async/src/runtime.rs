//! [`Runtime`]: threads that run tasks, and the port that they share.

use std::future::Future;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;
use std::{fmt, io};

use socknotify::{CompletionPort, Snapshot};

use crate::context::{self, Entered};
use crate::jobs::Job;
use crate::shared::{Calls, Crew, Shared};
use crate::slow::SlowTask;
use crate::task::{self, JoinHandle};

/// Runs tasks, on as many threads as are needed.
///
/// As many threads run at once as there are processors, unless the [builder](Self::builder) is told otherwise. While tasks block,
/// other threads go on with all other tasks.
///
/// Dropping the runtime cancels its tasks, and waits for nothing: see [`shutdown`](Self::shutdown).
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use socknotify_async::{Runtime, spawn};
///
/// # fn main() -> std::io::Result<()> {
/// let runtime = Runtime::new()?;
/// let sum = runtime.block_on(async {
///     // It may block, and keeps nobody waiting.
///     let slow = spawn(async {
///         std::thread::sleep(Duration::from_millis(20));
///         2
///     });
///     let quick = spawn(async { 3 });
///     Ok::<_, std::io::Error>(slow.await? + quick.await?)
/// })?;
/// assert_eq!(sum, 5);
/// assert!(runtime.shutdown(Duration::from_secs(5)));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Runtime {
    handle: Handle,
}

impl Runtime {
    /// Makes a runtime with one place for each processor.
    ///
    /// # Errors
    ///
    /// Those of [`CompletionPort::new`], and the system's if it starts no thread.
    pub fn new() -> io::Result<Self> {
        Self::builder().build()
    }

    /// Options for a new runtime.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// The handle by which any thread spawns tasks on this runtime.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Runs a future on this thread, and returns its result. See [`Handle::block_on`].
    ///
    /// # Panics
    ///
    /// In a forked child of the runtime's process; and if the future does.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.handle.block_on(future)
    }

    /// Spawns a task. See [`Handle::spawn`].
    ///
    /// # Panics
    ///
    /// In a forked child of the runtime's process.
    #[track_caller]
    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.handle.spawn(future)
    }

    /// Waits up to `time` for the tasks to end by themselves. Then those that are left are cancelled, and it waits up to
    /// `time` for the threads, of which some may block: in a task, or as they drop one.
    ///
    /// Returns true if all tasks have ended by themselves, and all threads, with their thread-locals; those of the thread that ends
    /// the runtime, which may have woken others, are dropped last, and not waited for. Tasks can be spawned until the others are
    /// cancelled; those that are spawned after that are cancelled at once. Sockets that tasks held are
    /// closed when this returns, unless the time was over before, or a thread that blocks still holds them. So are the closures
    /// that the [builder](Builder::inside) was given dropped, unless this is called inside of one.
    ///
    /// Called in one of the runtime's own tasks, it waits for the others, and until the other threads run nothing any more;
    /// their thread-locals may be dropped later.
    ///
    /// Called in a closure that the [builder](Builder::inside) was given, or where one of the runtime's threads drops its
    /// thread-locals, it cancels the tasks, too. But it waits for the thread that it is called in, until the time is over, and
    /// returns false: drop the runtime there instead, which waits for nothing.
    pub fn shutdown(self, time: Duration) -> bool {
        let shared = &self.handle.0;
        if !shared.is_here() {
            return false;
        }
        let has_ended = shared.block(|| shared.wait_for_tasks(time));
        shared.close(shared.own_tasks());
        shared.block(|| shared.wait_for_threads(time)) && has_ended
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        self.handle.0.close(0);
    }
}

/// Spawns tasks on a runtime, from any thread. It keeps the runtime's memory, but does not keep it from shutting down.
#[derive(Clone, Debug)]
pub struct Handle(pub(crate) Arc<Shared>);

impl UnwindSafe for Handle {}
impl RefUnwindSafe for Handle {}

impl Handle {
    /// The runtime that this thread belongs to, or is inside of.
    ///
    /// # Panics
    ///
    /// If there is none.
    #[track_caller]
    pub fn current() -> Self {
        Handle(context::expect())
    }

    /// The same; `None` if there is none.
    pub fn try_current() -> Option<Self> {
        context::current().map(Handle)
    }

    /// Spawns a task: one of the runtime's threads runs it. If the runtime has shut down, it is cancelled.
    ///
    /// # Panics
    ///
    /// In a forked child of the runtime's process.
    #[track_caller]
    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.0.check_process();
        task::spawn(Arc::clone(&self.0), future)
    }

    /// Runs a future on this thread, and returns its result. Inside, the runtime is the [current](Self::current) one.
    ///
    /// The future need not be `Send`. It runs here alone, beside the runtime's threads, and may block. It may also be
    /// called inside a task: then another thread goes on with other tasks meanwhile.
    ///
    /// # Panics
    ///
    /// In a forked child of the runtime's process; and if the future does.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.0.check_process();
        let _entered = self.enter();
        let _nested = context::nest();
        let alarm = Arc::new(Alarm {
            thread: thread::current(),
            is_woken: AtomicBool::new(false),
        });
        let waker = Waker::from(Arc::clone(&alarm));
        let mut cx = Context::from_waker(&waker);
        // The future is dropped in there, too, and before its waker's memory is free.
        let (alarm, waker) = (&alarm, &waker);
        let run = move || {
            let mut future = pin!(future);
            loop {
                context::begin_poll(waker);
                if let Poll::Ready(value) = future.as_mut().poll(&mut cx) {
                    return value;
                }
                while !alarm.is_woken.swap(false, Ordering::SeqCst) {
                    thread::park();
                }
            }
        };
        self.0.block(|| self.0.inside(run))
    }

    /// Makes the runtime the [current](Self::current) one of this thread, until the value is dropped. Then sockets can be
    /// made, and [`spawn`](crate::spawn()) called, outside of tasks.
    ///
    /// Drop the values in the reverse order.
    pub fn enter(&self) -> Entered {
        context::enter(&self.0)
    }

    /// The number of tasks that have not ended. In a forked child 0.
    pub fn tasks(&self) -> usize {
        self.0.tasks()
    }

    /// The number of threads that run tasks.
    pub fn threads(&self) -> usize {
        self.0.threads()
    }

    /// The state of the port at this moment, for diagnosis. `None` when the runtime has ended.
    #[doc(alias = "stats")]
    #[doc(alias = "metrics")]
    pub fn snapshot(&self) -> Option<Snapshot> {
        self.0.with_port(CompletionPort::snapshot).ok()
    }
}

/// Wakes a thread that waits for its future.
struct Alarm {
    thread: Thread,
    is_woken: AtomicBool,
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.is_woken.swap(true, Ordering::SeqCst) {
            self.thread.unpark();
        }
    }
}

/// Options for a new [`Runtime`].
///
/// # Examples
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// let runtime = socknotify_async::Runtime::builder()
///     .places(4)
///     .threads(64)
///     .name("worker")
///     .build()?;
/// # drop(runtime);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use]
pub struct Builder {
    port: socknotify::Builder,
    places: Option<usize>,
    crew: Crew,
    calls: Calls,
}

/// One place for each processor, and up to 512 threads, which end after ten seconds without a task.
impl Default for Builder {
    fn default() -> Self {
        Builder {
            port: CompletionPort::builder(),
            places: None,
            crew: Crew {
                name: "socknotify".into(),
                stack_size: 0,
                threads: 512,
                idle: Duration::from_secs(10),
            },
            calls: Calls::default(),
        }
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("port", &self.port)
            .field("places", &self.places)
            .field("name", &self.crew.name)
            .field("threads", &self.crew.threads)
            .finish_non_exhaustive()
    }
}

impl Builder {
    /// The port's options. What is said by [`places`](Self::places) counts, in any order.
    pub fn port(mut self, port: socknotify::Builder) -> Self {
        self.port = port;
        self
    }

    /// How many threads run at once; 0, the default, means one for each processor.
    pub fn places(mut self, places: usize) -> Self {
        self.places = Some(places);
        self
    }

    /// The maximum number of threads that run tasks, at least one: one less than this many tasks can block at once while others
    /// go on. Work of [`unblock`] never takes the last one but where no other such work runs. There is one thread more, which waits
    /// for the runtime's end.
    pub fn threads(mut self, most: usize) -> Self {
        self.crew.threads = most.max(1);
        self
    }

    /// What the threads are called, without a zero byte.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.crew.name = name.into();
        self
    }

    /// How large the threads' stacks are, in bytes; 0, the default, means what std takes.
    pub fn stack_size(mut self, bytes: usize) -> Self {
        self.crew.stack_size = bytes;
        self
    }

    /// Has each of the runtime's threads run inside of this, and what [`block_on`](Runtime::block_on) runs. It calls what it
    /// is given, once. If it panics before, the thread runs outside of it, and `block_on` panics, too.
    ///
    /// So what asks for the context of another runtime runs here: with tokio's, `tokio::spawn`, `tokio::time`, reqwest and
    /// all else of it. A runtime of one thread is enough for its timers and sockets; what it wakes runs here. Give the closure
    /// a handle of it, as below: so you say when the other runtime ends.
    ///
    /// This closure, and those of [`on_limit`](Self::on_limit) and [`on_slow`](Self::on_slow), are dropped on a thread of the
    /// runtime's own when all the others have ended, and before [`shutdown`](Runtime::shutdown) returns true. Their drops may
    /// block, and [`shutdown`](Runtime::shutdown) waits for that. Where it does not wait for all threads, as its time is over
    /// or it is called in a task, and after a [`Runtime`] was only dropped, they live until the last thread has ended: for
    /// ever, if one blocks for ever. This one also lives until each [`block_on`](Handle::block_on) has returned that is inside
    /// of it; later ones run outside. What a clone of the builder keeps is yours to drop.
    ///
    /// # Examples
    ///
    /// ```ignore
    /// let tokio = tokio::runtime::Builder::new_multi_thread()
    ///     .worker_threads(1)
    ///     .enable_all()
    ///     .build()?;
    /// let context = tokio.handle().clone();
    /// let runtime = socknotify_async::Runtime::builder()
    ///     .inside(move |run| {
    ///         let _entered = context.enter();
    ///         run();
    ///     })
    ///     .build()?;
    /// // …
    /// runtime.shutdown(Duration::from_secs(5));
    /// drop(tokio);
    /// ```
    pub fn inside(mut self, scope: impl Fn(&mut dyn FnMut()) + Send + Sync + 'static) -> Self {
        self.calls.inside = Some(Arc::new(scope));
        self
    }

    /// Calls this with true when all [threads](Self::threads) are at work, so that tasks may wait, and with false when one of them
    /// waits again. It should return soon. Work of [`unblock`] may wait before, as it leaves a thread. When it is dropped: see [`inside`](Self::inside).
    pub fn on_limit(mut self, call: impl Fn(bool) + Send + Sync + 'static) -> Self {
        // Nobody looks for tasks after it: those that it wakes are called for.
        let call = move |is_at_limit| context::in_role(None, || call(is_at_limit));
        self.calls.on_limit = Some(Arc::new(call));
        self
    }

    /// Calls this when a task has blocked or computed for this time in one poll, and again whenever that has doubled: say in a log
    /// where it was spawned, and in which system call it is. What runs in [`unblock`] does not count.
    ///
    /// A further thread does that, which looks four times in this time, each 1 to 250 ms. Each poll of a task takes some nanoseconds more.
    /// When the closure is dropped: see [`inside`](Self::inside).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// use std::time::Duration;
    ///
    /// let runtime = socknotify_async::Runtime::builder()
    ///     .on_slow(Duration::from_millis(100), |task| {
    ///         let (at, thread) = (task.spawned_at, &task.thread);
    ///         eprintln!("{at:?}: for {:?}, in {:?}", thread.time, thread.system_call);
    ///     })
    ///     .build()?;
    /// # drop(runtime);
    /// # Ok(())
    /// # }
    /// ```
    pub fn on_slow(
        mut self,
        after: Duration,
        call: impl Fn(&SlowTask) + Send + Sync + 'static,
    ) -> Self {
        self.calls.on_slow = Some((after, Arc::new(call)));
        self
    }

    /// How long a thread waits for a task before it ends, while another one waits, too. One that has to stay looks again after a
    /// tenth of a second at the earliest.
    pub fn idle(mut self, time: Duration) -> Self {
        self.crew.idle = time;
        self
    }

    /// Makes the runtime.
    ///
    /// # Errors
    ///
    /// Those of [`socknotify::Builder::build`]; the system's if it starts no thread; and
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) for a name with a zero byte.
    pub fn build(self) -> io::Result<Runtime> {
        if self.crew.name.contains('\0') {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let port = match self.places {
            Some(places) => self.port.concurrency(places),
            None => self.port,
        };
        let shared = Shared::start(port.build()?, self.crew, self.calls)?;
        Ok(Runtime {
            handle: Handle(shared),
        })
    }
}

/// Spawns a task on the current runtime. See [`Handle::spawn`].
///
/// # Panics
///
/// If this thread is in no runtime, and in a forked child of the runtime's process.
///
/// # Examples
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// # socknotify_async::Runtime::new()?.block_on(async {
/// let task = socknotify_async::spawn(async { 7 });
/// assert_eq!(task.await?, 7);
/// # Ok(())
/// # })
/// # }
/// ```
#[track_caller]
pub fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    let shared = context::expect();
    shared.check_process();
    task::spawn(shared, future)
}

/// Runs work that blocks, as a task whose thread leaves its place at once.
///
/// Any task may block: its thread leaves its place as soon as that is seen, within some milliseconds. This says it
/// before. No more tasks can block at once than the runtime has [threads](Builder::threads).
///
/// Work of this kind leaves a thread for events and timers: it begins while another thread waits for them, and waits for that
/// otherwise, without a thread, in order. So no more of it runs at once than there are threads less one, nor than tasks that
/// block leave of those. One at a time runs in any case, as tasks that block may wait for it: also where
/// [`threads(1)`](Builder::threads) leaves no other thread, and everything else then waits until it ends. Work that waits for
/// other such work needs a thread for each, and one more; otherwise it waits for ever.
///
/// Aborted before it begins, it never does. Once it has begun, it goes on to its end.
///
/// # Panics
///
/// As [`spawn`].
///
/// # Examples
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// # socknotify_async::Runtime::new()?.block_on(async {
/// let text = socknotify_async::unblock(|| std::fs::read_to_string("Cargo.toml")).await??;
/// assert!(text.contains("socknotify"));
/// # Ok(())
/// # })
/// # }
/// ```
#[doc(alias = "spawn_blocking")]
#[doc(alias = "block_in_place")]
#[track_caller]
pub fn unblock<R: Send + 'static>(work: impl FnOnce() -> R + Send + 'static) -> JoinHandle<R> {
    let shared = context::expect();
    let of = Arc::clone(&shared);
    Handle(shared).spawn(async move {
        let _job = Job::begin(Arc::clone(&of)).await;
        of.block(work)
    })
}
