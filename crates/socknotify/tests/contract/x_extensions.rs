//! X. Extensions: what the published interface does not have. Where the registrations are the kernel's,
//! they are refused.

use std::io;
use std::thread;
use std::time::Duration;

use socknotify::{
    Backend, CompletionPort, Entry, Error, EventFilter, Events, Origin, RegisterError,
    Registration, RegistrationError, Trigger,
};

use crate::support::trigger::{EDGE, EVERY, LEVEL, ONCE};
use crate::support::{
    PATIENCE, Pair, PortExt, counted, drain_port, expect, expect_nothing, port, port_with,
    wait_for_waiting,
};
#[cfg(unix)]
use crate::support::{PollFlags, collect, is_ready, take_number};

const KEY: usize = 81;
const OTHER_KEY: usize = 82;
const INITIAL: Trigger = EDGE.union(Trigger::INITIAL);

fn enable(pair: &Pair, filter: EventFilter, trigger: Trigger) -> Registration<'_> {
    Registration::enable(&pair.ours, KEY, filter, trigger)
}

#[for_every_backend(with_permits)]
fn x1_a_deregistered_socket_gives_no_notification(port: CompletionPort) -> io::Result<()> {
    for trigger in EVERY {
        let pair = Pair::unix()?;
        port.register(enable(&pair, EventFilter::IN, trigger))?;
        port.deregister(&pair.ours)?;
        pair.send()?;
        expect_nothing(&port);
        assert_eq!(counted(port.snapshot().registrations), 0);
    }
    Ok(())
}

#[for_every_backend(with_permits)]
fn x1_what_was_queued_is_withdrawn(port: CompletionPort) -> io::Result<()> {
    for trigger in EVERY {
        let pair = Pair::unix()?;
        port.register(enable(&pair, EventFilter::IN, trigger))?;
        pair.send()?;
        // A posted packet brings what is ready into the queue before it.
        port.post(Entry::new(1, 2, 3))?;
        port.deregister(&pair.ours)?;
        assert_eq!(port.dequeue_one(Some(PATIENCE))?, Entry::new(1, 2, 3));
        expect_nothing(&port);
    }
    Ok(())
}

#[for_every_backend(with_permits)]
fn x1_a_deregistered_socket_can_be_registered_with_another_key(
    port: CompletionPort,
) -> io::Result<()> {
    let pair = Pair::unix()?;
    pair.send()?;
    port.register(enable(&pair, EventFilter::IN, LEVEL))?;
    expect(&port, &[(KEY, Events::IN)]);
    port.deregister(&pair.ours)?;
    port.enable(&pair.ours, OTHER_KEY, EventFilter::IN, ONCE)?;
    expect(&port, &[(OTHER_KEY, Events::IN)]);
    expect_nothing(&port);
    Ok(())
}

#[for_every_backend(with_permits)]
fn x1_a_deregistered_socket_is_free_for_another_port(backend: Backend) -> io::Result<()> {
    let [port, other] = [port(backend)?, port(backend)?];
    let pair = Pair::unix()?;
    port.register(enable(&pair, EventFilter::IN, LEVEL))?;
    port.deregister(&pair.ours)?;
    other.register(enable(&pair, EventFilter::IN, ONCE))?;
    pair.send()?;
    expect(&other, &[(KEY, Events::IN)]);
    expect_nothing(&port);
    Ok(())
}

#[for_every_backend(with_permits)]
fn x1_what_is_not_registered_is_not_found(port: CompletionPort) -> io::Result<()> {
    let pair = Pair::unix()?;
    let not_found = Err(RegistrationError::NotFound.into());
    assert_eq!(port.deregister(&pair.ours), not_found);
    port.register(enable(&pair, EventFilter::IN, LEVEL))?;
    port.deregister(&pair.ours)?;
    assert_eq!(port.deregister(&pair.ours), not_found);
    Ok(())
}

#[for_every_backend(with_permits)]
fn x1_a_socket_that_is_being_removed_is_not_found(port: CompletionPort) -> io::Result<()> {
    let pair = Pair::unix()?;
    port.register(enable(&pair, EventFilter::IN, LEVEL))?;
    port.register(Registration::remove(&pair.ours))?;
    assert_eq!(
        port.deregister(&pair.ours),
        Err(RegistrationError::NotFound.into())
    );
    expect(&port, &[(KEY, Events::REMOVE)]);
    Ok(())
}

#[for_every_backend(with_permits)]
fn x1_entries_apply_in_order(port: CompletionPort) -> io::Result<()> {
    let pair = Pair::unix()?;
    pair.send()?;
    let mut batch = [
        enable(&pair, EventFilter::IN, ONCE),
        Registration::deregister(&pair.ours),
        Registration::enable(&pair.ours, OTHER_KEY, EventFilter::IN, ONCE),
    ];
    port.process(&mut batch, &mut [], Some(Duration::ZERO))?;
    for entry in &batch {
        entry.result()?;
    }
    expect(&port, &[(OTHER_KEY, Events::IN)]);
    Ok(())
}

