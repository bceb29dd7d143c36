//! Every interleaving of a few threads in one port, on a poller that exists in memory only.
//!
//! ```text
//! RUSTFLAGS="--cfg interleavings" cargo test --release -p socknotify --lib interleavings
//! ```
//!
//! A wake-up that is lost shows as a deadlock, which the checker reports.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use loom::sync::{Condvar, Mutex, MutexGuard};
use loom::thread;

use super::{
    Engine, Identity, Kind, Mode, Poller, Report, ReportBuffer, Standing, Watch, WatchError,
};
use crate::{Entry, Error, EventFilter, Events, Registration, RegistrationError, Trigger};

const ONESHOT: Trigger = Trigger::ONESHOT.union(Trigger::LEVEL);

/// A poller that watches sockets which become readable when a test says so.
struct Model {
    kernel: Mutex<Kernel>,
    first_id: u64,
    /// How sockets that the port owns are watched.
    adopted: Mode,
    /// Whether any is watched for a level. It has something to submit, then.
    has_levels: AtomicBool,
}

#[derive(Default)]
struct Kernel {
    sockets: [Socket; 2],
    /// Requests and withdrawals that are not submitted yet.
    requests: Vec<(Watch, Asked)>,
    /// Reports that stand as they are, whatever becomes of the socket.
    answers: VecDeque<Report>,
    woken: bool,
    /// Threads that wait, oldest first.
    waiters: Vec<Arc<Condvar>>,
}

/// What is asked of the poller about a request.
#[derive(Clone, Copy, PartialEq)]
enum Asked {
    Make,
    Withdraw,
}

#[derive(Default)]
struct Socket {
    /// How many other sockets have had the number.
    generation: u64,
    readable: bool,
    watch: Option<Watch>,
    /// The requests that are submitted and not answered.
    requests: Vec<Watch>,
    armed: bool,
    /// It has become readable since it was observed.
    risen: bool,
}

impl Socket {
    fn is_due(&self) -> bool {
        self.readable && self.armed
    }
}

impl Kernel {
    fn is_due(&self) -> bool {
        self.woken || !self.answers.is_empty() || self.sockets.iter().any(Socket::is_due)
    }

    /// Answer the requests for this socket, if it is readable.
    fn answer(&mut self, socket: u32) {
        let Socket {
            readable, requests, ..
        } = &mut self.sockets[socket as usize];
        if *readable {
            let answers = requests.drain(..).map(|watch| report(&watch));
            self.answers.extend(answers);
        }
    }

    /// End requests without an answer.
    fn cancel(&mut self, socket: u32, which: impl Fn(&Watch) -> bool) {
        let requests = &mut self.sockets[socket as usize].requests;
        let (ended, left) = requests.drain(..).partition(|watch| which(watch));
        *requests = left;
        let ended: Vec<Watch> = ended;
        self.answers.extend(ended.iter().map(|watch| Report {
            events: Events::empty(),
            standing: Standing::Doubtful,
            ..report(watch)
        }));
    }

