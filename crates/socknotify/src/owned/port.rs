//! [`Port`]: a completion port that owns connections.

use std::any::Any;
use std::collections::VecDeque;
#[cfg(unix)]
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, Weak};
use std::{fmt, io};

use super::messages::Message;
use super::readiness::Phase;
use super::slot::connections::{
    Connections, NEVER, Node, Place, Resident, Room, ToDo, Wish, drop_all,
};
use super::slot::record::Reasons;
use super::source::{Source, raw};
use super::time::Clock;
use super::{AdoptError, Closed, Held, Id, Interest, Readiness};
use crate::files::{DEFAULT_THREADS, Helpers, Operations};
use crate::owned::serve::crew::Crew;
use crate::support::lock;
use crate::{
    CompletionPort, Error, EventFilter, RegisterError, Registration, RegistrationError, Snapshot,
    Trigger,
};

/// A completion port that owns connections of type `T`, and carries messages of type `M`.
///
/// Each thread that serves connections has a [`Worker`](super::Worker). Any thread can use the port itself: to adopt or
/// cancel connections, to send messages, and to close it.
///
/// Dropping the port closes it.
///
/// # Examples
///
/// See the [module](super).
pub struct Port<T, M = ()> {
    pub(super) shared: Arc<Shared<T, M>>,
}

/// What the port and its workers have in common.
pub(super) struct Shared<T, M> {
    pub(super) connections: Arc<Connections<T>>,
    /// For each of these there is a packet in the queue, or with a thread that has just dequeued it.
    pub(super) messages: Mutex<VecDeque<Message<T, M>>>,
    pub(super) clock: Clock<T, M>,
    pub(super) files: Arc<Operations>,
    pub(super) helpers: Helpers,
    /// Of the calls that serve.
    pub(super) crews: Mutex<Vec<Weak<Crew>>>,
}

/// What a panic carries.
pub(super) type Panic = Box<dyn Any + Send>;

// The bounds are those of the functions: so the compiler says what is missing, in the words of `Source`.
impl<T> Port<T> {
    /// Makes a port with one [permit](CompletionPort#permits) for each processor, and without messages.
    ///
    /// # Errors
    ///
    /// As [`CompletionPort::new`].
    pub fn new() -> Result<Self, Error>
    where
        T: Source,
    {
        Self::with_messages()
    }
}

impl<T, M> Port<T, M> {
    /// Makes a port with one [permit](CompletionPort#permits) for each processor, and messages of the type `M`.
    ///
    /// # Errors
    ///
    /// As [`CompletionPort::new`].
    pub fn with_messages() -> Result<Self, Error>
    where
        T: Source,
    {
        CompletionPort::new().map(Self::from)
    }
}

impl<T: Source, M> Port<T, M> {
    /// Registers a connection with the port, and returns it held. It is not armed yet.
    ///
    /// **It stays in blocking or non-blocking mode, whichever it has.** Sockets are in blocking mode when they are made, and
    /// one read too many blocks the thread then. Call `set_nonblocking(true)` first, as [`listen`](Self::listen) and
    /// [`connect`](Self::connect) do.
    ///
    /// # Errors
    ///
    /// Returns the connection if it is no socket, if it is registered with this or another port already, if the system or the
    /// port has no room for it ([`RegistrationError::LimitReached`], [`RegistrationError::OutOfMemory`]), or if the port is
    /// closed or of another process.
    pub fn adopt(&self, connection: T) -> Result<Held<T>, AdoptError<T>> {
        let room = self.shared.connections.connection_began();
        self.shared.adopt(room, connection, false)
    }

