//! [`Worker`]: one thread's handle to a port.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fmt, io};

use super::connect;
use super::home::{Fixture, Node};
use super::listener::Listener;
use super::mail::{self, Mailbox, WorkerId};
use super::messages::Message;
use super::packet::{
    ACCEPTED, CANCELLED, COMPLETED, DIRECT, DRAINING, HANDED_ON, MAIL, MESSAGE, OPERATION,
    PANICKED, REFUSED, TIMED_OUT, TIMER, is_completion,
};
use super::port::{Put, Shared};
use super::{BeginError, Event, FileOperation, Held, Id, Interest, OperationId, Port, Source};
use crate::lock::lock;
use crate::sys::RawSocket;
use crate::{Entry, Error, Events, Registration, RegistrationError};

/// How many times a call polls again after its timeout because it has dequeued only stale packets. There may be an
/// event behind those; but a registration that is not the port's may be reported for ever.
const MAX_POLLS: usize = 64;

/// One thread's handle to a [`Port`]: it arms connections and takes events.
///
/// Made by [`Port::worker`]. When it is dropped, also by a panic, connections passed to
/// [`arm`](Self::arm) are armed, events that were not taken go to other threads, and the thread's place is free.
/// Connections that the system refuses to watch are closed then, and messages to this worker alone are dropped.
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
pub struct Worker<T: Source, M = ()> {
    shared: Arc<Shared<T, M>>,
    mailbox: Arc<Mailbox<M>>,
    /// Messages to this worker that were not taken yet.
    mail: VecDeque<M>,
    /// A packet was dequeued that wakes a worker with messages, perhaps another one.
    is_mail_due: bool,
    /// Another worker has to be woken before this one takes anything.
    is_last: bool,
    /// Connections that were handed back are in their slots, and armed by the next call.
    registrations: Vec<Registration<'static>>,
    /// The keys of those with a deadline, and the deadlines in ticks.
    deadlines: Vec<(usize, u64)>,
    /// One of those may be refused.
    is_any_new: bool,
    /// Memory for packets.
    entries: Box<[Entry]>,
    /// Events that were dequeued and not taken, in reverse order.
    pending: Vec<Pending<T>>,
    /// The packets of listeners that were reported.
    listeners: Vec<Entry>,
    /// How many results of work were taken since the latest call.
    handled: usize,
}

/// An event that was not taken.
enum Pending<T> {
    /// The content of its packet.
    Connection(Box<Node<T>>, u32),
    Refused(Box<Node<T>>, RegistrationError),
    NotAccepting(Id, io::Error),
    /// The key of a shared socket. Whether it is still shared is checked when the event is taken.
    Shared(usize, Events),
    /// The first message of the port's list, when the event is taken.
    Message,
    /// The first panic of the port's list.
    Panic,
    /// An operation on a file, by its key.
    Operation(usize),
}

impl<T: Source, M> Port<T, M> {
    /// Makes a worker, for one thread, with room for this many events at once (at least one).
    pub fn worker(&self, room: usize) -> Worker<T, M> {
        Worker::new(Arc::clone(&self.shared), room.max(1))
    }
}

impl<T: Source, M> Worker<T, M> {
    fn new(shared: Arc<Shared<T, M>>, room: usize) -> Self {
        Worker {
            mailbox: shared.mailboxes.open(&shared.home),
            mail: VecDeque::new(),
            is_mail_due: false,
            is_last: false,
            shared,
            registrations: Vec::with_capacity(room),
            deadlines: Vec::new(),
            is_any_new: false,
            entries: vec![Entry::default(); room].into(),
            pending: Vec::with_capacity(room),
            listeners: Vec::new(),
            handled: 0,
        }
    }

    /// Hands a connection back to the port. The next [`process`](Self::process) arms it.
    ///
    /// There is no error to return: a connection that the system refuses to watch is reported as [`Event::Refused`],
    /// and if the port is closed, the connection is closed too.
    ///
    /// # Panics
    ///
    /// If the connection belongs to another port. It is deregistered there and closed; other connections of this
    /// worker are not affected.
    #[track_caller]
    pub fn arm(&mut self, connection: Held<T>, interest: impl Into<Interest>) {
        let interest = interest.into();
        let filter = interest.filter;
        match self.shared.put(connection, filter) {
            Put::Done {
                registration,
                is_new,
            } => {
                self.is_any_new |= is_new;
                if let Some(deadline) = interest.deadline() {
                    let at = self.shared.deadlines.ticks_until(deadline);
                    self.deadlines.push((registration.completion_key, at));
                }
                self.registrations.push(registration);
            }
            Put::Refused(node, error) => self.pending.push(Pending::Refused(node, error)),
            Put::Closed => {}
        }
    }

