//! E. Dequeuing: what comes out, in what order, and when.

use std::io;
use std::thread;
use std::time::Duration;

use socket2::{Domain, Socket, Type};
use socknotify::{
    Backend, CompletionPort, Entry, Error, EventFilter, Events, Registration, RegistrationError,
};

use crate::support::trigger::{EVERY, LEVEL, ONCE};
use crate::support::{
    CloseAtEnd, Kind, PATIENCE, Pair, PortExt, QUIET_PERIOD, as_told_by, asleep, collect,
    drain_port, expect, expect_no_early_end, expect_nothing, expect_packets, notification, port,
    port_with, take_number, this_thread, wait_for_waiting, wait_in_vain, wait_until,
};

const POSTED: [Entry; 3] = [
    Entry::new(101, 1, 1),
    Entry::new(102, 2, 2),
    Entry::new(103, 3, 3),
];

/// Unix pairs that are registered for IN with their index as the key.
fn registered(port: &CompletionPort, count: usize) -> io::Result<Vec<Pair>> {
    (0..count)
        .map(|key| {
            let pair = Pair::unix()?;
            port.enable(&pair.ours, key, EventFilter::IN, ONCE)?;
            Ok(pair)
        })
        .collect()
}

#[for_every_backend]
fn e1_posted_packets_come_out_in_order(port: CompletionPort) -> io::Result<()> {
    for key in 0..1000 {
        port.post(Entry::new(key, 0, 0))?;
    }
    let mut entries = [Entry::default(); 7];
    let mut next = 0;
    while next < 1000 {
        for entry in port.dequeue(&mut entries, Some(Duration::ZERO))? {
            assert_eq!(entry.completion_key, next);
            next += 1;
        }
    }
    expect_nothing(&port);
    Ok(())
}

/// The posted packets of these, in their order.
fn posted(found: &[Entry]) -> Vec<Entry> {
    let posted = found.iter().filter(|entry| POSTED.contains(entry));
    posted.copied().collect()
}

/// Whatever becomes ready meanwhile, and is dequeued before them or after.
#[for_every_backend]
fn e1_posted_packets_keep_their_order_among_sockets(backend: Backend) -> io::Result<()> {
    for trigger in EVERY {
        for room in [1, 2, 16] {
            let port = port(backend)?;
            let pairs = registered(&port, 4)?;
            for (key, pair) in pairs.iter().enumerate() {
                port.enable(&pair.ours, key, EventFilter::IN, trigger)?;
            }
            pairs[2].send()?;
            port.post(POSTED[0])?;
            pairs[0].send()?;
            pairs[3].send()?;
            port.post(POSTED[1])?;
            port.post(POSTED[2])?;
            pairs[1].send()?;
            let mut found = Vec::new();
            let mut entries = [Entry::default(); 16];
            let is_complete = |found: &[Entry]| {
                let is_told = |key| found.contains(&notification(key, Events::IN));
                (0..4).all(is_told) && posted(found).len() == 3
            };
            while !is_complete(&found) {
                found.extend_from_slice(port.dequeue(&mut entries[..room], Some(PATIENCE))?);
            }
            assert_eq!(posted(&found), POSTED);
            if trigger != LEVEL {
                assert_eq!(found.len(), 7, "{found:?}");
                expect_nothing(&port);
            }
        }
    }
    Ok(())
}

#[for_every_backend]
fn e2_as_many_as_there_is_room_for(port: CompletionPort) -> io::Result<()> {
    for timeout in [None, Some(Duration::ZERO), Some(PATIENCE)] {
        for key in 0..10 {
            port.post(Entry::new(key, 0, 0))?;
        }
        let mut sizes = Vec::new();
        let mut entries = [Entry::default(); 4];
        while sizes.iter().sum::<usize>() < 10 {
            sizes.push(port.dequeue(&mut entries, timeout)?.len());
        }
        assert_eq!(sizes, [4, 4, 2]);
    }
    Ok(())
}

#[for_every_backend]
fn e2_what_is_there_comes_without_waiting_for_more(port: CompletionPort) -> io::Result<()> {
    let pairs = registered(&port, 1)?;
    let mut entries = [Entry::default(); 64];
    // It would hang if it waited for the room to fill.
    port.post(POSTED[0])?;
    assert_eq!(port.dequeue(&mut entries, None)?, [POSTED[0]]);
    pairs[0].send()?;
    assert_eq!(
        port.dequeue(&mut entries, None)?,
        [notification(0, Events::IN)]
    );
    Ok(())
}

