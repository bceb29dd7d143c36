//! UDP: [`UdpSocket`].

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};

use super::wrap;
use crate::context;

wrap! {
    /// A UDP socket. Any number of tasks may send and receive.
    ///
    /// # Examples
    ///
    /// ```
    /// use socknotify_async::UdpSocket;
    ///
    /// # fn main() -> std::io::Result<()> {
    /// # socknotify_async::Runtime::new()?.block_on(async {
    /// let ours = UdpSocket::bind("127.0.0.1:0")?;
    /// let theirs = UdpSocket::bind("127.0.0.1:0")?;
    /// theirs.send_to(b"ping", ours.local_addr()?).await?;
    /// let mut buffer = [0; 16];
    /// let (length, peer) = ours.recv_from(&mut buffer).await?;
    /// assert_eq!((&buffer[..length], peer), (&b"ping"[..], theirs.local_addr()?));
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    UdpSocket, std::net::UdpSocket, SocketAddr, peer_addr
}

impl UdpSocket {
    /// Makes a socket. A name is resolved first, and the thread may block for that.
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
        let socket = shared.block(|| std::net::UdpSocket::bind(address))?;
        Self::new(socket, &shared)
    }

    /// Sets the peer of [`send`](Self::send) and [`recv`](Self::recv). A name is resolved first, and the thread may
    /// block for that.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn connect(&self, address: impl ToSocketAddrs) -> io::Result<()> {
        self.0.shared().block(|| self.get_ref().connect(address))
    }

    /// Sends a datagram, and returns its length.
    ///
    /// # Errors
    ///
    /// The system's.
    pub async fn send_to(&self, bytes: &[u8], address: SocketAddr) -> io::Result<usize> {
        self.0
            .write_with(|socket| socket.send_to(bytes, address))
            .await
    }

    /// Receives a datagram. What has no room in the buffer is lost.
    ///
    /// # Errors
    ///
    /// The system's.
    pub async fn recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.0.read_with(|socket| socket.recv_from(buffer)).await
    }

    /// Sends a datagram to the peer of [`connect`](Self::connect).
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
