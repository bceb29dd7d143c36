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
    /// There is none any more: it was removed, rather than found closed.
    Removed,
    /// Registered, with its notifications stopped.
    Disabled,
    /// Registered, and waiting for a wanted condition.
    Enabled,
    /// REMOVE was accepted, and its notification is in the queue.
    Removing,
}

/// Identifies a notification in the queue. 0 means none.
pub(super) type Ticket = u32;

/// What the port knows of one descriptor number.
#[derive(Debug, Default)]
pub(super) struct Slot {
    pub(super) key: usize,
    /// When it was enabled last, counted within the port.
    pub(super) generation: u32,
    /// The generation that was armed, which the reports carry.
    pub(super) armed_generation: u32,
    /// The notification of this registration that is in the queue.
    pub(super) ticket: Ticket,
    /// The events of that notification.
    pub(super) pending: Events,
    /// Packets with these bits come in place of notifications, one each time that it is armed.
    pub(super) interruption: u32,
    pub(super) filter: EventFilter,
    pub(super) trigger: Trigger,
    pub(super) state: State,
    /// How the system watches the socket, if it does.
    pub(super) armed: Option<Mode>,
    /// The filter that it watches with.
    pub(super) armed_filter: EventFilter,
    /// Counts changes of the filter that carry edges.
    pub(super) revision: u8,
    /// The port owns the socket.
    pub(super) is_owned: bool,
    /// It was reported while a thread had the socket, so the thread may or may not have handled that.
    pub(super) has_risen: bool,
    /// The report had more than IN and OUT. What is left of that may never be reported again.
    pub(super) is_exceptional: bool,
}

impl Slot {
    /// The events that a notification of this registration can show.
    #[inline]
    pub(super) fn wanted(&self) -> Events {
        self.filter.wanted()
    }

    pub(super) fn is_live(&self) -> bool {
        matches!(self.state, State::Enabled | State::Disabled)
    }

    /// Record which conditions were found to hold.
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

    /// Set the mode to arm it with, as it was enabled last. Returns the interest to arm.
    #[inline]
    pub(super) fn arm(&mut self, socket: u32, mode: Mode) -> Interest {
        self.armed = Some(mode);
        self.armed_filter = self.filter;
        self.armed_generation = self.generation;
        self.revision = 0;
        self.interest(socket, mode)
    }

    /// The interest that was armed last, or is about to be.
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

    /// The number of registrations, including those that are being removed.
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

    /// Begin a registration in a slot whose previous one has ended.
    pub(super) fn insert(&mut self, socket: u32, key: usize) -> &mut Slot {
        let slot = self.slots.entry(socket);
        debug_assert!(matches!(slot.state, State::Vacant | State::Removed));
        self.len += 1;
        *slot = Slot {
            key,
            // Reports of earlier registrations stay stale.
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
