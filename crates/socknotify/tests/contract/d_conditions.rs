//! D. Conditions: what IN, OUT, HANGUP, ERR and REMOVE mean for each kind of socket.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use socket2::Socket;
use socknotify::{
    Backend, CompletionPort, Entry, Error, EventFilter, Events, Registration, Trigger,
};

use crate::support::trigger::{EDGE, EDGE_ONCE, EVERY, LEVEL, ONCE};
use crate::support::{
    CloseAtEnd, ERRORS_END, Kind, PATIENCE, Pair, PollFlags, PortExt, QUIET_PERIOD, asleep,
    begin_connect, drain_port, end_shows_behind_data, expect, expect_idle, expect_nothing,
    expect_quiet, expect_removed, forget_address, is_ready, pairs, port, port_with, quiet_threads,
    refusing, remove_and_drain, reset, this_thread, wait_for_waiting, wait_readiness,
};

const KEY: usize = 41;
const IN: (usize, Events) = (KEY, Events::IN);
const OUT: (usize, Events) = (KEY, Events::OUT);

/// Every set of conditions that can be asked for.
fn filters() -> impl Iterator<Item = EventFilter> {
    (0..=EventFilter::ALL.bits()).map(EventFilter::from_bits_retain)
}

/// The part of these events that a registration with this filter is told.
fn told(events: Events, filter: EventFilter) -> Events {
    events & (Events::from_bits_retain(filter.bits().into()) | Events::ERR)
}

/// What a one-shot look at the conditions of a new socket gives, and no trace of it afterwards.
#[track_caller]
fn look(port: &CompletionPort, socket: &Socket, filter: EventFilter) -> io::Result<Events> {
    port.enable(socket, KEY, filter, ONCE)?;
    let found = drain_port(port);
    assert!(found.len() <= 1, "{found:?}");
    let events = found
        .iter()
        .fold(Events::empty(), |all, &(_, events)| all | events);
    port.register(Registration::remove(socket))?;
    expect(port, &[(KEY, Events::REMOVE)]);
    Ok(events)
}

#[for_every_backend]
fn d1_data_is_in(port: CompletionPort) -> io::Result<()> {
    for case in pairs(Kind::all()) {
        let (pair, trigger) = case?;
        port.enable(&pair.ours, KEY, EventFilter::IN, trigger)?;
        expect_nothing(&port);
        pair.send()?;
        expect(&port, &[IN]);
        pair.drain()?;
        drain_port(&port);
        expect_removed(&port, &pair.ours, KEY)?;
    }
    Ok(())
}

#[for_every_backend]
fn d1_a_datagram_without_data_is_in(port: CompletionPort) -> io::Result<()> {
    for case in pairs(Kind::datagrams()) {
        let (pair, trigger) = case?;
        port.enable(&pair.ours, KEY, EventFilter::ALL, trigger)?;
        drain_some(&port);
        assert_eq!(pair.theirs.send(&[])?, 0);
        wait_readiness(&pair.ours, PollFlags::IN);
        port.enable(&pair.ours, KEY, EventFilter::IN, LEVEL)?;
        expect(&port, &[IN]);
        let mut byte = [std::mem::MaybeUninit::uninit()];
        assert_eq!(pair.ours.recv(&mut byte)?, 0);
        drain_port(&port);
        expect_removed(&port, &pair.ours, KEY)?;
    }
    Ok(())
}

/// Takes a few packets, if there are any.
fn drain_some(port: &CompletionPort) {
    for _ in 0..3 {
        let _ = port.dequeue_one(Some(std::time::Duration::ZERO));
    }
}

#[for_every_backend]
fn d1_the_end_of_a_stream_is_in(port: CompletionPort) -> io::Result<()> {
    for case in pairs(Kind::streams()) {
        let (pair, trigger) = case?;
        port.enable(&pair.ours, KEY, EventFilter::IN, trigger)?;
        drop(pair.theirs);
        expect(&port, &[IN]);
        if trigger == LEVEL {
            // It never ends to hold.
            expect(&port, &[IN, IN, IN]);
        }
        remove_and_drain(&port, &pair.ours)?;
    }
    Ok(())
}

