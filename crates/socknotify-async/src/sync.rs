//! Locks and atomics. What is `checked` has the model checker stand in for it.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use crate::context;

/// Lock, also after a panic: values stay whole.
#[inline]
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a panic carries.
pub(crate) type Panic = Box<dyn Any + Send>;

/// Run code of anyone's, whose panic goes no further.
pub(crate) fn contain(run: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(run)) {
        discard(panic);
    }
}

/// Drop what a panic carries. That may panic, too: what the second one carries is forgotten.
pub(crate) fn discard(panic: Panic) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
        std::mem::forget(panic);
    }
}

/// Wake a task of anyone's, whose waker may panic.
pub(crate) fn wake(waker: Waker) {
    contain(|| waker.wake());
}

/// A task that waits.
#[derive(Clone, Debug)]
pub(crate) struct Waiter {
    waker: Waker,
    /// It is that of what this thread polled: to wake it only queues a task. Others may do anything, and block.
    is_own: bool,
}

impl Waiter {
    pub(crate) fn new(waker: &Waker) -> Self {
        Waiter {
            waker: waker.clone(),
            is_own: context::is_polled(waker),
        }
    }

    pub(crate) fn waker(&self) -> &Waker {
        &self.waker
    }

    pub(crate) fn will_wake(&self, waker: &Waker) -> bool {
        self.waker.will_wake(waker)
    }

    /// Wakes it, or if it is anyone else's, leaves that for later.
    pub(crate) fn wake_own(self, foreign: &mut Vec<Waker>) {
        if self.is_own {
            self.waker.wake();
        } else {
            foreign.push(self.waker);
        }
    }

    pub(crate) fn wake(self) {
        wake(self.waker);
    }
}

/// For the queue of tasks, and the readiness of sockets.
pub(crate) mod checked {
    #[cfg(interleavings)]
    pub(crate) use loom::sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering},
    };
    #[cfg(not(interleavings))]
    pub(crate) use std::sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering},
    };

    /// Lock, also after a panic: values stay whole.
    #[inline]
    pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
