//! What a worker has not taken flows on when its thread blocks.

use std::io::{self, Read, Write};
use std::mem;
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Barrier, Condvar, Mutex};
use std::thread::{self, Scope};
use std::time::{Duration, Instant};

use socket2::Socket;
use socknotify::owned::{Event, FileOperation, Held, Interest, Listening, Port, Source};
use socknotify::{Backend, CompletionPort, WakePolicy};

use crate::support::{PATIENCE, Pair, SHORT, fill, port_with, read_byte, rounds, wait_until};
use crate::{Connection, TestPort, TestWorker, connect, next, nothing, owning_port, ready};

/// Closes a port when a test's scope ends, however it ends.
struct CloseAtEnd<'a, T: Source, M>(&'a Port<T, M>);

impl<T: Source, M> Drop for CloseAtEnd<'_, T, M> {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// How a thread says that it blocks.
#[derive(Clone, Copy)]
enum Way {
    OfPort,
    OfWorker,
    /// Not at all: the port sees it.
    Silently,
}

impl Way {
    const BOTH: [Way; 3] = [Way::OfPort, Way::OfWorker, Way::Silently];

    fn block<R>(self, port: &TestPort, worker: &mut TestWorker, work: impl FnOnce() -> R) -> R {
        match self {
            Way::OfPort => port.blocking(work),
            Way::OfWorker => worker.blocking(work),
            Way::Silently => work(),
        }
    }
}

fn message(event: Event<Connection, u64>) -> u64 {
    match event {
        Event::Message(message) => message,
        other => panic!("{other:?}"),
    }
}

/// A port with one place, which a thread leaves when it blocks.
fn detecting_port(backend: Backend) -> io::Result<TestPort> {
    detecting_port_with(backend, 1)
}

fn detecting_port_with(backend: Backend, places: usize) -> io::Result<TestPort> {
    let builder = CompletionPort::builder().backend(backend);
    Ok(Port::from(builder.concurrency(places).build()?))
}

/// Connections that are armed and ready, and their peers.
fn ready_connections(port: &TestPort, count: usize) -> io::Result<Vec<Socket>> {
    let peers = (0..count).map(|_| {
        let (connection, mut peer) = connect(port)?;
        peer.write_all(b"x")?;
        port.arm(connection, Interest::IN);
        Ok(peer)
    });
    peers.collect()
}

/// The events of a thread that takes all there are, until the port closes.
fn take_all<'scope>(
    scope: &'scope Scope<'scope, '_>,
    port: &'scope TestPort,
) -> Receiver<Event<Connection, u64>> {
    let (sender, events) = channel();
    scope.spawn(move || {
        let mut worker = port.worker(8);
        while let Ok(1..) = worker.process(Some(PATIENCE)) {
            while let Some(event) = worker.take() {
                // What comes after the test has all that it waits for is dropped.
                let _ = sender.send(event);
            }
        }
    });
    events
}

/// This thread hands a connection back that is ready, and blocks until another one has got it.
fn hand_back_and_block(port: &TestPort, worker: &mut TestWorker, connection: Held<Connection>) {
    worker.arm(connection, Interest::IN);
    thread::scope(|scope| {
        let event = take_all(scope, port).recv_timeout(PATIENCE);
        port.close();
        drop(ready(event.expect("it is armed")));
    });
}

/// One handler blocks until all others have run.
fn block_until_others_have_run(port: &TestPort, way: Way) -> io::Result<()> {
    let peers = ready_connections(port, 10)?;
    let mut worker = port.worker(64);
    worker.process(Some(PATIENCE))?;
    let held = ready(worker.take().expect("an event"));
    thread::scope(|scope| {
        let (serve, served) = channel();
        scope.spawn(move || {
            let mut worker = port.worker(64);
            for _ in 1..10 {
                let connection = ready(next(&mut worker));
                serve.send(connection.id()).expect("someone waits");
            }
        });
        way.block(port, &mut worker, || {
            let ids: Vec<_> = (1..10)
                .map(|_| {
                    served
                        .recv_timeout(PATIENCE)
                        .expect("it is served meanwhile")
                })
                .collect();
            assert!(!ids.contains(&held.id()));
        });
    });
    assert!(worker.take().is_none(), "others have taken the rest");
    drop((held, peers));
    Ok(())
}

#[for_every_backend]
fn f4_events_that_were_not_taken_flow_on_to_other_threads(backend: Backend) -> io::Result<()> {
    for way in Way::BOTH {
        block_until_others_have_run(&detecting_port(backend)?, way)?;
    }
    Ok(())
}

