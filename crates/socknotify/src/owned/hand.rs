//! [`Hand`]: what a thread has dequeued and not taken, and what it has handed back and not armed.
//!
//! All of it is here as packets. The connections themselves are in their slots: so whoever takes an event from here goes
//! to the slot with it, and what is left here when the port closes is found in the slots.

use std::cell::RefCell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use super::connections::drop_all;
use super::lists::Lists;
use crate::Entry;
use crate::handover::Handover;
use crate::lock::lock;
use crate::operations::Operations;
use crate::sys::Process;
use crate::system::{SystemPort, WeakPort};

/// The part of a worker that other threads reach.
pub(super) struct Hand {
    process: Process,
    port: WeakPort,
    files: Weak<Operations>,
    /// The key of its packets.
    operation: usize,
    pub(super) lists: Lists,
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
            lists: Lists::new(room),
        })
    }

    /// Give all that is here to others.
    pub(super) fn flow_on(&self) {
        // In a forked child, a thread that it does not have may hold the lock.
        if self.process.is_this() {
            self.requeue(self.lists.take_all());
        }
    }

    /// The same, but for the thread's next event. The thread itself calls this.
    pub(super) fn flow_on_but_next(&self) {
        self.requeue(self.lists.take_all_but_next());
    }

    /// With no lock held: the thread may need that.
    fn requeue(&self, (mut packets, events): (Vec<Entry>, Vec<Entry>)) {
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
    fn put_back(&self, events: Vec<Entry>, files: Option<&Operations>) {
        let Some(events) = self.lists.put_back(events) else {
            return;
        };
        if let Some(files) = files {
            // An event of anything else finds nothing, since closing has taken it.
            let operations = events
                .iter()
                .filter(|it| it.completion_key == self.operation);
            drop_all(operations.map(|it| files.finish(it.overlapped)));
        }
    }
}

/// The hands of a thread, of whatever ports: when it blocks, all of them flow on.
pub(super) struct Hands {
    process: Process,
    count: AtomicUsize,
    /// The address of the one that the thread has dequeued with last.
    latest: AtomicUsize,
    list: Mutex<Vec<Weak<Hand>>>,
}

impl Default for Hands {
    fn default() -> Self {
        Hands {
            process: Process::this(),
            count: AtomicUsize::new(0),
            latest: AtomicUsize::new(0),
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
    #[inline(always)]
    pub(super) fn enter(this: &Arc<Self>, hand: &Arc<Hand>, may_wait: bool) -> Option<Arc<Self>> {
        // While the thread ends, it stays where it was.
        let is_there = HANDS.try_with(|hands| Arc::ptr_eq(&hands.borrow(), this));
        let moved = match is_there.unwrap_or(true) {
            true => None,
            false => HANDS.with(|hands| Self::move_to(hands, this, hand)),
        };
        let hands = moved.as_ref().unwrap_or(this);
        hands.latest.store(address(hand), Ordering::Relaxed);
        if may_wait {
            hands.flow_on_beside(|it| !Arc::ptr_eq(it, hand));
        }
        moved
    }

    /// This thread has dequeued nothing with this hand, and so has left its place, with all that it has of the port in others.
    pub(super) fn leave(&self, hand: &Arc<Hand>) {
        let is_of_port = |it: &Arc<Hand>| Weak::ptr_eq(&it.files, &hand.files);
        self.flow_on_beside(|it| is_of_port(it) && !Arc::ptr_eq(it, hand));
    }

    #[cold]
    fn move_to(to: &RefCell<Arc<Self>>, from: &Arc<Self>, hand: &Arc<Hand>) -> Option<Arc<Self>> {
        let hands = Arc::clone(&to.borrow());
        if !hands.process.is_this() {
            // A forked child: they are of the thread that forked. These were made here, or the hand is of the parent, too.
            to.replace(Arc::clone(from));
            return None;
        }
        from.remove(hand);
        hands.change(|list| list.push(Arc::downgrade(hand)));
        Some(hands)
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

    /// What is in some of several hands flows on.
    #[inline(always)]
    fn flow_on_beside(&self, is_meant: impl Fn(&Arc<Hand>) -> bool) {
        if self.count.load(Ordering::Relaxed) > 1 {
            self.flow_on_from(is_meant);
        }
    }

    #[cold]
    fn flow_on_from(&self, is_meant: impl Fn(&Arc<Hand>) -> bool) {
        // In a forked child, a thread that it does not have may hold the lock.
        if !self.process.is_this() {
            return;
        }
        let hands = lock(&self.list).clone();
        for hand in hands.iter().filter_map(Weak::upgrade) {
            if is_meant(&hand) {
                hand.flow_on();
            }
        }
    }
}

fn address(hand: &Arc<Hand>) -> usize {
    Arc::as_ptr(hand).addr()
}

impl Handover for Hands {
    fn flow_on(&self) {
        self.flow_on_from(|_| true);
    }

    fn taken(&self) -> (usize, Option<usize>) {
        let latest = self.latest.load(Ordering::Relaxed);
        let hands = lock(&self.list);
        let hands = hands.iter().filter_map(Weak::upgrade);
        hands.fold((0, None), |(count, last), hand| {
            let (taken, key) = hand.lists.taken();
            let last = if address(&hand) == latest { key } else { last };
            (count.wrapping_add(taken), last)
        })
    }
}

thread_local! {
    static HANDS: RefCell<Arc<Hands>> = RefCell::default();
}

/// This thread is about to block: what it has goes to others.
pub(super) fn flow_on() {
    if let Ok(hands) = HANDS.try_with(|hands| Arc::clone(&hands.borrow())) {
        hands.flow_on();
    }
}
