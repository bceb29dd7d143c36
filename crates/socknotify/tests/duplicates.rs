//! Sockets that were closed under their registered numbers and live on under others (C5, G3).
//!
//! A program of its own, one test after the other, because of the numbers and of how many they are.

#![cfg(unix)]

#[macro_use]
extern crate socknotify_test_macros;

#[macro_use]
mod support;

use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use socket2::Socket;
use socknotify::{Backend, CompletionPort, Entry, Error, EventFilter, Events, Registration};

use support::trigger::{EDGE, EDGE_ONCE, EVERY, LEVEL, ONCE};
use support::{
    Pair, counted_without_closed, drain_port, expect, expect_nothing, expect_quiet, expect_removed,
    port, port_with, raise_limit, take_number, thread_time,
};

static ALONE: Mutex<()> = Mutex::new(());

/// More than are reported at once, and than anybody would keep a list of.
const MANY: usize = 700;

/// How long a port may take to clean up. It takes a few milliseconds.
const SETTLING: Duration = Duration::from_millis(500);

/// A wait of this length that takes almost no processor time shows that the port has cleaned up.
const WINDOW: Duration = Duration::from_millis(100);

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

#[for_every_backend]
fn g3_hundreds_of_duplicates_give_no_false_notification_and_no_busy_loop(
    backend: Backend,
) -> io::Result<()> {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    raise_limit()?;
    for count in [257, 300, MANY] {
        for trigger in EVERY {
            let port = port(backend)?;
            let kept = closed(&port, count, |_| trigger)?;
            expect_rest(&port);
            assert_eq!(counted_without_closed(&port), 0, "{count}, {trigger:?}");
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
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    raise_limit()?;
    let port = port(backend)?;
    let good = Pair::unix()?;
    let enable = || Registration::enable(&good.ours, 0, EventFilter::IN, ONCE);
    port.register(enable())?;
    let _kept = closed(&port, MANY, |index| EVERY[index % 4])?;
    for _ in 0..20 {
        good.send()?;
        expect(&port, &[(0, Events::IN)]);
        good.drain()?;
        port.register(enable())?;
    }
    expect_rest(&port);
    // With some room as well.
    good.send()?;
    let mut entries = [Entry::default(); 64];
    let found = port.dequeue(&mut entries, Some(SETTLING))?;
    assert_eq!(found.len(), 1);
    assert_eq!(
        (found[0].completion_key, found[0].events()),
        (0, Events::IN)
    );
    expect_removed(&port, &good.ours, 0)
}

/// A duplicate is ready, and the port has this many places.
fn expect_rest_with(backend: Backend, places: usize) -> io::Result<()> {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for trigger in EVERY {
        let port = port_with(backend, places)?;
        let kept = closed(&port, 1, |_| trigger)?;
        let before = thread_time();
        expect_rest(&port);
        let spent = thread_time() - before;
        // Not even while the port finds out.
        assert!(
            spent < SETTLING / 5,
            "{spent:?} with {places} places, {trigger:?}"
        );
        assert_eq!(counted_without_closed(&port), 0);
        drop(kept);
    }
    Ok(())
}

#[for_every_backend]
fn g3_a_duplicate_gives_no_busy_loop_however_many_places_there_are(
    backend: Backend,
) -> io::Result<()> {
    for places in [1_000, 1_000_000_000] {
        expect_rest_with(backend, places)?;
    }
    Ok(())
}

#[for_every_backend]
fn g3_a_duplicate_gives_no_busy_loop_where_places_are_unlimited(
    backend: Backend,
) -> io::Result<()> {
    for places in [usize::MAX, usize::MAX - 8, usize::MAX / 2] {
        expect_rest_with(backend, places)?;
    }
    Ok(())
}

/// The duplicate becomes ready. That is no edge of the socket that has the number now, which was
/// readable when it was enabled.
#[for_every_backend]
fn c5_a_duplicate_gives_no_edge_to_the_socket_that_has_its_number_now(
    backend: Backend,
) -> io::Result<()> {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
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
                expect_nothing(&port);

                for _ in 0..50 {
                    (&old.theirs).write_all(b"x")?;
                    let found = drain_port(&port);
                    assert_eq!(found, [], "{old_trigger:?}, then {trigger:?}, key {key}");
                }
                expect_quiet(&port);
                // Its own edge comes.
                new.drain()?;
                new.send()?;
                expect(&port, &[(key, Events::IN)]);
                drop(duplicate);
                expect_removed(&port, &new.ours, key)?;
            }
        }
    }
    Ok(())
}

#[for_every_backend]
fn g2_the_port_takes_no_number_of_a_registered_socket_that_was_closed(
    backend: Backend,
) -> io::Result<()> {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    // It has a lower number than what is the port's own.
    let gone = Pair::unix()?;
    let port = port(backend)?;
    // Disabled, so that nothing tells that it was closed.
    port.register(Registration::enable(&gone.ours, 1, EventFilter::IN, LEVEL))?;
    port.register(Registration::disable(&gone.ours))?;
    let number = gone.ours.as_raw_fd();
    // The port rids itself of the duplicate,
    let kept = closed(&port, 1, |_| LEVEL)?;
    drop(gone);
    expect_rest(&port);
    // and the next socket has the number.
    drop(kept);
    assert_eq!(Pair::unix()?.ours.as_raw_fd(), number);
    Ok(())
}
