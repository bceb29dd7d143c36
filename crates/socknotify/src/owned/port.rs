//! [`Port`]: a completion port that owns connections.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{fmt, io};

use super::held::{Home, Node};
use super::slots::{NEVER, Slots};
use super::wheel::Wheel;
use super::worker::{MESSAGE, TIMED_OUT, TIMER};
use super::{AdoptError, Held, Id, Interest, Worker};
use crate::sys::{self, AsSocket};
use crate::{
    CompletionPort, Entry, Error, EventFilter, Registration, RegistrationError, Snapshot, Trigger,
};

/// A completion port that owns connections of type `T`, and carries messages of type `M`.
///
/// Each thread that serves connections has a [`Worker`]. The port itself is for everybody: to bring
/// connections in, to cancel them, to send messages, and to close it all.
///
/// Dropping the port closes it.
///
/// # Examples
///
/// See the [module](super).
pub struct Port<T, M = ()> {
    shared: Arc<Shared<T, M>>,
}

/// What is kept under an index.
pub(super) enum Content<T> {
    Connection(Box<Node<T>>),
    Shared(Arc<T>),
}

/// What the port and its workers have in common.
pub(super) struct Shared<T, M> {
    pub(super) home: Arc<Home>,
    pub(super) slots: Slots<Content<T>>,
    pub(super) messages: Mutex<VecDeque<M>>,
    deadlines: Mutex<Deadlines>,
    /// When time was 0.
    start: Instant,
    /// Nothing is put into a slot any more.
    closed: AtomicBool,
}

struct Deadlines {
    wheel: Wheel,
    /// When the port posts the next TIMER.
    alarm: u64,
    /// Memory for what is over.
    over: Vec<u32>,
}

/// Ticks in a second. Deadlines are met to a tick or two.
const TICKS: u32 = 1000;

impl<T: AsSocket, M> Port<T, M> {
    /// Makes a port with one place for each processor.
    ///
    /// # Errors
    ///
    /// As [`CompletionPort::new`].
    pub fn new() -> Result<Self, Error> {
        CompletionPort::new().map(Self::from)
    }

    /// A thread's part of the port, with room for this many events at once; at least one.
    pub fn worker(&self, room: usize) -> Worker<T, M> {
        Worker::new(Arc::clone(&self.shared), room.max(1))
    }

    /// Give a connection its place in the port. It is not armed yet.
    ///
    /// The socket should be in non-blocking mode.
    ///
    /// # Errors
    ///
    /// The connection comes back when it is no socket, or belongs to another port, or this one already,
    /// and when the port is closed.
    pub fn adopt(&self, connection: T) -> Result<Held<T>, AdoptError<T>> {
        let socket = sys::raw(&connection);
        let home = &self.shared.home;
        let id = home.acquire();
        // It is made before the port can be closed, and so is swept when it is.
        self.shared.slots.get(id.index);
        let adopted = home.port.system().adopt(socket, id.index as usize);
        match either(adopted) {
            Ok(()) => {
                home.occupy(id, socket);
                Ok(Held::new(connection, home, id, socket))
            }
            Err(error) => {
                home.give_back(id);
                Err(AdoptError::new(connection, error))
            }
        }
    }

    /// Arm one connection at once. [`Worker::arm`] does so with the next call that waits, which is one
    /// step into the system for any number of connections.
    ///
    /// # Errors
    ///
    /// [`Error::Closed`]; the connection is closed with the port. If the system refuses to watch the
    /// socket, the connection is closed as well, and the reason is returned.
    ///
    /// # Panics
    ///
    /// If the connection belongs to another port.
    pub fn arm(&self, connection: Held<T>, interest: impl Into<Interest>) -> io::Result<()> {
        let Some(registration) = self.shared.put(connection, interest.into()) else {
            return Err(Error::Closed.into());
        };
        let index = registration.completion_key as u32;
        self.shared
            .home
            .port
            .register(registration)?
            .map_err(|error| {
                drop(self.shared.take_back(index));
                error.into()
            })
    }

    /// Serve one socket by many threads at once: register it for good, level- or edge-triggered.
    ///
    /// Each notification hands out another reference, as [`Event::Shared`](super::Event::Shared). This
    /// is for sockets whose operations are complete in themselves, such as UDP sockets.
    ///
    /// # Errors
    ///
    /// What keeps the socket from being registered; [`Error::Closed`].
    pub fn share(
        &self,
        socket: Arc<T>,
        filter: EventFilter,
        trigger: SharedTrigger,
    ) -> io::Result<Id> {
        let home = &self.shared.home;
        let id = home.acquire();
        let number = sys::raw(&*socket);
        home.occupy(id, number);
        let slot = self.shared.slots.get(id.index);
        *slot.content() = Some(Content::Shared(Arc::clone(&socket)));
        let key = id.index as usize;
        let enable = Registration::enable(&*socket, key, filter, trigger.into());
        either(home.port.register(enable))
            .map(|()| id)
            .inspect_err(|_| {
                slot.take();
                home.give_back(id);
            })
    }

