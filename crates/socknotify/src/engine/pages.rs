//! A growing array for indices that are small and dense, as descriptor numbers are.

use std::sync::OnceLock;

const PAGE: usize = 256;

/// Directories of pages, each twice as long as the one before: enough for every 32-bit index.
const DIRECTORIES: usize = 25;

type Page<T> = OnceLock<Box<[T]>>;

/// Values by index. A page of them comes into being with the first value in it, and stays where it is, so
/// that values are found without a lock.
#[derive(Debug)]
pub(crate) struct Pages<T> {
    directories: [OnceLock<Box<[Page<T>]>>; DIRECTORIES],
}

/// Where an index is: its directory, its page in that, and its place in the page.
fn position(index: u32) -> (usize, usize, usize) {
    let page = index as usize / PAGE + 1;
    let directory = page.ilog2() as usize;
    (directory, page - (1 << directory), index as usize % PAGE)
}

impl<T: Default> Pages<T> {
    pub(crate) const fn new() -> Self {
        Pages {
            directories: [const { OnceLock::new() }; DIRECTORIES],
        }
    }

    pub(crate) fn get(&self, index: u32) -> Option<&T> {
        let (directory, page, place) = position(index);
        let page = self.directories[directory].get()?[page].get()?;
        Some(&page[place])
    }

    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        let (directory, page, place) = position(index);
        let page = self.directories[directory].get_mut()?[page].get_mut()?;
        Some(&mut page[place])
    }

    /// The value at `index`, made if there was none.
    pub(crate) fn entry(&self, index: u32) -> &T {
        let (directory, page, place) = position(index);
        let pages = self.directories[directory].get_or_init(|| {
            let pages = std::iter::repeat_with(OnceLock::new);
            pages.take(1 << directory).collect()
        });
        let values =
            pages[page].get_or_init(|| std::iter::repeat_with(T::default).take(PAGE).collect());
        &values[place]
    }

    /// The same, to be changed.
    pub(crate) fn entry_mut(&mut self, index: u32) -> &mut T {
        self.entry(index);
        match self.get_mut(index) {
            Some(value) => value,
            None => unreachable!("it was made just now"),
        }
    }

    /// Every value of every page that there is, with its index.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        let directories = self.directories.iter().enumerate();
        let pages = directories.filter_map(|(number, directory)| {
            let pages = directory.get()?.iter().enumerate();
            Some(pages.map(move |(index, page)| ((1 << number) - 1 + index, page)))
        });
        let pages = pages.flatten();
        pages
            .filter_map(|(number, page)| Some((number * PAGE, page.get()?)))
            .flat_map(|(first, page)| {
                let values = page.iter().enumerate();
                values.map(move |(place, value)| ((first + place) as u32, value))
            })
    }
}

#[cfg(all(test, not(interleavings)))]
mod tests {
    use super::*;

    #[test]
    fn every_index_has_a_value_of_its_own() {
        let mut pages = Pages::<u32>::new();
        let indices = || (0..5000).chain([1 << 20, u32::MAX]);
        for index in indices() {
            assert_eq!(pages.get(index).copied().unwrap_or_default(), 0);
            *pages.entry_mut(index) = index ^ 1;
        }
        for index in indices() {
            assert_eq!(pages.get(index), Some(&(index ^ 1)));
        }
        let found = pages.iter().filter(|&(index, &value)| value == index ^ 1);
        assert_eq!(found.count(), 5002);
    }
}
