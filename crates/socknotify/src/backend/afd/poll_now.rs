//! Polling many sockets without waiting.

use std::io;

use super::conditions::polled;
use super::device::{BATCH, Device, PolledSocket};
use crate::engine::Interest;
use crate::sys;

/// Polls sockets without waiting.
pub(super) struct PollNow(Device);

impl PollNow {
    pub(super) fn new() -> io::Result<Self> {
        Device::synchronous().map(PollNow)
    }

    /// Which of these conditions of the driver hold for a socket.
    pub(super) fn one(&self, socket: u32, events: u32) -> u32 {
        let mut one = [PolledSocket::new(sys::handle(socket), events)];
        match self.0.poll_now(&mut one) {
            Ok(1) => one[0].events,
            _ => 0,
        }
    }

    /// For each of these, in order, which conditions of the driver hold; `None` if unknown.
    pub(super) fn all(
        &self,
        memory: &mut Vec<PolledSocket>,
        interests: &[Interest],
        mut each: impl FnMut(&Interest, Option<u32>),
    ) {
        for interests in interests.chunks(BATCH) {
            memory.clear();
            memory.extend(interests.iter().map(polled_socket));
            let Ok(count) = self.0.poll_now(memory) else {
                // One handle that is no socket fails the call for all.
                for interest in interests {
                    let mut one = [polled_socket(interest)];
                    let count = self.0.poll_now(&mut one);
                    each(interest, count.ok().map(|count| found(&one[..count])));
                }
                continue;
            };
            let mut ready = memory[..count].iter().peekable();
            for interest in interests {
                let handle = sys::handle(interest.socket);
                let one = ready.next_if(|ready| ready.handle == handle);
                each(interest, Some(one.map_or(0, |one| one.events)));
            }
        }
    }
}

fn found(sockets: &[PolledSocket]) -> u32 {
    sockets.first().map_or(0, |socket| socket.events)
}

fn polled_socket(interest: &Interest) -> PolledSocket {
    PolledSocket::new(sys::handle(interest.socket), polled(interest))
}