    /// Registers any descriptor that the system can watch, and returns it held: a pipe, a terminal, a `signalfd`,
    /// `pidfd`, `eventfd` or `timerfd`, another port. [`Source::socket`] returns the descriptor.
    ///
    /// [`Registration::descriptor`] says what its conditions mean.
    ///
    /// # Errors
    ///
    /// Returns the value if the system cannot watch it, as with a regular file
    /// ([`RegistrationError::NotWatchable`]); otherwise as [`adopt`](Self::adopt).
    ///
    /// # Examples
    ///
    /// ```
    /// use std::io::Read;
    /// use std::process::{ChildStdout, Command, Stdio};
    /// use socknotify::owned::{Event, Interest, Port};
    ///
    /// # fn main() -> std::io::Result<()> {
    /// let port = Port::<ChildStdout>::new()?;
    /// let mut child = Command::new("echo").arg("hello").stdout(Stdio::piped()).spawn()?;
    /// let output = child.stdout.take().expect("it is piped");
    /// port.arm(port.adopt_descriptor(output)?, Interest::IN);
    ///
    /// let mut worker = port.worker(8);
    /// worker.process(None)?;
    /// let Some(Event::Ready(mut output, _)) = worker.take() else { panic!() };
    /// let mut buffer = [0; 16];
    /// assert_eq!(output.read(&mut buffer)?, "hello\n".len());
    /// # child.wait()?;
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(unix)]
    pub fn adopt_descriptor(&self, descriptor: T) -> Result<Held<T>, AdoptError<T>> {
        let room = self.shared.connections.connection_began();
        self.shared.adopt(room, descriptor, true)
    }

    /// Arms one connection at once. In a worker use [`Worker::arm`](super::Worker::arm), which arms any number of
    /// connections in one step.
    ///
    /// There is no error to return: a connection that the system refuses to watch is reported as
    /// [`Event::Refused`](super::Event::Refused), and if the port is closed, the connection is closed too.
    ///
    /// # Panics
    ///
    /// If the connection belongs to another port. The connection is deregistered there and closed.
    #[track_caller]
    pub fn arm(&self, connection: Held<T>, interest: Interest) {
        self.shared.arm(connection, interest);
    }

    /// Registers a socket that several threads may use at once, such as a UDP socket.
    ///
    /// It stays registered until [`unshare`](Self::unshare). Each notification returns another reference to it, as
    /// [`Event::Shared`](super::Event::Shared). `T` has to be [`Sync`] for this alone. A deadline of the interest has no effect.
    ///
    /// # Errors
    ///
    /// The [`RegistrationError`] if the socket cannot be registered; [`Error::Closed`]; [`Error::OtherProcess`] in a forked child.
    pub fn share(
        &self,
        socket: Arc<T>,
        interest: Interest,
        trigger: SharedTrigger,
    ) -> io::Result<Id>
    where
        T: Send + Sync + 'static,
    {
        let connections = &self.shared.connections;
        connections.check()?;
        let descriptor = socket.socket();
        let filter = interest.filter;
        let mut enable = Registration::enable(&descriptor, 0, filter, trigger.into());
        let shared = Arc::clone(&socket);
        let shared = Box::new(move || Arc::clone(&shared));
        let place = Place::new(enable.raw_socket(), Some(Resident::Shared(shared)));
        let token = connections
            .slots
            .insert(place)
            .ok_or(RegistrationError::LimitReached)?;
        enable.completion_key = connections.slots.key(token);
        match connections.port.register(enable) {
            Ok(()) => Ok(Id(token)),
            Err(error) => {
                connections.slots.remove(token);
                Err(error.into())
            }
        }
    }

    /// Deregisters a shared socket. The port reports [`Event::Returned`](super::Event::Returned) when no thread can be
    /// notified of it any more.
    ///
    /// # Errors
    ///
    /// [`RegistrationError::NotFound`] if there is no shared socket with this `Id`, if this was called for it before, or if
    /// its [`Source`] returns another socket now; [`Error::Closed`]; [`Error::OtherProcess`] in a forked child.
    pub fn unshare(&self, id: Id) -> io::Result<()> {
        let connections = &self.shared.connections;
        connections.check()?;
        let shared = connections.slots.get(id.0).and_then(|place| place.shared());
        let socket = shared.ok_or(RegistrationError::NotFound)?;
        let descriptor = socket.socket();
        let remove = Registration::remove(&descriptor);
        let number = remove.raw_socket();
        // While the slot is locked, the socket's registration belongs to this `Id`, and to no later
        // one.
        let mut place = connections.slots.get(id.0);
        match &mut place {
            // A socket may answer otherwise than when it was shared: the other one may be another's.
            Some(place) if !place.ends && place.socket == number => {
                connections.port.register(remove)?;
                place.ends = true;
                Ok(())
            }
            _ => Err(RegistrationError::NotFound.into()),
        }
    }

    /// Interrupts the wait of a connection, which is reported as [`Event::Cancelled`](super::Event::Cancelled): at once
    /// if it is armed, otherwise when it is armed next. If its deadline has just passed, or the port drains, that is
    /// reported first, and this when it is armed after that. One that [lingers](super::Worker::linger) goes on to do so.
    ///
    /// Returns false and does nothing if the connection or the port is closed, and for a [shared](Self::share) socket:
    /// use [`unshare`](Self::unshare).
    #[doc(alias = "wake")]
    pub fn cancel(&self, id: Id) -> bool {
        self.shared.connections.cancel(id)
    }

    /// Closes the port, and returns what was left in it: the connections that were armed, the operations on files that no
    /// worker had dequeued, and the messages that were not taken.
    ///
    /// Waiting threads return with [`Error::Closed`]. A thread keeps the connections that it holds. Those whose events
    /// its worker has dequeued and not [taken](super::Worker::take) are returned, too. A completion that a worker has
    /// dequeued can still be taken.
    ///
    /// This waits for operations on files that the system has begun, or cancels them: after it, nothing is written to a
    /// file or a buffer. Operations that were not begun are returned as cancelled. Where the system does not answer, as
    /// for a file of a machine that is gone, that may take for ever; after [`drain`](Self::drain), no longer than its
    /// time. What is still in progress then is [left behind](Closed::left_behind).
    ///
    /// [Work](Self::offload) that has not begun is dropped; work that has is not waited for, and its result is dropped. So are
    /// timers, with their messages. If dropping something panics, the panic goes no further.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::fs::File;
    /// use std::net::TcpStream;
    /// use socknotify::owned::{FileOperation, Port};
    ///
    /// # fn main() -> std::io::Result<()> {
    /// # let path = std::env::temp_dir().join(format!("socknotify-close-{}", std::process::id()));
    /// # std::fs::write(&path, "0123456789")?;
    /// let port = Port::<TcpStream, &str>::with_messages()?;
    /// let file = port.adopt_file(File::open(&path)?)?;
    /// port.begin(FileOperation::read_at(&file, vec![0; 4096], 6))?;
    /// port.send("hello")?;
    ///
    /// let mut left = port.close();
    /// for done in left.take_operations() {
    ///     assert_eq!(done.buffer.len(), 4096);
    ///     match done.result {
    ///         Ok(count) => assert_eq!(&done.buffer[..count], b"6789"),
    ///         Err(_) => assert!(done.is_cancelled),
    ///     }
    /// }
    /// assert_eq!(left.take_messages(), ["hello"]);
    /// // It dereferences to the connections.
    /// assert!(left.is_empty());
    /// # drop(file);
    /// # std::fs::remove_file(&path)?;
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "shutdown")]
    pub fn close(&self) -> Closed<T, M> {
        self.shared.close()
    }
}

