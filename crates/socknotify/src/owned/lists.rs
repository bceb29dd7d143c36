//! [`Lists`]: what others can take from a thread.
//!
//! The thread itself takes no lock for an event: it has a copy of them, and [claims](Lists::claim) the next one. What it
//! hands back it [lists](Lists::list). Each is a count, for which others that take all exchange one that is never reached.

use std::collections::VecDeque;
use std::mem;
use std::sync::atomic::Ordering;

use super::packet::Packet;
use crate::Entry;
use crate::engine::sync::{AtomicBool, AtomicUsize, Mutex, MutexGuard, lock};

/// In place of a count: others have taken all that is counted. The thread may have counted on since.
const TAKEN: usize = usize::MAX / 2;

/// What others can take from a thread.
pub(super) struct Lists {
    /// How many of the events the thread has claimed.
    claimed: AtomicUsize,
    /// How many keys are listed.
    listed: AtomicUsize,
    /// The keys of connections that were handed back.
    keys: Box<[AtomicUsize]>,
    /// Events came back, since the port was closed when others had taken them.
    has_returned: AtomicBool,
    /// The lock is held for a move only.
    inside: Mutex<Inside>,
}

#[derive(Default)]
struct Inside {
    /// The packets of events to take, oldest first, with those that are claimed.
    events: Vec<Entry>,
    /// How many were claimed before those.
    before: usize,
    /// The key of the last of those, if the thread has dequeued nothing since.
    last: Option<usize>,
    /// The packets of listeners to accept from.
    listeners: VecDeque<Entry>,
    /// Events that came back.
    returned: VecDeque<Entry>,
    /// The worker was dropped.
    has_ended: bool,
}

/// What became of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Listed {
    /// It is the first one.
    First,
    More,
    /// There is no room, or others have taken what was here since the thread dequeued last. They may not look again: so it
    /// keeps nothing here that could wait for it while it blocks.
    Not,
}

