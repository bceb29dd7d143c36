//! Forked children: one that uses its parent's port, and one that keeps its parent's sockets open (G3).
//!
//! A program of its own, because all of its descriptors are inherited: until a child has ended, or runs another program, what was
//! closed here is open there. So tests that need a process are here.
//!
//! A child of a process with threads may do next to nothing. Here it calls the port under test, which
//! has to refuse without taking a lock, and beside that only what is safe in a signal handler. Some make
//! a port of their own, which takes memory too. Whatever else it would do, it is killed by its alarm.

#![cfg(unix)]

#[macro_use]
extern crate socknotify_test_macros;

#[macro_use]
mod support;

#[path = "support/alone.rs"]
mod alone;

use std::fmt;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
#[cfg(target_os = "linux")]
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use socket2::Socket;
use socknotify::owned::{
    BorrowedSocket, Event, FileOperation, Held, Interest, Outbox, OutboxError, Port, SharedTrigger,
    Source,
};
use socknotify::{
    Backend, CompletionPort, Entry, Error, EventFilter, Events, Overlapped, RegisterError,
    Registration, RegistrationError,
};

use alone::is_alone;
use support::trigger::{EDGE, EVERY, LEVEL, ONCE};
use support::{
    Child, CloseAtEnd, Kind, PATIENCE, Pair, PollFlags, PortExt, QUIET_PERIOD, counted, drain_port,
    expect, expect_nothing, expect_quiet, expect_removed, is_ready, port, port_with, take_number,
    to_lonely_number, uninterrupted, wait_readiness,
};

/// Threads that call a port all the time would take the processors from each other: one such test runs at a time.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes every call there is. 0 if each of them was refused, else the number of the first that was not.
fn call_everything(port: &CompletionPort, pair: &Pair) -> u8 {
    const REFUSED: Error = Error::OtherProcess;
    let mut entries = [Entry::default(); 2];
    for timeout in [Some(Duration::ZERO), Some(Duration::from_secs(1)), None] {
        if port.dequeue(&mut entries, timeout) != Err(REFUSED) {
            return 1;
        }
        if port.dequeue_one(timeout) != Err(REFUSED) {
            return 2;
        }
        let mut batch = [Registration::enable(&pair.ours, 1, EventFilter::ALL, ONCE)];
        if port.process(&mut batch, &mut entries, timeout) != Err(REFUSED) {
            return 3;
        }
    }
    if port.post(Entry::default()) != Err(REFUSED) || port.post_all(&entries) != Err(REFUSED) {
        return 4;
    }
    for entry in [
        Registration::new(&pair.ours),
        Registration::enable(&pair.ours, 1, EventFilter::IN, ONCE),
        Registration::disable(&pair.ours),
        Registration::remove(&pair.ours),
    ] {
        if port.register(entry) != Err(REFUSED.into()) {
            return 5;
        }
    }
    if port.blocking(|| 7) != 7 {
        return 6;
    }
    port.close();
    if port.post(Entry::default()) != Err(REFUSED) {
        return 7;
    }
    0
}

#[for_every_backend]
fn a_child_is_told_that_the_port_is_not_its_own(backend: Backend) -> io::Result<()> {
    let port = port_with(backend, 1)?;
    let pair = Pair::unix()?;
    for trigger in EVERY {
        port.enable(&pair.ours, 1, EventFilter::IN, trigger)?;
        // Whether the thread that forks holds a permit or not.
        for holds_a_permit in [false, true] {
            if holds_a_permit {
                port.post(Entry::new(2, 0, 0))?;
                port.dequeue_one(None)?;
            }
            let child = Child::fork(|| call_everything(&port, &pair))?;
            assert_eq!(child.status(), Some(0));
            assert_eq!(
                counted(port.snapshot().running),
                usize::from(holds_a_permit)
            );
        }
        // To the parent nothing has happened.
        expect_nothing(&port);
        assert_eq!(counted(port.snapshot().registrations), 1);
        pair.send()?;
        expect(&port, &[(1, Events::IN)]);
        pair.drain()?;
        port.post(Entry::new(2, 0, 0))?;
        while port.dequeue_one(Some(Duration::ZERO))?.completion_key != 2 {}
        // And give the permit back.
        expect_nothing(&port);
    }
    assert_eq!(Error::OtherProcess.code(), 6);
    Ok(())
}

