//! [`Port::listen`]: incoming connections; and the state of a listener in a port.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use super::slot::connections::{Place, Resident, Wish};
use super::slot::packet::OfPort;
use super::slot::record::Reasons;
use super::{Id, Interest, Port, Source, source};
use crate::os::{self, RawSocket};
use crate::{Error, EventFilter, RegistrationError};

/// How long a listener pauses when the system is out of descriptors or memory.
pub(super) const PAUSE: Duration = Duration::from_millis(50);

/// An error may be that of one connection, whose peer has gone. That many in a row are not: the system is out of something, or a
/// filter of system calls refuses them all.
pub(super) const MAX_FAILED: usize = 16;

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
    pub(super) interest: Option<Interest>,
    pub(super) limit: usize,
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

impl<T: Source, M> Port<T, M> {
    /// Accepts connections from a listener, for as long as the port is open.
    ///
    /// `make` makes a `T` of each connection. Then it is armed, or reported as
    /// [`Event::Accepted`](super::Event::Accepted), as `listening` says. The listener is set to non-blocking mode, and so are
    /// its connections.
    ///
    /// A thread accepts up to 16 connections in the listener's turn. While it runs `make`, others may accept.
    ///
    /// A connection that fails before it is accepted is skipped. When sixteen in a row cannot be accepted, as when the process or
    /// the system is out of descriptors or memory, the listener tries again every 50 ms, and connections wait in its backlog.
    /// [`Event::NotAccepting`](super::Event::NotAccepting) reports that once, and [`Event::Accepting`](super::Event::Accepting)
    /// that it is over.
    ///
    /// To close the listener, [cancel](Self::cancel) it. What waits in its backlog then is accepted before: up to
    /// 65,536 connections, whatever the [limit](Listening::at_most), for clients may connect as fast as
    /// that. So it is when the port [drains](Self::drain), but not when it is closed. Out of descriptors it tries
    /// again for a second; then the rest is reset, and [`Event::NotAccepting`](super::Event::NotAccepting) says so. `make` is called by a thread in
    /// [`process`](super::Worker::process). If it panics, that connection is closed, and the listener stays.
    ///
    /// # Errors
    ///
    /// If the listener cannot be watched, as in [`adopt`](Self::adopt), or the system cannot make a timer for its pauses;
    /// [`Error::Closed`], also if the port drains.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::net::{TcpListener, TcpStream};
    /// use socknotify::owned::{Event, Interest, Port};
    ///
    /// # fn main() -> std::io::Result<()> {
    /// let port = Port::<TcpStream>::new()?;
    /// let listener = TcpListener::bind("127.0.0.1:0")?;
    /// let address = listener.local_addr()?;
    /// port.listen(listener, Interest::OUT, |stream, _| stream)?;
    ///
    /// let client = TcpStream::connect(address)?;
    /// let mut worker = port.worker(8);
    /// worker.process(None)?;
    /// let Some(Event::Ready(connection, _)) = worker.take() else { panic!() };
    /// assert_eq!(connection.peer_addr()?, client.local_addr()?);
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "accept")]
    pub fn listen<L, F>(
        &self,
        listener: L,
        listening: impl Into<Listening>,
        make: F,
    ) -> io::Result<Id>
    where
        L: Listen,
        F: Fn(L::Stream, L::Address) -> T + Send + Sync + 'static,
    {
        listener.prepare()?;
        let connections = &self.shared.connections;
        connections.check()?;
        if connections.is_draining() {
            return Err(Error::Closed.into());
        }
        let listener = Arc::new(Listener::new(listener, listening.into(), make));
        let socket = listener.socket;
        let place = Place::new(socket, Some(Resident::Listener(listener)));
        let token = connections.slots.insert(place);
        let token = token.ok_or(RegistrationError::LimitReached)?;
        let key = connections.slots.key(token);
        connections.add_listener(token);
        let watch = || -> io::Result<()> {
            let system = connections.port.system();
            system.adopt(socket, key, false)??;
            // It pauses when there are no resources: its timer must not need any then.
            system.prepare_alarm(OfPort::Timer.key(&connections.slots))?;
            let put = connections.put_listener(key, &Wish::of(EventFilter::IN));
            if let Some(registration) = put.and_then(|to_do| to_do.arm()) {
                connections.port.register(registration)?;
            }
            Ok(())
        };
        if let Err(error) = watch() {
            connections.close_listener(key);
            return Err(error);
        }
        if connections.is_draining() {
            // Closing may have missed it.
            connections.interrupt_named(token, Reasons::DRAINING);
        }
        Ok(Id(token))
    }
}

/// Accepts a connection. Once there is one, it calls what it is given, and then the caller's function.
pub(super) type Accept<T> = dyn Fn(&mut dyn FnMut()) -> io::Result<T> + Send + Sync;

/// A listener of a port.
pub(super) struct Listener<T> {
    pub(super) socket: RawSocket,
    pub(super) listening: Listening,
    pub(super) accept: Box<Accept<T>>,
    /// It cannot accept, and that was reported.
    has_failed: AtomicBool,
    /// How many times it was [about to be closed](Self::tries_again).
    ends: AtomicUsize,
}

impl<T> Listener<T> {
    pub(super) fn new<L: Listen>(
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
    pub(super) fn set_failed(&self, has_failed: bool) -> bool {
        self.has_failed.swap(has_failed, Ordering::Relaxed)
    }

    /// It is about to be closed. False if this is the last time that it tries.
    pub(super) fn tries_again(&self) -> bool {
        self.ends.fetch_add(1, Ordering::Relaxed) + 1 < LAST_TRIES
    }

    /// Whether it is closed when it has accepted what waits.
    pub(super) fn is_ending(&self) -> bool {
        self.ends.load(Ordering::Relaxed) > 0
    }
}
