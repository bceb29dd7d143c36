//! `epoll`: one set for all threads, or one for each.

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;

use super::{Connection, Session, Shape, Shared, Until, deal, on_threads};

const END: u64 = u64::MAX;

/// Level-triggered and one-shot, and one `EPOLL_CTL_MOD` for each answer.
pub(super) fn serve_shared<S: Session>(
    shape: Shape,
    connections: Vec<Shared<S>>,
    until: Until<'_>,
) -> io::Result<()> {
    let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let flags = EventFlags::IN | EventFlags::ONESHOT;
    for (key, connection) in (0..).zip(&connections) {
        epoll::add(&set, &connection.stream, EventData::new_u64(key), flags)?;
    }
    let (end, mut ender) = UnixStream::pair()?;
    epoll::add(&set, &end, EventData::new_u64(END), EventFlags::IN)?;
    let done = AtomicBool::new(false);
    let serve = || -> io::Result<()> {
        let mut events = Vec::with_capacity(shape.room);
        while !done.load(Ordering::Relaxed) {
            wait(&set, &mut events)?;
            for event in &events {
                let data = event.data;
                if data.u64() == END {
                    continue;
                }
                let connection = &connections[data.u64() as usize];
                if connection.serve()? {
                    epoll::modify(&set, &connection.stream, data, flags)?;
                }
            }
        }
        Ok(())
    };
    let threads = std::iter::repeat_n(serve, shape.threads);
    on_threads(threads, until, || {
        done.store(true, Ordering::Relaxed);
        // It stays readable, for one thread after the other.
        ender.write_all(&[0])
    })
}

fn wait(set: &OwnedFd, events: &mut Vec<epoll::Event>) -> io::Result<()> {
    events.clear();
    match epoll::wait(set, rustix::buffer::spare_capacity(events), None) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Edge-triggered, once and for all. A thread ends with the last of its connections.
pub(super) fn serve_each<S: Session>(
    shape: Shape,
    connections: Vec<Connection<S>>,
    until: Until<'_>,
) -> io::Result<()> {
    let serve = |mut connections: Vec<Connection<S>>| -> io::Result<()> {
        let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let flags = EventFlags::IN | EventFlags::ET;
        for (key, connection) in (0..).zip(&connections) {
            epoll::add(&set, connection, EventData::new_u64(key), flags)?;
        }
        let mut open = connections.len();
        let mut events = Vec::with_capacity(shape.room);
        while open > 0 {
            wait(&set, &mut events)?;
            for event in &events {
                let data = event.data;
                let connection = &mut connections[data.u64() as usize];
                if !connection.drain()? {
                    epoll::delete(&set, connection)?;
                    open -= 1;
                }
            }
        }
        Ok(())
    };
    let hands = deal(connections, shape.threads).into_iter();
    let threads = hands.map(|connections| move || serve(connections));
    on_threads(threads, until, || Ok(()))
}
