//! G4. Ports that are closed.

#![cfg_attr(
    windows,
    allow(
        dead_code,
        unused_imports,
        reason = "a registration there is of the socket, and lives on with a duplicate"
    )
)]

use std::io;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use socknotify::{
    Backend, CompletionPort, Entry, Error, EventFilter, Events, Registration, Trigger,
};

use crate::support::trigger::{EVERY, LEVEL};
use crate::support::{
    Kind, PATIENCE, Pair, PortExt, asleep, counted, expect, expect_nothing, pairs, port, port_with,
    this_thread, wait_for_waiting,
};

const KEY: usize = 61;
const OTHER_KEY: usize = 62;
const IN: (usize, Events) = (KEY, Events::IN);

#[for_every_backend]
fn g4_closing_releases_all_threads_that_wait(backend: Backend) -> io::Result<()> {
    const THREADS: usize = 12;
    for permits in [1, 2, 3, 32] {
        for timeout in [None, Some(PATIENCE), Some(Duration::MAX)] {
            let port = port_with(backend, permits)?;
            let pair = Pair::unix()?;
            port.enable(&pair.ours, KEY, EventFilter::IN, LEVEL)?;
            thread::scope(|scope| {
                let (tell, told) = channel();
                let threads: Vec<_> = (0..THREADS)
                    .map(|_| {
                        let (tell, port) = (tell.clone(), &port);
                        scope.spawn(move || {
                            tell.send(this_thread()).expect("someone listens");
                            port.dequeue_one(timeout)
                        })
                    })
                    .collect();
                wait_for_waiting(&port, THREADS);
                asleep(told.iter().take(THREADS));
                port.close();
                for thread in threads {
                    assert_eq!(thread.join().expect("no panic"), Err(Error::Closed));
                }
            });
            assert_eq!(port.snapshot().waiting, 0);
        }
    }
    Ok(())
}

#[for_every_backend]
fn g4_after_closing_every_call_says_so(port: CompletionPort) -> io::Result<()> {
    let pair = Pair::unix()?;
    port.enable(&pair.ours, KEY, EventFilter::IN, LEVEL)?;
    port.post(Entry::default())?;
    pair.send()?;
    for _ in 0..2 {
        port.close();
        let mut entries = [Entry::default(); 2];
        for timeout in [
            None,
            Some(Duration::ZERO),
            Some(PATIENCE),
            Some(Duration::MAX),
        ] {
            assert_eq!(port.dequeue_one(timeout), Err(Error::Closed));
            assert_eq!(port.dequeue(&mut entries, timeout), Err(Error::Closed));
            let mut batch = [Registration::remove(&pair.ours)];
            let result = port.process(&mut batch, &mut entries, timeout);
            assert_eq!(result, Err(Error::Closed));
            assert_eq!(result.map_err(Error::code), Err(735));
        }
        assert_eq!(port.post(Entry::default()), Err(Error::Closed));
        assert_eq!(port.post_all(&[Entry::default(); 3]), Err(Error::Closed));
        for entry in [
            Registration::new(&pair.ours),
            Registration::enable(&pair.ours, KEY, EventFilter::IN, LEVEL),
            Registration::disable(&pair.ours),
            Registration::remove(&pair.ours),
        ] {
            assert_eq!(port.register(entry), Err(Error::Closed.into()));
        }
        assert_eq!(port.blocking(|| 7), 7);
        let snapshot = port.snapshot();
        assert_eq!(counted(snapshot.registrations), 0);
        assert_eq!(snapshot.queued, 0);
    }
    // The port's end is no business of the socket.
    pair.drain()?;
    pair.send()?;
    Ok(())
}

#[for_every_backend]
fn g4_sockets_can_be_registered_elsewhere_at_once(backend: Backend) -> io::Result<()> {
    let pairs = Kind::all()
        .map(Kind::pair)
        .collect::<io::Result<Vec<_>>>()?;
    for trigger in EVERY {
        for pair in &pairs {
            let first = port_with(backend, 2)?;
            first.enable(&pair.ours, KEY, EventFilter::IN, trigger)?;
            thread::scope(|scope| -> io::Result<()> {
                for _ in 0..4 {
                    scope.spawn(|| assert_eq!(first.dequeue_one(None), Err(Error::Closed)));
                }
                wait_for_waiting(&first, 4);
                first.close();
                // While its threads are on their way out.
                let second = port(backend)?;
                let enable = Registration::enable(&pair.ours, OTHER_KEY, EventFilter::IN, trigger);
                second.register(enable)?;
                pair.send()?;
                expect(&second, &[(OTHER_KEY, Events::IN)]);
                pair.drain()?;
                Ok(())
            })?;
        }
    }
    Ok(())
}

#[for_every_backend]
fn g4_the_end_of_a_closed_port_is_not_noticed_elsewhere(backend: Backend) -> io::Result<()> {
    for case in pairs(Kind::all()) {
        let (pair, trigger) = case?;
        let enable = |key| Registration::enable(&pair.ours, key, EventFilter::IN, trigger);
        let (first, second) = (port(backend)?, port(backend)?);
        first.register(enable(KEY))?;
        first.close();
        second.register(enable(OTHER_KEY))?;
        drop(first);
        pair.send()?;
        expect(&second, &[(OTHER_KEY, Events::IN)]);
    }
    Ok(())
}

#[for_every_backend]
fn g4_dropping_the_port_closes_it(backend: Backend) -> io::Result<()> {
    let pair = Pair::unix()?;
    for trigger in EVERY {
        for _ in 0..50 {
            let port = port(backend)?;
            port.enable(&pair.ours, KEY, EventFilter::IN, trigger)?;
            pair.send()?;
            expect_or_not(&port, trigger);
            port.post(Entry::default())?;
            drop(port);
            pair.drain()?;
        }
    }
    // Shared ports go with their last owner, on whatever thread.
    let port = Arc::new(port(backend)?);
    port.enable(&pair.ours, KEY, EventFilter::IN, LEVEL)?;
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let port = Arc::clone(&port);
            thread::spawn(move || port.dequeue_one(Some(Duration::from_millis(5))))
        })
        .collect();
    drop(port);
    for thread in threads {
        assert_eq!(thread.join().expect("no panic"), Err(Error::TimedOut));
    }
    let again = crate::support::port(backend)?;
    again.enable(&pair.ours, OTHER_KEY, EventFilter::IN, LEVEL)?;
    Ok(())
}

/// Takes the notification that a write has brought about.
#[track_caller]
fn expect_or_not(port: &CompletionPort, trigger: Trigger) {
    expect(port, &[IN]);
    if trigger != LEVEL {
        expect_nothing(port);
    }
}

#[for_every_backend]
fn g4_a_thread_may_outlive_the_port_that_it_holds_a_permit_in(backend: Backend) -> io::Result<()> {
    for _ in 0..20 {
        let first = port_with(backend, 1)?;
        first.post(Entry::default())?;
        first.dequeue_one(None)?;
        drop(first);
        let second = port_with(backend, 1)?;
        second.post(Entry::default())?;
        second.dequeue_one(None)?;
        assert_eq!(counted(second.snapshot().running), 1);
        // A thread that ends while it holds a permit in a port that is gone.
        let ended = thread::spawn(move || -> Result<(), Error> {
            second.post(Entry::default())?;
            second
                .dequeue_one(Some(PATIENCE))
                .map(drop)
                .or_else(|error| {
                    // The only permit is held by the thread that made the port.
                    if error == Error::TimedOut {
                        Ok(())
                    } else {
                        Err(error)
                    }
                })
        });
        drop(ended);
    }
    Ok(())
}
