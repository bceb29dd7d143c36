//! [`Connections`]: the connections of a port, by [`Id`], wherever they are.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::Readiness;
use super::armed::Armed;
use super::listener::Listener;
use super::packet::Packet;
pub(super) use crate::drops::drop_all;
use crate::lock::{self, lock};
use crate::slots::{Occupied, Slots, Token};
use crate::sys::{Process, RawSocket};
use crate::{CompletionPort, Error};

/// No deadline.
pub(super) const NEVER: u64 = u64::MAX;

/// The [mark](Slots::unlocked) of a listener's slot.
pub(super) const LISTENER: u8 = 1;
/// The mark of a connection whose event was dequeued and not taken.
pub(super) const REPORTED: u8 = 2;

/// Identifies a connection, a listener or a shared socket of a port. It is not reused before 2³¹ others were made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Id(pub(super) Token);

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0.index, self.0.generation)
    }
}

/// The part of an owning port that a connection refers to while a thread holds it.
///
/// A connection that is armed is in here, and refers to it as well. Closing the port takes all of them
/// out, and nothing is put in afterwards.
pub(super) struct Connections<T> {
    pub(super) port: CompletionPort,
    pub(super) slots: Slots<Place<T>, Armed<Node<T>>>,
    process: Process,
    closed: AtomicBool,
    /// The number of connections, armed or held.
    count: AtomicUsize,
    /// The number of operations on files, and of work that blocks, that were accepted and whose results no thread has
    /// handled.
    work: AtomicUsize,
    /// When the last connection has ended, and all work is done, the port closes.
    draining: AtomicBool,
    /// A listener pauses until a connection ends.
    is_full: AtomicBool,
    listeners: Mutex<Vec<Token>>,
    /// The connections that were armed when the port closed.
    #[allow(clippy::vec_box, reason = "they are moved as they are")]
    left: Mutex<Vec<Box<Node<T>>>>,
}

/// The port's record of a connection, a listener or a shared socket. A connection is [beside](Armed) it, or a thread
/// holds it.
pub(super) struct Place<T> {
    /// Boxed: connections have none, and there are many of them.
    pub(super) resident: Option<Box<Resident<T>>>,
    /// The shared socket is being deregistered.
    pub(super) ends: bool,
    /// The descriptor number that it was adopted with.
    pub(super) socket: RawSocket,
    /// The deadline of the connection, in ticks, if it is armed.
    pub(super) deadline: u64,
    /// When the wheel reports this slot: at the deadline or before.
    pub(super) scheduled: u64,
}

/// What stays in the slot while the connection is with a thread.
pub(super) enum Resident<T> {
    Shared(Box<dyn Sharing<T>>),
    Listener(Arc<Listener<T>>),
}

/// A reference to a shared socket. Its type requires that `T` is `Sync` only where a socket is shared, and not of all
/// connections.
pub(super) trait Sharing<T>: Send + Sync {
    fn socket(&self) -> Arc<T>;
}

impl<T: Send + Sync> Sharing<T> for Arc<T> {
    fn socket(&self) -> Arc<T> {
        Arc::clone(self)
    }
}

/// A connection with what the port needs to know of it.
pub(super) struct Node<T> {
    pub(super) value: T,
    pub(super) connections: Arc<Connections<T>>,
    pub(super) token: Token,
    /// Has the descriptor number that it was adopted with, and the filter that the system watches it with.
    pub(super) readiness: Readiness,
    /// Its slot has a deadline.
    pub(super) has_deadline: bool,
}

/// A slot, locked. A connection that has no deadline, and had none before, is armed meanwhile all the same.
pub(super) type Locked<'a, T> = Occupied<'a, Place<T>, Armed<Node<T>>>;

/// Whether the wait of what a slot has can end.
pub(super) fn is_waiting<T>(place: &Locked<'_, T>) -> bool {
    let is_listener = matches!(place.resident.as_deref(), Some(Resident::Listener(_)));
    is_listener || place.beside().has(place.generation())
}

impl<T> Node<T> {
    #[inline]
    pub(super) fn key(&self) -> usize {
        self.connections.slots.key(self.token)
    }
}

impl<T> Default for Place<T> {
    fn default() -> Self {
        Place {
            resident: None,
            ends: false,
            socket: RawSocket::default(),
            deadline: NEVER,
            scheduled: NEVER,
        }
    }
}

impl<T> Place<T> {
    pub(super) fn of_connection(socket: RawSocket) -> Self {
        Place {
            socket,
            ..Place::default()
        }
    }

    pub(super) fn of_shared(socket: RawSocket, shared: Box<dyn Sharing<T>>) -> Self {
        Place {
            resident: Some(Box::new(Resident::Shared(shared))),
            ..Place::of_connection(socket)
        }
    }

