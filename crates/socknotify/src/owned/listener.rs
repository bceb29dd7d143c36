//! [`Listen`], [`Listening`], and what a port knows of a listener.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use socket2::SockRef;

use super::{Interest, Source};
use crate::sys::{self, OwnedSocket};
use crate::system::{PendingAccepts, SystemPort};
use crate::{Entry, EventFilter};

/// How long a listener pauses when the system is out of descriptors or memory.
const PAUSE: Duration = Duration::from_millis(50);

/// That many errors in a row are not those of single connections, whatever they say: a filter of system calls may refuse them
/// all, and leave the connections where they are.
const MAX_FAILED: usize = 1024;

/// How many times a listener that is to be closed tries to accept what waits: for about a second.
const LAST_TRIES: usize = 20;

/// The maximum number of connections that the system accepts in advance.
const MAX_PENDING_ACCEPTS: usize = 16;

/// What a port can [listen](super::Port::listen) with.
pub trait Listen: Source + Send + Sync + 'static {
    /// A connection.
    type Stream: Source;
    /// The peer's address.
    type Address;

    /// Accepts a connection, in non-blocking mode.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::WouldBlock`] if no connection waits; otherwise the system's.
    #[doc(alias = "accept4")]
    fn accept_next(&self) -> io::Result<(Self::Stream, Self::Address)>;

    /// Makes [`accept_next`](Self::accept_next) non-blocking.
    ///
    /// # Errors
    ///
    /// The system's.
    fn prepare(&self) -> io::Result<()>;

    /// Makes the result of [`accept_next`](Self::accept_next) from a socket that the system has accepted.
    ///
    /// With this, Windows accepts connections in advance, with `AcceptEx`. Without it, and on other systems, the port
    /// watches the listener and calls `accept_next`.
    const ACCEPTED: Option<Accepted<Self::Stream, Self::Address>> = None;
}

/// Makes a connection and its address from an accepted socket: see [`Listen::ACCEPTED`].
pub type Accepted<Stream, Address> = fn(OwnedSocket) -> io::Result<(Stream, Address)>;

impl Listen for TcpListener {
    type Stream = TcpStream;
    type Address = SocketAddr;

    const ACCEPTED: Option<Accepted<TcpStream, SocketAddr>> = Some(|socket| {
        let stream = TcpStream::from(socket);
        stream.set_nonblocking(true)?;
        let address = stream.peer_addr()?;
        Ok((stream, address))
    });

    fn accept_next(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let (stream, address) = self.accept()?;
        stream.set_nonblocking(true)?;
        Ok((stream, address))
    }

    fn prepare(&self) -> io::Result<()> {
        self.set_nonblocking(true)
    }
}

#[cfg(unix)]
impl Listen for std::os::unix::net::UnixListener {
    type Stream = std::os::unix::net::UnixStream;
    type Address = std::os::unix::net::SocketAddr;

    fn accept_next(&self) -> io::Result<(Self::Stream, Self::Address)> {
        let (stream, address) = self.accept()?;
        stream.set_nonblocking(true)?;
        Ok((stream, address))
    }

    fn prepare(&self) -> io::Result<()> {
        self.set_nonblocking(true)
    }
}

/// What a listener does with the connections that it accepts.
///
/// An [`Interest`] converts into one: each connection is armed for it.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use socknotify::owned::{Interest, Listening};
///
/// // Each is armed for its first request, with a deadline; at most 10,000 connections.
/// let _ = Listening::arming(Interest::IN.within(Duration::from_secs(10))).at_most(10_000);
/// // Each is reported before it is armed.
/// let _ = Listening::reporting();
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct Listening {
    interest: Option<Interest>,
    pub(super) batch: usize,
    pub(super) limit: usize,
    blocking: Option<Duration>,
}

impl Listening {
    /// Each connection is armed for this at once, and reported when it is ready.
    pub const fn arming(interest: Interest) -> Self {
        Listening {
            interest: Some(interest),
            ..Self::reporting()
        }
    }

    /// Each connection is reported as [`Event::Accepted`](super::Event::Accepted), and not armed.
    pub const fn reporting() -> Self {
        Listening {
            interest: None,
            batch: 16,
            limit: usize::MAX,
            blocking: None,
        }
    }

    /// The maximum number of connections to accept before others are served: 16 by default.
    pub const fn batch(self, connections: usize) -> Self {
        let batch = if connections == 0 { 1 } else { connections };
        Listening { batch, ..self }
    }

