//! [`Closed`]: what a closed port still had.

use std::fmt;
use std::mem;
use std::ops::{Deref, DerefMut};
use std::vec;

use super::FileCompletion;
use super::slot::connections::drop_all;

/// What was left in a port when it was [closed](super::Port::close).
///
/// It dereferences to the connections, in no order. What is not taken is dropped with it; if dropping something panics,
/// the panic goes no further.
///
/// # Examples
///
/// See [`Port::close`](super::Port::close).
pub struct Closed<T, M = ()> {
    pub(super) connections: Vec<T>,
    pub(super) operations: Vec<FileCompletion>,
    pub(super) left_behind: usize,
    pub(super) messages: Vec<M>,
}

impl<T, M> Closed<T, M> {
    /// Takes the operations on files that no worker had dequeued, with their files and buffers, in no order. Each has its
    /// result, or [was cancelled](FileCompletion::is_cancelled).
    pub fn take_operations(&mut self) -> Vec<FileCompletion> {
        mem::take(&mut self.operations)
    }

    /// How many operations on files the system still performs, because the time of [`drain`](super::Port::drain) is
    /// over. Their files and buffers are dropped when they end.
    pub fn left_behind(&self) -> usize {
        self.left_behind
    }

    /// Takes the messages that no worker had taken, among them the results of [work](super::Port::offload), in the order of
    /// the queue.
    pub fn take_messages(&mut self) -> Vec<M> {
        mem::take(&mut self.messages)
    }
}

impl<T, M> Deref for Closed<T, M> {
    type Target = Vec<T>;

    fn deref(&self) -> &Vec<T> {
        &self.connections
    }
}

impl<T, M> DerefMut for Closed<T, M> {
    fn deref_mut(&mut self) -> &mut Vec<T> {
        &mut self.connections
    }
}

/// The connections. The rest is dropped.
impl<T, M> IntoIterator for Closed<T, M> {
    type Item = T;
    type IntoIter = vec::IntoIter<T>;

    fn into_iter(mut self) -> vec::IntoIter<T> {
        mem::take(&mut self.connections).into_iter()
    }
}

impl<T, M> Drop for Closed<T, M> {
    fn drop(&mut self) {
        drop_all(self.operations.drain(..));
        drop_all(self.messages.drain(..));
        drop_all(self.connections.drain(..));
    }
}

impl<T: fmt::Debug, M> fmt::Debug for Closed<T, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Closed")
            .field("connections", &self.connections)
            .field("operations", &self.operations)
            .field("left_behind", &self.left_behind)
            .finish_non_exhaustive()
    }
}
