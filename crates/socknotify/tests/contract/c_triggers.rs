//! C. Triggers: which there are, one-shots, and what is disabled.

use std::io;
use std::net::Shutdown;
use std::time::Duration;

use socknotify::{
    Backend, CompletionPort, Entry, EventFilter, Events, RegisterError, Registration,
    RegistrationError, Trigger,
};

use crate::support::trigger::{EDGE, EDGE_ONCE, EVERY, LEVEL, ONCE};
use crate::support::{
    Kind, PATIENCE, Pair, PollFlags, PortExt, as_told_by, collect, counted, drain_port,
    end_shows_behind_data, expect, expect_nothing, expect_quiet, pairs, port, reset,
    wait_readiness, wait_until,
};

const KEY: usize = 31;
const IN: (usize, Events) = (KEY, Events::IN);
const POSTED: Entry = Entry::new(1, 2, 3);

#[for_every_backend]
fn c1_only_sound_combinations_of_triggers_are_accepted(backend: Backend) -> io::Result<()> {
    const ONESHOT: u8 = 1;
    const PERSISTENT: u8 = 2;
    const LEVEL_BIT: u8 = 4;
    const EDGE_BIT: u8 = 8;
    let sound = [
        LEVEL_BIT,
        EDGE_BIT,
        ONESHOT | LEVEL_BIT,
        ONESHOT | EDGE_BIT,
        PERSISTENT | LEVEL_BIT,
        PERSISTENT | EDGE_BIT,
    ];
    // The extension goes with edges.
    const INITIAL_BIT: u8 = 16;
    let edges = sound.into_iter().filter(|bits| bits & EDGE_BIT != 0);
    let extended = edges.map(|bits| bits | INITIAL_BIT);
    let sound: Vec<u8> = match backend.to_string().as_str() {
        "native" => sound.to_vec(),
        _ => sound.into_iter().chain(extended).collect(),
    };
    let port = port(backend)?;
    let known = Pair::unix()?;
    port.enable(&known.ours, KEY, EventFilter::IN, ONCE)?;
    for bits in 0..=u8::MAX {
        let trigger = Trigger::from_bits_retain(bits);
        let unknown = Pair::unix()?;
        let entry = Registration::enable(&unknown.ours, KEY, EventFilter::IN, trigger);
        let result = port.register(entry);
        if sound.contains(&bits) {
            assert_eq!(result, Ok(()), "{bits:#x}");
            port.register(Registration::remove(&unknown.ours))?;
            expect(&port, &[(KEY, Events::REMOVE)]);
        } else {
            assert_eq!(
                result,
                Err(RegistrationError::InvalidTrigger.into()),
                "{bits:#x}"
            );
            assert_eq!(result.map_err(RegisterError::code), Err(87));
            let entry = Registration::enable(&known.ours, KEY, EventFilter::ALL, trigger);
            let result = port.register(entry);
            assert_eq!(
                result,
                Err(RegistrationError::InvalidTrigger.into()),
                "{bits:#x}"
            );
        }
        assert_eq!(counted(port.snapshot().registrations), 1);
    }
    // Nothing of the refused ones has touched the one that was there.
    expect_nothing(&port);
    known.send()?;
    expect(&port, &[IN]);
    expect_nothing(&port);
    Ok(())
}

/// The document's first program relies on it.
#[for_every_backend]
fn c1_persistent_is_meant_when_nothing_is_said(port: CompletionPort) -> io::Result<()> {
    for trigger in [Trigger::LEVEL, Trigger::EDGE] {
        let pair = Pair::unix()?;
        port.enable(&pair.ours, KEY, EventFilter::IN, trigger)?;
        for _ in 0..3 {
            pair.send()?;
            expect(&port, &[IN]);
            if trigger == Trigger::LEVEL {
                expect(&port, &[IN]);
                // One more may be in the queue when the data is taken.
                pair.drain()?;
                assert!(drain_port(&port).len() <= 1);
            } else {
                expect_nothing(&port);
                pair.drain()?;
            }
        }
    }
    Ok(())
}

