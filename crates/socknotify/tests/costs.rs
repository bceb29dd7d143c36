//! How long things may take: timeouts below a millisecond (E4), and the processor time of registering.
//!
//! A program of its own, one test after the other, because of the time and of the descriptors. What is
//! compared is the best of many tries, but on a busy machine that can be too long, too: `.ci/timed` runs them.

#![cfg(unix)]

#[macro_use]
extern crate socknotify_test_macros;

#[macro_use]
mod support;

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use socket2::Socket;
use socknotify::{Backend, CompletionPort, Entry, EventFilter, Registration};

use support::trigger::{EDGE, EDGE_ONCE, LEVEL, ONCE};
use support::{Pair, PortExt, drain_port, port, port_with, raise_limit, thread_time, wait_in_vain};

static ALONE: Mutex<()> = Mutex::new(());

const SHORT: Duration = Duration::from_micros(100);

/// The best quarter of many is below this.
fn lower_quartile(count: usize, mut measure: impl FnMut() -> Duration) -> Duration {
    let mut times: Vec<_> = (0..count).map(|_| measure()).collect();
    times.sort_unstable();
    times[count / 4]
}

#[track_caller]
fn expect_short_waits(port: &CompletionPort) {
    for timeout in [SHORT, SHORT * 2, SHORT * 3] {
        let waited = lower_quartile(400, || wait_in_vain(port, timeout));
        assert!(waited >= timeout, "{waited:?} instead of {timeout:?}");
        assert!(
            waited < timeout + SHORT * 4,
            "{waited:?} instead of {timeout:?}"
        );
    }
}

#[for_every_backend(timed)]
fn e4_a_wait_below_a_millisecond_ends_below_a_millisecond(backend: Backend) -> io::Result<()> {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let port = port(backend)?;
    expect_short_waits(&port);
    // Nor do registered sockets matter.
    let pair = Pair::unix()?;
    port.enable(&pair.ours, 1, EventFilter::IN, ONCE)?;
    expect_short_waits(&port);
    Ok(())
}

#[for_every_backend(timed)]
fn e4_a_wait_below_a_millisecond_for_a_permit_does_too(backend: Backend) -> io::Result<()> {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let port = port_with(backend, 1)?;
    let pair = Pair::unix()?;
    port.enable(&pair.ours, 1, EventFilter::IN, LEVEL)?;
    for others in [0, 2] {
        port.post(Entry::default())?;
        port.dequeue_one(None)?;
        // This thread has the only permit from here on.
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..others {
                // They wait for it, too, all the time.
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        wait_in_vain(&port, Duration::from_millis(20));
                    }
                });
            }
            let short = scope.spawn(|| expect_short_waits(&port)).join();
            over.store(true, Ordering::Relaxed);
            short.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        });
    }
    Ok(())
}

/// The processor time that it takes to enable an edge beside so many level-triggered sockets, which are
/// all ready, and all notified again and again.
fn enabling_beside(backend: Backend, count: usize) -> io::Result<Duration> {
    let port = port(backend)?;
    let socket = Pair::unix()?.into_ends();
    let ready = (0..count)
        .map(|_| socket.0.try_clone())
        .collect::<io::Result<Vec<Socket>>>()?;
    for (index, socket) in ready.iter().enumerate() {
        port.enable(socket, index + 2, EventFilter::OUT, LEVEL)?;
    }
    let mut entries = [Entry::default(); 64];
    let mut taken = 0;
    while taken < count * 2 {
        taken += port.dequeue(&mut entries, None)?.len();
    }
    let pair = Pair::unix()?;
    let mut trigger = EDGE;
    Ok(lower_quartile(200, || {
        trigger = if trigger == EDGE { EDGE_ONCE } else { EDGE };
        let before = thread_time();
        let enable = Registration::enable(&pair.ours, 1, EventFilter::IN, trigger);
        assert_eq!(port.register(enable), Ok(()));
        let spent = thread_time() - before;
        let disable = Registration::disable(&pair.ours);
        assert_eq!(port.register(disable), Ok(()));
        spent
    }))
}

#[for_every_backend(timed)]
fn c5_an_edge_is_enabled_as_soon_beside_thousands_of_ready_sockets(
    backend: Backend,
) -> io::Result<()> {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let many = 4000.min(raise_limit()? - 200);
    let few = enabling_beside(backend, 10)?;
    let many = enabling_beside(backend, many)?;
    assert!(
        many < few * 5,
        "{few:?} beside a few, and {many:?} beside many"
    );
    Ok(())
}

