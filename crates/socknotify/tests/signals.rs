//! Signals while threads wait: they neither end a wait nor lengthen it (E4).
//!
//! A program of its own, because a signal's handler is the whole process's.

#![cfg(unix)]

#[macro_use]
extern crate socknotify_test_macros;

#[macro_use]
mod support;

use std::io;
use std::os::unix::thread::JoinHandleExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use socknotify::{Backend, CompletionPort, Entry, Error, EventFilter, Events};

use support::trigger::ONCE;
use support::{
    PATIENCE, Pair, PortExt, asleep, port_with, this_thread, wait_for_waiting, wait_until,
};

static SIGNALS: AtomicUsize = AtomicUsize::new(0);

/// One test after the other: the signals are counted.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

extern "C" fn count(_: libc::c_int) {
    SIGNALS.fetch_add(1, Ordering::Relaxed);
}

/// Has SIGUSR1 interrupt system calls, and do nothing else.
fn catch_signals() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let handler: extern "C" fn(libc::c_int) = count;
        // SAFETY: the handler touches one atomic; without SA_RESTART, interrupted calls fail.
        let result = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler as libc::sighandler_t;
            libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut())
        };
        assert_eq!(result, 0);
    });
}

/// Sends signals to a thread, one every few milliseconds, until it ends. Returns how many have come.
#[track_caller]
fn bombard<T>(thread: &JoinHandle<T>) -> usize {
    let before = SIGNALS.load(Ordering::Relaxed);
    let end = Instant::now() + PATIENCE;
    while !thread.is_finished() {
        // SAFETY: the thread was not joined, so its handle is good.
        unsafe { libc::pthread_kill(thread.as_pthread_t(), libc::SIGUSR1) };
        thread::sleep(Duration::from_millis(3));
        assert!(
            Instant::now() < end,
            "the wait does not end while signals come"
        );
    }
    SIGNALS.load(Ordering::Relaxed) - before
}

/// Waits in vain on a thread of its own, which gets signals all the time.
fn wait_in_vain(port: &Arc<CompletionPort>, timeout: Duration) -> Duration {
    // On a busy machine there may be no time for signals.
    for _ in 0..100 {
        let waiting = {
            let port = Arc::clone(port);
            thread::spawn(move || {
                let start = Instant::now();
                let result = port.dequeue_one(Some(timeout));
                (result, start.elapsed())
            })
        };
        let signals = bombard(&waiting);
        let (result, waited) = waiting.join().expect("no panic");
        assert_eq!(result, Err(Error::TimedOut));
        if signals >= 5 {
            return waited;
        }
    }
    panic!("hardly any signal has come");
}

#[for_every_backend]
fn e4_a_signal_neither_ends_a_wait_nor_lengthens_it(backend: Backend) -> io::Result<()> {
    let _turn = turn();
    catch_signals();
    let port = Arc::new(port_with(backend, 2)?);
    let pair = Pair::unix()?;
    port.enable(&pair.ours, 1, EventFilter::IN, ONCE)?;
    for millis in [50, 200] {
        let timeout = Duration::from_millis(millis);
        let waited = wait_in_vain(&port, timeout);
        assert!(waited >= timeout, "{waited:?} instead of {timeout:?}");
        // Were each signal to begin the wait anew, it would have lasted as long as they came.
        assert!(waited < PATIENCE / 3, "{waited:?} instead of {timeout:?}");
    }
    Ok(())
}

#[for_every_backend]
fn e4_a_signal_does_not_lengthen_the_wait_for_a_permit(backend: Backend) -> io::Result<()> {
    let _turn = turn();
    catch_signals();
    let port = Arc::new(port_with(backend, 1)?);
    port.post_all(&[Entry::default(); 2])?;
    port.dequeue_one(None)?;
    let timeout = Duration::from_millis(200);
    let waited = wait_in_vain(&port, timeout);
    assert!(waited >= timeout, "{waited:?}");
    assert!(waited < PATIENCE / 3, "{waited:?}");
    Ok(())
}

#[for_every_backend]
fn e4_a_signal_does_not_keep_packets_from_coming(backend: Backend) -> io::Result<()> {
    const BYTES: usize = 300;
    let _turn = turn();
    catch_signals();
    let before = SIGNALS.load(Ordering::Relaxed);
    let port = Arc::new(port_with(backend, 1)?);
    let pair = Pair::unix()?;
    let ours = pair.ours.try_clone()?;
    port.enable(&ours, 1, EventFilter::IN, ONCE)?;
    let (seen, done) = channel();
    let waiting = {
        let port = Arc::clone(&port);
        thread::spawn(move || -> io::Result<()> {
            for _ in 0..BYTES {
                let entry = port.dequeue_one(None)?;
                assert_eq!((entry.completion_key, entry.events()), (1, Events::IN));
                assert_eq!(support::drain(&ours)?, 1);
                port.enable(&ours, 1, EventFilter::IN, ONCE)?;
                seen.send(()).expect("someone listens");
            }
            Ok(())
        })
    };
    let sending = thread::spawn(move || -> io::Result<()> {
        for number in 1..=BYTES {
            if number == BYTES {
                // All others may have come before this test's thread sends the first signal.
                wait_until("a signal has come", || {
                    SIGNALS.load(Ordering::Relaxed) > before
                });
            }
            assert_eq!(pair.theirs.send(b"x")?, 1);
            done.recv_timeout(PATIENCE).expect("the byte is seen");
        }
        Ok(())
    });
    bombard(&waiting);
    waiting.join().expect("no panic")?;
    sending.join().expect("no panic")
}

/// Of those that are parked: all permits are taken, and one becomes free.
#[for_every_backend(with_permits)]
fn f3_a_signal_does_not_change_which_parked_thread_is_next(backend: Backend) -> io::Result<()> {
    const THREADS: usize = 4;
    let _turn = turn();
    catch_signals();
    let port = Arc::new(port_with(backend, 1)?);
    port.post(Entry::default())?;
    port.dequeue_one(None)?;
    let (tell, told) = channel();
    let mut threads = Vec::new();
    for number in 0..THREADS {
        let (shared, tell) = (Arc::clone(&port), tell.clone());
        let (tell_thread, thread) = channel();
        let handle = thread::spawn(move || {
            tell_thread.send(this_thread()).expect("someone listens");
            if shared.dequeue_one(None).is_ok() {
                tell.send(number).expect("someone listens");
            }
        });
        let thread = thread.recv().expect("a thread");
        threads.push((handle, thread));
        wait_for_waiting(&port, number + 1);
        asleep([thread]);
    }
    // The one that came first is interrupted. It has not come back, though: it never was gone.
    let before = SIGNALS.load(Ordering::Relaxed);
    // SAFETY: the thread was not joined, so its handle is good.
    unsafe { libc::pthread_kill(threads[0].0.as_pthread_t(), libc::SIGUSR1) };
    wait_until("the signal has come", || {
        SIGNALS.load(Ordering::Relaxed) > before
    });
    asleep(threads.iter().map(|(_, thread)| *thread));
    port.post_all(&[Entry::default(); THREADS])?;
    port.release();
    for number in (0..THREADS).rev() {
        let found = told.recv_timeout(PATIENCE).expect("a thread dequeues");
        assert_eq!(found, number);
    }
    for (handle, _) in threads {
        handle.join().expect("no panic");
    }
    Ok(())
}
