//! The crate `polling`.

use std::io;
use std::num::NonZero;

use polling::{Event, Events, PollMode, Poller};

use super::{Kind, Pairs, Way, read_byte};

pub(crate) struct Polling<'a> {
    poller: Poller,
    mode: PollMode,
    events: Events,
    pairs: &'a Pairs,
}

impl<'a> Polling<'a> {
    pub(crate) fn new(pairs: &'a Pairs, kind: Kind) -> io::Result<Self> {
        let poller = Poller::new()?;
        let mode = match kind {
            Kind::OneShot => PollMode::Oneshot,
            Kind::Edge => PollMode::Edge,
            Kind::Level => PollMode::Level,
        };
        for (key, (socket, _)) in pairs.iter().enumerate() {
            // SAFETY: it is deleted when this goes, before the socket does.
            unsafe { poller.add_with_mode(socket, Event::readable(key), mode)? };
        }
        let room = NonZero::new(pairs.len()).expect("some sockets");
        Ok(Polling {
            poller,
            mode,
            events: Events::with_capacity(room),
            pairs,
        })
    }
}

impl Way for Polling<'_> {
    fn turn(&mut self, pairs: &Pairs) -> io::Result<()> {
        let mut left = pairs.len();
        while left > 0 {
            self.events.clear();
            left -= self.poller.wait(&mut self.events, None)?;
            for event in self.events.iter() {
                let socket = &pairs[event.key].0;
                read_byte(socket)?;
                if self.mode == PollMode::Oneshot {
                    self.poller.modify(socket, Event::readable(event.key))?;
                }
            }
        }
        Ok(())
    }
}

impl Drop for Polling<'_> {
    fn drop(&mut self) {
        for (socket, _) in self.pairs {
            let _ = self.poller.delete(socket);
        }
    }
}