#[for_every_backend(with_permits)]
fn x2_what_holds_at_enable_is_notified(port: CompletionPort) -> io::Result<()> {
    let pair = Pair::unix()?;
    pair.send()?;
    let filter = EventFilter::IN | EventFilter::OUT;
    port.register(enable(&pair, filter, INITIAL))?;
    // With room for one, the conditions may come one by one.
    let mut entries = [Entry::default(); 2];
    let found = port.dequeue(&mut entries, Some(PATIENCE))?;
    let found: Vec<_> = found
        .iter()
        .map(|it| (it.completion_key, it.events()))
        .collect();
    assert_eq!(found, [(KEY, Events::IN | Events::OUT)]);
    expect_nothing(&port);
    Ok(())
}

#[for_every_backend(with_permits)]
fn x2_what_does_not_hold_is_notified_when_it_begins_to(port: CompletionPort) -> io::Result<()> {
    let pair = Pair::unix()?;
    port.register(enable(&pair, EventFilter::IN, INITIAL))?;
    expect_nothing(&port);
    pair.send()?;
    expect(&port, &[(KEY, Events::IN)]);
    expect_nothing(&port);
    Ok(())
}

#[for_every_backend(with_permits)]
fn x2_enable_again_notifies_what_holds_again(port: CompletionPort) -> io::Result<()> {
    let pair = Pair::unix()?;
    pair.send()?;
    for _ in 0..3 {
        port.register(enable(&pair, EventFilter::IN, INITIAL))?;
        expect(&port, &[(KEY, Events::IN)]);
        expect_nothing(&port);
    }
    // Without it, what holds may give one (C5).
    port.register(Registration::disable(&pair.ours))?;
    port.register(enable(&pair, EventFilter::IN, EDGE))?;
    let found = drain_port(&port);
    assert!(
        found.is_empty() || found == [(KEY, Events::IN)],
        "{found:?}"
    );
    port.register(enable(&pair, EventFilter::IN, INITIAL))?;
    expect(&port, &[(KEY, Events::IN)]);
    Ok(())
}

#[for_every_backend(with_permits)]
fn x2_edges_come_as_without_it(port: CompletionPort) -> io::Result<()> {
    let pair = Pair::unix()?;
    port.register(enable(&pair, EventFilter::IN, INITIAL))?;
    for _ in 0..5 {
        pair.send()?;
        expect(&port, &[(KEY, Events::IN)]);
        pair.drain()?;
        expect_nothing(&port);
    }
    Ok(())
}

#[for_every_backend(with_permits)]
fn x2_it_goes_with_edges_only(port: CompletionPort) -> io::Result<()> {
    let pair = Pair::unix()?;
    for trigger in [LEVEL, ONCE, Trigger::empty()] {
        let entry = enable(&pair, EventFilter::IN, trigger | Trigger::INITIAL);
        assert_eq!(
            port.register(entry),
            Err(RegistrationError::InvalidTrigger.into())
        );
    }
    Ok(())
}

#[for_every_backend(with_permits)]
fn x2_one_shot_disables_as_ever(port: CompletionPort) -> io::Result<()> {
    let pair = Pair::unix()?;
    pair.send()?;
    let once = Trigger::ONESHOT | Trigger::EDGE | Trigger::INITIAL;
    for _ in 0..3 {
        port.register(enable(&pair, EventFilter::IN, once))?;
        expect(&port, &[(KEY, Events::IN)]);
        pair.send()?;
        expect_nothing(&port);
    }
    Ok(())
}

#[for_every_backend(with_permits)]
fn x3_adding_what_is_registered_is_refused_and_changes_nothing(
    port: CompletionPort,
) -> io::Result<()> {
    let pair = Pair::unix()?;
    port.register(enable(&pair, EventFilter::IN, LEVEL))?;
    for disabled in [false, true] {
        if disabled {
            port.register(Registration::disable(&pair.ours))?;
        }
        let again = Registration::add(&pair.ours, KEY, EventFilter::OUT, LEVEL);
        let refused = port.register(again);
        assert_eq!(refused, Err(RegistrationError::AlreadyRegistered.into()));
        assert_eq!(refused.map_err(RegisterError::code), Err(183));
        expect_nothing(&port);
    }
    Ok(())
}

