//! [`JoinHandle`], [`AbortHandle`]: a task from outside; and the list of tasks that have not ended.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{self, Context, Poll, Wake, Waker};

use async_task::{ScheduleInfo, WithInfo};
use pin_project_lite::pin_project;
use slab::Slab;

use crate::context;
use crate::shared::Shared;
use crate::sync::{Panic, contain, discard, lock, wake};

/// What a task has ended with: `None` once that is taken. If nobody takes it, what panics as it is dropped goes no further.
struct Outcome<T>(Option<Result<T, Panic>>);

impl<T> Drop for Outcome<T> {
    fn drop(&mut self) {
        match self.0.take() {
            Some(Ok(value)) => contain(|| drop(value)),
            Some(Err(panic)) => discard(panic),
            None => {}
        }
    }
}

/// The waker of who waits for a task, which may be anyone's, and panic.
struct Foreign(Option<Waker>);

impl Wake for Foreign {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.iter().cloned().for_each(wake);
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        let waker = self.0.take();
        contain(|| drop(waker));
    }
}

/// A task that was spawned. As a future, it waits until the task has ended, and returns its result.
///
/// Dropping it lets the task go on alone.
///
/// # Examples
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// let runtime = socknotify_async::Runtime::new()?;
/// runtime.block_on(async {
///     let endless = socknotify_async::spawn(std::future::pending::<()>());
///     endless.abort();
///     assert!(endless.await.unwrap_err().is_cancelled());
/// });
/// # Ok(())
/// # }
/// ```
pub struct JoinHandle<T> {
    /// `None` as it is dropped.
    task: Option<async_task::Task<Outcome<T>, AbortHandle>>,
}

impl<T> JoinHandle<T> {
    /// Has the task's future dropped, instead of polled again. A poll that has begun goes on to its end, but if it ends the
    /// task, the result is dropped. A task that has ended before keeps its result.
    pub fn abort(&self) {
        self.task().metadata().abort();
    }

    /// What aborts the task while another one waits for its result.
    pub fn abort_handle(&self) -> AbortHandle {
        self.task().metadata().clone()
    }

    /// Whether the task has ended, or will not be polled again.
    pub fn is_finished(&self) -> bool {
        self.task().is_finished() || self.task().metadata().is_aborted()
    }

    fn task(&self) -> &async_task::Task<Outcome<T>, AbortHandle> {
        self.task.as_ref().expect("it is not dropped yet")
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, JoinError>;

    /// # Panics
    ///
    /// If it is polled again after it was ready.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let task = self.task.as_mut().expect("it is not dropped yet");
        // If the result was taken before, this panics.
        let task = Pin::new(task);
        let mut outcome = task::ready!(if context::is_polled(cx.waker()) {
            task.poll(cx)
        } else {
            // Where the task ends, a panic would end the process.
            let waker = Waker::from(Arc::new(Foreign(Some(cx.waker().clone()))));
            task.poll(&mut Context::from_waker(&waker))
        });
        Poll::Ready(match outcome.0.take() {
            Some(Ok(value)) => Ok(value),
            Some(Err(panic)) => Err(JoinError(Some(Mutex::new(panic)))),
            None => Err(JoinError(None)),
        })
    }
}

impl<T> Unpin for JoinHandle<T> {}

impl<T> Drop for JoinHandle<T> {
    fn drop(&mut self) {
        if let Some(task) = self.task.take() {
            task.detach();
        }
    }
}

impl<T> fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinHandle")
            .field("is_finished", &self.is_finished())
            .finish_non_exhaustive()
    }
}

/// Aborts a task, as [`JoinHandle::abort`] does. It keeps nothing of the task's.
#[derive(Clone)]
pub struct AbortHandle {
    shared: Arc<Shared>,
    place: Place,
}

impl AbortHandle {
    /// Has the task's future dropped, instead of polled again.
    pub fn abort(&self) {
        // In a forked child, a thread that it does not have may hold a lock.
        if !self.shared.is_here() {
            return;
        }
        let tasks = &self.shared.tasks;
        let waker = tasks.with(self.place, |task| {
            (!std::mem::replace(&mut task.is_aborted, true)).then(|| {
                tasks.aborted.fetch_add(1, Ordering::SeqCst);
                task.waker.clone()
            })
        });
        // It is dropped where it would be polled.
        waker.flatten().flatten().into_iter().for_each(Waker::wake);
    }

    /// Whether the task has ended, or will not be polled again. In a forked child false: what the parent's task does is not known
    /// there.
    pub fn is_finished(&self) -> bool {
        // As above.
        let tasks = &self.shared.tasks;
        self.shared.is_here() && tasks.with(self.place, |task| task.is_aborted) != Some(false)
    }

