//! [`Slots`]: values by index and generation.
//!
//! An index is used again when its value is removed. Its generation counts insertions and removals; so it
//! is odd while there is a value, and different for each. A [`Token`] is an index with such a generation.
//! A token or a [key](Slots::key) of a value that was removed finds nothing, whatever has the index now.
//!
//! A key is a token in one `usize`, for use as a completion key. With 64 bits it holds the whole token. With 32 bits it
//! holds 20 bits of the index, so that there are about a million slots, and the lowest 12 bits of the generation: a
//! stale key finds the value that comes 2048 values after its own under its index, or a multiple of that. A key
//! outlives its value only until its packet is handled, and tokens are always compared as a whole.
//!
//! The generation in a key is mixed with a random number per table, so that keys that others have chosen, such as small
//! numbers and addresses, find nothing either.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard};

use crate::support::lock::lock;
use crate::support::pages::SharedPages;

/// The lower bits of a key are the index.
pub(crate) const INDEX_BITS: u32 = if usize::BITS == 64 { 32 } else { 20 };
const INDEX_MASK: usize = (1 << INDEX_BITS) - 1;

/// An index that no value has: its keys are [reserved](Slots::reserved_key).
const RESERVED_INDEX: u32 = INDEX_MASK as u32;

/// The index in a key.
pub(crate) const fn index_of(key: usize) -> u32 {
    (key & INDEX_MASK) as u32
}

/// Identifies a value, from its insertion to its removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Token {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// A table of values, each with a lock of its own.
#[derive(Debug)]
pub(crate) struct Slots<V> {
    slots: SharedPages<Slot<V>>,
    vacant: Mutex<Vacant>,
    salt: u32,
}

#[derive(Debug, Default)]
struct Slot<V> {
    /// Changes with the value locked.
    generation: AtomicU32,
    /// The default while there is none.
    value: Mutex<V>,
}

impl<V> Slot<V> {
    fn generation(&self) -> u32 {
        self.generation.load(Ordering::Relaxed)
    }

    /// Count an insertion or a removal, with the value locked.
    fn advance(&self) -> u32 {
        let next = self.generation().wrapping_add(1);
        self.generation.store(next, Ordering::Relaxed);
        next
    }
}

fn is_occupied(generation: u32) -> bool {
    generation % 2 == 1
}

#[derive(Debug, Default)]
struct Vacant {
    indices: Vec<u32>,
    /// The first index that was never used.
    next: u32,
}

/// A value in its locked slot.
#[derive(Debug)]
pub(crate) struct Occupied<'a, V> {
    slot: &'a Slot<V>,
    value: MutexGuard<'a, V>,
}

impl<V> Occupied<'_, V> {
    /// Its token, with the index that it was found by.
    pub(crate) fn token(&self, index: u32) -> Token {
        Token {
            index,
            generation: self.slot.generation(),
        }
    }
}

impl<V> Deref for Occupied<'_, V> {
    type Target = V;

    #[inline]
    fn deref(&self) -> &V {
        &self.value
    }
}

impl<V> DerefMut for Occupied<'_, V> {
    #[inline]
    fn deref_mut(&mut self) -> &mut V {
        &mut self.value
    }
}

impl<V: Default> Slots<V> {
    pub(crate) fn new() -> Self {
        Slots {
            slots: SharedPages::new(),
            vacant: Mutex::default(),
            salt: RandomState::new().build_hasher().finish() as u32,
        }
    }

    /// Give a value an index and a generation. `None`, with the value dropped, if every index is in use.
    pub(crate) fn insert(&self, value: V) -> Option<Token> {
        let (token, mut content) = self.insert_default()?;
        *content = value;
        Some(token)
    }

    /// Insert the default, and keep it locked.
    pub(crate) fn insert_default(&self) -> Option<(Token, Occupied<'_, V>)> {
        let index = self.claim()?;
        let slot = self.slots.entry(index);
        let value = lock(&slot.value);
        let generation = slot.advance();
        Some((Token { index, generation }, Occupied { slot, value }))
    }

    fn claim(&self) -> Option<u32> {
        let mut vacant = lock(&self.vacant);
        if let Some(index) = vacant.indices.pop() {
            return Some(index);
        }
        let index = vacant.next;
        (index < RESERVED_INDEX).then(|| {
            vacant.next += 1;
            index
        })
    }