#[for_every_backend(with_places)]
fn f4_events_flow_on_where_places_have_no_limit(backend: Backend) -> io::Result<()> {
    for way in Way::BOTH {
        block_until_others_have_run(&detecting_port_with(backend, usize::MAX)?, way)?;
    }
    Ok(())
}

#[for_every_backend(with_places)]
fn f4_events_flow_on_in_order_and_before_later_ones(backend: Backend) -> io::Result<()> {
    for way in [Way::OfPort, Way::OfWorker] {
        let port = owning_port(backend, 1)?;
        let mut worker = port.worker(8);
        (0..8).try_for_each(|number| port.send(number))?;
        assert_eq!(worker.process(Some(PATIENCE)), Ok(8));
        assert_eq!(message(worker.take().expect("an event")), 0);
        (8..12).try_for_each(|number| port.send(number))?;
        let taken = way.block(&port, &mut worker, || {
            let mut other = port.worker(3);
            (1..12)
                .map(|_| message(next(&mut other)))
                .collect::<Vec<_>>()
        });
        assert_eq!(taken, (1..12).collect::<Vec<_>>());
        nothing(&mut worker);
    }
    Ok(())
}

/// They are armed, with their deadlines, though their worker does not call again.
#[for_every_backend]
fn f4_connections_that_were_handed_back_are_armed(backend: Backend) -> io::Result<()> {
    for way in Way::BOTH {
        let port = detecting_port(backend)?;
        let mut worker = port.worker(2);
        // It has a place.
        port.send(0)?;
        assert_eq!(message(next(&mut worker)), 0);
        let mut peers = Vec::new();
        for number in 0..100 {
            let (connection, peer) = connect(&port)?;
            let interest = if number == 50 {
                Interest::IN.within(SHORT)
            } else {
                Interest::IN
            };
            worker.arm(connection, interest);
            peers.push(peer);
        }
        thread::scope(|scope| {
            let events = take_all(scope, &port);
            let event = || events.recv_timeout(PATIENCE).expect("it flows on");
            way.block(&port, &mut worker, || -> io::Result<()> {
                assert!(matches!(event(), Event::TimedOut(_)));
                for (number, mut peer) in peers.iter().enumerate() {
                    if number != 50 {
                        peer.write_all(b"x")?;
                        drop(ready(event()));
                    }
                }
                Ok(())
            })?;
            port.close();
            Ok::<_, io::Error>(())
        })?;
    }
    Ok(())
}

/// It has no place then.
#[for_every_backend]
fn f4_what_a_thread_hands_back_after_it_found_nothing_is_armed(backend: Backend) -> io::Result<()> {
    let port = detecting_port(backend)?;
    let mut worker = port.worker(2);
    nothing(&mut worker);
    let (connection, mut peer) = connect(&port)?;
    peer.write_all(b"x")?;
    hand_back_and_block(&port, &mut worker, connection);
    Ok(())
}

/// It has dequeued nothing, so it has no place, though there was an event: or has it no more.
#[for_every_backend]
fn f4_what_a_thread_hands_back_after_a_refused_socket_is_armed(backend: Backend) -> io::Result<()> {
    for had_place in [false, true] {
        let port = detecting_port(backend)?;
        let mut worker = port.worker(2);
        if had_place {
            port.send(0)?;
            assert_eq!(message(next(&mut worker)), 0);
            worker.release();
        }
        let (mut refused, _peer) = connect(&port)?;
        refused.socket = Pair::unix()?.ours;
        worker.arm(refused, Interest::IN);
        worker.process(Some(Duration::ZERO))?;
        let Some(Event::Refused(..)) = worker.take() else {
            panic!("it is refused")
        };
        let (connection, mut peer) = connect(&port)?;
        peer.write_all(b"x")?;
        hand_back_and_block(&port, &mut worker, connection);
    }
    Ok(())
}

/// A thread that has dequeued nothing, and blocks with the first of several events.
#[for_every_backend]
fn f4_connections_that_were_refused_go_to_others(backend: Backend) -> io::Result<()> {
    let port = detecting_port(backend)?;
    let mut worker = port.worker(8);
    let mut peers = Vec::new();
    for _ in 0..3 {
        let (mut refused, peer) = connect(&port)?;
        refused.socket = Pair::unix()?.ours;
        worker.arm(refused, Interest::IN);
        peers.push(peer);
    }
    let is_refused = |event: &Event<_, _>| matches!(event, Event::Refused(..));
    assert!(is_refused(&next(&mut worker)));
    thread::scope(|scope| {
        let events = take_all(scope, &port);
        let event = || events.recv_timeout(PATIENCE).expect("it flows on");
        let others = [event(), event()];
        port.close();
        assert!(others.iter().all(is_refused));
    });
    Ok(())
}

