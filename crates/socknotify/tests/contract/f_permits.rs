//! F2, F4. Permits: how many threads run, who holds one, and who lends it.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use socknotify::{
    Backend, CompletionPort, Entry, Error, EventFilter, Events, Registration, WakePolicy,
};

use crate::support::trigger::{LEVEL, ONCE};
use crate::support::{
    CloseAtEnd, Gate, PATIENCE, Pair, PortExt, QUIET_PERIOD, SHORT, ThreadId, asleep, counted,
    expect_idle, expect_no_early_end, expect_nothing, expect_packets, port_with, quiet_threads,
    rounds, this_thread, thread_time, wait_for_waiting, wait_in_vain, wait_until, waking_port,
};

const PACKET: Entry = Entry::new(51, 0, 0);

/// Eight threads handle twenty packets, each of which takes until the gate is opened for it.
fn run_eight_threads(
    port: &CompletionPort,
    permits: usize,
    make_packets: impl FnOnce() -> io::Result<()>,
) -> io::Result<()> {
    const THREADS: usize = 8;
    const PACKETS: usize = 20;
    let gate = Gate::new();
    let [running, most, handled] = [const { AtomicUsize::new(0) }; 3];
    let work = |tell: Sender<ThreadId>| {
        tell.send(this_thread()).expect("someone listens");
        while port.dequeue_one(None).is_ok() {
            let now = running.fetch_add(1, Ordering::SeqCst) + 1;
            most.fetch_max(now, Ordering::SeqCst);
            gate.pass();
            running.fetch_sub(1, Ordering::SeqCst);
            handled.fetch_add(1, Ordering::SeqCst);
        }
    };
    thread::scope(|scope| -> io::Result<()> {
        let gates = [&gate];
        let _close = CloseAtEnd(port, &gates);
        let (tell, told) = channel();
        for _ in 0..THREADS {
            let tell = tell.clone();
            scope.spawn(move || work(tell));
        }
        let threads: Vec<ThreadId> = told.iter().take(THREADS).collect();
        wait_for_waiting(port, THREADS);
        make_packets()?;
        for done in 0..=PACKETS {
            let busy = permits.min(PACKETS - done);
            wait_until("all permits are taken again", || {
                handled.load(Ordering::SeqCst) == done && running.load(Ordering::SeqCst) == busy
            });
            // Nobody else is on the way: all are asleep, at the gate or in the port.
            wait_for_waiting(port, THREADS - busy);
            asleep(threads.iter().copied());
            assert_eq!(running.load(Ordering::SeqCst), busy);
            assert_eq!(counted(port.snapshot().running), busy);
            gate.open(1);
        }
        assert_eq!(most.load(Ordering::SeqCst), permits);
        Ok(())
    })
}

#[for_every_backend(with_permits)]
fn f2_no_more_threads_run_than_there_are_permits(backend: Backend) -> io::Result<()> {
    for permits in [1, 2, 3, 7] {
        let port = port_with(backend, permits)?;
        run_eight_threads(&port, permits, || {
            for _ in 0..20 {
                port.post(PACKET)?;
            }
            Ok(())
        })?;
    }
    for permits in [1, 2, 3, 7] {
        let port = port_with(backend, permits)?;
        run_eight_threads(&port, permits, || Ok(port.post_all(&[PACKET; 20])?))?;
    }
    Ok(())
}

#[for_every_backend(with_permits)]
fn f2_no_more_threads_run_than_there_are_permits_when_sockets_become_ready(
    backend: Backend,
) -> io::Result<()> {
    for permits in [1, 2, 3, 7] {
        let port = port_with(backend, permits)?;
        let pairs = (0..20)
            .map(|_| Pair::unix())
            .collect::<io::Result<Vec<_>>>()?;
        for (key, pair) in pairs.iter().enumerate() {
            port.enable(&pair.ours, key, EventFilter::IN, ONCE)?;
        }
        run_eight_threads(&port, permits, || pairs.iter().try_for_each(Pair::send))?;
    }
    Ok(())
}

