//! F2, F4. How many threads run: the limit rises while handlers block or compute, and falls when that is over.
//!
//! When it does so is tested by simulation (`engine/threads`): with real threads, these tests count, and wait for progress.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{channel, sync_channel};
use std::sync::{Barrier, Mutex};
use std::thread;
#[cfg(target_os = "linux")]
use std::time::Duration;

use socknotify::{Backend, CompletionPort, Entry, Error, Snapshot, WakePolicy};

use super::f_permits::with_a_permit;
use crate::support::{
    CloseAtEnd, Gate, PATIENCE, SHORT, SetAtEnd, wait_for_waiting, wait_in_vain, wait_until,
};
#[cfg(target_os = "linux")]
use crate::support::{ThreadId, asleep, this_thread, voluntary_switches};

const PACKET: Entry = Entry::new(51, 0, 0);

const POLICIES: [WakePolicy; 2] = [WakePolicy::Eager, WakePolicy::BOUNDED];

fn adaptive_port(
    backend: Backend,
    concurrency: usize,
    policy: WakePolicy,
) -> io::Result<CompletionPort> {
    let builder = CompletionPort::builder().backend(backend);
    Ok(builder
        .concurrency(concurrency)
        .wake_policy(policy)
        .build()?)
}

fn rises(snapshot: &Snapshot) -> u64 {
    snapshot.rises_asleep + snapshot.rises_starved
}

