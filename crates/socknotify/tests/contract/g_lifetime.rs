//! G. Lifetime: sockets that are closed, and numbers that are used again.

#![cfg_attr(
    windows,
    allow(
        dead_code,
        unused_imports,
        reason = "a registration there is of the socket, and lives on with a duplicate"
    )
)]

use std::io::{self, Read, Write};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use socket2::Socket;
use socknotify::{
    Backend, CompletionPort, Entry, Error, EventFilter, Events, Registration, RegistrationError,
    Trigger,
};

use crate::support::trigger::{EDGE, EVERY, LEVEL, ONCE};
use crate::support::{
    CloseAtEnd, Kind, PATIENCE, Pair, PortExt, as_told_by, asleep, counted, drain_port, expect,
    expect_nothing, expect_removed, port, port_with, raw, take_number, this_thread,
    wait_for_waiting, wait_until,
};

const KEY: usize = 61;
const OTHER_KEY: usize = 62;
const IN: (usize, Events) = (KEY, Events::IN);

/// How far a registration has come when its socket is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Enabled, and nothing has happened.
    Armed,
    /// A condition holds, and nobody has looked.
    Ready,
    /// A condition holds, and the port was told to do something else since.
    Queued,
    /// A notification was delivered.
    Delivered,
    Disabled,
}

const STAGES: [Stage; 5] = [
    Stage::Armed,
    Stage::Ready,
    Stage::Queued,
    Stage::Delivered,
    Stage::Disabled,
];

/// Registers a socket under [`KEY`] and brings it to a stage. A posted packet that helped is left.
fn bring_to(stage: Stage, port: &CompletionPort, pair: &Pair, trigger: Trigger) -> io::Result<()> {
    port.enable(&pair.ours, KEY, EventFilter::IN, trigger)?;
    match stage {
        Stage::Armed => {}
        Stage::Ready => pair.send()?,
        Stage::Queued => {
            pair.send()?;
            port.post(Entry::default())?;
        }
        Stage::Delivered => {
            pair.send()?;
            expect(port, &[IN]);
            // Else the peer is told that it was not read.
            pair.drain()?;
        }
        Stage::Disabled => port.register(Registration::disable(&pair.ours))?,
    }
    Ok(())
}

/// What is allowed to come for a socket that was closed at this stage, and nothing after it.
#[track_caller]
fn expect_leftovers(port: &CompletionPort, stage: Stage, trigger: Trigger) {
    let mut found = drain_port(port);
    found.retain(|&found| found != (0, Events::empty()));
    let at_most = match stage {
        Stage::Ready | Stage::Queued => 1,
        Stage::Delivered if trigger == LEVEL => 1,
        _ => 0,
    };
    assert!(found.len() <= at_most, "{stage:?}, {trigger:?}: {found:?}");
    assert!(found.iter().all(|&found| found == IN), "{found:?}");
}

/// The peer is told that this side is closed, without delay.
#[track_caller]
fn expect_end(mut peer: &Socket) {
    match peer.read(&mut [0; 8]) {
        Ok(0) => {}
        // Closed with data that was not read.
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {}
        result => panic!("the peer still waits: {result:?}"),
    }
}

#[for_every_backend]
fn g1_the_peer_sees_the_close_at_once(backend: Backend) -> io::Result<()> {
    for kind in Kind::streams() {
        for trigger in EVERY {
            for stage in STAGES {
                let port = port(backend)?;
                let pair = kind.pair()?;
                bring_to(stage, &port, &pair, trigger)?;
                drop(pair.ours);
                expect_end(&pair.theirs);
                expect_leftovers(&port, stage, trigger);
            }
        }
    }
    Ok(())
}

#[for_every_backend]
fn g1_the_peer_sees_the_close_at_once_while_threads_wait(backend: Backend) -> io::Result<()> {
    for kind in Kind::streams() {
        for trigger in EVERY {
            let port = port_with(backend, 2)?;
            thread::scope(|scope| -> io::Result<()> {
                let _close = CloseAtEnd(&port, &[]);
                let (tell, told) = channel();
                for _ in 0..4 {
                    let (tell, port) = (tell.clone(), &port);
                    scope.spawn(move || {
                        tell.send(this_thread()).expect("someone listens");
                        assert_eq!(port.dequeue_one(None), Err(Error::Closed));
                    });
                }
                wait_for_waiting(&port, 4);
                asleep(told.iter().take(4));
                let pair = kind.pair()?;
                port.enable(&pair.ours, KEY, EventFilter::IN, trigger)?;
                drop(pair.ours);
                expect_end(&pair.theirs);
                Ok(())
            })?;
        }
    }
    Ok(())
}

