//! The peer sees the end of a connection at once, however the connection came out (G1); and a connection
//! is heard whatever has become of the thread that armed it (F5).

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use socket2::Socket;
use socknotify::owned::{Buffer, Event, FileDriver, FileOperation, Held, Interest, Port};
use socknotify::{Backend, Events};

use crate::support::{
    Gate, PollFlags, drain, fill, is_ready, port_with, rounds, tcp_streams, thread_time,
    uninterrupted,
};
use crate::{Connection, TestPort, TestWorker, connect, next, nothing, owning_port, ready};

/// The peer has nothing to read but the end.
#[track_caller]
fn at_end(mut peer: &Socket) {
    let outcome = uninterrupted(|| peer.read(&mut [0]));
    assert_eq!(outcome.expect("the end comes"), 0);
}

fn cancelled(
    port: &TestPort,
    worker: &mut TestWorker,
    connection: Held<Connection>,
) -> Held<Connection> {
    let id = connection.id();
    worker.arm(connection, Interest::IN);
    nothing(worker);
    assert!(port.cancel(id));
    match next(worker) {
        Event::Cancelled(connection) => connection,
        other => panic!("{other:?}"),
    }
}

#[for_every_backend]
fn g1_the_peer_sees_the_end_of_what_timed_out(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend, 2)?;
    let mut worker = port.worker(4);
    let (connection, peer) = connect(&port)?;
    worker.arm(connection, Interest::IN.within(Duration::from_millis(5)));
    match next(&mut worker) {
        Event::TimedOut(connection) => drop(connection),
        other => panic!("{other:?}"),
    }
    at_end(&peer);
    Ok(())
}

#[for_every_backend]
fn g1_the_peer_sees_the_end_of_what_was_cancelled(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend, 2)?;
    let mut worker = port.worker(4);
    let (connection, peer) = connect(&port)?;
    drop(cancelled(&port, &mut worker, connection));
    at_end(&peer);
    Ok(())
}

#[for_every_backend]
fn g1_the_peer_sees_the_end_of_what_was_armed_again_after_it_had_been_cancelled(
    backend: Backend,
) -> io::Result<()> {
    let port = owning_port(backend, 2)?;
    let mut worker = port.worker(4);
    for interest in [Interest::IN, Interest::IN | Interest::HANGUP] {
        let (connection, peer) = connect(&port)?;
        let connection = cancelled(&port, &mut worker, connection);
        let id = connection.id();
        worker.arm(connection, interest);
        nothing(&mut worker);
        assert!(port.cancel(id));
        let Event::Cancelled(connection) = next(&mut worker) else {
            panic!("it was cancelled");
        };
        drop(connection);
        at_end(&peer);
    }
    Ok(())
}

#[for_every_backend]
fn g1_the_peer_sees_the_end_of_what_was_taken_out(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend, 2)?;
    let mut worker = port.worker(4);
    let (connection, peer) = connect(&port)?;
    let connection = cancelled(&port, &mut worker, connection).into_inner();
    nothing(&mut worker);
    drop(connection);
    at_end(&peer);
    Ok(())
}

/// A message that panics when it is dropped.
struct Spiteful;

impl Drop for Spiteful {
    fn drop(&mut self) {
        panic!("on purpose");
    }
}

#[for_every_backend]
fn g4_a_message_that_panics_when_it_is_dropped_keeps_no_connection(
    backend: Backend,
) -> io::Result<()> {
    let port = Port::<TcpStream, Spiteful>::from(port_with(backend, 2)?);
    let (ours, _theirs) = tcp_streams()?;
    port.arm(port.adopt(ours)?, Interest::IN);
    for _ in 0..2 {
        let hour = Duration::from_secs(3600);
        assert!(port.send_after(hour, Spiteful).is_ok());
        assert!(port.send(Spiteful).is_ok());
    }
    let connections = port.close();
    assert_eq!(connections.len(), 1);
    assert_eq!(port.connections(), 0);
    Ok(())
}

impl AsRef<[u8]> for Spiteful {
    fn as_ref(&self) -> &[u8] {
        &[]
    }
}

impl AsMut<[u8]> for Spiteful {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut []
    }
}

