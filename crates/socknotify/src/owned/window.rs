//! [`Window`]: packets in order, which one thread adds and takes, while others may take all of them at any moment.
//!
//! One word says which cells are filled. Whoever takes packets reads them first, and then changes the word by
//! compare-and-swap: what was read counts only if that succeeds. The generation in the word advances whenever cells may
//! be filled again, so that a thread that has read them before fails.

use std::sync::atomic::Ordering;

#[cfg(interleavings)]
use loom::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize};
#[cfg(not(interleavings))]
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize};

use crate::Entry;

pub(super) struct Window {
    word: AtomicU64,
    cells: Box<[Cell]>,
}

#[derive(Default)]
struct Cell {
    key: AtomicUsize,
    transferred: AtomicU32,
    overlapped: AtomicUsize,
}

impl Cell {
    #[inline]
    fn set(&self, packet: &Entry) {
        self.key.store(packet.completion_key, Ordering::Relaxed);
        self.transferred
            .store(packet.transferred, Ordering::Relaxed);
        self.overlapped.store(packet.overlapped, Ordering::Relaxed);
    }

    #[inline]
    fn get(&self) -> Entry {
        Entry::new(
            self.key.load(Ordering::Relaxed),
            self.transferred.load(Ordering::Relaxed),
            self.overlapped.load(Ordering::Relaxed),
        )
    }
}

/// The end of the filled cells in the lowest 16 bits, the first of them in the next, and the generation.
#[derive(Clone, Copy)]
struct Word(u64);

const FIRST: u32 = 16;
const GENERATION: u32 = 32;

impl Word {
    #[inline]
    fn end(self) -> usize {
        usize::from(self.0 as u16)
    }

    #[inline]
    fn first(self) -> usize {
        usize::from((self.0 >> FIRST) as u16)
    }

    #[inline]
    fn len(self) -> usize {
        self.end() - self.first()
    }

    /// Without the first packet.
    #[inline]
    fn without_first(self) -> Self {
        Word(self.0 + (1 << FIRST))
    }

    /// In the next generation, with none.
    #[inline]
    fn emptied(self) -> Self {
        Word((self.0 >> GENERATION).wrapping_add(1) << GENERATION)
    }

    /// In the next generation, with this many.
    fn cut(self, len: usize) -> Self {
        let first = self.first() as u64;
        Word(self.emptied().0 | first << FIRST | (first + len as u64))
    }
}

impl Window {
    /// With room for this many packets, fewer than 2¹⁶.
    pub(super) fn new(room: usize) -> Self {
        let room = room.min(usize::from(u16::MAX));
        Window {
            word: AtomicU64::new(0),
            cells: (0..room).map(|_| Cell::default()).collect(),
        }
    }

    #[inline]
    fn word(&self) -> Word {
        Word(self.word.load(Ordering::Acquire))
    }

    #[inline]
    fn replace(&self, word: Word, by: Word) -> bool {
        self.word
            .compare_exchange(word.0, by.0, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.word().len()
    }

    /// Add packets, as far as there is room. Returns how many. Only the thread that owns the window does so.
    #[inline]
    pub(super) fn push(&self, packets: &[Entry]) -> usize {
        loop {
            let word = self.word();
            // While nothing is in it, nobody else changes what is in the cells.
            let base = if word.len() == 0 {
                word.emptied()
            } else {
                word
            };
            let free = self.cells.get(base.end()..).unwrap_or_default();
            let count = packets.len().min(free.len());
            for (cell, packet) in free.iter().zip(packets) {
                cell.set(packet);
            }
            if self.replace(word, Word(base.0 + count as u64)) {
                return count;
            }
        }
    }

    /// Take the first packet. Only the thread that owns the window does so.
    #[inline]
    pub(super) fn take(&self) -> Option<Entry> {
        loop {
            let word = self.word();
            if word.len() == 0 {
                return None;
            }
            let packet = self.cells.get(word.first())?.get();
            if self.replace(word, word.without_first()) {
                return Some(packet);
            }
        }
    }

    /// Take all packets, whose owner has them from elsewhere. Returns how many there were.
    #[inline]
    pub(super) fn clear(&self) -> usize {
        loop {
            let word = self.word();
            if word.len() == 0 || self.replace(word, word.emptied()) {
                return word.len();
            }
        }
    }

    /// Take all packets, from any thread. What this thread has written before, the owner sees when it adds more, also if
    /// there were none.
    pub(super) fn take_all(&self) -> Vec<Entry> {
        loop {
            let word = self.word();
            let taken = self.cells[word.first()..word.end()].iter();
            let taken = taken.map(Cell::get).collect();
            if self.replace(word, word.emptied()) {
                return taken;
            }
        }
    }

    /// Take all packets but this many, from any thread.
    pub(super) fn take_all_but(&self, count: usize) -> Vec<Entry> {
        loop {
            let word = self.word();
            if word.len() <= count {
                return Vec::new();
            }
            let taken = self.cells[word.first() + count..word.end()].iter();
            let taken = taken.map(Cell::get).collect();
            if self.replace(word, word.cut(count)) {
                return taken;
            }
        }
    }
}

#[cfg(all(test, not(interleavings)))]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::thread;

    use super::*;

    fn packet(number: usize) -> Entry {
        Entry::new(number, number as u32, number)
    }

    fn packets(numbers: std::ops::Range<usize>) -> Vec<Entry> {
        numbers.map(packet).collect()
    }