/// The child inherits locks in the state that other threads had them in at that moment.
#[for_every_backend]
fn a_child_is_told_so_while_other_threads_use_the_port(backend: Backend) -> io::Result<()> {
    let _turn = turn();
    let port = port_with(backend, 2)?;
    let pair = Pair::unix()?;
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let _close = CloseAtEnd(&port, &[]);
        for key in 0..4 {
            let (port, stop) = (&port, &stop);
            scope.spawn(move || -> io::Result<()> {
                let mine = Pair::unix()?;
                while !stop.load(Ordering::Relaxed) {
                    let enable = Registration::enable(&mine.ours, key, EventFilter::OUT, EDGE);
                    port.register(enable)?;
                    port.post(Entry::default())?;
                    let _ = port.dequeue_one(Some(Duration::from_micros(100)));
                    port.register(Registration::disable(&mine.ours))?;
                }
                Ok(())
            });
        }
        for _ in 0..100 {
            let child = Child::fork(|| call_everything(&port, &pair))?;
            assert_eq!(child.status(), Some(0), "refused late, or never");
        }
        stop.store(true, Ordering::Relaxed);
        Ok(())
    })
}

/// Takes text, and keeps none of it.
struct Nowhere;

impl fmt::Write for Nowhere {
    fn write_str(&mut self, _: &str) -> fmt::Result {
        Ok(())
    }
}

#[for_every_backend]
fn a_child_can_ask_for_the_state_of_a_port_while_other_threads_use_it(
    backend: Backend,
) -> io::Result<()> {
    let _turn = turn();
    const PLACES: usize = 3;
    let port = port_with(backend, PLACES)?;
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let _close = CloseAtEnd(&port, &[]);
        for _ in 0..4 {
            scope.spawn(|| -> io::Result<()> {
                while !stop.load(Ordering::Relaxed) {
                    port.post(Entry::default())?;
                    port.snapshot();
                    let _ = port.dequeue_one(Some(Duration::ZERO));
                }
                Ok(())
            });
        }
        let asked = || {
            for round in 0..75 {
                // What is counted there may be anything.
                let child = Child::fork(|| {
                    if port.concurrency() != PLACES {
                        return 1;
                    }
                    port.snapshot();
                    let text = fmt::write(&mut Nowhere, format_args!("{port:?}"));
                    if text.is_ok() { 0 } else { 2 }
                })?;
                assert_eq!(child.status(), Some(0), "fork {round}: wrong, or it hangs");
            }
            Ok(())
        };
        let outcome = catch_unwind(AssertUnwindSafe(asked));
        stop.store(true, Ordering::Relaxed);
        outcome.unwrap_or_else(|panic| resume_unwind(panic))
    })
}

/// Makes calls on an owning port. 0 if each was refused, else the number of the first that was not.
fn call_owning_port(port: &Port<Socket, u32>, held: &mut Option<Held<Socket>>, pair: Pair) -> u8 {
    let id = held.as_ref().map(Held::id);
    let is_refused = |error: &io::Error| error.to_string().contains("process");
    if port.send(1).is_ok() {
        return 1;
    }
    if port.send_after(PATIENCE, 1).is_ok() || port.send_every(PATIENCE, 1).is_ok() {
        return 2;
    }
    let adopted = port.adopt(pair.ours).map(drop).map_err(io::Error::from);
    if !adopted.is_err_and(|error| is_refused(&error)) {
        return 3;
    }
    let shared = port.share(Arc::new(pair.theirs), Interest::IN, SharedTrigger::Level);
    if !shared.is_err_and(|error| is_refused(&error)) {
        return 4;
    }
    if id.is_none_or(|id| port.cancel(id) || port.disarm(id).is_some()) || port.cancel_all() != 0 {
        return 5;
    }
    let mut worker = port.worker(4);
    if worker.process(None) != Err(Error::OtherProcess) || worker.take().is_some() {
        return 6;
    }
    // None of these says anything.
    worker.arm(held.take().expect("it is here"), Interest::IN);
    drop(worker);
    port.drain(PATIENCE);
    u8::from(!port.close().is_empty()) * 7
}