#[for_every_backend]
fn g1_a_registered_listener_that_is_closed_takes_no_connection(
    port: CompletionPort,
) -> io::Result<()> {
    for kind in Kind::tcp() {
        for trigger in EVERY {
            let listener = kind.listener()?;
            // As long as this connection is there, no other socket is given the listener's address.
            let _kept = (listener.connect()?, listener.accept()?);
            let enable = Registration::enable(&listener.socket, KEY, EventFilter::IN, trigger);
            port.register(enable)?;
            let address = listener.address.clone();
            drop(listener);
            let client = Socket::new(address.domain(), socket2::Type::STREAM, None)?;
            let refused = client.connect(&address).expect_err("nobody listens");
            assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
            expect_nothing(&port);
        }
    }
    Ok(())
}

#[for_every_backend]
fn g1_no_remove_comes_for_a_socket_that_was_closed(backend: Backend) -> io::Result<()> {
    for kind in Kind::all() {
        for trigger in EVERY {
            for stage in STAGES {
                let port = port(backend)?;
                let pair = kind.pair()?;
                bring_to(stage, &port, &pair, trigger)?;
                drop(pair.ours);
                expect_leftovers(&port, stage, trigger);
                // Not later either.
                let other = Pair::unix()?;
                port.enable(&other.ours, 1, EventFilter::IN, trigger)?;
                other.send()?;
                expect(&port, &[(1, Events::IN)]);
                other.drain()?;
                drain_port(&port);
                expect_removed(&port, &other.ours, 1)?;
                drop(pair.theirs);
                expect_nothing(&port);
            }
        }
    }
    Ok(())
}

/// Open in the contract: a removal that was accepted is notified, even if the socket is closed, and
/// its number taken, before the notification is dequeued. The one who asked waits for it.
#[for_every_backend]
fn g1_a_socket_closed_after_remove_was_accepted_still_has_its_remove(
    backend: Backend,
) -> io::Result<()> {
    for trigger in EVERY {
        for stage in STAGES {
            for number_is_used_again in [false, true] {
                let port = port(backend)?;
                let pair = Pair::unix()?;
                bring_to(stage, &port, &pair, trigger)?;
                port.register(Registration::remove(&pair.ours))?;
                let other = Pair::unix()?;
                let mut kept = None;
                if number_is_used_again {
                    let new = take_number(pair.ours, other.ours)?;
                    let enable = Registration::enable(&new, OTHER_KEY, EventFilter::IN, ONCE);
                    port.register(enable)?;
                    kept = Some(new);
                } else {
                    drop(pair.ours);
                }
                let found = drain_port(&port);
                let removals = found
                    .iter()
                    .filter(|(_, events)| events.contains(Events::REMOVE));
                assert_eq!(removals.count(), 1, "{stage:?}: {found:?}");
                let last = found.iter().rfind(|(key, _)| *key == KEY);
                assert!(last.expect("one").1.contains(Events::REMOVE), "{found:?}");
                expect_nothing(&port);
                if let Some(new) = kept {
                    (&other.theirs).write_all(b"x")?;
                    expect(&port, &[(OTHER_KEY, Events::IN)]);
                    expect_removed(&port, &new, OTHER_KEY)?;
                }
            }
        }
    }
    Ok(())
}

/// A pair whose end on our side has taken the number of another socket, which is closed by that.
pub(super) fn in_place_of(old: Pair, new: Pair) -> io::Result<Pair> {
    let ours = take_number(old.ours, new.ours)?;
    Ok(Pair {
        ours,
        theirs: new.theirs,
    })
}