#[for_every_backend(with_permits)]
fn x3_adding_registers_what_is_new(port: CompletionPort) -> io::Result<()> {
    for trigger in EVERY {
        let pair = Pair::unix()?;
        port.register(Registration::add(&pair.ours, KEY, EventFilter::IN, trigger))?;
        pair.send()?;
        expect(&port, &[(KEY, Events::IN)]);
        // Its number is used again, for one that is new as well.
    }
    Ok(())
}

#[for_every_backend(with_permits)]
fn x3_changing_what_is_not_registered_is_refused(backend: Backend) -> io::Result<()> {
    let [port, other] = [port(backend)?, port(backend)?];
    let pair = Pair::unix()?;
    other.register(enable(&pair, EventFilter::IN, LEVEL))?;
    let change = || Registration::change(&pair.ours, KEY, EventFilter::IN, LEVEL);
    assert_eq!(
        port.register(change()),
        Err(RegistrationError::NotFound.into())
    );
    other.deregister(&pair.ours)?;
    assert_eq!(
        port.register(change()),
        Err(RegistrationError::NotFound.into())
    );
    assert_eq!(counted(port.snapshot().registrations), 0);
    Ok(())
}

#[for_every_backend(with_permits)]
fn x3_changing_changes(port: CompletionPort) -> io::Result<()> {
    let pair = Pair::unix()?;
    port.register(enable(&pair, EventFilter::IN, LEVEL))?;
    let change = |key, filter| Registration::change(&pair.ours, key, filter, ONCE);
    port.register(change(KEY, EventFilter::OUT))?;
    expect(&port, &[(KEY, Events::OUT)]);
    expect_nothing(&port);
    let refused = port.register(change(OTHER_KEY, EventFilter::OUT));
    assert_eq!(refused, Err(RegistrationError::OtherKey.into()));
    Ok(())
}

/// A2 is for ENABLE alone. Over the socket driver of Windows it is for these, too.
#[cfg(unix)]
#[for_every_backend(with_permits)]
fn x3_several_ports_watch_one_socket(backend: Backend) -> io::Result<()> {
    for trigger in EVERY {
        let [first, second, third] = [port(backend)?, port(backend)?, port(backend)?];
        let pair = Pair::unix()?;
        first.register(enable(&pair, EventFilter::IN, trigger))?;
        let add = |key| Registration::add(&pair.ours, key, EventFilter::IN, trigger);
        second.register(add(OTHER_KEY))?;
        third.register(add(OTHER_KEY))?;
        for port in [&first, &second, &third] {
            expect_nothing(port);
        }
        // More than an edge-triggered registration is notified before it is checked.
        for _ in 0..100 {
            pair.send()?;
            expect(&first, &[(KEY, Events::IN)]);
            for port in [&second, &third] {
                expect(port, &[(OTHER_KEY, Events::IN)]);
            }
            pair.drain()?;
            first.register(enable(&pair, EventFilter::IN, trigger))?;
            let change = || Registration::change(&pair.ours, OTHER_KEY, EventFilter::IN, trigger);
            second.register(change())?;
            third.register(change())?;
            for port in [&first, &second, &third] {
                assert!(drain_port(port).len() <= 1);
            }
        }
        // What one does is nothing to the others.
        crate::support::expect_removed(&second, &pair.ours, OTHER_KEY)?;
        drop(third);
        let elsewhere = port(backend)?;
        let other_port = elsewhere.register(enable(&pair, EventFilter::IN, trigger));
        assert_eq!(other_port, Err(RegistrationError::OtherPort.into()));
        pair.send()?;
        expect(&first, &[(KEY, Events::IN)]);
        crate::support::expect_removed(&first, &pair.ours, KEY)?;
        elsewhere.register(enable(&pair, EventFilter::IN, trigger))?;
        expect(&elsewhere, &[(KEY, Events::IN)]);
    }
    Ok(())
}

/// A runtime's signal pipe: it is duplicated for each runtime, and its number comes again.
#[cfg(unix)]
#[for_every_backend(with_permits)]
fn x3_a_duplicate_under_the_number_of_one_that_was_closed_is_not_refused(
    backend: Backend,
) -> io::Result<()> {
    for trigger in EVERY {
        let [first, second] = [port(backend)?, port(backend)?];
        let pair = Pair::unix()?;
        let filter = EventFilter::IN;
        let closed = pair.ours.try_clone()?;
        first.register(Registration::add(&closed, KEY, filter, trigger))?;
        let again = take_number(closed, pair.ours.try_clone()?)?;
        second.register(Registration::add(&again, OTHER_KEY, filter, trigger))?;
        pair.send()?;
        expect(&second, &[(OTHER_KEY, Events::IN)]);
        second.register(Registration::change(&again, OTHER_KEY, filter, trigger))?;
        // The first one may have it still, if the system cannot tell the two apart.
        if let Ok(entry) = first.dequeue_one(Some(Duration::ZERO)) {
            assert_eq!((entry.completion_key, entry.events()), (KEY, Events::IN));
        }
        match first.register(Registration::add(&again, OTHER_KEY, filter, trigger)) {
            Ok(()) => {}
            refused => assert_eq!(refused, Err(RegistrationError::AlreadyRegistered.into())),
        }
        first.deregister(&again)?;
        second.deregister(&again)?;
    }
    Ok(())
}

