//! One timer for the two things that a port waits for by the clock.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::sys::{self, Errno};
use crate::lock::lock;

/// How often to poll what the kernel does not report.
const TICK: Duration = Duration::from_millis(10);

/// A timer for an alarm, and for ticks.
pub(super) struct Timer {
    fd: OwnedFd,
    setting: Mutex<Setting>,
}

#[derive(Debug, Default)]
struct Setting {
    alarm: Option<Instant>,
    ticks: bool,
}

impl Timer {
    pub(super) fn new() -> Result<Self, Errno> {
        Ok(Timer {
            fd: sys::timerfd()?,
            setting: Mutex::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Setting> {
        lock(&self.setting)
    }

    /// Set the alarm. The latest time counts; one too far away to be represented does not come.
    pub(super) fn set_alarm(&self, delay: Duration) -> Result<(), Errno> {
        let mut setting = self.lock();
        setting.alarm = Instant::now().checked_add(delay);
        self.set(&setting)
    }

    /// Begin to tick.
    pub(super) fn tick(&self) {
        let mut setting = self.lock();
        setting.ticks = true;
        // The arguments are good: it cannot fail.
        let _ = self.set(&setting);
    }

    /// Tick no longer, from the next time on.
    pub(super) fn stop_ticking(&self) {
        self.lock().ticks = false;
    }

    /// A time is over. True if it is the alarm's.
    pub(super) fn is_over(&self) -> bool {
        let mut setting = self.lock();
        let is_over = setting.alarm.is_some_and(|alarm| alarm <= Instant::now());
        if is_over {
            setting.alarm = None;
        }
        // As above.
        let _ = self.set(&setting);
        is_over
    }

    /// What was reported of the time that is set may be lost.
    pub(super) fn renew(&self) {
        let _ = self.set(&self.lock());
    }

    fn set(&self, setting: &Setting) -> Result<(), Errno> {
        let alarm = setting
            .alarm
            .map(|alarm| alarm.saturating_duration_since(Instant::now()));
        let tick = setting.ticks.then_some(TICK);
        sys::set_timer(&self.fd, alarm.into_iter().chain(tick).min())
    }
}

impl AsFd for Timer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
