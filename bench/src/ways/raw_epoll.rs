//! `epoll`, by itself.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Kind, Pairs, Way, read_byte};

fn register(pairs: &Pairs, flags: EventFlags) -> io::Result<OwnedFd> {
    let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for (key, (socket, _)) in pairs.iter().enumerate() {
        epoll::add(&set, socket, EventData::new_u64(key as u64), flags)?;
    }
    Ok(set)
}

fn wait(set: &OwnedFd, events: &mut Vec<epoll::Event>) -> io::Result<usize> {
    events.clear();
    Ok(epoll::wait(
        set,
        rustix::buffer::spare_capacity(events),
        None,
    )?)
}

/// The plain loop. One-shot: `EPOLLONESHOT`, and one `EPOLL_CTL_MOD` to arm each socket again.
pub(crate) struct RawEpoll {
    set: OwnedFd,
    flags: EventFlags,
    events: Vec<epoll::Event>,
}

impl RawEpoll {
    pub(crate) fn new(pairs: &Pairs, kind: Kind) -> io::Result<Self> {
        let flags = EventFlags::IN
            | match kind {
                Kind::OneShot => EventFlags::ONESHOT,
                Kind::Edge => EventFlags::ET,
                Kind::Level => EventFlags::empty(),
            };
        Ok(RawEpoll {
            set: register(pairs, flags)?,
            flags,
            events: Vec::with_capacity(pairs.len()),
        })
    }
}

impl Way for RawEpoll {
    fn turn(&mut self, pairs: &Pairs) -> io::Result<()> {
        let mut left = pairs.len();
        while left > 0 {
            left -= wait(&self.set, &mut self.events)?;
            for event in &self.events {
                let data = event.data;
                let socket = &pairs[data.u64() as usize].0;
                read_byte(socket)?;
                if self.flags.contains(EventFlags::ONESHOT) {
                    epoll::modify(&self.set, socket.as_fd(), data, self.flags)?;
                }
            }
        }
        Ok(())
    }
}

/// One-shot notifications out of edges: a socket is registered once, and to arm a batch of them again
/// is one `poll` over all, which finds those that are ready already.
pub(crate) struct OnePoll<'a> {
    set: OwnedFd,
    events: Vec<epoll::Event>,
    /// What is to be armed again.
    armed: Vec<PollFd<'a>>,
    pairs: &'a Pairs,
}

impl<'a> OnePoll<'a> {
    pub(crate) fn new(pairs: &'a Pairs) -> io::Result<Self> {
        Ok(OnePoll {
            set: register(pairs, EventFlags::IN | EventFlags::ET)?,
            events: Vec::with_capacity(pairs.len()),
            armed: Vec::with_capacity(pairs.len()),
            pairs,
        })
    }
}

impl Way for OnePoll<'_> {
    fn turn(&mut self, pairs: &Pairs) -> io::Result<()> {
        let mut left = pairs.len();
        while left > 0 {
            if !self.armed.is_empty() {
                // With one thread, what it finds comes as an edge as well, and is read then.
                poll(&mut self.armed, Some(&Timespec::default()))?;
                self.armed.clear();
            }
            left -= wait(&self.set, &mut self.events)?;
            for event in &self.events {
                let socket = &self.pairs[event.data.u64() as usize].0;
                read_byte(socket)?;
                self.armed.push(PollFd::new(socket, PollFlags::IN));
            }
        }
        Ok(())
    }
}
