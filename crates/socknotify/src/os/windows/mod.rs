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
use std::os::windows::io::BorrowedSocket;

use socket2::SockRef;
use windows_sys::Win32::Foundation::HANDLE;
use windows_sys::Win32::Networking::WinSock::{
    POLLERR, POLLHUP, POLLRDNORM, POLLWRNORM, SD_BOTH, SOCKET, WSAPOLLFD, WSAPoll, shutdown,
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
        events: POLLRDNORM | POLLWRNORM,
        revents: 0,
    };
    // SAFETY: it is there for the call.
    if unsafe { WSAPoll(&raw mut poll, 1, 0) } <= 0 {
        return Events::empty();
    }
    let is = |flag| poll.revents & flag != 0;
    let mut found = Events::empty();
    found.set(Events::IN, is(POLLRDNORM));
    found.set(Events::OUT, is(POLLWRNORM) && !is(POLLHUP));
    found.set(Events::ERR, is(POLLERR));
    // A socket that was never connected is hung up, too.
    found.set(Events::HANGUP, is(POLLHUP) && is_connected(socket));
    found & filter.wanted()
}

/// `getpeername` — Whether a socket is connected.
fn is_connected(socket: RawSocket) -> bool {
    // SAFETY: whoever asks for its conditions has it open.
    let socket = unsafe { BorrowedSocket::borrow_raw(socket) };
    SockRef::from(&socket).peer_addr().is_ok()
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
