//! [`Wheel`]: a hierarchical timing wheel. The cost to set, move or remove a deadline does not depend on their
//! number.
//!
//! Time is counted in ticks. Level 0 has a slot for each of the next 64 ticks, level 1 one for each of
//! the next 64 times 64, and so on. As time passes, the content of a slot of a higher level moves down.

#[cfg(all(test, not(interleavings)))]
mod tests;

const BITS: u32 = 6;
const SLOTS: usize = 1 << BITS;
const LEVELS: usize = 6;

/// The range of the wheel, in ticks: with ticks of a millisecond, two years. Times beyond it are
/// checked again then.
const REACH: u64 = (SLOTS as u64 - 1) << (BITS * (LEVELS as u32 - 1));

const NONE: u32 = u32::MAX;

/// An element of a doubly linked list, one for each slot; lists are linked by index.
#[derive(Clone, Copy, Debug)]
struct Link {
    at: u64,
    /// Which list this is in, if any.
    list: Option<u16>,
    next: u32,
    previous: u32,
}

const UNLINKED: Link = Link {
    at: 0,
    list: None,
    next: NONE,
    previous: NONE,
};

/// Times for indices. An index has at most one time.
#[derive(Debug)]
pub struct Wheel {
    now: u64,
    links: Vec<Link>,
    /// Not in the wheel itself, for which a thread's stack may have no room as it is made.
    heads: Vec<u32>,
    /// Which lists of a level are not empty.
    occupied: [u64; LEVELS],
}

impl Wheel {
    /// A wheel without times, at time 0.
    #[allow(clippy::new_without_default, reason = "nobody asks for one")]
    pub fn new() -> Self {
        Wheel {
            now: 0,
            links: Vec::new(),
            heads: vec![NONE; SLOTS * LEVELS],
            occupied: [0; LEVELS],
        }
    }

    /// Set the time of an index, in place of an earlier one. A time in the past is reported next.
    pub fn set(&mut self, index: u32, at: u64) {
        self.unset(index);
        let position = index as usize;
        if self.links.len() <= position {
            self.links.resize(position + 1, UNLINKED);
        }
        self.link(index, at.max(self.now + 1));
    }

    /// Remove the time of an index.
    pub fn unset(&mut self, index: u32) {
        let Some(&link) = self.links.get(index as usize) else {
            return;
        };
        let Some(list) = link.list else { return };
        match link.previous {
            NONE => self.heads[usize::from(list)] = link.next,
            previous => self.links[previous as usize].next = link.next,
        }
        if link.next != NONE {
            self.links[link.next as usize].previous = link.previous;
        }
        if self.heads[usize::from(list)] == NONE {
            self.occupied[usize::from(list) / SLOTS] &= !(1 << (usize::from(list) % SLOTS));
        }
        self.links[index as usize] = UNLINKED;
    }

    /// The time of an index.
    pub fn time(&self, index: u32) -> Option<u64> {
        let link = self.links.get(index as usize)?;
        link.list.map(|_| link.at)
    }

    fn link(&mut self, index: u32, at: u64) {
        let (level, slot) = self.place(at);
        let list = level * SLOTS + slot;
        let next = self.heads[list];
        if next != NONE {
            self.links[next as usize].previous = index;
        }
        self.links[index as usize] = Link {
            at,
            list: Some(list as u16),
            next,
            previous: NONE,
        };
        self.heads[list] = index;
        self.occupied[level] |= 1 << slot;
    }

    /// The list for a time in the future.
    fn place(&self, at: u64) -> (usize, usize) {
        let at = at.min(self.now + REACH);
        // The highest bit in which it differs from now determines the level. The highest level wraps around.
        let differs = (at ^ self.now) | 1;
        let level = ((63 - differs.leading_zeros()) / BITS).min(LEVELS as u32 - 1);
        (level as usize, (at >> (level * BITS)) as usize % SLOTS)
    }

    /// When to advance next: at the next time, or before it.
    pub fn next(&self) -> Option<u64> {
        let mut earliest: Option<u64> = None;
        for (level, &occupied) in self.occupied.iter().enumerate() {
            if occupied == 0 {
                continue;
            }
            let shift = level as u32 * BITS;
            let position = (self.now >> shift) as u32 % SLOTS as u32;
            // The first list that is not empty, after the present one.
            let ahead = occupied.rotate_right(position + 1).trailing_zeros() + 1;
            let at = ((self.now >> shift) + u64::from(ahead)) << shift;
            earliest = Some(earliest.map_or(at, |earliest| earliest.min(at)));
        }
        earliest
    }

    /// Advance to this time, and return the indices whose times have passed.
    pub fn advance(&mut self, now: u64, mut is_over: impl FnMut(u32)) {
        while let Some(next) = self.next().filter(|&next| next <= now) {
            self.now = next;
            for level in (0..LEVELS).rev() {
                let shift = level as u32 * BITS;
                if next & ((1 << shift) - 1) != 0 {
                    continue;
                }
                let list = level * SLOTS + (next >> shift) as usize % SLOTS;
                let mut index = std::mem::replace(&mut self.heads[list], NONE);
                self.occupied[level] &= !(1 << (list % SLOTS));
                while index != NONE {
                    let Link { at, next, .. } = self.links[index as usize];
                    self.links[index as usize] = UNLINKED;
                    match at <= self.now {
                        true => is_over(index),
                        false => self.link(index, at),
                    }
                    index = next;
                }
            }
        }
        self.now = self.now.max(now);
    }
}
