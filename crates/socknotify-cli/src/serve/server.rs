//! The server: one port, and the loop that each of its threads runs.

use std::io;
use std::net::UdpSocket;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use socknotify::owned::{
    BorrowedSocket, Event, Held, Listen, Listening, Port, SharedTrigger, Source, Worker,
};
use socknotify::{CompletionPort, Error, EventFilter, Snapshot};

use super::Mode;
use super::client::{Client, Next};
use super::datagrams;
use super::desk::Desk;
use super::listen::{Bound, Listener};
use super::tally::{Counts, Figures, Reason, Tally};
use crate::endpoint::Endpoint;
use crate::stream::Stream;

/// How many events a thread takes at once. What it has taken waits for it, even if others are free.
const ROOM: usize = 16;

/// How many connections a thread accepts before it serves others again.
const ACCEPT: usize = 64;

/// What the port owns.
#[derive(Debug)]
enum Peer {
    Client(Client),
    /// A socket for the datagrams of all clients.
    Datagrams(UdpSocket),
}

impl Source for Peer {
    fn socket(&self) -> BorrowedSocket<'_> {
        match self {
            Peer::Client(client) => client.socket(),
            Peer::Datagrams(socket) => socket.socket(),
        }
    }
}

pub(crate) struct Server {
    port: Port<Peer>,
    mode: Mode,
    pub(crate) idle_timeout: Duration,
    tally: Tally,
    /// When what is still being finished is cut off. Set when the end begins.
    cut_off: OnceLock<Instant>,
}

impl Server {
    pub(crate) fn new(port: CompletionPort, mode: Mode, idle_timeout: Duration) -> Self {
        Server {
            port: Port::from(port),
            mode,
            idle_timeout,
            tally: Tally::default(),
            cut_off: OnceLock::new(),
        }
    }

    /// Listens there, for what the mode is about.
    pub(crate) fn listen(&self, endpoint: &Endpoint) -> io::Result<Bound> {
        let (listener, bound) = Bound::bind(endpoint, self.mode == Mode::UdpEcho)?;
        match listener {
            Listener::Tcp(listener) => self.accept_from(listener)?,
            #[cfg(unix)]
            Listener::Unix(listener) => self.accept_from(listener)?,
            Listener::Datagrams(socket) => {
                let socket = Arc::new(Peer::Datagrams(socket));
                let (filter, trigger) = (EventFilter::IN, SharedTrigger::Level);
                self.port.share(socket, filter, trigger)?;
            }
        }
        Ok(bound)
    }

    fn accept_from<L: Listen<Stream: Into<Stream>>>(&self, listener: L) -> io::Result<()> {
        let mode = self.mode;
        let listening = Listening::reporting().batch(ACCEPT);
        self.port.listen(listener, listening, move |stream, _| {
            Peer::Client(Client::new(stream, mode))
        })?;
        Ok(())
    }

    /// Whether it has clients that connect.
    pub(crate) fn has_connections(&self) -> bool {
        self.mode != Mode::UdpEcho
    }

    pub(crate) fn places(&self) -> usize {
        self.port.concurrency()
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        self.port.snapshot()
    }

    /// When everything has to be over, once the end has begun.
    pub(crate) fn cut_off(&self) -> Option<Instant> {
        self.cut_off.get().copied()
    }

    /// Stop accepting, let go who is idle, and finish what has begun within this time.
    pub(crate) fn drain(&self, time: Duration) {
        self.cut_off.get_or_init(|| Instant::now() + time);
        self.port.drain(time);
    }

    /// End all threads. Connections that wait are closed.
    pub(crate) fn close(&self) {
        drop(self.port.close());
    }

    /// What was counted so far. What a thread counts in a turn is added at its end.
    pub(crate) fn figures(&self) -> Figures {
        Figures {
            open: self.port.connections(),
            counts: self.tally.totals(),
        }
    }

    /// The same, with what this thread has counted in its turn.
    pub(crate) fn figures_with(&self, counts: &mut Counts) -> Figures {
        self.tally.collect(counts);
        self.figures()
    }

    /// Serves until the port is closed.
    pub(crate) fn run_thread(&self) -> io::Result<()> {
        let mut worker = self.port.worker(ROOM);
        let mut desk = Desk::new();
        loop {
            self.tally.collect(&mut desk.counts);
            match worker.process(None) {
                Ok(_) => desk.counts.dequeues += 1,
                Err(Error::Closed) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
            while let Some(event) = worker.take() {
                desk.counts.notifications += 1;
                self.see_to(event, &mut worker, &mut desk);
            }
        }
    }

    fn see_to(&self, event: Event<Peer>, worker: &mut Worker<Peer>, desk: &mut Desk) {
        let (mut held, turn) = match event {
            Event::Ready(held, _) => (held, Turn::Serve),
            Event::TimedOut(held) => (held, Turn::End),
            // The end has begun. A request that has come by now is still answered.
            Event::Draining(held) => (held, Turn::Serve),
            Event::Accepted(held) => (held, Turn::Begin),
            Event::Refused(held, _) => {
                return go_on(held, Next::Shed(Reason::Refused), worker, desk);
            }
            Event::Shared(peer, _) => {
                if let Peer::Datagrams(socket) = &*peer {
                    datagrams::echo(socket, desk);
                }
                return;
            }
            // Nothing is cancelled, and there are no messages. A listener that rests goes on by itself.
            _ => return,
        };
        let (Peer::Client(client), readiness) = held.split() else {
            return;
        };
        let next = match turn {
            Turn::Begin => {
                desk.counts.accepted += 1;
                client.wait(self)
            }
            Turn::Serve => client.turn(readiness, self, desk),
            Turn::End => client.overdue(),
        };
        go_on(held, next, worker, desk);
    }
}

/// What a thread has a client for.
enum Turn {
    Begin,
    Serve,
    End,
}

fn go_on(held: Held<Peer>, next: Next, worker: &mut Worker<Peer>, desk: &mut Desk) {
    match next {
        Next::Wait(interest) => worker.arm(held, interest),
        // What is dropped is closed.
        Next::Shed(reason) => desk.counts.shed.count(reason),
        Next::Close => {}
    }
}