    /// Begins an operation on a file, as [`Port::begin`] does. It may wait for the next [`process`](Self::process),
    /// which begins any number of them in one system call.
    ///
    /// # Errors
    ///
    /// As [`Port::begin`].
    pub fn begin(
        &mut self,
        operation: FileOperation,
    ) -> Result<OperationId, BeginError<FileOperation>> {
        self.shared.begin(operation)
    }

    /// Arms the connections that were handed back, and waits for events, up to `timeout` (`None`: for ever).
    ///
    /// Returns the number of events to [take](Self::take); 0 if the time is over. So
    /// `while worker.process(timeout).is_ok()` loops until the port is closed.
    ///
    /// Events of the call before that were not taken are kept, and then this does not wait. Nor does it wait if the
    /// system refuses to watch a connection that was handed back.
    ///
    /// # Errors
    ///
    /// - [`Error::Closed`]: the port is closed, and so are the connections that were handed back.
    /// - [`Error::OtherProcess`]: this is a forked child of the port's process.
    pub fn process(&mut self, timeout: Option<Duration>) -> Result<usize, Error> {
        if !self.shared.home.is_here() {
            return Err(Error::OtherProcess);
        }
        self.end_work();
        let waits = timeout.filter(|timeout| !timeout.is_zero());
        let deadline = waits.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut timeout = timeout;
        let mut polls = 0;
        loop {
            let mut outcome = Ok(());
            // Connections that the system may refuse are armed before the wait, which would not end for them.
            if self.is_any_new || self.is_last || self.count() > 0 {
                outcome = self.submit();
            }
            if self.count() == 0 && outcome.is_ok() {
                outcome = self.wait(timeout, deadline);
            }
            if self.count() > 0 {
                return Ok(self.count());
            }
            match outcome {
                Err(Error::TimedOut) => return Ok(0),
                outcome => outcome?,
            }
            // There was only a tick of the timer, or stale packets.
            if let Some(deadline) = deadline {
                timeout = Some(deadline.saturating_duration_since(Instant::now()));
            }
            if timeout == Some(Duration::ZERO) {
                polls += 1;
                if polls == MAX_POLLS {
                    return Ok(0);
                }
            }
        }
    }

    /// The results of work that were taken are handled.
    #[inline]
    fn end_work(&mut self) {
        let handled = std::mem::take(&mut self.handled);
        if handled > 0 {
            self.shared.home.end_work(handled);
        }
    }

    /// The number of events to take.
    fn count(&self) -> usize {
        self.pending.len() + self.mail.len()
    }

    /// Arm what was handed back, and dequeue, up to the timeout; or take the messages to this worker.
    fn wait(&mut self, timeout: Option<Duration>, deadline: Option<Instant>) -> Result<(), Error> {
        if self.is_last && !self.let_others_go_first(timeout, deadline) {
            return Err(Error::TimedOut);
        }
        if !self.mailbox.begin_wait() {
            self.fetch_mail();
            return self.submit();
        }
        let outcome = self.submit_and_wait(timeout);
        self.end_wait();
        outcome
    }

    #[inline]
    fn end_wait(&mut self) {
        if !self.mailbox.end_wait() {
            self.fetch_mail();
        }
        if std::mem::take(&mut self.is_mail_due) {
            self.pass_mail_on();
        }
    }

    #[cold]
    fn fetch_mail(&mut self) {
        let mail = self.mailbox.fetch(&self.shared.home.roused);
        self.mail.extend(mail);
    }

    /// If another worker has to be woken, post its packet again, and take nothing until it is awake. Otherwise this one
    /// could dequeue the packet again and again, together with events of its own.
    #[cold]
    fn pass_mail_on(&mut self) {
        let home = &self.shared.home;
        self.is_last = home.roused.is_any() && home.port.post(mail::packet(home)).is_ok();
    }

