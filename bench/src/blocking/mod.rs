//! What handlers that block cost: 64 connections, a byte under way on each, in a closed loop; and how long another connection
//! waits while handlers that come at once block.
//!
//! Whoever blocks is the same for all servers. What counts is how many requests are answered all in all, and how long those
//! take whose handlers do not block.

#[cfg(feature = "sqlite")]
mod lookup;
mod servers;
mod stalls;

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::fs::OFlags;

use self::servers::{BLOCKING, SIDES, Work};
use crate::client::{self, Load, QUICK};
use crate::compare::Options;
use crate::random::Random;
use crate::stopwatch::Stopwatch;

type Prepare = fn() -> io::Result<Work>;

/// What some handlers do, and how many percent of them do it.
const CASES: &[(&str, usize, Prepare)] = &[
    // The server has one processor, and its client the other.
    #[cfg(feature = "sqlite")]
    (LOOKUP, 100, look_up),
    ("none blocks", 0, sleep),
    ("1 % sleep 50 ms", 1, sleep),
    ("5 % sleep 50 ms", 5, sleep),
    ("20 % sleep 50 ms", 20, sleep),
    ("each sleeps 0.3 ms", 100, || {
        Ok(work(|| thread::sleep(BRIEF)))
    }),
    ("each computes 15 ms", 100, || {
        Ok(work(|| compute(COMPUTED)))
    }),
    ("5 % take a lock for 50 ms", 5, lock),
    ("5 % read from the disk", 5, read),
];

const LOOKUP: &str = "each looks a row up in SQLite";
const CONNECTIONS: usize = 64;
const TIME: Duration = Duration::from_millis(50);
const BRIEF: Duration = Duration::from_micros(300);
/// Of a processor. It is shorter, as nothing else goes on meanwhile.
const COMPUTED: Duration = Duration::from_millis(15);
const LOCKS: usize = 16;
const READS: usize = 16;
const BLOCK: usize = 4096;
/// 64 MiB.
const BLOCKS: u64 = 16 * 1024;
const ROUNDS: usize = 5;
/// A measurement is at least this long, in milliseconds: all connections may wait for one that blocks, and nobody is answered
/// meanwhile.
const LEAST: usize = 200;

pub(crate) fn run(options: &Options) -> io::Result<()> {
    for &(case, blocking, work) in CASES {
        if !options.wants(case) {
            continue;
        }
        let work = work()?;
        let milliseconds = options.milliseconds.max(LEAST);
        // To say that a handler blocks helps where it does for long.
        let sides: Vec<_> = SIDES
            .into_iter()
            .chain(case.starts_with("5 %").then_some(BLOCKING))
            .collect();
        options.compare(case, ROUNDS, &sides, |serve| {
            let load = Load::Bytes { blocking };
            let is_apart = case == LOOKUP;
            let serve =
                |streams: Vec<_>, until: crate::servers::Until<'_>| serve(&work, streams, until);
            client::measure(load, CONNECTIONS, milliseconds, is_apart, serve).map(Some)
        })?;
    }
    stalls::run(options)
}

/// For requests that are not quick.
fn work(block: impl Fn() + Send + Sync + 'static) -> Work {
    Arc::new(move |byte| {
        if byte != QUICK {
            block();
        }
    })
}

fn sleep() -> io::Result<Work> {
    Ok(work(|| thread::sleep(TIME)))
}

#[cfg(feature = "sqlite")]
fn look_up() -> io::Result<Work> {
    let rows = lookup::Rows::new()?;
    Ok(work(move || rows.look_up()))
}

/// One of 16 locks.
fn lock() -> io::Result<Work> {
    let locks = [const { Mutex::new(()) }; LOCKS];
    let next = AtomicUsize::new(0);
    Ok(work(move || {
        let lock = &locks[next.fetch_add(1, Ordering::Relaxed) % LOCKS];
        let _guard = lock.lock().unwrap_or_else(PoisonError::into_inner);
        thread::sleep(TIME);
    }))
}

/// 16 blocks of 4 KiB, one after another, past the system's memory.
fn read() -> io::Result<Work> {
    let file = uncached_file()?;
    let next = AtomicU64::new(1);
    Ok(work(move || {
        let mut random = Random::new(next.fetch_add(1, Ordering::Relaxed));
        let mut memory = [0; 2 * BLOCK];
        let begin = memory.as_ptr().align_offset(BLOCK);
        let block = &mut memory[begin..begin + BLOCK];
        for _ in 0..READS {
            let offset = random.next() % BLOCKS * BLOCK as u64;
            let read = file.read_exact_at(block, offset);
            read.expect("the file is as long as that");
        }
    }))
}

/// So much time of a processor, however long it takes to get it.
fn compute(time: Duration) {
    let stopwatch = Stopwatch::of_thread();
    while stopwatch.cpu() < time {
        (0..1000).for_each(|_| std::hint::spin_loop());
    }
}

/// Reads of it do not go through the system's memory.
fn uncached_file() -> io::Result<File> {
    let mut file = tempfile::NamedTempFile::new()?;
    for block in 0..BLOCKS {
        file.write_all(&[block as u8; BLOCK])?;
    }
    file.as_file().sync_all()?;
    let mut options = OpenOptions::new();
    let options = options
        .read(true)
        .custom_flags(OFlags::DIRECT.bits() as i32);
    options.open(file.path())
}
