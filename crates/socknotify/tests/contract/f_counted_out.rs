//! F6. Threads that run while nobody dequeues are counted out.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use socknotify::{Backend, CompletionPort, Entry, EventFilter, Events, Registration, WakePolicy};

use super::f_places::with_a_place;
use crate::support::{
    CloseAtEnd, Gate, PATIENCE, SHORT, SetAtEnd, counted, expect, expect_packets, expect_removed,
    port_with, tcp_streams, trigger, wait_for_waiting, wait_in_vain, wait_until,
};

const PACKET: Entry = Entry::new(51, 0, 0);

/// A port with this many places, which threads that block leave by themselves.
pub(super) fn detecting_port(
    backend: Backend,
    places: usize,
    policy: WakePolicy,
) -> io::Result<CompletionPort> {
    let builder = CompletionPort::builder().backend(backend);
    Ok(builder.concurrency(places).wake_policy(policy).build()?)
}

/// Computes until this holds, and longer than any wait of the port's own. Returns the time for which the thread was not on a
/// processor meanwhile.
#[track_caller]
pub(super) fn compute_until(what: &str, mut condition: impl FnMut() -> bool) -> Duration {
    let begin = Instant::now();
    let (mut before, mut lost) = (Duration::ZERO, Duration::ZERO);
    while !condition() {
        let now = begin.elapsed();
        assert!(now < PATIENCE, "this does not come about: {what}");
        // More than a turn takes.
        let gap = now - before;
        if gap > Duration::from_micros(100) {
            lost += gap;
        }
        before = now;
        std::hint::spin_loop();
    }
    lost
}

/// All places are taken by threads that do this until the test ends. Returns how long a packet waits, and the next.
fn beside_holders(
    backend: Backend,
    places: usize,
    hold: impl Fn(&AtomicBool) + Sync,
) -> io::Result<[Duration; 2]> {
    let port = detecting_port(backend, places, WakePolicy::default())?;
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| -> io::Result<[Duration; 2]> {
        let _close = CloseAtEnd(&port, &[]);
        let _end = SetAtEnd(&is_over);
        let (port, hold, is_over) = (&port, &hold, &is_over);
        let (tell, told) = channel();
        for _ in 0..places {
            scope.spawn(|| {
                port.dequeue_one(None).expect("a packet");
                hold(is_over);
            });
        }
        wait_for_waiting(port, places);
        port.post_all(&vec![PACKET; places])?;
        wait_until("all places are taken, or were", || {
            port.snapshot().queued == 0 && port.snapshot().waiting == 0
        });
        for _ in 0..2 {
            let tell = tell.clone();
            scope.spawn(move || {
                while port.dequeue_one(None).is_ok() {
                    tell.send(Instant::now()).expect("someone listens");
                }
            });
        }
        wait_for_waiting(port, 2);
        let mut times = [Duration::ZERO; 2];
        for time in &mut times {
            let begin = Instant::now();
            port.post(PACKET)?;
            *time = told.recv_timeout(PATIENCE).expect("a place for it") - begin;
        }
        Ok(times)
    })
}

#[for_every_backend(with_places)]
fn f6_packets_do_not_wait_for_threads_that_compute(backend: Backend) -> io::Result<()> {
    for places in [1, 2, 8] {
        let times = beside_holders(backend, places, |is_over| {
            while !is_over.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        })?;
        println!("{places}: {times:?}");
    }
    Ok(())
}

/// Nothing shows what it does: it runs in the kernel.
#[for_every_backend(with_places)]
fn f6_packets_do_not_wait_for_threads_that_fault_pages(backend: Backend) -> io::Result<()> {
    let times = beside_holders(backend, 2, |is_over| {
        while !is_over.load(Ordering::Relaxed) {
            std::hint::black_box(vec![1_u8; 1 << 22]);
        }
    })?;
    println!("{times:?}");
    Ok(())
}

