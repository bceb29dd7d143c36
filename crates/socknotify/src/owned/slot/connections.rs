//! [`Connections`]: the connections of a port, by [`Id`], wherever they are.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use crate::backend;
use crate::engine::owned::Left;
use crate::os::{self, Process, RawSocket};
use crate::owned::Readiness;
use crate::owned::listen::Listener;
use crate::owned::slot::packet::Packet;
use crate::owned::slot::record::{Put, Reasons, Record, Seen};
pub(in crate::owned) use crate::support::drops::drop_all;
use crate::support::lock::{self, lock};
use crate::support::slots::{Slots, Token};
use crate::values::entry::Arming;
use crate::{CompletionPort, Entry, Error, EventFilter, Events};
use crate::{Registration, RegistrationError};

/// No deadline.
pub(in crate::owned) const NEVER: u64 = u64::MAX;

/// Identifies a connection, a listener or a shared socket of a port. It is not reused before 2³¹ others were made.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Id(pub(in crate::owned) Token);

/// As it is displayed.
impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0.index, self.0.generation)
    }
}

/// The part of an owning port that a connection refers to while a thread holds it.
///
/// A connection that is armed is in here, and refers to it as well. Closing the port takes all of them
/// out, and nothing is put in afterwards.
pub(in crate::owned) struct Connections<T> {
    pub(in crate::owned) port: CompletionPort,
    pub(in crate::owned) slots: Slots<Place<T>>,
    process: Process,
    closed: AtomicBool,
    /// How many connections there are, armed or held; and, times [`WORK`], how many operations on files, and how much work
    /// that blocks, were accepted whose results no thread has handled. Who handles a result may adopt a connection: in one
    /// word, nobody sees neither.
    counts: AtomicU64,
    /// When the last connection has ended, and all work is done, the port closes.
    draining: AtomicBool,
    /// A listener pauses until the port has fewer connections.
    is_full: AtomicBool,
    /// Those that do, and how many connections they may have.
    paused: Mutex<Vec<(Token, usize)>>,
    listeners: Mutex<Vec<Token>>,
    /// When calls that serve are to be over: now, once the port was closed, or at the end of the time for draining.
    pub(in crate::owned) end: EndTime,
    /// The connections that were armed when the port closed.
    #[allow(clippy::vec_box, reason = "they are moved as they are")]
    left: Mutex<Vec<Box<Node<T>>>>,
}

/// One operation more, or work, in the counts.
const WORK: u64 = 1 << 32;

/// How many connections there are, by the counts.
fn connections(counts: u64) -> usize {
    counts as u32 as usize
}

/// What the port has in a slot: a connection, a listener or a shared socket.
pub(in crate::owned) struct Place<T> {
    /// Whether it waits, and for what.
    pub(in crate::owned) record: Record<Armed<T>>,
    /// Boxed: connections have none, and there are many of them.
    pub(in crate::owned) resident: Option<Box<Resident<T>>>,
    /// The shared socket is being deregistered.
    pub(in crate::owned) ends: bool,
    /// The descriptor number that it was adopted with.
    pub(in crate::owned) socket: RawSocket,
    /// When its wait ends, in ticks.
    pub(in crate::owned) deadline: u64,
    /// When the wheel reports this slot: at the deadline or before.
    pub(in crate::owned) scheduled: u64,
}

/// What waits: a connection, or `None` for a listener, which stays in its slot.
pub(in crate::owned) type Armed<T> = Option<Box<Node<T>>>;

/// What stays in the slot.
pub(in crate::owned) enum Resident<T> {
    /// Returns it. So `T` has to be `Sync` only where one is shared, and not for all connections.
    Shared(Box<dyn Fn() -> Arc<T> + Send + Sync>),
    Listener(Arc<Listener<T>>),
}

/// A connection with what the port needs to know of it.
pub(in crate::owned) struct Node<T> {
    pub(in crate::owned) value: T,
    pub(in crate::owned) connections: Arc<Connections<T>>,
    pub(in crate::owned) token: Token,
    /// Has the descriptor number that it was adopted with.
    pub(in crate::owned) readiness: Readiness,
}

/// How something is to be armed.
#[derive(Clone, Copy)]
pub(in crate::owned) struct Wish {
    pub(in crate::owned) filter: EventFilter,
    /// No wanted condition held when its thread was done.
    pub(in crate::owned) is_drained: bool,
    /// In ticks.
    pub(in crate::owned) deadline: u64,
    /// It is ready at once.
    pub(in crate::owned) is_buffered: bool,
}

