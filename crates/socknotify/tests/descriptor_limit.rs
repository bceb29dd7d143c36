//! No descriptor is left: what works all the same, and what says so.
//!
//! A program of its own, with one test for each backend after the other, because the limit is the
//! whole process's.

#![cfg(unix)]

mod support;

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::mpsc::channel;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, ScopedJoinHandle};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socket2::Socket;
use socknotify::owned::{Event, Interest, Port};
use socknotify::{CompletionPort, Entry, Error, EventFilter, Events, Registration};

use support::trigger::{EVERY, LEVEL, ONCE};
use support::{
    Kind, PATIENCE, Pair, PortExt, QUIET_PERIOD, backends, collect, descriptors, drain_port,
    expect, expect_nothing, expect_quiet, port, port_with, take_number,
};

/// Tests that use up descriptors must not do so at the same time. The next one begins when the thread of this one has ended, and
/// with it what it kept of ports: of a thread's values, the first is dropped last.
fn alone() {
    static ALONE: Mutex<()> = Mutex::new(());
    thread_local! {
        static GUARD: Cell<Option<MutexGuard<'static, ()>>> = const { Cell::new(None) };
    }
    let guard = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    GUARD.set(Some(guard));
}

/// Takes all descriptors that there are, until it goes.
struct Exhausted {
    taken: Vec<File>,
    limit: Rlimit,
}

