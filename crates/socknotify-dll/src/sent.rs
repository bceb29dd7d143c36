//! The packets that were sent to the caller's port, and which of them are gone.
//!
//! Each has a [`Mark`], by which `ProcessSocketNotifications` recognises it when it dequeues it. The system's own calls
//! report nothing. But a port says how long its queue is, and the queue is first in, first out. So when a packet is
//! sent, it is known how many packets have to leave until it is gone; and each time the queue is shorter than before,
//! some have left.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::kernel::MARKS;

/// How long a packet is remembered if packets of others may hide that it is gone: they do if one arrives for each that
/// leaves between two readings of the length.
const PATIENCE: Duration = Duration::from_secs(1);

/// Identifies a packet: its registration, and which of the registration's packets it is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) id: u32,
    /// Distinguishes up to this many packets of one registration in the queue.
    pub(super) sequence: u8,
}

const SEQUENCE_BITS: u32 = 7;
const SEQUENCES: u8 = 1 << SEQUENCE_BITS;

/// The ids of registrations are below this.
pub(super) const IDS: u32 = MARKS >> SEQUENCE_BITS;

impl Mark {
    pub(super) fn from_bits(bits: u32) -> Self {
        Mark {
            id: bits >> SEQUENCE_BITS,
            sequence: bits as u8 % SEQUENCES,
        }
    }

    /// The mark of the next packet of this registration.
    pub(super) fn next(self) -> Self {
        Mark {
            sequence: (self.sequence + 1) % SEQUENCES,
            ..self
        }
    }

    pub(super) fn bits(self) -> u32 {
        self.id << SEQUENCE_BITS | u32::from(self.sequence)
    }
}

#[derive(Default)]
pub(super) struct Sent {
    /// Packets that are not known to be gone.
    packets: VecDeque<Packet>,
    /// How many were sent in total.
    count: u64,
    /// The queue's length when it was read last.
    depth: u64,
    /// How many packets are known to have left.
    gone: u64,
    /// Whether the port has ever had packets of others.
    mixed: bool,
    /// Whether `ProcessSocketNotifications` has ever dequeued one of these.
    taken: bool,
    /// Whether one was ever missing for so long that another call has probably dequeued it.
    missed: bool,
}

struct Packet {
    position: u64,
    id: u32,
    /// It is gone when this many have left.
    goal: u64,
    since: Instant,
}

impl Sent {
    pub(super) fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// A packet was sent, and the queue has this length now. Returns its position.
    pub(super) fn add(&mut self, id: u32, depth: u64) -> u64 {
        self.depth += 1;
        self.read(depth);
        self.count += 1;
        self.packets.push_back(Packet {
            position: self.count,
            id,
            goal: self.gone + self.depth,
            since: Instant::now(),
        });
        self.meet_others();
        self.count
    }

    /// The queue has this length now.
    pub(super) fn read(&mut self, depth: u64) {
        self.gone += self.depth.saturating_sub(depth);
        self.depth = depth;
    }

    /// The next packet that is known to be gone: its registration, and its position.
    pub(super) fn next_gone(&mut self) -> Option<(u32, u64)> {
        let is_gone = self.packets.front().is_some_and(|first| {
            let is_missed =
                first.goal > self.gone && self.mixed && first.since.elapsed() >= PATIENCE;
            self.missed |= is_missed;
            first.goal <= self.gone || is_missed
        });
        if !is_gone {
            self.meet_others();
            return None;
        }
        let first = self.packets.pop_front()?;
        Some((first.id, first.position))
    }

    /// `ProcessSocketNotifications` has dequeued the packet at this position.
    pub(super) fn remove(&mut self, position: u64) {
        self.taken = true;
        let index = self
            .packets
            .binary_search_by_key(&position, |packet| packet.position);
        if let Ok(index) = index {
            self.packets.remove(index);
        }
    }

    /// A packet of others was dequeued.
    pub(super) fn meet_other(&mut self) {
        self.mixed = true;
    }

    /// Notes whether the queue is longer than the packets that are not known to be gone.
    fn meet_others(&mut self) {
        self.mixed |= self.depth > self.packets.len() as u64;
    }

    /// Whether it is certain which packets are gone: the port has never had packets of others, or
    /// `ProcessSocketNotifications` dequeues all of these.
    pub(super) fn is_certain(&self) -> bool {
        !self.mixed || (self.taken && !self.missed)
    }
}
