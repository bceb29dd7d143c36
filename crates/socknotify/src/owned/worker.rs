//! [`Worker`]: one thread's handle to a port.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::connect;
use super::connections::{LISTENER, NEVER, Node, REPORTED, Resident, drop_all, is_waiting};
use super::linger;
use super::listener::Listener;
use super::local::{self, Local};
use super::messages::Message;
use super::packet::{HANDED_ON, Packet, is_completion};
use super::port::{Notice, Put, Shared};
use super::{BeginError, Event, FileOperation, Held, Id, Interest, OperationId, Port, Source};
use crate::handover::Handover;
use crate::lock::lock;
use crate::sys::{self, RawSocket};
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
    local: Arc<Local>,
    /// The same, for the port.
    handover: Arc<dyn Handover>,
    /// Connections that were handed back. The last ones are to be armed: others may have armed the first ones.
    armed: Vec<Registration<'static>>,
    /// The deadlines of some of those, in ticks, with their indices. They are in the slots, too.
    armed_until: Vec<(usize, u64)>,
    /// What the next call arms besides.
    registrations: Vec<Registration<'static>>,
    /// The keys and deadlines of listeners, and of connections that another worker has left to be armed.
    deadlines: Vec<(usize, u64)>,
    /// One of those may be refused.
    is_any_new: bool,
    /// Memory for packets.
    entries: Box<[Entry]>,
    /// At most this many events are to be taken: others may have taken some.
    events: usize,
    /// The packets of listeners that were reported.
    listeners: Vec<Entry>,
    /// When the caller got events, and how many.
    batch: Option<(Instant, u32)>,
    /// The caller took long for each event of the latest batch that was measured.
    is_slow: bool,
    /// How many results of work were taken since the latest call.
    handled: usize,
}

/// A caller that takes this long for each event leaves others to threads that have nothing to do: several times what it
/// takes to wake one.
const SLOW: Duration = Duration::from_micros(100);

/// From this many events on, a batch is measured.
const MEASURED: usize = 4;

/// The maximum room: more than a thread handles before others should see what is ready.
const MOST: usize = 4096;

impl<T: Source, M> Port<T, M> {
    /// Makes a worker, for one thread, with room for this many events at once: 1 to 4,096. 64 is a good choice for
    /// almost every program.
    ///
    /// Room is a maximum. A larger one saves system calls while many connections are ready: with 64, a call costs each
    /// event little. It keeps no event waiting for long: if the thread blocks, other threads get the events that it has
    /// dequeued and not taken; and if its events take long to handle, it leaves other threads that have nothing to do
    /// their share.
    pub fn worker(&self, room: usize) -> Worker<T, M> {
        Worker::new(Arc::clone(&self.shared), room.clamp(1, MOST))
    }
}