    /// Wait, without a place, until no other worker has to be woken. False on a timeout.
    #[cold]
    fn let_others_go_first(
        &mut self,
        timeout: Option<Duration>,
        deadline: Option<Instant>,
    ) -> bool {
        self.release();
        let deadline = match timeout {
            Some(Duration::ZERO) => Some(Instant::now()),
            _ => deadline,
        };
        let home = &self.shared.home;
        self.is_last = !home.roused.wait(|| home.is_closed(), deadline);
        !self.is_last
    }

    /// Arm what was handed back.
    fn submit(&mut self) -> Result<(), Error> {
        self.set_deadlines();
        self.shared.files.flush();
        let port = &self.shared.home.port;
        let outcome = port.process(&mut self.registrations, &mut [], Some(Duration::ZERO));
        let outcome = outcome.map(drop);
        self.take_back_refused();
        outcome
    }

    /// The same, and dequeue, up to the timeout.
    fn submit_and_wait(&mut self, timeout: Option<Duration>) -> Result<(), Error> {
        self.set_deadlines();
        self.shared.files.flush();
        let port = &self.shared.home.port;
        let outcome = port.process(&mut self.registrations, &mut self.entries, timeout);
        let outcome = outcome.map(|found| found.len());
        self.take_back_refused();
        self.resolve(outcome?);
        Ok(())
    }

    /// A deadline does not pass before the connection can be interrupted: so it is set no earlier than
    /// this.
    fn set_deadlines(&mut self) {
        let Shared {
            deadlines, home, ..
        } = &*self.shared;
        for (key, at) in self.deadlines.drain(..) {
            deadlines.set(home, key, at);
        }
    }

    /// Take back the connections that the system refuses to watch.
    fn take_back_refused(&mut self) {
        self.is_any_new = false;
        for registration in &self.registrations {
            if let Err(error) = registration.result() {
                let key = registration.completion_key;
                let refused = match self.shared.take_back(key) {
                    Some(node) => Some(Pending::Refused(node, error)),
                    None => self.shared.refused_listener(key, error),
                };
                self.pending.extend(refused);
            }
        }
        self.registrations.clear();
    }

    /// Turn this many packets into events.
    fn resolve(&mut self, count: usize) {
        let home = &*self.shared.home;
        let mut is_timer_among = false;
        for entry in self.entries[..count].iter().rev() {
            let key = entry.completion_key;
            if let Some(mut place) = home.slots.get_by_key(key) {
                if let Some(node) = place.take() {
                    drop(place);
                    let says = entry.transferred;
                    self.pending.push(Pending::Connection(node, says));
                    continue;
                }
                match &place.fixture {
                    Some(Fixture::Shared(_)) => {
                        self.pending.push(Pending::Shared(key, entry.events()));
                    }
                    Some(Fixture::Listener(_)) => self.listeners.push(*entry),
                    None => {}
                }
            } else if key == home.slots.reserved_key(MESSAGE) {
                self.pending.push(Pending::Message);
            } else if key == home.slots.reserved_key(PANICKED) {
                self.pending.push(Pending::Panic);
            } else if key == home.slots.reserved_key(OPERATION) {
                self.pending.push(Pending::Operation(entry.overlapped));
            } else if key == home.slots.reserved_key(DIRECT) {
                let operation = self.shared.files.settle_packet(entry);
                self.pending.extend(operation.map(Pending::Operation));
            } else if key == home.slots.reserved_key(TIMER) {
                is_timer_among = true;
            } else if key == home.slots.reserved_key(MAIL) {
                self.is_mail_due = true;
            } else if key == home.slots.reserved_key(REFUSED) {
                let refused = lock(&self.shared.refused).pop_front();
                let refused = refused.map(|(node, error)| Pending::Refused(node, error));
                self.pending.extend(refused);
            }
        }
        if is_timer_among {
            self.shared.ring();
        }
        if !self.listeners.is_empty() {
            self.accept();
        }
    }