/// It has left the place that all of its workers had.
#[for_every_backend]
fn f4_what_a_thread_has_in_one_worker_flows_on_when_it_finds_nothing_with_another(
    backend: Backend,
) -> io::Result<()> {
    let port = detecting_port(backend)?;
    let mut worker = port.worker(8);
    (0..3).try_for_each(|number| port.send(number))?;
    assert_eq!(message(next(&mut worker)), 0);
    nothing(&mut port.worker(1));
    thread::scope(|scope| {
        let _close = CloseAtEnd(&port);
        let events = take_all(scope, &port);
        let event = || events.recv_timeout(PATIENCE).expect("it flows on");
        assert_eq!([message(event()), message(event())], [1, 2]);
        let (connection, mut peer) = connect(&port)?;
        peer.write_all(b"x")?;
        worker.arm(connection, Interest::IN);
        drop(ready(event()));
        Ok(())
    })
}

/// The thread that dequeued with the worker has ended.
#[for_every_backend]
fn f4_what_is_handed_back_to_a_worker_from_a_thread_that_has_ended_is_armed(
    backend: Backend,
) -> io::Result<()> {
    let port = detecting_port(backend)?;
    let mut worker = port.worker(2);
    let (connection, mut peer) = connect(&port)?;
    peer.write_all(b"x")?;
    worker.arm(connection, Interest::IN);
    let dequeue = thread::spawn(move || {
        let connection = ready(next(&mut worker));
        (worker, connection)
    });
    let (mut worker, connection) = dequeue.join().expect("an event");
    // The byte is not read.
    hand_back_and_block(&port, &mut worker, connection);
    Ok(())
}

/// The thread that has the worker now has dequeued nothing itself.
#[for_every_backend]
fn f4_what_a_worker_has_as_it_moves_to_another_thread_flows_on(backend: Backend) -> io::Result<()> {
    let port = detecting_port(backend)?;
    let mut worker = port.worker(8);
    (0..4).try_for_each(|number| port.send(number))?;
    assert_eq!(worker.process(Some(PATIENCE))?, 4);
    assert_eq!(message(worker.take().expect("an event")), 0);
    let (connection, mut peer) = connect(&port)?;
    peer.write_all(b"x")?;
    thread::scope(|scope| {
        let port = &port;
        let moved = scope.spawn(move || -> io::Result<()> {
            let mut worker = worker;
            assert_eq!(message(next(&mut worker)), 1);
            worker.arm(connection, Interest::IN);
            thread::scope(|scope| {
                let events = take_all(scope, port);
                let event = || events.recv_timeout(PATIENCE).expect("it flows on");
                assert_eq!([message(event()), message(event())], [2, 3]);
                drop(ready(event()));
                port.close();
            });
            Ok(())
        });
        // The thread from before keeps its place.
        while !moved.is_finished() {
            std::hint::spin_loop();
        }
        moved.join().expect("no panic")
    })
}

/// A thread that blocks twice may not be seen to run in between. Here nobody looks: all the others wait.
#[for_every_backend]
fn f4_what_a_thread_hands_back_after_it_has_blocked_is_armed(backend: Backend) -> io::Result<()> {
    for way in Way::BOTH {
        let port = detecting_port(backend)?;
        let mut worker = port.worker(2);
        port.send(0)?;
        assert_eq!(message(next(&mut worker)), 0);
        thread::scope(|scope| -> io::Result<()> {
            let events = take_all(scope, &port);
            let event = || events.recv_timeout(PATIENCE).expect("it flows on");
            port.send(1)?;
            let served = way.block(&port, &mut worker, event);
            assert_eq!(message(served), 1);
            for _ in 0..3 {
                let (connection, mut peer) = connect(&port)?;
                let id = connection.id();
                worker.arm(connection, Interest::IN);
                peer.write_all(b"x")?;
                // It does not say so this time.
                assert_eq!(ready(event()).id(), id);
            }
            port.close();
            Ok(())
        })?;
    }
    Ok(())
}