    #[test]
    fn packets_come_in_order() {
        let window = Window::new(4);
        assert_eq!(window.take(), None);
        assert_eq!(window.push(&packets(0..3)), 3);
        assert_eq!(window.take(), Some(packet(0)));
        assert_eq!(window.len(), 2);
        // There is room at the end only, until it is empty.
        assert_eq!(window.push(&packets(3..9)), 1);
        let taken: Vec<_> = std::iter::from_fn(|| window.take()).collect();
        assert_eq!(taken, packets(1..4));
        assert_eq!(window.push(&packets(9..14)), 4);
        assert_eq!(window.clear(), 4);
        assert_eq!((window.len(), window.clear()), (0, 0));
    }

    #[test]
    fn others_take_all_or_leave_the_first() {
        let window = Window::new(8);
        window.push(&packets(0..6));
        window.take();
        assert_eq!(window.take_all_but(2), packets(3..6));
        assert_eq!(window.take_all_but(2), []);
        assert_eq!(window.push(&packets(6..7)), 1);
        assert_eq!(window.take_all_but(0), [1, 2, 6].map(packet));
        assert_eq!((window.take(), window.len()), (None, 0));
    }

    #[test]
    fn each_packet_is_taken_once() {
        const PACKETS: usize = 200_000;
        let window = Window::new(16);
        let is_over = AtomicBool::new(false);
        let mut all = thread::scope(|scope| {
            let thief = || {
                let mut taken = Vec::new();
                while !is_over.load(Ordering::Relaxed) {
                    taken.extend(window.take_all_but(0));
                    thread::yield_now();
                }
                taken
            };
            let thieves = [scope.spawn(thief), scope.spawn(thief)];
            let mut taken = Vec::new();
            let mut next = 0;
            while next < PACKETS {
                next += window.push(&packets(next..PACKETS.min(next + 5)));
                taken.extend((0..next % 8).map_while(|_| window.take()));
            }
            taken.extend(std::iter::from_fn(|| window.take()));
            is_over.store(true, Ordering::Relaxed);
            let stolen = thieves.map(|it| it.join().expect("no panic")).concat();
            [taken, stolen].concat()
        });
        all.sort_by_key(|it| it.completion_key);
        assert_eq!(all, packets(0..PACKETS));
    }
}

/// See `.ci/interleavings`.
#[cfg(all(test, interleavings))]
mod interleavings {
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicBool;
    use loom::thread;

    use super::*;

    /// Its three parts are written one after the other: a mixture of two packets shows.
    fn packet(number: usize) -> Entry {
        Entry::new(number, number as u32, number)
    }

    fn check(taken: &[Entry], numbers: std::ops::Range<usize>) {
        let mut taken: Vec<_> = taken.iter().map(|it| (it.completion_key, it)).collect();
        taken.sort_by_key(|it| it.0);
        let expected: Vec<_> = numbers.map(|number| (number, packet(number))).collect();
        let expected: Vec<_> = expected.iter().map(|it| (it.0, &it.1)).collect();
        assert_eq!(taken, expected);
    }

    /// The owner takes one, and adds one if the window was emptied.
    #[test]
    fn a_window_is_emptied_while_its_owner_takes_and_adds() {
        loom::model(|| {
            let window = Arc::new(Window::new(2));
            window.push(&[packet(0), packet(1)]);
            let other = Arc::clone(&window);
            let other = thread::spawn(move || other.take_all_but(0));
            let mut taken = Vec::from_iter(window.take());
            let next = 2 + window.push(&[packet(2)]);
            taken.extend(other.join().expect("no panic"));
            taken.extend(std::iter::from_fn(|| window.take()));
            assert_eq!(window.len(), 0);
            check(&taken, 0..next);
        });
    }

    /// Either the other thread gets it, or its owner sees that the other one has been here.
    #[test]
    fn what_is_added_after_all_was_taken_is_known_to_be() {
        loom::model(|| {
            let window = Arc::new(Window::new(2));
            let has_taken = Arc::new(AtomicBool::new(false));
            let (theirs, tells) = (Arc::clone(&window), Arc::clone(&has_taken));
            let other = thread::spawn(move || {
                tells.store(true, Ordering::Relaxed);
                theirs.take_all()
            });
            window.push(&[packet(0)]);
            let is_known = has_taken.load(Ordering::Relaxed);
            let taken = other.join().expect("no panic");
            assert!(is_known || taken == [packet(0)]);
            assert_eq!(taken.len() + window.clear(), 1);
        });
    }

    /// Two threads see its owner blocked, while it adds one packet after the other.
    #[test]
    fn two_threads_empty_a_window() {
        let mut model = loom::model::Builder::new();
        // Without a bound it takes a minute.
        model.preemption_bound = Some(3);
        model.check(|| {
            let window = Arc::new(Window::new(2));
            window.push(&[packet(0)]);
            let others = [(); 2].map(|()| {
                let window = Arc::clone(&window);
                thread::spawn(move || window.take_all_but(0))
            });
            let next = 1 + window.push(&[packet(1)]);
            let mut taken: Vec<_> = others
                .into_iter()
                .flat_map(|it| it.join().expect("no panic"))
                .collect();
            taken.extend(window.take_all_but(0));
            check(&taken, 0..next);
        });
    }

    /// What is to be armed: the owner has it in a list of its own, of which the last ones are still in the window.
    #[test]
    fn the_last_ones_are_left_to_the_owner() {
        loom::model(|| {
            let window = Arc::new(Window::new(2));
            window.push(&[packet(0)]);
            let other = Arc::clone(&window);
            let other = thread::spawn(move || other.take_all_but(0));
            window.push(&[packet(1)]);
            let own = window.clear();
            let theirs = other.join().expect("no panic");
            assert_eq!(theirs.len() + own, 2);
            check(&theirs, 0..theirs.len());
        });
    }
}
