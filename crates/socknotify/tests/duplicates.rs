//! Sockets that were closed under their registered numbers and live on under others (C5, G3).
//!
//! A program of its own, one test after the other, because of the numbers and of how many they are.

#![cfg(unix)]

#[macro_use]
extern crate socknotify_test_macros;

#[macro_use]
mod support;

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use socket2::Socket;
use socknotify::{Backend, CompletionPort, Entry, Error, EventFilter, Events, Registration};

use support::trigger::{EDGE, EDGE_ONCE, EVERY, LEVEL, ONCE};
use support::{
    PATIENCE, Pair, PortExt, drain_port, expect, expect_nothing, expect_quiet, expect_removed,
    port, port_with, raise_limit, rounds, take_number, thread_time,
};

static ALONE: Mutex<()> = Mutex::new(());

/// Until this is dropped no other of these tests runs, and many descriptors may be open.
fn alone() -> io::Result<MutexGuard<'static, ()>> {
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    raise_limit()?;
    Ok(alone)
}

/// More than are reported at once, and than anybody would keep a list of.
const MANY: usize = 700;

/// How long a port may take to come to rest.
const SETTLING: Duration = Duration::from_millis(500);

/// A wait of this length that takes almost no processor time shows that the port rests.
const WINDOW: Duration = Duration::from_millis(100);

/// Others who watch a socket. Linux tells them one after the other what begins to hold, the latest first.
struct Watchers {
    _sets: Vec<OwnedFd>,
    _duplicates: Vec<Socket>,
}

impl Watchers {
    const SETS: usize = if cfg!(target_os = "linux") { 100 } else { 0 };

    fn of(socket: &Socket) -> io::Result<Self> {
        let duplicates = (0..100).map(|_| socket.try_clone());
        let duplicates = duplicates.collect::<io::Result<Vec<_>>>()?;
        let sets = (0..Self::SETS).map(|_| watch(&duplicates));
        Ok(Watchers {
            _sets: sets.collect::<io::Result<_>>()?,
            _duplicates: duplicates,
        })
    }
}

#[cfg(target_os = "linux")]
fn watch(sockets: &[Socket]) -> io::Result<OwnedFd> {
    use rustix::event::epoll::{CreateFlags, EventData, EventFlags, add, create};
    let set = create(CreateFlags::CLOEXEC)?;
    for socket in sockets {
        add(&set, socket, EventData::new_u64(0), EventFlags::IN)?;
    }
    Ok(set)
}

#[cfg(not(target_os = "linux"))]
fn watch(_: &[Socket]) -> io::Result<OwnedFd> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Registers this many sockets, and closes their numbers while duplicates of them live. Then all become
/// ready. Returns what keeps them alive.
fn closed(
    port: &CompletionPort,
    count: usize,
    trigger: impl Fn(usize) -> socknotify::Trigger,
) -> io::Result<Vec<Pair>> {
    let pairs = (0..count)
        .map(|_| Pair::unix())
        .collect::<io::Result<Vec<_>>>()?;
    for (index, pair) in pairs.iter().enumerate() {
        let entry = Registration::enable(&pair.ours, index + 1, EventFilter::IN, trigger(index));
        port.register(entry)?;
    }
    let kept = pairs
        .into_iter()
        .map(|pair| {
            let ours = pair.ours.try_clone()?;
            Ok((pair.ours, Pair { ours, ..pair }))
        })
        .collect::<io::Result<Vec<_>>>()?;
    let (numbers, kept): (Vec<Socket>, Vec<Pair>) = kept.into_iter().unzip();
    drop(numbers);
    for pair in &kept {
        pair.send()?;
    }
    Ok(kept)
}

/// Nothing comes, and before long this thread sleeps while it waits.
#[track_caller]
fn expect_rest(port: &CompletionPort) {
    let begin = Instant::now();
    loop {
        let before = thread_time();
        let found = port.dequeue_one(Some(WINDOW));
        let events = found.map(|entry| entry.events());
        assert_eq!(found, Err(Error::TimedOut), "events: {events:?}");
        if thread_time() - before < WINDOW / 10 || begin.elapsed() >= SETTLING {
            return expect_quiet(port);
        }
    }
}

