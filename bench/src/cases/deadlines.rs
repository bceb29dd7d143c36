//! What a deadline costs, by how many there are: the wheel of the owning port against the standard
//! library's queues.
//!
//! Every index gets a deadline, has it pushed back once, as an idle time is by each request, and lives
//! to see it pass. Nothing else is done: no socket, no thread, no lock.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::io;

use socknotify::interface::Wheel;

use crate::case::{Axis, Case, Parameter, Trial};
use crate::figure::{Figure, Sample};
use crate::implementation::Implementation;
use crate::stopwatch::Stopwatch;

pub(crate) const CASE: Case = Case {
    name: "deadlines",
    about: "no socket: a deadline set, pushed back, and passed",
    compared_by: Figure::Cpu,
    axes: &[Axis {
        parameter: Parameter::Deadlines,
        values: &[100, 10_000, 1_000_000],
        quick: &[100, 10_000],
    }],
    implementations: || {
        use Implementation::*;
        vec![Heap, Tree, Wheel]
    },
    parts: 1,
    is_counted: false,
    prepare: |setting, _| {
        let count = setting.get(Parameter::Deadlines) as u32;
        Ok(Box::new(Deadlines { count }))
    },
};

/// Deadlines lie within this many ticks.
const RANGE: u64 = 60_000;

/// A queue of deadlines by index.
trait Queue {
    fn new(count: u32) -> Self;
    fn set(&mut self, index: u32, at: u64);
    /// Let time pass, and say how many deadlines have passed with it.
    fn advance(&mut self, now: u64) -> usize;
}

impl Queue for Wheel {
    fn new(_: u32) -> Self {
        Wheel::new()
    }

    fn set(&mut self, index: u32, at: u64) {
        Wheel::set(self, index, at);
    }

    fn advance(&mut self, now: u64) -> usize {
        let mut count = 0;
        Wheel::advance(self, now, |_| count += 1);
        count
    }
}

/// A heap with what was pushed back left in it until it comes up.
struct Heap {
    heap: BinaryHeap<Reverse<(u64, u32)>>,
    current: Vec<u64>,
}

impl Queue for Heap {
    fn new(count: u32) -> Self {
        Heap {
            heap: BinaryHeap::new(),
            current: vec![0; count as usize],
        }
    }

    fn set(&mut self, index: u32, at: u64) {
        self.current[index as usize] = at;
        self.heap.push(Reverse((at, index)));
    }

    fn advance(&mut self, now: u64) -> usize {
        let mut count = 0;
        while let Some(&Reverse((at, index))) = self.heap.peek() {
            if at > now {
                break;
            }
            self.heap.pop();
            count += usize::from(self.current[index as usize] == at);
        }
        count
    }
}

/// A sorted set.
struct Tree {
    set: BTreeSet<(u64, u32)>,
    current: Vec<u64>,
}

impl Queue for Tree {
    fn new(count: u32) -> Self {
        Tree {
            set: BTreeSet::new(),
            current: vec![0; count as usize],
        }
    }

    fn set(&mut self, index: u32, at: u64) {
        let before = std::mem::replace(&mut self.current[index as usize], at);
        self.set.remove(&(before, index));
        self.set.insert((at, index));
    }

    fn advance(&mut self, now: u64) -> usize {
        let mut count = 0;
        while self.set.first().is_some_and(|&(at, _)| at <= now) {
            self.set.pop_first();
            count += 1;
        }
        count
    }
}

/// Time for each deadline, all that happens to it together.
fn measure<Q: Queue>(count: u32) -> io::Result<Sample> {
    // A generator of numbers that anybody can write down: xorshift.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        1 + state % RANGE
    };
    let stopwatch = Stopwatch::of_thread();
    let mut queue = Q::new(count);
    for index in 0..count {
        queue.set(index, random());
    }
    for index in 0..count {
        queue.set(index, RANGE + random());
    }
    let mut passed = 0;
    for now in 0..=2 * RANGE {
        passed += queue.advance(now);
    }
    let sample = stopwatch.per(passed);
    match passed == count as usize {
        true => Ok(sample),
        false => Err(io::Error::other("deadlines were lost")),
    }
}

struct Deadlines {
    count: u32,
}

impl Trial for Deadlines {
    fn measure(&mut self, implementation: Implementation) -> io::Result<Option<Sample>> {
        let sample = match implementation {
            Implementation::Wheel => measure::<Wheel>(self.count)?,
            Implementation::Heap => measure::<Heap>(self.count)?,
            Implementation::Tree => measure::<Tree>(self.count)?,
            _ => return Ok(None),
        };
        Ok(Some(sample))
    }
}
