//! Locks and atomics that are points of the simulation.

use std::fmt;
use std::ops::{Deref, DerefMut};
pub use std::sync::*;
use std::time::Duration;

use crate::simulation::{self, On};

/// The address of what threads wait for.
fn address<T: ?Sized>(value: &T) -> usize {
    (&raw const *value).addr()
}

macro_rules! locks {
    ($lock:ident, $guard:ident, $try_lock:ident) => {
        pub struct $guard<'a, T: ?Sized> {
            /// Until it is dropped.
            inner: Option<std::sync::$guard<'a, T>>,
            lock: &'a $lock<T>,
        }

        impl<'a, T: ?Sized> $guard<'a, T> {
            /// Take it as soon as it is free.
            fn wait(
                lock: &'a $lock<T>,
                inner: &'a std::sync::$lock<T>,
                take: fn(&'a std::sync::$lock<T>) -> LockResult<std::sync::$guard<'a, T>>,
            ) -> LockResult<Self> {
                if !simulation::is_here() {
                    return Self::of(lock, take(inner));
                }
                simulation::point();
                loop {
                    match Self::tried(lock, inner.$try_lock()) {
                        Ok(guard) => return Ok(guard),
                        Err(TryLockError::Poisoned(error)) => return Err(error),
                        Err(TryLockError::WouldBlock) => {
                            simulation::block(On::Lock(address(lock)), None);
                        }
                    }
                }
            }

            fn tried(
                lock: &'a $lock<T>,
                tried: TryLockResult<std::sync::$guard<'a, T>>,
            ) -> TryLockResult<Self> {
                match tried {
                    Ok(guard) => Ok(Self::of(lock, Ok(guard))?),
                    Err(TryLockError::Poisoned(error)) => Ok(Self::of(lock, Err(error))?),
                    Err(TryLockError::WouldBlock) => Err(TryLockError::WouldBlock),
                }
            }

            fn of(
                lock: &'a $lock<T>,
                taken: LockResult<std::sync::$guard<'a, T>>,
            ) -> LockResult<Self> {
                let of = |inner| $guard {
                    inner: Some(inner),
                    lock,
                };
                match taken {
                    Ok(inner) => Ok(of(inner)),
                    Err(error) => Err(PoisonError::new(of(error.into_inner()))),
                }
            }
        }

        impl<T: ?Sized> Deref for $guard<'_, T> {
            type Target = T;

            fn deref(&self) -> &T {
                self.inner.as_ref().expect("it is locked")
            }
        }

        impl<T: ?Sized> $guard<'_, T> {
            /// Unlock it. True if others may continue.
            fn unlock(&mut self) -> bool {
                let is_here = self.inner.take().is_some() && simulation::is_here();
                if is_here {
                    simulation::unlocked(address(self.lock));
                }
                is_here
            }
        }

        impl<T: ?Sized> Drop for $guard<'_, T> {
            fn drop(&mut self) {
                if self.unlock() {
                    simulation::point();
                }
            }
        }

        impl<T: ?Sized + fmt::Debug> fmt::Debug for $guard<'_, T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                (**self).fmt(f)
            }
        }
    };
}

locks!(Mutex, MutexGuard, try_lock);
locks!(RwLock, RwLockReadGuard, try_read);
locks!(RwLock, RwLockWriteGuard, try_write);

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.inner.as_mut().expect("it is locked")
    }
}

impl<T: ?Sized> DerefMut for RwLockWriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.inner.as_mut().expect("it is locked")
    }
}

#[derive(Debug, Default)]
pub struct Mutex<T: ?Sized>(std::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub const fn new(value: T) -> Self {
        Mutex(std::sync::Mutex::new(value))
    }

    pub fn into_inner(self) -> LockResult<T> {
        self.0.into_inner()
    }
}

impl<T: ?Sized> Mutex<T> {
    pub fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        MutexGuard::wait(self, &self.0, std::sync::Mutex::lock)
    }

    pub fn try_lock(&self) -> TryLockResult<MutexGuard<'_, T>> {
        simulation::point();
        MutexGuard::tried(self, self.0.try_lock())
    }

    pub fn get_mut(&mut self) -> LockResult<&mut T> {
        self.0.get_mut()
    }
}

#[derive(Debug, Default)]
pub struct RwLock<T: ?Sized>(std::sync::RwLock<T>);

impl<T> RwLock<T> {
    pub const fn new(value: T) -> Self {
        RwLock(std::sync::RwLock::new(value))
    }
}