#[for_every_backend]
fn d1_a_waiting_connection_is_in(port: CompletionPort) -> io::Result<()> {
    for kind in Kind::streams() {
        for trigger in EVERY {
            let listener = kind.listener()?;
            let enable = || Registration::enable(&listener.socket, KEY, EventFilter::ALL, trigger);
            port.register(enable())?;
            expect_nothing(&port);
            for _ in 0..3 {
                let _client = listener.connect()?;
                let events = port.dequeue_one(Some(PATIENCE))?.events();
                assert!(
                    events.contains(Events::IN),
                    "{kind}, {trigger:?}: {events:?}"
                );
                let _connection = listener.accept()?;
                // One may have been queued before.
                assert!(drain_port(&port).len() <= usize::from(trigger == LEVEL));
                port.register(enable())?;
                expect_nothing(&port);
            }
            expect_removed(&port, &listener.socket, KEY)?;
        }
    }
    Ok(())
}

#[for_every_backend]
fn d2_room_to_send_is_out(port: CompletionPort) -> io::Result<()> {
    for kind in Kind::all() {
        let pair = kind.pair()?;
        assert_eq!(
            look(&port, &pair.ours, EventFilter::OUT)?,
            Events::OUT,
            "{kind}"
        );
        assert_eq!(
            look(&port, &pair.ours, EventFilter::ALL)?,
            Events::OUT,
            "{kind}"
        );
        if kind.is_stream() {
            let mut sent = pair.fill()?;
            loop {
                let events = look(&port, &pair.ours, EventFilter::ALL)?;
                if events.is_empty() {
                    break;
                }
                // TCP may find room once more, long after it had none.
                let more = pair.fill()?;
                assert!(events == Events::OUT && more > 0, "{kind}: {events:?}");
                sent += more;
            }
            pair.make_room(sent)?;
            assert_eq!(
                look(&port, &pair.ours, EventFilter::ALL)?,
                Events::OUT,
                "{kind}"
            );
        }
    }
    Ok(())
}

#[for_every_backend]
fn d2_a_connect_that_succeeds_is_out(port: CompletionPort) -> io::Result<()> {
    for kind in Kind::streams() {
        for trigger in [ONCE, LEVEL] {
            for filter in [EventFilter::OUT, EventFilter::ALL] {
                let listener = kind.listener()?;
                let client = kind.socket()?;
                begin_connect(&client, &listener.address)?;
                port.enable(&client, KEY, filter, trigger)?;
                expect(&port, &[OUT]);
                assert!(client.take_error()?.is_none());
                remove_and_drain(&port, &client)?;
            }
        }
    }
    Ok(())
}

/// Connections beyond what the listener can keep waiting are not completed until it accepts some.
#[for_every_backend]
fn d2_a_connect_that_takes_time_is_out_when_it_is_done(port: CompletionPort) -> io::Result<()> {
    let kinds: Vec<_> = Kind::tcp().collect();
    let mut waiting = Vec::new();
    for kind in kinds {
        for trigger in EVERY {
            let listener = kind.listener_with_backlog(0)?;
            let mut others = Vec::new();
            let client = loop {
                let client = kind.socket()?;
                begin_connect(&client, &listener.address)?;
                if !is_ready(&client, PollFlags::OUT, Duration::from_millis(50)) {
                    break client;
                }
                others.push(client);
                assert!(others.len() < 100, "the listener takes them all");
            };
            let key = waiting.len();
            let entry = Registration::enable(&client, key, EventFilter::ALL, trigger);
            port.register(entry)?;
            waiting.push((listener, client, others, trigger));
        }
    }
    expect_quiet(&port);
    let mut accepted = Vec::new();
    for (listener, _, others, _) in &waiting {
        for _ in others {
            accepted.push(listener.accept()?);
        }
    }
    // All of them are tried again after a second or so.
    let mut missing: Vec<_> = (0..waiting.len()).collect();
    while !missing.is_empty() {
        let entry = port.dequeue_one(Some(PATIENCE))?;
        assert_eq!(entry.events(), Events::OUT);
        missing.retain(|&key| key != entry.completion_key);
        port.register(Registration::disable(&waiting[entry.completion_key].1))?;
    }
    Ok(())
}