impl Lists {
    pub(super) fn new(room: usize) -> Self {
        let inside = Inside {
            events: Vec::with_capacity(room),
            ..Inside::default()
        };
        Lists {
            claimed: AtomicUsize::new(0),
            listed: AtomicUsize::new(0),
            keys: (0..room).map(|_| AtomicUsize::new(0)).collect(),
            has_returned: AtomicBool::new(false),
            inside: Mutex::new(inside),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inside> {
        lock(&self.inside)
    }

    /// How many events there are to take.
    fn count(&self, inside: &Inside) -> usize {
        let claimed = self.claimed.load(Ordering::Relaxed);
        inside.events.len().saturating_sub(claimed) + inside.returned.len()
    }

    /// How many events there are to take, and connections to arm.
    pub(super) fn len(&self) -> (usize, usize) {
        let events = self.count(&self.lock());
        let listed = self.listed.load(Ordering::Relaxed);
        (events, if listed < TAKEN { listed } else { 0 })
    }

    /// How many events the thread has taken, and the key of the last one, unless it has dequeued since.
    pub(super) fn taken(&self) -> (usize, Option<usize>) {
        let inside = self.lock();
        let count = self.claimed.load(Ordering::Relaxed);
        let claimed = &inside.events[..count.min(inside.events.len())];
        let last = claimed.last().map(|it| it.completion_key);
        (inside.before + claimed.len(), last.or(inside.last))
    }

    /// The thread is about to arm all that it has handed back, and to dequeue. False if others have it all. Also returns the
    /// number of events to take.
    pub(super) fn begin(&self) -> (bool, usize) {
        let inside = self.lock();
        let is_here = self.listed.swap(0, Ordering::Relaxed) < TAKEN;
        (is_here, self.count(&inside))
    }

    /// The thread is about to arm all that it has handed back. Returns the number of events to take.
    pub(super) fn settle(&self) -> usize {
        let inside = self.lock();
        if self.listed.load(Ordering::Relaxed) < TAKEN {
            self.listed.store(0, Ordering::Relaxed);
        }
        self.count(&inside)
    }

    /// Whether others have taken what was here since the thread dequeued last.
    pub(super) fn was_taken(&self) -> bool {
        self.listed.load(Ordering::Relaxed) >= TAKEN
    }

    /// Add events that were dequeued, also to the thread's copy. Returns how many there are to take.
    pub(super) fn add_events(&self, copy: &mut Vec<Entry>, packets: &[Entry]) -> usize {
        let mut inside = self.lock();
        if self.claimed.load(Ordering::Relaxed) >= inside.events.len() {
            inside.before += inside.events.len();
            inside.last = None;
            inside.events.clear();
            copy.clear();
            self.claimed.store(0, Ordering::Relaxed);
        }
        inside.events.extend_from_slice(packets);
        copy.extend_from_slice(packets);
        self.count(&inside)
    }

    /// The index of the next event in the thread's copy, which nobody else gets. There is none there if others have it.
    #[inline]
    pub(super) fn claim(&self) -> usize {
        self.claimed.fetch_add(1, Ordering::Relaxed)
    }

    #[cold]
    pub(super) fn add_listeners(&self, packets: &[Entry]) {
        self.lock().listeners.extend(packets);
    }

    /// Take the packets of the listener that was reported first.
    pub(super) fn take_listener(&self) -> Vec<Entry> {
        let mut inside = self.lock();
        let Some(key) = inside.listeners.front().map(|it| it.completion_key) else {
            return Vec::new();
        };
        let taken = mem::take(&mut inside.listeners).into_iter();
        let (taken, others): (VecDeque<_>, VecDeque<_>) =
            taken.partition(|it| it.completion_key == key);
        inside.listeners = others;
        taken.into()
    }

    /// Put events back that others have taken. If nobody takes from here any more, they are returned.
    pub(super) fn put_back(&self, events: Vec<Entry>) -> Option<Vec<Entry>> {
        let mut inside = self.lock();
        if inside.has_ended {
            return Some(events);
        }
        inside.returned.extend(events);
        self.has_returned.store(true, Ordering::Relaxed);
        None
    }

    /// The worker is dropped: nobody takes any more what would be put back.
    pub(super) fn end(&self) {
        self.lock().has_ended = true;
    }

    /// Take an event that came back.
    #[inline]
    pub(super) fn take_returned(&self) -> Option<Entry> {
        match self.has_returned.load(Ordering::Relaxed) {
            true => self.lock().returned.pop_front(),
            false => None,
        }
    }

    /// List the key of a connection that is handed back.
    #[inline]
    pub(super) fn list(&self, key: usize) -> Listed {
        let count = self.listed.load(Ordering::Relaxed);
        let Some(place) = self.keys.get(count) else {
            return Listed::Not;
        };
        place.store(key, Ordering::Relaxed);
        match self.listed.fetch_add(1, Ordering::Release) {
            0 => Listed::First,
            before if before < TAKEN => Listed::More,
            _ => Listed::Not,
        }
    }

    /// Take the keys that are listed. From here on the thread lists nothing, until it dequeues.
    fn take_listed(&self, inside: &mut Inside) -> Vec<Entry> {
        let count = self.listed.swap(TAKEN, Ordering::Acquire);
        let keys = self.keys.get(..count).unwrap_or_default();
        let keys = keys.iter().map(|it| it.load(Ordering::Relaxed));
        let mut packets: Vec<_> = keys.map(|key| Packet::Look.of_slot(key)).collect();
        packets.extend(inside.listeners.drain(..));
        packets
    }

    /// Take all from the thread, which any thread may do: what is to be looked at, and events.
    pub(super) fn take_all(&self) -> (Vec<Entry>, Vec<Entry>) {
        let mut inside = self.lock();
        let packets = self.take_listed(&mut inside);
        let claimed = self.claimed.swap(TAKEN, Ordering::Relaxed);
        let mut events = mem::take(&mut inside.events);
        let others = events.split_off(claimed.min(events.len()));
        inside.before += events.len();
        inside.last = events.last().map(|it| it.completion_key).or(inside.last);
        (packets, others)
    }

    /// The same for the thread itself, but for the next event.
    pub(super) fn take_all_but_next(&self, copy: &mut Vec<Entry>) -> (Vec<Entry>, Vec<Entry>) {
        let mut inside = self.lock();
        let packets = self.take_listed(&mut inside);
        let kept = self.claimed.load(Ordering::Relaxed).saturating_add(1);
        let kept = kept.min(inside.events.len());
        copy.truncate(kept);
        (packets, inside.events.split_off(kept))
    }
}
