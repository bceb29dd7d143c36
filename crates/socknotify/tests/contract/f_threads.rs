//! F. Threads: how many run, who is released, and that none is forgotten.

use std::io::{self, Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::Duration;

use socknotify::{
    Backend, CompletionPort, Entry, Error, EventFilter, Events, Registration, default_concurrency,
};

use crate::support::trigger::{EDGE, LEVEL, ONCE};
use crate::support::{
    CloseAtEnd, GLANCE, Gate, PATIENCE, Pair, ThreadId, asleep, expect_nothing, expect_packets,
    port, port_with, this_thread, thread_time, voluntary_switches, wait_for_waiting, wait_until,
};

for_every_backend! {
    f1_any_number_of_threads_dequeue_register_and_post_at_once,
    f2_the_default_is_the_number_of_processors,
    f2_no_more_threads_run_than_there_are_places,
    f2_no_more_threads_run_than_there_are_places_when_sockets_become_ready,
    f2_a_thread_keeps_its_place_whatever_else_it_calls,
    f2_a_thread_that_dequeues_again_changes_one_place_for_another,
    f2_many_packets_in_hand_are_one_place,
    f2_a_thread_that_waits_in_vain_holds_no_place,
    f2_a_thread_that_ends_gives_its_place_back,
    f2_a_thread_that_panics_gives_its_place_back,
    f2_a_thread_that_dequeues_elsewhere_gives_its_place_back,
    f2_packets_wait_while_all_places_are_taken,
    f2_a_ready_socket_waits_while_all_places_are_taken,
    f2_waiting_for_a_place_costs_no_time,
    f2_waiting_for_a_place_costs_no_time_since_before_it_was_taken,
    f3_the_thread_that_came_last_is_released_first,
    f3_the_thread_that_came_last_is_released_first_without_a_pause,
    f3_the_thread_that_came_last_is_released_first_by_sockets_too,
    f3_the_thread_that_came_last_is_released_first_by_sockets_without_a_pause,
    f3_the_thread_that_came_back_last_is_released_again,
    f3_many_packets_at_once_go_to_those_who_came_last,
    f3_a_thread_that_gives_up_leaves_the_order_of_the_others,
    f3_holds_whatever_comes_and_goes,
    f4_a_blocking_thread_lends_its_place,
    f4_the_place_is_back_when_the_scope_ends,
    f4_a_scope_in_a_scope_changes_nothing,
    f4_a_panic_in_the_scope_ends_it,
    f4_without_a_place_it_only_runs_the_work,
    f4_it_is_about_the_places_of_this_port_only,
    f4_dequeuing_in_the_scope_leaves_one_place_taken,
    f4_a_port_closed_in_the_scope_is_no_trouble,
    f5_one_posted_packet_wakes_one_thread,
    f5_one_ready_socket_wakes_one_thread,
    f5_no_packet_is_left_behind,
    f5_no_packet_is_left_behind_by_threads_that_time_out,
    f5_no_packet_is_left_behind_by_threads_that_block_or_end,
    f5_no_ready_socket_is_left_behind,
    f5_no_request_waits_among_many_threads,
}

const PACKET: Entry = Entry::new(51, 0, 0);

/// Every thread registers a socket of its own, over and over, and handles whosever turn it is.
fn f1_any_number_of_threads_dequeue_register_and_post_at_once(backend: Backend) -> io::Result<()> {
    const THREADS: usize = 12;
    const ROUNDS: usize = 400;
    let port = port_with(backend, 3)?;
    let pairs = (0..THREADS)
        .map(|_| Pair::unix())
        .collect::<io::Result<Vec<_>>>()?;
    let free: Vec<_> = (0..THREADS).map(|_| AtomicBool::new(true)).collect();
    let [received, removed, posted] = [const { AtomicUsize::new(0) }; 3];
    let counts = [&received, &removed, &posted];
    let all_seen = || {
        let all = THREADS * ROUNDS;
        counts
            .iter()
            .all(|count| count.load(Ordering::SeqCst) == all)
    };

    let work = |me: usize| -> Result<(), Error> {
        let mut round = 0;
        loop {
            // Its REMOVE notification was dequeued, so it can be registered at once.
            if round < ROUNDS && free[me].swap(false, Ordering::SeqCst) {
                let enable = Registration::enable(&pairs[me].ours, me, EventFilter::IN, ONCE);
                assert_eq!(port.register(enable)?, Ok(()));
                (&pairs[me].theirs)
                    .write_all(b"x")
                    .expect("the peer can write");
                port.post(PACKET)?;
                round += 1;
            }
            let entry = match port.dequeue_one(Some(Duration::from_millis(1))) {
                Err(Error::TimedOut) => continue,
                result => result?,
            };
            if entry == PACKET {
                posted.fetch_add(1, Ordering::SeqCst);
                continue;
            }
            let key = entry.completion_key;
            if entry.events() == Events::IN {
                assert_eq!((&pairs[key].ours).read(&mut [0; 2]).expect("a byte"), 1);
                received.fetch_add(1, Ordering::SeqCst);
                assert_eq!(
                    port.register(Registration::remove(&pairs[key].ours))?,
                    Ok(())
                );
            } else {
                assert_eq!(entry.events(), Events::REMOVE);
                removed.fetch_add(1, Ordering::SeqCst);
                free[key].store(true, Ordering::SeqCst);
            }
        }
    };
    thread::scope(|scope| {
        let close = CloseAtEnd(&port, &[]);
        let threads: Vec<_> = (0..THREADS)
            .map(|me| scope.spawn(move || work(me)))
            .collect();
        wait_until("everything is seen once", all_seen);
        assert_eq!(port.snapshot().registrations, 0);
        drop(close);
        for thread in threads {
            assert_eq!(thread.join().expect("no panic"), Err(Error::Closed));
        }
    });
    Ok(())
}

fn f2_the_default_is_the_number_of_processors(backend: Backend) -> io::Result<()> {
    let processors = thread::available_parallelism()?.get();
    assert_eq!(default_concurrency(), processors);
    assert_eq!(port(backend)?.concurrency(), processors);
    assert_eq!(port_with(backend, 0)?.concurrency(), processors);
    assert_eq!(
        CompletionPort::with_concurrency(0)?.concurrency(),
        processors
    );
    for places in [1, 3, 1000] {
        assert_eq!(port_with(backend, places)?.concurrency(), places);
    }
    Ok(())
}

/// Eight threads handle twenty packets, each of which takes until the gate is opened for it.
fn run_eight_threads(
    port: &CompletionPort,
    places: usize,
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
        let _close = CloseAtEnd(port, &[&gate]);
        let (tell, told) = channel();
        for _ in 0..THREADS {
            let tell = tell.clone();
            scope.spawn(move || work(tell));
        }
        let threads: Vec<ThreadId> = told.iter().take(THREADS).collect();
        wait_for_waiting(port, THREADS);
        make_packets()?;
        for done in 0..=PACKETS {
            let busy = places.min(PACKETS - done);
            wait_until("all places are taken again", || {
                handled.load(Ordering::SeqCst) == done && running.load(Ordering::SeqCst) == busy
            });
            // Nobody else is on the way: all are asleep, at the gate or in the port.
            wait_for_waiting(port, THREADS - busy);
            threads.iter().copied().for_each(asleep);
            assert_eq!(running.load(Ordering::SeqCst), busy);
            assert_eq!(port.snapshot().running, busy);
            gate.open(1);
        }
        assert_eq!(most.load(Ordering::SeqCst), places);
        Ok(())
    })
}

