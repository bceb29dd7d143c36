//! [`Record`]: where something that waits is, and why it is reported. It decides who gets a connection.
//!
//! A record is in a slot, and used with the slot locked. The port beneath only reports: a packet with the slot's key makes
//! its thread lock the slot, and the record says whether there is something to report.
//!
//! - Each arming has a number. A notification carries the number of the arming that it is for, so that one that comes
//!   late is recognised.
//! - While nobody has what is armed, the registration beneath is enabled. Whoever disables it has it: the thread that dequeues
//!   its notification, which locks the slot only to take it, or one that looks and [claims](Record::look) it.
//! - An interruption leaves the connection where it is: it sets a bit, and has one thread look. Who looks, or takes what was
//!   dequeued after that, reports the lowest reason in place of the events. Once those were dequeued, an interruption is for
//!   the next arming.

use std::mem;

use bitflags::bitflags;

use crate::owned::slot::packet::{Packet, of_slot, overlapped};
use crate::values::entry::Arming;
use crate::{Entry, EventFilter, Events};

bitflags! {
    /// Why a wait ends in place of an event. The lowest is reported first.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(in crate::owned) struct Reasons: u8 {
        /// The listener need not pause any more.
        const RESUMED = 1;
        /// The deadline of this wait has passed.
        const TIMED_OUT = 1 << 1;
        const DRAINING = 1 << 2;
        const CANCELLED = 1 << 3;
        /// It has bytes that were read ahead: after all others, of which some end it.
        const BUFFERED = 1 << 4;
    }
}

impl Reasons {
    /// Take the lowest.
    fn take_first(&mut self) -> Option<Self> {
        let lowest = Self::from_bits_retain(self.bits() & self.bits().wrapping_neg());
        self.remove(lowest);
        (!lowest.is_empty()).then_some(lowest)
    }
}

/// What waits in a slot, and for what.
#[derive(Debug, Default)]
pub(in crate::owned) struct Record<V> {
    /// While no thread has it.
    armed: Option<V>,
    /// The number of the latest arming.
    arming: Arming,
    /// What that was for.
    filter: EventFilter,
    /// The filter that the port beneath has, if that is known: armed with this one again, it is not refused.
    watched: Option<EventFilter>,
    reasons: Reasons,
    /// A thread has looked at it, and nobody has taken what that has found.
    is_reported: bool,
    /// The latest arming is enabled beneath, or was.
    is_enabled: bool,
    /// It is to be reported for a reason, which came before its event was dequeued. A thread looks, or has looked.
    is_interrupted: bool,
    /// It was taken while the port beneath may still have reported the arming, or have reported it.
    was_left: bool,
    /// It was interrupted because the port drains, which who adopts it and who drains may both do.
    has_drained: bool,
}

/// What there is to do once a packet has been looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::owned) enum Seen {
    /// Nothing: the packet is out of date.
    Nothing,
    /// What the packet has become is to be taken.
    Event,
    /// To enable and arm it beneath for these conditions, by this number.
    Arm(Arming, EventFilter),
}

/// How something was put into its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::owned) enum Put<A> {
    /// The port beneath may have something left to do, and may refuse it if it is new.
    Armed { left: A, is_new: bool },
    /// It is to be interrupted: have a thread look.
    Look,
}

impl<V> Record<V> {
    /// Whether something is in the slot: armed, or reported and not taken. Otherwise a thread has it, and may wait for its peer.
    #[inline]
    pub(in crate::owned) fn is_waiting(&self) -> bool {
        self.armed.is_some()
    }

    /// Whether it waits, and nobody has looked. Its event may have been dequeued.
    #[inline]
    pub(in crate::owned) fn is_armed(&self) -> bool {
        self.armed.is_some() && !self.is_reported
    }

    /// Whoever dequeues its events has to look at once.
    pub(in crate::owned) fn always_looked_at() -> Self
    where
        V: Default,
    {
        Record {
            arming: Arming::default().to_look_at(),
            ..Record::default()
        }
    }