/// The processor time that a batch takes. One half of it arms fired one-shots.
fn applying(
    port: &CompletionPort,
    armed: &[Socket],
    others: &[Socket],
    count: usize,
    other: impl for<'a> Fn(&'a Socket, usize) -> Registration<'a>,
) -> io::Result<Duration> {
    let mut best = Duration::MAX;
    for _ in 0..3 {
        let mut batch: Vec<_> = (0..count / 2)
            .flat_map(|index| {
                let index = index % armed.len();
                let enable = Registration::enable(&armed[index], index, EventFilter::IN, ONCE);
                let key = armed.len() + index % others.len();
                [enable, other(&others[index % others.len()], key)]
            })
            .collect();
        let before = thread_time();
        port.process(&mut batch, &mut [], Some(Duration::ZERO))?;
        best = best.min(thread_time() - before);
        assert!(batch.iter().all(|entry| entry.result().is_ok()));
        // Those that are ready fire, and are armed again by the next batch.
        drain_port(port);
    }
    Ok(best)
}

#[for_every_backend(timed)]
fn a1_a_batch_takes_time_in_proportion_to_its_entries(backend: Backend) -> io::Result<()> {
    // The stand-in tells the filters of all duplicates of each event.
    const MANY: usize = if cfg!(kqueue_stand_in) { 4000 } else { 16_000 };
    const FEW: usize = MANY / 8;
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    // As many as a batch has entries, if there are so many descriptors.
    let sockets = (MANY / 2).min((raise_limit()? - 200) / 2);
    type Other = for<'a> fn(&'a Socket, usize) -> Registration<'a>;
    let kinds: [(&str, Other); 3] = [
        ("disabled", |socket, _| Registration::disable(socket)),
        ("enabled for edges", |socket, key| {
            Registration::enable(socket, key, EventFilter::IN, EDGE)
        }),
        ("asked for nothing", |socket, _| Registration::new(socket)),
    ];
    for is_ready in [false, true] {
        for (what, other) in kinds {
            let port = port(backend)?;
            let (ours, theirs) = Pair::unix()?.into_ends();
            let duplicates = |count| {
                (0..count)
                    .map(|_| ours.try_clone())
                    .collect::<io::Result<Vec<_>>>()
            };
            let (armed, others) = (duplicates(sockets)?, duplicates(sockets)?);
            theirs.send(b"x")?;
            for (key, socket) in armed.iter().enumerate() {
                port.enable(socket, key, EventFilter::IN, ONCE)?;
            }
            assert_eq!(drain_port(&port).len(), armed.len());
            if !is_ready {
                support::drain(&ours)?;
            }
            for (index, socket) in others.iter().enumerate() {
                let key = armed.len() + index;
                port.enable(socket, key, EventFilter::IN, EDGE)?;
            }
            let few = applying(&port, &armed, &others, FEW, other)?;
            let many = applying(&port, &armed, &others, MANY, other)?;
            // Eight times as many entries.
            assert!(
                many < few * 16,
                "{FEW} entries take {few:?}, and {MANY} take {many:?}, every other one {what}"
            );
        }
    }
    Ok(())
}

/// The processor time of a dequeue, by a thread that dequeues from so many ports in turn.
fn dequeuing_in_turn(backend: Backend, count: usize) -> io::Result<Duration> {
    let ports = (0..count)
        .map(|_| port_with(backend, 1))
        .collect::<io::Result<Vec<_>>>()?;
    let turn = || -> io::Result<Duration> {
        ports
            .iter()
            .try_for_each(|port| port.post(Entry::default()))?;
        let before = thread_time();
        for port in &ports {
            port.dequeue_one(Some(Duration::ZERO))?;
        }
        Ok((thread_time() - before) / count as u32)
    };
    // The first time, it gets memory for each.
    turn()?;
    let mut best = Duration::MAX;
    for _ in 0..20 {
        best = best.min(turn()?);
    }
    Ok(best)
}

#[for_every_backend(timed)]
fn f2_a_dequeue_costs_no_more_for_each_port_that_the_thread_has_used(
    backend: Backend,
) -> io::Result<()> {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let many = 3000.min((raise_limit()? - 200) / 4);
    let few = dequeuing_in_turn(backend, 100)?;
    let many = dequeuing_in_turn(backend, many)?;
    // More memory is used, which the processor's caches do not hold.
    assert!(
        many < few * 8,
        "{few:?} with a hundred, and {many:?} with many"
    );
    Ok(())
}
