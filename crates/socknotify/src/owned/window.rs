//! [`Window`]: a ring that its owner fills and empties, and that any other thread can empty.
//!
//! One word has the number of entries that were taken (low half) and that were put in (high half). So a word is never
//! the same twice: a thread that takes copies entries first and then advances the word by one compare-and-swap, which
//! fails if anyone else has taken, or the owner has put something in. Only then are the entries its own.

#[cfg(interleavings)]
use loom::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(interleavings))]
use std::sync::atomic::{AtomicU64, Ordering};

/// A ring of entries of `N` words.
pub(super) struct Window<const N: usize> {
    word: AtomicU64,
    /// A power of two of them.
    entries: Box<[[AtomicU64; N]]>,
}

/// One entry more was put in.
const PUT: u64 = 1 << 32;

#[derive(Clone, Copy)]
struct Word {
    taken: u32,
    put: u32,
}

impl Word {
    fn decode(word: u64) -> Self {
        Word {
            taken: word as u32,
            put: (word >> 32) as u32,
        }
    }

    fn encode(self) -> u64 {
        u64::from(self.put) << 32 | u64::from(self.taken)
    }

    fn len(self) -> usize {
        self.put.wrapping_sub(self.taken) as usize
    }
}

impl<const N: usize> Window<N> {
    /// With room for at least this many entries.
    pub(super) fn new(room: usize) -> Self {
        let entry = |_| std::array::from_fn(|_| AtomicU64::new(0));
        Window {
            word: AtomicU64::new(0),
            entries: (0..room.next_power_of_two()).map(entry).collect(),
        }
    }

    /// Acquire: whoever has taken an entry has copied it before. So the owner may write there.
    fn load(&self) -> u64 {
        self.word.load(Ordering::Acquire)
    }

    pub(super) fn len(&self) -> usize {
        Word::decode(self.load()).len()
    }

    fn entry(&self, number: u32) -> &[AtomicU64; N] {
        &self.entries[number as usize & (self.entries.len() - 1)]
    }

    fn copy(&self, number: u32) -> [u64; N] {
        std::array::from_fn(|index| self.entry(number)[index].load(Ordering::Relaxed))
    }

    fn advance(&self, from: u64, to: Word) -> bool {
        let exchanged =
            self.word
                .compare_exchange(from, to.encode(), Ordering::AcqRel, Ordering::Relaxed);
        exchanged.is_ok()
    }

    /// Put an entry in. False if there is no room. Only the owner does this.
    #[inline]
    pub(super) fn push(&self, entry: [u64; N]) -> bool {
        let has_room = self.len() < self.entries.len();
        if has_room {
            self.extend([entry].into_iter());
        }
        has_room
    }

    /// Put entries in, in one step, for which there is room. Only the owner does this.
    #[inline]
    pub(super) fn extend(&self, entries: impl Iterator<Item = [u64; N]>) {
        let word = Word::decode(self.load());
        let mut count = 0;
        for entry in entries {
            let to = self.entry(word.put.wrapping_add(count));
            for (word, value) in to.iter().zip(entry) {
                word.store(value, Ordering::Relaxed);
            }
            count += 1;
        }
        debug_assert!(word.len() + count as usize <= self.entries.len());
        self.word
            .fetch_add(PUT * u64::from(count), Ordering::Release);
    }

    /// Take the oldest entry. Only the owner does this.
    #[inline]
    pub(super) fn pop(&self) -> Option<[u64; N]> {
        loop {
            let from = self.load();
            let mut word = Word::decode(from);
            if word.len() == 0 {
                return None;
            }
            let entry = self.copy(word.taken);
            word.taken = word.taken.wrapping_add(1);
            if self.advance(from, word) {
                return Some(entry);
            }
        }
    }

