//! [`Port::connect`] and [`connect_to`]: outgoing connections.

use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, Type};

use super::readiness::Phase;
use super::{Event, Held, Id, Interest, Port, Source};
use crate::{Events, os};

/// What a port can [connect](Port::connect) to.
///
/// Implement it for other addresses, or for sockets that are bound first. A method that a later version adds has a default.
#[diagnostic::on_unimplemented(
    message = "a port cannot connect to `{Self}`",
    label = "not an address",
    note = "it connects to a `SocketAddr`, and on Unix to a `&Path`; for a host's name, call `connect_to` within `Port::offload`"
)]
pub trait Connect {
    /// A connection.
    type Stream;

    /// Begins to connect a socket in non-blocking mode.
    ///
    /// # Errors
    ///
    /// The system's, if it is known at once that the socket cannot connect.
    fn begin(&self) -> io::Result<Self::Stream>;
}

impl Connect for SocketAddr {
    type Stream = TcpStream;

    fn begin(&self) -> io::Result<TcpStream> {
        let domain = Domain::for_address(*self);
        begin(domain, Some(Protocol::TCP), &(*self).into()).map(Into::into)
    }
}

/// A Unix socket connects at once or not at all: if the listener's queue is full, that is
/// [`io::ErrorKind::WouldBlock`].
#[cfg(unix)]
impl Connect for &std::path::Path {
    type Stream = std::os::unix::net::UnixStream;

    fn begin(&self) -> io::Result<Self::Stream> {
        let socket = begin(Domain::UNIX, None, &SockAddr::unix(self)?)?;
        Ok(std::os::fd::OwnedFd::from(socket).into())
    }
}

fn begin(domain: Domain, protocol: Option<Protocol>, address: &SockAddr) -> io::Result<Socket> {
    let socket = Socket::new(domain, Type::STREAM, protocol)?;
    socket.set_nonblocking(true)?;
    match socket.connect(address) {
        Err(error) if !os::is_connecting(&error) => Err(error),
        _ => Ok(socket),
    }
}

impl<T: Source, M> Port<T, M> {
    /// Begins to connect to an address, and returns at once. `make` makes a `T` of the socket.
    ///
    /// The outcome is an event: [`Event::Connected`], or [`Event::Unconnected`] with the error, which is
    /// [`io::ErrorKind::TimedOut`] if there was no answer in time. Until then it can be [cancelled](Self::cancel), as
    /// any connection. To connect by a host's name, see [`connect_to`].
    ///
    /// # Errors
    ///
    /// If it is known at once that the socket cannot connect, or cannot be [adopted](Self::adopt).
    ///
    /// # Examples
    ///
    /// ```
    /// use std::net::{TcpListener, TcpStream};
    /// use std::time::Duration;
    /// use socknotify::owned::{Event, Port};
    ///
    /// # fn main() -> std::io::Result<()> {
    /// let listener = TcpListener::bind("127.0.0.1:0")?;
    /// let port = Port::<TcpStream>::new()?;
    /// let id = port.connect(listener.local_addr()?, Duration::from_secs(10), |stream| stream)?;
    ///
    /// let mut worker = port.worker(8);
    /// worker.process(None)?;
    /// match worker.take() {
    ///     Some(Event::Connected(connection)) => assert_eq!(connection.id(), id),
    ///     Some(Event::Unconnected(_, error)) => panic!("{error}"),
    ///     _ => {}
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "ConnectEx")]
    pub fn connect<A: Connect>(
        &self,
        address: A,
        within: Duration,
        make: impl FnOnce(A::Stream) -> T,
    ) -> io::Result<Id> {
        let mut connection = self.adopt(make(address.begin()?))?;
        let id = connection.id();
        connection.split().1.phase = Phase::Connecting;
        self.arm(connection, Interest::OUT.within(within));
        Ok(id)
    }
}

/// Connects to a host by its name, and blocks meanwhile: call it within [`Port::offload`].
///
/// It resolves the name and tries each address in turn, until one connects. The connection is in non-blocking mode.
///
/// To connect may take this long in all. An address that does not answer leaves the others an equal share of what is left.
/// To resolve a name takes as long as the system's resolver needs, which has limits of its own.
///
/// Each call holds one of the port's [helper threads](super::Builder::helper_threads). For many connections at once,
/// resolve the name within `offload`, and [connect](Port::connect) to its addresses.
///
/// # Errors
///
/// The resolver's; otherwise that of the last address, which is [`io::ErrorKind::TimedOut`] if there was no answer in time.
///
/// # Examples
///
/// ```
/// use std::io;
/// use std::net::{TcpListener, TcpStream};
/// use std::time::Duration;
/// use socknotify::owned::{Event, Interest, Port, connect_to};
///
/// # fn main() -> io::Result<()> {
/// let listener = TcpListener::bind("localhost:0")?;
/// let number = listener.local_addr()?.port();
/// let port = Port::<TcpStream, io::Result<TcpStream>>::with_messages()?;
/// port.offload(move || connect_to(("localhost", number), Duration::from_secs(5)))?;
///
/// let mut worker = port.worker(8);
/// worker.process(None)?;
/// match worker.take() {
///     Some(Event::Message(Ok(stream))) => worker.arm(port.adopt(stream)?, Interest::IN),
///     Some(Event::Message(Err(error))) => panic!("{error}"),
///     _ => {}
/// }
/// # Ok(())
/// # }
/// ```
#[doc(alias = "getaddrinfo")]
pub fn connect_to(host: impl ToSocketAddrs, within: Duration) -> io::Result<TcpStream> {
    let addresses: Vec<_> = host.to_socket_addrs()?.collect();
    let begin = Instant::now();
    let mut outcome = Err(io::Error::new(
        io::ErrorKind::NotFound,
        "the name has no address",
    ));
    for (address, others) in addresses.iter().zip((1..=addresses.len() as u32).rev()) {
        let share = within.saturating_sub(begin.elapsed()) / others;
        outcome = match share {
            Duration::ZERO => Err(no_answer()),
            share => TcpStream::connect_timeout(address, share),
        };
        if let Ok(stream) = &outcome {
            stream.set_nonblocking(true)?;
            break;
        }
    }
    outcome
}

pub(super) fn no_answer() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the peer did not answer in time")
}

/// What has come of a connect.
#[cold]
pub(super) fn outcome<T: Source, M>(mut held: Held<T>, events: Events) -> Event<T, M> {
    held.split().1.phase = Phase::Open;
    let error = SockRef::from(&held.socket()).take_error();
    match error {
        Ok(None) if !events.contains(Events::ERR) => Event::Connected(held),
        Ok(None) => Event::Unconnected(held, io::ErrorKind::NotConnected.into()),
        Ok(Some(error)) | Err(error) => Event::Unconnected(held, error),
    }
}
