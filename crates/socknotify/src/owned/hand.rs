//! [`Hand`]: what a thread has dequeued and not taken, and what it has handed back and not armed.
//!
//! All of it is here as packets. The connections themselves are in their slots: so whoever takes an event from here goes
//! to the slot with it, and what is left here when the port closes is found in the slots.

use std::collections::VecDeque;
use std::mem;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use super::connections::drop_all;
use super::packet::Packet;
use crate::handover::Handover;
use crate::lock::lock;
use crate::operations::Operations;
use crate::sys::Process;
use crate::system::{SystemPort, WeakPort};
use crate::{Entry, Registration};

/// The part of a worker that other threads reach.
pub(super) struct Hand {
    process: Process,
    port: WeakPort,
    files: Weak<Operations>,
    /// The key of its packets.
    operation: usize,
    inside: Mutex<Inside>,
}

/// What the lock guards: it is held for a move only.
struct Inside {
    /// The packets of events to take, oldest first.
    events: VecDeque<Entry>,
    /// The packets of listeners to accept from.
    listeners: VecDeque<Entry>,
    /// Connections that were handed back.
    to_arm: Vec<Registration<'static>>,
    /// Others have taken it all since the thread dequeued last. They may not look again: so it keeps nothing here that
    /// could wait for it while it blocks.
    was_taken: bool,
    /// The worker was dropped.
    has_ended: bool,
}

impl Hand {
    pub(super) fn new(
        port: &SystemPort,
        files: &Arc<Operations>,
        operation: usize,
        room: usize,
    ) -> Arc<Self> {
        Arc::new(Hand {
            process: Process::this(),
            port: WeakPort::new(port),
            files: Arc::downgrade(files),
            operation,
            inside: Mutex::new(Inside {
                events: VecDeque::with_capacity(room),
                listeners: VecDeque::new(),
                to_arm: Vec::with_capacity(room),
                was_taken: false,
                has_ended: false,
            }),
        })
    }

    /// The thread is about to dequeue: take what is to be armed. Returns the number of events to take.
    #[inline]
    pub(super) fn begin(&self, to_arm: &mut Vec<Registration<'static>>) -> usize {
        let mut inside = lock(&self.inside);
        inside.was_taken = false;
        inside.take_to_arm(to_arm);
        inside.events.len()
    }

    /// Take what is to be armed. Returns the number of events to take.
    #[inline]
    pub(super) fn take_to_arm(&self, to_arm: &mut Vec<Registration<'static>>) -> usize {
        let mut inside = lock(&self.inside);
        inside.take_to_arm(to_arm);
        inside.events.len()
    }

    /// How many events there are to take, and connections to arm.
    pub(super) fn len(&self) -> (usize, usize) {
        let inside = lock(&self.inside);
        (inside.events.len(), inside.to_arm.len())
    }

    /// Whether others have taken what was here since the thread dequeued last.
    pub(super) fn was_taken(&self) -> bool {
        lock(&self.inside).was_taken
    }

    /// Add events that were dequeued. Returns how many there are.
    #[inline]
    pub(super) fn add_events(&self, packets: &[Entry]) -> usize {
        let mut inside = lock(&self.inside);
        inside.events.extend(packets);
        inside.events.len()
    }

    #[cold]
    pub(super) fn add_listeners(&self, packets: &[Entry]) {
        lock(&self.inside).listeners.extend(packets);
    }

    /// Take the next event, unless others have taken it.
    #[inline]
    pub(super) fn take_event(&self) -> Option<Entry> {
        lock(&self.inside).events.pop_front()
    }

    /// Take the packets of the listener that was reported first.
    pub(super) fn take_listener(&self) -> Vec<Entry> {
        let mut inside = lock(&self.inside);
        let Some(key) = inside.listeners.front().map(|it| it.completion_key) else {
            return Vec::new();
        };
        let taken = mem::take(&mut inside.listeners).into_iter();
        let (taken, others): (VecDeque<_>, VecDeque<_>) =
            taken.partition(|it| it.completion_key == key);
        inside.listeners = others;
        taken.into()
    }

    /// Add a connection to arm. Returns whether others have taken what was here since the thread dequeued last, and
    /// whether it is the first one.
    #[inline]
    pub(super) fn add_to_arm(&self, arm: Registration<'static>) -> (bool, bool) {
        let mut inside = lock(&self.inside);
        inside.to_arm.push(arm);
        (inside.was_taken, inside.to_arm.len() == 1)
    }