#[for_every_backend]
fn d3_the_end_of_a_stream_is_hangup(port: CompletionPort) -> io::Result<()> {
    for case in pairs(Kind::streams()) {
        let (pair, trigger) = case?;
        port.enable(&pair.ours, KEY, EventFilter::HANGUP, trigger)?;
        pair.send()?;
        expect_nothing(&port);
        if !end_shows_behind_data() {
            pair.drain()?;
        }
        drop(pair.theirs);
        expect(&port, &[(KEY, Events::HANGUP)]);
        if trigger == LEVEL {
            expect(&port, &[(KEY, Events::HANGUP); 3]);
        } else {
            expect_nothing(&port);
        }
        remove_and_drain(&port, &pair.ours)?;
    }
    Ok(())
}

/// Each kind of stream with each trigger, enabled for IN and HANGUP; it is removed after the test.
fn with_streams(port: &CompletionPort, test: impl Fn(&Pair) -> io::Result<()>) -> io::Result<()> {
    for case in pairs(Kind::streams()) {
        let (pair, trigger) = case?;
        let filter = EventFilter::IN | EventFilter::HANGUP;
        port.enable(&pair.ours, KEY, filter, trigger)?;
        test(&pair)?;
        port.register(Registration::remove(&pair.ours))?;
        assert!(drain_port(port).len() <= 2);
    }
    Ok(())
}

#[for_every_backend]
fn d3_half_a_close_by_the_peer_is_hangup(port: CompletionPort) -> io::Result<()> {
    with_streams(&port, |pair| {
        pair.theirs.shutdown(Shutdown::Write)?;
        expect(&port, &[(KEY, Events::IN | Events::HANGUP)]);
        // The other half lives.
        (&pair.ours).write_all(b"more")?;
        pair.make_room(4)?;
        Ok(())
    })
}

#[for_every_backend]
fn d3_an_own_shutdown_for_sending_is_no_hangup(port: CompletionPort) -> io::Result<()> {
    with_streams(&port, |pair| {
        pair.ours.shutdown(Shutdown::Write)?;
        // By receiving: Wine's `WSAPoll` does not report this end.
        assert_eq!((&pair.theirs).read(&mut [0])?, 0);
        expect_nothing(&port);
        // Receiving goes on.
        (&pair.theirs).write_all(b"more")?;
        expect(&port, &[(KEY, Events::IN)]);
        Ok(())
    })
}

#[for_every_backend]
fn d3_a_reset_is_hangup(port: CompletionPort) -> io::Result<()> {
    for case in pairs(Kind::tcp()) {
        let (pair, trigger) = case?;
        port.enable(&pair.ours, KEY, EventFilter::HANGUP, trigger)?;
        reset(pair.theirs)?;
        expect(&port, &[(KEY, Events::HANGUP | Events::ERR)]);
        remove_and_drain(&port, &pair.ours)?;
    }
    Ok(())
}

#[for_every_backend]
fn d3_datagram_sockets_of_the_internet_never_have_hangup(port: CompletionPort) -> io::Result<()> {
    for kind in Kind::udp() {
        for trigger in EVERY {
            let pair = kind.pair()?;
            port.enable(&pair.ours, KEY, EventFilter::HANGUP, trigger)?;
            expect_nothing(&port);
            drop(pair.theirs);
            expect_nothing(&port);
            // Nor when both directions are shut on our side, which some systems call hung up.
            let _ = pair.ours.shutdown(Shutdown::Both);
            expect_quiet(&port);
            port.enable(&pair.ours, KEY, EventFilter::ALL, LEVEL)?;
            for _ in 0..3 {
                let events = port.dequeue_one(Some(PATIENCE))?.events();
                assert!(!events.contains(Events::HANGUP), "{kind}: {events:?}");
            }
            remove_and_drain(&port, &pair.ours)?;
        }
    }
    Ok(())
}