fn f2_no_more_threads_run_than_there_are_places(backend: Backend) -> io::Result<()> {
    for places in [1, 2, 3, 7] {
        let port = port_with(backend, places)?;
        run_eight_threads(&port, places, || {
            for _ in 0..20 {
                port.post(PACKET)?;
            }
            Ok(())
        })?;
    }
    for places in [1, 2, 3, 7] {
        let port = port_with(backend, places)?;
        run_eight_threads(&port, places, || Ok(port.post_all(&[PACKET; 20])?))?;
    }
    Ok(())
}

fn f2_no_more_threads_run_than_there_are_places_when_sockets_become_ready(
    backend: Backend,
) -> io::Result<()> {
    for places in [1, 2, 3, 7] {
        let port = port_with(backend, places)?;
        let pairs = (0..20)
            .map(|_| Pair::unix())
            .collect::<io::Result<Vec<_>>>()?;
        for (key, pair) in pairs.iter().enumerate() {
            port.register(Registration::enable(&pair.ours, key, EventFilter::IN, ONCE))??;
        }
        run_eight_threads(&port, places, || pairs.iter().try_for_each(Pair::send))?;
    }
    Ok(())
}

/// The place of a port that has one is taken by this thread's packet, and stays taken.
#[track_caller]
fn assert_place_taken(port: &CompletionPort) {
    assert_eq!(port.snapshot().running, 1);
    let look = thread::scope(|scope| {
        let other = scope.spawn(|| port.dequeue_one(Some(Duration::ZERO)));
        other.join().expect("no panic")
    });
    assert_eq!(look, Err(Error::TimedOut));
}

/// The place is free: another thread gets the packet that waits.
#[track_caller]
fn assert_place_free(port: &CompletionPort) {
    let look = thread::scope(|scope| {
        let other = scope.spawn(|| port.dequeue_one(Some(PATIENCE)));
        other.join().expect("no panic")
    });
    assert_eq!(look, Ok(PACKET));
}

fn f2_a_thread_keeps_its_place_whatever_else_it_calls(backend: Backend) -> io::Result<()> {
    let port = port_with(backend, 1)?;
    let pair = Pair::unix()?;
    port.post_all(&[PACKET; 2])?;
    port.dequeue_one(None)?;
    assert_place_taken(&port);
    port.post(PACKET)?;
    assert_place_taken(&port);
    let enable = || Registration::enable(&pair.ours, 1, EventFilter::IN, LEVEL);
    port.register(enable())??;
    pair.send()?;
    assert_place_taken(&port);
    port.process(&mut [enable()], &mut [], Some(Duration::ZERO))?;
    assert_place_taken(&port);
    // Calls that fail dequeue nothing either.
    let failed = port.process(&mut [enable()], &mut [], None);
    assert_eq!(failed, Err(Error::InvalidParameter));
    let failed = port.dequeue(&mut [], None);
    assert_eq!(failed, Err(Error::InvalidParameter));
    assert_place_taken(&port);
    Ok(())
}

fn f2_a_thread_that_dequeues_again_changes_one_place_for_another(
    backend: Backend,
) -> io::Result<()> {
    let port = port_with(backend, 1)?;
    for timeout in [None, Some(PATIENCE), Some(Duration::ZERO)] {
        port.post_all(&[PACKET; 101])?;
        for _ in 0..100 {
            assert_eq!(port.dequeue_one(timeout)?, PACKET);
            assert_eq!(port.snapshot().running, 1);
        }
        assert_place_taken(&port);
        port.dequeue_one(timeout)?;
    }
    Ok(())
}

fn f2_many_packets_in_hand_are_one_place(backend: Backend) -> io::Result<()> {
    let port = port_with(backend, 2)?;
    port.post_all(&[PACKET; 10])?;
    assert_eq!(port.dequeue(&mut [PACKET; 9], None)?.len(), 9);
    assert_eq!(port.snapshot().running, 1);
    assert_place_free(&port);
    Ok(())
}

