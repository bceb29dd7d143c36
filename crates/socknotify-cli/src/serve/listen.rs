//! Sockets that clients come to.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
#[cfg(unix)]
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use socknotify_http::Listener as Streaming;

use crate::endpoint::{self, Endpoint};

/// How many connections may wait to be accepted, if the system allows it.
const BACKLOG: i32 = 4096;

pub(crate) enum Listener {
    Streams(Streaming),
    Datagrams(UdpSocket),
}

/// The name of a socket. When it is dropped, a Unix socket's file is removed.
#[derive(Debug)]
pub(crate) struct Bound {
    name: String,
    file: Option<SocketFile>,
}

/// Where a Unix socket's file was made, and which one that is.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    id: Option<(u64, u64)>,
}

impl Bound {
    /// A socket for streams or for datagrams, bound to the first address of that name that is free.
    pub(crate) fn bind(endpoint: &Endpoint, is_datagrams: bool) -> io::Result<(Listener, Self)> {
        match endpoint {
            Endpoint::Host(name) if is_datagrams => {
                let socket = UdpSocket::bind(&*endpoint::addresses(name)?.collect::<Vec<_>>())?;
                socket.set_nonblocking(true)?;
                let bound = Bound::at(socket.local_addr()?);
                Ok((Listener::Datagrams(socket), bound))
            }
            Endpoint::Host(name) => {
                let listener = bind_tcp(name)?;
                let bound = Bound::at(listener.local_addr()?);
                Ok((Listener::Streams(listener.into()), bound))
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
                let file = SocketFile {
                    path: path.clone(),
                    id: file_id(path),
                };
                let bound = Bound {
                    name: endpoint.to_string(),
                    file: Some(file),
                };
                Ok((Listener::Streams(listener.into()), bound))
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

    /// Removes the file of a Unix socket, unless another one is in its place.
    ///
    /// Do so while the socket is open: nobody else takes its path then, and no other file has its number.
    pub(crate) fn remove_file(&mut self) {
        if let Some(SocketFile { path, id }) = self.file.take() {
            if id.is_some() && file_id(&path) == id {
                // Somebody may have done so already.
                let _ = std::fs::remove_file(path);
            }
        }
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        self.remove_file();
    }
}

/// The device and the number of the file that is there.
#[cfg(unix)]
fn file_id(path: &Path) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;

    let file = std::fs::symlink_metadata(path).ok()?;
    Some((file.dev(), file.ino()))
}

#[cfg(not(unix))]
fn file_id(_path: &Path) -> Option<(u64, u64)> {
    None
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

fn bind_tcp(name: &str) -> io::Result<TcpListener> {
    let mut outcome = Err(io::ErrorKind::AddrNotAvailable.into());
    for address in endpoint::addresses(name)? {
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
fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    let socket = bind(Domain::UNIX, None, &SockAddr::unix(path)?)?;
    Ok(std::os::fd::OwnedFd::from(socket).into())
}

/// Whether this is a socket's file on which no process listens.
#[cfg(unix)]
fn is_left(path: &Path) -> bool {
    let is_socket = std::fs::symlink_metadata(path)
        .is_ok_and(|file| std::os::unix::fs::FileTypeExt::is_socket(&file.file_type()));
    // Who listens may have no room for another connection: that is not waited for.
    let connect = || {
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        socket.set_nonblocking(true)?;
        socket.connect(&SockAddr::unix(path)?)
    };
    let refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    is_socket && connect().is_err_and(refused)
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
