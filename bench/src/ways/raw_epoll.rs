//! `epoll`, by itself.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Kind, Way, read_byte};

/// The plain loop. One-shot: `EPOLLONESHOT`, and one `EPOLL_CTL_MOD` to arm each socket again.
pub(super) struct RawEpoll {
    set: OwnedFd,
    flags: EventFlags,
    events: Vec<epoll::Event>,
    /// What was read, and is to be armed again.
    read: Vec<EventData>,
}

impl RawEpoll {
    pub(super) fn new(kind: Kind, batch: usize) -> io::Result<Self> {
        let flags = match kind {
            Kind::OneShot => EventFlags::ONESHOT,
            Kind::Edge => EventFlags::ET,
            Kind::Level => EventFlags::empty(),
        };
        Ok(RawEpoll {
            set: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            flags: flags | EventFlags::IN,
            events: Vec::with_capacity(batch),
            read: Vec::with_capacity(batch),
        })
    }

    fn wait(&mut self) -> io::Result<usize> {
        self.events.clear();
        let room = rustix::buffer::spare_capacity(&mut self.events);
        Ok(epoll::wait(&self.set, room, None)?)
    }
}

impl<'a> Way<'a> for RawEpoll {
    fn add(&mut self, sockets: &'a [UnixStream], first: usize) -> io::Result<()> {
        for (key, socket) in (first as u64..).zip(sockets) {
            epoll::add(&self.set, socket, EventData::new_u64(key), self.flags)?;
        }
        Ok(())
    }

    fn remove(&mut self, sockets: &'a [UnixStream], _: usize) -> io::Result<()> {
        for socket in sockets {
            epoll::delete(&self.set, socket)?;
        }
        Ok(())
    }

    fn arm(&mut self, sockets: &'a [UnixStream]) -> io::Result<()> {
        for data in self.read.drain(..) {
            let socket = &sockets[data.u64() as usize];
            epoll::modify(&self.set, socket, data, self.flags)?;
        }
        Ok(())
    }

    fn wait_and_read(&mut self, sockets: &'a [UnixStream]) -> io::Result<()> {
        let mut left = sockets.len();
        while left > 0 {
            self.arm(sockets)?;
            left -= self.wait()?;
            for event in &self.events {
                let data = event.data;
                read_byte(&sockets[data.u64() as usize])?;
                if self.flags.contains(EventFlags::ONESHOT) {
                    self.read.push(data);
                }
            }
        }
        Ok(())
    }
}

/// One-shot notifications out of edges: a socket is registered once, and to arm a batch of them again
/// is one `poll` over all, which finds those that are ready already.
pub(super) struct OnePoll<'a> {
    edges: RawEpoll,
    /// What was read, and is to be armed again.
    read: Vec<PollFd<'a>>,
}

impl OnePoll<'_> {
    pub(super) fn new(batch: usize) -> io::Result<Self> {
        Ok(OnePoll {
            edges: RawEpoll::new(Kind::Edge, batch)?,
            read: Vec::with_capacity(batch),
        })
    }
}

impl<'a> Way<'a> for OnePoll<'a> {
    fn add(&mut self, sockets: &'a [UnixStream], first: usize) -> io::Result<()> {
        self.edges.add(sockets, first)
    }

    fn remove(&mut self, sockets: &'a [UnixStream], first: usize) -> io::Result<()> {
        self.edges.remove(sockets, first)
    }

    fn arm(&mut self, _: &'a [UnixStream]) -> io::Result<()> {
        if !self.read.is_empty() {
            // With one thread, what it finds comes as an edge as well, and is read then.
            poll(&mut self.read, Some(&Timespec::default()))?;
            self.read.clear();
        }
        Ok(())
    }

    fn wait_and_read(&mut self, sockets: &'a [UnixStream]) -> io::Result<()> {
        let mut left = sockets.len();
        while left > 0 {
            self.arm(sockets)?;
            left -= self.edges.wait()?;
            for event in &self.edges.events {
                let socket = &sockets[event.data.u64() as usize];
                read_byte(socket)?;
                self.read.push(PollFd::new(socket, PollFlags::IN));
            }
        }
        Ok(())
    }
}
