//! Messages to one worker, and to all of them.
//!
//! A packet goes to whichever thread dequeues it. So a message to one worker lies in that worker's mailbox, and if the
//! worker waits, a packet is posted that wakes a thread. One that was woken in its place posts the packet again, and
//! dequeues nothing until the worker is awake.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::lock;
use super::packet::MAIL;
use super::port::{Port, SendError, Shared};
use crate::Entry;

/// Identifies a [`Worker`](super::Worker) of a port. It is never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkerId(u64);

/// The workers of a port.
pub(super) struct Mailboxes<M>(Mutex<Table<M>>);

struct Table<M> {
    /// How many there were.
    count: u64,
    open: BTreeMap<WorkerId, Arc<Mailbox<M>>>,
}

/// What was sent to one worker.
pub(super) struct Mailbox<M> {
    id: WorkerId,
    /// One of those below. Without the lock only the worker changes it, from the first to the second and back.
    state: AtomicU8,
    messages: Mutex<VecDeque<M>>,
}

/// The worker looks before it waits.
const AWAY: u8 = 0;
const WAITING: u8 = 1;
/// There are messages, and the worker looks before it waits.
const FILLED: u8 = 2;
/// There are messages, and there is a packet to wake the worker.
const ROUSED: u8 = 3;

/// How many workers have messages, and have not been woken yet.
#[derive(Default)]
pub(super) struct Roused {
    count: Mutex<usize>,
    changed: Condvar,
}

impl Roused {
    pub(super) fn is_any(&self) -> bool {
        *lock(&self.count) > 0
    }

    fn add(&self) {
        *lock(&self.count) += 1;
    }

    fn remove(&self) {
        *lock(&self.count) -= 1;
        self.notify();
    }

    /// Have those that wait look again.
    pub(super) fn notify(&self) {
        // Not between their look and their wait.
        drop(lock(&self.count));
        self.changed.notify_all();
    }

    /// Wait until all are awake, or it is over. False if this time comes first.
    pub(super) fn wait(&self, is_over: impl Fn() -> bool, deadline: Option<Instant>) -> bool {
        let mut count = lock(&self.count);
        while *count > 0 && !is_over() {
            let left = deadline.map(|it| it.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return false;
            }
            let left = left.unwrap_or(Duration::MAX);
            let waited = self.changed.wait_timeout(count, left);
            count = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}

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
    pub(super) fn open(&self) -> Arc<Mailbox<M>> {
        let mut table = lock(&self.0);
        table.count += 1;
        let id = WorkerId(table.count);
        let mailbox = Arc::new(Mailbox {
            id,
            state: AtomicU8::new(AWAY),
            messages: Mutex::default(),
        });
        table.open.insert(id, Arc::clone(&mailbox));
        mailbox
    }

    /// Take out all messages that were not taken. The caller drops them without a lock: that may run any code.
    pub(super) fn clear(&self, roused: &Roused) -> Vec<VecDeque<M>> {
        let all: Vec<_> = lock(&self.0).open.values().cloned().collect();
        all.iter().map(|mailbox| mailbox.fetch(roused)).collect()
    }
}

impl<T, M> Shared<T, M> {
    pub(super) fn mail_packet(&self) -> Entry {
        Entry::new(self.home.slots.reserved_key(MAIL), 0, 0)
    }

    /// A worker has gone. Returns what it has not taken.
    pub(super) fn close_mailbox(&self, mailbox: &Mailbox<M>) -> VecDeque<M> {
        lock(&self.mailboxes.0).open.remove(&mailbox.id);
        let left = mailbox.fetch(&self.home.roused);
        // It may have had the packet that was for another one.
        if self.home.roused.is_any() {
            let _ = self.home.port.post(self.mail_packet());
        }
        left
    }
}

impl<T, M> Port<T, M> {
    /// Sends a message to one worker. Its next [`process`](super::Worker::process) returns the message before other
    /// events; if it is waiting there, it is woken.
    ///
    /// Messages to one worker come in order. Those that it has not taken are dropped with it.
    ///
    /// Use this for what concerns one thread, such as its own state, and [`send`](Self::send) for everything else: to
    /// wake a certain thread takes longer than to wake any.
    ///
    /// # Errors
    ///
    /// Returns the message if there is no such worker any more, or the port is closed.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::net::TcpStream;
    /// use socknotify::owned::{Event, Port};
    ///
    /// # fn main() -> std::io::Result<()> {
    /// let port = Port::<TcpStream, &str>::new()?;
    /// let [mut one, mut two] = [port.worker(8), port.worker(8)];
    /// port.send_to(two.id(), "for you")?;
    /// port.send_to_all("for both");
    ///
    /// one.process(None)?;
    /// assert!(matches!(one.take(), Some(Event::Message("for both"))));
    /// two.process(None)?;
    /// assert!(matches!(two.take(), Some(Event::Message("for you"))));
    /// assert!(matches!(two.take(), Some(Event::Message("for both"))));
    /// # Ok(())
    /// # }
    /// ```
    pub fn send_to(&self, worker: WorkerId, message: M) -> Result<(), SendError<M>> {
        let shared = &self.shared;
        let table = lock(&shared.mailboxes.0);
        match table.open.get(&worker) {
            Some(mailbox) if !shared.home.is_closed() => {
                if mailbox.put(message, &shared.home.roused) {
                    drop(table);
                    let _ = shared.home.port.post(shared.mail_packet());
                }
                Ok(())
            }
            _ => Err(SendError(message)),
        }
    }

    /// Sends a message to each present worker, as [`send_to`](Self::send_to) does. Returns how many these are: 0 if the
    /// port is closed.
    ///
    /// All workers get such messages in the same order.
    pub fn send_to_all(&self, message: M) -> usize
    where
        M: Clone,
    {
        let shared = &self.shared;
        // Cloned before: what that does is the message's business.
        let count = lock(&shared.mailboxes.0).open.len();
        let mut copies = vec![message; count];
        let table = lock(&shared.mailboxes.0);
        if shared.home.is_closed() {
            return 0;
        }
        let mut is_any_roused = false;
        let mut sent = 0;
        for mailbox in table.open.values() {
            let Some(copy) = copies.pop() else { break };
            is_any_roused |= mailbox.put(copy, &shared.home.roused);
            sent += 1;
        }
        drop(table);
        if is_any_roused {
            let _ = shared.home.port.post(shared.mail_packet());
        }
        sent
    }
}