    /// Give all that is here to others, but for so many events.
    pub(super) fn flow_on_but(&self, count: usize) {
        // In a forked child, a thread that it does not have may hold the lock.
        if !self.process.is_this() {
            return;
        }
        let (mut packets, events) = {
            let mut inside = lock(&self.inside);
            // The thread adds nothing from here on that it could leave here.
            inside.was_taken = true;
            let to_arm = inside.to_arm.drain(..);
            let mut packets: Vec<_> = to_arm
                .map(|it| Packet::Look.of_slot(it.completion_key))
                .collect();
            packets.extend(inside.listeners.drain(..));
            let count = count.min(inside.events.len());
            (packets, inside.events.split_off(count))
        };
        // Without the lock: its thread may need that.
        let files = self.files.upgrade();
        if let Some(files) = &files {
            events.iter().for_each(|packet| files.on_requeued(packet));
        }
        packets.extend(&events);
        if !packets.is_empty() && self.port.requeue(&packets).is_err() {
            self.put_back(events, files.as_deref());
        }
        if let Some(files) = files {
            files.flush();
        }
    }

    /// The port is closed. What was dequeued can be taken; if nobody takes it any more, it is dropped.
    #[cold]
    fn put_back(&self, events: VecDeque<Entry>, files: Option<&Operations>) {
        let mut inside = lock(&self.inside);
        if !inside.has_ended {
            let later = mem::replace(&mut inside.events, events);
            inside.events.extend(later);
            return;
        }
        drop(inside);
        if let Some(files) = files {
            // An event of anything else finds nothing, since closing has taken it.
            let operations = events
                .iter()
                .filter(|it| it.completion_key == self.operation);
            drop_all(operations.map(|it| files.finish(it.overlapped)));
        }
    }

    /// The worker is dropped: nobody takes any more what would be put back.
    pub(super) fn end(&self) {
        lock(&self.inside).has_ended = true;
    }
}

impl Inside {
    #[inline]
    fn take_to_arm(&mut self, to_arm: &mut Vec<Registration<'static>>) {
        if to_arm.is_empty() {
            mem::swap(to_arm, &mut self.to_arm);
        } else {
            to_arm.append(&mut self.to_arm);
        }
    }
}

/// The hands of a thread, of whatever ports: when it blocks, all of them flow on.
pub(super) struct Hands {
    process: Process,
    count: AtomicUsize,
    list: Mutex<Vec<Weak<Hand>>>,
}

impl Default for Hands {
    fn default() -> Self {
        Hands {
            process: Process::this(),
            count: AtomicUsize::new(0),
            list: Mutex::default(),
        }
    }
}

impl Hands {
    /// Those of a thread that has only this one, as far as is known.
    pub(super) fn of(hand: &Arc<Hand>) -> Arc<Self> {
        let hands = Arc::new(Hands::default());
        hands.change(|list| list.push(Arc::downgrade(hand)));
        hands
    }

    /// This thread dequeues with this hand. If it may wait, what it has in others flows on. Returns its hands, if they are
    /// not the ones that the hand was in.
    #[inline]
    pub(super) fn enter(this: &Arc<Self>, hand: &Arc<Hand>, may_wait: bool) -> Option<Arc<Self>> {
        let moved = HANDS.try_with(|hands| match Arc::ptr_eq(hands, this) {
            true => None,
            false => Some(hands.move_here(this, hand)),
        });
        // While the thread ends, it stays where it was.
        let moved = moved.unwrap_or_default();
        let hands = moved.as_ref().unwrap_or(this);
        if may_wait && hands.count.load(Ordering::Relaxed) > 1 {
            hands.flow_on_beside(Some(hand));
        }
        moved
    }

    #[cold]
    fn move_here(self: &Arc<Self>, from: &Arc<Self>, hand: &Arc<Hand>) -> Arc<Self> {
        from.remove(hand);
        self.change(|list| list.push(Arc::downgrade(hand)));
        Arc::clone(self)
    }

    pub(super) fn remove(&self, hand: &Arc<Hand>) {
        self.change(|list| list.retain(|it| !std::ptr::eq(it.as_ptr(), Arc::as_ptr(hand))));
    }

    fn change(&self, change: impl FnOnce(&mut Vec<Weak<Hand>>)) {
        if self.process.is_this() {
            let mut list = lock(&self.list);
            change(&mut list);
            self.count.store(list.len(), Ordering::Relaxed);
        }
    }

    #[cold]
    fn flow_on_beside(&self, but: Option<&Arc<Hand>>) {
        // In a forked child, a thread that it does not have may hold the lock.
        if !self.process.is_this() {
            return;
        }
        let hands = lock(&self.list).clone();
        for hand in hands.iter().filter_map(Weak::upgrade) {
            if !but.is_some_and(|it| Arc::ptr_eq(it, &hand)) {
                hand.flow_on_but(0);
            }
        }
    }
}

impl Handover for Hands {
    fn flow_on(&self) {
        self.flow_on_beside(None);
    }

    fn progress(&self) -> usize {
        let hands = lock(&self.list);
        let hands = hands.iter().filter_map(Weak::upgrade);
        hands.map(|hand| hand.len().0).sum()
    }
}

thread_local! {
    static HANDS: Arc<Hands> = Arc::default();
}

/// This thread is about to block: what it has goes to others.
pub(super) fn flow_on() {
    let _ = HANDS.try_with(|hands| hands.flow_on());
}
