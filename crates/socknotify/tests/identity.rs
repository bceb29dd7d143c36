//! Numbers that are used again, under the same completion key (A2, B4, B10, D3, F5, G2, G3).
//!
//! A one-shot fires and is delivered. Its socket is closed without REMOVE, and something else gets its
//! number. That is ENABLEd under the same key, in one batch with other fired one-shots, while it is
//! ready. It is a new registration all the same, of what has the number now.
//!
//! Others are closed while nothing has come of them yet: what has their numbers then is not registered.
//!
//! A program of its own, because of the numbers.

#[macro_use]
extern crate socknotify_test_macros;

#[macro_use]
mod support;

use std::io::{self, Write};
use std::net::Shutdown;
use std::time::Duration;
#[cfg(unix)]
use std::{os::fd::OwnedFd, panic::resume_unwind, thread};

use socket2::Socket;
#[cfg(unix)]
use socknotify::Operation;
use socknotify::{
    Backend, CompletionPort, Entry, EventFilter, Events, Registration, RegistrationError,
};

use support::trigger::{EVERY, ONCE};
use support::{
    AsSocket, Kind, PATIENCE, Pair, PollFlags, PortExt, as_told_by, counted, drain_port,
    end_shows_behind_data, expect, expect_nothing, expect_quiet, expect_removed, port, take_number,
    wait_readiness,
};
#[cfg(unix)]
use support::{CloseAtEnd, QUIET_PERIOD, asleep, raw, this_thread, wait_for_waiting};

/// The key of the socket that is closed, and of what has its number then.
const KEY: usize = 0;
const IN: (usize, Events) = (KEY, Events::IN);

/// How many one-shots are armed in the batch beside the one in question, and where in the batch that is.
const BATCHES: [(usize, usize); 4] = [(4, 0), (4, 4), (9, 5), (40, 20)];

/// A registration whose one notification was delivered, and others like it whose sockets are ready.
struct Fired {
    port: CompletionPort,
    old: Pair,
    others: Vec<Pair>,
    /// Where in the batch the old socket's successor is.
    place: usize,
    filter: EventFilter,
}

impl Fired {
    fn new(backend: Backend, kind: Kind, batch: (usize, usize)) -> io::Result<Fired> {
        let (others, place) = batch;
        let port = port(backend)?;
        let old = kind.pair()?;
        let others = (0..others)
            .map(|_| Pair::unix())
            .collect::<io::Result<Vec<_>>>()?;
        let filter = EventFilter::IN | EventFilter::HANGUP;
        for (key, pair) in std::iter::once(&old).chain(&others).enumerate() {
            port.enable(&pair.ours, key, filter, ONCE)?;
            pair.send()?;
            expect(&port, &[(key, Events::IN)]);
        }
        Ok(Fired {
            port,
            old,
            others,
            place,
            filter,
        })
    }

    /// Closes the old socket, and gives its number to another.
    fn replace(self, new: Socket) -> io::Result<(Replaced, Socket)> {
        let new = take_number(self.old.ours, new)?;
        let replaced = Replaced {
            port: self.port,
            others: self.others,
            place: self.place,
            filter: self.filter,
        };
        Ok((replaced, new))
    }
}

/// The same, with the old socket closed.
struct Replaced {
    port: CompletionPort,
    others: Vec<Pair>,
    place: usize,
    filter: EventFilter,
}

impl Replaced {
    /// ENABLEs the new one under the old key, in one batch with the others. Says what came of it.
    fn enable(&self, new: &impl AsSocket) -> io::Result<Result<(), RegistrationError>> {
        let mut batch: Vec<_> = self
            .others
            .iter()
            .enumerate()
            .map(|(index, pair)| Registration::enable(&pair.ours, index + 1, self.filter, ONCE))
            .collect();
        let enable = Registration::enable(new, KEY, self.filter, ONCE);
        batch.insert(self.place, enable);
        self.port
            .process(&mut batch, &mut [], Some(Duration::ZERO))?;
        let others = batch.iter().enumerate();
        for (_, other) in others.filter(|&(index, _)| index != self.place) {
            assert_eq!(other.result(), Ok(()));
        }
        Ok(batch[self.place].result())
    }

