//! What should come out of a port, and what should not.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use socket2::Socket;
use socknotify::{
    CompletionPort, Entry, Error, Events, Registration, RegistrationError, WakePolicy,
};

use super::{PATIENCE, QUIET_PERIOD, TICK, thread_time};

/// What a port counts of its own, to be compared to what it is. Where it keeps silent, there is nothing to
/// compare.
#[derive(Debug)]
pub(crate) struct Counted(Option<usize>);

pub(crate) fn counted(number: Option<usize>) -> Counted {
    Counted(number)
}

/// How many threads of those that wait one packet wakes. With kqueue one thread waits in the backend. So, beside the one
/// that gets the packet, the oldest is woken, to watch whether that one comes back; and if it does not within the time of
/// the wake policy, the newest, which waits there in its place.
pub(crate) fn woken_by_one_packet(port: &CompletionPort) -> usize {
    match (port.backend().name(), port.wake_policy()) {
        ("kqueue", WakePolicy::Bounded(PATIENCE)) => 2,
        ("kqueue", _) => 3,
        _ => 1,
    }
}

impl PartialEq<usize> for Counted {
    fn eq(&self, other: &usize) -> bool {
        self.0.is_none_or(|number| number == *other)
    }
}

/// The result of an entry, as this port puts it: the kernel has one code for several reasons.
pub(crate) fn as_told_by<E: From<RegistrationError>>(
    port: &CompletionPort,
    result: Result<(), RegistrationError>,
) -> Result<(), E> {
    use RegistrationError::{OtherKey, OtherPort, RemovePending};

    result.map_err(|error| match error {
        OtherPort | OtherKey | RemovePending if port.backend().name() == "native" => {
            RegistrationError::Os(error.code() as i32).into()
        }
        error => error.into(),
    })
}

/// The packet of a socket notification.
pub(crate) fn notification(key: usize, events: Events) -> Entry {
    Entry::new(key, events.bits(), 0)
}

/// Dequeues one packet after the other, and compares them to these.
#[track_caller]
pub(crate) fn expect_packets(port: &CompletionPort, expected: &[Entry]) {
    for (index, &wanted) in expected.iter().enumerate() {
        match port.dequeue_one(Some(PATIENCE)) {
            Ok(entry) => assert_eq!(
                (entry, entry.events()),
                (wanted, wanted.events()),
                "packet {index} of {expected:?}"
            ),
            Err(error) => panic!("instead of packet {index} of {expected:?}: {error}"),
        }
    }
}

/// Dequeues one notification after the other, and compares them to these: key and events.
#[track_caller]
pub(crate) fn expect(port: &CompletionPort, expected: &[(usize, Events)]) {
    let expected: Vec<Entry> = expected
        .iter()
        .map(|&(key, events)| notification(key, events))
        .collect();
    expect_packets(port, &expected);
}

/// Dequeues this many packets, and sorts them by key.
#[track_caller]
pub(crate) fn collect(port: &CompletionPort, count: usize) -> Vec<(usize, Events)> {
    let mut found: Vec<_> = (0..count)
        .map(|index| match port.dequeue_one(Some(PATIENCE)) {
            Ok(entry) => (entry.completion_key, entry.events()),
            Err(error) => panic!("instead of packet {index} of {count}: {error}"),
        })
        .collect();
    found.sort_by_key(|&(key, events)| (key, events.bits()));
    found
}

/// Nothing is there to be dequeued, now that what could bring it about has happened.
#[track_caller]
pub(crate) fn expect_nothing(port: &CompletionPort) {
    let found = port.dequeue_one(Some(Duration::ZERO));
    let events = found.map(|entry| entry.events());
    assert_eq!(found, Err(Error::TimedOut), "events: {events:?}");
}

