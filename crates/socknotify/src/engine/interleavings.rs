//! Every interleaving of a few threads in one port, on a backend that exists in memory only.
//!
//! ```text
//! RUSTFLAGS="--cfg interleavings" cargo test --release -p socknotify --lib interleavings
//! ```
//!
//! A wake-up that is lost shows as a deadlock, which the checker reports.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use loom::sync::{Condvar, Mutex, MutexGuard};
use loom::thread;

use super::owned::{Caller, Left, Polls, Taking};
use super::table::interest::Flag;
use super::{
    Arm, ArmError, Backend, DESCRIPTOR, Engine, Interest, Mode, Report, Reports, Table, Wait,
    Waited,
};
use crate::os::Fd;
use crate::values::entry::Arming;
use crate::values::registration::Extra;
use crate::{
    Entry, Error, EventFilter, Events, Registration, RegistrationError, Trigger, WakePolicy,
};

const ONESHOT: Trigger = Trigger::ONESHOT.union(Trigger::LEVEL);

/// A backend that watches sockets which become readable when a test says so.
pub(crate) struct Model {
    kernel: Mutex<Kernel>,
    first_id: u64,
    waiters: usize,
    /// Whether it watches sockets, or descriptors that are none.
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Sockets,
    Others,
}

const KINDS: [Kind; 2] = [Kind::Sockets, Kind::Others];

#[derive(Default)]
struct Kernel {
    sockets: [Socket; 2],
    woken: bool,
    /// A time is over that was asked for, as every time is soon.
    alarmed: bool,
    closed: bool,
    /// Threads that wait, oldest first.
    waiters: Vec<Arc<Condvar>>,
}

#[derive(Default)]
struct Socket {
    /// How many other sockets have had the number.
    generation: u64,
    readable: bool,
    interest: Option<Interest>,
    /// It is to be reported.
    is_due: bool,
    /// It was, and is not again until it is armed.
    is_silent: bool,
}

impl Kernel {
    fn is_due(&self) -> bool {
        self.woken || self.alarmed || self.closed || self.sockets.iter().any(|socket| socket.is_due)
    }

    /// Wake the newest waiter, if there is something for it.
    fn call(&mut self) {
        if self.is_due() {
            if let Some(newest) = self.waiters.pop() {
                newest.notify_one();
            }
        }
    }
}

impl Model {
    fn new(kind: Kind) -> Self {
        Model {
            kernel: Mutex::new(Kernel::default()),
            first_id: Self::ids(4),
            waiters: WAITERS.load(Ordering::Relaxed),
            kind,
        }
    }

    /// The first of so many identities. The owners of sockets outlive one run of the model; so none may come twice.
    fn ids(count: u64) -> u64 {
        static IDS: AtomicU64 = AtomicU64::new(0);
        IDS.fetch_add(count, Ordering::Relaxed)
    }

    fn kernel(&self) -> MutexGuard<'_, Kernel> {
        self.kernel.lock().unwrap()
    }

    pub(crate) fn drain(&self, socket: u32) {
        let socket = &mut self.kernel().sockets[socket as usize];
        socket.readable = false;
        socket.is_due = false;
    }

    pub(crate) fn is_readable(&self, socket: u32) -> bool {
        self.kernel().sockets[socket as usize].readable
    }

    pub(crate) fn become_readable(&self, number: u32) {
        let mut kernel = self.kernel();
        let socket = &mut kernel.sockets[number as usize];
        socket.readable = true;
        socket.is_due = socket.interest.is_some() && !socket.is_silent;
        kernel.call();
    }

    /// Close a socket, and give its number to another.
    fn replace(&self, number: u32) {
        let socket = &mut self.kernel().sockets[number as usize];
        *socket = Socket {
            generation: socket.generation + 1,
            ..Socket::default()
        };
    }
}

impl Backend for Model {
    type Memory = ();

    const KEEPS: bool = true;
    const SHARES: bool = true;

    fn waiters(&self) -> usize {
        self.waiters
    }

    fn identify(&self, fd: Fd) -> Result<u64, RegistrationError> {
        if self.kind == Kind::Others {
            return Err(RegistrationError::NotASocket);
        }
        let generation = self.kernel().sockets[fd.0 as usize].generation;
        Ok(self.first_id + u64::from(fd.0) + 2 * generation)
    }

    fn identify_any(&self, fd: Fd) -> Result<u64, RegistrationError> {
        match self.kind {
            Kind::Sockets => self.identify(fd),
            Kind::Others => Ok(DESCRIPTOR | Self::ids(1)),
        }
    }

    fn arm(&self, interest: &Interest, is_new: bool) -> Result<(), ArmError> {
        let mut kernel = self.kernel();
        let socket = &mut kernel.sockets[interest.fd.0 as usize];
        if !is_new && socket.interest.is_none() {
            return Err(ArmError::Stale);
        }
        socket.interest = Some(*interest);
        socket.is_silent = !interest.is_enabled();
        socket.is_due =
            socket.readable && interest.is_enabled() && interest.filter().contains(EventFilter::IN);
        kernel.call();
        Ok(())
    }

    fn disarm(&self, fd: Fd) -> Result<(), ArmError> {
        let socket = &mut self.kernel().sockets[fd.0 as usize];
        socket.is_due = false;
        let interest = socket.interest.take();
        interest.map(drop).ok_or(ArmError::Stale)
    }