    /// Serve a shared socket no longer. When no thread can be notified of it any more, it comes out as
    /// [`Event::Returned`](super::Event::Returned).
    ///
    /// # Errors
    ///
    /// [`RegistrationError::NotFound`] if it is none, or on its way already; [`Error::Closed`].
    pub fn unshare(&self, id: Id) -> io::Result<()> {
        let home = &self.shared.home;
        let socket = match &*self.shared.slots.get(id.index).content() {
            Some(Content::Shared(socket)) if home.is_current(id) => Arc::clone(socket),
            _ => return Err(RegistrationError::NotFound.into()),
        };
        either(home.port.register(Registration::remove(&*socket)))
    }

    /// Have a connection come out as [`Event::Cancelled`](super::Event::Cancelled): at once if it is
    /// armed, or else when it is armed the next time. False if it is closed already.
    pub fn cancel(&self, id: Id) -> bool {
        self.shared.home.cancel(id)
    }

    /// Send a message to whichever thread takes it, in its turn with everything else.
    ///
    /// # Errors
    ///
    /// The message comes back when the port is closed.
    pub fn send(&self, message: M) -> Result<(), SendError<M>> {
        let mut messages = lock(&self.shared.messages);
        messages.push_back(message);
        // Whoever wakes for it finds the lock free.
        let mut messages = Some(messages);
        let packet = Entry::new(MESSAGE, 0, 0);
        let system = self.shared.home.port.system();
        let outcome = system.post(&[packet], || drop(messages.take()));
        match (outcome, messages.as_mut().and_then(|it| it.pop_back())) {
            (Err(_), Some(message)) => Err(SendError(message)),
            _ => Ok(()),
        }
    }

    /// Close the port, and take back what is armed.
    ///
    /// Threads that wait are released with [`Error::Closed`]. A connection that a thread holds stays
    /// that thread's. Messages that nobody took are dropped.
    pub fn close(&self) -> Vec<T> {
        self.shared.close()
    }
}

impl<T, M> Port<T, M> {
    /// Run something that may block, and lend this thread's place to another meanwhile.
    pub fn blocking<R>(&self, work: impl FnOnce() -> R) -> R {
        self.shared.home.port.blocking(work)
    }

    /// What the port looks like at this moment, for diagnosis.
    pub fn snapshot(&self) -> Snapshot {
        self.shared.home.port.snapshot()
    }

    /// The port underneath.
    #[cfg_attr(
        not(unix),
        allow(dead_code, reason = "for other loops, which watch descriptors")
    )]
    pub(crate) fn completion_port(&self) -> &CompletionPort {
        &self.shared.home.port
    }

    /// The number of places: how many threads may run with events in hand.
    pub fn concurrency(&self) -> usize {
        self.shared.home.port.concurrency()
    }
}

/// Own connections with a port that was made with options.
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
        Port {
            shared: Arc::new(Shared {
                home: Arc::new(Home::new(port)),
                slots: Slots::new(),
                messages: Mutex::default(),
                deadlines: Mutex::new(Deadlines {
                    wheel: Wheel::new(),
                    alarm: NEVER,
                    over: Vec::new(),
                }),
                start: Instant::now(),
                closed: AtomicBool::new(false),
            }),
        }
    }
}

impl<T, M> Drop for Port<T, M> {
    fn drop(&mut self) {
        self.shared.close();
    }
}

impl<T, M> fmt::Debug for Port<T, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Port")
            .field("port", &self.shared.home.port)
            .finish_non_exhaustive()
    }
}

/// When a [shared](Port::share) socket is notified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharedTrigger {
    /// Whenever a wanted condition holds.
    Level,
    /// When a wanted condition begins to hold.
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

/// A message that could not be sent, because the port is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendError<M>(pub M);

impl<M> fmt::Display for SendError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the port is closed, and takes no message")
    }
}

impl<M: fmt::Debug> std::error::Error for SendError<M> {}

impl<M> From<SendError<M>> for io::Error {
    fn from(_: SendError<M>) -> Self {
        Error::Closed.into()
    }
}

