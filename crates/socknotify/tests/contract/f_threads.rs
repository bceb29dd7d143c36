//! F. Threads: how many run, who is released, and that none is forgotten.

use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use socknotify::{
    Backend, CompletionPort, Entry, Error, EventFilter, Events, Registration, WakePolicy,
    default_concurrency,
};

use crate::support::trigger::{LEVEL, ONCE};
use crate::support::{
    CloseAtEnd, Gate, PATIENCE, Pair, PortExt, QUIET_PERIOD, ThreadId, asleep, counted, port,
    port_with, rounds, this_thread, voluntary_switches, wait_for_waiting, wait_until, waking_port,
    woken_by_one_packet,
};

const PACKET: Entry = Entry::new(51, 0, 0);

/// Every thread registers a socket of its own, over and over, and handles whosever turn it is.
#[for_every_backend]
fn f1_any_number_of_threads_dequeue_register_and_post_at_once(backend: Backend) -> io::Result<()> {
    const THREADS: usize = 12;
    const ROUNDS: usize = rounds(400);
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
                assert_eq!(port.register(enable), Ok(()));
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
                    port.register(Registration::remove(&pairs[key].ours)),
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
        assert_eq!(counted(port.snapshot().registrations), 0);
        drop(close);
        for thread in threads {
            assert_eq!(thread.join().expect("no panic"), Err(Error::Closed));
        }
    });
    Ok(())
}

