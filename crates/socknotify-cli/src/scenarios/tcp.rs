//! Microsoft's first and third program, which do the same with connections.
//!
//! `poll-replacement` is a completion port in place of `poll`: one thread, persistent level-triggered registrations, plain
//! dequeuing. Nothing is ever armed again; a socket is notified for as long as a condition holds.
//!
//! `multi-threaded-tcp` has many threads on one port. Registrations are one-shot and level-triggered, so the thread that
//! dequeues a notification has the socket to itself until it enables it again. A thread's loop is a single call: it applies
//! what the thread decided in the previous turn and dequeues what is next.
//!
//! What a completion key refers to is freed when the REMOVE notification of its registration has come, and not before. At the
//! end one packet is posted, which each thread passes on to the next.

use std::io::{self, Read};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use socket2::{Domain, Socket, Type};
use socknotify::{Entry, Error, EventFilter, Events, Registration, Trigger};

use super::clients;
use super::run::{Counter, Outcome, Run};

/// The completion key of the listener. Those of the connections count from 0.
const LISTENER: usize = usize::MAX - 1;

/// The completion key of the packet that tells a thread to end.
const EXIT: usize = usize::MAX;

/// Connections that may wait to be accepted: as many as common kernels allow. Beyond that a client would wait a second before
/// it tries again.
const BACKLOG: i32 = 4096;

/// The size of the receive buffer, and how many packets a thread takes at once, as in Microsoft's programs.
const CHUNK: usize = 512;
const DEQUEUE_COUNT: usize = 3;

/// How many connections one notification of the listener accepts at most, so that they are spread over the threads.
const ACCEPT_COUNT: usize = 64;

/// How long a thread waits before it looks again. That nothing came in the meantime is no failure.
const TIMEOUT: Duration = Duration::from_secs(1);

/// What the server's threads share.
struct Server<'run> {
    run: &'run Run,
    /// Many threads: registrations are one-shot, and applied by the call that dequeues.
    is_one_shot: bool,
    listener: TcpListener,
    /// By completion key, until their REMOVE notifications have come. No key is used twice, so a notification that came too
    /// late would be found out.
    connections: Mutex<Vec<Option<Arc<Connection>>>>,
    /// Threads that were told to end.
    threads_ended: Counter,
}

/// One accepted connection.
struct Connection {
    key: usize,
    stream: TcpStream,
    received: AtomicU64,
    is_held: AtomicBool,
}

/// What a thread registers next: a connection or the listener, and whether to remove it.
struct Step(Option<Arc<Connection>>, bool);

pub(crate) fn run(run: &Run) -> Outcome {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into())?;
    socket.listen(BACKLOG)?;
    let listener = TcpListener::from(socket);
    let address = listener.local_addr()?;
    let server = Server {
        run,
        is_one_shot: run.scenario.has_threads,
        listener,
        connections: Mutex::default(),
        threads_ended: Counter::default(),
    };
    thread::scope(|scope| {
        scope.spawn(|| clients::run_tcp(run, address));
        run.attempt("server", || server.serve());
        // It goes with every socket that it may still have: clients that wait for it must not wait for ever.
        drop(server);
    });
    Ok(())
}

