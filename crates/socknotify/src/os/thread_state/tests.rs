//! On every system that shows what a thread does.

use std::hint;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::{Activity, IS_SHOWN, ThreadState};

/// For what must come; after that a test fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A thread that does one thing until this goes.
pub(crate) struct Subject {
    pub(crate) state: ThreadState,
    end: Box<dyn FnOnce() + Send>,
    thread: JoinHandle<()>,
}

impl Subject {
    /// `work` returns when `end` is called.
    pub(crate) fn new(
        work: impl FnOnce() + Send + 'static,
        end: impl FnOnce() + Send + 'static,
    ) -> Self {
        let (sender, receiver) = mpsc::channel();
        let thread = thread::spawn(move || {
            sender.send(ThreadState::of_this()).expect("waited for");
            work();
        });
        Subject {
            state: receiver.recv().expect("a thread"),
            end: Box::new(end),
            thread,
        }
    }

    /// Returns when it computes.
    pub(crate) fn computing() -> Self {
        let rounds = Arc::new(AtomicU64::new(0));
        let ends = Arc::new(AtomicBool::new(false));
        let (count, has_ended) = (Arc::clone(&rounds), Arc::clone(&ends));
        let work = move || {
            while !has_ended.load(Ordering::Relaxed) {
                count.fetch_add(1, Ordering::Relaxed);
                hint::spin_loop();
            }
        };
        let subject = Subject::new(work, move || ends.store(true, Ordering::Relaxed));
        wait_until("computes", || rounds.load(Ordering::Relaxed) > 1000);
        subject
    }

    /// It waits for a lock that another thread holds.
    pub(crate) fn waiting_for_lock() -> Self {
        let lock = Arc::new(Mutex::new(()));
        let wanted = Arc::clone(&lock);
        let (held, is_held) = mpsc::channel();
        let (release, released) = mpsc::channel::<()>();
        let holder = thread::spawn(move || {
            let _guard = lock.lock().expect("a lock");
            held.send(()).expect("waited for");
            released.recv().expect("released");
        });
        is_held.recv().expect("held");
        let work = move || drop(wanted.lock().expect("a lock"));
        Subject::new(work, move || {
            release.send(()).expect("a holder");
            holder.join().expect("a holder");
        })
    }

    /// It sleeps until it is woken.
    pub(crate) fn sleeping() -> Self {
        let woken = Arc::new((Mutex::new(false), Condvar::new()));
        let waker = Arc::clone(&woken);
        let work = move || {
            let is_woken = woken.0.lock().expect("a lock");
            let waited = woken.1.wait_while(is_woken, |is_woken| !*is_woken);
            drop(waited.expect("a lock"));
        };
        Subject::new(work, move || {
            *waker.0.lock().expect("a lock") = true;
            waker.1.notify_one();
        })
    }

    /// Have it end, and wait for that.
    pub(crate) fn end(self) -> ThreadState {
        (self.end)();
        self.thread.join().expect("a thread that ended");
        self.state
    }
}

pub(crate) fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < PATIENCE, "never: {what}");
        thread::yield_now();
    }
}

fn is_blocked(state: &ThreadState) -> bool {
    state.activity() == Activity::Asleep
}

#[test]
fn where_nothing_can_be_seen_the_state_is_unknown() {
    let is_known = ThreadState::of_this().activity() != Activity::Unknown;
    assert_eq!(is_known, IS_SHOWN);
}

#[test]
fn a_thread_that_computes_runs() {
    if !IS_SHOWN {
        return;
    }
    let subject = Subject::computing();
    // Memory that is not there yet can stop it for a moment, and for longer where other threads ask for some.
    for _ in 0..1000 {
        wait_until("it runs", || subject.state.activity() == Activity::Running);
    }
    subject.end();
}

#[test]
fn a_thread_that_sleeps_is_blocked() {
    if !IS_SHOWN {
        return;
    }
    let subject = Subject::sleeping();
    wait_until("blocked", || is_blocked(&subject.state));
    subject.end();
}

#[test]
fn a_thread_that_waits_for_a_lock_is_blocked() {
    if !IS_SHOWN {
        return;
    }
    let subject = Subject::waiting_for_lock();
    wait_until("blocked", || is_blocked(&subject.state));
    subject.end();
}

#[test]
fn a_thread_that_goes_on_runs_again() {
    if !IS_SHOWN {
        return;
    }
    let ends = Arc::new(AtomicBool::new(false));
    let has_ended = Arc::clone(&ends);
    let (go_on, goes_on) = mpsc::channel::<()>();
    let work = move || {
        goes_on.recv().expect("a word");
        while !has_ended.load(Ordering::Relaxed) {
            hint::spin_loop();
        }
    };
    let subject = Subject::new(work, move || ends.store(true, Ordering::Relaxed));
    wait_until("blocked", || is_blocked(&subject.state));
    go_on.send(()).expect("a thread");
    wait_until("running", || subject.state.activity() == Activity::Running);
    subject.end();
}

#[test]
fn a_thread_that_ended_is_seen_as_that() {
    if !IS_SHOWN {
        return;
    }
    let subject = Subject::computing();
    subject.state.activity();
    assert!(!subject.state.has_ended());
    let state = subject.end();
    // Joining it does not wait until the kernel has removed it.
    wait_until("ended", || state.activity() == Activity::Ended);
    assert!(state.has_ended());
}

#[test]
fn a_thread_that_ended_before_the_first_look_is_seen_as_that() {
    if !IS_SHOWN {
        return;
    }
    let subject = Subject::sleeping();
    assert!(!subject.state.has_ended());
    let state = subject.end();
    wait_until("ended", || state.has_ended());
    assert_eq!(state.activity(), Activity::Ended);
}

#[test]
fn threads_look_at_each_other_at_the_same_time() {
    if !IS_SHOWN {
        return;
    }
    let subject = Subject::sleeping();
    let state = &subject.state;
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| wait_until("blocked", || is_blocked(state)));
        }
    });
    subject.end();
}

#[test]
#[ignore = "it prints what a look costs"]
fn cost() {
    const LOOKS: u32 = 100_000;
    let begin = Instant::now();
    for _ in 0..LOOKS {
        hint::black_box(ThreadState::of_this());
    }
    println!("to make one: {:?}", begin.elapsed() / LOOKS);
    for (name, subject) in [
        ("sleeps", Subject::sleeping()),
        ("computes", Subject::computing()),
    ] {
        let begin = Instant::now();
        subject.state.activity();
        println!("first look at one that {name}: {:?}", begin.elapsed());
        let begin = Instant::now();
        for _ in 0..LOOKS {
            hint::black_box(subject.state.activity());
        }
        let each = begin.elapsed() / LOOKS;
        println!("look at one that {name}: {each:?}");
        subject.end();
    }
}
