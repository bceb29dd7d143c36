//! [`Source`]: what has a socket.

use crate::sys::{self, AsSocket, RawSocket};

pub use crate::sys::{BorrowedSocket, OwnedSocket};

/// Something with a socket in it: what a [`Port`](super::Port) owns.
///
/// Whatever is `AsFd` (on Windows: `AsSocket`) is one already: sockets of the standard library and of
/// others, references to them, `Box`es and `Arc`s of them. For a type of your own, say which socket is meant.
/// That must stay the same one as long as the port has the value.
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