    pub(super) fn of_listener(socket: RawSocket, listener: Arc<Listener<T>>) -> Self {
        Place {
            resident: Some(Box::new(Resident::Listener(listener))),
            ..Place::of_connection(socket)
        }
    }

    /// The shared socket.
    pub(super) fn shared(&self) -> Option<Arc<T>> {
        match self.resident.as_deref() {
            Some(Resident::Shared(shared)) => Some(shared.socket()),
            _ => None,
        }
    }
}

impl<T> Connections<T> {
    pub(super) fn new(port: CompletionPort) -> Self {
        Connections {
            port,
            slots: Slots::new(),
            process: Process::this(),
            closed: AtomicBool::new(false),
            count: AtomicUsize::new(0),
            work: AtomicUsize::new(0),
            draining: AtomicBool::new(false),
            is_full: AtomicBool::new(false),
            listeners: Mutex::default(),
            left: Mutex::default(),
        }
    }

    pub(super) fn count(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }

    /// Whether this is the process of the port. In a forked child no lock may be taken: a thread that only the parent has
    /// may hold it.
    #[inline]
    pub(super) fn is_here(&self) -> bool {
        self.process.is_this()
    }

    /// An error if the port is closed, or belongs to another process.
    pub(super) fn check(&self) -> Result<(), Error> {
        if !self.is_here() {
            return Err(Error::OtherProcess);
        }
        match self.closed.load(Ordering::SeqCst) {
            true => Err(Error::Closed),
            false => Ok(()),
        }
    }

    /// Whether the port is closed, for this process at least.
    pub(super) fn is_closed(&self) -> bool {
        self.check().is_err()
    }

