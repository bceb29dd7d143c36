//! [`Armed`]: where a connection is while no thread has it.
//!
//! It is moved in and out without a lock. That needs a pointer that is swapped, and so the only unsafe code of this
//! layer, which is in this file.

#![allow(unsafe_code, reason = "a box comes back from the pointer to it")]

use std::marker::PhantomData;
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::Ordering;

#[cfg(interleavings)]
use loom::sync::atomic::{AtomicPtr, AtomicU32, fence};
#[cfg(not(interleavings))]
use std::sync::atomic::{AtomicPtr, AtomicU32, fence};

/// A place for a value, under the generation of the slot that it belongs to: a stale packet takes nothing.
///
/// Every pointer in here is of a box that was put in. It is taken out by a swap, which returns it once: so whoever gets
/// it owns the box. That is all that memory safety depends on. The generation decides who may swap.
pub(super) struct Armed<V> {
    /// What is in here has this generation, which is odd. 0: there is nothing.
    generation: AtomicU32,
    value: AtomicPtr<V>,
    /// It owns a value that threads give to one another, as a lock does.
    owns: PhantomData<Mutex<Option<Box<V>>>>,
}

impl<V> Default for Armed<V> {
    fn default() -> Self {
        Armed {
            generation: AtomicU32::new(0),
            value: AtomicPtr::new(ptr::null_mut()),
            owns: PhantomData,
        }
    }
}

impl<V> Armed<V> {
    /// Put a value in. There is none: only who has the connection does this, after [`take`](Self::take) has returned it.
    ///
    /// If this thread does not see after that what another one has written before it [takes any](Self::take_any), the
    /// other one finds the value.
    #[inline]
    pub(super) fn put(&self, generation: u32, value: Box<V>) {
        // Were there another one, it would leak.
        self.value.store(Box::into_raw(value), Ordering::Release);
        self.generation.store(generation, Ordering::Release);
        fence(Ordering::SeqCst);
    }

    /// Take the value of this generation, if it is there.
    #[inline]
    pub(super) fn take(&self, generation: u32) -> Option<Box<V>> {
        let (success, failure) = (Ordering::AcqRel, Ordering::Relaxed);
        self.generation
            .compare_exchange(generation, 0, success, failure)
            .ok()?;
        let value = self.value.swap(ptr::null_mut(), Ordering::AcqRel);
        if value.is_null() {
            return None;
        }
        // SAFETY: it is from `Box::into_raw`, in `put`, and the swap has returned it to this thread alone.
        Some(unsafe { Box::from_raw(value) })
    }

    /// Take the value, whichever it is.
    pub(super) fn take_any(&self) -> Option<Box<V>> {
        fence(Ordering::SeqCst);
        match self.generation.load(Ordering::Acquire) {
            0 => None,
            generation => self.take(generation),
        }
    }

    /// Whether the value of this generation is there, at this moment.
    #[inline]
    pub(super) fn has(&self, generation: u32) -> bool {
        self.generation.load(Ordering::Acquire) == generation
    }
}

impl<V> Drop for Armed<V> {
    fn drop(&mut self) {
        drop(self.take_any());
    }
}

#[cfg(all(test, not(interleavings)))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn a_value_comes_out_once_and_under_its_generation() {
        let armed = Armed::default();
        assert_eq!(armed.take_any(), None::<Box<&str>>);
        armed.put(3, Box::new("a"));
        assert!(armed.has(3) && !armed.has(5));
        assert_eq!(armed.take(1), None);
        assert_eq!(armed.take(3).as_deref(), Some(&"a"));
        assert_eq!((armed.take(3), armed.take_any()), (None, None));
        armed.put(5, Box::new("b"));
        assert_eq!(armed.take_any().as_deref(), Some(&"b"));
        assert!(!armed.has(5));
    }

    #[test]
    fn what_is_left_is_dropped() {
        let value = Arc::new(());
        let armed = Armed::default();
        armed.put(1, Box::new(Arc::clone(&value)));
        drop(armed);
        assert_eq!(Arc::strong_count(&value), 1);
    }

    #[test]
    fn threads_that_take_get_each_value_once() {
        const VALUES: usize = 2000;
        let armed = Armed::<usize>::default();
        let taken = AtomicUsize::new(0);
        let sums = std::thread::scope(|scope| {
            let take = || {
                let mut sum = 0;
                while taken.load(Ordering::Acquire) < VALUES {
                    if let Some(value) = armed.take_any() {
                        sum += *value;
                        // Only from here on may another one be put in.
                        taken.fetch_add(1, Ordering::Release);
                    }
                    std::thread::yield_now();
                }
                sum
            };
            let threads = [scope.spawn(take), scope.spawn(take)];
            for value in 0..VALUES {
                armed.put(2 * value as u32 + 1, Box::new(value));
                while taken.load(Ordering::Acquire) <= value {
                    std::thread::yield_now();
                }
            }
            threads.map(|it| it.join().expect("no panic"))
        });
        assert_eq!(sums[0] + sums[1], (0..VALUES).sum());
        assert_eq!(taken.into_inner(), VALUES);
    }
}

/// See `.ci/interleavings`.
#[cfg(all(test, interleavings))]
mod interleavings {
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicBool;
    use loom::thread;

    use super::*;

    /// A packet and its stale copy, and the same connection armed again under the same generation.
    #[test]
    fn one_of_two_threads_gets_it() {
        loom::model(|| {
            let armed = Arc::new(Armed::default());
            armed.put(1, Box::new(7));
            let other = Arc::clone(&armed);
            let other = thread::spawn(move || other.take(1));
            let taken = armed.take(1);
            let again = taken.is_some();
            if let Some(value) = taken {
                armed.put(1, value);
            }
            let theirs = other.join().expect("no panic");
            let left = armed.take_any();
            assert_eq!(theirs.iter().chain(&left).count(), 1);
            assert!(again || theirs.is_some());
        });
    }

    /// As `Home::put` and `Home::end` do.
    #[test]
    fn nothing_is_put_into_a_closed_port() {
        loom::model(|| {
            let armed = Arc::new(Armed::default());
            let closed = Arc::new(AtomicBool::new(false));
            let (theirs, is_closed) = (Arc::clone(&armed), Arc::clone(&closed));
            let other = thread::spawn(move || {
                theirs.put(1, Box::new(7));
                match is_closed.load(Ordering::Relaxed) {
                    true => theirs.take(1),
                    false => None,
                }
            });
            closed.store(true, Ordering::Relaxed);
            let left = armed.take_any();
            let back = other.join().expect("no panic");
            assert_eq!(left.iter().chain(&back).count(), 1);
            assert_eq!(armed.take_any(), None);
        });
    }
}