#[for_every_backend]
fn a_child_is_told_so_by_an_owning_port_while_other_threads_use_it(
    backend: Backend,
) -> io::Result<()> {
    let _turn = turn();
    let port = Port::<Socket, u32>::from(port(backend)?);
    let mut held = Some(port.adopt(Pair::unix()?.ours)?);
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut worker = port.worker(8);
                let Pair { ours, theirs } = Pair::unix().expect("a pair");
                theirs.send(b"x").expect("there is room");
                let interest = Interest::IN.within(Duration::from_millis(1));
                worker.arm(port.adopt(ours).expect("an open port"), interest);
                while !over.load(Ordering::Relaxed) {
                    let _ = port.send(1);
                    let _ = port.send_after(Duration::from_millis(1), 2);
                    worker.process(Some(Duration::ZERO)).expect("an open port");
                    while let Some(event) = worker.take() {
                        if let Event::Ready(connection, _) | Event::TimedOut(connection) = event {
                            worker.arm(connection, interest);
                        }
                    }
                }
            });
        }
        let told = (0..100).try_for_each(|_| {
            let pair = Pair::unix()?;
            let child = Child::fork(|| call_owning_port(&port, &mut held, pair))?;
            match child.status() {
                Some(0) => Ok(()),
                status => Err(io::Error::other(format!("the child ends with {status:?}"))),
            }
        });
        over.store(true, Ordering::Relaxed);
        told
    })
}

/// A connection with what other threads have for it to send.
struct Client {
    socket: Socket,
    outbox: Outbox,
}

impl Source for Client {
    fn socket(&self) -> BorrowedSocket<'_> {
        self.socket.socket()
    }
}

#[for_every_backend]
fn a_child_drops_a_connection_while_others_send_to_it(backend: Backend) -> io::Result<()> {
    let _turn = turn();
    let port = Port::<Client>::from(port(backend)?);
    let Pair { ours, .. } = Pair::unix()?;
    let outbox = Outbox::new(64 << 20);
    let mut held = Some(port.adopt(Client {
        socket: ours,
        outbox,
    })?);
    let sender = held.as_ref().map(|it| it.outbox.sender(it));
    let sender = sender.expect("it is held");
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let bytes = vec![0; 1 << 20];
            while !over.load(Ordering::Relaxed) {
                let _ = sender.send(&bytes);
            }
        });
        let told = (0..100).try_for_each(|_| {
            let child = Child::fork(|| {
                let is_refused = sender.send(b"it") == Err(OutboxError::Gone);
                drop(held.take());
                u8::from(!is_refused || sender.room() > 0)
            })?;
            if let Some(held) = &mut held {
                // It has room again.
                let _ = held.outbox.send(io::sink())?;
            }
            match child.status() {
                Some(0) => Ok(()),
                status => Err(io::Error::other(format!("the child ends with {status:?}"))),
            }
        });
        over.store(true, Ordering::Relaxed);
        told
    })
}

#[for_every_backend]
fn a_child_that_closes_and_drops_what_it_inherited_does_no_harm(
    backend: Backend,
) -> io::Result<()> {
    let mut port = Some(port(backend)?);
    let mut pairs = Kind::all()
        .map(Kind::pair)
        .collect::<io::Result<Vec<_>>>()?;
    for trigger in EVERY {
        let shared = port.as_ref().expect("it is the child that drops it");
        for (key, pair) in pairs.iter().enumerate() {
            let entry = Registration::enable(&pair.ours, key, EventFilter::IN, trigger);
            shared.register(entry)?;
        }
        let child = Child::fork(|| {
            for pair in &pairs {
                // SAFETY: the child does not use it any more, and its destructors never run.
                unsafe { libc::close(std::os::fd::AsRawFd::as_raw_fd(&pair.ours)) };
            }
            drop(port.take());
            0
        })?;
        assert_eq!(child.status(), Some(0));
        let shared = port.as_ref().expect("it is the child that drops it");
        for (key, pair) in pairs.iter_mut().enumerate() {
            pair.send()?;
            expect(shared, &[(key, Events::IN)]);
            pair.drain()?;
            while shared.dequeue_one(Some(Duration::ZERO)).is_ok() {}
            expect_removed(shared, &pair.ours, key)?;
        }
    }
    Ok(())
}