    /// Dequeues what came, which is one notification of each of the others, and says what came under
    /// the old key.
    #[track_caller]
    fn dequeue(&self) -> Option<Events> {
        let mut found = drain_port(&self.port);
        found.sort_by_key(|&(key, _)| key);
        let mut ours = None;
        if let Some(&(KEY, events)) = found.first() {
            ours = Some(events);
            found.remove(0);
        }
        let wanted = (1..=self.others.len()).map(|key| (key, Events::IN));
        assert_eq!(found, wanted.collect::<Vec<_>>());
        ours
    }
}

/// A new socket that is ready has the old one's number, and was ENABLEd under its key.
fn enabled_again(
    backend: Backend,
    batch: (usize, usize),
) -> io::Result<(Replaced, Socket, Socket)> {
    let (new, mut theirs) = Pair::unix()?.into_ends();
    theirs.write_all(b"x")?;
    let (replaced, new) = Fired::new(backend, Kind::LOCAL, batch)?.replace(new)?;
    assert_eq!(replaced.enable(&new)?, Ok(()));
    Ok((replaced, new, theirs))
}

#[for_every_backend]
fn b3_a_new_socket_under_an_old_key_can_be_disabled(backend: Backend) -> io::Result<()> {
    for batch in BATCHES {
        for delivered in [false, true] {
            let (replaced, new, mut theirs) = enabled_again(backend, batch)?;
            if delivered {
                assert_eq!(replaced.dequeue(), Some(Events::IN));
            }
            let disabled = replaced.port.register(Registration::disable(&new));
            assert_eq!(disabled, Ok(()), "{batch:?}, delivered: {delivered}");
            drain_port(&replaced.port);
            theirs.write_all(b"x")?;
            expect_nothing(&replaced.port);
            expect_removed(&replaced.port, &new, KEY)?;
        }
    }
    Ok(())
}

#[for_every_backend]
fn b4_a_new_socket_under_an_old_key_can_be_removed(backend: Backend) -> io::Result<()> {
    for batch in BATCHES {
        for delivered in [false, true] {
            let (replaced, new, _theirs) = enabled_again(backend, batch)?;
            if delivered {
                assert_eq!(replaced.dequeue(), Some(Events::IN));
            }
            let port = &replaced.port;
            let removed = port.register(Registration::remove(&new));
            assert_eq!(removed, Ok(()), "{batch:?}, delivered: {delivered}");
            let found = drain_port(port);
            let removals = found
                .iter()
                .filter(|(key, events)| *key == KEY && events.contains(Events::REMOVE));
            assert_eq!(removals.count(), 1, "{found:?}");
            assert_eq!(
                counted(port.snapshot().registrations),
                replaced.others.len()
            );
        }
    }
    Ok(())
}

#[for_every_backend]
fn a2_a_new_socket_under_an_old_key_belongs_to_its_port(backend: Backend) -> io::Result<()> {
    for batch in BATCHES {
        for delivered in [false, true] {
            let (replaced, new, mut theirs) = enabled_again(backend, batch)?;
            if delivered {
                assert_eq!(replaced.dequeue(), Some(Events::IN));
            }
            let elsewhere = port(backend)?;
            let enable = || Registration::enable(&new, 9, EventFilter::IN, ONCE);
            assert_eq!(
                elsewhere.register(enable()),
                as_told_by(&elsewhere, Err(RegistrationError::OtherPort)),
                "{batch:?}, delivered: {delivered}"
            );
            expect_nothing(&elsewhere);
            if !delivered {
                assert_eq!(replaced.dequeue(), Some(Events::IN));
            }
            theirs.write_all(b"x")?;
            expect_removed(&replaced.port, &new, KEY)?;
            elsewhere.register(enable())?;
            expect(&elsewhere, &[(9, Events::IN)]);
        }
    }
    Ok(())
}

#[for_every_backend]
fn d3_a_new_stream_under_the_key_of_a_datagram_socket_is_hung_up(
    backend: Backend,
) -> io::Result<()> {
    for old in Kind::datagrams() {
        for kind in Kind::streams() {
            for batch in BATCHES {
                let new = kind.pair()?;
                if end_shows_behind_data() {
                    new.send()?;
                }
                new.theirs.shutdown(Shutdown::Write)?;
                wait_readiness(&new.ours, PollFlags::RDHUP);
                let (replaced, ours) = Fired::new(backend, old, batch)?.replace(new.ours)?;
                assert_eq!(replaced.enable(&ours)?, Ok(()));
                assert_eq!(
                    replaced.dequeue(),
                    Some(Events::IN | Events::HANGUP),
                    "{kind} under the number of {old}, {batch:?}"
                );
            }
        }
    }
    Ok(())
}

