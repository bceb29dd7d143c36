//! A growing array for indices that are small and dense, as descriptor numbers are.

const PAGE: usize = 256;

/// Values by index. A page of them comes into being with the first value in it, and stays.
#[derive(Debug)]
pub(super) struct Pages<T> {
    pages: Vec<Option<Box<[T; PAGE]>>>,
}

impl<T: Default> Pages<T> {
    pub(super) const fn new() -> Self {
        Pages { pages: Vec::new() }
    }

    pub(super) fn get(&self, index: u32) -> Option<&T> {
        let index = index as usize;
        let page = self.pages.get(index / PAGE)?.as_ref()?;
        Some(&page[index % PAGE])
    }

    pub(super) fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        let index = index as usize;
        let page = self.pages.get_mut(index / PAGE)?.as_mut()?;
        Some(&mut page[index % PAGE])
    }

    /// The value at `index`, made if there was none.
    pub(super) fn entry(&mut self, index: u32) -> &mut T {
        let index = index as usize;
        if self.pages.len() <= index / PAGE {
            self.pages.resize_with(index / PAGE + 1, || None);
        }
        let page = self.pages[index / PAGE]
            .get_or_insert_with(|| Box::new(std::array::from_fn(|_| T::default())));
        &mut page[index % PAGE]
    }

    /// Every value of every page that is there, with its index.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut T)> {
        self.pages
            .iter_mut()
            .enumerate()
            .filter_map(|(number, page)| Some((number * PAGE, page.as_mut()?)))
            .flat_map(|(first, page)| {
                page.iter_mut()
                    .enumerate()
                    .map(move |(offset, value)| ((first + offset) as u32, value))
            })
    }
}