    /// Accept from the listeners that were reported, and arm all connections at once.
    ///
    /// Making a connection and dropping a listener run the caller's code. If that panics, this worker may not be used
    /// any more, and what it has dequeued for others goes to them.
    #[cold]
    fn accept(&mut self) {
        let accept = || self.accept_from_all();
        if let Err(panic) = catch_unwind(AssertUnwindSafe(accept)) {
            let rest = self.listeners.drain(..).rev().map(|entry| {
                // The completion of the operation is recorded, and its memory may be reused.
                let is_completion = is_completion(&entry);
                let overlapped = if is_completion { COMPLETED } else { HANDED_ON };
                Entry::new(entry.completion_key, entry.transferred, overlapped)
            });
            let rest = rest.collect::<Vec<_>>();
            let _ = self.shared.home.port.post_all(&rest);
            self.end_wait();
            resume_unwind(panic);
        }
    }

    fn accept_from_all(&mut self) {
        // The first packet of a listener takes all of its connections, in their order.
        let home = &self.shared.home;
        for entry in self.listeners.iter().rev().filter(|it| is_completion(it)) {
            if let Some((_, _, listener)) = home.listener(entry.completion_key) {
                listener.on_completed(entry);
            }
        }
        while let Some(entry) = self.listeners.pop() {
            let home = &self.shared.home;
            let key = entry.completion_key;
            let is_over = home.is_draining() || [CANCELLED, DRAINING].contains(&entry.transferred);
            if is_over && is_completion(&entry) {
                // Another packet closes it.
                continue;
            }
            if is_over {
                home.close_listener(key);
            } else if let Some((id, socket, listener)) = home.listener(key) {
                self.accept_from(&entry, id, socket, &listener);
            }
        }
        if !self.pending.is_empty() {
            // These are for the caller, which may not call again soon.
            let _ = self.submit();
        }
    }

    fn accept_from(&mut self, entry: &Entry, id: Id, socket: RawSocket, listener: &Listener<T>) {
        let shared = Arc::clone(&self.shared);
        let mut accepted = Vec::new();
        let accept = || {
            shared.home.accept_from(listener, |room, connection| {
                // If it is not adopted, the port was closed meanwhile.
                let Ok(held) = shared.adopt(room, connection) else {
                    return;
                };
                match listener.interest() {
                    Some(interest) => self.arm(held, interest),
                    None => accepted.push(Pending::Connection(held.into_node(), ACCEPTED)),
                }
            })
        };
        let outcome = catch_unwind(AssertUnwindSafe(accept));
        self.pending.extend(accepted.into_iter().rev());
        let (mut round, panic) = match outcome {
            Ok(round) => (round, None),
            Err(panic) => (listener.idle(), Some(panic)),
        };
        listener.replenish(&mut round);
        // The reason for a pause is reported once.
        if let Some(error) = round.error {
            self.pending.push(Pending::NotAccepting(id, error));
        }
        let key = entry.completion_key;
        if let Some(until) = round.until {
            let at = shared.deadlines.ticks_until(until);
            self.deadlines.push((key, at));
        }
        // A completion leaves the listener armed.
        if !is_completion(entry) {
            let arm = Registration::arm(socket, key, round.filter, round.is_drained);
            self.registrations.push(arm);
        }
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }

    /// Identifies this worker, for [`Port::send_to`].
    pub fn id(&self) -> WorkerId {
        self.mailbox.id()
    }

    /// Gives this thread's place back. Call it before the thread does something else for long. See
    /// [`CompletionPort::release`](crate::CompletionPort::release).
    pub fn release(&self) {
        self.shared.home.port.release();
    }

    /// Takes the next event of the latest [`process`](Self::process).
    ///
    /// There may be fewer than `process` returned: messages are dropped when the port is closed, and events of a
    /// shared socket when another thread has taken its [last one](Event::Returned).
    ///
    /// # Panics
    ///
    /// If work of [`Port::run`], or the clone of a message of [`Port::send_every`], has panicked: with that panic.
    pub fn take(&mut self) -> Option<Event<T, M>> {
        if !self.shared.home.is_here() {
            return None;
        }
        if let Some(message) = self.mail.pop_front() {
            return Some(Event::Message(message));
        }
        loop {
            let event = match self.pending.pop()? {
                Pending::Connection(node, says) => Some(connection_event(node, says)),
                Pending::NotAccepting(id, error) => Some(Event::NotAccepting(id, error)),
                Pending::Refused(node, error) => Some(Event::Refused(Held::from_node(node), error)),
                Pending::Shared(key, events) => self.shared.shared_event(key, events),
                Pending::Message => match lock(&self.shared.messages).pop_front() {
                    Some(Message::Sent(message)) => Some(Event::Message(message)),
                    Some(Message::Result(message)) => {
                        self.handled += 1;
                        Some(Event::Message(message))
                    }
                    None => None,
                },
                Pending::Panic => match lock(&self.shared.panics).pop_front() {
                    Some(panic) => {
                        self.handled += 1;
                        resume_unwind(panic)
                    }
                    None => None,
                },
                Pending::Operation(key) => {
                    let completion = self.shared.completed(key);
                    self.handled += usize::from(completion.is_some());
                    completion.map(Event::Completed)
                }
            };
            if event.is_some() {
                return event;
            }
        }
    }
}

