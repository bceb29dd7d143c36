//! [`Packet`]: what a packet of an owned port refers to, by its key and overlapped value.

use crate::support::slots::Slots;
use crate::values::entry::Arming;
use crate::{Entry, Events};

/// What a packet says. Its key says whom it is for: a slot, or the port itself.
///
/// The key of a stale packet, or of one from elsewhere, finds nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::owned) enum Packet {
    /// Of a slot: what was armed by this number is ready. Whoever takes this finds out whether that is out of date, unless the
    /// number says that it is to be looked at before.
    Ready(Arming, Events),
    /// The same, from a port that knows no numbers, or of a shared socket.
    Unnumbered(Events),
    /// Of a slot: one of the two was looked at, or what is armed was interrupted, which is reported to whoever takes this.
    Reported(Arming, Events),
    /// There is one for each message in the list of messages.
    Message,
    /// A deadline may have passed.
    Timer,
    /// An operation on a file has completed: the overlapped value says which.
    Operation,
    /// The system reports something about an operation on a file.
    KernelIo,
}

/// The packets of the port itself.
const OF_PORT: [Packet; 4] = [
    Packet::Message,
    Packet::Timer,
    Packet::Operation,
    Packet::KernelIo,
];

/// Beside an arming's number, in the overlapped value.
const REPORTED: usize = 1 << 16;

/// The overlapped value of what is to be taken of this arming, before or after it was looked at.
#[inline(always)]
pub(in crate::owned) fn overlapped(arming: Arming, is_reported: bool) -> usize {
    arming.overlapped() | if is_reported { REPORTED } else { 0 }
}

/// Whether a packet says that a connection is ready, which may be out of date, and nothing else is to be found out before
/// it is taken. All else is looked at when it is dequeued.
#[inline(always)]
pub(in crate::owned) fn is_to_take(entry: &Entry) -> bool {
    match of_slot(entry) {
        Packet::Ready(arming, _) => !arming.is_to_look_at(),
        _ => false,
    }
}

/// What a packet of a slot says.
#[inline(always)]
pub(in crate::owned) fn of_slot(entry: &Entry) -> Packet {
    let events = Events::from_bits_retain(entry.transferred);
    match Arming::of(entry) {
        Some(arming) if entry.overlapped & REPORTED != 0 => Packet::Reported(arming, events),
        // Without events it may be the port's own.
        Some(arming) if entry.transferred != 0 => Packet::Ready(arming, events),
        _ => Packet::Unnumbered(events),
    }
}

impl Packet {
    /// What a packet of the port itself says, if it is one.
    pub(in crate::owned) fn of_port<V: Default>(entry: &Entry, slots: &Slots<V>) -> Option<Self> {
        let key = entry.completion_key;
        OF_PORT.into_iter().find(|it| it.key(slots) == key)
    }

    /// For the slot with this key.
    #[inline]
    pub(in crate::owned) fn of_slot(self, key: usize) -> Entry {
        let (events, overlapped) = match self {
            Packet::Reported(arming, events) => (events, overlapped(arming, true)),
            Packet::Ready(arming, events) => (events, overlapped(arming, false)),
            _ => (Events::empty(), 0),
        };
        Entry::new(key, events.bits(), overlapped)
    }

    /// The key of a packet for the port itself.
    #[inline]
    pub(in crate::owned) fn key<V: Default>(self, slots: &Slots<V>) -> usize {
        let number = OF_PORT.iter().position(|it| *it == self);
        slots.reserved_key(number.unwrap_or(OF_PORT.len()) as u32)
    }

    /// For the port itself.
    pub(in crate::owned) fn entry<V: Default>(self, slots: &Slots<V>) -> Entry {
        Entry::new(self.key(slots), 0, 0)
    }
}

#[cfg(all(test, not(interleavings)))]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_decoded() {
        let slots: Slots<u8> = Slots::new();
        let token = slots.insert(0).expect("there is room");
        let arming = Arming::default().next();
        let packets = [
            Packet::Ready(arming, Events::ALL),
            Packet::Reported(arming, Events::empty()),
            Packet::Reported(arming, Events::PRIORITY | Events::FULL_HANGUP),
        ];
        for packet in packets {
            let entry = packet.of_slot(slots.key(token));
            assert_eq!(of_slot(&entry), packet);
            assert_eq!(Packet::of_port(&entry, &slots), None);
        }
        let notified = Entry::notification(slots.key(token), Events::IN);
        assert_eq!(of_slot(&notified), Packet::Unnumbered(Events::IN));
        for packet in OF_PORT {
            assert_eq!(Packet::of_port(&packet.entry(&slots), &slots), Some(packet));
        }
    }
}
