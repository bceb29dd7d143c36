//! Microsoft's first program: a completion port in place of `poll`.
//!
//! One thread, persistent level-triggered registrations, plain dequeuing. Nothing is ever armed
//! again; a socket is notified for as long as a condition holds.

use std::io;
use std::net::{TcpListener, TcpStream};
use std::thread;

use socknotify::{Entry, Error, EventFilter, Events, Registration, Trigger};

use super::clients;
use super::problem::{Context, Problem};
use super::run::{Run, outcome_of};
use super::tcp::{self, Received};

/// The completion key of the listener. Those of the connections count from 0.
const LISTENER: usize = usize::MAX;

/// Without ONESHOT a registration is persistent.
const TRIGGER: Trigger = Trigger::LEVEL;

pub(crate) fn run(run: &Run) -> Result<(), Problem> {
    let listener = tcp::listen().context("listen")?;
    let address = listener.local_addr().context("listen")?;
    thread::scope(|scope| {
        let clients = scope.spawn(|| clients::run_tcp(run, address));
        let served = serve(run, listener);
        outcome_of(clients.join()).and(served)
    })
}

/// Serves until every registration that was ever made is removed.
fn serve(run: &Run, listener: TcpListener) -> Result<(), Problem> {
    let mut server = Server::new(run, listener);
    server.serve().inspect_err(|problem| run.give_up(problem))
    // Then the server goes, with every socket that it may still have: clients that wait for it must
    // not wait for ever.
}

struct Server<'run> {
    run: &'run Run,
    /// Open until its REMOVE notification came.
    listener: Option<TcpListener>,
    /// By completion key. No key is used twice, so that nothing can be taken for something else.
    connections: Vec<Option<Connection>>,
}

struct Connection {
    stream: TcpStream,
    received: u64,
    /// REMOVE was asked for. A second time would be an error.
    leaving: bool,
}

impl<'run> Server<'run> {
    fn new(run: &'run Run, listener: TcpListener) -> Self {
        Server {
            run,
            listener: Some(listener),
            connections: Vec::new(),
        }
    }

    fn serve(&mut self) -> Result<(), Problem> {
        if let Some(listener) = &self.listener {
            let registration = Registration::enable(listener, LISTENER, EventFilter::IN, TRIGGER);
            self.run.register("register the listener", registration)?;
        }
        let mut entries = [Entry::default(); 64];
        while self.run.tally.removals.get() < self.run.plan.removals() {
            let entries = match self.run.port.dequeue(&mut entries, None) {
                Err(Error::Closed) if self.run.has_given_up() => return Ok(()),
                dequeued => dequeued.context("dequeue")?,
            };
            let _running = self.run.tally.running.enter();
            for entry in entries {
                self.run.tally.notifications.add(1);
                match entry.completion_key {
                    LISTENER => self.listener_notified(entry.events())?,
                    key => self.connection_notified(key, entry.events())?,
                }
            }
        }
        Ok(())
    }

    fn listener_notified(&mut self, events: Events) -> Result<(), Problem> {
        if events.contains(Events::REMOVE) {
            return self.removed(LISTENER);
        }
        let Some(listener) = &self.listener else {
            return Err(late(LISTENER, events));
        };
        // Once all clients are here REMOVE was asked for, and nothing is left to do.
        while self.connections.len() < self.run.plan.clients as usize {
            let accepted = tcp::accept(listener)
                .map_err(|error| Problem::no_socket("accept", &error, &self.run.plan))?;
            let Some(stream) = accepted else {
                return Ok(());
            };
            let key = self.connections.len();
            let filter = EventFilter::IN | EventFilter::HANGUP;
            let registration = Registration::enable(&stream, key, filter, TRIGGER);
            self.run.register("register a connection", registration)?;
            self.connections.push(Some(Connection::new(stream)));
            self.run.tally.connections.add(1);
            if self.connections.len() == self.run.plan.clients as usize {
                let registration = Registration::remove(listener);
                self.run.register("remove the listener", registration)?;
            }
        }
        Ok(())
    }

    fn connection_notified(&mut self, key: usize, events: Events) -> Result<(), Problem> {
        if events.contains(Events::REMOVE) {
            return self.removed(key);
        }
        let Some(Some(connection)) = self.connections.get_mut(key) else {
            return Err(late(key, events));
        };
        if connection.leaving || !connection.receive_all(self.run, key) {
            return Ok(());
        }
        connection.leaving = true;
        let registration = Registration::remove(&connection.stream);
        self.run.register("remove a connection", registration)
    }

    /// The registration is over, and only now its socket may be closed.
    fn removed(&mut self, key: usize) -> Result<(), Problem> {
        let known = match key {
            LISTENER => self.listener.take().is_some(),
            _ => self
                .connections
                .get_mut(key)
                .and_then(Option::take)
                .is_some(),
        };
        self.run.tally.removals.add(1);
        match known {
            true => Ok(()),
            false => Err(late(key, Events::REMOVE)),
        }
    }
}

impl Connection {
    fn new(stream: TcpStream) -> Self {
        Connection {
            stream,
            received: 0,
            leaving: false,
        }
    }

    /// Receives all data. True at the end of the stream.
    fn receive_all(&mut self, run: &Run, key: usize) -> bool {
        loop {
            match tcp::receive(&self.stream) {
                Ok(Received::Bytes(length)) => {
                    self.received += length;
                    run.tally.bytes.add(length);
                }
                Ok(Received::Nothing) => return false,
                Ok(Received::End) => {
                    self.check_length(run, key);
                    return true;
                }
                Err(error) => {
                    run.note(&failed(key, &error));
                    return true;
                }
            }
        }
    }

    fn check_length(&self, run: &Run, key: usize) {
        let expected = run.plan.bytes_per_client();
        if self.received != expected {
            run.note(&Problem::new(format_args!(
                "connection {key} brought {} bytes in place of {expected}",
                self.received
            )));
        }
    }
}

fn failed(key: usize, error: &io::Error) -> Problem {
    Problem::new(format_args!("connection {key}: {error}"))
}

fn late(key: usize, events: Events) -> Problem {
    Problem::new(format_args!(
        "a notification for key {key} without a registration: {events:?}"
    ))
}