    fn is_aborted(&self) -> bool {
        let tasks = &self.shared.tasks;
        tasks.aborted.load(Ordering::SeqCst) > 0
            && self.shared.is_here()
            && tasks.with(self.place, |task| task.is_aborted) == Some(true)
    }
}

impl fmt::Debug for AbortHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AbortHandle")
            .field("is_finished", &self.is_finished())
            .finish_non_exhaustive()
    }
}

/// Why a task has no result: it was cancelled, or has panicked.
///
/// A task is cancelled by [`JoinHandle::abort`], or if its runtime shuts down.
pub struct JoinError(Option<Mutex<Panic>>);

impl JoinError {
    /// The task was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.0.is_none()
    }

    /// The task has panicked.
    pub fn is_panic(&self) -> bool {
        self.0.is_some()
    }

    /// What the panic carries, for [`std::panic::resume_unwind`].
    ///
    /// # Errors
    ///
    /// Returns the error if the task was cancelled.
    pub fn into_panic(self) -> Result<Box<dyn Any + Send>, Self> {
        let panic = self.0.ok_or(JoinError(None))?;
        Ok(panic
            .into_inner()
            .unwrap_or_else(|error| error.into_inner()))
    }
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(panic) = &self.0 else {
            return f.write_str("the task was cancelled");
        };
        let panic = lock(panic);
        let message = panic.downcast_ref::<&str>().copied();
        let message = message.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        match message {
            Some(message) => write!(f, "the task has panicked: {message}"),
            None => f.write_str("the task has panicked"),
        }
    }
}

impl fmt::Debug for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JoinError({self})")
    }
}

impl std::error::Error for JoinError {}

impl From<JoinError> for std::io::Error {
    fn from(error: JoinError) -> Self {
        std::io::Error::other(error)
    }
}

pin_project! {
    /// A task's future, and its entry in the list of tasks. What panics in the future goes no further, also in its `drop`.
    struct Listed<F> {
        #[pin]
        future: Option<F>,
        entry: Entry,
        has_waited: bool,
        spawned_at: &'static Location<'static>,
    }

    impl<F> PinnedDrop for Listed<F> {
        fn drop(this: Pin<&mut Self>) {
            let mut this = this.project();
            contain(|| this.future.set(None));
            context::leave_task(this.entry.0.shared.id);
        }
    }
}

impl<F: Future> Future for Listed<F> {
    type Output = Outcome<F::Output>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        if this.entry.0.shared.is_closed() || this.entry.0.is_aborted() {
            contain(|| this.future.set(None));
            return Poll::Ready(Outcome(None));
        }
        let future = this.future.as_pin_mut();
        let future = future.expect("it is there until this is dropped");
        context::begin_poll(cx.waker());
        if let Some(slow) = &this.entry.0.shared.slow {
            slow.polls(this.spawned_at);
        }
        let polled = catch_unwind(AssertUnwindSafe(|| future.poll(cx)));
        context::end_poll();
        let result = match polled {
            Ok(Poll::Pending) => {
                if !std::mem::replace(this.has_waited, true) {
                    this.entry.list(cx.waker());
                }
                return Poll::Pending;
            }
            Ok(Poll::Ready(value)) => Ok(value),
            Err(panic) => Err(panic),
        };
        let outcome = Outcome(Some(result));
        Poll::Ready(match this.entry.0.is_aborted() {
            false => outcome,
            true => Outcome(None),
        })
    }
}

/// Where a task is in the list. Another one may have its key, but not its number: 0 is no task's.
#[derive(Clone, Copy, Default)]
struct Place {
    part: u32,
    key: u32,
    number: u64,
}

/// A task's entry in the list, which ends with its future.
struct Entry(AbortHandle);

impl Entry {
    /// The task waits for the first time. Until then it is in the queue, or polled.
    fn list(&self, waker: &Waker) {
        let AbortHandle { shared, place } = &self.0;
        let is_aborted = shared.tasks.with(*place, |task| {
            task.waker = Some(waker.clone());
            task.is_aborted
        });
        // Who has closed the runtime before wakes those that it finds there.
        if is_aborted == Some(true) || shared.is_closed() {
            waker.wake_by_ref();
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let AbortHandle { shared, place } = &self.0;
        let tasks = &shared.tasks;
        let mut part = lock(&tasks.parts[place.part as usize]);
        let listing = part.tasks.try_remove(place.key as usize);
        let is_almost_last = part.tasks.len() <= 1;
        drop(part);
        if listing.as_ref().is_some_and(|it| it.is_aborted) {
            tasks.aborted.fetch_sub(1, Ordering::SeqCst);
        }
        // Dropping a waker may run any code.
        drop(listing);
        // Who waits in a task waits for all but that one.
        if is_almost_last {
            shared.on_ended();
        }
    }
}

/// The tasks that have not ended. Woken once they are aborted, or the runtime is closed, those that have waited are dropped.
pub(crate) struct Tasks {
    parts: Box<[Mutex<Part>]>,
    /// How many of them were aborted.
    aborted: AtomicUsize,
}

#[derive(Default)]
struct Part {
    tasks: Slab<Listing>,
    /// The number of the last one.
    last: u64,
}

struct Listing {
    number: u64,
    /// `None` until it waits for the first time.
    waker: Option<Waker>,
    is_aborted: bool,
}

impl Tasks {
    /// The list is in parts, with a lock for each.
    pub(crate) fn new(parts: usize) -> Self {
        Tasks {
            parts: (0..parts).map(|_| Mutex::default()).collect(),
            aborted: AtomicUsize::new(0),
        }
    }