#[for_every_backend]
fn g2_a_new_socket_has_nothing_of_the_old_one(backend: Backend) -> io::Result<()> {
    for trigger in EVERY {
        for stage in STAGES {
            let (port, elsewhere) = (port(backend)?, port(backend)?);
            let old = Pair::unix()?;
            bring_to(stage, &port, &old, trigger)?;
            let new = in_place_of(old, Pair::unix()?)?;
            expect_leftovers(&port, stage, trigger);
            // Neither notifications,
            new.send()?;
            expect_nothing(&port);
            new.drain()?;
            // nor a registration,
            let result = port.register(Registration::remove(&new.ours));
            assert_eq!(
                result,
                Err(RegistrationError::NotFound.into()),
                "{stage:?}, {trigger:?}"
            );
            // nor a port.
            let enable = Registration::enable(&new.ours, OTHER_KEY, EventFilter::IN, trigger);
            elsewhere.register(enable)?;
            new.send()?;
            expect(&elsewhere, &[(OTHER_KEY, Events::IN)]);
            expect_nothing(&port);
        }
    }
    Ok(())
}

#[for_every_backend]
fn g2_a_new_socket_can_be_registered_with_any_key(backend: Backend) -> io::Result<()> {
    for old_trigger in EVERY {
        for new_trigger in EVERY {
            for stage in STAGES {
                for key in [KEY, OTHER_KEY] {
                    let port = port(backend)?;
                    let old = Pair::unix()?;
                    bring_to(stage, &port, &old, old_trigger)?;
                    let new = in_place_of(old, Pair::unix()?)?;
                    let enable =
                        || Registration::enable(&new.ours, key, EventFilter::IN, new_trigger);
                    port.register(enable())?;
                    if stage == Stage::Queued {
                        expect(&port, &[(0, Events::empty())]);
                    }
                    expect_nothing(&port);
                    assert_eq!(counted(port.snapshot().registrations), 1);
                    for _ in 0..3 {
                        new.send()?;
                        expect(&port, &[(key, Events::IN)]);
                        new.drain()?;
                        drain_port(&port);
                        port.register(enable())?;
                        expect_nothing(&port);
                    }
                    expect_removed(&port, &new.ours, key)?;
                }
            }
        }
    }
    Ok(())
}

/// What was queued for the old socket may still come, under the old key. Under the same key nobody
/// could tell that it is not the new one's, and so it must not.
#[for_every_backend]
fn g2_a_new_socket_is_not_told_what_was_queued_for_the_old_one(backend: Backend) -> io::Result<()> {
    for trigger in EVERY {
        for stage in [Stage::Ready, Stage::Queued] {
            for key in [KEY, OTHER_KEY] {
                let port = port(backend)?;
                let old = Pair::unix()?;
                bring_to(stage, &port, &old, trigger)?;
                let new = in_place_of(old, Pair::unix()?)?;
                port.enable(&new.ours, key, EventFilter::ALL, EDGE)?;
                let mut found = drain_port(&port);
                found.retain(|&found| found != (0, Events::empty()));
                // C5: the new one may be told that it is writable.
                let is_new = |&found: &(usize, Events)| found == (key, Events::OUT);
                let is_old = |&found: &(usize, Events)| key == OTHER_KEY && found == IN;
                let (told, rest): (Vec<_>, Vec<_>) = found.iter().partition(|it| is_new(it));
                assert!(
                    told.len() <= 1 && rest.len() <= 1 && rest.iter().all(is_old),
                    "{trigger:?}, {stage:?}: {found:?}"
                );
            }
        }
    }
    Ok(())
}

/// What was queued may still come out, as it was: the old socket was readable, and never hung up.
#[for_every_backend]
fn g2_what_was_queued_for_the_old_one_says_nothing_of_the_new_one(
    backend: Backend,
) -> io::Result<()> {
    for trigger in EVERY {
        let port = port(backend)?;
        let old = Pair::unix()?;
        let filter = EventFilter::IN | EventFilter::HANGUP;
        port.enable(&old.ours, KEY, filter, trigger)?;
        old.send()?;
        port.post(Entry::default())?;
        let new = in_place_of(old, Pair::unix()?)?;
        drop(new.theirs);
        let found = drain_port(&port);
        let wanted = |&(key, events): &(usize, Events)| {
            (key, events) == IN || (key, events) == (0, Events::empty())
        };
        assert!(found.iter().all(wanted), "{trigger:?}: {found:?}");
    }
    Ok(())
}

