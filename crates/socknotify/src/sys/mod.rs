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