#[for_every_backend]
fn g3_an_inherited_socket_is_notified_a_bounded_number_of_times(
    backend: Backend,
) -> io::Result<()> {
    let mut all = Vec::new();
    for kind in Kind::all() {
        for trigger in EVERY {
            let port = port(backend)?;
            let pair = kind.pair()?;
            let ours = to_lonely_number(pair.ours)?;
            port.enable(&ours, 1, EventFilter::ALL, trigger)?;
            all.push((port, trigger, ours, pair.theirs));
        }
    }
    let _child = Child::idle()?;
    thread::scope(|scope| {
        for (port, trigger, ours, theirs) in all {
            scope.spawn(move || {
                drop(ours);
                // Writable all the time, from now on readable, and at last closed.
                let mut count = 0;
                for _ in 0..200 {
                    theirs.send(b"x").expect("the child has the other end");
                    count += drain_port(&port).len();
                }
                let rest = || {
                    // TCP takes a while.
                    let late =
                        std::iter::from_fn(|| port.dequeue_one(Some(QUIET_PERIOD * 10)).ok())
                            .count();
                    expect_quiet(&port);
                    late
                };
                count += rest();
                drop(theirs);
                count += rest();
                let most = if trigger == EDGE { 64 } else { 1 };
                assert!(count <= most, "{trigger:?}: {count}");
            });
        }
    });
    Ok(())
}

/// Makes a port, and serves an inherited socket with it. 0 if all is as it should be.
fn serve_inherited(backend: Backend, pair: &Pair, ready: impl Fn()) -> u8 {
    let (Ok(mine), Ok(second)) = (port(backend), port(backend)) else {
        return 1;
    };
    for trigger in EVERY {
        let enable = Registration::enable(&pair.ours, 2, EventFilter::IN, trigger);
        match mine.register(enable) {
            Ok(()) => {}
            Err(RegisterError::Entry(RegistrationError::OtherPort)) => return 2,
            _ => return 3,
        }
        // From here on it has a port in this process, as in any other.
        let enable = Registration::enable(&pair.ours, 3, EventFilter::IN, trigger);
        if second.register(enable) != Err(RegistrationError::OtherPort.into()) {
            return 4;
        }
        ready();
        match mine.dequeue_one(Some(PATIENCE)) {
            Ok(entry) if (entry.completion_key, entry.events()) == (2, Events::IN) => {}
            _ => return 5,
        }
        if pair.drain().is_err() {
            return 6;
        }
        while mine.dequeue_one(Some(Duration::ZERO)).is_ok() {}
        if mine.register(Registration::remove(&pair.ours)) != Ok(()) {
            return 7;
        }
        match mine.dequeue_one(Some(Duration::ZERO)) {
            Ok(entry) if (entry.completion_key, entry.events()) == (2, Events::REMOVE) => {}
            _ => return 8,
        }
    }
    0
}

/// How the socket is registered with the parent's port does not matter, and is not touched.
#[for_every_backend]
fn g3_a_child_registers_an_inherited_socket_with_a_port_of_its_own(
    backend: Backend,
) -> io::Result<()> {
    for kind in [Kind::UnixStream, Kind::Tcp4, Kind::Udp4] {
        for trigger in EVERY {
            for fires in [false, true] {
                let port = port(backend)?;
                let pair = kind.pair()?;
                let enable = || Registration::enable(&pair.ours, 1, EventFilter::IN, trigger);
                port.register(enable())?;
                if fires {
                    pair.send()?;
                    expect(&port, &[(1, Events::IN)]);
                    pair.drain()?;
                    while port.dequeue_one(Some(Duration::ZERO)).is_ok() {}
                }
                let (told, tell) = rustix::pipe::pipe()?;
                let child = Child::fork(|| {
                    serve_inherited(backend, &pair, || {
                        let _ = rustix::io::write(&tell, b"x");
                    })
                })?;
                drop(tell);
                // Both processes hear of what is sent.
                let mut sent = 0;
                while uninterrupted(|| Ok(rustix::io::read(&told, &mut [0; 1])?))? > 0 {
                    assert_eq!(pair.theirs.send(b"x")?, 1);
                    sent += 1;
                }
                assert_eq!(child.status(), Some(0), "{kind}, {trigger:?}, {fires}");
                assert_eq!(sent, EVERY.len());

                // Here it is registered as before.
                while let Ok(entry) = port.dequeue_one(Some(Duration::ZERO)) {
                    assert_eq!((entry.completion_key, entry.events()), (1, Events::IN));
                }
                port.register(enable())?;
                expect_nothing(&port);
                pair.send()?;
                expect(&port, &[(1, Events::IN)]);
            }
        }
    }
    Ok(())
}

