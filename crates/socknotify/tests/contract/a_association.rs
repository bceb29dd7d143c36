//! A. Association: which socket belongs to which port, and under which key.

use std::io;
use std::time::Duration;

use socket2::Socket;
use socknotify::{
    Backend, CompletionPort, Entry, EventFilter, Events, RegisterError, Registration,
    RegistrationError, Trigger,
};

use crate::support::trigger::{EDGE, EDGE_ONCE, EVERY, LEVEL, ONCE};
use crate::support::{
    Kind, Pair, PortExt, as_told_by, collect, counted, drain_port, expect, expect_nothing,
    expect_removed, pairs, port, take_number,
};

const KEY: usize = 7;
const OTHER_KEY: usize = 8;

#[for_every_backend]
fn a1_one_call_registers_any_number_of_sockets(backend: Backend) -> io::Result<()> {
    const SOCKETS: usize = 200;
    let port = port(backend)?;
    let pairs = (0..SOCKETS)
        .map(|_| Pair::unix())
        .collect::<io::Result<Vec<_>>>()?;
    let mut batch: Vec<_> = pairs
        .iter()
        .enumerate()
        .map(|(key, pair)| Registration::enable(&pair.ours, key, EventFilter::IN, ONCE))
        .collect();
    port.process(&mut batch, &mut [], Some(Duration::ZERO))?;
    assert!(batch.iter().all(|entry| entry.result().is_ok()));
    assert_eq!(counted(port.snapshot().registrations), SOCKETS);
    expect_nothing(&port);

    for pair in &pairs {
        pair.send()?;
    }
    let wanted: Vec<_> = (0..SOCKETS).map(|key| (key, Events::IN)).collect();
    assert_eq!(collect(&port, SOCKETS), wanted);
    expect_nothing(&port);
    Ok(())
}

#[for_every_backend]
fn a1_sockets_of_every_kind_can_be_registered(port: CompletionPort) -> io::Result<()> {
    let pairs = Kind::all()
        .map(Kind::pair)
        .collect::<io::Result<Vec<_>>>()?;
    let mut batch: Vec<_> = pairs
        .iter()
        .enumerate()
        .map(|(key, pair)| Registration::enable(&pair.ours, key, EventFilter::IN, ONCE))
        .collect();
    port.process(&mut batch, &mut [], Some(Duration::ZERO))?;
    for (key, pair) in pairs.iter().enumerate() {
        assert_eq!(batch[key].result(), Ok(()));
        pair.send()?;
        expect(&port, &[(key, Events::IN)]);
    }
    expect_nothing(&port);
    Ok(())
}

/// The port has the socket as it should: armed for IN, under [`KEY`].
#[track_caller]
fn assert_armed(port: &CompletionPort, pair: &Pair) -> io::Result<()> {
    expect_nothing(port);
    pair.send()?;
    expect(port, &[(KEY, Events::IN)]);
    pair.drain()?;
    Ok(())
}

/// Another port must not get this socket.
#[track_caller]
fn assert_refused(other: &CompletionPort, socket: &Socket) -> io::Result<()> {
    for trigger in EVERY {
        for key in [KEY, OTHER_KEY] {
            let entry = Registration::enable(socket, key, EventFilter::ALL, trigger);
            let result = other.register(entry);
            assert_eq!(result, as_told_by(other, Err(RegistrationError::OtherPort)));
            assert_eq!(result.map_err(RegisterError::code), Err(87));
        }
    }
    // It has nothing to disable or remove there either.
    assert_eq!(other.register(Registration::disable(socket)), Ok(()));
    let found = other.register(Registration::remove(socket));
    assert_eq!(found, Err(RegistrationError::NotFound.into()));
    assert_eq!(counted(other.snapshot().registrations), 0);
    expect_nothing(other);
    Ok(())
}