/// What runs uses less of a processor than this, in one of some runs.
///
/// The interrupts of other threads' packets are charged to whoever runs, and so is what else slows a machine down: one run
/// can seem to be busy. What is, is so each time.
#[track_caller]
pub(crate) fn expect_little_time(limit: Duration, run: impl FnMut() -> Duration) {
    let limit = limit.max(TICK * 2);
    let mut times = std::iter::repeat_with(run).take(5);
    let mut spent = Vec::new();
    let is_little = times.any(|time| {
        spent.push(time);
        time < limit
    });
    assert!(is_little, "{spent:?}, and never below {limit:?}");
}

/// A thread that waits sleeps in the meantime. This runs it, and tells what it used of a processor.
#[track_caller]
pub(crate) fn expect_idle(run: impl FnMut() -> Duration) {
    expect_little_time(QUIET_PERIOD / 5, run);
}

/// Nothing comes for a while, and what this thread used of a processor meanwhile.
#[track_caller]
pub(crate) fn quiet_for(port: &CompletionPort, time: Duration) -> Duration {
    let before = thread_time();
    let found = port.dequeue_one(Some(time));
    let spent = thread_time() - before;
    let events = found.map(|entry| entry.events());
    assert_eq!(found, Err(Error::TimedOut), "events: {events:?}");
    spent
}

/// The most that one of so many threads uses of a processor while nothing comes.
#[track_caller]
pub(crate) fn quiet_threads(port: &CompletionPort, threads: usize, time: Duration) -> Duration {
    thread::scope(|scope| {
        let threads: Vec<_> = (0..threads)
            .map(|_| scope.spawn(|| quiet_for(port, time)))
            .collect();
        let spent = threads.into_iter().map(|it| it.join().expect("no panic"));
        spent.max().expect("some")
    })
}

/// Nothing comes for a while, and this thread sleeps in the meantime.
#[track_caller]
pub(crate) fn expect_quiet(port: &CompletionPort) {
    expect_idle(|| quiet_for(port, QUIET_PERIOD * 2));
}

/// Waits in vain, and tells how long.
#[track_caller]
pub(crate) fn wait_in_vain(port: &CompletionPort, timeout: Duration) -> Duration {
    let start = Instant::now();
    assert_eq!(port.dequeue_one(Some(timeout)), Err(Error::TimedOut));
    start.elapsed()
}

/// Waits in vain, for many times around the milliseconds, each of which lasts at least so long.
#[track_caller]
pub(crate) fn expect_no_early_end(port: &CompletionPort) {
    let micros = [
        1, 10, 50, 100, 250, 499, 500, 501, 999, 1000, 1001, 1499, 1500, 1999,
    ];
    let timeouts = micros
        .into_iter()
        .map(Duration::from_micros)
        .chain((1..=20).map(Duration::from_millis))
        .chain([Duration::from_nanos(1), Duration::from_nanos(1_000_001)])
        .chain([Duration::from_millis(150)]);
    for timeout in timeouts {
        for _ in 0..3 {
            let waited = wait_in_vain(port, timeout);
            assert!(waited >= timeout, "{waited:?} instead of {timeout:?}");
        }
    }
}

/// Removes a registration that has nothing to say any more, and sees it go.
#[track_caller]
pub(crate) fn expect_removed(port: &CompletionPort, socket: &Socket, key: usize) -> io::Result<()> {
    port.register(Registration::remove(socket))?;
    expect(port, &[(key, Events::REMOVE)]);
    Ok(())
}

/// Removes a registration that may have something to say still, and dequeues that and its end.
pub(crate) fn remove_and_drain(port: &CompletionPort, socket: &Socket) -> io::Result<()> {
    port.register(Registration::remove(socket))?;
    assert!(drain_port(port).len() <= 2);
    Ok(())
}

/// Dequeues whatever there is.
pub(crate) fn drain_port(port: &CompletionPort) -> Vec<(usize, Events)> {
    let mut found = Vec::new();
    while let Ok(entry) = port.dequeue_one(Some(Duration::ZERO)) {
        found.push((entry.completion_key, entry.events()));
        assert!(found.len() < 100_000, "there is no end to it");
    }
    found
}