#[for_every_backend]
fn c2_nothing_comes_while_disabled_and_nothing_is_stored_up(
    port: CompletionPort,
) -> io::Result<()> {
    for case in pairs(Kind::all()) {
        let (pair, trigger) = case?;
        let enable = || Registration::enable(&pair.ours, KEY, EventFilter::IN, trigger);
        port.register(enable())?;
        port.register(Registration::disable(&pair.ours))?;
        for _ in 0..3 {
            pair.send()?;
            expect_nothing(&port);
            pair.drain()?;
        }
        port.register(enable())?;
        expect_nothing(&port);
        pair.send()?;
        expect(&port, &[IN]);
        port.register(Registration::remove(&pair.ours))?;
        wait_until("it is removed", || {
            drain_port(&port)
                .iter()
                .any(|(_, events)| events.contains(Events::REMOVE))
        });
    }
    Ok(())
}

#[for_every_backend]
fn c2_nothing_is_stored_up_after_a_one_shot_has_fired(port: CompletionPort) -> io::Result<()> {
    for trigger in [ONCE, EDGE_ONCE] {
        let pair = Pair::unix()?;
        let enable = || Registration::enable(&pair.ours, KEY, EventFilter::IN, trigger);
        port.register(enable())?;
        for _ in 0..3 {
            pair.send()?;
            expect(&port, &[IN]);
            pair.drain()?;
            for _ in 0..3 {
                pair.send()?;
                expect_nothing(&port);
                pair.drain()?;
            }
            port.register(enable())?;
            expect_nothing(&port);
        }
    }
    Ok(())
}

#[for_every_backend]
fn c3_all_that_becomes_true_meanwhile_is_merged_into_one_packet(
    backend: Backend,
) -> io::Result<()> {
    let port = port(backend)?;
    for kind in Kind::streams() {
        for trigger in EVERY {
            let pair = kind.pair()?;
            let filter = EventFilter::IN | EventFilter::HANGUP;
            port.enable(&pair.ours, KEY, filter, trigger)?;
            if end_shows_behind_data() {
                for _ in 0..3 {
                    pair.send()?;
                }
            }
            pair.theirs.shutdown(Shutdown::Write)?;
            wait_readiness(&pair.ours, PollFlags::RDHUP);
            expect(&port, &[(KEY, Events::IN | Events::HANGUP)]);
            if trigger != LEVEL {
                expect_nothing(&port);
            }
            port.register(Registration::remove(&pair.ours))?;
            let last = drain_port(&port);
            assert!(last.len() <= 2, "{kind}: {last:?}");
        }
    }
    Ok(())
}

/// It shows in the packet that may wait meanwhile, in the next notification, or, of a one-shot, after the next arming.
/// An end and room are two events to some systems, with that of another socket between them.
#[for_every_backend]
fn c3_a_call_has_one_notification_of_a_socket(port: CompletionPort) -> io::Result<()> {
    let (pair, other) = (Pair::unix()?, Pair::unix()?);
    pair.theirs.shutdown(Shutdown::Write)?;
    port.enable(&pair.ours, KEY, EventFilter::IN, EDGE)?;
    other.send()?;
    let filter = EventFilter::OUT | EventFilter::HANGUP;
    let mut batch = [
        Registration::enable(&other.ours, KEY + 1, EventFilter::IN, LEVEL),
        Registration::enable(&pair.ours, KEY, filter, EDGE),
    ];
    let mut entries = [Entry::default(); 8];
    let entries = port.process(&mut batch, &mut entries, Some(PATIENCE))?;
    for key in [KEY, KEY + 1] {
        let of_key = entries.iter().filter(|entry| entry.completion_key == key);
        assert!(of_key.count() <= 1, "{entries:?}");
    }
    Ok(())
}