    fn wait(
        &self,
        table: &Table,
        (): &mut (),
        batch: &mut [Arm],
        wait: &Wait,
        _packets: &mut Vec<Entry>,
        delivered: &mut impl Reports,
    ) -> Waited {
        let mut waited = Waited::default();
        let mut timeout = wait.timeout;
        for arm in batch {
            if arm.is_armed && !self.is_readable(arm.interest.fd.0) {
                continue;
            }
            // What is ready goes to the kernel's list.
            arm.outcome = table.arm_latest(&mut arm.interest, |interest| self.arm(interest, false));
            if arm.outcome != super::Outcome::Armed {
                timeout = Some(Duration::ZERO);
            }
        }
        if wait.room == 0 {
            return waited;
        }
        if timeout.is_some_and(|timeout| !timeout.is_zero()) {
            // A time is over at any moment, also if another thread takes what is due now.
            if !self.kernel().is_due() {
                thread::yield_now();
            }
            timeout = Some(Duration::ZERO);
        }
        let mut kernel = self.kernel();
        while !kernel.is_due() && timeout != Some(Duration::ZERO) {
            let waiter = Arc::new(Condvar::new());
            kernel.waiters.push(Arc::clone(&waiter));
            kernel = waiter.wait(kernel).unwrap();
        }
        waited.asked = true;
        waited.woken = std::mem::take(&mut kernel.woken);
        waited.alarmed = std::mem::take(&mut kernel.alarmed);
        let mut reports = Vec::new();
        for socket in kernel.sockets.iter_mut().filter(|socket| socket.is_due) {
            let Some(interest) = socket.interest else {
                continue;
            };
            if reports.len() == wait.room {
                waited.is_full = true;
                break;
            }
            socket.is_due = false;
            socket.is_silent = interest.mode() == Mode::Once;
            reports.push(Report {
                fd: interest.fd,
                generation: interest.generation(),
                events: Events::IN,
                polled: None,
            });
        }
        // As a kernel does: what is left is the next waiter's.
        kernel.call();
        drop(kernel);
        reports.into_iter().for_each(|report| delivered.add(report));
        waited
    }

    fn wake(&self) {
        let mut kernel = self.kernel();
        kernel.woken = true;
        kernel.call();
    }

    fn set_alarm(&self, _: Duration) -> Result<(), Error> {
        let mut kernel = self.kernel();
        kernel.alarmed = true;
        kernel.call();
        Ok(())
    }

    fn close(&self) {
        let mut kernel = self.kernel();
        kernel.closed = true;
        kernel.call();
    }
}

pub(crate) type Port = Arc<Engine<Model>>;

/// How many threads may wait in the backend of the model that is explored.
static WAITERS: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Explore with at most this many involuntary switches in one run: where any number of threads may wait in the
/// backend, and, as with kqueue, one.
///
/// One model at a time: which port has a socket is known to the whole process, and the models all use
/// the same numbers.
pub(crate) fn explore(preemptions: usize, run: impl Fn() + Sync + Send + 'static) {
    static ONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _one = ONE.lock();
    // With fewer it is quicker.
    let limit = std::env::var("SOCKNOTIFY_PREEMPTIONS").ok();
    let limit = limit
        .and_then(|limit| limit.parse().ok())
        .unwrap_or(usize::MAX);
    let run = Arc::new(run);
    for waiters in [usize::MAX, 1] {
        WAITERS.store(waiters, Ordering::Relaxed);
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(preemptions.min(limit));
        let run = Arc::clone(&run);
        builder.check(move || run());
    }
}

fn port(places: usize) -> Port {
    port_with(places, WakePolicy::Eager)
}

fn port_with(places: usize, policy: WakePolicy) -> Port {
    Arc::new(Engine::new(
        Model::new(Kind::Sockets),
        places,
        policy,
        false,
    ))
}

/// Explore with sockets and with other descriptors.
fn explore_kinds(preemptions: usize, run: impl Fn(Port) + Copy + Sync + Send + 'static) {
    for kind in KINDS {
        explore(preemptions, move || {
            run(Arc::new(Engine::new(
                Model::new(kind),
                2,
                WakePolicy::Eager,
                false,
            )));
        });
    }
}

/// Explore with each way to wake threads.
fn explore_waking(
    places: usize,
    preemptions: usize,
    run: impl Fn(Port) + Copy + Sync + Send + 'static,
) {
    for policy in [WakePolicy::Eager, WakePolicy::BOUNDED] {
        explore(preemptions, move || run(port_with(places, policy)));
    }
}

/// Explore with sockets that the port owns, and with other descriptors.
pub(crate) fn explore_owning(
    preemptions: usize,
    run: impl Fn(&Port) + Copy + Sync + Send + 'static,
) {
    explore_kinds(preemptions, move |port| run(&port));
}

fn dequeue(port: &Port, timeout: Option<Duration>) -> Result<Entry, Error> {
    let mut entries = [Entry::default()];
    port.process(&mut [], &mut entries, timeout, None)?;
    Ok(entries[0])
}

fn apply(port: &Port, registration: Registration<'_>) -> Result<(), RegistrationError> {
    let mut batch = [registration];
    let applied = port.process(&mut batch, &mut [], Some(Duration::ZERO), None);
    assert!(applied.is_ok());
    batch[0].result()
}

fn raw(socket: i32) -> Registration<'static> {
    // SAFETY: the number goes to the model of a backend, and never to a system call.
    #[allow(unsafe_code)]
    unsafe {
        Registration::from_raw(socket)
    }
}

fn enable(socket: i32, trigger: Trigger) -> Registration<'static> {
    let mut registration = raw(socket);
    registration.operation = crate::Operation::ENABLE;
    registration.completion_key = 10 + socket as usize;
    registration.event_filter = EventFilter::IN;
    registration.trigger = trigger;
    registration.extra = Extra::Descriptor;
    registration
}