/// What the system has it armed for is another condition.
#[for_every_backend]
fn f4_what_a_thread_hands_back_for_another_condition_before_it_blocks_is_armed(
    backend: Backend,
) -> io::Result<()> {
    for way in Way::BOTH {
        let port = detecting_port(backend)?;
        let mut worker = port.worker(2);
        let (connection, mut peer) = connect(&port)?;
        worker.arm(connection, Interest::IN);
        peer.write_all(b"x")?;
        let connection = ready(next(&mut worker));
        assert_eq!(read_byte(&connection.socket)?, Some(b'x'));
        let mut sent = fill(&connection.socket)?;
        // While nobody waits, it is armed by the next call.
        worker.arm(connection, Interest::OUT);
        thread::scope(|scope| {
            let events = take_all(scope, &port);
            let event = way.block(&port, &mut worker, || -> io::Result<_> {
                // It is not ready yet.
                events.recv_timeout(SHORT).expect_err("there is no room");
                let mut buffer = vec![0; 1 << 16];
                while sent > 0 {
                    sent -= peer.read(&mut buffer)?;
                }
                Ok(events.recv_timeout(PATIENCE))
            });
            port.close();
            drop(ready(event?.expect("there is room")));
            Ok::<_, io::Error>(())
        })?;
    }
    Ok(())
}

/// The code that makes connections of what was accepted blocks, and then a handler does.
#[for_every_backend]
fn f4_what_is_accepted_by_a_thread_that_has_blocked_flows_on(backend: Backend) -> io::Result<()> {
    const COUNT: usize = 4;
    let builder = CompletionPort::builder().backend(backend);
    let port = Port::<TcpStream>::from(builder.concurrency(1).build()?);
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    // In the listener's backlog.
    let peers = (0..COUNT).map(|_| TcpStream::connect(address));
    let peers = peers.collect::<io::Result<Vec<_>>>()?;
    port.listen(listener, Listening::reporting(), |stream, _| {
        thread::sleep(Duration::from_millis(20));
        stream
    })?;
    thread::scope(|scope| {
        let port = &port;
        let accepted = Arc::new(AtomicUsize::new(0));
        for _ in 0..2 {
            let mut worker = port.worker(8);
            let accepted = Arc::clone(&accepted);
            scope.spawn(move || {
                while let Ok(1..) = worker.process(Some(PATIENCE)) {
                    while let Some(event) = worker.take() {
                        assert!(matches!(event, Event::Accepted(_)), "{event:?}");
                        // The first one waits for the others.
                        if accepted.fetch_add(1, Ordering::SeqCst) == 0 {
                            let all = || accepted.load(Ordering::SeqCst) == COUNT;
                            wait_until("the others are served", all);
                            port.close();
                        }
                    }
                }
            });
        }
    });
    drop(peers);
    Ok(())
}

#[for_every_backend]
fn a_worker_that_gives_its_place_back_leaves_its_events_to_others(
    backend: Backend,
) -> io::Result<()> {
    let port = owning_port(backend, 1)?;
    let mut worker = port.worker(8);
    (0..3).try_for_each(|number| port.send(number))?;
    assert_eq!(worker.process(Some(PATIENCE)), Ok(3));
    worker.release();
    assert!(worker.take().is_none());
    let mut other = port.worker(8);
    assert_eq!(other.process(Some(PATIENCE)), Ok(3));
    Ok(())
}

/// The connections that a worker has dequeued and not taken, and those that it has handed back, come back from closing.
#[for_every_backend]
fn g4_closing_returns_what_a_worker_has_not_taken(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend, 2)?;
    let peers = ready_connections(&port, 8)?;
    let mut worker = port.worker(64);
    let mut count = 0;
    wait_until("all are dequeued", || {
        count = worker.process(Some(PATIENCE)).expect("it is open");
        count == 8 || {
            worker.blocking(|| ());
            false
        }
    });
    let held = ready(worker.take().expect("an event"));
    let armed = ready(worker.take().expect("an event"));
    worker.arm(armed, Interest::IN);
    assert_eq!(port.connections(), 8);
    assert_eq!(port.close().len(), 7);
    assert!(worker.take().is_none());
    assert_eq!(port.connections(), 1);
    drop((held, peers));
    assert_eq!(port.connections(), 0);
    Ok(())
}

#[for_every_backend]
fn draining_waits_for_what_a_worker_has_not_taken(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend, 2)?;
    let _peers = ready_connections(&port, 1)?;
    let mut worker = port.worker(64);
    assert_eq!(worker.process(Some(PATIENCE)), Ok(1));
    port.drain(PATIENCE);
    assert_eq!(port.connections(), 1);
    worker.release();
    let connection = ready(next(&mut worker));
    worker.arm(connection, Interest::IN);
    let Event::Draining(connection) = next(&mut worker) else {
        panic!("it drains")
    };
    drop(connection);
    assert!(worker.process(Some(PATIENCE)).is_err());
    Ok(())
}

