//! The server's side of TCP, as both TCP scenarios need it.

use std::io::{self, Read};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};

use socket2::{Domain, Socket, Type};

/// Connections that may wait to be accepted: as many as common kernels allow. Beyond that a client
/// would wait a second before it tries again.
const BACKLOG: i32 = 4096;

/// The size of the receive buffer, as in Microsoft's programs.
pub(crate) const CHUNK: usize = 512;

/// A listener on loopback, on a port of the system's choice, that does not block.
pub(crate) fn listen() -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Accepts a connection, if one waits. It does not block either.
pub(crate) fn accept(listener: &TcpListener) -> io::Result<Option<TcpStream>> {
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(true)?;
                return Ok(Some(stream));
            }
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock => return Ok(None),
                // The client of the one that was first in line has gone again; look at the next.
                io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted => {}
                _ => return Err(error),
            },
        }
    }
}

/// What a receive found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// So many bytes.
    Bytes(u64),
    /// Nothing now.
    Nothing,
    /// The end of the stream.
    End,
}

/// Receives up to [`CHUNK`] bytes.
pub(crate) fn receive(mut stream: &TcpStream) -> io::Result<Received> {
    let mut buffer = [0; CHUNK];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return Ok(Received::End),
            Ok(length) => return Ok(Received::Bytes(length as u64)),
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock => return Ok(Received::Nothing),
                io::ErrorKind::Interrupted => {}
                _ => return Err(error),
            },
        }
    }
}
