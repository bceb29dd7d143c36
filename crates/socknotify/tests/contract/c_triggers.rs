//! C. Triggers: when notifications come, and how often.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use socknotify::{
    Backend, CompletionPort, Entry, Error, EventFilter, Events, RegisterError, Registration,
    RegistrationError, Trigger,
};

use crate::support::trigger::{EDGE, EDGE_ONCE, EVERY, LEVEL, ONCE};
use crate::support::{
    CloseAtEnd, EDGES_COME_ONE_BY_ONE, Kind, PATIENCE, Pair, PollFlags, PortExt, as_told_by,
    collect, counted, drain_port, end_shows_behind_data, expect, expect_nothing, expect_quiet,
    expect_removed, notification, port, port_with, reset, rounds, wait_readiness, wait_until,
};

const KEY: usize = 31;
const IN: (usize, Events) = (KEY, Events::IN);
const POSTED: Entry = Entry::new(1, 2, 3);

#[for_every_backend]
fn c1_only_sound_combinations_of_triggers_are_accepted(backend: Backend) -> io::Result<()> {
    const ONESHOT: u8 = 1;
    const PERSISTENT: u8 = 2;
    const LEVEL_BIT: u8 = 4;
    const EDGE_BIT: u8 = 8;
    let sound = [
        LEVEL_BIT,
        EDGE_BIT,
        ONESHOT | LEVEL_BIT,
        ONESHOT | EDGE_BIT,
        PERSISTENT | LEVEL_BIT,
        PERSISTENT | EDGE_BIT,
    ];
    // The extension goes with edges.
    const INITIAL_BIT: u8 = 16;
    let edges = sound.into_iter().filter(|bits| bits & EDGE_BIT != 0);
    let extended = edges.map(|bits| bits | INITIAL_BIT);
    let sound: Vec<u8> = match backend.to_string().as_str() {
        "native" => sound.to_vec(),
        _ => sound.into_iter().chain(extended).collect(),
    };
    let port = port(backend)?;
    let known = Pair::unix()?;
    port.enable(&known.ours, KEY, EventFilter::IN, ONCE)?;
    for bits in 0..=u8::MAX {
        let trigger = Trigger::from_bits_retain(bits);
        let unknown = Pair::unix()?;
        let entry = Registration::enable(&unknown.ours, KEY, EventFilter::IN, trigger);
        let result = port.register(entry);
        if sound.contains(&bits) {
            assert_eq!(result, Ok(()), "{bits:#x}");
            port.register(Registration::remove(&unknown.ours))?;
            expect(&port, &[(KEY, Events::REMOVE)]);
        } else {
            assert_eq!(
                result,
                Err(RegistrationError::InvalidTrigger.into()),
                "{bits:#x}"
            );
            assert_eq!(result.map_err(RegisterError::code), Err(87));
            let entry = Registration::enable(&known.ours, KEY, EventFilter::ALL, trigger);
            let result = port.register(entry);
            assert_eq!(
                result,
                Err(RegistrationError::InvalidTrigger.into()),
                "{bits:#x}"
            );
        }
        assert_eq!(counted(port.snapshot().registrations), 1);
    }
    // Nothing of the refused ones has touched the one that was there.
    expect_nothing(&port);
    known.send()?;
    expect(&port, &[IN]);
    expect_nothing(&port);
    Ok(())
}

/// The document's first program relies on it.
#[for_every_backend]
fn c1_persistent_is_meant_when_nothing_is_said(backend: Backend) -> io::Result<()> {
    let port = port(backend)?;
    for trigger in [Trigger::LEVEL, Trigger::EDGE] {
        let pair = Pair::unix()?;
        port.enable(&pair.ours, KEY, EventFilter::IN, trigger)?;
        for _ in 0..3 {
            pair.send()?;
            expect(&port, &[IN]);
            if trigger == Trigger::LEVEL {
                expect(&port, &[IN]);
                // One more may be in the queue when the data is taken.
                pair.drain()?;
                assert!(drain_port(&port).len() <= 1);
            } else {
                expect_nothing(&port);
                pair.drain()?;
            }
        }
    }
    Ok(())
}

#[for_every_backend]
fn c2_nothing_comes_while_disabled_and_nothing_is_stored_up(backend: Backend) -> io::Result<()> {
    let port = port(backend)?;
    for kind in Kind::all() {
        for trigger in EVERY {
            let pair = kind.pair()?;
            let enable = || Registration::enable(&pair.ours, KEY, EventFilter::IN, trigger);
            port.register(enable())?;
            port.register(Registration::disable(&pair.ours))?;
            for _ in 0..3 {
                pair.send()?;
                expect_nothing(&port);
                pair.drain()?;
            }
            port.register(enable())?;
            expect_nothing(&port);
            pair.send()?;
            expect(&port, &[IN]);
            port.register(Registration::remove(&pair.ours))?;
            wait_until("it is removed", || {
                drain_port(&port)
                    .iter()
                    .any(|(_, events)| events.contains(Events::REMOVE))
            });
        }
    }
    Ok(())
}

#[for_every_backend]
fn c2_nothing_is_stored_up_after_a_one_shot_has_fired(backend: Backend) -> io::Result<()> {
    let port = port(backend)?;
    for trigger in [ONCE, EDGE_ONCE] {
        let pair = Pair::unix()?;
        let enable = || Registration::enable(&pair.ours, KEY, EventFilter::IN, trigger);
        port.register(enable())?;
        for _ in 0..3 {
            pair.send()?;
            expect(&port, &[IN]);
            pair.drain()?;
            for _ in 0..3 {
                pair.send()?;
                expect_nothing(&port);
                pair.drain()?;
            }
            port.register(enable())?;
            expect_nothing(&port);
        }
    }
    Ok(())
}

#[for_every_backend]
fn c3_all_that_becomes_true_meanwhile_is_merged_into_one_packet(
    backend: Backend,
) -> io::Result<()> {
    let port = port(backend)?;
    for kind in Kind::streams() {
        for trigger in EVERY {
            let pair = kind.pair()?;
            let filter = EventFilter::IN | EventFilter::HANGUP;
            port.enable(&pair.ours, KEY, filter, trigger)?;
            if end_shows_behind_data() {
                for _ in 0..3 {
                    pair.send()?;
                }
            }
            pair.theirs.shutdown(Shutdown::Write)?;
            wait_readiness(&pair.ours, PollFlags::RDHUP);
            expect(&port, &[(KEY, Events::IN | Events::HANGUP)]);
            if trigger != LEVEL {
                expect_nothing(&port);
            }
            port.register(Registration::remove(&pair.ours))?;
            let last = drain_port(&port);
            assert!(last.len() <= 2, "{kind}: {last:?}");
        }
    }
    Ok(())
}

