//! The crate `mio`.

use std::io;
use std::os::fd::AsRawFd;

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};

use super::{Pairs, Way, read_byte};

pub(crate) struct Mio {
    poll: Poll,
    events: Events,
}

impl Mio {
    pub(crate) fn new(pairs: &Pairs) -> io::Result<Self> {
        let poll = Poll::new()?;
        for (key, (socket, _)) in pairs.iter().enumerate() {
            let number = socket.as_raw_fd();
            poll.registry()
                .register(&mut SourceFd(&number), Token(key), Interest::READABLE)?;
        }
        Ok(Mio {
            poll,
            events: Events::with_capacity(pairs.len()),
        })
    }
}

impl Way for Mio {
    fn turn(&mut self, pairs: &Pairs) -> io::Result<()> {
        let mut left = pairs.len();
        while left > 0 {
            self.poll.poll(&mut self.events, None)?;
            for event in &self.events {
                left -= 1;
                read_byte(&pairs[event.token().0].0)?;
            }
        }
        Ok(())
    }
}