#[for_every_backend]
fn a2_a_second_port_is_refused_and_the_first_is_untouched(backend: Backend) -> io::Result<()> {
    for kind in Kind::all() {
        for trigger in EVERY {
            let (first, second) = (port(backend)?, port(backend)?);
            let pair = kind.pair()?;
            first.enable(&pair.ours, KEY, EventFilter::IN, trigger)?;
            assert_refused(&second, &pair.ours)?;
            assert_armed(&first, &pair)?;
        }
    }
    Ok(())
}

#[for_every_backend]
fn a2_a_registration_that_is_not_enabled_still_belongs_to_its_port(
    backend: Backend,
) -> io::Result<()> {
    let (first, second) = (port(backend)?, port(backend)?);

    let disabled = Pair::unix()?;
    first.enable(&disabled.ours, KEY, EventFilter::IN, LEVEL)?;
    first.register(Registration::disable(&disabled.ours))?;
    assert_refused(&second, &disabled.ours)?;
    first.enable(&disabled.ours, KEY, EventFilter::IN, ONCE)?;
    assert_armed(&first, &disabled)?;

    let fired = Pair::unix()?;
    first.enable(&fired.ours, KEY, EventFilter::IN, ONCE)?;
    assert_armed(&first, &fired)?;
    assert_refused(&second, &fired.ours)?;
    first.enable(&fired.ours, KEY, EventFilter::IN, ONCE)?;
    assert_armed(&first, &fired)
}

#[for_every_backend]
fn a2_a_socket_is_free_again_when_its_removal_was_notified(backend: Backend) -> io::Result<()> {
    let (first, second) = (port(backend)?, port(backend)?);
    let pair = Pair::unix()?;
    first.enable(&pair.ours, KEY, EventFilter::IN, LEVEL)?;
    first.register(Registration::remove(&pair.ours))?;
    // Open in the contract: while the removal is under way, the socket is the first port's still.
    assert_refused(&second, &pair.ours)?;
    expect(&first, &[(KEY, Events::REMOVE)]);

    second.enable(&pair.ours, KEY, EventFilter::IN, LEVEL)?;
    assert_armed(&second, &pair)?;
    assert_refused(&first, &pair.ours)
}

#[for_every_backend]
fn a2_a_socket_is_free_again_when_its_port_is_closed(backend: Backend) -> io::Result<()> {
    let pair = Pair::unix()?;
    for trigger in EVERY {
        let (first, second) = (port(backend)?, port(backend)?);
        first.enable(&pair.ours, KEY, EventFilter::IN, trigger)?;
        first.close();
        second.enable(&pair.ours, KEY, EventFilter::IN, trigger)?;
        assert_armed(&second, &pair)?;
    }
    Ok(())
}

#[for_every_backend]
fn a2_a_socket_is_free_again_when_its_port_is_dropped(backend: Backend) -> io::Result<()> {
    let pair = Pair::unix()?;
    for trigger in EVERY {
        let first = port(backend)?;
        first.enable(&pair.ours, KEY, EventFilter::IN, trigger)?;
        first.register(Registration::remove(&pair.ours))?;
        drop(first);
        let second = port(backend)?;
        second.enable(&pair.ours, KEY, EventFilter::IN, trigger)?;
        assert_armed(&second, &pair)?;
    }
    Ok(())
}

#[for_every_backend]
fn a2_a_new_socket_under_an_old_number_is_free(backend: Backend) -> io::Result<()> {
    for trigger in EVERY {
        let (first, second) = (port(backend)?, port(backend)?);
        let (old, new) = (Pair::unix()?, Pair::unix()?);
        first.enable(&old.ours, KEY, EventFilter::IN, trigger)?;
        let number = take_number(old.ours, new.ours)?;
        let pair = Pair {
            ours: number,
            theirs: new.theirs,
        };
        second.enable(&pair.ours, KEY, EventFilter::IN, trigger)?;
        assert_armed(&second, &pair)?;
        expect_nothing(&first);
        // Now it is the first port that is refused.
        let entry = Registration::enable(&pair.ours, KEY, EventFilter::IN, trigger);
        let refused = as_told_by(&first, Err(RegistrationError::OtherPort));
        assert_eq!(first.register(entry), refused);
        assert_armed_again(&second, &pair, trigger)?;
    }
    Ok(())
}