    /// What it was armed for last.
    pub(in crate::owned) fn filter(&self) -> EventFilter {
        self.filter
    }

    /// Whether what is put in next is ready at once, whatever the port beneath reports.
    #[inline]
    pub(in crate::owned) fn set_buffered(&mut self, is_buffered: bool) {
        self.reasons.set(Reasons::BUFFERED, is_buffered);
    }

    /// Put something in, and arm it beneath, or have it interrupted. If the port beneath refuses, it comes back.
    ///
    /// `is_drained`: no wanted condition held when its thread was done.
    #[inline(always)]
    pub(in crate::owned) fn put<A, E>(
        &mut self,
        value: V,
        filter: EventFilter,
        is_drained: bool,
        arm: impl FnOnce(Arming, bool) -> Result<A, E>,
    ) -> Result<Put<A>, (V, E)> {
        debug_assert!(self.armed.is_none(), "a connection is in one place");
        self.arming = self.arming.next();
        self.filter = filter;
        // That was for the wait before.
        self.reasons.remove(Reasons::TIMED_OUT);
        self.is_interrupted = !self.reasons.is_empty();
        self.is_enabled = !self.is_interrupted;
        if self.is_interrupted {
            self.armed = Some(value);
            return Ok(Put::Look);
        }
        match arm(self.arming, is_drained && !self.was_left) {
            Ok(left) => {
                self.armed = Some(value);
                let is_new = self.watched.replace(filter) != Some(filter);
                Ok(Put::Armed { left, is_new })
            }
            Err(error) => Err((value, error)),
        }
    }

    /// End the wait for this reason, or the next one. True if a thread has to look.
    ///
    /// `is_dequeued`: whether a thread has dequeued the event of this arming.
    pub(in crate::owned) fn interrupt(
        &mut self,
        reason: Reasons,
        is_dequeued: impl FnOnce(Arming) -> bool,
    ) -> bool {
        if reason == Reasons::DRAINING && mem::replace(&mut self.has_drained, true) {
            return false;
        }
        self.reasons |= reason;
        let must_look = self.is_armed()
            && !self.is_interrupted
            && !(self.is_enabled && is_dequeued(self.arming));
        self.is_interrupted |= must_look;
        must_look
    }

    /// The packet that has a thread look could not be posted.
    pub(in crate::owned) fn not_posted(&mut self) {
        self.is_interrupted = false;
    }

    /// Have the event of what is armed go to nobody else. False if it was dequeued.
    fn claim(&self, claim: impl FnOnce(Arming) -> bool) -> bool {
        !self.is_enabled || claim(self.arming)
    }

    /// A packet of this slot was dequeued, and is changed to what is taken. `claim`: disable this arming beneath, unless it
    /// is disabled. `holds`: whether any of these conditions holds now, or an error.
    pub(in crate::owned) fn look(
        &mut self,
        entry: &mut Entry,
        claim: impl FnOnce(Arming) -> bool,
        holds: impl FnOnce(EventFilter) -> bool,
    ) -> Seen {
        let packet = of_slot(entry);
        if let Packet::Reported(arming, _) = packet {
            // It was dequeued before.
            let is_this = self.armed.is_some() && self.is_reported && arming == self.arming;
            return if is_this { Seen::Event } else { Seen::Nothing };
        }
        if !self.is_armed() {
            // Nothing older comes from a port that knows no armings.
            self.was_left &= !matches!(packet, Packet::Unnumbered(_));
            return Seen::Nothing;
        }
        let events = match packet {
            // Who has dequeued its event takes that, or the reason.
            Packet::Look if !self.claim(claim) => return Seen::Nothing,
            Packet::Look if self.reasons.is_empty() => return self.arm_again(),
            Packet::Ready(arming, _) if arming != self.arming => return Seen::Nothing,
            Packet::Unnumbered(events) if events.contains(Events::REMOVE) => return Seen::Nothing,
            Packet::Ready(_, events) | Packet::Unnumbered(events) => {
                let was_left = mem::take(&mut self.was_left);
                let is_numbered = matches!(packet, Packet::Ready(..));
                let mut shown = events & self.filter.wanted();
                let may_be_old = was_left && !is_numbered;
                // What else is out of date keeps nobody waiting.
                if may_be_old && shown.contains(Events::IN) && !holds(EventFilter::IN) {
                    shown.remove(Events::IN);
                }
                if shown.is_empty() && self.reasons.is_empty() {
                    return self.arm_again();
                }
                shown
            }
            _ => Events::empty(),
        };
        self.is_reported = true;
        self.is_interrupted = false;
        // A reason that comes later waits for the next arming.
        let events = match self.reasons.is_empty() {
            true => events,
            false => Events::empty(),
        };
        *entry = Packet::Reported(self.arming, events).of_slot(entry.completion_key);
        Seen::Event
    }

