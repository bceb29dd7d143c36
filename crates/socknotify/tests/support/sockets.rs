//! Sockets of every kind that the contract speaks of, over loopback.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use socket2::{Domain, SockAddr, Socket, Type};
use socknotify::Trigger;

use super::PATIENCE;
use super::system::{AsSocket, PollFlags, is_ready};
use super::trigger::EVERY;

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
        Self::tcp().chain([Kind::UnixStream].into_iter().filter(|kind| kind.is_here()))
    }

    /// The kinds that do not.
    pub(crate) fn datagrams() -> impl Iterator<Item = Kind> {
        Self::udp().chain(
            [Kind::UnixDatagram]
                .into_iter()
                .filter(|kind| kind.is_here()),
        )
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

    /// The stream whose two ends are nearest to each other.
    pub(crate) const LOCAL: Kind = if cfg!(unix) {
        Kind::UnixStream
    } else {
        Kind::Tcp4
    };

    fn is_here(self) -> bool {
        if cfg!(windows) && matches!(self, Kind::UnixStream | Kind::UnixDatagram) {
            return false;
        }
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
            #[cfg(unix)]
            Kind::UnixStream | Kind::UnixDatagram => {
                Socket::pair(Domain::UNIX, self.socket_type(), None)?
            }
            #[cfg(not(unix))]
            Kind::UnixStream | Kind::UnixDatagram => return Err(io::ErrorKind::Unsupported.into()),
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

/// A pair of each of these kinds, with every trigger.
pub(crate) fn pairs(
    kinds: impl Iterator<Item = Kind>,
) -> impl Iterator<Item = io::Result<(Pair, Trigger)>> {
    kinds.flat_map(|kind| EVERY.map(|trigger| Ok((kind.pair()?, trigger))))
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
    match cfg!(target_os = "linux") {
        // An abstract name, which leaves no file behind.
        true => PathBuf::from(format!("\0{name}")),
        false => std::env::temp_dir().join(name),
    }
}

/// Removes what an address leaves behind: a Unix socket's file.
pub(crate) fn forget_address(address: &SockAddr) -> io::Result<()> {
    #[cfg(unix)]
    if let Some(path) = address.as_pathname() {
        std::fs::remove_file(path)?;
    }
    let _ = address;
    Ok(())
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
        let _ = forget_address(&self.address);
    }
}

/// A TCP connection of the standard library's: our end, and theirs, whose reads do not wait for ever.
pub(crate) fn tcp_streams() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let theirs = TcpStream::connect(listener.local_addr()?)?;
    theirs.set_nodelay(true)?;
    theirs.set_read_timeout(Some(PATIENCE))?;
    Ok((listener.accept()?.0, theirs))
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
    /// Two Unix stream sockets, or what comes nearest to them here.
    pub(crate) fn unix() -> io::Result<Pair> {
        Kind::LOCAL.pair()
    }

    /// Our end and theirs.
    pub(crate) fn into_ends(self) -> (Socket, Socket) {
        (self.ours, self.theirs)
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

/// A byte, or `None` if there is none: rarely, a report was taken before another thread handled the connection.
pub(crate) fn read_byte(mut socket: impl Read) -> io::Result<Option<u8>> {
    let mut byte = [0];
    match socket.read_exact(&mut byte) {
        Ok(()) => Ok(Some(byte[0])),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}

/// Writes until no more can be written for good, and says how much it was.
pub(crate) fn fill(mut socket: &Socket) -> io::Result<usize> {
    // TCP moves data to the peer's buffer meanwhile, and so finds room again, though it may delay its
    // acknowledgements.
    let settling = if socket.local_addr()?.domain() == Domain::UNIX {
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

/// Makes a call again that was interrupted. A thread that has made or used a ring may have that happen
/// in calls that have a time limit.
pub(crate) fn uninterrupted<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            outcome => return outcome,
        }
    }
}

/// An address that refuses connections, as long as the pair is kept: that of a connection's end. For a socket that
/// is only bound, a kernel may not answer at all.
pub(crate) fn refusing(kind: Kind) -> io::Result<(Pair, SockAddr)> {
    let pair = kind.pair()?;
    let address = pair.ours.local_addr()?;
    Ok((pair, address))
}

/// Closes a TCP connection at once, which resets it.
pub(crate) fn reset(socket: Socket) -> io::Result<()> {
    socket.set_linger(Some(Duration::ZERO))
}

/// Runs something while the peers, which must not block, send as much as there is room for.
pub(crate) fn uploading<R>(pairs: &[Pair], work: impl FnOnce() -> R) -> R {
    struct Stop<'a>(&'a AtomicBool);
    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let _stop = Stop(&is_over);
        scope.spawn(|| {
            while !is_over.load(Ordering::SeqCst) {
                let mut is_full = true;
                for pair in pairs {
                    is_full &= (&pair.theirs).write(&[7; 4096]).is_err();
                }
                if is_full {
                    thread::sleep(Duration::from_micros(100));
                }
            }
        });
        work()
    })
}

/// Waits until the kernel says of a socket that all these conditions hold.
#[track_caller]
pub(crate) fn wait_readiness(socket: &impl AsSocket, flags: PollFlags) {
    let end = Instant::now() + PATIENCE;
    while !is_ready(socket, flags, Duration::from_millis(1)) {
        assert!(Instant::now() < end, "{flags:?} does not come to hold");
    }
}
