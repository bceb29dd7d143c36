//! F4. Threads that block are found, and leave their places to others.

use std::io::{self, Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use socknotify::{
    Backend, CompletionPort, Entry, Error, EventFilter, Events, Registration, SlowThread,
    WakePolicy,
};

use super::f_counted_out::compute_until;
use super::f_counted_out::detecting_port;
use super::f_places::with_a_place;
use crate::support::trigger::{LEVEL, ONCE};
use crate::support::{
    CloseAtEnd, Gate, PATIENCE, Pair, PortExt, SHORT, SetAtEnd, TICK, counted, expect_little_time,
    expect_nothing, expect_packets, port_with, quiet_for, rounds, thread_time, wait_for_waiting,
    wait_in_vain, wait_until, waking_port,
};
#[cfg(target_os = "linux")]
use crate::support::{ThreadId, asleep, this_thread};

const PACKET: Entry = Entry::new(51, 0, 0);

const POLICIES: [WakePolicy; 2] = [WakePolicy::Eager, WakePolicy::BOUNDED];

/// The same, for so long.
fn compute_for(time: Duration) -> Duration {
    let begin = Instant::now();
    compute_until("the time is over", || begin.elapsed() >= time)
}

/// The result of a run whose threads are on a processor when they want one, of which it returns the time that they were
/// not. Where only their processor time can be seen, in ticks of 10 ms, one that gets less in 20 ms looks blocked. `None` if
/// there is no such run.
fn undisturbed<R>(mut run: impl FnMut() -> io::Result<(R, Duration)>) -> io::Result<Option<R>> {
    for _ in 0..5 {
        let (result, lost) = run()?;
        if cfg!(target_os = "linux") || lost < SHORT / 2 {
            return Ok(Some(result));
        }
    }
    eprintln!("skipped: other programs keep threads from the processors");
    Ok(None)
}

/// All places are free, and no thread is forgotten. The end of a scope does not wait for threads to be gone.
#[track_caller]
fn assert_all_places_free(port: &CompletionPort) {
    wait_until("all places are free", || {
        let snapshot = port.snapshot();
        counted(snapshot.running) == 0 && counted(snapshot.left) == 0
    });
}

#[for_every_backend(with_places)]
fn f4_a_handler_can_wait_for_what_the_next_handler_does(backend: Backend) -> io::Result<()> {
    for policy in POLICIES {
        let port = detecting_port(backend, 1, policy)?;
        let (tell, told) = channel();
        let told = Mutex::new(told);
        thread::scope(|scope| -> io::Result<()> {
            let _close = CloseAtEnd(&port, &[]);
            let handle = || {
                let entry = port.dequeue_one(Some(PATIENCE)).expect("a packet");
                match entry.completion_key {
                    1 => told.lock().expect("no panic").recv_timeout(PATIENCE),
                    _ => tell
                        .send(Instant::now())
                        .map(|()| Instant::now())
                        .map_err(|_| std::sync::mpsc::RecvTimeoutError::Disconnected),
                }
            };
            let threads = [(); 2].map(|()| scope.spawn(handle));
            wait_for_waiting(&port, 2);
            let begin = Instant::now();
            port.post_all(&[Entry::new(1, 0, 0), Entry::new(2, 0, 0)])?;
            for thread in threads {
                let at = thread.join().expect("no panic").expect("a word");
                assert!(at - begin < PATIENCE / 2, "{:?}", at - begin);
                println!("{policy}: after {:?}", at - begin);
            }
            Ok(())
        })?;
        assert_all_places_free(&port);
    }
    Ok(())
}

#[for_every_backend(with_places)]
fn f4_handlers_that_sleep_run_beside_each_other(backend: Backend) -> io::Result<()> {
    for policy in POLICIES {
        let port = detecting_port(backend, 2, policy)?;
        let [asleep, most, done] = [const { AtomicUsize::new(0) }; 3];
        let begin = Instant::now();
        thread::scope(|scope| -> io::Result<()> {
            let _close = CloseAtEnd(&port, &[]);
            for _ in 0..16 {
                scope.spawn(|| {
                    while port.dequeue_one(None).is_ok() {
                        let now = asleep.fetch_add(1, Ordering::SeqCst) + 1;
                        most.fetch_max(now, Ordering::SeqCst);
                        thread::sleep(5 * SHORT);
                        asleep.fetch_sub(1, Ordering::SeqCst);
                        done.fetch_add(1, Ordering::SeqCst);
                    }
                });
            }
            port.post_all(&[PACKET; 16])?;
            wait_until("all are done", || done.load(Ordering::SeqCst) == 16);
            println!("{policy}: {most:?} at once, after {:?}", begin.elapsed());
            assert!(most.load(Ordering::SeqCst) > 2);
            let detected_after = port.snapshot().detected_after;
            assert!(detected_after.is_some_and(|after| after < PATIENCE));
            wait_for_waiting(&port, 16);
            assert_all_places_free(&port);
            Ok(())
        })?;
    }
    Ok(())
}

/// The second one begins by F6, and not before.
#[for_every_backend(with_places)]
fn f4_a_thread_that_computes_keeps_its_place_but_for_f6(backend: Backend) -> io::Result<()> {
    for policy in POLICIES {
        let found = undisturbed(|| three_that_compute(backend, policy))?;
        if let Some((begins, detected_after)) = found {
            let second = begins[1] - begins[0];
            assert!(second >= Duration::from_millis(10), "{policy}: {begins:?}");
            assert_eq!(detected_after, None, "{policy}");
        }
    }
    Ok(())
}

/// When threads began, and how long it took to find one blocked.
type Begun = (Vec<Instant>, Option<Duration>);

/// Threads compute, with one place. Returns that, and the time for which they were not on a processor.
fn three_that_compute(backend: Backend, policy: WakePolicy) -> io::Result<(Begun, Duration)> {
    let port = detecting_port(backend, 1, policy)?;
    let begins = Mutex::new(Vec::new());
    let done = AtomicUsize::new(0);
    let lost = Mutex::new(Duration::ZERO);
    thread::scope(|scope| -> io::Result<()> {
        let _close = CloseAtEnd(&port, &[]);
        for _ in 0..3 {
            scope.spawn(|| {
                while port.dequeue_one(None).is_ok() {
                    let begin = Instant::now();
                    begins.lock().expect("no panic").push(begin);
                    let gaps = compute_for(5 * SHORT);
                    let late = begin.elapsed().saturating_sub(5 * SHORT);
                    *lost.lock().expect("no panic") += gaps + late;
                    done.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        wait_for_waiting(&port, 3);
        port.post_all(&[PACKET; 3])?;
        wait_until("all are done", || done.load(Ordering::SeqCst) == 3);
        Ok(())
    })?;
    let lost = *lost.lock().expect("no panic");
    let begins = begins.into_inner().expect("no panic");
    Ok(((begins, port.snapshot().detected_after), lost))
}

/// How many of sixteen threads that sleep and then compute do so at once, on average, in two places.
fn computing_at_once(backend: Backend, policy: WakePolicy) -> io::Result<f64> {
    const PACKETS: usize = 100;
    let port = detecting_port(backend, 2, policy)?;
    let [computing, done] = [const { AtomicUsize::new(0) }; 2];
    let (mut sum, mut samples) = (0, 0);
    thread::scope(|scope| -> io::Result<()> {
        let _close = CloseAtEnd(&port, &[]);
        for _ in 0..16 {
            scope.spawn(|| {
                while port.dequeue_one(None).is_ok() {
                    thread::sleep(Duration::from_micros(300));
                    computing.fetch_add(1, Ordering::SeqCst);
                    compute_for(SHORT / 2);
                    computing.fetch_sub(1, Ordering::SeqCst);
                    done.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        wait_for_waiting(&port, 16);
        port.post_all(&[PACKET; PACKETS])?;
        wait_until("all are done", || {
            sum += computing.load(Ordering::SeqCst);
            samples += 1;
            done.load(Ordering::SeqCst) == PACKETS
        });
        Ok(())
    })?;
    Ok(sum as f64 / f64::from(samples))
}

/// Without a detour, as many threads would compute at once as there are.
#[for_every_backend(with_places)]
fn f4_threads_that_go_on_count_again(backend: Backend) -> io::Result<()> {
    for policy in POLICIES {
        // One that is kept from a processor can look blocked. As many as there are would compute at once in each run.
        let mut averages = Vec::new();
        while averages.last().is_none_or(|&average| average >= 3.0) {
            assert!(
                averages.len() < 5,
                "{policy}: {averages:.2?} compute at once"
            );
            averages.push(computing_at_once(backend, policy)?);
        }
        println!("{policy}: {averages:.2?} compute at once");
    }
    Ok(())
}

/// Nobody is parked who would look.
#[for_every_backend(with_places)]
fn f4_a_thread_that_goes_on_counts_again_beside_the_only_other(backend: Backend) -> io::Result<()> {
    for policy in POLICIES {
        let count = undisturbed(|| beside_one_that_goes_on(backend, policy))?;
        if let Some(count) = count {
            let count = count.expect("two compute on one place");
            println!("{policy}: {count} packets beside the one that computes");
        }
    }
    Ok(())
}

/// A thread blocks, and then computes, while another dequeues. Returns how many packets that one gets until it has no
/// place any more, and `None` if it keeps it.
fn beside_one_that_goes_on(
    backend: Backend,
    policy: WakePolicy,
) -> io::Result<(Option<usize>, Duration)> {
    let port = detecting_port(backend, 1, policy)?;
    let goes_on = Gate::new();
    let [computes, ends] = [const { AtomicUsize::new(0) }; 2];
    thread::scope(|scope| {
        let gates = [&goes_on];
        let _close = CloseAtEnd(&port, &gates);
        let first = scope.spawn(|| {
            port.dequeue_one(None).expect("a packet");
            goes_on.pass();
            computes.store(1, Ordering::SeqCst);
            compute_until("it ends", || ends.load(Ordering::SeqCst) == 1)
        });
        port.post(PACKET)?;
        wait_until("it has a place", || counted(port.snapshot().running) == 1);
        let second = scope.spawn(|| {
            let mut count = 0;
            // It has no place until the first one is found to block.
            let mut timeout = PATIENCE;
            // It keeps its place, and dequeues all the time. On a busy machine it is kept from a processor, too.
            let begin = thread_time();
            while let Ok(entry) = port.dequeue_one(Some(timeout)) {
                if thread_time() - begin >= 5 * SHORT {
                    return None;
                }
                if entry.completion_key == 2 {
                    goes_on.open(1);
                    wait_until("the other computes", || {
                        computes.load(Ordering::SeqCst) == 1
                    });
                    timeout = 10 * SHORT;
                } else if port.snapshot().counted_out != Some(0) {
                    // By F6 it got the place back, which it had lost.
                    return Some(count);
                }
                count += 1;
                port.post(PACKET).expect("an open port");
                compute_for(Duration::from_micros(100));
            }
            Some(count)
        });
        port.post(Entry::new(2, 0, 0))?;
        // While the first computes, it is the one that has the place.
        let count = second.join();
        ends.store(1, Ordering::SeqCst);
        let lost = first.join().expect("no panic");
        Ok((count.expect("no panic"), lost))
    })
}

#[for_every_backend(with_places)]
fn f4_who_dequeues_all_the_time_finds_who_blocks(backend: Backend) -> io::Result<()> {
    for policy in POLICIES {
        let port = detecting_port(backend, 2, policy)?;
        let mut soonest = PATIENCE;
        for _ in 0..20 {
            let gate = Gate::new();
            let (blocks, ends) = (AtomicUsize::new(0), AtomicBool::new(false));
            thread::scope(|scope| -> io::Result<()> {
                let gates = [&gate];
                let _gates = CloseGates(&gates);
                let _ends = SetAtEnd(&ends);
                // It blocks in its handler.
                scope.spawn(|| {
                    port.dequeue_one(None).expect("a packet");
                    blocks.store(1, Ordering::SeqCst);
                    gate.pass();
                });
                port.post(PACKET)?;
                wait_until("it blocks", || blocks.load(Ordering::SeqCst) == 1);
                // One more waits for a place.
                let busy = scope.spawn(|| {
                    port.post(PACKET).expect("an open port");
                    while !ends.load(Ordering::SeqCst) {
                        let _ = port.dequeue_one(Some(Duration::ZERO));
                        port.post(PACKET).expect("an open port");
                    }
                });
                wait_until("it dequeues", || counted(port.snapshot().running) == 2);
                let waiting = scope.spawn(|| {
                    let found = port.dequeue_one(Some(PATIENCE));
                    ends.store(true, Ordering::SeqCst);
                    found
                });
                let found = waiting.join().expect("no panic");
                assert_eq!(found, Ok(PACKET));
                let after = port.snapshot().detected_after.expect("it was found");
                soonest = soonest.min(after);
                busy.join().expect("no panic");
                Ok(())
            })?;
            drain_port_of_packets(&port);
            // While one that has left has not ended, whoever dequeues looks at the next.
            assert_all_places_free(&port);
        }
        println!("{policy}: {soonest:?}");
        let limit = detected_within(backend, Duration::from_millis(1));
        assert!(soonest < limit, "{policy}: {soonest:?}");
    }
    Ok(())
}

/// Opens gates when a test's scope ends, however it ends.
struct CloseGates<'a>(&'a [&'a Gate]);

impl Drop for CloseGates<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|gate| gate.open_for_all());
    }
}

fn drain_port_of_packets(port: &CompletionPort) {
    while port.dequeue_one(Some(Duration::ZERO)).is_ok() {}
}

/// Blocks with a packet in hand until it has lost its place, which takes another thread that waits. Returns whether it was
/// counted out (F6), which can come before it is found to block where only the processor time of threads is seen.
fn lose_place(port: &CompletionPort) -> bool {
    port.post(PACKET).expect("an open port");
    thread::scope(|scope| {
        let other = scope.spawn(|| port.dequeue_one(Some(PATIENCE)));
        assert_eq!(other.join().expect("no panic"), Ok(PACKET));
    });
    let is_counted_out = counted(port.snapshot().counted_out) == 1;
    assert!(is_counted_out || port.snapshot().detected_after.is_some());
    is_counted_out
}

#[for_every_backend(with_places)]
fn f4_a_scope_after_the_place_was_left_ends_with_a_place(backend: Backend) -> io::Result<()> {
    let port = detecting_port(backend, 1, WakePolicy::Eager)?;
    for _ in 0..20 {
        port.post(PACKET)?;
        port.dequeue_one(None)?;
        let is_counted_out = lose_place(&port);
        port.blocking(|| ());
        // This thread computes, and with a packet in hand. One that was counted out has no place until it dequeues.
        let running = usize::from(!is_counted_out);
        assert_eq!(counted(port.snapshot().running), running);
        port.dequeue_one(Some(Duration::ZERO))
            .expect_err("no packet");
        assert_all_places_free(&port);
    }
    Ok(())
}

/// What a thread dequeues while it ends, in the destructor of something of its own.
#[for_every_backend(with_places)]
fn f2_a_thread_that_has_ended_holds_no_place(backend: Backend) -> io::Result<()> {
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
    for detects in [true, false] {
        let builder = CompletionPort::builder().backend(backend).concurrency(1);
        let port = std::sync::Arc::new(builder.detect_blocking(detects).build()?);
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
            "{detects}"
        );
        assert_eq!(counted(port.snapshot().running), 1);
    }
    Ok(())
}

/// A thread that is woken for the packet may be on its way with a socket's notification, and no room for more.
#[for_every_backend(with_places)]
fn f5_a_packet_does_not_wait_for_the_thread_that_a_socket_has_woken(
    backend: Backend,
) -> io::Result<()> {
    let pair = Pair::unix()?;
    for _ in 0..rounds(500) {
        let port = waking_port(backend, 3, WakePolicy::Bounded(PATIENCE))?;
        let gate = Gate::new();
        let packets = AtomicUsize::new(0);
        let work = || {
            let packet = port.dequeue_one(None) == Ok(PACKET);
            packets.fetch_add(usize::from(packet), Ordering::SeqCst);
            gate.pass();
        };
        thread::scope(|scope| -> io::Result<()> {
            let gates = [&gate];
            let _close = CloseAtEnd(&port, &gates);
            scope.spawn(work);
            scope.spawn(work);
            wait_for_waiting(&port, 2);
            port.post(PACKET)?;
            wait_until("one runs", || packets.load(Ordering::SeqCst) == 1);
            // This one would leave what becomes ready to the one that runs.
            scope.spawn(work);
            wait_for_waiting(&port, 2);
            port.enable(&pair.ours, 1, EventFilter::IN, ONCE)?;
            assert_eq!(pair.theirs.send(b"x")?, 1);
            port.post(PACKET)?;
            wait_until("the packet is dequeued", || {
                packets.load(Ordering::SeqCst) == 2
            });
            pair.drain()?;
            Ok(())
        })?;
    }
    Ok(())
}

/// The last word of a thread that blocks in the scope is not needed.
#[for_every_backend(with_places)]
fn f4_who_dequeued_in_the_scope_keeps_no_other_from_a_place(backend: Backend) -> io::Result<()> {
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
        for _ in 0..rounds(20_000) {
            port.post(PACKET)?;
            posted += 1;
            let mut own = 0;
            port.blocking(|| {
                own += usize::from(port.dequeue_one(Some(Duration::ZERO)).is_ok());
                port.post(PACKET)
            })?;
            posted += 1 - own;
            // This thread has a place at the most; the other one gets what is left.
            wait_until("the other thread has the rest", || {
                served.load(Ordering::SeqCst) == posted
            });
        }
        Ok(())
    })
}

fn with_many_threads(policy: WakePolicy, backend: Backend, seed: u64) -> io::Result<()> {
    let port = detecting_port(backend, 3, policy)?;
    let other = detecting_port(backend, 1, policy)?;
    let pairs = [Pair::unix()?, Pair::unix()?, Pair::unix()?];
    for (key, pair) in pairs.iter().enumerate() {
        port.enable(&pair.ours, 100 + key, EventFilter::IN, LEVEL)?;
    }
    let [posted, dequeued, notified] = [const { AtomicUsize::new(0) }; 3];
    let work = |seed: u64| {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut entries = [Entry::default(); 4];
        loop {
            let room = rng.usize(1..=4);
            let timeout = match rng.u32(..4) {
                0 => Some(Duration::ZERO),
                1 => Some(Duration::from_micros(rng.u64(..300))),
                2 => Some(Duration::from_millis(1)),
                _ => None,
            };
            let found = match port.dequeue(&mut entries[..room], timeout) {
                Ok(found) => found,
                Err(Error::TimedOut) => continue,
                Err(error) => return assert_eq!(error, Error::Closed),
            };
            for entry in found {
                if entry.completion_key >= 100 {
                    let pair = &pairs[entry.completion_key - 100];
                    let read = pair.drain().expect("the peer is there");
                    notified.fetch_add(read, Ordering::SeqCst);
                } else {
                    dequeued.fetch_add(1, Ordering::SeqCst);
                }
            }
            match rng.u32(..12) {
                0 => thread::sleep(Duration::from_micros(rng.u64(..1500))),
                1 => port.blocking(|| thread::sleep(Duration::from_micros(100))),
                2 => port.blocking(|| drop(port.dequeue(&mut entries[..0], None))),
                3 => drop(other.dequeue_one(Some(Duration::ZERO))),
                4 => port.release(),
                5 => return,
                _ => _ = compute_for(Duration::from_micros(rng.u64(..50))),
            }
        }
    };
    thread::scope(|scope| -> io::Result<()> {
        let _close = CloseAtEnd(&port, &[]);
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut sent = 0;
        let mut threads = Vec::new();
        for step in 0..rounds(2000) {
            threads.retain(|it: &thread::ScopedJoinHandle<'_, ()>| !it.is_finished());
            while threads.len() < 8 {
                let (work, seed) = (&work, rng.u64(..));
                threads.push(scope.spawn(move || work(seed)));
            }
            let pair = &pairs[step % 3];
            if rng.bool() && pair.theirs.send(b"x").is_ok() {
                sent += 1;
            }
            let count = rng.usize(..4);
            port.post_all(&[PACKET; 4][..count])?;
            posted.fetch_add(count, Ordering::SeqCst);
            if rng.u32(..8) == 0 {
                wait_until("everything is dequeued", || {
                    threads.retain(|it| !it.is_finished());
                    while threads.len() < 8 {
                        let (work, seed) = (&work, rng.u64(..));
                        threads.push(scope.spawn(move || work(seed)));
                    }
                    dequeued.load(Ordering::SeqCst) == posted.load(Ordering::SeqCst)
                        && notified.load(Ordering::SeqCst) == sent
                });
            }
        }
        Ok(())
    })?;
    // What was in hand when the port was closed is in nobody's hand now.
    assert_all_places_free(&port);
    Ok(())
}

#[for_every_backend(with_places)]
fn f4_no_place_and_no_packet_is_lost_whatever_threads_do(backend: Backend) -> io::Result<()> {
    let seed = std::env::var("SOCKNOTIFY_PLACES_SEED").ok();
    let seed = seed.and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let policies = [
        WakePolicy::Eager,
        WakePolicy::BOUNDED,
        // Long enough to be seen, should anything wait for it.
        WakePolicy::Bounded(Duration::from_secs(60)),
    ];
    for policy in policies {
        with_many_threads(policy, backend, seed)?;
    }
    Ok(())
}

/// A handler that waits for a lock, or for a pipe, says so to who asks the port.
#[for_every_backend(with_places)]
fn f4_the_port_says_which_threads_block_and_in_what(backend: Backend) -> io::Result<()> {
    let port = detecting_port(backend, 1, WakePolicy::Eager)?;
    assert_eq!(port.slow(Duration::ZERO), []);
    let pair = Pair::unix()?;
    pair.ours.set_nonblocking(false)?;
    pair.ours.set_read_timeout(Some(PATIENCE))?;
    thread::scope(|scope| -> io::Result<()> {
        let _close = CloseAtEnd(&port, &[]);
        let name = "reads for long";
        let reads = thread::Builder::new().name(name.into());
        let reads = reads.spawn_scoped(scope, || {
            port.dequeue_one(None).expect("a packet");
            (&pair.ours).read(&mut [0])
        })?;
        port.post(PACKET)?;
        wait_until("it has a place", || counted(port.snapshot().running) == 1);
        // Another one waits for the place, again and again: who is seen to run meanwhile counts once more.
        scope.spawn(|| while port.dequeue_one(None).is_ok() {});
        port.post(PACKET)?;
        let is_seen = |thread: &SlowThread| {
            // A read from a socket is a receive. One that was counted out may still be on its way there.
            let is_known = thread.name.as_deref() == Some(name) && thread.id.is_some();
            let is_there = is_known && thread.system_call == Some("recvfrom");
            // An emulated processor's numbers are not those of the kernel.
            let shows = cfg!(all(
                target_os = "linux",
                target_pointer_width = "64",
                not(emulated)
            ));
            assert_eq!(thread.thread, reads.thread().id());
            (is_there || !shows) && (thread.has_left || thread.is_counted_out)
        };
        wait_until(
            "it is seen",
            || matches!(&port.slow(SHORT)[..], [thread] if is_seen(thread)),
        );
        (&pair.theirs).write_all(b"x")?;
        assert_eq!(reads.join().expect("no panic")?, 1);
        wait_until("nobody blocks", || port.slow(SHORT).is_empty());
        Ok(())
    })
}

/// Nobody waits who would look.
#[for_every_backend(with_places)]
fn f4_the_port_says_who_computes_though_nobody_waits(backend: Backend) -> io::Result<()> {
    let port = detecting_port(backend, 1, WakePolicy::Eager)?;
    port.post(PACKET)?;
    port.dequeue_one(Some(PATIENCE))?;
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let asks = scope.spawn(|| {
            wait_until("it is slow", || !port.slow(SHORT).is_empty());
            let slow = port.slow(SHORT);
            is_over.store(true, Ordering::SeqCst);
            slow
        });
        compute_until("it is seen", || is_over.load(Ordering::SeqCst));
        let slow = asks.join().expect("no panic");
        assert!(matches!(&slow[..], [it] if it.thread == thread::current().id()));
        assert!(!slow[0].has_left && !slow[0].is_counted_out && slow[0].time >= SHORT);
    });
    // It says that it blocks: so that is no news.
    port.blocking(|| assert_eq!(port.slow(Duration::ZERO), []));
    port.release();
    assert_eq!(port.slow(Duration::ZERO), []);
    Ok(())
}

/// Threads that wait do nothing while nothing comes.
#[cfg(target_os = "linux")]
#[for_every_backend(with_places)]
fn f4_nobody_looks_at_threads_while_the_port_is_idle(backend: Backend) -> io::Result<()> {
    for policy in POLICIES {
        let port = detecting_port(backend, 2, policy)?;
        let (tell, told) = channel();
        thread::scope(|scope| -> io::Result<()> {
            let _close = CloseAtEnd(&port, &[]);
            let port = &port;
            for _ in 0..6 {
                let tell = tell.clone();
                scope.spawn(move || {
                    tell.send(this_thread()).expect("someone listens");
                    while port.dequeue_one(None).is_ok() {
                        // Some blocks, and is looked at.
                        thread::sleep(Duration::from_millis(2));
                    }
                });
            }
            let threads: Vec<ThreadId> = told.iter().take(6).collect();
            wait_for_waiting(port, 6);
            port.post_all(&[PACKET; 20])?;
            wait_until("all is handled, and nobody watches", || {
                let snapshot = port.snapshot();
                snapshot.queued == 0 && snapshot.waiting == 6 && !snapshot.is_watched
            });
            asleep(threads.iter().copied());
            // Who polls with a timer does so once more.
            thread::sleep(SHORT);
            asleep(threads.iter().copied());
            let switches = || {
                let count = |&thread| crate::support::voluntary_switches(thread).expect("it lives");
                threads.iter().map(count).sum::<u64>()
            };
            let before = switches();
            thread::sleep(15 * SHORT);
            assert_eq!(switches() - before, 0, "{policy}");
            Ok(())
        })?;
    }
    Ok(())
}

/// What four threads use that wait for so long beside two that compute.
fn watching_two(backend: Backend, policy: WakePolicy, time: Duration) -> io::Result<Duration> {
    let port = detecting_port(backend, 2, policy)?;
    let is_over = AtomicBool::new(false);
    let spent = thread::scope(|scope| -> io::Result<Duration> {
        let _close = CloseAtEnd(&port, &[]);
        for _ in 0..2 {
            scope.spawn(|| {
                port.dequeue_one(None).expect("a packet");
                compute_until("nobody waits", || is_over.load(Ordering::Relaxed));
            });
        }
        wait_for_waiting(&port, 2);
        port.post_all(&[PACKET; 2])?;
        wait_until("both compute", || counted(port.snapshot().running) == 2);
        let waiting = [(); 4].map(|()| scope.spawn(|| quiet_for(&port, time)));
        let spent = waiting.map(|thread| thread.join());
        is_over.store(true, Ordering::Relaxed);
        Ok(spent.map(|spent| spent.expect("no panic")).iter().sum())
    })?;
    assert_all_places_free(&port);
    Ok(spent)
}

#[for_every_backend(with_places)]
fn f4_to_watch_threads_that_compute_costs_little(backend: Backend) -> io::Result<()> {
    // Long enough that a fiftieth is two ticks of the clock, the least that can be told.
    let time = (15 * SHORT).max(100 * TICK);
    for policy in POLICIES {
        println!("{policy}");
        expect_little_time(time / 50, || {
            watching_two(backend, policy, time).expect("no call fails")
        });
    }
    Ok(())
}

/// However many they are.
#[for_every_backend(timed)]
fn f4_to_watch_many_threads_that_compute_costs_little(backend: Backend) -> io::Result<()> {
    const PLACES: usize = 64;
    let port = detecting_port(backend, PLACES, WakePolicy::Eager)?;
    // Long enough that a hundredth is two ticks of the clock, the least that can be told.
    let time = Duration::from_secs(1).max(200 * TICK);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| -> io::Result<()> {
        let _close = CloseAtEnd(&port, &[]);
        let _end = SetAtEnd(&is_over);
        let (port, is_over) = (&port, &is_over);
        let (tell, told) = channel();
        for _ in 0..PLACES {
            let tell = tell.clone();
            scope.spawn(move || {
                port.dequeue_one(None).expect("a packet");
                tell.send(()).expect("someone listens");
                while !is_over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
            port.post(PACKET)?;
            told.recv_timeout(PATIENCE).expect("it has a packet");
        }
        // A look takes twice as long without optimization.
        let limit = time / if cfg!(debug_assertions) { 50 } else { 100 };
        expect_little_time(limit, || quiet_for(port, time));
        Ok(())
    })
}

#[for_every_backend(with_places)]
fn f4_where_nothing_is_detected_a_thread_that_sleeps_keeps_its_place(
    backend: Backend,
) -> io::Result<()> {
    for policy in POLICIES {
        let port = waking_port(backend, 1, policy)?;
        with_a_place(&port, || {
            thread::scope(|scope| {
                let waiting = scope.spawn(|| wait_in_vain(&port, 3 * SHORT));
                waiting.join().expect("no panic");
            });
            let snapshot = port.snapshot();
            assert_eq!(counted(snapshot.running), 1);
            assert_eq!(counted(snapshot.left), 0);
            assert_eq!(snapshot.detected_after, None);
        })?;
    }
    Ok(())
}

#[for_every_backend(with_places)]
fn f4_a_thread_that_has_left_is_counted_and_can_end(backend: Backend) -> io::Result<()> {
    for policy in POLICIES {
        let port = detecting_port(backend, 1, policy)?;
        for _ in 0..10 {
            thread::scope(|scope| {
                let thread = scope.spawn(|| {
                    port.post(PACKET).expect("an open port");
                    port.dequeue_one(None).expect("a packet");
                    let _ = lose_place(&port);
                });
                thread.join().expect("no panic");
            });
            assert_eq!(counted(port.snapshot().counted_out), 0);
            assert_all_places_free(&port);
            // One place, as before.
            with_a_place(&port, || assert_eq!(counted(port.snapshot().running), 1))?;
            drain_port_of_packets(&port);
        }
    }
    Ok(())
}

/// The others wait in the system, which has nothing to report until the socket is armed again.
#[for_every_backend(with_places)]
fn c4_a_level_is_notified_again_when_its_thread_blocks(backend: Backend) -> io::Result<()> {
    // Without a limit of places, too: who blocks keeps what others need.
    for (policy, places) in POLICIES
        .into_iter()
        .flat_map(|it| [(it, 4), (it, usize::MAX)])
    {
        let port = detecting_port(backend, places, policy)?;
        let pair = Pair::unix()?;
        port.enable(&pair.ours, 1, EventFilter::IN, LEVEL)?;
        let gate = Gate::new();
        let (tell, told) = channel();
        thread::scope(|scope| -> io::Result<()> {
            let gates = [&gate];
            let _close = CloseAtEnd(&port, &gates);
            let (port, gate) = (&port, &gate);
            for _ in 0..4 {
                let tell = tell.clone();
                scope.spawn(move || {
                    if port.dequeue_one(None).is_ok() {
                        let _ = tell.send(Instant::now());
                        gate.pass();
                    }
                });
            }
            wait_for_waiting(port, 4);
            pair.send()?;
            let first = told.recv_timeout(PATIENCE).expect("a notification");
            let second = told.recv_timeout(PATIENCE);
            let second = second.expect("one more, since the socket is still ready");
            println!("{policy}, {places}: after {:?}", second - first);
            Ok(())
        })?;
    }
    Ok(())
}

/// Waits until two levels have come, and a packet.
fn wait_for_all<'a>(
    changed: &Condvar,
    begun: MutexGuard<'a, [usize; 2]>,
) -> MutexGuard<'a, [usize; 2]> {
    let is_one_missing = |&mut [levels, packets]: &mut [usize; 2]| levels < 2 || packets < 1;
    let all = changed.wait_timeout_while(begun, PATIENCE, is_one_missing);
    all.expect("no panic").0
}

/// Over and over, a handler blocks until its level has come to another thread, and a packet to a third, which may be the one
/// that watched.
#[for_every_backend(with_places)]
fn c4_a_level_is_notified_again_though_who_watched_works(backend: Backend) -> io::Result<()> {
    for policy in POLICIES {
        let port = detecting_port(backend, 4, policy)?;
        let pair = Pair::unix()?;
        port.enable(&pair.ours, 1, EventFilter::IN, LEVEL)?;
        let begun = Mutex::new([0, 0]);
        let changed = Condvar::new();
        thread::scope(|scope| -> io::Result<()> {
            let _close = CloseAtEnd(&port, &[]);
            for _ in 0..4 {
                scope.spawn(|| {
                    while let Ok(entry) = port.dequeue_one(None) {
                        let mut begun = begun.lock().expect("no panic");
                        begun[usize::from(entry == PACKET)] += 1;
                        changed.notify_all();
                        drop(wait_for_all(&changed, begun));
                    }
                });
            }
            for round in 0..rounds(50) {
                wait_for_waiting(&port, 4);
                *begun.lock().expect("no panic") = [0, 0];
                pair.send()?;
                port.post(PACKET)?;
                let begun = wait_for_all(&changed, begun.lock().expect("no panic"));
                assert!(
                    begun[0] >= 2 && begun[1] == 1,
                    "{policy}, round {round}: {begun:?}"
                );
                pair.drain()?;
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// The other thread never waits for anything.
#[for_every_backend(with_places)]
fn c4_a_level_is_notified_again_when_its_thread_blocks_beside_a_busy_one(
    backend: Backend,
) -> io::Result<()> {
    for places in [2, usize::MAX] {
        let port = detecting_port(backend, places, WakePolicy::Eager)?;
        let pair = Pair::unix()?;
        pair.send()?;
        port.enable(&pair.ours, 1, EventFilter::IN, LEVEL)?;
        let gate = Gate::new();
        thread::scope(|scope| -> io::Result<()> {
            let gates = [&gate];
            let _close = CloseAtEnd(&port, &gates);
            let (tell, told) = channel();
            let (port, gate) = (&port, &gate);
            scope.spawn(move || {
                let entry = port.dequeue_one(None).expect("a notification");
                tell.send(entry.completion_key).expect("someone listens");
                gate.pass();
            });
            assert_eq!(told.recv_timeout(PATIENCE), Ok(1));
            compute_until("it is notified again", || {
                port.post(PACKET).expect("an open port");
                let mut entries = [Entry::default(); 2];
                let entries = port.dequeue(&mut entries, None).expect("packets");
                entries.iter().any(|entry| entry.completion_key == 1)
            });
            Ok(())
        })?;
    }
    Ok(())
}

/// In what time a thread that blocks is found. Where only its processor time can be seen, it has to stay the same for
/// 20 ms, between two looks, each of which may be late by a tick of the system's clock.
fn detected_within(backend: Backend, limit: Duration) -> Duration {
    match backend.name() {
        "afd" => limit + Duration::from_millis(20 + 2 * 15),
        _ => limit,
    }
}

/// Who watches has seen nothing change for long, and looks rarely.
#[for_every_backend(timed)]
fn f4_who_blocks_after_others_have_computed_for_long_is_found_soon(
    backend: Backend,
) -> io::Result<()> {
    let mut times = Vec::new();
    for _ in 0..11 {
        let port = detecting_port(backend, 1, WakePolicy::Eager)?;
        let (tell, told) = channel();
        thread::scope(|scope| -> io::Result<()> {
            let _close = CloseAtEnd(&port, &[]);
            port.post_all(&[PACKET; 2])?;
            port.dequeue_one(None)?;
            scope.spawn(|| {
                port.dequeue_one(None).expect("a packet");
                tell.send(Instant::now()).expect("someone listens");
            });
            // A thread that was kept from a processor may have lost its place already.
            wait_until("it waits, or has the packet", || {
                let snapshot = port.snapshot();
                snapshot.waiting == 1 || snapshot.queued == 0
            });
            compute_for(2 * SHORT);
            port.post(PACKET)?;
            port.dequeue_one(None)?;
            let begin = Instant::now();
            times.push(told.recv_timeout(PATIENCE).expect("it runs") - begin);
            Ok(())
        })?;
    }
    times.sort_unstable();
    println!("{times:?}");
    // Some may be late on a busy machine.
    let limit = detected_within(backend, Duration::from_millis(10));
    assert!(times[3] < limit, "{times:?}");
    Ok(())
}

/// The rest of the places compute, and have for long.
#[for_every_backend(timed)]
fn f4_one_that_blocks_among_many_that_compute_is_found_soon(backend: Backend) -> io::Result<()> {
    const PLACES: usize = 64;
    let mut times = Vec::new();
    for _ in 0..20 {
        let port = detecting_port(backend, PLACES, WakePolicy::default())?;
        let is_over = AtomicBool::new(false);
        let gate = Gate::new();
        thread::scope(|scope| -> io::Result<()> {
            let gates = [&gate];
            let _close = CloseAtEnd(&port, &gates);
            let _end = SetAtEnd(&is_over);
            let (port, is_over, gate) = (&port, &is_over, &gate);
            let (tell, told) = channel();
            for index in 0..PLACES {
                let tell = tell.clone();
                scope.spawn(move || {
                    port.dequeue_one(None).expect("a packet");
                    tell.send(Instant::now()).expect("someone listens");
                    match index {
                        0 => gate.pass(),
                        _ => {
                            while !is_over.load(Ordering::Relaxed) {
                                std::hint::spin_loop();
                            }
                        }
                    }
                });
                port.post(PACKET)?;
                told.recv_timeout(PATIENCE).expect("it has a packet");
            }
            let tell = tell.clone();
            scope.spawn(move || {
                port.dequeue_one(None).expect("a packet");
                tell.send(Instant::now()).expect("someone listens");
            });
            let begin = Instant::now();
            port.post(PACKET)?;
            times.push(told.recv_timeout(PATIENCE).expect("it runs") - begin);
            Ok(())
        })?;
    }
    times.sort_unstable();
    println!("{times:?}");
    Ok(())
}

/// Handlers that sleep, far more than places, and then one that does not.
#[for_every_backend(timed)]
fn f4_a_burst_of_handlers_that_sleep_is_absorbed(backend: Backend) -> io::Result<()> {
    for (count, limit) in [(10, 5), (30, 8), (100, 18)] {
        let mut times = Vec::new();
        for _ in 0..7 {
            let port = detecting_port(backend, 2, WakePolicy::default())?;
            thread::scope(|scope| -> io::Result<()> {
                let _close = CloseAtEnd(&port, &[]);
                let (tell, told) = channel();
                for _ in 0..count + 2 {
                    let (port, tell) = (&port, tell.clone());
                    scope.spawn(move || {
                        while let Ok(entry) = port.dequeue_one(None) {
                            match entry.completion_key {
                                1 => tell.send(Instant::now()).expect("someone listens"),
                                _ => thread::sleep(Duration::from_millis(50)),
                            }
                        }
                    });
                }
                wait_for_waiting(&port, count + 2);
                let begin = Instant::now();
                port.post_all(&vec![PACKET; count])?;
                port.post(Entry::new(1, 0, 0))?;
                times.push(told.recv_timeout(PATIENCE).expect("it runs") - begin);
                Ok(())
            })?;
        }
        times.sort_unstable();
        println!("{count}: {times:?}");
        let limit = detected_within(backend, Duration::from_millis(limit));
        assert!(times[3] < limit, "{count}: {times:?}");
    }
    Ok(())
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

    for policy in POLICIES {
        let port = detecting_port(backend, 1, policy)?;
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
            // Nobody has the place any more.
            port.post(PACKET)?;
            expect_packets(port, &[PACKET]);
            Ok(())
        })?;
    }
    Ok(())
}