#[inline]
fn connection_event<T: Source, M>(mut node: Box<Node<T>>, says: u32) -> Event<T, M> {
    match says {
        TIMED_OUT if node.readiness.is_connecting => connect::timed_out(node),
        TIMED_OUT => Event::TimedOut(Held::from_node(node)),
        CANCELLED => {
            // This packet may have come in place of arming it.
            node.readiness.unwatch();
            Event::Cancelled(Held::from_node(node))
        }
        ACCEPTED => Event::Accepted(Held::from_node(node)),
        DRAINING => {
            node.readiness.unwatch();
            Event::Draining(Held::from_node(node))
        }
        events => {
            let events = Events::from_bits_truncate(events);
            if node.readiness.is_connecting {
                return connect::outcome(node, events);
            }
            Event::Ready(Held::from_node(node), events)
        }
    }
}

impl<T, M> Shared<T, M> {
    /// The event of a shared socket, unless another thread has had the last one.
    fn shared_event(&self, key: usize, events: Events) -> Option<Event<T, M>> {
        let slots = &self.home.slots;
        if events.contains(Events::REMOVE) {
            return match slots.remove_by_key(key)?.fixture? {
                Fixture::Shared(socket) => Some(Event::Returned(socket)),
                Fixture::Listener(_) => None,
            };
        }
        let socket = Arc::clone(slots.get_by_key(key)?.shared()?);
        Some(Event::Shared(socket, events))
    }

    /// The system refuses to watch a listener any more: close it.
    #[cold]
    fn refused_listener(&self, key: usize, error: RegistrationError) -> Option<Pending<T>> {
        let (id, ..) = self.home.listener(key)?;
        self.home.close_listener(key);
        Some(Pending::NotAccepting(id, error.into()))
    }

    /// Pass events to other threads: put connections back in their slots, and queue the packets
    /// again. Returns events that cannot be passed on.
    fn hand_on(&self, pending: impl Iterator<Item = Pending<T>>) -> Vec<Held<T>> {
        let mut packets = Vec::new();
        let mut rest = Vec::new();
        for pending in pending {
            match pending {
                Pending::Connection(node, says) => {
                    let key = node.key();
                    match self.home.put(node) {
                        Ok(()) => packets.push(Entry::new(key, says, HANDED_ON)),
                        Err(node) => rest.push(Held::from_node(node)),
                    }
                }
                Pending::Refused(node, _) => rest.push(Held::from_node(node)),
                Pending::Shared(key, events) => {
                    packets.push(Entry::new(key, events.bits(), HANDED_ON));
                }
                Pending::NotAccepting(..) => {}
                Pending::Message => packets.push(self.message_packet()),
                Pending::Panic => {
                    packets.push(Entry::new(self.home.slots.reserved_key(PANICKED), 0, 0));
                }
                Pending::Operation(key) => packets.push(self.files.packet(key)),
            }
        }
        // If the port is closed, no thread can take them.
        let _ = self.home.port.post_all(&packets);
        rest
    }
}

impl<T: Source, M> Drop for Worker<T, M> {
    fn drop(&mut self) {
        if !self.shared.home.is_here() {
            return;
        }
        let _ = self.submit();
        self.release();
        self.end_work();
        // Dropping this may panic, so it comes last.
        let _mail = self
            .shared
            .mailboxes
            .close(&self.shared.home, &self.mailbox);
        let _rest = self.shared.hand_on(self.pending.drain(..).rev());
    }
}

impl<T: Source, M> fmt::Debug for Worker<T, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker")
            .field("armed", &self.registrations.len())
            .field("events", &self.pending.len())
            .finish_non_exhaustive()
    }
}
