//! What a port keeps in memory: a small fixed record for each registration, and no buffer (A6).
//!
//! A program of its own, because it counts what every thread allocates.

// What stands in for a kernel allocates, too.
#![cfg(all(unix, not(kqueue_stand_in)))]

#[macro_use]
extern crate socknotify_test_macros;

#[macro_use]
mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use socknotify::owned::{Event, Interest, Port};
use socknotify::{Backend, Entry, EventFilter, Events, Registration};

use support::trigger::{EVERY, LEVEL, ONCE};
use support::{Pair, PortExt, drain_port, port, port_with, raise_limit};

thread_local! {
    /// How many bytes this thread has allocated and not freed, and how often it has allocated.
    static HELD: Cell<(isize, usize)> = const { Cell::new((0, 0)) };
}

struct Counting;

fn count(bytes: isize) {
    // At the very end of a thread there is nothing left to count in.
    let _ = HELD.try_with(|held| {
        let (sum, times) = held.get();
        held.set((sum + bytes, times + usize::from(bytes > 0)));
    });
}

// SAFETY: it does what the system's allocator does, and counts.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller keeps to the same conditions.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller keeps to the same conditions.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn bytes() -> isize {
    HELD.get().0
}

fn allocations() -> usize {
    HELD.get().1
}

#[for_every_backend]
fn a6_an_idle_registration_costs_a_small_fixed_record(backend: Backend) -> io::Result<()> {
    // A record of a few machine words, with room to grow into.
    const ENOUGH: usize = 256;
    // Other tests of this program need a few, too.
    let count = 3000.min((raise_limit()? - 200) / 3);
    let port = port(backend)?;
    let pairs = (0..count)
        .map(|_| Pair::unix())
        .collect::<io::Result<Vec<_>>>()?;
    let before = bytes();
    for (key, pair) in pairs.iter().enumerate() {
        let trigger = EVERY[key % 4];
        port.enable(&pair.ours, key, EventFilter::IN, trigger)?;
    }
    // Every other number is the peer's. It has a part in what a table by numbers costs.
    let each = (bytes() - before) as usize / count;
    assert!(each <= ENOUGH * 2, "{each} bytes for each registration");
    Ok(())
}

#[for_every_backend]
fn a6_traffic_does_not_make_a_registration_cost_more(backend: Backend) -> io::Result<()> {
    const BYTES: usize = 1 << 16;
    let port = port(backend)?;
    let pairs = (0..50)
        .map(|_| Pair::unix())
        .collect::<io::Result<Vec<_>>>()?;
    let mut entries = [Entry::default(); 64];
    let mut buffer = vec![0; BYTES];
    let enable = |key: usize| Registration::enable(&pairs[key].ours, key, EventFilter::IN, ONCE);
    let mut turn = || -> io::Result<()> {
        for (key, pair) in pairs.iter().enumerate() {
            port.register(enable(key))?;
            (&pair.theirs).write_all(&[7; BYTES])?;
        }
        let mut left = pairs.len();
        while left > 0 {
            for entry in port.dequeue(&mut entries, Some(Duration::ZERO))? {
                let pair = &pairs[entry.completion_key];
                (&pair.ours).read_exact(&mut buffer)?;
                left -= 1;
            }
        }
        Ok(())
    };
    // A thread keeps the memory of its calls from its first dequeue on.
    turn()?;
    turn()?;
    let before = bytes();
    for _ in 0..5 {
        turn()?;
    }
    assert!(bytes() <= before, "{} bytes more", bytes() - before);
    // REMOVE gives everything back that is worth it, or keeps it for the next.
    for pair in &pairs {
        port.register(Registration::remove(&pair.ours))?;
    }
    drain_port(&port);
    for _ in 0..5 {
        for (key, pair) in pairs.iter().enumerate() {
            port.register(enable(key))?;
            port.register(Registration::remove(&pair.ours))?;
        }
        drain_port(&port);
    }
    assert!(bytes() <= before + 4096, "{} bytes more", bytes() - before);
    Ok(())
}

/// The call that servers make over and over, with a buffer that is the caller's.
#[for_every_backend]
fn registering_again_and_dequeuing_allocates_nothing(backend: Backend) -> io::Result<()> {
    for trigger in [ONCE, LEVEL] {
        let port = port_with(backend, 1)?;
        let pairs = (0..8)
            .map(|_| Pair::unix())
            .collect::<io::Result<Vec<_>>>()?;
        let mut entries = [Entry::default(); 8];
        let mut turn = |batch: &mut [Registration<'_>]| -> io::Result<()> {
            for pair in &pairs {
                (&pair.theirs).write_all(b"x")?;
            }
            let mut left = pairs.len();
            let mut batch = batch;
            while left > 0 {
                for entry in port.process(batch, &mut entries, None)? {
                    let byte = (&pairs[entry.completion_key].ours).read(&mut [0]);
                    left -= usize::from(matches!(byte, Ok(1)));
                }
                batch = &mut [];
            }
            Ok(())
        };
        let mut batch: Vec<_> = pairs
            .iter()
            .enumerate()
            .map(|(key, pair)| Registration::enable(&pair.ours, key, EventFilter::IN, trigger))
            .collect();
        port.process(&mut batch, &mut [], Some(Duration::ZERO))?;
        for _ in 0..20 {
            turn(&mut batch)?;
        }
        let before = allocations();
        for _ in 0..200 {
            turn(&mut batch)?;
        }
        assert_eq!(allocations() - before, 0, "{trigger:?}");
    }
    Ok(())
}

