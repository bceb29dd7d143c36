//! The crate `polling`.

use std::io;
use std::num::NonZero;
use std::os::unix::net::UnixStream;

use polling::{Event, Events, PollMode, Poller};

use super::{Kind, Way, read_byte};

pub(super) struct Polling {
    poller: Poller,
    mode: PollMode,
    events: Events,
    /// Keys that were read, and are to be armed again.
    read: Vec<usize>,
}

impl Polling {
    pub(super) fn new(kind: Kind, batch: usize) -> io::Result<Self> {
        Ok(Polling {
            poller: Poller::new()?,
            mode: match kind {
                Kind::OneShot => PollMode::Oneshot,
                Kind::Edge => PollMode::Edge,
                Kind::Level => PollMode::Level,
            },
            events: Events::with_capacity(NonZero::new(batch).expect("some sockets")),
            read: Vec::with_capacity(batch),
        })
    }
}

impl<'a> Way<'a> for Polling {
    fn add(&mut self, sockets: &'a [UnixStream], first: usize) -> io::Result<()> {
        for (key, socket) in (first..).zip(sockets) {
            // SAFETY: the sockets outlive the poller.
            unsafe {
                let event = Event::readable(key);
                self.poller.add_with_mode(socket, event, self.mode)?;
            }
        }
        Ok(())
    }

    fn remove(&mut self, sockets: &'a [UnixStream], _: usize) -> io::Result<()> {
        let mut sockets = sockets.iter();
        sockets.try_for_each(|socket| self.poller.delete(socket))
    }

    fn arm(&mut self, sockets: &'a [UnixStream]) -> io::Result<()> {
        for key in self.read.drain(..) {
            self.poller.modify(&sockets[key], Event::readable(key))?;
        }
        Ok(())
    }

    fn wait_and_read(&mut self, sockets: &'a [UnixStream]) -> io::Result<()> {
        let mut left = sockets.len();
        while left > 0 {
            self.arm(sockets)?;
            self.events.clear();
            left -= self.poller.wait(&mut self.events, None)?;
            for event in self.events.iter() {
                read_byte(&sockets[event.key])?;
                if self.mode == PollMode::Oneshot {
                    self.read.push(event.key);
                }
            }
        }
        Ok(())
    }
}