/// As [`assert_armed`], for a registration that may have been disarmed by a notification.
#[track_caller]
fn assert_armed_again(port: &CompletionPort, pair: &Pair, trigger: Trigger) -> io::Result<()> {
    port.enable(&pair.ours, KEY, EventFilter::IN, trigger)?;
    assert_armed(port, pair)
}

#[for_every_backend]
fn a3_enable_overwrites_the_filter(port: CompletionPort) -> io::Result<()> {
    for trigger in [ONCE, LEVEL] {
        let pair = Pair::unix()?;
        pair.send()?;
        let filters = [
            (EventFilter::OUT, Events::OUT),
            (EventFilter::IN, Events::IN),
            (EventFilter::ALL, Events::IN | Events::OUT),
            (EventFilter::IN, Events::IN),
        ];
        for (filter, events) in filters {
            port.enable(&pair.ours, KEY, filter, trigger)?;
            expect(&port, &[(KEY, events)]);
        }
        for filter in [EventFilter::NONE, EventFilter::HANGUP] {
            port.enable(&pair.ours, KEY, filter, trigger)?;
            expect_nothing(&port);
        }
        assert_eq!(counted(port.snapshot().registrations), 1);
        expect_removed(&port, &pair.ours, KEY)?;
    }
    Ok(())
}

#[for_every_backend]
fn a3_enable_overwrites_the_trigger(port: CompletionPort) -> io::Result<()> {
    let pair = Pair::unix()?;
    pair.send()?;
    let enable = |trigger| -> io::Result<()> {
        let entry = Registration::enable(&pair.ours, KEY, EventFilter::IN, trigger);
        Ok(port.register(entry)?)
    };
    const IN: (usize, Events) = (KEY, Events::IN);
    // C5: an ENABLE may give an edge for what holds already.
    let take_edges = |most: usize| {
        let found = drain_port(&port);
        assert!(
            found.len() <= most && found.iter().all(|&it| it == IN),
            "{found:?}"
        );
        found.len()
    };
    for from in EVERY {
        for to in EVERY {
            enable(ONCE)?;
            expect(&port, &[IN]);
            enable(from)?;
            match from {
                LEVEL => expect(&port, &[IN, IN, IN]),
                ONCE => expect(&port, &[IN]),
                _ => drop(take_edges(1)),
            }
            enable(to)?;
            let mut is_fired = to == ONCE;
            match to {
                LEVEL => expect(&port, &[IN, IN, IN]),
                ONCE => expect(&port, &[IN]),
                // One may have been queued while it was level-triggered.
                EDGE => drop(take_edges(1 + usize::from(from == LEVEL))),
                _ => is_fired = take_edges(1) > 0,
            }
            if to != LEVEL {
                expect_nothing(&port);
            }
            pair.drain()?;
            take_edges(usize::from(to == LEVEL));
            pair.send()?;
            match to {
                LEVEL => expect(&port, &[IN, IN, IN]),
                EDGE => {
                    expect(&port, &[IN]);
                    expect_nothing(&port);
                    pair.drain()?;
                    pair.send()?;
                    expect(&port, &[IN]);
                }
                _ if is_fired => expect_nothing(&port),
                _ => {
                    expect(&port, &[IN]);
                    pair.drain()?;
                    pair.send()?;
                    expect_nothing(&port);
                }
            }
        }
    }
    Ok(())
}

#[for_every_backend]
fn a3_enable_enables_what_is_disabled(port: CompletionPort) -> io::Result<()> {
    for trigger in EVERY {
        let pair = Pair::unix()?;
        port.enable(&pair.ours, KEY, EventFilter::OUT, trigger)?;
        port.register(Registration::disable(&pair.ours))?;
        // One that was queued already may come.
        assert!(drain_port(&port).len() <= 1);
        assert_armed_again(&port, &pair, trigger)?;
        port.register(Registration::disable(&pair.ours))?;
    }
    Ok(())
}

