//! [`Worker`]: one thread's handle to a port.

use std::fmt;
use std::io;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::connect;
use super::linger;
use super::listen::{Listener, MAX_FAILED, PAUSE};
use super::messages::Message;
use super::port::Shared;
use super::readiness::Phase;
use super::slot::connections::{Looked, Resident, ToDo, Wish, drop_all};
use super::slot::packet::{OfPort, is_to_take};
use super::slot::record::Reasons;
use super::time::TimerId;
use super::{BeginError, Event, FileOperation, Held, Id, Interest, OperationId, Port, Source};
use crate::backend;
use crate::engine::owned::{Caller, Holder, Left, Polls};
use crate::support::burst;
use crate::support::deadline::Deadline;
use crate::support::lock::lock;
use crate::{Entry, Error, EventFilter, Events, Registration};

/// How many times a call polls again after its timeout because it has dequeued only stale packets. There may be an
/// event behind those; but a registration that is not the port's may be reported for ever.
const MAX_POLLS: usize = 64;

/// One thread's handle to a [`Port`]: it arms connections and takes events.
///
/// Made by [`Port::worker`]. What it has dequeued, and what it has to arm, is its own: no other thread takes that. So a handler
/// that blocks keeps the events waiting that its worker has dequeued with its own: [`Port::serve`] takes one at a time,
/// [`blocking`](Self::blocking) and [`release`](Self::release) give the others back.
///
/// When it is dropped, also by a panic, connections passed to [`arm`](Self::arm) are armed, events that were not taken go to
/// other threads, and the thread's permit is free.
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
    /// Packets that were dequeued. Those in `left` are of events to take.
    entries: Box<[Entry]>,
    left: Range<usize>,
    taken: Taken,
    /// What the next call arms, and what it polls.
    registrations: Vec<Registration<'static>>,
    polls: Polls,
    /// One of those may be refused.
    is_any_new: bool,
    /// The packets of listeners that were reported.
    listeners: Vec<Entry>,
}

/// What a worker has taken.
#[derive(Default)]
struct Taken {
    /// The thread that has dequeued last, of which others see what it has taken.
    holder: Option<Arc<Holder>>,
    /// How many results of work since the latest call.
    results: usize,
}

impl Taken {
    /// Have others see that a packet with this key is taken.
    #[inline]
    fn show(&self, key: usize) {
        if let Some(holder) = &self.holder {
            holder.take(key);
        }
    }
}

/// How many connections a listener accepts in its turn: with one, many that come at once would wait for as many rounds of all that
/// is ready.
const BATCH: usize = 16;

/// How many connections are accepted at most before a listener is closed: more than a backlog has room for.
const LAST_BATCH: usize = 1 << 16;

/// The maximum room: more than a thread handles before others should see what is ready.
const MOST: usize = 4096;

impl<T: Source, M> Port<T, M> {
    /// Makes a worker, for one thread, with room for this many events at once: 1 to 4,096.
    ///
    /// Room is a maximum. A larger one saves system calls while many connections are ready: with 64, a call costs each
    /// event little. What a worker has dequeued waits for its thread: with room for one, a handler that blocks keeps
    /// nobody else waiting.
    pub fn worker(&self, room: usize) -> Worker<T, M> {
        Worker {
            shared: Arc::clone(&self.shared),
            entries: vec![Entry::default(); room.clamp(1, MOST)].into(),
            left: 0..0,
            taken: Taken::default(),
            registrations: Vec::new(),
            polls: Polls::default(),
            is_any_new: false,
            listeners: Vec::new(),
        }
    }
}