#[cfg(unix)]
#[for_every_backend]
fn d3_a_unix_datagram_socket_that_was_shut_down_for_reading_is_hung_up(
    backend: Backend,
) -> io::Result<()> {
    let port = port(backend)?;
    for trigger in EVERY {
        for how in [Shutdown::Read, Shutdown::Both] {
            for is_armed_first in [true, false] {
                let pair = Kind::UnixDatagram.pair()?;
                let enable = || port.enable(&pair.ours, KEY, EventFilter::HANGUP, trigger);
                if is_armed_first {
                    enable()?;
                    expect_nothing(&port);
                }
                pair.ours.shutdown(how)?;
                if !is_armed_first {
                    enable()?;
                }
                expect(&port, &[(KEY, Events::HANGUP)]);
                port.enable(&pair.ours, KEY, EventFilter::IN | EventFilter::HANGUP, ONCE)?;
                expect(&port, &[(KEY, Events::IN | Events::HANGUP)]);
                port.enable(&pair.ours, KEY, EventFilter::IN, ONCE)?;
                expect(&port, &[IN]);
                expect_removed(&port, &pair.ours, KEY)?;
            }
        }
    }
    Ok(())
}

#[cfg(unix)]
#[for_every_backend]
fn d3_a_unix_datagram_socket_whose_peer_was_closed_is_not_hung_up(
    backend: Backend,
) -> io::Result<()> {
    let port = port(backend)?;
    for trigger in EVERY {
        let pair = Kind::UnixDatagram.pair()?;
        port.enable(&pair.ours, KEY, EventFilter::HANGUP, trigger)?;
        expect_nothing(&port);
        drop(pair.theirs);
        // On some systems that is an error, until it was asked for.
        match pair.ours.take_error()? {
            None => expect_nothing(&port),
            Some(_) => assert!(drain_port(&port).iter().all(|it| it.1 == Events::ERR)),
        }
        remove_and_drain(&port, &pair.ours)?;
    }
    Ok(())
}

/// A failed connect is told, by ERR, HANGUP if that was asked for, and nothing else.
#[track_caller]
fn expect_failed_connect(port: &CompletionPort, filter: EventFilter) -> io::Result<()> {
    let entry = port.dequeue_one(Some(PATIENCE))?;
    assert_eq!(entry.completion_key, KEY);
    assert_eq!(
        entry.events(),
        told(Events::ERR | Events::HANGUP, filter),
        "{filter:?}"
    );
    Ok(())
}

#[for_every_backend]
fn d4_a_failed_connect_is_err_and_hangup_only_if_asked_for(port: CompletionPort) -> io::Result<()> {
    for kind in Kind::tcp() {
        let (_refusing, address) = refusing(kind)?;
        for filter in filters() {
            for trigger in [ONCE, LEVEL] {
                let client = kind.socket()?;
                begin_connect(&client, &address)?;
                port.enable(&client, KEY, filter, trigger)?;
                expect_failed_connect(&port, filter)?;
                if trigger == LEVEL {
                    expect_failed_connect(&port, filter)?;
                } else {
                    expect_nothing(&port);
                }
                assert!(client.take_error()?.is_some());
                remove_and_drain(&port, &client)?;
            }
        }
    }
    Ok(())
}

#[for_every_backend]
fn d4_a_failed_connect_is_told_to_those_who_registered_before_it(
    backend: Backend,
) -> io::Result<()> {
    let port = port(backend)?;
    for kind in Kind::tcp() {
        let (_refusing, address) = refusing(kind)?;
        for filter in filters() {
            for trigger in EVERY {
                let client = kind.socket()?;
                port.enable(&client, KEY, filter, trigger)?;
                expect_nothing(&port);
                begin_connect(&client, &address)?;
                expect_failed_connect(&port, filter)?;
                remove_and_drain(&port, &client)?;
            }
        }
    }
    Ok(())
}

