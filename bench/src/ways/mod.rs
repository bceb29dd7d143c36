//! Ways to hear that sockets are ready: ours, raw system calls, and the peers.
//!
//! All do the same work on the same sockets: take everything that is ready, read a byte from each, and
//! arm again what has to be armed.

mod mio;
mod polling;
mod raw_epoll;
mod raw_uring;
mod socknotify;

use std::io::{self, Read};
use std::os::unix::net::UnixStream;

pub(crate) use self::mio::Mio;
pub(crate) use self::polling::Polling;
pub(crate) use self::raw_epoll::{OnePoll, RawEpoll};
pub(crate) use self::raw_uring::RawUring;
pub(crate) use self::socknotify::{Owned, Socknotify};

/// Sockets that are read, and their peers.
pub(crate) type Pairs = [(UnixStream, UnixStream)];

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

impl Kind {
    pub(crate) const ALL: [Kind; 3] = [Kind::OneShot, Kind::Edge, Kind::Level];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Kind::OneShot => "one-shot",
            Kind::Edge => "edge",
            Kind::Level => "level",
        }
    }
}

/// A way to hear of ready sockets.
pub(crate) trait Way {
    /// Take what is ready of these sockets, until each was ready once.
    fn turn(&mut self, pairs: &Pairs) -> io::Result<()>;
}

pub(crate) fn read_byte(mut socket: &UnixStream) -> io::Result<()> {
    socket.read_exact(&mut [0])
}

/// The reads alone.
pub(crate) struct Reads;

impl Way for Reads {
    fn turn(&mut self, pairs: &Pairs) -> io::Result<()> {
        pairs.iter().try_for_each(|(socket, _)| read_byte(socket))
    }
}

/// An implementation by its name. `None` where it has nothing of this kind, or does not work here.
pub(crate) fn make<'a>(
    name: &str,
    kind: Kind,
    pairs: &'a Pairs,
) -> io::Result<Option<Box<dyn Way + 'a>>> {
    Ok(match (name, kind) {
        ("raw epoll", _) => Some(Box::new(RawEpoll::new(pairs, kind)?)),
        ("raw epoll, one poll", Kind::OneShot) => Some(Box::new(OnePoll::new(pairs)?)),
        ("raw io_uring", Kind::OneShot) => {
            RawUring::new(pairs)?.map(|way| Box::new(way) as Box<dyn Way>)
        }
        ("socknotify", _) => Some(Box::new(Socknotify::new(pairs, kind)?)),
        ("socknotify owned", Kind::OneShot) => Some(Box::new(Owned::new(pairs)?)),
        ("polling", _) => Some(Box::new(Polling::new(pairs, kind)?)),
        ("mio", Kind::Edge) => Some(Box::new(Mio::new(pairs)?)),
        _ => None,
    })
}

/// Every implementation, the one that others are compared to first.
pub(crate) const NAMES: [&str; 7] = [
    "raw epoll",
    "raw epoll, one poll",
    "raw io_uring",
    "socknotify",
    "socknotify owned",
    "polling",
    "mio",
];
