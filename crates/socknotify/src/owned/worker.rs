//! [`Worker`]: a thread's part of a port; [`Event`]: what comes out of it.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::port::{Content, Shared, lock};
use super::{Held, Interest};
use crate::sys::AsSocket;
use crate::{Entry, Error, Events, Registration, RegistrationError};

/// Completion keys beside the indices of connections.
pub(super) const MESSAGE: usize = usize::MAX;
pub(super) const TIMER: usize = usize::MAX - 1;

/// What packets say in place of events.
pub(super) const CANCELLED: u32 = 1 << 30;
pub(super) const TIMED_OUT: u32 = 1 << 31;

/// Something that a port has for one thread.
///
/// There may be more of them in time. An arm for all others drops what they carry, and so closes a
/// connection of which a program does not know why it came out.
#[derive(Debug)]
#[must_use = "a connection that is not armed again is closed"]
#[non_exhaustive]
pub enum Event<T, M = ()> {
    /// What this connection waited for has come.
    Ready(Held<T>, Events),
    /// The connection's deadline has passed.
    TimedOut(Held<T>),
    /// The connection was [cancelled](super::Port::cancel).
    Cancelled(Held<T>),
    /// The system would not watch the connection.
    Refused(Held<T>, RegistrationError),
    /// Something has happened at a [shared](super::Port::share) socket. Other threads may be told of it
    /// as well.
    Shared(Arc<T>, Events),
    /// A shared socket that is [shared no longer](super::Port::unshare), and that no thread will be
    /// told of any more.
    Returned(Arc<T>),
    /// A [message](super::Port::send).
    Message(M),
}

/// A thread's part of a [`Port`](super::Port): what it hands back, and what it gets.
///
/// Made by [`Port::worker`](super::Port::worker) and used by one thread at a time. When it is dropped,
/// be it in a panic, what was handed to [`arm`](Self::arm) is armed, and events that were not taken go
/// to other threads.
///
/// # Examples
///
/// ```
/// use std::io::Write;
/// use std::net::{TcpListener, TcpStream};
/// use std::time::Duration;
/// use socknotify::Events;
/// use socknotify::owned::{Event, Interest, Port};
///
/// # fn main() -> std::io::Result<()> {
/// let port = Port::<TcpStream, &str>::new()?;
/// let mut worker = port.worker(16);
/// let listener = TcpListener::bind("127.0.0.1:0")?;
/// let mut theirs = TcpStream::connect(listener.local_addr()?)?;
/// let (ours, _) = listener.accept()?;
///
/// worker.arm(port.adopt(ours)?, Interest::IN.within(Duration::from_secs(10)));
/// theirs.write_all(b"x")?;
/// worker.process(None)?;
/// let Some(Event::Ready(connection, Events::IN)) = worker.take() else { panic!() };
///
/// let id = connection.id();
/// worker.arm(connection, Interest::OUT);
/// worker.process(None)?;
/// assert!(matches!(worker.take(), Some(Event::Ready(it, Events::OUT)) if it.id() == id));
///
/// port.send("hello")?;
/// worker.process(None)?;
/// assert!(matches!(worker.take(), Some(Event::Message("hello"))));
/// # Ok(())
/// # }
/// ```
pub struct Worker<T: AsSocket, M = ()> {
    shared: Arc<Shared<T, M>>,
    /// Handed back, and armed by the next call.
    armed: Vec<(Held<T>, Interest)>,
    registrations: Vec<Registration<'static>>,
    refused: Vec<(Held<T>, RegistrationError)>,
    /// The packets of the latest call, of which `taken` were taken.
    entries: Box<[Entry]>,
    count: usize,
    taken: usize,
}

impl<T: AsSocket, M> Worker<T, M> {
    pub(super) fn new(shared: Arc<Shared<T, M>>, room: usize) -> Self {
        Worker {
            shared,
            armed: Vec::with_capacity(room),
            registrations: Vec::with_capacity(room),
            refused: Vec::new(),
            entries: vec![Entry::default(); room].into(),
            count: 0,
            taken: 0,
        }
    }

    /// Hand a connection back to the port. It is armed by the next [`process`](Self::process).
    ///
    /// # Panics
    ///
    /// In the next `process`, if the connection belongs to another port.
    pub fn arm(&mut self, connection: Held<T>, interest: impl Into<Interest>) {
        self.armed.push((connection, interest.into()));
    }

