//! Messages to one worker, and to all of them.
//!
//! Any thread may dequeue a packet. So a message to one worker is in that worker's mailbox, and if the worker waits, a
//! packet is posted that wakes a thread. If that is another worker, it posts the packet again, and dequeues nothing
//! until the right one is awake.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use super::home::Home;
use super::packet::MAIL;
use super::roused::Roused;
use crate::Entry;
use crate::lock::lock;

/// Identifies a [`Worker`](super::Worker) of a port. It is not reused before 2³¹ others were made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkerId(u64);

/// The workers of a port.
pub(super) struct Mailboxes<M>(Mutex<Table<M>>);

struct Table<M> {
    /// The number of workers so far.
    count: u64,
    open: BTreeMap<WorkerId, Arc<Mailbox<M>>>,
}

/// The messages to one worker.
pub(super) struct Mailbox<M> {
    id: WorkerId,
    /// One of the states below. Without the lock only the worker changes it, from the first to the second and back.
    state: AtomicU8,
    messages: Mutex<VecDeque<M>>,
}

/// The worker checks before it waits.
const AWAY: u8 = 0;
const WAITING: u8 = 1;
/// There are messages, and the worker checks before it waits.
const FILLED: u8 = 2;
/// There are messages, and there is a packet to wake the worker.
const ROUSED: u8 = 3;

impl<M> Mailbox<M> {
    pub(super) fn id(&self) -> WorkerId {
        self.id
    }

    /// The worker is about to wait. False if there may be messages.
    #[inline]
    pub(super) fn begin_wait(&self) -> bool {
        self.exchange(AWAY, WAITING)
    }

    /// The worker has waited. False if there may be messages.
    #[inline]
    pub(super) fn end_wait(&self) -> bool {
        self.exchange(WAITING, AWAY)
    }

    fn exchange(&self, from: u8, to: u8) -> bool {
        self.state
            .compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
    }

    /// Take the messages out. The worker does not wait.
    pub(super) fn fetch(&self, roused: &Roused) -> VecDeque<M> {
        let mut messages = lock(&self.messages);
        if self.state.swap(AWAY, Ordering::SeqCst) == ROUSED {
            roused.remove();
        }
        std::mem::take(&mut messages)
    }

    /// Put a message in. True if the worker has to be woken.
    fn put(&self, message: M, roused: &Roused) -> bool {
        let mut messages = lock(&self.messages);
        messages.push_back(message);
        loop {
            if self.exchange(AWAY, FILLED) {
                return false;
            }
            if self.exchange(WAITING, ROUSED) {
                roused.add();
                return true;
            }
            if self.state.load(Ordering::SeqCst) >= FILLED {
                return false;
            }
        }
    }
}

impl<M> Mailboxes<M> {
    pub(super) fn new() -> Self {
        Mailboxes(Mutex::new(Table {
            count: 0,
            open: BTreeMap::new(),
        }))
    }

    /// A mailbox for a new worker.
    pub(super) fn open<T>(&self, home: &Home<T>) -> Arc<Mailbox<M>> {
        let mailbox = |number| {
            Arc::new(Mailbox {
                id: WorkerId(number),
                state: AtomicU8::new(AWAY),
                messages: Mutex::default(),
            })
        };
        if !home.is_here() {
            // Nothing is sent to it.
            return mailbox(0);
        }
        let mut table = lock(&self.0);
        table.count += 1;
        let mailbox = mailbox(table.count);
        table.open.insert(mailbox.id, Arc::clone(&mailbox));
        mailbox
    }

    /// Remove all messages that were not taken. The caller drops them without a lock, because that may run any code.
    pub(super) fn clear(&self, roused: &Roused) -> Vec<VecDeque<M>> {
        let all: Vec<_> = lock(&self.0).open.values().cloned().collect();
        all.iter().map(|mailbox| mailbox.fetch(roused)).collect()
    }

    /// The open mailboxes, unless the port is closed or belongs to another process.
    fn table<T>(&self, home: &Home<T>) -> Option<MutexGuard<'_, Table<M>>> {
        // Asked first: in a forked child the lock may be held for ever.
        let table = home.is_here().then(|| lock(&self.0))?;
        (!home.is_closed()).then_some(table)
    }

    /// Send a message to one worker. Returns the message if there is no such worker, or the port is closed.
    pub(super) fn send<T>(&self, home: &Home<T>, worker: WorkerId, message: M) -> Result<(), M> {
        let Some(table) = self.table(home) else {
            return Err(message);
        };
        let Some(mailbox) = table.open.get(&worker) else {
            return Err(message);
        };
        if mailbox.put(message, &home.roused) {
            drop(table);
            let _ = home.port.post(packet(home));
        }
        Ok(())
    }

    /// Send a message to each worker. Returns how many these are.
    pub(super) fn send_to_all<T>(&self, home: &Home<T>, message: M) -> usize
    where
        M: Clone,
    {
        let Some(count) = self.table(home).map(|table| table.open.len()) else {
            return 0;
        };
        // Cloned without the lock: that may run any code.
        let mut copies = vec![message; count];
        let Some(table) = self.table(home) else {
            return 0;
        };
        let mut is_any_roused = false;
        let mut sent = 0;
        for mailbox in table.open.values() {
            let Some(copy) = copies.pop() else { break };
            is_any_roused |= mailbox.put(copy, &home.roused);
            sent += 1;
        }
        drop(table);
        if is_any_roused {
            let _ = home.port.post(packet(home));
        }
        sent
    }

    /// A worker was dropped. Returns the messages that it has not taken.
    pub(super) fn close<T>(&self, home: &Home<T>, mailbox: &Mailbox<M>) -> VecDeque<M> {
        lock(&self.0).open.remove(&mailbox.id);
        let left = mailbox.fetch(&home.roused);
        // It may have dequeued the packet for another worker.
        if home.roused.is_any() {
            let _ = home.port.post(packet(home));
        }
        left
    }
}

/// Wakes a thread: the worker that has messages, or another one.
pub(super) fn packet<T>(home: &Home<T>) -> Entry {
    Entry::new(home.slots.reserved_key(MAIL), 0, 0)
}