/// It shows in the packet that may wait meanwhile, in the next notification, or, of a one-shot, after the next arming.
/// An end and room are two events to some systems, with that of another socket between them.
#[for_every_backend]
fn c3_a_call_has_one_notification_of_a_socket(backend: Backend) -> io::Result<()> {
    let port = port(backend)?;
    let (pair, other) = (Pair::unix()?, Pair::unix()?);
    pair.theirs.shutdown(Shutdown::Write)?;
    port.enable(&pair.ours, KEY, EventFilter::IN, EDGE)?;
    other.send()?;
    let filter = EventFilter::OUT | EventFilter::HANGUP;
    let mut batch = [
        Registration::enable(&other.ours, KEY + 1, EventFilter::IN, LEVEL),
        Registration::enable(&pair.ours, KEY, filter, EDGE),
    ];
    let mut entries = [Entry::default(); 8];
    let entries = port.process(&mut batch, &mut entries, Some(PATIENCE))?;
    for key in [KEY, KEY + 1] {
        let of_key = entries.iter().filter(|entry| entry.completion_key == key);
        assert!(of_key.count() <= 1, "{entries:?}");
    }
    Ok(())
}

#[for_every_backend]
fn c3_what_becomes_true_while_a_packet_waits_is_not_lost(backend: Backend) -> io::Result<()> {
    let port = port(backend)?;
    for kind in Kind::streams() {
        for trigger in EVERY {
            let pair = kind.pair()?;
            let filter = EventFilter::IN | EventFilter::HANGUP;
            let enable = || Registration::enable(&pair.ours, KEY, filter, trigger);
            port.register(enable())?;
            pair.send()?;
            // A port may queue what it knows by now.
            port.post(POSTED)?;
            if !end_shows_behind_data() {
                pair.drain()?;
            }
            pair.theirs.shutdown(Shutdown::Write)?;
            wait_readiness(&pair.ours, PollFlags::RDHUP);

            let dequeued = std::iter::from_fn(|| port.dequeue_one(Some(Duration::ZERO)).ok());
            // A level that holds has no end.
            let (posted, told): (Vec<_>, Vec<_>) = dequeued.take(8).partition(|it| *it == POSTED);
            assert_eq!(posted.len(), 1, "{kind}, {trigger:?}: {told:?}");
            let all = |entries: &[Entry]| {
                let events = entries.iter().map(Entry::events);
                events.fold(Events::empty(), |all, events| all | events)
            };
            let mut seen = all(&told);
            if trigger.contains(Trigger::ONESHOT) {
                assert_eq!(told.len(), 1, "{kind}, {trigger:?}: {told:?}");
                if !seen.contains(Events::HANGUP) {
                    port.register(enable())?;
                    seen |= port.dequeue_one(Some(PATIENCE))?.events();
                }
            } else if trigger == EDGE {
                // One for each condition that began to hold.
                assert!((1..=2).contains(&told.len()), "{kind}: {told:?}");
            }
            assert_eq!(seen, Events::IN | Events::HANGUP, "{kind}, {trigger:?}");
            port.register(Registration::remove(&pair.ours))?;
            let last = drain_port(&port);
            assert!(last.len() <= 2, "{kind}: {last:?}");
        }
    }
    Ok(())
}

#[for_every_backend]
fn c4_level_reports_what_holds_at_enable(backend: Backend) -> io::Result<()> {
    let port = port(backend)?;
    for kind in Kind::all() {
        for trigger in [ONCE, LEVEL] {
            let pair = kind.pair()?;
            pair.send()?;
            let conditions = [
                (EventFilter::IN, Events::IN),
                (EventFilter::OUT, Events::OUT),
                (EventFilter::IN | EventFilter::OUT, Events::IN | Events::OUT),
                (EventFilter::ALL, Events::IN | Events::OUT),
            ];
            for (filter, events) in conditions {
                port.enable(&pair.ours, KEY, filter, trigger)?;
                expect(&port, &[(KEY, events)]);
                port.register(Registration::disable(&pair.ours))?;
                let rest = drain_port(&port);
                assert!(
                    rest.is_empty() || trigger == LEVEL && rest.len() == 1,
                    "{rest:?}"
                );
            }
        }
    }
    Ok(())
}

#[for_every_backend]
fn c4_level_persistent_reports_again_as_long_as_it_holds(backend: Backend) -> io::Result<()> {
    let port = port(backend)?;
    for kind in Kind::all() {
        let pair = kind.pair()?;
        port.enable(&pair.ours, KEY, EventFilter::IN, LEVEL)?;
        expect_nothing(&port);
        for _ in 0..3 {
            pair.send()?;
            expect(&port, &[IN; 10]);
            pair.drain()?;
            // One may have been queued before that, and no more.
            assert!(drain_port(&port).len() <= 1);
            expect_quiet(&port);
        }
    }
    Ok(())
}

/// E1: none of them is served again and again while another waits.
#[for_every_backend]
fn c4_level_persistent_sockets_are_all_served(backend: Backend) -> io::Result<()> {
    const SOCKETS: usize = 5;
    let port = port(backend)?;
    let pairs = (0..SOCKETS)
        .map(|_| Pair::unix())
        .collect::<io::Result<Vec<_>>>()?;
    for (key, pair) in pairs.iter().enumerate() {
        port.enable(&pair.ours, key, EventFilter::IN, LEVEL)?;
        pair.send()?;
    }
    for round in 0..10 {
        let mut counts = [0; SOCKETS];
        for _ in 0..SOCKETS + 7 {
            counts[port.dequeue_one(None)?.completion_key] += 1;
        }
        assert!(
            counts.iter().all(|&count| count > 0),
            "round {round}: {counts:?}"
        );
    }
    Ok(())
}

/// Some were delivered to this thread before, and others become ready since. Those need not show at once (E1), but once they
/// were, they are in each look as well.
#[for_every_backend]
fn c4_a_look_with_room_for_all_levels_reports_all(backend: Backend) -> io::Result<()> {
    const SOCKETS: usize = 20;
    let port = port(backend)?;
    let pairs = (0..SOCKETS)
        .map(|_| Pair::unix())
        .collect::<io::Result<Vec<_>>>()?;
    for (key, pair) in pairs.iter().enumerate() {
        port.enable(&pair.ours, key, EventFilter::IN, LEVEL)?;
    }
    let mut entries = [Entry::default(); 2 * SOCKETS];
    let mut reported = Vec::new();
    for (first, ready) in [(0, SOCKETS / 2), (SOCKETS / 2, SOCKETS)] {
        for pair in &pairs[first..ready] {
            pair.send()?;
        }
        for look in 0..10 {
            let found = port.dequeue(&mut entries, Some(PATIENCE))?;
            let mut found: Vec<_> = found.iter().map(|entry| entry.completion_key).collect();
            found.sort_unstable();
            let is_found = |key| found.contains(key);
            assert!(reported.iter().all(is_found), "look {look}: {found:?}");
            reported = found;
        }
        assert_eq!(reported, (0..ready).collect::<Vec<_>>());
    }
    Ok(())
}

