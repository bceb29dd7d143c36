//! Locks, atomics and thread-locals of what is model-checked: the standard library's, or loom's.

#[cfg(interleavings)]
pub(crate) use loom::{
    sync::atomic::{AtomicU64, AtomicUsize, fence},
    sync::{Condvar, Mutex, MutexGuard},
    thread::LocalKey,
    thread_local,
};
#[cfg(not(interleavings))]
pub(crate) use std::{
    sync::atomic::{AtomicU64, AtomicUsize, fence},
    sync::{Condvar, Mutex, MutexGuard},
    thread::LocalKey,
    thread_local,
};

use std::sync::PoisonError;
use std::time::Duration;

/// Lock, also after a panic.
#[inline]
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Wait until notified, or for this long. It may also return without a reason.
pub(crate) fn wait<'a, T>(
    condvar: &Condvar,
    guard: MutexGuard<'a, T>,
    mutex: &'a Mutex<T>,
    timeout: Option<Duration>,
) -> MutexGuard<'a, T> {
    match timeout {
        None => condvar.wait(guard).unwrap_or_else(PoisonError::into_inner),
        // The model checker knows no time: a time is over at any moment.
        #[cfg(interleavings)]
        Some(_) => {
            drop(guard);
            loom::thread::yield_now();
            lock(mutex)
        }
        #[cfg(not(interleavings))]
        Some(timeout) => {
            let _ = mutex;
            let waited = condvar.wait_timeout(guard, timeout);
            waited.unwrap_or_else(PoisonError::into_inner).0
        }
    }
}