#[for_every_backend]
fn d3_a_new_datagram_socket_under_the_key_of_a_stream_is_not_hung_up(
    backend: Backend,
) -> io::Result<()> {
    for old in Kind::streams() {
        for kind in Kind::udp() {
            for batch in BATCHES {
                let new = kind.pair()?;
                new.send()?;
                // The kernel calls it hung up from now on.
                new.ours.shutdown(Shutdown::Both)?;
                let (replaced, ours) = Fired::new(backend, old, batch)?.replace(new.ours)?;
                assert_eq!(replaced.enable(&ours)?, Ok(()));
                assert_eq!(
                    replaced.dequeue(),
                    Some(Events::IN),
                    "{kind} under the number of {old}, {batch:?}"
                );
            }
        }
    }
    Ok(())
}

#[cfg(unix)]
#[for_every_backend]
fn b10_what_is_no_socket_is_refused_under_the_number_of_one(backend: Backend) -> io::Result<()> {
    for batch in BATCHES {
        let fired = Fired::new(backend, Kind::LOCAL, batch)?;
        let (reader, writer) = rustix::pipe::pipe()?;
        rustix::io::write(&writer, b"x")?;
        let mut number = OwnedFd::from(fired.old.ours);
        rustix::io::dup2(&reader, &mut number)?;
        let replaced = Replaced {
            port: fired.port,
            others: fired.others,
            place: fired.place,
            filter: fired.filter,
        };
        let refused = replaced.enable(&number)?;
        assert_eq!(refused, Err(RegistrationError::NotASocket), "{batch:?}");
        assert_eq!(replaced.dequeue(), None, "{batch:?}");
        assert_eq!(
            counted(replaced.port.snapshot().registrations),
            replaced.others.len()
        );
    }
    Ok(())
}

/// Whatever became of it, the new registration goes on like any other, alone and in batches.
#[for_every_backend]
fn c6_a_new_socket_under_an_old_key_is_armed_again_like_any(backend: Backend) -> io::Result<()> {
    for batch in BATCHES {
        let (replaced, new, mut theirs) = enabled_again(backend, batch)?;
        assert_eq!(replaced.dequeue(), Some(Events::IN));
        let port = &replaced.port;
        let mut entries = [Entry::default(); 4];
        for _ in 0..300 {
            let mut batch = [Registration::enable(&new, KEY, EventFilter::IN, ONCE)];
            let found = port.process(&mut batch, &mut entries, Some(PATIENCE))?;
            let found: Vec<_> = found
                .iter()
                .map(|entry| (entry.completion_key, entry.events()))
                .collect();
            assert_eq!(found, [IN]);
        }
        assert_eq!(replaced.enable(&new)?, Ok(()));
        assert_eq!(replaced.dequeue(), Some(Events::IN));
        support::drain(&new)?;
        port.enable(&new, KEY, EventFilter::IN, ONCE)?;
        expect_nothing(port);
        theirs.write_all(b"x")?;
        expect(port, &[IN]);
        expect_removed(port, &new, KEY)?;
    }
    Ok(())
}

