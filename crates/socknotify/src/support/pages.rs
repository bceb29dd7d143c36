//! Arrays that grow without moving, for small dense indices such as descriptor numbers.

use std::sync::OnceLock;

/// An array that is made where it stays: the thread's stack may have no room for it.
#[cold]
pub(crate) fn new_array<T: Default, const LENGTH: usize>() -> Box<[T; LENGTH]> {
    let values: Box<[T]> = std::iter::repeat_with(T::default).take(LENGTH).collect();
    match values.try_into() {
        Ok(array) => array,
        Err(_) => unreachable!("it has as many values"),
    }
}

/// Page n has 2^n values, and the first one this many.
const FIRST: usize = 64;

/// Enough for all indices of 31 bits, and on 64-bit processors for all of 32. Those before the first one stay empty: to count
/// from there would cost each look-up two instructions.
pub(crate) const PAGES: usize = 33;

/// Values by index, to be read without a lock while there come more: each page is twice as long as the one before, and never
/// moves.
#[derive(Debug)]
pub(crate) struct SharedPages<T> {
    pages: [OnceLock<Box<[T]>>; PAGES],
}

/// The page of an index, and its place there.
#[inline]
pub(crate) fn position(index: u32) -> (usize, usize) {
    // The pages begin at 0, 64, 64 + 128, …: with 64 added, at powers of two.
    let position = index as usize + FIRST;
    let page = position.ilog2() as usize;
    (page, position ^ 1 << page)
}

impl<T: Default> SharedPages<T> {
    pub(crate) const fn new() -> Self {
        SharedPages {
            pages: [const { OnceLock::new() }; PAGES],
        }
    }

    #[inline]
    pub(crate) fn get(&self, index: u32) -> Option<&T> {
        let (page, place) = position(index);
        self.pages[page].get()?.get(place)
    }

    /// The value at `index`, made if there was none.
    pub(crate) fn entry(&self, index: u32) -> &T {
        let (page, place) = position(index);
        let values = self.pages[page].get_or_init(|| {
            let values = std::iter::repeat_with(T::default);
            values.take(1 << page).collect()
        });
        &values[place]
    }

    /// All values, with their indices.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        let pages = self.pages.iter().enumerate();
        let pages = pages.filter_map(|(page, values)| Some((page, values.get()?)));
        pages.flat_map(|(page, values)| {
            let first = (1 << page) - FIRST;
            let values = values.iter().enumerate();
            values.map(move |(place, value)| ((first + place) as u32, value))
        })
    }
}

#[cfg(all(test, not(interleavings)))]
mod tests {
    use super::*;

    fn indices() -> impl Iterator<Item = u32> {
        (0..5000).chain([1 << 20])
    }

    #[test]
    fn every_index_has_a_shared_value_of_its_own() {
        let pages = SharedPages::<std::sync::Mutex<u32>>::new();
        for index in indices() {
            *pages.entry(index).lock().expect("no panic") = index ^ 1;
        }
        let is_own = |index: u32, value: &std::sync::Mutex<u32>| {
            *value.lock().expect("no panic") == index ^ 1
        };
        assert!(indices().all(|index| pages.get(index).is_some_and(|value| is_own(index, value))));
        let found = pages.iter().filter(|&(index, value)| is_own(index, value));
        assert_eq!(found.count(), 5001);
        assert!(pages.get(u32::MAX >> 1).is_none());
    }

    #[test]
    fn the_pages_follow_one_another() {
        assert_eq!(position(0), (6, 0));
        assert_eq!(position(63), (6, 63));
        assert_eq!(position(64), (7, 0));
        assert_eq!(position(64 + 128), (8, 0));
        assert!(position(u32::MAX >> 1).0 < PAGES);
    }
}