#[for_every_backend]
fn c4_level_persistent_does_not_crowd_out_posted_packets(backend: Backend) -> io::Result<()> {
    let port = port(backend)?;
    let pairs = (0..3)
        .map(|_| Pair::unix())
        .collect::<io::Result<Vec<_>>>()?;
    for pair in &pairs {
        port.enable(&pair.ours, KEY, EventFilter::ALL, LEVEL)?;
        pair.send()?;
    }
    for _ in 0..20 {
        port.dequeue_one(None)?;
        port.post(POSTED)?;
        // Every socket may be in the queue once, before the packet.
        let found = (0..=pairs.len())
            .map(|_| port.dequeue_one(None))
            .collect::<Result<Vec<_>, _>>()?;
        assert!(found.contains(&POSTED), "{found:?}");
    }
    Ok(())
}

/// How the thread that got a level lets others have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LetGo {
    Dequeue,
    Release,
    Blocking,
    End,
    /// It says nothing, and sleeps (F4).
    Sleep,
}

/// A level is dequeued by one thread, and goes on to hold. When that thread lets go, the level comes again: to another one
/// that waits, or that comes later, or to the same.
fn level_comes_again(backend: Backend, places: usize, how: LetGo) -> io::Result<()> {
    let builder = CompletionPort::builder()
        .backend(backend)
        .concurrency(places);
    let port = builder.detect_blocking(how == LetGo::Sleep).build()?;
    for others in [0, 1, 3] {
        for round in 0..10 {
            let pair = Pair::unix()?;
            let (tell, told) = channel();
            let is_heard = AtomicBool::new(false);
            let hear = |port: &CompletionPort| {
                let found = port.dequeue_one(Some(PATIENCE));
                assert_eq!(found, Ok(notification(KEY, Events::IN)), "{how:?}");
                is_heard.store(true, Ordering::SeqCst);
            };
            port.enable(&pair.ours, KEY, EventFilter::IN, LEVEL)?;
            pair.send()?;
            thread::scope(|scope| {
                let (port, hear, is_heard, first_tell) = (&port, &hear, &is_heard, tell.clone());
                let first = scope.spawn(move || {
                    let found = port.dequeue_one(Some(PATIENCE));
                    assert_eq!(found, Ok(notification(KEY, Events::IN)));
                    first_tell.send(()).expect("someone listens");
                    if others > 0 {
                        wait_until("others wait, or have it", || {
                            is_heard.load(Ordering::SeqCst) || port.snapshot().waiting == others
                        });
                    }
                    let wait = || {
                        wait_until("the level comes again", || is_heard.load(Ordering::SeqCst));
                    };
                    match how {
                        LetGo::Dequeue if others == 0 => hear(port),
                        // It may get it itself.
                        LetGo::Dequeue => {
                            if port.dequeue_one(Some(PATIENCE)) != Err(Error::Closed) {
                                is_heard.store(true, Ordering::SeqCst);
                            }
                        }
                        LetGo::Release => {
                            port.release();
                            wait();
                        }
                        LetGo::Blocking => port.blocking(wait),
                        LetGo::End => {}
                        LetGo::Sleep => wait(),
                    }
                });
                told.recv().expect("the first thread");
                let serve = move || {
                    // The others of them may be told too, or not.
                    while !is_heard.load(Ordering::SeqCst) {
                        match port.dequeue_one(Some(PATIENCE)) {
                            Ok(entry) => {
                                assert_eq!(entry, notification(KEY, Events::IN));
                                is_heard.store(true, Ordering::SeqCst);
                            }
                            Err(error) => panic!("{how:?}, round {round}: {error}"),
                        }
                    }
                };
                let late = usize::from(others == 0 && how != LetGo::Dequeue);
                let threads: Vec<_> = (0..others + late).map(|_| scope.spawn(serve)).collect();
                wait_until("the level comes again", || is_heard.load(Ordering::SeqCst));
                first.join().expect("no panic");
                // Those that still wait are told of it as well: it holds.
                for thread in threads {
                    thread.join().expect("no panic");
                }
            });
            port.register(Registration::remove(&pair.ours))?;
            wait_until("it is removed", || {
                let found = drain_port(&port);
                found.iter().any(|it| it.1.contains(Events::REMOVE))
            });
        }
    }
    Ok(())
}

#[for_every_backend]
fn c4_a_level_comes_again_when_its_thread_dequeues(backend: Backend) -> io::Result<()> {
    level_comes_again(backend, 1, LetGo::Dequeue)?;
    level_comes_again(backend, 2, LetGo::Dequeue)
}

#[for_every_backend]
fn c4_a_level_comes_again_when_its_thread_gives_its_place_back(backend: Backend) -> io::Result<()> {
    level_comes_again(backend, 1, LetGo::Release)?;
    level_comes_again(backend, 2, LetGo::Release)
}

#[for_every_backend]
fn c4_a_level_comes_again_when_its_thread_calls_blocking(backend: Backend) -> io::Result<()> {
    level_comes_again(backend, 1, LetGo::Blocking)?;
    level_comes_again(backend, 2, LetGo::Blocking)
}

#[for_every_backend]
fn c4_a_level_comes_again_when_its_thread_ends(backend: Backend) -> io::Result<()> {
    level_comes_again(backend, 1, LetGo::End)?;
    level_comes_again(backend, 2, LetGo::End)
}

#[cfg(target_os = "linux")]
#[for_every_backend]
fn c4_a_level_comes_again_when_its_thread_sleeps(backend: Backend) -> io::Result<()> {
    level_comes_again(backend, 1, LetGo::Sleep)
}

/// The others wait in the system.
#[cfg(target_os = "linux")]
#[for_every_backend]
fn c4_a_level_comes_again_from_a_sleeper_beside_a_free_place(backend: Backend) -> io::Result<()> {
    level_comes_again(backend, 2, LetGo::Sleep)
}

#[for_every_backend]
fn c4_level_follows_each_condition_by_itself(backend: Backend) -> io::Result<()> {
    let port = port(backend)?;
    let pair = Pair::unix()?;
    port.enable(&pair.ours, KEY, EventFilter::ALL, LEVEL)?;
    let next = |events| {
        // The first may have been queued before the latest change.
        let _ = port.dequeue_one(Some(Duration::ZERO));
        let found = port.dequeue_one(Some(Duration::ZERO));
        let found = found.map(|entry| entry.events());
        assert_eq!(found, events);
    };
    next(Ok(Events::OUT));
    pair.send()?;
    next(Ok(Events::IN | Events::OUT));
    let sent = pair.fill()?;
    next(Ok(Events::IN));
    pair.drain()?;
    next(Err(Error::TimedOut));
    pair.make_room(sent)?;
    next(Ok(Events::OUT));
    pair.theirs.shutdown(Shutdown::Write)?;
    // Where each condition has an event of its own, that of the end may come after another.
    let most = if EDGES_COME_ONE_BY_ONE { 3 } else { 2 };
    let found: Vec<_> = (0..most)
        .map_while(|_| port.dequeue_one(Some(Duration::ZERO)).ok())
        .collect();
    let all = Events::IN | Events::OUT | Events::HANGUP;
    assert!(
        found.iter().all(|entry| all.contains(entry.events())),
        "{found:?}"
    );
    let shown = found.iter().skip(1).map(Entry::events).collect::<Events>();
    assert!(shown.contains(all), "{found:?}");
    Ok(())
}

