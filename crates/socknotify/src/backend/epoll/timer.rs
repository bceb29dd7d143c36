//! The alarm: one timer in the set.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::sys::{self, Errno};
use crate::lock::lock;

pub(super) struct Timer {
    fd: OwnedFd,
    alarm: Mutex<Option<Instant>>,
}

impl Timer {
    pub(super) fn new() -> Result<Self, Errno> {
        Ok(Timer {
            fd: sys::timerfd()?,
            alarm: Mutex::default(),
        })
    }

    /// Set the alarm. The latest time counts; one too far away to be represented does not come.
    pub(super) fn set(&self, delay: Duration) -> Result<(), Errno> {
        let mut alarm = lock(&self.alarm);
        *alarm = Instant::now().checked_add(delay);
        sys::set_timer(&self.fd, alarm.map(|_| delay))
    }

    /// The timer was reported. False if another time was set meanwhile.
    pub(super) fn is_over(&self) -> bool {
        let mut alarm = lock(&self.alarm);
        alarm.take_if(|alarm| *alarm <= Instant::now()).is_some()
    }
}

impl AsFd for Timer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
