//! [`Local`]: what a worker has dequeued and not taken, and what it has handed back and not armed.
//!
//! Both are here as keys and values. The connections themselves are in their slots: so whoever takes an event from here
//! goes to the slot with it, and what is left here when the port closes is found in the slots.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, Weak};

use super::TimerId;
use super::home::NEVER;
use super::packet::{ARM, HANDED_ON};
use crate::handover::Handover;
use crate::lock::lock;
use crate::operations::Operations;
use crate::sys::Process;
use crate::system::{SystemPort, WeakPort};
use crate::{Entry, Registration};

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
    /// Connections that were handed back, and are not armed yet.
    armed: Vec<Registration<'static>>,
    /// The deadlines of some of them, in ticks. They are in the slots, too.
    deadlines: Vec<(usize, u64)>,
}

/// The packet for another worker to arm a connection.
fn packet_to_arm(arm: &Registration<'_>) -> Entry {
    let filter = u32::from(arm.event_filter.bits());
    Entry::new(arm.completion_key, ARM | filter, HANDED_ON)
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
                deadlines: Vec::new(),
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

    /// Add a connection to arm, with its deadline in ticks.
    #[inline(always)]
    pub(super) fn add_armed(&self, arm: Registration<'static>, deadline: u64) {
        let mut pending = lock(&self.pending);
        if deadline != NEVER {
            pending.deadlines.push((arm.completion_key, deadline));
        }
        pending.armed.push(arm);
    }

    /// Take the connections that are to be armed, and their deadlines. Returns the number of events to take.
    pub(super) fn take_armed(
        &self,
        armed: &mut Vec<Registration<'static>>,
        deadlines: &mut Vec<(usize, u64)>,
    ) -> usize {
        let mut pending = lock(&self.pending);
        match armed.is_empty() {
            true => std::mem::swap(armed, &mut pending.armed),
            false => armed.append(&mut pending.armed),
        }
        if !pending.deadlines.is_empty() {
            deadlines.append(&mut pending.deadlines);
        }
        pending.events.len()
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
        let armed: Vec<_> = pending.armed.iter().map(packet_to_arm).collect();
        pending.armed.clear();
        pending.deadlines.clear();
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
