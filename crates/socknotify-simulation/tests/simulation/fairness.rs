//! How long something waits beside what is busy (E1), beside handlers that take long (F4), and where nothing is (F5). Time is the
//! simulation's: handlers compute for a certain time, and threads continue at once, so bounds are exact, but for some microseconds.

use std::collections::HashMap;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use simulated_std::simulation;
use simulated_std::thread;
use simulated_std::time::Instant;
use socknotify_simulation::WakePolicy;
use socknotify_simulation::owned::{Event, Held, Id, Interest, Port, Serving, Worker};

use crate::{explore, microseconds, one_in, pick, random};

/// What a handler computes for.
const HANDLING: Duration = Duration::from_micros(50);
const ROOM: usize = 8;
/// So many sockets are always ready: a round of them takes two threads more than 11 ms.
const SOCKETS: usize = 450;

#[derive(Clone, Copy, Debug)]
enum Message {
    /// Sent again as soon as it is taken.
    Again,
    Probe(usize),
}

/// When something was due, and what it may be late by.
struct Probe {
    what: &'static str,
    due: Instant,
    most: Duration,
    late: Option<Duration>,
}

struct Busy {
    port: Port<UnixStream, Message>,
    probes: Mutex<Vec<Probe>>,
    /// What becomes of a connection: it is always ready, it is woken whenever it is armed, or it is a probe.
    probed: Mutex<HashMap<Id, usize>>,
    woken: Mutex<Vec<Id>>,
    is_over: AtomicBool,
}

impl Busy {
    fn begin(&self, what: &'static str, due: Instant, most: Duration) -> usize {
        let mut probes = self.probes.lock().expect("no panic");
        let late = None;
        probes.push(Probe {
            what,
            due,
            most,
            late,
        });
        probes.len() - 1
    }

    fn end(&self, number: usize) {
        let probe = &mut self.probes.lock().expect("no panic")[number];
        let late = Instant::now() - probe.due;
        probe.late = Some(late);
        assert!(late <= probe.most, "{} late by {late:?}", probe.what);
    }

    fn connect(&self) -> (Held<UnixStream>, UnixStream) {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        ours.set_nonblocking(true).expect("a mode");
        (self.port.adopt(ours).expect("room"), theirs)
    }

    fn handle(&self, worker: &mut Worker<UnixStream, Message>, event: Event<UnixStream, Message>) {
        simulation::compute(HANDLING);
        match event {
            Event::Message(Message::Again) => {
                if !self.is_over.load(Relaxed) {
                    let _ = self.port.send(Message::Again);
                }
            }
            Event::Message(Message::Probe(number)) => self.end(number),
            Event::Ready(held, _) | Event::Cancelled(held) | Event::TimedOut(held) => {
                let id = held.id();
                let probed = self.probed.lock().expect("no panic").remove(&id);
                if let Some(number) = probed {
                    return self.end(number);
                }
                worker.arm(held, Interest::IN);
                if self.woken.lock().expect("no panic").contains(&id) {
                    self.port.cancel(id);
                }
            }
            other => panic!("{other:?}"),
        }
    }

    fn work(&self) {
        let mut worker = self.port.worker(ROOM);
        while worker.process(None).is_ok() {
            while let Some(event) = worker.take() {
                self.handle(&mut worker, event);
            }
        }
    }
}

fn beside_what_is_busy() {
    let has_sockets = one_in(2);
    let has_wakes = one_in(2);
    let messages = pick(&[0, 4]);
    let port = Port::builder()
        .concurrency(2)
        .strict()
        .wake_policy(pick(&[WakePolicy::Eager, WakePolicy::BOUNDED]))
        .build();
    let run = Arc::new(Busy {
        port: port.expect("a port"),
        probes: Mutex::default(),
        probed: Mutex::default(),
        woken: Mutex::default(),
        is_over: AtomicBool::new(false),
    });
    let mut peers = Vec::new();
    for _ in 0..if has_sockets { SOCKETS } else { 1 } {
        let (held, mut peer) = run.connect();
        let _ = peer.write(&[0]);
        run.port.arm(held, Interest::IN);
        peers.push(peer);
    }
    let mut woken = Vec::new();
    for _ in 0..if has_wakes { 50 } else { 0 } {
        let (held, peer) = run.connect();
        woken.push(held.id());
        peers.push(peer);
        run.woken.lock().expect("no panic").push(held.id());
        run.port.arm(held, Interest::IN);
    }
    for _ in 0..messages {
        let _ = run.port.send(Message::Again);
    }
    let workers: Vec<_> = (0..2)
        .map(|_| {
            let run = Arc::clone(&run);
            thread::spawn(move || run.work())
        })
        .collect();
    woken.into_iter().for_each(|id| _ = run.port.cancel(id));
    thread::sleep(Duration::from_millis(1));
    // A call's batch, and what its class is behind: each class in its turn.
    let batch = HANDLING * ROOM as u32;
    let class = |count: u32| HANDLING * count * 4 + 3 * batch;
    let behind_wakes = class(if has_wakes { 50 } else { 2 });
    for _ in 0..12 {
        let now = Instant::now();
        match random(5) {
            0 => {
                let number = run.begin("a message is", now, class(messages + 2));
                let _ = run.port.send(Message::Probe(number));
            }
            1 => {
                let time = Duration::from_millis(1 + random(4) as u64);
                // A tick, and the batch in which the timer is due; then it is a message.
                let tick = Duration::from_millis(1);
                let most = tick + behind_wakes.min(class(2)) + class(messages + 2);
                let number = run.begin("a timer is", now + time, most);
                let _ = run.port.send_after(time, Message::Probe(number));
            }
            2 => {
                let (held, peer) = run.connect();
                let number = run.begin("a cancellation is", now, behind_wakes);
                run.probed
                    .lock()
                    .expect("no panic")
                    .insert(held.id(), number);
                let id = held.id();
                run.port.arm(held, Interest::IN);
                run.port.cancel(id);
                peers.push(peer);
            }
            3 => {
                let (held, mut peer) = run.connect();
                let rounds = HANDLING * SOCKETS as u32;
                let most = if has_sockets { 4 * rounds } else { class(4) };
                let number = run.begin("a socket is", now, most);
                run.probed
                    .lock()
                    .expect("no panic")
                    .insert(held.id(), number);
                run.port.arm(held, Interest::IN);
                let _ = peer.write(&[0]);
                peers.push(peer);
            }
            _ => thread::sleep(microseconds(3000)),
        }
    }
    thread::sleep(Duration::from_millis(20));
    let begin = Instant::now();
    while run
        .probes
        .lock()
        .expect("no panic")
        .iter()
        .any(|it| it.late.is_none())
    {
        assert!(
            begin.elapsed() < Duration::from_millis(200),
            "it never comes"
        );
        thread::sleep(Duration::from_millis(1));
    }
    run.is_over.store(true, Relaxed);
    drop(run.port.close());
    for worker in workers {
        worker.join().expect("no panic");
    }
}