fn remove(socket: i32) -> Registration<'static> {
    let mut registration = raw(socket);
    registration.operation = crate::Operation::REMOVE;
    registration
}

fn deregister(socket: i32) -> Registration<'static> {
    crate::interface::silent(remove(socket))
}

/// Counts threads with packets in hand, and fails when there are more than places.
struct Running {
    now: AtomicUsize,
    places: usize,
}

impl Running {
    fn new(places: usize) -> Arc<Self> {
        Arc::new(Running {
            now: AtomicUsize::new(0),
            places,
        })
    }

    fn with_packet(&self, work: impl FnOnce()) {
        assert!(self.now.fetch_add(1, Ordering::SeqCst) < self.places);
        work();
        self.now.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Two threads that each want one packet; the test supplies two.
fn two_consumers(places: usize, preemptions: usize, supply: fn(&Port)) {
    explore_waking(places, preemptions, move |port| {
        let running = Running::new(places);
        for socket in 0..2 {
            assert_eq!(apply(&port, enable(socket, ONESHOT)), Ok(()));
        }
        let consumers: Vec<_> = (0..2)
            .map(|_| {
                let (port, running) = (Arc::clone(&port), Arc::clone(&running));
                thread::spawn(move || {
                    assert!(dequeue(&port, None).is_ok());
                    running.with_packet(thread::yield_now);
                })
            })
            .collect();
        supply(&port);
        for consumer in consumers {
            consumer.join().unwrap();
        }
        assert_eq!(port.snapshot().queued, 0);
        assert_eq!(port.snapshot().waiting, 0);
    });
}

fn two_posts(port: &Port) {
    for key in 0..2 {
        assert!(port.post(&[Entry::new(key, 0, 0)], || {}).is_ok());
    }
}

fn two_sockets(port: &Port) {
    port.backend.become_readable(0);
    port.backend.become_readable(1);
}

fn a_socket_and_a_post(port: &Port) {
    port.backend.become_readable(0);
    assert!(port.post(&[Entry::new(1, 0, 0)], || {}).is_ok());
}

#[test]
fn f5_no_post_is_lost_with_one_permit() {
    two_consumers(1, 3, two_posts);
}

#[test]
fn f5_no_post_is_lost_with_two_permits() {
    two_consumers(2, 3, two_posts);
}

#[test]
fn f5_no_socket_is_lost_with_one_permit() {
    two_consumers(1, 3, two_sockets);
}

#[test]
fn f5_no_socket_is_lost_with_two_permits() {
    two_consumers(2, 3, two_sockets);
}

#[test]
fn f5_a_socket_and_a_post_are_not_lost_with_one_permit() {
    two_consumers(1, 3, a_socket_and_a_post);
}

#[test]
fn f5_a_socket_and_a_post_are_not_lost_with_two_permits() {
    two_consumers(2, 3, a_socket_and_a_post);
}

#[test]
fn f5_three_threads_two_permits_three_posts() {
    explore_waking(2, 1, |port| {
        let running = Running::new(2);
        let consumers: Vec<_> = (0..3)
            .map(|_| {
                let (port, running) = (Arc::clone(&port), Arc::clone(&running));
                thread::spawn(move || {
                    assert!(dequeue(&port, None).is_ok());
                    running.with_packet(|| ());
                })
            })
            .collect();
        assert!(port.post(&[Entry::default(); 3], || {}).is_ok());
        for consumer in consumers {
            consumer.join().unwrap();
        }
    });
}

#[test]
fn f5_three_threads_serve_two_sockets_over_and_over() {
    explore_waking(2, 2, |port| {
        let running = Running::new(2);
        for socket in 0..2 {
            assert_eq!(apply(&port, enable(socket, ONESHOT)), Ok(()));
        }
        let serve = {
            let (port, running) = (Arc::clone(&port), Arc::clone(&running));
            move || {
                let mut batch = [raw(0)];
                for _ in 0..2 {
                    let mut entries = [Entry::default()];
                    assert_eq!(port.process(&mut batch, &mut entries, None, None), Ok(1));
                    assert_eq!(batch[0].result(), Ok(()));
                    running.with_packet(|| ());
                    // It stays readable, so that there is always something for somebody.
                    batch = [enable(entries[0].completion_key as i32 - 10, ONESHOT)];
                }
                assert_eq!(port.process(&mut batch, &mut [], None, None), Ok(0));
            }
        };
        let others: Vec<_> = (0..2).map(|_| thread::spawn(serve.clone())).collect();
        two_sockets(&port);
        serve();
        for other in others {
            other.join().unwrap();
        }
        assert_eq!(port.snapshot().waiting, 0);
    });
}

#[test]
fn f4_a_lent_permit_lets_another_thread_go() {
    explore(3, || {
        let port = port(1);
        assert!(port.post(&[Entry::default(); 2], || {}).is_ok());
        assert!(dequeue(&port, None).is_ok());
        let other = {
            let port = Arc::clone(&port);
            thread::spawn(move || dequeue(&port, None).map(drop))
        };
        let lent = port.lend_permit();
        other.join().unwrap().unwrap();
        drop(lent);
    });
}

const EDGE: Trigger = Trigger::PERSISTENT.union(Trigger::EDGE);

/// A thread that waits for one notification.
fn waiter(port: &Port) -> thread::JoinHandle<Result<Entry, Error>> {
    let port = Arc::clone(port);
    thread::spawn(move || dequeue(&port, None))
}

#[test]
fn c5_what_held_at_enable_hides_no_edge() {
    explore(3, || {
        let port = port(2);
        port.backend.become_readable(0);
        let waiter = waiter(&port);
        assert_eq!(apply(&port, enable(0, EDGE)), Ok(()));
        port.backend.drain(0);
        port.backend.become_readable(0);
        assert_eq!(waiter.join().unwrap().unwrap().events(), Events::IN);
    });
}

#[test]
fn c5_a_change_of_the_filter_hides_no_edge() {
    explore(3, || {
        let port = port(2);
        assert_eq!(apply(&port, enable(0, EDGE)), Ok(()));
        let waiter = waiter(&port);
        let other = {
            let port = Arc::clone(&port);
            thread::spawn(move || {
                for filter in [EventFilter::ALL, EventFilter::IN] {
                    let mut again = enable(0, EDGE);
                    again.event_filter = filter;
                    assert_eq!(apply(&port, again), Ok(()));
                }
            })
        };
        port.backend.become_readable(0);
        assert_eq!(waiter.join().unwrap().unwrap().events(), Events::IN);
        other.join().unwrap();
    });
}

/// One thread has the notification, and the other waits. The level comes again when the first one dequeues, gives its
/// place back or ends.
fn a_level_comes_again(places: usize, then: fn(&Port)) {
    explore(3, move || {
        let port = port(places);
        let level = Trigger::PERSISTENT | Trigger::LEVEL;
        assert_eq!(apply(&port, enable(0, level)), Ok(()));
        let other = waiter(&port);
        let this = {
            let port = Arc::clone(&port);
            thread::spawn(move || {
                assert_eq!(dequeue(&port, None).unwrap().completion_key, 10);
                then(&port);
            })
        };
        port.backend.become_readable(0);
        this.join().unwrap();
        let entry = other.join().unwrap().unwrap();
        assert_eq!((entry.completion_key, entry.events()), (10, Events::IN));
    });
}

#[test]
fn c4_a_level_comes_again_when_its_thread_ends() {
    a_level_comes_again(1, |_| ());
    a_level_comes_again(2, |_| ());
}

#[test]
fn c4_a_level_comes_again_when_its_permit_is_given_back() {
    a_level_comes_again(1, |port| port.give_permit_back());
}

#[test]
fn c4_a_level_comes_again_when_its_thread_dequeues() {
    a_level_comes_again(2, |port| {
        let _ = dequeue(port, Some(Duration::ZERO));
    });
}

#[test]
fn c8_two_threads_that_arm_a_one_shot_do_not_silence_it() {
    explore(3, || {
        let port = port(2);
        assert_eq!(apply(&port, enable(0, ONESHOT)), Ok(()));
        let waiter = waiter(&port);
        let other = {
            let port = Arc::clone(&port);
            thread::spawn(move || apply(&port, enable(0, ONESHOT)))
        };
        assert_eq!(apply(&port, enable(0, ONESHOT)), Ok(()));
        port.backend.become_readable(0);
        assert_eq!(waiter.join().unwrap().unwrap().events(), Events::IN);
        assert_eq!(other.join().unwrap(), Ok(()));
    });
}

/// Two threads enable a registration with different filters. The backend ends up with the later one.
#[test]
fn a3_the_later_filter_is_watched() {
    for waits in [false, true] {
        explore(3, move || {
            let port = port(2);
            assert_eq!(apply(&port, enable(0, ONESHOT)), Ok(()));
            let other = {
                let port = Arc::clone(&port);
                thread::spawn(move || {
                    let mut batch = [enable(0, ONESHOT)];
                    batch[0].event_filter = EventFilter::HANGUP;
                    let mut entries = [Entry::default()];
                    let room = usize::from(waits);
                    let outcome = port.process(&mut batch, &mut entries[..room], None, None);
                    assert_eq!((outcome, batch[0].result()), (Ok(room), Ok(())));
                })
            };
            assert_eq!(apply(&port, enable(0, ONESHOT)), Ok(()));
            if waits {
                let packet = Entry::new(99, 0, 0);
                assert_eq!(port.post(&[packet], || {}), Ok(()));
            }
            other.join().unwrap();
            let wanted = port.table.interest(Fd(0)).map(|interest| interest.filter());
            let armed = port.backend.kernel().sockets[0].interest;
            assert_eq!(armed.map(|interest| interest.filter()), wanted);
        });
    }
}

#[test]
fn c8_a_one_shot_has_one_holder() {
    explore(3, || {
        let port = port(2);
        assert_eq!(apply(&port, enable(0, ONESHOT)), Ok(()));
        let held = Arc::new(AtomicBool::new(false));
        let consumer = {
            let port = Arc::clone(&port);
            move || {
                let mut batch = [];
                let mut entries = [Entry::default(); 2];
                assert_eq!(port.process(&mut batch, &mut entries, None, None), Ok(1));
                assert!(!held.swap(true, Ordering::SeqCst));
                thread::yield_now();
                held.store(false, Ordering::SeqCst);
                // The socket is still readable: this brings it to the other thread.
                assert_eq!(apply(&port, enable(0, ONESHOT)), Ok(()));
            }
        };
        let other = thread::spawn(consumer.clone());
        port.backend.become_readable(0);
        consumer();
        other.join().unwrap();
    });
}

#[test]
fn b4_the_removal_is_the_last_notification() {
    explore_kinds(3, |port| {
        assert_eq!(apply(&port, enable(0, ONESHOT)), Ok(()));
        let consumer = {
            let port = Arc::clone(&port);
            thread::spawn(move || {
                let mut masks = Vec::new();
                while masks
                    .last()
                    .is_none_or(|last: &Events| !last.contains(Events::REMOVE))
                {
                    masks.push(dequeue(&port, None).unwrap().events());
                }
                assert_eq!(dequeue(&port, Some(Duration::ZERO)), Err(Error::TimedOut));
                masks
            })
        };
        port.backend.become_readable(0);
        assert_eq!(apply(&port, remove(0)), Ok(()));
        let masks = consumer.join().unwrap();
        let may_be = [vec![Events::IN, Events::REMOVE], vec![Events::REMOVE]];
        assert!(may_be.contains(&masks), "{masks:?}");
        assert_eq!(port.snapshot().registrations, Some(0));
    });
}

/// A thread that waits all the time may have been notified before; nobody is after it.
#[test]
fn x1_what_was_deregistered_is_not_notified() {
    for trigger in [ONESHOT, EDGE] {
        explore_kinds(3, move |port| {
            assert_eq!(apply(&port, enable(0, trigger)), Ok(()));
            let is_over = Arc::new(AtomicBool::new(false));
            let consumer = {
                let (port, is_over) = (Arc::clone(&port), Arc::clone(&is_over));
                thread::spawn(move || {
                    loop {
                        let was_over = is_over.load(Ordering::SeqCst);
                        match dequeue(&port, None).unwrap().completion_key {
                            99 => return,
                            key => assert!(key == 10 && !was_over),
                        }
                    }
                })
            };
            let peer = {
                let port = Arc::clone(&port);
                thread::spawn(move || port.backend.become_readable(0))
            };
            assert_eq!(apply(&port, deregister(0)), Ok(()));
            is_over.store(true, Ordering::SeqCst);
            assert_eq!(dequeue(&port, Some(Duration::ZERO)), Err(Error::TimedOut));
            assert_eq!(port.snapshot().registrations, Some(0));
            assert!(port.post(&[Entry::new(99, 0, 0)], || {}).is_ok());
            consumer.join().unwrap();
            peer.join().unwrap();
            assert_eq!(dequeue(&port, Some(Duration::ZERO)), Err(Error::TimedOut));
        });
    }
}

/// Registered anew with another key, while a thread has a report of the old registration in hand.
#[test]
fn x1_nothing_of_the_old_registration_comes_with_the_new_one() {
    explore_kinds(3, |port| {
        assert_eq!(apply(&port, enable(0, ONESHOT)), Ok(()));
        let peer = {
            let port = Arc::clone(&port);
            thread::spawn(move || port.backend.become_readable(0))
        };
        let other = waiter(&port);
        assert_eq!(apply(&port, deregister(0)), Ok(()));
        let mut again = enable(0, ONESHOT);
        again.completion_key = 20;
        assert_eq!(apply(&port, again), Ok(()));
        // It is readable in the end, and so the new one is notified, too.
        let first = other.join().unwrap().unwrap().completion_key;
        if first == 10 {
            assert_eq!(dequeue(&port, None).unwrap().completion_key, 20);
        } else {
            assert_eq!(first, 20);
        }
        peer.join().unwrap();
        assert_eq!(dequeue(&port, Some(Duration::ZERO)), Err(Error::TimedOut));
    });
}

#[test]
fn x2_what_holds_or_begins_to_hold_at_enable_is_notified() {
    explore(3, || {
        let port = port(2);
        let waiter = waiter(&port);
        let peer = {
            let port = Arc::clone(&port);
            thread::spawn(move || port.backend.become_readable(0))
        };
        assert_eq!(apply(&port, enable(0, EDGE | Trigger::INITIAL)), Ok(()));
        assert_eq!(waiter.join().unwrap().unwrap().events(), Events::IN);
        peer.join().unwrap();
    });
}

#[test]
fn a_time_that_is_over_is_told_once_whoever_waits() {
    explore(3, || {
        let port = port(1);
        let waiter = waiter(&port);
        let other = {
            let port = Arc::clone(&port);
            thread::spawn(move || assert!(port.post(&[Entry::new(99, 0, 0)], || {}).is_ok()))
        };
        let time = Entry::new(77, 0, 0);
        assert!(port.post_after(Duration::ZERO, time).is_ok());
        let mut keys = [
            waiter.join().unwrap().unwrap().completion_key,
            dequeue(&port, None).unwrap().completion_key,
        ];
        keys.sort_unstable();
        assert_eq!(keys, [77, 99]);
        other.join().unwrap();
        assert_eq!(dequeue(&port, Some(Duration::ZERO)), Err(Error::TimedOut));
    });
}

/// Enable an adopted socket. Returns what is left to do.
fn enable_owned(port: &Port, is_drained: bool) -> Left {
    let arming = Arming::default();
    let enabled = port.enable_owned(0, 10, EventFilter::IN, arming, is_drained);
    enabled.expect("it was adopted")
}

/// Do what is left to do for the socket 0, which was enabled under this key, and dequeue.
pub(crate) fn do_and_dequeue(
    port: &Port,
    key: usize,
    left: Left,
    entries: &mut [Entry],
) -> Result<usize, Error> {
    let mut batch = Vec::new();
    let mut polls = Polls::default();
    match left {
        Left::Nothing => {}
        Left::Poll(interest) => polls.add(interest),
        Left::Arm => batch.push(Registration::arm(0, key, EventFilter::IN)),
    }
    let caller = Caller {
        polls: &mut polls,
        taking: &Arc::new(Taking::default()),
    };
    port.process(&mut batch, entries, None, Some(caller))
}

/// Arm an adopted socket, and wait for what comes.
fn arm(port: &Port) -> u32 {
    enable_owned(port, false);
    let mut batch = [Registration::arm(0, 10, EventFilter::IN)];
    let mut entries = [Entry::default()];
    assert_eq!(port.process(&mut batch, &mut entries, None, None), Ok(1));
    assert_eq!((batch[0].result(), entries[0].completion_key), (Ok(()), 10));
    assert_eq!(Arming::of(&entries[0]), Some(Arming::default()));
    entries[0].transferred
}

/// A socket that was adopted, was ready once, and is held by this thread now.
fn adopted(port: &Port) {
    assert_eq!(port.adopt_any(0, 10, true), Ok(Ok(())));
    port.backend.become_readable(0);
    assert_eq!(arm(port), Events::IN.bits());
    port.backend.drain(0);
}

/// Enable the adopted socket, and arm it, if that is to be done, in the call that dequeues. Returns the key of what comes.
fn arm_and_dequeue(port: &Port, is_drained: bool) -> usize {
    let left = enable_owned(port, is_drained);
    let mut entries = [Entry::default()];
    assert_eq!(do_and_dequeue(port, 10, left, &mut entries), Ok(1));
    entries[0].completion_key
}

/// This thread arms an adopted socket and dequeues, while it becomes readable, a packet is posted, and another dequeues.
fn an_adopted_socket_is_heard(arm_and_dequeue: fn(&Port) -> usize) {
    explore_owning(3, move |port| {
        adopted(port);
        let other = {
            let port = Arc::clone(port);
            thread::spawn(move || dequeue(&port, None).unwrap().completion_key)
        };
        let peer = {
            let port = Arc::clone(port);
            thread::spawn(move || {
                port.backend.become_readable(0);
                assert!(port.post(&[Entry::new(99, 0, 0)], || {}).is_ok());
            })
        };
        let keys = [arm_and_dequeue(port), other.join().unwrap()];
        assert!(keys == [10, 99] || keys == [99, 10]);
        peer.join().unwrap();
    });
}

#[test]
fn f5_an_adopted_socket_is_heard_however_it_meets_arming() {
    an_adopted_socket_is_heard(|port| arm_and_dequeue(port, false));
}

/// Its thread has drained it, and arms it without a call if it can.
#[test]
fn f5_a_drained_socket_is_heard_however_it_is_armed() {
    an_adopted_socket_is_heard(|port| arm_and_dequeue(port, true));
}

#[test]
fn g4_closing_releases_everyone() {
    explore(3, || {
        let port = port(1);
        let waiters: Vec<_> = (0..2)
            .map(|_| {
                let port = Arc::clone(&port);
                thread::spawn(move || dequeue(&port, None))
            })
            .collect();
        port.close();
        for waiter in waiters {
            assert_eq!(waiter.join().unwrap(), Err(Error::Closed));
        }
    });
}

/// A registration is armed twice in one call, notified, and removed before the call arms it
/// for the second time. Its socket may be closed then.
#[test]
fn g5_what_is_told_too_late_does_not_reach_the_next_socket() {
    explore_kinds(3, |port| {
        assert_eq!(apply(&port, enable(0, ONESHOT)), Ok(()));
        port.backend.become_readable(0);
        assert_eq!(dequeue(&port, None).unwrap().events(), Events::IN);
        port.backend.drain(0);
        let other = {
            let port = Arc::clone(&port);
            thread::spawn(move || {
                let mut batch = [enable(0, ONESHOT), enable(0, ONESHOT)];
                assert_eq!(port.process(&mut batch, &mut [], None, None), Ok(0));
                // The second one may come between the removal and its notification (A5), or while the number changes
                // hands, and so is no open socket for a moment (B10).
                for entry in &batch {
                    let may_be = [
                        Ok(()),
                        Err(RegistrationError::RemovePending),
                        Err(RegistrationError::NotASocket),
                    ];
                    let result = entry.result();
                    assert!(may_be.contains(&result), "{result:?}");
                }
            })
        };
        port.backend.become_readable(0);
        assert_eq!(dequeue(&port, None).unwrap().events(), Events::IN);
        assert_eq!(apply(&port, remove(0)), Ok(()));
        assert_eq!(dequeue(&port, None).unwrap().events(), Events::REMOVE);
        port.backend.replace(0);
        other.join().unwrap();
        // The second entry may come after the removal, and is a registration of its own.
        assert!(port.snapshot().registrations <= Some(1));
        port.backend.become_readable(0);
        let found = dequeue(&port, Some(Duration::ZERO));
        assert!(found.is_err() || port.snapshot().registrations == Some(1));
    });
}

/// A thread waits, and perhaps has a report in hand, while what was registered is closed, and something else that is
/// ready has its number and is registered.
#[test]
fn x5_a_reused_descriptor_is_notified_under_its_own_key() {
    explore_kinds(3, |port| {
        assert_eq!(apply(&port, enable(0, ONESHOT)), Ok(()));
        let other = waiter(&port);
        port.backend.become_readable(0);
        port.backend.replace(0);
        let mut next = enable(0, ONESHOT);
        next.completion_key = 20;
        assert_eq!(apply(&port, next), Ok(()));
        port.backend.become_readable(0);
        if other.join().unwrap().unwrap().completion_key == 10 {
            assert_eq!(dequeue(&port, None).unwrap().completion_key, 20);
        }
        assert_eq!(apply(&port, remove(0)), Ok(()));
        let entry = dequeue(&port, None).unwrap();
        assert_eq!((entry.completion_key, entry.events()), (20, Events::REMOVE));
        assert_eq!(port.snapshot().registrations, Some(0));
    });
}

#[test]
fn g6_a_removal_races_with_arming() {
    explore_kinds(3, |port| {
        assert_eq!(apply(&port, enable(0, ONESHOT)), Ok(()));
        let other = {
            let port = Arc::clone(&port);
            thread::spawn(move || apply(&port, enable(0, ONESHOT)))
        };
        assert_eq!(apply(&port, remove(0)), Ok(()));
        let entry = dequeue(&port, None).unwrap();
        assert_eq!((entry.completion_key, entry.events()), (10, Events::REMOVE));
        match other.join().unwrap() {
            // Armed before the removal, or too late for the old registration: then there is a new one.
            Ok(()) | Err(RegistrationError::RemovePending) => {}
            Err(other) => panic!("unexpected: {other}"),
        }
        assert!(port.snapshot().registrations <= Some(1));
    });
}

/// A port whose limit rises whenever the watcher has nothing better to do.
fn adaptive_port(policy: WakePolicy) -> Port {
    Arc::new(Engine::new(Model::new(Kind::Sockets), 1, policy, true))
}

/// Each thread waits, with what it has dequeued, until all have dequeued: the limit rises by more than one, and whoever is released
/// has others released. One of them has dequeued before, and so may poll while another one watches.
fn all_wait_for_all(threads: usize, preemptions: usize, supply: fn(&Port)) {
    for policy in [WakePolicy::Eager, WakePolicy::BOUNDED] {
        explore(preemptions, move || {
            let port = adaptive_port(policy);
            for socket in 0..2 {
                assert_eq!(apply(&port, enable(socket, ONESHOT)), Ok(()));
            }
            assert!(port.post(&[Entry::default()], || {}).is_ok());
            assert!(dequeue(&port, None).is_ok());
            let met = Arc::new((Mutex::new(0), Condvar::new()));
            let serve = || {
                let (port, met) = (Arc::clone(&port), Arc::clone(&met));
                move || {
                    assert!(dequeue(&port, None).is_ok());
                    let (count, changed) = &*met;
                    let mut count = count.lock().unwrap();
                    *count += 1;
                    changed.notify_all();
                    while *count < threads {
                        count = changed.wait(count).unwrap();
                    }
                }
            };
            let others: Vec<_> = (1..threads).map(|_| thread::spawn(serve())).collect();
            let peer = {
                let port = Arc::clone(&port);
                thread::spawn(move || {
                    // Also once all others wait.
                    thread::yield_now();
                    supply(&port);
                })
            };
            serve()();
            for other in others.into_iter().chain([peer]) {
                other.join().unwrap();
            }
            assert_eq!(port.snapshot().queued, 0);
        });
    }
}

#[test]
fn f4_a_thread_that_waits_for_the_next_packet_keeps_nobody_waiting() {
    all_wait_for_all(2, 3, two_posts);
}

/// Nothing but the watcher sees that the second socket is ready.
#[test]
fn f4_a_watcher_that_ends_watching_sees_who_polls_no_more() {
    all_wait_for_all(2, 3, two_sockets);
}

#[test]
fn f4_threads_that_wait_for_all_packets_keep_nobody_waiting() {
    all_wait_for_all(3, 1, |port| {
        two_sockets(port);
        assert!(port.post(&[Entry::default()], || {}).is_ok());
    });
}

/// Whoever watches gives up: another one watches. Nothing else sees that the socket is ready.
#[test]
fn f4_a_watcher_that_gives_up_has_another_one_watch() {
    for policy in [WakePolicy::Eager, WakePolicy::BOUNDED] {
        explore(2, move || {
            let port = adaptive_port(policy);
            assert!(port.post(&[Entry::default()], || {}).is_ok());
            assert!(dequeue(&port, None).is_ok());
            assert_eq!(apply(&port, enable(0, ONESHOT)), Ok(()));
            let impatient = {
                let port = Arc::clone(&port);
                thread::spawn(move || {
                    // It is over once it has slept.
                    let found = dequeue(&port, Some(Duration::from_nanos(2)));
                    port.give_permit_back();
                    found.is_ok()
                })
            };
            let patient = waiter(&port);
            port.backend.become_readable(0);
            if impatient.join().unwrap() {
                assert_eq!(apply(&port, enable(0, ONESHOT)), Ok(()));
            }
            assert!(patient.join().unwrap().is_ok());
        });
    }
}

/// Each packet comes once the one before may have been taken: a wake-up that is over keeps no later one back.
#[test]
fn f5_posts_that_come_one_after_the_other_are_not_lost() {
    explore_waking(2, 2, |port| {
        let others: Vec<_> = (0..2)
            .map(|_| {
                let port = Arc::clone(&port);
                thread::spawn(move || {
                    assert!(dequeue(&port, None).is_ok());
                    assert!(dequeue(&port, None).is_ok());
                    port.give_permit_back();
                })
            })
            .collect();
        for _ in 0..4 {
            assert!(port.post(&[Entry::default()], || {}).is_ok());
        }
        for other in others {
            other.join().unwrap();
        }
    });
}

/// The limit falls while a thread is released.
#[test]
fn f2_a_limit_that_falls_under_a_thread_that_is_released_loses_nothing() {
    explore_waking(1, 2, |port| {
        port.limit.store(2, Ordering::Relaxed);
        let others: Vec<_> = (0..2)
            .map(|_| {
                let port = Arc::clone(&port);
                thread::spawn(move || {
                    assert!(dequeue(&port, None).is_ok());
                    port.give_permit_back();
                })
            })
            .collect();
        assert!(port.post(&[Entry::default()], || {}).is_ok());
        port.limit.store(1, Ordering::Relaxed);
        assert!(port.post(&[Entry::default()], || {}).is_ok());
        for other in others {
            other.join().unwrap();
        }
        let load = port.gate.load();
        assert_eq!((load.taken(), load.polling()), (0, 0));
    });
}

/// The limit falls under threads that hold permits, at any moment. Nothing is lost, and nobody holds one too many in the end.
#[test]
fn f2_a_limit_that_falls_under_its_holders_loses_nothing() {
    explore_waking(1, 2, |port| {
        port.limit.store(2, Ordering::Relaxed);
        assert!(port.post(&[Entry::default(); 3], || {}).is_ok());
        let other = {
            let port = Arc::clone(&port);
            thread::spawn(move || {
                assert!(dequeue(&port, None).is_ok());
                assert!(dequeue(&port, None).is_ok());
                port.give_permit_back();
            })
        };
        assert!(dequeue(&port, None).is_ok());
        port.limit.store(1, Ordering::Relaxed);
        // The other one may wait for this permit.
        port.give_permit_back();
        other.join().unwrap();
        let load = port.gate.load();
        assert_eq!((load.taken(), load.polling()), (0, 0));
    });
}

/// The limit falls while all hold permits: whoever dequeues again then waits for one.
#[test]
fn f2_a_limit_that_falls_holds_back_who_dequeues_again() {
    explore_waking(1, 2, |port| {
        port.limit.store(2, Ordering::Relaxed);
        let running = Running::new(1);
        let fallen = Arc::new((Mutex::new(0), Condvar::new()));
        let serve = || {
            let (port, running, fallen) =
                (Arc::clone(&port), Arc::clone(&running), Arc::clone(&fallen));
            move || {
                assert!(dequeue(&port, None).is_ok());
                let mut holders = fallen.0.lock().unwrap();
                *holders += 1;
                if *holders == 2 {
                    port.limit.store(1, Ordering::Relaxed);
                    fallen.1.notify_one();
                }
                while *holders < 2 {
                    holders = fallen.1.wait(holders).unwrap();
                }
                drop(holders);
                assert!(dequeue(&port, None).is_ok());
                running.with_packet(thread::yield_now);
                port.give_permit_back();
            }
        };
        let other = thread::spawn(serve());
        assert!(port.post(&[Entry::default(); 4], || {}).is_ok());
        serve()();
        other.join().unwrap();
        let load = port.gate.load();
        assert_eq!((load.taken(), load.polling()), (0, 0));
    });
}

/// A thread gives up as it is released, or before: the packet goes to the other one.
#[test]
fn f5_a_thread_that_gives_up_loses_no_packet() {
    explore_waking(1, 3, |port| {
        let patient = {
            let port = Arc::clone(&port);
            thread::spawn(move || {
                assert!(dequeue(&port, None).is_ok());
                port.give_permit_back();
            })
        };
        let other = {
            let port = Arc::clone(&port);
            thread::spawn(move || {
                // It is over once it was asked for.
                let found = dequeue(&port, Some(Duration::from_nanos(1)));
                port.give_permit_back();
                found.is_ok()
            })
        };
        assert!(port.post(&[Entry::default()], || {}).is_ok());
        if other.join().unwrap() {
            assert!(port.post(&[Entry::default()], || {}).is_ok());
        }
        patient.join().unwrap();
        let load = port.gate.load();
        assert_eq!((load.taken(), load.polling()), (0, 0));
    });
}

/// A permit is lent, given back and taken at any moment: none is lost, and no thread has two.
#[test]
fn f4_permits_are_counted_right_however_they_are_given_back() {
    explore(3, || {
        let port = port(2);
        assert!(port.post(&[Entry::default(); 3], || {}).is_ok());
        let other = {
            let port = Arc::clone(&port);
            thread::spawn(move || {
                assert!(dequeue(&port, None).is_ok());
                drop(port.lend_permit());
                let _ = dequeue(&port, Some(Duration::ZERO));
                // In the model, a thread's end is seen before its permit is given back.
                port.give_permit_back();
            })
        };
        assert!(dequeue(&port, None).is_ok());
        drop(port.lend_permit());
        other.join().unwrap();
        port.give_permit_back();
        let load = port.gate.load();
        assert_eq!((load.taken(), load.polling()), (0, 0));
    });
}

/// Reports of a registration go to its own key, whatever is registered under its number next.
#[test]
fn g6_a_delivery_reads_the_key_of_its_own_registration() {
    explore(3, || {
        let port = port(2);
        assert_eq!(apply(&port, enable(0, EDGE)), Ok(()));
        let other = waiter(&port);
        port.backend.become_readable(0);
        assert_eq!(apply(&port, deregister(0)), Ok(()));
        port.backend.drain(0);
        let mut next = enable(0, EDGE);
        next.completion_key = 20;
        assert_eq!(apply(&port, next), Ok(()));
        let word = port.table.interest(Fd(0)).map(|interest| interest.word);
        assert!(word.is_some_and(|word| word.has(Flag::KNOWN)));
        assert!(port.post(&[Entry::new(99, 0, 0)], || {}).is_ok());
        let key = other.join().unwrap().unwrap().completion_key;
        assert!(key == 10 || key == 99, "{key}");
    });
}
