//! [`Interest`]: what a connection waits for.

use std::ops::BitOr;
use std::time::{Duration, Instant};

use crate::EventFilter;

/// What a connection waits for in the port, and until when.
///
/// # Examples
///
/// ```
/// use std::time::{Duration, Instant};
/// use socknotify::owned::Interest;
///
/// // A request, within half a minute.
/// let _ = Interest::IN.within(Duration::from_secs(30));
/// // Whatever comes first, and no longer than another wait of this connection may have lasted.
/// let end = Instant::now() + Duration::from_secs(5);
/// let _ = (Interest::IN | Interest::OUT).until(end);
/// // Nothing but the time to pass, or an error of the socket.
/// let _ = Interest::NOTHING.within(Duration::from_millis(50));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Interest {
    pub(super) filter: EventFilter,
    end: End,
}

/// When a wait ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Never,
    At(Instant),
    /// So long after it was armed.
    After(Duration),
}

impl Interest {
    /// Until a receive would not block.
    pub const IN: Self = Self::of(EventFilter::IN);
    /// Until a send would not block.
    pub const OUT: Self = Self::of(EventFilter::OUT);
    /// Until the peer has disconnected, or the connection was aborted. Mostly beside another: data may be
    /// there to read still.
    pub const HANGUP: Self = Self::of(EventFilter::HANGUP);
    /// For no condition: until the deadline passes, the connection is cancelled, or its socket is in an
    /// error state.
    pub const NOTHING: Self = Self::of(EventFilter::NONE);

    const fn of(filter: EventFilter) -> Self {
        Interest {
            filter,
            end: End::Never,
        }
    }

    /// With a deadline: if nothing has come by then, the port reports
    /// [`Event::TimedOut`](super::Event::TimedOut).
    ///
    /// It does so up to some milliseconds later, and never earlier. A time that has passed already
    /// leads to that at once, unless a condition holds.
    pub const fn until(self, deadline: Instant) -> Self {
        Interest {
            end: End::At(deadline),
            ..self
        }
    }

    /// With a deadline so long after it is armed. A time too long to be represented is none.
    pub const fn within(self, time: Duration) -> Self {
        Interest {
            end: End::After(time),
            ..self
        }
    }

    /// The deadline of what is armed now.
    #[inline]
    pub(super) fn deadline(self) -> Option<Instant> {
        match self.end {
            End::Never => None,
            End::At(deadline) => Some(deadline),
            End::After(time) => Instant::now().checked_add(time),
        }
    }
}

impl From<EventFilter> for Interest {
    fn from(filter: EventFilter) -> Self {
        Self::of(filter)
    }
}

/// Until a condition of either holds, and no longer than either waits.
///
/// Of two deadlines of one kind, [`within`](Interest::within) or [`until`](Interest::until), the earlier one
/// counts; of two kinds, the one on the right.
impl BitOr for Interest {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        let end = match (self.end, other.end) {
            (end, End::Never) => end,
            (End::At(one), End::At(two)) => End::At(one.min(two)),
            (End::After(one), End::After(two)) => End::After(one.min(two)),
            (_, end) => end,
        };
        Interest {
            filter: self.filter | other.filter,
            end,
        }
    }
}
