//! System calls that all Unix systems have, and error numbers as the library's errors.

#![allow(unsafe_code, reason = "sockets are known here by number only")]

#[cfg(any(target_os = "netbsd", target_os = "openbsd"))]
use libc::__errno as address_of_errno;
#[cfg(any(target_os = "linux", target_os = "dragonfly"))]
use libc::__errno_location as address_of_errno;
#[cfg(any(target_vendor = "apple", target_os = "freebsd"))]
use libc::__error as address_of_errno;

use super::RawSocket;
use crate::os::Fd;
use crate::{Error, RegistrationError};

/// An error number of the system.
pub(crate) type Errno = i32;

#[inline]
pub(crate) fn errno() -> Errno {
    // SAFETY: the address is the calling thread's own, and always good.
    unsafe { *address_of_errno() }
}

/// The result of a call, from its return value: negative for an error.
#[inline]
pub(crate) fn outcome(value: i32) -> Result<i32, Errno> {
    if value < 0 { Err(errno()) } else { Ok(value) }
}

/// What a call fails with.
pub(crate) fn call_error(error: Errno) -> Error {
    match error {
        libc::EMFILE | libc::ENFILE => Error::TooManyOpenFiles,
        libc::ENOMEM => Error::OutOfMemory,
        libc::ENOSYS => Error::BackendUnavailable,
        other => Error::Os(other),
    }
}

/// What an entry fails with.
pub(crate) fn refusal(error: Errno) -> RegistrationError {
    match error {
        libc::EBADF => RegistrationError::NotOpen,
        libc::ENOTSOCK => RegistrationError::NotASocket,
        libc::ENOMEM | libc::ENOBUFS => RegistrationError::OutOfMemory,
        libc::ENOSPC => RegistrationError::LimitReached,
        other => RegistrationError::Os(other),
    }
}

/// `getsockopt` — Bytes, over these where the system has no more.
pub(crate) fn option_of<const N: usize>(
    fd: Fd,
    level: i32,
    name: i32,
    mut value: [u8; N],
) -> Result<[u8; N], Errno> {
    let mut length = N as libc::socklen_t;
    let pointer = value.as_mut_ptr().cast();
    // SAFETY: `pointer` points to `length` writable bytes that outlive the call.
    outcome(unsafe { libc::getsockopt(fd.0 as i32, level, name, pointer, &mut length) })?;
    Ok(value)
}

/// How many bytes of what was sent the peer has not acknowledged. `None` where the system does not tell.
pub(crate) fn unacknowledged(fd: Fd) -> Option<u64> {
    #[cfg(any(target_os = "linux", target_os = "freebsd", target_os = "netbsd"))]
    let count = {
        #[cfg(target_os = "linux")]
        const REQUEST: libc::Ioctl = libc::TIOCOUTQ;
        // FIONWRITE: `_IOR('f', 119, int)` and `_IOR('f', 121, int)`.
        #[cfg(target_os = "freebsd")]
        const REQUEST: libc::c_ulong = 0x4004_6677;
        #[cfg(target_os = "netbsd")]
        const REQUEST: libc::c_ulong = 0x4004_6679;
        let mut count: i32 = 0;
        // SAFETY: the kernel writes one `int`, and has no other effect, whatever the descriptor is.
        outcome(unsafe { libc::ioctl(fd.0 as i32, REQUEST, &raw mut count) }).map(|_| count)
    };
    #[cfg(target_vendor = "apple")]
    let count = option_of(fd, libc::SOL_SOCKET, libc::SO_NWRITE, [0; 4]).map(i32::from_ne_bytes);
    #[cfg(not(any(
        target_os = "linux",
        target_os = "freebsd",
        target_os = "netbsd",
        target_vendor = "apple"
    )))]
    let count = {
        let _ = fd;
        Err::<i32, _>(libc::ENOSYS)
    };
    u64::try_from(count.ok()?).ok()
}

/// `poll` — Finds the conditions that hold now. Fails on a signal, if there are more entries than the limit of open
/// files, or for lack of memory.
pub(crate) fn poll_now(sockets: &mut [libc::pollfd]) -> Result<(), Errno> {
    let count = sockets.len() as libc::nfds_t;
    // SAFETY: so many are there for the call.
    outcome(unsafe { libc::poll(sockets.as_mut_ptr(), count, 0) }).map(drop)
}

/// `shutdown` — Ends both directions of an open socket, and what threads wait for in it.
pub(crate) fn shut_down(socket: RawSocket) {
    // SAFETY: no memory is touched.
    unsafe { libc::shutdown(socket, libc::SHUT_RDWR) };
}
