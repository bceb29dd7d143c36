//! Sockets are handles, whose values are multiples of four.

use std::os::windows::io::{AsHandle, AsRawHandle, AsRawSocket};

pub(crate) use std::os::windows::io::{AsSocket, BorrowedSocket, RawSocket};

pub(crate) use crate::windows::SystemPort;
use crate::{CompletionPort, Error};

/// What the system calls this socket.
pub(crate) fn raw<S: AsSocket + ?Sized>(socket: &S) -> RawSocket {
    socket.as_socket().as_raw_socket()
}

/// The Win32 code for what the system calls by this number: it is one.
pub(crate) const fn code(number: i32) -> u32 {
    number as u32
}

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

/// Only on Windows.
impl CompletionPort {
    /// `CreateIoCompletionPort` — Has overlapped operations on a file or a pipe complete on this port.
    ///
    /// Each comes out as an [`Entry`](crate::Entry) with this completion key, the bytes transferred, and
    /// the address of the operation's `OVERLAPPED`, where its outcome is found. It cannot be undone.
    ///
    /// # Errors
    ///
    /// [`Error::Os`], if the handle has a port already, or was not opened for overlapped operations.
    #[doc(alias = "CreateIoCompletionPort")]
    pub fn associate<H: AsHandle + ?Sized>(
        &self,
        handle: &H,
        completion_key: usize,
    ) -> Result<(), Error> {
        let handle = handle.as_handle().as_raw_handle();
        self.system().associate(handle, completion_key)
    }

    /// `CreateIoCompletionPort` — Has overlapped operations on a socket complete on this port: as
    /// [`associate`](Self::associate). It has nothing to do with the socket's registration.
    ///
    /// # Errors
    ///
    /// As [`associate`](Self::associate).
    #[doc(alias = "CreateIoCompletionPort")]
    pub fn associate_socket<S: AsSocket + ?Sized>(
        &self,
        socket: &S,
        completion_key: usize,
    ) -> Result<(), Error> {
        let handle = std::ptr::without_provenance_mut(raw(socket) as usize);
        self.system().associate(handle, completion_key)
    }
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
