//! Locks and atomics, so that the model checker can stand in for them.

#[cfg(interleavings)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
#[cfg(interleavings)]
pub(crate) use loom::sync::{Mutex, MutexGuard};
#[cfg(not(interleavings))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
#[cfg(not(interleavings))]
pub(crate) use std::sync::{Mutex, MutexGuard};

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::PoisonError;
use std::task::Waker;

/// Lock, also after a panic: values stay whole.
#[inline]
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Wake a task of anyone's, whose waker may panic.
pub(crate) fn wake(waker: Waker) {
    let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
}