    /// Arm all that was handed back, and wait for events: at least one, for at most this time, `None`
    /// for ever.
    ///
    /// Events of the call before that were not [taken](Self::take) stay, and then this does not wait.
    ///
    /// # Errors
    ///
    /// - [`Error::TimedOut`]: no event came in time.
    /// - [`Error::Closed`]: the port is closed, and what was handed back is, too.
    /// - [`Error::OtherProcess`]: this is a forked child of the port's process.
    pub fn process(&mut self, timeout: Option<Duration>) -> Result<(), Error> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut timeout = timeout;
        loop {
            let outcome = match self.taken < self.count {
                true => self.submit(),
                false => self.submit_and_wait(timeout),
            };
            if self.taken < self.count || !self.refused.is_empty() {
                return Ok(());
            }
            outcome?;
            // Nothing but the time has come.
            if let Some(deadline) = deadline {
                timeout = Some(deadline.saturating_duration_since(Instant::now()));
            }
        }
    }

    /// Arm what was handed back.
    fn submit(&mut self) -> Result<(), Error> {
        self.put_all();
        let port = &self.shared.home.port;
        let outcome = port.process(&mut self.registrations, &mut [], Some(Duration::ZERO));
        let outcome = outcome.map(drop);
        self.take_back_refused();
        outcome
    }

    /// The same, and take what is there, or comes in time.
    fn submit_and_wait(&mut self, timeout: Option<Duration>) -> Result<(), Error> {
        self.put_all();
        let port = &self.shared.home.port;
        let outcome = port.process(&mut self.registrations, &mut self.entries, timeout);
        let outcome = outcome.map(|found| (self.taken, self.count) = (0, found.len()));
        self.take_back_refused();
        outcome?;
        self.see_to_the_time();
        Ok(())
    }

    fn put_all(&mut self) {
        for (connection, interest) in self.armed.drain(..) {
            self.registrations
                .extend(self.shared.put(connection, interest));
        }
    }

    /// Take back what the system would not watch.
    fn take_back_refused(&mut self) {
        for registration in self.registrations.drain(..) {
            if let Err(error) = registration.result() {
                let connection = self.shared.take_back(registration.completion_key as u32);
                self.refused.extend(connection.map(|it| (it, error)));
            }
        }
    }

    /// Deadlines are the port's own affair.
    fn see_to_the_time(&mut self) {
        let found = &mut self.entries[..self.count];
        if found.iter().any(|entry| entry.completion_key == TIMER) {
            let mut kept = 0;
            for index in 0..found.len() {
                if found[index].completion_key != TIMER {
                    found[kept] = found[index];
                    kept += 1;
                }
            }
            self.count = kept;
            self.shared.expire();
        }
    }

    /// The next event of the latest call.
    pub fn take(&mut self) -> Option<Event<T, M>> {
        if let Some((connection, error)) = self.refused.pop() {
            return Some(Event::Refused(connection, error));
        }
        while self.taken < self.count {
            let entry = self.entries[self.taken];
            self.taken += 1;
            let event = self.shared.event(&entry);
            if event.is_some() {
                return event;
            }
        }
        None
    }
}

impl<T, M> Shared<T, M> {
    /// What a packet stands for.
    fn event(&self, entry: &Entry) -> Option<Event<T, M>> {
        if entry.completion_key == MESSAGE {
            return lock(&self.messages).pop_front().map(Event::Message);
        }
        let slot = self.slots.get(entry.completion_key as u32);
        let is_over = entry.events().contains(Events::REMOVE);
        let content = slot.content();
        if let (Some(Content::Shared(socket)), false) = (&*content, is_over) {
            return Some(Event::Shared(Arc::clone(socket), entry.events()));
        }
        match slot.take_from(content)? {
            Content::Shared(socket) => {
                self.home.end_sharing(entry.completion_key as u32);
                Some(Event::Returned(socket))
            }
            Content::Connection(node) => {
                let connection = Held::from_node(node);
                Some(match entry.transferred {
                    TIMED_OUT => Event::TimedOut(connection),
                    CANCELLED => Event::Cancelled(connection),
                    _ => Event::Ready(connection, entry.events()),
                })
            }
        }
    }
}

impl<T: AsSocket, M> Drop for Worker<T, M> {
    fn drop(&mut self) {
        self.refused.clear();
        let port = &self.shared.home.port;
        // If the port is closed, there is nobody to go to.
        let _ = port.post_all(&self.entries[self.taken..self.count]);
        let _ = self.submit();
        self.refused.clear();
    }
}

impl<T: AsSocket, M> fmt::Debug for Worker<T, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker")
            .field("armed", &self.armed.len())
            .field("events", &(self.count - self.taken))
            .finish_non_exhaustive()
    }
}
