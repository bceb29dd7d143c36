//! [`Local`]: what a worker has dequeued and not taken, and what it has handed back and not armed.
//!
//! Both are here as packets, in windows that other threads can empty. The connections themselves are in their slots: an
//! event and an armed connection are a key and a value. So whoever takes a packet out of a window goes to the slot with
//! it, and what is left in a window when the port closes is found in the slots.

use std::cell::RefCell;
use std::sync::{Arc, Weak};

use super::packet::{ARM, HANDED_ON};
use super::window::Window;
use crate::handover::Handover;
use crate::sys::{Process, RawSocket};
use crate::system::{SystemPort, WeakPort};
use crate::{Entry, EventFilter, Registration};

/// The part of a worker that other threads reach.
pub(super) struct Local {
    process: Process,
    port: WeakPort,
    events: Window<3>,
    armed: Window<4>,
}

/// At least so many connections can be handed back before they are armed.
const ROOM_TO_ARM: usize = 64;

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

/// The filter has 16 bits.
const DRAINED: u64 = 1 << 16;

impl Arm {
    fn encode(self) -> [u64; 4] {
        let drained = if self.is_drained { DRAINED } else { 0 };
        let filter = u64::from(self.filter.bits()) | drained;
        [self.socket as u64, self.key as u64, filter, self.deadline]
    }

    fn decode([socket, key, filter, deadline]: [u64; 4]) -> Self {
        Arm {
            socket: socket as RawSocket,
            key: key as usize,
            filter: EventFilter::from_bits_retain(filter as u16),
            is_drained: filter & DRAINED != 0,
            deadline,
        }
    }

    pub(super) fn registration(&self) -> Registration<'static> {
        Registration::arm(self.socket, self.key, self.filter, self.is_drained)
    }
}

impl Local {
    pub(super) fn new(port: &SystemPort, room: usize) -> Arc<Self> {
        Arc::new(Local {
            process: Process::this(),
            port: WeakPort::new(port),
            events: Window::new(room),
            armed: Window::new(room.max(ROOM_TO_ARM)),
        })
    }

    /// The number of events to take.
    #[inline]
    pub(super) fn events(&self) -> usize {
        self.events.len()
    }

    /// Add events that were dequeued, for which there is room.
    #[inline]
    pub(super) fn add_events(&self, packets: impl Iterator<Item = Entry>) {
        self.events.extend(packets.map(|packet| encode(&packet)));
    }

    /// Add an event. Returns its packet if there is no room.
    pub(super) fn add_event(&self, entry: Entry) -> Result<(), Entry> {
        match self.events.push(encode(&entry)) {
            true => Ok(()),
            false => Err(entry),
        }
    }

    #[inline]
    pub(super) fn take_event(&self) -> Option<Entry> {
        self.events.pop().map(event_packet)
    }

    /// Add a connection to arm. False if there is no room.
    #[inline]
    pub(super) fn add_armed(&self, arm: Arm) -> bool {
        self.armed.push(arm.encode())
    }

    /// Take all connections that are to be armed.
    #[inline]
    pub(super) fn take_armed(&self, memory: &mut Vec<[u64; 4]>, each: impl FnMut(Arm)) {
        self.armed.take_all(memory);
        memory.drain(..).map(Arm::decode).for_each(each);
    }

    pub(super) fn to_arm(&self) -> usize {
        self.armed.len()
    }

    /// Keep only this many events, and give the others to threads that wait.
    #[cold]
    pub(super) fn keep_events(&self, count: usize) {
        let mut events = Vec::new();
        self.events.take_all(&mut events);
        let (own, others) = events.split_at(count.min(events.len()));
        for &event in own {
            self.events.push(event);
        }
        let packets: Vec<_> = others.iter().copied().map(event_packet).collect();
        self.port.requeue(&packets);
    }
}

fn encode(packet: &Entry) -> [u64; 3] {
    [
        packet.completion_key as u64,
        packet.transferred.into(),
        packet.overlapped as u64,
    ]
}

fn event_packet([key, says, overlapped]: [u64; 3]) -> Entry {
    Entry::new(key as usize, says as u32, overlapped as usize)
}

impl Handover for Local {
    fn flow_on(&self) {
        if !self.process.is_this() {
            return;
        }
        let (mut armed, mut events) = (Vec::new(), Vec::new());
        self.armed.take_all(&mut armed);
        self.events.take_all(&mut events);
        let armed = armed.into_iter().map(Arm::decode);
        let armed =
            armed.map(|arm| Entry::new(arm.key, ARM | u32::from(arm.filter.bits()), HANDED_ON));
        let packets: Vec<_> = armed.chain(events.into_iter().map(event_packet)).collect();
        if !packets.is_empty() {
            self.port.requeue(&packets);
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
