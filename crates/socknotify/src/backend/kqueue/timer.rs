//! `EVFILT_TIMER`: the two timers of a port.

use std::time::Duration;

use super::sys::{Errno, Event, Filter, Queue, flags};

/// The alarm, which goes off once.
pub(super) const ALARM: u32 = 1;

/// What the kernel does not report is polled at each tick.
pub(super) const TICK: u32 = 2;

/// Set a timer again, or delete it. Not every system can change the time of an existing one.
pub(super) fn set(queue: &Queue, timer: u32, time: Option<Duration>) -> Result<(), Errno> {
    let flag = if timer == ALARM { flags::ONESHOT } else { 0 };
    let change = |flags| Event::new(timer, Filter::Timer, flags, 0);
    match queue.change(&[change(flags::DELETE)]) {
        Ok(()) | Err(libc::ENOENT) => {}
        Err(error) => return Err(error),
    }
    match time {
        Some(time) => queue.change(&[change(flags::ADD | flag).after(time)]),
        None => Ok(()),
    }
}