/// The permit of a port that has one is taken by this thread's packet, and stays taken.
#[track_caller]
fn assert_permit_taken(port: &CompletionPort) {
    assert_eq!(counted(port.snapshot().running), 1);
    let look = thread::scope(|scope| {
        let other = scope.spawn(|| port.dequeue_one(Some(Duration::ZERO)));
        other.join().expect("no panic")
    });
    assert_eq!(look, Err(Error::TimedOut));
}

/// The permit is free: another thread gets the packet that waits.
#[track_caller]
fn assert_permit_free(port: &CompletionPort) {
    let look = thread::scope(|scope| {
        let other = scope.spawn(|| port.dequeue_one(Some(PATIENCE)));
        other.join().expect("no panic")
    });
    assert_eq!(look, Ok(PACKET));
}

#[for_every_backend(with_permits)]
fn f2_a_thread_keeps_its_permit_whatever_else_it_calls(backend: Backend) -> io::Result<()> {
    let port = port_with(backend, 1)?;
    let pair = Pair::unix()?;
    port.post_all(&[PACKET; 2])?;
    port.dequeue_one(None)?;
    assert_permit_taken(&port);
    port.post(PACKET)?;
    assert_permit_taken(&port);
    let enable = || Registration::enable(&pair.ours, 1, EventFilter::IN, LEVEL);
    port.register(enable())?;
    pair.send()?;
    assert_permit_taken(&port);
    port.process(&mut [enable()], &mut [], Some(Duration::ZERO))?;
    assert_permit_taken(&port);
    // Calls that fail dequeue nothing either.
    let failed = port.process(&mut [enable()], &mut [], None);
    assert_eq!(failed, Err(Error::InvalidParameter));
    let failed = port.dequeue(&mut [], None);
    assert_eq!(failed, Err(Error::InvalidParameter));
    assert_permit_taken(&port);
    Ok(())
}

#[for_every_backend(with_permits)]
fn f2_a_thread_that_dequeues_again_changes_one_permit_for_another(
    backend: Backend,
) -> io::Result<()> {
    let port = port_with(backend, 1)?;
    for timeout in [None, Some(PATIENCE), Some(Duration::ZERO)] {
        port.post_all(&[PACKET; 101])?;
        for _ in 0..100 {
            assert_eq!(port.dequeue_one(timeout)?, PACKET);
            assert_eq!(counted(port.snapshot().running), 1);
        }
        assert_permit_taken(&port);
        port.dequeue_one(timeout)?;
    }
    Ok(())
}

#[for_every_backend(with_permits)]
fn f2_many_packets_in_hand_are_one_permit(backend: Backend) -> io::Result<()> {
    let port = port_with(backend, 2)?;
    port.post_all(&[PACKET; 10])?;
    assert_eq!(port.dequeue(&mut [PACKET; 9], None)?.len(), 9);
    assert_eq!(counted(port.snapshot().running), 1);
    assert_permit_free(&port);
    Ok(())
}

#[for_every_backend(with_permits)]
fn f2_a_thread_that_waits_in_vain_holds_no_permit(backend: Backend) -> io::Result<()> {
    let port = port_with(backend, 1)?;
    for timeout in [Duration::ZERO, Duration::from_millis(1)] {
        port.post(PACKET)?;
        port.dequeue_one(None)?;
        assert_eq!(counted(port.snapshot().running), 1);
        assert_eq!(port.dequeue_one(Some(timeout)), Err(Error::TimedOut));
        assert_eq!(counted(port.snapshot().running), 0);
        port.post(PACKET)?;
        assert_permit_free(&port);
    }
    Ok(())
}

#[for_every_backend(with_permits)]
fn f2_a_thread_that_ends_gives_its_permit_back(backend: Backend) -> io::Result<()> {
    let port = port_with(backend, 1)?;
    for _ in 0..20 {
        port.post_all(&[PACKET; 2])?;
        let gate = Gate::new();
        thread::scope(|scope| {
            let gates = [&gate];
            let close = CloseAtEnd(&port, &gates);
            let first = scope.spawn(|| {
                port.dequeue_one(None).expect("a packet");
            });
            // Whether the next one waits already when the permit becomes free, or comes later.
            first.join().expect("no panic");
            assert_eq!(counted(port.snapshot().running), 0);
            let second = scope.spawn(|| {
                port.dequeue_one(None).expect("a packet");
                gate.pass();
            });
            wait_until("the permit is taken", || {
                counted(port.snapshot().running) == 1
            });
            let third = scope.spawn(|| port.dequeue_one(Some(PATIENCE)));
            wait_for_waiting(&port, 1);
            port.post(PACKET).expect("an open port");
            gate.open(1);
            second.join().expect("no panic");
            assert_eq!(third.join().expect("no panic"), Ok(PACKET));
            std::mem::forget(close);
        });
        assert_eq!(counted(port.snapshot().running), 0);
    }
    Ok(())
}

