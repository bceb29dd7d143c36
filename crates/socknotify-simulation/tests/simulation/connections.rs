//! `owned::Port`: workers arm connections, which are cancelled, time out, are taken out, fail, drain and are closed, in any order.
//!
//! A run goes on until all bytes were received, all messages taken, and all cancellations reported; then, or before that, the port
//! drains or is closed. Every connection that was made is dropped once.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use simulated_std::simulation::{self, Faults, tell};
use simulated_std::thread;
use simulated_std::time::Instant;
use socknotify_simulation::owned::{
    BorrowedSocket, Event, Held, Id, Interest, Port, Source, TimerId, Worker,
};
use socknotify_simulation::{Events, WakePolicy};

use crate::{explore, microseconds, one_in, pick, random};

#[derive(Debug)]
struct Connection {
    stream: UnixStream,
    index: usize,
    world: Arc<Mutex<World>>,
}

impl Source for Connection {
    fn socket(&self) -> BorrowedSocket<'_> {
        self.stream.socket()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let mut world = self.world.lock().expect("no panic");
        let is_open = &mut world.known[self.index].is_open;
        assert!(std::mem::replace(is_open, false), "it is dropped once");
    }
}

/// What the test knows of a connection.
#[derive(Debug)]
struct Known {
    id: Option<Id>,
    peer: Option<UnixStream>,
    is_open: bool,
    /// The events that it was armed for, unless a thread has it, and when that wait is over.
    armed: Option<(Events, Option<Instant>)>,
    sent: usize,
    received: usize,
    /// How many cancellations were asked for and reported, and how many have to be reported.
    asked: usize,
    cancelled: usize,
    due: usize,
    has_drained: bool,
}

/// What only one thread at a time looks at, with no point of the simulation inside.
#[derive(Debug, Default)]
struct World {
    known: Vec<Known>,
    /// Whether it was taken; `None`: its timer was cancelled.
    messages: Vec<Option<bool>>,
    /// When a message is due.
    times: Vec<Instant>,
    panics: usize,
}

struct Run {
    port: Port<Connection, usize>,
    /// The system may refuse to watch something.
    may_refuse: bool,
    world: Arc<Mutex<World>>,
}

type Handed = Held<Connection>;