#[for_every_backend(with_permits)]
fn x4_a_packet_says_whether_it_was_posted(port: CompletionPort) -> io::Result<()> {
    let pair = Pair::unix()?;
    pair.send()?;
    // It carries what the notification carries.
    let like_it = Entry::new(KEY, Events::IN.bits(), 0);
    port.register(enable(&pair, EventFilter::IN, ONCE))?;
    let told = port.dequeue_one(Some(PATIENCE))?;
    port.post(like_it)?;
    let posted = port.dequeue_one(Some(PATIENCE))?;
    assert_eq!(told, posted);
    assert_eq!(told.origin(), Some(Origin::Notification));
    assert_eq!(posted.origin(), Some(Origin::Posted));
    port.register(Registration::remove(&pair.ours))?;
    let last = port.dequeue_one(Some(PATIENCE))?;
    assert_eq!(last.origin(), Some(Origin::Notification));
    // One that was dequeued and is posted again was posted.
    port.post(last)?;
    let again = port.dequeue_one(Some(PATIENCE))?;
    assert_eq!(again.origin(), Some(Origin::Posted));
    Ok(())
}

#[for_every_backend(with_permits)]
fn x6_a_permit_that_was_given_back_is_free(backend: Backend) -> io::Result<()> {
    let port = port_with(backend, 1)?;
    port.post_all(&[Entry::new(1, 0, 0), Entry::new(2, 0, 0)])?;
    assert_eq!(port.dequeue_one(Some(PATIENCE))?.completion_key, 1);
    thread::scope(|scope| -> io::Result<()> {
        let waiting = scope.spawn(|| port.dequeue_one(Some(PATIENCE)));
        wait_for_waiting(&port, 1);
        assert_eq!(port.snapshot().queued, 1, "this thread has the permit");
        port.release();
        assert_eq!(waiting.join().expect("no panic")?.completion_key, 2);
        Ok(())
    })?;
    assert_eq!(counted(port.snapshot().running), 0);
    Ok(())
}

#[for_every_backend(with_permits)]
fn x6_giving_back_what_is_not_held_changes_nothing(backend: Backend) -> io::Result<()> {
    let [port, other] = [port_with(backend, 1)?, port_with(backend, 1)?];
    port.release();
    assert_eq!(counted(port.snapshot().running), 0);
    port.post(Entry::new(1, 0, 0))?;
    port.dequeue_one(Some(PATIENCE))?;
    other.release();
    assert_eq!(counted(port.snapshot().running), 1);
    port.release();
    port.release();
    assert_eq!(counted(port.snapshot().running), 0);
    Ok(())
}

#[for_every_backend(with_permits)]
fn x6_without_a_limit_every_thread_has_a_permit(backend: Backend) -> io::Result<()> {
    const THREADS: usize = 16;
    let builder = CompletionPort::builder().backend(backend);
    let port = builder.unlimited().build()?;
    port.post_all(&[Entry::new(1, 0, 0); THREADS])?;
    let barrier = std::sync::Barrier::new(THREADS + 1);
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                port.dequeue_one(Some(PATIENCE)).expect("a packet");
                // All of them have theirs.
                barrier.wait();
                barrier.wait();
            });
        }
        barrier.wait();
        assert_eq!(counted(port.snapshot().running), THREADS);
        barrier.wait();
    });
    assert_eq!(port.dequeue_one(Some(Duration::ZERO)), Err(Error::TimedOut));
    Ok(())
}

/// What is told on some systems.
const SOME: [EventFilter; 2] = [EventFilter::PRIORITY, EventFilter::FULL_HANGUP];

#[for_every_backend(with_permits)]
fn x7_a_condition_that_the_system_cannot_tell_is_refused(backend: Backend) -> io::Result<()> {
    let port = port(backend)?;
    for condition in SOME {
        let is_told = match backend.name() {
            "epoll" => true,
            "afd" => condition == EventFilter::PRIORITY,
            _ => false,
        };
        for trigger in EVERY {
            let pair = Pair::unix()?;
            let outcome = port.register(enable(&pair, EventFilter::IN | condition, trigger));
            match is_told {
                true => outcome?,
                false => assert_eq!(outcome, Err(RegistrationError::InvalidFilter.into())),
            }
        }
    }
    Ok(())
}

#[cfg(any(windows, all(target_os = "linux", not(kqueue_stand_in))))]
mod urgent {
    use super::*;
    use crate::support::{Kind, PollFlags, drain_port, wait_readiness};