/// Dequeues the false notifications of [closed] sockets: one for each at most, since they became ready once.
#[track_caller]
fn take_false(port: &CompletionPort, count: usize) {
    let found = drain_port(port);
    let mut keys: Vec<_> = found.iter().map(|&(key, _)| key).collect();
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), found.len(), "one came twice");
    let is_of_one = |&(key, events): &(usize, Events)| key <= count && events == Events::IN;
    assert!(found.iter().all(is_of_one), "{found:?}");
}

#[for_every_backend]
fn g3_hundreds_of_duplicates_come_once_and_keep_nobody_busy(backend: Backend) -> io::Result<()> {
    let _alone = alone()?;
    for count in [257, 300, MANY] {
        for trigger in EVERY {
            let port = port(backend)?;
            let kept = closed(&port, count, |_| trigger)?;
            take_false(&port, count);
            expect_rest(&port);
            drop(kept);
            expect_nothing(&port);
        }
    }
    Ok(())
}

#[for_every_backend]
fn g3_hundreds_of_duplicates_leave_the_registered_sockets_alone(
    backend: Backend,
) -> io::Result<()> {
    let _alone = alone()?;
    let port = port(backend)?;
    let good = Pair::unix()?;
    let enable = || Registration::enable(&good.ours, 0, EventFilter::IN, ONCE);
    port.register(enable())?;
    let _kept = closed(&port, MANY, |index| EVERY[index % 4])?;
    let mut told = vec![0; MANY + 1];
    let mut entries = [Entry::default(); 64];
    for room in [1, 64] {
        for _ in 0..20 {
            good.send()?;
            let before = told[0];
            while told[0] == before {
                for entry in port.dequeue(&mut entries[..room], Some(PATIENCE))? {
                    assert_eq!(entry.events(), Events::IN);
                    told[entry.completion_key] += 1;
                }
            }
            good.drain()?;
            port.register(enable())?;
        }
    }
    assert!(told[1..].iter().all(|&times| times <= 1), "{told:?}");
    for (key, _) in drain_port(&port) {
        assert_eq!(told[key], 0);
    }
    expect_rest(&port);
    expect_removed(&port, &good.ours, 0)
}

/// A duplicate is ready, and the port has this many permits.
fn expect_rest_with(backend: Backend, permits: usize) -> io::Result<()> {
    let _alone = alone()?;
    for trigger in EVERY {
        let port = port_with(backend, permits)?;
        let kept = closed(&port, 1, |_| trigger)?;
        let before = thread_time();
        take_false(&port, 1);
        expect_rest(&port);
        let spent = thread_time() - before;
        assert!(
            spent < SETTLING / 5,
            "{spent:?} with {permits} permits, {trigger:?}"
        );
        drop(kept);
    }
    Ok(())
}

#[for_every_backend]
fn g3_a_duplicate_gives_no_busy_loop_however_many_permits_there_are(
    backend: Backend,
) -> io::Result<()> {
    for permits in [1_000, 1_000_000_000] {
        expect_rest_with(backend, permits)?;
    }
    Ok(())
}

#[for_every_backend]
fn g3_a_duplicate_gives_no_busy_loop_where_permits_are_unlimited(
    backend: Backend,
) -> io::Result<()> {
    for permits in [usize::MAX, usize::MAX - 8, usize::MAX / 2] {
        expect_rest_with(backend, permits)?;
    }
    Ok(())
}