impl<T: Source, M> Worker<T, M> {
    /// Hands a connection back to the port. The next [`process`](Self::process) arms it, at the latest.
    ///
    /// There is no error to return: a connection that the system refuses to watch is reported as [`Event::Refused`],
    /// to any thread, and if the port is closed, the connection is closed too.
    ///
    /// A thread that does something else for long before it calls `process` uses [`Port::arm`], which arms at once.
    ///
    /// # Panics
    ///
    /// If the connection belongs to another port. It is deregistered there and closed; other connections of this
    /// worker are not affected.
    #[doc(alias = "reregister")]
    #[track_caller]
    pub fn arm(&mut self, connection: Held<T>, interest: Interest) {
        if let Some(to_do) = self.shared.put(connection, interest) {
            self.is_any_new |= to_do.is_new;
            gather(&mut self.polls, &mut self.registrations, &to_do);
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
    #[doc(alias = "epoll_wait")]
    #[doc(alias = "ProcessSocketNotifications")]
    pub fn process(&mut self, timeout: Option<Duration>) -> Result<usize, Error> {
        self.process_beside(timeout, &|_| {})
    }

    /// The same. Before functions of listeners run, which may block, this calls `on_busy` with true: the thread waits
    /// no more. Before it waits again, with false.
    pub(super) fn process_beside(
        &mut self,
        timeout: Option<Duration>,
        on_busy: &dyn Fn(bool),
    ) -> Result<usize, Error> {
        if !self.shared.connections.is_here() {
            return Err(Error::OtherProcess);
        }
        self.end_work();
        let mut deadline = Deadline::from(timeout);
        let mut polls = 0;
        loop {
            self.shared.files.flush();
            if !self.left.is_empty() {
                let _ = self.submit();
                return Ok(self.left.len());
            }
            // Connections that the system may refuse are armed before the wait, which might not end for them.
            if self.is_any_new {
                self.submit()?;
            }
            match self.call(self.entries.len(), deadline) {
                Ok(count) => {
                    let events = self.resolve(count, on_busy);
                    if events > 0 {
                        return Ok(events);
                    }
                    // There was only a tick of the timer, or stale packets.
                }
                Err(Error::TimedOut) => return Ok(0),
                Err(error) => return Err(error),
            }
            deadline = deadline.rest();
            if deadline.has_passed() {
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
        let handled = std::mem::take(&mut self.taken.results);
        if handled > 0 {
            self.shared.connections.end_work(handled);
        }
    }

    /// The same, if there is something.
    #[inline]
    fn flush(&mut self) {
        if self.has_gathered() {
            let _ = self.submit();
        }
    }

    /// Arm what was handed back, without waiting.
    #[cold]
    fn submit(&mut self) -> Result<(), Error> {
        self.call(0, Some(Duration::ZERO).into()).map(drop)
    }

    /// Arm what was handed back, and dequeue this much. Returns how much there is.
    #[inline]
    fn call(&mut self, room: usize, deadline: Deadline) -> Result<usize, Error> {
        let caller = Caller {
            polls: &mut self.polls,
            holder: &mut self.taken.holder,
        };
        let outcome = self.shared.connections.port.system().process(
            &mut self.registrations,
            &mut self.entries[..room],
            deadline,
            Some(caller),
        );
        match outcome {
            // One was refused, which is reported by a packet.
            Err(Error::TimedOut) if self.take_back_refused() => return Ok(0),
            Ok(_) => _ = self.take_back_refused(),
            Err(_) => {}
        }
        outcome
    }

    fn has_gathered(&self) -> bool {
        !(self.registrations.is_empty() && self.polls.is_empty())
    }

    /// Take back the connections that the system refuses to watch. True if there is one.
    fn take_back_refused(&mut self) -> bool {
        self.is_any_new = false;
        let results = self.registrations.drain(..);
        let refused = results.filter_map(|it| Some((it.completion_key, it.result().err()?)));
        self.polls.refused.extend(refused);
        if self.polls.refused.is_empty() {
            return false;
        }
        for (key, error) in std::mem::take(&mut self.polls.refused) {
            self.shared.on_refused(key, error);
        }
        true
    }

    /// Turn this many packets into events. Returns how many there are.
    fn resolve(&mut self, count: usize, on_busy: &dyn Fn(bool)) -> usize {
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
                        gather(&mut self.polls, &mut self.registrations, &to_do);
                        false
                    }
                    Looked::Other => match OfPort::of(entry, &connections.slots) {
                        Some(OfPort::Message) => true,
                        Some(OfPort::Timer) => {
                            is_timer_among = true;
                            false
                        }
                        Some(OfPort::Operation) => shared.files.on_dequeued(entry.overlapped),
                        Some(OfPort::KernelIo) => match shared.files.on_kernel_packet(entry) {
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
        self.left = 0..events;
        // What a stale packet was for is armed again: this thread may not call again soon.
        self.flush();
        if is_timer_among {
            self.shared.ring();
        }
        if !self.listeners.is_empty() {
            on_busy(true);
            self.accept();
            if self.left.is_empty() {
                on_busy(false);
            }
        }
        self.left.len()
    }

    /// Accept from the listeners that were reported. This runs the caller's code.
    #[cold]
    fn accept(&mut self) {
        for entry in std::mem::take(&mut self.listeners) {
            self.taken.show(entry.completion_key);
            // To drop the last error, or a listener, may panic: when all else is done.
            drop_all([catch_unwind(AssertUnwindSafe(|| self.accept_for(&entry)))]);
        }
        // The caller may not call again soon.
        self.flush();
    }

    /// Accept what waits for a listener. Then arm it again, or close it.
    fn accept_for(&mut self, entry: &Entry) {
        let shared = Arc::clone(&self.shared);
        let (connections, key) = (&shared.connections, entry.completion_key);
        let Some((id, listener, reason)) = connections.take_listener(entry) else {
            return;
        };
        let is_last =
            connections.is_draining() || reason == Some(Reasons::CANCELLED) || listener.is_ending();
        // One that ends is not armed for others meanwhile.
        let mut is_armed = is_last;
        let arm = |worker: &mut Self| {
            if !std::mem::replace(&mut is_armed, true) {
                worker.arm_listener(key, &Wish::of(EventFilter::IN));
            }
            // Also those before this one: the function may block.
            worker.flush();
        };
        let (mut wish, error) = self.accept_from(id, &listener, is_last, arm);
        let is_failed = error.is_some();
        if is_failed {
            wish.deadline = shared.clock.ticks_until(Instant::now() + PAUSE);
        }
        // Without descriptors a system fails before it looks whether one waits.
        let waiting = || backend::conditions(listener.socket, EventFilter::IN);
        let is_any_left = is_last && is_failed && !waiting().is_empty();
        let ends = is_last && !(is_any_left && listener.tries_again());
        let is_told = match is_last {
            true => ends && is_any_left,
            // One that is full can neither, and is woken when a connection ends.
            false if !is_failed && wish.filter.is_empty() => false,
            false => listener.set_failed(is_failed) != is_failed,
        };
        match error {
            Some(error) if is_told => shared.notify(Message::NotAccepting(id, error)),
            None if is_told => shared.notify(Message::Accepting(id)),
            // To drop it may run the caller's code.
            untold => drop_all(untold),
        }
        if ends {
            connections.close_listener(key);
        } else if is_last || !is_armed {
            self.arm_listener(key, &wish);
        }
    }

    /// Accept as many as may be accepted in a listener's turn, or before it is closed, and arm or report them. This runs the
    /// caller's code. Returns what the listener waits for next, and why it cannot accept.
    ///
    /// `arm`: arm the listener again, as soon as there is a connection: others accept more while the caller's function runs.
    fn accept_from(
        &mut self,
        id: Id,
        listener: &Listener<T>,
        is_last: bool,
        mut arm: impl FnMut(&mut Self),
    ) -> (Wish, Option<io::Error>) {
        let shared = Arc::clone(&self.shared);
        let mut failed = 0;
        for _ in 0..if is_last { LAST_BATCH } else { BATCH } {
            let room = match is_last {
                true if shared.connections.is_closed() => None,
                // Its limit does not count any more.
                true => Some(shared.connections.connection_began()),
                false => shared.connections.reserve(id, listener.listening.limit),
            };
            let Some(room) = room else {
                return (Wish::of(EventFilter::NONE), None);
            };
            let accept = || {
                let connection = match (listener.accept)(&mut || arm(self)) {
                    Ok(connection) => connection,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        let mut wish = Wish::of(EventFilter::IN);
                        wish.is_drained = true;
                        return Some((wish, None));
                    }
                    Err(error) if failed + 1 < MAX_FAILED => {
                        failed += 1;
                        drop_all([error]);
                        return None;
                    }
                    Err(error) => return Some((Wish::of(EventFilter::NONE), Some(error))),
                };
                failed = 0;
                // If it is not adopted, the port was closed meanwhile.
                let held = shared.adopt(room, connection, false).ok()?;
                match listener.listening.interest {
                    Some(interest) => self.arm(held, interest),
                    None => shared.notify(Message::Accepted(held)),
                }
                None
            };
            match catch_unwind(AssertUnwindSafe(accept)) {
                Ok(None) => {}
                Ok(Some(last)) => return last,
                Err(panic) => shared.notify(Message::Panicked(id, panic)),
            }
        }
        (Wish::of(EventFilter::IN), None)
    }

    /// Arm a listener again. The next call does what is left to do.
    fn arm_listener(&mut self, key: usize, wish: &Wish) {
        let shared = &*self.shared;
        if let Some(to_do) = shared.connections.put_listener(key, wish) {
            if to_do.is_late {
                shared.clock.schedule(key);
            }
            gather(&mut self.polls, &mut self.registrations, &to_do);
        }
    }

    /// Runs work that may block, and lends this thread's permit to another thread meanwhile, at once: see
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
        self.give_back();
        self.shared.connections.port.blocking(work)
    }

    /// Gives this thread's permit back, and events that were not taken to other threads. Call it before the thread does
    /// something else for long. See [`CompletionPort::release`](crate::CompletionPort::release).
    pub fn release(&mut self) {
        self.give_back();
        self.shared.connections.port.release();
    }

    /// Arm what was handed back, and give what was dequeued and not taken to other threads.
    fn give_back(&mut self) {
        if !self.shared.connections.is_here() {
            return;
        }
        self.flush();
        let (files, system) = (&self.shared.files, self.shared.connections.port.system());
        files.flush();
        let packets = &self.entries[self.left.clone()];
        // If it is an operation's, closing takes that.
        packets.iter().for_each(|packet| files.on_requeued(packet));
        if !packets.is_empty() && system.requeue(packets).is_ok() {
            self.left = 0..0;
        }
    }

    /// Takes the next event of the latest [`process`](Self::process). For a message of a timer that repeats, this calls the
    /// [function](Port::send_every_with) that makes it.
    ///
    /// There may be fewer than `process` returned: some were of connections that [linger](Self::linger), or of timers that were
    /// cancelled; when the port is closed, its connections and messages are [returned](Port::close); and events of
    /// a shared socket are dropped when another thread has taken its [last one](Event::Returned).
    pub fn take(&mut self) -> Option<Event<T, M>> {
        if !self.shared.connections.is_here() {
            return None;
        }
        for index in &mut self.left {
            let packet = self.entries[index];
            self.taken.show(packet.completion_key);
            let event = self.shared.event(packet, &mut self.taken);
            if event.is_some() {
                return event;
            }
        }
        None
    }
}

/// The next call does what is left to do.
#[inline]
fn gather(polls: &mut Polls, registrations: &mut Vec<Registration<'static>>, to_do: &ToDo) {
    match to_do.left {
        Left::Nothing => {}
        Left::Poll(interest) => polls.add(interest),
        Left::Arm => registrations.extend(to_do.arm()),
    }
}

/// The event of a connection that was taken for another reason than an event, or is connecting.
#[cold]
fn other_event<T: Source, M>(
    mut held: Held<T>,
    reason: Option<Reasons>,
    events: Events,
    filter: EventFilter,
) -> Event<T, M> {
    match reason {
        None if held.readiness().phase == Phase::Connecting => connect::outcome(held, events),
        None => Event::Ready(held, events),
        Some(Reasons::BUFFERED) => Event::Ready(held, Events::IN),
        Some(Reasons::TIMED_OUT) => {
            let is_connecting = held.readiness().phase == Phase::Connecting;
            let asked = match is_connecting {
                true => filter | EventFilter::OUT,
                false => filter,
            };
            // A condition may have held first, and its report be on the way still.
            let events = backend::conditions(held.readiness().socket(), asked);
            let wanted = events & filter.wanted();
            if !wanted.is_empty() {
                return other_event(held, None, wanted, filter);
            }
            held.split().1.phase = Phase::Open;
            match is_connecting && events.is_empty() {
                true => Event::Unconnected(held, connect::no_answer()),
                // If it was connecting, it waits for something else by now.
                false => Event::TimedOut(held),
            }
        }
        Some(Reasons::DRAINING) => Event::Draining(held),
        Some(_) => Event::Cancelled(held),
    }
}

impl<T: Source, M> Shared<T, M> {
    /// The event of a packet, unless what it refers to is gone. Results of work are counted.
    #[inline(always)]
    fn event(&self, packet: Entry, taken: &mut Taken) -> Option<Event<T, M>> {
        let place = self.connections.slots.get_by_key(packet.completion_key);
        let Some(mut place) = place else {
            return self.event_of_port(&packet, taken);
        };
        let Some((Some(node), reason)) = place.record.take(&packet) else {
            let is_shared = place.resident.is_some();
            drop(place);
            return is_shared.then(|| self.shared_event(&packet)).flatten();
        };
        let filter = place.record.filter();
        drop(place);
        // Where its own code panics, it is closed.
        let held = Held::from_node(node);
        let events = packet.events();
        match (held.readiness().phase, reason) {
            (Phase::Open, None) => Some(Event::Ready(held, events)),
            (Phase::Lingering, reason) => {
                linger::on_event(self, held, reason);
                None
            }
            (_, reason) => Some(other_event(held, reason, events, filter)),
        }
    }

    /// The event of a packet of the port itself.
    #[cold]
    fn event_of_port(&self, packet: &Entry, taken: &mut Taken) -> Option<Event<T, M>> {
        match OfPort::of(packet, &self.connections.slots)? {
            OfPort::Message => {
                let message = burst::pop(&mut lock(&self.messages))?;
                taken.results += usize::from(matches!(message, Message::Result(_)));
                let event = message.into_event()?;
                if let Some(id) = event.id() {
                    taken.show(self.connections.slots.key(id.0));
                }
                Some(event)
            }
            OfPort::Operation => {
                let (completion, timer) = self.files.finish(packet.overlapped)?;
                if let Some(timer) = timer {
                    self.clock.cancel_timer(TimerId(timer));
                }
                taken.results += 1;
                Some(Event::Completed(completion))
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
                Resident::Shared(shared) => Some(Event::Returned(shared())),
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
        self.release();
        self.end_work();
        // If the port is closed, nobody else takes these. To take one may run the caller's code.
        while !self.left.is_empty() {
            drop_all([catch_unwind(AssertUnwindSafe(|| self.take()))]);
        }
    }
}

impl<T: Source, M> fmt::Debug for Worker<T, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker")
            .field("events", &self.left.len())
            .field("has_to_arm", &self.has_gathered())
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(interleavings)))]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    use super::*;
    use crate::RegistrationError;

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
        port.shared.on_refused(key, RegistrationError::NotASocket);
        assert_eq!(worker.process(None)?, 1);
        assert!(matches!(worker.take(), Some(Event::NotAccepting(it, _)) if it == id));
        assert!(!port.cancel(id), "it is closed");
        Ok(())
    }