impl Server<'_> {
    /// Serves until all threads have been told to end. Any thread's failure ends the scenario, as its sockets would not be
    /// served any more.
    fn serve(&self) -> Outcome {
        let listener = Step(None, false);
        self.run.port.register(self.registration(&listener))?;
        thread::scope(|scope| {
            let mut threads = Vec::new();
            for _ in 0..self.run.threads() {
                let work = || self.run.attempt("server", || self.process_until_exit());
                let started = thread::Builder::new().spawn_scoped(scope, work);
                threads.push(started.inspect_err(|error| self.run.give_up("server", error))?);
            }
            // The port counts a thread until it is gone, which the scope's own end does not wait for.
            threads
                .into_iter()
                .for_each(|thread| thread.join().unwrap_or_default());
            Ok(())
        })
    }

    fn process_until_exit(&self) -> Outcome {
        let port = &self.run.port;
        let mut steps: Vec<Step> = Vec::new();
        let mut entries = [Entry::default(); DEQUEUE_COUNT];
        loop {
            let mut batch: Vec<_> = steps.iter().map(|step| self.registration(step)).collect();
            let dequeued = match self.is_one_shot {
                true => port.process(&mut batch, &mut entries, Some(TIMEOUT)),
                false => {
                    batch.drain(..).try_for_each(|it| port.register(it))?;
                    port.dequeue(&mut entries, None)
                }
            };
            let dequeued = match dequeued {
                // The batch has been applied all the same.
                Err(Error::TimedOut) => &mut [],
                Err(Error::Closed) if self.run.has_given_up() => return Ok(()),
                dequeued => dequeued?,
            };
            for registration in &batch {
                registration.result()?;
            }
            steps.clear();
            if !dequeued.is_empty() && self.run.running(|| self.handle(dequeued, &mut steps))? {
                return Ok(());
            }
        }
    }

    fn registration<'step>(&'step self, step: &'step Step) -> Registration<'step> {
        let trigger = match self.is_one_shot {
            true => Trigger::ONESHOT | Trigger::LEVEL,
            false => Trigger::PERSISTENT | Trigger::LEVEL,
        };
        match (&step.0, step.1) {
            (None, true) => Registration::remove(&self.listener),
            (None, false) => {
                Registration::enable(&self.listener, LISTENER, EventFilter::IN, trigger)
            }
            (Some(connection), true) => Registration::remove(&connection.stream),
            (Some(connection), false) => {
                let filter = EventFilter::IN | EventFilter::HANGUP;
                Registration::enable(&connection.stream, connection.key, filter, trigger)
            }
        }
    }

    /// True if the thread is to end.
    fn handle(&self, entries: &[Entry], steps: &mut Vec<Step>) -> Outcome<bool> {
        let mut is_told_to_end = false;
        for entry in entries {
            let events = entry.events();
            match entry.completion_key {
                EXIT => is_told_to_end = true,
                key if events.contains(Events::REMOVE) => self.removed(key)?,
                LISTENER => self.accept(steps)?,
                key => steps.extend(self.receive(key, events)?),
            }
            let is_notification = entry.completion_key != EXIT;
            self.run.tally.notifications.add(is_notification.into());
        }
        // The packet goes on, unless there is nobody left to take it.
        if is_told_to_end && self.threads_ended.add(1) < self.run.threads() {
            self.run.post(EXIT)?;
        }
        Ok(is_told_to_end)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Option<Arc<Connection>>>> {
        let connections = self.connections.lock();
        connections.unwrap_or_else(PoisonError::into_inner)
    }

    /// What the key refers to; with its REMOVE notification it goes.
    fn connection(&self, key: usize, is_removal: bool) -> Outcome<Arc<Connection>> {
        let mut connections = self.lock();
        let found = match connections.get_mut(key) {
            Some(slot) if is_removal => slot.take(),
            found => found.and_then(|slot| slot.clone()),
        };
        found.ok_or_else(|| format!("key {key} was notified, and has no registration").into())
    }

    /// The registration is over: what its key refers to goes. The last one ends the server.
    fn removed(&self, key: usize) -> Outcome {
        if key != LISTENER {
            let connection = self.connection(key, true)?;
            // A thread that named the socket in a call may still wait in that call, and so keep the descriptor open for a
            // while. The client should not have to wait for that.
            connection.stream.shutdown(Shutdown::Both).ok();
        }
        if self.run.tally.removals.add(1) == self.run.removals() {
            self.run.post(EXIT)?;
        }
        Ok(())
    }

    /// Accepts what waits, and has the listener armed until all clients are here.
    fn accept(&self, steps: &mut Vec<Step>) -> Outcome {
        let before = self.run.tally.connections.get();
        for _ in 0..ACCEPT_COUNT {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => break,
                    // The client of the one that was first in line has gone again; look at the next.
                    io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted => continue,
                    _ => return Err(error.into()),
                },
            };
            stream.set_nonblocking(true)?;
            let mut connections = self.lock();
            let connection = Arc::new(Connection {
                key: connections.len(),
                stream,
                received: AtomicU64::new(0),
                is_held: AtomicBool::new(false),
            });
            connections.push(Some(Arc::clone(&connection)));
            steps.push(Step(Some(connection), false));
            self.run.tally.connections.add(1);
        }
        // Nobody else counts connections meanwhile: the listener is this thread's. A persistent one may be notified once more
        // when REMOVE was asked for.
        let now = self.run.tally.connections.get();
        let removes = now >= self.run.clients();
        if self.is_one_shot || removes && now > before {
            steps.push(Step(None, removes));
        }
        Ok(())
    }

    /// Receives one chunk, or all that there still is when the client has hung up.
    fn receive(&self, key: usize, events: Events) -> Outcome<Option<Step>> {
        let connection = self.connection(key, false)?;
        // Nothing waits here: a one-shot registration promises that no other thread has it.
        if connection.is_held.swap(true, Ordering::Acquire) {
            return match self.is_one_shot {
                true => Err(format!("two threads hold connection {key} at once").into()),
                // It is over, and held for good: REMOVE was asked for.
                false => Ok(None),
            };
        }
        let removes = connection.receive(self.run, events.contains(Events::HANGUP));
        let is_held_for_good = removes && !self.is_one_shot;
        let is_held = &connection.is_held;
        is_held.store(is_held_for_good, Ordering::Release);
        let has_step = removes || self.is_one_shot;
        Ok(has_step.then(|| Step(Some(connection), removes)))
    }
}

impl Connection {
    /// Receives a chunk, or all that there is. True if the connection is over.
    fn receive(&self, run: &Run, all: bool) -> bool {
        let mut buffer = [0; CHUNK];
        loop {
            match (&self.stream).read(&mut buffer) {
                Ok(0) => break,
                Ok(length) => {
                    run.tally.bytes.add(length as u64);
                    self.received.fetch_add(length as u64, Ordering::Relaxed);
                    if !all {
                        return false;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    run.note(format_args!("connection {}: {error}", self.key));
                    return true;
                }
            }
        }
        let (key, expected) = (self.key, run.bytes_per_client());
        let received = self.received.load(Ordering::Relaxed);
        if received != expected {
            run.note(format_args!(
                "connection {key} brought {received} bytes in place of {expected}"
            ));
        }
        true
    }
}
