//! What the completion keys of the multi-threaded server refer to.

use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::problem::Problem;
use super::run::Run;

/// The connections of the server, by completion key.
///
/// No key is used twice, so a notification that came too late would be found out.
#[derive(Default)]
pub(crate) struct Connections(Mutex<Vec<Option<Arc<Connection>>>>);

/// One accepted connection.
pub(crate) struct Connection {
    pub(crate) key: usize,
    pub(crate) stream: TcpStream,
    pub(crate) received: AtomicU64,
    held: AtomicBool,
}

impl Connections {
    pub(crate) fn add(&self, stream: TcpStream) -> Arc<Connection> {
        let mut connections = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let connection = Arc::new(Connection {
            key: connections.len(),
            stream,
            received: AtomicU64::new(0),
            held: AtomicBool::new(false),
        });
        connections.push(Some(Arc::clone(&connection)));
        connection
    }

    pub(crate) fn get(&self, key: usize) -> Result<Arc<Connection>, Problem> {
        let connections = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match connections.get(key) {
            Some(Some(connection)) => Ok(Arc::clone(connection)),
            _ => Err(late(key)),
        }
    }

    pub(crate) fn take(&self, key: usize) -> Result<Arc<Connection>, Problem> {
        let mut connections = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        connections
            .get_mut(key)
            .and_then(Option::take)
            .ok_or_else(|| late(key))
    }
}

impl Connection {
    /// Marks the connection as in the hands of this thread.
    ///
    /// Nothing waits here: a one-shot registration promises that no other thread has it.
    pub(crate) fn hold(&self, key: usize) -> Result<Held<'_>, Problem> {
        if self.held.swap(true, Ordering::Acquire) {
            return Err(Problem::new(format_args!(
                "two threads hold a notification of connection {key} at once"
            )));
        }
        Ok(Held(self))
    }

    pub(crate) fn check_length(&self, run: &Run, key: usize) {
        let received = self.received.load(Ordering::Relaxed);
        let expected = run.plan.bytes_per_client();
        if received != expected {
            run.note(&Problem::new(format_args!(
                "connection {key} brought {received} bytes in place of {expected}"
            )));
        }
    }
}

/// A connection in the hands of one thread.
pub(crate) struct Held<'connection>(&'connection Connection);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.held.store(false, Ordering::Release);
    }
}

fn late(key: usize) -> Problem {
    Problem::new(format_args!(
        "a notification for key {key}, which has no registration"
    ))
}
