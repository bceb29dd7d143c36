//! `CompletionPort`: threads register, close, post and dequeue in any order.
//!
//! Each socket has a pair, whose owner sends bytes. Whoever is notified receives some, and enables again, removes, or closes and makes
//! another pair in its place. The run ends when all that was sent was received, and every packet dequeued: what is lost keeps it from
//! ending.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use simulated_std::simulation::{self, Faults, tell};
use simulated_std::thread::{self, JoinHandle};
use simulated_std::time::Instant;
use socknotify_simulation::{
    CompletionPort, Entry, Error, EventFilter, Events, Origin, RegisterError, Registration,
    RegistrationError, Snapshot, Trigger, WakePolicy,
};

use crate::{explore, microseconds, one_in, pick, random};

const ONESHOT: Trigger = Trigger::ONESHOT.union(Trigger::LEVEL);
const TRIGGERS: [Trigger; 3] = [ONESHOT, Trigger::LEVEL, Trigger::EDGE];
/// Keys of packets that are posted.
const POSTED: usize = 1 << 32;
/// Those of the second thread that posts.
const OTHERS: usize = 1 << 33;
const STOP: usize = usize::MAX;

/// A socket that is registered, under a key that no other one has.
#[derive(Debug)]
struct Socket {
    ours: Arc<UnixStream>,
    theirs: UnixStream,
    key: usize,
    trigger: Trigger,
    /// A thread has its notification, as one-shots have one at a time.
    is_held: bool,
    /// REMOVE was accepted, and was not notified.
    is_ending: bool,
    /// How many threads enable it, and how many disturb it: it is not removed meanwhile.
    users: usize,
    /// Others that were closed here and live on.
    duplicates: Vec<UnixStream>,
}

/// What only one thread at a time looks at, with no point of the simulation inside.
#[derive(Debug)]
struct World {
    sockets: Vec<Socket>,
    next_key: usize,
    sent: usize,
    received: usize,
    /// By who has posted them: whether they were dequeued.
    posted: [Vec<bool>; 2],
}

struct Run {
    port: CompletionPort,
    world: Mutex<World>,
}

fn pair() -> (Arc<UnixStream>, UnixStream) {
    let (ours, theirs) = UnixStream::pair().expect("a pair");
    ours.set_nonblocking(true).expect("a mode");
    (Arc::new(ours), theirs)
}

