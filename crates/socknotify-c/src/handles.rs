//! Handles: numbers that refer to values, and that are checked at every use.
//!
//! A handle names a slot of a table, and which of the values that the slot has had. Nothing is read
//! through a handle. One that was closed, or was never given out, is found out: its slot does not
//! exist, or is on another value by now.
//!
//! Looking a handle up takes no lock. A slot has one word that says which value it is on, whether that
//! one is open, and how many calls are inside it; a call enters by counting itself in that word, and
//! the last one to leave a value that was closed drops it. So closing neither waits for the calls inside nor
//! pulls anything away from under them, and in a forked child no lock is left behind locked.

use std::mem::MaybeUninit;
use std::ops::Deref;

use once_cell::race::OnceBox;

use self::sync::{AtomicU64, Ordering, UnsafeCell};

#[cfg(not(interleavings))]
mod sync {
    pub(super) use std::sync::atomic::{AtomicU64, Ordering};

    /// `std::cell::UnsafeCell`, with the names of loom's.
    #[derive(Debug)]
    pub(super) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

    impl<T> UnsafeCell<T> {
        pub(super) const fn new(value: T) -> Self {
            UnsafeCell(std::cell::UnsafeCell::new(value))
        }

        pub(super) fn with_mut<R>(&self, access: impl FnOnce(*mut T) -> R) -> R {
            access(self.0.get())
        }

        pub(super) fn with<R>(&self, access: impl FnOnce(*const T) -> R) -> R {
            access(self.0.get())
        }
    }
}

#[cfg(interleavings)]
mod sync {
    pub(super) use loom::cell::UnsafeCell;
    pub(super) use loom::sync::atomic::{AtomicU64, Ordering};
}

/// Bits of a handle that name the slot.
const INDEX_BITS: u32 = if usize::BITS == 64 { 20 } else { 12 };

/// Bits that say which of its values, above those. With 64 bits some are left over.
const GENERATION_BITS: u32 = if usize::BITS == 64 { 32 } else { 19 };

/// The lowest bit is always set, so that no address of anything aligned is a handle.
const MARK: usize = 1;

const LAST_GENERATION: u32 = ((1_u64 << GENERATION_BITS) - 1) as u32;

/// A number that may refer to a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Handle {
    index: usize,
    generation: u32,
}

impl Handle {
    pub(crate) fn number(self) -> usize {
        (self.generation as usize) << (INDEX_BITS + 1) | self.index << 1 | MARK
    }

    /// The handle that has this number. None, if none can have it.
    pub(crate) fn from_number(number: usize) -> Option<Self> {
        let handle = Handle {
            index: (number >> 1) & ((1 << INDEX_BITS) - 1),
            generation: u32::try_from(number >> (INDEX_BITS + 1)).ok()?,
        };
        (handle.number() == number).then_some(handle)
    }
}

/// The pages of a table double in size, from this on.
const FIRST_PAGE: usize = 32;

/// As many as the index has bits for. The index whose bits are all set is beyond them, so that no
/// handle is -1.
const PAGES: usize = (INDEX_BITS - FIRST_PAGE.ilog2()) as usize;

/// Values by handle.
pub(crate) struct Table<T> {
    /// Two threads that need a page at the same time both make one, and one drops its own.
    pages: [OnceBox<Vec<Slot<T>>>; PAGES],
}

impl<T> Table<T> {
    pub(crate) const fn new() -> Self {
        Table {
            pages: [const { OnceBox::new() }; PAGES],
        }
    }

    /// Give a value a handle. None, with the value dropped, if there are no more.
    pub(crate) fn insert(&self, value: T) -> Option<Handle> {
        let (index, slot, generation) = self.claim()?;
        slot.fill(generation, value);
        Some(Handle { index, generation })
    }

    /// What a handle refers to, kept in being as long as the result is.
    pub(crate) fn pin(&self, handle: Handle) -> Option<Pin<'_, T>> {
        self.slot(handle.index)?.enter(handle.generation, false)
    }

    /// As [`pin`](Self::pin), and close it: the handle refers to nothing from now on.
    pub(crate) fn remove(&self, handle: Handle) -> Option<Pin<'_, T>> {
        self.slot(handle.index)?.enter(handle.generation, true)
    }

    fn slot(&self, index: usize) -> Option<&Slot<T>> {
        let (page, offset) = place(index);
        self.pages.get(page)?.get()?.get(offset)
    }

    /// A vacant slot, for the caller to fill.
    fn claim(&self) -> Option<(usize, &Slot<T>, u32)> {
        let mut index = 0;
        for (number, page) in self.pages.iter().enumerate() {
            let make = || Box::new((0..FIRST_PAGE << number).map(|_| Slot::new()).collect());
            for slot in page.get_or_init(make) {
                if let Some(generation) = slot.claim() {
                    return Some((index, slot, generation));
                }
                index += 1;
            }
        }
        None
    }
}

/// In which page a slot is, and where in it.
fn place(index: usize) -> (usize, usize) {
    let position = index + FIRST_PAGE;
    let page = position.ilog2() - FIRST_PAGE.ilog2();
    (page as usize, position - (FIRST_PAGE << page))
}

