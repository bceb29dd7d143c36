//! [`Armed`]: where a connection is while no thread has it.

#[cfg(interleavings)]
use loom::sync::Mutex;
#[cfg(not(interleavings))]
use std::sync::Mutex;
use std::sync::PoisonError;

/// A place for a value, under the generation of the slot that it belongs to: a stale packet takes nothing.
///
/// Its lock is held for a move only, and no other is taken meanwhile.
pub(super) struct Armed<V>(Mutex<Option<(u32, Box<V>)>>);

impl<V> Default for Armed<V> {
    fn default() -> Self {
        Armed(Mutex::new(None))
    }
}

impl<V> Armed<V> {
    /// Put a value in. There is none: only who has the connection does this.
    ///
    /// If this thread does not see after that what another one has written before it [takes any](Self::take_any), the
    /// other one finds the value.
    #[inline]
    pub(super) fn put(&self, generation: u32, value: Box<V>) {
        let before = self.with(|inside| inside.replace((generation, value)));
        debug_assert!(before.is_none(), "a connection is in one place");
    }

    /// Take the value of this generation, if it is there.
    #[inline]
    pub(super) fn take(&self, generation: u32) -> Option<Box<V>> {
        let taken = self.with(|inside| inside.take_if(|it| it.0 == generation));
        taken.map(|(_, value)| value)
    }

    /// Take the value, whichever it is.
    pub(super) fn take_any(&self) -> Option<Box<V>> {
        self.with(Option::take).map(|(_, value)| value)
    }

    /// Whether the value of this generation is there, at this moment.
    #[inline]
    pub(super) fn has(&self, generation: u32) -> bool {
        self.with(|inside| matches!(inside, Some(it) if it.0 == generation))
    }

    #[inline]
    fn with<R>(&self, work: impl FnOnce(&mut Option<(u32, Box<V>)>) -> R) -> R {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(all(test, not(interleavings)))]
mod tests {
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
}

/// See `.ci/interleavings`.
#[cfg(all(test, interleavings))]
mod interleavings {
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicBool, Ordering};
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

    /// As `Connections::put` and `Connections::end` do.
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