    fn submit(&mut self) {
        for (watch, asked) in std::mem::take(&mut self.requests) {
            match asked {
                Asked::Make => {
                    let socket = &mut self.sockets[watch.socket as usize];
                    socket.requests.push(watch);
                    self.answer(watch.socket);
                }
                Asked::Withdraw => self.cancel(watch.socket, |it| it.turn == watch.turn),
            }
        }
        self.call();
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

#[derive(Default)]
struct Buffer {
    reports: Vec<Report>,
    seen: Vec<Events>,
    woken: bool,
}

impl ReportBuffer for Buffer {
    fn reports(&self) -> &[Report] {
        &self.reports
    }

    fn seen(&self) -> &[Events] {
        &self.seen
    }

    fn woken(&self) -> bool {
        self.woken
    }

    fn alarmed(&self) -> bool {
        false
    }
}

/// A report of a socket that is readable.
fn report(watch: &Watch) -> Report {
    Report {
        socket: watch.socket,
        turn: watch.turn,
        kind: watch.kind,
        events: Events::IN,
        standing: Standing::Good,
        mode: watch.mode,
        dormant: false,
    }
}

impl Model {
    fn new(adopted: Mode) -> Self {
        // The owners of sockets outlive one run of the model; so no identity may come twice.
        static IDS: AtomicU64 = AtomicU64::new(0);
        Model {
            kernel: Mutex::new(Kernel::default()),
            first_id: IDS.fetch_add(4, Ordering::Relaxed),
            adopted,
            has_levels: AtomicBool::new(false),
        }
    }

    fn kernel(&self) -> MutexGuard<'_, Kernel> {
        self.kernel.lock().unwrap()
    }

    fn drain(&self, socket: u32) {
        self.kernel().sockets[socket as usize].readable = false;
    }

    fn is_readable(&self, socket: u32) -> bool {
        self.kernel().sockets[socket as usize].readable
    }

    fn become_readable(&self, number: u32) {
        let mut kernel = self.kernel();
        let socket = &mut kernel.sockets[number as usize];
        socket.readable = true;
        socket.risen = true;
        socket.armed |= socket
            .watch
            .is_some_and(|watch| matches!(watch.mode, Mode::Edge | Mode::Kept));
        kernel.answer(number);
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

    /// As when a thread ends that made requests.
    fn cancel(&self, socket: u32) {
        let mut kernel = self.kernel();
        kernel.cancel(socket, |_| true);
        kernel.call();
    }

    /// Whether a request holds this socket, or will.
    fn holds(&self, socket: u32) -> bool {
        let mut kernel = self.kernel();
        kernel.submit();
        !kernel.sockets[socket as usize].requests.is_empty()
    }
}

impl Poller for Model {
    type Buffer = Buffer;

    fn belongs_here(&self) -> bool {
        true
    }

    fn identify(&self, socket: u32) -> Result<Identity, RegistrationError> {
        let generation = self.kernel().sockets[socket as usize].generation;
        Ok(Identity {
            kind: Kind::Stream,
            id: self.first_id + u64::from(socket) + 2 * generation,
        })
    }

    fn adopted(&self) -> Mode {
        self.adopted
    }

    fn withdraw(&self, request: &Watch) {
        let mut kernel = self.kernel();
        kernel.requests.push((*request, Asked::Withdraw));
    }

    fn withdraw_all(&self) {
        let mut kernel = self.kernel();
        kernel.submit();
        (0..2).for_each(|socket| kernel.cancel(socket, |_| true));
    }

    fn submit(&self) {
        // There is no system call where there is nothing to submit.
        if self.adopted == Mode::Request || self.has_levels.load(Ordering::Relaxed) {
            self.kernel().submit();
        }
    }

    fn delivered(&self, socket: u32) {
        self.kernel().sockets[socket as usize].armed = true;
    }

    fn watch(&self, watch: &Watch, again: bool) -> Result<(), WatchError> {
        self.has_levels
            .fetch_or(watch.mode == Mode::Level, Ordering::Relaxed);
        let mut kernel = self.kernel();
        if watch.mode == Mode::Request {
            kernel.requests.push((*watch, Asked::Make));
            return Ok(());
        }
        let socket = &mut kernel.sockets[watch.socket as usize];
        if again && socket.watch.is_none() {
            return Err(WatchError::Unknown);
        }
        socket.watch = Some(*watch);
        socket.armed = true;
        kernel.call();
        Ok(())
    }

    fn unwatch(&self, socket: u32) -> Result<(), WatchError> {
        let socket = &mut self.kernel().sockets[socket as usize];
        socket.armed = false;
        socket.watch.take().map(drop).ok_or(WatchError::Unknown)
    }

    fn wait(&self, buffer: &mut Buffer, room: usize, timeout: Option<Duration>) {
        let mut kernel = self.kernel();
        kernel.submit();
        while !kernel.is_due() && timeout != Some(Duration::ZERO) {
            let chair = Arc::new(Condvar::new());
            kernel.waiters.push(Arc::clone(&chair));
            kernel = chair.wait(kernel).unwrap();
        }
        buffer.woken = std::mem::take(&mut kernel.woken);
        buffer.reports.clear();
        let answers = room.min(kernel.answers.len());
        buffer.reports.extend(kernel.answers.drain(..answers));
        for socket in kernel.sockets.iter_mut().filter(|socket| socket.is_due()) {
            let Some(watch) = socket.watch else { continue };
            if buffer.reports.len() == room {
                break;
            }
            // The next report of a level comes when this one was delivered.
            socket.armed = false;
            buffer.reports.push(report(&watch));
        }
        // As a kernel does: what is left is the next waiter's.
        kernel.call();
    }

    fn check(&self, _buffer: &mut Buffer, _is_good: impl Fn(u32) -> bool) {}

    fn probe(&self, buffer: &mut Buffer, watches: impl Iterator<Item = Watch> + Clone) {
        let kernel = self.kernel();
        buffer.seen.clear();
        buffer.seen.extend(watches.map(
            |watch| match kernel.sockets[watch.socket as usize].readable {
                true => Events::IN,
                false => Events::empty(),
            },
        ));
    }

    fn observe(&self, watch: &Watch) {
        self.kernel().sockets[watch.socket as usize].risen = false;
    }

    fn has_risen(&self, watch: &Watch) -> bool {
        self.kernel().sockets[watch.socket as usize].risen
    }

    fn wake(&self) {
        let mut kernel = self.kernel();
        kernel.woken = true;
        kernel.call();
    }

    fn set_alarm(&self, _delay: Duration) -> Result<(), Error> {
        Ok(())
    }

    fn rebuild(&self, _watches: &[Watch], _fetch: &mut dyn FnMut()) -> Option<Vec<u32>> {
        Some(Vec::new())
    }
}

type Port = Arc<Engine<Model>>;

/// Explore with at most this many involuntary switches in one run.
///
/// One model at a time: which port has a socket is known to the whole process, and the models all use
/// the same numbers.
fn explore(preemptions: usize, run: impl Fn() + Sync + Send + 'static) {
    static ONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _one = ONE.lock();
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(run);
}

fn port(places: usize) -> Port {
    Arc::new(Engine::new(Model::new(Mode::Kept), places))
}

/// Explore with each way to watch sockets that the port owns.
fn explore_owning(preemptions: usize, run: impl Fn(&Port) + Copy + Sync + Send + 'static) {
    for mode in [Mode::Kept, Mode::Request] {
        explore(preemptions, move || {
            run(&Arc::new(Engine::new(Model::new(mode), 2)));
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
    // SAFETY: the number goes to the model of a poller, and never to a system call.
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
    registration
}

fn remove(socket: i32) -> Registration<'static> {
    let mut registration = raw(socket);
    registration.operation = crate::Operation::REMOVE;
    registration
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
    explore(preemptions, move || {
        let port = port(places);
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
    port.poller.become_readable(0);
    port.poller.become_readable(1);
}

fn a_socket_and_a_post(port: &Port) {
    port.poller.become_readable(0);
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
    explore(3, || {
        let port = port(2);
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
    explore(3, || {
        let port = port(2);
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
        port.poller.become_readable(0);
        let waiter = waiter(&port);
        assert_eq!(apply(&port, enable(0, EDGE)), Ok(()));
        port.poller.drain(0);
        port.poller.become_readable(0);
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
        port.poller.become_readable(0);
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
        port.poller.become_readable(0);
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
        port.poller.become_readable(0);
        assert_eq!(waiter.join().unwrap().unwrap().events(), Events::IN);
        assert_eq!(other.join().unwrap(), Ok(()));
    });
}

/// Two threads enable a registration with different filters. Whoever comes last, the poller has its word.
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
            let watched = port.poller.kernel().sockets[0].watch;
            assert_eq!(watched.map(|watch| watch.filter), wanted);
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
        port.poller.become_readable(0);
        consumer();
        other.join().unwrap();
    });
}

#[test]
fn b4_the_removal_is_the_last_notification() {
    explore(3, || {
        let port = port(2);
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
        port.poller.become_readable(0);
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

const REASON: u32 = 1 << 30;

/// Arm an adopted socket, and wait for what comes.
fn arm(port: &Port) -> u32 {
    let mut batch = [Registration::arm(0, 10, EventFilter::IN)];
    let mut entries = [Entry::default()];
    assert_eq!(port.process(&mut batch, &mut entries, None), Ok(1));
    assert_eq!((batch[0].result(), entries[0].completion_key), (Ok(()), 10));
    entries[0].transferred
}

#[test]
fn an_interruption_comes_however_it_meets_arming_and_readiness() {
    explore_owning(3, |port| {
        assert_eq!(port.adopt(0, 10), Ok(Ok(())));
        let owner = {
            let port = Arc::clone(port);
            thread::spawn(move || {
                // Ready first, perhaps; interrupted then.
                let mut came = arm(&port);
                if came == Events::IN.bits() {
                    port.poller.drain(0);
                    came = arm(&port);
                }
                assert_eq!(came, REASON);
                port.release(0, 10, false);
            })
        };
        let other = {
            let port = Arc::clone(port);
            thread::spawn(move || port.poller.become_readable(0))
        };
        port.interrupt(0, 10, REASON, true);
        owner.join().unwrap();
        other.join().unwrap();
        assert_eq!(port.snapshot().registrations, Some(0));
    });
}

/// A socket that was adopted, was ready once, and is held by this thread now.
fn adopted(port: &Port) {
    assert_eq!(port.adopt(0, 10), Ok(Ok(())));
    port.poller.become_readable(0);
    assert_eq!(arm(port), Events::IN.bits());
    port.poller.drain(0);
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
                port.poller.become_readable(0);
                assert!(port.post(&[Entry::new(99, 0, 0)], || {}).is_ok());
            })
        };
        let mut batch = [Registration::arm(0, 10, EventFilter::IN)];
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
                assert!(entry.completion_key == 99 || port.poller.is_readable(0));
            })
        };
        let peer = {
            let port = Arc::clone(port);
            thread::spawn(move || port.poller.become_readable(0))
        };
        // Whoever has the connection reads it.
        port.poller.drain(0);
        assert_eq!(
            apply(port, Registration::arm(0, 10, EventFilter::IN)),
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
            thread::spawn(move || port.poller.become_readable(0))
        };
        let again = || Registration::arm(0, 10, EventFilter::IN);
        assert_eq!(apply(port, again()), Ok(()));
        port.interrupt(0, 10, REASON, true);
        if dequeue(port, None).unwrap().transferred == REASON {
            port.poller.drain(0);
            assert_eq!(apply(port, again()), Ok(()));
            // What comes now is true, or the packet that is posted.
            assert!(port.post(&[Entry::new(99, 0, 0)], || {}).is_ok());
            let entry = dequeue(port, None).unwrap();
            assert!(entry.completion_key == 99 || port.poller.is_readable(0));
        }
        peer.join().unwrap();
    });
}

