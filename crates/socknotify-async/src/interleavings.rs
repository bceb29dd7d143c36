//! Every interleaving of a few threads: that put in and run tasks; and that wait for a socket while it is reported.
//!
//! ```text
//! RUSTFLAGS="--cfg interleavings" cargo test --release -p socknotify-async --lib interleavings
//! ```
//!
//! A wake-up that is lost shows as a deadlock, which the checker reports.

use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use loom::sync::{Condvar, Mutex};
use loom::thread;

use crate::queue::{Call, Queue};
use crate::source::{Direction, Source, Sources};

use socknotify::Events;

fn explore(run: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(run);
}

/// A queue with a port that carries packets, and nothing else.
struct Model {
    queue: Queue<usize>,
    packets: Mutex<Vec<Call>>,
    sent: Condvar,
    /// Each task, and how often it has run.
    runs: [AtomicUsize; 3],
}

impl Model {
    fn new(lists: usize) -> Arc<Self> {
        Arc::new(Model {
            queue: Queue::new(lists),
            packets: Mutex::new(Vec::new()),
            sent: Condvar::new(),
            runs: [(); 3].map(|()| AtomicUsize::new(0)),
        })
    }

    fn call(&self, call: Call) {
        if self.queue.call(call) {
            self.packets.lock().unwrap().push(call);
            self.sent.notify_one();
        }
    }

    /// As a thread that is none of the runtime's; or into a list, as one of them that is about to block.
    fn put_and_leave(&self, list: Option<usize>, task: usize) {
        self.queue.put(list, task);
        self.call(Call::Now);
    }

    /// Run what there is. The task 0 puts in another one, and blocks until that has run.
    fn run_tasks(&self, list: usize, done: &(Mutex<usize>, Condvar)) {
        while let Some(task) = self.queue.take(list) {
            if !self.queue.is_empty() {
                self.call(Call::Soon);
            }
            if task == 0 {
                self.queue.put(Some(list), 1);
                self.call(Call::Soon);
                while self.runs[1].load(Ordering::SeqCst) == 0 {
                    thread::yield_now();
                }
            }
            self.runs[task].fetch_add(1, Ordering::SeqCst);
            *done.0.lock().unwrap() += 1;
            done.1.notify_one();
        }
    }

    /// One of the runtime's threads, which takes so many packets.
    fn serve(&self, list: usize, done: &(Mutex<usize>, Condvar), tasks: usize) {
        loop {
            let mut packets = self.packets.lock().unwrap();
            let call = loop {
                if *done.0.lock().unwrap() == tasks {
                    return;
                }
                match packets.pop() {
                    Some(call) => break call,
                    None => packets = self.sent.wait(packets).unwrap(),
                }
            };
            drop(packets);
            self.queue.answer(call);
            self.run_tasks(list, done);
            if *done.0.lock().unwrap() == tasks {
                // The other one need not wait.
                drop(self.packets.lock().unwrap());
                self.sent.notify_all();
            }
        }
    }
}

#[test]
fn interleavings_what_is_put_in_and_left_runs_once() {
    for second in [None, Some(1)] {
        explore(move || {
            let model = Model::new(2);
            let done = Arc::new((Mutex::new(0), Condvar::new()));
            let others = [(None, 1), (second, 2)].map(|(list, task)| {
                let model = Arc::clone(&model);
                thread::spawn(move || model.put_and_leave(list, task))
            });
            model.serve(0, &done, 2);
            others.into_iter().for_each(|it| it.join().unwrap());
            let runs = model.runs.each_ref().map(|it| it.load(Ordering::SeqCst));
            assert_eq!(runs, [0, 1, 1]);
            assert!(model.queue.is_empty());
        });
    }
}

