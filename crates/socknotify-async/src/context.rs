//! What a thread is to a runtime: which one is current, and whether it is one of its threads.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::mem::ManuallyDrop;
#[cfg(unix)]
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use crate::shared::Shared;
#[cfg(unix)]
use crate::source::Source;

/// What one of a runtime's threads does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doing {
    /// It looks at all lists before it waits.
    Looking,
    /// It polls a task, or drops one.
    Polling,
    /// It runs code of anyone's in no task: wakers, and what is dropped of a task that has ended.
    Calling,
}

/// One of a runtime's threads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Role {
    pub(crate) runtime: usize,
    /// The list that it prefers.
    pub(crate) list: usize,
    pub(crate) doing: Doing,
    /// It is about to block in what it does, and has said so.
    pub(crate) blocks: bool,
}

impl Role {
    /// A thread of this runtime, between tasks.
    pub(crate) fn looking(runtime: usize, list: usize) -> Self {
        Role {
            runtime,
            list,
            doing: Doing::Looking,
            blocks: false,
        }
    }
}

/// How many operations a poll may do before it lets others go on.
const BUDGET: u32 = 128;

thread_local! {
    static CURRENT: RefCell<Option<Arc<Shared>>> = const { RefCell::new(None) };
    static ROLE: Cell<Option<Role>> = const { Cell::new(None) };
    /// How many operations are left to the task that is polled.
    static LEFT: Cell<u32> = const { Cell::new(u32::MAX) };
    /// What is in its waker.
    static POLLED: Cell<*const ()> = const { Cell::new(std::ptr::null()) };
}

/// The runtime that this thread belongs to, or is inside of.
pub(crate) fn current() -> Option<Arc<Shared>> {
    CURRENT.try_with(|it| it.borrow().clone()).ok().flatten()
}

/// Call this with it, if there is one. It enters none.
#[inline]
pub(crate) fn with_current(call: impl FnOnce(&Arc<Shared>)) {
    let _ = CURRENT.try_with(|it| it.borrow().as_ref().map(call));
}

/// The same.
///
/// # Panics
///
/// If there is none.
#[track_caller]
pub(crate) fn expect() -> Arc<Shared> {
    current().expect(
        "there is no socknotify_async runtime here: use `Runtime::block_on`, `spawn` or `enter`. A task that another runtime \
         spawned, as tokio for `axum::serve` or tonic, is in none: see `hyper_rt::serve`",
    )
}

/// While this lives, a runtime is the current one of its thread.
#[must_use = "dropped, it has no effect"]
#[derive(Debug)]
pub struct Entered {
    before: Option<Arc<Shared>>,
    /// It belongs to its thread.
    _here: std::marker::PhantomData<*const ()>,
}

pub(crate) fn enter(shared: &Arc<Shared>) -> Entered {
    Entered {
        // A thread that ends may drop a runtime of its own.
        before: CURRENT
            .try_with(|it| it.replace(Some(Arc::clone(shared))))
            .unwrap_or_default(),
        _here: std::marker::PhantomData,
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let before = self.before.take();
        let this = CURRENT.try_with(|it| it.replace(before));
        // This may be the last of it.
        drop(this);
    }
}

/// While this lives, the future of a `block_on` is polled, maybe inside of another poll.
pub(crate) struct Nested {
    left: u32,
    polled: *const (),
}

pub(crate) fn nest() -> Nested {
    Nested {
        left: LEFT.replace(u32::MAX),
        polled: POLLED.get(),
    }
}

impl Drop for Nested {
    fn drop(&mut self) {
        LEFT.set(self.left);
        // What was polled inside is gone.
        POLLED.set(self.polled);
    }
}

/// What this thread is to this runtime.
#[inline]
pub(crate) fn role(runtime: usize) -> Option<Role> {
    any_role().filter(|role| role.runtime == runtime)
}

/// What this thread is to whichever runtime it belongs to.
#[inline]
pub(crate) fn any_role() -> Option<Role> {
    ROLE.try_with(Cell::get).ok().flatten()
}

#[inline]
pub(crate) fn set_role(role: Option<Role>) {
    let _ = ROLE.try_with(|it| it.set(role));
}

/// Run this in another role.
pub(crate) fn in_role<R>(role: Option<Role>, run: impl FnOnce() -> R) -> R {
    /// Also after a panic.
    struct Restores(Option<Role>);
    impl Drop for Restores {
        fn drop(&mut self) {
            set_role(self.0);
        }
    }
    let _restores = Restores(any_role());
    set_role(role);
    run()
}

/// Code of anyone's, which drops something, and does not panic.
type Drops = Box<dyn FnOnce()>;

/// How many of them run inside of one another.
const DEPTH: u32 = 16;

