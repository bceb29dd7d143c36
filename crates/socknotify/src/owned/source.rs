//! [`Source`]: a value with a socket in it.

use crate::sys::{self, AsSocket, RawSocket};

pub use crate::sys::{BorrowedSocket, OwnedSocket};

/// A value with a socket in it, which a [`Port`](super::Port) can own.
///
/// Whatever is `AsFd` (on Windows: `AsSocket`) is a source: sockets of the standard library and of other crates,
/// references to them, `Box`es and `Arc`s of them. Implement it for a type of your own. The socket must stay the same
/// one as long as the port has the value.
///
/// # Examples
///
/// ```
/// use std::net::{TcpStream, UdpSocket};
/// use socknotify::owned::{BorrowedSocket, Source};
///
/// enum Peer {
///     Client { stream: TcpStream, name: String },
///     Clock(UdpSocket),
/// }
///
/// impl Source for Peer {
///     fn socket(&self) -> BorrowedSocket<'_> {
///         match self {
///             Peer::Client { stream, .. } => stream.socket(),
///             Peer::Clock(it) => it.socket(),
///         }
///     }
/// }
/// ```
#[doc(alias = "AsFd")]
#[doc(alias = "AsSocket")]
pub trait Source {
    /// The socket.
    fn socket(&self) -> BorrowedSocket<'_>;
}

impl<S: AsSocket + ?Sized> Source for S {
    #[cfg(unix)]
    fn socket(&self) -> BorrowedSocket<'_> {
        self.as_fd()
    }

    #[cfg(windows)]
    fn socket(&self) -> BorrowedSocket<'_> {
        self.as_socket()
    }
}

/// What the system calls its socket.
#[inline]
pub(super) fn raw<S: Source + ?Sized>(source: &S) -> RawSocket {
    sys::raw(&source.socket())
}