#[for_every_backend]
fn posting_and_dequeuing_allocates_nothing(backend: Backend) -> io::Result<()> {
    let port = port_with(backend, 1)?;
    let pair = Pair::unix()?;
    port.enable(&pair.ours, 1, EventFilter::OUT, LEVEL)?;
    let mut entries = [Entry::default(); 32];
    let mut turn = || -> io::Result<()> {
        port.post_all(&[Entry::new(2, 0, 0); 20])?;
        let mut left = 20;
        while left > 0 {
            let found = port.dequeue(&mut entries, None)?;
            left -= found
                .iter()
                .filter(|entry| entry.completion_key == 2)
                .count();
            assert!(
                found
                    .iter()
                    .all(|entry| { entry.completion_key == 2 || entry.events() == Events::OUT })
            );
        }
        Ok(())
    };
    for _ in 0..20 {
        turn()?;
    }
    let before = allocations();
    for _ in 0..200 {
        turn()?;
    }
    assert_eq!(allocations() - before, 0);
    Ok(())
}

/// Beside others that stay.
#[for_every_backend]
fn a_thread_keeps_nothing_of_ports_that_are_gone(backend: Backend) -> io::Result<()> {
    for others in [1, 50] {
        let use_port = || -> io::Result<_> {
            let port = port_with(backend, 1)?;
            port.post(Entry::default())?;
            port.dequeue_one(None)?;
            Ok(port)
        };
        let before = bytes();
        let others = (0..others)
            .map(|_| use_port())
            .collect::<io::Result<Vec<_>>>()?;
        let each = (bytes() - before) / others.len() as isize;
        (0..1000).try_for_each(|_| use_port().map(drop))?;
        // Those that are gone are dropped when they are as many as those that stay.
        let most = each * (2 * others.len() as isize + 20);
        assert!(bytes() - before <= most, "{} of {most}", bytes() - before);
    }
    Ok(())
}

#[for_every_backend]
fn a_burst_of_messages_leaves_no_memory_behind(backend: Backend) -> io::Result<()> {
    const BURST: u64 = 100_000;
    let port = Port::<socket2::Socket, u64>::from(port(backend)?);
    let mut worker = port.worker(64);
    let mut send_and_take = |count| -> io::Result<()> {
        (0..count).try_for_each(|message| port.send(message))?;
        let mut taken = 0;
        while taken < count {
            worker.process(None)?;
            while let Some(event) = worker.take() {
                assert!(matches!(event, Event::Message(message) if message == taken));
                taken += 1;
            }
        }
        Ok(())
    };
    send_and_take(64)?;
    let before = bytes();
    send_and_take(BURST)?;
    // Of the messages and of their packets the memory for 4,096 is kept.
    let left = bytes() - before;
    assert!(left <= 512 << 10, "{left} bytes");
    Ok(())
}

/// With deadlines that move, too.
#[for_every_backend]
fn arming_and_taking_owned_connections_allocates_nothing(backend: Backend) -> io::Result<()> {
    const CONNECTIONS: usize = 20;
    let port = Port::<socket2::Socket, u64>::from(port(backend)?);
    let mut worker = port.worker(8);
    let mut peers = Vec::new();
    for _ in 0..CONNECTIONS {
        let pair = Pair::unix()?;
        pair.send()?;
        worker.arm(port.adopt(pair.ours)?, Interest::IN);
        peers.push(pair.theirs);
    }
    let mut turn = |time| -> io::Result<()> {
        port.send(time)?;
        worker.process(Some(Duration::from_secs(30)))?;
        while let Some(event) = worker.take() {
            match event {
                // It stays readable.
                Event::Ready(connection, Events::IN) => {
                    let soon = Interest::IN.within(Duration::from_millis(time));
                    worker.arm(connection, soon);
                }
                Event::TimedOut(connection) => worker.arm(connection, Interest::IN),
                Event::Message(_) => {}
                other => panic!("{other:?}"),
            }
        }
        Ok(())
    };
    // Until every place that a deadline can have was needed once.
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(500) {
        (0..200).try_for_each(|time| turn(time % 7))?;
    }
    // If the machine holds this thread up, more deadlines pass at once than ever before, and a list grows, once.
    let mut allocated = Vec::new();
    while !allocated.ends_with(&[0]) {
        let before = allocations();
        (0..2000).try_for_each(|time| turn(time % 7))?;
        allocated.push(allocations() - before);
        assert!(allocated.len() <= 10, "{allocated:?}");
    }
    Ok(())
}
