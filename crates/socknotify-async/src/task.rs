//! [`JoinHandle`]: a task from outside; and the list of tasks that have not ended.

use std::any::Any;
use std::fmt;
use std::future::{Future, ready};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{self, Context, Poll, Wake, Waker};

use async_task::{FallibleTask, Runnable, ScheduleInfo, WithInfo};
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
///     let mut endless = socknotify_async::spawn(std::future::pending::<()>());
///     endless.abort();
///     assert!(endless.await.unwrap_err().is_cancelled());
/// });
/// # Ok(())
/// # }
/// ```
pub struct JoinHandle<T>(State<T>);

/// Waits until a task's future is dropped, or for its result if it has ended before.
type Cancel<T> = Pin<Box<dyn Future<Output = Option<Outcome<T>>> + Send>>;

enum State<T> {
    Running(FallibleTask<Outcome<T>>),
    /// The lock makes it `Sync`.
    Aborted(Mutex<Cancel<T>>),
    Taken,
}

impl<T> State<T> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Outcome<T>>> {
        match self {
            State::Running(task) => Pin::new(task).poll(cx),
            State::Aborted(cancel) => lock(cancel).as_mut().poll(cx),
            State::Taken => panic!("the result was taken before"),
        }
    }
}

impl<T: Send + 'static> JoinHandle<T> {
    /// Has the task's future dropped, instead of polled again. A poll that has begun goes on to its end, but if it ends the
    /// task, the result is dropped. A task that has ended before keeps its result.
    pub fn abort(&mut self) {
        self.0 = match std::mem::replace(&mut self.0, State::Taken) {
            State::Running(task) => {
                let mut cancel = Box::pin(task.cancel());
                // It begins with the first poll.
                let mut cx = Context::from_waker(Waker::noop());
                State::Aborted(match cancel.as_mut().poll(&mut cx) {
                    Poll::Ready(outcome) => Mutex::new(Box::pin(ready(outcome))),
                    Poll::Pending => Mutex::new(cancel),
                })
            }
            other => other,
        };
    }
}

impl<T> JoinHandle<T> {
    /// Whether the task has ended, or will not be polled again.
    pub fn is_finished(&self) -> bool {
        match &self.0 {
            State::Running(task) => task.is_finished(),
            _ => true,
        }
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, JoinError>;

    /// # Panics
    ///
    /// If it is polled again after it was ready.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let outcome = task::ready!(if context::is_polled(cx.waker()) {
            self.0.poll(cx)
        } else {
            // Where the task ends, a panic would end the process.
            let waker = Waker::from(Arc::new(Foreign(Some(cx.waker().clone()))));
            self.0.poll(&mut Context::from_waker(&waker))
        });
        self.0 = State::Taken;
        Poll::Ready(match outcome.and_then(|mut it| it.0.take()) {
            Some(Ok(value)) => Ok(value),
            Some(Err(panic)) => Err(JoinError(Some(Mutex::new(panic)))),
            None => Err(JoinError(None)),
        })
    }
}

impl<T> Unpin for JoinHandle<T> {}

impl<T> Drop for JoinHandle<T> {
    fn drop(&mut self) {
        if let State::Running(task) = std::mem::replace(&mut self.0, State::Taken) {
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
    }

    impl<F> PinnedDrop for Listed<F> {
        fn drop(this: Pin<&mut Self>) {
            let mut future = this.project().future;
            contain(|| future.set(None));
        }
    }
}

impl<F: Future> Future for Listed<F> {
    type Output = Outcome<F::Output>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let future = self.project().future.as_pin_mut();
        let future = future.expect("it is there until this is dropped");
        context::begin_poll(cx.waker());
        let result = match catch_unwind(AssertUnwindSafe(|| future.poll(cx))) {
            Ok(poll) => Ok(task::ready!(poll)),
            Err(panic) => Err(panic),
        };
        Poll::Ready(Outcome(Some(result)))
    }
}

/// A task's entry in the list.
struct Entry {
    shared: Arc<Shared>,
    part: usize,
    key: usize,
}

impl Drop for Entry {
    fn drop(&mut self) {
        let tasks = &self.shared.tasks;
        // Dropping a waker may run any code.
        let waker = lock(&tasks.parts[self.part]).try_remove(self.key);
        drop(waker);
        let before = tasks.count.fetch_sub(1, Ordering::SeqCst);
        self.shared.on_task_ended(before - 1);
    }
}

/// The tasks that have not ended, by their wakers: woken once the runtime is closed, they are dropped.
pub(crate) struct Tasks {
    parts: Box<[Mutex<Slab<Waker>>]>,
    count: AtomicUsize,
}

impl Tasks {
    /// The list is in parts, with a lock for each.
    pub(crate) fn new(parts: usize) -> Self {
        Tasks {
            parts: (0..parts).map(|_| Mutex::new(Slab::new())).collect(),
            count: AtomicUsize::new(0),
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }

    /// Wake all of them.
    pub(crate) fn wake(&self) {
        for part in &self.parts {
            let wakers: Vec<_> = lock(part).iter().map(|(_, waker)| waker.clone()).collect();
            wakers.into_iter().for_each(Waker::wake);
        }
    }
}

/// Make a task, and have it run.
pub(crate) fn spawn<F>(shared: &Arc<Shared>, future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    let tasks = &shared.tasks;
    let part = shared.list() % tasks.parts.len();
    // Its entry keeps the place until the task has a waker.
    let key = lock(&tasks.parts[part]).insert(Waker::noop().clone());
    tasks.count.fetch_add(1, Ordering::SeqCst);
    let entry = Entry {
        shared: Arc::clone(shared),
        part,
        key,
    };
    let of = Arc::clone(shared);
    let schedule = WithInfo(move |runnable: Runnable, info: ScheduleInfo| {
        of.schedule(runnable, info.woken_while_running);
    });
    let future = Some(future);
    let listed = Listed { future, entry };
    let (runnable, task) = async_task::spawn(listed, schedule);
    lock(&tasks.parts[part])[key] = runnable.waker();
    if shared.is_closed() {
        let _entered = context::enter(shared);
        drop(runnable);
    } else {
        runnable.schedule();
    }
    JoinHandle(State::Running(task.fallible()))
}
