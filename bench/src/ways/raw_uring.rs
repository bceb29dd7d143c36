//! `io_uring`, by itself: a one-shot poll for each socket; to arm a batch again and to wait is one system
//! call.

use std::io;
use std::os::fd::AsRawFd;

use io_uring::{IoUring, opcode, types};

use super::{Pairs, Way, read_byte};

pub(crate) struct RawUring {
    ring: IoUring,
    keys: Vec<usize>,
}

impl RawUring {
    /// `None` where the kernel does not have it, or does not allow it.
    pub(crate) fn new(pairs: &Pairs) -> io::Result<Option<Self>> {
        let entries = pairs.len().next_power_of_two().max(8) as u32;
        let Ok(ring) = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .build(entries)
        else {
            return Ok(None);
        };
        let mut way = RawUring {
            ring,
            keys: Vec::with_capacity(pairs.len()),
        };
        (0..pairs.len()).try_for_each(|key| way.arm(pairs, key))?;
        Ok(Some(way))
    }

    fn arm(&mut self, pairs: &Pairs, key: usize) -> io::Result<()> {
        let socket = types::Fd(pairs[key].0.as_raw_fd());
        let entry = opcode::PollAdd::new(socket, libc::POLLIN as u32)
            .build()
            .user_data(key as u64);
        // SAFETY: a poll refers to no memory, and the sockets outlive the ring.
        unsafe { self.ring.submission().push(&entry) }.map_err(io::Error::other)
    }
}

impl Way for RawUring {
    fn turn(&mut self, pairs: &Pairs) -> io::Result<()> {
        let mut left = pairs.len();
        while left > 0 {
            self.ring.submit_and_wait(1)?;
            self.keys.clear();
            let completions = self.ring.completion();
            self.keys
                .extend(completions.map(|completion| completion.user_data() as usize));
            left -= self.keys.len();
            for index in 0..self.keys.len() {
                let key = self.keys[index];
                read_byte(&pairs[key].0)?;
                self.arm(pairs, key)?;
            }
        }
        Ok(())
    }
}
