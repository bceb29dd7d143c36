//! Which port a socket is registered with, for the whole process: a socket has one port at a time.
//!
//! There is no lock that a thread could hold while the process forks. To a child, which cannot use its parent's ports, those
//! that are older than itself own nothing.

#![allow(unsafe_code, reason = "pages that are made without a lock, and stay")]

use std::ptr::{null_mut, slice_from_raw_parts_mut};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use super::Fd;
use crate::RegistrationError;
use crate::support::pages::{PAGES, position};

/// By descriptor number, the port that it was registered with, in the lowest bits; above it, as much of the socket's
/// identity as fits. 0 means no port.
static OWNERS: [AtomicPtr<AtomicU64>; PAGES] = [const { AtomicPtr::new(null_mut()) }; PAGES];

const PORT_BITS: u32 = 24;
const PORTS: u32 = 1 << PORT_BITS;

/// The id of the next port.
static NEXT: AtomicU32 = AtomicU32::new(1);

/// The id of the first port of this process.
static FIRST: AtomicU32 = AtomicU32::new(1);

fn entry(fd: Fd) -> &'static AtomicU64 {
    let (page, place) = position(fd.0);
    let mut values = OWNERS[page].load(Ordering::Acquire);
    if values.is_null() {
        let new: Box<[AtomicU64]> = std::iter::repeat_with(AtomicU64::default)
            .take(1 << page)
            .collect();
        let new = Box::into_raw(new).cast();
        let found =
            OWNERS[page].compare_exchange(null_mut(), new, Ordering::AcqRel, Ordering::Acquire);
        values = found.map_or_else(
            |other| {
                // SAFETY: it was made above, and nobody else has it.
                drop(unsafe { Box::from_raw(slice_from_raw_parts_mut(new, 1 << page)) });
                other
            },
            |_| new,
        );
    }
    // SAFETY: a page has this length, and is never freed.
    unsafe { &*values.add(place) }
}

/// In a forked child nothing is owned.
#[cfg(unix)]
pub(super) fn forget_all() {
    FIRST.store(NEXT.load(Ordering::Relaxed), Ordering::Relaxed);
}

/// A port, as the owner of sockets.
#[derive(Debug)]
pub(crate) struct Owner(u64);

impl Owner {
    /// One in some 16 million has the same id as another.
    pub(crate) fn new() -> Self {
        Owner(u64::from(NEXT.fetch_add(1, Ordering::Relaxed) % PORTS))
    }

    /// Own what has this identity, unless another port does.
    ///
    /// An owner of another socket that had the same number lost it when that socket was closed.
    pub(crate) fn claim(&self, fd: Fd, identity: u64) -> Result<(), RegistrationError> {
        let new = identity << PORT_BITS | self.0;
        let claimed = entry(fd).fetch_update(Ordering::Relaxed, Ordering::Relaxed, |before| {
            let port = before % u64::from(PORTS);
            let is_same = before >> PORT_BITS == new >> PORT_BITS;
            let is_owned = port >= u64::from(FIRST.load(Ordering::Relaxed)) && port != self.0;
            (!(is_same && is_owned)).then_some(new)
        });
        claimed.map(drop).map_err(|_| RegistrationError::OtherPort)
    }

    /// Release the number, if this port still owns it.
    pub(crate) fn release(&self, fd: Fd) {
        let _ = entry(fd).fetch_update(Ordering::Relaxed, Ordering::Relaxed, |before| {
            (before % u64::from(PORTS) == self.0).then_some(0)
        });
    }
}