impl<T: ?Sized> RwLock<T> {
    pub fn read(&self) -> LockResult<RwLockReadGuard<'_, T>> {
        RwLockReadGuard::wait(self, &self.0, std::sync::RwLock::read)
    }

    pub fn write(&self) -> LockResult<RwLockWriteGuard<'_, T>> {
        RwLockWriteGuard::wait(self, &self.0, std::sync::RwLock::write)
    }

    pub fn try_read(&self) -> TryLockResult<RwLockReadGuard<'_, T>> {
        simulation::point();
        RwLockReadGuard::tried(self, self.0.try_read())
    }

    pub fn try_write(&self) -> TryLockResult<RwLockWriteGuard<'_, T>> {
        simulation::point();
        RwLockWriteGuard::tried(self, self.0.try_write())
    }
}

/// Only for threads of a simulation.
#[derive(Debug, Default)]
pub struct Condvar {
    /// So that no two are at one address.
    _place: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitTimeoutResult(bool);

impl WaitTimeoutResult {
    pub fn timed_out(&self) -> bool {
        self.0
    }
}

impl Condvar {
    pub const fn new() -> Self {
        Condvar { _place: 0 }
    }

    /// False if the time is over.
    fn wait_for<'a, T>(
        &self,
        mut guard: MutexGuard<'a, T>,
        timeout: Option<Duration>,
    ) -> (LockResult<MutexGuard<'a, T>>, bool) {
        let lock = guard.lock;
        let end = timeout.map(simulation::after);
        // Nobody else runs in between.
        guard.unlock();
        let is_woken = simulation::block(On::Condvar(address(self)), end);
        (lock.lock(), is_woken)
    }

    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> LockResult<MutexGuard<'a, T>> {
        self.wait_for(guard, None).0
    }

    pub fn wait_timeout<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        timeout: Duration,
    ) -> LockResult<(MutexGuard<'a, T>, WaitTimeoutResult)> {
        let (locked, is_woken) = self.wait_for(guard, Some(timeout));
        let result = WaitTimeoutResult(!is_woken);
        match locked {
            Ok(guard) => Ok((guard, result)),
            Err(error) => Err(PoisonError::new((error.into_inner(), result))),
        }
    }

    pub fn wait_timeout_while<'a, T>(
        &self,
        mut guard: MutexGuard<'a, T>,
        timeout: Duration,
        mut holds: impl FnMut(&mut T) -> bool,
    ) -> LockResult<(MutexGuard<'a, T>, WaitTimeoutResult)> {
        let end = simulation::after(timeout);
        loop {
            if !holds(&mut *guard) {
                return Ok((guard, WaitTimeoutResult(false)));
            }
            let left = end.saturating_sub(simulation::now());
            if left == 0 {
                return Ok((guard, WaitTimeoutResult(true)));
            }
            guard = match self.wait_timeout(guard, Duration::from_nanos(left)) {
                Ok(waited) => waited.0,
                Err(error) => return Err(error),
            };
        }
    }

    pub fn notify_one(&self) {
        simulation::notify(address(self), 1);
    }

    pub fn notify_all(&self) {
        simulation::notify(address(self), usize::MAX);
    }
}

pub mod atomic {
    pub use std::sync::atomic::*;

    use crate::simulation::point;

    macro_rules! atomics {
        ($($name:ident $value:ty: $($call:ident)*;)*) => { $(
            #[derive(Debug, Default)]
            pub struct $name(std::sync::atomic::$name);

            impl $name {
                pub const fn new(value: $value) -> Self {
                    $name(std::sync::atomic::$name::new(value))
                }

                pub fn load(&self, order: Ordering) -> $value {
                    point();
                    self.0.load(order)
                }

                pub fn store(&self, value: $value, order: Ordering) {
                    point();
                    self.0.store(value, order);
                }

                $(pub fn $call(&self, value: $value, order: Ordering) -> $value {
                    point();
                    self.0.$call(value, order)
                })*

                pub fn compare_exchange(
                    &self,
                    current: $value,
                    new: $value,
                    success: Ordering,
                    failure: Ordering,
                ) -> Result<$value, $value> {
                    point();
                    self.0.compare_exchange(current, new, success, failure)
                }

                pub fn fetch_update(
                    &self,
                    set: Ordering,
                    fetch: Ordering,
                    change: impl FnMut($value) -> Option<$value>,
                ) -> Result<$value, $value> {
                    point();
                    self.0.fetch_update(set, fetch, change)
                }
            }
        )* };
    }

    atomics! {
        AtomicBool bool: swap fetch_and fetch_or fetch_xor;
        AtomicU8 u8: swap fetch_and fetch_or fetch_xor fetch_add fetch_sub fetch_max fetch_min;
        AtomicU32 u32: swap fetch_and fetch_or fetch_xor fetch_add fetch_sub fetch_max fetch_min;
        AtomicU64 u64: swap fetch_and fetch_or fetch_xor fetch_add fetch_sub fetch_max fetch_min;
        AtomicUsize usize: swap fetch_and fetch_or fetch_xor fetch_add fetch_sub fetch_max fetch_min;
    }
}
