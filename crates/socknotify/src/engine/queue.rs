//! The packets of a port, first in, first out.

use std::collections::VecDeque;

use super::Mode;
use super::table::{Slot, State, Table, Token};
use crate::{Entry, Events, Trigger};

/// Something that waits to be dequeued.
#[derive(Clone, Copy, Debug)]
enum Packet {
    /// A notification of a registration. What it says is kept with the registration, where more can
    /// be merged into it.
    Notification(Token),
    /// A packet that is complete as it is.
    Entry(Entry),
}

/// The queue of a port.
#[derive(Debug, Default)]
pub(super) struct Queue {
    packets: VecDeque<Packet>,
}

impl Queue {
    /// Packets in the queue. A few may turn out to be void.
    pub(super) fn len(&self) -> usize {
        self.packets.len()
    }

    pub(super) fn post(&mut self, entries: &[Entry]) {
        self.packets
            .extend(entries.iter().copied().map(Packet::Entry));
    }

    /// Queue a notification, or merge it into the one of its registration that waits already.
    pub(super) fn notify(&mut self, table: &mut Table, token: Token, events: Events) {
        if let Some(slot) = table.get(token) {
            self.notify_slot(slot, token.socket, events);
        }
    }

    /// The same, for the registration in this slot. Nothing is no news.
    pub(super) fn notify_slot(&mut self, slot: &mut Slot, socket: u32, events: Events) {
        slot.pending |= events;
        if !slot.queued && !events.is_empty() {
            slot.queued = true;
            self.packets
                .push_back(Packet::Notification(slot.token(socket)));
        }
    }

    /// The registrations that have a notification among the first packets.
    pub(super) fn notifications(&self, packets: usize) -> impl Iterator<Item = Token> {
        let packets = self.packets.iter().take(packets);
        packets.filter_map(|packet| match packet {
            Packet::Notification(token) => Some(*token),
            Packet::Entry(_) => None,
        })
    }

    /// Move the first packets to the caller, and let their delivery have its effect: it disables a
    /// one-shot registration, lets one that is watched for a level be reported again (`on_level`, with the
    /// number), and ends one that is being removed (`on_end`). Returns how many there were.
    pub(super) fn dequeue(
        &mut self,
        table: &mut Table,
        entries: &mut [Entry],
        mut on_level: impl FnMut(u32),
        mut on_end: impl FnMut(u32),
    ) -> usize {
        let room = entries.len();
        let mut rest = entries.iter_mut();
        while rest.len() > 0 {
            let Some(packet) = self.packets.pop_front() else {
                break;
            };
            let token = match packet {
                Packet::Entry(entry) => {
                    put(&mut rest, entry);
                    continue;
                }
                Packet::Notification(token) => token,
            };
            let Some(slot) = table.get(token) else {
                continue;
            };
            slot.queued = false;
            if slot.watched == Some(Mode::Level) {
                on_level(token.socket);
            }
            let events = std::mem::take(&mut slot.pending);
            if events.is_empty() {
                continue;
            }
            put(&mut rest, Entry::new(slot.key, events.bits(), 0));
            if slot.state == State::Removing {
                slot.removed = true;
                table.end(token.socket);
                on_end(token.socket);
            } else if slot.trigger.contains(Trigger::ONESHOT) {
                slot.state = State::Disabled;
            }
        }
        room - rest.len()
    }

    /// Make the queued notification of a registration complete in itself, so that it comes out as it
    /// is although the registration ends now.
    pub(super) fn detach(&mut self, table: &mut Table, token: Token) {
        let Some(slot) = table.get(token) else { return };
        if !slot.queued {
            return;
        }
        let entry = Entry::new(slot.key, slot.pending.bits(), 0);
        let mut packets = self.packets.iter_mut();
        if let Some(packet) = packets
            .find(|packet| matches!(packet, Packet::Notification(queued) if *queued == token))
        {
            *packet = Packet::Entry(entry);
        }
    }

    pub(super) fn clear(&mut self) {
        self.packets = VecDeque::new();
    }
}

fn put<'a>(rest: &mut impl Iterator<Item = &'a mut Entry>, entry: Entry) {
    if let Some(place) = rest.next() {
        *place = entry;
    }
}
