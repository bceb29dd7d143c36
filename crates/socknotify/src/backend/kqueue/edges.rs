//! Conditions that begin to hold: `EV_CLEAR`, in a queue of their own.
//!
//! When a filter is added, the kernel reports a condition that holds already as if it had just begun to
//! hold. The contract allows no notification of it. In this queue no thread waits. As soon as a filter was added, its
//! first event is fetched and dropped under a lock; all later events are edges. The port's queue watches this one, so
//! the thread that waits there is woken.
//!
//! Registrations of which the kernel keeps reporting unwanted conditions are moved here too, to be watched for
//! changes.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use super::conditions;
use super::identity::{self, Kind};
use super::sys::{Errno, Event, Filter, Queue, Token, flags};
use crate::EventFilter;
use crate::engine::{Interest, Report, Validity, is_newer};
use crate::lock::lock;

/// Registrations that are watched for changes.
pub(super) struct Edges {
    queue: Queue,
    count: AtomicUsize,
    /// Edges were found during another operation.
    has_found: AtomicBool,
    entries: Mutex<Entries>,
}

#[derive(Default)]
struct Entries {
    sockets: HashMap<u32, Entry>,
    /// Edges that are to be reported.
    found: Vec<Report>,
    events: Vec<Event>,
}

/// What is watched of a socket.
#[derive(Clone, Copy, Debug)]
struct Entry {
    generation: u32,
    watches_room: bool,
    /// It is here because of unwanted reports.
    is_quiet: bool,
}

/// The events to drop: those of conditions that hold when a socket's filters are added.
#[derive(Clone, Copy)]
struct Initial {
    socket: u32,
    filter: Option<Filter>,
}

impl Initial {
    fn is_of(self, socket: u32, filter: Filter) -> bool {
        self.socket == socket && self.filter.is_none_or(|it| it == filter)
    }
}

/// How many events are fetched at once.
const BATCH: usize = 64;