/// Open in the contract: a notification that waits in the queue when ENABLE leaves its condition out
/// of the filter. Users, who read the filter in the source, expect D7 to win.
#[for_every_backend]
fn a3_enable_takes_back_what_is_not_wanted_any_more(port: CompletionPort) -> io::Result<()> {
    for trigger in EVERY {
        let pair = Pair::unix()?;
        pair.fill()?;
        port.enable(&pair.ours, KEY, EventFilter::IN, trigger)?;
        pair.send()?;
        // A call in which the port may find out, and queue what it found.
        let packet = Entry::new(99, 0, 0);
        port.post(packet)?;
        for filter in [EventFilter::OUT, EventFilter::HANGUP, EventFilter::NONE] {
            port.enable(&pair.ours, KEY, filter, trigger)?;
        }
        assert_eq!(port.dequeue_one(Some(Duration::ZERO)), Ok(packet));
        expect_nothing(&port);
    }
    Ok(())
}

#[for_every_backend]
fn a3_enable_again_makes_no_second_registration(port: CompletionPort) -> io::Result<()> {
    for kind in Kind::all() {
        let pair = kind.pair()?;
        for _ in 0..10 {
            port.enable(&pair.ours, KEY, EventFilter::IN, ONCE)?;
        }
        assert_eq!(counted(port.snapshot().registrations), 1, "{kind}");
        assert_armed(&port, &pair)?;
        pair.send()?;
        expect_nothing(&port);
        // One REMOVE ends it.
        expect_removed(&port, &pair.ours, KEY)?;
        expect_nothing(&port);
        assert_eq!(counted(port.snapshot().registrations), 0, "{kind}");
        let again = port.register(Registration::remove(&pair.ours));
        assert_eq!(again, Err(RegistrationError::NotFound.into()), "{kind}");
    }
    Ok(())
}

/// ENABLE with another key is refused, whatever else it asks for.
#[track_caller]
fn assert_key_refused(port: &CompletionPort, socket: &Socket) -> io::Result<()> {
    for trigger in EVERY {
        for filter in [EventFilter::ALL, EventFilter::OUT, EventFilter::NONE] {
            let result = port.enable(socket, OTHER_KEY, filter, trigger);
            assert_eq!(result, as_told_by(port, Err(RegistrationError::OtherKey)));
            assert_eq!(result.map_err(RegisterError::code), Err(87));
        }
    }
    Ok(())
}

#[for_every_backend]
fn a4_another_key_is_refused_and_changes_nothing(port: CompletionPort) -> io::Result<()> {
    for case in pairs(Kind::all()) {
        let (pair, trigger) = case?;
        port.enable(&pair.ours, KEY, EventFilter::IN, trigger)?;
        assert_key_refused(&port, &pair.ours)?;
        // Neither the filter nor the trigger has changed.
        assert_armed(&port, &pair)?;
        let persistent = trigger.contains(Trigger::PERSISTENT);
        if persistent {
            assert_armed(&port, &pair)?;
        } else {
            pair.send()?;
            expect_nothing(&port);
        }
    }
    Ok(())
}

#[for_every_backend]
fn a4_another_key_is_refused_while_disabled(port: CompletionPort) -> io::Result<()> {
    for trigger in EVERY {
        let pair = Pair::unix()?;
        port.enable(&pair.ours, KEY, EventFilter::IN, trigger)?;
        port.register(Registration::disable(&pair.ours))?;
        assert_key_refused(&port, &pair.ours)?;
        // It stays disabled.
        pair.send()?;
        expect_nothing(&port);
        pair.drain()?;
        port.enable(&pair.ours, KEY, EventFilter::IN, trigger)?;
        assert_armed(&port, &pair)?;
    }
    Ok(())
}

