//! [`Lists`]: what others can take from a thread.
//!
//! The thread itself takes no lock: it [adds](Lists::add) what it dequeues, and [claims](Lists::claim) the next event. What it
//! hands back it [lists](Lists::list). Each is a count, for which others that take all exchange [`TAKEN`]. They read what was
//! counted with the lock held, which the thread takes before it counts anew.

use std::collections::VecDeque;
use std::mem;
use std::ops::Range;
use std::sync::atomic::Ordering;

use super::packet::Packet;
use crate::Entry;
use crate::engine::sync::{AtomicBool, AtomicUsize, Mutex, MutexGuard, lock};

/// In place of a count: others have taken all that is counted. The thread may have counted on since.
const TAKEN: usize = 1 << (Counts::BITS - 1);

/// How many events there are, and how many of them the thread has claimed: more than there are, if others have [`TAKEN`] them.
#[derive(Clone, Copy)]
struct Counts {
    claimed: usize,
    all: usize,
}

impl Counts {
    const BITS: u32 = usize::BITS / 2;

    #[inline(always)]
    fn of(number: usize) -> Self {
        Counts {
            claimed: number & ((1 << Self::BITS) - 1),
            all: number >> Self::BITS,
        }
    }

    #[inline(always)]
    fn number(self) -> usize {
        self.all << Self::BITS | self.claimed
    }

    #[inline(always)]
    fn left(self) -> usize {
        self.all.saturating_sub(self.claimed)
    }

    #[inline(always)]
    fn are_taken(self) -> bool {
        self.claimed >= TAKEN
    }
}

/// The packet of an event, which the thread writes, and others may read.
#[derive(Default)]
struct Cell {
    key: AtomicUsize,
    transferred: AtomicUsize,
    overlapped: AtomicUsize,
}

impl Cell {
    #[inline]
    fn set(&self, packet: &Entry) {
        self.key.store(packet.completion_key, Ordering::Relaxed);
        let transferred = packet.transferred as usize;
        self.transferred.store(transferred, Ordering::Relaxed);
        self.overlapped.store(packet.overlapped, Ordering::Relaxed);
    }

    #[inline]
    fn get(&self) -> Entry {
        Entry::new(
            self.key.load(Ordering::Relaxed),
            self.transferred.load(Ordering::Relaxed) as u32,
            self.overlapped.load(Ordering::Relaxed),
        )
    }
}

/// What others can take from a thread.
pub(super) struct Lists {
    /// The [`Counts`] of the events.
    counts: AtomicUsize,
    /// The packets of events to take, oldest first, with those that are claimed.
    events: Box<[Cell]>,
    /// How many were claimed before those, or stood behind them.
    before: AtomicUsize,
    /// How many keys are listed.
    listed: AtomicUsize,
    /// The keys of connections that were handed back.
    keys: Box<[AtomicUsize]>,
    /// There are more events inside.
    has_more: AtomicBool,
    inside: Mutex<Inside>,
}

