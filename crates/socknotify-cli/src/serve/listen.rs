//! Sockets that clients come to.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs, UdpSocket};
#[cfg(unix)]
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use crate::endpoint::Endpoint;

/// How many connections may wait to be accepted, if the system allows it.
const BACKLOG: i32 = 4096;

pub(crate) enum Listener {
    Tcp(TcpListener),
    #[cfg(unix)]
    Unix(UnixListener),
    Datagrams(UdpSocket),
}

/// The name of a socket. When it is dropped, a Unix socket's file is removed.
#[derive(Debug)]
pub(crate) struct Bound {
    name: String,
    file: Option<PathBuf>,
}

impl Bound {
    /// A socket for streams or for datagrams, bound to the first address of that name that is free.
    pub(crate) fn bind(endpoint: &Endpoint, is_datagrams: bool) -> io::Result<(Listener, Self)> {
        match endpoint {
            Endpoint::Host(name) if is_datagrams => {
                let socket = UdpSocket::bind(name)?;
                socket.set_nonblocking(true)?;
                let bound = Bound::at(socket.local_addr()?);
                Ok((Listener::Datagrams(socket), bound))
            }
            Endpoint::Host(name) => {
                let listener = bind_tcp(name)?;
                let bound = Bound::at(listener.local_addr()?);
                Ok((Listener::Tcp(listener), bound))
            }
            #[cfg(unix)]
            Endpoint::Unix(path) if !is_datagrams => {
                let listener = match bind_unix(path) {
                    Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_left(path) => {
                        std::fs::remove_file(path)?;
                        bind_unix(path)?
                    }
                    outcome => outcome?,
                };
                let bound = Bound {
                    name: endpoint.to_string(),
                    file: Some(path.clone()),
                };
                Ok((Listener::Unix(listener), bound))
            }
            Endpoint::Unix(_) => {
                let reason = "this system has no Unix sockets for that";
                Err(io::Error::new(io::ErrorKind::Unsupported, reason))
            }
        }
    }

    fn at(address: SocketAddr) -> Self {
        Bound {
            name: address.to_string(),
            file: None,
        }
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        if let Some(path) = &self.file {
            // Somebody may have done so already.
            let _ = std::fs::remove_file(path);
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

fn bind_tcp(name: &str) -> io::Result<TcpListener> {
    let mut outcome = Err(io::ErrorKind::AddrNotAvailable.into());
    for address in name.to_socket_addrs()? {
        outcome = bind(
            Domain::for_address(address),
            Some(Protocol::TCP),
            &address.into(),
        );
        if outcome.is_ok() {
            break;
        }
    }
    outcome.map(TcpListener::from)
}

#[cfg(unix)]
fn bind_unix(path: &std::path::Path) -> io::Result<UnixListener> {
    let socket = bind(Domain::UNIX, None, &SockAddr::unix(path)?)?;
    Ok(std::os::fd::OwnedFd::from(socket).into())
}

/// Whether this is a socket's file on which no process listens.
#[cfg(unix)]
fn is_left(path: &std::path::Path) -> bool {
    let refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    let is_socket = std::fs::symlink_metadata(path)
        .is_ok_and(|file| std::os::unix::fs::FileTypeExt::is_socket(&file.file_type()));
    is_socket && UnixStream::connect(path).is_err_and(refused)
}

/// As the standard library does, but with room for more connections.
fn bind(domain: Domain, protocol: Option<Protocol>, address: &SockAddr) -> io::Result<Socket> {
    let socket = Socket::new(domain, Type::STREAM, protocol)?;
    // On Windows it would let another program listen at the same address.
    if cfg!(unix) && protocol.is_some() {
        socket.set_reuse_address(true)?;
    }
    socket.bind(address)?;
    socket.listen(BACKLOG)?;
    Ok(socket)
}