#[for_every_backend]
fn g4_work_and_buffers_that_panic_when_they_are_dropped_keep_no_connection(
    backend: Backend,
) -> io::Result<()> {
    for driver in FileDriver::ALL {
        if driver.probe().is_err() {
            continue;
        }
        let builder = Port::<TcpStream, Spiteful>::builder().backend(backend);
        let builder = builder.file_driver(driver).helper_threads(1);
        let port = builder.build()?;
        let (ours, _theirs) = tcp_streams()?;
        port.arm(port.adopt(ours)?, Interest::IN);
        // The only thread for work is busy.
        let gate = Arc::new(Gate::new());
        let theirs = Arc::clone(&gate);
        port.offload(move || {
            theirs.pass();
            Spiteful
        })?;
        let file = port.adopt_file(tempfile::tempfile()?)?;
        for _ in 0..100 {
            let spiteful = Spiteful;
            port.offload(move || spiteful)?;
            let buffer = Buffer::from_owner(Box::new(Spiteful));
            port.begin(FileOperation::read_at(&file, buffer, 0))?;
        }
        let connections = port.close();
        assert_eq!(connections.len(), 1, "{driver}");
        assert_eq!((port.connections(), port.operations()), (0, 0), "{driver}");
        gate.open_for_all();
    }
    Ok(())
}

#[for_every_backend]
fn g1_the_peer_sees_the_end_of_what_a_closed_port_gave_back(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend, 2)?;
    let mut worker = port.worker(4);
    let (first, first_peer) = connect(&port)?;
    let (second, second_peer) = connect(&port)?;
    let held = cancelled(&port, &mut worker, second);
    worker.arm(first, Interest::IN);
    nothing(&mut worker);
    let connections = port.close();
    assert_eq!(connections.len(), 1);
    drop(connections);
    at_end(&first_peer);
    drop(held);
    at_end(&second_peer);
    Ok(())
}

/// Connections that threads arm while the port closes are closed with it: the system refuses none of them.
#[for_every_backend]
fn g1_what_is_armed_while_the_port_closes_is_not_refused(backend: Backend) -> io::Result<()> {
    const THREADS: usize = 3;
    for _ in 0..rounds(200) {
        let port = owning_port(backend, THREADS)?;
        let come = AtomicUsize::new(0);
        let mut peers = Vec::new();
        for _ in 0..2 * THREADS {
            let (connection, peer) = connect(&port)?;
            // Writable from the first call on.
            port.arm(connection, Interest::OUT);
            peers.push(peer);
        }
        thread::scope(|scope| {
            for _ in 0..THREADS {
                let (mut worker, come) = (port.worker(2), &come);
                scope.spawn(move || {
                    while worker.process(None).is_ok() {
                        while let Some(event) = worker.take() {
                            let Event::Ready(connection, _) = event else {
                                panic!("{event:?}")
                            };
                            come.fetch_add(1, Ordering::Relaxed);
                            worker.arm(connection, Interest::OUT);
                        }
                    }
                });
            }
            while come.load(Ordering::Relaxed) < 4 * THREADS {
                thread::yield_now();
            }
            port.close();
        });
        assert_eq!(port.connections(), 0);
        peers.iter().for_each(at_end);
    }
    Ok(())
}

#[for_every_backend]
fn g1_the_peer_sees_the_end_when_the_port_goes(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend, 2)?;
    let mut worker = port.worker(4);
    let (connection, peer) = connect(&port)?;
    worker.arm(connection, Interest::IN);
    nothing(&mut worker);
    drop(port);
    at_end(&peer);
    Ok(())
}

/// Another thread arms it: one that ends, or one that goes on to compute.
#[for_every_backend]
fn g1_the_peer_sees_the_end_whoever_armed_it(backend: Backend) -> io::Result<()> {
    for computes in [false, true] {
        let port = owning_port(backend, 2)?;
        let mut worker = port.worker(4);
        let (connection, peer) = connect(&port)?;
        let id = connection.id();
        let armed = AtomicBool::new(false);
        let done = AtomicBool::new(false);
        thread::scope(|scope| -> io::Result<()> {
            let other = scope.spawn(|| -> io::Result<()> {
                port.arm(connection, Interest::IN);
                armed.store(true, Ordering::Release);
                while computes && !done.load(Ordering::Acquire) {
                    std::hint::spin_loop();
                }
                Ok(())
            });
            while !armed.load(Ordering::Acquire) {
                thread::yield_now();
            }
            if !computes {
                other.join().expect("no panic")?;
            }
            assert!(port.cancel(id));
            drop(next(&mut worker));
            at_end(&peer);
            done.store(true, Ordering::Release);
            Ok(())
        })?;
    }
    Ok(())
}

