//! Winsock: a socket's options, and the provider's socket beneath it.

use std::io;

use windows_sys::Win32::Networking::WinSock::{
    SIO_BASE_HANDLE, SIO_BSP_HANDLE_POLL, SIO_BSP_HANDLE_SELECT, SO_TYPE, SOCK_STREAM, SOCKET,
    SOL_SOCKET, WSAENOTSOCK, WSAGetLastError, WSAIoctl, getsockopt,
};

use super::conditions::Kind;
use crate::os::{self, Fd};

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
        let socket = os::handle(fd).addr();
        getsockopt(socket, SOL_SOCKET, name, value, &mut length)
    };
    if status == 0 {
        Ok(value)
    } else {
        Err(last_error())
    }
}

/// Whether there is no other provider's socket beneath this one.
///
/// No provider is to touch `SIO_BASE_HANDLE`. Some do, and break it; then the handle that polls go to says it, or the one that
/// `select` takes.
pub(super) fn is_base(fd: Fd) -> io::Result<bool> {
    let socket = os::handle(fd).addr();
    let base = handle_beneath(socket, SIO_BASE_HANDLE).or_else(|error| {
        if error.raw_os_error() == Some(WSAENOTSOCK) {
            return Err(error);
        }
        let others = [SIO_BSP_HANDLE_POLL, SIO_BSP_HANDLE_SELECT].into_iter();
        let mut others = others.filter_map(|which| handle_beneath(socket, which).ok());
        others.next().ok_or(error)
    });
    base.map(|base| base == socket)
}

/// `WSAIoctl`, for a handle that stands beneath this one.
fn handle_beneath(socket: SOCKET, which: u32) -> io::Result<SOCKET> {
    let mut beneath: SOCKET = 0;
    let mut length = 0;
    // SAFETY: the result is there for the call, and as long as it says.
    let status = unsafe {
        WSAIoctl(
            socket,
            which,
            std::ptr::null(),
            0,
            (&raw mut beneath).cast(),
            size_of::<SOCKET>() as u32,
            &mut length,
            std::ptr::null_mut(),
            None,
        )
    };
    if status == 0 {
        Ok(beneath)
    } else {
        Err(last_error())
    }
}

pub(super) fn last_error() -> io::Error {
    // SAFETY: it reads a value of this thread.
    io::Error::from_raw_os_error(unsafe { WSAGetLastError() })
}
