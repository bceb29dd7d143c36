//! A port that is watched by another loop.

use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::event::{Timespec, epoll};
use socknotify::{CompletionPort, Entry, Error, EventFilter, Registration, Trigger};

use crate::support::PATIENCE;

fn dequeue(port: &CompletionPort) -> Result<usize, Error> {
    let mut entries = [Entry::default(); 4];
    let entries = port.dequeue(&mut entries, Some(Duration::ZERO))?;
    Ok(entries[0].completion_key)
}

/// How the other loop watches: a level, and an edge.
const WAYS: [epoll::EventFlags; 2] = [
    epoll::EventFlags::IN,
    epoll::EventFlags::IN.union(epoll::EventFlags::ET),
];

/// A port, and the other loop that watches it.
fn watched(flags: epoll::EventFlags) -> io::Result<(CompletionPort, OwnedFd)> {
    let port = CompletionPort::new()?;
    let outer = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&outer, &port, epoll::EventData::new_u64(0), flags)?;
    Ok((port, outer))
}

/// Whether the other loop is told of the port.
fn is_told(outer: impl AsFd) -> io::Result<bool> {
    let mut events = Vec::<epoll::Event>::with_capacity(4);
    let spare = rustix::buffer::spare_capacity(&mut events);
    let patience = Timespec::try_from(PATIENCE).expect("it can be counted");
    Ok(epoll::wait(outer, spare, Some(&patience))? > 0)
}

#[test]
fn another_loop_is_told_of_sockets_and_packets() -> io::Result<()> {
    for flags in WAYS {
        let (port, outer) = watched(flags)?;
        let (ours, mut theirs) = UnixStream::pair()?;
        for _ in 0..10 {
            let trigger = Trigger::ONESHOT | Trigger::LEVEL;
            port.register(Registration::enable(&ours, 1, EventFilter::IN, trigger))?;
            theirs.write_all(b"x")?;
            assert!(is_told(&outer)?);
            assert_eq!(dequeue(&port), Ok(1));
            while dequeue(&port).is_ok() {}
            io::Read::read(&mut &ours, &mut [0; 8])?;

            port.post(Entry::new(2, 0, 0))?;
            assert!(is_told(&outer)?);
            assert_eq!(dequeue(&port), Ok(2));
            while dequeue(&port).is_ok() {}
        }
    }
    Ok(())
}

#[test]
fn g3_another_loop_is_told_beside_a_duplicate_that_was_closed() -> io::Result<()> {
    for flags in WAYS {
        let (port, outer) = watched(flags)?;

        // It is closed without REMOVE, and lives on as a duplicate.
        let (ours, mut theirs) = UnixStream::pair()?;
        let _duplicate = ours.try_clone()?;
        port.register(Registration::enable(
            &ours,
            1,
            EventFilter::IN,
            Trigger::LEVEL,
        ))?;
        drop(ours);
        theirs.write_all(b"x")?;
        while let Ok(key) = dequeue(&port) {
            assert_eq!(key, 1);
        }

        let (ours, mut theirs) = UnixStream::pair()?;
        port.register(Registration::enable(
            &ours,
            2,
            EventFilter::IN,
            Trigger::LEVEL,
        ))?;
        // What it was told before.
        let mut events = Vec::<epoll::Event>::with_capacity(4);
        let spare = rustix::buffer::spare_capacity(&mut events);
        epoll::wait(&outer, spare, Some(&Timespec::default()))?;
        theirs.write_all(b"x")?;
        assert!(is_told(&outer)?);
        assert_eq!(dequeue(&port), Ok(2));
    }
    Ok(())
}
