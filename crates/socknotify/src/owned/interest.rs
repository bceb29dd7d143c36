//! [`Interest`]: what a connection waits for.

use std::time::{Duration, Instant};

use crate::EventFilter;

/// What a connection waits for in the port, and until when.
///
/// # Examples
///
/// ```
/// use std::time::{Duration, Instant};
/// use socknotify::EventFilter;
/// use socknotify::owned::Interest;
///
/// // A request, within half a minute.
/// let _ = Interest::IN.within(Duration::from_secs(30));
/// // Whatever comes first, and no longer than another wait of this connection may have lasted.
/// let end = Instant::now() + Duration::from_secs(5);
/// let _ = Interest::from(EventFilter::IN | EventFilter::OUT).until(end);
/// // Nothing but the time to pass, or an error of the socket.
/// let _ = Interest::NOTHING.within(Duration::from_millis(50));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Interest {
    pub(super) filter: EventFilter,
    pub(super) deadline: Option<Instant>,
}

impl Interest {
    /// Until a receive would not block.
    pub const IN: Self = Self::of(EventFilter::IN);
    /// Until a send would not block.
    pub const OUT: Self = Self::of(EventFilter::OUT);
    /// For no condition: until the deadline passes, the connection is cancelled, or its socket is in an
    /// error state.
    pub const NOTHING: Self = Self::of(EventFilter::NONE);

    const fn of(filter: EventFilter) -> Self {
        Interest {
            filter,
            deadline: None,
        }
    }

    /// With a deadline: if nothing has come by then, the port reports
    /// [`Event::TimedOut`](super::Event::TimedOut).
    ///
    /// It does so up to some milliseconds later, and never earlier. A time that has passed already
    /// leads to that at once, unless a condition holds.
    pub fn until(self, deadline: Instant) -> Self {
        Interest {
            deadline: Some(deadline),
            ..self
        }
    }

    /// With a deadline so long from now. A time too long to be represented is none.
    pub fn within(self, time: Duration) -> Self {
        Interest {
            deadline: Instant::now().checked_add(time),
            ..self
        }
    }
}

impl From<EventFilter> for Interest {
    fn from(filter: EventFilter) -> Self {
        Self::of(filter)
    }
}
