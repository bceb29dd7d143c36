//! [`Record`]: where something that waits is, and why it is reported. It decides who gets a connection.
//!
//! A record is in a slot, and used with the slot locked. The port beneath only reports: a packet with the slot's key makes
//! its thread lock the slot, and the record says whether there is something to report.
//!
//! - Each arming has a number. A notification carries the number of the arming that it is for, so that one that comes
//!   late is recognised.
//! - While nobody has what is armed, the registration beneath is enabled. Whoever disables it has it: the thread that dequeues
//!   its notification, which locks the slot only to take it, or one that [interrupts](Record::interrupt) it.
//! - An interruption leaves the connection where it is: it sets a bit, disables the registration, and posts a packet. Who takes
//!   that reports the lowest reason. Once the notification was dequeued, an interruption is for the next arming.

use std::mem;

use bitflags::bitflags;

use crate::owned::slot::connections::Wish;
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
    state: State,
    /// It was taken while the port beneath may still have reported the arming, or have reported it.
    was_left: bool,
    /// It was interrupted because the port drains, which who adopts it and who drains may both do.
    has_drained: bool,
}

/// Where the report is of what is armed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// The port beneath has it.
    #[default]
    Enabled,
    /// It was interrupted: in the queue.
    Posted,
    /// With a thread that has looked at it, and that has not taken it.
    Dequeued,
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
    /// It is interrupted: [report](Record::posted) it.
    Report(Arming),
}

impl<V> Record<V> {
    /// Whether something is in the slot: armed, or reported and not taken. Otherwise a thread has it, and may wait for its peer.
    #[inline]
    pub(in crate::owned) fn is_waiting(&self) -> bool {
        self.armed.is_some()
    }

