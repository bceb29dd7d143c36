//! G3. Sockets that were closed without REMOVE, and live on under a duplicate.

#![cfg_attr(
    windows,
    allow(
        dead_code,
        unused_imports,
        reason = "a registration there is of the socket, and lives on with a duplicate"
    )
)]

use std::io::{self, Read, Write};
use std::thread;
use std::time::Duration;

use socket2::Socket;
use socknotify::{Backend, CompletionPort, Entry, EventFilter, Events, Registration, Trigger};

use super::g_lifetime::in_place_of;
use crate::support::trigger::{EDGE, EVERY, LEVEL, ONCE};
use crate::support::{
    Kind, Pair, PortExt, QUIET_PERIOD, drain_port, expect, expect_idle, expect_nothing,
    expect_quiet, expect_removed, pairs, port, port_with, quiet_threads, take_number,
    to_lonely_number,
};

const KEY: usize = 61;
const OTHER_KEY: usize = 62;
const IN: (usize, Events) = (KEY, Events::IN);

/// A socket that is closed while a duplicate of it lives.
struct Duplicated {
    /// Keeps the socket alive.
    duplicate: Socket,
    theirs: Socket,
}

/// Registers a socket, and closes it after it was duplicated.
fn duplicated(
    port: &CompletionPort,
    kind: Kind,
    trigger: Trigger,
    filter: EventFilter,
) -> io::Result<Duplicated> {
    let pair = kind.pair()?;
    let ours = to_lonely_number(pair.ours)?;
    port.enable(&ours, KEY, filter, trigger)?;
    let duplicate = ours.try_clone()?;
    Ok(Duplicated {
        duplicate,
        theirs: pair.theirs,
    })
}

/// How many notifications may come of a registration whose number was closed here, while the socket lives on under a
/// duplicate.
fn most_false(trigger: Trigger) -> usize {
    if trigger.contains(Trigger::PERSISTENT) {
        64
    } else {
        1
    }
}

/// Dequeues what may come of a duplicate, and returns how many.
#[track_caller]
fn take_false(port: &CompletionPort) -> usize {
    let found = drain_port(port);
    assert!(found.iter().all(|(key, _)| *key == KEY), "{found:?}");
    found.len()
}

#[cfg(unix)]
#[for_every_backend]
fn g3_a_closed_duplicate_is_notified_a_bounded_number_of_times(backend: Backend) -> io::Result<()> {
    let bounded = |kind, trigger, filter| -> io::Result<()> {
        let port = port(backend)?;
        let old = duplicated(&port, kind, trigger, filter)?;
        let mut count = 0;
        // Writable all the time, from now on readable, and at last at its end.
        for _ in 0..200 {
            old.theirs.send(b"x")?;
            count += take_false(&port);
            drain(&old.duplicate);
        }
        expect_quiet(&port);
        drop(old.theirs);
        count += take_false(&port);
        drop(old.duplicate);
        expect_nothing(&port);
        let most = most_false(trigger);
        assert!(count <= most, "{kind}, {trigger:?}, {filter:?}: {count}");
        expect_quiet(&port);
        Ok(())
    };
    thread::scope(|scope| {
        let kinds = Kind::all().map(|kind| {
            scope.spawn(move || {
                for trigger in EVERY {
                    bounded(kind, trigger, EventFilter::IN)?;
                    bounded(kind, trigger, EventFilter::ALL)?;
                }
                Ok(())
            })
        });
        let kinds: Vec<_> = kinds.collect();
        kinds
            .into_iter()
            .try_for_each(|it| it.join().expect("no panic"))
    })
}

/// With epoll, which goes on to report it: each report after those is dropped, and counted.
#[cfg(target_os = "linux")]
#[for_every_backend]
fn g3_dropped_reports_of_a_duplicate_are_counted(backend: Backend) -> io::Result<()> {
    const EDGES: usize = 500;
    if backend.name() != "epoll" {
        return Ok(());
    }
    let port = port(backend)?;
    let old = duplicated(&port, Kind::LOCAL, EDGE, EventFilter::IN)?;
    assert_eq!(port.snapshot().stale, 0);
    let mut told = 0;
    for _ in 0..EDGES {
        old.theirs.send(b"x")?;
        told += take_false(&port);
        drain(&old.duplicate);
    }
    assert!(told <= 64, "{told}");
    let stale = port.snapshot().stale as usize;
    // The report that ended it may be counted or not.
    let dropped = EDGES - told;
    assert!(
        (dropped - 1..=dropped).contains(&stale),
        "{stale} of {dropped}"
    );
    assert_eq!(crate::support::counted(port.snapshot().registrations), 0);
    Ok(())
}

