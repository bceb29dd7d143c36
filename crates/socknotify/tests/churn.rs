//! Sockets come and go, all the time and on many threads (C5, G1, G2, G6).
//!
//! Eight threads open sockets, register them with one port, make some of them ready, dequeue whatever
//! comes, and close them, with REMOVE or without, some while a duplicate lives. Descriptor numbers are
//! used again at once. Nothing has a wrong key, nothing comes twice, nothing is lost, and in the end all
//! is back. In one more test a single socket is enabled in one way and another, while its peer has shut down.
//!
//! `SOCKNOTIFY_CHURN_ROUNDS` sets how many sockets come and go in each test; the seeds are fixed.
//!
//! A program of its own, one test after the other, because it counts descriptors.

#![cfg(unix)]

#[macro_use]
extern crate socknotify_test_macros;

#[macro_use]
mod support;

use std::io::{self, Write};
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use socket2::Socket;
use socknotify::owned::{Event, Held, Id, Interest, Port, Worker};
use socknotify::{
    Backend, CompletionPort, Entry, Error, EventFilter, Events, Registration, RegistrationError,
    Trigger,
};

use support::trigger::{EDGE, EVERY, LEVEL, ONCE};
use support::{
    AsSocket, BorrowedSocket, PATIENCE, Pair, SetAtEnd, counted, descriptors, drain,
    expect_nothing, port, port_with, raise_limit,
};

static ALONE: Mutex<()> = Mutex::new(());

const THREADS: usize = 8;

/// How many sockets come and go on each thread.
fn rounds() -> usize {
    let rounds = std::env::var("SOCKNOTIFY_CHURN_ROUNDS").ok();
    let rounds = rounds.and_then(|rounds| rounds.parse().ok());
    rounds.unwrap_or(20_000_usize).div_ceil(THREADS)
}

/// Runs a test alone, and sees that all descriptors are back after it.
fn churn(backend: Backend, test: fn(Backend, usize) -> io::Result<()>) -> io::Result<()> {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    raise_limit()?;
    // What is made once for the whole process is made before.
    drop(port(backend)?);
    let before = descriptors()?;
    test(backend, rounds())?;
    assert_eq!(descriptors()?, before);
    Ok(())
}

/// Runs something on so many threads, and stops when one of them fails.
fn on_threads(stop: &AtomicBool, work: impl Fn(usize) -> io::Result<()> + Sync) -> io::Result<()> {
    let work = &work;
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|me| {
                scope.spawn(move || {
                    let failing = SetInPanic(stop);
                    let outcome = work(me);
                    if outcome.is_err() {
                        stop.store(true, Ordering::SeqCst);
                    }
                    drop(failing);
                    outcome
                })
            })
            .collect();
        let outcomes: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        outcomes.into_iter().try_for_each(|outcome| {
            outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    })
}

struct SetInPanic<'a>(&'a AtomicBool);

impl Drop for SetInPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.store(true, Ordering::SeqCst);
        }
    }
}

/// What is known of one registration. No other ever has the same key.
#[derive(Default)]
struct Record {
    /// ENABLE was asked for so many times.
    armed: AtomicUsize,
    /// There is something to read. Set before there is.
    ready: AtomicBool,
    /// It was closed, or will be, while a duplicate lives on: it may be notified falsely (G3).
    duplicated: AtomicBool,
    /// How many notifications of a condition were dequeued.
    delivered: AtomicUsize,
    /// It is one-shot.
    one_shot: AtomicBool,
    /// REMOVE was asked for.
    removed: AtomicBool,
    /// When the last notification was dequeued, or the socket had been closed.
    over: AtomicUsize,
    /// How many came that were asked for after the socket had been closed.
    late: AtomicUsize,
    /// How many last notifications were dequeued.
    removals: AtomicUsize,
}

/// What the threads have in common.
struct World {
    port: CompletionPort,
    /// By key.
    records: Vec<Record>,
    /// Orders what happens on all threads. Never 0.
    clock: AtomicUsize,
    stop: AtomicBool,
}

