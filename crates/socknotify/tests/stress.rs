//! Many threads, many sockets, and everything that can happen to them, all the time.
//!
//! Sixty-four threads serve a thousand and more connections. These are registered, enabled again,
//! disabled, removed to be registered under another key, and closed: after their removal, without one,
//! and, some of them, at any moment at all. In the end every byte is accounted for, and descriptors and
//! memory are back to where they were.
//!
//! `SOCKNOTIFY_STRESS_ROUNDS` sets how many times over; the seeds are fixed.

#[macro_use]
extern crate socknotify_test_macros;

#[macro_use]
mod support;

use std::collections::HashSet;
use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use socket2::Socket;
use socknotify::{Backend, CompletionPort, Entry, Error, EventFilter, Events, Registration};

use support::trigger::ONCE;
use support::{
    CloseAtEnd, PATIENCE, Pair, PortExt, counted, descriptors, drain_port, non_blocking, port_with,
    raise_limit, uninterrupted, wait_until,
};

const THREADS: usize = 64;
const SENDERS: usize = 4;

/// How many times over. The first round, after which memory is measured, comes before these.
fn rounds() -> usize {
    let rounds = std::env::var("SOCKNOTIFY_STRESS_ROUNDS").ok();
    rounds.and_then(|rounds| rounds.parse().ok()).unwrap_or(20)
}

/// A connection, as its server has it.
struct Connection {
    socket: Socket,
    /// No other registration ever has the same.
    key: usize,
    received: usize,
    /// What its peer has sent, when it has sent all.
    sent: Arc<AtomicUsize>,
    /// To be closed when its removal is notified.
    closing: bool,
}

struct Server {
    port: CompletionPort,
    /// By key, modulo the number of slots.
    slots: Vec<Mutex<Option<Connection>>>,
    /// Keys of connections that were closed while they were enabled. What was queued for them may come.
    abandoned: Mutex<HashSet<usize>>,
    ended: AtomicUsize,
    removals: AtomicUsize,
}