/// The state of a slot, in one word: the generation of its value in the upper half; below it one of
/// these two flags, or none when the slot is vacant; below them the number of [`Pin`]s.
///
/// ```text
/// vacant ─claim─► busy ─fill─► open ─close─► busy ─last pin gone, value dropped─► vacant
/// ```
const OPEN: u64 = 1 << 31;
/// Being filled, or closed and not yet empty.
const BUSY: u64 = 1 << 30;
const PINS: u64 = BUSY - 1;

/// Room for one value at a time. In a cache line of its own, for every call writes to it.
#[repr(align(64))]
struct Slot<T> {
    word: AtomicU64,
    value: UnsafeCell<MaybeUninit<T>>,
}

// SAFETY: the value is handed out by shared reference to any thread, and may be made on one thread and
// dropped on another. Who may touch it is decided by the word alone.
unsafe impl<T: Send + Sync> Sync for Slot<T> {}

fn generation(word: u64) -> u32 {
    (word >> 32) as u32
}

impl<T> Slot<T> {
    fn new() -> Self {
        Slot {
            word: AtomicU64::new(0),
            value: UnsafeCell::new(MaybeUninit::uninit()),
        }
    }

    /// Take the slot, if it is vacant, for a value of a new generation.
    fn claim(&self) -> Option<u32> {
        let word = self.word.load(Ordering::Relaxed);
        // A slot that has had all its generations is never used again.
        if word & u64::from(u32::MAX) != 0 || generation(word) == LAST_GENERATION {
            return None;
        }
        let next = generation(word) + 1;
        let claimed = u64::from(next) << 32 | BUSY;
        self.word
            .compare_exchange(word, claimed, Ordering::Acquire, Ordering::Relaxed)
            .ok()
            .map(|_| next)
    }

    /// Put the value in. Only for the thread that has claimed the slot.
    fn fill(&self, generation: u32, value: T) {
        // SAFETY: the slot is busy and has no pins: nobody but this call touches the value.
        self.value
            .with_mut(|place| unsafe { (*place).write(value) });
        let word = u64::from(generation) << 32 | OPEN;
        self.word.store(word, Ordering::Release);
    }

    /// Pin the value, if it is of this generation and open; close it, if asked to.
    fn enter(&self, wanted: u32, close: bool) -> Option<Pin<'_, T>> {
        let mut word = self.word.load(Ordering::Relaxed);
        while generation(word) == wanted && word & OPEN != 0 {
            let entered = if close { word - OPEN + BUSY } else { word } + 1;
            match self.word.compare_exchange_weak(
                word,
                entered,
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Some(Pin { slot: self }),
                Err(now) => word = now,
            }
        }
        None
    }

    /// Give up a pin. The last one of a value that was closed drops it.
    fn leave(&self) {
        let word = self.word.fetch_sub(1, Ordering::AcqRel);
        if word & (BUSY | PINS) != BUSY | 1 {
            return;
        }
        // SAFETY: the value was there, or it could not have been pinned. It is closed and has no more
        // pins, so nobody else touches it, now or later; and whatever others did with it before
        // they left, happened before this.
        self.value
            .with_mut(|place| unsafe { (*place).assume_init_drop() });
        let vacant = u64::from(generation(word)) << 32;
        self.word.store(vacant, Ordering::Release);
    }
}

/// A value that stays in being, open or closed, as long as this does.
pub(crate) struct Pin<'a, T> {
    slot: &'a Slot<T>,
}

impl<T> Deref for Pin<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the slot was open when the pin was taken, so the value was there; and while there is
        // a pin, it is not dropped or written to.
        self.slot
            .value
            .with(|place| unsafe { (*place).assume_init_ref() })
    }
}

impl<T> Drop for Pin<'_, T> {
    fn drop(&mut self) {
        self.slot.leave();
    }
}

