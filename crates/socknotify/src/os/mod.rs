//! What the library needs of the operating system besides readiness: descriptors, forks, threads, errors.
//!
//! A public signature has the [socket](crate::values::socket) of the family; the engine and the backends have an [`Fd`], a
//! small dense number. This module converts between them.

mod owners;
mod poll;
#[cfg_attr(
    interleavings,
    allow(dead_code, reason = "the model checker has threads of its own")
)]
pub(crate) mod thread_state;
#[cfg(unix)]
mod unix;
#[cfg(windows)]
pub(crate) mod windows;

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
#[cfg(target_os = "linux")]
use std::num::NonZero;

pub(crate) use self::owners::Owner;
pub(crate) use self::poll::wait_for;
#[cfg(unix)]
pub use unix::Process;
#[cfg(unix)]
pub(crate) use unix::*;
#[cfg(windows)]
pub use windows::Process;
#[cfg(windows)]
pub(crate) use windows::*;

pub(crate) use crate::values::socket::{AsSocket, RawSocket, raw};

/// The concurrency value that a port has when none is given: the available parallelism, at least 1.
pub fn default_concurrency() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// A descriptor, by its number: small and dense. On Windows the number is a fourth of the socket's handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Fd(pub(crate) u32);

/// `accept4` — Accept a connection, in non-blocking mode.
#[cfg(target_os = "linux")]
pub fn accept(listener: &TcpListener) -> io::Result<(TcpStream, SocketAddr)> {
    use rustix::net::{SocketFlags, acceptfrom_with};

    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (socket, peer) = rustix::io::retry_on_intr(|| acceptfrom_with(listener, flags))?;
    let peer = peer.and_then(|peer| peer.try_into().ok());
    Ok((socket.into(), peer.ok_or(io::ErrorKind::InvalidInput)?))
}

/// Accept a connection, in non-blocking mode.
#[cfg(not(target_os = "linux"))]
pub fn accept(listener: &TcpListener) -> io::Result<(TcpStream, SocketAddr)> {
    let (stream, peer) = listener.accept()?;
    stream.set_nonblocking(true)?;
    Ok((stream, peer))
}

/// `prctl` — Do what waits for a fraction of a millisecond, and let it end on time: Linux adds 50 µs otherwise.
#[cfg(target_os = "linux")]
pub(crate) fn on_time<R>(wait: impl FnOnce() -> R) -> R {
    use rustix::thread::{current_timer_slack, set_current_timer_slack};

    let before = current_timer_slack().ok().and_then(NonZero::new);
    if before.is_some() {
        let _ = set_current_timer_slack(NonZero::new(1));
    }
    let done = wait();
    if before.is_some() {
        let _ = set_current_timer_slack(before);
    }
    done
}

/// Do what waits.
#[cfg(not(target_os = "linux"))]
pub(crate) fn on_time<R>(wait: impl FnOnce() -> R) -> R {
    wait()
}
