//! [`Record`]: where something that waits is, and why it is reported. It decides who gets a connection.
//!
//! A record is in a slot, and used with the slot locked. The port beneath only reports: packets with the slot's key say
//! "look at this slot", and whoever looks finds here whether there is something to report.
//!
//! - Each arming has a number. A notification carries the number of the arming that it is for, so that one that comes
//!   late is recognised.
//! - An interruption leaves the connection where it is: it sets a bit, and has one thread look. Whoever looks finds the
//!   lowest reason, or else the events. Once a thread has dequeued those, an interruption is for the next arming.

use std::mem;

use bitflags::bitflags;

use super::packet::{Packet, of_slot};
use crate::entry::Arming;
use crate::{Entry, EventFilter, Events};

bitflags! {
    /// Why a wait ends in place of an event. The lowest is reported first.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(super) struct Reasons: u8 {
        /// A listener has accepted the connection, and it is not armed.
        const ACCEPTED = 1;
        /// The listener need not pause any more.
        const RESUMED = 1 << 1;
        /// The deadline of this wait has passed.
        const TIMED_OUT = 1 << 2;
        const DRAINING = 1 << 3;
        const CANCELLED = 1 << 4;
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
#[derive(Debug)]
pub(super) struct Record<V> {
    /// While no thread has it.
    armed: Option<V>,
    /// The number of the latest arming.
    arming: Arming,
    /// What that was for.
    filter: EventFilter,
    /// The filter that the port beneath has: armed with this one again, it is not refused.
    watched: Option<EventFilter>,
    reasons: Reasons,
    /// A thread has dequeued its event, and nobody has taken that.
    is_reported: bool,
    /// A packet that says "look" is in the queue.
    is_posted: bool,
    /// An event that is out of date would have its thread wait for the next one.
    is_blocking: bool,
    /// It was taken while the port beneath may still have reported the arming, or have reported it.
    was_left: bool,
}

impl<V> Default for Record<V> {
    fn default() -> Self {
        Record {
            armed: None,
            arming: Arming::default(),
            filter: EventFilter::NONE,
            watched: None,
            reasons: Reasons::empty(),
            is_reported: false,
            is_posted: false,
            is_blocking: false,
            was_left: false,
        }
    }
}

/// What there is to do once a packet has been looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// Nothing: the packet is out of date.
    Nothing,
    /// What the packet has become is to be taken.
    Event,
    /// To enable and arm it beneath, again or at last.
    Arm,
}

/// How something was put into its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Put<A> {
    /// The port beneath may have something left to do, and may refuse it if it is new.
    Armed { left: A, is_new: bool },
    /// It is to be interrupted: have a thread look.
    Look,
}

impl<V> Record<V> {
    /// Whether something is in the slot: armed, or its event was dequeued and not taken.
    #[inline]
    pub(super) fn is_waiting(&self) -> bool {
        self.armed.is_some()
    }

    /// Whether it waits, and no thread has dequeued its event.
    #[inline]
    pub(super) fn is_armed(&self) -> bool {
        self.armed.is_some() && !self.is_reported
    }

    /// Events are to be checked from here on: a thread that got one that is out of date would block.
    pub(super) fn block(&mut self) {
        self.is_blocking = true;
    }

    /// Whether a thread has it that may wait for its peer.
    pub(super) fn holds_a_thread(&self) -> bool {
        self.is_blocking && self.armed.is_none()
    }

    /// What it was armed for last.
    pub(super) fn filter(&self) -> EventFilter {
        self.filter
    }