/// Counted for each registration, and each socket that is registered is served meanwhile.
#[cfg(unix)]
#[for_every_backend]
fn g3_the_bound_is_counted_for_each_registration(backend: Backend) -> io::Result<()> {
    const SOCKETS: usize = 20;
    let port = port(backend)?;
    let good = Pair::unix()?;
    let mut kept = Vec::new();
    for key in 0..SOCKETS {
        let pair = Pair::unix()?;
        let ours = to_lonely_number(pair.ours)?;
        port.enable(&ours, key, EventFilter::IN, EDGE)?;
        kept.push((ours.try_clone()?, pair.theirs));
    }
    port.enable(&good.ours, OTHER_KEY, EventFilter::IN, EDGE)?;
    let mut counts = [0; SOCKETS];
    for round in 0..200 {
        for (duplicate, theirs) in &kept {
            theirs.send(b"x")?;
            drain(duplicate);
            theirs.send(b"x")?;
        }
        good.send()?;
        let mut is_served = false;
        for (key, events) in drain_port(&port) {
            assert_eq!(events, Events::IN);
            match counts.get_mut(key) {
                Some(count) => *count += 1,
                None => is_served |= key == OTHER_KEY,
            }
        }
        assert!(is_served, "round {round}");
        good.drain()?;
        for (duplicate, _) in &kept {
            drain(duplicate);
        }
    }
    assert!(counts.iter().all(|&count| count <= 64), "{counts:?}");
    expect_quiet(&port);
    Ok(())
}

/// Sockets that are ready all the time, and closed under living duplicates: nobody is busy with them, however many
/// threads wait.
#[cfg(unix)]
#[for_every_backend]
fn g3_many_duplicates_keep_nobody_busy(backend: Backend) -> io::Result<()> {
    const SOCKETS: usize = 200;
    const THREADS: usize = 4;
    for permits in [1, 2, THREADS, 64] {
        let port = port_with(backend, permits)?;
        let mut kept = Vec::new();
        for index in 0..SOCKETS {
            let trigger = EVERY[index % 4];
            let filter = [EventFilter::IN, EventFilter::ALL, EventFilter::NONE][index % 3];
            let old = duplicated(&port, Kind::LOCAL, trigger, filter)?;
            old.theirs.send(b"x")?;
            if index % 5 == 0 {
                old.theirs.shutdown(std::net::Shutdown::Both)?;
            }
            kept.push(old);
        }
        take_false(&port);
        println!("{permits} permits");
        expect_idle(|| quiet_threads(&port, THREADS, QUIET_PERIOD * 3));
    }
    Ok(())
}

/// Once the number is registered again, nothing of the old registration comes, under whatever key. Before, the old key is
/// the only one that may.
#[cfg(unix)]
#[for_every_backend]
fn g3_a_duplicate_lives_on_while_its_number_is_used_again(backend: Backend) -> io::Result<()> {
    for trigger in EVERY {
        for key in [None, Some(KEY), Some(OTHER_KEY)] {
            let port = port(backend)?;
            let old = Pair::unix()?;
            port.enable(&old.ours, KEY, EventFilter::IN, trigger)?;
            let duplicate = old.ours.try_clone()?;
            let new = in_place_of(
                Pair {
                    ours: old.ours,
                    theirs: old.theirs.try_clone()?,
                },
                Pair::unix()?,
            )?;
            if let Some(key) = key {
                port.enable(&new.ours, key, EventFilter::IN, trigger)?;
            }
            let mut count = 0;
            for _ in 0..100 {
                (&old.theirs).write_all(b"for the duplicate")?;
                match key {
                    None => count += take_false(&port),
                    Some(_) => expect_nothing(&port),
                }
                drain(&duplicate);
            }
            assert!(count <= most_false(trigger), "{trigger:?}: {count}");
            expect_quiet(&port);
            // The new one is told of what is its own.
            new.send()?;
            if let Some(key) = key {
                expect(&port, &[(key, Events::IN)]);
                new.drain()?;
                drain_port(&port);
                expect_removed(&port, &new.ours, key)?;
            }
            expect_quiet(&port);
            drop(duplicate);
        }
    }
    Ok(())
}