/// Dequeues what an ENABLE may give besides true edges: one notification, of conditions that hold.
#[track_caller]
fn take_extra(port: &CompletionPort, holds: Events) -> usize {
    // With room for one at a time, the conditions may come one by one.
    let mut entries = [Entry::default(); 4];
    let found = port.dequeue(&mut entries, Some(Duration::ZERO));
    let found = found.map_or(&[][..], |found| &*found);
    let mut found: Vec<_> = found
        .iter()
        .map(|it| (it.completion_key, it.events()))
        .collect();
    found.extend(drain_port(port));
    let is_allowed = |&(key, events): &(usize, Events)| key == KEY && holds.contains(events);
    assert!(
        found.len() <= 1 && found.iter().all(is_allowed),
        "{found:?}"
    );
    found.len()
}

/// Whatever the port does now and then besides.
#[for_every_backend]
fn c5_among_many_edges_none_comes_for_what_only_goes_on_to_hold(
    backend: Backend,
) -> io::Result<()> {
    let port = port(backend)?;
    let pair = Pair::unix()?;
    port.enable(&pair.ours, KEY, EventFilter::ALL, EDGE)?;
    take_extra(&port, Events::OUT);
    for _ in 0..200 {
        pair.send()?;
        let entry = port.dequeue_one(Some(PATIENCE))?;
        assert!(entry.events().contains(Events::IN), "{entry:?}");
        pair.drain()?;
        expect_nothing(&port);
    }
    Ok(())
}

#[for_every_backend]
fn c5_each_enable_gives_at_most_one_for_what_holds(backend: Backend) -> io::Result<()> {
    let port = port(backend)?;
    for kind in Kind::all() {
        for trigger in [EDGE, EDGE_ONCE] {
            let pair = kind.pair()?;
            let enable = |filter| Registration::enable(&pair.ours, KEY, filter, trigger);
            pair.send()?;
            for _ in 0..5 {
                port.register(enable(EventFilter::ALL))?;
                take_extra(&port, Events::IN | Events::OUT);
                expect_nothing(&port);
            }
            // Nothing holds now, so nothing comes until something does.
            pair.drain()?;
            port.register(enable(EventFilter::IN))?;
            expect_nothing(&port);
            pair.send()?;
            expect(&port, &[IN]);
            expect_nothing(&port);
            expect_removed(&port, &pair.ours, KEY)?;
        }
    }
    Ok(())
}

/// The same, where other threads sit ready to take whatever the system has to say.
#[for_every_backend]
fn c5_each_enable_gives_at_most_one_while_threads_wait(backend: Backend) -> io::Result<()> {
    const ROUNDS: usize = rounds(500);
    for trigger in [EDGE, EDGE_ONCE] {
        // A thread may have taken the event of one condition before the other is watched.
        let most = if EDGES_COME_ONE_BY_ONE && trigger == EDGE {
            2
        } else {
            1
        };
        let port = port_with(backend, 4)?;
        let pair = Pair::unix()?;
        pair.send()?;
        let told = AtomicUsize::new(0);
        thread::scope(|scope| -> io::Result<()> {
            let close = CloseAtEnd(&port, &[]);
            let (port, told) = (&port, &told);
            let serve = move || {
                while let Ok(entry) = port.dequeue_one(None) {
                    assert_eq!(entry.completion_key, KEY);
                    assert!((Events::IN | Events::OUT).contains(entry.events()));
                    told.fetch_add(1, Ordering::SeqCst);
                }
            };
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(serve)).collect();
            for round in 1..=ROUNDS {
                port.enable(&pair.ours, KEY, EventFilter::ALL, trigger)?;
                if round % 2 == 0 {
                    thread::yield_now();
                }
                port.register(Registration::disable(&pair.ours))?;
                let told = told.load(Ordering::SeqCst);
                assert!(
                    told <= round * most,
                    "{trigger:?}: {told} after {round} times"
                );
            }
            drop(close);
            for thread in threads {
                thread.join().expect("no panic");
            }
            Ok(())
        })?;
        assert!(told.into_inner() <= ROUNDS * most);
    }
    Ok(())
}

#[for_every_backend]
fn c5_edge_gives_one_for_each_rise(backend: Backend) -> io::Result<()> {
    let port = port(backend)?;
    for kind in Kind::all() {
        let pair = kind.pair()?;
        port.enable(&pair.ours, KEY, EventFilter::IN, EDGE)?;
        for _ in 0..10 {
            pair.send()?;
            expect(&port, &[IN]);
            expect_nothing(&port);
            pair.drain()?;
            expect_nothing(&port);
        }
    }
    Ok(())
}

#[for_every_backend]
fn c5_edge_of_a_send_buffer_that_gets_room(backend: Backend) -> io::Result<()> {
    let port = port(backend)?;
    for kind in Kind::streams() {
        for trigger in [EDGE, EDGE_ONCE] {
            let pair = kind.pair()?;
            let enable = || Registration::enable(&pair.ours, KEY, EventFilter::OUT, trigger);
            // Writable when it is enabled, and full when it is.
            port.register(enable())?;
            take_extra(&port, Events::OUT);
            for _ in 0..3 {
                let mut sent = pair.fill()?;
                // TCP may find room on the way, which is an edge.
                while !drain_port(&port).is_empty() {
                    port.register(enable())?;
                    sent += pair.fill()?;
                }
                port.register(enable())?;
                pair.make_room(sent)?;
                expect(&port, &[(KEY, Events::OUT)]);
            }
            port.register(Registration::remove(&pair.ours))?;
            wait_until("it is removed", || {
                drain_port(&port)
                    .iter()
                    .any(|(_, events)| events.contains(Events::REMOVE))
            });
        }
    }
    Ok(())
}

/// More data, or a receive that leaves some, may be an edge or not.
#[for_every_backend]
fn c5_data_in_a_socket_that_is_not_drained_gives_at_most_one(backend: Backend) -> io::Result<()> {
    let port = port(backend)?;
    for kind in Kind::streams() {
        let pair = kind.pair()?;
        port.enable(&pair.ours, KEY, EventFilter::IN, EDGE)?;
        for _ in 0..5 {
            pair.send()?;
            expect(&port, &[IN]);
            pair.send()?;
            let mut extra = take_extra(&port, Events::IN);
            assert_eq!((&pair.ours).read(&mut [0])?, 1);
            extra += take_extra(&port, Events::IN);
            assert!(extra <= 1, "{kind}");
            pair.drain()?;
            expect_nothing(&port);
        }
    }
    Ok(())
}

