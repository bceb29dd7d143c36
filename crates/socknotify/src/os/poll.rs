//! `poll`, which Windows calls `WSAPoll`.

#![allow(unsafe_code, reason = "the system fills in a structure")]

use std::io;
use std::time::Duration;

#[cfg(unix)]
use libc::{POLLIN, POLLOUT, poll, pollfd};
#[cfg(windows)]
use windows_sys::Win32::Networking::WinSock::{
    POLLRDNORM as POLLIN, POLLWRNORM as POLLOUT, WSAPOLLFD as pollfd, WSAPoll as poll,
};

use crate::EventFilter;
use crate::os::RawSocket;

/// Wait until OUT holds, or IN if that is not asked for, or an error: true. False after this time, which is rounded up to
/// milliseconds, and after a signal.
pub(crate) fn wait_for(socket: RawSocket, filter: EventFilter, most: Duration) -> io::Result<bool> {
    let mut socket = pollfd {
        fd: socket as _,
        events: match filter.contains(EventFilter::OUT) {
            true => POLLOUT,
            false => POLLIN,
        },
        revents: 0,
    };
    let most = most.as_micros().div_ceil(1000);
    let most = i32::try_from(most).unwrap_or(i32::MAX);
    // SAFETY: it is there for the call.
    match unsafe { poll(&raw mut socket, 1, most) } {
        count @ 0.. => Ok(count > 0),
        _ => match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::Interrupted => Ok(false),
            error => Err(error),
        },
    }
}