#[cfg(all(test, not(interleavings)))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::thread;

    use super::*;

    /// A value that counts how many of its kind there are.
    struct Counted(Arc<AtomicUsize>);

    impl Counted {
        fn new(count: &Arc<AtomicUsize>) -> Self {
            count.fetch_add(1, Ordering::Relaxed);
            Counted(Arc::clone(count))
        }
    }

    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_handle_refers_to_its_value_until_it_is_closed() {
        let table = Table::new();
        let handle = table.insert("first").expect("room");
        assert_eq!(*table.pin(handle).expect("open"), "first");
        assert_eq!(*table.remove(handle).expect("open"), "first");
        assert!(table.pin(handle).is_none());
        assert!(table.remove(handle).is_none());
        // The slot is used again, under another handle.
        let next = table.insert("second").expect("room");
        assert_eq!(next.index, handle.index);
        assert_ne!(next, handle);
        assert!(table.pin(handle).is_none());
    }

    #[test]
    fn a_value_that_was_closed_is_dropped_by_the_last_to_leave() {
        let count = Arc::default();
        let table = Table::new();
        let handle = table.insert(Counted::new(&count)).expect("room");
        let pin = table.pin(handle).expect("open");
        drop(table.remove(handle));
        assert_eq!(count.load(Ordering::Relaxed), 1);
        drop(pin);
        assert_eq!(count.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn numbers_that_were_never_given_out_are_no_handles() {
        let table = Table::new();
        let handle = table.insert(()).expect("room");
        let local = 0_u64;
        let foreign = [
            0,
            1,
            2,
            3,
            usize::MAX,
            usize::MAX - 1,
            usize::MAX >> 1,
            handle.number() ^ 1,
            handle.number() + 2,
            handle.number() | 1 << (usize::BITS - 1),
            (&raw const local).addr(),
        ];
        for number in foreign {
            let found = Handle::from_number(number).and_then(|handle| table.pin(handle));
            assert!(found.is_none(), "{number:#x}");
        }
    }

    #[test]
    fn every_slot_has_a_place_of_its_own() {
        let mut next = 0;
        for page in 0..PAGES {
            for offset in 0..FIRST_PAGE << page {
                assert_eq!(place(next), (page, offset));
                next += 1;
            }
        }
        assert_eq!(place(next).0, PAGES);
        assert!(next < (1 << INDEX_BITS));
    }

    #[test]
    fn many_handles_are_all_different_and_never_null_or_minus_one() {
        let table = Table::new();
        let mut numbers: Vec<_> = (0..10_000)
            .map(|value| {
                let handle = table.insert(value).expect("room");
                assert_eq!(Handle::from_number(handle.number()), Some(handle));
                assert_eq!(*table.pin(handle).expect("open"), value);
                handle.number()
            })
            .collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), 10_000);
        assert!(!numbers.contains(&0) && !numbers.contains(&usize::MAX));
    }

    #[test]
    fn a_slot_that_has_had_all_its_generations_is_left_alone() {
        let table = Table::new();
        let first = table.insert(()).expect("room");
        drop(table.remove(first));
        let slot = table.slot(first.index).expect("a slot");
        slot.word
            .store(u64::from(LAST_GENERATION - 1) << 32, Ordering::Relaxed);
        let last = table.insert(()).expect("room");
        assert_eq!(
            (last.index, last.generation),
            (first.index, LAST_GENERATION)
        );
        drop(table.remove(last));
        assert_ne!(table.insert(()).expect("room").index, first.index);
    }

    #[test]
    fn closing_does_not_pull_a_value_away_from_under_others() {
        let count = Arc::default();
        let table = Table::new();
        let current = std::sync::Mutex::new(table.insert(Counted::new(&count)).expect("room"));
        let done = AtomicBool::new(false);
        let current_handle = || *current.lock().expect("no panic");
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        if let Some(pin) = table.pin(current_handle()) {
                            assert!(pin.0.load(Ordering::Relaxed) >= 1);
                        }
                    }
                });
            }
            for _ in 0..20_000 {
                let next = table.insert(Counted::new(&count)).expect("room");
                let previous = std::mem::replace(&mut *current.lock().expect("no panic"), next);
                assert!(table.remove(previous).is_some());
            }
            done.store(true, Ordering::Relaxed);
        });
        drop(table.remove(current_handle()));
        assert_eq!(count.load(Ordering::Relaxed), 0);
    }
}

#[cfg(all(test, interleavings))]
mod interleavings {
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicUsize, Ordering};
    use loom::thread;

    use super::Slot;

    struct Counted(Arc<AtomicUsize>);

    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn slot_with_a_value() -> (Arc<Slot<Counted>>, u32, Arc<AtomicUsize>) {
        let drops = Arc::new(AtomicUsize::new(0));
        let slot = Arc::new(Slot::new());
        let generation = slot.claim().expect("vacant");
        slot.fill(generation, Counted(Arc::clone(&drops)));
        (slot, generation, drops)
    }

    #[test]
    fn a_value_is_used_only_while_it_is_there() {
        loom::model(|| {
            let (slot, first, drops) = slot_with_a_value();
            let user = {
                let slot = Arc::clone(&slot);
                thread::spawn(move || {
                    if let Some(pin) = slot.enter(first, false) {
                        assert_eq!(pin.0.load(Ordering::Relaxed), 0);
                    }
                })
            };
            assert!(slot.enter(first, true).is_some());
            // Vacant at once, unless the user has still to leave. The old handle does not reach the
            // new value.
            if let Some(second) = slot.claim() {
                assert_eq!(drops.load(Ordering::Relaxed), 1);
                slot.fill(second, Counted(Arc::new(AtomicUsize::new(0))));
                assert!(slot.enter(first, false).is_none());
                assert!(slot.enter(second, true).is_some());
            }
            user.join().expect("no panic");
            assert_eq!(drops.load(Ordering::Relaxed), 1);
        });
    }

    #[test]
    fn of_two_who_close_one_succeeds() {
        loom::model(|| {
            let (slot, first, drops) = slot_with_a_value();
            let other = {
                let slot = Arc::clone(&slot);
                thread::spawn(move || slot.enter(first, true).is_some())
            };
            let here = slot.enter(first, true).is_some();
            let there = other.join().expect("no panic");
            assert_ne!(here, there);
            assert_eq!(drops.load(Ordering::Relaxed), 1);
        });
    }
}
