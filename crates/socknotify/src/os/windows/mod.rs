//! Windows: an [`Fd`] is a fourth of a socket's handle, because handles are multiples of four.

#![allow(
    unsafe_code,
    reason = "the system's functions, and memory that is lent to the kernel"
)]

pub(crate) mod alarm;
pub(crate) mod calls;
pub(crate) mod codes;
pub(crate) mod port;

use std::io;
use std::time::Duration;

use windows_sys::Win32::Foundation::HANDLE;
use windows_sys::Win32::Networking::WinSock::{
    POLLERR, POLLHUP, POLLRDNORM, POLLWRNORM, SD_BOTH, SOCKADDR_STORAGE, SOCKET, WSAPOLLFD,
    WSAPoll, getpeername, shutdown,
};
use windows_sys::Win32::System::IO::CancelIoEx;

use super::{Fd, RawSocket};
use crate::{EventFilter, Events, RegistrationError};

/// Whether a connect that fails like this has only begun.
pub(crate) fn is_connecting(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}

/// The error for a value without a number. The system has the same code for a handle that is no socket.
pub(crate) const NO_FD: RegistrationError = RegistrationError::NotASocket;

/// The number that a socket is known by. `None` if there can be no such socket.
///
/// A handle has 32 significant bits, of which the lowest two are 0.
#[inline]
pub(crate) fn fd(raw: RawSocket) -> Option<Fd> {
    let handle = u32::try_from(raw).ok()?;
    (handle % 4 == 0).then_some(Fd(handle / 4))
}

/// The system does not tell how much a peer has not acknowledged.
pub(crate) fn unacknowledged(_fd: Fd) -> Option<u64> {
    None
}

/// `WSAPoll` — Which of these conditions hold, or an error, which counts in any case. Of a socket that is hung up, nothing is said
/// of OUT.
pub(crate) fn conditions(socket: RawSocket, filter: EventFilter) -> Events {
    let mut poll = WSAPOLLFD {
        fd: socket as _,
        events: 0,
        revents: 0,
    };
    let conditions = [
        (EventFilter::IN, POLLRDNORM, Events::IN),
        (EventFilter::OUT, POLLWRNORM, Events::OUT),
    ];
    for (wanted, flag, _) in conditions {
        if filter.contains(wanted) {
            poll.events |= flag;
        }
    }
    let mut found = Events::empty();
    // SAFETY: it is there for the call.
    if unsafe { WSAPoll(&raw mut poll, 1, 0) } > 0 {
        for (_, flag, event) in conditions {
            let is_out = event == Events::OUT;
            if poll.revents & flag != 0 && !(is_out && poll.revents & POLLHUP != 0) {
                found |= event;
            }
        }
        found.set(Events::ERR, poll.revents & POLLERR != 0);
        // A socket that was never connected is hung up, too.
        let is_hung_up = poll.revents & POLLHUP != 0 && is_connected(socket);
        found.set(Events::HANGUP, is_hung_up);
    }
    found & filter.wanted()
}

/// `WSAPoll` — Waits until OUT holds, or IN if that is not asked for, or an error: true. False after this time, which is rounded up to
/// milliseconds.
pub(crate) fn wait_for(socket: RawSocket, filter: EventFilter, most: Duration) -> io::Result<bool> {
    let mut poll = WSAPOLLFD {
        fd: socket as _,
        events: match filter.contains(EventFilter::OUT) {
            true => POLLWRNORM,
            false => POLLRDNORM,
        },
        revents: 0,
    };
    let most = most.as_micros().div_ceil(1000);
    let most = i32::try_from(most).unwrap_or(i32::MAX);
    // SAFETY: it is there for the call.
    match unsafe { WSAPoll(&raw mut poll, 1, most) } {
        ..0 => Err(io::Error::last_os_error()),
        count => Ok(count > 0),
    }
}

/// `getpeername` — Whether a socket is connected.
fn is_connected(socket: RawSocket) -> bool {
    let mut address = SOCKADDR_STORAGE::default();
    let mut length = size_of_val(&address) as i32;
    // SAFETY: there is so much room for the call.
    let done = unsafe { getpeername(socket as SOCKET, (&raw mut address).cast(), &mut length) };
    done == 0
}

/// `shutdown` — Ends both directions of an open socket, and what threads wait for in it.
pub(crate) fn shut_down(socket: RawSocket) {
    // SAFETY: no memory is touched. Operations that are cancelled still own what they write to.
    unsafe {
        shutdown(socket as SOCKET, SD_BOTH);
        // What waits already is not ended by that.
        CancelIoEx(socket as HANDLE, std::ptr::null());
    }
}

/// The handle of a socket that is known by this number.
pub(crate) fn handle(fd: Fd) -> *mut std::ffi::c_void {
    std::ptr::without_provenance_mut(fd.0 as usize * 4)
}

/// The process that made a value. On Windows there are no forked children.
#[derive(Clone, Copy, Debug)]
pub struct Process;

impl Process {
    /// The one that calls this.
    pub fn this() -> Self {
        Process
    }

    /// Whether it is the one that calls this.
    pub fn is_this(self) -> bool {
        true
    }
}