    /// Connections are in blocking mode, in place of non-blocking mode: a read waits for data, and a write for room,
    /// up to this time each. Then it fails, with [`io::ErrorKind::WouldBlock`] or [`io::ErrorKind::TimedOut`]. The
    /// shortest time is a millisecond.
    ///
    /// So a handler can be plain [`Read`](io::Read) and [`Write`](io::Write) code: `read_exact`, `write_all`, a
    /// TLS stream. A peer that sends or receives nothing holds its thread for this time at most; one that does so a little
    /// at a time may hold it for longer. Have as [many threads](super::Port::serve) as such peers may hold at once.
    ///
    /// A system may let a writer wait until a third of a send buffer of megabytes is free. So a write can fail though its peer
    /// reads, if it reads very slowly.
    ///
    /// [`Limited`](super::Limited) is without these two limits, in non-blocking mode.
    #[doc(alias = "SO_RCVTIMEO")]
    #[doc(alias = "SO_SNDTIMEO")]
    pub const fn blocking_mode(self, most: Duration) -> Self {
        Listening {
            blocking: Some(most),
            ..self
        }
    }

    /// Pause while the port has this many connections of any kind. New ones wait in the listener's backlog.
    #[doc(alias = "backlog")]
    pub const fn at_most(self, connections: usize) -> Self {
        Listening {
            limit: connections,
            ..self
        }
    }
}

impl From<Interest> for Listening {
    fn from(interest: Interest) -> Self {
        Self::arming(interest)
    }
}

/// A listener and what to do with its connections, independent of their types.
trait Accept<T>: Send + Sync {
    /// Accept a connection. Once there is one, `accepted` is called, and then the caller's function.
    fn accept(&self, blocking: Option<Duration>, accepted: &mut dyn FnMut()) -> io::Result<T>;

    /// Have the system accept this many connections in advance, if it can. They complete on the port under this key.
    fn begin(&self, port: &SystemPort, key: usize, depth: usize);

    /// The system's accepts in advance, if it supports them.
    fn pending_accepts(&self) -> Option<&PendingAccepts>;

    /// Have the system accept no more in advance. What it has accepted comes before what waits in the backlog.
    fn end(&self);
}

struct With<L, F> {
    // They are dropped in this order: accepts end before their listener.
    pending: OnceLock<PendingAccepts>,
    listener: L,
    make: F,
    /// Nothing is accepted in advance any more.
    has_ended: AtomicBool,
}

impl<T, L: Listen, F> Accept<T> for With<L, F>
where
    F: Fn(L::Stream, L::Address) -> T + Send + Sync,
{
    fn accept(&self, blocking: Option<Duration>, accepted: &mut dyn FnMut()) -> io::Result<T> {
        let (stream, address) = match (L::ACCEPTED, self.pending.get()) {
            (Some(make), Some(pending)) => match pending.take() {
                Err(error) if is_none(&error) && self.has_ended.load(Ordering::SeqCst) => {
                    self.listener.accept_next()?
                }
                taken => make(taken?)?,
            },
            _ => self.listener.accept_next()?,
        };
        if let Some(most) = blocking {
            let socket = stream.socket();
            let socket = SockRef::from(&socket);
            let most = Some(most.max(Duration::from_millis(1)));
            let set = socket
                .set_nonblocking(false)
                .and_then(|()| socket.set_read_timeout(most))
                .and_then(|()| socket.set_write_timeout(most));
            // Some systems refuse that when the peer has gone.
            set.map_err(|_| io::ErrorKind::ConnectionAborted)?;
        }
        accepted();
        Ok((self.make)(stream, address))
    }

    fn begin(&self, port: &SystemPort, key: usize, depth: usize) {
        if L::ACCEPTED.is_some() {
            // If that is not possible, the listener is watched.
            if let Ok(pending) = PendingAccepts::new(port, self.listener.socket(), key, depth) {
                let _ = self.pending.set(pending);
            }
        }
    }

    fn pending_accepts(&self) -> Option<&PendingAccepts> {
        self.pending.get()
    }

    fn end(&self) {
        if let Some(pending) = self.pending.get() {
            pending.end();
            self.has_ended.store(true, Ordering::SeqCst);
        }
    }
}

/// Whether this error of accepting says that no connection waits.
pub(super) fn is_none(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}

/// A listener of a port.
pub(super) struct Listener<T> {
    pub(super) listening: Listening,
    accepts: Box<dyn Accept<T>>,
    /// It cannot accept, and that was reported.
    has_stopped: AtomicBool,
    /// It pauses until the port has fewer connections.
    is_full: AtomicBool,
    /// Connections that have failed one after the other.
    failed: AtomicUsize,
    /// How many times it was [about to be closed](Self::end).
    ends: AtomicUsize,
}

/// The result of accepting a batch.
#[derive(Debug)]
pub(super) struct Round {
    /// What to arm it for.
    pub(super) filter: EventFilter,
    pub(super) until: Option<Instant>,
    /// None was left.
    pub(super) is_drained: bool,
    /// The listener can accept: one was accepted, or none was left.
    pub(super) accepts: bool,
    /// Why it pauses.
    pub(super) error: Option<io::Error>,
}

