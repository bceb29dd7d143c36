//! The standard library's types of sockets: descriptors on Unix, sockets on Windows.

#[cfg(unix)]
pub(crate) use std::os::fd::{AsFd as AsSocket, RawFd as RawSocket};
#[cfg(unix)]
pub use std::os::fd::{BorrowedFd as BorrowedSocket, OwnedFd as OwnedSocket};
#[cfg(windows)]
pub(crate) use std::os::windows::io::{AsSocket, RawSocket};
#[cfg(windows)]
pub use std::os::windows::io::{BorrowedSocket, OwnedSocket};

/// What the system calls this socket.
pub(crate) fn raw<S: AsSocket + ?Sized>(socket: &S) -> RawSocket {
    #[cfg(unix)]
    return std::os::fd::AsRawFd::as_raw_fd(&socket.as_fd());
    #[cfg(windows)]
    return std::os::windows::io::AsRawSocket::as_raw_socket(&socket.as_socket());
}
