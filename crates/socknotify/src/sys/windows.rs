//! Sockets are handles, whose values are multiples of four.

use std::os::windows::io::AsRawSocket;

pub(crate) use std::os::windows::io::{AsSocket, RawSocket};
pub use std::os::windows::io::{BorrowedSocket, OwnedSocket};

use crate::RegistrationError;

/// What the system calls this socket.
pub(crate) fn raw<S: AsSocket + ?Sized>(socket: &S) -> RawSocket {
    socket.as_socket().as_raw_socket()
}

/// Whether a connect that fails like this has only begun.
pub(crate) fn is_connecting(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::WouldBlock
}

/// The error for a value without a number. The system has the same code for a handle that is no socket.
pub(crate) const NO_NUMBER: RegistrationError = RegistrationError::NotASocket;

/// The number that a socket is known by. `None` if there can be no such socket.
///
/// A handle has 32 significant bits, of which the lowest two are 0.
pub(crate) fn number(raw: RawSocket) -> Option<u32> {
    let handle = u32::try_from(raw).ok()?;
    (handle % 4 == 0).then_some(handle / 4)
}

/// The handle of a socket that is known by this number.
pub(crate) fn handle(number: u32) -> *mut std::ffi::c_void {
    std::ptr::without_provenance_mut(number as usize * 4)
}

/// The process that made a value. On Windows there are no forked children.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Process;

impl Process {
    pub(crate) fn this() -> Self {
        Process
    }

    pub(crate) fn is_this(self) -> bool {
        true
    }
}
