//! Looks at what holds now.

use std::io;

use super::conditions::{conditions, polled};
use super::device::{Device, LOOK, PolledSocket};
use crate::engine::Watch;
use crate::{Events, sys};

/// Looks at sockets, and waits for nothing.
pub(super) struct Looker(Device);

impl Looker {
    pub(super) fn new() -> io::Result<Self> {
        Device::for_looks().map(Looker)
    }

    /// What holds of this, in the driver's words.
    pub(super) fn glance(&self, watch: &Watch) -> u32 {
        let mut one = [question(watch)];
        match self.0.look(&mut one) {
            Ok(1) => one[0].events,
            _ => 0,
        }
    }

    /// Whether any of these holds.
    pub(super) fn holds(&self, watch: &Watch, events: Events) -> bool {
        conditions(self.glance(watch), watch.kind).intersects(events)
    }

    /// Tell of each of these what holds, in their order.
    pub(super) fn look(
        &self,
        memory: &mut Vec<PolledSocket>,
        watches: &[Watch],
        mut tell: impl FnMut(&Watch, Events),
    ) {
        for watches in watches.chunks(LOOK) {
            memory.clear();
            memory.extend(watches.iter().map(question));
            let count = match self.0.look(memory) {
                Ok(count) => count,
                // One that is no socket spoils it for all.
                Err(_) => self.look_at_each(memory),
            };
            let mut found = memory[..count].iter().peekable();
            for watch in watches {
                let handle = sys::handle(watch.socket);
                let found = found.next_if(|found| found.handle == handle);
                let events = found.map_or(0, |found| found.events);
                tell(watch, conditions(events, watch.kind));
            }
        }
    }

    /// Look at sockets one by one. Moves those of which something holds to the front.
    fn look_at_each(&self, sockets: &mut [PolledSocket]) -> usize {
        let mut found = 0;
        for index in 0..sockets.len() {
            let mut one = [sockets[index]];
            if self.0.look(&mut one) == Ok(1) {
                sockets[found] = one[0];
                found += 1;
            }
        }
        found
    }
}

/// What to ask of a socket.
fn question(watch: &Watch) -> PolledSocket {
    PolledSocket::new(sys::handle(watch.socket), polled(watch))
}