#[for_every_backend]
fn f2_the_default_is_the_number_of_processors(backend: Backend) -> io::Result<()> {
    let processors = thread::available_parallelism()?.get();
    assert_eq!(default_concurrency(), processors);
    assert_eq!(port(backend)?.concurrency(), processors);
    assert_eq!(port_with(backend, 0)?.concurrency(), processors);
    assert_eq!(
        CompletionPort::with_concurrency(0)?.concurrency(),
        processors
    );
    for permits in [1, 3, 1000] {
        assert_eq!(port_with(backend, permits)?.concurrency(), permits);
    }
    Ok(())
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

    /// One more thread comes to wait beside so many others, and waits when this returns. It dequeues once, and ends, or
    /// waits at the gate with its packet. One of the others may give up meanwhile.
    #[track_caller]
    fn join(
        &mut self,
        timeout: Option<Duration>,
        gate: Option<&'env Gate>,
        others: usize,
        quitter: Option<&Waiter<'scope>>,
    ) -> Waiter<'scope> {
        let arrival = self.arrivals;
        self.arrivals += 1;
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
        wait_until("it waits", || {
            // In this order: it waits no more by then.
            let has_quit = quitter.is_some_and(|it| it.thread.is_finished());
            port.snapshot().waiting + usize::from(has_quit) == others + 1
        });
        asleep([number]);
        Waiter { thread, number }
    }

    /// Waits until these threads sleep in the port, and no other waits there.
    #[track_caller]
    fn settle<'a>(&self, waiters: impl ExactSizeIterator<Item = &'a Waiter<'scope>>)
    where
        'scope: 'a,
    {
        wait_for_waiting(self.port, waiters.len());
        asleep(waiters.map(|waiter| waiter.number));
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

/// Threads are parked while all permits are taken. When one permit becomes free, each in turn takes a packet, and gives the
/// permit to the next by ending: the one that was parked last comes first.
fn release_parked(
    backend: Backend,
    permits: usize,
    threads: usize,
    quitter: Option<usize>,
    call: impl FnOnce(&CompletionPort) -> io::Result<()>,
) -> io::Result<()> {
    let port = port_with(backend, permits)?;
    let gate = Gate::new();
    thread::scope(|scope| {
        let gates = [&gate];
        let _close = CloseAtEnd(&port, &gates);
        let mut line = Line::new(scope, &port);
        for _ in 1..permits {
            let holder = line.join(None, Some(&gate), 0, None);
            port.post(PACKET)?;
            line.next();
            drop(holder);
        }
        port.post(PACKET)?;
        port.dequeue_one(None)?;
        let first = line.arrivals;
        let mut waiters = Vec::new();
        for number in 0..threads {
            let timeout = match quitter == Some(number) {
                // Time enough for the others to come, on most machines.
                true => Some(QUIET_PERIOD * 100),
                false => [None, Some(PATIENCE)][number % 2],
            };
            let quitter = quitter.and_then(|it| waiters.get(it));
            waiters.push(line.join(timeout, None, number, quitter));
        }
        if let Some(quitter) = quitter {
            assert_eq!(waiters.remove(quitter).result(), Err(Error::TimedOut));
            line.settle(waiters.iter());
        }
        call(&port)?;
        port.release();
        for number in (0..threads).rev().filter(|&number| quitter != Some(number)) {
            let next = line.next() - first;
            assert_eq!(next, number, "of {threads} threads, {permits} permits");
        }
        waiters
            .into_iter()
            .try_for_each(|waiter| waiter.result().map(drop))?;
        Ok(())
    })
}

#[for_every_backend(with_permits)]
fn f3_parked_threads_are_released_last_in_first_out(backend: Backend) -> io::Result<()> {
    for permits in [1, 2, 3] {
        for threads in [2, 3, 5, 8] {
            release_parked(backend, permits, threads, None, |port| {
                Ok(port.post_all(&vec![PACKET; threads])?)
            })?;
        }
    }
    Ok(())
}

#[for_every_backend(with_permits)]
fn f3_parked_threads_are_released_last_in_first_out_by_sockets(backend: Backend) -> io::Result<()> {
    for permits in [1, 2, 3] {
        for threads in [2, 3, 5, 8] {
            let pairs = (0..threads)
                .map(|_| Pair::unix())
                .collect::<io::Result<Vec<_>>>()?;
            release_parked(backend, permits, threads, None, |port| {
                for pair in &pairs {
                    port.enable(&pair.ours, 1, EventFilter::IN, ONCE)?;
                    pair.send()?;
                }
                Ok(())
            })?;
        }
    }
    Ok(())
}

#[for_every_backend(with_permits)]
fn f3_a_parked_thread_that_gives_up_leaves_the_order(backend: Backend) -> io::Result<()> {
    thread::scope(|scope| {
        let mut cases = Vec::new();
        for permits in [1, 2] {
            for quitter in [0, 2, 5] {
                let post = |port: &CompletionPort| Ok(port.post_all(&[PACKET; 5])?);
                let case = move || release_parked(backend, permits, 6, Some(quitter), post);
                cases.push(scope.spawn(case));
            }
        }
        cases
            .into_iter()
            .try_for_each(|case| case.join().expect("no panic"))
    })
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
        let mut counts = Vec::new();
        for round in 0..ROUNDS {
            wait_until("all wait", || {
                handled.load(Ordering::SeqCst) == round && port.snapshot().waiting == threads
            });
            asleep(numbers.iter().copied());
            let switches = |&number: &ThreadId| voluntary_switches(number);
            let before: Vec<_> = numbers.iter().map(switches).collect();
            call(round)?;
            wait_until("all wait again", || {
                handled.load(Ordering::SeqCst) == round + 1 && port.snapshot().waiting == threads
            });
            asleep(numbers.iter().copied());
            let after: Vec<_> = numbers.iter().map(switches).collect();
            let woken = before
                .iter()
                .zip(&after)
                .filter(|(before, after)| before != after);
            // Where the system does not tell, there is nothing to see.
            counts.push(woken.count());
        }
        counts.sort_unstable();
        // A thread that is kept from a processor for longer than the policy allows is taken for slow, and another is woken.
        let can_be_too_slow = port.wake_policy() != WakePolicy::Bounded(PATIENCE);
        let woken = counts[if can_be_too_slow {
            ROUNDS / 2
        } else {
            ROUNDS - 1
        }];
        assert!(woken <= woken_by_one_packet(port), "{counts:?}");
        Ok(())
    })
}

/// Ports with these permits, and how many threads. No thread is too slow for the second policy.
fn waking_cases() -> impl Iterator<Item = (WakePolicy, usize, usize)> {
    let policies = [WakePolicy::BOUNDED, WakePolicy::Bounded(PATIENCE)].into_iter();
    policies.flat_map(|policy| {
        let permits = [1, 2, 16].into_iter();
        permits.flat_map(move |permits| [2, 6].map(|threads| (policy, permits, threads)))
    })
}