#[for_every_backend]
fn d4_a_reset_is_err_and_hangup_only_if_asked_for(port: CompletionPort) -> io::Result<()> {
    for kind in Kind::tcp() {
        for filter in filters() {
            for trigger in EVERY {
                let pair = kind.pair()?;
                port.enable(&pair.ours, KEY, filter, trigger)?;
                // A connection that is alive may be writable.
                drain_some(&port);
                port.enable(&pair.ours, KEY, filter, trigger)?;
                drain_some(&port);
                reset(pair.theirs)?;
                wait_readiness(&pair.ours, PollFlags::ERR | PollFlags::HUP);
                let fired = filter.contains(EventFilter::OUT) && trigger.contains(Trigger::ONESHOT);
                if fired {
                    port.enable(&pair.ours, KEY, filter, trigger)?;
                }
                // C5: what held before ENABLE need not be told as an edge.
                let may_be_silent = fired && trigger == EDGE_ONCE;
                let patience = if may_be_silent {
                    Duration::ZERO
                } else {
                    PATIENCE
                };
                let mut events = match port.dequeue_one(Some(patience)) {
                    Err(Error::TimedOut) if may_be_silent => {
                        expect_removed(&port, &pair.ours, KEY)?;
                        continue;
                    }
                    found => found?.events(),
                };
                if trigger == LEVEL && !events.contains(Events::ERR) {
                    // That one was queued before.
                    events = port.dequeue_one(Some(PATIENCE))?.events();
                }
                assert!(
                    events.contains(Events::ERR),
                    "{trigger:?}, {filter:?}: {events:?}"
                );
                let hung_up = filter.contains(EventFilter::HANGUP);
                assert_eq!(
                    events.contains(Events::HANGUP),
                    hung_up,
                    "{filter:?}: {events:?}"
                );
                assert_eq!(events, told(events, filter));
                remove_and_drain(&port, &pair.ours)?;
            }
        }
    }
    Ok(())
}

#[for_every_backend]
fn d4_err_lasts_until_it_is_read(port: CompletionPort) -> io::Result<()> {
    for kind in Kind::tcp() {
        let pair = kind.pair()?;
        port.enable(&pair.ours, KEY, EventFilter::NONE, LEVEL)?;
        reset(pair.theirs)?;
        expect(&port, &[(KEY, Events::ERR); 5]);
        if ERRORS_END {
            assert!(pair.ours.take_error()?.is_some());
            // One may have been queued before that.
            assert!(drain_port(&port).len() <= 1);
            expect_quiet(&port);
        }
    }
    Ok(())
}

#[cfg(unix)]
#[for_every_backend]
fn d4_a_refused_datagram_is_err(port: CompletionPort) -> io::Result<()> {
    for kind in Kind::udp() {
        for filter in [EventFilter::NONE, EventFilter::IN, EventFilter::HANGUP] {
            for trigger in EVERY {
                let pair = kind.pair()?;
                let enable = || Registration::enable(&pair.ours, KEY, filter, trigger);
                port.register(enable())?;
                // It is connected to itself now, and takes from nobody else. Closed, its address might be given to another.
                pair.theirs.connect(&pair.theirs.local_addr()?)?;
                expect_nothing(&port);
                pair.ours.send(b"to nobody")?;
                let entry = port.dequeue_one(Some(PATIENCE))?;
                let events = entry.events();
                assert!(
                    events.contains(Events::ERR),
                    "{kind}, {filter:?}: {events:?}"
                );
                assert_eq!(events, told(events, filter), "{kind}");
                assert!(!events.contains(Events::HANGUP), "{kind}");
                assert!(pair.ours.take_error()?.is_some());
                drain_port(&port);
                expect_quiet(&port);
                expect_removed(&port, &pair.ours, KEY)?;
            }
        }
    }
    Ok(())
}

// Others end such a stream without an error.
#[cfg(target_os = "linux")]
#[for_every_backend]
fn d4_unread_data_at_the_peers_close_is_err_on_a_unix_stream(
    port: CompletionPort,
) -> io::Result<()> {
    for trigger in EVERY {
        let pair = Kind::UnixStream.pair()?;
        port.enable(&pair.ours, KEY, EventFilter::NONE, trigger)?;
        (&pair.ours).write_all(b"never read")?;
        drop(pair.theirs);
        expect(&port, &[(KEY, Events::ERR)]);
        assert!(pair.ours.take_error()?.is_some());
        drain_port(&port);
        expect_quiet(&port);
    }
    Ok(())
}

