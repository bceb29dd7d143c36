//! The locks and the like of the engine, so that the model checker can stand in for them.

#[cfg(interleavings)]
pub(super) use loom::sync::atomic::AtomicU64;
#[cfg(interleavings)]
pub(super) use loom::sync::{Condvar, Mutex, MutexGuard};
#[cfg(interleavings)]
pub(super) use loom::thread_local;
#[cfg(not(interleavings))]
pub(super) use std::sync::atomic::AtomicU64;
#[cfg(not(interleavings))]
pub(super) use std::sync::{Condvar, Mutex, MutexGuard};
#[cfg(not(interleavings))]
pub(super) use std::thread_local;

/// A short sleep.
pub(super) struct Nap {
    /// `None`: too far away to be represented.
    #[cfg(not(interleavings))]
    end: Option<std::time::Instant>,
    #[cfg(interleavings)]
    is_over: bool,
}

#[cfg(not(interleavings))]
impl Nap {
    pub(super) fn new(time: std::time::Duration) -> Self {
        Nap {
            end: std::time::Instant::now().checked_add(time),
        }
    }

    fn left(&self) -> std::time::Duration {
        self.end.map_or(std::time::Duration::MAX, |end| {
            end.saturating_duration_since(std::time::Instant::now())
        })
    }

    pub(super) fn is_over(&self) -> bool {
        self.left().is_zero()
    }

    /// Sleep until it is over, or the thread is woken.
    pub(super) fn wait<'a, T>(
        &mut self,
        condvar: &Condvar,
        guard: MutexGuard<'a, T>,
        _: &'a Mutex<T>,
    ) -> MutexGuard<'a, T> {
        let waited = condvar.wait_timeout(guard, self.left());
        waited.unwrap_or_else(std::sync::PoisonError::into_inner).0
    }
}

/// For the model checker, which knows no time: it is over at any moment.
#[cfg(interleavings)]
impl Nap {
    pub(super) fn new(_: std::time::Duration) -> Self {
        Nap { is_over: false }
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    pub(super) fn wait<'a, T>(
        &mut self,
        _: &Condvar,
        guard: MutexGuard<'a, T>,
        mutex: &'a Mutex<T>,
    ) -> MutexGuard<'a, T> {
        drop(guard);
        loom::thread::yield_now();
        self.is_over = true;
        mutex
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
