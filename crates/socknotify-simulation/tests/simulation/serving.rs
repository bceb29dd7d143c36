//! `Port::serve`: clients of a listener, and handlers that answer, sleep, compute, panic, end connections, or do not return.
//!
//! Each client sends requests of one byte and waits for answers. Whoever has sent a request before the port drains is answered, also
//! if its connection was not accepted by then; `serve` returns, and its threads have ended.

use std::io::{ErrorKind, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use simulated_std::simulation::{self, Faults, tell};
use simulated_std::time::Instant;
use simulated_std::{sync, thread};
use socknotify_simulation::owned::{Event, Held, Interest, Listening, Port, Serving, Worker};
use socknotify_simulation::{Error, Snapshot, WakePolicy};

use crate::{explore, microseconds, one_in, pick, random};

/// What has come by now is served.
const AT_ONCE: Interest = Interest::IN.within(Duration::ZERO);

/// What a request asks for.
const ANSWER: u8 = 0;
const SLEEP: u8 = 1;
const COMPUTE: u8 = 2;
const BLOCK: u8 = 3;
const END: u8 = 4;
const PANIC: u8 = 5;
/// It does not return until the test lets it.
const STICK: u8 = 6;

#[derive(Default)]
struct Run {
    port: OnceLock<Arc<Port<UnixStream, u8>>>,
    drains: AtomicBool,
    /// Connections that a client has sent a request on, and that was not answered yet.
    unanswered: AtomicUsize,
    panics: AtomicUsize,
    sticks: AtomicBool,
    released: (sync::Mutex<bool>, sync::Condvar),
}

impl Run {
    fn port(&self) -> &Arc<Port<UnixStream, u8>> {
        self.port.get().expect("there is one")
    }

    fn handle(&self, worker: &mut Worker<UnixStream, u8>, event: Event<UnixStream, u8>) {
        match event {
            Event::Ready(held, _) => self.serve(worker, held),
            // Its client has sent nothing.
            Event::TimedOut(held) => worker.linger(held, Duration::from_millis(100)),
            Event::Accepted(held) => worker.arm(held, Interest::IN),
            Event::Draining(held) => worker.arm(held, AT_ONCE),
            Event::Refused(held, _) => {
                thread::sleep(microseconds(200));
                worker.arm(held, Interest::IN);
            }
            Event::Panicked(id, _) => {
                assert!(id.is_some());
                assert!(self.panics.fetch_sub(1, Relaxed) > 0);
            }
            Event::Message(_) | Event::NotAccepting(..) | Event::Accepting(_) => {}
            other => panic!("{other:?}"),
        }
    }

    fn serve(&self, worker: &mut Worker<UnixStream, u8>, mut held: Held<UnixStream>) {
        loop {
            let mut request = [0];
            match held.read(&mut request) {
                Ok(0) => return,
                Ok(_) => {}
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock);
                    break;
                }
            }
            let time = microseconds(20_000);
            match request[0] {
                SLEEP => thread::sleep(time),
                COMPUTE => simulation::compute(time),
                BLOCK => worker.blocking(|| thread::sleep(time)),
                PANIC => {
                    self.panics.fetch_add(1, Relaxed);
                    panic!("a handler");
                }
                STICK => {
                    self.sticks.store(true, Relaxed);
                    let (released, changed) = &self.released;
                    let mut is_released = released.lock().expect("no panic");
                    while !*is_released {
                        is_released = changed.wait(is_released).expect("no panic");
                    }
                    return;
                }
                _ => {}
            }
            // Its client may have gone.
            let _ = held.write(&request);
            if request[0] == END {
                return worker.linger(held, Duration::from_millis(100));
            }
        }
        worker.arm(
            held,
            match self.port().is_draining() {
                true => AT_ONCE,
                false => Interest::IN.within(Duration::from_secs(40)),
            },
        );
    }

    /// Serve until the end. Returns how many handlers are left behind. The system may refuse to start the first thread.
    fn run(self: &Arc<Self>, serving: Serving, may_leave: bool) -> usize {
        loop {
            let serving = serving.clone();
            let this = Arc::clone(self);
            let served = match may_leave {
                true => {
                    let handle = move |worker: &mut _, event| this.handle(worker, event);
                    let left = self.port().serve_detached(serving, handle);
                    left.map(|left| left.len())
                }
                false => {
                    let handle = |worker: &mut _, event| this.handle(worker, event);
                    self.port().serve(serving, handle).map(|()| 0)
                }
            };
            match served {
                Ok(left) => return left,
                Err(error) => assert_eq!(error, Error::Os(11)),
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// One client, with several connections one after the other.
    fn call(&self, address: &SocketAddr, may_stick: bool) {
        for _ in 0..1 + random(3) {
            let Ok(mut stream) = UnixStream::connect_addr(address) else {
                assert!(self.drains.load(Relaxed), "it listens");
                return;
            };
            stream.set_nonblocking(true).expect("a mode");
            for _ in 0..1 + random(3) {
                let request = match random(12) {
                    0 => PANIC,
                    1 if may_stick => STICK,
                    2 => END,
                    3 => BLOCK,
                    4..6 => SLEEP,
                    6..8 => COMPUTE,
                    _ => ANSWER,
                };
                let was_in_time = !self.drains.load(Relaxed);
                if stream.write(&[request]).is_err() {
                    assert!(!was_in_time, "it is open");
                    return;
                }
                tell(format_args!("request {request}"));
                if !self.is_answered(&mut stream, request, was_in_time) {
                    break;
                }
                if one_in(3) {
                    thread::sleep(microseconds(3000));
                }
            }
        }
    }

    /// False at the end of the connection.
    fn is_answered(&self, stream: &mut UnixStream, request: u8, must_be: bool) -> bool {
        let begin = Instant::now();
        let must_be = must_be && !matches!(request, PANIC | STICK);
        self.unanswered.fetch_add(usize::from(must_be), Relaxed);
        let mut answer = [0];
        let mut pause = Duration::from_micros(100);
        let answered = loop {
            match stream.read(&mut answer) {
                Ok(length) => break length,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                // It was closed with a request in it.
                Err(_) => break 0,
            }
            if request == STICK && *self.released.0.lock().expect("no panic") {
                return false;
            }
            assert!(
                begin.elapsed() < Duration::from_secs(30),
                "no answer to {request}"
            );
            thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(50));
        };
        assert!(
            answered == 1 || !must_be,
            "request {request} was not answered"
        );
        self.unanswered.fetch_sub(usize::from(must_be), Relaxed);
        answered == 1 && request != END
    }
}

fn scenario() {
    let may_stick = one_in(3);
    let run = Arc::new(Run::default());
    let mut builder = Port::builder()
        .concurrency(1 + random(3))
        .wake_policy(pick(&[WakePolicy::Eager, WakePolicy::BOUNDED]));
    if one_in(4) && !may_stick {
        builder = builder.strict();
    }
    let port = Arc::new(builder.build().expect("a port"));
    assert!(run.port.set(port).is_ok());
    let name = format!("socknotify-simulation-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(name).expect("a name");
    let listener = UnixListener::bind_addr(&address).expect("a listener");
    let mut listening = match one_in(2) {
        true => Listening::reporting(),
        false => Listening::arming(Interest::IN),
    };
    if one_in(3) {
        listening = listening.at_most(1 + random(3));
    }
    run.port()
        .listen(listener, listening, |stream, _| stream)
        .expect("it listens");
    if one_in(3) {
        simulation::set_faults(Faults {
            add: 10,
            // A listener that cannot be watched any more is closed.
            modify: 0,
            wait: 20,
            spawn: 2,
            timer: 4,
        });
    }
    let clients: Vec<_> = (0..1 + random(5))
        .map(|_| {
            let (run, address) = (Arc::clone(&run), address.clone());
            thread::spawn(move || run.call(&address, may_stick))
        })
        .collect();
    // Each that sticks takes one for ever.
    let threads = if may_stick { 64 } else { 1 + random(8) };
    let serving = Serving::default()
        .threads(threads)
        .idle(Duration::from_millis(1 + random(50) as u64));
    let server = {
        let run = Arc::clone(&run);
        thread::spawn(move || run.run(serving, may_stick))
    };
    let mut clients = Some(clients);
    if one_in(2) {
        thread::sleep(microseconds(30_000));
    } else if !may_stick {
        for client in clients.take().into_iter().flatten() {
            client.join().expect("no panic");
        }
    }
    run.drains.store(true, Relaxed);
    let begin = Instant::now();
    tell(format_args!("drain"));
    run.port().drain(Duration::from_secs(2));
    let left = server.join().expect("no panic");
    let time = begin.elapsed();
    assert!(time < Duration::from_secs(3), "{time:?}");
    assert!(left == 0 || run.sticks.load(Relaxed));
    simulation::set_faults(Faults::default());
    *run.released.0.lock().expect("no panic") = true;
    run.released.1.notify_all();
    for client in clients.into_iter().flatten() {
        client.join().expect("no panic");
    }
    thread::sleep(Duration::from_secs(1));
    let Snapshot {
        running, waiting, ..
    } = run.port().snapshot();
    assert_eq!((running, waiting), (Some(0), 0));
    assert_eq!(run.port().serving().threads, 0);
    drop(run.port().close());
    assert_eq!(run.port().connections(), 0);
}

#[test]
fn serving() {
    explore("serving", 2500, false, scenario);
}