/// The duplicate becomes ready. That is no edge of the socket that has the number now, and is readable.
#[for_every_backend]
fn g3_a_duplicate_gives_no_edge_to_who_has_its_number_now(backend: Backend) -> io::Result<()> {
    let _alone = alone()?;
    for old_trigger in [ONCE, EDGE_ONCE, LEVEL, EDGE] {
        for trigger in [EDGE, EDGE_ONCE] {
            for key in [1, 2] {
                let port = port(backend)?;
                let old = Pair::unix()?;
                let enable = Registration::enable(&old.ours, 1, EventFilter::IN, old_trigger);
                port.register(enable)?;
                let duplicate = old.ours.try_clone()?;
                let new = Pair::unix()?;
                new.send()?;
                let new = Pair {
                    ours: take_number(old.ours, new.ours)?,
                    ..new
                };
                let enable = Registration::enable(&new.ours, key, EventFilter::IN, trigger);
                port.register(enable)?;
                // What holds may be told at ENABLE.
                let found = drain_port(&port);
                assert!(
                    found.is_empty() || found == [(key, Events::IN)],
                    "{found:?}"
                );

                for _ in 0..50 {
                    (&old.theirs).write_all(b"x")?;
                    let found = drain_port(&port);
                    assert_eq!(found, [], "{old_trigger:?}, then {trigger:?}, key {key}");
                }
                expect_quiet(&port);
                // Its own edge comes.
                new.drain()?;
                port.enable(&new.ours, key, EventFilter::IN, trigger)?;
                expect_nothing(&port);
                new.send()?;
                expect(&port, &[(key, Events::IN)]);
                drop(duplicate);
                expect_removed(&port, &new.ours, key)?;
            }
        }
    }
    Ok(())
}

/// The same while the filter changes.
#[for_every_backend]
fn c5_no_edge_is_lost_that_others_hear_of_while_the_filter_changes(
    backend: Backend,
) -> io::Result<()> {
    let _alone = alone()?;
    let port = port(backend)?;
    let pair = Pair::unix()?;
    let filters = [EventFilter::IN, EventFilter::ALL];
    port.enable(&pair.ours, 0, filters[1], EDGE)?;
    let _watchers = Watchers::of(&pair.ours)?;
    send_while(&port, &pair, rounds(1000), 300, |round| {
        port.enable(&pair.ours, 0, filters[round % 2], EDGE)?;
        Ok(Events::empty())
    })
}

/// In each round does something while another thread sends, and returns what came of it. The edge has to come.
fn send_while(
    port: &CompletionPort,
    pair: &Pair,
    count: usize,
    spins: u32,
    mut act: impl FnMut(usize) -> io::Result<Events>,
) -> io::Result<()> {
    let [begun, sent] = [const { AtomicUsize::new(0) }; 2];
    // Both at the same time: neither sleeps.
    let wait_for = |number: &AtomicUsize, round| {
        while number.load(Ordering::SeqCst) < round {
            thread::yield_now();
        }
    };
    let pause = |rng: &mut fastrand::Rng| {
        (0..rng.u32(..spins)).for_each(|_| std::hint::spin_loop());
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut rng = fastrand::Rng::with_seed(7);
            for round in 1.. {
                wait_for(&begun, round);
                if begun.load(Ordering::SeqCst) > count {
                    return;
                }
                pause(&mut rng);
                assert_eq!((&pair.theirs).write(b"x").expect("there is room"), 1);
                sent.store(round, Ordering::SeqCst);
            }
        });
        let mut rng = fastrand::Rng::with_seed(8);
        let result = (1..=count).try_for_each(|round| {
            begun.store(round, Ordering::SeqCst);
            pause(&mut rng);
            let mut found = act(round)?;
            wait_for(&sent, round);
            // Whether OUT rises when it joins the filter is not what this is about.
            while !found.contains(Events::IN) {
                let entry = port.dequeue_one(Some(PATIENCE));
                let entry = entry.map_err(|error| format!("the edge of round {round}: {error}"));
                found |= entry.map_err(io::Error::other)?.events();
            }
            pair.drain()?;
            drain_port(port);
            Ok(())
        });
        begun.store(usize::MAX, Ordering::SeqCst);
        result
    })
}
