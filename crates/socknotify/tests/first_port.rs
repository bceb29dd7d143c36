//! A process is forked while one of its threads makes the first port that it ever had (G3).
//!
//! A program of its own, which makes no port itself: each round takes place in a new child, which is
//! forked once more at that moment. The children allocate, and make threads, which the C library allows.

#![cfg(unix)]

#[macro_use]
mod support;

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use socknotify::{Backend, CompletionPort, Error, EventFilter, Events, Registration};

use support::trigger::ONCE;
use support::{Child, Pair};

/// How often. The moment lasts a few microseconds, and is searched for within a quarter of a millisecond.
const ROUNDS: u64 = 300;

/// The exit status that says that a child was killed by its alarm.
const HANGS: u8 = 100;

/// The exit status of a child that does `work`, or `None` if it was killed after so many seconds.
fn in_a_child(seconds: u32, work: impl FnOnce() -> u8) -> io::Result<Option<i32>> {
    Ok(Child::fork_for(seconds, work)?.status())
}

/// Makes a port, and sees that it works. 0 if so.
fn make_a_port(pair: &Pair) -> u8 {
    let Ok(port) = CompletionPort::builder().backend(Backend::ALL[0]).build() else {
        return 1;
    };
    let enable = Registration::enable(&pair.ours, 1, EventFilter::OUT, ONCE);
    match port.register(enable) {
        Ok(()) => {}
        _ => return 2,
    }
    match port.dequeue_one(Some(Duration::ZERO)) {
        Ok(entry) if entry.events() == Events::OUT => {}
        _ => return 3,
    }
    // And it knows whose it is.
    match in_a_child(20, || u8::from(port.snapshot().queued != 0)) {
        Ok(Some(0)) => {}
        _ => return 4,
    }
    let refused = in_a_child(20, || {
        u8::from(port.dequeue_one(None) != Err(Error::OtherProcess))
    });
    match refused {
        Ok(Some(0)) => 0,
        _ => 5,
    }
}

fn spin(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        std::hint::spin_loop();
    }
}

/// One thread makes the first port of this process, and so much later the other forks.
fn fork_meanwhile(pair: &Pair, later: Duration) -> u8 {
    let begin = AtomicBool::new(false);
    thread::scope(|scope| {
        let first = scope.spawn(|| {
            while !begin.load(Ordering::Acquire) {
                std::hint::spin_loop();
            }
            CompletionPort::builder().backend(Backend::ALL[0]).build()
        });
        // It spins by then.
        spin(Duration::from_micros(200));
        begin.store(true, Ordering::Release);
        spin(later);
        let status = in_a_child(50, || make_a_port(pair));
        match (status, first.join()) {
            (Ok(Some(status)), Ok(Ok(_))) => status as u8,
            (Ok(None), _) => HANGS,
            _ => 101,
        }
    })
}

#[test]
fn g3_a_child_makes_a_port_while_a_thread_of_its_parent_makes_its_first() -> io::Result<()> {
    let pair = Pair::unix()?;
    for round in 0..ROUNDS {
        let later = Duration::from_nanos(round * 7919 % 250_000);
        let status = in_a_child(90, || fork_meanwhile(&pair, later))?;
        assert_eq!(
            status,
            Some(0),
            "round {round}, {later:?}: {HANGS} is a hang"
        );
    }
    Ok(())
}
