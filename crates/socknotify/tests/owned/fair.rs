//! E1: nobody waits for ever behind busy connections. How long each waits, the simulation says (`fairness`).

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use socket2::Socket;
use socknotify::Backend;
use socknotify::owned::{Event, Interest};

use crate::support::{PATIENCE, Pair, SHORT, fill, rounds, uploading, wait_until};
use crate::{Connection, TestPort, TestWorker, connect, owning_port};

const UPLOADS: usize = 40;

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