#[for_every_backend(with_permits)]
fn f2_a_thread_that_panics_gives_its_permit_back(backend: Backend) -> io::Result<()> {
    let port = port_with(backend, 1)?;
    port.post_all(&[PACKET; 2])?;
    thread::scope(|scope| {
        let first = scope.spawn(|| {
            port.dequeue_one(None).expect("a packet");
            // Without a message on the test's output.
            std::panic::resume_unwind(Box::new("on purpose"));
        });
        assert!(first.join().is_err());
    });
    assert_eq!(counted(port.snapshot().running), 0);
    assert_permit_free(&port);
    Ok(())
}

#[for_every_backend(with_permits)]
fn f2_a_thread_that_dequeues_elsewhere_gives_its_permit_back(backend: Backend) -> io::Result<()> {
    let (here, there) = (port_with(backend, 1)?, port_with(backend, 1)?);
    for _ in 0..3 {
        here.post_all(&[PACKET; 2])?;
        here.dequeue_one(None)?;
        assert_permit_taken(&here);
        // Whether something comes from there or not.
        there
            .dequeue_one(Some(Duration::ZERO))
            .expect_err("no packet");
        assert_eq!(counted(here.snapshot().running), 0);
        assert_permit_free(&here);

        here.post_all(&[PACKET; 2])?;
        here.dequeue_one(None)?;
        there.post(PACKET)?;
        thread::scope(|scope| -> io::Result<()> {
            let waiting = scope.spawn(|| here.dequeue_one(Some(PATIENCE)));
            wait_for_waiting(&here, 1);
            there.dequeue_one(None)?;
            assert_eq!(waiting.join().expect("no panic"), Ok(PACKET));
            Ok(())
        })?;
        assert_eq!(counted(there.snapshot().running), 1);
        here.dequeue_one(Some(Duration::ZERO))
            .expect_err("no packet");
        assert_eq!(counted(there.snapshot().running), 0);
    }
    Ok(())
}

#[for_every_backend(with_permits)]
fn f2_packets_wait_while_all_permits_are_taken(backend: Backend) -> io::Result<()> {
    let port = port_with(backend, 1)?;
    port.post_all(&[PACKET; 5])?;
    port.dequeue_one(None)?;
    thread::scope(|scope| {
        let others = [Duration::ZERO, Duration::from_millis(1), QUIET_PERIOD].map(|timeout| {
            let port = &port;
            scope.spawn(move || port.dequeue_one(Some(timeout)))
        });
        for other in others {
            assert_eq!(other.join().expect("no panic"), Err(Error::TimedOut));
        }
    });
    assert_eq!(port.snapshot().queued, 4);
    assert_eq!(counted(port.snapshot().running), 1);
    expect_packets(&port, &[PACKET; 4]);
    Ok(())
}

#[for_every_backend(with_permits)]
fn f2_a_ready_socket_waits_while_all_permits_are_taken(backend: Backend) -> io::Result<()> {
    let port = port_with(backend, 1)?;
    let pair = Pair::unix()?;
    port.enable(&pair.ours, 1, EventFilter::IN, ONCE)?;
    port.post(PACKET)?;
    port.dequeue_one(None)?;
    thread::scope(|scope| -> io::Result<()> {
        let close = CloseAtEnd(&port, &[]);
        let (tell, told) = channel();
        let port = &port;
        let waiting = scope.spawn(move || {
            tell.send(this_thread()).expect("someone listens");
            port.dequeue_one(Some(PATIENCE))
        });
        let thread = told.recv().expect("a thread");
        wait_for_waiting(port, 1);
        asleep([thread]);
        pair.send()?;
        thread::sleep(QUIET_PERIOD);
        assert!(!waiting.is_finished());
        // The permit becomes free; and it is the other thread that waits for it.
        assert_eq!(counted(port.snapshot().running), 1);
        let other = port_with(backend, 1)?;
        other
            .dequeue_one(Some(Duration::ZERO))
            .expect_err("no packet");
        let entry = waiting.join().expect("no panic")?;
        assert_eq!((entry.completion_key, entry.events()), (1, Events::IN));
        std::mem::forget(close);
        Ok(())
    })
}