    /// Take all entries, oldest first. Any thread may do this.
    #[inline]
    pub(super) fn take_all(&self, into: &mut Vec<[u64; N]>) {
        let before = into.len();
        loop {
            let from = self.load();
            let Word { taken, put } = Word::decode(from);
            if taken == put {
                return;
            }
            let count = put.wrapping_sub(taken);
            into.extend((0..count).map(|index| self.copy(taken.wrapping_add(index))));
            if self.advance(from, Word { taken: put, put }) {
                return;
            }
            into.truncate(before);
        }
    }
}

#[cfg(all(test, not(interleavings)))]
mod tests {
    use super::*;

    #[test]
    fn entries_are_taken_in_order_and_room_is_bounded() {
        let window = Window::<2>::new(3);
        for round in 0..10 {
            for number in 0..4 {
                assert!(window.push([round, number]));
            }
            assert!(!window.push([round, 4]), "it has room for four");
            assert_eq!(window.pop(), Some([round, 0]));
            assert!(window.push([round, 4]));
            let mut rest = Vec::new();
            window.take_all(&mut rest);
            assert_eq!(rest, [1, 2, 3, 4].map(|number| [round, number]));
            assert_eq!((window.pop(), window.len()), (None, 0));
        }
    }

    #[test]
    fn counters_can_overflow() {
        let window = Window::<1>::new(2);
        let last = Word {
            taken: u32::MAX,
            put: u32::MAX,
        };
        window.word.store(last.encode(), Ordering::Relaxed);
        for number in 0..4 {
            assert!(window.push([number]));
            assert!(window.push([number + 10]));
            assert_eq!(window.len(), 2);
            assert_eq!(window.pop(), Some([number]));
            let mut rest = Vec::new();
            window.take_all(&mut rest);
            assert_eq!(rest, [[number + 10]]);
        }
    }
}

/// Every interleaving of the owner with threads that empty its window: each entry is taken once, whole and in order.
#[cfg(all(test, interleavings))]
mod interleavings {
    use super::*;
    use loom::thread;
    use std::sync::Arc;

    fn take_all(window: &Window<2>) -> Vec<[u64; 2]> {
        let mut taken = Vec::new();
        window.take_all(&mut taken);
        taken
    }

    fn explore(others: usize, owner: fn(&Window<2>) -> (u64, Vec<[u64; 2]>)) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(if others > 1 { 2 } else { 4 });
        builder.check(move || {
            let window = Arc::new(Window::<2>::new(2));
            let threads: Vec<_> = (0..others)
                .map(|_| {
                    let window = Arc::clone(&window);
                    thread::spawn(move || take_all(&window))
                })
                .collect();
            let (put, mut taken) = owner(&window);
            let mut lists: Vec<_> = threads.into_iter().map(|it| it.join().unwrap()).collect();
            taken.extend(take_all(&window));
            lists.push(taken);
            for list in &lists {
                assert!(list.iter().all(|[one, other]| one + 100 == *other));
                assert!(list.is_sorted(), "{list:?}");
            }
            let mut all: Vec<_> = lists.concat().iter().map(|it| it[0]).collect();
            all.sort();
            assert_eq!(all, (0..put).collect::<Vec<_>>());
        });
    }

    fn fill_and_take(window: &Window<2>) -> (u64, Vec<[u64; 2]>) {
        let (mut number, mut taken) = (0, Vec::new());
        for _ in 0..2 {
            // Two entries have room, so a second round writes over what the first has left.
            while number % 3 != 2 && window.push([number, number + 100]) {
                number += 1;
            }
            taken.extend(window.pop());
            if window.push([number, number + 100]) {
                number += 1;
            }
        }
        (number, taken)
    }

    #[test]
    fn interleavings_of_taking_and_emptying() {
        explore(1, fill_and_take);
    }

    #[test]
    fn interleavings_of_two_threads_that_empty() {
        explore(2, fill_and_take);
    }

    #[test]
    fn interleavings_of_emptying_by_the_owner_too() {
        explore(1, |window| {
            let mut taken = Vec::new();
            for number in 0..4 {
                while !window.push([number, number + 100]) {
                    window.take_all(&mut taken);
                }
            }
            window.take_all(&mut taken);
            (4, taken)
        });
    }
}
