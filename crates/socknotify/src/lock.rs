//! Locks whose values stay whole when a thread panics: poison says nothing here.

use std::sync::{Mutex, MutexGuard, PoisonError};

#[inline]
pub(crate) fn lock<V: ?Sized>(mutex: &Mutex<V>) -> MutexGuard<'_, V> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
