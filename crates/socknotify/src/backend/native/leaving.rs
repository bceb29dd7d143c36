//! [`Leaving`]: sockets that leave the port and stay open. Only when REMOVE was dequeued can one be registered again.

use std::collections::HashSet;
use std::sync::Mutex;

use crate::support::lock::lock;
use crate::{Entry, Events};

/// The completion keys whose REMOVE was not dequeued yet.
#[derive(Default)]
pub(super) struct Leaving(Mutex<HashSet<usize>>);

impl Leaving {
    /// The kernel is about to be asked for REMOVE.
    pub(super) fn begin(&self, key: usize) {
        lock(&self.0).insert(key);
    }

    pub(super) fn has(&self, key: usize) -> bool {
        lock(&self.0).contains(&key)
    }

    /// REMOVE will not come.
    pub(super) fn end(&self, key: usize) {
        lock(&self.0).remove(&key);
    }

    /// A packet was dequeued. True if it is REMOVE of one of these, and of interest to nobody else.
    pub(super) fn on_packet(&self, packet: &Entry) -> bool {
        // The kernel's packets have an overlapped value of 0.
        packet.overlapped == 0
            && packet.events().contains(Events::REMOVE)
            && lock(&self.0).remove(&packet.completion_key)
    }

    /// A thread that waits for the REMOVE of this key has dequeued a packet. True if that is to be queued again: not what else comes
    /// of the key, and not the REMOVE of another one, for which another thread waits, that may have dequeued this one's.
    pub(super) fn is_for_others(&self, key: usize, packet: &Entry) -> bool {
        !self.on_packet(packet) && packet.completion_key != key
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removal_is_noticed_whoever_takes_it() {
        let leaving = Leaving::default();
        leaving.begin(7);
        let removal = Entry::new(7, Events::REMOVE.bits(), 0);
        assert!(!leaving.on_packet(&Entry::new(8, Events::REMOVE.bits(), 0)));
        assert!(!leaving.on_packet(&Entry::new(7, Events::IN.bits(), 0)));
        assert!(!leaving.on_packet(&Entry::new(7, Events::REMOVE.bits(), 1)));
        assert!(leaving.has(7) && leaving.on_packet(&removal));
        assert!(!leaving.has(7) && !leaving.on_packet(&removal));
    }

    /// Each would keep what the other waits for.
    #[test]
    fn two_that_wait_keep_no_removal_of_each_other() {
        let leaving = Leaving::default();
        let packet = |key, events: Events| Entry::new(key, events.bits(), 0);
        leaving.begin(7);
        leaving.begin(8);
        assert!(!leaving.is_for_others(7, &packet(7, Events::IN)));
        assert!(leaving.is_for_others(7, &packet(8, Events::IN)));
        assert!(leaving.is_for_others(7, &packet(9, Events::REMOVE)));
        assert!(!leaving.is_for_others(7, &packet(8, Events::REMOVE)));
        assert!(!leaving.has(8));
        assert!(!leaving.is_for_others(8, &packet(7, Events::REMOVE)));
        assert!(!leaving.has(7));
    }
}
