//! The locks and the like of the engine and of workers, so that the model checker can stand in for them.

#[cfg(interleavings)]
pub(super) use loom::sync::Condvar;
#[cfg(interleavings)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicUsize};
#[cfg(interleavings)]
pub(super) use loom::sync::atomic::{AtomicU64, fence};
#[cfg(interleavings)]
pub(crate) use loom::sync::{Mutex, MutexGuard};
#[cfg(interleavings)]
pub(super) use loom::thread_local;
#[cfg(not(interleavings))]
pub(super) use std::sync::Condvar;
#[cfg(not(interleavings))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicUsize};
#[cfg(not(interleavings))]
pub(super) use std::sync::atomic::{AtomicU64, fence};
#[cfg(not(interleavings))]
pub(crate) use std::sync::{Mutex, MutexGuard};
#[cfg(not(interleavings))]
pub(super) use std::thread_local;

#[cfg(interleavings)]
pub(super) use self::model::ThreadState;
#[cfg(not(interleavings))]
pub(super) use crate::sys::thread_state::ThreadState;
pub(super) use crate::sys::thread_state::{Activity, Look};

use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Whether a flag is set, in the one order of all that is sequentially consistent. The model checker has that for
/// read-modify-write operations only.
#[inline]
pub(super) fn is_set(flag: &AtomicBool) -> bool {
    match cfg!(interleavings) {
        true => flag.fetch_or(false, Ordering::SeqCst),
        false => flag.load(Ordering::SeqCst),
    }
}

/// Set a flag, in the same order: of a store beside a read-modify-write operation, the model checker does not know which
/// came first, though the values that are read say so.
#[inline]
pub(super) fn set(flag: &AtomicBool) {
    match cfg!(interleavings) {
        true => _ = flag.fetch_or(true, Ordering::SeqCst),
        false => flag.store(true, Ordering::SeqCst),
    }
}

/// Lock, also after a panic.
#[inline]
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Wait until notified, or for this long. It may also return without a reason.
#[cfg(not(interleavings))]
pub(super) fn wait<'a, T>(
    condvar: &Condvar,
    guard: MutexGuard<'a, T>,
    _: &'a Mutex<T>,
    timeout: Option<Duration>,
) -> MutexGuard<'a, T> {
    match timeout {
        None => condvar.wait(guard).unwrap_or_else(PoisonError::into_inner),
        Some(timeout) => {
            let waited = condvar.wait_timeout(guard, timeout);
            waited.unwrap_or_else(PoisonError::into_inner).0
        }
    }
}

/// For the model checker, which knows no time: a time is over at any moment.
#[cfg(interleavings)]
pub(super) fn wait<'a, T>(
    condvar: &Condvar,
    guard: MutexGuard<'a, T>,
    mutex: &'a Mutex<T>,
    timeout: Option<Duration>,
) -> MutexGuard<'a, T> {
    match timeout {
        None => condvar.wait(guard).unwrap_or_else(PoisonError::into_inner),
        Some(_) => {
            drop(guard);
            loom::thread::yield_now();
            lock(mutex)
        }
    }
}

/// For the model checker, whose threads say themselves that they block.
#[cfg(interleavings)]
pub(super) mod model {
    use std::sync::Arc;

    use loom::sync::atomic::{AtomicBool, Ordering};
    use loom::thread_local;

    use super::{Activity, Look};
    use crate::sys::thread_state::Description;

    thread_local! {
        static IS_BLOCKED: Arc<AtomicBool> = Arc::new(AtomicBool::new(false));
    }

    pub(in super::super) struct ThreadState(Arc<AtomicBool>);

    impl ThreadState {
        pub(in super::super) fn of_this() -> Self {
            ThreadState(IS_BLOCKED.with(Arc::clone))
        }

        pub(in super::super) fn activity(&self) -> Activity {
            Activity::Unknown
        }

        pub(in super::super) fn describe(&self) -> Description {
            Description::default()
        }

        pub(in super::super) fn look(&self) -> Look {
            match self.0.load(Ordering::SeqCst) {
                true => Look::Blocked,
                false => Look::Running,
            }
        }
    }

    /// This thread blocks from here on, or goes on.
    pub(in super::super) fn set_blocked(is_blocked: bool) {
        IS_BLOCKED.with(|it| it.store(is_blocked, Ordering::SeqCst));
    }
}
