//! [`Packet`]: what the packets of an owning port say.

use crate::slots::Slots;
use crate::{Entry, EventFilter, Events};

/// What a packet says. Its key says whom it is for: a slot, or the port itself.
///
/// The key of a stale packet, or of one from elsewhere, finds nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Packet {
    /// Of a slot: the connection, listener or shared socket is ready.
    Ready(Events),
    /// Of a slot: it is still to be armed, for this.
    Arm(EventFilter),
    /// Of a slot: the connection was accepted, and is not armed.
    Accepted,
    /// Of a slot: the listener need not pause any more.
    Resumed,
    /// Of a slot: the port drains.
    Draining,
    /// Of a slot: its wait was cancelled.
    Cancelled,
    /// Of a slot: its deadline has passed.
    TimedOut,
    /// There is one for each message in the list of messages.
    Message,
    /// A deadline may have passed.
    Timer,
    /// There is one for each notice in the list of notices.
    Notice,
    /// An operation on a file has completed: the overlapped value says which.
    Operation,
    /// The system reports something about an operation on a file.
    KernelIo,
}

/// The packets of the port itself.
const OF_PORT: [Packet; 5] = [
    Packet::Message,
    Packet::Timer,
    Packet::Notice,
    Packet::Operation,
    Packet::KernelIo,
];

/// Above all events. What interrupts a wait has a bit of its own; if there are several, the lowest comes first.
const ARM: u32 = 1 << 26;
const ACCEPTED: u32 = 1 << 27;
const RESUMED: u32 = 1 << 28;
const DRAINING: u32 = 1 << 29;
const CANCELLED: u32 = 1 << 30;
const TIMED_OUT: u32 = 1 << 31;

impl Packet {
    /// The transferred value of a slot's packet, or the number of the port's
    /// [reserved key](Slots::reserved_key).
    #[inline]
    pub(super) const fn encode(self) -> u32 {
        match self {
            Packet::Ready(events) => events.bits(),
            Packet::Arm(filter) => ARM | filter.bits() as u32,
            Packet::Accepted => ACCEPTED,
            Packet::Resumed => RESUMED,
            Packet::Draining => DRAINING,
            Packet::Cancelled => CANCELLED,
            Packet::TimedOut => TIMED_OUT,
            Packet::Message => 0,
            Packet::Timer => 1,
            Packet::Notice => 2,
            Packet::Operation => 3,
            Packet::KernelIo => 4,
        }
    }

    /// What an entry says that has the key of a slot or of the port.
    pub(super) fn decode<V: Default, B: Default>(entry: &Entry, slots: &Slots<V, B>) -> Self {
        let key = entry.completion_key;
        let of_port = OF_PORT.iter().find(|it| it.key(slots) == key);
        of_port.copied().unwrap_or_else(|| Self::of_slot(entry))
    }

    /// The same where the key is known to be that of a slot.
    #[inline]
    pub(super) fn of_slot(entry: &Entry) -> Self {
        match entry.transferred {
            events @ ..ARM => Packet::Ready(Events::from_bits_truncate(events)),
            ACCEPTED => Packet::Accepted,
            RESUMED => Packet::Resumed,
            DRAINING => Packet::Draining,
            CANCELLED => Packet::Cancelled,
            TIMED_OUT => Packet::TimedOut,
            arm => Packet::Arm(EventFilter::from_bits_retain(arm as u16)),
        }
    }

    /// For the slot with this key, from a packet that was dequeued.
    #[inline]
    pub(super) fn handed_on(self, key: usize) -> Entry {
        Entry::new(key, self.encode(), HANDED_ON)
    }

    /// The key of a packet for the port itself.
    #[inline]
    pub(super) fn key<V: Default, B: Default>(self, slots: &Slots<V, B>) -> usize {
        slots.reserved_key(self.encode())
    }

    /// For the port itself.
    pub(super) fn of_port<V: Default, B: Default>(self, slots: &Slots<V, B>) -> Entry {
        Entry::new(self.key(slots), 0, 0)
    }
}

/// The overlapped value of a packet of a slot that was dequeued before. In others it is 0, the key of an operation on a
/// file, or the address of an operation that [has completed](is_completion).
pub(super) const HANDED_ON: usize = 1;

/// Whether a packet belongs to an operation, rather than a registration.
pub(super) fn is_completion(entry: &Entry) -> bool {
    entry.overlapped > HANDED_ON
}

#[cfg(all(test, not(interleavings)))]
mod tests {
    use super::*;
    use crate::entry::next_reason;

    #[test]
    fn what_is_encoded_is_decoded() {
        let slots: Slots<u8> = Slots::new();
        let token = slots.insert(0).expect("there is room");
        let of_slot = [
            Packet::Ready(Events::ALL),
            Packet::Ready(Events::PRIORITY | Events::FULL_HANGUP),
            Packet::Arm(EventFilter::NONE),
            Packet::Arm(EventFilter::all()),
            Packet::Accepted,
            Packet::Resumed,
            Packet::Draining,
            Packet::Cancelled,
            Packet::TimedOut,
        ];
        for packet in of_slot {
            let entry = packet.handed_on(slots.key(token));
            assert_eq!(Packet::decode(&entry, &slots), packet);
            assert!(!is_completion(&entry));
        }
        for packet in OF_PORT {
            assert_eq!(Packet::decode(&packet.of_port(&slots), &slots), packet);
        }
    }

    #[test]
    fn reasons_have_a_bit_each_and_the_lowest_comes_first() {
        let reasons = [
            Packet::Resumed,
            Packet::Draining,
            Packet::Cancelled,
            Packet::TimedOut,
        ];
        let mut all = reasons.iter().fold(0, |all, it| all | it.encode());
        for reason in reasons {
            assert_eq!(next_reason(&mut all), reason.encode());
        }
        assert_eq!(all, 0);
    }
}