    /// The other end of a TCP connection sends a byte out of band.
    #[for_every_backend(with_permits)]
    fn x7_urgent_data_is_priority(backend: Backend) -> io::Result<()> {
        for kind in Kind::tcp() {
            for trigger in EVERY {
                let port = port(backend)?;
                let pair = kind.pair()?;
                let filter = EventFilter::IN | EventFilter::PRIORITY;
                port.register(enable(&pair, filter, trigger))?;
                expect_nothing(&port);
                pair.theirs.send_out_of_band(b"!")?;
                expect(&port, &[(KEY, Events::PRIORITY)]);
                if trigger == LEVEL {
                    expect(&port, &[(KEY, Events::PRIORITY)]);
                }
                pair.ours
                    .recv_out_of_band(&mut [std::mem::MaybeUninit::uninit()])?;
                drain_port(&port);
                // And what is sent as ever is what it was.
                port.register(enable(&pair, filter, trigger))?;
                pair.send()?;
                expect(&port, &[(KEY, Events::IN)]);
            }
        }
        Ok(())
    }

    #[for_every_backend]
    fn x7_urgent_data_is_nothing_else(backend: Backend) -> io::Result<()> {
        for kind in Kind::tcp() {
            for trigger in EVERY {
                let port = port(backend)?;
                let pair = kind.pair()?;
                port.register(enable(&pair, EventFilter::IN, trigger))?;
                pair.theirs.send_out_of_band(b"!")?;
                wait_readiness(&pair.ours, PollFlags::PRI);
                expect_nothing(&port);
                pair.send()?;
                expect(&port, &[(KEY, Events::IN)]);
            }
        }
        Ok(())
    }
}

#[cfg(all(target_os = "linux", not(kqueue_stand_in)))]
mod full_hangup {
    use std::net::Shutdown;

    use super::*;
    use crate::support::{Kind, PollFlags, begin_connect, refusing, reset, wait_readiness};

    const BOTH: EventFilter = EventFilter::HANGUP.union(EventFilter::FULL_HANGUP);
    const FULL: Events = Events::HANGUP.union(Events::FULL_HANGUP);

    #[for_every_backend]
    fn x8_what_both_sides_have_ended_is_a_full_hangup(backend: Backend) -> io::Result<()> {
        for kind in Kind::streams() {
            for ours_is_last in [true, false] {
                for trigger in EVERY {
                    let port = port(backend)?;
                    let pair = kind.pair()?;
                    let sides = match ours_is_last {
                        true => [&pair.theirs, &pair.ours],
                        false => [&pair.ours, &pair.theirs],
                    };
                    port.register(enable(&pair, BOTH, trigger))?;
                    expect_nothing(&port);
                    sides[0].shutdown(Shutdown::Write)?;
                    match ours_is_last {
                        true => expect(&port, &[(KEY, Events::HANGUP)]),
                        false => expect_nothing(&port),
                    }
                    port.register(enable(&pair, BOTH, trigger))?;
                    sides[1].shutdown(Shutdown::Write)?;
                    wait_readiness(&pair.ours, PollFlags::HUP);
                    expect(&port, &[(KEY, FULL)]);
                }
            }
        }
        Ok(())
    }

    /// Asked for alone, it waits for the second end.
    #[for_every_backend]
    fn x8_it_is_nothing_else(backend: Backend) -> io::Result<()> {
        for kind in Kind::streams() {
            for trigger in EVERY {
                let port = port(backend)?;
                let pair = kind.pair()?;
                port.register(enable(&pair, EventFilter::FULL_HANGUP, trigger))?;
                pair.theirs.shutdown(Shutdown::Write)?;
                wait_readiness(&pair.ours, PollFlags::IN);
                expect_nothing(&port);
                pair.ours.shutdown(Shutdown::Write)?;
                expect(&port, &[(KEY, Events::FULL_HANGUP)]);
                // Nor is it shown where it was not asked for.
                port.register(enable(&pair, EventFilter::HANGUP, ONCE))?;
                expect(&port, &[(KEY, Events::HANGUP)]);
            }
        }
        for kind in Kind::datagrams() {
            let port = port(backend)?;
            let pair = kind.pair()?;
            port.register(enable(&pair, EventFilter::FULL_HANGUP, LEVEL))?;
            pair.send()?;
            expect_nothing(&port);
        }
        Ok(())
    }

