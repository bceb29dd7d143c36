//! The crate `mio`.

use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};

use super::{Way, read_byte};

pub(super) struct Mio {
    poll: Poll,
    events: Events,
}

impl Mio {
    pub(super) fn new(batch: usize) -> io::Result<Self> {
        Ok(Mio {
            poll: Poll::new()?,
            events: Events::with_capacity(batch),
        })
    }
}

impl<'a> Way<'a> for Mio {
    fn add(&mut self, sockets: &'a [UnixStream]) -> io::Result<()> {
        for (key, socket) in sockets.iter().enumerate() {
            let fd = socket.as_raw_fd();
            let mut source = SourceFd(&fd);
            let registry = self.poll.registry();
            registry.register(&mut source, Token(key), Interest::READABLE)?;
        }
        Ok(())
    }

    fn wait_and_read(&mut self, sockets: &'a [UnixStream]) -> io::Result<()> {
        let mut left = sockets.len();
        while left > 0 {
            self.poll.poll(&mut self.events, None)?;
            for event in &self.events {
                left -= 1;
                read_byte(&sockets[event.token().0])?;
            }
        }
        Ok(())
    }
}