    /// The value that has an index now, of whatever generation.
    #[inline(always)]
    pub(crate) fn get_by_index(&self, index: u32) -> Option<Occupied<'_, V>> {
        let slot = self.slots.get(index)?;
        let value = lock(&slot.value);
        is_occupied(slot.generation()).then_some(Occupied { slot, value })
    }

    /// The value that a token names, unless it was removed.
    #[inline(always)]
    pub(crate) fn get(&self, token: Token) -> Option<Occupied<'_, V>> {
        let slot = self.slots.get(token.index)?;
        let value = lock(&slot.value);
        // A token has the generation of a value.
        (slot.generation() == token.generation).then_some(Occupied { slot, value })
    }

    /// The value that a key names. Nothing for a stale key, a reserved one, or one of another origin.
    #[inline(always)]
    pub(crate) fn get_by_key(&self, key: usize) -> Option<Occupied<'_, V>> {
        let index = index_of(key);
        let value = self.get_by_index(index)?;
        let is_current = self.compose(index, value.slot.generation()) == key;
        is_current.then_some(value)
    }

    /// Whether there is a value of this key, without its lock.
    pub(crate) fn has(&self, key: usize) -> bool {
        let index = index_of(key);
        let slot = self.slots.get(index);
        slot.is_some_and(|slot| self.compose(index, slot.generation()) == key)
    }

    /// Remove the value that a token names. After that the token names nothing.
    pub(crate) fn remove(&self, token: Token) -> Option<V> {
        let content = self.get(token)?;
        Some(self.vacate(token.index, content))
    }

    /// Remove the value that a key names.
    pub(crate) fn remove_by_key(&self, key: usize) -> Option<V> {
        let content = self.get_by_key(key)?;
        Some(self.vacate(index_of(key), content))
    }

    /// Remove the value of a locked slot with this index.
    pub(crate) fn vacate(&self, index: u32, mut content: Occupied<'_, V>) -> V {
        let value = std::mem::take(&mut *content);
        content.slot.advance();
        drop(content);
        lock(&self.vacant).indices.push(index);
        value
    }

    /// Every value, one after the other.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Occupied<'_, V>> {
        self.iter_named().map(|(_, value)| value)
    }

    /// The value that a key names, and its token.
    pub(crate) fn named(&self, key: usize) -> Option<(Token, Occupied<'_, V>)> {
        let value = self.get_by_key(key)?;
        Some((value.token(index_of(key)), value))
    }

    /// Every value with its token, one after the other.
    pub(crate) fn iter_named(&self) -> impl Iterator<Item = (Token, Occupied<'_, V>)> {
        let next = lock(&self.vacant).next;
        (0..next).filter_map(|index| {
            let value = self.get_by_index(index)?;
            Some((value.token(index), value))
        })
    }

    /// The token as one number.
    pub(crate) fn key(&self, token: Token) -> usize {
        self.compose(token.index, token.generation)
    }

    /// A key that no token has.
    pub(crate) fn reserved_key(&self, number: u32) -> usize {
        self.compose(RESERVED_INDEX, number)
    }

    #[inline]
    fn compose(&self, index: u32, generation: u32) -> usize {
        index as usize | ((generation ^ self.salt) as usize) << INDEX_BITS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(slots: &Slots<u32>, token: Token) -> Option<u32> {
        let value = slots.get(token).map(|value| *value);
        let by_key = slots.get_by_key(slots.key(token)).map(|value| *value);
        assert_eq!(value, by_key);
        value
    }

    #[test]
    fn every_token_finds_its_own_value() {
        let slots: Slots<u32> = Slots::new();
        let tokens: Vec<_> = (0..5000)
            .map(|value| slots.insert(value).expect("room"))
            .collect();
        for (expected, token) in (0..).zip(&tokens) {
            assert_eq!(value(&slots, *token), Some(expected));
            assert_eq!(index_of(slots.key(*token)), token.index);
        }
        assert_eq!(slots.iter().count(), 5000);
    }

    #[test]
    fn a_stale_token_finds_nothing() {
        let slots: Slots<u32> = Slots::new();
        let old = slots.insert(1).expect("room");
        assert_eq!(slots.remove(old), Some(1));
        assert_eq!(value(&slots, old), None);
        let new = slots.insert(2).expect("room");
        assert_eq!(new.index, old.index);
        assert_eq!(value(&slots, old), None);
        assert_eq!(slots.remove(old), None);
        assert_eq!(slots.remove_by_key(slots.key(old)), None);
        assert_eq!(value(&slots, new), Some(2));
        assert_eq!(slots.remove_by_key(slots.key(new)), Some(2));
        assert!(slots.get_by_index(new.index).is_none());
    }

    #[test]
    fn a_generation_can_overflow() {
        let slots: Slots<u32> = Slots::new();
        let first = slots.insert(1).expect("room");
        let slot = slots.slots.get(first.index).expect("a slot");
        slot.generation.store(u32::MAX, Ordering::Relaxed);
        let last = Token {
            generation: u32::MAX,
            ..first
        };
        assert_eq!(slots.remove(last), Some(1));
        assert_eq!(value(&slots, last), None);
        assert_eq!(slots.insert(2), Some(first));
    }

    #[test]
    fn keys_of_other_origin_find_nothing_and_allocate_nothing() {
        // These might find something with a probability of 1 in 2^30 on 64 bits, and of 1 in 500 on 32.
        let slots: Slots<u32> = Slots::new();
        for value in 0..100 {
            slots.insert(value);
        }
        let foreign = [0, 1, 99, 4096, usize::MAX, usize::MAX - 1, usize::MAX / 2];
        let reserved = [0, 1, u32::MAX].map(|number| slots.reserved_key(number));
        for key in foreign.into_iter().chain(reserved) {
            assert!(slots.get_by_key(key).is_none(), "{key:#x}");
        }
        assert_eq!(slots.slots.iter().count(), 64 + 128);
    }

    #[test]
    fn reserved_keys_differ_from_all_others() {
        let slots: Slots<()> = Slots::new();
        lock(&slots.vacant).next = RESERVED_INDEX;
        assert_eq!(slots.insert(()), None);
        assert_ne!(slots.reserved_key(0), slots.reserved_key(1));
        assert_eq!(index_of(slots.reserved_key(1)), RESERVED_INDEX);
    }
}
