//! `epoll`, by itself.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use rustix::event::epoll::{self, EventData, EventFlags};

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
    fn add(&mut self, sockets: &'a [UnixStream]) -> io::Result<()> {
        for (key, socket) in (0..).zip(sockets) {
            epoll::add(&self.set, socket, EventData::new_u64(key), self.flags)?;
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
