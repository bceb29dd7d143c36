//! The place that this thread holds, in whichever port it dequeued from last.

use std::cell::RefCell;
use std::sync::Weak;
use std::time::{Duration, Instant};

use super::sync::thread_local;

/// A port, as far as a thread that holds a place in it is concerned.
pub(super) trait Places: Send + Sync {
    /// A place became free because its thread went elsewhere or ended.
    fn on_place_left(&self);
}

/// A thread's relation to ports. When the thread ends, its place becomes free.
struct ThreadPlace {
    port: Option<(u32, Weak<dyn Places>)>,
    is_held: bool,
    stay: Option<Stay>,
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
    fn is_in(&self, port: u32) -> bool {
        matches!(self.port, Some((id, _)) if id == port)
    }

    /// Take the place away from this thread, and name the port that it was in.
    fn take(&mut self) -> Option<Weak<dyn Places>> {
        let (_, port) = self.port.as_ref()?;
        std::mem::take(&mut self.is_held).then(|| port.clone())
    }
}

impl Drop for ThreadPlace {
    fn drop(&mut self) {
        leave(self.take());
    }
}

thread_local! {
    static PLACE: RefCell<ThreadPlace> = RefCell::new(ThreadPlace { port: None, is_held: false, stay: None });
}

fn leave(port: Option<Weak<dyn Places>>) {
    if let Some(port) = port.and_then(|port| port.upgrade()) {
        port.on_place_left();
    }
}

/// Take the place away from this thread, in whichever port it holds one. True if it is in this port: then the caller has
/// to give it back. A place in another port is given back here. Also returns since when the thread held it, if known.
pub(super) fn vacate(port: u32) -> (bool, Option<Stay>) {
    let vacated = PLACE.try_with(|place| {
        let mut place = place.borrow_mut();
        let stay = place.stay.take();
        if place.is_in(port) {
            return (std::mem::take(&mut place.is_held), stay, None);
        }
        (false, None, place.take())
    });
    // While the thread ends, its place may be gone already.
    let (here, stay, elsewhere) = vacated.unwrap_or_default();
    leave(elsewhere);
    (here, stay)
}

/// Take the place in this port away from this thread, if it holds one.
pub(super) fn take_back(port: u32) -> bool {
    PLACE
        .try_with(|place| {
            let mut place = place.borrow_mut();
            place.is_in(port) && std::mem::take(&mut place.is_held)
        })
        .unwrap_or(false)
}

/// Give this thread a place in a port. False while the thread ends: it can hold none.
pub(super) fn give(id: u32, port: impl FnOnce() -> Weak<dyn Places>, stay: Option<Stay>) -> bool {
    PLACE
        .try_with(|place| {
            let mut place = place.borrow_mut();
            if !place.is_in(id) {
                place.port = Some((id, port()));
            }
            place.is_held = true;
            place.stay = stay;
        })
        .is_ok()
}

/// Give this thread the place back that it lent in this port. False if it has dequeued meanwhile, and
/// so has a place already, here or in another port.
pub(super) fn restore(port: u32) -> bool {
    PLACE
        .try_with(|place| {
            let mut place = place.borrow_mut();
            let free = place.is_in(port) && !place.is_held;
            place.is_held |= free;
            free
        })
        .unwrap_or(false)
}
