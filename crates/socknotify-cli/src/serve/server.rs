//! The server: one port, and the loop that each of its threads runs.

use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, Socket, Type};
use socknotify::owned::{Event, Held, Incoming, Interest, Port, Worker};
use socknotify::{CompletionPort, Error, Snapshot};

use super::Mode;
use super::client::{Client, Next};
use super::clients::Clients;
use super::connection::Connection;
use super::desk::Desk;
use super::tally::{Counts, Figures, Reason, Tally};

/// How many events a thread takes at once. What it has taken waits for it, even if others are free.
const ROOM: usize = 16;

/// How many connections a thread accepts before it serves others again.
const ACCEPT: usize = 64;

/// How many connections may wait to be accepted, if the system allows it.
const BACKLOG: i32 = 4096;

pub(crate) struct Server {
    port: Port<Connection>,
    pub(crate) mode: Mode,
    pub(crate) idle_timeout: Duration,
    clients: Clients,
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
            clients: Clients::default(),
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
        let listener = self.port.adopt(Connection::Listener(listener))?;
        self.clients.add(listener.id());
        self.port.arm(listener, Interest::IN);
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
        for id in self.clients.close() {
            self.port.cancel(id);
        }
    }

    /// Whether nobody is left, the listener included.
    pub(crate) fn is_deserted(&self) -> bool {
        self.clients.count() == 0
    }

    /// End all threads. Connections that wait are closed.
    pub(crate) fn close(&self) {
        drop(self.port.close());
    }

    /// What was counted so far. What a thread counts in a turn is added at its end.
    pub(crate) fn figures(&self) -> Figures {
        Figures {
            // One of them is the listener.
            open: self.clients.count().saturating_sub(1),
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
                self.see_to(event, &mut worker, &mut desk)?;
            }
        }
    }

    fn see_to(
        &self,
        event: Event<Connection>,
        worker: &mut Worker<Connection>,
        desk: &mut Desk,
    ) -> io::Result<()> {
        match event {
            Event::Ready(mut held, _) => match &mut *held {
                Connection::Client(client) => {
                    let next = client.turn(self, desk);
                    self.go_on(held, next, worker, desk);
                }
                Connection::Listener(_) => self.accept(held, worker, desk),
            },
            Event::TimedOut(held) => match &*held {
                Connection::Client(client) => {
                    let next = client.overdue();
                    self.go_on(held, next, worker, desk);
                }
                // Its rest is over.
                Connection::Listener(_) => self.accept(held, worker, desk),
            },
            // The end has begun. A request that has come by now is still answered.
            Event::Cancelled(mut held) => match &mut *held {
                Connection::Client(client) => {
                    let next = client.turn(self, desk);
                    self.go_on(held, next, worker, desk);
                }
                Connection::Listener(_) => self.let_go(held),
            },
            Event::Refused(held, error) => match &*held {
                Connection::Client(_) => {
                    self.go_on(held, Next::Shed(Reason::Refused), worker, desk);
                }
                Connection::Listener(_) => return Err(error.into()),
            },
            // Nothing is shared, and there are no messages.
            _ => {}
        }
        Ok(())
    }

    fn accept(&self, listener: Held<Connection>, worker: &mut Worker<Connection>, desk: &mut Desk) {
        let Connection::Listener(socket) = &*listener else {
            return;
        };
        let mut incoming = Incoming::new(socket, ACCEPT);
        for (stream, _) in &mut incoming {
            desk.counts.accepted += 1;
            // An answer should not wait for the acknowledgement of the one before. It is answered in
            // any case.
            let _ = stream.set_nodelay(true);
            let client = Client::new(stream, self);
            match self.port.adopt(Connection::Client(client)) {
                Ok(mut held) => {
                    if !self.clients.add(held.id()) {
                        // It has come too late.
                        continue;
                    }
                    if let Connection::Client(client) = &mut *held {
                        let next = client.wait(self);
                        self.go_on(held, next, worker, desk);
                    }
                }
                Err(_) => desk.counts.shed.count(Reason::Refused),
            }
        }
        let interest = incoming.interest();
        match self.cut_off() {
            None => worker.arm(listener, interest),
            Some(_) => self.let_go(listener),
        }
    }

    fn go_on(
        &self,
        held: Held<Connection>,
        next: Next,
        worker: &mut Worker<Connection>,
        desk: &mut Desk,
    ) {
        match next {
            Next::Wait(interest) => return worker.arm(held, interest),
            Next::Shed(reason) => desk.counts.shed.count(reason),
            Next::Close => {}
        }
        self.let_go(held);
    }

    fn let_go(&self, held: Held<Connection>) {
        let id = held.id();
        drop(held);
        self.clients.remove(id);
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
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}