impl Server {
    fn enable<'a>(&self, connection: &'a Connection) -> Registration<'a> {
        Registration::enable(&connection.socket, connection.key, EventFilter::IN, ONCE)
    }

    /// Serves whatever comes, until the port is closed.
    fn serve(&self, seed: u64) -> Error {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut entries = [Entry::default(); 8];
        loop {
            let room = rng.usize(1..=entries.len());
            match self.port.dequeue(&mut entries[..room], None) {
                Err(error) => return error,
                Ok(found) => {
                    assert!(!found.is_empty());
                    for entry in found {
                        self.handle(*entry, &mut rng).expect("a socket that works");
                    }
                }
            }
        }
    }

    fn handle(&self, entry: Entry, rng: &mut fastrand::Rng) -> io::Result<()> {
        let key = entry.completion_key;
        let mut slot = self.slots[key % self.slots.len()].lock().expect("no panic");
        let Some(connection) = slot.as_mut().filter(|connection| connection.key == key) else {
            let abandoned = self.abandoned.lock().expect("no panic");
            assert!(abandoned.contains(&key), "a wrong key: {entry:?}");
            return Ok(());
        };
        if entry.events().contains(Events::REMOVE) {
            self.removals.fetch_add(1, Ordering::Relaxed);
            if connection.closing {
                *slot = None;
                self.ended.fetch_add(1, Ordering::SeqCst);
            } else {
                connection.key += self.slots.len();
                self.port.register(self.enable(connection))?;
            }
            return Ok(());
        }
        assert_eq!(entry.events(), Events::IN, "{entry:?}");
        let mut buffer = [0; 256];
        let length = rng.usize(1..=buffer.len());
        let read = non_blocking((&connection.socket).read(&mut buffer[..length]))?;
        let count = read.expect("there is something to read");
        connection.received += count;
        if count == 0 {
            let sent = connection.sent.load(Ordering::SeqCst);
            assert_eq!(connection.received, sent, "bytes of {key}");
            // It is disabled, so that closing it needs no REMOVE.
            if rng.bool() {
                *slot = None;
                self.ended.fetch_add(1, Ordering::SeqCst);
                return Ok(());
            }
            connection.closing = true;
        }
        if connection.closing || rng.u32(..8) == 0 {
            self.port
                .register(Registration::remove(&connection.socket))?;
            return Ok(());
        }
        match rng.u32(..8) {
            0 => {
                let mut batch = [
                    Registration::disable(&connection.socket),
                    self.enable(connection),
                    Registration::new(&connection.socket),
                ];
                self.port
                    .process(&mut batch, &mut [], Some(Duration::ZERO))?;
                batch.iter().try_for_each(Registration::result)?;
            }
            1 => {
                self.port.blocking(thread::yield_now);
                self.port.register(self.enable(connection))?;
            }
            _ => self.port.register(self.enable(connection))?,
        }
        Ok(())
    }

    /// Closes a connection, whatever is about to happen to it.
    fn abandon(&self, index: usize) {
        let mut slot = self.slots[index].lock().expect("no panic");
        if let Some(connection) = slot.take_if(|connection| !connection.closing) {
            let mut abandoned = self.abandoned.lock().expect("no panic");
            abandoned.insert(connection.key);
            self.ended.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// Sends to some connections, a bit at a time, and sees that they are closed at the other end.
fn send(server: &Server, peers: Vec<(Socket, Arc<AtomicUsize>)>, seed: u64) -> io::Result<()> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut open: Vec<_> = peers
        .into_iter()
        .map(|(peer, sent)| (peer, sent, rng.usize(..2000)))
        .collect();
    let mut shut = Vec::new();
    while !open.is_empty() {
        let index = rng.usize(..open.len());
        let (peer, sent, left) = &mut open[index];
        let length = rng.usize(1..=300).min(*left);
        // An abandoned one takes no more.
        let written = (&*peer).write(&[7; 300][..length]).unwrap_or(0);
        sent.fetch_add(written, Ordering::SeqCst);
        *left -= written;
        if *left == 0 || written == 0 {
            let _ = peer.shutdown(Shutdown::Write);
            shut.push(open.swap_remove(index));
        }
    }
    for (peer, ..) in shut {
        let is_late =
            |error: &io::Error| matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
        let result = loop {
            let before = server.ended.load(Ordering::SeqCst);
            match uninterrupted(|| (&peer).read(&mut [0])) {
                // As long as connections end, the server is at work.
                Err(error) if is_late(&error) && server.ended.load(Ordering::SeqCst) != before => {}
                result => break result,
            }
        };
        match result {
            Ok(0) => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
            result => panic!("the peer is not told of the close: {result:?}"),
        }
    }
    Ok(())
}

/// One round: as many connections as there are slots, from their beginning to their end.
fn run_round(server: &Server, first_key: usize, seed: u64) -> io::Result<()> {
    let slots = server.slots.len();
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut peers: Vec<Vec<_>> = (0..SENDERS).map(|_| Vec::new()).collect();
    server.ended.store(0, Ordering::SeqCst);
    for index in 0..slots {
        let pair = Pair::unix()?;
        let sent = Arc::new(AtomicUsize::new(0));
        peers[index % SENDERS].push((pair.theirs, Arc::clone(&sent)));
        let mut slot = server.slots[index].lock().expect("no panic");
        let connection = slot.insert(Connection {
            socket: pair.ours,
            key: first_key + index,
            received: 0,
            sent,
            closing: false,
        });
        server.port.register(server.enable(connection))?;
    }
    thread::scope(|scope| {
        let senders: Vec<_> = peers
            .into_iter()
            .zip(seed + 1..)
            .map(|(peers, seed)| scope.spawn(move || send(server, peers, seed)))
            .collect();
        for _ in 0..slots / 20 {
            server.abandon(rng.usize(..slots));
            thread::yield_now();
        }
        for sender in senders {
            sender.join().expect("no panic")?;
        }
        loop {
            let ended = server.ended.load(Ordering::SeqCst);
            if ended == slots {
                return Ok(());
            }
            wait_until("another connection ends", || {
                server.ended.load(Ordering::SeqCst) != ended
            });
        }
    })
}

/// How much memory this process has in use, in bytes. 0 where the system does not tell.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<usize>().ok());
    kilobytes.unwrap_or(0) * 1024
}

