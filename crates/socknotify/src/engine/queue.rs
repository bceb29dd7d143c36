//! The packets of a port, first in, first out.

use std::collections::VecDeque;

use super::interest::Mode;
use super::table::{Slot, State, Table, Ticket};
use crate::{Entry, Events, Trigger};

/// Something that waits to be dequeued.
#[derive(Clone, Copy, Debug)]
enum Packet {
    /// A notification of a registration. Its events are stored in the registration, where more can be merged into
    /// them. If the registration has another ticket by now, this one is void.
    Notification(u32, Ticket),
    /// A complete packet.
    Entry(Entry),
}

/// The queue of a port.
#[derive(Debug, Default)]
pub(super) struct Queue {
    packets: VecDeque<Packet>,
    /// How many of them are void.
    void: usize,
    tickets: Ticket,
}

impl Queue {
    /// The number of packets to dequeue.
    pub(super) fn len(&self) -> usize {
        self.packets.len() - self.void
    }

    /// Queue complete packets.
    pub(super) fn extend(&mut self, entries: impl IntoIterator<Item = Entry>) {
        self.packets.extend(entries.into_iter().map(Packet::Entry));
    }

    /// Put complete packets ahead of all others, in order.
    pub(super) fn prepend(&mut self, entries: &[Entry]) {
        let packets = entries.iter().rev();
        packets.for_each(|&entry| self.packets.push_front(Packet::Entry(entry)));
    }

    /// Queue a notification of the registration in this slot, or merge it into the one that waits.
    #[inline]
    pub(super) fn notify(&mut self, slot: &mut Slot, socket: u32, events: Events) {
        slot.pending |= events;
        if slot.ticket == 0 {
            self.tickets = self.tickets.wrapping_add(1).max(1);
            slot.ticket = self.tickets;
            self.packets
                .push_back(Packet::Notification(socket, slot.ticket));
        }
    }

    /// Keep only these events of the queued notification. If none is left, it loses its position.
    pub(super) fn retain(&mut self, slot: &mut Slot, events: Events) {
        slot.pending &= events;
        if slot.pending.is_empty() {
            self.withdraw(slot);
        }
    }

    /// Withdraw the queued notification, if there is one.
    pub(super) fn withdraw(&mut self, slot: &mut Slot) {
        slot.pending = Events::empty();
        if std::mem::take(&mut slot.ticket) != 0 {
            self.void += 1;
        }
    }

    /// The registrations that have a notification among the first packets.
    pub(super) fn notified<'a>(
        &'a self,
        table: &'a mut Table,
        packets: usize,
        mut each: impl FnMut(&mut Slot, u32),
    ) {
        let mut left = packets;
        for packet in &self.packets {
            if left == 0 {
                break;
            }
            if let Packet::Notification(socket, ticket) = *packet {
                match table.slot(socket).filter(|slot| slot.ticket == ticket) {
                    Some(slot) => each(slot, socket),
                    None => continue,
                }
            }
            left -= 1;
        }
    }

    /// Move the first packets to the caller. Delivery disables a one-shot registration, allows the next report of a
    /// level-triggered one (`on_level`), and ends one that is being removed (`on_end`). Returns the number of packets.
    pub(super) fn dequeue(
        &mut self,
        table: &mut Table,
        entries: &mut [Entry],
        mut on_level: impl FnMut(u32),
        mut on_end: impl FnMut(u32),
    ) -> usize {
        let room = entries.len();
        let mut count = 0;
        while count < room {
            let (socket, ticket) = match self.packets.pop_front() {
                None => break,
                Some(Packet::Entry(entry)) => {
                    entries[count] = entry;
                    count += 1;
                    continue;
                }
                Some(Packet::Notification(socket, ticket)) => (socket, ticket),
            };
            let Some(slot) = table.slot(socket).filter(|slot| slot.ticket == ticket) else {
                self.void -= 1;
                continue;
            };
            slot.ticket = 0;
            let events = std::mem::take(&mut slot.pending);
            entries[count] = Entry::notification(slot.key, events);
            count += 1;
            if slot.armed == Some(Mode::Level) {
                on_level(socket);
            }
            if slot.state == State::Removing {
                table.end(socket, State::Removed);
                on_end(socket);
            } else if slot.trigger.contains(Trigger::ONESHOT) {
                slot.state = State::Disabled;
            }
        }
        count
    }

    /// Turn the queued notification of a registration into a complete packet, so that it is dequeued although the
    /// registration ends now.
    pub(super) fn detach(&mut self, slot: &mut Slot) {
        let ticket = std::mem::take(&mut slot.ticket);
        let of_this =
            |packet: &&mut Packet| matches!(packet, Packet::Notification(_, it) if *it == ticket);
        if let Some(packet) = self.packets.iter_mut().find(of_this) {
            *packet = Packet::Entry(Entry::notification(slot.key, slot.pending));
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Queue::default();
    }
}