impl Wish {
    /// For these conditions, without a deadline.
    pub(in crate::owned) const fn of(filter: EventFilter) -> Self {
        Wish {
            filter,
            is_drained: false,
            deadline: NEVER,
            is_buffered: false,
        }
    }
}

/// What is left to do once something was put into its slot.
#[derive(Clone, Copy, Debug)]
pub(in crate::owned) struct ToDo {
    socket: RawSocket,
    pub(in crate::owned) key: usize,
    filter: EventFilter,
    pub(in crate::owned) left: Left,
    /// The system may refuse it: it does not watch it with this filter yet.
    pub(in crate::owned) is_new: bool,
    /// The wheel does not report the slot in time for its deadline.
    pub(in crate::owned) is_late: bool,
}

impl ToDo {
    /// What arms it beneath, unless that is done.
    #[inline]
    pub(in crate::owned) fn arm(&self) -> Option<Registration<'static>> {
        (self.left != Left::Nothing).then(|| Registration::arm(self.socket, self.key, self.filter))
    }
}

/// What a packet is for.
#[derive(Debug)]
pub(in crate::owned) enum Looked {
    Nothing,
    /// To take.
    Event,
    /// To accept.
    Listener,
    /// To arm, again or at last.
    Arm(ToDo),
    /// It is none of a slot.
    Other,
}

impl<T> Default for Place<T> {
    fn default() -> Self {
        Place::new(RawSocket::default(), None)
    }
}

impl<T> Place<T> {
    pub(in crate::owned) fn new(socket: RawSocket, resident: Option<Resident<T>>) -> Self {
        Place {
            record: match resident {
                Some(Resident::Listener(_)) => Record::always_looked_at(),
                _ => Record::default(),
            },
            resident: resident.map(Box::new),
            ends: false,
            socket,
            deadline: NEVER,
            scheduled: NEVER,
        }
    }

    /// The shared socket.
    pub(in crate::owned) fn shared(&self) -> Option<Arc<T>> {
        match self.resident.as_deref() {
            Some(Resident::Shared(shared)) => Some(shared()),
            _ => None,
        }
    }
}

impl<T> Connections<T> {
    pub(in crate::owned) fn new(port: CompletionPort) -> Self {
        Connections {
            port,
            slots: Slots::new(),
            process: Process::this(),
            closed: AtomicBool::new(false),
            counts: AtomicU64::new(0),
            draining: AtomicBool::new(false),
            is_full: AtomicBool::new(false),
            paused: Mutex::default(),
            listeners: Mutex::default(),
            end: EndTime::default(),
            left: Mutex::default(),
        }
    }

    pub(in crate::owned) fn count(&self) -> usize {
        connections(self.counts.load(Ordering::SeqCst))
    }

    /// Whether this is the process of the port. In a forked child no lock may be taken: a thread that only the parent has
    /// may hold it.
    #[inline]
    pub(in crate::owned) fn is_here(&self) -> bool {
        self.process.is_this()
    }

    /// An error if the port is closed, or belongs to another process.
    pub(in crate::owned) fn check(&self) -> Result<(), Error> {
        if !self.is_here() {
            return Err(Error::OtherProcess);
        }
        match self.closed.load(Ordering::SeqCst) {
            true => Err(Error::Closed),
            false => Ok(()),
        }
    }

    /// Whether the port is closed, for this process at least.
    pub(in crate::owned) fn is_closed(&self) -> bool {
        self.check().is_err()
    }

