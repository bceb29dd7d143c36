//! E1: nobody waits for ever behind what is busy.
//!
//! Calls are counted, not time: a call may serve as many packets as it has room for.

use std::io::{self, Read};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use socket2::Socket;
use socknotify::{
    Backend, CompletionPort, Entry, Error, EventFilter, Events, Registration, Trigger,
};

use crate::support::trigger::{LEVEL, ONCE};
use crate::support::{
    CloseAtEnd, Kind, Listener, PATIENCE, Pair, PollFlags, PortExt, fill, notification, port,
    port_with, uploading, wait_readiness, wait_until,
};

const UPLOADS: usize = 40;
const QUIET: usize = 1000;
const LISTENER: usize = 1001;
const POSTED: Entry = Entry::new(1002, 2, 3);

/// How many calls in a row a port may make without asking the kernel, and one that does.
const ASKS: usize = 8;

/// Connections whose peers send faster than they are read.
fn uploads(port: &CompletionPort, count: usize, trigger: Trigger) -> io::Result<Vec<Pair>> {
    let mut pairs = Vec::new();
    for key in 0..count {
        let pair = Pair::unix()?;
        pair.theirs.set_nonblocking(true)?;
        fill(&pair.theirs)?;
        port.enable(&pair.ours, key, EventFilter::IN, trigger)?;
        pairs.push(pair);
    }
    Ok(pairs)
}

/// Those that are not busy.
struct Others {
    quiet: Pair,
    listener: Listener,
}

impl Others {
    fn new(port: &CompletionPort) -> io::Result<Self> {
        let others = Others {
            quiet: Pair::unix()?,
            listener: Kind::Tcp4.listener()?,
        };
        port.enable(&others.quiet.ours, QUIET, EventFilter::IN, ONCE)?;
        port.enable(&others.listener.socket, LISTENER, EventFilter::IN, ONCE)?;
        Ok(others)
    }

    /// Makes one of them ready, and says what has to come.
    fn begin(&self, port: &CompletionPort, turn: usize) -> io::Result<(Entry, Option<Socket>)> {
        match turn % 3 {
            0 => {
                self.quiet.send()?;
                Ok((notification(QUIET, Events::IN), None))
            }
            1 => {
                let client = self.listener.connect()?;
                // The client's side may be done before the listener has it.
                wait_readiness(&self.listener.socket, PollFlags::IN);
                Ok((notification(LISTENER, Events::IN), Some(client)))
            }
            _ => {
                port.post(POSTED)?;
                Ok((POSTED, None))
            }
        }
    }

    /// It has come.
    fn end(&self, port: &CompletionPort, turn: usize) -> io::Result<()> {
        match turn % 3 {
            0 => {
                assert_eq!(self.quiet.drain()?, 1);
                port.enable(&self.quiet.ours, QUIET, EventFilter::IN, ONCE)?;
            }
            1 => {
                self.listener.accept()?;
                port.enable(&self.listener.socket, LISTENER, EventFilter::IN, ONCE)?;
            }
            _ => {}
        }
        Ok(())
    }
}

/// A thread that serves uploads: it reads a little of each, and arms it again with its next call.
struct Server<'a> {
    port: &'a CompletionPort,
    pairs: &'a [Pair],
    trigger: Trigger,
    batch: Vec<Registration<'a>>,
    /// How often each was served.
    served: Vec<usize>,
}

impl<'a> Server<'a> {
    fn new(port: &'a CompletionPort, pairs: &'a [Pair], trigger: Trigger) -> Self {
        Server {
            port,
            pairs,
            trigger,
            batch: Vec::new(),
            served: vec![0; pairs.len()],
        }
    }

