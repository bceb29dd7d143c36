//! What a socket is called here: the one place that knows which families of systems there are.
//!
//! Public signatures speak of [`AsSocket`], [`RawSocket`] and [`BorrowedSocket`]. The engine and the
//! backends know sockets by small dense *numbers*, and this is where the one becomes the other.

mod owners;
#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

pub(crate) use self::owners::Owner;
#[cfg(unix)]
pub(crate) use unix::*;
#[cfg(unix)]
pub use unix::{BorrowedSocket, OwnedSocket};
#[cfg(windows)]
pub(crate) use windows::*;
#[cfg(windows)]
pub use windows::{BorrowedSocket, OwnedSocket};

/// The Win32 code for what the system calls by this number. Where it is none, `ERROR_GEN_FAILURE`.
pub(crate) const fn code(number: i32) -> u32 {
    if cfg!(windows) { number as u32 } else { 31 }
}
