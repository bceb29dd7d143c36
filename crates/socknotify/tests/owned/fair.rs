//! E1: nobody waits for ever behind busy connections. Calls are counted, not time.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use socket2::Socket;
use socknotify::Backend;
use socknotify::owned::{Event, Interest};

use crate::support::{PATIENCE, Pair, SHORT, fill, rounds, uploading, wait_until};
use crate::{Connection, TestPort, TestWorker, connect, owning_port};

const UPLOADS: usize = 40;

/// How many calls in a row a port may make without asking the system, and one that does.
const ASKS: usize = 8;

/// Connections whose peers send faster than they are read, and the peers.
fn uploads(port: &TestPort) -> io::Result<Vec<Pair>> {
    let mut pairs = Vec::new();
    for _ in 0..UPLOADS {
        let (mut connection, theirs) = connect(port)?;
        theirs.set_nonblocking(true)?;
        fill(&theirs)?;
        // A duplicate, which the test does not read.
        let ours = connection.socket.try_clone()?;
        connection.served = BUSY;
        port.arm(connection, Interest::IN);
        pairs.push(Pair { ours, theirs });
    }
    Ok(pairs)
}

/// Marks a connection that uploads.
const BUSY: usize = usize::MAX / 2;

/// What comes besides uploads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Other {
    Quiet,
    Accepted,
    Message(u64),
}

/// One call of a worker: a little of each upload is read, and it is armed again. Returns the rest.
fn call(worker: &mut TestWorker) -> Option<Vec<Other>> {
    worker.process(Some(PATIENCE)).ok()?;
    let mut others = Vec::new();
    while let Some(event) = worker.take() {
        match event {
            Event::Ready(mut connection, _) if connection.served >= BUSY => {
                connection.served += 1;
                let _ = connection.socket.read(&mut [0; 32]);
                worker.arm(connection, Interest::IN);
            }
            Event::Ready(mut connection, _) if connection.served == NEW => {
                others.push(Other::Accepted);
                // Closed.
                connection.served = 0;
            }
            Event::Ready(mut connection, _) => {
                let _ = connection.socket.read(&mut [0; 32]);
                others.push(Other::Quiet);
                worker.arm(connection, Interest::IN);
            }
            Event::Message(message) => others.push(Other::Message(message)),
            other => panic!("{other:?}"),
        }
    }
    Some(others)
}

/// Marks a connection that a listener has accepted.
const NEW: usize = BUSY - 1;

struct Others {
    quiet: Socket,
    listener: std::net::SocketAddr,
}

impl Others {
    fn new(port: &TestPort) -> io::Result<Self> {
        let (connection, quiet) = connect(port)?;
        port.arm(connection, Interest::IN);
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        // Writable at once, so that it is notified.
        port.listen(listener, Interest::OUT, |stream, _| Connection {
            socket: stream.into(),
            served: NEW,
        })?;
        Ok(Others {
            quiet,
            listener: address,
        })
    }

    fn begin(&self, port: &TestPort, turn: u64) -> io::Result<(Other, Option<TcpStream>)> {
        match turn % 4 {
            0 => {
                assert_eq!((&self.quiet).write(b"x")?, 1);
                Ok((Other::Quiet, None))
            }
            1 => {
                let client = TcpStream::connect(self.listener)?;
                Ok((Other::Accepted, Some(client)))
            }
            2 => {
                port.send(turn).expect("it is open");
                Ok((Other::Message(turn), None))
            }
            _ => {
                port.send_after(SHORT / 10, turn).expect("it is open");
                Ok((Other::Message(turn), None))
            }
        }
    }
}

/// One worker with this room. The first calls may have another one's.
fn serve_others(backend: Backend, burst: Option<usize>, room: usize) -> io::Result<()> {
    let port: TestPort = owning_port(backend, 2)?;
    let pairs = uploads(&port)?;
    let others = Others::new(&port)?;
    uploading(&pairs, || {
        if let Some(room) = burst {
            let mut worker = port.worker(room);
            assert_eq!(call(&mut worker), Some(Vec::new()));
            // What it has armed is armed by the next call.
            let _ = call(&mut worker);
        }
        let mut worker = port.worker(room);
        for turn in 0..rounds(60) as u64 {
            let (wanted, _client) = others.begin(&port, turn)?;
            let is_timer = turn % 4 == 3;
            let due = Instant::now() + if is_timer { SHORT } else { Duration::ZERO };
            // A listener is told, and then what it has accepted.
            let most = 3 * ASKS * ((UPLOADS + 3).div_ceil(room) + 1);
            let mut calls = 0;
            while !call(&mut worker).expect("it is open").contains(&wanted) {
                if Instant::now() >= due {
                    calls += 1;
                }
                assert!(
                    calls <= most,
                    "turn {turn}: no {wanted:?} after {most} calls"
                );
            }
        }
        io::Result::Ok(())
    })?;
    assert_eq!(port.close().len(), UPLOADS + 1);
    Ok(())
}

