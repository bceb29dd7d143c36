//! [`Held`]: a connection that is this thread's alone.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{fmt, io};

use super::worker::CANCELLED;
use crate::CompletionPort;
use crate::sys::RawSocket;

/// Names a connection of a port, from its adoption to its end. It is never given again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Id {
    pub(super) index: u32,
    generation: u32,
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.index, self.generation)
    }
}

/// The part of an owning port that does not depend on what it owns.
#[derive(Debug)]
pub(super) struct Home {
    pub(super) port: CompletionPort,
    indices: Mutex<Indices>,
}

#[derive(Debug, Default)]
struct Indices {
    entries: Vec<Index>,
    free: Vec<u32>,
}

#[derive(Clone, Copy, Debug)]
struct Index {
    generation: u32,
    /// The socket of the connection that has the index.
    socket: Option<RawSocket>,
}

impl Home {
    pub(super) fn new(port: CompletionPort) -> Self {
        Home {
            port,
            indices: Mutex::default(),
        }
    }

    fn indices(&self) -> MutexGuard<'_, Indices> {
        self.indices.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new identity.
    pub(super) fn acquire(&self) -> Id {
        let mut indices = self.indices();
        let Indices { entries, free } = &mut *indices;
        let index = free.pop().unwrap_or_else(|| {
            entries.push(Index {
                generation: 0,
                socket: None,
            });
            // No more than there are descriptors, and so far from the end of the range.
            (entries.len() - 1) as u32
        });
        Id {
            index,
            generation: entries[index as usize].generation,
        }
    }

    /// The identity is this socket's from now on.
    pub(super) fn occupy(&self, id: Id, socket: RawSocket) {
        self.indices().entries[id.index as usize].socket = Some(socket);
    }

    /// From now on the identity names nothing.
    fn retire(&self, id: Id) {
        let entry = &mut self.indices().entries[id.index as usize];
        entry.generation = entry.generation.wrapping_add(1);
        entry.socket = None;
    }

    /// The index of a retired identity can be given again.
    fn recycle(&self, id: Id) {
        self.indices().free.push(id.index);
    }

    /// An identity that was never a connection's, or is no more.
    pub(super) fn give_back(&self, id: Id) {
        self.retire(id);
        self.recycle(id);
    }

    /// A shared socket has left its index.
    pub(super) fn end_sharing(&self, index: u32) {
        let generation = self.indices().entries[index as usize].generation;
        self.give_back(Id { index, generation });
    }

    /// Whether the identity is still what it was.
    pub(super) fn is_current(&self, id: Id) -> bool {
        let indices = self.indices();
        let entry = indices.entries.get(id.index as usize);
        entry.is_some_and(|entry| entry.generation == id.generation && entry.socket.is_some())
    }

    /// Have a connection come out of the port.
    pub(super) fn cancel(&self, id: Id) -> bool {
        // With the lock held, it cannot become another's meanwhile.
        let indices = self.indices();
        let entry = indices.entries.get(id.index as usize);
        let Some(entry) = entry.filter(|entry| entry.generation == id.generation) else {
            return false;
        };
        let Some(socket) = entry.socket else {
            return false;
        };
        let system = self.port.system();
        system.interrupt(socket, id.index as usize, CANCELLED, true);
        true
    }
}

/// A connection with what the port needs to know of it.
#[derive(Debug)]
pub(super) struct Node<T> {
    value: T,
    home: Arc<Home>,
    pub(super) id: Id,
    /// The number that it was adopted under.
    pub(super) socket: RawSocket,
}

/// A connection that belongs to a port, and is this thread's alone at the moment.
///
/// It dereferences to the connection. [Arm](super::Worker::arm) it to give it back to the port; dropped,
/// it is deregistered and closed.
///
/// The socket inside must stay the same one as long as the port has the connection.
#[must_use = "a connection that is not armed again is closed"]
pub struct Held<T> {
    /// Empty only while it is being taken apart.
    node: Option<Box<Node<T>>>,
}

impl<T> Held<T> {
    pub(super) fn new(value: T, home: &Arc<Home>, id: Id, socket: RawSocket) -> Self {
        let home = Arc::clone(home);
        Self::from_node(Box::new(Node {
            value,
            home,
            id,
            socket,
        }))
    }

    pub(super) fn from_node(node: Box<Node<T>>) -> Self {
        Held { node: Some(node) }
    }

    pub(super) fn into_node(mut self) -> Box<Node<T>> {
        self.node.take().expect("it is there until now")
    }

    fn node(&self) -> &Node<T> {
        self.node.as_ref().expect("it is there until now")
    }

    /// The name of this connection: for [`Port::cancel`](super::Port::cancel), and for tables and logs.
    pub fn id(&self) -> Id {
        self.node().id
    }

    pub(super) fn is_of(&self, home: &Arc<Home>) -> bool {
        Arc::ptr_eq(&self.node().home, home)
    }

    /// Take the connection back from the port. Its socket is deregistered, and stays open.
    pub fn into_inner(self) -> T {
        let node = *self.into_node();
        let (home, id) = (node.home, node.id);
        home.retire(id);
        let system = home.port.system();
        system.release(node.socket, id.index as usize, true);
        home.recycle(id);
        node.value
    }
}

impl<T> Drop for Held<T> {
    fn drop(&mut self) {
        let Some(node) = self.node.take() else { return };
        let (home, id) = (Arc::clone(&node.home), node.id);
        home.retire(id);
        let system = home.port.system();
        system.release(node.socket, id.index as usize, false);
        // The number is free from here on; the index a moment later.
        drop(node);
        home.recycle(id);
    }
}

impl<T> Deref for Held<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.node().value
    }
}

impl<T> DerefMut for Held<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.node.as_mut().expect("it is there until now").value
    }
}

impl<T: fmt::Debug> fmt::Debug for Held<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Held").field(&**self).finish()
    }
}

/// A connection that the port would not adopt, and why.
#[derive(Debug)]
pub struct AdoptError<T> {
    connection: T,
    reason: io::Error,
}

impl<T> AdoptError<T> {
    pub(super) fn new(connection: T, reason: impl Into<io::Error>) -> Self {
        AdoptError {
            connection,
            reason: reason.into(),
        }
    }

    /// The connection.
    pub fn into_connection(self) -> T {
        self.connection
    }
}

impl<T> fmt::Display for AdoptError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the port did not adopt the connection: {}", self.reason)
    }
}

impl<T: fmt::Debug> std::error::Error for AdoptError<T> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.reason)
    }
}

impl<T> From<AdoptError<T>> for io::Error {
    fn from(error: AdoptError<T>) -> Self {
        error.reason
    }
}