#[for_every_backend]
fn f5_one_posted_packet_wakes_one_thread(backend: Backend) -> io::Result<()> {
    for (policy, permits, threads) in waking_cases() {
        let port = waking_port(backend, permits, policy)?;
        count_woken(&port, threads, |_| Ok(port.post(PACKET)?))?;
    }
    Ok(())
}

#[for_every_backend]
fn f5_one_ready_socket_wakes_one_thread(backend: Backend) -> io::Result<()> {
    for (policy, permits, threads) in waking_cases() {
        let port = waking_port(backend, permits, policy)?;
        let pairs = (0..20)
            .map(|_| Pair::unix())
            .collect::<io::Result<Vec<_>>>()?;
        for pair in &pairs {
            port.enable(&pair.ours, 1, EventFilter::IN, ONCE)?;
        }
        count_woken(&port, threads, |round| pairs[round].send())?;
    }
    Ok(())
}

/// Threads that let others go on do not do so while a packet is queued: with a policy by which they would for a long
/// time, each packet comes at once, at whatever moment it is posted.
#[for_every_backend]
fn f5_a_posted_packet_does_not_wait_for_a_bounded_watch(backend: Backend) -> io::Result<()> {
    for permits in [1, 2] {
        let port = waking_port(backend, permits, WakePolicy::Bounded(PATIENCE * 4))?;
        let (tell, told) = channel();
        thread::scope(|scope| {
            let _close = CloseAtEnd(&port, &[]);
            for _ in 0..3 {
                let (port, tell) = (&port, tell.clone());
                scope.spawn(move || {
                    while port.dequeue_one(None).is_ok() {
                        tell.send(()).expect("the test goes on");
                    }
                });
            }
            for round in 0..rounds(3000) {
                port.post(PACKET)?;
                told.recv_timeout(PATIENCE)
                    .unwrap_or_else(|_| panic!("permits {permits}, round {round}"));
                // So that the next one comes at another moment of going to wait.
                (0..round % 64).for_each(|_| std::hint::spin_loop());
            }
            Ok::<_, io::Error>(())
        })?;
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
    let begin = Instant::now();
    let work = |me: usize| {
        loop {
            let mut entry = match port.dequeue_one(Some(PATIENCE)) {
                Err(Error::Closed) => return,
                result => result.expect("a packet in time"),
            };
            entry.transferred += 1;
            // Beside other programs, each turn waits for theirs.
            if entry.transferred == turns || begin.elapsed() > PATIENCE / 3 {
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

#[for_every_backend]
fn f5_no_packet_is_left_behind(backend: Backend) -> io::Result<()> {
    for (permits, threads, lanes) in [(1, 4, 1), (1, 4, 3), (2, 6, 2), (2, 6, 5), (8, 8, 3)] {
        let port = port_with(backend, permits)?;
        run_lanes(&port, lanes, rounds(5000) as u32, threads, |_, entry| {
            port.post(entry)
        });
    }
    Ok(())
}

/// The same for sockets: a byte is answered with the next one, on whatever thread.
#[for_every_backend]
fn f5_no_ready_socket_is_left_behind(backend: Backend) -> io::Result<()> {
    const TURNS: usize = rounds(3000);
    for (permits, threads, sockets) in [(1, 4, 1), (1, 4, 3), (2, 6, 2), (2, 6, 5), (8, 8, 3)] {
        for trigger in [ONCE, LEVEL] {
            let port = port_with(backend, permits)?;
            let pairs = (0..sockets)
                .map(|_| Pair::unix())
                .collect::<io::Result<Vec<_>>>()?;
            let enable =
                |key: usize| Registration::enable(&pairs[key].ours, key, EventFilter::IN, trigger);
            let turns: Vec<_> = pairs.iter().map(|_| AtomicUsize::new(0)).collect();
            let begin = Instant::now();
            let done = AtomicUsize::new(0);
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
                    // Beside other programs, each turn waits for theirs.
                    let is_last = turn + 1 == TURNS || begin.elapsed() > PATIENCE / 3;
                    if got && is_last {
                        done.fetch_add(1, Ordering::SeqCst);
                    } else if got {
                        (&pairs[key].theirs)
                            .write_all(b"x")
                            .expect("the peer can write");
                    }
                    if trigger == ONCE && !is_last {
                        assert_eq!(port.register(enable(key)), Ok(()));
                    }
                }
            };
            thread::scope(|scope| -> io::Result<()> {
                let close = CloseAtEnd(&port, &[]);
                let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
                for (key, pair) in pairs.iter().enumerate() {
                    port.register(enable(key))?;
                    (&pair.theirs).write_all(b"x")?;
                }
                wait_until("all turns are taken", || {
                    done.load(Ordering::SeqCst) == sockets
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

/// However long one thread is busy, another one takes what becomes ready.
#[for_every_backend]
fn f5_a_socket_is_not_left_to_a_thread_that_does_not_come_back(backend: Backend) -> io::Result<()> {
    for time in [0, 1, 200, 5000].map(Duration::from_micros) {
        let port = waking_port(backend, 3, WakePolicy::Bounded(time))?;
        let pairs = [Pair::unix()?, Pair::unix()?];
        for (key, pair) in pairs.iter().enumerate() {
            let enable = Registration::enable(&pair.ours, key, EventFilter::IN, ONCE);
            port.register(enable)?;
        }
        thread::scope(|scope| -> io::Result<()> {
            let _close = CloseAtEnd(&port, &[]);
            pairs[0].send()?;
            // This thread has a packet, and does not come back.
            assert_eq!(port.dequeue_one(Some(PATIENCE))?.completion_key, 0);
            let (tell, told) = channel();
            for _ in 0..2 {
                let (tell, port, pairs) = (tell.clone(), &port, &pairs);
                scope.spawn(move || {
                    while let Ok(entry) = port.dequeue_one(None) {
                        let pair = &pairs[entry.completion_key];
                        pair.drain().expect("it can be read");
                        let key = entry.completion_key;
                        let enable = Registration::enable(&pair.ours, key, EventFilter::IN, ONCE);
                        port.register(enable).expect("armed");
                        tell.send(key).expect("someone listens");
                    }
                });
            }
            for round in 0..rounds(300) {
                if round % 3 == 0 {
                    wait_for_waiting(&port, 2);
                }
                assert_eq!(pairs[1].theirs.send(b"x")?, 1);
                assert_eq!(
                    told.recv_timeout(PATIENCE),
                    Ok(1),
                    "{time:?}, round {round}"
                );
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// A thread that comes back soon, but has no room each time for all that is ready, is not left alone with it.
#[for_every_backend]
fn f5_a_thread_that_cannot_keep_up_gets_help(backend: Backend) -> io::Result<()> {
    let port = waking_port(backend, 2, WakePolicy::Bounded(Duration::from_millis(100)))?;
    let pairs = (0..8)
        .map(|_| Pair::unix())
        .collect::<io::Result<Vec<_>>>()?;
    for pair in &pairs {
        port.register(Registration::enable(&pair.ours, 0, EventFilter::IN, LEVEL))?;
    }
    port.post(PACKET)?;
    assert_eq!(port.dequeue_one(Some(PATIENCE))?.completion_key, 51);
    thread::scope(|scope| -> io::Result<()> {
        let _close = CloseAtEnd(&port, &[]);
        let helper = scope.spawn(|| port.dequeue_one(None).map(|entry| entry.completion_key));
        wait_for_waiting(&port, 1);
        for pair in &pairs {
            pair.send()?;
        }
        let until = Instant::now() + PATIENCE;
        let mut entries = [Entry::default(); 4];
        while !helper.is_finished() {
            assert!(Instant::now() < until, "nobody helps");
            port.dequeue(&mut entries, Some(Duration::ZERO))?;
        }
        assert_eq!(helper.join().expect("no panic"), Ok(0));
        Ok(())
    })
}