#[for_every_backend(with_permits)]
fn e1_busy_connections_starve_nobody_with_room_16(backend: Backend) -> io::Result<()> {
    serve_others(backend, None, 16)
}

#[for_every_backend(with_permits)]
fn e1_busy_connections_starve_nobody_with_little_room(backend: Backend) -> io::Result<()> {
    serve_others(backend, None, 1)?;
    serve_others(backend, None, 3)
}

#[for_every_backend(with_permits)]
fn e1_busy_connections_starve_nobody_after_one_burst(backend: Backend) -> io::Result<()> {
    serve_others(backend, Some(64), 2)?;
    serve_others(backend, Some(64), 64)
}

#[for_every_backend]
fn e1_busy_connections_starve_nobody_among_four_threads(backend: Backend) -> io::Result<()> {
    for (permits, room) in [(1, 1), (2, 3), (4, 16)] {
        let port: TestPort = owning_port(backend, permits)?;
        let pairs = uploads(&port)?;
        let others = Others::new(&port)?;
        let come = AtomicUsize::new(0);
        uploading(&pairs, || {
            thread::scope(|scope| {
                struct Close<'a>(&'a TestPort);
                impl Drop for Close<'_> {
                    fn drop(&mut self) {
                        self.0.close();
                    }
                }
                let _close = Close(&port);
                for _ in 0..4 {
                    let (mut worker, come) = (port.worker(room), &come);
                    scope.spawn(move || {
                        while let Some(others) = call(&mut worker) {
                            come.fetch_add(others.len(), Ordering::SeqCst);
                        }
                    });
                }
                for turn in 0..rounds(40) {
                    let (wanted, _client) = others.begin(&port, turn as u64)?;
                    wait_until(
                        &format!("{permits} permits, room {room}: {wanted:?}"),
                        || come.load(Ordering::SeqCst) > turn,
                    );
                }
                io::Result::Ok(())
            })
        })?;
    }
    Ok(())
}

/// The reverse: messages that are sent again as soon as they come leave connections their part.
#[for_every_backend(with_permits)]
fn e1_messages_without_end_starve_no_connection(backend: Backend) -> io::Result<()> {
    for room in [1, 2, 16] {
        let port: TestPort = owning_port(backend, 2)?;
        let pairs = uploads(&port)?;
        let others = Others::new(&port)?;
        for _ in 0..64 {
            port.send(u64::MAX).expect("it is open");
        }
        let mut worker = port.worker(room);
        uploading(&pairs, || {
            for turn in [0, 1, 3].into_iter().cycle().take(rounds(30)) {
                let (wanted, _client) = others.begin(&port, turn)?;
                let most = 6 * ASKS * ((UPLOADS + 3).div_ceil(room) + 1) + 64;
                let due = Instant::now() + if turn == 3 { SHORT } else { Duration::ZERO };
                let (mut calls, mut is_come) = (0, false);
                while !is_come {
                    let found = call(&mut worker).expect("it is open");
                    is_come = found.contains(&wanted);
                    for _ in found.iter().filter(|it| **it == Other::Message(u64::MAX)) {
                        port.send(u64::MAX).expect("it is open");
                    }
                    if Instant::now() >= due {
                        calls += 1;
                    }
                    assert!(
                        calls <= most,
                        "room {room}: no {wanted:?} after {most} calls"
                    );
                }
            }
            io::Result::Ok(())
        })?;
    }
    Ok(())
}

/// What is cancelled does not wait behind others.
#[for_every_backend]
fn e1_cancelling_without_end_starves_no_message(backend: Backend) -> io::Result<()> {
    for room in [1, 4] {
        let port = owning_port(backend, 1)?;
        let mut worker = port.worker(room);
        let mut peers = Vec::new();
        for _ in 0..2 * room {
            let (connection, theirs) = connect(&port)?;
            port.arm(connection, Interest::NOTHING);
            peers.push(theirs);
        }
        port.cancel_all();
        port.send(1).expect("open");
        let mut calls = 0;
        let is_told = 'calls: loop {
            worker.process(Some(PATIENCE))?;
            calls += 1;
            while let Some(event) = worker.take() {
                match event {
                    Event::Cancelled(connection) => port.arm(connection, Interest::NOTHING),
                    Event::Message(1) => break 'calls true,
                    other => panic!("{other:?}"),
                }
            }
            if calls == 10 {
                break false;
            }
            port.cancel_all();
        };
        assert!(is_told, "room {room}: {calls} calls without the message");
    }
    Ok(())
}