impl Run {
    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().expect("no panic")
    }

    /// Register a socket, or again; memory may be short, but not for ever.
    fn enable(&self, index: usize) {
        self.use_it(index, |socket, key, trigger| {
            loop {
                tell(format_args!("enable {key} {trigger:?}"));
                let enable = Registration::enable(socket, key, EventFilter::IN, trigger);
                match self.port.register(enable) {
                    Ok(()) => return,
                    Err(error) if self.is_closed(error) => return,
                    Err(error) => assert!(is_shortage(error), "{error:?}"),
                }
                thread::sleep(Duration::from_micros(100));
            }
        });
    }

    /// Whether this is what a port answers that is closed, or was closed during the call.
    fn is_closed(&self, error: RegisterError) -> bool {
        let errors = [
            RegisterError::Call(Error::Closed),
            RegisterError::Entry(RegistrationError::NotFound),
        ];
        errors.contains(&error) && self.port.register_all(&mut []).is_err()
    }

    /// Do something with a socket, unless it is being removed.
    fn use_it(&self, index: usize, call: impl FnOnce(&UnixStream, usize, Trigger)) {
        let mut world = self.world();
        let it = &mut world.sockets[index];
        if it.is_ending {
            return;
        }
        it.users += 1;
        let (socket, key, trigger) = (Arc::clone(&it.ours), it.key, it.trigger);
        drop(world);
        call(&socket, key, trigger);
        self.world().sockets[index].users -= 1;
    }

    /// Remove what is no one-shot.
    fn remove(&self, index: usize) {
        let mut world = self.world();
        let it = &mut world.sockets[index];
        if it.trigger == ONESHOT || it.is_ending || it.users > 0 {
            return;
        }
        it.is_ending = true;
        let socket = Arc::clone(&it.ours);
        drop(world);
        let is_silent = one_in(2);
        tell(format_args!("remove {index}, {is_silent}"));
        let removed = match is_silent {
            true => self.port.deregister(&*socket),
            false => self.port.register(Registration::remove(&*socket)),
        };
        match removed {
            Ok(()) if is_silent => {
                let mut world = self.world();
                self.begin_again(&mut world, index, false);
                drop(world);
                self.enable_new(index);
            }
            Ok(()) => {}
            Err(error) if self.is_closed(error) => {}
            Err(error) => panic!("{error:?}"),
        }
    }

    /// A notification has come. Returns the sockets to enable with the next call.
    fn on_notified(&self, entry: &Entry) -> Option<usize> {
        let events = entry.events();
        tell(format_args!("dequeued {entry:?}"));
        let mut world = self.world();
        let index = world
            .sockets
            .iter()
            .position(|it| it.key == entry.completion_key);
        let Some(index) = index else {
            // A duplicate lives on; or it was on the way to this thread, of what is no one-shot.
            let key = entry.completion_key;
            assert!(key < world.next_key, "a key of nobody's");
            assert!(!events.contains(Events::REMOVE), "REMOVE comes once");
            return None;
        };
        let socket = &mut world.sockets[index];
        if events.contains(Events::REMOVE) {
            assert!(socket.is_ending, "REMOVE comes once");
            assert_eq!(events, Events::REMOVE);
            self.begin_again(&mut world, index, false);
            drop(world);
            self.enable_new(index);
            return None;
        }
        if socket.is_ending {
            // It was on the way.
            assert_ne!(
                socket.trigger, ONESHOT,
                "what its holder has removed is silent"
            );
            return None;
        }
        if socket.trigger == ONESHOT {
            assert!(!socket.is_held, "two threads have a one-shot");
            socket.is_held = true;
        }
        let trigger = socket.trigger;
        let mut buffer = [0; 8];
        let most = match trigger {
            Trigger::EDGE => buffer.len(),
            _ => 1 + random(buffer.len()),
        };
        let mut received = 0;
        loop {
            match (&*socket.ours).read(&mut buffer[..most]) {
                Ok(length) => {
                    assert!(length > 0, "its peer is there");
                    received += length;
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock);
                    break;
                }
            }
            if trigger != Trigger::EDGE {
                break;
            }
        }
        world.received += received;
        drop(world);
        self.take_time();
        if trigger == ONESHOT {
            return self.end_or_go_on(index);
        }
        None
    }

    /// This thread has a one-shot's notification.
    fn end_or_go_on(&self, index: usize) -> Option<usize> {
        match random(8) {
            0 => {
                let mut world = self.world();
                let socket = Arc::clone(&world.sockets[index].ours);
                world.sockets[index].is_ending = true;
                drop(world);
                match self.port.register(Registration::remove(&*socket)) {
                    Ok(()) => return None,
                    Err(error) if self.is_closed(error) => return None,
                    Err(error) => panic!("{error:?}"),
                }
            }
            1 => {
                let mut world = self.world();
                self.begin_again(&mut world, index, true);
                drop(world);
                self.enable_new(index);
                return None;
            }
            _ => {}
        }
        self.world().sockets[index].is_held = false;
        if one_in(2) {
            return Some(index);
        }
        self.enable(index);
        None
    }

    /// It is registered anew, or another socket in its place, which may have its number. What was not received is lost.
    fn begin_again(&self, world: &mut World, index: usize, is_closed: bool) {
        let key = world.next_key;
        world.next_key += 1;
        if is_closed {
            let mut left = [0; 64];
            let socket = &mut world.sockets[index];
            while let Ok(length) = (&*socket.ours).read(&mut left) {
                world.received += length;
            }
            let socket = &mut world.sockets[index];
            if one_in(2) {
                let duplicate = socket.ours.try_clone().expect("a duplicate");
                socket.duplicates.push(duplicate);
            }
            // If no other thread refers to it, it is closed now, and its number is free.
            (socket.ours, socket.theirs) = pair();
        }
        let socket = &mut world.sockets[index];
        socket.key = key;
        socket.trigger = pick(&TRIGGERS);
        socket.is_held = false;
        socket.is_ending = false;
        // Until it is registered.
        socket.users += 1;
    }

    /// Register what begins again.
    fn enable_new(&self, index: usize) {
        self.enable(index);
        self.world().sockets[index].users -= 1;
    }

    fn take_time(&self) {
        match random(12) {
            0 => thread::sleep(microseconds(3000)),
            1 => simulation::compute(microseconds(300)),
            2 => self.port.blocking(|| thread::sleep(microseconds(1000))),
            3 => self.port.release(),
            _ => {}
        }
    }

    fn dequeue(&self) {
        let mut last = [0; 2];
        let mut again: Vec<usize> = Vec::new();
        loop {
            let sockets: Vec<_> = {
                let world = self.world();
                let of = |&index: &usize| {
                    let it = &world.sockets[index];
                    (Arc::clone(&it.ours), it.key, it.trigger)
                };
                again.iter().map(of).collect()
            };
            let mut batch: Vec<_> = sockets
                .iter()
                .map(|(socket, key, trigger)| {
                    Registration::enable(&**socket, *key, EventFilter::IN, *trigger)
                })
                .collect();
            let mut entries = [Entry::default(); 4];
            let room = 1 + random(4);
            // A call with an entry that fails waits all the same.
            let most = if again.is_empty() { None } else { Some(3000) };
            let timeout = pick(&[most, most, Some(0), Some(50), Some(3000)]);
            let timeout = timeout.map(Duration::from_micros);
            let begin = Instant::now();
            let found = self.port.process(&mut batch, &mut entries[..room], timeout);
            let count = match found {
                Ok(found) => found.len(),
                Err(Error::Closed) => return,
                Err(error) => {
                    assert_eq!(error, Error::TimedOut);
                    assert!(timeout.is_some_and(|timeout| begin.elapsed() >= timeout));
                    0
                }
            };
            let failed: Vec<_> = again
                .drain(..)
                .zip(&batch)
                .filter(|(_, entry)| entry.result().is_err_and(is_entry_shortage))
                .map(|(index, _)| index)
                .collect();
            drop(batch);
            drop(sockets);
            for index in failed {
                self.enable(index);
            }
            let mut stops = false;
            for entry in &entries[..count] {
                match entry.completion_key {
                    STOP => stops = true,
                    key if entry.origin() == Some(Origin::Posted) => {
                        let (by, number) = (key / OTHERS, key % POSTED);
                        assert!(number >= last[by], "packets come in order");
                        last[by] = number;
                        let mut world = self.world();
                        let was_dequeued = &mut world.posted[by][number];
                        assert!(!std::mem::replace(was_dequeued, true), "it comes once");
                        drop(world);
                        self.take_time();
                    }
                    _ => again.extend(self.on_notified(entry)),
                }
            }
            if stops {
                // For the next one.
                let _ = self.port.post(Entry::new(STOP, 0, 0));
                again.into_iter().for_each(|index| self.enable(index));
                return;
            }
        }
    }

    /// Send, post and interfere.
    fn disturb(&self, by: usize) {
        for _ in 0..10 + random(20) {
            match random(6) {
                0..3 => {
                    let mut world = self.world();
                    let index = random(world.sockets.len());
                    let length = 1 + random(8);
                    tell(format_args!("send {length} to {index}"));
                    let sent = (&world.sockets[index].theirs).write(&[0; 8][..length]);
                    world.sent += sent.expect("there is room");
                }
                3 => {
                    let mut world = self.world();
                    let number = world.posted[by].len();
                    let packet = Entry::new(POSTED + by * OTHERS + number, 0, 0);
                    world.posted[by].push(false);
                    drop(world);
                    let _ = self.port.post(packet);
                }
                4 => {
                    // What is not one-shot is anybody's.
                    let index = random(self.world().sockets.len());
                    if self.world().sockets[index].trigger == ONESHOT {
                        continue;
                    }
                    match random(3) {
                        0 => self.enable(index),
                        1 => {
                            self.use_it(index, |socket, _, _| {
                                let _ = self.port.register(Registration::disable(socket));
                            });
                            self.enable(index);
                        }
                        _ => self.remove(index),
                    }
                }
                _ => thread::sleep(microseconds(500)),
            }
        }
    }
}