#[for_every_backend]
fn every_byte_is_accounted_for(backend: Backend) -> io::Result<()> {
    // One backend after the other: the descriptors of the process are counted.
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock();
    let slots = 1500.min(raise_limit()?.saturating_sub(200) / 2);
    let before = descriptors()?;
    let server = Server {
        port: port_with(backend, 4)?,
        slots: (0..slots).map(|_| Mutex::new(None)).collect(),
        abandoned: Mutex::default(),
        ended: AtomicUsize::new(0),
        removals: AtomicUsize::new(0),
    };
    let own = descriptors()?;
    thread::scope(|scope| -> io::Result<()> {
        let close = CloseAtEnd(&server.port, &[]);
        let server = &server;
        let threads: Vec<_> = (0..THREADS as u64)
            .map(|seed| scope.spawn(move || server.serve(seed)))
            .collect();
        // Keys of different rounds are far from each other: each removal takes a new one.
        let first_key = |round| round * slots * 10_000;
        run_round(server, first_key(0), 1000)?;
        let memory = resident();
        for round in 1..=rounds() {
            run_round(server, first_key(round), 1000 * (round as u64 + 1))?;
            if cfg!(unix) {
                assert_eq!(descriptors()?, own, "round {round}");
            }
        }
        let grown = resident().saturating_sub(memory);
        assert!(grown < 32 << 20, "{grown} bytes more");
        wait_until("the queue is empty and all threads wait", || {
            let snapshot = server.port.snapshot();
            counted(snapshot.running) == 0 && (snapshot.queued, snapshot.waiting) == (0, THREADS)
        });
        assert_ne!(server.removals.load(Ordering::Relaxed), 0);
        drop(close);
        for thread in threads {
            assert_eq!(thread.join().expect("no panic"), Error::Closed);
        }
        Ok(())
    })?;
    drop(server);
    if cfg!(unix) {
        assert_eq!(descriptors()?, before);
    }

    // Elsewhere numbers are not given again in order.
    if cfg!(unix) {
        forget_the_closed(backend, slots)?;
    }
    Ok(())
}

/// Registrations whose sockets were closed without REMOVE go when their numbers are used again.
fn forget_the_closed(backend: Backend, sockets: usize) -> io::Result<()> {
    let port = port_with(backend, 1)?;
    for _ in 0..3 {
        let pairs = (0..sockets)
            .map(|_| Pair::unix())
            .collect::<io::Result<Vec<_>>>()?;
        for (key, pair) in pairs.iter().enumerate() {
            for socket in [&pair.ours, &pair.theirs] {
                let enable = Registration::enable(socket, key, EventFilter::IN, ONCE);
                port.register(enable)?;
            }
        }
        assert_eq!(counted(port.snapshot().registrations), 2 * sockets);
    }
    let pairs = (0..sockets)
        .map(|_| Pair::unix())
        .collect::<io::Result<Vec<_>>>()?;
    for socket in pairs.iter().flat_map(|pair| [&pair.ours, &pair.theirs]) {
        port.enable(socket, 0, EventFilter::IN, ONCE)?;
        port.register(Registration::remove(socket))?;
    }
    let found = drain_port(&port);
    let removed = found
        .iter()
        .filter(|(_, events)| events.contains(Events::REMOVE));
    assert_eq!(removed.count(), 2 * sockets);
    let snapshot = port.snapshot();
    assert_eq!(counted(snapshot.registrations), 0);
    assert_eq!(snapshot.queued, 0);
    assert_eq!(port.dequeue_one(Some(Duration::ZERO)), Err(Error::TimedOut));
    // Nothing of all this has hurt the port.
    let last = &pairs[sockets / 2];
    port.enable(&last.ours, 7, EventFilter::IN, ONCE)?;
    last.send()?;
    let entry = port.dequeue_one(Some(PATIENCE))?;
    assert_eq!((entry.completion_key, entry.events()), (7, Events::IN));
    Ok(())
}
