//! The server: one port, and the loop that each of its threads runs.

use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, Socket, Type};
use socknotify::owned::{Event, Held, Listening, Port, Worker};
use socknotify::{CompletionPort, Error, Snapshot};

use super::Mode;
use super::client::{Client, Next};
use super::desk::Desk;
use super::tally::{Counts, Figures, Reason, Tally};

/// How many events a thread takes at once. What it has taken waits for it, even if others are free.
const ROOM: usize = 16;

/// How many connections a thread accepts before it serves others again.
const ACCEPT: usize = 64;

/// How many connections may wait to be accepted, if the system allows it.
const BACKLOG: i32 = 4096;

pub(crate) struct Server {
    port: Port<Client>,
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

    /// Listens at the first address of that name that can be had.
    pub(crate) fn listen(&self, name: &str) -> io::Result<SocketAddr> {
        let mut outcome = Err(io::ErrorKind::AddrNotAvailable.into());
        for address in name.to_socket_addrs()? {
            outcome = bind(address);
            if outcome.is_ok() {
                break;
            }
        }
        let listener = outcome?;
        let address = listener.local_addr()?;
        let mode = self.mode;
        let listening = Listening::reporting().batch(ACCEPT);
        self.port.listen(listener, listening, move |stream, _| {
            Client::new(stream, mode)
        })?;
        Ok(address)
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

    fn see_to(&self, event: Event<Client>, worker: &mut Worker<Client>, desk: &mut Desk) {
        let (mut held, is_over) = match event {
            Event::Ready(held, _) => (held, false),
            Event::TimedOut(held) => (held, true),
            // The end has begun. A request that has come by now is still answered.
            Event::Draining(held) => (held, false),
            Event::Accepted(mut held) => {
                desk.counts.accepted += 1;
                let next = held.wait(self);
                return go_on(held, next, worker, desk);
            }
            Event::Refused(held, _) => {
                return go_on(held, Next::Shed(Reason::Refused), worker, desk);
            }
            // Nothing is shared or cancelled, and there are no messages. A listener that rests goes on by itself.
            _ => return,
        };
        let next = match is_over {
            false => {
                let (client, readiness) = held.split();
                client.turn(readiness, self, desk)
            }
            true => held.overdue(),
        };
        go_on(held, next, worker, desk);
    }
}

fn go_on(held: Held<Client>, next: Next, worker: &mut Worker<Client>, desk: &mut Desk) {
    match next {
        Next::Wait(interest) => worker.arm(held, interest),
        // What is dropped is closed.
        Next::Shed(reason) => desk.counts.shed.count(reason),
        Next::Close => {}
    }
}

/// As the standard library does, but with room for more connections.
fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    // On Windows it would let another program listen at the same address.
    if cfg!(unix) {
        socket.set_reuse_address(true)?;
    }
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}
