//! The place that this thread holds, in whichever port it dequeued from last.

use std::cell::RefCell;
use std::sync::Weak;

use super::sync::thread_local;

/// A port, as far as a thread that holds a place in it is concerned.
pub(super) trait Places: Send + Sync {
    /// A place became free because its thread went elsewhere or ended.
    fn on_place_left(&self);
}

/// A thread's relation to ports. When the thread ends, its place becomes free.
struct Seat {
    port: Option<(u32, Weak<dyn Places>)>,
    holds_place: bool,
}

impl Seat {
    fn is_at(&self, port: u32) -> bool {
        matches!(self.port, Some((id, _)) if id == port)
    }

    /// Take the place away from this thread, and name the port that it was in.
    fn vacate(&mut self) -> Option<Weak<dyn Places>> {
        let (_, port) = self.port.as_ref()?;
        std::mem::take(&mut self.holds_place).then(|| port.clone())
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        leave(self.vacate());
    }
}

thread_local! {
    static SEAT: RefCell<Seat> = RefCell::new(Seat { port: None, holds_place: false });
}

fn leave(port: Option<Weak<dyn Places>>) {
    if let Some(port) = port.and_then(|port| port.upgrade()) {
        port.on_place_left();
    }
}

/// Give back the place in any port but this one.
pub(super) fn leave_other(port: u32) {
    // Where the seat is gone already, at the very end of a thread, so is the place.
    let vacated = SEAT.try_with(|seat| {
        let mut seat = seat.borrow_mut();
        if seat.is_at(port) {
            None
        } else {
            seat.vacate()
        }
    });
    leave(vacated.ok().flatten());
}

/// Take the place in this port away from this thread, if it holds one. The caller owes the port a
/// word of it.
pub(super) fn take_back(port: u32) -> bool {
    SEAT.try_with(|seat| {
        let mut seat = seat.borrow_mut();
        seat.is_at(port) && seat.vacate().is_some()
    })
    .unwrap_or(false)
}

/// Give this thread a place in a port. False at the very end of a thread, which can hold none.
pub(super) fn give(id: u32, port: impl FnOnce() -> Weak<dyn Places>) -> bool {
    SEAT.try_with(|seat| {
        let mut seat = seat.borrow_mut();
        if !seat.is_at(id) {
            seat.port = Some((id, port()));
        }
        seat.holds_place = true;
    })
    .is_ok()
}

/// Give this thread the place back that it lent in this port. False if it has dequeued meanwhile, and
/// so has a place already, here or in another port.
pub(super) fn restore(port: u32) -> bool {
    SEAT.try_with(|seat| {
        let mut seat = seat.borrow_mut();
        let free = seat.is_at(port) && !seat.holds_place;
        seat.holds_place |= free;
        free
    })
    .unwrap_or(false)
}
