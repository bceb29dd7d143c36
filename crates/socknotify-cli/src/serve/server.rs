//! The server: one port, and the loop that each of its threads runs.

use std::net::UdpSocket;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{io, mem, thread};

use socknotify::owned::{
    BorrowedSocket, Buffer, Event, FileCompletion, Held, Interest, Listen, Listening, Port,
    SharedTrigger, Source, Worker,
};
use socknotify::{CompletionPort, Error, Snapshot};

use super::client::{Client, Next};
use super::datagrams;
use super::desk::Desk;
use super::http::{FileRequest, Found};
use super::listen::{Bound, Listener};
use super::log::{AccessLog, Log};
use super::plan::Plan;
use super::root::{self, Opened};
use super::tally::{Counts, Figures, Reason, Tally};
use crate::endpoint::Endpoint;
use crate::stream::Stream;

/// How many connections a thread accepts before it serves others again.
const ACCEPT: usize = 64;

/// How long a client that was sent everything may take to close its side.
const LINGER: Duration = Duration::from_secs(2);

/// How long clients may take at the end of the server for what they were sent, when what is not finished is cut off.
const LAST_WORDS: Duration = Duration::from_millis(500);

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

/// A helper thread has opened a file for a client.
struct OpenedFor {
    held: Held<Peer>,
    request: Box<FileRequest>,
    opened: io::Result<Opened>,
}

/// A client whose file is being read: it goes with the memory that is read into, and comes back with it.
struct Reading {
    held: Held<Peer>,
    memory: Vec<u8>,
}

impl AsRef<[u8]> for Reading {
    fn as_ref(&self) -> &[u8] {
        &self.memory
    }
}

impl AsMut<[u8]> for Reading {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.memory
    }
}

pub(crate) struct Server {
    port: Port<Peer, OpenedFor>,
    pub(crate) plan: Plan,
    tally: Tally,
}

impl Server {
    pub(crate) fn new(port: CompletionPort, plan: Plan) -> Self {
        Server {
            port: Port::from(port),
            plan,
            tally: Tally::default(),
        }
    }

    /// Listens there, for what the mode is about.
    pub(crate) fn listen(&self, endpoint: &Endpoint) -> io::Result<Bound> {
        let (listener, bound) = Bound::bind(endpoint, self.plan.mode.is_datagrams())?;
        match listener {
            Listener::Tcp(listener) => self.accept_from(listener)?,
            #[cfg(unix)]
            Listener::Unix(listener) => self.accept_from(listener)?,
            Listener::Datagrams(socket) => {
                let socket = Arc::new(Peer::Datagrams(socket));
                let (interest, trigger) = (Interest::IN, SharedTrigger::Level);
                self.port.share(socket, interest, trigger)?;
            }
        }
        Ok(bound)
    }

    fn accept_from<L: Listen<Stream: Into<Stream>>>(&self, listener: L) -> io::Result<()> {
        let (mode, site) = (self.plan.mode, self.plan.site());
        let listening = Listening::reporting().batch(ACCEPT);
        self.port.listen(listener, listening, move |stream, _| {
            Peer::Client(Client::new(stream, mode, site))
        })?;
        Ok(())
    }

    pub(crate) fn places(&self) -> usize {
        self.port.concurrency()
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        self.port.snapshot()
    }

    /// Stop accepting, close idle clients, and finish what has begun until the plan cuts it off.
    pub(crate) fn drain(&self) {
        let cut_off = self.plan.cut_off().unwrap_or_else(Instant::now);
        let end = cut_off + LAST_WORDS;
        // When that is over, the threads end.
        self.port
            .drain(end.saturating_duration_since(Instant::now()));
    }