/// A mark in each connection says that a thread has it.
#[for_every_backend]
fn c8_nothing_is_lost_or_served_by_two_while_handlers_block(backend: Backend) -> io::Result<()> {
    const CONNECTIONS: usize = 16;
    for (places, room) in [(1, 64), (2, 8), (2, 1)] {
        let port = Port::<Connection, u64>::from(port_with(backend, places)?);
        let mut peers = Vec::new();
        for _ in 0..CONNECTIONS {
            let (connection, peer) = connect(&port)?;
            port.arm(connection, Interest::IN);
            peers.push(peer);
        }
        thread::scope(|scope| -> io::Result<()> {
            for _ in 0..5 {
                scope.spawn(|| {
                    let mut worker = port.worker(room);
                    while worker.process(None).is_ok() {
                        while let Some(event) = worker.take() {
                            let Event::Ready(mut connection, _) = event else {
                                continue;
                            };
                            if let Some(byte) = read_byte(&connection.socket).expect("it is open") {
                                connection.served += 1;
                                let number = connection.served;
                                match byte % 4 {
                                    0 => {
                                        port.blocking(|| thread::sleep(Duration::from_micros(100)))
                                    }
                                    1 => worker.blocking(thread::yield_now),
                                    _ => {}
                                }
                                assert_eq!(connection.served, number);
                                connection.socket.write_all(&[byte]).expect("room");
                            }
                            worker.arm(connection, Interest::IN);
                        }
                    }
                });
            }
            let outcome = (0..rounds(300)).try_for_each(|_| {
                for peer in &mut peers {
                    peer.write_all(&[fastrand::u8(..)])?;
                }
                peers
                    .iter_mut()
                    .try_for_each(|peer| peer.read_exact(&mut [0]))
            });
            assert_eq!(port.connections(), CONNECTIONS);
            port.close();
            outcome
        })?;
    }
    Ok(())
}

/// What blocks one thread until the other value is dropped.
fn block_until_told() -> (Sender<()>, impl Fn() + Sync) {
    let (end, until_end) = channel();
    let until_end = Mutex::new(until_end);
    let block = move || {
        let _ = until_end.lock().expect("no panic").recv();
    };
    (end, block)
}

/// Nine of ten are answered while the handler of the first blocks.
#[for_every_backend(with_places)]
fn f4_one_handler_that_blocks_keeps_no_other_event_waiting(backend: Backend) -> io::Result<()> {
    for says_so in [true, false] {
        let builder = CompletionPort::builder().backend(backend);
        let port: TestPort = Port::from(builder.concurrency(4).build()?);
        let peers = ready_connections(&port, 10)?;
        let answered = std::sync::atomic::AtomicUsize::new(0);
        let blocks = AtomicBool::new(true);
        let (end, until_end) = block_until_told();
        thread::scope(|scope| {
            // Dropped, it ends the handler, also if this panics.
            let end = end;
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut worker = port.worker(64);
                    while worker.process(None).is_ok() {
                        while let Some(event) = worker.take() {
                            drop(ready(event));
                            if blocks.swap(false, Ordering::SeqCst) {
                                match says_so {
                                    true => worker.blocking(&until_end),
                                    false => until_end(),
                                }
                            }
                            answered.fetch_add(1, Ordering::SeqCst);
                        }
                    }
                });
            }
            wait_until("nine are answered", || answered.load(Ordering::SeqCst) >= 9);
            drop(end);
            port.close();
        });
        drop(peers);
    }
    Ok(())
}

/// The same while the others wait already, in the system.
#[for_every_backend(with_places)]
fn f4_events_flow_on_to_threads_that_wait_already(backend: Backend) -> io::Result<()> {
    let builder = CompletionPort::builder().backend(backend);
    let port: TestPort = Port::from(builder.concurrency(4).build()?);
    let [answered, begun] = [const { std::sync::atomic::AtomicUsize::new(0) }; 2];
    let (end, until_end) = block_until_told();
    thread::scope(|scope| -> io::Result<()> {
        let end = end;
        for _ in 0..4 {
            scope.spawn(|| {
                let mut worker = port.worker(64);
                while worker.process(None).is_ok() {
                    while worker.take().is_some() {
                        if begun.fetch_add(1, Ordering::SeqCst) == 0 {
                            until_end();
                        }
                        answered.fetch_add(1, Ordering::SeqCst);
                    }
                }
            });
        }
        wait_until("all wait", || port.snapshot().waiting == 4);
        (0..10).try_for_each(|number| port.send(number))?;
        wait_until("nine are answered", || answered.load(Ordering::SeqCst) >= 9);
        drop(end);
        port.close();
        Ok(())
    })
}