/// A socket that is ready all the time must not keep those busy who wait for a permit.
#[for_every_backend(with_permits)]
fn f2_waiting_for_a_permit_costs_no_time(backend: Backend) -> io::Result<()> {
    let port = port_with(backend, 1)?;
    let pair = Pair::unix()?;
    pair.send()?;
    port.enable(&pair.ours, 1, EventFilter::IN, LEVEL)?;
    port.dequeue_one(None)?;
    port.post(PACKET)?;
    expect_idle(|| quiet_threads(&port, 4, QUIET_PERIOD * 4));
    Ok(())
}

/// What one of those used who waited already when the permit was taken.
fn waiting_since_before(backend: Backend) -> io::Result<Duration> {
    const TIME: Duration = SHORT.saturating_mul(15);
    let port = port_with(backend, 1)?;
    let pair = Pair::unix()?;
    port.enable(&pair.ours, 1, EventFilter::IN, LEVEL)?;
    let gate = Gate::new();
    thread::scope(|scope| {
        let gates = [&gate];
        let close = CloseAtEnd(&port, &gates);
        let wait = || {
            let before = thread_time();
            let result = port.dequeue_one(None);
            let spent = thread_time() - before;
            if result.is_ok() {
                gate.pass();
            }
            (result, spent)
        };
        let threads: Vec<_> = (0..5).map(|_| scope.spawn(wait)).collect();
        wait_for_waiting(&port, 5);
        port.post(PACKET)?;
        wait_until("the permit is taken", || {
            counted(port.snapshot().running) == 1
        });
        pair.send()?;
        thread::sleep(TIME);
        drop(close);
        let results = threads
            .into_iter()
            .map(|thread| thread.join().expect("no panic"));
        let (taken, rest): (Vec<_>, Vec<_>) = results.partition(|(result, _)| result.is_ok());
        assert_eq!((taken.len(), rest.len()), (1, 4));
        let spent = rest.into_iter().map(|(result, spent)| {
            assert_eq!(result, Err(Error::Closed));
            spent
        });
        Ok(spent.max().expect("four"))
    })
}

#[for_every_backend(with_permits)]
fn f2_waiting_for_a_permit_costs_no_time_since_before_it_was_taken(
    backend: Backend,
) -> io::Result<()> {
    expect_idle(|| waiting_since_before(backend).expect("no call fails"));
    Ok(())
}

/// Runs `work` on a thread that holds the only permit, with a packet left in the queue.
pub(super) fn with_a_permit<R: Send>(
    port: &CompletionPort,
    work: impl FnOnce() -> R + Send,
) -> Result<R, Error> {
    port.post_all(&[PACKET; 2])?;
    thread::scope(|scope| {
        let worker = scope.spawn(|| {
            port.dequeue_one(None)?;
            Ok(work())
        });
        worker.join().expect("no panic")
    })
}

#[for_every_backend(with_permits)]
fn f4_a_blocking_thread_lends_its_permit(backend: Backend) -> io::Result<()> {
    let port = port_with(backend, 1)?;
    // To a thread that comes later.
    let value = with_a_permit(&port, || {
        assert_permit_taken(&port);
        port.blocking(|| {
            assert_eq!(counted(port.snapshot().running), 0);
            assert_permit_free(&port);
            "the value of the work"
        })
    })?;
    assert_eq!(value, "the value of the work");

    // And to one that waits already.
    port.post(PACKET)?;
    port.dequeue_one(None)?;
    thread::scope(|scope| -> io::Result<()> {
        let waiting = scope.spawn(|| port.dequeue_one(Some(PATIENCE)));
        wait_for_waiting(&port, 1);
        port.post(PACKET)?;
        thread::sleep(QUIET_PERIOD);
        assert!(!waiting.is_finished());
        port.blocking(|| assert_eq!(waiting.join().expect("no panic"), Ok(PACKET)));
        Ok(())
    })
}