/// Open in the contract, which asks for one only: users size their room so as to make fewer calls.
#[for_every_backend]
fn e2_a_batch_of_sockets_comes_in_one_call(port: CompletionPort) -> io::Result<()> {
    let pairs = registered(&port, 50)?;
    for pair in &pairs {
        pair.send()?;
    }
    let mut entries = [Entry::default(); 64];
    assert_eq!(port.dequeue(&mut entries, None)?.len(), 50);
    expect_nothing(&port);
    Ok(())
}

/// Whatever wakes a thread without a packet for it, the call goes on waiting.
#[for_every_backend]
fn e2_a_call_never_succeeds_with_nothing(backend: Backend) -> io::Result<()> {
    let port = port_with(backend, 4)?;
    let pairs = registered(&port, 4)?;
    thread::scope(|scope| -> io::Result<()> {
        let waiting: Vec<_> = {
            let _close = CloseAtEnd(&port, &[]);
            let waiting = (0..3)
                .map(|_| {
                    scope.spawn(|| {
                        let mut entries = [Entry::default(); 8];
                        let mut dequeued = 0;
                        loop {
                            match port.dequeue(&mut entries, Some(Duration::from_millis(3))) {
                                Ok(found) => {
                                    assert_ne!(found.len(), 0);
                                    dequeued += found.len();
                                }
                                Err(Error::TimedOut) => {}
                                Err(error) => return (error, dequeued),
                            }
                        }
                    })
                })
                .collect();
            for round in 0..300 {
                let (key, pair) = (round % 4, &pairs[round % 4]);
                pair.send()?;
                // It may be taken, or taken back, or disabled, before a thread gets to it.
                pair.drain()?;
                port.register(Registration::disable(&pair.ours))?;
                port.enable(&pair.ours, key, EventFilter::IN, ONCE)?;
                if round % 3 == 0 {
                    port.post(POSTED[0])?;
                }
            }
            wait_until("the queue is empty", || port.snapshot().queued == 0);
            waiting
        };
        let mut dequeued = 0;
        for thread in waiting {
            let (error, count) = thread.join().expect("no panic");
            assert_eq!(error, Error::Closed);
            dequeued += count;
        }
        assert!((100..=400).contains(&dequeued), "{dequeued}");
        Ok(())
    })
}

#[for_every_backend]
fn e2_room_beyond_what_was_dequeued_is_left_alone(port: CompletionPort) -> io::Result<()> {
    port.post(POSTED[1])?;
    let mut entries = [POSTED[2]; 3];
    assert_eq!(port.dequeue(&mut entries, None)?, [POSTED[1]]);
    assert_eq!(entries, [POSTED[1], POSTED[2], POSTED[2]]);
    assert_eq!(
        port.dequeue(&mut entries, Some(Duration::ZERO)),
        Err(Error::TimedOut)
    );
    assert_eq!(entries, [POSTED[1], POSTED[2], POSTED[2]]);
    Ok(())
}

#[for_every_backend]
fn e3_what_a_registration_makes_ready_comes_out_of_the_same_call(
    backend: Backend,
) -> io::Result<()> {
    let port = port(backend)?;
    let mut entries = [Entry::default(); 4];
    for kind in Kind::all() {
        for trigger in [ONCE, LEVEL] {
            for timeout in [Some(Duration::ZERO), Some(PATIENCE), None] {
                let pair = kind.pair()?;
                pair.send()?;
                let mut batch = [Registration::enable(
                    &pair.ours,
                    1,
                    EventFilter::IN,
                    trigger,
                )];
                let found = port.process(&mut batch, &mut entries, timeout)?;
                assert_eq!(found, [notification(1, Events::IN)], "{kind}, {timeout:?}");

                port.register(Registration::disable(&pair.ours))?;
                drain_port(&port);
                let mut batch = [Registration::remove(&pair.ours)];
                let found = port.process(&mut batch, &mut entries, timeout)?;
                assert_eq!(
                    found,
                    [notification(1, Events::REMOVE)],
                    "{kind}, {timeout:?}"
                );
            }
        }
    }
    Ok(())
}