#[test]
fn f5_an_adopted_socket_is_heard_when_the_thread_that_armed_it_ends() {
    explore_owning(3, |port| {
        adopted(port);
        assert_eq!(
            apply(port, Registration::arm(0, 10, EventFilter::IN)),
            Ok(())
        );
        let other = waiter(port);
        let ended = {
            let port = Arc::clone(port);
            thread::spawn(move || port.poller.cancel(0))
        };
        port.poller.become_readable(0);
        assert_eq!(other.join().unwrap().unwrap().events(), Events::IN);
        ended.join().unwrap();
    });
}

#[test]
fn g1_nothing_holds_an_adopted_socket_that_is_released() {
    explore_owning(3, |port| {
        adopted(port);
        let owner = {
            let port = Arc::clone(port);
            thread::spawn(move || {
                let mut batch = [Registration::arm(0, 10, EventFilter::IN)];
                let mut entries = [Entry::default()];
                let outcome = port.process(&mut batch, &mut entries, None);
                match outcome {
                    Ok(1) => port.release(0, 10, false),
                    other => assert_eq!(other, Err(Error::Closed)),
                }
                assert!(!port.poller.holds(0));
            })
        };
        let other = {
            let port = Arc::clone(port);
            thread::spawn(move || port.interrupt(0, 10, REASON, true))
        };
        port.close();
        other.join().unwrap();
        owner.join().unwrap();
        assert!(!port.poller.holds(0));
    });
}