impl Run {
    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().expect("no panic")
    }

    fn connect(&self) {
        let (stream, peer) = UnixStream::pair().expect("a pair");
        stream.set_nonblocking(true).expect("a mode");
        let mut world = self.world();
        let index = world.known.len();
        world.known.push(Known {
            id: None,
            peer: Some(peer),
            is_open: true,
            armed: None,
            sent: 0,
            received: 0,
            asked: 0,
            cancelled: 0,
            due: 0,
            has_drained: false,
        });
        drop(world);
        let world = Arc::clone(&self.world);
        let adopted = self.port.adopt(Connection {
            stream,
            index,
            world,
        });
        if let Ok(held) = adopted {
            self.world().known[index].id = Some(held.id());
            self.arm(None, held);
        }
    }

    fn interest(&self, held: &Handed) -> Interest {
        let time = Duration::from_millis(1 + random(20) as u64);
        let (interest, events) = match random(8) {
            0 => (Interest::OUT, Events::OUT),
            1 => (Interest::NOTHING.within(time), Events::empty()),
            _ => (Interest::IN, Events::IN | Events::HANGUP),
        };
        let is_limited = events.is_empty() || one_in(3);
        let deadline = is_limited.then(|| Instant::now() + time);
        let mut world = self.world();
        let known = &mut world.known[held.index];
        assert_eq!(known.armed, None, "it is in one place");
        tell(format_args!("arm {} for {events:?}", held.index));
        known.armed = Some((events, deadline));
        drop(world);
        deadline.map_or(interest, |deadline| interest.until(deadline))
    }

    fn arm(&self, worker: Option<&mut Worker<Connection, usize>>, held: Handed) {
        let interest = self.interest(&held);
        match worker {
            Some(worker) => worker.arm(held, interest),
            None => self.port.arm(held, interest),
        }
    }

    /// It was reported, and this thread has it. What it was armed for.
    fn on_taken(&self, held: &Handed) -> (Events, Option<Instant>) {
        tell(format_args!("taken {}", held.index));
        let armed = self.world().known[held.index].armed.take();
        armed.expect("nobody else has it")
    }

    /// False at its end.
    fn receive(&self, held: &mut Handed) -> bool {
        let mut buffer = [0; 8];
        let most = 1 + random(buffer.len());
        let mut goes_on = true;
        let index = held.index;
        let (connection, readiness) = held.split();
        // What was received through this needs no poll when it is empty.
        for _ in 0..1 + random(12) {
            let received = readiness.try_read(|| (&connection.stream).read(&mut buffer[..most]));
            match received {
                Ok(0) => goes_on = false,
                Ok(length) => {
                    tell(format_args!("received {length} from {index}"));
                    self.world().known[index].received += length;
                    continue;
                }
                Err(error) => {
                    tell(format_args!("{index} is drained"));
                    assert_eq!(error.kind(), ErrorKind::WouldBlock);
                }
            }
            break;
        }
        goes_on
    }

    fn handle(&self, worker: &mut Worker<Connection, usize>, event: Event<Connection, usize>) {
        let held = match event {
            Event::Ready(mut held, events) => {
                let (wanted, _) = self.on_taken(&held);
                let wanted = wanted | Events::ERR;
                assert!(!events.is_empty() && wanted.contains(events), "{events:?}");
                let goes_on = self.receive(&mut held);
                if !goes_on {
                    if one_in(2) {
                        worker.linger(held, Duration::from_millis(20));
                    }
                    return;
                }
                held
            }
            Event::TimedOut(held) => {
                let (_, deadline) = self.on_taken(&held);
                assert!(deadline.is_some_and(|it| it <= Instant::now()), "too early");
                held
            }
            Event::Cancelled(held) => {
                self.on_taken(&held);
                let mut world = self.world();
                let known = &mut world.known[held.index];
                known.cancelled += 1;
                assert!(known.cancelled <= known.asked, "nobody has cancelled it");
                drop(world);
                held
            }
            Event::Draining(mut held) => {
                self.on_taken(&held);
                let mut world = self.world();
                let has_drained = &mut world.known[held.index].has_drained;
                assert!(!std::mem::replace(has_drained, true), "it drains once");
                drop(world);
                while self.receive(&mut held) {
                    match random(3) {
                        0 => return worker.linger(held, Duration::from_millis(20)),
                        1 => return self.arm(Some(worker), held),
                        _ => {}
                    }
                }
                return;
            }
            Event::Refused(held, error) => {
                assert!(self.may_refuse, "{error}");
                self.on_taken(&held);
                thread::sleep(microseconds(200));
                held
            }
            Event::Message(number) => {
                let mut world = self.world();
                let taken = &mut world.messages[number];
                assert_eq!(
                    *taken,
                    Some(false),
                    "it comes once, unless it was cancelled"
                );
                *taken = Some(true);
                assert!(world.times[number] <= Instant::now(), "too early");
                drop(world);
                return self.take_time(worker);
            }
            Event::Panicked(None, _) => {
                let mut world = self.world();
                assert!(world.panics > 0);
                world.panics -= 1;
                return;
            }
            other => panic!("{other:?}"),
        };
        if one_in(2) {
            self.take_time(worker);
        }
        match one_in(3) {
            true => self.arm(None, held),
            false => self.arm(Some(worker), held),
        }
        if one_in(6) {
            self.take_time(worker);
        }
    }

    fn take_time(&self, worker: &mut Worker<Connection, usize>) {
        match random(8) {
            0 => thread::sleep(microseconds(3000)),
            1 => simulation::compute(microseconds(300)),
            2 => worker.blocking(|| thread::sleep(microseconds(1000))),
            3 => worker.release(),
            _ => {}
        }
    }

    fn work(&self) {
        let mut room = 1 + random(4);
        let mut worker = self.port.worker(room);
        loop {
            let timeout = pick(&[None, None, Some(0), Some(50), Some(3000)]);
            if worker.process(timeout.map(Duration::from_micros)).is_err() {
                return;
            }
            for _ in 0..room {
                if let Some(event) = worker.take() {
                    self.handle(&mut worker, event);
                }
            }
            if one_in(20) {
                // What it has not taken is others'.
                room = 1 + random(4);
                let before = std::mem::replace(&mut worker, self.port.worker(room));
                let end = AssertUnwindSafe(move || {
                    let _before = before;
                    if one_in(2) {
                        panic!("a handler");
                    }
                });
                let _ = catch_unwind(end);
            }
        }
    }

    fn disturb(&self) {
        let mut timers: Vec<(TimerId, usize)> = Vec::new();
        for _ in 0..10 + random(20) {
            let index = random(self.world().known.len());
            match random(13) {
                0..3 => {
                    let mut world = self.world();
                    let known = &mut world.known[index];
                    if let (Some(peer), true) = (&known.peer, known.is_open) {
                        let length = 1 + random(8);
                        let mut peer = peer;
                        tell(format_args!("send {length} to {index}"));
                        known.sent += peer.write(&[0; 8][..length]).unwrap_or(0);
                    }
                }
                3..5 => {
                    let mut world = self.world();
                    let known = &mut world.known[index];
                    let Some(id) = known.id else { continue };
                    known.asked += 1;
                    let before = known.cancelled;
                    drop(world);
                    let is_cancelled = self.port.cancel(id);
                    let mut world = self.world();
                    let known = &mut world.known[index];
                    if is_cancelled {
                        known.due = known.due.max(before + 1);
                    }
                }
                5 => {
                    let Some(id) = self.world().known[index].id else {
                        continue;
                    };
                    if let Some(held) = self.port.disarm(id) {
                        // Also one that lingers.
                        self.world().known[held.index].armed = None;
                        self.arm(None, held);
                    }
                }
                6..8 => {
                    let number = self.message(Duration::ZERO);
                    let sent = self.port.send(number);
                    self.is_sent(number, sent.is_ok());
                }
                8 => {
                    let time = microseconds(20_000);
                    let number = self.message(time);
                    let timer = self.port.send_after(time, number);
                    self.is_sent(number, timer.is_ok());
                    timers.extend(timer.map(|timer| (timer, number)));
                }
                9 => {
                    if let Some((timer, number)) = timers.pop() {
                        if self.port.cancel_timer(timer) {
                            let before = self.world().messages[number].take();
                            assert_eq!(before, Some(false));
                        }
                    }
                }
                10 => {
                    let number = self.message(Duration::ZERO);
                    let panics = one_in(3);
                    // Before it can be reported.
                    self.world().panics += usize::from(panics);
                    let accepted = self.port.offload(move || {
                        thread::sleep(Duration::from_micros(300));
                        assert!(!panics);
                        number
                    });
                    self.is_sent(number, accepted.is_ok() && !panics);
                    self.world().panics -= usize::from(accepted.is_err() && panics);
                }
                11 if self.world().known.len() < 6 => self.connect(),
                _ => thread::sleep(microseconds(1000)),
            }
        }
    }

    /// A new message, no sooner than in this time.
    fn message(&self, time: Duration) -> usize {
        let mut world = self.world();
        world.messages.push(Some(false));
        world.times.push(Instant::now() + time);
        world.messages.len() - 1
    }

    fn is_sent(&self, number: usize, is_sent: bool) {
        if !is_sent {
            self.world().messages[number] = None;
        }
    }

    fn is_done(&self) -> bool {
        let world = self.world();
        let is_received = |it: &Known| {
            let is_reported = it.cancelled >= it.due;
            !it.is_open || it.sent == it.received && is_reported
        };
        world.known.iter().all(is_received)
            && world.messages.iter().flatten().all(|&it| it)
            && world.panics == 0
    }
}