#[for_every_backend]
fn e3_registering_again_and_dequeuing_is_one_call(port: CompletionPort) -> io::Result<()> {
    let pair = Pair::unix()?;
    pair.send()?;
    let mut batch = [Registration::enable(&pair.ours, 1, EventFilter::IN, ONCE)];
    let mut entries = [Entry::default(); 4];
    for timeout in [Some(Duration::ZERO), Some(PATIENCE), None] {
        for _ in 0..100 {
            let found = port.process(&mut batch, &mut entries, timeout)?;
            assert_eq!(found, [notification(1, Events::IN)]);
            assert_eq!(batch[0].result(), Ok(()));
        }
    }
    pair.drain()?;
    let found = port.process(&mut batch, &mut entries, Some(Duration::ZERO));
    assert_eq!(found, Err(Error::TimedOut));
    Ok(())
}

#[for_every_backend]
fn e4_timeout_zero_only_looks(port: CompletionPort) -> io::Result<()> {
    for _ in 0..100 {
        expect_nothing(&port);
    }
    port.post(POSTED[0])?;
    assert_eq!(port.dequeue_one(Some(Duration::ZERO))?, POSTED[0]);
    let pairs = registered(&port, 1)?;
    pairs[0].send()?;
    let found = port.dequeue_one(Some(Duration::ZERO))?;
    assert_eq!(found, notification(0, Events::IN));
    expect_nothing(&port);
    Ok(())
}

/// Each is reported when it is armed, and once more when it was made quiet.
#[for_every_backend]
fn e4_a_look_finds_what_stands_behind_unconnected_sockets(port: CompletionPort) -> io::Result<()> {
    let new = |_| Socket::new(Domain::IPV4, Type::STREAM, None);
    let unconnected = (0..100).map(new).collect::<io::Result<Vec<_>>>()?;
    let mut entries: Vec<_> = unconnected
        .iter()
        .map(|socket| Registration::enable(socket, 1, EventFilter::IN, ONCE))
        .collect();
    port.register_all(&mut entries)?;
    let ready = Pair::unix()?;
    port.enable(&ready.ours, 2, EventFilter::OUT, ONCE)?;
    let found = port.dequeue_one(Some(Duration::ZERO))?;
    assert_eq!(found, notification(2, Events::OUT));
    Ok(())
}

#[for_every_backend]
fn e4_a_wait_never_ends_early(backend: Backend) -> io::Result<()> {
    let port = port_with(backend, 1)?;
    // Some registered sockets must not change it.
    let _pairs = registered(&port, 3)?;
    let unconnected = Kind::LOCAL.socket()?;
    port.enable(&unconnected, 9, EventFilter::ALL, LEVEL)?;
    expect_no_early_end(&port);
    Ok(())
}

/// At least a millisecond's resolution, where the system has it: of many waits on a busy machine, the best tells.
#[for_every_backend(timed)]
fn e4_a_wait_ends_soon_after_its_time(port: CompletionPort) -> io::Result<()> {
    for millis in [1, 2, 5] {
        let timeout = Duration::from_millis(millis);
        let best = (0..60).map(|_| wait_in_vain(&port, timeout)).min();
        let late = best.expect("many") - timeout;
        assert!(
            late < crate::support::LATENESS,
            "{late:?} after {timeout:?}"
        );
    }
    Ok(())
}

/// Lets a thread wait, makes sure that it does, and posts.
fn wait_and_post(port: &CompletionPort, timeout: Option<Duration>) -> io::Result<()> {
    thread::scope(|scope| -> io::Result<()> {
        let waiting = {
            let close = CloseAtEnd(port, &[]);
            let (tell, thread) = std::sync::mpsc::channel();
            let waiting = scope.spawn(move || {
                tell.send(this_thread()).expect("someone listens");
                port.dequeue_one(timeout)
            });
            let thread = thread.recv().expect("a thread");
            wait_for_waiting(port, 1);
            asleep([thread]);
            thread::sleep(QUIET_PERIOD);
            assert!(!waiting.is_finished());
            port.post(POSTED[0])?;
            std::mem::forget(close);
            waiting
        };
        assert_eq!(waiting.join().expect("no panic"), Ok(POSTED[0]));
        Ok(())
    })
}

#[for_every_backend]
fn e4_a_wait_without_a_timeout_lasts_until_something_comes(backend: Backend) -> io::Result<()> {
    wait_and_post(&port(backend)?, None)
}

