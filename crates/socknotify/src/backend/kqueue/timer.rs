//! The two timers of a port: `EVFILT_TIMER`.

use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::sys::{Errno, Event, Filter, Queue, flags};
use crate::lock::lock;

const ALARM: u32 = 1;
const TICK: u32 = 2;

/// How often to poll what the kernel does not report.
const INTERVAL: Duration = Duration::from_millis(10);

/// What a timer's event means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Time {
    /// The alarm has gone off.
    Alarm,
    Tick,
    /// Nothing: the alarm was set to another time meanwhile.
    Early,
}

/// An alarm, and ticks.
#[derive(Default)]
pub(super) struct Timer {
    alarm: Mutex<Option<Instant>>,
}

impl Timer {
    fn lock(&self) -> MutexGuard<'_, Option<Instant>> {
        lock(&self.alarm)
    }

    /// Set the alarm. The latest call replaces earlier ones; a time too far away to be represented never comes.
    pub(super) fn set_alarm(&self, queue: &Queue, delay: Duration) -> Result<(), Errno> {
        let mut alarm = self.lock();
        *alarm = Instant::now().checked_add(delay);
        set(queue, ALARM, alarm.map(|_| delay), flags::ONESHOT)
    }

    pub(super) fn tick(&self, queue: &Queue) -> Result<(), Errno> {
        set(queue, TICK, Some(INTERVAL), 0)
    }

    pub(super) fn stop_ticking(&self, queue: &Queue) {
        // It cannot fail to delete what is there, or not.
        let _ = set(queue, TICK, None, 0);
    }

    /// What the event of a timer means.
    pub(super) fn read(&self, queue: &Queue, event: &Event) -> Time {
        if event.ident() == TICK {
            return Time::Tick;
        }
        let mut alarm = self.lock();
        let Some(end) = *alarm else {
            return Time::Early;
        };
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            *alarm = None;
            return Time::Alarm;
        }
        // If it cannot be set, there is no memory for it; the next alarm tries again.
        let _ = set(queue, ALARM, Some(left), flags::ONESHOT);
        Time::Early
    }
}

/// Set a timer again, or delete it. Not every system can change the time of an existing one.
fn set(queue: &Queue, ident: u32, time: Option<Duration>, flag: u32) -> Result<(), Errno> {
    let change = |flags| Event::new(ident, Filter::Timer, flags, 0);
    match queue.change(&[change(flags::DELETE)]) {
        Ok(()) | Err(libc::ENOENT) => {}
        Err(error) => return Err(error),
    }
    match time {
        Some(time) => queue.change(&[change(flags::ADD | flag).after(time)]),
        None => Ok(()),
    }
}