impl Run {
    /// Close the port while all continue: they end, and the sockets are free.
    fn close(&self, threads: Vec<JoinHandle<()>>, disturbing: JoinHandle<()>) {
        simulation::set_faults(Faults::default());
        self.port.close();
        let next = CompletionPort::new().expect("a port");
        let sockets: Vec<_> = {
            let world = self.world();
            world
                .sockets
                .iter()
                .map(|it| Arc::clone(&it.ours))
                .collect()
        };
        for socket in &sockets {
            let enable = Registration::enable(&**socket, 1, EventFilter::IN, Trigger::LEVEL);
            assert_eq!(next.register(enable), Ok(()));
        }
        for thread in threads.into_iter().chain([disturbing]) {
            thread.join().expect("no panic");
        }
        let Snapshot {
            registrations,
            queued,
            running,
            waiting,
            ..
        } = self.port.snapshot();
        assert_eq!((registrations, queued), (Some(0), 0));
        assert_eq!((running, waiting), (Some(0), 0));
    }
}

fn is_entry_shortage(error: RegistrationError) -> bool {
    matches!(
        error,
        RegistrationError::OutOfMemory | RegistrationError::LimitReached
    )
}

fn is_shortage(error: RegisterError) -> bool {
    matches!(error, RegisterError::Entry(it) if is_entry_shortage(it))
}