#[test]
fn fairness_beside_what_is_busy() {
    explore(
        "fairness_beside_what_is_busy",
        150,
        true,
        beside_what_is_busy,
    );
}

/// A message whose handler takes long, or that waits for such.
#[derive(Clone, Copy, Debug)]
enum Work {
    Long,
    Short,
    Probe(Instant),
}

const LONG: Duration = Duration::from_millis(500);

/// Handlers sleep or compute for long, and a message waits for no more than F4 says; and where a thread waits and a permit is free,
/// it does not wait (F5).
fn beside_long_handlers() {
    let value = 1 + random(3);
    let port = Port::<UnixStream, Work>::builder()
        .concurrency(value)
        .wake_policy(pick(&[WakePolicy::Eager, WakePolicy::BOUNDED]))
        .build();
    let port = Arc::new(port.expect("a port"));
    let computes = one_in(2);
    let late = Arc::new(Mutex::new(Vec::new()));
    let server = {
        let (port, late) = (Arc::clone(&port), Arc::clone(&late));
        let idle = Duration::from_millis(pick(&[1, 3, 10_000]));
        thread::spawn(move || {
            port.serve(Serving::default().idle(idle), |_, event| match event {
                Event::Message(Work::Probe(at)) => {
                    late.lock().expect("no panic").push(at.elapsed());
                }
                Event::Message(Work::Short) => simulation::compute(Duration::from_micros(20)),
                Event::Message(Work::Long) | Event::Ready(..) => match computes {
                    true => simulation::compute(LONG),
                    false => thread::sleep(LONG),
                },
                Event::Draining(_) => {}
                other => panic!("{other:?}"),
            })
        })
    };
    thread::sleep(Duration::from_millis(5));
    let handlers = match one_in(4) {
        true => value - 1,
        false => random(10),
    };
    // Each begins with a message, or with a socket that becomes ready.
    let mut peers = Vec::new();
    for _ in 0..handlers {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        let held = port.adopt(ours).expect("room");
        port.arm(held, Interest::IN);
        peers.push(theirs);
    }
    // While quick handlers run, others park.
    for _ in 0..random(30) {
        let _ = port.send(Work::Short);
        thread::sleep(microseconds(40));
    }
    thread::sleep(Duration::from_micros(700));
    for peer in &mut peers {
        match one_in(2) {
            true => _ = port.send(Work::Long),
            false => _ = peer.write(&[0]),
        }
    }
    let probes = 1 + random(3);
    for _ in 0..probes {
        if one_in(2) {
            thread::sleep(microseconds(30_000));
        }
        let _ = port.send(Work::Probe(Instant::now()));
    }
    let most = if handlers < value {
        Duration::from_micros(100)
    } else if computes {
        // All of them were to begin before it. Samples are two milliseconds apart.
        Duration::from_millis((4 * handlers).div_ceil(value) as u64 + 8)
    } else {
        Duration::from_millis(10)
    };
    let begin = Instant::now();
    while late.lock().expect("no panic").len() < probes {
        assert!(begin.elapsed() < Duration::from_secs(1), "it never comes");
        thread::sleep(Duration::from_millis(1));
    }
    for late in &*late.lock().expect("no panic") {
        assert!(
            *late <= most,
            "{handlers} of {value}, {computes}: late by {late:?}"
        );
    }
    port.drain(Duration::from_secs(2));
    assert_eq!(server.join().expect("no panic"), Ok(()));
}

#[test]
fn fairness_beside_long_handlers() {
    explore(
        "fairness_beside_long_handlers",
        500,
        true,
        beside_long_handlers,
    );
}