/// All permits are held by threads that do this until the end, while others handle packets. Returns what is so then.
fn beside_holders(
    backend: Backend,
    concurrency: usize,
    policy: WakePolicy,
    hold: impl Fn(&AtomicBool) + Sync,
) -> io::Result<Snapshot> {
    let port = adaptive_port(backend, concurrency, policy)?;
    let (holding, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
    thread::scope(|scope| -> io::Result<Snapshot> {
        let _close = CloseAtEnd(&port, &[]);
        let _end = SetAtEnd(&is_over);
        for _ in 0..concurrency {
            scope.spawn(|| {
                port.dequeue_one(None).expect("a packet");
                holding.fetch_add(1, Ordering::SeqCst);
                hold(&is_over);
            });
        }
        port.post_all(&vec![PACKET; concurrency])?;
        wait_until("all permits are held", || {
            holding.load(Ordering::SeqCst) == concurrency
        });
        let (tell, told) = channel();
        for _ in 0..2 {
            let (port, tell) = (&port, tell.clone());
            scope.spawn(move || {
                while port.dequeue_one(None).is_ok() {
                    let _ = tell.send(());
                }
            });
        }
        for _ in 0..20 {
            port.post(PACKET)?;
            told.recv_timeout(PATIENCE).expect("a thread for it");
        }
        Ok(port.snapshot())
    })
}

#[for_every_backend(with_permits)]
fn f4_packets_find_a_thread_beside_handlers_that_sleep(backend: Backend) -> io::Result<()> {
    for (concurrency, policy) in [1, 2, 8].into_iter().zip(POLICIES.into_iter().cycle()) {
        let snapshot = beside_holders(backend, concurrency, policy, |is_over| {
            while !is_over.load(Ordering::Relaxed) {
                thread::sleep(SHORT);
            }
        })?;
        assert!(snapshot.limit > Some(concurrency), "{snapshot:?}");
        assert!(rises(&snapshot) > 0, "{snapshot:?}");
    }
    Ok(())
}

#[for_every_backend(with_permits)]
fn f4_packets_find_a_thread_beside_handlers_that_compute(backend: Backend) -> io::Result<()> {
    for (concurrency, policy) in [1, 2, 8].into_iter().zip(POLICIES.into_iter().cycle()) {
        let snapshot = beside_holders(backend, concurrency, policy, |is_over| {
            while !is_over.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        })?;
        assert!(snapshot.limit > Some(concurrency), "{snapshot:?}");
        assert!(snapshot.rises_starved > 0, "{snapshot:?}");
    }
    Ok(())
}

/// In the kernel, but not in a system call.
#[for_every_backend(with_permits)]
fn f4_packets_find_a_thread_beside_handlers_that_fault_pages(backend: Backend) -> io::Result<()> {
    let snapshot = beside_holders(backend, 2, WakePolicy::default(), |is_over| {
        while !is_over.load(Ordering::Relaxed) {
            std::hint::black_box(vec![1_u8; 1 << 22]);
        }
    })?;
    assert!(snapshot.limit > Some(2), "{snapshot:?}");
    Ok(())
}

#[for_every_backend(with_permits)]
fn f4_a_handler_can_wait_for_the_next_one(backend: Backend) -> io::Result<()> {
    for policy in POLICIES {
        let port = adaptive_port(backend, 1, policy)?;
        let (tell, told) = sync_channel(1);
        let told = Mutex::new(told);
        thread::scope(|scope| -> io::Result<()> {
            let _close = CloseAtEnd(&port, &[]);
            let handle = || match port.dequeue_one(Some(PATIENCE))?.completion_key {
                1 => Ok(told.lock().expect("no panic").recv_timeout(PATIENCE)),
                _ => Ok(tell.send(()).map_err(|_| unreachable!("it waits"))),
            };
            let threads = [(); 2].map(|()| scope.spawn(handle));
            wait_for_waiting(&port, 2);
            port.post_all(&[Entry::new(1, 0, 0), Entry::new(2, 0, 0)])?;
            for thread in threads {
                let outcome: Result<_, Error> = thread.join().expect("no panic");
                assert_eq!(outcome, Ok(Ok(())));
            }
            Ok(())
        })?;
        assert_eq!(port.snapshot().running, Some(0));
    }
    Ok(())
}

/// All handlers of a port with one permit wait for each other. After that one thread runs at a time, so two permits are kept: the
/// concurrency value, and as many as are used.
#[for_every_backend(with_permits)]
fn f2_the_limit_rises_to_what_blocks_and_falls_when_that_is_over(
    backend: Backend,
) -> io::Result<()> {
    const THREADS: usize = 17;
    for policy in POLICIES {
        let port = adaptive_port(backend, 1, policy)?;
        let gate = Gate::new();
        let [running, ended] = [const { AtomicUsize::new(0) }; 2];
        thread::scope(|scope| -> io::Result<()> {
            let gates = [&gate];
            let _close = CloseAtEnd(&port, &gates);
            for _ in 0..THREADS {
                scope.spawn(|| {
                    while port.dequeue_one(None).is_ok() {
                        running.fetch_add(1, Ordering::SeqCst);
                        gate.pass();
                        ended.fetch_add(1, Ordering::SeqCst);
                    }
                });
            }
            wait_for_waiting(&port, THREADS);
            let before = port.snapshot();
            assert_eq!((before.limit, rises(&before)), (Some(1), 0));
            port.post_all(&[PACKET; THREADS])?;
            wait_until("all run", || running.load(Ordering::SeqCst) == THREADS);
            let snapshot = port.snapshot();
            assert_eq!(snapshot.running, Some(THREADS));
            assert!(
                snapshot.limit <= Some(2 * THREADS),
                "no more than twice the threads: {snapshot:?}"
            );
            assert!(rises(&snapshot) >= 5, "2, 4, 8, 16, 32: {snapshot:?}");
            if cfg!(target_os = "linux") {
                assert!(snapshot.rises_asleep > 0, "{snapshot:?}");
            }
            gate.open_for_all();
            // Whoever dequeues samples. One that waits for a processor for long may make it rise once more.
            wait_until("it has fallen", || {
                port.post(PACKET).expect("it is open");
                let snapshot = port.snapshot();
                assert!(snapshot.limit <= Some(2 * THREADS), "{snapshot:?}");
                snapshot.limit <= Some(2)
            });
            wait_until("all are done", || port.snapshot().queued == 0);
            wait_for_waiting(&port, THREADS);
            assert!(ended.load(Ordering::SeqCst) >= THREADS);
            assert_eq!(port.snapshot().running, Some(0));
            Ok(())
        })?;
    }
    Ok(())
}

/// Nobody else runs while a thread blocks with the only permit, or computes.
fn assert_limit_stays(port: &CompletionPort) -> Result<(), Error> {
    for computes in [false, true] {
        with_a_permit(port, || {
            thread::scope(|scope| {
                let waiting = scope.spawn(|| wait_in_vain(port, 3 * SHORT));
                while computes && !waiting.is_finished() {
                    std::hint::spin_loop();
                }
                waiting.join().expect("no panic");
            });
            let snapshot = port.snapshot();
            assert_eq!((snapshot.running, snapshot.limit), (Some(1), Some(1)));
            assert_eq!(rises(&snapshot), 0);
        })?;
    }
    Ok(())
}

#[for_every_backend(with_permits)]
fn f2_a_strict_limit_never_rises(backend: Backend) -> io::Result<()> {
    for policy in POLICIES {
        let builder = CompletionPort::builder().backend(backend).strict();
        assert_limit_stays(&builder.concurrency(1).wake_policy(policy).build()?)?;
    }
    Ok(())
}

#[cfg(unix)]
#[for_every_backend(with_permits)]
fn f2_the_limit_of_a_port_that_another_loop_watches_never_rises(
    backend: Backend,
) -> io::Result<()> {
    let port = adaptive_port(backend, 1, WakePolicy::default())?;
    let _exposed = std::os::fd::AsFd::as_fd(&port);
    Ok(assert_limit_stays(&port)?)
}

#[for_every_backend(with_permits)]
fn f2_without_a_limit_every_thread_runs(backend: Backend) -> io::Result<()> {
    const THREADS: usize = 12;
    let builder = CompletionPort::builder().backend(backend).unlimited();
    let port = builder.build()?;
    let all = Barrier::new(THREADS);
    thread::scope(|scope| -> io::Result<()> {
        for _ in 0..THREADS {
            scope.spawn(|| {
                port.dequeue_one(None).expect("a packet");
                all.wait();
            });
        }
        Ok(port.post_all(&[PACKET; THREADS])?)
    })?;
    let snapshot = port.snapshot();
    assert_eq!((snapshot.limit, rises(&snapshot)), (None, 0));
    Ok(())
}

/// It gives the permit to whoever waits, and has one again when it returns: so one more runs than the limit allows.
#[for_every_backend(with_permits)]
fn f4_a_scoped_call_raises_no_limit(backend: Backend) -> io::Result<()> {
    let port = adaptive_port(backend, 1, WakePolicy::default())?;
    let gate = Gate::new();
    thread::scope(|scope| -> io::Result<()> {
        let gates = [&gate];
        let _close = CloseAtEnd(&port, &gates);
        port.post_all(&[PACKET; 2])?;
        port.dequeue_one(None)?;
        port.blocking(|| {
            scope.spawn(|| {
                port.dequeue_one(None).expect("a packet");
                gate.pass();
            });
            wait_until("the other runs", || {
                port.snapshot().queued == 0 && port.snapshot().running == Some(1)
            });
        });
        let snapshot = port.snapshot();
        assert_eq!((snapshot.running, snapshot.limit), (Some(2), Some(1)));
        assert_eq!(rises(&snapshot), 0);
        Ok(())
    })
}

/// With handlers that block and without, on every kind of limit: while nothing is queued, a watcher would be of no use.
#[cfg(target_os = "linux")]
#[for_every_backend(with_permits)]
fn f4_threads_that_wait_are_not_woken_while_nothing_comes(backend: Backend) -> io::Result<()> {
    const WAITING: usize = 4;
    for (is_strict, blocked) in [(false, 0), (true, 0), (false, 8), (true, 2)] {
        let builder = CompletionPort::builder().backend(backend).concurrency(2);
        let builder = if is_strict { builder.strict() } else { builder };
        let port = builder.build()?;
        let gate = Gate::new();
        thread::scope(|scope| -> io::Result<()> {
            let gates = [&gate];
            let _close = CloseAtEnd(&port, &gates);
            let (port, gate, (tell, told)) = (&port, &gate, channel());
            for _ in 0..WAITING + blocked {
                let tell = tell.clone();
                scope.spawn(move || {
                    tell.send(this_thread()).expect("the test runs");
                    while let Ok(entry) = port.dequeue_one(None) {
                        match entry == PACKET {
                            true => thread::sleep(Duration::from_millis(2)),
                            false => gate.pass(),
                        }
                    }
                });
            }
            let threads: Vec<ThreadId> = told.iter().take(WAITING + blocked).collect();
            port.post_all(&[PACKET; 20])?;
            port.post_all(&vec![Entry::default(); blocked])?;
            wait_until("all is dequeued", || {
                let snapshot = port.snapshot();
                snapshot.queued == 0 && snapshot.waiting == WAITING
            });
            let switches = || -> u64 {
                let count = |&it: &ThreadId| voluntary_switches(it).expect("it lives");
                threads.iter().map(count).sum()
            };
            // The last watcher wakes once more.
            let is_quiet = (0..10).any(|_| {
                asleep(threads.iter().copied());
                let before = switches();
                thread::sleep(5 * SHORT);
                switches() == before
            });
            assert!(is_quiet, "strict: {is_strict}, blocked: {blocked}");
            Ok(())
        })?;
    }
    Ok(())
}
