//! [`Listen`], [`Listening`], and the state of a listener in a port.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::os::{self, RawSocket};
use crate::owned::{Interest, Source, source};

/// How long a listener pauses when the system is out of descriptors or memory.
pub(in crate::owned) const PAUSE: Duration = Duration::from_millis(50);

/// An error may be that of one connection, whose peer has gone. That many in a row are not: the system is out of something, or a
/// filter of system calls refuses them all.
pub(in crate::owned) const MAX_FAILED: usize = 16;

/// How many times a listener that is to be closed tries to accept what waits: for about a second.
const LAST_TRIES: usize = 20;

/// What a port can [listen](crate::owned::Port::listen) with.
///
/// Implement it for other listeners. A method that a later version adds has a default.
#[diagnostic::on_unimplemented(
    message = "a port cannot listen with `{Self}`",
    label = "not a listener",
    note = "it listens with a `TcpListener`, and on Unix with a `UnixListener`, of the standard library"
)]
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
pub(in crate::owned) type Accept<T> = dyn Fn(&mut dyn FnMut()) -> io::Result<T> + Send + Sync;

/// Why a listener accepts no more for now.
pub(in crate::owned) enum Stop {
    /// It was another's turn.
    Enough,
    /// No connection waits.
    Drained,
    /// The port has as many as it may, or is closed.
    Full,
    Failed(io::Error),
}

/// A listener of a port.
pub(in crate::owned) struct Listener<T> {
    pub(in crate::owned) socket: RawSocket,
    pub(in crate::owned) listening: Listening,
    pub(in crate::owned) accept: Box<Accept<T>>,
    /// It cannot accept, and that was reported.
    has_failed: AtomicBool,
    /// How many times it was [about to be closed](Self::tries_again).
    ends: AtomicUsize,
}

impl<T> Listener<T> {
    pub(in crate::owned) fn new<L: Listen>(
        listener: L,
        listening: Listening,
        make: impl Fn(L::Stream, L::Address) -> T + Send + Sync + 'static,
    ) -> Self {
        let socket = source::raw(&listener);
        let accept = move |accepted: &mut dyn FnMut()| {
            let (stream, address) = listener.accept_next()?;
            accepted();
            Ok(make(stream, address))
        };
        Listener {
            socket,
            listening,
            accept: Box::new(accept),
            has_failed: AtomicBool::new(false),
            ends: AtomicUsize::new(0),
        }
    }

    /// Note whether it cannot accept. Returns whether that was noted before.
    pub(in crate::owned) fn set_failed(&self, has_failed: bool) -> bool {
        self.has_failed.swap(has_failed, Ordering::Relaxed)
    }

    /// It is about to be closed. False if this is the last time that it tries.
    pub(in crate::owned) fn tries_again(&self) -> bool {
        self.ends.fetch_add(1, Ordering::Relaxed) + 1 < LAST_TRIES
    }

    /// Whether it is closed when it has accepted what waits.
    pub(in crate::owned) fn is_ending(&self) -> bool {
        self.ends.load(Ordering::Relaxed) > 0
    }
}