thread_local! {
    static DEEP: Cell<u32> = const { Cell::new(0) };
    /// Those that are too deep. It has no destructor, after which a thread that ends would have no list.
    static TOO_DEEP: Cell<ManuallyDrop<VecDeque<Drops>>> =
        const { Cell::new(ManuallyDrop::new(VecDeque::new())) };
}

/// Run this: at once, or if it is called in too many others, when these are over. So it takes no stack without a bound.
pub(crate) fn run_drops(drops: Drops) {
    let depth = DEEP.get();
    let mut next = Some(drops);
    if depth == DEPTH {
        let mut waiting = TOO_DEEP.take();
        waiting.extend(next);
        return TOO_DEEP.set(waiting);
    }
    DEEP.set(depth + 1);
    while let Some(drops) = next {
        drops();
        let mut waiting = ManuallyDrop::into_inner(TOO_DEEP.take());
        next = waiting.pop_front();
        if !waiting.is_empty() {
            TOO_DEEP.set(ManuallyDrop::new(waiting));
        }
    }
    DEEP.set(depth);
}

/// The future is gone of the task that this thread polls or drops: what else is dropped, or woken, is in no task.
#[inline]
pub(crate) fn leave_task(runtime: usize) {
    if let Some(role) = role(runtime) {
        let doing = Doing::Calling;
        set_role(Some(Role { doing, ..role }));
    }
}

/// A task is polled next, or the future of `block_on`, which has this waker. Neither panics as it is woken.
#[inline]
pub(crate) fn begin_poll(waker: &Waker) {
    LEFT.set(BUDGET);
    POLLED.set(waker.data());
}

/// The poll is over: another waker may soon have the memory of the task's.
#[inline]
pub(crate) fn end_poll() {
    POLLED.set(std::ptr::null());
}

/// Whether this is the waker of what this thread polls.
#[inline]
pub(crate) fn is_polled(waker: &Waker) -> bool {
    let data = waker.data();
    // Others have none, and none is polled at first.
    !data.is_null() && POLLED.get() == data
}

#[cfg(unix)]
thread_local! {
    /// The sockets that are to be registered when the poll is over, by their numbers.
    static PUT_OFF: RefCell<Vec<(Arc<Source>, RawFd)>> = const { RefCell::new(Vec::new()) };
}

/// This socket is to be registered when the poll is over. Called in a poll.
#[cfg(unix)]
pub(crate) fn put_off(source: Arc<Source>, fd: RawFd) {
    PUT_OFF.with_borrow_mut(|it| it.push((source, fd)));
}

/// The next one of these.
#[cfg(unix)]
#[inline]
pub(crate) fn next_put_off() -> Option<(Arc<Source>, RawFd)> {
    PUT_OFF.with_borrow_mut(Vec::pop)
}

/// The task that was polled last has used up its budget.
#[inline]
pub(crate) fn is_spent() -> bool {
    LEFT.get() == 0
}

/// An operation is about to be done in no task. Says once if that is on a worker of tokio's: whoever spawned there, as `axum::serve`
/// and tonic do, has handlers that hold up all others when they block. By its name, as nothing else of tokio is here.
#[cfg(debug_assertions)]
fn warn_of_tokio() {
    use std::io::Write;

    static WARNED: AtomicBool = AtomicBool::new(false);
    if WARNED.load(Ordering::Relaxed) || current().is_some() {
        return;
    }
    let thread = std::thread::current();
    let is_tokio_s = |name: &str| name.starts_with("tokio-r");
    if thread.name().is_some_and(is_tokio_s) && !WARNED.swap(true, Ordering::Relaxed) {
        let _ = writeln!(
            std::io::stderr(),
            "socknotify_async: a socket of this runtime is used by a task of tokio's, on its thread, where nothing may block: \
             see `hyper_rt::serve` and `hyper_rt::here`"
        );
    }
}

/// An operation is about to be done. When its task has done many in this poll, it is woken, and is to return.
///
/// Whoever was told so is not told again at the next try: what is polled before it, in the same task, may use up the budget of each
/// poll; and an executor inside of the task cannot return.
#[inline]
pub(crate) fn spend(cx: &Context<'_>, was_refused: &AtomicBool) -> Poll<()> {
    let left = LEFT.try_with(Cell::get).unwrap_or(u32::MAX);
    if left == u32::MAX {
        #[cfg(debug_assertions)]
        warn_of_tokio();
        return Poll::Ready(());
    }
    if left > 0 {
        LEFT.set(left - 1);
        return Poll::Ready(());
    }
    if was_refused.fetch_xor(true, Ordering::Relaxed) {
        return Poll::Ready(());
    }
    cx.waker().wake_by_ref();
    Poll::Pending
}

/// The same, by a future.
pub(crate) async fn spends() {
    let was_refused = AtomicBool::new(false);
    poll_fn(|cx| spend(cx, &was_refused)).await;
}
