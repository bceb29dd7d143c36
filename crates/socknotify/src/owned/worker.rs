//! [`Worker`]: one thread's handle to a port.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::connect;
use super::connections::{Armed, Looked, NEVER, Node, Resident, ToDo, Wish, drop_all};
use super::hand::{Hand, Hands};
use super::linger;
use super::listener::{Listener, Round};
use super::lists::Listed;
use super::messages::Message;
use super::packet::{Packet, is_completion, is_to_take};
use super::port::{Notice, Shared};
use super::record::Reasons;
use super::{BeginError, Event, FileOperation, Held, Id, Interest, OperationId, Port, Source};
use crate::engine::{Caller, Left, Polls};
use crate::handover::Handover;
use crate::lock::lock;
use crate::sys;
use crate::{Entry, Error, EventFilter, Events, Registration, RegistrationError};

/// How many times a call polls again after its timeout because it has dequeued only stale packets. There may be an
/// event behind those; but a registration that is not the port's may be reported for ever.
const MAX_POLLS: usize = 64;

/// One thread's handle to a [`Port`]: it arms connections and takes events.
///
/// Made by [`Port::worker`]. When it is dropped, also by a panic, connections passed to
/// [`arm`](Self::arm) are armed, events that were not taken go to other threads, and the thread's place is free.
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
/// let port = Port::<TcpStream, &str>::with_messages()?;
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
    /// Events that were dequeued and not taken, and connections that were handed back and not armed.
    hand: Arc<Hand>,
    /// All hands of the thread that dequeued last.
    hands: Arc<Hands>,
    /// The same, for the port.
    handover: Arc<dyn Handover>,
    /// What the next call arms, and what it polls. Others can take it from the hand.
    registrations: Vec<Registration<'static>>,
    polls: Polls,
    /// One of those may be refused.
    is_any_new: bool,
    /// The thread has a place, since it has dequeued: others look whether it blocks, so what is to be armed can wait.
    has_place: bool,
    /// Memory for packets.
    entries: Box<[Entry]>,
    /// The packets of listeners that were reported.
    listeners: Vec<Entry>,
    /// How many results of work were taken since the latest call.
    handled: usize,
}

/// How many connections are accepted at most before a listener is closed: more than a backlog has room for.
const LAST_BATCH: usize = 1 << 16;

/// The maximum room: more than a thread handles before others should see what is ready.
const MOST: usize = 4096;

impl<T: Source, M> Port<T, M> {
    /// Makes a worker, for one thread, with room for this many events at once: 1 to 4,096. 64 is a good choice for
    /// almost every program.
    ///
    /// Room is a maximum. A larger one saves system calls while many connections are ready: with 64, a call costs each
    /// event little. If the thread blocks, other threads get the events that it has dequeued and not taken.
    pub fn worker(&self, room: usize) -> Worker<T, M> {
        Worker::new(Arc::clone(&self.shared), room.clamp(1, MOST))
    }
}

impl<T: Source, M> Worker<T, M> {
    fn new(shared: Arc<Shared<T, M>>, room: usize) -> Self {
        let system = shared.connections.port.system();
        let operation = Packet::Operation.key(&shared.connections.slots);
        let hand = Hand::new(system, &shared.files, operation, room);
        let hands = Hands::of(&hand);
        let handover: Arc<dyn Handover> = Arc::clone(&hands) as Arc<dyn Handover>;
        Worker {
            shared,
            hand,
            hands,
            handover,
            registrations: Vec::new(),
            polls: Polls::default(),
            is_any_new: false,
            has_place: false,
            entries: vec![Entry::default(); room].into(),
            listeners: Vec::new(),
            handled: 0,
        }
    }

    /// Hands a connection back to the port. The next [`process`](Self::process) arms it, at the latest.
    ///
    /// There is no error to return: a connection that the system refuses to watch is reported as [`Event::Refused`],
    /// and if the port is closed, the connection is closed too.
    ///
    /// # Panics
    ///
    /// If the connection belongs to another port. It is deregistered there and closed; other connections of this
    /// worker are not affected.
    #[doc(alias = "reregister")]
    #[track_caller]
    pub fn arm(&mut self, connection: Held<T>, interest: Interest) {
        match self.shared.put(connection, interest) {
            Ok(None) => {}
            Ok(Some(to_do)) => {
                self.is_any_new |= to_do.is_new;
                self.list(&to_do);
            }
            Err(refused) => self.notify(refused),
        }
    }