    pub(in crate::owned) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }

    /// Count one connection more.
    pub(in crate::owned) fn connection_began(&self) -> Room<'_, T> {
        self.counts.fetch_add(1, Ordering::SeqCst);
        Room(self)
    }

    /// Count one more, if there are fewer than this listener's limit. Otherwise it is woken when the number falls below that.
    pub(in crate::owned) fn reserve(&self, id: Id, limit: usize) -> Option<Room<'_, T>> {
        let order = Ordering::SeqCst;
        let next = |counts| (connections(counts) < limit).then_some(counts + 1);
        let count = || self.counts.fetch_update(order, order, next).is_ok();
        let is_counted = count() || {
            // One may have ended before this, and not have seen it. If so, the listener is woken once too often: another thread
            // may have seen it full, and have it pause.
            let mut paused = lock(&self.paused);
            paused.retain(|other| other.0 != id.0);
            paused.push((id.0, limit));
            self.is_full.store(true, Ordering::SeqCst);
            drop(paused);
            count()
        };
        is_counted.then(|| Room(self))
    }

    /// Count one connection less.
    pub(in crate::owned) fn connection_ended(&self) {
        let before = self.counts.fetch_sub(1, Ordering::SeqCst);
        if !self.is_here() {
            return;
        }
        if self.is_full.load(Ordering::SeqCst) {
            self.resume_listeners();
        }
        if before == 1 {
            self.end_if_drained();
        }
    }

    /// Wake the listeners that pause, and for which there is room.
    ///
    /// Not the others: to accept counts one connection more for a moment, also if none waits, and then one less. So two
    /// listeners with different limits would wake each other for ever.
    #[cold]
    fn resume_listeners(&self) {
        let mut paused = lock(&self.paused);
        // Who ends one meanwhile waits for the lock.
        paused.retain(|&(token, limit)| {
            let has_room = self.count() < limit;
            if has_room {
                self.interrupt_named(token, Reasons::RESUMED);
            }
            !has_room
        });
        self.is_full.store(!paused.is_empty(), Ordering::SeqCst);
    }

    /// Count work that is accepted.
    pub(in crate::owned) fn begin_work(&self) {
        self.counts.fetch_add(WORK, Ordering::SeqCst);
    }

    /// Work is done: a thread has handled the results, or it was not accepted after all.
    pub(in crate::owned) fn end_work(&self, count: usize) {
        let done = count as u64 * WORK;
        if self.counts.fetch_sub(done, Ordering::SeqCst) == done && self.is_here() {
            self.end_if_drained();
        }
    }

    fn end_if_drained(&self) {
        // What waits in a listener's backlog counts.
        let is_over = || self.counts.load(Ordering::SeqCst) == 0;
        if self.is_draining() && lock(&self.listeners).is_empty() && is_over() {
            drop_all(self.end(false));
        }
    }

    /// Put a connection into its slot, where its packets find it. It comes back if the port is closed, whatever the error, or
    /// the system does not watch it.
    #[inline(always)]
    pub(in crate::owned) fn put(
        &self,
        node: Box<Node<T>>,
        wish: &Wish,
    ) -> Result<ToDo, (Box<Node<T>>, RegistrationError)> {
        // Closing says so first, and then empties every slot.
        let place = match self.is_here() {
            true => self.slots.get(node.token),
            false => None,
        };
        let Some(mut place) = place.filter(|_| !self.closed.load(Ordering::SeqCst)) else {
            return Err((node, RegistrationError::NotFound));
        };
        let key = self.slots.key(node.token);
        let put = self.put_into(&mut place, key, Some(node), wish);
        put.map_err(|(armed, error)| (armed.expect("it was put"), error))
    }

    #[inline(always)]
    fn put_into(
        &self,
        place: &mut Place<T>,
        key: usize,
        armed: Armed<T>,
        wish: &Wish,
    ) -> Result<ToDo, (Armed<T>, RegistrationError)> {
        let socket = place.socket;
        let system = self.port.system();
        let arm =
            |arming, is_drained| system.enable_owned(socket, key, wish.filter, arming, is_drained);
        let (left, is_new) = match place.record.put(armed, wish, arm) {
            Ok(Put::Armed { left, is_new }) => (left, is_new),
            Ok(Put::Report(arming)) if self.post_report(key, arming) => {
                place.record.posted();
                (Left::Nothing, false)
            }
            Ok(Put::Report(_)) => {
                let armed = place.record.take_back().expect("it was put");
                return Err((armed, RegistrationError::OutOfMemory));
            }
            Err(refused) => return Err(refused),
        };
        place.deadline = wish.deadline;
        Ok(ToDo {
            socket,
            key,
            filter: wish.filter,
            left,
            is_new,
            is_late: wish.deadline < place.scheduled,
        })
    }

    /// Arm a listener again. Nothing if it was closed.
    pub(in crate::owned) fn put_listener(&self, key: usize, wish: &Wish) -> Option<ToDo> {
        let mut place = self.slots.get_by_key(key)?;
        if self.closed.load(Ordering::SeqCst) || place.record.is_waiting() {
            return None;
        }
        self.put_into(&mut place, key, None, wish).ok()
    }

    /// Have a thread take what was interrupted, before it takes what came earlier. False if there is no memory for a packet, or
    /// the port is closed.
    #[cold]
    fn post_report(&self, key: usize, arming: Arming) -> bool {
        let packet = Packet::Reported(arming, Events::empty()).of_slot(key);
        self.port.system().post_ahead(packet).is_ok()
    }

    /// A packet was dequeued. Find out what it is for, and change it to what is taken.
    #[inline]
    pub(in crate::owned) fn look(&self, entry: &mut Entry) -> Looked {
        let Some(mut place) = self.slots.get_by_key(entry.completion_key) else {
            return Looked::Other;
        };
        let socket = place.socket;
        let event = match place.resident.as_deref() {
            None => Looked::Event,
            Some(Resident::Listener(_)) => Looked::Listener,
            // Whoever takes it finds out whether it is out of date.
            Some(Resident::Shared(_)) => return Looked::Event,
        };
        let key = entry.completion_key;
        let system = self.port.system();
        let holds = |filter| !backend::conditions(socket, filter).is_empty();
        match place.record.look(entry, holds) {
            Seen::Nothing => Looked::Nothing,
            Seen::Event => event,
            Seen::Arm(arming, filter) => {
                match system.enable_owned(socket, key, filter, arming, false) {
                    Ok(left) => Looked::Arm(ToDo {
                        socket,
                        key,
                        filter,
                        left,
                        is_new: false,
                        is_late: false,
                    }),
                    // The port is closed.
                    Err(_) => Looked::Nothing,
                }
            }
        }
    }

    /// Take back a connection that could not be armed, unless another thread has dequeued its event meanwhile.
    pub(in crate::owned) fn take_back(&self, key: usize) -> Option<Box<Node<T>>> {
        let mut place = self.slots.get_by_key(key)?;
        // What was armed when the port was closed is closed with it.
        if self.closed.load(Ordering::SeqCst) {
            return None;
        }
        place.record.take_back()?
    }

    /// Take a connection out of its slot, unless a thread has dequeued its event.
    pub(in crate::owned) fn take_out(&self, id: Id) -> Option<Box<Node<T>>> {
        let mut place = self.slots.get(id.0)?;
        if place.resident.is_some() {
            // A listener stays armed.
            return None;
        }
        let (system, socket, key) = (self.port.system(), place.socket, self.slots.key(id.0));
        let claim = |arming| system.claim_owned(socket, key, arming);
        place.record.take_out(claim)?
    }

    /// End the wait of something for this reason, or the next one. False if there was no memory for a packet.
    pub(in crate::owned) fn interrupt(
        &self,
        key: usize,
        place: &mut Place<T>,
        reason: Reasons,
    ) -> bool {
        let Some(arming) = place.record.interrupt(reason) else {
            return true;
        };
        let system = self.port.system();
        if system.is_dequeued(place.socket, key, arming) {
            return true;
        }
        // First, as what is disabled must be reported. If a thread dequeues its event meanwhile, nobody takes this packet.
        let is_posted = self.post_report(key, arming);
        if is_posted && system.claim_owned(place.socket, key, arming) {
            place.record.posted();
        }
        is_posted
    }

    /// Interrupt the wait of a connection, or the next one if it is not armed. False if there is none with
    /// this `Id`.
    pub(in crate::owned) fn cancel(&self, id: Id) -> bool {
        !self.is_closed() && self.interrupt_named(id.0, Reasons::CANCELLED)
    }

    /// End the wait of the connection or listener with this `Id` for this reason, or the next one. Not for shared
    /// sockets.
    pub(in crate::owned) fn interrupt_named(&self, token: Token, reason: Reasons) -> bool {
        match self.slots.get(token) {
            Some(mut place) if place.shared().is_none() => {
                self.interrupt(self.slots.key(token), &mut place, reason);
                true
            }
            _ => false,
        }
    }

    /// The same for all. Returns the number of connections.
    pub(in crate::owned) fn interrupt_all(
        &self,
        reason: Reasons,
        is_meant: impl Fn(&Place<T>) -> bool,
    ) -> usize {
        let mut count = 0;
        if !self.is_here() {
            return count;
        }
        for (token, mut place) in self.slots.iter_named() {
            if is_meant(&place) {
                self.interrupt(self.slots.key(token), &mut place, reason);
                count += 1;
            }
        }
        count
    }

    /// End the registration of a held connection, and its `Id`. It counts as long as the result is there.
    pub(in crate::owned) fn retire(
        &self,
        token: Token,
        socket: RawSocket,
        stays_open: bool,
    ) -> Room<'_, T> {
        if self.is_here() {
            self.forget(token, socket, stays_open);
        }
        Room(self)
    }

    /// The same for entries that do not count as connections.
    fn forget(&self, token: Token, socket: RawSocket, stays_open: bool) -> Option<Place<T>> {
        let system = self.port.system();
        system.release(socket, self.slots.key(token), stays_open);
        self.slots.remove(token)
    }

    /// A listener is about to be registered.
    pub(in crate::owned) fn add_listener(&self, token: Token) {
        lock(&self.listeners).push(token);
    }

    /// The listener of a packet that was dequeued, which is armed no more, and why. Other reasons come when it is armed again.
    pub(in crate::owned) fn take_listener(
        &self,
        entry: &Entry,
    ) -> Option<(Id, Arc<Listener<T>>, Option<Reasons>)> {
        let (token, mut place) = self.slots.named(entry.completion_key)?;
        let Some(Resident::Listener(listener)) = place.resident.as_deref() else {
            return None;
        };
        let listener = Arc::clone(listener);
        let (_, reason) = place.record.take(entry)?;
        Some((Id(token), listener, reason))
    }

    /// The connection or listener with this key.
    pub(in crate::owned) fn id(&self, key: usize) -> Option<Id> {
        let (token, place) = self.slots.named(key)?;
        let is_shared = matches!(place.resident.as_deref(), Some(Resident::Shared(_)));
        (!is_shared).then_some(Id(token))
    }

    /// Close a listener. `None` if there is none with this key.
    pub(in crate::owned) fn close_listener(&self, key: usize) -> Option<Id> {
        let (token, place) = self.slots.named(key)?;
        let Resident::Listener(_) = place.resident.as_deref()? else {
            return None;
        };
        let socket = place.socket;
        drop(place);
        // To drop it runs the caller's code.
        drop_all([self.forget(token, socket, false)]);
        lock(&self.listeners).retain(|&other| other != token);
        lock(&self.paused).retain(|it| it.0 != token);
        self.end_if_drained();
        Some(Id(token))
    }

    /// Close the port when the last connection has ended and all work is done, and accept no connection more.
    pub(in crate::owned) fn drain(&self) {
        if !self.draining.swap(true, Ordering::SeqCst) {
            self.interrupt_all(Reasons::DRAINING, |place| place.shared().is_none());
        }
        self.end_if_drained();
    }

    /// Close the port beneath, and keep the connections that are in it. Dropping what this returns may run any code.
    ///
    /// `cuts_off`: connections that threads hold are shut down, so that what these wait for ends.
    pub(in crate::owned) fn end(&self, cuts_off: bool) -> Vec<Resident<T>> {
        let mut left = lock(&self.left);
        if self.closed.swap(true, Ordering::SeqCst) {
            // All was taken out, and the numbers are nobody's.
            return Vec::new();
        }
        self.port.close();
        let mut residents = Vec::new();
        for mut place in self.slots.iter() {
            if cuts_off && place.resident.is_none() && !place.record.is_waiting() {
                // It is closed only once it has left its slot, which is locked.
                os::shut_down(place.socket);
            }
            left.extend(place.record.take_any().flatten());
            residents.extend(std::mem::take(&mut *place).resident.map(|it| *it));
        }
        residents
    }

    /// Close the port beneath, and take out all that is armed.
    #[allow(clippy::vec_box, reason = "they are moved as they are")]
    pub(in crate::owned) fn close(&self) -> (Vec<Box<Node<T>>>, Vec<Resident<T>>) {
        let residents = self.end(false);
        self.end.by(Instant::now());
        (lock::take(&self.left), residents)
    }
}