#[for_every_backend(with_permits)]
fn f4_the_permit_is_back_when_the_scope_ends(backend: Backend) -> io::Result<()> {
    let port = port_with(backend, 1)?;
    let gate = Gate::new();
    thread::scope(|scope| -> io::Result<()> {
        let gates = [&gate];
        let _close = CloseAtEnd(&port, &gates);
        port.post_all(&[PACKET; 3])?;
        port.dequeue_one(None)?;
        let other = port.blocking(|| {
            let other = scope.spawn(|| {
                port.dequeue_one(None).expect("a packet");
                gate.pass();
                port.dequeue_one(Some(QUIET_PERIOD))
            });
            wait_until("the permit is lent", || {
                counted(port.snapshot().running) == 1
            });
            other
        });
        // At once, even though that makes one too many for a while.
        assert_eq!(counted(port.snapshot().running), 2);
        gate.open(1);
        // Then the other has to wait.
        assert_eq!(other.join().expect("no panic"), Err(Error::TimedOut));
        assert_eq!(counted(port.snapshot().running), 1);
        assert_permit_taken(&port);
        Ok(())
    })
}

#[for_every_backend(with_permits)]
fn f4_a_scope_in_a_scope_changes_nothing(backend: Backend) -> io::Result<()> {
    let port = port_with(backend, 2)?;
    port.post_all(&[PACKET; 2])?;
    port.dequeue_one(None)?;
    assert_eq!(counted(port.snapshot().running), 1);
    port.blocking(|| {
        assert_eq!(counted(port.snapshot().running), 0);
        port.blocking(|| {
            port.blocking(|| assert_eq!(counted(port.snapshot().running), 0));
            assert_eq!(counted(port.snapshot().running), 0);
        });
        // It is the outer scope's end that counts.
        assert_eq!(counted(port.snapshot().running), 0);
    });
    assert_eq!(counted(port.snapshot().running), 1);
    port.blocking(|| assert_eq!(counted(port.snapshot().running), 0));
    assert_eq!(counted(port.snapshot().running), 1);
    Ok(())
}

#[for_every_backend(with_permits)]
fn f4_a_panic_in_the_scope_ends_it(backend: Backend) -> io::Result<()> {
    let port = port_with(backend, 1)?;
    port.post_all(&[PACKET; 2])?;
    port.dequeue_one(None)?;
    let panic = catch_unwind(AssertUnwindSafe(|| {
        port.blocking(|| {
            port.blocking(|| std::panic::resume_unwind(Box::new("on purpose")));
        });
    }));
    assert!(panic.is_err());
    assert_permit_taken(&port);
    port.dequeue_one(None)?;
    expect_nothing(&port);
    assert_eq!(counted(port.snapshot().running), 0);
    Ok(())
}

#[for_every_backend(with_permits)]
fn f4_without_a_permit_it_only_runs_the_work(backend: Backend) -> io::Result<()> {
    let port = port_with(backend, 1)?;
    assert_eq!(port.blocking(|| 7), 7);
    assert_eq!(counted(port.snapshot().running), 0);
    // Another thread holds the permit; this one has none to lend.
    with_a_permit(&port, || {
        thread::scope(|scope| {
            let other = scope.spawn(|| port.blocking(|| assert_permit_taken(&port)));
            other.join().expect("no panic");
        });
        assert_permit_taken(&port);
    })?;
    // Nor has one whose wait was in vain.
    expect_packets(&port, &[PACKET]);
    expect_nothing(&port);
    port.blocking(|| assert_eq!(counted(port.snapshot().running), 0));
    assert_eq!(counted(port.snapshot().running), 0);
    Ok(())
}

