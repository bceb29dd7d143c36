//! Unix: the engine over the kernel's set or queue.

use std::sync::Arc;

#[cfg(all(target_os = "linux", not(kqueue_stand_in)))]
use crate::backend::Epoll as Kernel;
#[cfg(any(kqueue_stand_in, not(target_os = "linux")))]
use crate::backend::Kqueue as Kernel;
use crate::engine::Engine;
use crate::sys::{BorrowedSocket, OwnedSocket};

/// What a port is beneath.
pub(crate) type SystemPort = Arc<Engine<Kernel>>;

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
