//! Sockets of every kind that the contract speaks of, over loopback.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit, setrlimit};
use socket2::{Domain, SockAddr, Socket, Type};

use super::PATIENCE;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Tcp4,
    Tcp6,
    UnixStream,
    Udp4,
    Udp6,
    UnixDatagram,
}

impl Kind {
    /// The kinds that this machine has. Some have no IPv6.
    pub(crate) fn all() -> impl Iterator<Item = Kind> {
        Self::streams().chain(Self::datagrams())
    }

    /// The kinds that connect and end.
    pub(crate) fn streams() -> impl Iterator<Item = Kind> {
        Self::tcp().chain([Kind::UnixStream])
    }

    /// The kinds that do not.
    pub(crate) fn datagrams() -> impl Iterator<Item = Kind> {
        Self::udp().chain([Kind::UnixDatagram])
    }

    pub(crate) fn tcp() -> impl Iterator<Item = Kind> {
        [Kind::Tcp4, Kind::Tcp6]
            .into_iter()
            .filter(|kind| kind.is_here())
    }

    pub(crate) fn udp() -> impl Iterator<Item = Kind> {
        [Kind::Udp4, Kind::Udp6]
            .into_iter()
            .filter(|kind| kind.is_here())
    }

    pub(crate) fn is_stream(self) -> bool {
        matches!(self, Kind::Tcp4 | Kind::Tcp6 | Kind::UnixStream)
    }

    fn is_here(self) -> bool {
        self.socket()
            .and_then(|socket| socket.bind(&self.any_address()))
            .is_ok()
    }

    /// A new socket that nothing was done with, except that it does not block.
    pub(crate) fn socket(self) -> io::Result<Socket> {
        let domain = match self {
            Kind::Tcp4 | Kind::Udp4 => Domain::IPV4,
            Kind::Tcp6 | Kind::Udp6 => Domain::IPV6,
            Kind::UnixStream | Kind::UnixDatagram => Domain::UNIX,
        };
        let socket = Socket::new(domain, self.socket_type(), None)?;
        socket.set_nonblocking(true)?;
        Ok(socket)
    }

    /// An address that no other test uses.
    pub(crate) fn any_address(self) -> SockAddr {
        match self {
            Kind::Tcp4 | Kind::Udp4 => SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into(),
            Kind::Tcp6 | Kind::Udp6 => SocketAddr::from((Ipv6Addr::LOCALHOST, 0)).into(),
            Kind::UnixStream | Kind::UnixDatagram => {
                SockAddr::unix(unique_path()).expect("a path that is not too long")
            }
        }
    }

    pub(crate) fn listener(self) -> io::Result<Listener> {
        self.listener_with_backlog(128)
    }

    /// A listener that at most this many connections can wait in, and maybe one more.
    pub(crate) fn listener_with_backlog(self, backlog: i32) -> io::Result<Listener> {
        let socket = self.socket()?;
        socket.bind(&self.any_address())?;
        let address = socket.local_addr()?;
        socket.listen(backlog)?;
        Ok(Listener { socket, address })
    }

    /// Two sockets that are connected to each other.
    pub(crate) fn pair(self) -> io::Result<Pair> {
        let (ours, theirs) = match self {
            Kind::UnixStream | Kind::UnixDatagram => {
                Socket::pair(Domain::UNIX, self.socket_type(), None)?
            }
            Kind::Tcp4 | Kind::Tcp6 => {
                let listener = self.listener()?;
                let theirs = listener.connect()?;
                (listener.accept()?, theirs)
            }
            Kind::Udp4 | Kind::Udp6 => {
                let (ours, theirs) = (self.socket()?, self.socket()?);
                ours.bind(&self.any_address())?;
                theirs.bind(&self.any_address())?;
                ours.connect(&theirs.local_addr()?)?;
                theirs.connect(&ours.local_addr()?)?;
                (ours, theirs)
            }
        };
        ours.set_nonblocking(true)?;
        theirs.set_nonblocking(false)?;
        theirs.set_read_timeout(Some(PATIENCE))?;
        theirs.set_write_timeout(Some(PATIENCE))?;
        Ok(Pair { ours, theirs })
    }

