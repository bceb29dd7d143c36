//! Time: when the wait of a connection ends, the timers that belong to none, and the packet that wakes a thread for both.
//!
//! A connection's deadline is in its slot. The [`Wheel`] reports the slot at that time or before. To
//! move a deadline back, as a server does with each request, does not touch the wheel.

use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use crate::owned::OperationId;
use crate::owned::slot::connections::{Connections, NEVER, drop_all};
use crate::owned::slot::packet::OfPort;
use crate::owned::slot::record::Reasons;
use crate::support::lock::lock;
use crate::support::slots::{Slots, Token, index_of};
use crate::support::wheel::Wheel;

/// Identifies a timer of a port. It is not reused before 2³¹ others were made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TimerId(pub(super) Token);

/// What to do when a timer is due.
pub(super) enum Action<M> {
    Send(M),
    /// To [`Call`](Self::Call) this once per period, next at this time.
    SendEvery(Arc<Make<M>>, Duration, Instant),
    /// Have a thread send what this makes, unless the timer is gone by then.
    Call(Weak<Make<M>>),
    EndDrain,
    /// Cancel an operation on a file.
    Expire(OperationId),
}

/// Makes a message for each period. It runs the caller's code: with no other lock.
pub(super) type Make<M> = Mutex<dyn FnMut() -> M + Send>;

pub(super) struct Clock<T, M> {
    connections: Arc<Connections<T>>,
    /// When time was 0.
    start: Instant,
    schedule: Mutex<Schedule>,
    /// Set, due and cancelled with the schedule locked: so that an index in its wheel is that of the present timer.
    timers: Slots<Option<Action<M>>>,
}

struct Schedule {
    deadlines: Wheel,
    /// The times of timers, by their own indices.
    timers: Wheel,
    /// Those whose time is over, while a thread handles them. Its memory is kept.
    over: Vec<u32>,
    /// When the port posts the next TIMER.
    alarm: u64,
}

impl<T, M> Clock<T, M> {
    pub(super) fn new(connections: &Arc<Connections<T>>) -> Self {
        Clock {
            connections: Arc::clone(connections),
            start: Instant::now(),
            schedule: Mutex::new(Schedule {
                deadlines: Wheel::new(),
                timers: Wheel::new(),
                over: Vec::new(),
                alarm: NEVER,
            }),
            timers: Slots::new(),
        }
    }

    /// The first tick that begins at or after this time. A tick is a millisecond.
    pub(super) fn ticks_until(&self, time: Instant) -> u64 {
        let time = time.saturating_duration_since(self.start);
        let rounded_up = time.saturating_add(Duration::from_nanos(999_999));
        rounded_up.as_millis().min(u128::from(NEVER - 1)) as u64
    }

    /// When a tick begins. `None` if the clock does not reach that.
    pub(super) fn time(&self, tick: u64) -> Option<Instant> {
        self.start.checked_add(Duration::from_millis(tick))
    }

    /// The tick that has begun.
    pub(super) fn now(&self) -> u64 {
        self.start.elapsed().as_millis() as u64
    }

    /// Have the wheel report a slot in time for its deadline.
    #[cold]
    pub(super) fn schedule(&self, key: usize) {
        let index = index_of(key);
        let mut schedule = lock(&self.schedule);
        // The deadline is the one that the slot has by now: another thread may have armed what is in it since this was due, and
        // have scheduled that.
        if let Some(mut place) = self.connections.slots.get_by_index(index) {
            if place.deadline < place.scheduled {
                place.scheduled = place.deadline;
                schedule.deadlines.set(index, place.deadline);
            }
        }
        self.set_alarm(&mut schedule);
    }

    /// Set a timer. Returns the action if the port is closed, or there is no room for one more.
    pub(super) fn set_timer(&self, time: Instant, action: Action<M>) -> Result<TimerId, Action<M>> {
        if self.connections.is_closed() {
            return Err(action);
        }
        let mut schedule = lock(&self.schedule);
        // Closing says so first, and then drops all timers.
        let timer = match self.connections.is_closed() {
            true => None,
            false => self.timers.insert_default(),
        };
        let Some((token, mut timer)) = timer else {
            return Err(action);
        };
        *timer = Some(action);
        drop(timer);
        schedule.timers.set(token.index, self.ticks_until(time));
        self.set_alarm(&mut schedule);
        Ok(TimerId(token))
    }

