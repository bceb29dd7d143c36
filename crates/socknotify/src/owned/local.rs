//! [`Local`]: what a worker has dequeued and not taken, and what it has handed back and not armed.
//!
//! Both are here as keys and values. The connections themselves are in their slots: so whoever takes an event from here
//! goes to the slot with it, and what is left here when the port closes is found in the slots.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, Weak};

use super::TimerId;
use super::packet::{ARM, HANDED_ON};
use crate::handover::Handover;
use crate::lock::lock;
use crate::operations::Operations;
use crate::sys::{Process, RawSocket};
use crate::system::{SystemPort, WeakPort};
use crate::{Entry, EventFilter, Registration};

/// The part of a worker that other threads reach.
pub(super) struct Local {
    process: Process,
    port: WeakPort,
    files: Weak<Operations<TimerId>>,
    /// The locks of the operations and of the engine are taken after this one, never before it.
    pending: Mutex<Pending>,
}

#[derive(Default)]
struct Pending {
    /// The packets of events to take, oldest first.
    events: VecDeque<Entry>,
    /// Connections to arm.
    armed: Vec<Arm>,
}

/// A connection that was handed back, and is not armed yet.
#[derive(Clone, Copy)]
pub(super) struct Arm {
    pub(super) socket: RawSocket,
    pub(super) key: usize,
    pub(super) filter: EventFilter,
    pub(super) is_drained: bool,
    /// In ticks.
    pub(super) deadline: u64,
}

impl Arm {
    pub(super) fn registration(&self) -> Registration<'static> {
        Registration::arm(self.socket, self.key, self.filter, self.is_drained)
    }

    /// The packet for another worker to arm it.
    fn packet(&self) -> Entry {
        let filter = u32::from(self.filter.bits());
        Entry::new(self.key, ARM | filter, HANDED_ON)
    }
}

impl Local {
    pub(super) fn new(
        port: &SystemPort,
        files: &Arc<Operations<TimerId>>,
        room: usize,
    ) -> Arc<Self> {
        Arc::new(Local {
            process: Process::this(),
            port: WeakPort::new(port),
            files: Arc::downgrade(files),
            pending: Mutex::new(Pending {
                events: VecDeque::with_capacity(room),
                armed: Vec::with_capacity(room),
            }),
        })
    }

    /// The number of events to take.
    #[inline]
    pub(super) fn events(&self) -> usize {
        lock(&self.pending).events.len()
    }

    /// Add events that were dequeued.
    #[inline]
    pub(super) fn add_events(&self, packets: &[Entry]) {
        lock(&self.pending).events.extend(packets);
    }

    #[inline]
    pub(super) fn take_event(&self) -> Option<Entry> {
        lock(&self.pending).events.pop_front()
    }

    /// Add a connection to arm.
    #[inline]
    pub(super) fn add_armed(&self, arm: Arm) {
        lock(&self.pending).armed.push(arm);
    }

    /// Take the connections that are to be armed, and leave this memory, which is empty, in their place.
    #[inline]
    pub(super) fn take_armed(&self, memory: &mut Vec<Arm>) {
        std::mem::swap(&mut lock(&self.pending).armed, memory);
    }

    /// The number of connections to arm.
    pub(super) fn to_arm(&self) -> usize {
        lock(&self.pending).armed.len()
    }

    /// Keep only this many events, and give the others to threads that wait.
    #[cold]
    pub(super) fn keep_events(&self, count: usize) {
        // Dropped after the lock is released: it may be the last, and dropping it runs the caller's code.
        let files = self.files.upgrade();
        let mut pending = lock(&self.pending);
        let count = count.min(pending.events.len());
        let others: Vec<_> = pending.events.drain(count..).collect();
        self.requeue(files.as_deref(), &mut pending, &[], &others);
    }

    /// Give packets back to the port, or keep the events if it is closed: what was dequeued can be taken.
    ///
    /// It is locked, so that a worker that ends meanwhile finds the events either here or nowhere.
    fn requeue(
        &self,
        files: Option<&Operations<TimerId>>,
        pending: &mut Pending,
        armed: &[Entry],
        events: &[Entry],
    ) {
        if armed.is_empty() && events.is_empty() {
            return;
        }
        if let Some(files) = files {
            events.iter().for_each(|packet| files.on_requeued(packet));
        }
        if self.port.requeue(&[armed, events].concat()).is_err() {
            pending.events.extend(events);
        }
    }
}

impl Handover for Local {
    fn flow_on(&self) {
        // In a forked child, a thread that it does not have may hold the lock.
        if !self.process.is_this() {
            return;
        }
        let files = self.files.upgrade();
        let mut pending = lock(&self.pending);
        let armed: Vec<_> = pending.armed.drain(..).map(|arm| arm.packet()).collect();
        let events: Vec<_> = pending.events.drain(..).collect();
        self.requeue(files.as_deref(), &mut pending, &armed, &events);
    }
}

thread_local! {
    /// What this thread has dequeued last.
    static LOCAL: RefCell<Weak<Local>> = const { RefCell::new(Weak::new()) };
}

/// This thread dequeues for this worker.
#[inline]
pub(super) fn enter(local: &Arc<Local>) {
    let _ = LOCAL.try_with(|current| {
        let mut current = current.borrow_mut();
        if !std::ptr::eq(current.as_ptr(), Arc::as_ptr(local)) {
            *current = Arc::downgrade(local);
        }
    });
}

/// This thread is about to block: what it has dequeued goes to others.
pub(super) fn flow_on() {
    let local = LOCAL.try_with(|current| current.borrow().upgrade());
    if let Ok(Some(local)) = local {
        local.flow_on();
    }
}
