//! [`Limits`]: what a client may take.

use std::time::{Duration, Instant};

use crate::wire::after;

/// What a client may take of a [`Server`](crate::Server): bytes, time, and connections.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use socknotify_http::Limits;
///
/// let limits = Limits::default().body(64 << 20).idle(Duration::from_secs(15));
/// # let _ = limits;
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct Limits {
    pub(crate) head: usize,
    pub(crate) line: usize,
    pub(crate) body: u64,
    pub(crate) connections: usize,
    pub(crate) idle: Duration,
    pub(crate) head_time: Duration,
    pub(crate) body_time: Duration,
    pub(crate) body_rate: u64,
    pub(crate) answer_time: Duration,
    pub(crate) stall: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            head: 16 << 10,
            line: 8 << 10,
            body: 1 << 20,
            connections: 10_000,
            idle: Duration::from_secs(60),
            head_time: Duration::from_secs(10),
            body_time: Duration::from_secs(10),
            body_rate: 1 << 10,
            answer_time: Duration::from_secs(600),
            stall: Duration::from_secs(30),
        }
    }
}

impl Limits {
    /// The most bytes of a request's head: its first line and its headers. 16 KiB by default. A longer one is answered with 431.
    ///
    /// No request may have more than a hundred headers.
    pub const fn head(mut self, bytes: usize) -> Self {
        self.head = bytes;
        self
    }

    /// The most bytes of a request's first line: its method, its target and its version. 8 KiB by default. A longer one is answered
    /// with 414.
    pub const fn line(mut self, bytes: usize) -> Self {
        self.line = bytes;
        self
    }

    /// The most bytes of a request's body. 1 MiB by default. A longer one is answered with 413.
    ///
    /// Up to 64 KiB of a body are received before the handler is called, and no thread waits for them: a connection may take so much
    /// memory, and that of a [head](Self::head). There is no limit for all of them together: with the defaults, 10,000 clients that send
    /// slowly take 800 MB. Where that is too much, allow fewer [connections](Self::connections), or shorter bodies.
    ///
    /// With a limit of 64 KiB no client holds a thread by its body, but one that sends `Expect: 100-continue`, or chunks so small that
    /// they are 64 KiB with what is around them.
    pub const fn body(mut self, bytes: u64) -> Self {
        self.body = bytes;
        self
    }

    /// The most connections at once. 10,000 by default. Further ones wait in the listener's backlog.
    pub const fn connections(mut self, count: usize) -> Self {
        self.connections = count;
        self
    }

    /// How long a connection may wait between two requests. A minute by default. Then it is closed.
    pub const fn idle(mut self, time: Duration) -> Self {
        self.idle = time;
        self
    }

    /// How long the head of a request may take, from its first byte to its last one; with TLS, the handshake with it. Ten seconds by
    /// default. After that it is answered with 408. A new connection has this long until its first byte.
    pub const fn head_time(mut self, time: Duration) -> Self {
        self.head_time = time;
        self
    }

    /// How long the body of a request may take, and how many bytes of it give it a second more. Ten seconds, and 1 KiB, by
    /// default. A slower one is answered with 408. A handler that reads a long body waits for up to the time of a
    /// [stall](Self::stall) more.
    pub const fn body_time(mut self, time: Duration, bytes_a_second: u64) -> Self {
        self.body_time = time;
        self.body_rate = bytes_a_second;
        self
    }

    /// How long a client may take to receive an answer. Ten minutes by default. Then the connection is closed. It holds no thread
    /// meanwhile, but the answer's body: that of each client that is slow, without a limit for all of them.
    pub const fn answer_time(mut self, time: Duration) -> Self {
        self.answer_time = time;
        self
    }

    /// How long a client may send nothing of a body. Thirty seconds by default. One that takes nothing of an answer for so long is
    /// given up, and its connection reset. One that takes a little is not, where the system tells, as with
    /// [`Limited`](socknotify::owned::Limited).
    pub const fn stall(mut self, time: Duration) -> Self {
        self.stall = time;
        self
    }

    /// When a body is to be there that began then, and of which so many bytes were received.
    pub(crate) fn body_end(&self, begun: Instant, received: u64) -> Instant {
        let earned = Duration::from_secs(received / self.body_rate.max(1));
        after(begun, self.body_time.saturating_add(earned))
    }
}
