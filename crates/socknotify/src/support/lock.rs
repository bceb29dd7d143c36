//! Locking without poison: every value stays whole when a thread panics.

use std::sync::{Mutex, MutexGuard, PoisonError};

#[inline]
pub(crate) fn lock<V: ?Sized>(mutex: &Mutex<V>) -> MutexGuard<'_, V> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Take the value out, and leave the default there. The lock is free when the caller drops it, which may run any code.
pub(crate) fn take<V: Default>(mutex: &Mutex<V>) -> V {
    std::mem::take(&mut *lock(mutex))
}
