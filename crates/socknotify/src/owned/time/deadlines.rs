//! Deadlines: when the wait of a connection ends, and the packet that wakes a thread for it.
//!
//! A connection's deadline is in its slot. The [`Wheel`] reports the slot at that time or before. To
//! move a deadline back, as a server does with each request, does not touch the wheel.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::owned::slot::connections::{Connections, NEVER};
use crate::owned::slot::packet::Packet;
use crate::owned::slot::record::Reasons;
use crate::support::lock::lock;
use crate::support::slots::index_of;
use crate::support::wheel::Wheel;

pub(in crate::owned) struct Deadlines {
    /// When time was 0.
    start: Instant,
    schedule: Mutex<Schedule>,
}

struct Schedule {
    wheel: Wheel,
    /// The times of timers, by their own indices.
    timers: Wheel,
    /// When the port posts the next TIMER.
    alarm: u64,
    /// Memory for the slots whose time has passed.
    over: Vec<u32>,
}

/// Ticks in a second. Deadlines are met to a tick or two.
const TICKS: u32 = 1000;

impl Deadlines {
    pub(in crate::owned) fn new() -> Self {
        Deadlines {
            start: Instant::now(),
            schedule: Mutex::new(Schedule {
                wheel: Wheel::new(),
                timers: Wheel::new(),
                alarm: NEVER,
                over: Vec::new(),
            }),
        }
    }

    /// The first tick that begins at or after this time.
    pub(in crate::owned) fn ticks_until(&self, time: Instant) -> u64 {
        const NANOSECONDS: u32 = 1_000_000_000 / TICKS;
        let time = time.saturating_duration_since(self.start);
        let parts = time.subsec_nanos().div_ceil(NANOSECONDS);
        let ticks = time.as_secs().saturating_mul(TICKS.into());
        ticks.saturating_add(parts.into()).min(NEVER - 1)
    }

    /// When a tick begins. `None` if the clock does not reach that.
    pub(in crate::owned) fn time(&self, tick: u64) -> Option<Instant> {
        self.start.checked_add(Duration::from_millis(tick))
    }

    /// The tick that has begun.
    pub(in crate::owned) fn now(&self) -> u64 {
        self.start.elapsed().as_millis() as u64
    }

    /// Have the wheel report a slot in time for its deadline.
    #[cold]
    pub(in crate::owned) fn schedule<T>(&self, connections: &Connections<T>, key: usize) {
        let index = index_of(key);
        let mut schedule = lock(&self.schedule);
        // The deadline is the one that the slot has by now: another thread may have armed what is in it since this was due, and
        // have scheduled that.
        if let Some(mut place) = connections.slots.get_by_index(index) {
            if place.deadline < place.scheduled {
                place.scheduled = place.deadline;
                schedule.wheel.set(index, place.deadline);
            }
        }
        self.set_alarm(connections, &mut schedule);
    }

    /// Set the time of a timer.
    pub(in crate::owned) fn set_timer<T>(&self, connections: &Connections<T>, index: u32, at: u64) {
        let mut schedule = lock(&self.schedule);
        schedule.timers.set(index, at);
        self.set_alarm(connections, &mut schedule);
    }

    pub(in crate::owned) fn unset_timer(&self, index: u32) {
        lock(&self.schedule).timers.unset(index);
    }

    /// Make sure that a timer packet comes in time for the next deadline.
    fn set_alarm<T>(&self, connections: &Connections<T>, schedule: &mut Schedule) {
        let next = [schedule.wheel.next(), schedule.timers.next()];
        let next = next.into_iter().flatten().min();
        let Some(next) = next.filter(|&next| next < schedule.alarm) else {
            return;
        };
        let time = Duration::from_millis(next).saturating_sub(self.start.elapsed());
        let timer = Packet::Timer.entry(&connections.slots);
        schedule.alarm = match connections.port.system().post_after(time, timer) {
            Ok(()) => next,
            // The one that was set may be gone, too. Whoever sets the next one tries again.
            Err(_) => NEVER,
        };
    }

    /// TIMER was dequeued: interrupt the waits of connections whose deadlines have passed. Returns the timers
    /// that are due.
    pub(in crate::owned) fn expire<T>(&self, connections: &Connections<T>) -> Vec<u32> {
        let now = self.now();
        let mut schedule = lock(&self.schedule);
        schedule.alarm = NEVER;
        let mut over = std::mem::take(&mut schedule.over);
        schedule.wheel.advance(now, |index| over.push(index));
        for index in over.drain(..) {
            if let Some(at) = time_out(connections, index, now) {
                schedule.wheel.set(index, at);
            }
        }
        schedule.over = over;
        let mut due = Vec::new();
        schedule.timers.advance(now, |index| due.push(index));
        self.set_alarm(connections, &mut schedule);
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