#[test]
fn interleavings_what_a_task_puts_in_before_it_blocks_runs_elsewhere() {
    explore(|| {
        let model = Model::new(1);
        let done = Arc::new((Mutex::new(0), Condvar::new()));
        model.put_and_leave(None, 0);
        let other = {
            let (model, done) = (Arc::clone(&model), Arc::clone(&done));
            thread::spawn(move || model.serve(0, &done, 2))
        };
        model.serve(0, &done, 2);
        other.join().unwrap();
        let runs = model.runs.each_ref().map(|it| it.load(Ordering::SeqCst));
        assert_eq!(runs, [1, 1, 0]);
    });
}

/// A runtime that ends, whose other threads have ended, or block.
struct Ending {
    queue: Queue<usize>,
    count: Mutex<usize>,
    is_closed: AtomicBool,
    is_awaited: AtomicBool,
    lock: Mutex<()>,
    ended: Condvar,
}

impl Ending {
    fn spawn(&self, task: usize) {
        *self.count.lock().unwrap() += 1;
        if self.is_closed.load(Ordering::SeqCst) {
            return self.task_ends();
        }
        self.queue.put(None, task);
        if self.queue.call(Call::Now) {
            // There is no port.
            self.queue.answer(Call::Now);
        }
        if self.is_closed.load(Ordering::SeqCst) {
            self.on_ended();
        }
    }

    fn task_ends(&self) {
        let mut count = self.count.lock().unwrap();
        *count -= 1;
        let is_almost_last = *count <= 1;
        drop(count);
        if is_almost_last {
            self.on_ended();
        }
    }

    fn on_ended(&self) {
        if self.is_awaited.load(Ordering::SeqCst) {
            drop(self.lock.lock().unwrap());
            self.ended.notify_all();
        }
    }

    fn end(&self) {
        self.is_closed.swap(true, Ordering::SeqCst);
        if self.queue.call(Call::Now) {
            self.queue.answer(Call::Now);
        }
        loop {
            while self.queue.take(0).is_some() {
                self.task_ends();
            }
            let is_last = || *self.count.lock().unwrap() == 0;
            if is_last() {
                break;
            }
            self.is_awaited.store(true, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            let mut guard = self.lock.lock().unwrap();
            while !is_last() && self.queue.is_surely_empty() {
                guard = self.ended.wait(guard).unwrap();
            }
        }
    }
}

#[test]
fn interleavings_what_is_spawned_as_a_runtime_ends_is_dropped() {
    for spawns in [1, 2] {
        explore(move || {
            let ending = Arc::new(Ending {
                queue: Queue::new(1),
                count: Mutex::new(0),
                is_closed: AtomicBool::new(false),
                is_awaited: AtomicBool::new(false),
                lock: Mutex::new(()),
                ended: Condvar::new(),
            });
            let others: Vec<_> = (0..spawns)
                .map(|task| {
                    let ending = Arc::clone(&ending);
                    thread::spawn(move || ending.spawn(task))
                })
                .collect();
            ending.end();
            others.into_iter().for_each(|it| it.join().unwrap());
            assert!(ending.queue.is_empty());
            assert_eq!(*ending.count.lock().unwrap(), 0);
        });
    }
}

/// Counts its wake-ups.
struct Bell(Mutex<usize>, Condvar);

impl Bell {
    fn new() -> Arc<Self> {
        Arc::new(Bell(Mutex::new(0), Condvar::new()))
    }

