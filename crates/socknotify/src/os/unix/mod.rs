//! Unix: an [`Fd`] is the number of a file descriptor.

pub(crate) mod calls;
mod process;

pub(crate) use self::calls::{shut_down, unacknowledged};
pub use self::process::Process;
use super::{Fd, RawSocket};
use crate::RegistrationError;

/// Whether a connect that fails like this has only begun.
pub(crate) fn is_connecting(error: &std::io::Error) -> bool {
    error.raw_os_error() == Some(libc::EINPROGRESS)
}

/// The error for a value that cannot be a descriptor.
pub(crate) const NO_FD: RegistrationError = RegistrationError::NotOpen;

/// The descriptor of this number. `None` if there can be none.
#[inline]
pub(crate) fn fd(raw: RawSocket) -> Option<Fd> {
    u32::try_from(raw).ok().map(Fd)
}
