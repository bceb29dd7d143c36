//! A stream socket, of whatever family.

use std::fs::File;
use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::net::TcpStream;
#[cfg(unix)]
use std::os::unix::net::UnixStream;

use socket2::SockRef;
use socknotify::owned::{BorrowedSocket, Readiness, Source};

use crate::system;

#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    #[cfg(unix)]
    Unix(UnixStream),
}

/// The same expression for each kind.
macro_rules! each {
    ($stream:expr, $socket:ident => $done:expr) => {
        match $stream {
            Stream::Tcp($socket) => $done,
            #[cfg(unix)]
            Stream::Unix($socket) => $done,
        }
    };
}

impl Stream {
    /// Receives, and tells the port whether anything is left.
    pub(crate) fn receive(&self, readiness: &mut Readiness, room: &mut [u8]) -> io::Result<usize> {
        each!(self, socket => readiness.io(socket).read(room))
    }

    /// Sends a part of a file without a copy of it, if the system can.
    pub(crate) fn send_file(
        &self,
        file: &File,
        from: u64,
        count: usize,
    ) -> Option<io::Result<usize>> {
        each!(self, socket => system::send_file(socket, file, from, count))
    }

    /// Whether something has come and was not received. It says nothing of the end of the stream.
    pub(crate) fn has_more(&self) -> bool {
        let socket = self.socket();
        let mut byte = [MaybeUninit::uninit()];
        let found = SockRef::from(&socket).peek(&mut byte);
        found.is_ok_and(|length| length > 0)
    }

    /// The address of the other end, for people.
    pub(crate) fn peer(&self) -> String {
        match self {
            Stream::Tcp(socket) => socket
                .peer_addr()
                .map_or_else(|_| "-".to_owned(), |address| address.ip().to_string()),
            #[cfg(unix)]
            Stream::Unix(_) => "unix".to_owned(),
        }
    }
}

impl Read for &Stream {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        each!(self, socket => (&mut &*socket).read(room))
    }
}

impl Write for &Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        each!(self, socket => (&mut &*socket).write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl From<TcpStream> for Stream {
    fn from(socket: TcpStream) -> Self {
        // What is sent should not wait for an acknowledgement. It is sent in any case.
        let _ = socket.set_nodelay(true);
        Stream::Tcp(socket)
    }
}

#[cfg(unix)]
impl From<UnixStream> for Stream {
    fn from(socket: UnixStream) -> Self {
        Stream::Unix(socket)
    }
}

impl Source for Stream {
    fn socket(&self) -> BorrowedSocket<'_> {
        each!(self, socket => socket.socket())
    }
}

/// Whether the same can be tried again when the socket is ready.
pub(crate) fn is_for_later(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}