    pub(super) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }

    /// Count one connection more.
    pub(super) fn connection_began(&self) -> Room<'_, T> {
        self.count.fetch_add(1, Ordering::SeqCst);
        Room(self)
    }

    /// Count one more, if there are fewer than this limit. Otherwise listeners are woken when the number falls.
    pub(super) fn reserve(&self, limit: usize) -> Option<Room<'_, T>> {
        let count = || {
            let mut count = self.count.load(Ordering::SeqCst);
            while count < limit {
                let (this, next) = (&self.count, count + 1);
                match this.compare_exchange(count, next, Ordering::SeqCst, Ordering::SeqCst) {
                    Ok(_) => return true,
                    Err(other) => count = other,
                }
            }
            false
        };
        let is_counted = count() || {
            // One may have ended before this, and not have seen it.
            self.is_full.store(true, Ordering::SeqCst);
            count()
        };
        is_counted.then(|| Room(self))
    }

    /// Count one connection less.
    pub(super) fn connection_ended(&self) {
        let before = self.count.fetch_sub(1, Ordering::SeqCst);
        if !self.is_here() {
            return;
        }
        if self.is_full.load(Ordering::SeqCst) && self.is_full.swap(false, Ordering::SeqCst) {
            let listeners = lock(&self.listeners).clone();
            for token in listeners {
                self.interrupt_named(token, Packet::Resumed);
            }
        }
        if before == 1 {
            self.end_if_drained();
        }
    }

    /// Count work that is accepted.
    pub(super) fn begin_work(&self) {
        self.work.fetch_add(1, Ordering::SeqCst);
    }

    /// Work is done: a thread has handled the results, or it was not accepted after all.
    pub(super) fn end_work(&self, count: usize) {
        if self.work.fetch_sub(count, Ordering::SeqCst) == count && self.is_here() {
            self.end_if_drained();
        }
    }

    fn end_if_drained(&self) {
        if self.is_draining() && self.count() == 0 && self.work.load(Ordering::SeqCst) == 0 {
            drop_all(self.end());
        }
    }

    /// Put a connection into its slot, with its deadline, where its packet will find it. Returns it if the port is
    /// closed.
    #[inline(always)]
    pub(super) fn put(&self, mut node: Box<Node<T>>, deadline: u64) -> Result<(), Box<Node<T>>> {
        if !self.is_here() {
            return Err(node);
        }
        let Token { index, generation } = node.token;
        let Some(armed) = self.slots.beside(index) else {
            return Err(node);
        };
        // Those who look at the deadline lock the slot.
        let mut place = None;
        if node.has_deadline || deadline != NEVER {
            node.has_deadline = deadline != NEVER;
            place = self.lock_deadline(node.token, deadline);
        }
        armed.put(generation, node);
        drop(place);
        // Closing sets this first, and then empties every slot.
        match self.closed.load(Ordering::SeqCst) {
            true => armed.take(generation).map_or(Ok(()), Err),
            false => Ok(()),
        }
    }

    /// Set a connection's deadline, and keep its slot locked.
    #[inline(never)]
    fn lock_deadline(&self, token: Token, deadline: u64) -> Option<Locked<'_, T>> {
        let mut place = self.slots.get(token)?;
        place.deadline = deadline;
        place.marks().store(0, Ordering::Relaxed);
        Some(place)
    }

    /// Take an armed connection out of its slot.
    pub(super) fn take(&self, token: Token) -> Option<Box<Node<T>>> {
        self.slots.beside(token.index)?.take(token.generation)
    }

    /// Interrupt the wait of a connection. False if it is not armed.
    ///
    /// The slot is locked: nobody arms it meanwhile with a deadline, or without the one that it had.
    pub(super) fn interrupt(
        &self,
        key: usize,
        place: &Place<T>,
        reason: Packet,
        insist: bool,
    ) -> bool {
        let system = self.port.system();
        system.interrupt(place.socket, key, reason.encode(), insist)
    }

    /// Interrupt the wait of a connection, or the next one if it is not armed. False if there is none with
    /// this `Id`.
    pub(super) fn cancel(&self, id: Id) -> bool {
        !self.is_closed() && self.interrupt_named(id.0, Packet::Cancelled)
    }

    /// End the wait of the connection or listener with this `Id` for this reason, or the next one. Not for shared
    /// sockets.
    pub(super) fn interrupt_named(&self, token: Token, reason: Packet) -> bool {
        match self.slots.get(token) {
            Some(place) if place.shared().is_none() => {
                self.interrupt(self.slots.key(token), &place, reason, true);
                true
            }
            _ => false,
        }
    }

    /// The same for all. Returns the number of connections.
    pub(super) fn interrupt_all(
        &self,
        reason: Packet,
        is_meant: impl Fn(&Place<T>) -> bool,
    ) -> usize {
        let mut count = 0;
        if !self.is_here() {
            return count;
        }
        for (token, place) in self.slots.iter_named() {
            if is_meant(&place) {
                self.interrupt(self.slots.key(token), &place, reason, true);
                count += 1;
            }
        }
        count
    }

    /// End the registration of a held connection, and its `Id`.
    pub(super) fn retire(&self, token: Token, socket: RawSocket, stays_open: bool) {
        if !self.is_here() {
            return;
        }
        self.forget(token, socket, stays_open);
        self.connection_ended();
    }

    /// The same for entries that do not count as connections.
    pub(super) fn forget(&self, token: Token, socket: RawSocket, stays_open: bool) {
        let system = self.port.system();
        system.release(socket, self.slots.key(token), stays_open);
        self.slots.remove(token);
    }

    /// A listener is about to be registered.
    pub(super) fn add_listener(&self, token: Token) {
        if let Some(place) = self.slots.get(token) {
            place.marks().store(LISTENER, Ordering::Relaxed);
        }
        lock(&self.listeners).push(token);
    }

    /// A listener that was reported.
    pub(super) fn listener(&self, key: usize) -> Option<(Id, RawSocket, Arc<Listener<T>>)> {
        let (token, mut place) = self.slots.named(key)?;
        place.deadline = NEVER;
        match place.resident.as_deref() {
            Some(Resident::Listener(listener)) => {
                Some((Id(token), place.socket, Arc::clone(listener)))
            }
            _ => None,
        }
    }

    /// Close a listener whose packet a thread has dequeued.
    pub(super) fn close_listener(&self, key: usize) {
        let Some((token, place)) = self.slots.named(key) else {
            return;
        };
        let socket = place.socket;
        drop(place);
        lock(&self.listeners).retain(|&other| other != token);
        self.forget(token, socket, false);
    }

    /// Close the port when the last connection has ended and all work is done, and accept no connection more.
    pub(super) fn drain(&self) {
        if !self.is_here() {
            return;
        }
        if !self.draining.swap(true, Ordering::SeqCst) {
            self.interrupt_all(Packet::Draining, |place| place.shared().is_none());
        }
        self.end_if_drained();
    }

    /// Close the port beneath, and keep the connections that are in it. Dropping what this returns may run any code.
    pub(super) fn end(&self) -> Vec<Resident<T>> {
        let mut left = lock(&self.left);
        self.closed.store(true, Ordering::SeqCst);
        self.port.close();
        let mut residents = Vec::new();
        for mut place in self.slots.iter() {
            left.extend(place.beside().take_any());
            residents.extend(std::mem::take(&mut *place).resident.map(|it| *it));
        }
        residents
    }

    /// Close the port beneath, and take out all that is armed.
    #[allow(clippy::vec_box, reason = "they are moved as they are")]
    pub(super) fn close(&self) -> (Vec<Box<Node<T>>>, Vec<Resident<T>>) {
        let residents = self.end();
        (lock::take(&self.left), residents)
    }
}

/// Room for one more connection, which is counted already.
pub(super) struct Room<'a, T>(&'a Connections<T>);

impl<T> Room<'_, T> {
    /// There is the connection.
    pub(super) fn keep(self) {
        std::mem::forget(self);
    }
}

impl<T> Drop for Room<'_, T> {
    fn drop(&mut self) {
        self.0.connection_ended();
    }
}
