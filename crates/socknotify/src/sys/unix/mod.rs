//! Sockets are file descriptors, whose numbers are small and dense by themselves.

mod process;

use std::os::fd::AsRawFd;
use std::sync::Arc;

pub(crate) use std::os::fd::{AsFd as AsSocket, BorrowedFd as BorrowedSocket, RawFd as RawSocket};

pub(crate) use self::process::Process;
use crate::CompletionPort;
use crate::backend::Epoll;
use crate::engine::Engine;
use crate::owned::Port;

/// What a port is beneath.
pub(crate) type SystemPort = Arc<Engine<Epoll>>;

/// What the system calls this socket.
pub(crate) fn raw<S: AsSocket + ?Sized>(socket: &S) -> RawSocket {
    socket.as_fd().as_raw_fd()
}

/// The Win32 code for what the system calls by this number: `ERROR_GEN_FAILURE`.
pub(crate) const fn code(_number: i32) -> u32 {
    31
}

/// The number that a socket is known by. `None` if there can be no such socket.
pub(crate) fn number(raw: RawSocket) -> Option<u32> {
    u32::try_from(raw).ok()
}

/// The port can be watched itself, by another loop: it is readable when a dequeue would return
/// something. It may be so for no reason, too.
///
/// Then no thread should wait in it; dequeue with a timeout of zero.
impl AsSocket for CompletionPort {
    fn as_fd(&self) -> BorrowedSocket<'_> {
        self.system().expose().as_fd()
    }
}

/// The port can be watched itself, by another loop: it is readable when a worker's
/// [`process`](crate::owned::Worker::process) would return something. It may be so for no reason, too.
///
/// Then no thread should wait in it; call `process` with a timeout of zero.
impl<T, M> AsSocket for Port<T, M> {
    fn as_fd(&self) -> BorrowedSocket<'_> {
        self.completion_port().as_fd()
    }
}
