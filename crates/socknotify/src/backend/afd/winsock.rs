//! What Winsock knows of a socket.

use std::io;

use windows_sys::Win32::Networking::WinSock::{
    SIO_BASE_HANDLE, SO_TYPE, SOCK_STREAM, SOCKET, SOL_SOCKET, WSAGetLastError, WSAIoctl,
    getsockopt,
};

use super::conditions::Kind;
use crate::sys::{self, Fd};

/// `getsockopt(SO_TYPE)` — What kind of socket it is.
pub(super) fn kind(fd: Fd) -> io::Result<Kind> {
    Ok(match option(fd, SO_TYPE)? {
        SOCK_STREAM => Kind::Stream,
        _ => Kind::Datagram,
    })
}

/// `getsockopt` for a number.
pub(super) fn option(fd: Fd, name: i32) -> io::Result<i32> {
    let mut value = 0_i32;
    let mut length = size_of::<i32>() as i32;
    // SAFETY: the value is there for the call, and as long as it says.
    let status = unsafe {
        let value = (&raw mut value).cast();
        let socket = sys::handle(fd).addr();
        getsockopt(socket, SOL_SOCKET, name, value, &mut length)
    };
    if status == 0 {
        Ok(value)
    } else {
        Err(last_error())
    }
}

/// The socket beneath all layers of other providers.
pub(super) fn base(fd: Fd) -> io::Result<SOCKET> {
    let mut base: SOCKET = 0;
    let mut length = 0;
    // SAFETY: the result is there for the call, and as long as it says.
    let status = unsafe {
        WSAIoctl(
            sys::handle(fd).addr(),
            SIO_BASE_HANDLE,
            std::ptr::null(),
            0,
            (&raw mut base).cast(),
            size_of::<SOCKET>() as u32,
            &mut length,
            std::ptr::null_mut(),
            None,
        )
    };
    if status == 0 {
        Ok(base)
    } else {
        Err(last_error())
    }
}

pub(super) fn last_error() -> io::Error {
    // SAFETY: it reads a value of this thread.
    io::Error::from_raw_os_error(unsafe { WSAGetLastError() })
}