impl Round {
    /// Pause, for this reason.
    pub(super) fn pause(&mut self, error: io::Error) {
        self.filter = EventFilter::NONE;
        self.until = Instant::now().checked_add(PAUSE);
        self.error = Some(error);
    }
}

impl<T> Listener<T> {
    pub(super) fn new<L: Listen>(
        listener: L,
        listening: Listening,
        make: impl Fn(L::Stream, L::Address) -> T + Send + Sync + 'static,
    ) -> Self {
        let pending = OnceLock::new();
        Listener {
            listening,
            accepts: Box::new(With {
                pending,
                listener,
                make,
                has_ended: AtomicBool::new(false),
            }),
            has_stopped: AtomicBool::new(false),
            is_full: AtomicBool::new(false),
            failed: AtomicUsize::new(0),
            ends: AtomicUsize::new(0),
        }
    }

    /// Accept a connection. Once there is one, `accepted` is called, and then the caller's function.
    pub(super) fn accept(&self, mut accepted: impl FnMut()) -> io::Result<T> {
        let mut accepted = || {
            self.failed.store(0, Ordering::Relaxed);
            accepted();
        };
        self.accepts.accept(self.listening.blocking, &mut accepted)
    }

    /// Whether this error is that of one connection, and the next one may be accepted.
    pub(super) fn goes_on_after(&self, error: &io::Error) -> bool {
        use io::ErrorKind::*;
        match error.kind() {
            // Its peer has closed it before it was accepted.
            ConnectionAborted | ConnectionReset | NotConnected | Interrupted => true,
            kind => {
                let is_of_one = matches!(
                    kind,
                    PermissionDenied
                        | TimedOut
                        | HostUnreachable
                        | NetworkUnreachable
                        | NetworkDown
                );
                (is_of_one || sys::is_of_one_connection(error))
                    && self.failed.fetch_add(1, Ordering::Relaxed) < MAX_FAILED
            }
        }
    }

    /// After a batch: whether the listener has stopped accepting, or accepts again. `None` if that was so before.
    pub(super) fn change(&self, round: &Round) -> Option<bool> {
        let has_stopped = match (&round.error, round.accepts) {
            (Some(_), _) => true,
            (None, true) => false,
            (None, false) => return None,
        };
        let before = self.has_stopped.swap(has_stopped, Ordering::Relaxed);
        (before != has_stopped).then_some(has_stopped)
    }

    /// Note whether it pauses until the port has fewer connections. Returns whether it did.
    pub(super) fn set_full(&self, is_full: bool) -> bool {
        self.is_full.swap(is_full, Ordering::SeqCst)
    }

    pub(super) fn is_full(&self) -> bool {
        self.is_full.load(Ordering::SeqCst)
    }

    /// Whether connections are in blocking mode.
    pub(super) fn blocks(&self) -> bool {
        self.listening.blocking.is_some()
    }

    /// What to arm connections for.
    pub(super) fn interest(&self) -> Option<Interest> {
        self.listening.interest
    }

    /// Whether it is watched. Accepts in advance have packets of their own; that none is there says nothing then.
    pub(super) fn is_watched(&self) -> bool {
        self.accepts.pending_accepts().is_none()
    }

    /// What to watch it for.
    pub(super) fn filter(&self) -> EventFilter {
        match self.is_watched() {
            true => EventFilter::IN,
            false => EventFilter::NONE,
        }
    }

    /// Have the system accept in advance, if it can. Completed accepts have packets with this key.
    pub(super) fn begin(&self, port: &SystemPort, key: usize) {
        let Listening { batch, limit, .. } = self.listening;
        let depth = batch.min(limit).clamp(1, MAX_PENDING_ACCEPTS);
        self.accepts.begin(port, key, depth);
    }

    /// This is the packet of a completed accept.
    pub(super) fn on_completed(&self, entry: &Entry) {
        if let Some(pending) = self.accepts.pending_accepts() {
            pending.ended(entry.overlapped);
        }
    }

    /// A batch in which nothing is accepted.
    pub(super) fn idle(&self) -> Round {
        Round {
            filter: self.filter(),
            until: None,
            is_drained: false,
            accepts: false,
            error: None,
        }
    }

    /// It is about to be closed: what is accepted after this has come before. False if this is the last time that it tries.
    pub(super) fn end(&self) -> bool {
        self.accepts.end();
        self.ends.fetch_add(1, Ordering::Relaxed) + 1 < LAST_TRIES
    }

    /// Whether it is closed when it has accepted what waits.
    pub(super) fn is_ending(&self) -> bool {
        self.ends.load(Ordering::Relaxed) > 0
    }

    /// After a batch, have the system accept in advance again. If that fails, the listener pauses.
    pub(super) fn replenish(&self, round: &mut Round) {
        if let (Some(pending), None) = (self.accepts.pending_accepts(), &round.error) {
            if let Err(error) = pending.post() {
                round.pause(error);
            }
        }
    }
}