    /// Whether it waits, and nobody reports it yet. Its event may have been dequeued.
    #[inline]
    pub(in crate::owned) fn is_armed(&self) -> bool {
        self.armed.is_some() && self.state == State::Enabled
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

    /// Put something in, and arm it beneath, or have it interrupted. If the port beneath refuses, it comes back.
    #[inline(always)]
    pub(in crate::owned) fn put<A, E>(
        &mut self,
        value: V,
        wish: &Wish,
        arm: impl FnOnce(Arming, bool) -> Result<A, E>,
    ) -> Result<Put<A>, (V, E)> {
        debug_assert!(self.armed.is_none(), "a connection is in one place");
        self.arming = self.arming.next();
        self.filter = wish.filter;
        // That was for the wait before.
        self.reasons.remove(Reasons::TIMED_OUT);
        self.reasons.set(Reasons::BUFFERED, wish.is_buffered);
        self.state = State::Enabled;
        if !self.reasons.is_empty() {
            self.armed = Some(value);
            return Ok(Put::Report(self.arming));
        }
        match arm(self.arming, wish.is_drained && !self.was_left) {
            Ok(left) => {
                self.armed = Some(value);
                let is_new = self.watched.replace(wish.filter) != Some(wish.filter);
                Ok(Put::Armed { left, is_new })
            }
            Err(error) => Err((value, error)),
        }
    }

    /// End the wait for this reason, or the next one. What this returns is armed: if nobody has dequeued its event, disable it
    /// beneath, and [report](Self::posted) it.
    pub(in crate::owned) fn interrupt(&mut self, reason: Reasons) -> Option<Arming> {
        if reason == Reasons::DRAINING && mem::replace(&mut self.has_drained, true) {
            return None;
        }
        self.reasons |= reason;
        self.is_armed().then_some(self.arming)
    }

    /// A packet was posted that reports it for a reason.
    pub(in crate::owned) fn posted(&mut self) {
        self.state = State::Posted;
    }

    /// A packet of this slot was dequeued, and is changed to what is taken. `holds`: whether any of these conditions holds now,
    /// or an error.
    pub(in crate::owned) fn look(
        &mut self,
        entry: &mut Entry,
        holds: impl FnOnce(EventFilter) -> bool,
    ) -> Seen {
        let (number, events) = match of_slot(entry) {
            Packet::Reported(arming, _) => {
                let is_reported = self.armed.is_some() && self.state != State::Enabled;
                if !is_reported || arming != self.arming {
                    return Seen::Nothing;
                }
                self.state = State::Dequeued;
                return Seen::Event;
            }
            Packet::Ready(arming, events) => (Some(arming), events),
            Packet::Unnumbered(events) => (None, events),
        };
        if !self.is_armed() {
            // Nothing older comes from a port that knows no armings.
            self.was_left &= number.is_some();
            return Seen::Nothing;
        }
        if number.is_some_and(|it| it != self.arming) || events.contains(Events::REMOVE) {
            return Seen::Nothing;
        }
        let may_be_old = mem::take(&mut self.was_left) && number.is_none();
        let mut shown = events & self.filter.wanted();
        // What else is out of date keeps nobody waiting.
        if may_be_old && shown.contains(Events::IN) && !holds(EventFilter::IN) {
            shown.remove(Events::IN);
        }
        if !self.reasons.is_empty() {
            shown = Events::empty();
        } else if shown.is_empty() {
            return self.arm_again();
        }
        // A reason that comes later waits for the next arming.
        self.state = State::Dequeued;
        *entry = Packet::Reported(self.arming, shown).of_slot(entry.completion_key);
        Seen::Event
    }

    /// Arm it once more, by a new number: what was armed by the one before was dequeued.
    fn arm_again(&mut self) -> Seen {
        self.arming = self.arming.next();
        Seen::Arm(self.arming, self.filter)
    }

    /// Take what a packet is for, with the reason that it is to be reported for, if it was interrupted.
    #[inline(always)]
    pub(in crate::owned) fn take(&mut self, entry: &Entry) -> Option<(V, Option<Reasons>)> {
        if entry.overlapped != overlapped(self.arming, self.state != State::Enabled) {
            return None;
        }
        let value = self.armed.take()?;
        // What was left was of an earlier arming.
        self.was_left = false;
        let mut reason = None;
        if entry.transferred == 0 {
            reason = self.reasons.take_first();
            self.leave();
        }
        Some((value, reason))
    }

    /// Take it, unless a thread has dequeued what reports it. `claim`: disable this arming beneath. False if its event was
    /// dequeued.
    pub(in crate::owned) fn take_out(&mut self, claim: impl FnOnce(Arming) -> bool) -> Option<V> {
        match self.is_armed() && !claim(self.arming) {
            true => None,
            false => self.take_back(),
        }
    }

    /// Take it, whatever becomes of its packets, unless a thread has looked.
    pub(in crate::owned) fn take_back(&mut self) -> Option<V> {
        if self.state == State::Dequeued {
            return None;
        }
        let value = self.armed.take()?;
        self.leave();
        Some(value)
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

    const DRAINED: Wish = Wish {
        is_drained: true,
        ..Wish::of(EventFilter::IN)
    };

    /// Nobody has dequeued its event.
    fn look(record: &mut Record<u8>, event: &mut Entry) -> Seen {
        record.look(event, |_| true)
    }

    /// The packet that is posted, if there is one.
    fn interrupt(record: &mut Record<u8>, reason: Reasons) -> Option<Entry> {
        let arming = record.interrupt(reason)?;
        record.posted();
        Some(Packet::Reported(arming, Events::empty()).of_slot(1))
    }

    fn armed(record: &mut Record<u8>) -> Arming {
        let mut number = Arming::default();
        let put = record.put(7, &Wish::of(EventFilter::IN), |arming, _| {
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
        assert_eq!(record.take_back(), Some(7));
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
        let mut event = interrupt(&mut record, Reasons::CANCELLED).expect("it is armed");
        // One packet is enough.
        assert!(interrupt(&mut record, Reasons::DRAINING).is_none());
        for reason in [Reasons::DRAINING, Reasons::CANCELLED] {
            assert_eq!(look(&mut record, &mut event), Seen::Event);
            assert_eq!(record.take(&event), Some((7, Some(reason))));
            if reason == Reasons::DRAINING {
                event = put_interrupted(&mut record);
            }
        }
        armed(&mut record);
    }

    fn put_interrupted(record: &mut Record<u8>) -> Entry {
        let put = record.put(7, &DRAINED, |_, _| Ok::<_, ()>(()));
        let Ok(Put::Report(arming)) = put else {
            panic!("{put:?}")
        };
        record.posted();
        Packet::Reported(arming, Events::empty()).of_slot(1)
    }

    #[test]
    fn a_connection_that_is_adopted_while_its_port_begins_to_drain_drains_once() {
        let mut record = Record::default();
        armed(&mut record);
        let mut event = interrupt(&mut record, Reasons::DRAINING).expect("it is armed");
        assert_eq!(look(&mut record, &mut event), Seen::Event);
        assert_eq!(record.take(&event), Some((7, Some(Reasons::DRAINING))));
        assert!(interrupt(&mut record, Reasons::DRAINING).is_none());
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
            // The port beneath says that it was dequeued.
            let to_claim = record.interrupt(Reasons::CANCELLED);
            assert_eq!(to_claim, (!is_looked_at).then_some(arming));
            assert_eq!(record.take(&event), Some((7, None)));
            let mut event = put_interrupted(&mut record);
            assert_eq!(look(&mut record, &mut event), Seen::Event);
            assert_eq!(record.take(&event), Some((7, Some(Reasons::CANCELLED))));
        }
    }

    #[test]
    fn what_is_interrupted_can_be_taken_out_until_that_is_dequeued() {
        for is_looked_at in [false, true] {
            let mut record = Record::default();
            armed(&mut record);
            let mut event = interrupt(&mut record, Reasons::CANCELLED).expect("it is armed");
            if is_looked_at {
                assert_eq!(look(&mut record, &mut event), Seen::Event);
            }
            let taken = record.take_out(|_| unreachable!("it is disabled"));
            assert_eq!(taken, (!is_looked_at).then_some(7));
            assert_eq!(record.take(&event).is_some(), is_looked_at);
        }
    }

    /// From a port that knows no armings, and so cannot disable them.
    #[test]
    fn what_is_dequeued_after_an_interruption_is_reported_for_that() {
        let mut record = Record::default();
        armed(&mut record);
        let mut event = interrupt(&mut record, Reasons::CANCELLED).expect("it is armed");
        let mut late = Entry::notification(1, Events::IN);
        assert_eq!(look(&mut record, &mut late), Seen::Nothing);
        assert_eq!(look(&mut record, &mut event), Seen::Event);
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
                record.take_back();
            } else {
                let mut event = Packet::Ready(arming, Events::IN).of_slot(1);
                assert_eq!(look(&mut record, &mut event), Seen::Event);
                record.take(&event);
            }
            let mut was_drained = None;
            let put = record.put(7, &DRAINED, |_, is_drained| {
                was_drained = Some(is_drained);
                Ok::<_, ()>(())
            });
            assert!(put.is_ok());
            assert_eq!(was_drained, Some(!is_left));
            record.take_any();
        }
    }
}
