//! Unix: an [`Fd`] is the number of a file descriptor.

pub(crate) mod calls;
mod process;

pub(crate) use self::calls::{shut_down, unacknowledged, wait_for};
pub use self::process::Process;
use super::{Fd, RawSocket};
use crate::RegistrationError;

/// Whether a connect that fails like this has only begun.
pub(crate) fn is_connecting(error: &std::io::Error) -> bool {
    error.raw_os_error() == Some(libc::EINPROGRESS)
}

/// Whether an accept that fails like this says something of one connection: what Linux knows of its network already.
pub(crate) fn is_of_one_connection(error: &std::io::Error) -> bool {
    #[cfg(target_os = "linux")]
    if error.raw_os_error() == Some(libc::ENONET) {
        return true;
    }
    let errors = [
        libc::EPROTO,
        libc::ENOPROTOOPT,
        libc::EHOSTDOWN,
        libc::EOPNOTSUPP,
    ];
    error.raw_os_error().is_some_and(|it| errors.contains(&it))
}

/// The error for a value that cannot be a descriptor.
pub(crate) const NO_FD: RegistrationError = RegistrationError::NotOpen;

/// The descriptor of this number. `None` if there can be none.
#[inline]
pub(crate) fn fd(raw: RawSocket) -> Option<Fd> {
    u32::try_from(raw).ok().map(Fd)
}
