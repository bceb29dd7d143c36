//! [`Port::listen`]: connections that come by themselves.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::home::{Home, Place};
use super::packet::DRAINING;
use super::source::raw;
use super::{Id, Interest, Port, Source};
use crate::{Error, EventFilter, Registration, RegistrationError};

/// How long a listener rests when the system has nothing left to accept with.
const REST: Duration = Duration::from_millis(50);

/// What a port can [listen](Port::listen) with.
pub trait Listen: Source + Send + Sync + 'static {
    /// A connection.
    type Stream: Source;
    /// Who has connected.
    type Address;

    /// Accepts a connection, in non-blocking mode.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::WouldBlock`] if none waits; otherwise what the system says.
    #[doc(alias = "accept4")]
    fn accept_next(&self) -> io::Result<(Self::Stream, Self::Address)>;

    /// Has [`accept_next`](Self::accept_next) never wait.
    ///
    /// # Errors
    ///
    /// What the system says.
    fn prepare(&self) -> io::Result<()>;
}

impl Listen for TcpListener {
    type Stream = TcpStream;
    type Address = SocketAddr;

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

/// What a listener does with what it accepts.
///
/// An [`Interest`] is one of these: each connection is armed for it.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use socknotify::owned::{Interest, Listening};
///
/// // Each is armed for its first request, which has to come in time; at most 10 000 of them.
/// let _ = Listening::arming(Interest::IN.within(Duration::from_secs(10))).at_most(10_000);
/// // Each is reported before it is armed.
/// let _ = Listening::reporting();
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct Listening {
    interest: Option<Interest>,
    batch: usize,
    limit: usize,
}

impl Listening {
    /// Each connection is armed for this at once, and comes out when it is ready.
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
        }
    }

    /// Accept at most so many connections before others are served: 16, if nothing is said.
    pub const fn batch(self, connections: usize) -> Self {
        let batch = if connections == 0 { 1 } else { connections };
        Listening { batch, ..self }
    }

    /// Rest while the port has so many connections, from wherever they are. Those that come meanwhile wait in
    /// the system's queue.
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

/// A listener and what becomes of its connections, whatever types these are of.
trait Accept<T>: Send + Sync {
    fn accept(&self) -> io::Result<T>;
}

struct With<L, F> {
    listener: L,
    make: F,
}

impl<T, L: Listen, F> Accept<T> for With<L, F>
where
    F: Fn(L::Stream, L::Address) -> T + Send + Sync,
{
    fn accept(&self) -> io::Result<T> {
        let (stream, address) = self.listener.accept_next()?;
        Ok((self.make)(stream, address))
    }
}

/// A listener of a port.
pub(super) struct Listener<T> {
    listening: Listening,
    accepts: Box<dyn Accept<T>>,
}

/// What a turn of a listener has come to.
#[derive(Debug)]
pub(super) struct Turn {
    /// What to arm it for.
    pub(super) filter: EventFilter,
    pub(super) until: Option<Instant>,
    /// None was left.
    pub(super) is_drained: bool,
    /// Why it rests.
    pub(super) error: Option<io::Error>,
}

impl Default for Turn {
    fn default() -> Self {
        Turn {
            filter: EventFilter::IN,
            until: None,
            is_drained: false,
            error: None,
        }
    }
}

impl<T> Listener<T> {
    /// What to arm connections for.
    pub(super) fn interest(&self) -> Option<Interest> {
        self.listening.interest
    }

    /// Accept what waits, up to a number. A connection is handed over with its place among those that there
    /// may be.
    pub(super) fn accept(&self, home: &Home<T>, mut each: impl FnMut(T)) -> Turn {
        let mut turn = Turn::default();
        for _ in 0..self.listening.batch {
            let Some(room) = home.reserve(self.listening.limit) else {
                // It is woken when a connection ends.
                turn.filter = EventFilter::NONE;
                break;
            };
            match self.accepts.accept() {
                Ok(connection) => {
                    room.keep();
                    each(connection);
                }
                Err(error) => match error.kind() {
                    // It was given up by its peer before it was accepted.
                    io::ErrorKind::ConnectionAborted
                    | io::ErrorKind::ConnectionReset
                    | io::ErrorKind::NotConnected
                    | io::ErrorKind::Interrupted => {}
                    io::ErrorKind::WouldBlock => {
                        turn.is_drained = true;
                        break;
                    }
                    _ => {
                        turn.filter = EventFilter::NONE;
                        turn.until = Instant::now().checked_add(REST);
                        turn.error = Some(error);
                        break;
                    }
                },
            }
        }
        turn
    }
}

impl<T: Source, M> Port<T, M> {
    /// Has the port accept connections, for as long as it is open.
    ///
    /// `make` makes of each what the port owns. Then it is armed, or reported as
    /// [`Event::Accepted`](super::Event::Accepted), as `listening` says. The listener and what it accepts are
    /// set to non-blocking mode. One thread at a time accepts a batch; all that it has accepted is armed in one
    /// step, together with the listener.
    ///
    /// When the process or the system is out of descriptors or memory, the listener rests for 50 ms, and says so
    /// with [`Event::NotAccepting`](super::Event::NotAccepting); connections wait in the system's queue.
    ///
    /// To [cancel](Self::cancel) the listener closes it. The thread that calls `make` is one that is in
    /// [`process`](super::Worker::process); if `make` panics, that connection is closed, and the listener goes
    /// on.
    ///
    /// # Errors
    ///
    /// What keeps the listener from being watched, as in [`adopt`](Self::adopt).
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
    #[doc(alias = "AcceptEx")]
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
        let socket = raw(&listener);
        let home = &self.shared.home;
        if home.is_draining() {
            return Err(Error::Closed.into());
        }
        let place = Place::of_listener(
            socket,
            Arc::new(Listener {
                listening: listening.into(),
                accepts: Box::new(With { listener, make }),
            }),
        );
        let token = home.slots.insert(place);
        let token = token.ok_or(RegistrationError::LimitReached)?;
        let key = home.slots.key(token);
        home.add_listener(token);
        let watch = || -> io::Result<()> {
            home.port.system().adopt(socket, key)??;
            let registration = Registration::arm(socket, key, EventFilter::IN, false);
            home.port.register(registration)?;
            Ok(())
        };
        if let Err(error) = watch() {
            home.close_listener(key);
            return Err(error);
        }
        if home.is_draining() {
            // That may not have found it.
            home.interrupt_named(token, DRAINING);
        }
        Ok(Id(token))
    }
}