#[for_every_backend]
fn c3_what_becomes_true_while_a_packet_waits_is_not_lost(port: CompletionPort) -> io::Result<()> {
    for kind in Kind::streams() {
        for trigger in EVERY {
            let pair = kind.pair()?;
            let filter = EventFilter::IN | EventFilter::HANGUP;
            let enable = || Registration::enable(&pair.ours, KEY, filter, trigger);
            port.register(enable())?;
            pair.send()?;
            // A port may queue what it knows by now.
            port.post(POSTED)?;
            if !end_shows_behind_data() {
                pair.drain()?;
            }
            pair.theirs.shutdown(Shutdown::Write)?;
            wait_readiness(&pair.ours, PollFlags::RDHUP);

            let dequeued = std::iter::from_fn(|| port.dequeue_one(Some(Duration::ZERO)).ok());
            // A level that holds has no end.
            let (posted, told): (Vec<_>, Vec<_>) = dequeued.take(8).partition(|it| *it == POSTED);
            assert_eq!(posted.len(), 1, "{kind}, {trigger:?}: {told:?}");
            let all = |entries: &[Entry]| {
                let events = entries.iter().map(Entry::events);
                events.fold(Events::empty(), |all, events| all | events)
            };
            let mut seen = all(&told);
            if trigger.contains(Trigger::ONESHOT) {
                assert_eq!(told.len(), 1, "{kind}, {trigger:?}: {told:?}");
                if !seen.contains(Events::HANGUP) {
                    port.register(enable())?;
                    seen |= port.dequeue_one(Some(PATIENCE))?.events();
                }
            } else if trigger == EDGE {
                // One for each condition that began to hold.
                assert!((1..=2).contains(&told.len()), "{kind}: {told:?}");
            }
            assert_eq!(seen, Events::IN | Events::HANGUP, "{kind}, {trigger:?}");
            port.register(Registration::remove(&pair.ours))?;
            let last = drain_port(&port);
            assert!(last.len() <= 2, "{kind}: {last:?}");
        }
    }
    Ok(())
}

/// Dequeues what an ENABLE may give besides true edges: one notification, of conditions that hold.
#[track_caller]
pub(super) fn take_extra(port: &CompletionPort, holds: Events) -> usize {
    // With room for one at a time, the conditions may come one by one.
    let mut entries = [Entry::default(); 4];
    let found = port.dequeue(&mut entries, Some(Duration::ZERO));
    let found = found.map_or(&[][..], |found| &*found);
    let mut found: Vec<_> = found
        .iter()
        .map(|it| (it.completion_key, it.events()))
        .collect();
    found.extend(drain_port(port));
    let is_allowed = |&(key, events): &(usize, Events)| key == KEY && holds.contains(events);
    assert!(
        found.len() <= 1 && found.iter().all(is_allowed),
        "{found:?}"
    );
    found.len()
}

#[for_every_backend]
fn c6_one_shot_delivery_disables_until_enabled_again(port: CompletionPort) -> io::Result<()> {
    for kind in Kind::all() {
        let pair = kind.pair()?;
        let enable = || Registration::enable(&pair.ours, KEY, EventFilter::IN, ONCE);
        port.register(enable())?;
        for _ in 0..5 {
            pair.send()?;
            expect(&port, &[IN]);
            // The condition holds still, and more comes.
            expect_nothing(&port);
            pair.send()?;
            expect_nothing(&port);
            port.register(enable())?;
            expect(&port, &[IN]);
            expect_nothing(&port);
            pair.drain()?;
            port.register(enable())?;
            expect_nothing(&port);
        }
    }
    for kind in Kind::all() {
        let pair = kind.pair()?;
        let enable = || Registration::enable(&pair.ours, KEY, EventFilter::IN, EDGE_ONCE);
        port.register(enable())?;
        for _ in 0..5 {
            pair.send()?;
            expect(&port, &[IN]);
            pair.drain()?;
            pair.send()?;
            expect_nothing(&port);
            pair.drain()?;
            port.register(enable())?;
            expect_nothing(&port);
        }
    }
    Ok(())
}

