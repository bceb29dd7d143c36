//! Which socket a number refers to, for the whole process.
//!
//! `fstat` does not distinguish one TCP socket from the next. A filter does: it belongs to a number and the open file
//! behind it, and ends when the number is closed or replaced. So every socket that a port watches also has a disabled
//! filter in a queue in which no thread waits. As long as a change of that filter succeeds, the number refers to the
//! same socket. `ENOENT` means that it is another one.

use std::ptr::null_mut;
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use super::sys::{self, Errno, Event, Filter, Queue, flags};
use crate::os::{Fd, Process};
use crate::support::lock::lock;
use crate::support::pages::SharedPages;

struct Identities {
    process: Process,
    queue: Queue,
    /// By number, what was identified last: its identity, and in the lowest bits its [`Kind`]. 0 for nothing.
    sockets: SharedPages<AtomicU64>,
    /// The latest identity.
    latest: Mutex<u64>,
}

/// What kind of descriptor a number refers to, which decides on its filters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A datagram socket of the Internet, or nothing.
    Datagram,
    /// A socket that has connections.
    Stream,
    /// No socket: it has `EVFILT_READ` alone, as the end of a pipe that is read.
    Reader,
    /// No socket: it has `EVFILT_WRITE` alone.
    Writer,
    /// No socket: it has both.
    Other,
    /// A Unix datagram socket.
    UnixDatagram,
}

impl Kind {
    const ALL: [Kind; 6] = [
        Kind::Datagram,
        Kind::Stream,
        Kind::Reader,
        Kind::Writer,
        Kind::Other,
        Kind::UnixDatagram,
    ];
    const BITS: u32 = 3;

    pub(super) fn is_socket(self) -> bool {
        matches!(self, Kind::Datagram | Kind::Stream | Kind::UnixDatagram)
    }

    pub(super) fn has(self, filter: Filter) -> bool {
        match filter {
            Filter::Read => self != Kind::Writer,
            Filter::Write => self != Kind::Reader,
            Filter::User | Filter::Timer => false,
        }
    }
}

/// Null until the first port is made, in a process and in each forked child.
static IDENTITIES: AtomicPtr<Identities> = AtomicPtr::new(null_mut());

fn identities() -> Result<&'static Identities, Errno> {
    let mut current = IDENTITIES.load(Ordering::Acquire);
    loop {
        // SAFETY: what the pointer is set to is never freed.
        if let Some(identities) = unsafe { current.as_ref() } {
            // A child inherits no kqueue, and perhaps a locked lock.
            if identities.process.is_this() {
                return Ok(identities);
            }
        }
        let new = Box::into_raw(Box::new(Identities {
            process: Process::this(),
            queue: Queue::new()?,
            sockets: SharedPages::new(),
            latest: Mutex::new(0),
        }));
        let done = IDENTITIES.compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire);
        current = match done {
            Ok(_) => new,
            Err(other) => {
                // SAFETY: it was made above, and nobody else has it.
                drop(unsafe { Box::from_raw(new) });
                other
            }
        };
    }
}

/// Open what is needed later, when no descriptor may be left.
pub(super) fn prepare() -> Result<(), Errno> {
    identities().map(drop)
}

/// A value that distinguishes the socket with this number from all others that ever had it. `kind`: `None` if it
/// is no socket.
pub(super) fn identify(fd: Fd, kind: Option<Kind>) -> Result<u64, Errno> {
    let identities = identities()?;
    let change = |what| {
        let change = Event::new(fd.0, Filter::Read, what, 0);
        identities.queue.change(&[change])
    };
    let mut latest = lock(&identities.latest);
    let sockets = &identities.sockets;
    match change(flags::DISABLE) {
        Err(libc::ENOENT) => {
            change(flags::ADD | flags::DISABLE)?;
            let kind = kind.unwrap_or_else(|| kind_of_descriptor(&identities.queue, fd));
            *latest += 1;
            let entry = *latest << Kind::BITS | kind as u64;
            sockets.entry(fd.0).store(entry, Ordering::Release);
            Ok(*latest)
        }
        Err(error) => Err(error),
        Ok(()) => Ok(sockets.entry(fd.0).load(Ordering::Acquire) >> Kind::BITS),
    }
}

/// A kernel may refuse `EVFILT_WRITE`: for a kqueue, or for a pipe that nobody reads any more, whose
/// `EVFILT_READ` has the end.
fn kind_of_descriptor(queue: &Queue, fd: Fd) -> Kind {
    let change = |what| queue.change(&[Event::new(fd.0, Filter::Write, what, 0)]);
    let access = sys::access(fd);
    let has_write = access != libc::O_RDONLY && change(flags::ADD | flags::DISABLE).is_ok();
    if has_write {
        // If it was closed just now, it is gone.
        let _ = change(flags::DELETE);
    }
    match access {
        _ if !has_write => Kind::Reader,
        libc::O_WRONLY => Kind::Writer,
        _ => Kind::Other,
    }
}

/// What was identified last under this number, with its kind.
fn entry(fd: Fd) -> u64 {
    let entry = identities().ok().and_then(|it| it.sockets.get(fd.0));
    entry.map_or(0, |entry| entry.load(Ordering::Acquire))
}

/// The identity of what was identified last under this number, as [`identify`] returned it.
pub(super) fn latest(fd: Fd) -> u64 {
    entry(fd) >> Kind::BITS
}

/// Whether the number refers to what has this identity.
pub(super) fn is_still(fd: Fd, identity: u64) -> bool {
    let change = Event::new(fd.0, Filter::Read, flags::DISABLE, 0);
    identities().is_ok_and(|it| it.queue.change(&[change]).is_ok()) && latest(fd) == identity
}

/// The kind of what was identified last under this number.
#[inline]
pub(super) fn kind(fd: Fd) -> Kind {
    Kind::ALL[(entry(fd) & ((1 << Kind::BITS) - 1)) as usize]
}
