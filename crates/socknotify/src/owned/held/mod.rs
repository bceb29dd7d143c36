//! [`Held`]: a connection that belongs to one thread.

pub(super) mod buffered;
pub(super) mod buffers;
pub(super) mod limited;
pub(super) mod outbox;

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use crate::owned::slot::connections::{Connections, Node};
use crate::owned::{Id, Readiness, Stream};

/// A connection of a port while a thread has it alone.
///
/// It dereferences to the connection. [Arm](crate::owned::Worker::arm) it to give it back to the port, or drop it to
/// deregister and close it.
///
/// Its socket must stay the same one as long as it belongs to the port.
#[must_use = "a connection that is not armed again is closed"]
pub struct Held<T> {
    /// Empty only while it is being taken apart.
    node: Option<Box<Node<T>>>,
}

impl<T> Held<T> {
    #[inline]
    pub(in crate::owned) fn from_node(node: Box<Node<T>>) -> Self {
        Held { node: Some(node) }
    }

    #[inline]
    pub(in crate::owned) fn into_node(mut self) -> Box<Node<T>> {
        self.node.take().expect("it is there until now")
    }

    #[inline]
    fn node(&self) -> &Node<T> {
        self.node.as_ref().expect("it is there until now")
    }

    /// Identifies this connection: for [`Port::cancel`](crate::owned::Port::cancel), and for tables and logs.
    pub fn id(&self) -> Id {
        Id(self.node().token)
    }

    #[inline]
    pub(in crate::owned) fn connections(&self) -> &Arc<Connections<T>> {
        &self.node().connections
    }

    #[inline]
    pub(in crate::owned) fn readiness(&self) -> &Readiness {
        &self.node().readiness
    }

    /// The connection, and its [`Readiness`]: receive and send through that to save a system call when it is armed
    /// again.
    #[inline]
    pub fn split(&mut self) -> (&mut T, &mut Readiness) {
        let node = self.node.as_mut().expect("it is there until now");
        (&mut node.value, &mut node.readiness)
    }

    /// Takes the connection back from the port. Its socket is deregistered and stays open.
    ///
    /// Any port may register it then. On Windows' own port this waits until the system has deregistered it.
    pub fn into_inner(self) -> T {
        let node = *self.into_node();
        let socket = node.readiness.socket();
        drop(node.connections.retire(node.token, socket, true));
        node.value
    }
}

impl<T> Drop for Held<T> {
    #[inline]
    fn drop(&mut self) {
        if let Some(node) = self.node.take() {
            close(*node);
        }
    }
}

fn close<T>(node: Node<T>) {
    let socket = node.readiness.socket();
    // It counts as long as it is being dropped, which runs the caller's code: a port that drains is open until then.
    let _counts = node.connections.retire(node.token, socket, false);
    drop(node.value);
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

/// As [`Readiness::io`] does it.
impl<S: Stream> Read for Held<S> {
    #[inline]
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let (stream, readiness) = self.split();
        readiness.io(stream).read(buffer)
    }

    fn read_vectored(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let (stream, readiness) = self.split();
        readiness.io(stream).read_vectored(buffers)
    }
}

/// As [`Readiness::io`] does it.
impl<S: Stream> Write for Held<S> {
    #[inline]
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let (stream, readiness) = self.split();
        readiness.io(stream).write(bytes)
    }

    fn write_vectored(&mut self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        let (stream, readiness) = self.split();
        readiness.io(stream).write_vectored(buffers)
    }

    fn flush(&mut self) -> io::Result<()> {
        (**self).flush()
    }
}

impl<T: fmt::Debug> fmt::Debug for Held<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Held").field(&**self).finish()
    }
}