impl World {
    fn now(&self) -> usize {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    /// Checks what came of a call that began at this time.
    fn check(&self, began: usize, entry: &Entry) {
        let (key, events) = (entry.completion_key, entry.events());
        let record = self.records.get(key).expect("a key that was given");
        assert!(record.armed.load(Ordering::SeqCst) > 0, "{key}: {events:?}");
        assert!(
            (Events::IN | Events::REMOVE).contains(events) && !events.is_empty(),
            "{key}: {events:?}"
        );
        let over = record.over.load(Ordering::SeqCst);
        let is_late = over != 0 && began > over;
        if events.contains(Events::IN) {
            let is_duplicated = record.duplicated.load(Ordering::SeqCst);
            assert!(
                is_duplicated || record.ready.load(Ordering::SeqCst),
                "{key} is not ready"
            );
        }
        if events.contains(Events::REMOVE) {
            assert!(record.removed.load(Ordering::SeqCst), "{key} stays");
            let others = record.removals.fetch_add(1, Ordering::SeqCst);
            assert_eq!(others, 0, "{key} is removed twice");
            record.over.store(self.now(), Ordering::SeqCst);
        } else if is_late {
            // Closed, not removed: what was queued may still come, and what a duplicate brings about.
            assert!(
                !record.removed.load(Ordering::SeqCst),
                "{key}: {events:?} after its removal"
            );
            let is_persistent = !record.one_shot.load(Ordering::SeqCst);
            let most = match is_persistent && record.duplicated.load(Ordering::SeqCst) {
                true => 64,
                false => 1,
            };
            let count = record.late.fetch_add(1, Ordering::SeqCst) + 1;
            assert!(
                count <= most,
                "{key}: {events:?} after its end, for the {count}th time"
            );
        }
        if events.contains(Events::IN) {
            let delivered = record.delivered.fetch_add(1, Ordering::SeqCst) + 1;
            let armed = record.armed.load(Ordering::SeqCst);
            assert!(
                delivered <= armed || !record.one_shot.load(Ordering::SeqCst),
                "{key} was armed {armed} times, and came {delivered} times"
            );
        }
    }

    /// Dequeues what there is.
    fn serve(&self, room: usize, timeout: Duration) -> io::Result<()> {
        let mut entries = [Entry::default(); 8];
        let began = self.now();
        match self.port.dequeue(&mut entries[..room], Some(timeout)) {
            Ok(found) => found.iter().for_each(|entry| self.check(began, entry)),
            Err(Error::TimedOut) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Dequeues until this has come, to whichever thread.
    fn serve_until(&self, what: &str, key: usize, has_come: impl Fn() -> bool) -> io::Result<()> {
        let end = Instant::now() + PATIENCE;
        while !has_come() {
            self.serve(4, Duration::from_micros(200))?;
            if self.stop.load(Ordering::SeqCst) {
                return Err(io::Error::other("another thread has failed"));
            }
            assert!(Instant::now() < end, "{what} of {key} is lost");
        }
        Ok(())
    }

    /// The life of one socket.
    fn round(&self, key: usize, rng: &mut fastrand::Rng, kept: &mut Vec<Socket>) -> io::Result<()> {
        let record = &self.records[key];
        let (ours, mut theirs) = Pair::unix()?.into_ends();
        let trigger = EVERY[rng.usize(0..4)];
        let is_one_shot = trigger.contains(Trigger::ONESHOT);
        record.one_shot.store(is_one_shot, Ordering::SeqCst);
        let enable = || {
            record.armed.fetch_add(1, Ordering::SeqCst);
            self.register(Registration::enable(&ours, key, EventFilter::IN, trigger))
        };
        enable()?;
        if rng.u8(0..8) == 0 {
            let other_key = Registration::enable(&ours, key + 1, EventFilter::IN, trigger);
            let refused = self.port.register(other_key);
            assert_eq!(refused, Err(RegistrationError::OtherKey.into()), "{key}");
        }
        let mut is_told = false;
        if rng.bool() {
            record.ready.store(true, Ordering::SeqCst);
            theirs.write_all(b"x")?;
            if rng.bool() {
                is_told = true;
                self.serve_until("a notification", key, || {
                    record.delivered.load(Ordering::SeqCst) > 0
                })?;
                if is_one_shot && rng.bool() {
                    // Once more: by what is still there, or by what comes.
                    let delivered = record.delivered.load(Ordering::SeqCst);
                    if trigger != ONCE {
                        drain(&ours)?;
                    }
                    enable()?;
                    if trigger != ONCE {
                        theirs.write_all(b"x")?;
                    }
                    self.serve_until("another notification", key, || {
                        record.delivered.load(Ordering::SeqCst) > delivered
                    })?;
                }
            }
        }
        if rng.u8(0..4) == 0 {
            self.serve(rng.usize(1..=8), Duration::ZERO)?;
        }
        if !is_told && rng.u8(0..4) == 0 {
            self.register(Registration::disable(&ours))?;
        }
        let mut duplicate = None;
        if rng.u8(0..4) == 0 {
            // Out of the way of the numbers that are used again.
            record.duplicated.store(true, Ordering::SeqCst);
            duplicate = Some(Socket::from(rustix::io::fcntl_dupfd_cloexec(&ours, 1000)?));
        }
        match rng.u8(0..4) {
            // Without REMOVE.
            0 | 1 => {
                drop(ours);
                record.over.store(self.now(), Ordering::SeqCst);
            }
            // With REMOVE, and closed when its notification has come,
            2 => {
                record.removed.store(true, Ordering::SeqCst);
                self.register(Registration::remove(&ours))?;
                let is_over = || record.removals.load(Ordering::SeqCst) > 0;
                self.serve_until("the removal", key, is_over)?;
                drop(ours);
            }
            // or at once.
            _ => {
                record.removed.store(true, Ordering::SeqCst);
                self.register(Registration::remove(&ours))?;
                drop(ours);
            }
        }
        if let Some(duplicate) = duplicate {
            // What comes from here on is nobody's business here.
            if rng.bool() {
                theirs.write_all(b"x")?;
                kept.push(theirs);
            }
            kept.push(duplicate);
        }
        if kept.len() > 12 {
            kept.drain(..6);
        }
        Ok(())
    }

    fn register(&self, registration: Registration<'_>) -> io::Result<()> {
        Ok(self.port.register(registration)?)
    }
}

#[for_every_backend]
fn registered_sockets_come_and_go(backend: Backend) -> io::Result<()> {
    churn(backend, |backend, rounds| {
        let world = World {
            port: port_with(backend, THREADS)?,
            records: (0..=THREADS * rounds).map(|_| Record::default()).collect(),
            clock: AtomicUsize::new(1),
            stop: AtomicBool::new(false),
        };
        let work = |me: usize| {
            let mut rng = fastrand::Rng::with_seed(me as u64);
            let mut kept = Vec::new();
            for round in 0..rounds {
                world.round(me * rounds + round, &mut rng, &mut kept)?;
                if world.stop.load(Ordering::SeqCst) {
                    break;
                }
            }
            Ok(())
        };
        on_threads(&world.stop, work)?;

        // All are closed. What is left says so, and each that was removed is notified.
        loop {
            let mut entries = [Entry::default(); 8];
            let began = world.now();
            match world.port.dequeue(&mut entries, Some(Duration::ZERO)) {
                Ok(found) => found.iter().for_each(|entry| world.check(began, entry)),
                Err(Error::TimedOut) => break,
                Err(error) => return Err(error.into()),
            }
        }
        for (key, record) in world.records.iter().enumerate() {
            let removals = record.removals.load(Ordering::SeqCst);
            let removed = usize::from(record.removed.load(Ordering::SeqCst));
            assert_eq!(removals, removed, "removals of {key}");
        }
        // Those that were closed count until their numbers are used again: by at most as many as there
        // were numbers at once.
        let port = &world.port;
        expect_no_registrations(port)?;
        assert_eq!(port.snapshot().queued, 0);
        Ok(())
    })
}

/// Uses every number again that has a registration left, and removes it.
fn expect_no_registrations(port: &CompletionPort) -> io::Result<()> {
    let mut pairs = Vec::new();
    for _ in 0..THREADS * 20 {
        let pair = Pair::unix()?;
        for socket in [&pair.ours, &pair.theirs] {
            port.register(Registration::enable(socket, 0, EventFilter::IN, ONCE))?;
        }
        pairs.push(pair);
    }
    for pair in &pairs {
        for socket in [&pair.ours, &pair.theirs] {
            port.register(Registration::remove(socket))?;
            let entry = port.dequeue_one(Some(PATIENCE))?;
            assert_eq!((entry.completion_key, entry.events()), (0, Events::REMOVE));
        }
    }
    expect_nothing(port);
    assert_eq!(counted(port.snapshot().registrations), 0);
    Ok(())
}

/// A connection that a port owns.
struct Connection {
    socket: Socket,
    /// No other ever has the same.
    key: usize,
}

impl AsSocket for Connection {
    fn as_fd(&self) -> BorrowedSocket<'_> {
        self.socket.as_fd()
    }
}

/// What is known of a connection.
#[derive(Default)]
struct Life {
    armed: AtomicUsize,
    came: AtomicUsize,
    /// There is something to read. Set before there is.
    ready: AtomicBool,
    cancelled: AtomicBool,
    closed: AtomicBool,
}

struct Owner {
    port: Port<Connection>,
    lives: Vec<Life>,
    stop: AtomicBool,
}

impl Owner {
    /// Takes what came, and closes it. Some are armed once more, if there is nothing to read.
    fn serve(
        &self,
        worker: &mut Worker<Connection>,
        timeout: Duration,
        rng: &mut fastrand::Rng,
    ) -> io::Result<()> {
        match worker.process(Some(timeout)) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        while let Some(event) = worker.take() {
            let connection = match event {
                Event::Ready(connection, events) => {
                    assert_eq!(events, Events::IN);
                    let life = &self.lives[connection.key];
                    assert!(life.ready.load(Ordering::SeqCst), "{}", connection.key);
                    assert_eq!(drain(&connection.socket)?, 1, "{}", connection.key);
                    connection
                }
                Event::Cancelled(connection) => {
                    let life = &self.lives[connection.key];
                    assert!(life.cancelled.load(Ordering::SeqCst), "{}", connection.key);
                    connection
                }
                Event::Refused(connection, error) => panic!("{}: {error}", connection.key),
                _ => panic!("nothing else was asked for"),
            };
            let life = &self.lives[connection.key];
            let came = life.came.fetch_add(1, Ordering::SeqCst) + 1;
            let armed = life.armed.load(Ordering::SeqCst);
            assert!(came <= armed, "{} came {came} times", connection.key);
            self.end(connection, rng);
        }
        Ok(())
    }

    /// Closes a connection, in the port or out of it.
    fn end(&self, connection: Held<Connection>, rng: &mut fastrand::Rng) {
        let life = &self.lives[connection.key];
        match rng.bool() {
            true => drop(connection),
            false => drop(connection.into_inner()),
        }
        assert!(
            !life.closed.swap(true, Ordering::SeqCst),
            "it was there twice"
        );
    }

    /// Serves until this one has come out, to whichever thread.
    fn serve_until_closed(
        &self,
        key: usize,
        worker: &mut Worker<Connection>,
        rng: &mut fastrand::Rng,
    ) -> io::Result<()> {
        let end = Instant::now() + PATIENCE;
        while !self.lives[key].closed.load(Ordering::SeqCst) {
            self.serve(worker, Duration::from_micros(200), rng)?;
            if self.stop.load(Ordering::SeqCst) {
                return Err(io::Error::other("another thread has failed"));
            }
            assert!(Instant::now() < end, "{key} is lost");
        }
        Ok(())
    }

    /// The life of one connection. Some are armed and left until later.
    fn round(
        &self,
        key: usize,
        worker: &mut Worker<Connection>,
        rng: &mut fastrand::Rng,
        idle: &mut Vec<(usize, Id, Socket)>,
    ) -> io::Result<()> {
        let life = &self.lives[key];
        let (socket, mut theirs) = Pair::unix()?.into_ends();
        let connection = self.port.adopt(Connection { socket, key })?;
        let id = connection.id();
        if rng.u8(0..8) == 0 {
            self.end(connection, rng);
            return Ok(());
        }
        let ready_before = rng.u8(0..3) == 0;
        if ready_before {
            life.ready.store(true, Ordering::SeqCst);
            theirs.write_all(b"x")?;
        }
        life.armed.fetch_add(1, Ordering::SeqCst);
        match rng.bool() {
            true => self.port.arm(connection, Interest::IN),
            false => worker.arm(connection, Interest::IN),
        }
        if ready_before {
            return self.serve_until_closed(key, worker, rng);
        }
        idle.push((key, id, theirs));
        while idle.len() > rng.usize(0..8) {
            let (key, id, mut theirs) = idle.swap_remove(rng.usize(0..idle.len()));
            // Armed, if that was left to the worker.
            self.serve(worker, Duration::ZERO, rng)?;
            let life = &self.lives[key];
            match rng.bool() {
                true => {
                    life.ready.store(true, Ordering::SeqCst);
                    theirs.write_all(b"x")?;
                }
                false => {
                    life.cancelled.store(true, Ordering::SeqCst);
                    assert!(self.port.cancel(id), "{key} is there");
                }
            }
            self.serve_until_closed(key, worker, rng)?;
            assert!(!self.port.cancel(id), "{key} is gone");
        }
        Ok(())
    }
}

#[for_every_backend]
fn owned_connections_come_and_go(backend: Backend) -> io::Result<()> {
    churn(backend, |backend, rounds| {
        let owner = Owner {
            port: Port::from(port_with(backend, THREADS)?),
            lives: (0..THREADS * rounds).map(|_| Life::default()).collect(),
            stop: AtomicBool::new(false),
        };
        let left = Mutex::new(Vec::new());
        let work = |me: usize| {
            let mut rng = fastrand::Rng::with_seed(me as u64);
            let mut worker = owner.port.worker(rng.usize(1..=8));
            let mut idle = Vec::new();
            for round in 0..rounds {
                owner.round(me * rounds + round, &mut worker, &mut rng, &mut idle)?;
                if owner.stop.load(Ordering::SeqCst) {
                    break;
                }
            }
            // The end of their peers would be something to read.
            left.lock().expect("no panic").extend(idle);
            Ok(())
        };
        on_threads(&owner.stop, work)?;
        // Those that were left are armed still, and come back.
        let left = left.lock().expect("no panic").len();
        assert_eq!(counted(owner.port.snapshot().registrations), left);
        let back = owner.port.close();
        assert_eq!(back.len(), left);
        for connection in back.iter() {
            let life = &owner.lives[connection.key];
            assert!(!life.closed.swap(true, Ordering::SeqCst));
        }
        let closed = |life: &Life| life.closed.load(Ordering::SeqCst);
        assert!(owner.lives.iter().all(closed));
        Ok(())
    })
}

/// The peer has shut down, which is reported again and again and not wanted. A thread that waits deals with
/// it for the level-triggered registration, and may do so late: when an edge was enabled since, and has come.
///
/// A race, which is tried for some seconds.
#[for_every_backend]
fn c5_an_edge_is_not_lost_while_another_thread_deals_with_a_hang_up(
    backend: Backend,
) -> io::Result<()> {
    const TIME: Duration = Duration::from_secs(3);
    churn(backend, |backend, _| {
        let port = port_with(backend, THREADS)?;
        let pair = Pair::unix()?;
        // Quickly filled.
        pair.ours.set_send_buffer_size(4608)?;
        pair.theirs.shutdown(Shutdown::Write)?;
        let stop = AtomicBool::new(false);
        let came = AtomicUsize::new(0);
        thread::scope(|scope| {
            // However this ends.
            let end_all = SetAtEnd(&stop);
            let dequeues = scope.spawn(|| {
                while !stop.load(Ordering::SeqCst) {
                    if let Ok(entry) = port.dequeue_one(Some(Duration::from_millis(100))) {
                        assert_eq!((entry.completion_key, entry.events()), (5, Events::OUT));
                        came.fetch_add(1, Ordering::SeqCst);
                    }
                }
            });
            for _ in 0..2 {
                // So that the others are interrupted here and there.
                scope.spawn(|| {
                    while !stop.load(Ordering::SeqCst) {
                        std::hint::spin_loop();
                    }
                });
            }
            let mut rng = fastrand::Rng::with_seed(1);
            let enable = |trigger| {
                let enable = Registration::enable(&pair.ours, 5, EventFilter::OUT, trigger);
                port.register(enable)
            };
            let end = Instant::now() + TIME;
            for round in 0.. {
                let sent = pair.fill()?;
                enable(LEVEL)?;
                for _ in 0..rng.u16(0..4096) {
                    std::hint::spin_loop();
                }
                enable(EDGE)?;
                let before = came.load(Ordering::SeqCst);
                pair.make_room(sent)?;
                let lost = Instant::now() + PATIENCE;
                while came.load(Ordering::SeqCst) == before {
                    assert!(Instant::now() < lost, "the edge of round {round} is lost");
                    thread::yield_now();
                }
                if Instant::now() > end {
                    break;
                }
            }
            // The end of a scope does not wait for threads to be gone.
            drop(end_all);
            dequeues.join().expect("no panic");
            io::Result::Ok(())
        })
    })
}
