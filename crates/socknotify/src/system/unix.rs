//! Unix: the engine over the kernel's set or queue.

use std::sync::{Arc, Weak};

#[cfg(all(target_os = "linux", not(kqueue_stand_in)))]
use crate::backend::Epoll as Kernel;
#[cfg(any(kqueue_stand_in, not(target_os = "linux")))]
use crate::backend::Kqueue as Kernel;
use crate::engine::Engine;
use crate::sys::{BorrowedSocket, OwnedSocket};
use crate::{Entry, Error};

/// What a port is beneath.
pub(crate) type SystemPort = Arc<Engine<Kernel>>;

/// A port that may have been dropped.
pub(crate) struct WeakPort(Weak<Engine<Kernel>>);

impl WeakPort {
    pub(crate) fn new(port: &SystemPort) -> Self {
        WeakPort(Arc::downgrade(port))
    }

    /// Put packets that were dequeued before ahead of what is queued.
    pub(crate) fn requeue(&self, entries: &[Entry]) -> Result<(), Error> {
        let port = self.0.upgrade().ok_or(Error::Closed)?;
        port.requeue(entries)
    }
}

/// Connections that the system accepts in advance: on Windows only.
pub(crate) enum PendingAccepts {}

impl PendingAccepts {
    pub(crate) fn new(
        _port: &SystemPort,
        _listener: BorrowedSocket<'_>,
        _key: usize,
        _depth: usize,
    ) -> std::io::Result<Self> {
        Err(std::io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn post(&self) -> std::io::Result<()> {
        match *self {}
    }

    pub(crate) fn end(&self) {
        match *self {}
    }

    pub(crate) fn ended(&self, _overlapped: usize) {
        match *self {}
    }

    pub(crate) fn take(&self) -> std::io::Result<OwnedSocket> {
        match *self {}
    }
}
