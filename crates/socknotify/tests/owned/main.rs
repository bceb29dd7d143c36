//! Connections that the port owns, on every backend that this machine has.

#[macro_use]
extern crate socknotify_test_macros;

#[path = "../support/mod.rs"]
#[macro_use]
mod support;

mod backlog;
mod buffered;
mod closes;
mod connect;
mod deadlines;
mod drain;
mod drained;
mod ends;
#[cfg(unix)]
mod executor;
mod fair;
mod flow;
mod linger;
mod listen;
mod moves;
mod others;
mod outbox;
mod serve;
mod timers;

use std::io;

use socket2::Socket;
use socknotify::Backend;
use socknotify::owned::{BorrowedSocket, Event, Held, Port, Source, Worker};

use support::{PATIENCE, Pair, port_with};

/// A connection that counts how often it was served.
#[derive(Debug)]
struct Connection {
    socket: Socket,
    served: usize,
}

impl Source for Connection {
    fn socket(&self) -> BorrowedSocket<'_> {
        self.socket.socket()
    }
}

type TestPort = Port<Connection, u64>;
type TestWorker = Worker<Connection, u64>;

fn owning_port(backend: Backend, permits: usize) -> io::Result<TestPort> {
    Ok(Port::from(port_with(backend, permits)?))
}

/// A connection that the port has adopted, and its peer.
fn connect(port: &TestPort) -> io::Result<(Held<Connection>, Socket)> {
    let Pair { ours, theirs } = Pair::unix()?;
    theirs.set_nonblocking(false)?;
    theirs.set_read_timeout(Some(PATIENCE))?;
    let connection = Connection {
        socket: ours,
        served: 0,
    };
    Ok((port.adopt(connection)?, theirs))
}

/// The next event, which has to come.
#[track_caller]
fn next(worker: &mut TestWorker) -> Event<Connection, u64> {
    worker.process(Some(PATIENCE)).expect("something comes");
    worker.take().expect("an event")
}

/// Nothing is there.
#[track_caller]
fn nothing(worker: &mut TestWorker) {
    let outcome = worker.process(Some(std::time::Duration::ZERO));
    assert_eq!(outcome, Ok(0), "{:?}", worker.take());
}

#[track_caller]
fn ready(event: Event<Connection, u64>) -> Held<Connection> {
    match event {
        Event::Ready(connection, _) => connection,
        other => panic!("{other:?}"),
    }
}
