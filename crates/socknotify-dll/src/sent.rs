//! What is known of the packets that were sent to the caller's port.
//!
//! Each carries a [`Mark`]: who takes one by `ProcessSocketNotifications` says which. Of those that are taken
//! by the system's own calls nobody tells. But a port says how many packets wait in it, and it is a queue: of
//! a packet behind which nothing came it is known how many have to go until it is gone, and each time that
//! fewer wait than before, some have gone.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::kernel::MARKS;

/// How long a packet is remembered that others' may hide. They do when, each time that the depth is read,
/// one has come for each that went.
const PATIENCE: Duration = Duration::from_secs(1);

/// What a packet carries: the registration that it is of, and which of its packets it is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) id: u32,
    /// Of so many of one registration that wait at once, each is told from the others.
    pub(super) sequence: u8,
}

const SEQUENCE_BITS: u32 = 7;
const SEQUENCES: u8 = 1 << SEQUENCE_BITS;

/// No registration has as high an id.
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
    /// Those that are not known to be gone.
    packets: VecDeque<Packet>,
    /// How many were sent, ever.
    count: u64,
    /// How many packets waited when the depth was read last.
    depth: u64,
    /// How many packets have been seen to go.
    gone: u64,
    /// Whether packets of others were ever seen.
    mixed: bool,
    /// Whether one of ours was ever taken by `ProcessSocketNotifications`.
    taken: bool,
    /// Whether one was ever missed for so long that something else has probably taken it.
    missed: bool,
}

struct Packet {
    position: u64,
    id: u32,
    /// It is gone when as many are.
    goal: u64,
    since: Instant,
}

impl Sent {
    pub(super) fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// A packet was sent, and so many wait now. Returns its position.
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

    /// So many packets wait now.
    pub(super) fn read(&mut self, depth: u64) {
        self.gone += self.depth.saturating_sub(depth);
        self.depth = depth;
    }

    /// The next packet that is known to be gone: the registration that it is of, and its position.
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

    /// The packet at this position was taken by `ProcessSocketNotifications`.
    pub(super) fn remove(&mut self, position: u64) {
        self.taken = true;
        let index = self
            .packets
            .binary_search_by_key(&position, |packet| packet.position);
        if let Ok(index) = index {
            self.packets.remove(index);
        }
    }

    /// A packet was taken that is not ours.
    pub(super) fn meet_other(&mut self) {
        self.mixed = true;
    }

    /// More wait than ours that are not known to be gone.
    fn meet_others(&mut self) {
        self.mixed |= self.depth > self.packets.len() as u64;
    }

    /// Whether nothing speaks against knowing which packets are gone: ours are the only ones, ever, or all are
    /// taken by `ProcessSocketNotifications`.
    pub(super) fn is_certain(&self) -> bool {
        !self.mixed || (self.taken && !self.missed)
    }
}