/// One error for the call's and the entry's: here both have the same consequence.
fn either(outcome: Result<Result<(), RegistrationError>, Error>) -> io::Result<()> {
    Ok(outcome??)
}

pub(super) fn lock<V>(mutex: &Mutex<V>) -> MutexGuard<'_, V> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T, M> Shared<T, M> {
    /// Put a connection where its notification will find it, and say how to arm it. If the port is
    /// closed, so is the connection.
    pub(super) fn put(
        &self,
        connection: Held<T>,
        interest: Interest,
    ) -> Option<Registration<'static>>
    where
        T: AsSocket,
    {
        assert!(
            connection.is_of(&self.home),
            "a connection is armed in the port that adopted it"
        );
        // The port beneath knows if it is another one than was adopted.
        let socket = sys::raw(&*connection);
        let node = connection.into_node();
        let index = node.id.index;
        let slot = self.slots.get(index);
        let mut content = slot.content();
        // Whoever closes the port says so first, and then sweeps every slot.
        if self.closed.load(Ordering::SeqCst) {
            drop(content);
            drop(Held::from_node(node));
            return None;
        }
        *content = Some(Content::Connection(node));
        drop(content);
        if let Some(deadline) = interest.deadline {
            let at = self.ticks_until(deadline);
            if slot.set_deadline(at) {
                self.schedule(index, at);
            }
        }
        let key = index as usize;
        Some(Registration::arm(socket, key, interest.filter))
    }

    /// Take back a connection that could not be armed, unless it has come out meanwhile.
    pub(super) fn take_back(&self, index: u32) -> Option<Held<T>> {
        match self.slots.get(index).take() {
            Some(Content::Connection(node)) => Some(Held::from_node(node)),
            _ => None,
        }
    }

    /// The tick at whose beginning this time is over.
    fn ticks_until(&self, time: Instant) -> u64 {
        let time = time.saturating_duration_since(self.start);
        let ticks = time.as_nanos().div_ceil(u128::from(1_000_000_000 / TICKS));
        u64::try_from(ticks).map_or(NEVER - 1, |ticks| ticks.min(NEVER - 1))
    }

    /// The tick that has begun.
    fn now(&self) -> u64 {
        self.start.elapsed().as_millis() as u64
    }

    fn schedule(&self, index: u32, at: u64) {
        let mut deadlines = lock(&self.deadlines);
        let slot = self.slots.get(index);
        // Nobody else moves it: this thread has put the connection there, or it is gone again.
        deadlines.wheel.set(index, at);
        slot.set_look(at);
        self.set_alarm(&mut deadlines);
    }

    /// See to it that TIMER comes in time for the next deadline.
    fn set_alarm(&self, deadlines: &mut Deadlines) {
        let Some(next) = deadlines
            .wheel
            .next()
            .filter(|&next| next < deadlines.alarm)
        else {
            return;
        };
        let time = Duration::from_millis(next).saturating_sub(self.start.elapsed());
        let timer = Entry::new(TIMER, 0, 0);
        if self.home.port.system().post_after(time, timer).is_ok() {
            deadlines.alarm = next;
        }
    }

    /// TIMER has come: let the connections come out whose deadlines have passed.
    pub(super) fn expire(&self) {
        let now = self.now();
        let mut deadlines = lock(&self.deadlines);
        deadlines.alarm = NEVER;
        let mut over = std::mem::take(&mut deadlines.over);
        deadlines.wheel.advance(now, |index| over.push(index));
        for index in over.drain(..) {
            let slot = self.slots.get(index);
            slot.set_look(NEVER);
            let mut at = slot.deadline();
            if at <= now {
                match &*slot.content() {
                    Some(Content::Connection(node)) if !self.time_out(node) => at = now + 1,
                    _ => continue,
                }
            }
            if at != NEVER {
                deadlines.wheel.set(index, at);
                slot.set_look(at);
            }
        }
        deadlines.over = over;
        self.set_alarm(&mut deadlines);
    }

    /// False if it is just being armed, or notified: then it has to be looked at again.
    fn time_out(&self, node: &Node<T>) -> bool {
        let system = self.home.port.system();
        let (socket, key) = (node.socket, node.id.index as usize);
        system.interrupt(socket, key, TIMED_OUT, false)
    }

    fn close(&self) -> Vec<T> {
        self.closed.store(true, Ordering::SeqCst);
        self.home.port.close();
        lock(&self.messages).clear();
        let contents = self.slots.iter().filter_map(|slot| slot.take());
        contents
            .filter_map(|content| match content {
                Content::Connection(node) => Some(Held::from_node(node).into_inner()),
                Content::Shared(_) => None,
            })
            .collect()
    }
}