#[derive(Default)]
struct Inside {
    /// The key of the last event that was claimed before others took the rest.
    last: Option<usize>,
    /// The key of the last one that stood behind the others, and how many had been taken with it.
    last_behind: Option<(usize, usize)>,
    /// The packets of listeners to accept from.
    listeners: VecDeque<Entry>,
    /// The packets of events behind the others.
    more: VecDeque<Entry>,
    /// Events that came back, since the port was closed when others had taken them.
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
        Lists {
            counts: AtomicUsize::new(0),
            events: (0..room).map(|_| Cell::default()).collect(),
            before: AtomicUsize::new(0),
            // Before it dequeues, others do not know of it.
            listed: AtomicUsize::new(TAKEN),
            keys: (0..room).map(|_| AtomicUsize::new(0)).collect(),
            has_more: AtomicBool::new(false),
            inside: Mutex::new(Inside::default()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inside> {
        lock(&self.inside)
    }

    #[inline(always)]
    fn counts(&self) -> Counts {
        Counts::of(self.counts.load(Ordering::Relaxed))
    }

    /// How many events there are to take.
    #[inline]
    pub(super) fn events(&self) -> usize {
        let more = match self.has_more() {
            true => {
                let inside = self.lock();
                inside.more.len() + inside.returned.len()
            }
            false => 0,
        };
        self.counts().left() + more
    }

    /// Whether there may be events behind the others.
    #[inline]
    pub(super) fn has_more(&self) -> bool {
        self.has_more.load(Ordering::Relaxed)
    }

    /// How many events there are to take, and connections to arm.
    pub(super) fn len(&self) -> (usize, usize) {
        let listed = self.listed.load(Ordering::Relaxed);
        (self.events(), if listed < TAKEN { listed } else { 0 })
    }

    /// How many events the thread has taken, and the key of the last one, unless it has dequeued since.
    pub(super) fn taken(&self) -> (usize, Option<usize>) {
        let inside = self.lock();
        let counts = self.counts();
        let taken = self.count(counts);
        let key = match inside.last_behind {
            Some((key, all)) if all == taken => Some(key),
            _ if counts.are_taken() => inside.last,
            _ => self.last(counts),
        };
        (taken, key)
    }

    /// How many events the thread has taken.
    fn count(&self, counts: Counts) -> usize {
        let claimed = if counts.are_taken() {
            0
        } else {
            counts.claimed
        };
        self.before.load(Ordering::Relaxed).wrapping_add(claimed)
    }

    /// The key of the event that was claimed last.
    fn last(&self, counts: Counts) -> Option<usize> {
        let index = counts.claimed.checked_sub(1)?;
        Some(self.events[index].get().completion_key)
    }

    /// The thread is about to arm all that it has handed back, and to dequeue. False if others have it all.
    #[inline]
    pub(super) fn begin(&self) -> bool {
        let is_here = self.settle();
        if !is_here {
            // They may be reading it.
            let _inside = self.lock();
            self.listed.store(0, Ordering::Relaxed);
        }
        is_here
    }

    /// The thread is about to arm all that it has handed back. False if others have it all.
    #[inline]
    pub(super) fn settle(&self) -> bool {
        let (listed, order) = (self.listed.load(Ordering::Relaxed), Ordering::Relaxed);
        let settle = || self.listed.compare_exchange(listed, 0, order, order);
        listed == 0 || listed < TAKEN && settle().is_ok()
    }

    /// Whether others have taken what was here since the thread dequeued last.
    pub(super) fn was_taken(&self) -> bool {
        self.listed.load(Ordering::Relaxed) >= TAKEN
    }

    /// Add the packets of events that were dequeued, no more than there is room for, when there were none.
    #[inline]
    pub(super) fn add(&self, packets: &[Entry]) {
        let number = self.counts.load(Ordering::Relaxed);
        let counts = Counts::of(number);
        debug_assert_eq!(counts.left(), 0);
        if !counts.are_taken() {
            let new = self.set(packets);
            let (ok, error) = (Ordering::Release, Ordering::Relaxed);
            let added = self.counts.compare_exchange(number, new, ok, error);
            if added.is_ok() {
                let before = self.before.load(Ordering::Relaxed);
                let before = before.wrapping_add(counts.claimed);
                return self.before.store(before, Ordering::Relaxed);
            }
        }
        self.add_anew(packets);
    }

    /// Others have taken all. They may be reading it.
    #[cold]
    fn add_anew(&self, packets: &[Entry]) {
        let _inside = self.lock();
        let new = self.set(packets);
        self.counts.store(new, Ordering::Release);
    }

    #[inline]
    fn set(&self, packets: &[Entry]) -> usize {
        for (cell, packet) in self.events.iter().zip(packets) {
            cell.set(packet);
        }
        let counts = Counts {
            claimed: 0,
            all: packets.len(),
        };
        counts.number()
    }

    /// Add the packet of an event behind the others.
    #[cold]
    pub(super) fn add_behind(&self, packet: Entry) {
        self.lock().more.push_back(packet);
        self.has_more.store(true, Ordering::Relaxed);
    }

    /// The packet of the next event, which nobody else gets.
    #[inline]
    pub(super) fn claim(&self) -> Option<Entry> {
        let counts = self.counts();
        if counts.claimed < counts.all {
            let number = self.counts.fetch_add(1, Ordering::Relaxed);
            if !Counts::of(number).are_taken() {
                return self.events.get(counts.claimed).map(Cell::get);
            }
        }
        None
    }

    /// The same, of those that stand behind the others.
    pub(super) fn claim_behind(&self) -> Option<Entry> {
        let mut inside = self.lock();
        let packet = inside.more.pop_front();
        let packet = packet.or_else(|| inside.returned.pop_front());
        match packet {
            Some(packet) => {
                let before = self.before.load(Ordering::Relaxed).wrapping_add(1);
                self.before.store(before, Ordering::Relaxed);
                inside.last_behind = Some((packet.completion_key, self.count(self.counts())));
            }
            None => self.has_more.store(false, Ordering::Relaxed),
        }
        packet
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
        self.has_more.store(true, Ordering::Relaxed);
        None
    }

    /// The worker is dropped: nobody takes any more what would be put back.
    pub(super) fn end(&self) {
        self.lock().has_ended = true;
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
        let mut events = Vec::new();
        let counts = Counts::of(self.counts.swap(TAKEN, Ordering::Acquire));
        if !counts.are_taken() {
            self.before.fetch_add(counts.claimed, Ordering::Relaxed);
            inside.last = self.last(counts);
            events.extend(self.read(counts.claimed..counts.all));
        }
        events.extend(inside.more.drain(..));
        (packets, events)
    }

    fn read(&self, range: Range<usize>) -> impl Iterator<Item = Entry> {
        self.events[range].iter().map(Cell::get)
    }

    /// The same for the thread itself, but for the next event.
    pub(super) fn take_all_but_next(&self) -> (Vec<Entry>, Vec<Entry>) {
        let mut inside = self.lock();
        let packets = self.take_listed(&mut inside);
        let mut events = Vec::new();
        let mut kept = 1;
        let counts = self.counts();
        if counts.left() > 0 {
            let all = counts.claimed + 1;
            // Others change it with the lock held only.
            let left = Counts { all, ..counts };
            self.counts.store(left.number(), Ordering::Release);
            events.extend(self.read(all..counts.all));
            kept = 0;
        }
        let kept = kept.min(inside.more.len());
        events.extend(inside.more.drain(kept..));
        (packets, events)
    }
}