#[for_every_backend]
fn d5_remove_comes_whatever_the_filter_is(port: CompletionPort) -> io::Result<()> {
    for kind in Kind::all() {
        for filter in filters() {
            for trigger in EVERY {
                let pair = kind.pair()?;
                pair.send()?;
                port.enable(&pair.ours, KEY, filter, trigger)?;
                drain_some(&port);
                port.register(Registration::remove(&pair.ours))?;
                let found = drain_port(&port);
                let (last, before) = found.split_last().expect("a REMOVE notification");
                assert!(last.1.contains(Events::REMOVE), "{found:?}");
                assert!(before.len() <= 1, "{found:?}");
                for &(key, events) in &found {
                    assert_eq!(key, KEY);
                    let rest = events - Events::REMOVE;
                    assert_eq!(rest, told(rest, filter), "{filter:?}");
                }
            }
        }
    }
    Ok(())
}

/// TCP sockets with which nothing was done, or no more than bind.
fn never_connected() -> io::Result<Vec<(Kind, Socket)>> {
    let mut sockets = Vec::new();
    for kind in Kind::tcp() {
        sockets.push((kind, kind.socket()?));
        let bound = kind.socket()?;
        bound.bind(&kind.any_address())?;
        sockets.push((kind, bound));
    }
    Ok(sockets)
}

#[for_every_backend]
fn d6_a_stream_that_was_never_connected_holds_no_condition(backend: Backend) -> io::Result<()> {
    for trigger in EVERY {
        let port = port(backend)?;
        let mut all = Vec::new();
        for filter in filters() {
            for (_, socket) in never_connected()? {
                port.enable(&socket, KEY, filter, trigger)?;
                all.push((filter, socket));
            }
        }
        // Nothing, at no cost, however often it is asked for.
        expect_quiet(&port);
        for (filter, socket) in &all {
            port.enable(socket, KEY, *filter, trigger)?;
            expect_nothing(&port);
        }
        expect_quiet(&port);
        for (_, socket) in &all {
            expect_removed(&port, socket, KEY)?;
        }
    }
    Ok(())
}

#[for_every_backend]
fn d6_the_connect_is_seen_by_who_registered_before_it(port: CompletionPort) -> io::Result<()> {
    for trigger in EVERY {
        for filter in [EventFilter::OUT, EventFilter::ALL] {
            for (kind, client) in never_connected()? {
                let listener = kind.listener()?;
                port.enable(&client, KEY, filter, trigger)?;
                expect_nothing(&port);
                begin_connect(&client, &listener.address)?;
                expect(&port, &[OUT]);
                if trigger == LEVEL {
                    expect(&port, &[OUT, OUT, OUT]);
                } else {
                    expect_nothing(&port);
                }
                remove_and_drain(&port, &client)?;
            }
        }
    }
    Ok(())
}

#[for_every_backend]
fn d6_the_connect_is_seen_by_a_thread_that_waits_since_before_the_registration(
    backend: Backend,
) -> io::Result<()> {
    for trigger in EVERY {
        for (kind, client) in never_connected()? {
            let port = port(backend)?;
            let listener = kind.listener()?;
            thread::scope(|scope| -> io::Result<()> {
                let close = CloseAtEnd(&port, &[]);
                let (tell, told) = channel();
                let port = &port;
                let waiting = scope.spawn(move || {
                    tell.send(this_thread()).expect("someone listens");
                    port.dequeue_one(Some(PATIENCE))
                });
                let thread = told.recv().expect("a thread");
                wait_for_waiting(port, 1);
                asleep([thread]);
                port.enable(&client, KEY, EventFilter::ALL, trigger)?;
                thread::sleep(QUIET_PERIOD);
                assert!(!waiting.is_finished(), "{kind}, {trigger:?}");
                begin_connect(&client, &listener.address)?;
                let entry = waiting.join().expect("no panic")?;
                assert_eq!(
                    (entry.completion_key, entry.events()),
                    OUT,
                    "{kind}, {trigger:?}"
                );
                drop(close);
                Ok(())
            })?;
        }
    }
    Ok(())
}

