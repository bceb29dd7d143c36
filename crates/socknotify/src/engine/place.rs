//! The place that this thread holds, in whichever port it dequeued from last.

use std::cell::{Cell, RefCell};
use std::sync::Weak;
use std::time::{Duration, Instant};

use super::sync::thread_local;

/// A port, as far as a thread that holds a place in it is concerned.
pub(super) trait Places: Send + Sync {
    /// A place became free because its thread went elsewhere or ended.
    fn on_place_left(&self);
}

/// A thread's relation to ports. When the thread ends, its place becomes free.
#[derive(Default)]
struct ThreadPlace {
    /// The port that it dequeued from last: no port has 0.
    id: Cell<u32>,
    port: RefCell<Option<Weak<dyn Places>>>,
    is_held: Cell<bool>,
    stay: Cell<Option<Stay>>,
}

/// When a thread took packets, and how many, to measure how long it takes to handle them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stay {
    since: Instant,
    packets: u32,
}

impl Stay {
    pub(super) fn new(packets: usize) -> Self {
        Stay {
            since: Instant::now(),
            packets: packets as u32,
        }
    }

    /// How long each packet took, until now.
    pub(super) fn for_each(self) -> Duration {
        self.since.elapsed() / self.packets.max(1)
    }
}

impl ThreadPlace {
    /// Give the place back to whichever port it is in.
    #[cold]
    fn leave(&self) {
        let port = self.port.borrow().clone();
        if let Some(port) = port.and_then(|port| port.upgrade()) {
            port.on_place_left();
        }
    }
}

impl Drop for ThreadPlace {
    fn drop(&mut self) {
        if self.is_held.take() {
            self.leave();
        }
    }
}

thread_local! {
    static PLACE: ThreadPlace = ThreadPlace::default();
}

/// Take the place away from this thread, in whichever port it holds one. True if it is in this port: then the caller
/// has to give it back. A place in another port is given back here. Also returns since when the thread held it, if
/// known.
#[inline]
pub(super) fn vacate(port: u32) -> (bool, Option<Stay>) {
    let vacated = PLACE.try_with(|place| {
        let was_held = place.is_held.take();
        let is_here = place.id.get() == port;
        if was_held && !is_here {
            place.leave();
        }
        (was_held && is_here, place.stay.take())
    });
    // While the thread ends, its place may be gone already.
    vacated.unwrap_or_default()
}

/// Take the place in this port away from this thread, if it holds one.
pub(super) fn take_back(port: u32) -> bool {
    let taken = PLACE.try_with(|place| place.id.get() == port && place.is_held.take());
    taken.unwrap_or(false)
}

/// Give this thread a place in a port. False while the thread ends: it can hold none.
#[inline]
pub(super) fn give(id: u32, port: impl FnOnce() -> Weak<dyn Places>, stay: Option<Stay>) -> bool {
    let given = PLACE.try_with(|place| {
        if place.id.replace(id) != id {
            place.port.replace(Some(port()));
        }
        place.is_held.set(true);
        place.stay.set(stay);
    });
    given.is_ok()
}

/// Give this thread the place back that it lent in this port. False if it has dequeued meanwhile, and
/// so has a place already, here or in another port.
pub(super) fn restore(port: u32) -> bool {
    let restored = PLACE.try_with(|place| place.id.get() == port && !place.is_held.replace(true));
    restored.unwrap_or(false)
}