    /// Dequeues, serves uploads, and returns the other packets.
    fn call(&mut self, room: usize) -> Result<Vec<Entry>, Error> {
        let mut entries = [Entry::default(); 64];
        let found = self
            .port
            .process(&mut self.batch, &mut entries[..room], Some(PATIENCE))?;
        assert!(self.batch.iter().all(|entry| entry.result().is_ok()));
        self.batch.clear();
        let mut others = Vec::new();
        for entry in found {
            let key = entry.completion_key;
            let Some(pair) = self.pairs.get(key) else {
                others.push(*entry);
                continue;
            };
            self.served[key] += 1;
            // With LEVEL, another thread may have been told of it too.
            let _ = (&pair.ours).read(&mut [0; 32]);
            if self.trigger == ONCE {
                let enable = Registration::enable(&pair.ours, key, EventFilter::IN, ONCE);
                self.batch.push(enable);
            }
        }
        Ok(others)
    }

    /// The number of calls until this packet comes.
    fn calls_until(&mut self, wanted: Entry, room: usize, most: usize) -> Result<usize, Error> {
        let mut calls = 0;
        while calls <= most {
            calls += 1;
            if self.call(room)?.contains(&wanted) {
                break;
            }
        }
        Ok(calls)
    }
}

/// How many calls it may take until a socket comes that has become ready behind all uploads.
fn most_calls(room: usize) -> usize {
    ASKS * ((UPLOADS + 2).div_ceil(room) + 1)
}

/// One thread; the first call has another room than those after it.
fn serve_others(backend: Backend, first: usize, room: usize) -> io::Result<()> {
    for trigger in [ONCE, LEVEL] {
        let port = port(backend)?;
        let pairs = uploads(&port, UPLOADS, trigger)?;
        let others = Others::new(&port)?;
        uploading(&pairs, || -> io::Result<()> {
            let mut server = Server::new(&port, &pairs, trigger);
            assert_eq!(server.call(first)?, []);
            for turn in 0..rounds_of_turns() {
                let (wanted, _client) = others.begin(&port, turn)?;
                let most = match wanted == POSTED {
                    // A posted packet has at least half of a room, or every second one.
                    true if room > 1 => 1,
                    true => 2,
                    false => most_calls(room),
                };
                let calls = server.calls_until(wanted, room, most)?;
                assert!(
                    calls <= most,
                    "{trigger:?}, turn {turn}: after {most} calls no {wanted:?}"
                );
                others.end(&port, turn)?;
            }
            // Nor were uploads forgotten.
            for _ in 0..most_calls(room) {
                server.call(room)?;
            }
            assert!(
                server.served.iter().all(|&times| times > 0),
                "{:?}",
                server.served
            );
            Ok(())
        })?;
    }
    Ok(())
}

fn rounds_of_turns() -> usize {
    crate::support::rounds(60)
}

#[for_every_backend(with_permits)]
fn e1_busy_sockets_starve_nobody_with_room_16(backend: Backend) -> io::Result<()> {
    serve_others(backend, 16, 16)
}

#[for_every_backend(with_permits)]
fn e1_busy_sockets_starve_nobody_with_room_1(backend: Backend) -> io::Result<()> {
    serve_others(backend, 1, 1)
}

#[for_every_backend(with_permits)]
fn e1_busy_sockets_starve_nobody_with_room_3(backend: Backend) -> io::Result<()> {
    serve_others(backend, 3, 3)
}

#[for_every_backend(with_permits)]
fn e1_busy_sockets_starve_nobody_after_one_burst(backend: Backend) -> io::Result<()> {
    serve_others(backend, 64, 64)?;
    serve_others(backend, 64, 2)
}