impl Exhausted {
    fn new() -> io::Result<Exhausted> {
        let limit = getrlimit(Resource::Nofile);
        let highest = descriptors()? as u64 + 200;
        let mut taken = Vec::new();
        setrlimit(
            Resource::Nofile,
            Rlimit {
                current: Some(highest),
                ..limit
            },
        )?;
        loop {
            match File::open("/dev/null") {
                Ok(file) => taken.push(file),
                Err(error) if error.raw_os_error() == Some(Errno::MFILE.raw_os_error()) => {
                    return Ok(Exhausted { taken, limit });
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Lets go of this many.
    fn free(&mut self, count: usize) {
        self.taken.truncate(self.taken.len() - count);
    }
}

impl Drop for Exhausted {
    fn drop(&mut self) {
        setrlimit(Resource::Nofile, self.limit).expect("the limit was allowed before");
    }
}

/// Waits until a thread has given back what it kept of ports: a scope waits only for what it runs, and the next test counts
/// descriptors.
fn until_ended<T>(thread: ScopedJoinHandle<'_, T>) {
    thread.join().map(drop).expect("no panic");
}

/// Registering takes no descriptor, nor does anything else on a port that exists.
#[test]
fn a_batch_is_applied_although_no_descriptor_is_left() -> io::Result<()> {
    alone();
    for backend in backends() {
        for trigger in EVERY {
            let port = port(backend)?;
            let pairs = (0..100)
                .map(|_| Pair::unix())
                .collect::<io::Result<Vec<_>>>()?;
            let mut batch: Vec<_> = pairs
                .iter()
                .enumerate()
                .map(|(key, pair)| Registration::enable(&pair.ours, key, EventFilter::IN, trigger))
                .collect();
            let exhausted = Exhausted::new()?;
            port.process(&mut batch, &mut [], Some(Duration::ZERO))?;
            let results = batch.iter().map(Registration::result);
            assert_eq!(results.filter(Result::is_ok).count(), pairs.len());
            for pair in &pairs {
                assert_eq!(pair.theirs.send(b"x")?, 1);
            }
            let wanted: Vec<_> = (0..pairs.len()).map(|key| (key, Events::IN)).collect();
            let mut found = Vec::new();
            while found.len() < wanted.len() {
                found.extend(collect(&port, 1));
                found.sort_unstable_by_key(|&(key, _)| key);
                found.dedup();
            }
            assert_eq!(found, wanted);
            // Another thread needs none either, and its result does not matter.
            thread::scope(|scope| {
                let other = scope.spawn(|| port.dequeue_one(Some(QUIET_PERIOD)).is_ok());
                until_ended(other);
            });
            for pair in &pairs {
                port.register(Registration::remove(&pair.ours))?;
            }
            let removed = drain_port(&port);
            let removed = removed
                .iter()
                .filter(|(_, events)| events.contains(Events::REMOVE));
            assert_eq!(removed.count(), pairs.len());
            drop(exhausted);
        }
    }
    Ok(())
}

#[test]
fn a_port_that_cannot_be_made_says_so() -> io::Result<()> {
    alone();
    for backend in backends() {
        // Make what is made once for the whole process before that.
        drop(port(backend)?);
        let mut exhausted = Exhausted::new()?;
        // However far it gets with those that are left.
        for free in 0.. {
            let before = exhausted.taken.len();
            match port_with(backend, 1) {
                Ok(port) => {
                    port.post(Entry::default())?;
                    assert_ne!(free, 0, "a port without a descriptor");
                    break;
                }
                Err(error) => {
                    let error = error.downcast::<Error>().expect("the port's own error");
                    assert_eq!(error, Error::TooManyOpenFiles);
                    assert_eq!(error.code(), 4);
                    assert_eq!(backend.probe(), Err(Error::TooManyOpenFiles));
                    let made = CompletionPort::builder().backend(backend).build();
                    assert_eq!(made.err(), Some(Error::TooManyOpenFiles));
                }
            }
            // It has kept none of them.
            for _ in 0..free {
                exhausted.taken.push(File::open("/dev/null")?);
            }
            assert_eq!(exhausted.taken.len(), before + free);
            exhausted.free(free + 1);
            assert!(free < 16, "a port takes more than {free} descriptors");
        }
        drop(exhausted);
        drop(port(backend)?);
    }
    Ok(())
}

/// A socket that was closed while a duplicate of it lives is notified once at most (G3), and whatever the port does about
/// it must not depend on descriptors that are not there.
#[test]
fn g3_a_duplicate_keeps_nobody_busy_although_no_descriptor_is_left() -> io::Result<()> {
    alone();
    for backend in backends() {
        for trigger in EVERY {
            let port = port(backend)?;
            let (pair, other) = (Kind::UnixStream.pair()?, Pair::unix()?);
            port.enable(&other.ours, 2, EventFilter::IN, ONCE)?;
            port.enable(&pair.ours, 1, EventFilter::IN, trigger)?;
            let duplicate = pair.ours.try_clone()?;
            let exhausted = Exhausted::new()?;
            drop(pair.ours);
            assert_eq!(pair.theirs.send(b"x")?, 1);
            let found = drain_port(&port);
            assert!(found.is_empty() || found == [(1, Events::IN)], "{found:?}");
            expect_quiet(&port);
            other.send()?;
            expect(&port, &[(2, Events::IN)]);
            drop((duplicate, exhausted));
        }
    }
    Ok(())
}

/// The limit is set below what is open already, and back when this goes.
struct Lowered(Rlimit);

impl Lowered {
    fn to(count: u64) -> io::Result<Lowered> {
        let limit = getrlimit(Resource::Nofile);
        let current = Some(count);
        setrlimit(Resource::Nofile, Rlimit { current, ..limit })?;
        Ok(Lowered(limit))
    }
}

impl Drop for Lowered {
    fn drop(&mut self) {
        setrlimit(Resource::Nofile, self.0).expect("the limit was allowed before");
    }
}

/// `poll` of more descriptors than the limit fails, and so may other calls. What is notified falsely stays bounded.
#[test]
fn g3_a_duplicate_is_notified_once_whatever_the_limit_is_set_to() -> io::Result<()> {
    alone();
    for backend in backends() {
        for limit in [0, 1, 5] {
            for trigger in EVERY {
                for number_is_used_again in [false, true] {
                    let port = port(backend)?;
                    let other = Pair::unix()?;
                    let enable = || Registration::enable(&other.ours, 0, EventFilter::IN, ONCE);
                    port.register(enable())?;
                    let (mut peers, mut alive) = (Vec::new(), Vec::new());
                    for key in 1..=10 {
                        let pair = Pair::unix()?;
                        let entry = Registration::enable(&pair.ours, key, EventFilter::IN, trigger);
                        port.register(entry)?;
                        alive.push(pair.ours.try_clone()?);
                        if number_is_used_again {
                            // By a socket that is not ready.
                            let (new, theirs) = Pair::unix()?.into_ends();
                            alive.extend([take_number(pair.ours, new)?, theirs]);
                        }
                        peers.push(pair.theirs);
                    }
                    let lowered = Lowered::to(limit)?;
                    for theirs in &peers {
                        assert_eq!(theirs.send(b"x")?, 1);
                    }
                    let found = drain_port(&port);
                    for key in 1..=10 {
                        let count = found.iter().filter(|it| it.0 == key).count();
                        assert!(count <= 1, "{trigger:?}: {found:?}");
                    }
                    // What is good comes.
                    for _ in 0..3 {
                        assert_eq!(other.theirs.send(b"x")?, 1);
                        expect(&port, &[(0, Events::IN)]);
                        other.drain()?;
                        port.register(enable())?;
                        expect_nothing(&port);
                    }
                    drop(lowered);
                    expect_quiet(&port);
                }
            }
        }
    }
    Ok(())
}

/// What a connection has left behind is found when it is armed again, though the call that polls it fails.
#[test]
fn what_a_connection_has_left_behind_is_notified_whatever_the_limit_is_set_to() -> io::Result<()> {
    alone();
    for backend in backends() {
        let port = Port::<Socket>::from(port(backend)?);
        let mut worker = port.worker(8);
        let mut peers = Vec::new();
        for _ in 0..6 {
            let Pair { ours, theirs } = Pair::unix()?;
            assert_eq!(theirs.send(b"x")?, 1);
            worker.arm(port.adopt(ours)?, Interest::IN);
            peers.push(theirs);
        }
        let _lowered = Lowered::to(0)?;
        let mut notified = 0;
        while notified < 20 * peers.len() {
            assert_ne!(worker.process(Some(PATIENCE))?, 0, "after {notified}");
            while let Some(event) = worker.take() {
                let Event::Ready(connection, Events::IN) = event else {
                    panic!("{event:?}");
                };
                notified += 1;
                worker.arm(connection, Interest::IN);
            }
        }
    }
    Ok(())
}

/// A port has its descriptor for other loops from the beginning, and does not give its inner one away.
#[test]
fn a_port_has_one_descriptor_to_watch_although_none_is_left() -> io::Result<()> {
    alone();
    for backend in backends() {
        let port = port(backend)?;
        let exhausted = Exhausted::new()?;
        let without_any = port.as_fd().as_raw_fd();
        drop(exhausted);
        assert_eq!(port.as_fd().as_raw_fd(), without_any);
    }
    Ok(())
}

/// Ports give back what they have taken.
#[test]
fn descriptors_are_back_when_ports_are_gone() -> io::Result<()> {
    alone();
    for backend in backends() {
        drop(port(backend)?);
        let before = descriptors()?;
        for round in 0..200 {
            let port = port_with(backend, 2)?;
            let pair = Pair::unix()?;
            let key = round % 2;
            port.enable(&pair.ours, key, EventFilter::IN, LEVEL)?;
            pair.send()?;
            thread::scope(|scope| {
                let other = scope.spawn(|| while port.dequeue_one(None).is_ok() {});
                if round % 3 == 0 {
                    let duplicate = pair.ours.try_clone();
                    drop(pair.ours);
                    thread::yield_now();
                    drop(duplicate);
                }
                port.close();
                until_ended(other);
            });
            if round % 2 == 0 {
                port.close();
            }
        }
        assert_eq!(descriptors()?, before);
    }
    Ok(())
}

/// A listener that cannot accept neither spins nor is lost.
#[test]
fn a_listener_rests_while_no_descriptor_is_left() -> io::Result<()> {
    alone();
    for backend in backends() {
        let port = Port::<TcpStream>::from(port(backend)?);
        let mut worker = port.worker(4);
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let id = port.listen(listener, Interest::OUT, |stream, _| stream)?;
        let clients = [Kind::Tcp4.socket()?, Kind::Tcp4.socket()?];
        assert_eq!(worker.process(Some(Duration::ZERO)), Ok(0));
        let mut exhausted = Exhausted::new()?;
        for client in &clients {
            client.set_nonblocking(false)?;
            client.connect(&address.into())?;
        }

        assert!(worker.process(Some(PATIENCE))? > 0);
        match worker.take() {
            Some(Event::NotAccepting(it, error)) => {
                assert_eq!(it, id);
                assert_eq!(error.raw_os_error(), Some(Errno::MFILE.raw_os_error()));
            }
            other => panic!("{other:?}"),
        }
        // It tries again meanwhile, and says so once.
        assert_eq!(worker.process(Some(Duration::from_millis(120))), Ok(0));
        assert_eq!(port.connections(), 0);
        exhausted.free(10);
        let (mut accepted, mut again) = (0, 0);
        while accepted < clients.len() || again == 0 {
            assert!(worker.process(Some(PATIENCE))? > 0);
            while let Some(event) = worker.take() {
                match event {
                    Event::Ready(..) => accepted += 1,
                    Event::Accepting(it) if it == id => again += 1,
                    other => panic!("{other:?}"),
                }
            }
        }
        assert_eq!(again, 1);
        assert_eq!(port.connections(), 0);
    }
    Ok(())
}

/// What ends meanwhile leaves descriptors for those that wait.
#[test]
fn what_waits_in_a_backlog_is_accepted_once_there_are_descriptors() -> io::Result<()> {
    alone();
    for (backend, drains) in backends().flat_map(|it| [(it, true), (it, false)]) {
        let port = Port::<TcpStream>::from(port(backend)?);
        let mut worker = port.worker(4);
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let id = port.listen(listener, Interest::OUT, |stream, _| stream)?;
        let clients = [Kind::Tcp4.socket()?, Kind::Tcp4.socket()?];
        for client in &clients {
            client.set_nonblocking(false)?;
            client.connect(&address.into())?;
        }
        let mut exhausted = Exhausted::new()?;
        match drains {
            true => port.drain(Duration::from_secs(3600)),
            false => assert!(port.cancel(id)),
        }
        assert_eq!(worker.process(Some(Duration::from_millis(20))), Ok(0));
        exhausted.free(10);
        let mut accepted = 0;
        while accepted < clients.len() {
            assert!(worker.process(Some(PATIENCE))? > 0);
            while let Some(event) = worker.take() {
                match event {
                    Event::Ready(..) | Event::Draining(_) => accepted += 1,
                    other => panic!("{other:?}"),
                }
            }
        }
        drop(exhausted);
        assert!(TcpStream::connect(address).is_err(), "it is closed");
    }
    Ok(())
}

/// Nor does a drain last longer for want of them, or report it, where nobody waits.
#[test]
fn a_listener_for_which_nobody_waits_is_closed_without_descriptors() -> io::Result<()> {
    alone();
    for backend in backends() {
        let port = Port::<TcpStream>::from(port(backend)?);
        let mut worker = port.worker(4);
        port.listen(
            TcpListener::bind("127.0.0.1:0")?,
            Interest::IN,
            |stream, _| stream,
        )?;
        let _exhausted = Exhausted::new()?;
        port.drain(Duration::from_secs(3600));
        assert_eq!(worker.process(Some(PATIENCE)), Err(Error::Closed));
    }
    Ok(())
}

/// What shows whether a thread sleeps cannot be opened: that nobody dequeues shows all the same.
#[test]
fn f4_the_limit_rises_although_no_descriptor_is_left() -> io::Result<()> {
    alone();
    for backend in backends() {
        let port = CompletionPort::builder()
            .backend(backend)
            .concurrency(1)
            .build()?;
        // The second time, the states of the same threads can be read.
        let mut exhausted = Some(Exhausted::new()?);
        for _ in 0..2 {
            port.post_all(&[Entry::default(); 2])?;
            thread::scope(|scope| {
                let (tell, told) = channel();
                let port = &port;
                port.dequeue_one(Some(PATIENCE)).expect("a packet");
                let other = scope.spawn(move || {
                    port.dequeue_one(Some(PATIENCE)).expect("a packet");
                    tell.send(()).expect("someone waits");
                });
                assert_eq!(told.recv_timeout(PATIENCE), Ok(()), "a thread for it");
                until_ended(other);
            });
            exhausted.take();
        }
        let snapshot = port.snapshot();
        assert!(snapshot.rises_asleep + snapshot.rises_starved > 0);
    }
    Ok(())
}