/// Whatever threads of the parent were about when it was forked.
#[for_every_backend]
fn g3_a_child_registers_while_threads_of_its_parent_do(backend: Backend) -> io::Result<()> {
    let _turn = turn();
    let stop = AtomicBool::new(false);
    let inherited = Pair::unix()?;
    thread::scope(|scope| {
        for key in 0..4 {
            let stop = &stop;
            scope.spawn(move || -> io::Result<()> {
                let (port, pair) = (port(backend)?, Pair::unix()?);
                while !stop.load(Ordering::Relaxed) {
                    let enable = Registration::enable(&pair.ours, key, EventFilter::IN, ONCE);
                    port.register(enable)?;
                    expect_removed(&port, &pair.ours, key)?;
                }
                Ok(())
            });
        }
        let registered = || {
            for round in 0..100 {
                let child = Child::fork(|| {
                    let Ok(mine) = port(backend) else { return 1 };
                    let enable = Registration::enable(&inherited.ours, 1, EventFilter::OUT, ONCE);
                    if mine.register(enable) != Ok(()) {
                        return 2;
                    }
                    match mine.dequeue_one(Some(PATIENCE)) {
                        Ok(entry) if entry.events() == Events::OUT => 0,
                        _ => 3,
                    }
                })?;
                assert_eq!(child.status(), Some(0), "fork {round}: wrong, or it hangs");
            }
            Ok(())
        };
        let outcome = catch_unwind(AssertUnwindSafe(registered));
        stop.store(true, Ordering::Relaxed);
        outcome.unwrap_or_else(|panic| resume_unwind(panic))
    })
}

#[for_every_backend]
fn g3_an_inherited_socket_lives_on_while_its_number_is_used_again(
    backend: Backend,
) -> io::Result<()> {
    for trigger in EVERY {
        for key in [1, 2] {
            let port = port(backend)?;
            let old = Pair::unix()?;
            port.enable(&old.ours, 1, EventFilter::IN, trigger)?;
            let _child = Child::idle()?;
            let new = Pair::unix()?;
            let new = Pair {
                ours: take_number(old.ours, new.ours)?,
                theirs: new.theirs,
            };
            port.enable(&new.ours, key, EventFilter::IN, trigger)?;
            (&old.theirs).write_all(b"for the child")?;
            expect_quiet(&port);
            for _ in 0..50 {
                expect_nothing(&port);
            }
            new.send()?;
            expect(&port, &[(key, Events::IN)]);
            new.drain()?;
            while port.dequeue_one(Some(Duration::ZERO)).is_ok() {}
            expect_removed(&port, &new.ours, key)?;
        }
    }
    Ok(())
}

#[for_every_backend]
fn g3_registrations_go_on_while_a_child_has_inherited_all_sockets(
    backend: Backend,
) -> io::Result<()> {
    let port = port(backend)?;
    for round in 0..10 {
        let pairs = (0..20)
            .map(|_| {
                let Pair { ours, theirs } = Pair::unix()?;
                let ours = to_lonely_number(ours)?;
                Ok(Pair { ours, theirs })
            })
            .collect::<io::Result<Vec<_>>>()?;
        for (key, pair) in pairs.iter().enumerate() {
            let trigger = EVERY[key % 4];
            port.enable(&pair.ours, key, EventFilter::IN, trigger)?;
        }
        let child = Child::idle()?;
        for (key, pair) in pairs.iter().enumerate() {
            // Some are closed here, and live on in the child.
            if key % 5 == round % 5 {
                continue;
            }
            pair.send()?;
            expect(&port, &[(key, Events::IN)]);
            pair.drain()?;
            while port.dequeue_one(Some(Duration::ZERO)).is_ok() {}
        }
        for (key, pair) in pairs.into_iter().enumerate() {
            if key % 5 == round % 5 {
                drop(pair.ours);
                (&pair.theirs).write_all(b"x")?;
                let found = drain_port(&port);
                assert!(
                    found.is_empty() || found == [(key, Events::IN)],
                    "{found:?}"
                );
            } else {
                expect_removed(&port, &pair.ours, key)?;
            }
            expect_nothing(&port);
        }
        expect_quiet(&port);
        drop(child);
    }
    let pair = Pair::unix()?;
    port.enable(&pair.ours, 7, EventFilter::IN, LEVEL)?;
    pair.send()?;
    expect(&port, &[(7, Events::IN)]);
    Ok(())
}