    /// The next call does what is left to do; or another thread, if this one blocks.
    #[inline]
    fn list(&mut self, to_do: &ToDo) {
        if to_do.left == Left::Nothing {
            return;
        }
        let listed = self.hand.lists.list(to_do.key);
        match to_do.left {
            Left::Poll(interest) => self.polls.add(interest),
            _ => self.registrations.extend(to_do.arm()),
        }
        let is_kept = match listed {
            _ if !self.has_place => false,
            Listed::More => true,
            Listed::First => !self.shared.connections.port.system().is_unwatched(),
            Listed::Not => false,
        };
        if !is_kept {
            let _ = self.submit();
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
        let id = self.shared.begin(operation)?;
        let is_left = !self.has_place || self.hand.lists.was_taken();
        if is_left || self.shared.connections.port.system().is_unwatched() {
            self.shared.files.flush();
        }
        Ok(id)
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
    #[doc(alias = "epoll_wait")]
    #[doc(alias = "ProcessSocketNotifications")]
    pub fn process(&mut self, timeout: Option<Duration>) -> Result<usize, Error> {
        self.process_beside(timeout, &mut |_| {})
    }

    /// The same. Before functions of listeners and timers run, which may block, this calls `on_busy` with true: the thread waits
    /// no more. Before it waits again, with false.
    pub(super) fn process_beside(
        &mut self,
        timeout: Option<Duration>,
        on_busy: &mut dyn FnMut(bool),
    ) -> Result<usize, Error> {
        if !self.shared.connections.is_here() {
            return Err(Error::OtherProcess);
        }
        let may_wait = timeout != Some(Duration::ZERO);
        if let Some(hands) = Hands::enter(&self.hands, &self.hand, may_wait) {
            self.handover = Arc::clone(&hands) as Arc<dyn Handover>;
            self.hands = hands;
            // That was another thread's.
            self.has_place = false;
        }
        self.end_work();
        let waits = timeout.filter(|timeout| !timeout.is_zero());
        let deadline = waits.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut timeout = timeout;
        let mut polls = 0;
        if !self.hand.lists.begin() {
            self.registrations.clear();
            self.polls.clear();
            // The thread may have left its place, and does not dequeue if there are events.
            self.has_place = false;
        }
        let mut events = self.hand.lists.events();
        loop {
            self.shared.files.flush();
            let mut outcome = Ok(());
            // Connections that the system may refuse are armed before the wait, which would not end for them.
            if self.is_any_new || events > 0 {
                outcome = self.submit_gathered();
                events = self.hand.lists.events();
            }
            if events == 0 && outcome.is_ok() {
                outcome = self
                    .submit_and_wait(timeout, on_busy)
                    .map(|count| events = count);
                if outcome.is_err() {
                    // What was not known to be new may be refused, too.
                    events = self.hand.lists.events();
                }
            }
            if events > 0 {
                let system = self.shared.connections.port.system();
                if events > 1 && !self.has_place {
                    // Nobody looks at this thread, and if it blocked, they would wait.
                    self.hand.flow_on_but_next();
                    return Ok(1);
                }
                if events > 1 && system.is_unwatched() {
                    system.look_after();
                }
                return Ok(events);
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
            self.hand.lists.settle();
            events = self.hand.lists.events();
        }
    }

    /// The results of work that were taken are handled.
    #[inline]
    fn end_work(&mut self) {
        let handled = std::mem::take(&mut self.handled);
        if handled > 0 {
            self.shared.connections.end_work(handled);
        }
    }

    /// Arm what was handed back.
    #[cold]
    fn submit(&mut self) -> Result<(), Error> {
        self.hand.lists.settle();
        self.shared.files.flush();
        self.submit_gathered()
    }

    /// Arm what was gathered.
    fn submit_gathered(&mut self) -> Result<(), Error> {
        self.call(0, Some(Duration::ZERO)).map(drop)
    }

    /// The same, and dequeue, up to the timeout. Returns how many events there are.
    fn submit_and_wait(
        &mut self,
        timeout: Option<Duration>,
        on_busy: &mut dyn FnMut(bool),
    ) -> Result<usize, Error> {
        let outcome = self.call(self.entries.len(), timeout);
        self.has_place = outcome.is_ok();
        if !self.has_place {
            self.hands.leave(&self.hand);
        }
        Ok(self.resolve(outcome?, on_busy))
    }

    /// Arm what was gathered, and dequeue this much. Returns how much there is.
    #[inline]
    fn call(&mut self, room: usize, timeout: Option<Duration>) -> Result<usize, Error> {
        let caller = Caller {
            polls: &mut self.polls,
            handover: &self.handover,
        };
        let outcome = self.shared.connections.port.system().process(
            &mut self.registrations,
            &mut self.entries[..room],
            timeout,
            Some(caller),
        );
        self.take_back_refused();
        outcome
    }

    fn has_gathered(&self) -> bool {
        !(self.registrations.is_empty() && self.polls.is_empty())
    }

    /// Take back the connections that the system refuses to watch.
    fn take_back_refused(&mut self) {
        self.is_any_new = false;
        if self.registrations.iter().any(|it| it.result().is_err()) {
            let registrations = std::mem::take(&mut self.registrations);
            for registration in &registrations {
                if let Err(error) = registration.result() {
                    self.on_refused(registration.completion_key, error);
                }
            }
        }
        self.registrations.clear();
        self.polls.clear();
        if !self.polls.refused.is_empty() {
            for (key, error) in std::mem::take(&mut self.polls.refused) {
                self.on_refused(key, error);
            }
        }
    }

    /// The system refuses to watch a connection, or a listener, which is closed then.
    #[cold]
    fn on_refused(&mut self, key: usize, error: RegistrationError) {
        let connections = &self.shared.connections;
        if let Some(node) = connections.take_back(key) {
            return self.notify(Notice::Refused(node, error));
        }
        // Closing it drops the last reference to it.
        let listener = connections.listener(key);
        if let Some(id) = listener.filter(|_| !self.shared.connections.is_closed()) {
            self.close_listener(key);
            self.notify(Notice::NotAccepting(id, error.into()));
        }
    }

    /// Close a listener, which runs the caller's code.
    #[cold]
    fn close_listener(&mut self, key: usize) {
        let id = self.shared.connections.listener(key);
        let close = || self.shared.connections.close_listener(key);
        if let Err(panic) = catch_unwind(AssertUnwindSafe(close)) {
            self.notify(Notice::Panicked(id, panic));
        }
    }

    /// Report something to this worker.
    fn notify(&mut self, notice: Notice<T>) {
        let packet = self.shared.list(notice);
        self.add_event(packet);
    }

    #[cold]
    fn add_event(&mut self, packet: Entry) {
        self.hand.lists.add_behind(packet);
    }

    /// Turn this many packets into events. Returns how many there are.
    fn resolve(&mut self, count: usize, on_busy: &mut dyn FnMut(bool)) -> usize {
        let shared = &*self.shared;
        let connections = &*shared.connections;
        let mut is_timer_among = false;
        let mut events = 0;
        for index in 0..count {
            let entry = &mut self.entries[index];
            let is_event = is_to_take(entry)
                || match connections.look(entry) {
                    Looked::Event => true,
                    Looked::Nothing => false,
                    Looked::Listener => {
                        self.listeners.push(*entry);
                        false
                    }
                    Looked::Arm(to_do) => {
                        match to_do.left {
                            Left::Poll(interest) => self.polls.add(interest),
                            _ => self.registrations.extend(to_do.arm()),
                        }
                        false
                    }
                    Looked::Other => match Packet::of_port(entry, &connections.slots) {
                        Some(Packet::Message | Packet::Notice) => true,
                        Some(Packet::Timer) => {
                            is_timer_among = true;
                            false
                        }
                        Some(Packet::Operation) => shared.files.on_dequeued(entry.overlapped),
                        Some(Packet::KernelIo) => match shared.files.on_kernel_packet(entry) {
                            Some(packet) => {
                                *entry = packet;
                                shared.files.on_dequeued(packet.overlapped)
                            }
                            None => false,
                        },
                        // It is stale.
                        _ => false,
                    },
                };
            if is_event {
                // In place of one before it that is none.
                if events != index {
                    self.entries[events] = self.entries[index];
                }
                events += 1;
            }
        }
        self.hand.lists.add(&self.entries[..events]);
        if events > 1 && self.hand.lists.was_taken() {
            // It was seen to block within this call. Others do not look again.
            self.hand.flow_on_but_next();
        }
        if self.has_gathered() {
            // What other workers have left to be armed: this thread may not call again soon.
            let _ = self.submit();
        }
        let is_drain_over = is_timer_among && self.shared.ring();
        let is_any_due = is_timer_among && self.shared.is_any_due();
        if !self.listeners.is_empty() || is_drain_over || is_any_due {
            self.call_functions(is_drain_over, on_busy);
        }
        self.hand.lists.len().0
    }

    /// Call the caller's functions, of timers and of listeners. If one blocks, what the thread has in hand flows on.
    #[cold]
    fn call_functions(&mut self, is_drain_over: bool, on_busy: &mut dyn FnMut(bool)) {
        self.hand.lists.add_listeners(&self.listeners);
        self.listeners.clear();
        on_busy(true);
        let system = self.shared.connections.port.system();
        if system.is_unwatched() {
            system.look_after();
        }
        if is_drain_over {
            drop_all(self.shared.connections.end(true));
        }
        self.shared.call_due();
        self.accept();
        if self.hand.lists.len().0 == 0 {
            on_busy(false);
        }
    }

    /// Accept from the listeners that were reported, and arm all connections at once.
    ///
    /// Making a connection and dropping a listener run the caller's code. If that panics, an event reports it; if it
    /// blocks, what the thread has in hand flows on, other listeners too.
    #[cold]
    fn accept(&mut self) {
        loop {
            let packets = self.hand.lists.take_listener();
            let Some(&first) = packets.first() else {
                break;
            };
            for completion in packets.iter().filter(|it| is_completion(it)) {
                let taken = self.shared.connections.take_listener(completion);
                // The last reference, if the port was closed meanwhile.
                drop_all(taken.map(|(_, listener, _)| {
                    listener.on_completed(completion);
                    listener
                }));
            }
            // One of them takes all of its connections, in their order; that which armed it arms it again.
            let others = packets.iter().filter(|it| !is_completion(it));
            let completed = is_completion(&first).then_some(&first);
            for entry in completed.into_iter().chain(others) {
                self.accept_for(entry);
            }
        }
        if self.hand.lists.was_taken() {
            // This thread has blocked within this call. Others do not look again.
            self.hand.flow_on_but_next();
        }
        if self.hand.lists.len() != (0, 0) || self.has_gathered() {
            // These are for the caller, which may not call again soon.
            let _ = self.submit();
        }
    }

    fn accept_for(&mut self, entry: &Entry) {
        let connections = &self.shared.connections;
        let Some((id, listener, reasons)) = connections.take_listener(entry) else {
            return;
        };
        let is_draining = connections.is_draining();
        let ends = is_draining || reasons.intersects(ENDS) || listener.is_ending();
        if !is_completion(entry) && ends {
            if let Some(pause) = self.accept_last(id, &listener) {
                self.arm_listener(entry, &pause);
                return drop_all([listener]);
            }
            drop(listener);
            return self.close_listener(entry.completion_key);
        }
        // Of a listener that accepts in advance, another packet closes it.
        if !is_draining {
            self.accept_from(entry, id, &listener);
        }
        // The last reference, if the port was closed meanwhile.
        drop_all([listener]);
    }

    /// A listener is about to be closed: accept what has come. Returns a pause if connections wait, and it is to try again.
    fn accept_last(&mut self, id: Id, listener: &Listener<T>) -> Option<Round> {
        let tries_again = listener.end();
        let mut most = LAST_BATCH;
        let round = loop {
            let accept = || self.accept_batch(listener, &mut most, false);
            match catch_unwind(AssertUnwindSafe(accept)) {
                Ok(round) => break round,
                Err(panic) => self.notify(Notice::Panicked(Some(id), panic)),
            }
        };
        // Without descriptors a system fails before it looks whether one waits.
        let is_left = round.error.is_some() && self.shared.connections.is_any_waiting(id);
        if is_left && tries_again {
            return Some(round);
        }
        if let (Some(error), true) = (round.error, is_left) {
            self.notify(Notice::NotAccepting(id, error));
        }
        None
    }

    /// Accept a batch, and arm or report each connection. This runs the caller's code.
    fn accept_batch(&mut self, listener: &Listener<T>, most: &mut usize, has_limit: bool) -> Round {
        let shared = Arc::clone(&self.shared);
        let connections = &shared.connections;
        connections.accept_from(listener, most, has_limit, |room, connection| {
            // If it is not adopted, the port was closed meanwhile.
            let Ok(held) = shared.adopt(room, connection) else {
                return;
            };
            if listener.blocks() {
                shared.connections.block(held.id().0);
            }
            match listener.interest() {
                Some(interest) => self.arm(held, interest),
                None => self.report_accepted(held),
            }
        })
    }

    fn accept_from(&mut self, entry: &Entry, id: Id, listener: &Listener<T>) {
        let mut round = loop {
            let mut most = listener.listening.batch;
            let accept = || self.accept_batch(listener, &mut most, true);
            match catch_unwind(AssertUnwindSafe(accept)) {
                Ok(round) => break round,
                Err(panic) => self.notify(Notice::Panicked(Some(id), panic)),
            }
            // Others that were accepted in advance have had their packets: nothing tells of them again.
            if listener.is_watched() {
                break listener.idle();
            }
        };
        listener.replenish(&mut round);
        match (listener.change(&round), round.error.take()) {
            (Some(true), Some(error)) => self.notify(Notice::NotAccepting(id, error)),
            (Some(false), _) => self.notify(Notice::Accepting(id)),
            _ => {}
        }
        self.arm_listener(entry, &round);
    }

    /// Arm a listener again, after a batch.
    fn arm_listener(&mut self, entry: &Entry, round: &Round) {
        let key = entry.completion_key;
        let shared = &*self.shared;
        let until = round.until.map(|until| shared.deadlines.ticks_until(until));
        let wish = Wish {
            filter: round.filter,
            is_drained: round.is_drained,
            deadline: until.unwrap_or(NEVER),
        };
        // A completion leaves the listener armed.
        if is_completion(entry) {
            if let Some(until) = until {
                shared.deadlines.set(&shared.connections, key, until);
            }
        } else if let Some(to_do) = shared.connections.put_listener(key, &wish) {
            if to_do.is_late {
                shared.deadlines.schedule(&shared.connections, key);
            }
            self.list(&to_do);
        }
    }

    fn report_accepted(&mut self, connection: Held<T>) {
        match self.shared.connections.put_accepted(connection.into_node()) {
            Ok(packet) => self.add_event(packet),
            Err(node) => drop(Held::from_node(node)),
        }
    }

    /// Runs work that may block, and lends this thread's place to another thread meanwhile, at once: see
    /// [`CompletionPort::blocking`](crate::CompletionPort::blocking).
    ///
    /// Events that were dequeued and not [taken](Self::take) go to other threads, and connections passed to
    /// [`arm`](Self::arm) are armed.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// # let port = socknotify::owned::Port::<std::net::TcpStream>::new()?;
    /// # let mut worker = port.worker(64);
    /// let text = worker.blocking(|| std::fs::read_to_string("/proc/self/limits"));
    /// # drop(text);
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "block_in_place")]
    pub fn blocking<R>(&mut self, work: impl FnOnce() -> R) -> R {
        self.hand.flow_on();
        self.shared.connections.port.blocking(work)
    }

    /// Gives this thread's place back, and events that were not taken to other threads. Call it before the thread does
    /// something else for long. See [`CompletionPort::release`](crate::CompletionPort::release).
    pub fn release(&self) {
        self.hand.flow_on();
        self.shared.connections.port.release();
    }

    /// Takes the next event of the latest [`process`](Self::process).
    ///
    /// There may be fewer than `process` returned: other threads get those that wait while this thread
    /// [blocks](Self::blocking), or once it finds nothing with another worker of the port; some were of connections that [linger](Self::linger); when the port is closed, its
    /// connections and messages are [returned](Port::close); and events of a shared socket are dropped when another thread has taken its [last
    /// one](Event::Returned).
    pub fn take(&mut self) -> Option<Event<T, M>> {
        if !self.shared.connections.is_here() {
            return None;
        }
        while let Some(packet) = self.hand.lists.claim() {
            let event = self.shared.event(packet, &mut self.handled);
            if event.is_some() {
                return event;
            }
        }
        match self.hand.lists.has_more() {
            true => self.take_behind(),
            false => None,
        }
    }

    /// The same, of those that stand behind the others.
    #[cold]
    fn take_behind(&mut self) -> Option<Event<T, M>> {
        while let Some(packet) = self.hand.lists.claim_behind() {
            let event = self.shared.event(packet, &mut self.handled);
            if event.is_some() {
                return event;
            }
        }
        None
    }
}

/// The reasons that close a listener.
const ENDS: Reasons = Reasons::CANCELLED.union(Reasons::DRAINING);

/// The event of a connection that was taken for another reason than an event, or is connecting.
#[cold]
fn other_event<T: Source, M>(
    node: Box<Node<T>>,
    reason: Option<Reasons>,
    events: Events,
    filter: EventFilter,
) -> Event<T, M> {
    match reason {
        None if node.readiness.is_connecting() => connect::outcome(node, events),
        None => Event::Ready(Held::from_node(node), events),
        Some(Reasons::TIMED_OUT) => {
            // A condition may have held first, and its report be on the way still.
            match sys::conditions(node.readiness.socket(), filter) {
                events if !events.is_empty() => other_event(node, None, events, filter),
                _ if node.readiness.is_connecting() => connect::not_in_time(node),
                _ => Event::TimedOut(Held::from_node(node)),
            }
        }
        Some(Reasons::DRAINING) => Event::Draining(Held::from_node(node)),
        Some(Reasons::ACCEPTED) => Event::Accepted(Held::from_node(node)),
        Some(_) => Event::Cancelled(Held::from_node(node)),
    }
}

impl<T: Source, M> Shared<T, M> {
    /// The event of a packet, unless what it refers to is gone. Results of work are counted.
    #[inline(always)]
    fn event(&self, packet: Entry, results: &mut usize) -> Option<Event<T, M>> {
        let place = self.connections.slots.get_by_key(packet.completion_key);
        let Some(mut place) = place else {
            return self.event_of_port(&packet, results);
        };
        let Some((Armed::Connection(node), reason)) = place.record.take(&packet) else {
            let is_shared = place.resident.is_some();
            drop(place);
            return is_shared.then(|| self.shared_event(&packet)).flatten();
        };
        let filter = place.record.filter();
        drop(place);
        let events = packet.events();
        match reason {
            None if node.readiness.is_open() => Some(Event::Ready(Held::from_node(node), events)),
            reason if node.readiness.is_lingering() => {
                linger::on_event(self, node, reason);
                None
            }
            reason => Some(other_event(node, reason, events, filter)),
        }
    }

