//! What a runtime has `epoll` for, over a port: any descriptor is watched, under a token that can change.
//!
//! - A registration for [`EDGES`] is `INITIAL`: what holds already is notified, as `EPOLLET` does.
//! - A completion key stays the same for as long as a registration lasts, and no other registration has it. So what comes late
//!   for one that has ended finds no token, and is dropped. A table has the token of each key.
//! - Ending a registration takes effect at once ([`Registration::deregister`]): no notification has to be awaited.
//! - Each thread that dequeues may run ([`unlimited`](socknotify::Builder::unlimited)): a runtime has its own rules for that.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use socknotify::{
    CompletionPort, Entry, Error, EventFilter, Events, Registration, RegistrationError, Trigger,
};

/// As `EPOLLET`.
pub(crate) const EDGES: Trigger = Trigger::PERSISTENT
    .union(Trigger::EDGE)
    .union(Trigger::INITIAL);

/// One port, and what its keys stand for. A clone is the same one.
#[derive(Clone, Debug)]
pub(crate) struct Selector {
    /// A packet that is posted to it ends a wait, and is nothing that is ready.
    pub(crate) port: Arc<CompletionPort>,
    table: Arc<Mutex<Table>>,
}

#[derive(Debug, Default)]
struct Table {
    /// The completion key of each number.
    keys: HashMap<RawFd, usize>,
    tokens: HashMap<usize, usize>,
    latest: usize,
}

/// Something has happened to what was registered under this token.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ready {
    pub(crate) token: usize,
    pub(crate) events: Events,
}

impl Selector {
    /// `epoll_create`
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Selector {
            port: Arc::new(CompletionPort::builder().unlimited().build()?),
            table: Arc::default(),
        })
    }

    /// `EPOLL_CTL_ADD` — Fails with [`AlreadyExists`](io::ErrorKind::AlreadyExists) if the descriptor is registered.
    pub(crate) fn add(
        &self,
        fd: BorrowedFd<'_>,
        token: usize,
        filter: EventFilter,
        trigger: Trigger,
    ) -> io::Result<()> {
        let mut table = self.table();
        table.latest += 1;
        let key = table.latest;
        // A notification may come before the call returns. It waits for the table.
        self.register(fd, key, (filter, trigger), true)?;
        // An earlier one of this number has ended, because its descriptor was closed.
        if let Some(ended) = table.keys.insert(fd.as_raw_fd(), key) {
            table.tokens.remove(&ended);
        }
        table.tokens.insert(key, token);
        Ok(())
    }

    /// `EPOLL_CTL_MOD` — Fails with [`NotFound`](io::ErrorKind::NotFound) if the descriptor is not registered.
    pub(crate) fn change(
        &self,
        fd: BorrowedFd<'_>,
        token: usize,
        filter: EventFilter,
        trigger: Trigger,
    ) -> io::Result<()> {
        let mut table = self.table();
        let key = table.key(fd)?;
        self.register(fd, key, (filter, trigger), false)?;
        table.tokens.insert(key, token);
        Ok(())
    }

    /// `EPOLL_CTL_DEL` — Nothing comes for the descriptor from here on.
    pub(crate) fn remove(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        let mut table = self.table();
        let key = table.key(fd)?;
        self.port.register(Registration::deregister(&fd))?;
        table.keys.remove(&fd.as_raw_fd());
        table.tokens.remove(&key);
        Ok(())
    }

    /// `epoll_wait` — Waits until something is ready, and adds at most so many. None if the time is over.
    pub(crate) fn wait(
        &self,
        ready: &mut Vec<Ready>,
        room: usize,
        timeout: Option<Duration>,
    ) -> io::Result<()> {
        let mut entries = vec![Entry::default(); room.max(1)];
        let taken = match self.port.dequeue(&mut entries, timeout) {
            Ok(taken) => taken,
            Err(Error::TimedOut) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let table = self.table();
        ready.extend(taken.iter().filter_map(|entry| {
            let token = *table.tokens.get(&entry.completion_key)?;
            let events = entry.events();
            Some(Ready { token, events })
        }));
        Ok(())
    }

    /// `add` and `change` are for sockets. For other descriptors there is ENABLE alone.
    fn register(
        &self,
        fd: BorrowedFd<'_>,
        key: usize,
        (filter, trigger): (EventFilter, Trigger),
        is_new: bool,
    ) -> io::Result<()> {
        let of_socket = |filter| {
            let entry = match is_new {
                true => Registration::add(&fd, key, filter, trigger),
                false => Registration::change(&fd, key, filter, trigger),
            };
            self.port.register(entry)
        };
        // `epoll` reports it always. `kqueue` cannot tell.
        let mut registered = of_socket(filter | EventFilter::FULL_HANGUP);
        if registered == Err(RegistrationError::InvalidFilter.into()) {
            registered = of_socket(filter);
        }
        if registered == Err(RegistrationError::NotASocket.into()) {
            let entry = Registration::descriptor(&fd, key, filter, trigger);
            registered = self.port.register(entry);
        }
        Ok(registered?)
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn key(&self, fd: BorrowedFd<'_>) -> io::Result<usize> {
        let key = self.keys.get(&fd.as_raw_fd()).copied();
        key.ok_or_else(|| RegistrationError::NotFound.into())
    }
}

/// Another loop can watch it.
impl AsFd for Selector {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.port.as_fd()
    }
}