/// Another socket had the number meanwhile, under another key, and is closed.
#[cfg(unix)]
#[for_every_backend]
fn g2_a_duplicate_that_comes_back_has_its_own_key(backend: Backend) -> io::Result<()> {
    for trigger in EVERY {
        for is_added in [false, true] {
            if is_added && backend.name() != "epoll" {
                continue;
            }
            let port = port(backend)?;
            let (first, other) = (Pair::unix()?, Pair::unix()?);
            port.enable(&first.ours, KEY, EventFilter::IN, trigger)?;
            let duplicate = first.ours.try_clone()?;
            let number = take_number(first.ours, other.ours)?;
            port.enable(&number, OTHER_KEY, EventFilter::IN, trigger)?;
            let ours = take_number(number, duplicate)?;
            port.register(match is_added {
                true => Registration::add(&ours, KEY, EventFilter::IN, trigger),
                false => Registration::enable(&ours, KEY, EventFilter::IN, trigger),
            })?;
            (&first.theirs).write_all(b"x")?;
            expect(&port, &[IN]);
            drain(&ours);
        }
    }
    Ok(())
}

/// What had the number before has it again, and the other one lives on under a duplicate.
#[cfg(unix)]
#[for_every_backend]
fn g3_false_notifications_end_though_another_duplicate_has_come_back(
    backend: Backend,
) -> io::Result<()> {
    for trigger in [EDGE, LEVEL] {
        let port = port(backend)?;
        let (first, other) = (Pair::unix()?, Pair::unix()?);
        port.enable(&first.ours, KEY, EventFilter::IN, trigger)?;
        let (duplicate, lives_on) = (first.ours.try_clone()?, other.ours.try_clone()?);
        let number = take_number(first.ours, other.ours)?;
        port.enable(&number, OTHER_KEY, EventFilter::IN, trigger)?;
        let _ours = take_number(number, duplicate.try_clone()?)?;
        for (theirs, socket) in [(&other.theirs, &lives_on), (&first.theirs, &duplicate)] {
            let mut count = 0;
            for _ in 0..200 {
                (&*theirs).write_all(b"x")?;
                count += drain_some(&port).len();
                drain(socket);
            }
            assert!(count <= 64, "{trigger:?}: {count}");
        }
    }
    Ok(())
}

#[cfg(unix)]
#[for_every_backend]
fn g3_many_duplicates_do_not_disturb_those_that_are_registered(backend: Backend) -> io::Result<()> {
    const ROUNDS: usize = 100;
    let port = port(backend)?;
    let pairs = (0..3)
        .map(|_| Pair::unix())
        .collect::<io::Result<Vec<_>>>()?;
    let triggers = [ONCE, EDGE, LEVEL];
    let enable = |index: usize| {
        let socket = &pairs[index].ours;
        port.enable(socket, OTHER_KEY + index, EventFilter::IN, triggers[index])
    };
    (0..3).try_for_each(enable)?;
    let mut kept = Vec::new();
    let mut count = 0;
    for round in 0..ROUNDS {
        let old = duplicated(&port, Kind::LOCAL, EVERY[round % 4], EventFilter::ALL)?;
        (&old.theirs).write_all(b"x")?;
        kept.push(old);
        for pair in &pairs {
            pair.send()?;
        }
        let (old, mut good): (Vec<_>, Vec<_>) = drain_some(&port)
            .into_iter()
            .partition(|(key, _)| *key == KEY);
        count += old.len();
        good.sort_by_key(|it| it.0);
        good.dedup();
        let wanted = [0, 1, 2].map(|index| (OTHER_KEY + index, Events::IN));
        assert_eq!(good, wanted, "round {round}");
        for pair in &pairs {
            pair.drain()?;
        }
        enable(0)?;
    }
    assert!(count <= ROUNDS / 4 * (1 + 1 + 1 + 64), "{count}");
    drain_some(&port);
    expect_quiet(&port);
    Ok(())
}

/// Dequeues all that is ready now, of what may go on for ever: levels.
fn drain_some(port: &CompletionPort) -> Vec<(usize, Events)> {
    let mut entries = [Entry::default(); 64];
    let mut found = Vec::new();
    for _ in 0..10 {
        if let Ok(dequeued) = port.dequeue(&mut entries, Some(Duration::ZERO)) {
            found.extend(dequeued.iter().map(|it| (it.completion_key, it.events())));
        }
    }
    found
}

#[for_every_backend]
fn g3_closing_the_duplicate_changes_nothing(port: CompletionPort) -> io::Result<()> {
    for case in pairs(Kind::all()) {
        let (pair, trigger) = case?;
        // Whether it was made before or after.
        let before = pair.ours.try_clone()?;
        port.enable(&pair.ours, KEY, EventFilter::IN, trigger)?;
        let after = pair.ours.try_clone()?;
        drop((before, after));
        expect_nothing(&port);
        pair.send()?;
        expect(&port, &[IN]);
        pair.drain()?;
        drain_port(&port);
        expect_removed(&port, &pair.ours, KEY)?;
    }
    Ok(())
}

fn drain(mut socket: &Socket) -> usize {
    socket.read(&mut [0; 64]).unwrap_or(0)
}