    /// Put something in, and arm it beneath, or have it interrupted. If the port beneath refuses, it comes back.
    ///
    /// `is_drained`: no wanted condition held when its thread was done.
    #[inline(always)]
    pub(super) fn put<A, E>(
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
        if !self.reasons.is_empty() {
            self.armed = Some(value);
            self.is_posted = true;
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

    /// Put something in, to be reported for this reason by whoever takes this packet.
    pub(super) fn put_reported(&mut self, value: V, reason: Reasons, key: usize) -> Entry {
        self.arming = self.arming.next();
        self.armed = Some(value);
        self.reasons |= reason;
        self.is_reported = true;
        Packet::Reported(self.arming, Events::empty()).of_slot(key)
    }

    /// End the wait for this reason, or the next one. True if a thread has to look.
    pub(super) fn interrupt(&mut self, reason: Reasons) -> bool {
        self.reasons |= reason;
        self.is_armed() && !mem::replace(&mut self.is_posted, true)
    }

    /// The packet that has a thread look could not be posted.
    pub(super) fn not_posted(&mut self) {
        self.is_posted = false;
    }

    /// What to arm it for beneath once more, if it is armed, and by which number: a new one. Another thread may have dequeued
    /// what was armed before, and not looked yet. Under one number both would count, and the later one would be lost once
    /// the connection is drained.
    pub(super) fn arm_again(&mut self) -> Option<(Arming, EventFilter)> {
        self.is_armed().then(|| {
            self.arming = self.arming.next();
            (self.arming, self.filter)
        })
    }

    /// A packet of this slot was dequeued, and is changed to what is taken. `holds`: whether IN or OUT of these conditions
    /// holds now.
    #[inline(always)]
    pub(super) fn look(
        &mut self,
        entry: &mut Entry,
        holds: impl FnOnce(EventFilter) -> bool,
    ) -> Seen {
        let packet = of_slot(entry);
        match packet {
            Packet::Reported(arming, _) => {
                // It was dequeued before.
                let is_this = self.armed.is_some() && self.is_reported && arming == self.arming;
                return if is_this { Seen::Event } else { Seen::Nothing };
            }
            Packet::Look => self.is_posted = false,
            _ => {}
        }
        if !self.is_armed() {
            // Nothing older comes from a port that knows no armings.
            self.was_left &= !matches!(packet, Packet::Unnumbered(_));
            return Seen::Nothing;
        }
        let events = match packet {
            Packet::Look if self.reasons.is_empty() => return Seen::Arm,
            Packet::Ready(arming, _) if arming != self.arming => return Seen::Nothing,
            Packet::Unnumbered(events) if events.contains(Events::REMOVE) => return Seen::Nothing,
            Packet::Ready(_, events) | Packet::Unnumbered(events) => {
                let was_left = mem::take(&mut self.was_left);
                let is_numbered = matches!(packet, Packet::Ready(..));
                let shown = events & self.filter.wanted();
                let may_be_old = self.is_blocking || was_left && !is_numbered;
                // What else is out of date keeps nobody waiting.
                let is_checked = may_be_old && shown == Events::IN;
                if shown.is_empty() || is_checked && !holds(EventFilter::IN) {
                    return Seen::Arm;
                }
                shown
            }
            _ => Events::empty(),
        };
        self.is_reported = true;
        // A reason that comes later waits for the next arming.
        let events = match self.reasons.is_empty() {
            true => events,
            false => Events::empty(),
        };
        *entry = Packet::Reported(self.arming, events).of_slot(entry.completion_key);
        Seen::Event
    }

    /// Take what a packet was [reported](Seen::Event) for, with the reason that it is to be reported for.
    #[inline(always)]
    pub(super) fn take(&mut self, entry: &Entry) -> Option<(V, Option<Reasons>)> {
        let events = match of_slot(entry) {
            Packet::Reported(arming, events) if arming == self.arming && self.is_reported => events,
            _ => return None,
        };
        let value = self.armed.take()?;
        self.is_reported = false;
        let mut reason = None;
        if events.is_empty() {
            reason = self.reasons.take_first();
            self.leave();
        }
        Some((value, reason))
    }

    /// The same for one that needs all of its reasons at once.
    pub(super) fn take_with_all(&mut self, entry: &Entry) -> Option<(V, Reasons)> {
        let (value, reason) = self.take(entry)?;
        let others = mem::take(&mut self.reasons);
        Some((value, others | reason.unwrap_or_default()))
    }

    /// Take it, whatever becomes of its packets, unless its event was dequeued.
    pub(super) fn take_armed(&mut self) -> Option<V> {
        if self.is_reported {
            return None;
        }
        let value = self.armed.take();
        self.leave();
        value
    }

    /// Take it, as the port is closed.
    pub(super) fn take_any(&mut self) -> Option<V> {
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
        assert_eq!(record.look(&mut packet(first), |_| true), Seen::Nothing);
        let mut event = packet(second);
        assert_eq!(record.look(&mut event, |_| true), Seen::Event);
        assert_eq!(record.look(&mut packet(second), |_| true), Seen::Nothing);
        assert_eq!(record.take(&event), Some((7, None)));
        assert_eq!(record.take(&event), None);
    }

    #[test]
    fn each_reason_is_reported_once_and_the_lowest_first() {
        let mut record = Record::default();
        armed(&mut record);
        assert!(record.interrupt(Reasons::CANCELLED));
        // One packet is enough.
        assert!(!record.interrupt(Reasons::DRAINING));
        for reason in [Reasons::DRAINING, Reasons::CANCELLED] {
            let mut event = Packet::Look.of_slot(1);
            assert_eq!(record.look(&mut event, |_| true), Seen::Event);
            assert_eq!(record.take(&event), Some((7, Some(reason))));
            if reason == Reasons::DRAINING {
                let put = record.put(7, EventFilter::IN, true, |_, _| Ok::<_, ()>(()));
                assert_eq!(put, Ok(Put::Look));
            }
        }
        armed(&mut record);
    }

    #[test]
    fn what_was_dequeued_is_reported_before_an_interruption() {
        let mut record = Record::default();
        let arming = armed(&mut record);
        let mut event = Packet::Ready(arming, Events::IN).of_slot(1);
        assert_eq!(record.look(&mut event, |_| true), Seen::Event);
        assert!(!record.interrupt(Reasons::CANCELLED));
        assert_eq!(record.take(&event), Some((7, None)));
    }

    /// It is armed beneath again.
    #[test]
    fn c3_no_event_that_is_out_of_date_makes_a_handler_block() {
        for is_blocking in [false, true] {
            let mut record = Record::default();
            if is_blocking {
                record.block();
            }
            let arming = armed(&mut record);
            let mut event = Packet::Ready(arming, Events::IN).of_slot(1);
            let seen = record.look(&mut event, |_| false);
            assert_eq!(seen == Seen::Arm, is_blocking);
            assert_eq!(record.is_armed(), is_blocking);
        }
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
                assert_eq!(record.look(&mut event, |_| true), Seen::Event);
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