/// On systems that show nothing of threads, too.
#[for_every_backend(with_places)]
fn f6_packets_do_not_wait_for_threads_that_sleep(backend: Backend) -> io::Result<()> {
    let times = beside_holders(backend, 2, |is_over| {
        while !is_over.load(Ordering::Relaxed) {
            thread::sleep(SHORT);
        }
    })?;
    println!("{times:?}");
    Ok(())
}

/// One that was counted out has no place any more, and needs one to dequeue.
#[for_every_backend(with_places)]
fn f6_a_thread_that_was_counted_out_needs_a_place(backend: Backend) -> io::Result<()> {
    for _ in 0..10 {
        if needs_a_place_once_counted_out(backend)? {
            return Ok(());
        }
    }
    panic!("this thread looks blocked each time");
}

/// False if the thread was found to block instead: one that is kept from the processors can look so.
fn needs_a_place_once_counted_out(backend: Backend) -> io::Result<bool> {
    let port = detecting_port(backend, 1, WakePolicy::Eager)?;
    let gate = Gate::new();
    thread::scope(|scope| {
        let gates = [&gate];
        let _close = CloseAtEnd(&port, &gates);
        port.post_all(&[PACKET; 2])?;
        port.dequeue_one(None)?;
        let other = scope.spawn(|| {
            port.dequeue_one(None).expect("a packet");
            gate.pass();
        });
        compute_until("this thread has lost its place", || {
            port.snapshot().queued == 0
        });
        if port.snapshot().counted_out == Some(0) {
            return Ok(false);
        }
        assert_eq!(counted(port.snapshot().counted_out), 1);
        // The scoped call gives it none.
        port.blocking(|| ());
        assert_eq!(counted(port.snapshot().counted_out), 1);
        port.post(PACKET)?;
        // The other one blocks, and is found to do so; before that, this one has no place.
        gate.open(1);
        other.join().expect("no panic");
        expect_packets(&port, &[PACKET]);
        assert_eq!(counted(port.snapshot().counted_out), 0);
        assert_eq!(counted(port.snapshot().running), 1);
        Ok(true)
    })
}

/// Where detection is off, and without a limit, nobody is counted out.
#[for_every_backend(with_places)]
fn f6_without_detection_nobody_is_counted_out(backend: Backend) -> io::Result<()> {
    let port = port_with(backend, 1)?;
    with_a_place(&port, || {
        thread::scope(|scope| {
            let waiting = scope.spawn(|| wait_in_vain(&port, 5 * SHORT));
            waiting.join().expect("no panic");
        });
        assert_eq!(counted(port.snapshot().counted_out), 0);
        assert_eq!(counted(port.snapshot().running), 1);
    })?;
    Ok(())
}

/// A thread that polls has a place, and nothing to do. It watches one that computes; and the third, which has no place, needs
/// none.
#[for_every_backend(with_places)]
fn f6_nobody_is_counted_out_while_another_polls(backend: Backend) -> io::Result<()> {
    const KEY: usize = 52;
    let port = detecting_port(backend, 2, WakePolicy::Eager)?;
    // Once a level was delivered, those that poll watch those that have packets.
    let (ours, _theirs) = tcp_streams()?;
    let (filter, trigger) = (EventFilter::OUT, trigger::LEVEL);
    port.register(Registration::enable(&ours, KEY, filter, trigger))?;
    expect(&port, &[(KEY, Events::OUT)]);
    expect_removed(&port, &ours.into(), KEY)?;
    thread::scope(|scope| -> io::Result<()> {
        let _close = CloseAtEnd(&port, &[]);
        let wait = || port.dequeue_one(None).expect_err("it is closed");
        for waiting in 1..=2 {
            scope.spawn(wait);
            compute_until("it waits", || {
                // Unless this thread was seen to block, in the port's locks.
                let snapshot = port.snapshot();
                let is_watched = snapshot.is_watched || snapshot.left > Some(0);
                snapshot.waiting == waiting && is_watched
            });
        }
        let begin = Instant::now();
        compute_until("nobody is counted out", || {
            assert_eq!(counted(port.snapshot().counted_out), 0);
            begin.elapsed() > 5 * SHORT
        });
        Ok(())
    })
}