#[for_every_backend]
fn c5_what_still_holds_may_show_with_an_edge(backend: Backend) -> io::Result<()> {
    let port = port(backend)?;
    let pair = Pair::unix()?;
    let sent = pair.fill()?;
    port.enable(&pair.ours, KEY, EventFilter::IN | EventFilter::OUT, EDGE)?;
    pair.make_room(sent)?;
    expect(&port, &[(KEY, Events::OUT)]);
    drain_port(&port);
    pair.send()?;
    let found = port.dequeue_one(Some(PATIENCE))?.events();
    assert!(
        found == Events::IN || found == Events::IN | Events::OUT,
        "{found:?}"
    );
    expect_nothing(&port);
    Ok(())
}

/// A one-shot may have told of the other one at ENABLE: then it is disabled.
#[for_every_backend]
fn c5_edge_of_one_condition_comes_while_another_holds(backend: Backend) -> io::Result<()> {
    let port = port(backend)?;
    for trigger in [EDGE, EDGE_ONCE] {
        let pair = Pair::unix()?;
        let enable = |holds| -> io::Result<bool> {
            port.enable(&pair.ours, KEY, EventFilter::ALL, trigger)?;
            let told = take_extra(&port, holds);
            Ok(trigger == EDGE || told == 0)
        };
        let expect_edge = |is_enabled, condition| -> io::Result<()> {
            if is_enabled {
                // With room for one, OUT may come by itself, as the system may report it again with an end.
                let mut entries = [Entry::default(); 4];
                let found = port.dequeue(&mut entries, Some(PATIENCE))?;
                assert_eq!(found.len(), 1, "{found:?}");
                let events = found[0].events();
                assert!(events.contains(condition), "{events:?}");
            }
            expect_nothing(&port);
            Ok(())
        };
        // IN holds, OUT does not.
        pair.send()?;
        let sent = pair.fill()?;
        let is_enabled = enable(Events::IN)?;
        pair.make_room(sent)?;
        if is_enabled {
            let events = port.dequeue_one(Some(PATIENCE))?.events();
            assert!(events.contains(Events::OUT), "{events:?}");
        }
        drain_port(&port);

        // OUT holds, IN does not.
        pair.drain()?;
        let is_enabled = enable(Events::OUT)?;
        pair.send()?;
        expect_edge(is_enabled, Events::IN)?;

        // Both hold, HANGUP does not.
        let is_enabled = enable(Events::IN | Events::OUT)?;
        if !end_shows_behind_data() {
            pair.drain()?;
        }
        pair.theirs.shutdown(Shutdown::Write)?;
        expect_edge(is_enabled, Events::HANGUP)?;
    }
    Ok(())
}

#[for_every_backend]
fn c5_what_rose_while_disabled_gives_at_most_one(backend: Backend) -> io::Result<()> {
    let port = port(backend)?;
    for trigger in [EDGE, EDGE_ONCE] {
        let pair = Pair::unix()?;
        let enable = || Registration::enable(&pair.ours, KEY, EventFilter::IN, trigger);
        port.register(enable())?;
        for _ in 0..3 {
            port.register(Registration::disable(&pair.ours))?;
            pair.send()?;
            expect_nothing(&port);
            port.register(enable())?;
            take_extra(&port, Events::IN);
            // Fallen and risen, all of it while disabled.
            port.register(Registration::disable(&pair.ours))?;
            pair.drain()?;
            pair.send()?;
            expect_nothing(&port);
            port.register(enable())?;
            take_extra(&port, Events::IN);
            pair.drain()?;
            port.register(enable())?;
            expect_nothing(&port);
            pair.send()?;
            expect(&port, &[IN]);
            pair.drain()?;
        }
    }
    Ok(())
}

#[for_every_backend]
fn c5_level_overwritten_with_edge_and_back(backend: Backend) -> io::Result<()> {
    let port = port(backend)?;
    let pair = Pair::unix()?;
    let enable = |trigger| Registration::enable(&pair.ours, KEY, EventFilter::IN, trigger);
    for level in [LEVEL, ONCE] {
        for edge in [EDGE, EDGE_ONCE] {
            port.register(enable(level))?;
            pair.send()?;
            expect(&port, &[IN]);
            port.register(enable(edge))?;
            // One for what holds, and one that was queued while it was level-triggered.
            let found = drain_port(&port);
            assert!(found.len() <= 1 + usize::from(level == LEVEL && edge == EDGE));
            port.register(enable(edge))?;
            take_extra(&port, Events::IN);
            pair.drain()?;
            port.register(enable(edge))?;
            expect_nothing(&port);
            pair.send()?;
            expect(&port, &[IN]);
            expect_nothing(&port);
            port.register(enable(level))?;
            expect(&port, &[IN]);
            pair.drain()?;
            assert!(drain_port(&port).len() <= 1);
        }
    }
    Ok(())
}

/// The edge came while the registration was enabled, so its notification is due, whether or not the
/// port knows of it yet when it is enabled once more.
#[for_every_backend]
fn c5_enable_again_does_not_swallow_an_edge_that_came_before(backend: Backend) -> io::Result<()> {
    let port = port(backend)?;
    for kind in Kind::all() {
        for trigger in [EDGE, EDGE_ONCE] {
            for posts in [true, false] {
                let pair = kind.pair()?;
                let enable = || Registration::enable(&pair.ours, KEY, EventFilter::IN, trigger);
                port.register(enable())?;
                pair.send()?;
                if posts {
                    // A port may queue what it knows by now.
                    port.post(POSTED)?;
                }
                port.register(enable())?;
                let mut found = vec![port.dequeue_one(Some(PATIENCE))?];
                found.extend(std::iter::from_fn(|| {
                    port.dequeue_one(Some(Duration::ZERO)).ok()
                }));
                let (posted, told): (Vec<&Entry>, Vec<&Entry>) =
                    found.iter().partition(|it| **it == POSTED);
                assert_eq!(posted.len(), usize::from(posts), "{found:?}");
                assert!(told.iter().all(|it| **it == notification(KEY, Events::IN)));
                // The edge, and maybe what held at ENABLE.
                let most = if trigger == EDGE { 2 } else { 1 };
                assert!((1..=most).contains(&told.len()), "{kind}: {found:?}");
            }
        }
    }
    Ok(())
}

#[for_every_backend]
fn c5_edge_of_hangup_comes_after_edge_of_in(backend: Backend) -> io::Result<()> {
    let port = port(backend)?;
    for kind in Kind::streams() {
        let pair = kind.pair()?;
        let filter = EventFilter::IN | EventFilter::HANGUP;
        port.enable(&pair.ours, KEY, filter, EDGE)?;
        pair.send()?;
        expect(&port, &[IN]);
        // IN goes on to hold.
        if !end_shows_behind_data() {
            pair.drain()?;
        }
        pair.theirs.shutdown(Shutdown::Write)?;
        let entry = port.dequeue_one(Some(PATIENCE))?;
        assert!(
            entry.events().contains(Events::HANGUP),
            "{:?}",
            entry.events()
        );
        expect_nothing(&port);
    }
    Ok(())
}

