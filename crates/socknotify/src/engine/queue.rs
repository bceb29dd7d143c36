//! The packets that have no kernel behind them, first in, first out.

use std::collections::VecDeque;

use crate::sys::Fd;
use crate::{Entry, Events};

/// Something that waits to be dequeued.
#[derive(Clone, Copy, Debug)]
pub(super) enum Packet {
    /// A packet of the program's own, or a completion.
    Entry(Entry),
    /// The last notification of a registration, of this generation and with this key.
    Removed { fd: Fd, generation: u32, key: usize },
    /// A packet in place of a notification, for this reason, of an owned socket.
    Interrupted {
        fd: Fd,
        generation: u32,
        key: usize,
        reason: u32,
    },
}

impl Packet {
    /// The packet, as the caller gets it.
    pub(super) fn entry(&self) -> Entry {
        match *self {
            Packet::Entry(entry) => entry,
            Packet::Removed { key, .. } => Entry::notification(key, Events::REMOVE),
            Packet::Interrupted { key, reason, .. } => {
                Entry::notification(key, Events::from_bits_retain(reason))
            }
        }
    }
}

/// The queue of a port.
pub(super) type Queue = VecDeque<Packet>;
