//! Real sockets with their peers, and the means to wait until an operation has arrived.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use socket2::{Domain, SockAddr, Socket, Type};

use crate::conditions::{Kind, Link};
use crate::patience::PATIENCE;

const ANY: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0);

/// What is at the other end of a socket.
pub(crate) enum Peer {
    None,
    Socket(Socket),
    /// Of a listener.
    Clients(Vec<Socket>),
}

/// The result of receiving until it would block.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Received {
    /// Bytes, datagrams or connections.
    pub(crate) amount: usize,
    /// Whether there was an error.
    pub(crate) error: bool,
}

impl Peer {
    /// The peer, where it is a single socket.
    pub(crate) fn socket(&self) -> Option<&Socket> {
        match self {
            Peer::Socket(socket) => Some(socket),
            _ => None,
        }
    }

    /// Close it.
    pub(crate) fn close(&mut self) {
        *self = Peer::None;
    }

    /// Close it in the middle of its connection.
    pub(crate) fn reset(&mut self) {
        if let Peer::Socket(socket) = self {
            // A socket without linger is closed like any other.
            let _ = socket.set_linger(Some(Duration::ZERO));
        }
        self.close();
    }
}

/// Makes sockets.
pub(crate) struct Loopback {
    /// Accepts the peers of all TCP connections.
    listener: TcpListener,
}

impl Loopback {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Loopback {
            listener: TcpListener::bind(ANY)?,
        })
    }

    /// A socket, its descriptor anywhere, and its peer.
    pub(crate) fn open(&self, kind: Kind, link: Link) -> io::Result<(OwnedFd, Peer)> {
        let unconnected = link == Link::Unconnected;
        let ours = match kind {
            Kind::Unix => {
                let (ours, peer) = Socket::pair(Domain::UNIX, Type::STREAM.nonblocking(), None)?;
                return Ok((ours.into(), Peer::Socket(peer)));
            }
            Kind::Tcp => Socket::new(Domain::IPV4, Type::STREAM.nonblocking(), None)?,
            Kind::Udp => Socket::new(Domain::IPV4, Type::DGRAM.nonblocking(), None)?,
            Kind::Listener => {
                let ours = Socket::new(Domain::IPV4, Type::STREAM.nonblocking(), None)?;
                ours.bind(&ANY.into())?;
                ours.listen(16)?;
                return Ok((ours.into(), Peer::Clients(Vec::new())));
            }
        };
        let ours: OwnedFd = ours.into();
        let peer = match unconnected {
            true => Peer::None,
            false => self.connect(kind, ours.as_fd())?,
        };
        Ok((ours, peer))
    }

    /// Connect a socket, and return its peer.
    pub(crate) fn connect(&self, kind: Kind, ours: BorrowedFd<'_>) -> io::Result<Peer> {
        let ours = socket2::SockRef::from(&ours);
        if kind == Kind::Udp {
            let peer = Socket::new(Domain::IPV4, Type::DGRAM.nonblocking(), None)?;
            peer.bind(&ANY.into())?;
            ours.bind(&ANY.into())?;
            peer.connect(&ours.local_addr()?)?;
            ours.connect(&peer.local_addr()?)?;
            return Ok(Peer::Socket(peer));
        }
        begin_connect(&ours, &self.listener.local_addr()?.into())?;
        loop {
            let (peer, address) = self.listener.accept()?;
            if ours.local_addr()?.as_socket() == Some(address) {
                peer.set_nonblocking(true)?;
                return Ok(Peer::Socket(peer.into()));
            }
        }
    }

    /// Connect a socket to an address without a listener.
    pub(crate) fn connect_refused(&self, ours: BorrowedFd<'_>) -> io::Result<()> {
        let unused = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        unused.bind(&ANY.into())?;
        let ours = socket2::SockRef::from(&ours);
        begin_connect(&ours, &unused.local_addr()?)?;
        wait_until(ours.as_fd(), PollFlags::ERR)
    }
}

