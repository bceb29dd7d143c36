//! [`Home`]: the connections of a port, by [`Id`], wherever they are.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::Readiness;
use super::packet::CANCELLED;
use crate::slots::{Slots, Token};
use crate::sys::RawSocket;
use crate::{CompletionPort, EventFilter};

/// No deadline.
pub(super) const NEVER: u64 = u64::MAX;

/// Names a connection or a shared socket of a port, from its adoption to its end. It is never given
/// again.
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
pub(super) struct Home<T> {
    pub(super) port: CompletionPort,
    pub(super) slots: Slots<Place<T>>,
    closed: AtomicBool,
}

/// What the port knows of a connection or a shared socket. A connection that is not here is held by a
/// thread.
pub(super) struct Place<T> {
    pub(super) armed: Option<Box<Node<T>>>,
    pub(super) shared: Option<Arc<T>>,
    /// The end of the shared socket's registration was asked for.
    pub(super) ends: bool,
    /// The number that it was adopted under.
    socket: RawSocket,
    /// When the wait of what is armed here ends, in ticks.
    pub(super) deadline: u64,
    /// When the wheel reports this slot: at the deadline or before.
    pub(super) scheduled: u64,
}

/// A connection with what the port needs to know of it.
pub(super) struct Node<T> {
    pub(super) value: T,
    pub(super) home: Arc<Home<T>>,
    pub(super) token: Token,
    pub(super) readiness: Readiness,
    /// The filter that the system watches it with. Armed with this one again, it is not refused.
    pub(super) watched: Option<EventFilter>,
}

impl<T> Node<T> {
    #[inline]
    pub(super) fn key(&self) -> usize {
        self.home.slots.key(self.token)
    }
}

impl<T> Default for Place<T> {
    fn default() -> Self {
        Place {
            armed: None,
            shared: None,
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

    pub(super) fn of_shared(socket: RawSocket, shared: Arc<T>) -> Self {
        Place {
            shared: Some(shared),
            ..Place::of_connection(socket)
        }
    }

    /// Take the connection that is armed here. Its deadline does not count any more.
    #[inline]
    pub(super) fn take(&mut self) -> Option<Box<Node<T>>> {
        if self.deadline != NEVER {
            self.deadline = NEVER;
        }
        self.armed.take()
    }
}

impl<T> Home<T> {
    pub(super) fn new(port: CompletionPort) -> Self {
        Home {
            port,
            slots: Slots::new(),
            closed: AtomicBool::new(false),
        }
    }

    /// Put a connection where its notification will find it. It comes back if the port is closed.
    #[inline]
    pub(super) fn put(&self, node: Box<Node<T>>) -> Result<(), Box<Node<T>>> {
        let Some(mut place) = self.slots.get(node.token) else {
            return Err(node);
        };
        // Closing sets this first, and then empties every slot.
        if self.closed.load(Ordering::SeqCst) {
            return Err(node);
        }
        place.armed = Some(node);
        Ok(())
    }

    /// Have the system interrupt the wait of a connection. False if it is not armed.
    ///
    /// The slot is locked: nobody takes the connection, or arms it again, meanwhile.
    pub(super) fn interrupt(
        &self,
        key: usize,
        place: &Place<T>,
        reason: u32,
        insist: bool,
    ) -> bool {
        let system = self.port.system();
        system.interrupt(place.socket, key, reason, insist)
    }

    /// Interrupt the wait of a connection; or the next one, if it is not armed. False if there is none by
    /// this name.
    pub(super) fn cancel(&self, id: Id) -> bool {
        match self.slots.get(id.0) {
            Some(place) if place.shared.is_none() && !self.closed.load(Ordering::SeqCst) => {
                self.interrupt(self.slots.key(id.0), &place, CANCELLED, true);
                true
            }
            _ => false,
        }
    }

    /// End the registration of a connection that a thread holds, and its name.
    pub(super) fn retire(&self, token: Token, socket: RawSocket, stays_open: bool) {
        let system = self.port.system();
        system.release(socket, self.slots.key(token), stays_open);
        self.slots.remove(token);
    }

    /// Close the port beneath, and take out all that is armed or shared.
    pub(super) fn close(&self) -> Vec<Place<T>> {
        self.closed.store(true, Ordering::SeqCst);
        self.port.close();
        let places = self.slots.iter();
        places
            .map(|mut place| std::mem::take(&mut *place))
            .collect()
    }
}