    fn socket_type(self) -> Type {
        if self.is_stream() {
            Type::STREAM
        } else {
            Type::DGRAM
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

fn unique_path() -> PathBuf {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = format!("socknotify-{}-{number}", std::process::id());
    std::env::temp_dir().join(name)
}

/// A socket that waits for connections.
pub(crate) struct Listener {
    pub(crate) socket: Socket,
    pub(crate) address: SockAddr,
}

impl Listener {
    /// A connection to this listener, ready for use; it blocks.
    pub(crate) fn connect(&self) -> io::Result<Socket> {
        let socket = Socket::new(self.address.domain(), Type::STREAM, None)?;
        socket.connect(&self.address)?;
        Ok(socket)
    }

    /// The next connection made to it.
    pub(crate) fn accept(&self) -> io::Result<Socket> {
        wait_readiness(&self.socket, PollFlags::IN);
        Ok(self.socket.accept()?.0)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(path) = self.address.as_pathname() {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Two sockets that are connected to each other. Ours does not block, theirs does.
///
/// What happens at one end of a Unix pair has come to the other when the call returns; with the rest,
/// [wait](wait_readiness) for it.
pub(crate) struct Pair {
    pub(crate) ours: Socket,
    pub(crate) theirs: Socket,
}

impl Pair {
    pub(crate) fn unix() -> io::Result<Pair> {
        Kind::UnixStream.pair()
    }

    /// The peer sends one byte, which is there when this returns.
    pub(crate) fn send(&self) -> io::Result<()> {
        assert_eq!((&self.theirs).write(b"x")?, 1);
        wait_readiness(&self.ours, PollFlags::IN);
        Ok(())
    }

    /// Takes all that the peer has sent, and says how much it was.
    pub(crate) fn drain(&self) -> io::Result<usize> {
        drain(&self.ours)
    }

    /// Sends until no more can be sent.
    pub(crate) fn fill(&self) -> io::Result<usize> {
        fill(&self.ours)
    }

    /// The peer takes this much, so that there is room again.
    pub(crate) fn make_room(&self, mut bytes: usize) -> io::Result<()> {
        let mut buffer = [0; 65536];
        while bytes > 0 {
            let room = bytes.min(buffer.len());
            match (&self.theirs).read(&mut buffer[..room])? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => bytes -= count,
            }
        }
        wait_readiness(&self.ours, PollFlags::OUT);
        Ok(())
    }
}

/// Reads until nothing is left, and says how much it was.
pub(crate) fn drain(mut socket: &Socket) -> io::Result<usize> {
    let mut buffer = [0; 65536];
    let mut sum = 0;
    loop {
        match socket.read(&mut buffer) {
            Ok(0) => return Ok(sum),
            Ok(count) => sum += count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(sum),
            Err(error) => return Err(error),
        }
    }
}

/// Writes until no more can be written for good, and says how much it was.
pub(crate) fn fill(mut socket: &Socket) -> io::Result<usize> {
    // TCP moves data to the peer's buffer meanwhile, and so finds room again, though it may delay its
    // acknowledgements.
    let settling = if socket.local_addr()?.is_unix() {
        Duration::ZERO
    } else {
        Duration::from_millis(60)
    };
    let mut sum = 0;
    loop {
        match socket.write(&[0; 8192]) {
            Ok(count) => sum += count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if !is_ready(socket, PollFlags::OUT, settling) {
                    return Ok(sum);
                }
            }
            Err(error) => return Err(error),
        }
    }
}

/// Gives back a call's result, or `None` if it would have had to wait.
pub(crate) fn non_blocking<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}

/// Begins to connect. It is done when the socket says so.
pub(crate) fn begin_connect(socket: &Socket, address: &SockAddr) -> io::Result<()> {
    match socket.connect(address) {
        Err(error) if error.raw_os_error() == Some(Errno::INPROGRESS.raw_os_error()) => Ok(()),
        result => result,
    }
}

/// An address that refuses connections, as long as the socket with it is kept.
pub(crate) fn refusing(kind: Kind) -> io::Result<(Socket, SockAddr)> {
    let socket = kind.socket()?;
    socket.bind(&kind.any_address())?;
    let address = socket.local_addr()?;
    Ok((socket, address))
}

/// Closes a TCP connection at once, which resets it.
pub(crate) fn reset(socket: Socket) -> io::Result<()> {
    socket.set_linger(Some(Duration::ZERO))
}

/// Closes `old` and gives its number to `new`, in one step, so that no other thread gets it.
pub(crate) fn take_number(old: Socket, new: Socket) -> io::Result<Socket> {
    let mut number = OwnedFd::from(old);
    rustix::io::dup2(&new, &mut number)?;
    Ok(Socket::from(number))
}

/// Moves a socket to a number that no other test takes when it is closed.
///
/// Numbers are given to whoever opens something next, the lowest first.
pub(crate) fn to_lonely_number(socket: Socket) -> io::Result<Socket> {
    static NEXT: AtomicI32 = AtomicI32::new(0);
    let lowest = 600 + NEXT.fetch_add(1, Ordering::Relaxed) % 300;
    Ok(rustix::io::fcntl_dupfd_cloexec(&socket, lowest)?.into())
}

fn is_ready(socket: &impl AsFd, flags: PollFlags, timeout: Duration) -> bool {
    let mut fds = [PollFd::new(socket, flags)];
    let timeout = Timespec::try_from(timeout).expect("a short time");
    // A signal may end it early; the callers ask again.
    let _ = poll(&mut fds, Some(&timeout));
    fds[0].revents().contains(flags)
}

/// Waits until the kernel says of a socket that all these conditions hold.
#[track_caller]
pub(crate) fn wait_readiness(socket: &impl AsFd, flags: PollFlags) {
    let end = Instant::now() + PATIENCE;
    while !is_ready(socket, flags, Duration::from_millis(1)) {
        assert!(Instant::now() < end, "{flags:?} does not come to hold");
    }
}

/// Allows this process as many descriptors as it may have, and says how many those are.
pub(crate) fn raise_limit() -> io::Result<usize> {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit)?;
    Ok(limit.current.map_or(usize::MAX, |count| count as usize))
}

/// How many descriptors this process has open.
pub(crate) fn descriptors() -> io::Result<usize> {
    // The listing itself opens one.
    Ok(std::fs::read_dir("/proc/self/fd")?.count() - 1)
}