    /// How many there are, at one moment.
    pub(crate) fn count(&self) -> usize {
        let parts: Vec<_> = self.parts.iter().map(lock).collect();
        parts.iter().map(|part| part.tasks.len()).sum()
    }

    /// Wake all of them.
    pub(crate) fn wake(&self) {
        for part in &self.parts {
            let part = lock(part);
            let wakers: Vec<_> = part.tasks.iter().map(|(_, it)| it.waker.clone()).collect();
            drop(part);
            wakers.into_iter().flatten().for_each(Waker::wake);
        }
    }

    fn with<R>(&self, place: Place, run: impl FnOnce(&mut Listing) -> R) -> Option<R> {
        let mut part = lock(&self.parts[place.part as usize]);
        let listing = part.tasks.get_mut(place.key as usize);
        listing.filter(|it| it.number == place.number).map(run)
    }

    fn add(&self, part: usize) -> Place {
        let index = part % self.parts.len();
        let mut part = lock(&self.parts[index]);
        part.last += 1;
        let number = part.last;
        let key = part.tasks.insert(Listing {
            number,
            waker: None,
            is_aborted: false,
        });
        let (part, key) = (index as u32, key as u32);
        Place { part, key, number }
    }
}

/// A task that is to run.
pub(crate) type Runnable = async_task::Runnable<AbortHandle>;

/// What wakes a task of anyone else's, for the queue of this runtime, none of whose tasks that is.
pub(crate) fn wakes(shared: &Arc<Shared>, waker: Waker) -> Runnable {
    let runtime = shared.id;
    let wakes = |_: &AbortHandle| async move {
        context::leave_task(runtime);
        wake(waker);
    };
    let (runnable, task) = unlisted(shared).spawn(wakes, drop);
    task.detach();
    runnable
}

/// A task that is not in the list.
fn unlisted(shared: &Arc<Shared>) -> async_task::Builder<AbortHandle> {
    let (shared, place) = (Arc::clone(shared), Place::default());
    async_task::Builder::new().metadata(AbortHandle { shared, place })
}

/// Make a task, and have it run.
#[track_caller]
pub(crate) fn spawn<F>(shared: Arc<Shared>, future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    // In this order: who ends the runtime waits for those that have not seen it closed, and for no others.
    let entry = (!shared.is_closed()).then(|| {
        let place = shared.tasks.add(shared.list().unwrap_or(0));
        let shared = Arc::clone(&shared);
        Entry(AbortHandle { shared, place })
    });
    let Some(entry) = entry.filter(|_| !shared.is_closed()) else {
        return cancelled(&shared, future);
    };
    let place = entry.0.place;
    let listed = Listed {
        future: Some(future),
        entry,
        has_waited: false,
        spawned_at: Location::caller(),
    };
    let builder = async_task::Builder::new().metadata(AbortHandle { shared, place });
    let (runnable, task) = builder.spawn(|_| listed, WithInfo(schedule));
    runnable.schedule();
    JoinHandle { task: Some(task) }
}

/// Another thread may run the task at once, and end it: so what is called is kept by something else.
fn schedule(runnable: Runnable, info: ScheduleInfo) {
    let has_run = info.woken_while_running;
    let mut runnable = Some(runnable);
    context::with_current(|shared| {
        let of = |it: &mut Runnable| Arc::ptr_eq(&it.metadata().shared, shared);
        let own = runnable.take_if(of);
        own.into_iter().for_each(|it| shared.schedule(it, has_run));
    });
    if let Some(runnable) = runnable {
        let shared = Arc::clone(&runnable.metadata().shared);
        shared.schedule(runnable, has_run);
    }
}

/// The runtime is closed: drop a future, as that of a task that was cancelled before it began.
#[cold]
fn cancelled<F>(shared: &Arc<Shared>, future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    let entered = Arc::clone(shared);
    context::run_drops(Box::new(move || {
        let _entered = context::enter(&entered);
        contain(|| drop(future));
    }));
    // Of one type for all futures with this output, so it is compiled once.
    let none = std::future::ready(Outcome(None));
    let (runnable, task) = unlisted(shared).spawn(|_| none, drop);
    runnable.run();
    JoinHandle { task: Some(task) }
}