fn scenario() {
    let mut builder = Port::builder()
        .concurrency(1 + random(3))
        .helper_threads(1 + random(2))
        .wake_policy(pick(&[WakePolicy::Eager, WakePolicy::BOUNDED]));
    if one_in(3) {
        builder = builder.strict();
    }
    let run = Arc::new(Run {
        port: builder.build().expect("a port"),
        may_refuse: one_in(3),
        world: Arc::default(),
    });
    (0..1 + random(4)).for_each(|_| run.connect());
    if run.may_refuse {
        simulation::set_faults(Faults {
            add: 10,
            modify: 30,
            wait: 20,
            spawn: 0,
            timer: 4,
        });
    }
    let start = |call: fn(&Run)| {
        let run = Arc::clone(&run);
        thread::spawn(move || call(&run))
    };
    let workers: Vec<_> = (0..1 + random(4)).map(|_| start(Run::work)).collect();
    let disturbing = start(Run::disturb);
    run.disturb();
    let ends_early = one_in(3);
    if !ends_early {
        disturbing.join().expect("no panic");
        let begin = Instant::now();
        while !run.is_done() {
            let is_lost = begin.elapsed() > Duration::from_secs(30);
            assert!(!is_lost, "something is lost: {:#?}", run.world());
            thread::sleep(Duration::from_millis(1));
        }
        // Some clients end first.
        let mut world = run.world();
        world
            .known
            .iter_mut()
            .filter(|_| one_in(3))
            .for_each(|it| it.peer = None);
        drop(world);
    }
    simulation::set_faults(Faults::default());
    if one_in(2) {
        run.port.drain(Duration::from_millis(50));
    } else {
        drop(run.port.close());
    }
    for worker in workers {
        worker.join().expect("no panic");
    }
    drop(run.port.close());
    thread::sleep(Duration::from_secs(2));
    assert_eq!(run.port.connections(), 0);
    let open = run.world().known.iter().filter(|it| it.is_open).count();
    assert_eq!(open, 0, "every connection is dropped");
    let snapshot = run.port.snapshot();
    assert_eq!((snapshot.running, snapshot.waiting), (Some(0), 0));
}

#[test]
fn connections() {
    explore("connections", 2000, false, scenario);
}
