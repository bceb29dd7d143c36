//! `EVFILT_TIMER`: the two timers of a port.

use std::time::Duration;

use super::sys::{Errno, Event, Filter, Queue, flags};

const ALARM: u32 = 1;
const TICK: u32 = 2;

/// How often to poll what the kernel does not report.
const INTERVAL: Duration = Duration::from_millis(10);

/// Set the alarm. The latest call replaces earlier ones.
pub(super) fn set_alarm(queue: &Queue, delay: Duration) -> Result<(), Errno> {
    set(queue, ALARM, Some(delay), flags::ONESHOT)
}

pub(super) fn tick(queue: &Queue) -> Result<(), Errno> {
    set(queue, TICK, Some(INTERVAL), 0)
}

pub(super) fn stop_ticking(queue: &Queue) {
    // It cannot fail to delete what is there, or not.
    let _ = set(queue, TICK, None, 0);
}

/// Whether the event of a timer is the alarm's, and not a tick.
pub(super) fn is_alarm(event: &Event) -> bool {
    event.ident() == ALARM
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