#[test]
fn two_interruptions_are_one_packet() {
    explore_owning(3, |port| {
        assert_eq!(port.adopt(0, 10), Ok(Ok(())));
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
        // The one that insists comes, unless the other was on its way out already.
        assert!(came == REASON || (second && !first));
        assert_eq!(port.snapshot().queued, 0);
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

/// A registration is armed twice in one call, notified, and removed before the call has come to tell the
/// poller the second time. Its socket may be closed then.
#[test]
fn g5_what_is_told_too_late_does_not_reach_the_next_socket() {
    explore(3, || {
        let port = port(2);
        assert_eq!(apply(&port, enable(0, ONESHOT)), Ok(()));
        port.poller.become_readable(0);
        assert_eq!(dequeue(&port, None).unwrap().events(), Events::IN);
        port.poller.drain(0);
        let other = {
            let port = Arc::clone(&port);
            thread::spawn(move || {
                let mut batch = [enable(0, ONESHOT), enable(0, ONESHOT)];
                assert_eq!(port.process(&mut batch, &mut [], None), Ok(0));
                assert!(batch.iter().all(|entry| entry.result() == Ok(())));
            })
        };
        port.poller.become_readable(0);
        assert_eq!(dequeue(&port, None).unwrap().events(), Events::IN);
        assert_eq!(apply(&port, remove(0)), Ok(()));
        assert_eq!(dequeue(&port, None).unwrap().events(), Events::REMOVE);
        port.poller.replace(0);
        other.join().unwrap();
        assert_eq!(port.snapshot().registrations, Some(0));
    });
}

#[test]
fn g6_a_removal_races_with_arming() {
    explore(3, || {
        let port = port(2);
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