/// Each batch arms one-shots that are ready, which is enough for the call, and one whose descriptor refers to
/// another socket by then.
#[cfg(unix)]
#[for_every_backend]
fn f5_new_sockets_under_an_old_key_starve_no_other_that_is_ready(
    backend: Backend,
) -> io::Result<()> {
    const OTHER: (usize, Events) = (99, Events::IN);
    for batch in BATCHES {
        let Fired {
            port,
            old,
            others,
            place,
            filter,
        } = Fired::new(backend, Kind::LOCAL, batch)?;
        let other = Pair::unix()?;
        port.enable(&other.ours, OTHER.0, filter, ONCE)?;
        other.send()?;
        let mut entries = vec![Entry::default(); others.len() + 2];
        let mut number = OwnedFd::from(old.ours);
        let mut _peer = old.theirs;
        let mut round = || -> io::Result<bool> {
            // The descriptor of the old one refers to the new one from here on.
            let new = Pair::unix()?;
            rustix::io::dup2(&new.ours, &mut number)?;
            _peer = new.theirs;
            let ready = others.iter().enumerate();
            let mut batch: Vec<_> = ready
                .map(|(index, pair)| Registration::enable(&pair.ours, index + 1, filter, ONCE))
                .collect();
            batch.insert(place, Registration::enable(&number, KEY, filter, ONCE));
            let found = port.process(&mut batch, &mut entries, Some(PATIENCE))?;
            let mut found = found
                .iter()
                .map(|entry| (entry.completion_key, entry.events()));
            Ok(found.any(|found| found == OTHER))
        };
        let mut rounds = 1;
        while !round()? {
            rounds += 1;
            assert!(rounds < 100, "{batch:?}: not notified in {rounds} rounds");
        }
    }
    Ok(())
}

/// Unconnected streams are hung up and writable for the kernel, which is nothing to the port.
#[for_every_backend]
fn g2_an_unconnected_stream_that_is_gone_is_not_notified_for_what_has_its_number(
    backend: Backend,
) -> io::Result<()> {
    for kind in Kind::streams() {
        for trigger in EVERY {
            let port = port(backend)?;
            // Some other has been notified before.
            let other = Pair::unix()?;
            port.enable(&other.ours, 1, EventFilter::OUT, ONCE)?;
            expect(&port, &[(1, Events::OUT)]);

            let old = kind.socket()?;
            let filter = EventFilter::IN | EventFilter::OUT;
            port.enable(&old, KEY, filter, trigger)?;
            expect_quiet(&port);
            // Ready, and not registered.
            let new = Pair::unix()?;
            new.send()?;
            let _new = take_number(old, new.ours)?;
            expect_quiet(&port);
            expect_nothing(&port);
        }
    }
    Ok(())
}

/// The promise not to close it was not made: the call has only the number. Windows has the registration live
/// on with the duplicate. It may be notified once (G3).
#[cfg(unix)]
#[for_every_backend]
fn g3_a_socket_closed_while_the_call_that_registered_it_waits(backend: Backend) -> io::Result<()> {
    for trigger in EVERY {
        for is_used_again in [false, true] {
            let port = port(backend)?;
            let old = Pair::unix()?;
            let number = raw(&old.ours);
            let posted = Entry::new(1, 2, 3);
            thread::scope(|scope| {
                let _close = CloseAtEnd(&port, &[]);
                let (tell, told) = std::sync::mpsc::channel();
                let port = &port;
                let waiting = scope.spawn(move || {
                    let _ = tell.send(this_thread());
                    // SAFETY: nothing relies on what the descriptor refers to.
                    let mut enable = unsafe { Registration::from_raw(number) };
                    enable.operation = Operation::ENABLE;
                    enable.event_filter = EventFilter::IN;
                    enable.trigger = trigger;
                    enable.completion_key = KEY;
                    let mut entries = [Entry::default(); 4];
                    let found = port.process(&mut [enable], &mut entries, Some(PATIENCE))?;
                    let mut found = found.to_vec();
                    while !found.contains(&posted) {
                        found.push(port.dequeue_one(Some(PATIENCE))?);
                    }
                    Ok::<_, socknotify::Error>(found)
                });
                wait_for_waiting(port, 1);
                asleep(told.recv());
                let _duplicate = old.ours.try_clone()?;
                let new = Pair::unix()?;
                let _new = match is_used_again {
                    true => Some(take_number(old.ours, new.ours)?),
                    false => {
                        drop(old.ours);
                        None
                    }
                };
                (&old.theirs).write_all(b"x")?;
                thread::sleep(QUIET_PERIOD);
                port.post(posted)?;
                let found = waiting
                    .join()
                    .unwrap_or_else(|panic| resume_unwind(panic))?;
                let (told, rest): (Vec<Entry>, Vec<Entry>) =
                    found.iter().partition(|it| **it != posted);
                assert_eq!(rest.len(), 1);
                assert!(
                    told.len() <= 1 && told.iter().all(|it| it.completion_key == KEY),
                    "{trigger:?}, used again: {is_used_again}: {told:?}"
                );
                io::Result::Ok(())
            })?;
        }
    }
    Ok(())
}