    /// Arm it once more, by a new number: what was armed by the one before was dequeued, or claimed.
    fn arm_again(&mut self) -> Seen {
        self.arming = self.arming.next();
        self.is_enabled = true;
        Seen::Arm(self.arming, self.filter)
    }

    /// Take what a packet is for, with the reason that it is to be reported for, if it was interrupted.
    #[inline(always)]
    pub(in crate::owned) fn take(&mut self, entry: &Entry) -> Option<(V, Option<Reasons>)> {
        if entry.overlapped != overlapped(self.arming, self.is_reported) {
            return None;
        }
        let value = self.armed.take()?;
        self.is_reported = false;
        // What was left was of an earlier arming.
        self.was_left = false;
        let mut reason = None;
        if self.is_interrupted || entry.transferred == 0 {
            reason = self.reasons.take_first();
            self.leave();
        }
        Some((value, reason))
    }

    /// Take it, unless its event was dequeued.
    pub(in crate::owned) fn take_out(&mut self, claim: impl FnOnce(Arming) -> bool) -> Option<V> {
        match self.is_armed() && self.claim(claim) {
            true => self.take_armed(),
            false => None,
        }
    }

    /// Take it, whatever becomes of its packets, unless a thread has looked.
    pub(in crate::owned) fn take_armed(&mut self) -> Option<V> {
        if self.is_reported {
            return None;
        }
        let value = self.armed.take();
        self.leave();
        value
    }

    /// Take it, as the port is closed.
    pub(in crate::owned) fn take_any(&mut self) -> Option<V> {
        self.armed.take()
    }

    /// What is armed beneath does not count from here on.
    fn leave(&mut self) {
        self.was_left = true;
        self.watched = None;
    }
}

#[cfg(all(test, not(interleavings)))]
mod tests {
    use super::*;

    /// Nobody has dequeued its event.
    fn look(record: &mut Record<u8>, event: &mut Entry) -> Seen {
        record.look(event, |_| true, |_| true)
    }

    fn interrupt(record: &mut Record<u8>, reason: Reasons) -> bool {
        record.interrupt(reason, |_| false)
    }

    fn armed(record: &mut Record<u8>) -> Arming {
        let mut number = Arming::default();
        let put = record.put(7, EventFilter::IN, false, |arming, _| {
            number = arming;
            Ok::<_, ()>(())
        });
        assert!(matches!(put, Ok(Put::Armed { .. })));
        number
    }

    #[test]
    fn a_packet_of_an_earlier_arming_is_out_of_date() {
        let mut record = Record::default();
        let first = armed(&mut record);
        assert_eq!(record.take_armed(), Some(7));
        let second = armed(&mut record);
        let packet = |arming| Packet::Ready(arming, Events::IN).of_slot(1);
        assert_eq!(look(&mut record, &mut packet(first)), Seen::Nothing);
        let mut event = packet(second);
        assert_eq!(look(&mut record, &mut event), Seen::Event);
        assert_eq!(look(&mut record, &mut packet(second)), Seen::Nothing);
        assert_eq!(record.take(&event), Some((7, None)));
        assert_eq!(record.take(&event), None);
    }