/// Three handlers block until all three have begun, over and over: a worker that has two of them in hand keeps one, and whoever
/// watched may have gone to work with the third.
#[for_every_backend(with_places)]
fn f4_no_event_waits_in_a_hand_whoever_watched(backend: Backend) -> io::Result<()> {
    let port = detecting_port_with(backend, 4)?;
    let begun = Mutex::new(0);
    let changed = Condvar::new();
    thread::scope(|scope| -> io::Result<()> {
        let _close = CloseAtEnd(&port);
        for _ in 0..4 {
            scope.spawn(|| {
                let mut worker = port.worker(64);
                while worker.process(None).is_ok() {
                    while let Some(event) = worker.take() {
                        let round = message(event);
                        let mut begun = begun.lock().expect("no panic");
                        *begun += 1;
                        changed.notify_all();
                        let all =
                            changed.wait_timeout_while(begun, PATIENCE, |begun| *begun < 3 * round);
                        assert!(
                            !all.expect("no panic").1.timed_out(),
                            "one waits for the others"
                        );
                    }
                }
            });
        }
        for round in 1..=rounds(100) as u64 {
            wait_until("all wait", || port.snapshot().waiting == 4);
            (0..3).try_for_each(|_| port.send(round))?;
            let all = changed.wait_timeout_while(begun.lock().expect("no panic"), PATIENCE, |it| {
                *it < 3 * round
            });
            assert!(
                !all.expect("no panic").1.timed_out(),
                "round {round}: {begun:?}"
            );
        }
        Ok(())
    })
}

/// What a handler leaves behind that blocks then. Both threads wait in the system before, where nobody looks at the other,
/// and one of them gets a single event.
fn serve_while_the_other_blocks<L: Send>(
    port: &TestPort,
    left: L,
    leave: impl Fn(&mut TestWorker, L) + Sync,
    after: impl FnOnce() -> io::Result<()>,
) -> io::Result<()> {
    let left = &Mutex::new(Some(left));
    let leave = &leave;
    let (serve, served) = channel();
    let (end, ended) = channel::<()>();
    let ended = &Mutex::new(ended);
    thread::scope(|scope| -> io::Result<()> {
        for _ in 0..2 {
            let serve = serve.clone();
            scope.spawn(move || {
                let mut worker = port.worker(8);
                while let Ok(1..) = worker.process(Some(PATIENCE)) {
                    while let Some(event) = worker.take() {
                        let is_first = matches!(event, Event::Message(_));
                        let _ = serve.send(is_first);
                        if is_first {
                            let left = left.lock().expect("no panic").take();
                            leave(&mut worker, left.expect("one message"));
                            let _ = ended.lock().expect("no panic").recv();
                        }
                    }
                }
            });
        }
        wait_until("they wait", || port.snapshot().waiting == 2);
        thread::sleep(SHORT);
        port.send(1)?;
        assert_eq!(served.recv_timeout(PATIENCE), Ok(true));
        after()?;
        let outcome = served.recv_timeout(PATIENCE);
        drop(end);
        port.close();
        assert_eq!(
            outcome,
            Ok(false),
            "it is served while the other thread blocks"
        );
        Ok(())
    })
}

#[for_every_backend(with_places)]
fn f4_a_connection_that_was_handed_back_is_armed_while_all_others_wait(
    backend: Backend,
) -> io::Result<()> {
    let port = detecting_port_with(backend, 2)?;
    let (connection, mut peer) = connect(&port)?;
    let leave = |worker: &mut TestWorker, connection| worker.arm(connection, Interest::IN);
    serve_while_the_other_blocks(&port, connection, leave, || peer.write_all(b"x"))
}

#[for_every_backend(with_places)]
fn f4_an_operation_is_begun_while_all_others_wait(backend: Backend) -> io::Result<()> {
    let port = detecting_port_with(backend, 2)?;
    let file = port.adopt_file(std::fs::File::open(std::env::current_exe()?)?)?;
    let read = FileOperation::read_at(&file, vec![0; 8], 0);
    let leave = |worker: &mut TestWorker, read| drop(worker.begin(read));
    serve_while_the_other_blocks(&port, read, leave, || Ok(()))
}

