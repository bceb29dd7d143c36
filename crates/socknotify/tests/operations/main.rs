//! Operations that complete on the port: section O of the contract, on every backend that this machine has.

#[path = "../support/mod.rs"]
#[macro_use]
mod support;

mod run;

use std::io;
use std::net::TcpStream;
use std::time::Duration;

use socknotify::Backend;
use socknotify::owned::{Builder, Event, Port, Worker};

use support::PATIENCE;

type TestPort = Port<TcpStream, u64>;
type TestWorker = Worker<TcpStream, u64>;

fn builder(backend: Backend) -> Builder<TcpStream, u64> {
    TestPort::builder().backend(backend)
}

fn owning_port(backend: Backend) -> io::Result<TestPort> {
    Ok(builder(backend).build()?)
}

/// The next event, which has to come.
#[track_caller]
fn next(worker: &mut TestWorker) -> Event<TcpStream, u64> {
    loop {
        let count = worker.process(Some(PATIENCE)).expect("the port is open");
        assert_ne!(count, 0, "nothing comes");
        if let Some(event) = worker.take() {
            return event;
        }
    }
}

#[track_caller]
fn message(worker: &mut TestWorker) -> u64 {
    match next(worker) {
        Event::Message(message) => message,
        other => panic!("{other:?}"),
    }
}

/// Nothing is there.
#[track_caller]
fn nothing(worker: &mut TestWorker) {
    let outcome = worker.process(Some(Duration::ZERO));
    assert_eq!(outcome, Ok(0), "{:?}", worker.take());
}