#[for_every_backend]
fn a4_another_key_is_refused_after_a_one_shot_has_fired(port: CompletionPort) -> io::Result<()> {
    for trigger in [ONCE, EDGE_ONCE] {
        let pair = Pair::unix()?;
        port.enable(&pair.ours, KEY, EventFilter::IN, trigger)?;
        assert_armed(&port, &pair)?;
        assert_key_refused(&port, &pair.ours)?;
        // It stays disarmed.
        pair.send()?;
        expect_nothing(&port);
        pair.drain()?;
        port.enable(&pair.ours, KEY, EventFilter::IN, trigger)?;
        assert_armed(&port, &pair)?;
    }
    Ok(())
}

#[for_every_backend]
fn a4_the_key_changes_by_way_of_remove(port: CompletionPort) -> io::Result<()> {
    for case in pairs(Kind::all()) {
        let (pair, trigger) = case?;
        for key in [KEY, OTHER_KEY, KEY] {
            let entry = Registration::enable(&pair.ours, key, EventFilter::IN, trigger);
            port.register(entry)?;
            pair.send()?;
            expect(&port, &[(key, Events::IN)]);
            pair.drain()?;
            expect_removed(&port, &pair.ours, key)?;
        }
    }
    Ok(())
}

#[for_every_backend]
fn a4_any_value_can_be_a_key(port: CompletionPort) -> io::Result<()> {
    for key in [
        0,
        1,
        usize::MAX,
        usize::MAX - 1,
        1 << 31,
        usize::MAX / 2 + 1,
    ] {
        let pair = Pair::unix()?;
        port.enable(&pair.ours, key, EventFilter::IN, ONCE)?;
        pair.send()?;
        expect(&port, &[(key, Events::IN)]);
        expect_removed(&port, &pair.ours, key)?;
    }
    Ok(())
}

#[for_every_backend]
fn a5_enable_is_refused_until_the_remove_notification_was_dequeued(
    backend: Backend,
) -> io::Result<()> {
    let port = port(backend)?;
    for kind in Kind::all() {
        for trigger in EVERY {
            let pair = kind.pair()?;
            port.enable(&pair.ours, KEY, EventFilter::IN, trigger)?;
            port.register(Registration::remove(&pair.ours))?;
            for again in EVERY {
                for key in [KEY, OTHER_KEY] {
                    let entry = Registration::enable(&pair.ours, key, EventFilter::IN, again);
                    let result = port.register(entry);
                    let refused = as_told_by(&port, Err(RegistrationError::RemovePending));
                    assert_eq!(result, refused, "{kind}");
                    assert_eq!(result.map_err(RegisterError::code), Err(87));
                }
            }
            expect(&port, &[(KEY, Events::REMOVE)]);
            expect_nothing(&port);
            port.enable(&pair.ours, KEY, EventFilter::IN, trigger)?;
            assert_armed(&port, &pair)?;
        }
    }
    Ok(())
}

#[for_every_backend]
fn a5_enable_is_refused_in_the_batch_that_removes(port: CompletionPort) -> io::Result<()> {
    let pair = Pair::unix()?;
    port.enable(&pair.ours, KEY, EventFilter::IN, ONCE)?;
    // Even though the REMOVE notification comes out of this very call.
    let mut batch = [
        Registration::remove(&pair.ours),
        Registration::enable(&pair.ours, KEY, EventFilter::IN, ONCE),
    ];
    let mut entries = [Entry::default(); 4];
    let entries = port.process(&mut batch, &mut entries, None)?;
    assert_eq!(batch[0].result(), Ok(()));
    let refused = as_told_by(&port, Err(RegistrationError::RemovePending));
    assert_eq!(batch[1].result(), refused);
    assert_eq!(entries.len(), 1);
    assert_eq!(entries[0].events(), Events::REMOVE);
    port.enable(&pair.ours, KEY, EventFilter::IN, ONCE)?;
    assert_armed(&port, &pair)
}