    #[test]
    fn each_reason_is_reported_once_and_the_lowest_first() {
        let mut record = Record::default();
        armed(&mut record);
        assert!(interrupt(&mut record, Reasons::CANCELLED));
        // One packet is enough.
        assert!(!interrupt(&mut record, Reasons::DRAINING));
        for reason in [Reasons::DRAINING, Reasons::CANCELLED] {
            let mut event = Packet::Look.of_slot(1);
            assert_eq!(look(&mut record, &mut event), Seen::Event);
            assert_eq!(record.take(&event), Some((7, Some(reason))));
            if reason == Reasons::DRAINING {
                let put = record.put(7, EventFilter::IN, true, |_, _| Ok::<_, ()>(()));
                assert_eq!(put, Ok(Put::Look));
            }
        }
        armed(&mut record);
    }

    #[test]
    fn a_connection_that_is_adopted_while_its_port_begins_to_drain_drains_once() {
        let mut record = Record::default();
        armed(&mut record);
        assert!(interrupt(&mut record, Reasons::DRAINING));
        let mut event = Packet::Look.of_slot(1);
        assert_eq!(look(&mut record, &mut event), Seen::Event);
        assert_eq!(record.take(&event), Some((7, Some(Reasons::DRAINING))));
        assert!(!interrupt(&mut record, Reasons::DRAINING));
        armed(&mut record);
    }

    #[test]
    fn what_was_dequeued_is_reported_before_an_interruption() {
        for is_looked_at in [false, true] {
            let mut record = Record::default();
            let arming = armed(&mut record);
            let mut event = Packet::Ready(arming, Events::IN).of_slot(1);
            if is_looked_at {
                assert_eq!(look(&mut record, &mut event), Seen::Event);
            }
            assert!(!record.interrupt(Reasons::CANCELLED, |_| true));
            let mut packet = Packet::Look.of_slot(1);
            let seen = record.look(&mut packet, |_| false, |_| true);
            assert_eq!(seen, Seen::Nothing);
            assert_eq!(record.take(&event), Some((7, None)));
            let put = record.put(7, EventFilter::IN, true, |_, _| Ok::<_, ()>(()));
            assert_eq!(put, Ok(Put::Look));
        }
    }

    #[test]
    fn what_is_dequeued_after_an_interruption_is_reported_for_that() {
        let mut record = Record::default();
        let arming = armed(&mut record);
        assert!(interrupt(&mut record, Reasons::CANCELLED));
        let mut packet = Packet::Look.of_slot(1);
        let seen = record.look(&mut packet, |_| false, |_| true);
        assert_eq!(seen, Seen::Nothing, "another one has the event");
        let event = Packet::Ready(arming, Events::IN).of_slot(1);
        let taken = record.take(&event);
        assert_eq!(taken, Some((7, Some(Reasons::CANCELLED))));
        armed(&mut record);
    }

    #[test]
    fn what_was_interrupted_does_not_count_as_drained() {
        let mut record = Record::default();
        for is_left in [true, false] {
            let arming = armed(&mut record);
            if is_left {
                record.take_armed();
            } else {
                let mut event = Packet::Ready(arming, Events::IN).of_slot(1);
                assert_eq!(look(&mut record, &mut event), Seen::Event);
                record.take(&event);
            }
            let mut was_drained = None;
            let put = record.put(7, EventFilter::IN, true, |_, is_drained| {
                was_drained = Some(is_drained);
                Ok::<_, ()>(())
            });
            assert!(put.is_ok());
            assert_eq!(was_drained, Some(!is_left));
            record.take_any();
        }
    }
}