#[for_every_backend]
fn g2_a_new_socket_is_not_delayed_by_the_removal_of_the_old_one(
    backend: Backend,
) -> io::Result<()> {
    for key in [KEY, OTHER_KEY] {
        let port = port(backend)?;
        let old = Pair::unix()?;
        port.enable(&old.ours, KEY, EventFilter::IN, ONCE)?;
        port.register(Registration::remove(&old.ours))?;
        let new = in_place_of(old, Pair::unix()?)?;
        new.send()?;
        port.enable(&new.ours, key, EventFilter::IN, ONCE)?;
        expect(&port, &[(KEY, Events::REMOVE), (key, Events::IN)]);
        // The old one's last notification has not ended the new one.
        expect_removed(&port, &new.ours, key)?;
    }
    Ok(())
}

/// What a socket is told depends on its kind, and its kind is not the old one's.
#[for_every_backend]
fn g2_a_new_socket_of_another_kind(port: CompletionPort) -> io::Result<()> {
    for old_kind in Kind::all() {
        for new_kind in Kind::all() {
            let old = old_kind.pair()?;
            port.enable(&old.ours, KEY, EventFilter::HANGUP, ONCE)?;
            let new = in_place_of(old, new_kind.pair()?)?;
            port.enable(&new.ours, KEY, EventFilter::HANGUP, ONCE)?;
            let _ = new.ours.shutdown(std::net::Shutdown::Both);
            drop(new.theirs);
            if new_kind.is_stream() {
                expect(&port, &[(KEY, Events::HANGUP)]);
            } else if new_kind == Kind::UnixDatagram {
                // The peer's close is an error of one on some systems.
                let error = new
                    .ours
                    .take_error()?
                    .map_or(Events::empty(), |_| Events::ERR);
                let entry = port.dequeue_one(Some(PATIENCE))?;
                assert_eq!(
                    (entry.completion_key, entry.events() - error),
                    (KEY, Events::HANGUP)
                );
            } else {
                expect_nothing(&port);
            }
            expect_removed(&port, &new.ours, KEY)?;
        }
    }
    Ok(())
}

/// Connections are freed when their REMOVE notification was dequeued, which the thread that has them
/// to itself asks for. Nobody may come upon one that is freed.
#[for_every_backend]
fn g5_what_the_key_refers_to_may_go_after_the_remove_notification(
    backend: Backend,
) -> io::Result<()> {
    const ROUNDS: usize = 40;
    const CONNECTIONS: usize = 50;
    let port = port_with(backend, 4)?;
    // By key. A connection that was freed leaves nothing behind.
    let connections: Vec<Mutex<Option<Socket>>> = (0..ROUNDS * CONNECTIONS)
        .map(|_| Mutex::new(None))
        .collect();
    let freed = AtomicUsize::new(0);
    let serve = || -> Result<(), Error> {
        loop {
            let entry = port.dequeue_one(Some(PATIENCE))?;
            let key = entry.completion_key;
            let mut slot = connections[key].try_lock().expect("nobody else has it");
            if entry.events().contains(Events::REMOVE) {
                slot.take().expect("it is freed once");
                freed.fetch_add(1, Ordering::SeqCst);
                continue;
            }
            let connection = slot.take().expect("it is not freed yet");
            drop(slot);
            let end = matches!((&connection).read(&mut [0; 16]), Ok(0));
            // It has to be back before another thread can be told of it.
            let mut slot = connections[key].try_lock().expect("nobody else has it");
            let connection = slot.insert(connection);
            let entry = if end {
                Registration::remove(connection)
            } else {
                Registration::enable(connection, key, EventFilter::IN, ONCE)
            };
            // The notification may come on another thread before this call returns.
            let socket = raw(connection);
            let (operation, filter, trigger) = (entry.operation, entry.event_filter, entry.trigger);
            drop(slot);
            // SAFETY: the socket is closed by the REMOVE notification at the earliest, and that is
            // asked for here, or not at all before this thread has enabled it.
            let mut entry = unsafe { Registration::from_raw(socket) };
            entry.completion_key = key;
            entry.operation = operation;
            entry.event_filter = filter;
            entry.trigger = trigger;
            assert_eq!(port.register(entry), Ok(()));
        }
    };
    thread::scope(|scope| -> io::Result<()> {
        let close = CloseAtEnd(&port, &[]);
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(serve)).collect();
        for round in 0..ROUNDS {
            let mut peers = Vec::new();
            for number in 0..CONNECTIONS {
                let key = round * CONNECTIONS + number;
                let (ours, theirs) = Pair::unix()?.into_ends();
                let socket = raw(&ours);
                *connections[key].lock().expect("no panic") = Some(ours);
                // SAFETY: nobody closes it before it is registered.
                let mut entry = unsafe { Registration::from_raw(socket) };
                entry.completion_key = key;
                entry.operation = socknotify::Operation::ENABLE;
                entry.event_filter = EventFilter::IN;
                entry.trigger = ONCE;
                port.register(entry)?;
                (&theirs).write_all(b"some bytes")?;
                peers.push(theirs);
            }
            drop(peers);
            wait_until("all connections of the round are freed", || {
                freed.load(Ordering::SeqCst) == (round + 1) * CONNECTIONS
            });
            let snapshot = port.snapshot();
            assert_eq!(counted(snapshot.registrations), 0);
            // The kernel's queue may have a packet that only wakes a thread.
            wait_until("nothing is queued", || port.snapshot().queued == 0);
        }
        drop(close);
        for thread in threads {
            assert_eq!(thread.join().expect("no panic"), Err(Error::Closed));
        }
        Ok(())
    })
}