/// The port is something to poll among others, and is asked whenever it is readable.
#[for_every_backend]
fn g3_an_inherited_socket_keeps_no_loop_busy_that_the_port_is_part_of(
    backend: Backend,
) -> io::Result<()> {
    for trigger in EVERY {
        let port = port(backend)?;
        let polled = port.as_fd();
        let pair = Pair::unix()?;
        let ours = to_lonely_number(pair.ours)?;
        port.enable(&ours, 1, EventFilter::IN, trigger)?;
        let _child = Child::idle()?;
        drop(ours);
        (&pair.theirs).write_all(b"x")?;
        // It may be notified once, or readable for no reason, but not for long.
        let expect_silence = |most: usize| {
            let (mut turns, mut count) = (0, 0);
            while is_ready(&polled, PollFlags::IN, QUIET_PERIOD * 2) {
                count += drain_port(&port).len();
                assert!(count <= most, "{trigger:?}: {count}");
                turns += 1;
                assert!(turns < 10_000, "{trigger:?}: there is no end to it");
            }
        };
        expect_silence(1);

        // What comes is seen as before.
        let pair = Pair::unix()?;
        port.enable(&pair.ours, 2, EventFilter::IN, trigger)?;
        expect_silence(0);
        pair.send()?;
        wait_readiness(&polled, PollFlags::IN);
        expect(&port, &[(2, Events::IN)]);
    }
    Ok(())
}

/// The child has the port's descriptors, and not the sockets. Each way to close a connection that is
/// armed reaches the peer.
#[for_every_backend]
fn g1_a_port_that_lives_on_in_a_child_keeps_no_connection_open(backend: Backend) -> io::Result<()> {
    for way in 0..3 {
        let port = Port::<Socket>::from(port(backend)?);
        let mut worker = port.worker(4);
        let Pair { ours, theirs } = Pair::unix()?;
        let [ours, theirs] = [to_lonely_number(ours)?, to_lonely_number(theirs)?];
        theirs.set_nonblocking(false)?;
        theirs.set_read_timeout(Some(PATIENCE))?;
        let numbers = [ours.as_raw_fd(), theirs.as_raw_fd()];
        let connection = port.adopt(ours)?;
        let id = connection.id();
        worker.arm(connection, Interest::IN);
        assert_eq!(worker.process(Some(Duration::ZERO)), Ok(0));
        let (told, tell) = rustix::pipe::pipe()?;
        let _child = Child::fork(|| {
            for number in numbers {
                // SAFETY: the child has these numbers for itself, and nobody uses them.
                unsafe { libc::close(number) };
            }
            let _ = rustix::io::write(&tell, b"x");
            loop {
                // SAFETY: it waits for a signal, and the one that comes kills it.
                unsafe { libc::pause() };
            }
        })?;
        uninterrupted(|| Ok(rustix::io::read(&told, &mut [0])?))?;
        match way {
            0 => drop(port.close()),
            1 => drop(port),
            _ => {
                assert!(port.cancel(id));
                worker.process(Some(PATIENCE))?;
                assert!(matches!(worker.take(), Some(Event::Cancelled(_))));
            }
        }
        assert_eq!(uninterrupted(|| (&theirs).read(&mut [0]))?, 0);
    }
    Ok(())
}

#[for_every_backend]
fn o8_a_child_begins_nothing_and_its_parents_operations_complete(
    backend: Backend,
) -> io::Result<()> {
    const COUNT: u64 = 200;
    let port = Port::<Socket, u64>::builder().backend(backend).build()?;
    let mut worker = port.worker(8);
    let file = port.adopt_file(tempfile::tempfile()?)?;
    for round in 0..10 {
        let mut ids = Vec::new();
        for number in 0..COUNT {
            let block = vec![round; 64];
            ids.push(port.begin(FileOperation::write_at(&file, block, number * 64))?);
        }
        let mut mine = Some(FileOperation::read_at(&file, vec![0; 4], 0));
        let child = Child::fork(|| {
            let mine = mine.take().expect("it is the child that begins it");
            if port.begin(mine).is_ok() || port.offload(|| 1).is_ok() {
                return 1;
            }
            if ids.iter().any(|&id| port.cancel_operation(id)) {
                return 2;
            }
            port.close();
            0
        })?;
        assert_eq!(child.status(), Some(0));
        for _ in 0..COUNT {
            while worker.process(Some(PATIENCE))? == 0 {}
            match worker.take() {
                Some(Event::Completed(done)) => assert_eq!(done.result?, 64),
                other => panic!("{other:?}"),
            }
        }
    }
    Ok(())
}

