//! Unix sockets: [`UnixListener`], [`UnixStream`], [`UnixDatagram`].

use std::future::poll_fn;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::{self, SocketAddr};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_io::{AsyncRead, AsyncWrite};
use socket2::{Domain, SockAddr, Socket, Type};

use super::{ReadHalf, WriteHalf, impl_stream, split, wrap};
use crate::source::Direction;
use crate::{Async, context, sleep};

wrap! {
    /// A Unix listener.
    UnixListener, net::UnixListener, SocketAddr
}

wrap! {
    /// A Unix stream. It reads and writes by the traits of `futures-io`, and so does a reference to it: one task reads, and
    /// one writes.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures_lite::{AsyncReadExt, AsyncWriteExt};
    /// use socknotify_async::UnixStream;
    ///
    /// # fn main() -> std::io::Result<()> {
    /// # socknotify_async::Runtime::new()?.block_on(async {
    /// let (mut ours, mut theirs) = UnixStream::pair()?;
    /// theirs.write_all(b"ping").await?;
    /// let mut answer = [0; 4];
    /// ours.read_exact(&mut answer).await?;
    /// assert_eq!(&answer, b"ping");
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    UnixStream, net::UnixStream, SocketAddr, peer_addr
}

wrap! {
    /// A Unix datagram socket. Any number of tasks may send and receive.
    UnixDatagram, net::UnixDatagram, SocketAddr, peer_addr
}

/// Longer each time, for what the system does not report.
struct Pause(Duration);

impl Pause {
    fn new() -> Self {
        Pause(Duration::from_millis(1))
    }

    /// Fails if the runtime has shut down.
    async fn wait(&mut self) -> io::Result<()> {
        let mut sleep = sleep(self.0);
        self.0 = (self.0 * 2).min(Duration::from_millis(32));
        poll_fn(|cx| sleep.try_poll(cx)).await
    }
}

impl UnixListener {
    /// Makes a listener.
    ///
    /// # Errors
    ///
    /// The system's.
    ///
    /// # Panics
    ///
    /// If this thread is in no runtime.
    #[track_caller]
    pub fn bind(path: impl AsRef<Path>) -> io::Result<Self> {
        let shared = context::expect();
        Self::new(net::UnixListener::bind(path)?, &shared)
    }

    /// Accepts a connection. If the future is dropped, none is lost.
    ///
    /// It is registered when an operation on it would block first: that fails then if the system has no room for it, or another port
    /// has the socket.
    ///
    /// # Errors
    ///
    /// The system's. After an error that passes, such as a limit of descriptors that is reached, wait a while before the
    /// next try.
    pub async fn accept(&self) -> io::Result<(UnixStream, SocketAddr)> {
        let (stream, peer) = self.0.read_with(|listener| listener.accept()).await?;
        stream.set_nonblocking(true)?;
        let stream = Async::of_accepted(stream, Arc::clone(self.0.shared()))?;
        Ok((UnixStream(stream), peer))
    }
}

impl UnixStream {
    /// Connects. While the listener's queue is full, it tries again after a while.
    ///
    /// Nothing of it blocks, and it can be dropped at any time.
    ///
    /// # Errors
    ///
    /// The system's.
    ///
    /// # Panics
    ///
    /// If this thread is in no runtime.
    pub async fn connect(path: impl AsRef<Path>) -> io::Result<Self> {
        let shared = context::expect();
        let address = SockAddr::unix(path)?;
        let mut pause = Pause::new();
        loop {
            context::spends().await;
            let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
            socket.set_nonblocking(true)?;
            match socket.connect(&address) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => pause.wait().await?,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
                Ok(()) => return Self::new(OwnedFd::from(socket).into(), &shared),
            }
        }
    }

    /// Makes two connected sockets.
    ///
    /// # Errors
    ///
    /// The system's.
    ///
    /// # Panics
    ///
    /// If this thread is in no runtime.
    #[track_caller]
    pub fn pair() -> io::Result<(Self, Self)> {
        let shared = context::expect();
        let (one, other) = net::UnixStream::pair()?;
        Ok((Self::new(one, &shared)?, Self::new(other, &shared)?))
    }
}

impl_stream!(UnixStream, false, UnixStream, &UnixStream);

impl UnixDatagram {
    /// Makes a socket with this path.
    ///
    /// # Errors
    ///
    /// The system's.
    ///
    /// # Panics
    ///
    /// If this thread is in no runtime.
    #[track_caller]
    pub fn bind(path: impl AsRef<Path>) -> io::Result<Self> {
        let shared = context::expect();
        Self::new(net::UnixDatagram::bind(path)?, &shared)
    }

    /// Makes a socket without a path.
    ///
    /// # Errors
    ///
    /// The system's.
    ///
    /// # Panics
    ///
    /// If this thread is in no runtime.
    #[track_caller]
    pub fn unbound() -> io::Result<Self> {
        Self::new(net::UnixDatagram::unbound()?, &context::expect())
    }

    /// Makes two connected sockets.
    ///
    /// # Errors
    ///
    /// The system's.
    ///
    /// # Panics
    ///
    /// If this thread is in no runtime.
    #[track_caller]
    pub fn pair() -> io::Result<(Self, Self)> {
        let shared = context::expect();
        let (one, other) = net::UnixDatagram::pair()?;
        Ok((Self::new(one, &shared)?, Self::new(other, &shared)?))
    }

    /// Sends a datagram, and returns its length. While the receiver's queue is full, it tries again after a while: the
    /// system tells nobody when there is room, but a socket that is connected to it.
    ///
    /// # Errors
    ///
    /// The system's.
    pub async fn send_to(&self, bytes: &[u8], path: impl AsRef<Path>) -> io::Result<usize> {
        let mut pause = Pause::new();
        loop {
            context::spends().await;
            match self.get_ref().send_to(bytes, &path) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => pause.wait().await?,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                outcome => return outcome,
            }
        }
    }

    /// Receives a datagram. What has no room in the buffer is lost.
    ///
    /// # Errors
    ///
    /// The system's.
    pub async fn recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.0.read_with(|socket| socket.recv_from(buffer)).await
    }

    /// Sends a datagram to the peer.
    ///
    /// # Errors
    ///
    /// The system's.
    pub async fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write_with(|socket| socket.send(bytes)).await
    }

    /// Receives a datagram of the peer.
    ///
    /// # Errors
    ///
    /// The system's.
    pub async fn recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read_with(|socket| socket.recv(buffer)).await
    }
}
