//! `io_uring`, by itself. One-shot: a poll for each socket; to arm a batch again and to wait is one
//! system call. Edge: a poll that goes on.

use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

use io_uring::opcode;
use io_uring::types::Fd;

use super::{Kind, Way, read_byte};
use crate::uring::Ring;

pub(super) struct RawUring {
    ring: Ring,
    /// A poll goes on after its first report.
    is_multi: bool,
    keys: Vec<usize>,
}

/// What the completion of a removal carries in place of a key.
const REMOVED: u64 = u64::MAX;

impl RawUring {
    pub(super) fn new(kind: Kind, batch: usize) -> io::Result<Self> {
        Ok(RawUring {
            ring: Ring::new(batch)?,
            is_multi: kind == Kind::Edge,
            keys: Vec::with_capacity(batch),
        })
    }

    /// Put a poll into the submission queue.
    fn queue_poll(&mut self, socket: &UnixStream, key: usize) -> io::Result<()> {
        let entry = opcode::PollAdd::new(Fd(socket.as_raw_fd()), libc::POLLIN as u32)
            .multi(self.is_multi)
            .build()
            .user_data(key as u64);
        // SAFETY: a poll refers to no memory.
        unsafe { self.ring.push(&entry) }
    }
}

impl<'a> Way<'a> for RawUring {
    fn add(&mut self, sockets: &'a [UnixStream], first: usize) -> io::Result<()> {
        for (key, socket) in (first..).zip(sockets) {
            self.queue_poll(socket, key)?;
        }
        self.ring.submit()?;
        Ok(())
    }

    fn remove(&mut self, sockets: &'a [UnixStream], first: usize) -> io::Result<()> {
        // As many as the completion queue has room for: each gives two completions.
        const AT_ONCE: usize = 256;
        let mut first = first as u64;
        for sockets in sockets.chunks(AT_ONCE) {
            let last = first + sockets.len() as u64;
            for key in first..last {
                let entry = opcode::PollRemove::new(key).build().user_data(REMOVED);
                // SAFETY: a removal refers to no memory.
                unsafe { self.ring.push(&entry)? };
            }
            let mut left = sockets.len();
            while left > 0 {
                self.ring.submit_and_wait(left)?;
                let completions = self.ring.completion();
                left -= completions.filter(|it| it.user_data() == REMOVED).count();
            }
            first = last;
        }
        Ok(())
    }

    fn arm(&mut self, _: &'a [UnixStream]) -> io::Result<()> {
        self.ring.submit()?;
        Ok(())
    }

    fn wait_and_read(&mut self, sockets: &'a [UnixStream]) -> io::Result<()> {
        let mut left = sockets.len();
        while left > 0 {
            self.ring.submit_and_wait(1)?;
            self.keys.clear();
            let completions = self.ring.completion();
            self.keys
                .extend(completions.map(|completion| completion.user_data() as usize));
            left -= self.keys.len();
            for index in 0..self.keys.len() {
                let key = self.keys[index];
                read_byte(&sockets[key])?;
                if !self.is_multi {
                    self.queue_poll(&sockets[key], key)?;
                }
            }
        }
        Ok(())
    }
}