#[for_every_backend]
fn e7_a_child_begins_no_operation_and_its_parents_complete(backend: Backend) -> io::Result<()> {
    const COUNT: usize = 200;
    let port = port(backend)?;
    let file = tempfile::tempfile()?;
    let block = [7; 64];
    for _ in 0..10 {
        let mut begun: Vec<_> = (0..COUNT)
            .map(|number| Overlapped::new(number as u64 * 64))
            .collect();
        for overlapped in &mut begun {
            // SAFETY: all of it stays until the last packet has come.
            unsafe { port.write_at(&file, &raw const block, 5, overlapped)? };
        }
        let mut memory = [0; 4];
        let child = Child::fork(|| {
            let mut mine = Overlapped::new(0);
            // SAFETY: nothing is begun, or this fails.
            let outcome = unsafe { port.read_at(&file, &raw mut memory, 6, &raw mut mine) };
            if outcome != Err(Error::OtherProcess) {
                return 1;
            }
            if begun.iter().any(|it| port.cancel_operation(it)) {
                return 2;
            }
            port.close();
            0
        })?;
        assert_eq!(child.status(), Some(0));
        for _ in 0..COUNT {
            let entry = port.dequeue_one(Some(PATIENCE))?;
            assert_eq!((entry.completion_key, entry.transferred), (5, 64));
        }
        assert!(begun.iter().all(|it| matches!(it.result(), Ok(64))));
    }
    Ok(())
}

#[cfg(target_os = "linux")]
#[for_every_backend]
fn x5_processes_are_watched(backend: Backend) -> io::Result<()> {
    use rustix::process::{PidfdFlags, pidfd_open};

    let port = port(backend)?;
    let (told, tell) = rustix::pipe::pipe()?;
    let child = Child::fork(|| u8::from(rustix::io::read(&told, &mut [0; 1]) != Ok(1)))?;
    let process = pidfd_open(child.number(), PidfdFlags::empty())?;
    let entry = Registration::descriptor(&process, 1, EventFilter::IN, LEVEL);
    port.register(entry)?;
    expect_nothing(&port);
    assert_eq!(rustix::io::write(&tell, b"x")?, 1);
    expect(&port, &[(1, Events::IN)]);
    assert_eq!(child.status(), Some(0));
    Ok(())
}

/// A read ends where the sender changes, if the socket asks who it is (`SO_PASSCRED`).
#[cfg(target_os = "linux")]
#[for_every_backend]
fn d2_what_is_behind_the_bytes_of_another_sender_is_notified(backend: Backend) -> io::Result<()> {
    let port = Port::<UnixStream>::from(port(backend)?);
    let mut worker = port.worker(4);
    let (ours, theirs) = UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    rustix::net::sockopt::set_socket_passcred(&ours, true)?;
    worker.arm(port.adopt(ours)?, Interest::IN);
    // What was served once stays armed where it can.
    for served in [b"was", b"one"] {
        assert_eq!((&theirs).write(served)?, 3);
        if served == b"one" {
            let child = Child::fork(|| u8::from(rustix::io::write(&theirs, b"two") != Ok(3)))?;
            assert_eq!(child.status(), Some(0));
        }
        expect_bytes(&mut worker, served)?;
    }
    expect_bytes(&mut worker, b"two")
}

/// A connection is notified, has these bytes to receive in one call with room for more, and is armed again.
#[cfg(target_os = "linux")]
#[track_caller]
fn expect_bytes(
    worker: &mut socknotify::owned::Worker<UnixStream>,
    bytes: &[u8],
) -> io::Result<()> {
    worker.process(Some(PATIENCE))?;
    let Some(Event::Ready(mut connection, _)) = worker.take() else {
        panic!("it is readable");
    };
    let mut buffer = [0; 64];
    let length = connection.read(&mut buffer)?;
    assert_eq!(&buffer[..length], bytes);
    worker.arm(connection, Interest::IN);
    Ok(())
}

