//! TCP: [`TcpListener`], [`TcpStream`].

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{Shutdown, SocketAddr, ToSocketAddrs};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_io::{AsyncRead, AsyncWrite};
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use socknotify::interface;

use super::address::{ToAddresses, resolve};
use super::{ReadHalf, WriteHalf, impl_stream, split, wrap};
use crate::Async;
use crate::context;
use crate::shared::Shared;
use crate::source::Direction;

wrap! {
    /// A TCP listener.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures_lite::{AsyncReadExt, AsyncWriteExt};
    /// use socknotify_async::{Runtime, TcpListener, TcpStream, spawn};
    ///
    /// # fn main() -> std::io::Result<()> {
    /// # Runtime::new()?.block_on(async {
    /// let listener = TcpListener::bind("127.0.0.1:0")?;
    /// let address = listener.local_addr()?;
    /// let echo = spawn(async move {
    ///     let (stream, _) = listener.accept().await?;
    ///     futures_lite::io::copy(&stream, &stream).await
    /// });
    /// let mut client = TcpStream::connect(address).await?;
    /// client.write_all(b"ping").await?;
    /// client.close().await?;
    /// let mut answer = Vec::new();
    /// client.read_to_end(&mut answer).await?;
    /// assert_eq!(answer, b"ping");
    /// assert_eq!(echo.await??, 4);
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    TcpListener, std::net::TcpListener, SocketAddr
}

wrap! {
    /// A TCP connection. It reads and writes by the traits of `futures-io`, and so does a reference to it: one task reads,
    /// and one writes.
    ///
    /// See [`TcpListener`] for an example.
    TcpStream, std::net::TcpStream, SocketAddr, peer_addr
}

impl TcpListener {
    /// Makes a listener, in whose backlog up to 4,096 connections wait, or as many as the system allows. A name is resolved first,
    /// and the thread may block for that.
    ///
    /// # Errors
    ///
    /// The system's.
    ///
    /// # Panics
    ///
    /// If this thread is in no runtime.
    #[track_caller]
    pub fn bind(address: impl ToSocketAddrs) -> io::Result<Self> {
        let shared = context::expect();
        let listener = shared.block(|| std::net::TcpListener::bind(address))?;
        // The standard library's is short. Where it cannot be changed, it stays.
        let _ = SockRef::from(&listener).listen(4096);
        Self::new(listener, &shared)
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
    pub async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let accepted = self.0.read_with(interface::accept).await?;
        self.accepted(accepted)
    }

    /// The same for one task, for those who write futures by hand.
    ///
    /// # Errors
    ///
    /// As [`accept`](Self::accept).
    pub fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(TcpStream, SocketAddr)>> {
        let accepted = self.0.poll_with(cx, Direction::Read, |listener, _| {
            interface::accept(listener)
        });
        Poll::Ready(self.accepted(ready!(accepted)?))
    }

    fn accepted(
        &self,
        (stream, peer): (std::net::TcpStream, SocketAddr),
    ) -> io::Result<(TcpStream, SocketAddr)> {
        let stream = Async::of_accepted(stream, Arc::clone(self.0.shared()))?;
        Ok((TcpStream(stream), peer))
    }
}

impl TcpStream {
    /// Connects, to the first address that answers. A name is resolved first, by [`unblock`](crate::unblock()).
    ///
    /// Nothing of it blocks, and it can be dropped at any time.
    ///
    /// # Errors
    ///
    /// That of the last address.
    ///
    /// # Panics
    ///
    /// If this thread is in no runtime.
    pub async fn connect(address: impl ToAddresses) -> io::Result<Self> {
        let shared = context::expect();
        let addresses = resolve(address).await?;
        let mut outcome = Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "the name has no address",
        ));
        for address in addresses {
            outcome = Self::connect_to(address, &shared).await;
            if outcome.is_ok() {
                break;
            }
        }
        outcome
    }

    async fn connect_to(address: SocketAddr, shared: &Arc<Shared>) -> io::Result<Self> {
        let domain = Domain::for_address(address);
        let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
        Self::connect_by(socket, address, shared).await
    }

    /// Whether small writes are sent at once, and do not wait for more.
    ///
    /// # Errors
    ///
    /// The system's.
    #[doc(alias = "TCP_NODELAY")]
    pub fn set_nodelay(&self, is_set: bool) -> io::Result<()> {
        self.get_ref().set_nodelay(is_set)
    }

    /// Connects by a socket that was prepared: bound, say, or with options.
    ///
    /// # Errors
    ///
    /// The system's.
    ///
    /// # Panics
    ///
    /// If this thread is in no runtime.
    pub async fn connect_with(socket: Socket, address: SocketAddr) -> io::Result<Self> {
        Self::connect_by(socket, address, &context::expect()).await
    }

    async fn connect_by(
        socket: Socket,
        address: SocketAddr,
        shared: &Arc<Shared>,
    ) -> io::Result<Self> {
        let stream = Self::new(socket.into(), shared)?;
        let mut is_begun = false;
        let connected = stream.0.try_write_with(|stream| {
            let connected = SockRef::from(stream).connect(&address.into());
            connected.map_err(|error| {
                is_begun = is_connecting(&error);
                match is_begun {
                    true => io::ErrorKind::WouldBlock.into(),
                    false => error,
                }
            })
        });
        match connected {
            // A socket with TCP_FASTOPEN_CONNECT connects with its first write.
            Ok(()) => return Ok(stream),
            Err(error) if !is_begun => return Err(error),
            Err(_) => {}
        }
        // A report of a socket that had its key before may come first.
        let connected = stream.0.write_with(|stream| match stream.take_error()? {
            Some(error) => Err(error),
            None => stream.peer_addr().map_err(|error| match error.kind() {
                io::ErrorKind::NotConnected => io::ErrorKind::WouldBlock.into(),
                _ => error,
            }),
        });
        connected.await?;
        Ok(stream)
    }
}

/// Whether a connect that fails like this has only begun.
fn is_connecting(error: &io::Error) -> bool {
    #[cfg(unix)]
    return error.raw_os_error() == Some(libc::EINPROGRESS);
    #[cfg(windows)]
    return error.kind() == io::ErrorKind::WouldBlock;
}

impl_stream!(TcpStream, true, TcpStream, &TcpStream);
