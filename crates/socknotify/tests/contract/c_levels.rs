//! C4. Levels: a notification whenever a condition holds.

use std::io::{self};
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use socknotify::{Backend, CompletionPort, Entry, Error, EventFilter, Events, Registration};

use crate::support::trigger::{LEVEL, ONCE};
use crate::support::{
    CloseAtEnd, EDGES_COME_ONE_BY_ONE, Kind, PATIENCE, Pair, PortExt, drain_port, expect,
    expect_nothing, expect_quiet, notification, port, port_with, wait_until,
};

const KEY: usize = 31;
const IN: (usize, Events) = (KEY, Events::IN);
const POSTED: Entry = Entry::new(1, 2, 3);

#[for_every_backend]
fn c4_level_reports_what_holds_at_enable(port: CompletionPort) -> io::Result<()> {
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
fn c4_level_persistent_reports_again_as_long_as_it_holds(port: CompletionPort) -> io::Result<()> {
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
        // A poll of the driver that waits ends a little later.
        let mut seen = vec![false; ready];
        while cfg!(windows) && seen.contains(&false) {
            for entry in port.dequeue(&mut entries, Some(PATIENCE))? {
                seen[entry.completion_key] = true;
            }
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
fn c4_level_persistent_does_not_crowd_out_posted_packets(port: CompletionPort) -> io::Result<()> {
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
    /// It dequeues from another port.
    Elsewhere,
}

/// A level is dequeued by one thread, and goes on to hold. When that thread lets go, the level comes again: to another one
/// that waits, or that comes later, or to the same.
fn level_comes_again(backend: Backend, permits: usize, how: LetGo) -> io::Result<()> {
    let port = port_with(backend, permits)?;
    let elsewhere = port_with(backend, permits)?;
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
                let elsewhere = &elsewhere;
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
                        LetGo::Elsewhere => {
                            let found = elsewhere.dequeue_one(Some(Duration::ZERO));
                            assert_eq!(found, Err(Error::TimedOut));
                            wait();
                        }
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

#[for_every_backend(with_permits)]
fn c4_a_level_comes_again_when_its_thread_gives_its_permit_back(
    backend: Backend,
) -> io::Result<()> {
    level_comes_again(backend, 1, LetGo::Release)?;
    level_comes_again(backend, 2, LetGo::Release)
}

#[for_every_backend(with_permits)]
fn c4_a_level_comes_again_when_its_thread_calls_blocking(backend: Backend) -> io::Result<()> {
    level_comes_again(backend, 1, LetGo::Blocking)?;
    level_comes_again(backend, 2, LetGo::Blocking)
}

#[for_every_backend]
fn c4_a_level_comes_again_when_its_thread_ends(backend: Backend) -> io::Result<()> {
    level_comes_again(backend, 1, LetGo::End)?;
    level_comes_again(backend, 2, LetGo::End)
}

#[for_every_backend]
fn c4_a_level_comes_again_when_its_thread_dequeues_elsewhere(backend: Backend) -> io::Result<()> {
    level_comes_again(backend, 1, LetGo::Elsewhere)?;
    level_comes_again(backend, 2, LetGo::Elsewhere)
}

/// Until its thread dequeues, others *may* be notified of it, or not: they have packets meanwhile. That another one has a loop
/// watch the port changes nothing.
#[for_every_backend(with_permits)]
fn c4_a_level_belongs_to_the_thread_that_got_it(backend: Backend) -> io::Result<()> {
    let level = notification(KEY, Events::IN);
    for is_exposed in [false, cfg!(unix)] {
        let port = CompletionPort::builder().backend(backend).concurrency(2);
        let port = port.build()?;
        let pair = Pair::unix()?;
        port.enable(&pair.ours, KEY, EventFilter::IN, LEVEL)?;
        pair.send()?;
        thread::scope(|scope| -> io::Result<()> {
            let _close = CloseAtEnd(&port, &[]);
            assert_eq!(port.dequeue_one(Some(PATIENCE))?, level);
            let (tell, told) = channel();
            let (port, pair) = (&port, &pair);
            scope.spawn(move || {
                if is_exposed {
                    #[cfg(unix)]
                    std::os::fd::AsFd::as_fd(port);
                }
                while let Ok(entry) = port.dequeue_one(Some(PATIENCE)) {
                    if entry == level {
                        // It does not hold any more.
                        pair.drain().expect("the peer is there");
                    }
                    tell.send(entry).expect("the test runs");
                }
            });
            port.post(POSTED)?;
            let entry = told.recv_timeout(PATIENCE).expect("the packet, or both");
            let is_early = entry == level;
            if is_early {
                assert_eq!(told.recv_timeout(PATIENCE), Ok(POSTED));
            }
            port.release();
            if !is_early {
                assert_eq!(told.recv_timeout(PATIENCE), Ok(level));
            }
            Ok(())
        })?;
    }
    Ok(())
}

#[for_every_backend]
fn c4_level_follows_each_condition_by_itself(port: CompletionPort) -> io::Result<()> {
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