/// The pattern that edge-triggered programs follow: enable, read until nothing is left, wait. A peer
/// that writes at the same time must not get lost in between.
#[for_every_backend]
fn c5_no_edge_is_lost_between_enable_and_drain(backend: Backend) -> io::Result<()> {
    const BYTES: usize = rounds(3000);
    for kind in [Kind::LOCAL, Kind::Tcp4] {
        for trigger in [EDGE, EDGE_ONCE] {
            let port = port(backend)?;
            let pair = kind.pair()?;
            let received = AtomicUsize::new(0);
            thread::scope(|scope| -> io::Result<()> {
                let sender = scope.spawn(|| -> io::Result<()> {
                    let mut rng = fastrand::Rng::with_seed(5);
                    for sent in 1..=BYTES {
                        (&pair.theirs).write_all(b"x")?;
                        // Half of the time wait until the socket is drained again.
                        if rng.bool() {
                            wait_until("what was sent is received", || {
                                received.load(Ordering::SeqCst) == sent
                            });
                        }
                        for _ in 0..rng.u32(..200) {
                            std::hint::spin_loop();
                        }
                    }
                    Ok(())
                });
                let enable = || Registration::enable(&pair.ours, KEY, EventFilter::IN, trigger);
                port.register(enable())?;
                let mut sum = pair.drain()?;
                while sum < BYTES {
                    received.store(sum, Ordering::SeqCst);
                    expect(&port, &[IN]);
                    if trigger == EDGE_ONCE {
                        port.register(enable())?;
                    }
                    sum += pair.drain()?;
                }
                received.store(sum, Ordering::SeqCst);
                sender.join().expect("the sender ends")
            })?;
        }
    }
    Ok(())
}

#[for_every_backend]
fn c5_no_edge_is_lost_however_often_it_is_enabled_again(backend: Backend) -> io::Result<()> {
    enable_all_the_time(backend, [EventFilter::IN; 2])
}

#[for_every_backend]
fn c5_no_edge_is_lost_while_other_conditions_join_and_leave_the_filter(
    backend: Backend,
) -> io::Result<()> {
    enable_all_the_time(backend, [EventFilter::IN, EventFilter::ALL])
}

/// One thread enables a registration with another filter, while the other end sends. Nobody waits, so nobody takes the
/// edge before the filter is another one.
#[for_every_backend]
fn c5_no_edge_is_lost_that_comes_while_the_filter_changes(backend: Backend) -> io::Result<()> {
    const ROUNDS: usize = rounds(20_000);
    let port = port(backend)?;
    let pair = Pair::unix()?;
    let [changes, sent] = [const { AtomicUsize::new(0) }; 2];
    // Both at the same time: neither sleeps.
    let wait_for = |count: &AtomicUsize, round| {
        let begin = Instant::now();
        while count.load(Ordering::SeqCst) <= round {
            assert!(begin.elapsed() < PATIENCE, "the other thread does not come");
            thread::yield_now();
        }
    };
    let pause = |rng: &mut fastrand::Rng| (0..rng.u32(..500)).for_each(|_| std::hint::spin_loop());
    let filters = [EventFilter::IN, EventFilter::ALL];
    port.enable(&pair.ours, KEY, filters[1], EDGE)?;
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut rng = fastrand::Rng::with_seed(7);
            for round in 0..ROUNDS {
                wait_for(&changes, round);
                pause(&mut rng);
                pair.send().expect("there is room");
                sent.fetch_add(1, Ordering::SeqCst);
            }
        });
        let mut rng = fastrand::Rng::with_seed(8);
        for round in 0..ROUNDS {
            changes.fetch_add(1, Ordering::SeqCst);
            pause(&mut rng);
            port.enable(&pair.ours, KEY, filters[round % 2], EDGE)?;
            wait_for(&sent, round);
            // Whether OUT rises when it joins the filter is not what this is about.
            while !port
                .dequeue_one(Some(PATIENCE))?
                .events()
                .contains(Events::IN)
            {}
            pair.drain()?;
            while port.dequeue_one(Some(Duration::ZERO)).is_ok() {}
        }
        Ok(())
    })
}

/// One thread takes notifications and drains, while another enables the same registration over and
/// over. An edge is an edge, whenever ENABLE comes.
fn enable_all_the_time(backend: Backend, filters: [EventFilter; 2]) -> io::Result<()> {
    const ROUNDS: usize = rounds(4000);
    let port = port_with(backend, 2)?;
    let pair = Pair::unix()?;
    let stop = AtomicBool::new(false);
    let enable = |filter| Registration::enable(&pair.ours, KEY, filter, EDGE);
    port.register(enable(filters[0]))?;
    thread::scope(|scope| -> io::Result<()> {
        let busy = scope.spawn(|| -> io::Result<()> {
            for filter in filters.into_iter().cycle() {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                port.register(enable(filter))?;
                thread::yield_now();
            }
            Ok(())
        });
        let result = (0..ROUNDS).try_for_each(|round| -> io::Result<()> {
            pair.send()?;
            // Whether OUT rises when it joins the filter is not what this is about.
            let mut told = Events::empty();
            while !told.contains(Events::IN) {
                match port.dequeue_one(Some(PATIENCE)) {
                    Ok(entry) => told |= entry.events(),
                    Err(error) => {
                        let lost = format!("the edge of round {round} is lost: {error}");
                        return Err(io::Error::other(lost));
                    }
                }
            }
            pair.drain()?;
            Ok(())
        });
        stop.store(true, Ordering::Relaxed);
        busy.join().expect("the thread that enables ends")?;
        result
    })
}

/// OUT holds at ENABLE, and is no edge. IN comes right after, and is one: it must not go down with OUT.
/// That OUT is told belatedly, when both come at once, is one notification too many, and harmless.
#[for_every_backend]
fn c5_no_edge_is_lost_behind_what_held_at_enable(backend: Backend) -> io::Result<()> {
    const ROUNDS: usize = rounds(4000);
    for trigger in [EDGE, EDGE_ONCE] {
        let port = port_with(backend, 4)?;
        let pair = Pair::unix()?;
        let (tell, told) = channel();
        thread::scope(|scope| -> io::Result<()> {
            let _close = CloseAtEnd(&port, &[]);
            for _ in 0..4 {
                let (tell, port) = (tell.clone(), &port);
                scope.spawn(move || {
                    while let Ok(entry) = port.dequeue_one(None) {
                        tell.send(entry.events()).expect("someone listens");
                    }
                });
            }
            let filter = EventFilter::IN | EventFilter::OUT;
            for round in 0..ROUNDS {
                port.enable(&pair.ours, KEY, filter, trigger)?;
                assert_eq!((&pair.theirs).write(b"x")?, 1);
                loop {
                    match told.recv_timeout(PATIENCE) {
                        Ok(events) if events.contains(Events::IN) => break,
                        Ok(events) => {
                            assert_eq!(events, Events::OUT);
                            // A one-shot that has told of OUT is to be armed again, as ever.
                            if trigger == EDGE_ONCE {
                                break;
                            }
                        }
                        Err(_) => panic!("{trigger:?}, round {round}: the edge is lost"),
                    }
                }
                pair.drain()?;
                port.register(Registration::disable(&pair.ours))?;
            }
            Ok(())
        })?;
    }
    Ok(())
}