#[for_every_backend]
fn e4_a_timeout_beyond_all_bounds_is_a_long_one(port: CompletionPort) -> io::Result<()> {
    let seconds = [
        // Over 2^31 and 2^32 milliseconds, 2^31 and 2^32 seconds, and 2^63 nanoseconds.
        2_147_484,
        4_294_968,
        1 << 31,
        (1 << 32) + 1,
        9_223_372_037,
        i64::MAX as u64,
        i64::MAX as u64 + 1,
        u64::MAX,
    ];
    for timeout in seconds
        .into_iter()
        .map(Duration::from_secs)
        .chain([Duration::MAX])
    {
        wait_and_post(&port, Some(timeout))?;
        // Nor does it matter where a packet is there already.
        port.post(POSTED[0])?;
        assert_eq!(port.dequeue_one(Some(timeout))?, POSTED[0]);
    }
    Ok(())
}

#[for_every_backend]
fn e5_a_timeout_says_so_and_the_registrations_are_applied(port: CompletionPort) -> io::Result<()> {
    for timeout in [Duration::ZERO, Duration::from_millis(2)] {
        let pair = Pair::unix()?;
        let mut batch = [
            Registration::enable(&pair.ours, 1, EventFilter::IN, ONCE),
            Registration::enable(&pair.ours, 2, EventFilter::IN, ONCE),
        ];
        let mut entries = [Entry::default(); 4];
        let result = port.process(&mut batch, &mut entries, Some(timeout));
        assert_eq!(result, Err(Error::TimedOut));
        assert_eq!(result.map_err(Error::code), Err(258));
        assert_eq!(batch[0].result(), Ok(()));
        let refused = as_told_by(&port, Err(RegistrationError::OtherKey));
        assert_eq!(batch[1].result(), refused);
        pair.send()?;
        expect(&port, &[(1, Events::IN)]);
    }
    Ok(())
}

#[for_every_backend]
fn e6_a_posted_packet_is_unchanged(port: CompletionPort) -> io::Result<()> {
    let entries = [
        Entry::default(),
        Entry::new(usize::MAX, u32::MAX, usize::MAX),
        Entry::new(0, 0, usize::MAX),
        Entry::new(0, u32::MAX, 0),
        Entry::new(usize::MAX, 0, 0),
        Entry::new(usize::MAX / 2 + 1, 1 << 31, usize::MAX / 2),
        // Like the notification of a socket, which it is not.
        notification(7, Events::IN),
        notification(7, Events::REMOVE),
    ];
    let pair = Pair::unix()?;
    port.enable(&pair.ours, 7, EventFilter::IN, ONCE)?;
    for entry in entries {
        port.post(entry)?;
        assert_eq!(port.dequeue_one(Some(Duration::ZERO))?, entry);
    }
    // Nor has it done anything to the socket with that key.
    pair.send()?;
    expect(&port, &[(7, Events::IN)]);
    Ok(())
}

#[for_every_backend]
fn e6_a_posted_packet_wakes_a_waiting_thread_without_any_socket(
    backend: Backend,
) -> io::Result<()> {
    let port = port(backend)?;
    for timeout in [None, Some(PATIENCE)] {
        wait_and_post(&port, timeout)?;
    }
    Ok(())
}

#[for_every_backend]
fn e6_packets_posted_together_come_out_together_and_in_order(backend: Backend) -> io::Result<()> {
    let port = port_with(backend, 1)?;
    port.post_all(&[])?;
    expect_nothing(&port);
    port.post_all(&POSTED)?;
    expect_packets(&port, &POSTED);

    // Next to each other, however many threads do it at once.
    const THREADS: usize = 8;
    const TIMES: usize = 200;
    thread::scope(|scope| {
        for key in 0..THREADS {
            let port = &port;
            scope.spawn(move || {
                for _ in 0..TIMES {
                    let together = [0, 1, 2].map(|place| Entry::new(key, place, 0));
                    port.post_all(&together).expect("an open port");
                }
            });
        }
    });
    for _ in 0..THREADS * TIMES {
        let first = port.dequeue_one(None)?;
        assert_eq!(first.transferred, 0);
        let key = first.completion_key;
        expect_packets(&port, &[Entry::new(key, 1, 0), Entry::new(key, 2, 0)]);
    }
    expect_nothing(&port);
    Ok(())
}