/// What a child has where the parent's ring is, stays.
#[cfg(target_os = "linux")]
#[for_every_backend]
fn o8_a_child_that_drops_the_port_unmaps_nothing_else(backend: Backend) -> io::Result<()> {
    let mut port = Some(Port::<Socket>::builder().backend(backend).build()?);
    let shared = port.as_ref().expect("it is the child that drops it");
    let file = shared.adopt_file(tempfile::tempfile()?)?;
    shared.begin(FileOperation::sync_all(&file))?;
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    let rings = maps.lines().filter(|line| line.contains("io_uring"));
    let ranges: Vec<_> = rings
        .filter_map(|line| {
            let (start, end) = line.split_once(' ')?.0.split_once('-')?;
            let number = |text| usize::from_str_radix(text, 16).ok();
            Some((number(start)?, number(end)?))
        })
        .collect();
    let child = Child::fork(|| {
        let (access, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE,
        );
        let mut mapped = [None; 8];
        for (place, &(start, end)) in mapped.iter_mut().zip(&ranges) {
            let address = std::ptr::without_provenance_mut(start);
            // SAFETY: it replaces nothing.
            let memory = unsafe { libc::mmap(address, end - start, access, flags, -1, 0) };
            *place = (memory != libc::MAP_FAILED).then_some(memory.cast::<u8>());
        }
        drop(port.take());
        for memory in mapped.into_iter().flatten() {
            // SAFETY: it was mapped above, and nobody else knows of it. If it is gone, this ends the child.
            unsafe { memory.write_volatile(1) };
        }
        0
    })?;
    assert_eq!(child.status(), Some(0));
    Ok(())
}

/// Two threads, of which one blocks until the other one has the next packet.
fn serve_in_turn(port: &CompletionPort) -> bool {
    let barrier = Barrier::new(2);
    let serve = || {
        let is_served = port.dequeue_one(Some(PATIENCE)).is_ok();
        barrier.wait();
        is_served
    };
    port.post_all(&[Entry::default(); 2]).is_ok()
        && thread::scope(|scope| {
            let other = scope.spawn(serve);
            serve() && other.join().is_ok_and(|is_served| is_served)
        })
}

/// The child inherits what its parent's port knows of threads that it does not have.
#[for_every_backend]
fn f4_the_limits_of_a_child_and_its_parent_rise(backend: Backend) -> io::Result<()> {
    let test = format!("f4_the_limits_of_a_child_and_its_parent_rise::{backend}");
    if !is_alone(&test)? {
        return Ok(());
    }
    let adaptive_port = || {
        CompletionPort::builder()
            .backend(backend)
            .concurrency(1)
            .build()
    };
    let (port, pair) = (adaptive_port()?, Pair::unix()?);
    assert!(serve_in_turn(&port));
    for _ in 0..10 {
        let child = Child::fork(|| {
            let refused = call_everything(&port, &pair);
            let is_served = adaptive_port().is_ok_and(|port| serve_in_turn(&port));
            // The thread has a permit in the one port and then in the other, as far as it knows.
            let refused = refused.max(call_everything(&port, &pair));
            if is_served { refused } else { 100 }
        })?;
        // While the child lives, the parent samples too.
        assert!(serve_in_turn(&port));
        assert_eq!(child.status(), Some(0));
    }
    Ok(())
}

/// A thread has dequeued two events, and gives back the one that it has not taken.
fn give_back(port: &Port<Socket, u32>) -> bool {
    let mut worker = port.worker(2);
    let is_sent = (0..2).all(|number| port.send(number).is_ok());
    if !is_sent || worker.process(Some(PATIENCE)) != Ok(2) || worker.take().is_none() {
        return false;
    }
    worker.blocking(|| {
        thread::scope(|scope| {
            let other = scope.spawn(|| port.worker(1).process(Some(PATIENCE)) == Ok(1));
            other.join().is_ok_and(|is_served| is_served)
        })
    })
}

/// The thread had a worker before, as the child knows.
#[for_every_backend]
fn f4_a_thread_of_a_child_gives_back_what_it_has_not_taken(backend: Backend) -> io::Result<()> {
    let test = format!("f4_a_thread_of_a_child_gives_back_what_it_has_not_taken::{backend}");
    if !is_alone(&test)? {
        return Ok(());
    }
    let port = || -> io::Result<Port<Socket, u32>> {
        let port = CompletionPort::builder().backend(backend);
        Ok(Port::from(port.concurrency(1).build()?))
    };
    let parents = port()?;
    assert!(give_back(&parents));
    let child = Child::fork(|| u8::from(!port().is_ok_and(|port| give_back(&port))))?;
    assert_eq!(child.status(), Some(0));
    Ok(())
}
