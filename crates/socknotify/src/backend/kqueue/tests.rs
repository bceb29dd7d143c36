//! What only the backend can tell: its system calls, and what it does without `EVFILT_USER`.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};

use super::sys::{Event as Change, Filter, Queue, calls, flags};
use super::waker::Waker;
use super::{Kqueue, identity, systems};
use crate::engine::Engine;
use crate::os::Fd;
use crate::owned::{Event, Interest, Port};
use crate::{Entry, EventFilter, Events, Registration, Trigger, WakePolicy};

const ONCE: Trigger = Trigger::ONESHOT.union(Trigger::LEVEL);

fn engine() -> Arc<Engine<Kqueue>> {
    Arc::new(Engine::new(
        Kqueue::new().expect("a backend"),
        1,
        WakePolicy::Eager,
        true,
    ))
}

fn pairs(count: usize) -> Vec<(UnixStream, UnixStream)> {
    (0..count)
        .map(|_| UnixStream::pair().expect("a pair"))
        .collect()
}

fn enable(pairs: &[(UnixStream, UnixStream)], trigger: Trigger) -> Vec<Registration<'_>> {
    let each = pairs.iter().enumerate();
    each.map(|(key, (ours, _))| Registration::enable(ours, key, EventFilter::IN, trigger))
        .collect()
}