impl<T, M> Port<T, M> {
    /// Runs work that may block, and lends this thread's permit to another thread meanwhile: as
    /// [`Worker::blocking`](super::Worker::blocking), where the thread's worker is not at hand. What that has dequeued waits.
    #[doc(alias = "block_in_place")]
    pub fn blocking<R>(&self, work: impl FnOnce() -> R) -> R {
        self.shared.connections.port.blocking(work)
    }

    /// The state of the port at this moment, for diagnosis.
    #[doc(alias = "stats")]
    #[doc(alias = "metrics")]
    pub fn snapshot(&self) -> Snapshot {
        self.shared.connections.port.snapshot()
    }

    /// The concurrency value: how many threads run while they neither block nor compute for long.
    pub fn concurrency(&self) -> usize {
        self.shared.connections.port.concurrency()
    }
}

/// Makes an owning port of an existing [`CompletionPort`].
///
/// Packets that were posted before, and notifications of sockets that were registered before, are dropped. Remove
/// level-triggered registrations first: while their condition holds, dropping their notifications keeps a thread busy.
///
/// # Examples
///
/// ```
/// use std::net::UdpSocket;
/// use socknotify::CompletionPort;
/// use socknotify::owned::Port;
///
/// # fn main() -> std::io::Result<()> {
/// let port = Port::<UdpSocket>::from(CompletionPort::with_concurrency(4)?);
/// assert_eq!(port.concurrency(), 4);
/// # Ok(())
/// # }
/// ```
impl<T, M> From<CompletionPort> for Port<T, M> {
    fn from(port: CompletionPort) -> Self {
        Self::assemble(port, DEFAULT_THREADS)
    }
}

