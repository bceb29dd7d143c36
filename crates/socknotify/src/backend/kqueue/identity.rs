//! Which socket a number stands for, for the whole process.
//!
//! Nothing that `fstat` says tells one TCP socket from the next. A filter does: it belongs to a number and
//! to the open file behind it, and ends when the number is closed, or stands for something else. So every
//! socket that a port has to do with has a filter in a queue that nobody waits for, disabled from the
//! beginning. While a change of it succeeds, the number stands for the same socket. `ENOENT` says that it
//! is another one.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use super::sys::{Errno, Event, Filter, Queue, Token, flags};
use crate::pages::SharedPages;
use crate::sys::Process;

struct Identities {
    process: Process,
    queue: Queue,
    /// By number, what was identified last: see [`entry`]. 0 for nothing.
    sockets: SharedPages<AtomicU64>,
    /// The latest identity.
    latest: Mutex<u64>,
}

/// An identity, and in the lowest bit whether the socket has connections.
fn entry(identity: u64, is_stream: bool) -> u64 {
    identity << 1 | u64::from(is_stream)
}

/// Null until the first port is made, in a process and in each forked child.
static IDENTITIES: AtomicPtr<Identities> = AtomicPtr::new(null_mut());

fn identities() -> Result<&'static Identities, Errno> {
    let mut current = IDENTITIES.load(Ordering::Acquire);
    loop {
        // SAFETY: what the pointer is set to is never freed.
        if let Some(identities) = unsafe { current.as_ref() } {
            // A child has inherited neither the queue nor, for certain, a lock that is free.
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

/// Have what is needed later, when no descriptor may be left.
pub(super) fn prepare() -> Result<(), Errno> {
    identities().map(drop)
}

/// What sets the socket that has this number now apart from every other that has or had it.
pub(super) fn identify(socket: u32, is_stream: bool) -> Result<u64, Errno> {
    let identities = identities()?;
    let change = |what| {
        let change = Event::new(socket, Filter::Read, what, Token(0));
        identities.queue.change(&[change])
    };
    let mut latest = identities
        .latest
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    let sockets = &identities.sockets;
    match change(flags::DISABLE) {
        Err(libc::ENOENT) => {
            change(flags::ADD | flags::DISABLE)?;
            *latest += 1;
            let entry = entry(*latest, is_stream);
            sockets.entry(socket).store(entry, Ordering::Release);
            Ok(*latest)
        }
        Err(error) => Err(error),
        Ok(()) => Ok(sockets.entry(socket).load(Ordering::Acquire) >> 1),
    }
}

/// Whether the number stands for what was identified last under it.
pub(super) fn is_same(socket: u32) -> bool {
    let change = Event::new(socket, Filter::Read, flags::DISABLE, Token(0));
    identities().is_ok_and(|it| it.queue.change(&[change]).is_ok())
}

/// Whether the socket that was identified last under this number has connections.
pub(super) fn is_stream(socket: u32) -> bool {
    let entry = identities().ok().and_then(|it| it.sockets.get(socket));
    entry.is_some_and(|entry| entry.load(Ordering::Acquire) & 1 != 0)
}
