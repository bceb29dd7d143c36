//! What one notification costs on one thread, of each kind, by how many sockets are ready at once: ours, raw `epoll`, and the
//! peers.
//!
//! All do the same work on the same sockets. Each turn writes one byte to every socket's peer, takes all notifications, reads
//! each byte, and arms again what has to be armed: after the next write or before it, see [`Order`]. Whoever can arms a batch
//! and waits in one call.

mod foreign;
mod mio;
mod raw_epoll;
mod socknotify;

use std::io::{self, Read};
use std::os::unix::net::UnixStream;

use self::foreign::{Library, Loop};
use self::mio::Mio;
use self::raw_epoll::RawEpoll;
use self::socknotify::{Owned, Socknotify};
use crate::compare::{Options, Sample};
use crate::stopwatch::Stopwatch;

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

/// Whether data arrive before or after a socket is armed again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// As in a server under load: a socket that is armed is ready.
    DataFirst,
    /// As in a server whose clients wait for an answer: a socket that is armed is not ready.
    ArmedFirst,
}

/// One of the sides that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// The case's own reads and writes, without notifications.
    Bare,
    RawEpoll,
    Mio,
    Foreign(Library),
    /// The port with keys.
    Keys,
    /// The port that owns connections.
    Owned,
    /// The same, where it learns from reads that nothing is left.
    Drained,
}

const SIDES: [(&str, Side); 7] = [
    ("reads and writes alone", Side::Bare),
    ("raw epoll", Side::RawEpoll),
    ("mio", Side::Mio),
    ("libuv", Side::Foreign(Library::Libuv)),
    ("libevent", Side::Foreign(Library::Libevent)),
    ("keys", Side::Keys),
    ("owned", Side::Owned),
];

/// What it is like, and how many sockets are ready at once.
pub(crate) const CASES: [(&str, Kind, Order, &[usize]); 4] = [
    (
        "one-shot, data first",
        Kind::OneShot,
        Order::DataFirst,
        &[1, 4, 64],
    ),
    (
        "one-shot, armed first",
        Kind::OneShot,
        Order::ArmedFirst,
        &[1, 4, 64],
    ),
    ("edge", Kind::Edge, Order::DataFirst, &[1, 64]),
    ("level", Kind::Level, Order::DataFirst, &[1, 64]),
];

/// Each of them is short, so that a busy moment of the machine falls on few.
const ROUNDS: usize = 50;

pub(crate) fn run(options: &Options) -> io::Result<()> {
    let notifications = options.notifications() / 10;
    for (case, kind, order, batches) in CASES {
        for &batch in batches {
            let case = format!("{case}, {batch} ready");
            if !options.wants(&case) {
                continue;
            }
            let sockets = Sockets::new(batch)?;
            let mut bare = None;
            options.compare(&case, ROUNDS, &SIDES, |&side| {
                let Some(mut way) = make(side, kind, batch)? else {
                    return Ok(None);
                };
                way.add(&sockets.ours)?;
                let mut sample = sockets.time(&mut *way, order, notifications)?;
                let cpu = sample["cpu_ns"];
                // It comes first in each round; what it takes is taken off the others.
                match (side, bare) {
                    (Side::Bare, _) => bare = Some(cpu),
                    (_, Some(bare)) => drop(sample.insert("net_cpu_ns", cpu - bare)),
                    _ => {}
                }
                Ok(Some(sample))
            })?;
        }
    }
    Ok(())
}

/// A way to get notifications of ready sockets. A socket's key is its index.
pub(crate) trait Way<'a> {
    /// Registers sockets for reading.
    fn add(&mut self, sockets: &'a [UnixStream]) -> io::Result<()>;

    /// Arms again, in the kernel, what was read since the last time; takes no notification.
    ///
    /// Nothing to do where a socket stays armed.
    fn arm(&mut self, sockets: &'a [UnixStream]) -> io::Result<()> {
        let _ = sockets;
        Ok(())
    }

    /// Waits for a notification of each of these, and reads its byte. What is still to be armed is armed first, if possible by
    /// the call that waits.
    fn wait_and_read(&mut self, sockets: &'a [UnixStream]) -> io::Result<()>;
}

/// No notifications: reads alone.
struct Bare;

impl<'a> Way<'a> for Bare {
    fn add(&mut self, _: &'a [UnixStream]) -> io::Result<()> {
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

/// A side with room for `batch` notifications at once. `None` where it has nothing of this kind, or is not installed.
pub(crate) fn make<'a>(
    side: Side,
    kind: Kind,
    batch: usize,
) -> io::Result<Option<Box<dyn Way<'a> + 'a>>> {
    Ok(match (side, kind) {
        (Side::Bare, _) => Some(Box::new(Bare)),
        (Side::RawEpoll, _) => Some(Box::new(RawEpoll::new(kind, batch)?)),
        (Side::Keys, _) => Some(Box::new(Socknotify::new(kind, batch)?)),
        (Side::Owned, Kind::OneShot) => Some(Box::new(Owned::new(false, batch)?)),
        (Side::Drained, Kind::OneShot) => Some(Box::new(Owned::new(true, batch)?)),
        (Side::Mio, Kind::Edge) => Some(Box::new(Mio::new(batch)?)),
        // It has no edges.
        (Side::Foreign(Library::Libuv), Kind::Edge) => None,
        (Side::Foreign(library), _) => {
            Loop::new(library, kind)?.map(|it| Box::new(it) as Box<dyn Way>)
        }
        _ => None,
    })
}

/// Turns before those that are measured, at the least: caches fill, and re-arm policies adapt.
const WARM_UP: usize = 16;

/// Sockets that are read, and their peers.
pub(crate) struct Sockets {
    pub(crate) ours: Vec<UnixStream>,
    theirs: Vec<UnixStream>,
}

impl Sockets {
    pub(crate) fn new(count: usize) -> io::Result<Self> {
        let pairs = (0..count).map(|_| UnixStream::pair());
        let (ours, theirs) = pairs.collect::<io::Result<Vec<_>>>()?.into_iter().unzip();
        Ok(Sockets { ours, theirs })
    }

    /// Makes every socket readable, and has a way read it.
    pub(crate) fn turn<'a>(&'a self, way: &mut dyn Way<'a>, order: Order) -> io::Result<()> {
        if order == Order::ArmedFirst {
            way.arm(&self.ours)?;
        }
        for peer in &self.theirs {
            rustix::io::write(peer, &[1])?;
        }
        way.wait_and_read(&self.ours)
    }

    /// What a notification takes, on this thread.
    fn time<'a>(
        &'a self,
        way: &mut dyn Way<'a>,
        order: Order,
        notifications: usize,
    ) -> io::Result<Sample> {
        let turns = notifications.div_ceil(self.ours.len());
        (0..turns.div_ceil(10).max(WARM_UP)).try_for_each(|_| self.turn(way, order))?;
        let stopwatch = Stopwatch::of_thread();
        (0..turns).try_for_each(|_| self.turn(way, order))?;
        Ok(stopwatch.per(turns * self.ours.len()))
    }
}