#[for_every_backend(with_permits)]
fn f4_it_is_about_the_permits_of_this_port_only(backend: Backend) -> io::Result<()> {
    let (here, there) = (port_with(backend, 1)?, port_with(backend, 1)?);
    here.post_all(&[PACKET; 2])?;
    here.dequeue_one(None)?;
    there.blocking(|| assert_permit_taken(&here));
    assert_eq!(counted(there.snapshot().running), 0);
    here.blocking(|| there.blocking(|| assert_permit_free(&here)));
    assert_eq!(counted(here.snapshot().running), 1);
    assert_eq!(counted(there.snapshot().running), 0);
    Ok(())
}

/// A thread holds one permit at most. Open in the contract: what a thread holds that has dequeued in
/// the scope. It is what it would be without the scope.
#[for_every_backend(with_permits)]
fn f4_dequeuing_in_the_scope_leaves_one_permit_taken(backend: Backend) -> io::Result<()> {
    let (here, there) = (port_with(backend, 2)?, port_with(backend, 2)?);
    here.post_all(&[PACKET; 2])?;
    here.dequeue_one(None)?;
    here.blocking(|| {
        here.dequeue_one(None).expect("a packet");
        assert_eq!(counted(here.snapshot().running), 1);
    });
    assert_eq!(counted(here.snapshot().running), 1);
    expect_nothing(&here);
    assert_eq!(counted(here.snapshot().running), 0);

    here.post(PACKET)?;
    there.post(PACKET)?;
    here.dequeue_one(None)?;
    here.blocking(|| there.dequeue_one(None).expect("a packet"));
    assert_eq!(counted(here.snapshot().running), 0);
    assert_eq!(counted(there.snapshot().running), 1);
    expect_nothing(&here);
    assert_eq!(counted(here.snapshot().running), 0);
    assert_eq!(counted(there.snapshot().running), 0);
    Ok(())
}

#[for_every_backend(with_permits)]
fn f4_a_port_closed_in_the_scope_is_no_trouble(backend: Backend) -> io::Result<()> {
    let (first, second) = (port_with(backend, 1)?, port_with(backend, 1)?);
    first.post(PACKET)?;
    first.dequeue_one(None)?;
    first.blocking(|| first.close());
    assert_eq!(first.dequeue_one(None), Err(Error::Closed));
    assert_eq!(first.blocking(|| 7), 7);
    drop(first);
    second.post(PACKET)?;
    expect_packets(&second, &[PACKET]);
    assert_eq!(counted(second.snapshot().running), 1);
    Ok(())
}

#[for_every_backend(with_permits)]
fn e4_a_wait_for_a_permit_never_ends_early(backend: Backend) -> io::Result<()> {
    let port = port_with(backend, 1)?;
    port.post(PACKET)?;
    let gate = Gate::new();
    thread::scope(|scope| {
        let gates = [&gate];
        let _close = CloseAtEnd(&port, &gates);
        scope.spawn(|| {
            port.dequeue_one(None).expect("a packet");
            port.post(PACKET).expect("an open port");
            gate.pass();
        });
        wait_until("the permit is taken and a packet waits", || {
            let snapshot = port.snapshot();
            counted(snapshot.running) == 1 && snapshot.queued == 1
        });
        expect_no_early_end(&port);
    });
    Ok(())
}

#[for_every_backend(with_permits)]
fn e4_a_wait_ends_in_time_however_long_others_may_run(backend: Backend) -> io::Result<()> {
    for time in [PATIENCE, Duration::MAX] {
        let port = waking_port(backend, 2, WakePolicy::Bounded(time))?;
        port.post(PACKET)?;
        port.dequeue_one(None)?;
        // While this thread runs, the other one watches it.
        thread::scope(|scope| {
            let watching = scope.spawn(|| {
                let begin = Instant::now();
                wait_in_vain(&port, SHORT);
                begin.elapsed()
            });
            let elapsed = watching.join().expect("no panic");
            assert!(elapsed < PATIENCE, "{elapsed:?}");
        });
    }
    Ok(())
}