/// One packet, the listener's, gives several events.
#[for_every_backend(with_places)]
fn f4_what_was_accepted_flows_on_while_all_others_wait(backend: Backend) -> io::Result<()> {
    const CLIENTS: usize = 5;
    let port = &detecting_port_with(backend, 2)?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let clients = (0..CLIENTS).map(|_| TcpStream::connect(address));
    let _clients = clients.collect::<io::Result<Vec<_>>>()?;
    let (serve, served) = channel();
    let (end, ended) = channel::<()>();
    let ended = &Mutex::new(Some(ended));
    thread::scope(|scope| -> io::Result<()> {
        for _ in 0..2 {
            let serve = serve.clone();
            scope.spawn(move || {
                let mut worker = port.worker(8);
                while let Ok(1..) = worker.process(Some(PATIENCE)) {
                    while let Some(event) = worker.take() {
                        let _ = serve.send(());
                        let is_first = ended.lock().expect("no panic").take();
                        if let Some(ended) = is_first {
                            let _ = ended.recv();
                        }
                        drop(event);
                    }
                }
            });
        }
        wait_until("they wait", || port.snapshot().waiting == 2);
        thread::sleep(SHORT);
        port.listen(listener, Listening::reporting(), |stream, _| Connection {
            socket: stream.into(),
            served: 0,
        })?;
        let outcomes = [(); CLIENTS].map(|()| served.recv_timeout(PATIENCE));
        drop(end);
        port.close();
        assert_eq!(
            outcomes,
            [Ok(()); CLIENTS],
            "while the first handler blocks"
        );
        Ok(())
    })
}

/// The function of a listener blocks: the other listener, whose packet the same call has dequeued, accepts all the same.
#[for_every_backend]
fn f4_what_was_dequeued_with_a_listener_that_blocks_flows_on(backend: Backend) -> io::Result<()> {
    let builder = CompletionPort::builder().backend(backend);
    let port = Port::<TcpStream>::from(builder.concurrency(2).build()?);
    let (end, until_end) = block_until_told();
    let until_end = Arc::new(until_end);
    let is_blocked = Arc::new(AtomicBool::new(false));
    let mut clients = Vec::new();
    for _ in 0..2 {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        clients.push(TcpStream::connect(listener.local_addr()?)?);
        let (until_end, is_blocked) = (Arc::clone(&until_end), Arc::clone(&is_blocked));
        // Whichever comes first.
        port.listen(listener, Interest::OUT, move |stream, _| {
            if !is_blocked.swap(true, Ordering::SeqCst) {
                until_end();
            }
            stream
        })?;
    }
    thread::scope(|scope| {
        let _end = end;
        let first = scope.spawn(|| {
            let mut worker = port.worker(8);
            worker.process(Some(PATIENCE)).map(|_| worker.take())
        });
        wait_until("a function blocks", || is_blocked.load(Ordering::SeqCst));
        let mut other = port.worker(8);
        let served = loop {
            match other.process(Some(PATIENCE)) {
                Ok(0) | Err(_) => break false,
                Ok(_) if matches!(other.take(), Some(Event::Ready(..))) => break true,
                Ok(_) => {}
            }
        };
        assert!(served, "the other listener's client is served");
        assert!(!first.is_finished());
        drop(_end);
        Ok(())
    })
}

/// The same, while another thread polls: each function waits for the other one.
#[for_every_backend(with_places)]
fn f4_another_listener_of_the_same_call_is_not_kept_from_one_that_polls(
    backend: Backend,
) -> io::Result<()> {
    let port = CompletionPort::builder().backend(backend).concurrency(2);
    let port = Port::<TcpStream>::from(port.build()?);
    let meet = Arc::new(Barrier::new(2));
    let (called, calls) = channel();
    let listen = || -> io::Result<_> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let (meet, called) = (Arc::clone(&meet), called.clone());
        port.listen(listener, Interest::OUT, move |stream, _| {
            let _ = called.send(());
            meet.wait();
            stream
        })?;
        Ok(address)
    };
    let addresses = [listen()?, listen()?];
    thread::scope(|scope| -> io::Result<()> {
        let _close = CloseAtEnd(&port);
        for _ in addresses {
            scope.spawn(|| {
                let mut worker = port.worker(8);
                while worker.process(None).is_ok() {
                    while worker.take().is_some() {}
                }
            });
        }
        for _ in 0..rounds(50) {
            wait_until("they wait", || port.snapshot().waiting == 2);
            // Most often one thread takes both.
            let _clients = [
                TcpStream::connect(addresses[0])?,
                TcpStream::connect(addresses[1])?,
            ];
            for number in 0..2 {
                if calls.recv_timeout(PATIENCE).is_err() {
                    // So that the threads end.
                    (number..2).for_each(|_| _ = meet.wait());
                    panic!("one function waits for the other to return");
                }
            }
        }
        Ok(())
    })
}

