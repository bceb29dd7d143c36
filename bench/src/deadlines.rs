//! What a deadline costs, by how many there are: the wheel of the owning port against the standard
//! library's queues.
//!
//! Every index gets a deadline, has it pushed back once, as an idle time is by each request, and lives
//! to see it pass. Nothing else is done: no socket, no thread, no lock.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::io;
use std::time::Instant;

use crate::median;

/// The library's own, which is not public.
#[path = "../../crates/socknotify/src/owned/wheel.rs"]
mod wheel;

use self::wheel::Wheel;

/// Deadlines lie within this many ticks.
const RANGE: u64 = 60_000;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Numbers of deadlines at a time.
    #[arg(long, value_delimiter = ',', default_value = "100,10000,1000000")]
    deadlines: Vec<u32>,
    /// Rounds; the median counts.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
}

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

/// Nanoseconds for each deadline, all that happens to it together.
fn measure<Q: Queue>(count: u32) -> io::Result<f64> {
    // A generator of numbers that anybody can write down: xorshift.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        1 + state % RANGE
    };
    let begin = Instant::now();
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
    let time = begin.elapsed();
    match passed == count as usize {
        true => Ok(time.as_nanos() as f64 / f64::from(count)),
        false => Err(io::Error::other("deadlines were lost")),
    }
}

pub(crate) fn run(options: &Options) -> io::Result<()> {
    println!(
        "deadlines: nanoseconds for each, to set, push back and pass; median of {} rounds",
        options.rounds
    );
    println!(
        "{:>10} {:>8} {:>8} {:>8}",
        "deadlines", "wheel", "heap", "tree"
    );
    for &count in &options.deadlines {
        let mut times = [Vec::new(), Vec::new(), Vec::new()];
        for _ in 0..options.rounds {
            times[0].push(measure::<Wheel>(count)?);
            times[1].push(measure::<Heap>(count)?);
            times[2].push(measure::<Tree>(count)?);
        }
        let [wheel, heap, tree] = times.map(median);
        println!("{count:>10} {wheel:>8.0} {heap:>8.0} {tree:>8.0}");
    }
    Ok(())
}
