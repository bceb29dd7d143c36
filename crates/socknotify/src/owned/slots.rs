//! Where what is armed is kept, by index. An index is the completion key of a registration.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// Slots come in pages, each twice as large as the one before. They never move.
const FIRST_PAGE: usize = 64;
const PAGES: usize = 26;

/// No deadline, or none that the wheel knows.
pub(super) const NEVER: u64 = u64::MAX;

/// What one index stands for.
#[derive(Debug)]
pub(super) struct Slot<C> {
    content: Mutex<Option<C>>,
    /// When the wait of what is armed here ends, in ticks.
    deadline: AtomicU64,
    /// When the wheel will look at this slot; at the deadline or before.
    look: AtomicU64,
}

impl<C> Default for Slot<C> {
    fn default() -> Self {
        Slot {
            content: Mutex::new(None),
            deadline: AtomicU64::new(NEVER),
            look: AtomicU64::new(NEVER),
        }
    }
}

impl<C> Slot<C> {
    pub(super) fn content(&self) -> MutexGuard<'_, Option<C>> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Take what is armed here. Its deadline does not count any more.
    pub(super) fn take(&self) -> Option<C> {
        self.take_from(self.content())
    }

    /// The same, with the lock taken already.
    pub(super) fn take_from(&self, mut content: MutexGuard<'_, Option<C>>) -> Option<C> {
        let taken = content.take();
        drop(content);
        // Whoever has taken it sees the deadline that was set before, and few have one.
        if self.deadline.load(Ordering::Relaxed) != NEVER {
            self.deadline.store(NEVER, Ordering::SeqCst);
        }
        taken
    }

    pub(super) fn deadline(&self) -> u64 {
        self.deadline.load(Ordering::SeqCst)
    }

    /// Set the deadline. True if the wheel would look too late.
    pub(super) fn set_deadline(&self, at: u64) -> bool {
        // The wheel does the same in the opposite order, so that one of the two sees the other.
        self.deadline.store(at, Ordering::SeqCst);
        at < self.look.load(Ordering::SeqCst)
    }

    pub(super) fn set_look(&self, at: u64) {
        self.look.store(at, Ordering::SeqCst);
    }
}

/// All slots of a port.
#[derive(Debug)]
pub(super) struct Slots<C> {
    pages: [OnceLock<Box<[Slot<C>]>>; PAGES],
}

impl<C> Slots<C> {
    pub(super) fn new() -> Self {
        Slots {
            pages: [const { OnceLock::new() }; PAGES],
        }
    }

    /// The slot of an index, made if there was none.
    pub(super) fn get(&self, index: u32) -> &Slot<C> {
        // The pages begin at 0, 64, 64 + 128, …
        let position = index as usize + FIRST_PAGE;
        let page = (position / FIRST_PAGE).ilog2() as usize;
        let length = FIRST_PAGE << page;
        let slots = self.pages[page]
            .get_or_init(|| std::iter::repeat_with(Slot::default).take(length).collect());
        &slots[position - length]
    }

    /// Every slot that has been made.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Slot<C>> {
        self.pages.iter().filter_map(OnceLock::get).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_index_has_a_slot_of_its_own() {
        let slots = Slots::new();
        for index in (0..5000).chain([1 << 20]) {
            assert_eq!(slots.get(index).content().replace(index), None);
        }
        for index in (0..5000).chain([1 << 20]) {
            assert_eq!(slots.get(index).take(), Some(index));
        }
    }
}