#[for_every_backend(with_permits)]
fn g4_closing_releases_threads_that_wait_for_a_permit(backend: Backend) -> io::Result<()> {
    let port = port_with(backend, 1)?;
    port.post_all(&[Entry::default(); 5])?;
    port.dequeue_one(None)?;
    thread::scope(|scope| {
        let threads: Vec<_> = (0..5)
            .map(|_| scope.spawn(|| port.dequeue_one(None)))
            .collect();
        wait_for_waiting(&port, 5);
        // Packets that were not dequeued are lost.
        port.close();
        for thread in threads {
            assert_eq!(thread.join().expect("no panic"), Err(Error::Closed));
        }
    });
    assert_eq!(port.dequeue_one(Some(Duration::ZERO)), Err(Error::Closed));
    Ok(())
}

/// By the wake policy a socket that becomes ready may be left to a thread that comes back for it soon, or wake the one that
/// waits: it comes to one of the two, once. What is posted does not wait.
#[for_every_backend(with_permits)]
fn f5_a_socket_comes_to_a_thread_that_runs_or_one_that_waits(backend: Backend) -> io::Result<()> {
    let port = waking_port(backend, 2, WakePolicy::Bounded(PATIENCE))?;
    let pairs = [Pair::unix()?, Pair::unix()?];
    let enable = |key: usize| Registration::enable(&pairs[key].ours, key, EventFilter::IN, ONCE);
    port.register(enable(0))?;
    port.register(enable(1))?;
    let served = AtomicUsize::new(0);
    let serve = |entry: Entry| {
        let count = pairs[entry.completion_key]
            .drain()
            .expect("the peer is there");
        assert_eq!(count, 1);
        served.fetch_add(1, Ordering::SeqCst);
        enable(entry.completion_key)
    };
    thread::scope(|scope| -> io::Result<()> {
        let _close = CloseAtEnd(&port, &[]);
        pairs[0].send()?;
        let first = port.dequeue_one(Some(PATIENCE))?;
        let (tell, told) = std::sync::mpsc::channel();
        let (port, serve) = (&port, &serve);
        scope.spawn(move || {
            while let Ok(entry) = port.dequeue_one(None) {
                match entry == PACKET {
                    true => tell.send(()).expect("someone listens"),
                    false => port.register(serve(entry)).expect("it is open"),
                }
            }
        });
        wait_for_waiting(port, 1);
        let mut batch = vec![serve(first)];
        let mut entries = [Entry::default()];
        for round in 1..rounds(1000) {
            // It becomes ready while this thread runs.
            assert_eq!(pairs[round % 2].theirs.send(b"x")?, 1);
            wait_until("it is served", || {
                let dequeued = port.process(&mut batch, &mut entries, Some(Duration::ZERO));
                let next = dequeued.map(|found| serve(found[0]));
                batch.clear();
                batch.extend(next);
                served.load(Ordering::SeqCst) > round
            });
        }
        // While this thread runs.
        port.process(&mut batch, &mut [], Some(Duration::ZERO))?;
        port.post(PACKET)?;
        told.recv_timeout(PATIENCE).expect("it does not wait");
        Ok(())
    })
}

/// What a thread dequeues while it ends, in the destructor of something of its own.
#[for_every_backend(with_permits)]
fn f2_a_thread_that_has_ended_holds_no_permit(backend: Backend) -> io::Result<()> {
    struct Last(std::sync::Arc<CompletionPort>, Pair, Sender<bool>);
    impl Drop for Last {
        fn drop(&mut self) {
            let Last(port, pair, told) = self;
            let packet = port.dequeue_one(Some(Duration::ZERO)) == Ok(PACKET);
            let _ = port.dequeue_one(Some(Duration::ZERO));
            pair.send().expect("the peer is there");
            let ready = port.dequeue_one(Some(PATIENCE)).map(|it| it.events());
            let _ = told.send(packet && ready == Ok(Events::IN));
        }
    }
    thread_local! {
        static LAST: std::cell::RefCell<Option<Last>> = const { std::cell::RefCell::new(None) };
    }
    for is_strict in [true, false] {
        let builder = CompletionPort::builder().backend(backend).concurrency(1);
        let builder = if is_strict { builder.strict() } else { builder };
        let port = std::sync::Arc::new(builder.build()?);
        let (tell, told) = channel();
        port.post(PACKET)?;
        let pair = Pair::unix()?;
        port.enable(&pair.ours, 1, EventFilter::IN, LEVEL)?;
        let other = Pair {
            ours: pair.ours.try_clone()?,
            theirs: pair.theirs.try_clone()?,
        };
        let last = Last(port.clone(), other, tell);
        thread::spawn(move || {
            // What is made first is dropped last.
            LAST.set(Some(last));
            LAST.with_borrow(|last| {
                let port = &last.as_ref().expect("it is there").0;
                port.dequeue_one(Some(Duration::ZERO)).map(drop)
            })
            .expect("a packet");
            LAST.with_borrow(|last| last.as_ref().expect("it is there").0.post(PACKET))
        })
        .join()
        .expect("no panic")?;
        assert_eq!(told.recv_timeout(PATIENCE), Ok(true));
        // The socket is still ready.
        let entry = port.dequeue_one(Some(PATIENCE))?;
        assert_eq!(
            (entry.completion_key, entry.events()),
            (1, Events::IN),
            "strict: {is_strict}"
        );
        assert_eq!(counted(port.snapshot().running), 1);
    }
    Ok(())
}