/// A time that only gets earlier, and those that wait for it.
#[derive(Default)]
pub(in crate::owned) struct EndTime {
    at: Mutex<Option<Instant>>,
    changed: Condvar,
}

impl EndTime {
    /// It is this time, unless it is an earlier one.
    pub(in crate::owned) fn by(&self, time: Instant) {
        let mut at = lock(&self.at);
        *at = Some(at.map_or(time, |at| at.min(time)));
        drop(at);
        self.changed.notify_all();
    }

    /// Those that wait are to look: another thread has ended.
    pub(in crate::owned) fn notify(&self) {
        drop(lock(&self.at));
        self.changed.notify_all();
    }

    pub(in crate::owned) fn get(&self) -> Option<Instant> {
        *lock(&self.at)
    }

    /// Wait while this holds and the time is the same, up to `timeout`.
    pub(in crate::owned) fn wait_while(
        &self,
        at: Option<Instant>,
        timeout: Duration,
        holds: impl Fn() -> bool,
    ) {
        let is_same = |now: &mut Option<Instant>| *now == at && holds();
        let at = lock(&self.at);
        drop(self.changed.wait_timeout_while(at, timeout, is_same));
    }
}

/// Room for one more connection, which is counted already.
pub(in crate::owned) struct Room<'a, T>(&'a Connections<T>);

impl<T> Room<'_, T> {
    /// There is the connection.
    pub(in crate::owned) fn keep(self) {
        std::mem::forget(self);
    }
}

impl<T> Drop for Room<'_, T> {
    fn drop(&mut self) {
        self.0.connection_ended();
    }
}