    #[test]
    fn o7_what_was_dequeued_is_taken_though_it_is_given_back_after_closing() -> std::io::Result<()>
    {
        let path = std::env::temp_dir().join(format!("socknotify-flow-on-{}", std::process::id()));
        std::fs::write(&path, [7; 8])?;
        for is_taken in [true, false] {
            let builder = Port::<TcpStream, u32>::builder().strict();
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
            worker.give_back();
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
            // Some are armed as they are given back, and those after them as the worker dequeues.
            let interest = match index % 3 {
                0 => Interest::NOTHING.within(Duration::from_millis(1)),
                _ => Interest::OUT,
            };
            worker.arm(held, interest);
            if index == 80 {
                worker.give_back();
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

    /// The port is being closed, and its connections are still in it. A panic may be what drops the worker: a second one would end the
    /// process.
    #[test]
    fn a_worker_is_dropped_though_asking_a_connection_panics() -> std::io::Result<()> {
        struct Fragile(TcpStream);

        impl Source for Fragile {
            fn socket(&self) -> crate::owned::BorrowedSocket<'_> {
                // Not when it is armed.
                if self.0.nodelay().is_ok_and(|it| it) {
                    std::panic::resume_unwind(Box::new("a fault"));
                }
                self.0.socket()
            }
        }

        let port = Port::<Fragile, u32>::with_messages()?;
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let mut peer = TcpStream::connect(listener.local_addr()?)?;
        let ours = listener.accept()?.0;
        let same = ours.try_clone()?;
        let mut worker = port.worker(4);
        // What it sends is discarded when that is taken.
        worker.linger(port.adopt(Fragile(ours))?, Duration::from_secs(60));
        peer.write_all(&[1])?;
        assert_eq!(worker.process(PATIENCE)?, 1);
        same.set_nodelay(true)?;
        port.shared.connections.port.close();
        drop(worker);
        assert_eq!(port.connections(), 0);
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
        let far = std::time::Instant::now() + Duration::from_secs(3600);
        let wish = Wish {
            filter: EventFilter::NONE,
            is_drained: false,
            deadline: shared.clock.ticks_until(far),
            is_buffered: false,
        };
        let put = shared.connections.put(held.into_node(), &wish);
        assert!(put.is_ok_and(|to_do| to_do.is_late));
        // Another one arms it meanwhile.
        let held = port.disarm(id).expect("it is armed");
        port.arm(held, Interest::NOTHING.within(Duration::from_millis(1)));
        let key = shared.connections.slots.key(id.0);
        shared.clock.schedule(key);
        let mut worker = port.worker(4);
        assert_eq!(worker.process(PATIENCE)?, 1);
        assert!(matches!(worker.take(), Some(Event::TimedOut(_))));
        Ok(())
    }
}
