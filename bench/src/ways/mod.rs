//! Ways to hear on one thread that sockets are ready: ours, raw system calls, and the peers.
//!
//! All do the same work on the same sockets: take what is ready, read a byte from each, and arm again
//! what has to be armed. Whoever can arms a batch and waits in one call; but a case may ask for the
//! sockets to be armed first, because they are written to only then.

mod foreign;
mod mio;
mod polling;
mod raw_epoll;
mod raw_uring;
mod socknotify;

use std::io::{self, Read};
use std::os::unix::net::UnixStream;

use crate::foreign::Library;
use crate::implementation::Implementation;

use self::foreign::Foreign;
use self::mio::Mio;
use self::polling::Polling;
use self::raw_epoll::{OnePoll, RawEpoll};
use self::raw_uring::RawUring;
use self::socknotify::{Owned, Socknotify};

/// What a notification is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Once, whenever it is readable; then to be armed again.
    OneShot,
    /// Whenever it becomes readable.
    Edge,
    /// As long as it is readable.
    Level,
}

/// A way to get notifications of ready sockets. A socket's key is its index among all, from `first` on.
pub(crate) trait Way<'a> {
    /// Register sockets for reading.
    fn add(&mut self, sockets: &'a [UnixStream], first: usize) -> io::Result<()>;

    /// Register them no longer.
    fn remove(&mut self, sockets: &'a [UnixStream], first: usize) -> io::Result<()>;

    /// Arm again, in the kernel, what was read since the last time; take no notification.
    ///
    /// Nothing to do where a socket stays armed.
    fn arm(&mut self, sockets: &'a [UnixStream]) -> io::Result<()> {
        let _ = sockets;
        Ok(())
    }

    /// Wait for a notification of each of these, which were added from key 0 on, and read its byte.
    /// What is still to be armed is armed first, if possible by the call that waits.
    fn wait_and_read(&mut self, sockets: &'a [UnixStream]) -> io::Result<()>;
}

/// No notifications: reads alone.
struct Bare;

impl<'a> Way<'a> for Bare {
    fn add(&mut self, _: &'a [UnixStream], _: usize) -> io::Result<()> {
        Ok(())
    }

    fn remove(&mut self, _: &'a [UnixStream], _: usize) -> io::Result<()> {
        Ok(())
    }

    fn wait_and_read(&mut self, sockets: &'a [UnixStream]) -> io::Result<()> {
        sockets.iter().try_for_each(read_byte)
    }
}

/// With room for more, as servers have it.
fn read_byte(mut stream: impl Read) -> io::Result<()> {
    match stream.read(&mut [0; 2])? {
        1 => Ok(()),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// An implementation with room for `batch` notifications at once, and for so many sockets. `None` where
/// it has nothing of this kind.
pub(crate) fn make<'a>(
    implementation: Implementation,
    kind: Kind,
    batch: usize,
    sockets: usize,
) -> io::Result<Option<Box<dyn Way<'a> + 'a>>> {
    Ok(match (implementation, kind) {
        (Implementation::Bare, _) => Some(Box::new(Bare)),
        (Implementation::RawEpoll, _) => Some(Box::new(RawEpoll::new(kind, batch)?)),
        (Implementation::RawEpollOnePoll, Kind::OneShot) => Some(Box::new(OnePoll::new(batch)?)),
        (Implementation::RawUring, Kind::OneShot | Kind::Edge) => {
            Some(Box::new(RawUring::new(kind, batch)?))
        }
        (Implementation::Socknotify(backend), _) => {
            Some(Box::new(Socknotify::new(backend, kind, batch)?))
        }
        (Implementation::Owned(backend), Kind::OneShot) => {
            Some(Box::new(Owned::new(backend, false, batch, sockets)?))
        }
        (Implementation::Drained(backend), Kind::OneShot) => {
            Some(Box::new(Owned::new(backend, true, batch, sockets)?))
        }
        (Implementation::Polling, _) => Some(Box::new(Polling::new(kind, batch)?)),
        // It has no edges.
        (Implementation::Foreign(Library::Libuv), Kind::Edge) => None,
        (Implementation::Foreign(library), _) => Some(Box::new(Foreign::new(library, kind)?)),
        (Implementation::Mio, Kind::Edge) => Some(Box::new(Mio::new(batch)?)),
        _ => None,
    })
}

/// Every implementation of this, the one that others are compared to first.
pub(crate) fn all() -> Vec<Implementation> {
    use Implementation::*;
    let mut all = Implementation::around(
        &[Bare, RawEpoll, RawEpollOnePoll, RawUring],
        &[
            Polling,
            Mio,
            Foreign(Library::Libuv),
            Foreign(Library::Libevent),
        ],
    );
    all.splice(all.len() - 4..all.len() - 4, Implementation::with(Drained));
    all
}
