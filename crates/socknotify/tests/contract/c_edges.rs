//! C5. Edges: a notification when a condition begins to hold.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use socknotify::{Backend, CompletionPort, Entry, EventFilter, Events, Registration};

use super::c_triggers::take_extra;
use crate::support::trigger::{EDGE, EDGE_ONCE, LEVEL, ONCE};
use crate::support::{
    CloseAtEnd, EDGES_COME_ONE_BY_ONE, Kind, PATIENCE, Pair, PortExt, drain_port,
    end_shows_behind_data, expect, expect_nothing, expect_removed, notification, port, port_with,
    rounds, wait_until,
};

const KEY: usize = 31;
const IN: (usize, Events) = (KEY, Events::IN);
const POSTED: Entry = Entry::new(1, 2, 3);

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
fn c5_each_enable_gives_at_most_one_for_what_holds(port: CompletionPort) -> io::Result<()> {
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
fn c5_edge_gives_one_for_each_rise(port: CompletionPort) -> io::Result<()> {
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
fn c5_edge_of_a_send_buffer_that_gets_room(port: CompletionPort) -> io::Result<()> {
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
fn c5_data_in_a_socket_that_is_not_drained_gives_at_most_one(
    port: CompletionPort,
) -> io::Result<()> {
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
fn c5_what_still_holds_may_show_with_an_edge(port: CompletionPort) -> io::Result<()> {
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
fn c5_edge_of_one_condition_comes_while_another_holds(port: CompletionPort) -> io::Result<()> {
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
fn c5_what_rose_while_disabled_gives_at_most_one(port: CompletionPort) -> io::Result<()> {
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
fn c5_level_overwritten_with_edge_and_back(port: CompletionPort) -> io::Result<()> {
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
fn c5_enable_again_does_not_swallow_an_edge_that_came_before(
    port: CompletionPort,
) -> io::Result<()> {
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
fn c5_edge_of_hangup_comes_after_edge_of_in(port: CompletionPort) -> io::Result<()> {
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