    #[for_every_backend]
    fn x8_a_reset_is_a_full_hangup(backend: Backend) -> io::Result<()> {
        for kind in Kind::tcp() {
            for trigger in EVERY {
                let port = port(backend)?;
                let pair = kind.pair()?;
                port.register(enable(&pair, EventFilter::FULL_HANGUP, trigger))?;
                let (_ours, theirs) = pair.into_ends();
                reset(theirs)?;
                expect(&port, &[(KEY, Events::FULL_HANGUP | Events::ERR)]);
            }
            // A failed connect is none.
            let port = port(backend)?;
            let (_kept, address) = refusing(kind)?;
            let socket = kind.socket()?;
            let entry = Registration::enable(&socket, KEY, EventFilter::FULL_HANGUP, ONCE);
            port.register(entry)?;
            begin_connect(&socket, &address)?;
            expect(&port, &[(KEY, Events::ERR)]);
        }
        Ok(())
    }

    #[for_every_backend]
    fn x8_the_end_of_a_pipe_is_a_full_hangup(backend: Backend) -> io::Result<()> {
        for trigger in EVERY {
            let port = port(backend)?;
            let (reader, writer) = pipe()?;
            watch(&port, &reader, EventFilter::FULL_HANGUP, trigger)?;
            expect_nothing(&port);
            drop(writer);
            expect(&port, &[(KEY, Events::FULL_HANGUP)]);
        }
        Ok(())
    }
}

#[cfg(unix)]
mod descriptors {
    pub(super) use std::io::{Read, Write};
    pub(super) use std::os::fd::{AsFd, OwnedFd};

    use super::*;

    pub(super) fn watch(
        port: &CompletionPort,
        descriptor: &impl AsFd,
        filter: EventFilter,
        trigger: Trigger,
    ) -> io::Result<()> {
        port.register(Registration::descriptor(descriptor, KEY, filter, trigger))?;
        Ok(())
    }

    pub(super) fn pipe() -> io::Result<(std::fs::File, std::fs::File)> {
        // Not every system can make one that does not block at once.
        let (reader, writer) = rustix::pipe::pipe()?;
        rustix::io::ioctl_fionbio(&reader, true)?;
        rustix::io::ioctl_fionbio(&writer, true)?;
        Ok((reader.into(), writer.into()))
    }
}

#[cfg(unix)]
use descriptors::*;

#[cfg(unix)]
#[for_every_backend(with_permits)]
fn x5_pipes_are_watched(backend: Backend) -> io::Result<()> {
    for trigger in EVERY {
        let port = port(backend)?;
        let (mut reader, mut writer) = pipe()?;
        watch(&port, &reader, EventFilter::IN, trigger)?;
        expect_nothing(&port);
        writer.write_all(b"x")?;
        expect(&port, &[(KEY, Events::IN)]);
        reader.read_exact(&mut [0])?;
        expect_nothing(&port);
        watch(&port, &reader, EventFilter::IN, trigger)?;
        writer.write_all(b"x")?;
        expect(&port, &[(KEY, Events::IN)]);
    }
    Ok(())
}

#[cfg(unix)]
#[for_every_backend(with_permits)]
fn x5_the_end_of_a_pipe_is_in_and_hangup(backend: Backend) -> io::Result<()> {
    for trigger in EVERY {
        for (filter, events) in [
            (EventFilter::IN, Events::IN),
            (EventFilter::ALL, Events::IN | Events::HANGUP),
            (EventFilter::HANGUP, Events::HANGUP),
        ] {
            let port = port(backend)?;
            let (mut reader, writer) = pipe()?;
            watch(&port, &reader, filter, trigger)?;
            expect_nothing(&port);
            drop(writer);
            expect(&port, &[(KEY, events)]);
            assert_eq!(reader.read(&mut [0])?, 0);
        }
    }
    Ok(())
}

#[cfg(unix)]
#[for_every_backend(with_permits)]
fn x5_the_writer_of_a_pipe_is_told_of_its_readers_end(backend: Backend) -> io::Result<()> {
    for trigger in EVERY {
        let port = port(backend)?;
        let (reader, writer) = pipe()?;
        watch(&port, &writer, EventFilter::NONE, trigger)?;
        expect_nothing(&port);
        drop(reader);
        expect(&port, &[(KEY, Events::ERR)]);
    }
    // And if it is there already.
    let port = port(backend)?;
    let (reader, writer) = pipe()?;
    drop(reader);
    watch(&port, &writer, EventFilter::NONE, LEVEL)?;
    for _ in 0..3 {
        expect(&port, &[(KEY, Events::ERR)]);
    }
    Ok(())
}

#[cfg(unix)]
#[for_every_backend(with_permits)]
fn x5_a_full_pipe_is_out_when_it_has_room(port: CompletionPort) -> io::Result<()> {
    let (mut reader, mut writer) = pipe()?;
    while writer.write(&[0; 4096]).is_ok() {}
    watch(&port, &writer, EventFilter::OUT, ONCE)?;
    expect_nothing(&port);
    while reader.read(&mut [0; 4096]).is_ok() {}
    expect(&port, &[(KEY, Events::OUT)]);
    Ok(())
}