#[for_every_backend]
fn c6_one_shot_delivery_disables_until_enabled_again(backend: Backend) -> io::Result<()> {
    let port = port(backend)?;
    for kind in Kind::all() {
        let pair = kind.pair()?;
        let enable = || Registration::enable(&pair.ours, KEY, EventFilter::IN, ONCE);
        port.register(enable())?;
        for _ in 0..5 {
            pair.send()?;
            expect(&port, &[IN]);
            // The condition holds still, and more comes.
            expect_nothing(&port);
            pair.send()?;
            expect_nothing(&port);
            port.register(enable())?;
            expect(&port, &[IN]);
            expect_nothing(&port);
            pair.drain()?;
            port.register(enable())?;
            expect_nothing(&port);
        }
    }
    for kind in Kind::all() {
        let pair = kind.pair()?;
        let enable = || Registration::enable(&pair.ours, KEY, EventFilter::IN, EDGE_ONCE);
        port.register(enable())?;
        for _ in 0..5 {
            pair.send()?;
            expect(&port, &[IN]);
            pair.drain()?;
            pair.send()?;
            expect_nothing(&port);
            pair.drain()?;
            port.register(enable())?;
            expect_nothing(&port);
        }
    }
    Ok(())
}

#[for_every_backend]
fn c6_a_fired_one_shot_stays_registered(backend: Backend) -> io::Result<()> {
    let port = port(backend)?;
    for trigger in [ONCE, EDGE_ONCE] {
        let pair = Pair::unix()?;
        port.enable(&pair.ours, KEY, EventFilter::IN, trigger)?;
        pair.send()?;
        expect(&port, &[IN]);
        assert_eq!(counted(port.snapshot().registrations), 1);
        let other = Registration::enable(&pair.ours, KEY + 1, EventFilter::IN, trigger);
        let refused = as_told_by(&port, Err(RegistrationError::OtherKey));
        assert_eq!(port.register(other), refused);
        port.register(Registration::disable(&pair.ours))?;
        port.register(Registration::remove(&pair.ours))?;
        expect(&port, &[(KEY, Events::REMOVE)]);
    }
    Ok(())
}

#[for_every_backend]
fn c6_a_fired_one_shot_is_silent_about_errors_too(backend: Backend) -> io::Result<()> {
    let port = port(backend)?;
    for kind in Kind::tcp() {
        for trigger in [ONCE, EDGE_ONCE] {
            let pair = kind.pair()?;
            let filter = EventFilter::IN | EventFilter::HANGUP;
            let enable = || Registration::enable(&pair.ours, KEY, filter, trigger);
            port.register(enable())?;
            pair.send()?;
            expect(&port, &[IN]);
            reset(pair.theirs)?;
            wait_readiness(&pair.ours, PollFlags::ERR | PollFlags::HUP);
            expect_quiet(&port);
            port.register(enable())?;
            if trigger == ONCE {
                let entry = port.dequeue_one(Some(PATIENCE))?;
                assert!(entry.events().contains(Events::ERR | Events::HANGUP));
            } else {
                take_extra(&port, Events::IN | Events::HANGUP | Events::ERR);
            }
            expect_nothing(&port);
        }
    }
    Ok(())
}

/// While a notification waits to be dequeued, the registration is enabled still, and ENABLE finds it so: the one that
/// is delivered disables, and no other comes.
#[for_every_backend]
fn c6_it_is_the_delivery_that_disables(backend: Backend) -> io::Result<()> {
    let port = port(backend)?;
    for trigger in [ONCE, EDGE_ONCE] {
        let pair = Pair::unix()?;
        let enable = || Registration::enable(&pair.ours, KEY, EventFilter::IN, trigger);
        port.register(enable())?;
        pair.send()?;
        // A port may queue what it knows by now.
        port.post(POSTED)?;
        port.register(enable())?;
        assert_eq!(
            collect(&port, 2),
            [(POSTED.completion_key, POSTED.events()), IN]
        );
        expect_nothing(&port);
    }
    Ok(())
}

#[for_every_backend]
fn c7_delivering_one_condition_disarms_all(backend: Backend) -> io::Result<()> {
    let port = port(backend)?;
    for kind in Kind::all() {
        let pair = kind.pair()?;
        let both = EventFilter::IN | EventFilter::OUT;
        let enable = |filter| Registration::enable(&pair.ours, KEY, filter, ONCE);
        port.register(enable(both))?;
        expect(&port, &[(KEY, Events::OUT)]);
        pair.send()?;
        expect_nothing(&port);
        port.register(enable(both))?;
        expect(&port, &[(KEY, Events::IN | Events::OUT)]);
        expect_nothing(&port);
        port.register(enable(EventFilter::IN))?;
        expect(&port, &[IN]);
        expect_nothing(&port);
    }
    // The other way round: IN disarms OUT.
    let pair = Pair::unix()?;
    let sent = pair.fill()?;
    port.enable(&pair.ours, KEY, EventFilter::ALL, ONCE)?;
    pair.send()?;
    expect(&port, &[IN]);
    pair.make_room(sent)?;
    expect_nothing(&port);
    Ok(())
}

/// Sixteen threads serve a few sockets whose peers write all the time. Whoever has dequeued a
/// notification of a socket has that socket to itself, until it enables it again: by a call for that
/// alone, or by the call that dequeues the next one.
#[for_every_backend]
fn c8_two_threads_never_hold_notifications_of_one_registration(backend: Backend) -> io::Result<()> {
    for places in [1, 2, 8] {
        for in_one_call in [false, true] {
            serve_exclusively(backend, places, in_one_call)?;
        }
    }
    Ok(())
}

fn serve_exclusively(backend: Backend, places: usize, in_one_call: bool) -> io::Result<()> {
    const SOCKETS: usize = 6;
    const BYTES: usize = 16000;
    let port = port_with(backend, places)?;
    let pairs = (0..SOCKETS)
        .map(|_| Pair::unix())
        .collect::<io::Result<Vec<_>>>()?;
    let held: Vec<_> = pairs.iter().map(|_| AtomicBool::new(false)).collect();
    let received: Vec<_> = pairs.iter().map(|_| AtomicUsize::new(0)).collect();
    let all_received = || {
        received
            .iter()
            .all(|count| count.load(Ordering::SeqCst) == BYTES)
    };
    let enable = |key: usize| Registration::enable(&pairs[key].ours, key, EventFilter::IN, ONCE);
    for key in 0..SOCKETS {
        port.register(enable(key))?;
    }

    let serve = || -> Result<(), Error> {
        let mut entries = [Entry::default(); 3];
        let mut batch = Vec::new();
        loop {
            let found = port.process(&mut batch, &mut entries, Some(PATIENCE))?;
            assert!(batch.iter().all(|entry| entry.result().is_ok()));
            batch.clear();
            for entry in found.iter() {
                let key = entry.completion_key;
                assert!(
                    !held[key].swap(true, Ordering::SeqCst),
                    "held by two threads"
                );
            }
            for entry in found.iter() {
                let key = entry.completion_key;
                let before = received[key].load(Ordering::SeqCst);
                let count = (&pairs[key].ours)
                    .read(&mut [0; 64])
                    .expect("there is data");
                thread::yield_now();
                received[key].store(before + count, Ordering::SeqCst);
                assert!(
                    held[key].swap(false, Ordering::SeqCst),
                    "held by two threads"
                );
                if in_one_call {
                    batch.push(enable(key));
                } else {
                    assert_eq!(port.register(enable(key)), Ok(()));
                }
            }
        }
    };
    thread::scope(|scope| {
        let close = CloseAtEnd(&port, &[]);
        let servers: Vec<_> = (0..16).map(|_| scope.spawn(serve)).collect();
        for pair in &pairs {
            scope.spawn(move || {
                for _ in 0..BYTES / 8 {
                    (&pair.theirs)
                        .write_all(&[7; 8])
                        .expect("the peer can write");
                }
            });
        }
        wait_until("all bytes are received", all_received);
        drop(close);
        for server in servers {
            assert_eq!(server.join().expect("no panic"), Err(Error::Closed));
        }
    });
    Ok(())
}

