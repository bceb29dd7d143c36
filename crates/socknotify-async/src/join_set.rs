//! [`JoinSet`]: tasks whose results are taken as they end.

use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker, ready};

use slab::Slab;

use crate::sync::{lock, wake};
use crate::task;
use crate::{AbortHandle, Handle, JoinError, JoinHandle};

/// Tasks whose results are taken as they end, in whatever order. Dropping it aborts those that are left.
///
/// # Examples
///
/// ```
/// use socknotify_async::JoinSet;
///
/// # fn main() -> std::io::Result<()> {
/// # socknotify_async::Runtime::new()?.block_on(async {
/// let mut set = JoinSet::new();
/// for number in 1..=10 {
///     set.spawn(async move { number });
/// }
/// let mut sum = 0;
/// while let Some(number) = set.join_next().await {
///     sum += number?;
/// }
/// assert_eq!(sum, 55);
/// # Ok(())
/// # })
/// # }
/// ```
pub struct JoinSet<T> {
    tasks: Slab<JoinHandle<T>>,
    ended: Arc<Mutex<Ended>>,
}

/// Which tasks have ended, and who waits for that.
#[derive(Default)]
struct Ended {
    keys: VecDeque<usize>,
    waker: Option<Waker>,
}

/// In a task: dropped with it, it says that it has ended.
struct Tells(Arc<Mutex<Ended>>, usize);

impl Drop for Tells {
    fn drop(&mut self) {
        let mut ended = lock(&self.0);
        ended.keys.push_back(self.1);
        let waker = ended.waker.take();
        drop(ended);
        waker.into_iter().for_each(wake);
    }
}

impl<T> JoinSet<T> {
    /// A set without tasks.
    pub fn new() -> Self {
        Self::default()
    }

    /// Spawns a task of the set on the current runtime.
    ///
    /// # Panics
    ///
    /// As [`spawn`](crate::spawn()).
    #[track_caller]
    pub fn spawn(&mut self, future: impl Future<Output = T> + Send + 'static) -> AbortHandle
    where
        T: Send + 'static,
    {
        let runtime = Handle::current();
        // What is made next says that the task has ended when it is dropped.
        runtime.0.check_process();
        let place = self.tasks.vacant_entry();
        let tells = Tells(Arc::clone(&self.ended), place.key());
        let task = task::spawn(runtime.0, async move {
            // Dropped in this order, whether it was polled or not.
            let (future, _tells) = (future, tells);
            future.await
        });
        place.insert(task).abort_handle()
    }

    /// Waits until one of the tasks ends, and takes its result. `None` if there is none. Cancelled, it takes none.
    ///
    /// # Errors
    ///
    /// The [`JoinError`] of a task that has panicked, or was aborted.
    pub async fn join_next(&mut self) -> Option<Result<T, JoinError>> {
        poll_fn(|cx| self.poll_join_next(cx)).await
    }

    /// The same, for those who write futures by hand.
    ///
    /// # Errors
    ///
    /// As [`join_next`](Self::join_next).
    pub fn poll_join_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<T, JoinError>>> {
        if self.tasks.is_empty() {
            return Poll::Ready(None);
        }
        let mut ended = lock(&self.ended);
        let Some(&key) = ended.keys.front() else {
            let before = ended.waker.replace(cx.waker().clone());
            drop(ended);
            // It may run any code.
            drop(before);
            return Poll::Pending;
        };
        drop(ended);
        // It may have a few steps left.
        let result = ready!(Pin::new(&mut self.tasks[key]).poll(cx));
        lock(&self.ended).keys.pop_front();
        self.tasks.remove(key);
        Poll::Ready(Some(result))
    }

    /// Aborts all tasks, whose results are still to be taken.
    pub fn abort_all(&self) {
        self.tasks.iter().for_each(|(_, task)| task.abort());
    }

    /// How many tasks there are whose results were not taken.
    pub fn len(&self) -> usize {
        self.tasks.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }
}

impl<T> Default for JoinSet<T> {
    fn default() -> Self {
        JoinSet {
            tasks: Slab::new(),
            ended: Arc::default(),
        }
    }
}

impl<T> Drop for JoinSet<T> {
    fn drop(&mut self) {
        self.abort_all();
    }
}

impl<T> fmt::Debug for JoinSet<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinSet")
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}