#[cfg(unix)]
#[for_every_backend(with_permits)]
fn x5_a_port_is_watched_by_another(backend: Backend) -> io::Result<()> {
    let [outer, inner] = [port(backend)?, port(backend)?];
    let pair = Pair::unix()?;
    inner.register(enable(&pair, EventFilter::IN, LEVEL))?;
    watch(&outer, &inner, EventFilter::IN, LEVEL)?;
    // It may be readable for no reason, and is not so for good.
    let settle = || {
        while outer.dequeue_one(Some(Duration::ZERO)).is_ok() {
            expect_nothing(&inner);
        }
    };
    settle();
    pair.send()?;
    expect(&outer, &[(KEY, Events::IN)]);
    expect(&inner, &[(KEY, Events::IN)]);
    pair.drain()?;
    expect_nothing(&inner);
    settle();
    inner.post(Entry::new(1, 0, 0))?;
    expect(&outer, &[(KEY, Events::IN)]);
    assert_eq!(inner.dequeue_one(Some(PATIENCE))?.completion_key, 1);
    Ok(())
}

#[cfg(unix)]
#[for_every_backend(with_permits)]
fn x5_a_port_is_watched_after_it_has_delivered_a_level(port: CompletionPort) -> io::Result<()> {
    let pair = Pair::unix()?;
    port.register(enable(&pair, EventFilter::IN, LEVEL))?;
    pair.send()?;
    expect(&port, &[(KEY, Events::IN)]);
    assert!(is_ready(&port, PollFlags::IN, PATIENCE));
    expect(&port, &[(KEY, Events::IN)]);
    Ok(())
}

#[cfg(unix)]
#[for_every_backend(with_permits)]
fn x5_regular_files_and_closed_numbers_are_refused(port: CompletionPort) -> io::Result<()> {
    let file = std::fs::File::open(std::env::current_exe()?)?;
    let directory = std::fs::File::open(std::env::temp_dir())?;
    for other in [file, directory] {
        let entry = Registration::descriptor(&other, KEY, EventFilter::IN, LEVEL);
        let refused = port.register(entry);
        assert_eq!(refused, Err(RegistrationError::NotWatchable.into()));
        assert_eq!(refused.map_err(RegisterError::code), Err(50));
    }
    assert_eq!(counted(port.snapshot().registrations), 0);
    Ok(())
}

#[cfg(unix)]
#[for_every_backend(with_permits)]
fn x5_the_calls_for_sockets_take_sockets_only(port: CompletionPort) -> io::Result<()> {
    let (reader, _writer) = pipe()?;
    let entry = || Registration::enable(&reader, KEY, EventFilter::IN, LEVEL);
    let refused = Err(RegistrationError::NotASocket.into());
    assert_eq!(port.register(entry()), refused);
    assert_eq!(port.register(Registration::remove(&reader)), refused);
    Ok(())
}

#[cfg(unix)]
#[for_every_backend(with_permits)]
fn x5_a_descriptor_is_disabled_removed_and_deregistered_as_a_socket(
    backend: Backend,
) -> io::Result<()> {
    let port = port(backend)?;
    let (mut reader, mut writer) = pipe()?;
    writer.write_all(b"x")?;
    watch(&port, &reader, EventFilter::IN, LEVEL)?;
    expect(&port, &[(KEY, Events::IN)]);
    let other_key = Registration::descriptor(&reader, OTHER_KEY, EventFilter::IN, LEVEL);
    let refused = port.register(other_key);
    assert_eq!(refused, Err(RegistrationError::OtherKey.into()));
    port.register(Registration::disable(&reader))?;
    expect_nothing(&port);
    watch(&port, &reader, EventFilter::IN, ONCE)?;
    expect(&port, &[(KEY, Events::IN)]);
    port.register(Registration::disable(&reader))?;
    port.register(Registration::remove(&reader))?;
    expect(&port, &[(KEY, Events::REMOVE)]);
    watch(&port, &reader, EventFilter::IN, LEVEL)?;
    port.deregister(&reader)?;
    expect_nothing(&port);
    reader.read_exact(&mut [0])?;
    assert_eq!(counted(port.snapshot().registrations), 0);
    Ok(())
}

