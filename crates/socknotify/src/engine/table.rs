//! The registrations of a port: one slot for each descriptor number.

use super::backend::Report;
use super::interest::{Interest, Mode};
use crate::pages::Pages;
use crate::{EventFilter, Events, Trigger};

/// Where a registration is in its life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum State {
    /// There is none.
    #[default]
    Vacant,
    /// There is none any more: it was removed, and not only found to be closed.
    Removed,
    /// Registered, with its notifications stopped.
    Disabled,
    /// Registered, and waiting for a wanted condition.
    Enabled,
    /// REMOVE was accepted, and its notification is in the queue.
    Removing,
}

/// Names a notification in the queue. 0 names none.
pub(super) type Ticket = u32;

/// What the port knows of one descriptor number.
#[derive(Debug, Default)]
pub(super) struct Slot {
    pub(super) key: usize,
    /// When it was enabled last, counted within the port.
    pub(super) generation: u32,
    /// The generation that the system was told, which comes back with its reports.
    pub(super) armed_generation: u32,
    /// The notification of this registration that is in the queue.
    pub(super) ticket: Ticket,
    /// What that will say.
    pub(super) pending: Events,
    /// Packets with these bits come instead, one each time that it is armed.
    pub(super) interruption: u32,
    pub(super) filter: EventFilter,
    pub(super) trigger: Trigger,
    pub(super) state: State,
    /// How the system watches the socket, if it does.
    pub(super) armed: Option<Mode>,
    /// What it watches for.
    pub(super) armed_filter: EventFilter,
    /// Changes of the filter that edges outlast.
    pub(super) revision: u8,
    /// The port owns the socket.
    pub(super) is_owned: bool,
    /// It was reported while a thread had the socket, so that one cannot tell whether it was dealt with.
    pub(super) has_risen: bool,
    /// More was reported of it than that it is ready. What is left of that may never be reported again.
    pub(super) is_exceptional: bool,
}

impl Slot {
    /// Events that a notification of this registration may show.
    #[inline]
    pub(super) fn wanted(&self) -> Events {
        self.filter.wanted()
    }

    pub(super) fn is_live(&self) -> bool {
        matches!(self.state, State::Enabled | State::Disabled)
    }

    /// Note what was found to hold.
    #[inline]
    pub(super) fn note(&mut self, events: Events) {
        let is_plain = (Events::IN | Events::OUT).contains(events);
        self.is_exceptional |= !is_plain;
    }

    /// Whether a report is of this registration, as it is armed now.
    #[inline]
    pub(super) fn is_of(&self, report: &Report) -> bool {
        self.armed_generation == report.generation && self.armed.is_some() && self.is_live()
    }

    /// It is to be armed in this way, as it was enabled last. Returns what the system is to be told.
    #[inline]
    pub(super) fn arm(&mut self, socket: u32, mode: Mode) -> Interest {
        self.armed = Some(mode);
        self.armed_filter = self.filter;
        self.armed_generation = self.generation;
        self.revision = 0;
        self.interest(socket, mode)
    }

    /// What the system was told last, or is to be told next.
    #[inline]
    pub(super) fn interest(&self, socket: u32, mode: Mode) -> Interest {
        let filter = self.armed_filter;
        Interest::new(socket, self.armed_generation, self.revision, filter, mode)
    }
}

/// All registrations of a port.
#[derive(Debug)]
pub(super) struct Table {
    slots: Pages<Slot>,
    len: usize,
}

impl Table {
    pub(super) fn new() -> Self {
        Table {
            slots: Pages::new(),
            len: 0,
        }
    }

    /// How many registrations there are, those that are being removed among them.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The slot of a number that has, or had, a registration.
    #[inline]
    pub(super) fn slot(&mut self, socket: u32) -> Option<&mut Slot> {
        self.slots.get_mut(socket)
    }

    /// The slot of a live registration.
    #[inline]
    pub(super) fn live(&mut self, socket: u32) -> Option<&mut Slot> {
        self.slot(socket).filter(|slot| slot.is_live())
    }

    /// The slot of any number.
    pub(super) fn entry(&mut self, socket: u32) -> &mut Slot {
        self.slots.entry(socket)
    }

    /// Begin a registration in place of what is over.
    pub(super) fn insert(&mut self, socket: u32, key: usize) -> &mut Slot {
        let slot = self.slots.entry(socket);
        debug_assert!(matches!(slot.state, State::Vacant | State::Removed));
        self.len += 1;
        *slot = Slot {
            key,
            // What is reported of an earlier registration stays stale.
            generation: slot.generation,
            armed_generation: slot.armed_generation,
            state: State::Disabled,
            ..Slot::default()
        };
        slot
    }

    /// End a registration.
    pub(super) fn end(&mut self, socket: u32, state: State) {
        if let Some(slot) = self.slots.get_mut(socket) {
            if !matches!(slot.state, State::Vacant | State::Removed) {
                slot.state = state;
                slot.armed = None;
                self.len -= 1;
            }
        }
    }

    /// The numbers of all registrations.
    pub(super) fn sockets(&self) -> impl Iterator<Item = u32> {
        let is_over = |slot: &Slot| matches!(slot.state, State::Vacant | State::Removed);
        let slots = self.slots.iter().filter(move |(_, slot)| !is_over(slot));
        slots.map(|(socket, _)| socket)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_registration_is_a_small_record() {
        // With its interest and its owner, 16 bytes, less than a cache line.
        assert!(size_of::<Slot>() <= 40);
    }
}