impl<T, M> Port<T, M> {
    pub(super) fn assemble(port: CompletionPort, helper_threads: usize) -> Self {
        let files = Arc::clone(port.operations());
        // Work that blocks keeps no operation from being performed.
        let helpers = Helpers::new(helper_threads);
        let connections = Arc::new(Connections::new(port));
        Port {
            shared: Arc::new(Shared {
                clock: Clock::new(&connections),
                connections,
                files,
                messages: Mutex::default(),
                helpers,
                crews: Mutex::default(),
            }),
        }
    }
}

impl<T, M> Drop for Port<T, M> {
    fn drop(&mut self) {
        self.shared.close();
    }
}

/// Lets another event loop watch the port: its descriptor is readable when a worker's
/// [`process`](crate::owned::Worker::process) would dequeue events, and now and then without a reason. Take all of them, and
/// call `process` until it returns 0, before you wait: what a worker keeps, to be taken or to be armed, does not make it readable.
///
/// No thread should wait in such a port: call `process` with a timeout of zero.
#[cfg(unix)]
impl<T, M> AsFd for Port<T, M> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.connections.port.as_fd()
    }
}

impl<T, M> fmt::Debug for Port<T, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Port")
            .field("port", &self.shared.connections.port)
            .finish_non_exhaustive()
    }
}

/// When a [shared](Port::share) socket is notified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SharedTrigger {
    /// For as long as a wanted condition holds.
    Level,
    /// When a wanted condition begins to hold. One that holds when the socket is shared is not reported: share a
    /// socket before its peers know its address, or receive once after.
    Edge,
}

impl From<SharedTrigger> for Trigger {
    fn from(trigger: SharedTrigger) -> Self {
        match trigger {
            SharedTrigger::Level => Trigger::PERSISTENT | Trigger::LEVEL,
            SharedTrigger::Edge => Trigger::PERSISTENT | Trigger::EDGE,
        }
    }
}

impl<T: Source, M> Shared<T, M> {
    /// Arm a connection at once.
    #[track_caller]
    pub(super) fn arm(&self, connection: Held<T>, interest: Interest) {
        let to_do = self.put(connection, interest);
        let Some(arm) = to_do.and_then(|it| it.arm()) else {
            return;
        };
        let key = arm.completion_key;
        let registered = self.connections.port.register(arm);
        if let Err(RegisterError::Entry(error)) = registered {
            self.on_refused(key, error);
        }
    }

