//! A stream socket, of whatever family.

use std::io::{self, Read, Write};
use std::net::TcpStream;
#[cfg(unix)]
use std::os::unix::net::UnixStream;

use socknotify::owned::{BorrowedSocket, Source};

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
