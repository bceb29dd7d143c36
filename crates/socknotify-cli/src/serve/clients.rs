//! Who is connected.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use socknotify::owned::Id;

/// The names of all that the port owns on behalf of the server, so that all can be told of its end.
#[derive(Debug, Default)]
pub(crate) struct Clients(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    ids: HashSet<Id>,
    is_closed: bool,
}

impl Clients {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Somebody has come. False if it is too late: nobody would tell it of the end.
    pub(crate) fn add(&self, id: Id) -> bool {
        let mut known = self.known();
        !known.is_closed && known.ids.insert(id)
    }

    pub(crate) fn remove(&self, id: Id) {
        self.known().ids.remove(&id);
    }

    pub(crate) fn count(&self) -> usize {
        self.known().ids.len()
    }

    /// Nobody comes any more. Those who are there.
    pub(crate) fn close(&self) -> Vec<Id> {
        let mut known = self.known();
        known.is_closed = true;
        known.ids.iter().copied().collect()
    }
}
