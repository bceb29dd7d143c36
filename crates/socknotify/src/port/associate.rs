//! [`CompletionPort::associate`]: overlapped operations that the caller begins complete on the port.

use std::os::windows::io::{AsHandle, AsRawHandle, AsSocket};

use crate::{CompletionPort, Error, os};

/// Only on Windows.
impl CompletionPort {
    /// `CreateIoCompletionPort` — Has overlapped operations on a file or a pipe complete on this port.
    ///
    /// Each is dequeued as an [`Entry`](crate::Entry) with this completion key, the bytes transferred, and
    /// the address of the operation's `OVERLAPPED`, which has its result. It cannot be undone.
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

    /// `CreateIoCompletionPort` — Has overlapped operations on a socket complete on this port, as
    /// [`associate`](Self::associate) does. This is independent of the socket's registration.
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
        let handle = std::ptr::without_provenance_mut(os::raw(socket) as usize);
        self.system().associate(handle, completion_key)
    }
}