#[for_every_backend]
fn f5_a_connection_is_heard_when_the_thread_that_armed_it_has_ended(
    backend: Backend,
) -> io::Result<()> {
    const CONNECTIONS: usize = 20;
    let port = owning_port(backend, 2)?;
    let mut worker = port.worker(4);
    let mut peers = Vec::new();
    let mut held = Vec::new();
    for _ in 0..CONNECTIONS {
        let (connection, peer) = connect(&port)?;
        held.push(connection);
        peers.push(peer);
    }
    for _ in 0..5 {
        thread::scope(|scope| {
            let mut others: Vec<TestWorker> = (0..4).map(|_| port.worker(4)).collect();
            for (index, connection) in held.drain(..).enumerate() {
                others[index % 4].arm(connection, Interest::IN);
            }
            for mut other in others {
                scope.spawn(move || nothing(&mut other));
            }
        });
        nothing(&mut worker);
        for mut peer in &peers {
            peer.write_all(b"x")?;
        }
        while held.len() < CONNECTIONS {
            worker.process(Some(crate::support::PATIENCE))?;
            while let Some(event) = worker.take() {
                let connection = ready(event);
                (&connection.socket).read_exact(&mut [0])?;
                held.push(connection);
            }
        }
    }
    Ok(())
}

#[for_every_backend]
fn f5_a_connection_is_heard_while_the_thread_that_armed_it_computes(
    backend: Backend,
) -> io::Result<()> {
    let port = owning_port(backend, 2)?;
    let (connection, mut peer) = connect(&port)?;
    let armed = AtomicBool::new(false);
    let heard = AtomicBool::new(false);
    thread::scope(|scope| -> io::Result<()> {
        let mut waiting = port.worker(4);
        let waiting = scope.spawn(move || drop(ready(next(&mut waiting))));
        crate::support::wait_until("it waits", || port.snapshot().waiting == 1);
        scope.spawn(|| {
            port.arm(connection, Interest::IN);
            armed.store(true, Ordering::Release);
            while !heard.load(Ordering::Acquire) {
                std::hint::spin_loop();
            }
        });
        while !armed.load(Ordering::Acquire) {
            thread::yield_now();
        }
        peer.write_all(b"x")?;
        let outcome = waiting.join();
        heard.store(true, Ordering::Release);
        outcome.expect("no panic");
        Ok(())
    })
}

/// What came and went while a thread had the connection is not reported to the next one.
#[for_every_backend]
fn a_connection_that_was_cancelled_says_what_holds_now(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend, 2)?;
    let mut worker = port.worker(4);
    let (mut connection, mut peer) = connect(&port)?;
    for interest in [Interest::IN, Interest::IN | Interest::HANGUP] {
        connection = cancelled(&port, &mut worker, connection);
        peer.write_all(b"x")?;
        (&connection.socket).read_exact(&mut [0])?;
        worker.arm(connection, interest);
        nothing(&mut worker);
        nothing(&mut worker);
        peer.write_all(b"y")?;
        connection = ready(next(&mut worker));
        (&connection.socket).read_exact(&mut [0])?;
    }
    Ok(())
}

/// The peer has ended its side, and the connection waits for room to send.
#[for_every_backend]
fn what_nobody_asked_for_costs_no_time(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend, 2)?;
    let mut worker = port.worker(4);
    let (mut connection, peer) = connect(&port)?;
    peer.shutdown(std::net::Shutdown::Write)?;
    peer.set_nonblocking(true)?;
    for _ in 0..3 {
        let time = Duration::from_millis(100);
        let used = loop {
            fill(&connection.socket)?;
            worker.arm(connection, Interest::OUT);
            let before = thread_time();
            let outcome = worker.process(Some(time));
            if outcome == Ok(0) {
                break thread_time() - before;
            }
            // TCP has found room once more.
            connection = writable(next(&mut worker));
            assert!(is_ready(&connection.socket, PollFlags::OUT, Duration::ZERO));
        };
        assert!(used < time / 2, "{used:?}");
        drain(&peer)?;
        connection = writable(next(&mut worker));
    }
    Ok(())
}

#[track_caller]
fn writable(event: Event<Connection, u64>) -> Held<Connection> {
    match event {
        Event::Ready(connection, Events::OUT) => connection,
        other => panic!("{other:?}"),
    }
}