/// Between a call's end and its being counted others may make any number: here, what does not starve comes in time.
#[for_every_backend]
fn e1_busy_sockets_starve_nobody_among_four_threads(backend: Backend) -> io::Result<()> {
    for (permits, room) in [(1, 1), (2, 3), (4, 16), (4, 64)] {
        for trigger in [ONCE, LEVEL] {
            let port = port_with(backend, permits)?;
            let pairs = uploads(&port, UPLOADS, trigger)?;
            let others = Others::new(&port)?;
            let come = AtomicUsize::new(0);
            uploading(&pairs, || -> io::Result<()> {
                thread::scope(|scope| {
                    let _close = CloseAtEnd(&port, &[]);
                    let serve = || {
                        let mut server = Server::new(&port, &pairs, trigger);
                        loop {
                            match server.call(room) {
                                Ok(others) => come.fetch_add(others.len(), Ordering::SeqCst),
                                Err(error) => return assert_eq!(error, Error::Closed),
                            };
                        }
                    };
                    for _ in 0..4 {
                        scope.spawn(serve);
                    }
                    for turn in 0..rounds_of_turns() / 2 {
                        let (wanted, _client) = others.begin(&port, turn)?;
                        wait_until(
                            &format!("{permits} permits, room {room}: {wanted:?}"),
                            || come.load(Ordering::SeqCst) > turn,
                        );
                        others.end(&port, turn)?;
                    }
                    Ok(())
                })
            })?;
        }
    }
    Ok(())
}

/// The reverse: packets that are posted again as soon as they come leave sockets their part, and each gets half.
#[for_every_backend(with_permits)]
fn e1_packets_and_busy_sockets_share_the_room(backend: Backend) -> io::Result<()> {
    for trigger in [ONCE, LEVEL] {
        for room in [1, 2, 16] {
            let port = port(backend)?;
            let pairs = uploads(&port, UPLOADS, trigger)?;
            let others = Others::new(&port)?;
            port.post_all(&[POSTED; 64])?;
            uploading(&pairs, || -> io::Result<()> {
                let mut server = Server::new(&port, &pairs, trigger);
                server.call(room)?;
                let mut latest = Vec::new();
                for call in 0..200 {
                    let before: usize = server.served.iter().sum();
                    let packets = server.call(room)?;
                    let reports = server.served.iter().sum::<usize>() - before;
                    port.post_all(&packets)?;
                    let told = (packets.len(), reports);
                    if room > 1 {
                        assert_eq!(told, (room / 2, room / 2), "{trigger:?}, call {call}");
                    } else {
                        assert!(
                            !latest.contains(&told),
                            "{trigger:?}, call {call}: no turns"
                        );
                    }
                    latest = vec![told];
                }
                // A socket that becomes ready behind both comes too.
                for turn in [0, 1].into_iter().cycle().take(20) {
                    let (wanted, _client) = others.begin(&port, turn)?;
                    let most = 2 * most_calls(room);
                    let mut is_come = false;
                    for _ in 0..most {
                        let found = server.call(room)?;
                        let posted: Vec<_> = found.iter().filter(|it| **it == POSTED).collect();
                        posted.into_iter().try_for_each(|&entry| port.post(entry))?;
                        if found.contains(&wanted) {
                            is_come = true;
                            break;
                        }
                    }
                    assert!(
                        is_come,
                        "{trigger:?}, room {room}: after {most} calls no {wanted:?}"
                    );
                    others.end(&port, turn)?;
                }
                Ok(())
            })?;
        }
    }
    Ok(())
}

/// (c): none is served twice while another waits for its first time, but for seven calls.
#[for_every_backend(with_permits)]
fn e1_sockets_that_are_ready_when_armed_take_turns(backend: Backend) -> io::Result<()> {
    for trigger in [ONCE, LEVEL] {
        for room in [1, 2, 5, 16] {
            let port = port(backend)?;
            let pairs = uploads(&port, UPLOADS, trigger)?;
            let mut server = Server::new(&port, &pairs, trigger);
            for round in 0..10 {
                server.served.fill(0);
                for _ in 0..UPLOADS.div_ceil(room) + ASKS {
                    assert_eq!(server.call(room)?, []);
                }
                let served = &server.served;
                assert!(
                    served.iter().all(|&times| times > 0),
                    "{trigger:?}, room {room}, round {round}: {served:?}"
                );
            }
        }
    }
    Ok(())
}