/// The last word of a thread that blocks in the scope is not needed.
#[for_every_backend(with_permits)]
fn f4_who_dequeued_in_the_scope_keeps_no_other_from_a_permit(backend: Backend) -> io::Result<()> {
    let port = port_with(backend, 2)?;
    let served = AtomicUsize::new(0);
    thread::scope(|scope| -> io::Result<()> {
        let _close = CloseAtEnd(&port, &[]);
        scope.spawn(|| {
            while let Ok(entry) = port.dequeue_one(None) {
                assert_eq!(entry, PACKET);
                served.fetch_add(1, Ordering::SeqCst);
            }
        });
        let mut posted = 0;
        for _ in 0..rounds(4_000) {
            port.post(PACKET)?;
            posted += 1;
            let mut own = 0;
            port.blocking(|| {
                own += usize::from(port.dequeue_one(Some(Duration::ZERO)).is_ok());
                port.post(PACKET)
            })?;
            posted += 1 - own;
            // This thread has a permit at the most; the other one gets what is left.
            wait_until("the other thread has the rest", || {
                served.load(Ordering::SeqCst) == posted
            });
        }
        Ok(())
    })
}

/// A call within the destructor of what a handler has, which panics.
#[for_every_backend]
fn g6_a_thread_that_panics_dequeues_and_goes_on(backend: Backend) -> io::Result<()> {
    struct AtEnd<'a>(&'a CompletionPort, &'a Pair, Sender<usize>);

    impl Drop for AtEnd<'_> {
        fn drop(&mut self) {
            assert!(thread::panicking(), "on purpose");
            let AtEnd(port, pair, tell) = self;
            let enable = Registration::enable(&pair.ours, 2, EventFilter::OUT, ONCE);
            let mut entries = [Entry::default(); 2];
            let packets = port.process(&mut [enable], &mut entries, Some(PATIENCE));
            for entry in packets.expect("an open port") {
                tell.send(entry.completion_key).expect("someone listens");
            }
        }
    }

    for policy in [WakePolicy::Eager, WakePolicy::BOUNDED] {
        let port = waking_port(backend, 1, policy)?;
        let pair = Pair::unix()?;
        let (tell, told) = channel();
        thread::scope(|scope| -> io::Result<()> {
            let port = &port;
            port.post(PACKET)?;
            let panics = scope.spawn(|| {
                let work = || {
                    port.dequeue_one(None).expect("a packet");
                    let _at_end = AtEnd(port, &pair, tell);
                    // Not the hook, which prints it.
                    std::panic::resume_unwind(Box::new(()));
                };
                let panic = catch_unwind(AssertUnwindSafe(work));
                assert!(panic.is_err());
                expect_nothing(port);
            });
            panics.join().expect("only the one");
            assert_eq!(told.recv(), Ok(2));
            assert!(told.recv().is_err());
            // Nobody has the permit any more.
            port.post(PACKET)?;
            expect_packets(port, &[PACKET]);
            Ok(())
        })?;
    }
    Ok(())
}