fn begin_connect(socket: &Socket, address: &SockAddr) -> io::Result<()> {
    match socket.connect(address) {
        Err(error) if error.raw_os_error() == Some(Errno::INPROGRESS.raw_os_error()) => Ok(()),
        done => done,
    }
}

/// Connect one more client to a listener.
pub(crate) fn connect_client(listener: BorrowedFd<'_>) -> io::Result<Socket> {
    let client = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    client.set_linger(Some(Duration::ZERO))?;
    client.connect(&socket2::SockRef::from(&listener).local_addr()?)?;
    Ok(client)
}

/// `poll` — The state of a socket now.
fn polled(socket: BorrowedFd<'_>) -> io::Result<PollFlags> {
    let mut fds = [PollFd::from_borrowed_fd(
        socket,
        PollFlags::IN | PollFlags::OUT | PollFlags::RDHUP,
    )];
    poll(&mut fds, Some(&Timespec::default()))?;
    Ok(fds[0].revents())
}

/// Wait until `poll` reports one of these.
pub(crate) fn wait_until(socket: BorrowedFd<'_>, any: PollFlags) -> io::Result<()> {
    let patience = Timespec {
        tv_sec: PATIENCE.as_secs() as i64,
        tv_nsec: 0,
    };
    let mut fds = [PollFd::from_borrowed_fd(socket, any)];
    match poll(&mut fds, Some(&patience))? {
        0 => Err(io::Error::other(format!("timed out waiting for {any:?}"))),
        _ => Ok(()),
    }
}

/// Wait until `poll` reports exactly these flags, and so many bytes are available.
pub(crate) fn wait_for_state(
    socket: BorrowedFd<'_>,
    flags: PollFlags,
    bytes: Option<usize>,
) -> io::Result<()> {
    let begin = Instant::now();
    loop {
        let now = polled(socket)?;
        let there = match bytes {
            Some(_) => Some(rustix::io::ioctl_fionread(socket)? as usize),
            None => None,
        };
        if now == flags && there == bytes {
            return Ok(());
        }
        if begin.elapsed() > PATIENCE {
            return Err(io::Error::other(format!(
                "the socket is {now:?} with {there:?} bytes, not {flags:?} with {bytes:?}"
            )));
        }
        std::thread::yield_now();
    }
}

/// Send something small. False if there is no room for it.
pub(crate) fn send_some(socket: BorrowedFd<'_>, bytes: usize) -> io::Result<bool> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    match send(socket, &vec![b'x'; bytes], flags) {
        Ok(sent) if sent == bytes => Ok(true),
        Ok(_) | Err(Errno::AGAIN) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Send until there is no room.
pub(crate) fn fill(socket: BorrowedFd<'_>) -> io::Result<()> {
    while send_some(socket, 16 * 1024)? {}
    while send_some(socket, 1)? {}
    Ok(())
}

/// Receive, until nothing is left or `limit` is reached.
pub(crate) fn receive(socket: BorrowedFd<'_>, kind: Kind, limit: usize) -> io::Result<Received> {
    let mut received = Received::default();
    let mut buffer = [0; 4096];
    while received.amount < limit {
        let room = buffer.len().min(limit - received.amount);
        let step = match kind {
            Kind::Listener => rustix::net::accept(socket).map(|_| 1),
            Kind::Udp => recv(socket, &mut buffer, RecvFlags::DONTWAIT).map(|_| 1),
            _ => recv(socket, &mut buffer[..room], RecvFlags::DONTWAIT).map(|(_, count)| count),
        };
        match step {
            Ok(0) | Err(Errno::AGAIN) => break,
            Ok(amount) => received.amount += amount,
            Err(Errno::CONNRESET | Errno::CONNREFUSED | Errno::PIPE) => received.error = true,
            Err(error) => return Err(error.into()),
        }
    }
    // After the end of a stream, a receive does not show an error.
    if received.amount < limit {
        received.error |= socket2::SockRef::from(&socket).take_error()?.is_some();
    }
    Ok(received)
}