/// The function of a timer blocks: the listener, whose packet the same call has dequeued, accepts all the same.
#[for_every_backend]
fn f4_what_was_dequeued_with_a_timer_whose_function_blocks_flows_on(
    backend: Backend,
) -> io::Result<()> {
    let builder = CompletionPort::builder().backend(backend);
    let port = Port::<TcpStream, ()>::from(builder.concurrency(2).build()?);
    let (end, until_end) = block_until_told();
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let (accepted, accepts) = channel();
    port.listen(listener, Interest::OUT, move |stream, _| {
        let _ = accepted.send(());
        stream
    })?;
    let is_blocked = Arc::new(AtomicBool::new(false));
    let (period, blocked) = (Duration::from_millis(1), Arc::clone(&is_blocked));
    port.send_every_with(period, move || {
        if !blocked.swap(true, Ordering::SeqCst) {
            until_end();
        }
    })?;
    // Both are there when a thread asks.
    let _client = TcpStream::connect(address)?;
    thread::sleep(SHORT);
    thread::scope(|scope| -> io::Result<()> {
        let _close = CloseAtEnd(&port);
        let _end = end;
        let work = || {
            let mut worker = port.worker(8);
            while worker.process(None).is_ok() {
                while worker.take().is_some() {}
            }
        };
        scope.spawn(work);
        wait_until("the function blocks", || is_blocked.load(Ordering::SeqCst));
        scope.spawn(work);
        accepts.recv_timeout(PATIENCE).expect("a connection");
        drop(_end);
        Ok(())
    })
}

/// Two functions are due when a thread asks: each waits for the other one.
#[for_every_backend]
fn f4_a_timer_whose_function_blocks_keeps_no_other_waiting(backend: Backend) -> io::Result<()> {
    let port = Port::<TcpStream, ()>::from(port_with(backend, 2)?);
    let meet = Arc::new(Barrier::new(2));
    let (called, calls) = channel();
    for _ in 0..2 {
        let (meet, called) = (Arc::clone(&meet), called.clone());
        let mut is_first = true;
        port.send_every_with(Duration::from_millis(1), move || {
            if mem::take(&mut is_first) {
                let _ = called.send(());
                meet.wait();
            }
        })?;
    }
    thread::sleep(SHORT);
    thread::scope(|scope| {
        let _close = CloseAtEnd(&port);
        for _ in 0..2 {
            scope.spawn(|| {
                let mut worker = port.worker(8);
                while worker.process(None).is_ok() {
                    while worker.take().is_some() {}
                }
            });
        }
        let is_called = (0..2).all(|number| {
            let is_called = calls.recv_timeout(PATIENCE).is_ok();
            if !is_called {
                // So that the threads end.
                (number..2).for_each(|_| _ = meet.wait());
            }
            is_called
        });
        assert!(is_called, "one function waits for the other to return");
    });
    Ok(())
}

/// A handler makes a second worker of its port, and waits in that.
#[for_every_backend]
fn f4_what_another_worker_of_this_thread_has_not_taken_flows_on(
    backend: Backend,
) -> io::Result<()> {
    let port = owning_port(backend, 1)?;
    let mut worker = port.worker(8);
    port.send(1).expect("open");
    port.send(2).expect("open");
    assert_eq!(worker.process(Some(PATIENCE))?, 2);
    assert_eq!(message(worker.take().expect("an event")), 1);
    let mut second = port.worker(8);
    assert_eq!(message(next(&mut second)), 2);
    assert!(worker.take().is_none());
    Ok(())
}

/// The other thread has a place, and waits for events with nothing to do.
#[for_every_backend(with_places)]
fn f4_what_a_thread_that_computes_has_not_taken_goes_to_one_that_polls(
    backend: Backend,
) -> io::Result<()> {
    const COUNT: usize = 3;
    let builder = CompletionPort::builder().backend(backend).concurrency(2);
    let port = TestPort::from(builder.wake_policy(WakePolicy::Eager).build()?);
    let mut worker = port.worker(COUNT);
    for number in 0..COUNT {
        port.send(number as u64)?;
    }
    assert_eq!(worker.process(Some(PATIENCE))?, COUNT);
    thread::scope(|scope| {
        let _close = CloseAtEnd(&port);
        let events = take_all(scope, &port);
        let (begin, mut count) = (Instant::now(), 0);
        while count < COUNT {
            assert!(begin.elapsed() < PATIENCE, "they flow on");
            count += events.try_iter().count();
            std::hint::spin_loop();
        }
    });
    Ok(())
}
