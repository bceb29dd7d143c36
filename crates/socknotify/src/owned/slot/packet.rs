//! [`Packet`]: what a packet of an owned port refers to, by its key and overlapped value.

use crate::support::slots::Slots;
use crate::values::entry::Arming;
use crate::{Entry, Events};

/// What a packet of a slot says. The key of a stale packet, or of one from elsewhere, finds no slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::owned) enum Packet {
    /// What was armed by this number is ready. Whoever takes this finds out whether that is out of date, unless the
    /// number says that it is to be looked at before.
    Ready(Arming, Events),
    /// The same, from a port that knows no numbers, or of a shared socket.
    Unnumbered(Events),
    /// One of the two was looked at, or what is armed was interrupted, which is reported to whoever takes this.
    Reported(Arming, Events),
}

/// What a packet of the port itself says, by its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::owned) enum OfPort {
    /// There is one for each message in the list of messages.
    Message,
    /// A deadline may have passed.
    Timer,
    /// An operation on a file has completed: the overlapped value says which.
    Operation,
    /// The system reports something about an operation on a file.
    KernelIo,
}

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
    /// For the slot with this key.
    #[inline]
    pub(in crate::owned) fn of_slot(self, key: usize) -> Entry {
        let (events, overlapped) = match self {
            Packet::Reported(arming, events) => (events, overlapped(arming, true)),
            Packet::Ready(arming, events) => (events, overlapped(arming, false)),
            Packet::Unnumbered(events) => (events, 0),
        };
        Entry::new(key, events.bits(), overlapped)
    }
}

impl OfPort {
    const ALL: [Self; 4] = [Self::Message, Self::Timer, Self::Operation, Self::KernelIo];

    /// What a packet says, if it is one of the port itself.
    pub(in crate::owned) fn of<V: Default>(entry: &Entry, slots: &Slots<V>) -> Option<Self> {
        let key = entry.completion_key;
        Self::ALL.into_iter().find(|it| it.key(slots) == key)
    }

    #[inline]
    pub(in crate::owned) fn key<V: Default>(self, slots: &Slots<V>) -> usize {
        slots.reserved_key(self as u32)
    }

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
            assert_eq!(OfPort::of(&entry, &slots), None);
        }
        let notified = Entry::notification(slots.key(token), Events::IN);
        assert_eq!(of_slot(&notified), Packet::Unnumbered(Events::IN));
        for packet in OfPort::ALL {
            assert_eq!(OfPort::of(&packet.entry(&slots), &slots), Some(packet));
        }
    }
}