/// One call enables a socket again, and finds out about the connect of another one.
#[for_every_backend]
fn d6_a_connect_does_not_hide_what_is_enabled_meanwhile(backend: Backend) -> io::Result<()> {
    const OTHER: usize = KEY + 1;
    for (kind, client) in never_connected()? {
        let port = port(backend)?;
        let pair = kind.pair()?;
        let enable = || Registration::enable(&pair.ours, OTHER, EventFilter::IN, ONCE);
        let listener = kind.listener()?;
        port.enable(&client, KEY, EventFilter::OUT, ONCE)?;
        port.register(enable())?;
        pair.send()?;
        expect(&port, &[(OTHER, Events::IN)]);
        pair.drain()?;
        expect_nothing(&port);
        begin_connect(&client, &listener.address)?;
        wait_readiness(&client, PollFlags::OUT);
        let mut entries = [Entry::default(); 4];
        let found = port.process(&mut [enable()], &mut entries, Some(PATIENCE))?;
        assert_eq!(found.len(), 1, "{kind}");
        assert_eq!((found[0].completion_key, found[0].events()), OUT, "{kind}");
        pair.send()?;
        expect(&port, &[(OTHER, Events::IN)]);
    }
    Ok(())
}

#[for_every_backend]
fn d6_the_listen_is_seen_by_who_registered_before_it(port: CompletionPort) -> io::Result<()> {
    for trigger in EVERY {
        for kind in Kind::tcp() {
            let socket = kind.socket()?;
            port.enable(&socket, KEY, EventFilter::ALL, trigger)?;
            socket.bind(&kind.any_address())?;
            let address = socket.local_addr()?;
            expect_nothing(&port);
            socket.listen(8)?;
            expect_nothing(&port);
            let client = kind.socket()?;
            begin_connect(&client, &address)?;
            expect(&port, &[IN]);
            remove_and_drain(&port, &socket)?;
            forget_address(&address)?;
        }
    }
    Ok(())
}

#[for_every_backend]
fn d6_a_whole_life_after_registering_before_the_connect(port: CompletionPort) -> io::Result<()> {
    for kind in Kind::tcp() {
        for trigger in [EDGE, LEVEL] {
            let listener = kind.listener()?;
            let client = kind.socket()?;
            let filter = EventFilter::IN | EventFilter::HANGUP;
            port.enable(&client, KEY, filter, trigger)?;
            expect_nothing(&port);
            begin_connect(&client, &listener.address)?;
            let server = listener.accept()?;
            expect_nothing(&port);
            (&server).write_all(b"x")?;
            expect(&port, &[IN]);
            assert_eq!(crate::support::drain(&client)?, 1);
            assert!(drain_port(&port).len() <= usize::from(trigger == LEVEL));
            drop(server);
            expect(&port, &[(KEY, Events::IN | Events::HANGUP)]);
            remove_and_drain(&port, &client)?;
        }
    }
    Ok(())
}

#[for_every_backend]
fn d6_a_datagram_socket_may_be_registered_before_bind(port: CompletionPort) -> io::Result<()> {
    for kind in Kind::datagrams() {
        for trigger in EVERY {
            let socket = kind.socket()?;
            port.enable(&socket, KEY, EventFilter::IN, trigger)?;
            expect_nothing(&port);
            socket.bind(&kind.any_address())?;
            let address = socket.local_addr()?;
            expect_nothing(&port);
            kind.socket()?.send_to(b"hello", &address)?;
            expect(&port, &[IN]);
            assert_eq!(crate::support::drain(&socket)?, 5);
            drain_port(&port);
            expect_removed(&port, &socket, KEY)?;
            forget_address(&address)?;
        }
    }
    Ok(())
}