    /// Put a connection into its slot, where its packets find it. Returns what is left to be armed. If that is refused, it is
    /// reported; if the port is closed, so is the connection.
    #[inline]
    #[track_caller]
    pub(super) fn put(&self, connection: Held<T>, interest: Interest) -> Option<ToDo> {
        assert!(
            Arc::ptr_eq(connection.connections(), &self.connections),
            "a connection is armed in the port that adopted it"
        );
        let filter = interest.filter;
        let socket = raw(&*connection);
        let has_buffered = filter.contains(EventFilter::IN) && connection.has_buffered();
        let mut node = connection.into_node();
        if socket != node.readiness.socket() {
            self.refuse(node, RegistrationError::NotASocket);
            return None;
        }
        let deadline = interest.deadline();
        let wish = Wish {
            filter,
            is_drained: node.readiness.take(filter),
            deadline: deadline.map_or(NEVER, |time| self.clock.ticks_until(time)),
            is_buffered: has_buffered && node.readiness.phase != Phase::Lingering,
        };
        let put = self.connections.put(node, &wish);
        let to_do = put.map_err(|(node, error)| self.refuse(node, error)).ok()?;
        if to_do.is_late {
            self.clock.schedule(to_do.key);
        }
        Some(to_do)
    }

    /// Give a connection its place in the port, for which there is room.
    pub(super) fn adopt(
        &self,
        room: Room<'_, T>,
        connection: T,
        is_descriptor: bool,
    ) -> Result<Held<T>, AdoptError<T>> {
        let socket = raw(&connection);
        let connections = &self.connections;
        if let Err(error) = connections.check() {
            return Err(AdoptError::new(connection, error));
        }
        // It is in its slot before the port can be closed, and so is found when it is; with the slot locked, so that what is refused
        // is not.
        let Some((token, mut place)) = connections.slots.insert_default() else {
            return Err(AdoptError::new(connection, RegistrationError::LimitReached));
        };
        place.socket = socket;
        let (system, key) = (connections.port.system(), connections.slots.key(token));
        let adopted = system.adopt(socket, key, is_descriptor);
        let adopted = adopted.map_err(RegisterError::from);
        if let Err(error) = adopted.and_then(|entry| Ok(entry?)) {
            connections.slots.vacate(token.index, place);
            return Err(AdoptError::new(connection, error));
        }
        drop(place);
        room.keep();
        if connections.is_draining() {
            // Closing may have missed it.
            connections.interrupt_named(token, Reasons::DRAINING);
        }
        let mut held = Held::from_node(Box::new(Node {
            value: connection,
            connections: Arc::clone(connections),
            token,
            readiness: Readiness::new(socket),
        }));
        // If this panics, it is closed.
        held.adopted(Id(token));
        Ok(held)
    }
}

impl<T, M> Shared<T, M> {
    /// The system refuses to watch a connection, or a listener, which is closed then.
    #[cold]
    pub(super) fn on_refused(&self, key: usize, error: RegistrationError) {
        if let Some(node) = self.connections.take_back(key) {
            return self.refuse(node, error);
        }
        if let Some(id) = self.connections.close_listener(key) {
            self.notify(Message::NotAccepting(id, error.into()));
        }
    }

    /// The system refuses to watch a connection, or the port is closed.
    #[cold]
    fn refuse(&self, node: Box<Node<T>>, error: RegistrationError) {
        let is_lingering = node.readiness.phase == Phase::Lingering;
        let held = Held::from_node(node);
        if is_lingering || self.connections.is_closed() {
            // Nobody waits for it.
            return drop_all([held]);
        }
        self.notify(Message::Refused(held, error));
    }

    fn close(&self) -> Closed<T, M> {
        let mut closed = Closed {
            connections: Vec::new(),
            operations: Vec::new(),
            left_behind: 0,
            messages: Vec::new(),
        };
        if !self.connections.is_here() {
            return closed;
        }
        let (armed, residents) = self.connections.close();
        self.helpers.close();
        (closed.operations, closed.left_behind) = self.files.close_owned();
        let armed = armed.into_iter().map(Held::from_node);
        closed.connections.extend(armed.map(Held::into_inner));
        for message in lock::take(&self.messages) {
            match message {
                Message::Sent(message) | Message::Result(Ok(message)) => {
                    closed.messages.push(message);
                }
                Message::Accepted(held) => closed.connections.push(held.into_inner()),
                other => drop_all([other]),
            }
        }
        // These may refer to the port: no lock is held here, and no connection left in it.
        drop_all(residents);
        self.clock.clear();
        closed
    }
}
