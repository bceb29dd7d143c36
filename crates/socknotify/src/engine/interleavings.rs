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

use super::{
    ArmError, Backend, DESCRIPTOR, Engine, Followed, Interest, Kept, Mode, Outcome, Readiness,
    Rearm, Report, Reports, Validity, Wait, Wanted,
};
use crate::{
    Entry, Error, EventFilter, Events, Registration, RegistrationError, Trigger, WakePolicy,
};

const ONESHOT: Trigger = Trigger::ONESHOT.union(Trigger::LEVEL);

/// A backend that watches sockets which become readable when a test says so.
struct Model {
    kernel: Mutex<Kernel>,
    first_id: u64,
    waiters: usize,
    /// Whether a batch is polled before it is armed again.
    polls: bool,
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
    /// It was, and is not again until it is armed, or delivered.
    is_silent: bool,
}

impl Kernel {
    fn is_due(&self) -> bool {
        self.woken || self.alarmed || self.sockets.iter().any(|socket| socket.is_due)
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
    fn new(polls: bool, kind: Kind) -> Self {
        Model {
            kernel: Mutex::new(Kernel::default()),
            first_id: Self::ids(4),
            waiters: WAITERS.load(Ordering::Relaxed),
            polls,
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

    fn drain(&self, socket: u32) {
        let socket = &mut self.kernel().sockets[socket as usize];
        socket.readable = false;
        socket.is_due = false;
    }

    fn is_readable(&self, socket: u32) -> bool {
        self.kernel().sockets[socket as usize].readable
    }

    fn become_readable(&self, number: u32) {
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

    const KEPT: Kept = Kept::ForGood;

    fn waiters(&self) -> usize {
        self.waiters
    }

    fn identify(&self, socket: u32) -> Result<u64, RegistrationError> {
        if self.kind == Kind::Others {
            return Err(RegistrationError::NotASocket);
        }
        let generation = self.kernel().sockets[socket as usize].generation;
        Ok(self.first_id + u64::from(socket) + 2 * generation)
    }

    fn identify_any(&self, socket: u32) -> Result<u64, RegistrationError> {
        match self.kind {
            Kind::Sockets => self.identify(socket),
            Kind::Others => Ok(DESCRIPTOR | Self::ids(1)),
        }
    }

    fn is_still_armed(&self, socket: u32) -> bool {
        let kernel = self.kernel();
        kernel.sockets[socket as usize].interest.is_some()
    }

    fn arm(&self, interest: &Interest, is_new: bool) -> Result<(), ArmError> {
        let mut kernel = self.kernel();
        let socket = &mut kernel.sockets[interest.socket as usize];
        if !is_new && socket.interest.is_none() {
            return Err(ArmError::Stale);
        }
        socket.interest = Some(*interest);
        socket.is_silent = false;
        // What holds already is no edge.
        let holds = socket.readable && interest.filter().contains(EventFilter::IN);
        socket.is_due = holds && (interest.mode() != Mode::Edge || socket.is_due);
        kernel.call();
        Ok(())
    }

    fn rearm(&self, wanted: &Wanted, (): &mut (), batch: &mut [Rearm]) {
        for rearm in batch {
            let is_polled = rearm.is_armed || self.polls && rearm.is_silent;
            if is_polled && self.is_readable(rearm.interest.socket) {
                let is_known = self.kernel().sockets[rearm.interest.socket as usize]
                    .interest
                    .is_some();
                if is_known {
                    rearm.outcome = Outcome::Ready(Events::IN);
                    continue;
                }
            } else if rearm.is_armed {
                continue;
            }
            rearm.outcome =
                match wanted.follow(&rearm.interest, |interest| self.arm(interest, false)) {
                    Followed::Done(Ok(())) | Followed::Changed => Outcome::Armed,
                    Followed::Done(Err(error)) => Outcome::Failed(error),
                    Followed::Withdrawn => Outcome::Withdrawn,
                };
        }
    }

    fn disarm(&self, socket: u32) -> Result<(), ArmError> {
        let socket = &mut self.kernel().sockets[socket as usize];
        socket.is_due = false;
        let interest = socket.interest.take();
        interest.map(drop).ok_or(ArmError::Stale)
    }

    fn poll_now(&self, (): &mut (), interests: &[Interest], readiness: &mut Vec<Readiness>) {
        readiness.clear();
        readiness.extend(interests.iter().map(
            |interest| match self.is_readable(interest.socket) {
                true => Readiness::Ready(Events::IN),
                false => Readiness::NotReady,
            },
        ));
    }

    fn wait(
        &self,
        _wanted: &Wanted,
        (): &mut (),
        _batch: &mut [Rearm],
        reports: &mut Reports,
        wait: &Wait,
    ) {
        reports.clear();
        let mut kernel = self.kernel();
        while !kernel.is_due() && wait.timeout != Some(Duration::ZERO) {
            let waiter = Arc::new(Condvar::new());
            kernel.waiters.push(Arc::clone(&waiter));
            kernel = waiter.wait(kernel).unwrap();
        }
        reports.woken = std::mem::take(&mut kernel.woken);
        reports.alarmed = std::mem::take(&mut kernel.alarmed);
        for socket in kernel.sockets.iter_mut().filter(|socket| socket.is_due) {
            let Some(interest) = socket.interest else {
                continue;
            };
            if reports.reports.len() == wait.room {
                break;
            }
            socket.is_due = false;
            socket.is_silent = matches!(interest.mode(), Mode::Once | Mode::Level);
            reports.reports.push(Report {
                socket: interest.socket,
                generation: interest.generation(),
                events: Events::IN,
                validity: Validity::Valid,
            });
        }
        // As a kernel does: what is left is the next waiter's.
        kernel.call();
    }

    fn delivered(&self, socket: u32) {
        let socket = &mut self.kernel().sockets[socket as usize];
        socket.is_silent = false;
        socket.is_due = socket.readable && socket.interest.is_some();
    }

    fn flush(&self, _wanted: &Wanted) {
        let mut kernel = self.kernel();
        kernel.call();
    }

    fn wake(&self, after: Option<Duration>) -> Result<(), Error> {
        let mut kernel = self.kernel();
        match after {
            None => kernel.woken = true,
            Some(_) => kernel.alarmed = true,
        }
        kernel.call();
        Ok(())
    }
}

type Port = Arc<Engine<Model>>;

/// How many threads may wait in the backend of the model that is explored.
static WAITERS: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Explore with at most this many involuntary switches in one run: where any number of threads may wait in the
/// backend, and, as with kqueue, one.
///
/// One model at a time: which port has a socket is known to the whole process, and the models all use
/// the same numbers.
fn explore(preemptions: usize, run: impl Fn() + Sync + Send + 'static) {
    static ONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _one = ONE.lock();
    let run = Arc::new(run);
    for waiters in [usize::MAX, 1] {
        WAITERS.store(waiters, Ordering::Relaxed);
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(preemptions);
        let run = Arc::clone(&run);
        builder.check(move || run());
    }
}

fn port(places: usize) -> Port {
    port_with(places, WakePolicy::Eager)
}

fn port_with(places: usize, policy: WakePolicy) -> Port {
    let model = Model::new(false, Kind::Sockets);
    Arc::new(Engine::new(model, places, policy))
}

/// Explore with sockets and with other descriptors.
fn explore_kinds(preemptions: usize, run: impl Fn(Port) + Copy + Sync + Send + 'static) {
    for kind in KINDS {
        explore(preemptions, move || {
            let model = Model::new(false, kind);
            run(Arc::new(Engine::new(model, 2, WakePolicy::Eager)));
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

/// Explore with each way to arm sockets again, and with other descriptors.
fn explore_owning(preemptions: usize, run: impl Fn(&Port) + Copy + Sync + Send + 'static) {
    let ways = [
        (false, Kind::Sockets),
        (true, Kind::Sockets),
        (true, Kind::Others),
    ];
    for (polls, kind) in ways {
        explore(preemptions, move || {
            let model = Model::new(polls, kind);
            run(&Arc::new(Engine::new(model, 2, WakePolicy::Eager)));
        });
    }
}

fn dequeue(port: &Port, timeout: Option<Duration>) -> Result<Entry, Error> {
    let mut entries = [Entry::default()];
    port.process(&mut [], &mut entries, timeout)?;
    Ok(entries[0])
}

fn apply(port: &Port, registration: Registration<'_>) -> Result<(), RegistrationError> {
    let mut batch = [registration];
    let applied = port.process(&mut batch, &mut [], Some(Duration::ZERO));
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
    registration.is_descriptor = true;
    registration
}

fn remove(socket: i32) -> Registration<'static> {
    let mut registration = raw(socket);
    registration.operation = crate::Operation::REMOVE;
    registration
}

fn deregister(socket: i32) -> Registration<'static> {
    remove(socket).silent()
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
fn f5_no_post_is_lost_with_one_place() {
    two_consumers(1, 3, two_posts);
}

#[test]
fn f5_no_post_is_lost_with_two_places() {
    two_consumers(2, 3, two_posts);
}

#[test]
fn f5_no_socket_is_lost_with_one_place() {
    two_consumers(1, 3, two_sockets);
}

#[test]
fn f5_no_socket_is_lost_with_two_places() {
    two_consumers(2, 3, two_sockets);
}

#[test]
fn f5_a_socket_and_a_post_are_not_lost_with_one_place() {
    two_consumers(1, 3, a_socket_and_a_post);
}

#[test]
fn f5_a_socket_and_a_post_are_not_lost_with_two_places() {
    two_consumers(2, 3, a_socket_and_a_post);
}

#[test]
fn f5_three_threads_two_places_three_posts() {
    explore_waking(2, 3, |port| {
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
    explore_waking(2, 3, |port| {
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
                    assert_eq!(port.process(&mut batch, &mut entries, None), Ok(1));
                    assert_eq!(batch[0].result(), Ok(()));
                    running.with_packet(|| ());
                    // It stays readable, so that there is always something for somebody.
                    batch = [enable(entries[0].completion_key as i32 - 10, ONESHOT)];
                }
                assert_eq!(port.process(&mut batch, &mut [], None), Ok(0));
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
fn f4_a_lent_place_lets_another_thread_go() {
    explore(3, || {
        let port = port(1);
        assert!(port.post(&[Entry::default(); 2], || {}).is_ok());
        assert!(dequeue(&port, None).is_ok());
        let other = {
            let port = Arc::clone(&port);
            thread::spawn(move || dequeue(&port, None).map(drop))
        };
        let lent = port.lend_place();
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
        // At most one too many, where a thread was slow to hand in what held.
        let more = dequeue(&port, Some(Duration::ZERO));
        assert!(more.is_err() || dequeue(&port, Some(Duration::ZERO)).is_err());
    });
}

/// Whoever is notified first, and whatever the other one waits for at that time.
fn a_level_is_heard_by_two(places: usize) {
    explore(3, move || {
        let port = port(places);
        let level = Trigger::PERSISTENT | Trigger::LEVEL;
        assert_eq!(apply(&port, enable(0, level)), Ok(()));
        let consumers = [waiter(&port), waiter(&port)];
        port.backend.become_readable(0);
        for consumer in consumers {
            let entry = consumer.join().unwrap().unwrap();
            assert_eq!((entry.completion_key, entry.events()), (10, Events::IN));
        }
    });
}

#[test]
fn c4_a_level_is_heard_by_everyone_who_waits_for_one_place() {
    a_level_is_heard_by_two(1);
}

#[test]
fn c4_a_level_is_heard_by_everyone_who_waits() {
    a_level_is_heard_by_two(2);
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
                    let outcome = port.process(&mut batch, &mut entries[..room], None);
                    assert_eq!((outcome, batch[0].result()), (Ok(room), Ok(())));
                })
            };
            assert_eq!(apply(&port, enable(0, ONESHOT)), Ok(()));
            if waits {
                let packet = Entry::new(99, 0, 0);
                assert_eq!(port.post(&[packet], || {}), Ok(()));
            }
            other.join().unwrap();
            let wanted = port.lock().table.slot(0).map(|slot| slot.filter);
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
                assert_eq!(port.process(&mut batch, &mut entries, None), Ok(1));
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
        let may_be = [
            vec![Events::IN, Events::REMOVE],
            vec![Events::IN | Events::REMOVE],
            vec![Events::REMOVE],
        ];
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
        assert!(port.post_after(Duration::from_millis(1), time).is_ok());
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

const REASON: u32 = 1 << 30;

/// Arm an adopted socket, and wait for what comes.
fn arm(port: &Port) -> u32 {
    let mut batch = [Registration::arm(0, 10, EventFilter::IN, false)];
    let mut entries = [Entry::default()];
    assert_eq!(port.process(&mut batch, &mut entries, None), Ok(1));
    assert_eq!((batch[0].result(), entries[0].completion_key), (Ok(()), 10));
    entries[0].transferred
}

#[test]
fn an_interruption_comes_however_it_meets_arming_and_readiness() {
    explore_owning(3, |port| {
        assert_eq!(port.adopt_any(0, 10), Ok(Ok(())));
        let owner = {
            let port = Arc::clone(port);
            thread::spawn(move || {
                // Ready first, perhaps; interrupted then.
                let mut came = arm(&port);
                if came == Events::IN.bits() {
                    port.backend.drain(0);
                    came = arm(&port);
                }
                assert_eq!(came, REASON);
                port.release(0, 10, false);
            })
        };
        let other = {
            let port = Arc::clone(port);
            thread::spawn(move || port.backend.become_readable(0))
        };
        port.interrupt(0, 10, REASON, true);
        owner.join().unwrap();
        other.join().unwrap();
        assert_eq!(port.snapshot().registrations, Some(0));
    });
}

/// A socket that was adopted, was ready once, and is held by this thread now.
fn adopted(port: &Port) {
    assert_eq!(port.adopt_any(0, 10), Ok(Ok(())));
    port.backend.become_readable(0);
    assert_eq!(arm(port), Events::IN.bits());
    port.backend.drain(0);
}

#[test]
fn f5_an_adopted_socket_is_heard_however_it_meets_arming() {
    explore_owning(3, |port| {
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
        let mut batch = [Registration::arm(0, 10, EventFilter::IN, false)];
        let mut entries = [Entry::default()];
        assert_eq!(port.process(&mut batch, &mut entries, None), Ok(1));
        let keys = [entries[0].completion_key, other.join().unwrap()];
        assert!(keys == [10, 99] || keys == [99, 10]);
        peer.join().unwrap();
    });
}

#[test]
fn c4_what_came_and_went_before_an_adopted_socket_was_armed_is_not_notified() {
    explore_owning(3, |port| {
        adopted(port);
        let other = {
            let port = Arc::clone(port);
            thread::spawn(move || {
                let entry = dequeue(&port, None).unwrap();
                assert!(entry.completion_key == 99 || port.backend.is_readable(0));
            })
        };
        let peer = {
            let port = Arc::clone(port);
            thread::spawn(move || port.backend.become_readable(0))
        };
        // Whoever has the connection reads it.
        port.backend.drain(0);
        assert_eq!(
            apply(port, Registration::arm(0, 10, EventFilter::IN, false)),
            Ok(())
        );
        assert!(port.post(&[Entry::new(99, 0, 0)], || {}).is_ok());
        other.join().unwrap();
        peer.join().unwrap();
    });
}

#[test]
fn what_an_interruption_has_left_behind_is_not_notified_when_it_is_out_of_date() {
    explore_owning(3, |port| {
        adopted(port);
        let peer = {
            let port = Arc::clone(port);
            thread::spawn(move || port.backend.become_readable(0))
        };
        let again = || Registration::arm(0, 10, EventFilter::IN, false);
        assert_eq!(apply(port, again()), Ok(()));
        port.interrupt(0, 10, REASON, true);
        if dequeue(port, None).unwrap().transferred == REASON {
            port.backend.drain(0);
            assert_eq!(apply(port, again()), Ok(()));
            // What comes now is true, or the packet that is posted.
            assert!(port.post(&[Entry::new(99, 0, 0)], || {}).is_ok());
            let entry = dequeue(port, None).unwrap();
            assert!(entry.completion_key == 99 || port.backend.is_readable(0));
        }
        peer.join().unwrap();
    });
}

#[test]
fn an_interruption_that_insists_comes_once_beside_another() {
    explore_owning(3, |port| {
        assert_eq!(port.adopt_any(0, 10), Ok(Ok(())));
        let owner = {
            let port = Arc::clone(port);
            thread::spawn(move || arm(&port))
        };
        let other = {
            let port = Arc::clone(port);
            thread::spawn(move || port.interrupt(0, 10, 2 * REASON, false))
        };
        let first = port.interrupt(0, 10, REASON, true);
        let second = other.join().unwrap();
        let came = owner.join().unwrap();
        assert_eq!(port.snapshot().queued, 0);
        if came != REASON {
            assert!(second && !first);
            // The one that insists comes next.
            assert_eq!(arm(port), REASON);
        }
    });
}

/// Either it is taken out, and nothing comes; or it is notified, and stays.
#[test]
fn what_is_taken_out_is_not_notified_and_can_be_armed_again() {
    explore_owning(3, |port| {
        adopted(port);
        let peer = {
            let port = Arc::clone(port);
            thread::spawn(move || port.backend.become_readable(0))
        };
        let other = {
            let port = Arc::clone(port);
            thread::spawn(move || dequeue(&port, None).unwrap().completion_key)
        };
        let again = Registration::arm(0, 10, EventFilter::IN, false);
        assert_eq!(apply(port, again), Ok(()));
        let is_out = port.halt(0, 10);
        assert!(port.post(&[Entry::new(99, 0, 0)], || {}).is_ok());
        assert_eq!(other.join().unwrap(), if is_out { 99 } else { 10 });
        peer.join().unwrap();
        if is_out {
            assert_eq!(dequeue(port, Some(Duration::ZERO)), Err(Error::TimedOut));
            assert_eq!(arm(port), Events::IN.bits());
        } else {
            assert_eq!(dequeue(port, None).unwrap().completion_key, 99);
        }
        port.release(0, 10, false);
    });
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
                assert_eq!(port.process(&mut batch, &mut [], None), Ok(0));
                assert!(batch.iter().all(|entry| entry.result() == Ok(())));
            })
        };
        port.backend.become_readable(0);
        assert_eq!(dequeue(&port, None).unwrap().events(), Events::IN);
        assert_eq!(apply(&port, remove(0)), Ok(()));
        assert_eq!(dequeue(&port, None).unwrap().events(), Events::REMOVE);
        port.backend.replace(0);
        other.join().unwrap();
        assert_eq!(port.snapshot().registrations, Some(0));
    });
}

/// A thread waits, and perhaps has a report in hand, while what was registered is closed, and something else that is
/// ready has its number and is registered.
#[test]
fn x5_what_is_registered_next_under_a_number_is_notified_and_removed_under_its_own_key() {
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
