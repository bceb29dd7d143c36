//! [`Listen`], [`Listening`], and the state of a listener in a port.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::owned::{Interest, Source};
use crate::{EventFilter, os};

/// How long a listener pauses when the system is out of descriptors or memory.
const PAUSE: Duration = Duration::from_millis(50);

/// That many errors in a row are not those of single connections, whatever they say: a filter of system calls may refuse them
/// all, and leave the connections where they are.
const MAX_FAILED: usize = 1024;

/// How many times a listener that is to be closed tries to accept what waits: for about a second.
const LAST_TRIES: usize = 20;

/// What a port can [listen](crate::owned::Port::listen) with.
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
}

impl Listen for TcpListener {
    type Stream = TcpStream;
    type Address = SocketAddr;

    fn accept_next(&self) -> io::Result<(TcpStream, SocketAddr)> {
        os::accept(self)
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
    pub(in crate::owned) interest: Option<Interest>,
    pub(in crate::owned) limit: usize,
}

impl Listening {
    /// Each connection is armed for this at once, and reported when it is ready.
    pub const fn arming(interest: Interest) -> Self {
        Listening {
            interest: Some(interest),
            ..Self::reporting()
        }
    }

    /// Each connection is reported as [`Event::Accepted`](crate::owned::Event::Accepted), and not armed.
    pub const fn reporting() -> Self {
        Listening {
            interest: None,
            limit: usize::MAX,
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

/// Accepts a connection. Once there is one, it calls what it is given, and then the caller's function.
type Accept<T> = dyn Fn(&mut dyn FnMut()) -> io::Result<T> + Send + Sync;

/// Whether this error of accepting says that no connection waits.
pub(in crate::owned) fn is_none(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}

/// A listener of a port.
pub(in crate::owned) struct Listener<T> {
    pub(in crate::owned) listening: Listening,
    accept: Box<Accept<T>>,
    /// It cannot accept, and that was reported.
    has_stopped: AtomicBool,
    /// It pauses until the port has fewer connections.
    is_full: AtomicBool,
    /// Connections that have failed one after the other.
    failed: AtomicUsize,
    /// How many times it was [about to be closed](Self::end).
    ends: AtomicUsize,
}

/// The result of accepting.
#[derive(Debug)]
pub(in crate::owned) struct Round {
    /// What to arm it for.
    pub(in crate::owned) filter: EventFilter,
    pub(in crate::owned) until: Option<Instant>,
    /// None was left.
    pub(in crate::owned) is_drained: bool,
    /// The listener can accept: one was accepted, or none was left.
    pub(in crate::owned) accepts: bool,
    /// Why it pauses.
    pub(in crate::owned) error: Option<io::Error>,
}

impl Default for Round {
    fn default() -> Self {
        Round {
            filter: EventFilter::IN,
            until: None,
            is_drained: false,
            accepts: false,
            error: None,
        }
    }
}

impl Round {
    /// Pause, for this reason.
    pub(in crate::owned) fn pause(&mut self, error: io::Error) {
        self.filter = EventFilter::NONE;
        self.until = Instant::now().checked_add(PAUSE);
        self.error = Some(error);
    }
}

impl<T> Listener<T> {
    pub(in crate::owned) fn new<L: Listen>(
        listener: L,
        listening: Listening,
        make: impl Fn(L::Stream, L::Address) -> T + Send + Sync + 'static,
    ) -> Self {
        let accept = move |accepted: &mut dyn FnMut()| {
            let (stream, address) = listener.accept_next()?;
            accepted();
            Ok(make(stream, address))
        };
        Listener {
            listening,
            accept: Box::new(accept),
            has_stopped: AtomicBool::new(false),
            is_full: AtomicBool::new(false),
            failed: AtomicUsize::new(0),
            ends: AtomicUsize::new(0),
        }
    }

    /// Accept a connection. Once there is one, `accepted` is called, and then the caller's function.
    pub(in crate::owned) fn accept(&self, mut accepted: impl FnMut()) -> io::Result<T> {
        (self.accept)(&mut || {
            self.failed.store(0, Ordering::Relaxed);
            accepted();
        })
    }

    /// Whether this error is that of one connection, and the next one may be accepted.
    pub(in crate::owned) fn goes_on_after(&self, error: &io::Error) -> bool {
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
                (is_of_one || os::is_of_one_connection(error))
                    && self.failed.fetch_add(1, Ordering::Relaxed) < MAX_FAILED
            }
        }
    }

    /// Afterwards: whether the listener has stopped accepting, or accepts again. `None` if that was so before.
    pub(in crate::owned) fn change(&self, round: &Round) -> Option<bool> {
        let has_stopped = match (&round.error, round.accepts) {
            (Some(_), _) => true,
            (None, true) => false,
            (None, false) => return None,
        };
        let before = self.has_stopped.swap(has_stopped, Ordering::Relaxed);
        (before != has_stopped).then_some(has_stopped)
    }

    /// Note whether it pauses until the port has fewer connections. Returns whether it did.
    pub(in crate::owned) fn set_full(&self, is_full: bool) -> bool {
        self.is_full.swap(is_full, Ordering::SeqCst)
    }

    pub(in crate::owned) fn is_full(&self) -> bool {
        self.is_full.load(Ordering::SeqCst)
    }

    /// It is about to be closed. False if this is the last time that it tries.
    pub(in crate::owned) fn end(&self) -> bool {
        self.ends.fetch_add(1, Ordering::Relaxed) + 1 < LAST_TRIES
    }

    /// Whether it is closed when it has accepted what waits.
    pub(in crate::owned) fn is_ending(&self) -> bool {
        self.ends.load(Ordering::Relaxed) > 0
    }
}
