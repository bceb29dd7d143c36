//! Which port a socket is registered with, for the whole process: a socket has one port at a time.
//!
//! A forked child begins with a table of its own: it cannot use its parent's ports, nor wait for a lock
//! that a thread of the parent held when it forked.

#![allow(
    unsafe_code,
    reason = "a child must not touch the lock that it has inherited"
)]

use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard};

use super::Fd;
use crate::RegistrationError;
use crate::support::lock;
use crate::support::pages::Pages;

/// The port that a descriptor number was registered with, in the lowest bits; above it, as much of the socket's
/// identity as fits. 0 means no port.
type Entry = u64;

const PORT_BITS: u32 = 24;
const PORTS: u32 = 1 << PORT_BITS;

fn port_of(entry: Entry) -> u32 {
    entry as u32 % PORTS
}

struct Owners {
    entries: Mutex<Pages<Entry>>,
    /// The inherited table, which does not change.
    _inherited: *mut Owners,
}

/// Null until the first port registers something, in a process and in each forked child.
static OWNERS: AtomicPtr<Owners> = AtomicPtr::new(null_mut());

/// The table that a forked child has inherited, and does not use.
static INHERITED: AtomicPtr<Owners> = AtomicPtr::new(null_mut());

/// The last in the order of locks: a thread that holds it takes no other, and makes no system call.
fn lock() -> MutexGuard<'static, Pages<Entry>> {
    let mut owners = OWNERS.load(Ordering::Acquire);
    if owners.is_null() {
        let new = Box::into_raw(Box::new(Owners {
            entries: Mutex::new(Pages::new()),
            _inherited: INHERITED.load(Ordering::Acquire),
        }));
        let found = OWNERS.compare_exchange(null_mut(), new, Ordering::AcqRel, Ordering::Acquire);
        owners = match found {
            Ok(_) => new,
            Err(other) => {
                // SAFETY: it was made above, and nobody else has it.
                drop(unsafe { Box::from_raw(new) });
                other
            }
        };
    }
    // SAFETY: what the pointer is set to is never freed.
    let owners = unsafe { &*owners };
    lock::lock(&owners.entries)
}

/// In a forked child nothing is owned: the parent's table is not used.
#[cfg(unix)]
pub(super) fn forget_all() {
    let inherited = OWNERS.swap(null_mut(), Ordering::AcqRel);
    if !inherited.is_null() {
        INHERITED.store(inherited, Ordering::Release);
    }
}

/// A port, as the owner of sockets.
#[derive(Debug)]
pub(crate) struct Owner(u32);

impl Owner {
    /// `id`: different for every port of this process. One in some 16 million has the same as another.
    pub(crate) fn new(id: u32) -> Self {
        Owner(id % (PORTS - 1) + 1)
    }

    fn entry(&self, identity: u64) -> Entry {
        identity << PORT_BITS | Entry::from(self.0)
    }

    /// Own what has this identity, unless another port does.
    ///
    /// An owner of another socket that had the same number lost it when that socket was closed.
    pub(crate) fn claim(&self, fd: Fd, identity: u64) -> Result<(), RegistrationError> {
        let mut owners = lock();
        let entry = owners.entry(fd.0);
        let is_same = *entry >> PORT_BITS == self.entry(identity) >> PORT_BITS;
        if port_of(*entry) != 0 && port_of(*entry) != self.0 && is_same {
            return Err(RegistrationError::OtherPort);
        }
        *entry = self.entry(identity);
        Ok(())
    }

    /// Release the number, if this port still owns it.
    pub(crate) fn release(&self, fd: Fd) {
        if let Some(entry) = lock().get_mut(fd.0) {
            if port_of(*entry) == self.0 {
                *entry = 0;
            }
        }
    }
}