#[cfg(unix)]
#[for_every_backend(with_permits)]
fn x5_another_descriptor_under_an_old_number_has_nothing_of_the_old_one(
    backend: Backend,
) -> io::Result<()> {
    let port = port(backend)?;
    for trigger in EVERY {
        let (reader, writer) = pipe()?;
        watch(&port, &reader, EventFilter::IN, trigger)?;
        // The same number, and another pipe, whose registration has another key.
        let mut number = OwnedFd::from(reader);
        let (other, mut other_writer) = pipe()?;
        rustix::io::dup2(&other, &mut number)?;
        drop(writer);
        expect_nothing(&port);
        let entry = Registration::descriptor(&number, OTHER_KEY, EventFilter::IN, trigger);
        port.register(entry)?;
        other_writer.write_all(b"x")?;
        expect(&port, &[(OTHER_KEY, Events::IN)]);
        port.deregister(&number)?;
        // The same number, and a socket.
        let pair = Pair::unix()?;
        watch(&port, &number, EventFilter::IN, trigger)?;
        rustix::io::dup2(&pair.ours, &mut number)?;
        let entry = Registration::enable(&number, OTHER_KEY, EventFilter::OUT, ONCE);
        port.register(entry)?;
        expect(&port, &[(OTHER_KEY, Events::OUT)]);
        // The same number, and a pipe again, also while the socket is being removed.
        for is_removed in [false, true] {
            if is_removed {
                rustix::io::dup2(&pair.ours, &mut number)?;
                port.enable(&number, OTHER_KEY, EventFilter::IN, ONCE)?;
                port.register(Registration::remove(&number))?;
            }
            rustix::io::dup2(&other, &mut number)?;
            watch(&port, &number, EventFilter::IN, ONCE)?;
            let mut expected = vec![(KEY, Events::IN)];
            if is_removed {
                expected.push((OTHER_KEY, Events::REMOVE));
            }
            assert_eq!(collect(&port, expected.len()), expected);
            port.deregister(&number)?;
        }
    }
    assert_eq!(counted(port.snapshot().registrations), 0);
    Ok(())
}

#[cfg(unix)]
#[for_every_backend(with_permits)]
fn x5_several_ports_watch_one_descriptor(backend: Backend) -> io::Result<()> {
    for trigger in [EDGE, LEVEL] {
        let [port, other] = [port(backend)?, port(backend)?];
        let (mut reader, mut writer) = pipe()?;
        watch(&port, &reader, EventFilter::IN, trigger)?;
        watch(&other, &reader, EventFilter::IN, trigger)?;
        let mut exchange = |port: &CompletionPort| -> io::Result<()> {
            writer.write_all(b"x")?;
            expect(port, &[(KEY, Events::IN)]);
            reader.read_exact(&mut [0])
        };
        // More than an edge-triggered registration is notified before it is checked.
        for _ in 0..200 {
            exchange(&port)?;
            exchange(&other)?;
        }
        let change = Registration::change(&reader, KEY, EventFilter::IN, trigger);
        port.register(change)?;
        drop(other);
        writer.write_all(b"x")?;
        expect(&port, &[(KEY, Events::IN)]);
        port.deregister(&reader)?;
    }
    Ok(())
}

#[cfg(unix)]
#[for_every_backend(with_permits)]
fn x5_a_socket_is_a_descriptor(backend: Backend) -> io::Result<()> {
    let [port, other] = [port(backend)?, port(backend)?];
    let pair = Pair::unix()?;
    watch(&port, &pair.ours, EventFilter::IN, ONCE)?;
    // By either call it is the same registration.
    let again = port.enable(&pair.ours, OTHER_KEY, EventFilter::IN, ONCE);
    assert_eq!(again, Err(RegistrationError::OtherKey.into()));
    // Several ports may watch it.
    let entry = Registration::descriptor(&pair.ours, OTHER_KEY, EventFilter::IN, ONCE);
    other.register(entry)?;
    pair.send()?;
    expect(&port, &[(KEY, Events::IN)]);
    expect(&other, &[(OTHER_KEY, Events::IN)]);
    Ok(())
}

#[cfg(target_os = "linux")]
#[for_every_backend(with_permits)]
fn x5_counters_and_timers_are_watched(backend: Backend) -> io::Result<()> {
    use rustix::event::{EventfdFlags, eventfd};
    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
        timerfd_settime,
    };

    let port = port(backend)?;
    let counter = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
    watch(&port, &counter, EventFilter::IN, EDGE)?;
    expect_nothing(&port);
    for _ in 0..3 {
        rustix::io::write(&counter, &1_u64.to_ne_bytes())?;
        expect(&port, &[(KEY, Events::IN)]);
    }
    port.deregister(&counter)?;

    let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC)?;
    watch(&port, &timer, EventFilter::IN, ONCE)?;
    let soon = Itimerspec {
        it_interval: Timespec::default(),
        it_value: Timespec {
            tv_sec: 0,
            tv_nsec: 1_000_000,
        },
    };
    timerfd_settime(&timer, TimerfdTimerFlags::empty(), &soon)?;
    expect(&port, &[(KEY, Events::IN)]);
    port.deregister(&timer)?;
    Ok(())
}