    /// Wait until it was woken more often than this.
    fn wait(&self, seen: &mut usize) {
        let mut count = self.0.lock().unwrap();
        while *count == *seen {
            count = self.1.wait(count).unwrap();
        }
        *seen = *count;
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        *self.0.lock().unwrap() += 1;
        self.1.notify_one();
    }
}

/// As a thread that dequeues does it: the waker is no task's of a runtime.
fn report(source: &Source) {
    let mut foreign = Vec::new();
    source.report(Events::IN, &mut foreign);
    foreign.into_iter().for_each(Waker::wake);
}

/// A socket that gets messages: each is put into the socket, and then reported, once that is registered. Beside it, a report may
/// come that says nothing, as of a socket that was closed.
#[test]
fn interleavings_a_report_is_not_lost_to_who_waits_for_it() {
    const MESSAGES: usize = 2;
    const REGISTERED: usize = 1 << 8;
    for (beside, is_disturbed) in [(false, false), (false, true), (true, false), (true, true)] {
        explore(move || {
            let source = Sources::default().add();
            let socket = Arc::new(AtomicUsize::new(0));
            let sends = {
                let (source, socket) = (Arc::clone(&source), Arc::clone(&socket));
                thread::spawn(move || {
                    for _ in 0..MESSAGES {
                        // An edge only where there was nothing.
                        if socket.fetch_add(1, Ordering::SeqCst) == REGISTERED {
                            report(&source);
                        }
                    }
                })
            };
            let reports = {
                let source = Arc::clone(&source);
                is_disturbed.then(|| thread::spawn(move || report(&source)))
            };
            let bell = Bell::new();
            let waker = Waker::from(Arc::clone(&bell));
            let cx = Context::from_waker(&waker);
            let (mut received, mut seen, mut number) = (0, 0, 0);
            while received < MESSAGES {
                let poll = match beside {
                    true => source.poll_beside(&cx, Direction::Read, &mut number),
                    false => source.poll(&cx, Direction::Read),
                };
                let Poll::Ready(ready) = poll else {
                    if source.is_registered(Direction::Read) {
                        bell.wait(&mut seen);
                        continue;
                    }
                    let mut holds = false;
                    let registered = source.register(Direction::Read, true, || {
                        holds = socket.fetch_or(REGISTERED, Ordering::SeqCst) > 0;
                        Ok::<_, ()>(())
                    });
                    registered.unwrap();
                    if holds {
                        report(&source);
                    }
                    continue;
                };
                // A receive takes all there is, or would block.
                let count = socket.fetch_and(REGISTERED, Ordering::SeqCst) % REGISTERED;
                received += count;
                if count > 0 {
                    source.drained(Direction::Read, ready.unwrap());
                    continue;
                }
                source.clear(Direction::Read, ready.unwrap());
            }
            sends.join().unwrap();
            reports.into_iter().for_each(|it| it.join().unwrap());
        });
    }
}

/// The same where the system does not report what holds when it is registered, which a task that writes has done at any moment.
#[test]
fn interleavings_what_came_before_another_task_registered_is_found() {
    const REGISTERED: usize = 1 << 8;
    explore(|| {
        let source = Sources::default().add();
        let socket = Arc::new(AtomicUsize::new(0));
        let register = |source: &Source, socket: &AtomicUsize, direction| {
            let registered = source.register(direction, false, || {
                socket.fetch_or(REGISTERED, Ordering::SeqCst);
                Ok::<_, ()>(())
            });
            registered.unwrap();
        };
        let writes = {
            let (source, socket) = (Arc::clone(&source), Arc::clone(&socket));
            thread::spawn(move || register(&source, &socket, Direction::Write))
        };
        let sends = {
            let (source, socket) = (Arc::clone(&source), Arc::clone(&socket));
            thread::spawn(move || {
                if socket.fetch_add(1, Ordering::SeqCst) == REGISTERED {
                    report(&source);
                }
            })
        };
        let bell = Bell::new();
        let waker = Waker::from(Arc::clone(&bell));
        let (cx, mut seen) = (Context::from_waker(&waker), 0);
        loop {
            let Poll::Ready(ready) = source.poll(&cx, Direction::Read) else {
                bell.wait(&mut seen);
                continue;
            };
            if socket.load(Ordering::SeqCst) % REGISTERED > 0 {
                break;
            }
            if !source.is_registered(Direction::Read) {
                register(&source, &socket, Direction::Read);
            }
            source.clear(Direction::Read, ready.unwrap());
        }
        writes.join().unwrap();
        sends.join().unwrap();
    });
}
