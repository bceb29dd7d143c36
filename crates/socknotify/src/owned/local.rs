//! [`Local`]: what a worker has dequeued and not taken, and what it has handed back and not armed.
//!
//! Both are here as keys and values. The connections themselves are in their slots: so whoever takes an event from here
//! goes to the slot with it, and what is left here when the port closes is found in the slots.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

use super::packet::Packet;
use super::window::Window;
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
    files: Weak<Operations>,
    /// The packets of events to take, oldest first.
    events: Window,
    /// Connections that were handed back, and are not armed yet, as [packets to arm](packet_to_arm).
    armed: Window,
    /// Others have taken what was in the windows since the thread dequeued last. They may not look again: so it keeps
    /// nothing there that could wait for it while it blocks.
    has_flowed_on: AtomicBool,
    /// Events behind those: there was no room for them, or the port was closed when others were to have them.
    ///
    /// Who takes from the windows of another thread holds this lock. Those of the operations and of the engine are taken
    /// after it, never before it.
    rest: Mutex<VecDeque<Entry>>,
}

/// Room for this many connections to arm, at least.
const ARMED: usize = 64;

/// The packet for another worker to arm a connection.
#[inline]
fn packet_to_arm(arm: &Registration<'_>) -> Entry {
    Packet::Look.of_slot(arm.completion_key)
}

impl Local {
    pub(super) fn new(port: &SystemPort, files: &Arc<Operations>, room: usize) -> Arc<Self> {
        Arc::new(Local {
            process: Process::this(),
            port: WeakPort::new(port),
            files: Arc::downgrade(files),
            events: Window::new(room),
            armed: Window::new(room.max(ARMED)),
            has_flowed_on: AtomicBool::new(false),
            rest: Mutex::default(),
        })
    }

    /// The thread is about to dequeue.
    #[inline]
    pub(super) fn begin(&self) {
        self.has_flowed_on.store(false, Ordering::Relaxed);
    }

    /// Whether others have taken what was here since then. After something was added: if not, they find it.
    #[inline]
    pub(super) fn has_flowed_on(&self) -> bool {
        self.has_flowed_on.load(Ordering::Relaxed)
    }

    /// The number of events to take.
    pub(super) fn events(&self) -> usize {
        self.events.len() + lock(&self.rest).len()
    }

    /// Add events that were dequeued.
    #[inline]
    pub(super) fn add_events(&self, packets: &[Entry]) {
        let added = self.events.push(packets);
        if added < packets.len() {
            lock(&self.rest).extend(&packets[added..]);
        }
    }

    /// Take the next of the events that this thread has added, unless others have taken them.
    #[inline]
    pub(super) fn take_event(&self) -> Option<Entry> {
        self.events.take().or_else(|| self.take_rest())
    }

    #[cold]
    fn take_rest(&self) -> Option<Entry> {
        lock(&self.rest).pop_front()
    }

    /// Let others see a connection to arm. False if there is no room.
    #[inline]
    pub(super) fn add_armed(&self, arm: &Registration<'_>) -> bool {
        self.armed.push(&[packet_to_arm(arm)]) == 1
    }

    /// From here on others leave the connections to arm to this thread. Returns how many they have left.
    #[inline]
    pub(super) fn take_armed(&self) -> usize {
        self.armed.clear()
    }

    /// The number of connections to arm.
    pub(super) fn to_arm(&self) -> usize {
        self.armed.len()
    }

    /// Keep only this many events, and give the others to threads that wait.
    #[cold]
    pub(super) fn keep_events(&self, count: usize) {
        // Dropped after the lock is released: it may be the last, and dropping it runs the caller's code.
        let files = self.files.upgrade();
        let mut rest = lock(&self.rest);
        let mut others = self.events.take_all_but(count);
        others.extend(rest.drain(..));
        self.requeue(files.as_deref(), &mut rest, &[], &others);
    }

    /// Give packets back to the port, or keep the events if it is closed: what was dequeued can be taken.
    ///
    /// The lock is held, so that a worker that ends meanwhile finds the events either here or nowhere.
    fn requeue(
        &self,
        files: Option<&Operations>,
        rest: &mut VecDeque<Entry>,
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
            rest.extend(events);
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
        let mut rest = lock(&self.rest);
        // Before it takes: what it does not find then, is added by a thread that sees this.
        self.has_flowed_on.store(true, Ordering::Relaxed);
        let armed = self.armed.take_all();
        let mut events = self.events.take_all();
        events.extend(rest.drain(..));
        self.requeue(files.as_deref(), &mut rest, &armed, &events);
        drop(rest);
        if let Some(files) = files {
            files.flush();
        }
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