/// Several threads dequeue, and drain what they are told of; the filter changes all the time, and the peer goes on when
/// its byte was read. So a missing edge is the end of it.
#[for_every_backend]
fn c5_no_edge_is_lost_among_threads_while_the_filter_changes(backend: Backend) -> io::Result<()> {
    const ROUNDS: usize = rounds(4000);
    for (places, threads) in [(1, 3), (2, 2), (4, 4)] {
        let port = port_with(backend, places)?;
        let pair = Pair::unix()?;
        let received = AtomicUsize::new(0);
        let is_over = AtomicBool::new(false);
        port.enable(&pair.ours, KEY, EventFilter::IN, EDGE)?;
        thread::scope(|scope| -> io::Result<()> {
            let _close = CloseAtEnd(&port, &[]);
            for _ in 0..threads {
                scope.spawn(|| {
                    while let Ok(entry) = port.dequeue_one(None) {
                        assert_eq!(entry.completion_key, KEY);
                        if entry.events().contains(Events::IN) {
                            let count = pair.drain().expect("the peer is there");
                            received.fetch_add(count, Ordering::SeqCst);
                        }
                    }
                });
            }
            let changes = scope.spawn(|| {
                let filters = [EventFilter::ALL, EventFilter::IN];
                for filter in filters.into_iter().cycle() {
                    if is_over.load(Ordering::SeqCst) {
                        break;
                    }
                    port.enable(&pair.ours, KEY, filter, EDGE)
                        .expect("it is open");
                    thread::yield_now();
                }
            });
            let mut rng = fastrand::Rng::with_seed(11);
            for round in 1..=ROUNDS {
                assert_eq!((&pair.theirs).write(b"x")?, 1);
                wait_until("the edge is told", || {
                    received.load(Ordering::SeqCst) == round
                });
                (0..rng.u32(..200)).for_each(|_| std::hint::spin_loop());
            }
            is_over.store(true, Ordering::SeqCst);
            changes.join().expect("no panic");
            Ok(())
        })?;
    }
    Ok(())
}

/// Two threads dequeue, and a third accepts, reads until nothing is left, and waits to be told. Each peer ends its stream
/// with its last bytes, a moment later, or when they were read. So a missing edge, also of the listener, is the end of it.
#[for_every_backend]
fn c5_no_edge_is_lost_of_streams_that_end_with_or_after_their_last_bytes(
    backend: Backend,
) -> io::Result<()> {
    const ROUNDS: usize = rounds(1200);
    const LISTENER: usize = 0;
    let filter = EventFilter::ALL;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let port = port_with(backend, 4)?;
    port.enable(&listener, LISTENER, filter, EDGE)?;
    let (tell, told) = channel();
    let mut was_told = [false; ROUNDS + 1];
    let mut wait = |key: usize| {
        while !std::mem::take(&mut was_told[key]) {
            let key = told.recv_timeout(PATIENCE).expect("no edge is lost");
            was_told[key] = true;
        }
    };
    thread::scope(|scope| {
        let _close = CloseAtEnd(&port, &[]);
        for _ in 0..2 {
            let (tell, port) = (tell.clone(), &port);
            scope.spawn(move || {
                while let Ok(entry) = port.dequeue_one(None) {
                    tell.send(entry.completion_key).expect("someone listens");
                }
            });
        }
        let mut rng = fastrand::Rng::with_seed(17);
        for round in 1..=ROUNDS {
            let (before, between) = (rng.u32(..2000), rng.u32(..2000));
            let (read, is_read) = channel();
            let peer = scope.spawn(move || {
                let pause = |spins: u32| (0..spins).for_each(|_| std::hint::spin_loop());
                let mut peer = TcpStream::connect(address)?;
                pause(before);
                peer.write_all(b"last")?;
                match round % 4 {
                    0 => {}
                    1 => pause(between),
                    2 => thread::yield_now(),
                    _ => is_read.recv().expect("it is read"),
                }
                io::Result::Ok(())
            });
            let (mut stream, _) = loop {
                match listener.accept() {
                    Err(error) if error.kind() == ErrorKind::WouldBlock => wait(LISTENER),
                    accepted => break accepted?,
                }
            };
            stream.set_nonblocking(true)?;
            port.enable(&stream, round, filter, EDGE)?;
            let (mut sum, mut bytes) = (0, [0; 3]);
            loop {
                match stream.read(&mut bytes) {
                    Ok(0) => break,
                    Ok(count) => sum += count,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {
                        if sum == 4 {
                            // The peer may have gone.
                            let _ = read.send(());
                        }
                        wait(round);
                    }
                    Err(error) => return Err(error),
                }
            }
            assert_eq!(sum, 4);
            port.register(Registration::remove(&stream))?;
            peer.join().expect("no panic")?;
        }
        Ok(())
    })
}

/// Clients connect while the listener's thread accepts until nothing is left, and each connects again when it was
/// answered. So a missing edge is the end of it.
#[for_every_backend]
fn c5_no_edge_of_a_listener_is_lost_while_clients_connect(backend: Backend) -> io::Result<()> {
    const ROUNDS: usize = rounds(1600);
    const CLIENTS: usize = 3;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let port = port(backend)?;
    port.enable(&listener, KEY, EventFilter::IN, EDGE)?;
    thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(move || {
                for _ in 0..ROUNDS {
                    let mut client = TcpStream::connect(address)?;
                    client.set_read_timeout(Some(PATIENCE))?;
                    client.read_exact(&mut [0])?;
                }
                io::Result::Ok(())
            });
        }
        let mut accepted = 0;
        while accepted < CLIENTS * ROUNDS {
            match listener.accept() {
                Ok((mut client, _)) => {
                    accepted += 1;
                    client.write_all(b"x")?;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let told = port.dequeue_one(Some(PATIENCE));
                    told.unwrap_or_else(|error| panic!("{error}, {accepted} accepted"));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    })
}