fn scenario() {
    let mut builder = CompletionPort::builder()
        .concurrency(1 + random(3))
        .wake_policy(pick(&[WakePolicy::Eager, WakePolicy::BOUNDED]));
    if one_in(3) {
        builder = builder.strict();
    }
    let port = builder.build().expect("a port");
    let sockets = (0..1 + random(3)).map(|key| {
        let (ours, theirs) = pair();
        Socket {
            ours,
            theirs,
            key,
            trigger: pick(&TRIGGERS),
            is_held: false,
            is_ending: false,
            users: 0,
            duplicates: Vec::new(),
        }
    });
    let sockets: Vec<_> = sockets.collect();
    let count = sockets.len();
    let run = Arc::new(Run {
        port,
        world: Mutex::new(World {
            next_key: count,
            sockets,
            sent: 0,
            received: 0,
            posted: Default::default(),
        }),
    });
    if one_in(3) {
        simulation::set_faults(Faults {
            add: pick(&[2, 10]),
            // Linux needs no memory for that. Others may.
            modify: pick(&[3, 4]),
            wait: 20,
            spawn: 0,
            timer: 0,
        });
    }
    (0..count).for_each(|index| run.enable(index));
    let threads: Vec<_> = (0..1 + random(4))
        .map(|_| {
            let run = Arc::clone(&run);
            thread::spawn(move || run.dequeue())
        })
        .collect();
    let disturbing = {
        let run = Arc::clone(&run);
        thread::spawn(move || run.disturb(1))
    };
    run.disturb(0);
    if one_in(4) {
        return run.close(threads, disturbing);
    }
    disturbing.join().expect("no panic");
    let begin = Instant::now();
    loop {
        let world = run.world();
        let is_done = world.sent == world.received && world.posted.iter().flatten().all(|&it| it);
        let is_ending = world.sockets.iter().any(|it| it.is_ending);
        drop(world);
        if is_done && !is_ending {
            break;
        }
        if begin.elapsed() > Duration::from_secs(30) {
            panic!(
                "something is lost: {:#?}\n{:?}",
                run.world(),
                run.port.snapshot()
            );
        }
        thread::sleep(Duration::from_millis(1));
    }
    simulation::set_faults(Faults::default());
    run.port.post(Entry::new(STOP, 0, 0)).expect("it is open");
    for thread in threads {
        thread.join().expect("no panic");
    }
    let snapshot = run.port.snapshot();
    assert_eq!((snapshot.running, snapshot.waiting), (Some(0), 0));
}

#[test]
fn keys() {
    explore("keys", 10_000, false, scenario);
}