    /// The event of a packet of the port itself.
    #[cold]
    fn event_of_port(&self, packet: &Entry, results: &mut usize) -> Option<Event<T, M>> {
        match Packet::of_port(packet, &self.connections.slots)? {
            Packet::Message => {
                let message = lock(&self.messages).pop_front()?;
                *results += usize::from(matches!(message, Message::Result(_)));
                Some(Event::Message(message.into_inner()))
            }
            Packet::Operation => {
                let completion = self.completed(packet.overlapped)?;
                *results += 1;
                Some(Event::Completed(completion))
            }
            Packet::Notice => {
                let notice = self.next_notice()?;
                *results += usize::from(matches!(notice, Notice::WorkPanicked(_)));
                Some(notice.into_event())
            }
            _ => None,
        }
    }

    /// The event of a shared socket, unless another thread has had the last one.
    #[cold]
    fn shared_event(&self, packet: &Entry) -> Option<Event<T, M>> {
        let (key, events) = (packet.completion_key, packet.events());
        let slots = &self.connections.slots;
        if events.contains(Events::REMOVE) {
            return match *slots.remove_by_key(key)?.resident? {
                Resident::Shared(shared) => Some(Event::Returned(shared.socket())),
                Resident::Listener(_) => None,
            };
        }
        let socket = slots.get_by_key(key)?.shared()?;
        Some(Event::Shared(socket, events))
    }
}

impl<T: Source, M> Drop for Worker<T, M> {
    fn drop(&mut self) {
        if !self.shared.connections.is_here() {
            return;
        }
        let _ = self.submit();
        self.release();
        self.end_work();
        self.hand.lists.end();
        // If the port is closed, nobody else takes these.
        drop_all(std::iter::from_fn(|| self.take()));
        self.hands.remove(&self.hand);
    }
}

impl<T: Source, M> fmt::Debug for Worker<T, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (events, to_arm) = self.hand.lists.len();
        f.debug_struct("Worker")
            .field("events", &events)
            .field("to_arm", &to_arm)
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(interleavings)))]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use super::*;

    const PATIENCE: Option<Duration> = Some(Duration::from_secs(30));

    /// What is dropped with a listener may panic, and what was refused after it is reported all the same.
    #[test]
    fn a_refused_listener_whose_closure_panics_is_reported() -> std::io::Result<()> {
        struct Panics;

        impl Drop for Panics {
            fn drop(&mut self) {
                std::panic::resume_unwind(Box::new("a fault"));
            }
        }

        let port = Port::<TcpStream, u32>::with_messages()?;
        let mut worker = port.worker(4);
        let panics = Panics;
        let id = port.listen(
            TcpListener::bind("127.0.0.1:0")?,
            Interest::IN,
            move |stream, _| {
                let _panics = &panics;
                stream
            },
        )?;
        let key = port.shared.connections.slots.key(id.0);
        worker.on_refused(key, RegistrationError::NotASocket);
        // This thread has no place, and keeps one of the two.
        assert_eq!(worker.process(None)?, 1);
        assert!(matches!(worker.take(), Some(Event::Panicked(it, _)) if it == Some(id)));
        assert_eq!(worker.process(None)?, 1);
        assert!(matches!(worker.take(), Some(Event::NotAccepting(it, _)) if it == id));
        assert!(!port.cancel(id), "it is closed");
        Ok(())
    }

    /// The engine may find this thread blocked at that moment.
    #[test]
    fn o7_what_was_dequeued_is_taken_though_it_would_flow_on_after_closing() -> std::io::Result<()>
    {
        let path = std::env::temp_dir().join(format!("socknotify-flow-on-{}", std::process::id()));
        std::fs::write(&path, [7; 8])?;
        for is_taken in [true, false] {
            let builder = Port::<TcpStream, u32>::builder().detect_blocking(false);
            let port = builder.build()?;
            let file = port.adopt_file(std::fs::File::open(&path)?)?;
            let mut worker = port.worker(16);
            for _ in 0..3 {
                port.begin(FileOperation::read_at(&file, vec![0; 8], 0))?;
            }
            // A call that finds events to take dequeues nothing.
            while worker.process(PATIENCE)? < 3 {
                worker.release();
            }
            port.close();
            worker.hand.flow_on();
            let taken = match is_taken {
                true => std::iter::from_fn(|| worker.take()).count(),
                false => 0,
            };
            assert_eq!(taken, if is_taken { 3 } else { 0 });
            drop(worker);
            assert_eq!(port.operations(), 0);
        }
        std::fs::remove_file(&path)
    }

    #[test]
    fn more_connections_are_armed_than_there_is_room_for_events() -> std::io::Result<()> {
        const CONNECTIONS: usize = 100;
        let port = Port::<TcpStream, u32>::with_messages()?;
        let mut worker = port.worker(1);
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let mut peers = Vec::new();
        for index in 0..CONNECTIONS {
            peers.push(TcpStream::connect(listener.local_addr()?)?);
            let held = port.adopt(listener.accept()?.0)?;
            // Some of those with a deadline are armed by others, and those after them by this worker.
            let interest = match index % 3 {
                0 => Interest::NOTHING.within(Duration::from_millis(1)),
                _ => Interest::OUT,
            };
            worker.arm(held, interest);
            if index == 80 {
                worker.hand.flow_on();
            }
        }
        let [mut ready, mut timed_out] = [0; 2];
        while ready + timed_out < CONNECTIONS {
            worker.process(PATIENCE)?;
            while let Some(event) = worker.take() {
                match event {
                    Event::Ready(..) => ready += 1,
                    Event::TimedOut(_) => timed_out += 1,
                    other => panic!("{other:?}"),
                }
            }
        }
        assert_eq!((ready, timed_out), (66, 34));
        assert_eq!(port.connections(), 0);
        Ok(())
    }

    /// One thread has dequeued its event when another one, which has got what a blocked thread had to arm, arms it again.
    #[cfg(unix)]
    #[test]
    fn f5_what_comes_between_two_looks_is_not_lost() -> std::io::Result<()> {
        let port = Port::<TcpStream, u32>::with_messages()?;
        let connections = &port.shared.connections;
        let take = |mut packet: Entry| match connections.look(&mut packet) {
            Looked::Event => port.shared.event(packet, &mut 0),
            _ => None,
        };
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let mut peer = TcpStream::connect(listener.local_addr()?)?;
        let ours = listener.accept()?.0;
        ours.set_nonblocking(true)?;
        let held = port.adopt(ours)?;
        let key = connections.slots.key(held.id().0);
        port.arm(held, Interest::IN);
        peer.write_all(&[1])?;
        let first = connections.port.dequeue_one(PATIENCE)?;
        let again = match connections.look(&mut Packet::Look.of_slot(key)) {
            Looked::Arm(again) => again.arm(),
            _ => None,
        };
        let mut taken = take(first);
        if taken.is_some() {
            let Some(Event::Ready(held, _)) = &mut taken else {
                panic!("{taken:?}")
            };
            assert_eq!(held.read(&mut [0; 8])?, 1, "it is drained");
        }
        if let Some(again) = again {
            connections.port.register(again)?;
        }
        if taken.is_none() {
            taken = take(connections.port.dequeue_one(PATIENCE)?);
            let Some(Event::Ready(held, _)) = &mut taken else {
                panic!("{taken:?}")
            };
            assert_eq!(held.read(&mut [0; 8])?, 1, "it is drained");
        }
        // A third one dequeues what comes, and looks when it is armed again.
        peer.write_all(&[2])?;
        let late = connections
            .port
            .dequeue_one(Some(Duration::from_millis(20)));
        let Some(Event::Ready(held, _)) = taken else {
            panic!("{taken:?}")
        };
        port.arm(held, Interest::IN);
        if let Some(Event::Ready(..)) = late.ok().and_then(take) {
            return Ok(());
        }
        assert_eq!(port.worker(4).process(PATIENCE)?, 1);
        Ok(())
    }

    /// A thread is held up when it has armed a connection and is about to schedule its deadline.
    #[test]
    fn a_deadline_is_not_put_off_by_what_was_armed_before() -> std::io::Result<()> {
        let port = Port::<TcpStream, u32>::with_messages()?;
        let shared = &port.shared;
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let _peer = TcpStream::connect(listener.local_addr()?)?;
        let held = port.adopt(listener.accept()?.0)?;
        let id = held.id();
        let far = Instant::now() + Duration::from_secs(3600);
        let wish = Wish {
            filter: EventFilter::NONE,
            is_drained: false,
            deadline: shared.deadlines.ticks_until(far),
        };
        let put = shared.connections.put(held.into_node(), &wish);
        assert!(put.is_ok_and(|to_do| to_do.is_late));
        // Another one arms it meanwhile.
        let held = port.disarm(id).expect("it is armed");
        port.arm(held, Interest::NOTHING.within(Duration::from_millis(1)));
        shared.schedule(id.0);
        let mut worker = port.worker(4);
        assert_eq!(worker.process(PATIENCE)?, 1);
        assert!(matches!(worker.take(), Some(Event::TimedOut(_))));
        Ok(())
    }

    /// Other threads take what workers have at any moment, as an engine does that sees a thread blocked.
    #[test]
    fn f4_nothing_is_lost_or_served_twice_when_others_take_at_any_moment() -> std::io::Result<()> {
        const CONNECTIONS: usize = 24;
        // Under Wine each call is a message to another process.
        const ROUNDS: usize = if cfg!(windows) { 40 } else { 400 };
        let port = Port::<TcpStream, u32>::builder().concurrency(3).build()?;
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let peers = (0..CONNECTIONS).map(|_| {
            let peer = TcpStream::connect(address)?;
            let ours = listener.accept()?.0;
            ours.set_nonblocking(true)?;
            port.arm(port.adopt(ours)?, Interest::IN);
            peer.set_read_timeout(PATIENCE)?;
            Ok(peer)
        });
        let mut peers = peers.collect::<std::io::Result<Vec<_>>>()?;
        let workers: Vec<_> = (0..3).map(|_| port.worker(16)).collect();
        let hands: Vec<_> = workers.iter().map(|it| Arc::clone(&it.hand)).collect();
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| -> std::io::Result<()> {
            for mut worker in workers {
                scope.spawn(move || {
                    while worker.process(None).is_ok() {
                        while let Some(event) = worker.take() {
                            let Event::Ready(mut connection, _) = event else {
                                panic!("{event:?}")
                            };
                            let mut byte = [0];
                            // Rarely, there is nothing.
                            if connection.read_exact(&mut byte).is_ok() {
                                connection.write_all(&byte).expect("room");
                            }
                            worker.arm(connection, Interest::IN.within(Duration::from_secs(60)));
                        }
                    }
                });
            }
            for hand in &hands {
                let is_over = &is_over;
                scope.spawn(move || {
                    while !is_over.load(Ordering::Relaxed) {
                        hand.flow_on();
                        thread::yield_now();
                    }
                });
            }
            let outcome = (0..ROUNDS).try_for_each(|round| {
                for peer in &mut peers {
                    peer.write_all(&[round as u8])?;
                }
                for peer in &mut peers {
                    let mut byte = [0];
                    peer.read_exact(&mut byte)?;
                    assert_eq!(byte, [round as u8]);
                }
                Ok(())
            });
            is_over.store(true, Ordering::Relaxed);
            assert_eq!(port.connections(), CONNECTIONS);
            let closed = port.close().len();
            assert!(closed <= CONNECTIONS);
            outcome
        })?;
        assert_eq!(port.connections(), 0);
        Ok(())
    }
}