#[for_every_backend]
fn d7_conditions_outside_the_filter_never_show(port: CompletionPort) -> io::Result<()> {
    for kind in Kind::all() {
        for filter in filters() {
            let fresh = kind.pair()?;
            let expect = |events| -> io::Result<()> {
                let shown = look(&port, &fresh.ours, filter)?;
                assert_eq!(shown, told(events, filter), "{kind}");
                Ok(())
            };
            expect(Events::OUT)?;
            fresh.send()?;
            expect(Events::IN | Events::OUT)?;
            if !kind.is_stream() {
                continue;
            }
            if !end_shows_behind_data() {
                fresh.drain()?;
            }
            fresh.theirs.shutdown(Shutdown::Write)?;
            wait_readiness(&fresh.ours, PollFlags::RDHUP);
            expect(Events::IN | Events::OUT | Events::HANGUP)?;
        }
    }
    Ok(())
}

/// Conditions that hold and were not asked for must neither come nor keep a waiting thread busy, even
/// those that the system reports unasked.
#[for_every_backend]
fn d7_what_nobody_asked_for_costs_no_time(backend: Backend) -> io::Result<()> {
    for trigger in EVERY {
        let port = port(backend)?;
        let mut kept = Vec::new();
        for kind in Kind::streams() {
            let pair = kind.pair()?;
            port.enable(&pair.ours, KEY, EventFilter::NONE, trigger)?;
            pair.send()?;
            // Both directions are over, and no error.
            pair.theirs.shutdown(Shutdown::Write)?;
            pair.ours.shutdown(Shutdown::Write)?;
            wait_readiness(&pair.ours, PollFlags::HUP);
            kept.push(pair);
        }
        expect_quiet(&port);
        // Nor do those that come after the registration was enabled again.
        for pair in &kept {
            port.enable(&pair.ours, KEY, EventFilter::NONE, trigger)?;
        }
        expect_quiet(&port);
    }
    Ok(())
}

/// Threads that wait for nothing sleep, and so does the system.
#[track_caller]
fn expect_idle_threads(port: &CompletionPort) {
    expect_idle(|| quiet_threads(port, 4, QUIET_PERIOD * 3));
}

#[for_every_backend]
fn d6_a_tcp_socket_that_was_never_connected_costs_no_time(backend: Backend) -> io::Result<()> {
    for trigger in EVERY {
        for permits in [1, 4] {
            let port = port_with(backend, permits)?;
            let mut sockets = Vec::new();
            for filter in filters() {
                for (_, socket) in never_connected()? {
                    port.enable(&socket, KEY, filter, trigger)?;
                    sockets.push((socket, filter));
                }
            }
            expect_idle_threads(&port);
            for (socket, filter) in &sockets {
                port.enable(socket, KEY, *filter, trigger)?;
            }
            expect_idle_threads(&port);
        }
    }
    Ok(())
}

/// Hung up on both sides, without an error: nobody asked for that.
#[for_every_backend]
fn d7_a_hung_up_socket_with_filter_none_costs_no_time(backend: Backend) -> io::Result<()> {
    for trigger in EVERY {
        for permits in [1, 4] {
            let port = port_with(backend, permits)?;
            let mut pairs = Vec::new();
            for kind in Kind::streams().chain(Kind::streams()) {
                let pair = kind.pair()?;
                // Registered before it is hung up, and after.
                let is_early = pairs.len() % 2 == 0;
                if is_early {
                    port.enable(&pair.ours, KEY, EventFilter::NONE, trigger)?;
                }
                pair.theirs.shutdown(Shutdown::Write)?;
                pair.ours.shutdown(Shutdown::Write)?;
                wait_readiness(&pair.ours, PollFlags::HUP);
                if !is_early {
                    port.enable(&pair.ours, KEY, EventFilter::NONE, trigger)?;
                }
                pairs.push(pair);
            }
            expect_idle_threads(&port);
            for pair in &pairs {
                port.enable(&pair.ours, KEY, EventFilter::NONE, trigger)?;
            }
            expect_idle_threads(&port);
        }
    }
    Ok(())
}
