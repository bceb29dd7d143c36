//! What a socket is called here: the one place that knows which families of systems there are.
//!
//! Public signatures speak of [`AsSocket`], [`RawSocket`] and [`BorrowedSocket`]. The engine and the
//! pollers know sockets by small dense *numbers*, and this is where the one becomes the other.

#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

#[cfg(unix)]
pub(crate) use unix::*;
#[cfg(windows)]
pub(crate) use windows::*;
