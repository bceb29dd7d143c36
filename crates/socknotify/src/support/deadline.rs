//! When a wait ends, by one reading of the clock for each call that waits.

use std::time::{Duration, Instant};

/// When a wait ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    timeout: Option<Duration>,
    /// When the wait began, if it is one with an end.
    began: Option<Instant>,
    /// Whether somebody has asked how much time is left.
    is_asked: bool,
}

/// Of a wait that begins now; `None`: for ever. One that is over at once reads no clock.
impl From<Option<Duration>> for Deadline {
    #[inline]
    fn from(timeout: Option<Duration>) -> Self {
        let waits = timeout.is_some_and(|timeout| !timeout.is_zero());
        Deadline {
            timeout,
            began: waits.then(Instant::now),
            is_asked: false,
        }
    }
}

impl Deadline {
    /// When the wait began, or now.
    #[inline]
    pub(crate) fn began(&self) -> Instant {
        self.began.unwrap_or_else(Instant::now)
    }

    /// The time left to wait; `None` for ever. Who asks first is told all of it.
    #[inline]
    pub(crate) fn remaining(&mut self) -> Option<Duration> {
        let timeout = self.timeout?;
        if cfg!(interleavings) {
            // The model checker knows no time: half of it is over whenever somebody asks.
            self.timeout = Some(timeout / 2);
            return Some(timeout);
        }
        let is_asked = std::mem::replace(&mut self.is_asked, true);
        let began = self.began.filter(|_| is_asked);
        let passed = began.map_or(Duration::ZERO, |began| began.elapsed());
        Some(timeout.saturating_sub(passed))
    }

    /// A wait of the time that is left.
    pub(crate) fn rest(mut self) -> Self {
        self.is_asked = true;
        self.remaining().into()
    }

    #[inline]
    pub(crate) fn has_passed(&mut self) -> bool {
        self.remaining() == Some(Duration::ZERO)
    }
}