fn f2_a_thread_that_waits_in_vain_holds_no_place(backend: Backend) -> io::Result<()> {
    let port = port_with(backend, 1)?;
    for timeout in [Duration::ZERO, Duration::from_millis(1)] {
        port.post(PACKET)?;
        port.dequeue_one(None)?;
        assert_eq!(port.snapshot().running, 1);
        assert_eq!(port.dequeue_one(Some(timeout)), Err(Error::TimedOut));
        assert_eq!(port.snapshot().running, 0);
        port.post(PACKET)?;
        assert_place_free(&port);
    }
    Ok(())
}

fn f2_a_thread_that_ends_gives_its_place_back(backend: Backend) -> io::Result<()> {
    let port = port_with(backend, 1)?;
    for _ in 0..20 {
        port.post_all(&[PACKET; 2])?;
        let gate = Gate::new();
        thread::scope(|scope| {
            let close = CloseAtEnd(&port, &[&gate]);
            let first = scope.spawn(|| {
                port.dequeue_one(None).expect("a packet");
            });
            // Whether the next one waits already when the place becomes free, or comes later.
            first.join().expect("no panic");
            assert_eq!(port.snapshot().running, 0);
            let second = scope.spawn(|| {
                port.dequeue_one(None).expect("a packet");
                gate.pass();
            });
            wait_until("the place is taken", || port.snapshot().running == 1);
            let third = scope.spawn(|| port.dequeue_one(Some(PATIENCE)));
            wait_for_waiting(&port, 1);
            port.post(PACKET).expect("an open port");
            gate.open(1);
            second.join().expect("no panic");
            assert_eq!(third.join().expect("no panic"), Ok(PACKET));
            std::mem::forget(close);
        });
        assert_eq!(port.snapshot().running, 0);
    }
    Ok(())
}

fn f2_a_thread_that_panics_gives_its_place_back(backend: Backend) -> io::Result<()> {
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
    assert_eq!(port.snapshot().running, 0);
    assert_place_free(&port);
    Ok(())
}

fn f2_a_thread_that_dequeues_elsewhere_gives_its_place_back(backend: Backend) -> io::Result<()> {
    let (here, there) = (port_with(backend, 1)?, port_with(backend, 1)?);
    for _ in 0..3 {
        here.post_all(&[PACKET; 2])?;
        here.dequeue_one(None)?;
        assert_place_taken(&here);
        // Whether something comes from there or not.
        there
            .dequeue_one(Some(Duration::ZERO))
            .expect_err("no packet");
        assert_eq!(here.snapshot().running, 0);
        assert_place_free(&here);

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
        assert_eq!(there.snapshot().running, 1);
        here.dequeue_one(Some(Duration::ZERO))
            .expect_err("no packet");
        assert_eq!(there.snapshot().running, 0);
    }
    Ok(())
}

fn f2_packets_wait_while_all_places_are_taken(backend: Backend) -> io::Result<()> {
    let port = port_with(backend, 1)?;
    port.post_all(&[PACKET; 5])?;
    port.dequeue_one(None)?;
    thread::scope(|scope| {
        let others = [Duration::ZERO, Duration::from_millis(1), GLANCE].map(|timeout| {
            let port = &port;
            scope.spawn(move || port.dequeue_one(Some(timeout)))
        });
        for other in others {
            assert_eq!(other.join().expect("no panic"), Err(Error::TimedOut));
        }
    });
    assert_eq!(port.snapshot().queued, 4);
    assert_eq!(port.snapshot().running, 1);
    expect_packets(&port, &[PACKET; 4]);
    Ok(())
}

fn f2_a_ready_socket_waits_while_all_places_are_taken(backend: Backend) -> io::Result<()> {
    let port = port_with(backend, 1)?;
    let pair = Pair::unix()?;
    port.register(Registration::enable(&pair.ours, 1, EventFilter::IN, ONCE))??;
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
        asleep(thread);
        pair.send()?;
        thread::sleep(GLANCE);
        assert!(!waiting.is_finished());
        // The place becomes free; and it is the other thread that waits for it.
        assert_eq!(port.snapshot().running, 1);
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

/// A socket that is ready all the time must not keep those busy who wait for a place.
fn f2_waiting_for_a_place_costs_no_time(backend: Backend) -> io::Result<()> {
    let port = port_with(backend, 1)?;
    let pair = Pair::unix()?;
    pair.send()?;
    port.register(Registration::enable(&pair.ours, 1, EventFilter::IN, LEVEL))??;
    port.dequeue_one(None)?;
    port.post(PACKET)?;
    thread::scope(|scope| {
        let waiting: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let before = thread_time();
                    let result = port.dequeue_one(Some(GLANCE * 4));
                    (result, thread_time() - before)
                })
            })
            .collect();
        for thread in waiting {
            let (result, spent) = thread.join().expect("no panic");
            assert_eq!(result, Err(Error::TimedOut));
            assert!(spent < GLANCE / 5, "{spent:?}");
        }
    });
    Ok(())
}

/// The same for those who waited already when the place was taken.
fn f2_waiting_for_a_place_costs_no_time_since_before_it_was_taken(
    backend: Backend,
) -> io::Result<()> {
    let port = port_with(backend, 1)?;
    let pair = Pair::unix()?;
    port.register(Registration::enable(&pair.ours, 1, EventFilter::IN, LEVEL))??;
    let gate = Gate::new();
    thread::scope(|scope| -> io::Result<()> {
        let close = CloseAtEnd(&port, &[&gate]);
        let wait = || {
            let before = thread_time();
            let result = port.dequeue_one(Some(GLANCE * 10));
            let spent = thread_time() - before;
            if result.is_ok() {
                gate.pass();
            }
            (result, spent)
        };
        let threads: Vec<_> = (0..5).map(|_| scope.spawn(wait)).collect();
        wait_for_waiting(&port, 5);
        port.post(PACKET)?;
        wait_until("the place is taken", || port.snapshot().running == 1);
        pair.send()?;
        wait_until("the others have given up", || port.snapshot().waiting == 0);
        drop(close);
        let results = threads
            .into_iter()
            .map(|thread| thread.join().expect("no panic"));
        let (taken, rest): (Vec<_>, Vec<_>) = results.partition(|(result, _)| result.is_ok());
        assert_eq!((taken.len(), rest.len()), (1, 4));
        for (result, spent) in rest {
            assert_eq!(result, Err(Error::TimedOut));
            assert!(spent < GLANCE / 5, "{spent:?}");
        }
        Ok(())
    })
}