impl<T: Source, M> Worker<T, M> {
    fn new(shared: Arc<Shared<T, M>>, room: usize) -> Self {
        let local = Local::new(shared.connections.port.system(), &shared.files, room);
        let handover: Arc<dyn Handover> = Arc::clone(&local) as Arc<dyn Handover>;
        Worker {
            local,
            handover,
            shared,
            armed: Vec::with_capacity(room),
            armed_until: Vec::new(),
            registrations: Vec::with_capacity(room),
            deadlines: Vec::new(),
            is_any_new: false,
            entries: vec![Entry::default(); room].into(),
            events: 0,
            listeners: Vec::new(),
            batch: None,
            is_slow: false,
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
    pub fn arm(&mut self, connection: Held<T>, interest: impl Into<Interest>) {
        match self.shared.put(connection, interest.into()) {
            Put::Done {
                arm,
                deadline,
                is_new,
            } => {
                if !arm.is_drained() || !self.arm_at_once(&arm, deadline) {
                    self.is_any_new |= is_new;
                    self.add_armed(arm, deadline);
                }
            }
            Put::Refused(node, error) => self.notify(Notice::Refused(node, error)),
            Put::Closed => {}
        }
    }

    /// Arm a drained connection, if that takes no system call.
    #[inline]
    fn arm_at_once(&self, arm: &Registration<'static>, deadline: u64) -> bool {
        let connections = &self.shared.connections;
        let system = connections.port.system();
        if !system.arms_drained() {
            return false;
        }
        let key = arm.completion_key;
        // Before it is armed: another thread may have it next. If it cannot be armed, the deadline is set once more.
        if deadline != NEVER {
            self.shared.deadlines.set(connections, key, deadline);
        }
        system.arm_drained(arm.raw_socket(), key, arm.event_filter)
    }

    #[inline]
    fn add_armed(&mut self, arm: Registration<'static>, deadline: u64) {
        while !self.local.add_armed(&arm) {
            // Far more than were dequeued at once.
            let _ = self.submit();
        }
        if deadline != NEVER {
            self.armed_until.push((self.armed.len(), deadline));
        }
        self.armed.push(arm);
        let is_first = self.armed.len() == 1;
        if self.local.has_flowed_on()
            || is_first && self.shared.connections.port.system().is_unwatched()
        {
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
        if self.local.has_flowed_on() || self.shared.connections.port.system().is_unwatched() {
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
        if !self.shared.connections.is_here() {
            return Err(Error::OtherProcess);
        }
        local::enter(&self.local);
        self.local.begin();
        if let Some((since, events)) = self.batch.take() {
            self.is_slow = since.elapsed() > SLOW * events;
        }
        self.end_work();
        let waits = timeout.filter(|timeout| !timeout.is_zero());
        let deadline = waits.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut timeout = timeout;
        let mut polls = 0;
        loop {
            let mut outcome = Ok(());
            self.gather();
            // Connections that the system may refuse are armed before the wait, which would not end for them.
            if self.is_any_new || self.events > 0 {
                outcome = self.submit_gathered();
            }
            if self.events == 0 && outcome.is_ok() {
                outcome = self.submit_and_wait(timeout);
            }
            if self.events > 1 && self.local.has_flowed_on() {
                // This thread has blocked within this call, perhaps in the caller's code that makes connections.
                self.local.keep_events(1);
                self.events = self.local.events();
            }
            let events = self.events;
            if events > 0 {
                let system = self.shared.connections.port.system();
                if events > 1 && system.is_unwatched() {
                    system.look_after();
                }
                if events >= MEASURED || self.is_slow {
                    self.batch = Some((Instant::now(), events as u32));
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
    fn submit(&mut self) -> Result<(), Error> {
        self.gather();
        self.submit_gathered()
    }

    /// Arm what was gathered.
    fn submit_gathered(&mut self) -> Result<(), Error> {
        let port = &self.shared.connections.port;
        let outcome = port.process(&mut self.registrations, &mut [], Some(Duration::ZERO));
        let outcome = outcome.map(drop);
        self.take_back_refused();
        outcome
    }

    /// The same, and dequeue, up to the timeout.
    fn submit_and_wait(&mut self, timeout: Option<Duration>) -> Result<(), Error> {
        let system = self.shared.connections.port.system();
        let outcome = system.process(
            &mut self.registrations,
            &mut self.entries,
            timeout,
            Some(&self.handover),
        );
        self.take_back_refused();
        self.resolve(outcome?);
        if self.is_slow {
            self.share();
        }
        Ok(())
    }

    /// If places are free and threads wait for events, keep a fair share of those that were dequeued.
    #[cold]
    fn share(&mut self) {
        let events = self.local.events();
        let snapshot = self.shared.connections.port.snapshot();
        if let Some(running) = snapshot.running.filter(|_| events > 1) {
            let free = self
                .shared
                .connections
                .port
                .concurrency()
                .saturating_sub(running);
            let idle = free.min(snapshot.waiting);
            let share = events.div_ceil(idle.saturating_add(1));
            if share < events {
                self.local.keep_events(share);
                self.events = self.local.events();
            }
        }
    }

    /// Take what is to be armed from where others reach it.
    #[inline]
    fn gather(&mut self) {
        if self.events > 0 {
            // Others may have taken some.
            self.events = self.local.events();
        }
        let first = self.armed.len() - self.local.take_armed();
        if !self.armed_until.is_empty() || !self.deadlines.is_empty() {
            self.set_deadlines(first);
        }
        if first == 0 && self.registrations.is_empty() {
            std::mem::swap(&mut self.registrations, &mut self.armed);
        } else {
            self.registrations.extend(self.armed.drain(..).skip(first));
        }
        self.shared.files.flush();
    }

    /// Set the deadlines of what is to be armed: of the connections that were handed back, from this one on.
    ///
    /// A deadline does not pass before the connection can be interrupted: so it is set no earlier than this.
    fn set_deadlines(&mut self, first: usize) {
        let shared = &*self.shared;
        let armed_until = self.armed_until.drain(..).filter(|it| it.0 >= first);
        let armed = armed_until.map(|(index, at)| (self.armed[index].completion_key, at));
        for (key, at) in armed.chain(self.deadlines.drain(..)) {
            shared.deadlines.set(&shared.connections, key, at);
        }
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
    }

    /// The system refuses to watch a connection, or a listener, which is closed then.
    #[cold]
    fn on_refused(&mut self, key: usize, error: RegistrationError) {
        if let Some(node) = self.shared.take_back(key) {
            return self.notify(Notice::Refused(node, error));
        }
        // Closing it drops the last reference to it.
        let listener = self.shared.connections.listener(key).map(|(id, ..)| id);
        if let Some(id) = listener.filter(|_| !self.shared.connections.is_closed()) {
            self.close_listener(key);
            self.notify(Notice::NotAccepting(id, error.into()));
        }
    }

    /// Close a listener, which runs the caller's code.
    #[cold]
    fn close_listener(&mut self, key: usize) {
        let close = || self.shared.connections.close_listener(key);
        if let Err(panic) = catch_unwind(AssertUnwindSafe(close)) {
            self.notify(Notice::Panicked(panic));
        }
    }

    /// Report something to this worker.
    fn notify(&mut self, notice: Notice<T>) {
        let packet = self.shared.list(notice);
        self.add_event(packet);
    }

    #[cold]
    fn add_event(&mut self, packet: Entry) {
        self.local.add_events(&[packet]);
        self.events += 1;
    }

    /// Turn this many packets into events.
    fn resolve(&mut self, count: usize) {
        let shared = &*self.shared;
        let slots = &shared.connections.slots;
        let mut is_timer_among = false;
        let mut to_arm = Vec::new();
        // As a rule, all packets are of connections, which stay in their slots until the events are taken.
        let is_ready = |entry: &mut Entry| {
            let marks = slots.unlocked(entry.completion_key).map(|it| it.marks);
            let marks = marks.filter(|marks| marks.load(Ordering::Relaxed) != LISTENER);
            let is_ready = marks.is_some() && matches!(Packet::of_slot(entry), Packet::Ready(_));
            if let Some(marks) = marks.filter(|_| is_ready) {
                marks.store(REPORTED, Ordering::Relaxed);
                entry.overlapped = HANDED_ON;
            }
            is_ready
        };
        // Events overwrite the packets before them.
        let mut packets = self.entries[..count].iter_mut();
        let first = packets.position(|it| !is_ready(it)).unwrap_or(count);
        let mut events = first;
        for index in first..count {
            let entry = self.entries[index];
            let key = entry.completion_key;
            let marks = slots.unlocked(key).map(|it| it.marks);
            let event = match (Packet::decode(&entry, slots), marks) {
                (Packet::Message | Packet::Notice, _) => Some(entry),
                (Packet::Timer, _) => {
                    is_timer_among = true;
                    None
                }
                (Packet::Operation, _) => {
                    let is_there = shared.files.on_dequeued(entry.overlapped);
                    is_there.then_some(entry)
                }
                (Packet::KernelIo, _) => {
                    let packet = shared.files.on_kernel_packet(&entry);
                    packet.filter(|packet| shared.files.on_dequeued(packet.overlapped))
                }
                (Packet::Arm(filter), Some(_)) => {
                    to_arm.push((key, filter));
                    None
                }
                (_, Some(marks)) if marks.load(Ordering::Relaxed) == LISTENER => {
                    self.listeners.push(entry);
                    None
                }
                (packet, Some(marks)) => {
                    marks.store(REPORTED, Ordering::Relaxed);
                    Some(packet.handed_on(key))
                }
                // It is stale.
                (_, None) => None,
            };
            if let Some(event) = event {
                self.entries[events] = event;
                events += 1;
            }
        }
        if events > 0 {
            self.local.add_events(&self.entries[..events]);
            self.events += events;
        }
        if is_timer_among {
            self.shared.ring();
        }
        if !self.listeners.is_empty() {
            self.accept();
        }
        if !to_arm.is_empty() {
            self.arm_for_others(&to_arm);
        }
    }

    /// Arm at once what other workers have handed back and left: this thread may not call again soon.
    #[cold]
    fn arm_for_others(&mut self, connections: &[(usize, EventFilter)]) {
        for &(key, filter) in connections {
            let place = self.shared.connections.slots.get_by_key(key);
            let Some(place) = place.filter(is_waiting) else {
                continue;
            };
            let arm = Registration::arm(place.socket, key, filter, false);
            self.registrations.push(arm);
            if place.deadline != NEVER {
                self.deadlines.push((key, place.deadline));
            }
        }
        let _ = self.submit();
    }

    /// Accept from the listeners that were reported, and arm all connections at once.
    ///
    /// Making a connection and dropping a listener run the caller's code. If that panics, an event reports it.
    #[cold]
    fn accept(&mut self) {
        let mut listeners = std::mem::take(&mut self.listeners);
        // The first packet of a listener takes all of its connections, in their order.
        for entry in listeners.iter().filter(|it| is_completion(it)) {
            if let Some((_, _, listener)) = self.shared.connections.listener(entry.completion_key) {
                listener.on_completed(entry);
            }
        }
        for entry in listeners.drain(..) {
            let connections = &self.shared.connections;
            let key = entry.completion_key;
            let is_over = connections.is_draining()
                || matches!(
                    Packet::of_slot(&entry),
                    Packet::Cancelled | Packet::Draining
                );
            if is_over && is_completion(&entry) {
                // Another packet closes it.
                continue;
            }
            if is_over {
                self.close_listener(key);
            } else if let Some((id, socket, listener)) = connections.listener(key) {
                self.accept_from(&entry, id, socket, &listener);
                // The last reference, if the port was closed meanwhile.
                drop_all([listener]);
            }
        }
        self.listeners = listeners;
        if self.events > 0 {
            // These are for the caller, which may not call again soon.
            let _ = self.submit();
        }
    }

    fn accept_from(&mut self, entry: &Entry, id: Id, socket: RawSocket, listener: &Listener<T>) {
        let shared = Arc::clone(&self.shared);
        let accept = || {
            shared
                .connections
                .accept_from(listener, |room, connection| {
                    // If it is not adopted, the port was closed meanwhile.
                    let Ok(held) = shared.adopt(room, connection) else {
                        return;
                    };
                    match listener.interest() {
                        Some(interest) => self.arm(held, interest),
                        None => self.report_accepted(held),
                    }
                })
        };
        let outcome = catch_unwind(AssertUnwindSafe(accept));
        let mut round = outcome.unwrap_or_else(|panic| {
            self.notify(Notice::Panicked(panic));
            listener.idle()
        });
        listener.replenish(&mut round);
        match (listener.change(&round), round.error) {
            (Some(true), Some(error)) => self.notify(Notice::NotAccepting(id, error)),
            (Some(false), _) => self.notify(Notice::Accepting(id)),
            _ => {}
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
    }

    fn report_accepted(&mut self, connection: Held<T>) {
        let node = connection.into_node();
        let packet = Packet::Accepted.handed_on(node.key());
        match self.shared.connections.put(node, NEVER) {
            Ok(()) => self.add_event(packet),
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
        self.local.flow_on();
        self.shared.connections.port.blocking(work)
    }

    /// Gives this thread's place back, and events that were not taken to other threads. Call it before the thread does
    /// something else for long. See [`CompletionPort::release`](crate::CompletionPort::release).
    pub fn release(&self) {
        self.local.flow_on();
        self.shared.connections.port.release();
    }

    /// Takes the next event of the latest [`process`](Self::process).
    ///
    /// There may be fewer than `process` returned: other threads get those that wait while this thread
    /// [blocks](Self::blocking); some were of connections that [linger](Self::linger); when the port is closed, its
    /// connections and messages are [returned](Port::close); and events of a shared socket are dropped when another thread has taken its [last
    /// one](Event::Returned).
    pub fn take(&mut self) -> Option<Event<T, M>> {
        if !self.shared.connections.is_here() {
            return None;
        }
        loop {
            self.events = self.events.checked_sub(1)?;
            let packet = self.local.take_event()?;
            if let Some(event) = self.shared.event(&packet, &mut self.handled) {
                return Some(event);
            }
        }
    }
}

/// The event of a connection that is anything else than ready.
#[cold]
fn connection_event<T: Source, M>(mut node: Box<Node<T>>, packet: Packet) -> Event<T, M> {
    match packet {
        Packet::Ready(events) if node.readiness.is_connecting() => connect::outcome(node, events),
        Packet::Ready(events) => Event::Ready(Held::from_node(node), events),
        Packet::TimedOut if node.readiness.is_connecting() => connect::timed_out(node),
        Packet::TimedOut => {
            // A condition may have held first, and its report be on the way still.
            match sys::conditions(node.readiness.socket(), node.readiness.watched()) {
                events if events.is_empty() => Event::TimedOut(Held::from_node(node)),
                events => Event::Ready(Held::from_node(node), events),
            }
        }
        Packet::Draining => {
            // This packet may have come in place of arming it.
            node.readiness.unwatch();
            Event::Draining(Held::from_node(node))
        }
        Packet::Accepted => Event::Accepted(Held::from_node(node)),
        // No other packet is for a connection that was taken.
        _ => {
            node.readiness.unwatch();
            Event::Cancelled(Held::from_node(node))
        }
    }
}

impl<T: Source, M> Shared<T, M> {
    /// The event of a packet, unless what it refers to is gone. Results of work are counted.
    #[inline]
    fn event(&self, packet: &Entry, results: &mut usize) -> Option<Event<T, M>> {
        let slot = self.connections.slots.unlocked(packet.completion_key);
        let taken = slot.and_then(|slot| slot.beside.take(slot.generation));
        let Some(node) = taken else {
            return self.other_event(packet, results);
        };
        match Packet::of_slot(packet) {
            Packet::Ready(events) if node.readiness.is_open() => {
                Some(Event::Ready(Held::from_node(node), events))
            }
            packet if node.readiness.is_lingering() => {
                linger::on_event(self, node, packet);
                None
            }
            packet => Some(connection_event(node, packet)),
        }
    }

    /// The event of a packet that is none of a connection's.
    #[cold]
    fn other_event(&self, packet: &Entry, results: &mut usize) -> Option<Event<T, M>> {
        match Packet::decode(packet, &self.connections.slots) {
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
            Packet::Ready(events) => self.shared_event(packet.completion_key, events),
            _ => None,
        }
    }
}

impl<T, M> Shared<T, M> {
    /// The event of a shared socket, unless another thread has had the last one.
    #[cold]
    fn shared_event(&self, key: usize, events: Events) -> Option<Event<T, M>> {
        let slots = &self.connections.slots;
        // A stale packet of a connection finds nothing.
        slots.get_by_key(key)?.shared()?;
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
        if self.shared.connections.is_closed() {
            // Nobody takes these any more.
            drop_all(std::iter::from_fn(|| self.take()));
        }
    }
}

impl<T: Source, M> fmt::Debug for Worker<T, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker")
            .field("armed", &self.local.to_arm())
            .field("events", &self.local.events())
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(interleavings)))]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::sync::atomic::AtomicBool;
    use std::thread;

    use super::*;

    const PATIENCE: Option<Duration> = Some(Duration::from_secs(30));

    fn wait_for_waiting(port: &Port<TcpStream, u32>, count: usize) {
        while port.snapshot().waiting != count {
            thread::yield_now();
        }
    }

    #[test]
    fn a_slow_worker_leaves_others_their_share() -> std::io::Result<()> {
        // What this worker has is taken by nobody who finds it stuck.
        let builder = Port::<TcpStream, u32>::builder().detect_blocking(false);
        let port = builder.concurrency(4).build()?;
        let mut worker = port.worker(64);
        for number in 0..9 {
            port.send(number)?;
        }
        assert_eq!(worker.process(PATIENCE)?, 9);
        let take = |mut worker: Worker<TcpStream, u32>| {
            let mut taken = Vec::new();
            while worker.process(None).is_ok() {
                while let Some(Event::Message(number)) = worker.take() {
                    taken.push(number);
                }
            }
            taken
        };
        thread::scope(|scope| {
            let others = [(); 2].map(|()| scope.spawn(|| take(port.worker(2))));
            wait_for_waiting(&port, 2);
            worker.share();
            let kept = worker.local.events();
            let own: Vec<_> = std::iter::from_fn(|| worker.take())
                .map(|event| match event {
                    Event::Message(number) => number,
                    other => panic!("{other:?}"),
                })
                .collect();
            worker.release();
            while port.snapshot().queued > 0 {
                thread::yield_now();
            }
            wait_for_waiting(&port, 2);
            // Nobody but this worker is there for these.
            port.close();
            let taken = others.map(|it| it.join().expect("no panic")).concat();
            // Only now, so that the others have ended. They may have been quicker, and have the first ones.
            assert_eq!((kept, own.len(), taken.len()), (3, 3, 6), "a third of them");
            let mut all = [own, taken].concat();
            all.sort();
            assert_eq!(all, Vec::from_iter(0..9));
            Ok(())
        })
    }

    #[test]
    fn a_worker_is_slow_by_its_latest_batch() -> std::io::Result<()> {
        let port = Port::<TcpStream, u32>::with_messages()?;
        let mut worker = port.worker(64);
        let mut serve = |count: u32, time: Duration| -> std::io::Result<bool> {
            for number in 0..count {
                port.send(number)?;
            }
            assert_eq!(worker.process(PATIENCE)?, count as usize);
            while worker.take().is_some() {}
            thread::sleep(time);
            worker.process(Some(Duration::ZERO))?;
            Ok(worker.is_slow)
        };
        assert!(serve(4, Duration::from_millis(5))?);
        // A long time for many events is a short one for each; the machine may be busy.
        assert!((0..100).any(|_| matches!(serve(64, Duration::ZERO), Ok(false))));
        // One event is not measured.
        assert!(!serve(1, Duration::from_millis(5))?);
        Ok(())
    }

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
        assert_eq!(worker.process(None)?, 2);
        assert!(matches!(worker.take(), Some(Event::Panicked(_))));
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
            worker.local.flow_on();
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

    /// Whoever finds that a deadline has passed interrupts the wait with the slot locked, and must not hit the next one.
    #[test]
    fn what_has_or_had_a_deadline_is_not_armed_while_its_slot_is_locked() -> std::io::Result<()> {
        let port = Port::<TcpStream, u32>::with_messages()?;
        let mut worker = port.worker(4);
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let _peer = TcpStream::connect(listener.local_addr()?)?;
        let mut held = port.adopt(listener.accept()?.0)?;
        let long = Interest::OUT.within(Duration::from_secs(3600));
        // The third one ends a deadline. Only the fourth has none, and had none.
        for (interest, waits) in [long, long, Interest::OUT, Interest::OUT]
            .into_iter()
            .zip([true, true, true, false])
        {
            let id = held.id();
            let place = port.shared.connections.slots.get(id.0);
            let is_armed = AtomicBool::new(false);
            thread::scope(|scope| {
                scope.spawn(|| {
                    port.arm(held, interest);
                    is_armed.store(true, Ordering::SeqCst);
                });
                while !waits && !is_armed.load(Ordering::SeqCst) {
                    thread::yield_now();
                }
                // If it does not wait, it is quick.
                thread::sleep(Duration::from_millis(20));
                assert_eq!(is_armed.load(Ordering::SeqCst), !waits);
                drop(place);
            });
            worker.process(PATIENCE)?;
            let Some(Event::Ready(it, _)) = worker.take() else {
                panic!("{id} is ready")
            };
            held = it;
        }
        Ok(())
    }

    #[test]
    fn more_connections_are_armed_than_a_window_has_room_for() -> std::io::Result<()> {
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
                worker.local.flow_on();
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
        let locals: Vec<_> = workers.iter().map(|it| Arc::clone(&it.local)).collect();
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
            for local in &locals {
                let is_over = &is_over;
                scope.spawn(move || {
                    while !is_over.load(Ordering::Relaxed) {
                        local.flow_on();
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