#[for_every_backend]
fn c6_a_fired_one_shot_stays_registered(port: CompletionPort) -> io::Result<()> {
    for trigger in [ONCE, EDGE_ONCE] {
        let pair = Pair::unix()?;
        port.enable(&pair.ours, KEY, EventFilter::IN, trigger)?;
        pair.send()?;
        expect(&port, &[IN]);
        assert_eq!(counted(port.snapshot().registrations), 1);
        let other = Registration::enable(&pair.ours, KEY + 1, EventFilter::IN, trigger);
        let refused = as_told_by(&port, Err(RegistrationError::OtherKey));
        assert_eq!(port.register(other), refused);
        port.register(Registration::disable(&pair.ours))?;
        port.register(Registration::remove(&pair.ours))?;
        expect(&port, &[(KEY, Events::REMOVE)]);
    }
    Ok(())
}

#[for_every_backend]
fn c6_a_fired_one_shot_is_silent_about_errors_too(port: CompletionPort) -> io::Result<()> {
    for kind in Kind::tcp() {
        for trigger in [ONCE, EDGE_ONCE] {
            let pair = kind.pair()?;
            let filter = EventFilter::IN | EventFilter::HANGUP;
            let enable = || Registration::enable(&pair.ours, KEY, filter, trigger);
            port.register(enable())?;
            pair.send()?;
            expect(&port, &[IN]);
            reset(pair.theirs)?;
            wait_readiness(&pair.ours, PollFlags::ERR | PollFlags::HUP);
            expect_quiet(&port);
            port.register(enable())?;
            if trigger == ONCE {
                let entry = port.dequeue_one(Some(PATIENCE))?;
                assert!(entry.events().contains(Events::ERR | Events::HANGUP));
            } else {
                take_extra(&port, Events::IN | Events::HANGUP | Events::ERR);
            }
            expect_nothing(&port);
        }
    }
    Ok(())
}

/// While a notification waits to be dequeued, the registration is enabled still, and ENABLE finds it so: the one that
/// is delivered disables, and no other comes.
#[for_every_backend]
fn c6_it_is_the_delivery_that_disables(port: CompletionPort) -> io::Result<()> {
    for trigger in [ONCE, EDGE_ONCE] {
        let pair = Pair::unix()?;
        let enable = || Registration::enable(&pair.ours, KEY, EventFilter::IN, trigger);
        port.register(enable())?;
        pair.send()?;
        // A port may queue what it knows by now.
        port.post(POSTED)?;
        port.register(enable())?;
        assert_eq!(
            collect(&port, 2),
            [(POSTED.completion_key, POSTED.events()), IN]
        );
        expect_nothing(&port);
    }
    Ok(())
}

#[for_every_backend]
fn c7_delivering_one_condition_disarms_all(port: CompletionPort) -> io::Result<()> {
    for kind in Kind::all() {
        let pair = kind.pair()?;
        let both = EventFilter::IN | EventFilter::OUT;
        let enable = |filter| Registration::enable(&pair.ours, KEY, filter, ONCE);
        port.register(enable(both))?;
        expect(&port, &[(KEY, Events::OUT)]);
        pair.send()?;
        expect_nothing(&port);
        port.register(enable(both))?;
        expect(&port, &[(KEY, Events::IN | Events::OUT)]);
        expect_nothing(&port);
        port.register(enable(EventFilter::IN))?;
        expect(&port, &[IN]);
        expect_nothing(&port);
    }
    // The other way round: IN disarms OUT.
    let pair = Pair::unix()?;
    let sent = pair.fill()?;
    port.enable(&pair.ours, KEY, EventFilter::ALL, ONCE)?;
    pair.send()?;
    expect(&port, &[IN]);
    pair.make_room(sent)?;
    expect_nothing(&port);
    Ok(())
}