/// Threads that wait in a port, one after the other, and tell when they have dequeued.
struct Line<'scope, 'env> {
    scope: &'scope Scope<'scope, 'env>,
    port: &'env CompletionPort,
    arrivals: usize,
    tell: Sender<usize>,
    told: Receiver<usize>,
}

/// A thread in the line, with the system's number for it.
struct Waiter<'scope> {
    thread: ScopedJoinHandle<'scope, Result<Entry, Error>>,
    number: ThreadId,
}

impl Waiter<'_> {
    /// What it has dequeued, when it has ended.
    fn result(self) -> Result<Entry, Error> {
        self.thread.join().expect("no panic")
    }
}

impl<'scope, 'env> Line<'scope, 'env> {
    fn new(scope: &'scope Scope<'scope, 'env>, port: &'env CompletionPort) -> Self {
        let (tell, told) = channel();
        Line {
            scope,
            port,
            arrivals: 0,
            tell,
            told,
        }
    }

    /// One more thread comes to wait, and waits when this returns. It dequeues once, and ends, or
    /// waits at the gate with its packet in hand.
    #[track_caller]
    fn join(&mut self, timeout: Option<Duration>, gate: Option<&'env Gate>) -> Waiter<'scope> {
        let arrival = self.arrivals;
        self.arrivals += 1;
        let waiting = self.port.snapshot().waiting;
        let (tell, port) = (self.tell.clone(), self.port);
        let (tell_number, number) = channel();
        let thread = self.scope.spawn(move || {
            tell_number.send(this_thread()).expect("someone listens");
            let result = port.dequeue_one(timeout);
            if result.is_ok() {
                tell.send(arrival).expect("someone listens");
                if let Some(gate) = gate {
                    gate.pass();
                }
            }
            result
        });
        let number = number.recv().expect("a thread");
        wait_for_waiting(self.port, waiting + 1);
        asleep(number);
        Waiter { thread, number }
    }

    /// Waits until these threads sleep in the port, and no other waits there.
    #[track_caller]
    fn settle<'a>(&self, waiters: impl ExactSizeIterator<Item = &'a Waiter<'scope>>)
    where
        'scope: 'a,
    {
        wait_for_waiting(self.port, waiters.len());
        waiters.for_each(|waiter| asleep(waiter.number));
    }

    /// Who has dequeued next, by the order of arrival.
    #[track_caller]
    fn next(&self) -> usize {
        match self.told.recv_timeout(PATIENCE) {
            Ok(arrival) => arrival,
            Err(_) => panic!("no thread dequeues: {:?}", self.port.snapshot()),
        }
    }
}

/// Lets threads wait, some with a timeout and some without, and calls for them one by one: as soon as
/// the one before has ended, or when all the others are asleep again, too.
fn call_one_by_one(
    port: &CompletionPort,
    threads: usize,
    settled: bool,
    mut call: impl FnMut() -> io::Result<()>,
) -> io::Result<()> {
    thread::scope(|scope| {
        let _close = CloseAtEnd(port, &[]);
        let mut line = Line::new(scope, port);
        let timeouts = [None, Some(PATIENCE)];
        let mut waiters: Vec<_> = (0..threads)
            .map(|number| line.join(timeouts[number % 2], None))
            .collect();
        for last in (0..threads).rev() {
            if settled {
                line.settle(waiters.iter());
            }
            call()?;
            let places = port.concurrency();
            assert_eq!(line.next(), last, "of {threads} threads, {places} places");
            waiters.pop().expect("as many as threads").result()?;
        }
        Ok(())
    })
}

fn call_by_posts(backend: Backend, settled: bool) -> io::Result<()> {
    for places in [1, 2, 3, 16] {
        for threads in [2, 3, 5, 8] {
            let port = port_with(backend, places)?;
            call_one_by_one(&port, threads, settled, || Ok(port.post(PACKET)?))?;
        }
    }
    Ok(())
}

fn call_by_sockets(backend: Backend, settled: bool) -> io::Result<()> {
    for places in [1, 2, 3, 16] {
        for threads in [2, 3, 5, 8] {
            let port = port_with(backend, places)?;
            let pairs = (0..threads)
                .map(|_| Pair::unix())
                .collect::<io::Result<Vec<_>>>()?;
            for pair in &pairs {
                port.register(Registration::enable(&pair.ours, 1, EventFilter::IN, ONCE))??;
            }
            let mut next = pairs.iter();
            let send = || next.next().expect("enough").send();
            call_one_by_one(&port, threads, settled, send)?;
        }
    }
    Ok(())
}

fn f3_the_thread_that_came_last_is_released_first(backend: Backend) -> io::Result<()> {
    call_by_posts(backend, true)
}

fn f3_the_thread_that_came_last_is_released_first_without_a_pause(
    backend: Backend,
) -> io::Result<()> {
    call_by_posts(backend, false)
}

fn f3_the_thread_that_came_last_is_released_first_by_sockets_too(
    backend: Backend,
) -> io::Result<()> {
    call_by_sockets(backend, true)
}

fn f3_the_thread_that_came_last_is_released_first_by_sockets_without_a_pause(
    backend: Backend,
) -> io::Result<()> {
    call_by_sockets(backend, false)
}

/// Few threads stay busy, and the others stay asleep.
fn f3_the_thread_that_came_back_last_is_released_again(backend: Backend) -> io::Result<()> {
    for places in [1, 2, 3, 16] {
        let port = port_with(backend, places)?;
        let pair = Pair::unix()?;
        // Edge-triggered, so that each byte calls for one thread once.
        port.register(Registration::enable(&pair.ours, 1, EventFilter::IN, EDGE))??;
        let handled = AtomicUsize::new(0);
        thread::scope(|scope| -> io::Result<()> {
            let _close = CloseAtEnd(&port, &[]);
            let mut line = Line::new(scope, &port);
            for _ in 0..4 {
                line.join(None, None);
            }
            let (tell, told) = channel();
            let (port, pair, handled) = (&port, &pair, &handled);
            scope.spawn(move || {
                tell.send(this_thread()).expect("someone listens");
                while port.dequeue_one(None).is_ok() {
                    pair.drain().expect("the peer is there");
                    handled.fetch_add(1, Ordering::SeqCst);
                }
            });
            let hot = told.recv().expect("a thread");
            for round in 0..30 {
                wait_until("the last thread waits again", || {
                    handled.load(Ordering::SeqCst) >= round && port.snapshot().waiting == 5
                });
                asleep(hot);
                if round % 2 == 0 {
                    port.post(PACKET)?;
                } else {
                    assert_eq!((&pair.theirs).write(b"x")?, 1);
                }
                wait_until("the last thread has dequeued", || {
                    handled.load(Ordering::SeqCst) > round
                });
            }
            assert!(line.told.try_recv().is_err(), "another thread has dequeued");
            Ok(())
        })?;
    }
    Ok(())
}

fn f3_many_packets_at_once_go_to_those_who_came_last(backend: Backend) -> io::Result<()> {
    const THREADS: usize = 8;
    for places in [1, 2, 3, 5, 16] {
        for packets in [2, 3, 5] {
            let port = port_with(backend, places)?;
            let gate = Gate::new();
            thread::scope(|scope| -> io::Result<()> {
                let _close = CloseAtEnd(&port, &[&gate]);
                let mut line = Line::new(scope, &port);
                for _ in 0..THREADS {
                    line.join(None, Some(&gate));
                }
                port.post_all(&vec![PACKET; packets])?;
                // As many as there are places for; the others of the packets wait.
                let released = packets.min(places);
                let mut found: Vec<_> = (0..released).map(|_| line.next()).collect();
                found.sort_unstable();
                let wanted: Vec<_> = (THREADS - released..THREADS).collect();
                assert_eq!(found, wanted, "{packets} packets, {places} places");
                Ok(())
            })?;
        }
    }
    Ok(())
}

fn f3_a_thread_that_gives_up_leaves_the_order_of_the_others(backend: Backend) -> io::Result<()> {
    thread::scope(|scope| {
        let mut cases = Vec::new();
        for places in [1, 2, 16] {
            for quitter in [0, 2, 5] {
                cases.push(scope.spawn(move || give_up(backend, places, quitter)));
            }
        }
        cases
            .into_iter()
            .try_for_each(|case| case.join().expect("no panic"))
    })
}

/// Of six threads that wait, one has its timeout before there is any packet.
fn give_up(backend: Backend, places: usize, quitter: usize) -> io::Result<()> {
    let port = port_with(backend, places)?;
    thread::scope(|scope| {
        let _close = CloseAtEnd(&port, &[]);
        let mut line = Line::new(scope, &port);
        let mut waiters: Vec<_> = (0..6)
            .map(|arrival| {
                // Time enough for the others to come.
                let timeout = (arrival == quitter).then_some(GLANCE * 50);
                (arrival, line.join(timeout, None))
            })
            .collect();
        let (_, waiter) = waiters.remove(quitter);
        assert_eq!(waiter.result(), Err(Error::TimedOut));
        while !waiters.is_empty() {
            line.settle(waiters.iter().map(|(_, waiter)| waiter));
            port.post(PACKET)?;
            let (last, waiter) = waiters.pop().expect("someone waits");
            assert_eq!(line.next(), last, "without {quitter}, {places} places");
            waiter.result()?;
        }
        Ok(())
    })
}

/// Threads come, packets and sockets call for them, places are taken for a while and become free
/// again: always it is the thread that came last who is released.
fn f3_holds_whatever_comes_and_goes(backend: Backend) -> io::Result<()> {
    for (seed, places) in (0..).zip([1, 2, 3, 4, 16]) {
        come_and_go(&port_with(backend, places)?, seed)?;
    }
    Ok(())
}

fn come_and_go(port: &CompletionPort, seed: u64) -> io::Result<()> {
    let places = port.concurrency();
    let mut rng = fastrand::Rng::with_seed(seed);
    let gate = Gate::new();
    thread::scope(|scope| -> io::Result<()> {
        let _close = CloseAtEnd(port, &[&gate]);
        let mut line = Line::new(scope, port);
        // Who waits and who runs, newest last.
        let mut waiting: Vec<(usize, Waiter<'_>)> = Vec::new();
        let mut running: Vec<Waiter<'_>> = Vec::new();
        let mut kept = Vec::new();
        for step in 0..120 {
            line.settle(waiting.iter().map(|(_, waiter)| waiter));
            match rng.u32(..4) {
                0 | 1 if waiting.len() < 7 => {
                    let arrival = line.arrivals;
                    waiting.push((arrival, line.join(None, Some(&gate))));
                }
                2 if !running.is_empty() => {
                    gate.open(running.len());
                    for waiter in running.drain(..) {
                        waiter.result()?;
                    }
                }
                _ if !waiting.is_empty() && running.len() < places => {
                    let pair = Pair::unix()?;
                    if rng.bool() {
                        port.post(PACKET)?;
                    } else {
                        let enable = Registration::enable(&pair.ours, 1, EventFilter::IN, ONCE);
                        port.register(enable)??;
                        pair.send()?;
                        kept.push(pair);
                    }
                    let (last, waiter) = waiting.pop().expect("someone waits");
                    assert_eq!(line.next(), last, "step {step}, {places} places");
                    running.push(waiter);
                }
                _ => {}
            }
        }
        Ok(())
    })
}

/// Runs `work` on a thread that holds the only place, with a packet left in the queue.
fn with_a_place<R: Send>(
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

fn f4_a_blocking_thread_lends_its_place(backend: Backend) -> io::Result<()> {
    let port = port_with(backend, 1)?;
    // To a thread that comes later.
    let value = with_a_place(&port, || {
        assert_place_taken(&port);
        port.blocking(|| {
            assert_eq!(port.snapshot().running, 0);
            assert_place_free(&port);
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
        thread::sleep(GLANCE);
        assert!(!waiting.is_finished());
        port.blocking(|| assert_eq!(waiting.join().expect("no panic"), Ok(PACKET)));
        Ok(())
    })
}

fn f4_the_place_is_back_when_the_scope_ends(backend: Backend) -> io::Result<()> {
    let port = port_with(backend, 1)?;
    let gate = Gate::new();
    thread::scope(|scope| -> io::Result<()> {
        let _close = CloseAtEnd(&port, &[&gate]);
        port.post_all(&[PACKET; 3])?;
        port.dequeue_one(None)?;
        let other = port.blocking(|| {
            let other = scope.spawn(|| {
                port.dequeue_one(None).expect("a packet");
                gate.pass();
                port.dequeue_one(Some(GLANCE))
            });
            wait_until("the place is lent", || port.snapshot().running == 1);
            other
        });
        // At once, even though that makes one too many for a while.
        assert_eq!(port.snapshot().running, 2);
        gate.open(1);
        // Then the other has to wait.
        assert_eq!(other.join().expect("no panic"), Err(Error::TimedOut));
        assert_eq!(port.snapshot().running, 1);
        assert_place_taken(&port);
        Ok(())
    })
}

fn f4_a_scope_in_a_scope_changes_nothing(backend: Backend) -> io::Result<()> {
    let port = port_with(backend, 2)?;
    port.post_all(&[PACKET; 2])?;
    port.dequeue_one(None)?;
    assert_eq!(port.snapshot().running, 1);
    port.blocking(|| {
        assert_eq!(port.snapshot().running, 0);
        port.blocking(|| {
            port.blocking(|| assert_eq!(port.snapshot().running, 0));
            assert_eq!(port.snapshot().running, 0);
        });
        // It is the outer scope's end that counts.
        assert_eq!(port.snapshot().running, 0);
    });
    assert_eq!(port.snapshot().running, 1);
    port.blocking(|| assert_eq!(port.snapshot().running, 0));
    assert_eq!(port.snapshot().running, 1);
    Ok(())
}

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
    assert_place_taken(&port);
    port.dequeue_one(None)?;
    expect_nothing(&port);
    assert_eq!(port.snapshot().running, 0);
    Ok(())
}

fn f4_without_a_place_it_only_runs_the_work(backend: Backend) -> io::Result<()> {
    let port = port_with(backend, 1)?;
    assert_eq!(port.blocking(|| 7), 7);
    assert_eq!(port.snapshot().running, 0);
    // Another thread holds the place; this one has none to lend.
    with_a_place(&port, || {
        thread::scope(|scope| {
            let other = scope.spawn(|| port.blocking(|| assert_place_taken(&port)));
            other.join().expect("no panic");
        });
        assert_place_taken(&port);
    })?;
    // Nor has one whose wait was in vain.
    expect_packets(&port, &[PACKET]);
    expect_nothing(&port);
    port.blocking(|| assert_eq!(port.snapshot().running, 0));
    assert_eq!(port.snapshot().running, 0);
    Ok(())
}

fn f4_it_is_about_the_places_of_this_port_only(backend: Backend) -> io::Result<()> {
    let (here, there) = (port_with(backend, 1)?, port_with(backend, 1)?);
    here.post_all(&[PACKET; 2])?;
    here.dequeue_one(None)?;
    there.blocking(|| assert_place_taken(&here));
    assert_eq!(there.snapshot().running, 0);
    here.blocking(|| there.blocking(|| assert_place_free(&here)));
    assert_eq!(here.snapshot().running, 1);
    assert_eq!(there.snapshot().running, 0);
    Ok(())
}

/// A thread holds one place at most. Open in the contract: what a thread holds that has dequeued in
/// the scope. It is what it would be without the scope.
fn f4_dequeuing_in_the_scope_leaves_one_place_taken(backend: Backend) -> io::Result<()> {
    let (here, there) = (port_with(backend, 2)?, port_with(backend, 2)?);
    here.post_all(&[PACKET; 2])?;
    here.dequeue_one(None)?;
    here.blocking(|| {
        here.dequeue_one(None).expect("a packet");
        assert_eq!(here.snapshot().running, 1);
    });
    assert_eq!(here.snapshot().running, 1);
    expect_nothing(&here);
    assert_eq!(here.snapshot().running, 0);

    here.post(PACKET)?;
    there.post(PACKET)?;
    here.dequeue_one(None)?;
    here.blocking(|| there.dequeue_one(None).expect("a packet"));
    assert_eq!((here.snapshot().running, there.snapshot().running), (0, 1));
    expect_nothing(&here);
    assert_eq!((here.snapshot().running, there.snapshot().running), (0, 0));
    Ok(())
}

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
    assert_eq!(second.snapshot().running, 1);
    Ok(())
}

/// Calls for one of many sleeping threads, and counts how many were woken.
fn count_woken(
    port: &CompletionPort,
    threads: usize,
    mut call: impl FnMut(usize) -> io::Result<()>,
) -> io::Result<()> {
    const ROUNDS: usize = 20;
    let handled = AtomicUsize::new(0);
    thread::scope(|scope| {
        let _close = CloseAtEnd(port, &[]);
        let (tell, told) = channel();
        let handled = &handled;
        for _ in 0..threads {
            let tell = tell.clone();
            scope.spawn(move || {
                tell.send(this_thread()).expect("someone listens");
                while port.dequeue_one(None).is_ok() {
                    handled.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        let numbers: Vec<ThreadId> = told.iter().take(threads).collect();
        for round in 0..ROUNDS {
            wait_until("all wait", || {
                handled.load(Ordering::SeqCst) == round && port.snapshot().waiting == threads
            });
            numbers.iter().copied().for_each(asleep);
            let switches = |&number: &ThreadId| voluntary_switches(number);
            let before: Vec<_> = numbers.iter().map(switches).collect();
            call(round)?;
            wait_until("all wait again", || {
                handled.load(Ordering::SeqCst) == round + 1 && port.snapshot().waiting == threads
            });
            numbers.iter().copied().for_each(asleep);
            let after: Vec<_> = numbers.iter().map(switches).collect();
            let woken = before
                .iter()
                .zip(&after)
                .filter(|(before, after)| before != after);
            // Where the system does not tell, there is nothing to see.
            assert!(woken.count() <= 1, "{before:?} {after:?}");
        }
        Ok(())
    })
}

fn f5_one_posted_packet_wakes_one_thread(backend: Backend) -> io::Result<()> {
    for places in [1, 2, 16] {
        for threads in [2, 6] {
            let port = port_with(backend, places)?;
            count_woken(&port, threads, |_| Ok(port.post(PACKET)?))?;
        }
    }
    Ok(())
}

fn f5_one_ready_socket_wakes_one_thread(backend: Backend) -> io::Result<()> {
    for places in [1, 2, 16] {
        for threads in [2, 6] {
            let port = port_with(backend, places)?;
            let pairs = (0..20)
                .map(|_| Pair::unix())
                .collect::<io::Result<Vec<_>>>()?;
            for pair in &pairs {
                port.register(Registration::enable(&pair.ours, 1, EventFilter::IN, ONCE))??;
            }
            count_woken(&port, threads, |round| pairs[round].send())?;
        }
    }
    Ok(())
}

/// Packets that are posted again as soon as they are dequeued: if one is left behind, its lane stands
/// still, and in the end nothing moves.
fn run_lanes(
    port: &CompletionPort,
    lanes: usize,
    turns: u32,
    threads: usize,
    handle: impl Fn(usize, Entry) -> Result<(), Error> + Sync,
) {
    let done = AtomicUsize::new(0);
    let work = |me: usize| {
        loop {
            let mut entry = match port.dequeue_one(Some(PATIENCE)) {
                Err(Error::Closed) => return,
                result => result.expect("a packet in time"),
            };
            entry.transferred += 1;
            if entry.transferred == turns {
                done.fetch_add(1, Ordering::SeqCst);
            } else if handle(me, entry) == Err(Error::Closed) {
                return;
            }
        }
    };
    let work = &work;
    thread::scope(|scope| {
        let close = CloseAtEnd(port, &[]);
        for me in 0..threads {
            scope.spawn(move || work(me));
        }
        for lane in 0..lanes {
            port.post(Entry::new(lane, 0, 0)).expect("an open port");
        }
        wait_until("all lanes come to their end", || {
            done.load(Ordering::SeqCst) == lanes
        });
        drop(close);
    });
}

fn f5_no_packet_is_left_behind(backend: Backend) -> io::Result<()> {
    for (places, threads, lanes) in [(1, 4, 1), (1, 4, 3), (2, 6, 2), (2, 6, 5), (8, 8, 3)] {
        let port = port_with(backend, places)?;
        run_lanes(&port, lanes, 5000, threads, |_, entry| port.post(entry));
    }
    Ok(())
}

/// A thread whose time is over just when it was chosen to take a packet must see to it that another
/// one does.
fn f5_no_packet_is_left_behind_by_threads_that_time_out(backend: Backend) -> io::Result<()> {
    const ROUNDS: usize = 700;
    for places in [1, 2, 4] {
        let port = port_with(backend, places)?;
        let taken = AtomicUsize::new(0);
        let (start, ended) = (Gate::new(), Gate::new());
        thread::scope(|scope| -> io::Result<()> {
            let _close = CloseAtEnd(&port, &[&start, &ended]);
            scope.spawn(|| {
                while let Ok(entry) = port.dequeue_one(Some(PATIENCE)) {
                    assert_eq!(entry, PACKET);
                    taken.fetch_add(1, Ordering::SeqCst);
                }
            });
            for seed in 0..2 {
                let (port, taken, start, ended) = (&port, &taken, &start, &ended);
                scope.spawn(move || {
                    let mut rng = fastrand::Rng::with_seed(seed);
                    for _ in 0..ROUNDS {
                        start.pass();
                        // Take what comes in this time, and give the place back.
                        let mut timeout = Duration::from_micros(rng.u64(..200));
                        while port.dequeue_one(Some(timeout)).is_ok() {
                            taken.fetch_add(1, Ordering::SeqCst);
                            timeout = Duration::ZERO;
                        }
                        ended.open(1);
                    }
                });
            }
            let mut rng = fastrand::Rng::with_seed(9);
            for round in 1..=ROUNDS {
                start.open(2);
                for _ in 0..rng.u32(..20_000) {
                    std::hint::spin_loop();
                }
                port.post(PACKET)?;
                ended.pass();
                ended.pass();
                wait_until("the packet is taken", || {
                    taken.load(Ordering::SeqCst) == round
                });
            }
            Ok(())
        })?;
    }
    Ok(())
}

fn f5_no_packet_is_left_behind_by_threads_that_block_or_end(backend: Backend) -> io::Result<()> {
    for (places, threads, lanes) in [(1, 5, 3), (2, 5, 4), (3, 8, 8)] {
        let port = port_with(backend, places)?;
        let turn = AtomicUsize::new(0);
        run_lanes(&port, lanes, 1500, threads, |_, entry| {
            match turn.fetch_add(1, Ordering::Relaxed) % 6 {
                // Posted while the place is lent, before, or after.
                0 => port.blocking(|| port.post(entry)),
                1 => {
                    port.post(entry)?;
                    port.blocking(thread::yield_now);
                    Ok(())
                }
                2 => {
                    port.blocking(thread::yield_now);
                    port.post(entry)
                }
                // Handed to a thread that takes a packet, and ends with it in hand.
                3 => thread::scope(|scope| {
                    port.post(entry)?;
                    let helper = scope.spawn(|| port.dequeue_one(Some(Duration::ZERO)));
                    match helper.join().expect("no panic") {
                        Ok(entry) => port.post(entry),
                        Err(Error::TimedOut) => Ok(()),
                        Err(error) => Err(error),
                    }
                }),
                // A place in this port is given up for one in another.
                4 => {
                    let other = port_with(backend, 1).expect("another port");
                    other.post(PACKET)?;
                    other.dequeue_one(None)?;
                    port.post(entry)
                }
                _ => port.post(entry),
            }
        });
    }
    Ok(())
}

/// The same for sockets: a byte is answered with the next one, on whatever thread.
fn f5_no_ready_socket_is_left_behind(backend: Backend) -> io::Result<()> {
    const TURNS: usize = 3000;
    for (places, threads, sockets) in [(1, 4, 1), (1, 4, 3), (2, 6, 2), (2, 6, 5), (8, 8, 3)] {
        for trigger in [ONCE, LEVEL] {
            let port = port_with(backend, places)?;
            let pairs = (0..sockets)
                .map(|_| Pair::unix())
                .collect::<io::Result<Vec<_>>>()?;
            let enable =
                |key: usize| Registration::enable(&pairs[key].ours, key, EventFilter::IN, trigger);
            let turns: Vec<_> = pairs.iter().map(|_| AtomicUsize::new(0)).collect();
            let work = || -> Result<(), Error> {
                loop {
                    let entry = match port.dequeue_one(Some(PATIENCE)) {
                        Err(Error::Closed) => return Ok(()),
                        result => result?,
                    };
                    let key = entry.completion_key;
                    // With LEVEL, several threads may be told of one byte.
                    let got = matches!((&pairs[key].ours).read(&mut [0]), Ok(1));
                    assert!(got || trigger == LEVEL);
                    let turn = turns[key].fetch_add(usize::from(got), Ordering::SeqCst);
                    if got && turn + 1 < TURNS {
                        (&pairs[key].theirs)
                            .write_all(b"x")
                            .expect("the peer can write");
                    }
                    if trigger == ONCE && turn + 1 < TURNS {
                        assert_eq!(port.register(enable(key))?, Ok(()));
                    }
                }
            };
            thread::scope(|scope| -> io::Result<()> {
                let close = CloseAtEnd(&port, &[]);
                let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
                for (key, pair) in pairs.iter().enumerate() {
                    port.register(enable(key))??;
                    (&pair.theirs).write_all(b"x")?;
                }
                wait_until("all turns are taken", || {
                    turns
                        .iter()
                        .all(|turns| turns.load(Ordering::SeqCst) == TURNS)
                });
                drop(close);
                for worker in workers {
                    worker.join().expect("no panic")?;
                }
                Ok(())
            })?;
        }
    }
    Ok(())
}

/// Far more threads than places, which hand packets to the newest of them.
fn f5_no_request_waits_among_many_threads(backend: Backend) -> io::Result<()> {
    const THREADS: usize = 64;
    const SOCKETS: usize = 100;
    const ROUNDS: usize = 200;
    let port = port_with(backend, 2)?;
    let pairs = (0..SOCKETS)
        .map(|_| Pair::unix())
        .collect::<io::Result<Vec<_>>>()?;
    let enable = |key: usize| Registration::enable(&pairs[key].ours, key, EventFilter::IN, ONCE);
    let serve = || -> Result<(), Error> {
        let mut entries = [Entry::default(); 3];
        let mut batch = Vec::with_capacity(entries.len());
        loop {
            let found = match port.process(&mut batch, &mut entries, None) {
                Err(Error::Closed) => return Ok(()),
                result => result?,
            };
            assert!(batch.iter().all(|entry| entry.result().is_ok()));
            batch.clear();
            for entry in found {
                let mut socket = &pairs[entry.completion_key].ours;
                let mut byte = [0];
                assert_eq!(socket.read(&mut byte).expect("a byte"), 1);
                socket.write_all(&byte).expect("the peer reads");
                batch.push(enable(entry.completion_key));
            }
        }
    };
    thread::scope(|scope| -> io::Result<()> {
        let close = CloseAtEnd(&port, &[]);
        for (key, pair) in pairs.iter().enumerate() {
            pair.theirs.set_nonblocking(false)?;
            pair.theirs.set_read_timeout(Some(PATIENCE))?;
            port.register(enable(key))??;
        }
        let servers: Vec<_> = (0..THREADS).map(|_| scope.spawn(serve)).collect();
        for round in 0..ROUNDS {
            // Now all at once, now a few.
            for group in pairs.chunks(if round % 2 == 0 { SOCKETS } else { 7 }) {
                for pair in group {
                    (&pair.theirs).write_all(b"x")?;
                }
                for pair in group {
                    (&pair.theirs).read_exact(&mut [0])?;
                }
            }
        }
        drop(close);
        for server in servers {
            assert_eq!(server.join().expect("no panic"), Ok(()));
        }
        Ok(())
    })
}