impl Edges {
    pub(super) fn new() -> Result<Self, Errno> {
        Ok(Edges {
            queue: Queue::new()?,
            count: AtomicUsize::new(0),
            has_found: AtomicBool::new(false),
            entries: Mutex::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        lock(&self.entries)
    }

    fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// The number of the queue, for the one that watches it.
    pub(super) fn number(&self) -> u32 {
        self.queue.number()
    }

    /// Whether there are edges that the queue does not show any more.
    pub(super) fn has_found(&self) -> bool {
        self.has_found.load(Ordering::Acquire)
    }

    /// Watch for edges of a socket. Conditions that hold now are none.
    pub(super) fn arm(&self, interest: &Interest) -> Result<(), Errno> {
        let socket = interest.socket;
        let generation = interest.generation();
        let wants_room = wants_room(interest);
        let mut entries = self.lock();
        // First fetch the edges until now, of all sockets.
        self.collect(&mut entries, None);
        let current = entries.sockets.get(&socket).copied();
        let carried = current.filter(|it| it.generation == generation && !it.is_quiet);
        let done = match carried {
            // Its edges are carried; only an added filter starts again.
            Some(entry) if entry.watches_room == wants_room => Ok(()),
            Some(_) if wants_room => {
                let filter = Some(Filter::Write);
                self.add(&mut entries, interest, Initial { socket, filter })
            }
            Some(_) => {
                let delete = flags::DELETE;
                self.queue
                    .change(&[Event::new(socket, Filter::Write, delete, Token(0))])
            }
            None => {
                self.remove(&mut entries, socket);
                let filter = None;
                self.add(&mut entries, interest, Initial { socket, filter })
            }
        };
        match done {
            Ok(()) => {
                let entry = Entry {
                    generation,
                    watches_room: wants_room,
                    is_quiet: false,
                };
                self.insert(&mut entries, socket, entry);
            }
            Err(_) => self.remove(&mut entries, socket),
        }
        done
    }

    /// Add filters, and drop what holds already.
    fn add(
        &self,
        entries: &mut Entries,
        interest: &Interest,
        initial: Initial,
    ) -> Result<(), Errno> {
        let added = filters(interest.socket, wants_room(interest));
        for filter in added.filter(|&it| initial.is_of(interest.socket, it)) {
            self.queue.change(&[clear(interest, filter)])?;
        }
        self.collect(entries, Some(initial));
        Ok(())
    }

    fn insert(&self, entries: &mut Entries, socket: u32, entry: Entry) {
        entries.sockets.insert(socket, entry);
        self.count.store(entries.sockets.len(), Ordering::Release);
    }

    /// Add the filters of a socket again, to get the conditions that hold now.
    pub(super) fn renew(&self, interest: &Interest) -> Result<(), Errno> {
        let mut entries = self.lock();
        self.remove(&mut entries, interest.socket);
        for filter in filters(interest.socket, true) {
            self.queue.change(&[clear(interest, filter)])?;
        }
        let entry = Entry {
            generation: interest.generation(),
            watches_room: identity::kind(interest.socket).has(Filter::Write),
            is_quiet: false,
        };
        self.insert(&mut entries, interest.socket, entry);
        Ok(())
    }

    /// The reports of a socket are unwanted: watch it for changes.
    pub(super) fn quiet(&self, interest: &Interest) {
        let Interest { socket, .. } = *interest;
        let generation = interest.generation();
        let mut entries = self.lock();
        let current = entries.sockets.get(&socket);
        if current.is_some_and(|it| !is_newer(generation, it.generation)) {
            return;
        }
        self.remove(&mut entries, socket);
        let mut changes = filters(socket, false).map(|it| clear(interest, it).ends_only());
        // If it is closed, there is nothing to wait for.
        if changes.all(|change| self.queue.change(&[change]).is_ok()) {
            let entry = Entry {
                generation,
                watches_room: false,
                is_quiet: true,
            };
            self.insert(&mut entries, socket, entry);
        }
    }

    /// Take the edges.
    pub(super) fn take(&self, reports: &mut Vec<Report>) {
        let mut entries = self.lock();
        self.collect(&mut entries, None);
        reports.append(&mut entries.found);
        self.has_found.store(false, Ordering::Release);
    }

    /// The interest in a socket has ended.
    pub(super) fn forget(&self, socket: u32) {
        if !self.is_empty() {
            self.remove(&mut self.lock(), socket);
        }
    }

    /// The same, if it was enabled before this one.
    pub(super) fn forget_older(&self, interest: &Interest) {
        if self.is_empty() {
            return;
        }
        let mut entries = self.lock();
        let entry = entries.sockets.get(&interest.socket);
        if entry.is_some_and(|it| is_newer(interest.generation(), it.generation)) {
            self.remove(&mut entries, interest.socket);
        }
    }

    fn remove(&self, entries: &mut Entries, socket: u32) {
        if entries.sockets.remove(&socket).is_some() {
            for &deletion in conditions::deletions(socket).iter() {
                // If it was closed, or never added, there is nothing to delete.
                let _ = self.queue.change(&[deletion]);
            }
            self.count.store(entries.sockets.len(), Ordering::Release);
        }
    }

    /// Record the events of the queue, except those of conditions that held at the beginning.
    fn collect(&self, entries: &mut Entries, initial: Option<Initial>) {
        let Entries {
            sockets,
            found,
            events,
        } = entries;
        loop {
            if self
                .queue
                .wait(&[], events, BATCH, Some(Duration::ZERO))
                .is_err()
            {
                return;
            }
            for event in &*events {
                let socket = event.ident();
                if initial.is_some_and(|it| it.is_of(socket, event.filter())) {
                    continue;
                }
                let Token(generation) = event.token();
                if sockets
                    .get(&socket)
                    .is_none_or(|it| it.generation != generation)
                {
                    let delete = Event::new(socket, event.filter(), flags::DELETE, Token(0));
                    let _ = self.queue.change(&[delete]);
                    continue;
                }
                found.push(Report {
                    socket,
                    generation,
                    events: conditions::of_event(event),
                    validity: Validity::Valid,
                });
            }
            if !found.is_empty() {
                self.has_found.store(true, Ordering::Release);
            }
            if events.len() < BATCH {
                return;
            }
        }
    }
}

fn clear(interest: &Interest, filter: Filter) -> Event {
    let token = Token(interest.generation());
    Event::new(interest.socket, filter, flags::ADD | flags::CLEAR, token)
}

/// Whether `EVFILT_WRITE` is watched. A descriptor that can only be written has no other filter.
fn wants_room(interest: &Interest) -> bool {
    match identity::kind(interest.socket) {
        Kind::Writer => true,
        kind => kind.has(Filter::Write) && interest.filter().contains(EventFilter::OUT),
    }
}

/// The filters of a socket: `EVFILT_WRITE` only if it is wanted, or is the only one.
fn filters(socket: u32, wants_room: bool) -> impl Iterator<Item = Filter> {
    let kind = identity::kind(socket);
    let is_watched = move |filter: &Filter| match filter {
        Filter::Write => kind.has(Filter::Write) && (wants_room || kind == Kind::Writer),
        filter => kind.has(*filter),
    };
    [Filter::Read, Filter::Write].into_iter().filter(is_watched)
}