    /// False if it has ended, or the port is closed.
    pub(super) fn cancel_timer(&self, timer: TimerId) -> bool {
        if self.connections.is_closed() {
            return false;
        }
        let mut schedule = lock(&self.schedule);
        let cancelled = self.timers.remove(timer.0);
        if cancelled.is_some() {
            schedule.timers.unset(timer.0.index);
        }
        // To drop what it has may run the caller's code.
        drop(schedule);
        cancelled.is_some()
    }

    /// Drop all timers.
    pub(super) fn clear(&self) {
        let schedule = lock(&self.schedule);
        let tokens: Vec<_> = self.timers.iter_named().map(|(token, _)| token).collect();
        drop(schedule);
        drop_all(tokens.into_iter().map(|token| self.timers.remove(token)));
    }

    /// Make sure that a timer packet comes in time for what is next.
    fn set_alarm(&self, schedule: &mut Schedule) {
        let next = [schedule.deadlines.next(), schedule.timers.next()];
        let next = next.into_iter().flatten().min();
        let Some(next) = next.filter(|&next| next < schedule.alarm) else {
            return;
        };
        let time = Duration::from_millis(next).saturating_sub(self.start.elapsed());
        let connections = &*self.connections;
        let timer = OfPort::Timer.entry(&connections.slots);
        schedule.alarm = match connections.port.system().post_after(time, timer) {
            Ok(()) => next,
            // The one that was set may be gone, too. Whoever sets the next one tries again.
            Err(_) => NEVER,
        };
    }

    /// TIMER was dequeued: interrupt the waits of connections whose deadlines have passed. Returns what timers are due for.
    pub(super) fn ring(&self) -> Vec<Action<M>> {
        let now = self.now();
        let schedule = &mut *lock(&self.schedule);
        schedule.alarm = NEVER;
        let (mut over, mut due) = (std::mem::take(&mut schedule.over), Vec::new());
        schedule.deadlines.advance(now, |index| over.push(index));
        schedule.timers.advance(now, |index| due.push(index));
        for index in over.drain(..) {
            if let Some(at) = time_out(&self.connections, index, now) {
                schedule.deadlines.set(index, at);
            }
        }
        schedule.over = over;
        let due = due.into_iter().filter_map(|index| {
            let mut timer = self.timers.get_by_index(index)?;
            let Some(Action::SendEvery(make, period, time)) = &mut *timer else {
                return self.timers.vacate(index, timer);
            };
            // Missed times are skipped.
            let missed = time.elapsed().as_nanos() / period.as_nanos();
            let missed = u32::try_from(missed).unwrap_or(u32::MAX);
            *time = *time + period.saturating_mul(missed) + *period;
            schedule.timers.set(index, self.ticks_until(*time));
            // One that waits to be made, or is being made, stands for this one.
            (Arc::weak_count(make) == 0).then(|| Action::Call(Arc::downgrade(make)))
        });
        let due = due.collect();
        self.set_alarm(schedule);
        due
    }
}

/// Interrupt the wait of what a slot has if its deadline has passed. Returns when to try again.
fn time_out<T>(connections: &Connections<T>, index: u32, now: u64) -> Option<u64> {
    let mut place = connections.slots.get_by_index(index)?;
    // If its event was dequeued, it is scheduled when it is armed next.
    if !place.record.is_armed() {
        place.scheduled = NEVER;
        return None;
    }
    let key = connections.slots.key(place.token(index));
    let deadline = place.deadline;
    let at = if deadline > now {
        deadline
    } else if connections.interrupt(key, &mut place, Reasons::TIMED_OUT) {
        NEVER
    } else {
        // There was no memory for a packet. Try again after a time that doubles.
        now + (now - deadline).max(1)
    };
    place.scheduled = at;
    (at != NEVER).then_some(at)
}