/// One place in the random test: a socket under a key that only this registration ever has.
#[derive(Default)]
struct Random {
    pair: Option<Pair>,
    key: usize,
    duplicates: Vec<Socket>,
}

/// Random threads do random things to a few sockets. No crash, no wrong key, and nothing after the
/// end of a registration.
#[for_every_backend]
fn g6_whatever_order_things_take(backend: Backend) -> io::Result<()> {
    // Several ports at once: each is given sockets with numbers that another one knew.
    thread::scope(|scope| {
        let ports: Vec<_> = (0..6)
            .map(|seed| scope.spawn(move || random_threads(backend, seed)))
            .collect();
        for port in ports {
            port.join().expect("no panic")?;
        }
        Ok(())
    })
}

fn random_threads(backend: Backend, seed: u64) -> io::Result<()> {
    const THREADS: usize = 8;
    const SLOTS: usize = 12;
    const STEPS: usize = 1500;
    const KEYS: usize = 1 << 16;
    let port = port_with(backend, 1 + seed as usize % 4)?;
    let slots: Vec<Mutex<Random>> = (0..SLOTS).map(|_| Mutex::default()).collect();
    let keys = AtomicUsize::new(1);
    // Wine's server does not live through edges and closings from many threads at once.
    let triggers: &[Trigger] = if cfg!(unix) { &EVERY } else { &[ONCE, LEVEL] };
    // A clock that tells what was before what: when the registration with this key was over.
    let clock = AtomicUsize::new(1);
    let now = || clock.fetch_add(1, Ordering::SeqCst);
    let over: Vec<AtomicUsize> = (0..KEYS).map(|_| AtomicUsize::new(0)).collect();
    let accepted: Vec<AtomicBool> = (0..KEYS).map(|_| AtomicBool::new(false)).collect();

    let check = |began: usize, entry: &Entry| {
        let (key, events) = (entry.completion_key, entry.events());
        assert!(
            key < keys.load(Ordering::SeqCst),
            "a key that nobody gave: {entry:?}"
        );
        if key == 0 {
            assert_eq!(*entry, Entry::default());
            return;
        }
        assert_eq!(entry.overlapped, 0);
        assert!(!events.is_empty(), "{entry:?}");
        let end = over[key].load(Ordering::SeqCst);
        assert!(
            end == 0 || end > began,
            "seed {seed}: after the end: {entry:?}"
        );
        if events.contains(Events::REMOVE) {
            assert!(
                accepted[key].load(Ordering::SeqCst),
                "nobody has removed {key}"
            );
            let before = over[key].swap(now(), Ordering::SeqCst);
            assert_eq!(before, 0, "seed {seed}: removed twice: {entry:?}");
        }
    };
    let work = |me: u64| -> io::Result<()> {
        let mut rng = fastrand::Rng::with_seed(seed << 32 | me);
        let mut entries = [Entry::default(); 4];
        for _ in 0..STEPS {
            if rng.bool() {
                let room = rng.usize(1..=4);
                let timeout = Duration::from_micros(rng.u64(..3) * 50);
                let began = now();
                match port.dequeue(&mut entries[..room], Some(timeout)) {
                    Ok(found) => found.iter().for_each(|entry| check(began, entry)),
                    Err(error) => assert_eq!(error, Error::TimedOut),
                }
                continue;
            }
            let mut slot = slots[rng.usize(..SLOTS)].lock().expect("no panic");
            let Random {
                pair,
                key,
                duplicates,
            } = &mut *slot;
            let trigger = triggers[rng.usize(..triggers.len())];
            let filter = EventFilter::from_bits_retain(rng.u16(..8));
            match (pair.as_ref(), rng.u32(..12)) {
                (None, _) => {
                    // The number is, most likely, one that was closed a moment ago.
                    let new = Pair::unix()?;
                    *key = keys.fetch_add(1, Ordering::SeqCst);
                    port.enable(&new.ours, *key, filter, trigger)?;
                    *pair = Some(new);
                }
                (Some(pair), 0 | 1) => {
                    let enable = Registration::enable(&pair.ours, *key, filter, trigger);
                    port.register(enable)?;
                }
                (Some(pair), 2 | 3) => {
                    // Unless it was shut down.
                    let _ = (&pair.theirs).write(b"x");
                }
                (Some(pair), 4) => drop(drain(&pair.ours)),
                (Some(pair), 5) => {
                    port.register(Registration::disable(&pair.ours))?;
                }
                (Some(pair), 6) => {
                    accepted[*key].store(true, Ordering::SeqCst);
                    port.register(Registration::remove(&pair.ours))?;
                    // The socket lives on, or goes before its last notification has come.
                    if cfg!(unix) && rng.bool() {
                        duplicates.push(pair.ours.try_clone()?);
                    }
                    slot.pair = None;
                }
                (Some(pair), 7) => {
                    if cfg!(unix) && duplicates.len() < 4 {
                        duplicates.push(pair.ours.try_clone()?);
                    }
                }
                (Some(pair), 8) => {
                    let other = Registration::enable(&pair.ours, *key + 1, filter, trigger);
                    let refused = as_told_by(&port, Err(RegistrationError::OtherKey));
                    assert_eq!(port.register(other), refused);
                }
                (Some(_), 9) => *pair = None,
                (Some(pair), 10) => {
                    let _ = pair.theirs.shutdown(std::net::Shutdown::Write);
                }
                (Some(_), _) => {
                    duplicates.clear();
                    port.post(Entry::default())?;
                }
            }
        }
        Ok(())
    };
    thread::scope(|scope| -> io::Result<()> {
        let threads: Vec<_> = (0..THREADS as u64)
            .map(|me| scope.spawn(move || work(me)))
            .collect();
        for thread in threads {
            thread.join().expect("no panic")?;
        }
        Ok(())
    })?;

    // In the end everything can be taken back.
    for slot in &slots {
        let mut slot = slot.lock().expect("no panic");
        slot.duplicates.clear();
        if let Some(pair) = slot.pair.take() {
            accepted[slot.key].store(true, Ordering::SeqCst);
            port.register(Registration::remove(&pair.ours))?;
        }
    }
    let mut entries = [Entry::default(); 4];
    loop {
        let began = now();
        match port.dequeue(&mut entries, Some(Duration::ZERO)) {
            Ok(found) => found.iter().for_each(|entry| check(began, entry)),
            Err(Error::TimedOut) => break,
            Err(error) => return Err(error.into()),
        }
    }
    for (key, accepted) in accepted.iter().enumerate() {
        let over = over[key].load(Ordering::SeqCst) != 0;
        assert_eq!(
            over,
            accepted.load(Ordering::SeqCst),
            "seed {seed}, key {key}"
        );
    }
    assert_eq!(port.snapshot().queued, 0);
    Ok(())
}

fn drain(mut socket: &Socket) -> usize {
    socket.read(&mut [0; 64]).unwrap_or(0)
}