/// Enables all of them, and dequeues as many packets as there is room for. Returns how many, and how many
/// system calls that took.
fn process(
    engine: &Arc<Engine<Kqueue>>,
    batch: &mut [Registration<'_>],
    room: usize,
) -> (usize, usize) {
    let mut entries = vec![Entry::default(); room];
    let mut found = 0;
    let calls = calls::within(|| {
        let done = engine.process(batch, &mut entries, Some(Duration::from_secs(10)), None);
        found = done.expect("packets");
    });
    assert!(batch.iter().all(|it| it.result().is_ok()));
    (found, calls)
}

/// What an earlier entry of a batch asked for is not armed behind a later one's.
#[test]
fn the_last_of_two_entries_for_one_socket_is_what_is_reported() {
    let engine = engine();
    let pairs = pairs(1);
    let (ours, theirs) = &pairs[0];
    let mut first = [Registration::enable(ours, 0, EventFilter::NONE, ONCE)];
    let registered = engine.process(&mut first, &mut [], Some(Duration::ZERO), None);
    assert_eq!(registered, Ok(0));
    (&mut &*theirs).write_all(b"x").expect("written");
    let edge = Trigger::EDGE | Trigger::INITIAL;
    let mut batch = [ONCE, edge].map(|it| Registration::enable(ours, 0, EventFilter::IN, it));
    let mut entries = [Entry::default(); 2];
    let found = engine.process(&mut batch, &mut entries, Some(Duration::ZERO), None);
    assert_eq!(found, Ok(1));
    assert_eq!(entries[0].events(), Events::IN);
}

#[test]
fn to_arm_a_batch_and_take_what_is_ready_is_one_system_call() {
    const SOCKETS: usize = 64;
    let engine = engine();
    let pairs = pairs(SOCKETS);
    let write = || {
        for (_, theirs) in &pairs {
            (&mut &*theirs).write_all(b"x").expect("written");
        }
    };
    let read = || {
        for (ours, _) in &pairs {
            (&mut &*ours).read_exact(&mut [0]).expect("read");
        }
    };
    write();
    let mut batch = enable(&pairs, ONCE);
    assert_eq!(process(&engine, &mut batch, SOCKETS).0, SOCKETS);
    for _ in 0..3 {
        read();
        write();
        let (found, calls) = process(&engine, &mut batch, SOCKETS);
        assert_eq!(found, SOCKETS);
        assert!(calls == 1 || systems::changes_need_add(), "{calls}");
    }
}

#[test]
fn so_it_is_for_connections_that_the_port_owns() {
    const SOCKETS: usize = 64;
    let port = Port::<UnixStream>::new().expect("a port");
    let mut worker = port.worker(SOCKETS);
    let mut peers = Vec::new();
    for (ours, theirs) in pairs(SOCKETS) {
        peers.push(theirs);
        worker.arm(port.adopt(ours).expect("adopted"), Interest::IN);
    }
    for round in 0..4 {
        for mut peer in &peers {
            peer.write_all(b"x").expect("written");
        }
        let calls = calls::within(|| {
            worker.process(None).expect("events");
        });
        // At first they are registered one by one.
        assert!(
            calls == 1 || round == 0 || systems::changes_need_add(),
            "{calls}"
        );
        for _ in 0..SOCKETS {
            let Some(Event::Ready(mut connection, _)) = worker.take() else {
                panic!("something is missing");
            };
            connection.read_exact(&mut [0]).expect("read");
            worker.arm(connection, Interest::IN);
        }
    }
}

#[test]
fn a_level_that_is_dequeued_again_is_one_system_call() {
    let engine = engine();
    let pairs = pairs(1);
    (&mut &pairs[0].1).write_all(b"x").expect("written");
    process(&engine, &mut enable(&pairs, Trigger::LEVEL), 1);
    for _ in 0..3 {
        let (found, calls) = process(&engine, &mut [], 1);
        assert_eq!(found, 1);
        assert!(calls == 1 || systems::changes_need_add(), "{calls}");
    }
}

#[test]
fn a_batch_with_a_socket_that_was_closed_is_armed_all_the_same() {
    let engine = engine();
    let mut pairs = pairs(3);
    process(&engine, &mut enable(&pairs, ONCE), 0);
    let (new, theirs) = UnixStream::pair().expect("a pair");
    // SAFETY: the number is open, and stays this socket's.
    unsafe {
        use std::os::fd::AsRawFd;
        libc::dup2(new.as_raw_fd(), pairs[1].0.as_raw_fd());
    }
    pairs[1].1 = theirs;
    for (_, theirs) in &pairs {
        (&mut &*theirs).write_all(b"x").expect("written");
    }
    let mut batch = enable(&pairs, ONCE);
    let mut found = process(&engine, &mut batch, 3).0;
    while found < 3 {
        found += process(&engine, &mut [], 3).0;
    }
}

#[test]
fn with_room_for_one_a_packet_shows_both_conditions() {
    for trigger in [ONCE, Trigger::LEVEL] {
        let engine = engine();
        let pairs = pairs(1);
        (&mut &pairs[0].1).write_all(b"x").expect("written");
        let filter = EventFilter::IN | EventFilter::OUT;
        let mut entry = [Registration::enable(&pairs[0].0, 0, filter, trigger)];
        let mut found = [Entry::default()];
        for _ in 0..3 {
            let done = engine.process(&mut entry, &mut found, Some(Duration::from_secs(10)), None);
            assert_eq!(done, Ok(1));
            assert_eq!(found[0].events(), Events::IN | Events::OUT);
        }
    }
}

#[test]
fn a_registration_changes_between_once_and_edge() {
    let engine = engine();
    let pairs = pairs(1);
    let mut found = [Entry::default(); 4];
    let mut process = |entries: &mut [Registration<'_>]| {
        engine.process(entries, &mut found, Some(Duration::ZERO), None)
    };
    let mut theirs = &pairs[0].1;
    let mut ours = &pairs[0].0;
    for _ in 0..3 {
        assert!(process(&mut enable(&pairs, Trigger::EDGE)).is_err());
        for _ in 0..2 {
            theirs.write_all(b"x").expect("written");
            // It stays armed.
            assert_eq!(process(&mut []), Ok(1));
        }
        ours.read_exact(&mut [0; 2]).expect("read");
        assert!(process(&mut enable(&pairs, ONCE)).is_err());
        theirs.write_all(b"x").expect("written");
        assert_eq!(process(&mut []), Ok(1));
        theirs.write_all(b"x").expect("written");
        assert!(process(&mut []).is_err());
        assert_eq!(process(&mut enable(&pairs, ONCE)), Ok(1));
        ours.read_exact(&mut [0; 2]).expect("read");
    }
}

/// A thread arms a registration in the call in which it waits, and another thread has armed it anew before that. What that
/// wants is not lost if a third one takes the event.
#[test]
fn c3_what_a_late_change_has_brought_back_is_armed_by_whoever_sees_it() {
    for trigger in [ONCE, Trigger::EDGE] {
        let engine = engine();
        let pairs = pairs(1);
        let (ours, theirs) = &pairs[0];
        let mut found = [Entry::default(); 2];
        let mut process = |entries: &mut [Registration<'_>]| {
            engine.process(entries, &mut found, Some(Duration::ZERO), None)
        };
        assert!(process(&mut enable(&pairs, trigger)).is_err());
        // The change of the first thread comes late.
        let (fd, before) = (ours.as_raw_fd() as u32, 0);
        let late = [Change::new(fd, Filter::Read, flags::ENABLE, before)];
        engine.backend().queue.change(&late).expect("it is there");
        (&mut &*theirs).write_all(b"x").expect("written");
        // It comes with the generation from before, and then with its own.
        let seen = [(); 2].map(|()| process(&mut []));
        assert!(seen.contains(&Ok(1)), "{seen:?}");
    }
}

/// One filter reports by such a change, and the other one what is wanted. Both conditions hold, and that packet shows them.
#[test]
fn beside_a_late_change_a_packet_shows_both_conditions() {
    for filter in [Filter::Read, Filter::Write] {
        let engine = engine();
        let pairs = pairs(1);
        let (ours, theirs) = &pairs[0];
        (&mut &*theirs).write_all(b"x").expect("written");
        let both = EventFilter::IN | EventFilter::OUT;
        let mut entry = [Registration::enable(ours, 0, both, ONCE)];
        let armed = engine.process(&mut entry, &mut [], Some(Duration::ZERO), None);
        assert_eq!(armed, Ok(0));
        let (fd, before) = (ours.as_raw_fd() as u32, 0);
        let late = [Change::new(fd, filter, flags::ENABLE, before)];
        engine.backend().queue.change(&late).expect("it is there");
        let mut found = [Entry::default(); 2];
        let done = engine.process(&mut [], &mut found, Some(Duration::ZERO), None);
        assert_eq!(done, Ok(1));
        assert_eq!(found[0].events(), Events::IN | Events::OUT, "{filter:?}");
    }
}

/// Filters that are added before it listens keep silent on some systems, whoever has it listen meanwhile.
#[test]
fn a_socket_that_listens_as_it_is_registered_is_reported() {
    for round in 0..600 {
        let engine = engine();
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        let address: SocketAddr = ([127, 0, 0, 1], 0).into();
        socket.bind(&address.into()).expect("a free port");
        let address = socket.local_addr().expect("it is bound");
        let begin = Barrier::new(2);
        thread::scope(|scope| {
            scope.spawn(|| {
                begin.wait();
                let since = Instant::now();
                while since.elapsed() < Duration::from_nanos(200 * (round % 300)) {}
                socket.listen(8).expect("it is bound");
            });
            let mut entry = [Registration::enable(&socket, 0, EventFilter::IN, ONCE)];
            begin.wait();
            let registered = engine.process(&mut entry, &mut [], Some(Duration::ZERO), None);
            assert_eq!(registered, Ok(0));
        });
        let client = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        client.connect(&address).expect("it listens");
        assert_eq!(process(&engine, &mut [], 1).0, 1);
    }
}

#[test]
fn after_close_every_wait_ends_at_once() {
    for waker in [Waker::new, Waker::pair] {
        let queue = Queue::new().expect("a queue");
        let waker = waker(&queue).expect("a waker");
        let wait = || {
            let mut events = Vec::new();
            queue.wait(&[], &mut events, 1, None).expect("events");
            assert!(events.iter().all(|event| waker.is_woken(&queue, event)));
            events.len()
        };
        std::thread::scope(|scope| {
            let waiting = [(); 3].map(|()| scope.spawn(wait));
            // That needs no memory.
            #[cfg(kqueue_stand_in)]
            kqueue_stand_in::refuse(kqueue_stand_in::EVFILT_USER, 1);
            waker.close(&queue);
            for waiting in waiting {
                assert_eq!(waiting.join().expect("no panic"), 1);
            }
        });
        assert_eq!((wait(), wait()), (1, 1));
    }
}

#[test]
fn a_pair_of_sockets_wakes_as_well() {
    let queue = Queue::new().expect("a queue");
    let waker = Waker::pair(&queue).expect("a pair");
    let mut events = Vec::new();
    for _ in 0..3 {
        // More than they can hold.
        for _ in 0..100_000 {
            waker.wake(&queue);
        }
        queue.wait(&[], &mut events, 4, None).expect("events");
        assert!(events.iter().any(|event| waker.is_woken(&queue, event)));
        let none = Some(Duration::ZERO);
        queue.wait(&[], &mut events, 4, none).expect("events");
        assert!(events.is_empty());
    }
}

#[test]
fn a_number_is_told_from_the_next_socket_that_has_it() {
    const STREAM: Option<identity::Kind> = Some(identity::Kind::Stream);
    let (first, _peer) = UnixStream::pair().expect("a pair");
    use std::os::fd::AsRawFd;
    let fd = Fd(first.as_raw_fd() as u32);
    let before = identity::identify(fd, STREAM).expect("an identity");
    assert_eq!(identity::identify(fd, STREAM), Ok(before));
    let (second, _other) = UnixStream::pair().expect("a pair");
    // SAFETY: the number is open, and stays this socket's.
    unsafe { libc::dup2(second.as_raw_fd(), first.as_raw_fd()) };
    let after = identity::identify(fd, STREAM).expect("an identity");
    assert_ne!(before, after);
    assert!(identity::is_still(fd, after) && !identity::is_still(fd, before));
    assert_eq!(Some(identity::kind(fd)), STREAM);
}

/// A system without memory. The real one cannot be made to have none.
#[cfg(kqueue_stand_in)]
mod refused {
    use kqueue_stand_in::{EVFILT_READ, EVFILT_TIMER, refuse};

    use super::*;

    const LEVEL: Trigger = Trigger::PERSISTENT.union(Trigger::LEVEL);
    const SOON: Option<Duration> = Some(Duration::from_millis(50));
    const LATE: Option<Duration> = Some(Duration::from_secs(10));

    fn process(
        engine: &Arc<Engine<Kqueue>>,
        batch: &mut [Registration<'_>],
        timeout: Option<Duration>,
    ) -> Option<Events> {
        let mut entries = [Entry::default()];
        let done = engine.process(batch, &mut entries, timeout, None);
        assert!(batch.iter().all(|it| it.result().is_ok()));
        (done == Ok(1)).then(|| entries[0].events())
    }

    #[test]
    fn a_level_that_could_not_be_armed_is_armed_later() {
        let engine = engine();
        let pairs = pairs(1);
        let (ours, theirs) = &pairs[0];
        (&mut &*theirs).write_all(b"x").expect("written");
        let enabled = process(&engine, &mut enable(&pairs, LEVEL), LATE);
        assert_eq!(enabled, Some(Events::IN));
        (&mut &*ours).read_exact(&mut [0]).expect("read");
        refuse(EVFILT_READ, 3);
        assert_eq!(process(&engine, &mut [], SOON), None);
        // By the other rules a filter is enabled again, and not added.
        assert!(refuse(EVFILT_READ, 0) < 3 || !systems::changes_need_add());
        (&mut &*theirs).write_all(b"x").expect("written");
        assert_eq!(process(&engine, &mut [], LATE), Some(Events::IN));
        let mut remove = [Registration::remove(ours)];
        assert_eq!(process(&engine, &mut remove, LATE), Some(Events::REMOVE));
    }

    #[test]
    fn what_could_not_be_changed_is_registered_still() {
        let engine = engine();
        let pairs = pairs(2);
        let edge = Trigger::PERSISTENT | Trigger::EDGE;
        for ((ours, theirs), is_closed) in pairs.iter().zip([false, true]) {
            let change = |key, trigger| Registration::enable(ours, key, EventFilter::IN, trigger);
            let key = usize::from(is_closed);
            assert_eq!(process(&engine, &mut [change(key, edge)], SOON), None);
            // As each arming of it, this deletes the filters, and cannot add them.
            refuse(EVFILT_READ, 4);
            let mut entries = [Entry::default()];
            let mut again = [change(key, LEVEL)];
            let _ = engine.process(&mut again, &mut entries, SOON, None);
            assert!(refuse(EVFILT_READ, 0) < 4);
            assert_eq!(
                again[0].result(),
                Err(crate::RegistrationError::OutOfMemory)
            );
            if !is_closed {
                (&mut &*theirs).write_all(b"x").expect("written");
                let enabled = process(&engine, &mut [change(key, LEVEL)], LATE);
                assert_eq!(enabled, Some(Events::IN));
            } else {
                // What has the number next is not what was lost.
                let (other, _peer) = UnixStream::pair().expect("a pair");
                // SAFETY: the number is open, and stays this socket's.
                unsafe { libc::dup2(other.as_raw_fd(), ours.as_raw_fd()) };
                assert_eq!(process(&engine, &mut [change(5, LEVEL)], SOON), None);
            }
            let mut remove = [Registration::remove(ours)];
            assert_eq!(process(&engine, &mut remove, LATE), Some(Events::REMOVE));
        }
    }

    #[test]
    fn a_deadline_comes_though_a_timer_was_refused() {
        let port = Port::<UnixStream>::new().expect("a port");
        let mut worker = port.worker(4);
        let mut pairs = pairs(2).into_iter();
        let mut arm = |time| {
            let (ours, theirs) = pairs.next().expect("a pair");
            let wait = Interest::IN.within(Duration::from_millis(time));
            worker.arm(port.adopt(ours).expect("adopted"), wait);
            assert_eq!(worker.process(Some(Duration::from_millis(1))), Ok(0));
            theirs
        };
        let _first = arm(3_600_000);
        refuse(EVFILT_TIMER, 3);
        let _second = arm(50);
        let timed_out = |worker: &mut crate::owned::Worker<UnixStream>| {
            worker
                .process(Some(Duration::from_secs(10)))
                .expect("events");
            matches!(worker.take(), Some(Event::TimedOut(_)))
        };
        assert!(timed_out(&mut worker));
        assert_eq!(refuse(EVFILT_TIMER, 0), 0);
    }
}