    /// The threads have ended, or are left behind: counts the connections that are there as cut off. Returns how many
    /// threads of the port, which open and read files, are left behind, too.
    ///
    /// None of them is closed here: to close a file may block. The system closes everything when the process ends.
    pub(crate) fn close(&self, until: Instant) -> usize {
        let open = self.port.connections();
        let left = self.port.close();
        let is_over = |peer: &&Peer| matches!(peer, Peer::Client(client) if client.is_over());
        let over = left.iter().filter(is_over).count();
        mem::forget(left);
        let mut counts = Counts::default();
        let cut = open.saturating_sub(over);
        counts.dropped.count_all(Reason::Cut, cut);
        self.tally.collect(&mut counts);
        // Those without work end at once.
        while self.port.helper_threads() > 0 && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
        }
        self.port.helper_threads()
    }

    /// What was counted so far. A thread adds its own counts before it dequeues again.
    pub(crate) fn figures(&self) -> Figures {
        Figures {
            open: self.port.connections(),
            counts: self.tally.totals(),
            unlogged: self.plan.log.as_ref().map_or(0, AccessLog::lost),
            left_behind: 0,
        }
    }

    /// The same, with what this thread has counted since.
    fn figures_with(&self, counts: &mut Counts) -> Figures {
        self.tally.collect(counts);
        self.figures()
    }

    /// Serves until the port is closed.
    pub(crate) fn run_thread(&self) -> io::Result<()> {
        let mut worker = self.port.worker(1);
        let mut desk = Desk::new(Log::new(self.plan.log.is_some()));
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

    fn see_to(
        &self,
        event: Event<Peer, OpenedFor>,
        worker: &mut Worker<Peer, OpenedFor>,
        desk: &mut Desk,
    ) {
        let (mut held, turn) = match event {
            Event::Ready(held, _) => (held, Turn::Serve),
            Event::TimedOut(held) => (held, Turn::End),
            // A request that has come by now is still answered.
            Event::Draining(held) => (held, Turn::Drain),
            Event::Accepted(held) => (held, Turn::Begin),
            Event::Refused(held, _) => {
                return self.go_on(held, Next::Drop(Reason::Refused), worker, desk);
            }
            Event::Message(opened_for) => {
                let OpenedFor {
                    mut held,
                    request,
                    opened,
                } = opened_for;
                let next = self.have_opened(&mut held, &request, opened, &mut desk.log);
                return self.go_on(held, next, worker, desk);
            }
            Event::Completed(done) => return self.have_read(done, worker, desk),
            Event::Shared(peer, _) => {
                if let Peer::Datagrams(socket) = &*peer {
                    datagrams::echo(socket, desk);
                }
                return;
            }
            // Nothing is cancelled. A listener that pauses resumes by itself.
            _ => return,
        };
        let (Peer::Client(client), readiness) = held.split() else {
            return;
        };
        let next = match turn {
            Turn::Begin => {
                desk.counts.accepted += 1;
                client.wait(&self.plan)
            }
            Turn::Serve | Turn::Drain => {
                if matches!(turn, Turn::Drain) {
                    client.drain();
                }
                let mut figures = |counts: &mut _| self.figures_with(counts);
                client.turn(readiness, &self.plan, &mut figures, desk)
            }
            Turn::End => client.overdue(&self.plan),
        };
        self.go_on(held, next, worker, desk);
    }

    fn go_on(
        &self,
        mut held: Held<Peer>,
        mut next: Next,
        worker: &mut Worker<Peer, OpenedFor>,
        desk: &mut Desk,
    ) {
        loop {
            // Before another thread may have the client, and something to say of it.
            if let Some(log) = &self.plan.log {
                log.append(&mut desk.log);
            }
            match next {
                Next::Wait(interest) => return worker.arm(held, interest),
                // What is dropped is closed.
                Next::Drop(reason) => return desk.counts.dropped.count(reason),
                Next::Close => return,
                Next::Linger(reason) => {
                    if let Some(reason) = reason {
                        desk.counts.dropped.count(reason);
                    }
                    return worker.linger(held, LINGER);
                }
                Next::Read => match self.read(held, worker) {
                    Some((back, then)) => (held, next) = (back, then),
                    None => return,
                },
                Next::Open(request) => match self.open_at_once(&request) {
                    Some(opened) => {
                        next = self.have_opened(&mut held, &request, opened, &mut desk.log);
                    }
                    None => match self.open(held, request, worker) {
                        Some(opened_for) => {
                            let OpenedFor {
                                held: back,
                                request,
                                opened,
                            } = opened_for;
                            held = back;
                            next = self.have_opened(&mut held, &request, opened, &mut desk.log);
                        }
                        None => return,
                    },
                },
            }
        }
    }

    /// Opens a file, if that does not block.
    fn open_at_once(&self, request: &FileRequest) -> Option<io::Result<Opened>> {
        match (self.plan.root(), request.place()) {
            (Some(root), Some(place)) => root.open_at_once(place),
            _ => Some(Err(io::ErrorKind::NotFound.into())),
        }
    }

    /// Has a helper thread open a file. If the system has none, this thread does, and returns it.
    fn open(
        &self,
        held: Held<Peer>,
        request: Box<FileRequest>,
        worker: &mut Worker<Peer, OpenedFor>,
    ) -> Option<OpenedFor> {
        let root = self.plan.root();
        let refused = self.port.offload(move || {
            let opened = match (root, request.place()) {
                (Some(root), Some(place)) => root.open(place),
                _ => Err(io::ErrorKind::NotFound.into()),
            };
            OpenedFor {
                held,
                request,
                opened,
            }
        });
        match refused {
            // Dropping it closes the connection, as the port is closed.
            Err(error) if error.reason() != Error::Closed => {
                Some(worker.blocking(error.into_inner()))
            }
            _ => None,
        }
    }

    /// Begins to read from the file that this client gets. If the system has no thread for it, this one reads, and returns
    /// the client.
    fn read(
        &self,
        mut held: Held<Peer>,
        worker: &mut Worker<Peer, OpenedFor>,
    ) -> Option<(Held<Peer>, Next)> {
        let Peer::Client(client) = &mut *held else {
            return None;
        };
        let (memory, operation) = client.read()?;
        let reading = Box::new(Reading { held, memory });
        let error = worker.begin(operation(Buffer::from_owner(reading))).err()?;
        if error.reason() == Error::Closed {
            return None;
        }
        let buffer = error.into_inner().into_buffer();
        let Reading { mut held, memory } = *buffer.into_owner::<Reading>().ok()?;
        let Peer::Client(client) = &mut *held else {
            return None;
        };
        let next = worker.blocking(|| client.read_here(memory, &self.plan));
        Some((held, next))
    }

    fn have_opened(
        &self,
        held: &mut Held<Peer>,
        request: &FileRequest,
        opened: io::Result<Opened>,
        log: &mut Log,
    ) -> Next {
        let Peer::Client(client) = &mut **held else {
            return Next::Close;
        };
        let (file, mut found) = root::examine(opened);
        let file = file.map(|file| self.port.adopt_file(file));
        let file = file.transpose().unwrap_or_else(|_| {
            found = Found::Nothing;
            None
        });
        client.have_opened(request, file, &found, &self.plan, log)
    }

    fn have_read(
        &self,
        done: FileCompletion,
        worker: &mut Worker<Peer, OpenedFor>,
        desk: &mut Desk,
    ) {
        let Ok(reading) = done.buffer.into_owner::<Reading>() else {
            return;
        };
        let Reading { mut held, memory } = *reading;
        let Peer::Client(client) = &mut *held else {
            return;
        };
        let next = client.have_read(memory, done.result, &self.plan);
        self.go_on(held, next, worker, desk);
    }
}

/// What a thread has a client for.
enum Turn {
    Begin,
    Serve,
    /// The port drains: what has come is served, and nothing else is waited for.
    Drain,
    End,
}