#[for_every_backend]
fn e6_a_thread_can_post_to_itself(backend: Backend) -> io::Result<()> {
    // Even with packets that are not handled, and the only permit.
    let port = port_with(backend, 1)?;
    port.post(POSTED[0])?;
    for _ in 0..100 {
        let entry = port.dequeue_one(None)?;
        port.post(entry)?;
    }
    expect_packets(&port, &POSTED[..1]);
    Ok(())
}

#[for_every_backend]
fn e7_everything_comes_out_of_the_same_calls(port: CompletionPort) -> io::Result<()> {
    for trigger in EVERY {
        let pairs = Kind::all()
            .map(Kind::pair)
            .collect::<io::Result<Vec<_>>>()?;
        let last = pairs.len();
        let gone = Pair::unix()?;
        port.enable(&gone.ours, last, EventFilter::IN, trigger)?;
        let mut batch: Vec<_> = pairs
            .iter()
            .enumerate()
            .map(|(key, pair)| Registration::enable(&pair.ours, key, EventFilter::IN, trigger))
            .collect();
        port.process(&mut batch, &mut [], Some(Duration::ZERO))?;
        for pair in &pairs {
            pair.send()?;
        }
        port.register(Registration::remove(&gone.ours))?;
        port.post(Entry::new(last + 1, 0, 0))?;

        let mut wanted: Vec<_> = (0..last).map(|key| (key, Events::IN)).collect();
        wanted.push((last, Events::REMOVE));
        wanted.push((last + 1, Events::empty()));
        let mut found = collect(&port, wanted.len());
        found.dedup();
        if trigger != LEVEL {
            assert_eq!(found, wanted);
            expect_nothing(&port);
        } else {
            // Those that are reported again may come before the others.
            while found.len() < wanted.len() {
                found.extend(collect(&port, 1));
                found.sort_by_key(|&(key, _)| key);
                found.dedup();
            }
            assert_eq!(found, wanted);
        }
        for pair in &pairs {
            port.register(Registration::remove(&pair.ours))?;
        }
        drain_port(&port);
    }
    Ok(())
}

#[cfg(windows)]
#[for_every_backend]
fn e7_overlapped_operations_come_out_of_the_same_calls(backend: Backend) -> io::Result<()> {
    use windows_sys::Win32::Networking::WinSock::{WSABUF, WSASend};
    use windows_sys::Win32::System::IO::OVERLAPPED;

    let port = port(backend)?;
    let pair = Pair::unix()?;
    port.associate_socket(&pair.ours, 5)?;
    port.enable(&pair.ours, 6, EventFilter::IN, ONCE)?;
    let mut bytes = *b"seven";
    let buffer = WSABUF {
        len: bytes.len() as u32,
        buf: bytes.as_mut_ptr(),
    };
    let mut overlapped = OVERLAPPED::default();
    // SAFETY: the buffer and the structure are there until the packet has come.
    unsafe {
        let socket = crate::support::raw(&pair.ours) as usize;
        let none = std::ptr::null_mut();
        WSASend(socket, &buffer, 1, none, 0, &mut overlapped, None);
    }
    let address = std::ptr::from_ref(&overlapped).addr();
    assert_eq!(port.dequeue_one(Some(PATIENCE))?, Entry::new(5, 5, address));
    pair.send()?;
    assert_eq!(
        port.dequeue_one(Some(PATIENCE))?,
        notification(6, Events::IN)
    );
    expect_nothing(&port);
    Ok(())
}

/// Its number is one that the port knows, of a socket that was closed.
#[for_every_backend]
fn e3_a_new_socket_with_an_old_number_comes_out_of_the_same_call(
    backend: Backend,
) -> io::Result<()> {
    let port = port(backend)?;
    let mut entries = [Entry::default(); 4];
    for timeout in [Some(Duration::ZERO), Some(PATIENCE)] {
        for old_trigger in EVERY {
            for trigger in [ONCE, LEVEL] {
                let (old, new) = (Pair::unix()?, Pair::unix()?);
                port.enable(&old.ours, 1, EventFilter::IN, old_trigger)?;
                new.send()?;
                let new_ours = take_number(old.ours, new.ours)?;
                let mut batch = [Registration::enable(&new_ours, 1, EventFilter::IN, trigger)];
                let found = port.process(&mut batch, &mut entries, timeout)?;
                assert_eq!(found, [notification(1, Events::IN)], "{old_trigger:?}");
                port.register(Registration::remove(&new_ours))?;
                drain_port(&port);
            }
        }
    }
    Ok(())
}
