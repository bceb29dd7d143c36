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

/// What is wrong with what has no number. The system has one code for that and for what is no socket.
pub(crate) const NO_NUMBER: RegistrationError = RegistrationError::NotASocket;

/// The number that a socket is known by. `None` if there can be no such socket.
///
/// Of a handle 32 bits count, and of these the lowest two do not.
pub(crate) fn number(raw: RawSocket) -> Option<u32> {
    let handle = u32::try_from(raw).ok()?;
    (handle % 4 == 0).then_some(handle / 4)
}

/// The handle of a socket that is known by this number.
pub(crate) fn handle(number: u32) -> *mut std::ffi::c_void {
    std::ptr::without_provenance_mut(number as usize * 4)
}

/// The process that something was made in. There is no other that could have it.
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
