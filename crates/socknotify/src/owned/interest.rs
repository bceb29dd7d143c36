//! [`Interest`]: what a connection waits for.

use std::ops::BitOr;
use std::time::{Duration, Instant};

use super::{Held, Source, Worker};
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
/// // Either of the two, until a deadline that other waits of this connection share.
/// let end = Instant::now() + Duration::from_secs(5);
/// let _ = (Interest::IN | Interest::OUT).until(end);
/// // Only the deadline, or an error of the socket.
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
    #[doc(alias = "READ")]
    #[doc(alias = "READABLE")]
    #[doc(alias = "EPOLLIN")]
    pub const IN: Self = Self::of(EventFilter::IN);
    /// Until a send would not block.
    #[doc(alias = "WRITE")]
    #[doc(alias = "WRITABLE")]
    #[doc(alias = "EPOLLOUT")]
    pub const OUT: Self = Self::of(EventFilter::OUT);
    /// Until the peer has disconnected, or the connection was aborted. Combine it with IN: there may be data left to
    /// read.
    #[doc(alias = "EPOLLRDHUP")]
    pub const HANGUP: Self = Self::of(EventFilter::HANGUP);
    /// For no condition: until the deadline passes, the connection is cancelled, or its socket is in an
    /// error state.
    pub const NOTHING: Self = Self::of(EventFilter::NONE);

    pub(crate) const fn of(filter: EventFilter) -> Self {
        Interest {
            filter,
            end: End::Never,
        }
    }

    /// Adds a deadline: if no condition holds by then, the port reports
    /// [`Event::TimedOut`](super::Event::TimedOut), up to some milliseconds later and never earlier.
    ///
    /// If the deadline has passed already, it does so at once, unless a condition holds.
    pub const fn until(self, deadline: Instant) -> Self {
        Interest {
            end: End::At(deadline),
            ..self
        }
    }

    /// Adds a deadline this long after arming. If it is too long to be represented, there is no deadline.
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

impl<T: Source, M> Worker<T, M> {
    /// As [`arm`](Self::arm), for an interest that depends on the connection.
    ///
    /// In `worker.arm(client, Interest::IN.until(client.deadline))` the connection has moved before its deadline is
    /// read, which Rust refuses.
    ///
    /// # Panics
    ///
    /// As [`arm`](Self::arm).
    ///
    /// # Examples
    ///
    /// ```
    /// use std::net::TcpStream;
    /// use std::time::Instant;
    /// use socknotify::owned::{BorrowedSocket, Held, Interest, Source, Worker};
    ///
    /// struct Client {
    ///     stream: TcpStream,
    ///     deadline: Instant,
    /// }
    ///
    /// impl Source for Client {
    ///     fn socket(&self) -> BorrowedSocket<'_> {
    ///         self.stream.socket()
    ///     }
    /// }
    ///
    /// fn wait(worker: &mut Worker<Client>, client: Held<Client>) {
    ///     worker.arm_with(client, |client| Interest::IN.until(client.deadline));
    /// }
    /// ```
    #[track_caller]
    pub fn arm_with(&mut self, connection: Held<T>, interest: impl FnOnce(&T) -> Interest) {
        let interest = interest(&connection);
        self.arm(connection, interest);
    }
}

/// Until a condition of either holds.
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
