//! [`Source`]: a value with a socket in it.

use super::Id;
use crate::os::{self, AsSocket, RawSocket};

pub use crate::values::socket::{BorrowedSocket, OwnedSocket};

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
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no `Source`: a port cannot tell which socket it has",
    label = "implement `socknotify::owned::Source` for it",
    note = "`Source::socket` returns the socket: for example `self.stream.socket()`"
)]
pub trait Source {
    /// The socket.
    fn socket(&self) -> BorrowedSocket<'_>;

    /// Whether this has bytes that were received and not handled: read ahead, as a [`BufReader`](std::io::BufReader) does, or decrypted.
    ///
    /// Their socket may have nothing more, and so would not be ready: a connection that is armed for IN, and that has such
    /// bytes, gets [`Event::Ready`](super::Event::Ready) at once, behind what is ready already. The port asks when the
    /// connection is [armed](super::Worker::arm).
    ///
    /// Return false if it takes more bytes to go on: part of a line, or of a record. Else the connection is ready again and again.
    ///
    /// False, unless it is implemented. [`Buffered`](super::Buffered) has a stream and its `BufReader` in one.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::net::TcpStream;
    /// use socknotify::owned::{BorrowedSocket, Input, Source};
    ///
    /// struct Client {
    ///     stream: TcpStream,
    ///     input: Input,
    /// }
    ///
    /// impl Source for Client {
    ///     fn socket(&self) -> BorrowedSocket<'_> {
    ///         self.stream.socket()
    ///     }
    ///
    ///     fn has_buffered(&self) -> bool {
    ///         self.input.bytes().contains(&b'\n')
    ///     }
    /// }
    /// ```
    fn has_buffered(&self) -> bool {
        false
    }

    /// A port has adopted this, also as the connection of a listener, and calls it by this `Id`.
    ///
    /// Keep the `Id` to find the connection in tables of your own. When the connection has ended, it is dropped: so
    /// implement [`Drop`] to learn of that.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::collections::HashSet;
    /// use std::net::TcpStream;
    /// use std::sync::{Arc, Mutex};
    /// use socknotify::owned::{BorrowedSocket, Id, Source};
    ///
    /// struct Client {
    ///     stream: TcpStream,
    ///     id: Option<Id>,
    ///     present: Arc<Mutex<HashSet<Id>>>,
    /// }
    ///
    /// impl Source for Client {
    ///     fn socket(&self) -> BorrowedSocket<'_> {
    ///         self.stream.socket()
    ///     }
    ///
    ///     fn adopted(&mut self, id: Id) {
    ///         self.id = Some(id);
    ///         self.present.lock().unwrap().insert(id);
    ///     }
    /// }
    ///
    /// impl Drop for Client {
    ///     fn drop(&mut self) {
    ///         if let Some(id) = self.id {
    ///             self.present.lock().unwrap().remove(&id);
    ///         }
    ///     }
    /// }
    /// ```
    fn adopted(&mut self, id: Id) {
        let _ = id;
    }
}

// A type that is not a source is to be told of `Source`, not of `AsFd`.
#[diagnostic::do_not_recommend]
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
    os::raw(&source.socket())
}
