//! The connections that a native port owns.
//!
//! The kernel identifies a registration by its completion key. Its notification may be dequeued after the connection
//! was closed and its index belongs to another. So a key contains the generation of its index, and lookups here use the
//! whole key. Keys of shared sockets and of posted packets are not found, and pass.
//!
//! The kernel knows no interruptions either. An interruption is a posted packet with the connection's key. From its
//! posting to its dequeuing, the kernel's notifications of the connection are dropped. The registration stays
//! enabled, so a notification after the connection was armed again may be older than that.

use std::collections::HashSet;
use std::mem;

use crate::entry::next_reason;
use crate::slots::index_of;
use crate::sys::RawSocket;
use crate::{Entry, EventFilter, Events, RegistrationError};

/// The completion key of an owned connection.
pub(super) type Key = usize;

#[derive(Default)]
pub(super) struct Connections {
    /// By the index in the key.
    entries: Vec<Connection>,
    /// The keys whose REMOVE was not dequeued yet.
    leaving: HashSet<Key>,
}

#[derive(Default)]
struct Connection {
    key: Key,
    socket: Option<RawSocket>,
    filter: EventFilter,
    state: State,
    /// An interruption has left the registration enabled.
    left: bool,
    /// What to report in place of events, one bit each time that it is armed.
    interruption: u32,
}

#[derive(Clone, Copy, Default)]
enum State {
    /// A thread has it.
    #[default]
    Held,
    Armed,
    /// A packet with this value is in the queue.
    Interrupted(u32),
}

/// How a connection is armed.
pub(super) enum Arming {
    Register(Key),
    /// By posting a packet with this value.
    Post(Key, u32),
}

/// What becomes of a packet.
pub(super) enum Disposition {
    Deliver(Entry),
    Drop,
    /// It shows nothing wanted, but its registration is disabled.
    ArmAgain(Key, RawSocket, EventFilter),
}

impl Connections {
    /// The key belongs to this socket now.
    pub(super) fn adopt(&mut self, key: Key, socket: RawSocket) {
        let index = index_of(key) as usize;
        if index >= self.entries.len() {
            self.entries.resize_with(index + 1, Connection::default);
        }
        self.entries[index] = Connection {
            key,
            socket: Some(socket),
            ..Connection::default()
        };
    }

    fn by_key(&mut self, key: Key) -> Option<&mut Connection> {
        let entry = self.entries.get_mut(index_of(key) as usize)?;
        (entry.key == key && entry.socket.is_some()).then_some(entry)
    }

    fn get(&mut self, key: Key, socket: RawSocket) -> Option<&mut Connection> {
        self.by_key(key)
            .filter(|entry| entry.socket == Some(socket))
    }

    /// The key belongs to nothing now. False if it did not belong to this socket.
    pub(super) fn release(&mut self, key: Key, socket: RawSocket) -> bool {
        let entry = self.get(key, socket);
        entry.is_some_and(|entry| entry.socket.take().is_some())
    }

    /// The kernel is about to be asked for REMOVE.
    pub(super) fn leave(&mut self, key: Key) {
        self.leaving.insert(key);
    }

    /// Whether REMOVE was not dequeued yet.
    pub(super) fn is_leaving(&self, key: Key) -> bool {
        self.leaving.contains(&key)
    }

    /// REMOVE will not come.
    pub(super) fn has_left(&mut self, key: Key) {
        self.leaving.remove(&key);
    }

    pub(super) fn arm(
        &mut self,
        key: Key,
        socket: RawSocket,
        filter: EventFilter,
    ) -> Result<Arming, RegistrationError> {
        let entry = self.get(key, socket).ok_or(RegistrationError::NotASocket)?;
        entry.filter = filter;
        Ok(match entry.interruption {
            0 => {
                entry.state = State::Armed;
                Arming::Register(key)
            }
            _ => {
                let reason = next_reason(&mut entry.interruption);
                entry.state = State::Interrupted(reason);
                Arming::Post(key, reason)
            }
        })
    }

    /// It could not be armed.
    pub(super) fn disarm(&mut self, key: Key) {
        if let Some(entry) = self.by_key(key) {
            entry.state = State::Held;
        }
    }

    /// Have a connection reported with this value, which is one bit. Returns a key if a packet has to be posted.
    ///
    /// `insist`: if it is not armed, or its packet is queued for another reason, it is reported when it is armed next.
    pub(super) fn interrupt(
        &mut self,
        key: Key,
        socket: RawSocket,
        reason: u32,
        insist: bool,
    ) -> Option<Key> {
        let entry = self.get(key, socket)?;
        match entry.state {
            State::Armed => {
                entry.state = State::Interrupted(reason);
                entry.left = true;
                Some(key)
            }
            State::Interrupted(other) if other == reason => None,
            _ => {
                if insist {
                    entry.interruption |= reason;
                }
                None
            }
        }
    }

    /// Take an armed connection. Its registration stays enabled. False if it is not armed.
    pub(super) fn halt(&mut self, key: Key, socket: RawSocket) -> bool {
        match self.get(key, socket) {
            Some(entry) if matches!(entry.state, State::Armed) => {
                entry.state = State::Held;
                entry.left = true;
                true
            }
            _ => false,
        }
    }

    /// The packet could not be posted.
    pub(super) fn take_back_interruption(&mut self, key: Key) {
        if let Some(entry) = self.by_key(key) {
            entry.state = State::Armed;
        }
    }

    /// A packet was dequeued. If it may be older than the arming of the connection, the socket is
    /// polled.
    pub(super) fn filter_packet(
        &mut self,
        packet: Entry,
        holds: impl FnOnce(RawSocket, EventFilter) -> bool,
    ) -> Disposition {
        let key = packet.completion_key;
        // The kernel's packets have an overlapped value of 0, and so have interruptions. This one was posted, or
        // dequeued before.
        if packet.overlapped != 0 {
            return Disposition::Deliver(packet);
        }
        let is_removal = packet.events().contains(Events::REMOVE);
        if is_removal && (self.leaving.remove(&key) || self.by_key(key).is_some()) {
            return Disposition::Drop;
        }
        // If it is stale, the table of connections has nothing under its key either.
        let Some(entry) = self.by_key(key) else {
            return Disposition::Deliver(packet);
        };
        let is_ours = packet.transferred & !Events::ALL.bits() != 0;
        let says = match entry.state {
            State::Interrupted(reason) if is_ours => reason,
            State::Armed if !is_ours => {
                let events = packet.events() & entry.filter.wanted();
                let socket = entry.socket.expect("those without are not found");
                let is_old = mem::take(&mut entry.left) && !holds(socket, entry.filter);
                if events.is_empty() || is_old {
                    return Disposition::ArmAgain(key, socket, entry.filter);
                }
                events.bits()
            }
            _ => {
                entry.left &= is_ours;
                return Disposition::Drop;
            }
        };
        entry.state = State::Held;
        Disposition::Deliver(Entry::new(key, says, 0))
    }

    /// A connection could not be armed again: it is reported with an error.
    pub(super) fn fail(&mut self, key: Key) -> Option<Entry> {
        let entry = self.by_key(key)?;
        entry.state = State::Held;
        Some(Entry::new(key, Events::ERR.bits(), 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slots::INDEX_BITS;

    const SOCKET: RawSocket = 84;
    const REASON: u32 = 1 << 31;
    const OTHER_REASON: u32 = 1 << 30;
    const THIRD: u32 = 1 << 29;

    /// A key of this index, in its first generation.
    fn key(index: usize) -> Key {
        index | 1 << (usize::BITS - 2)
    }

    fn adopted(connections: &mut Connections, index: usize) -> Key {
        connections.adopt(key(index), SOCKET);
        key(index)
    }

    fn arm(connections: &mut Connections, key: Key, filter: EventFilter) {
        let armed = connections.arm(key, SOCKET, filter);
        assert!(matches!(armed, Ok(Arming::Register(it)) if it == key));
    }

    /// What is delivered if the kernel reports this.
    fn says(connections: &mut Connections, key: Key, says: u32) -> Option<Entry> {
        match connections.filter_packet(Entry::new(key, says, 0), |_, _| true) {
            Disposition::Deliver(entry) => Some(entry),
            Disposition::Drop => None,
            Disposition::ArmAgain(..) => panic!("it is to be armed again"),
        }
    }

    const IN: u32 = Events::IN.bits();

    #[test]
    fn what_is_armed_comes_out_once() {
        let mut connections = Connections::default();
        let key = adopted(&mut connections, 3);
        assert_eq!(says(&mut connections, key, IN), None);
        arm(&mut connections, key, EventFilter::IN);
        let packet = Entry::new(key, IN, 0);
        assert_eq!(says(&mut connections, key, IN), Some(packet));
        assert_eq!(says(&mut connections, key, IN), None);
    }

    #[test]
    fn the_next_generation_does_not_get_what_was_said_of_the_one_before() {
        let mut connections = Connections::default();
        let old = adopted(&mut connections, 3);
        arm(&mut connections, old, EventFilter::IN);
        assert!(connections.release(old, SOCKET));
        let new = old ^ 1 << (usize::BITS - 1);
        assert_eq!(index_of(new), index_of(old));
        connections.adopt(new, SOCKET);
        arm(&mut connections, new, EventFilter::IN);
        // It is stale, which is detected at delivery.
        let stale = Entry::new(old, IN, 0);
        assert_eq!(says(&mut connections, old, IN), Some(stale));
        assert!(!connections.release(old, SOCKET));
        assert_eq!(connections.interrupt(old, SOCKET, REASON, true), None);
        let packet = Entry::new(new, IN, 0);
        assert_eq!(says(&mut connections, new, IN), Some(packet));
    }

    #[test]
    fn packets_of_others_pass() {
        let mut connections = Connections::default();
        let own = adopted(&mut connections, 0);
        for key in [0, 7, usize::MAX, usize::MAX - 1] {
            let packet = Entry::new(key, 5, 6);
            let disposition = connections.filter_packet(packet, |_, _| true);
            assert!(matches!(disposition, Disposition::Deliver(it) if it == packet));
        }
        // With the index of a connection, and something else above it.
        for bit in INDEX_BITS..usize::BITS {
            for says in [IN, Events::REMOVE.bits(), 0, u32::MAX] {
                let packet = Entry::new(own ^ 1 << bit, says, 0);
                let disposition = connections.filter_packet(packet, |_, _| true);
                assert!(matches!(disposition, Disposition::Deliver(it) if it == packet));
            }
        }
        // One that was dequeued before, and posted again.
        let packet = Entry::new(own, IN, 1);
        let disposition = connections.filter_packet(packet, |_, _| true);
        assert!(matches!(disposition, Disposition::Deliver(it) if it == packet));
    }

    #[test]
    fn an_interruption_comes_in_place_of_what_the_kernel_says() {
        let mut connections = Connections::default();
        let key = adopted(&mut connections, 0);
        arm(&mut connections, key, EventFilter::IN);
        let posted = connections.interrupt(key, SOCKET, REASON, false);
        assert_eq!(posted, Some(key));
        assert_eq!(says(&mut connections, key, IN), None);
        assert_eq!(connections.interrupt(key, SOCKET, REASON, true), None);
        let told = Entry::new(key, REASON, 0);
        assert_eq!(says(&mut connections, key, REASON), Some(told));
        assert_eq!(says(&mut connections, key, IN), None);
        // It was one for the same reason.
        arm(&mut connections, key, EventFilter::IN);
    }

    #[test]
    fn each_reason_for_an_interruption_comes_once() {
        let mut connections = Connections::default();
        let key = adopted(&mut connections, 0);
        for is_armed in [true, false] {
            if is_armed {
                arm(&mut connections, key, EventFilter::IN);
            }
            let _ = connections.interrupt(key, SOCKET, REASON, true);
            assert_eq!(connections.interrupt(key, SOCKET, OTHER_REASON, true), None);
            assert_eq!(connections.interrupt(key, SOCKET, THIRD, false), None);
            let first = if is_armed { REASON } else { OTHER_REASON };
            if !is_armed {
                let armed = connections.arm(key, SOCKET, EventFilter::IN);
                assert!(matches!(armed, Ok(Arming::Post(_, reason)) if reason == first));
            }
            let told = Entry::new(key, first, 0);
            assert_eq!(says(&mut connections, key, first), Some(told));
            let second = REASON ^ OTHER_REASON ^ first;
            let armed = connections.arm(key, SOCKET, EventFilter::IN);
            assert!(matches!(armed, Ok(Arming::Post(_, reason)) if reason == second));
            let told = Entry::new(key, second, 0);
            assert_eq!(says(&mut connections, key, second), Some(told));
        }
        arm(&mut connections, key, EventFilter::IN);
    }

    #[test]
    fn an_interruption_that_insists_waits_for_the_connection() {
        let mut connections = Connections::default();
        let key = adopted(&mut connections, 0);
        assert_eq!(connections.interrupt(key, SOCKET, REASON, false), None);
        assert_eq!(connections.interrupt(key, SOCKET, REASON, true), None);
        let armed = connections.arm(key, SOCKET, EventFilter::IN);
        assert!(matches!(armed, Ok(Arming::Post(posted, REASON)) if posted == key));
        let told = Entry::new(key, REASON, 0);
        assert_eq!(says(&mut connections, key, REASON), Some(told));
        arm(&mut connections, key, EventFilter::IN);
    }

    #[test]
    fn what_nobody_asked_for_arms_again() {
        let mut connections = Connections::default();
        let key = adopted(&mut connections, 0);
        arm(&mut connections, key, EventFilter::OUT);
        let disposition = connections.filter_packet(Entry::new(key, IN, 0), |_, _| true);
        assert!(matches!(
            disposition,
            Disposition::ArmAgain(again, SOCKET, EventFilter::OUT) if again == key
        ));
        // If that fails, it is reported with an error.
        let failed = Entry::new(key, Events::ERR.bits(), 0);
        assert_eq!(connections.fail(key), Some(failed));
        assert_eq!(says(&mut connections, key, IN), None);
    }

    #[test]
    fn what_an_interruption_left_enabled_says_what_holds_now() {
        for (left_behind, holds) in [(true, true), (true, false), (false, false)] {
            let mut connections = Connections::default();
            let key = adopted(&mut connections, 0);
            arm(&mut connections, key, EventFilter::IN);
            let posted = connections.interrupt(key, SOCKET, REASON, true);
            assert_eq!(posted, Some(key));
            assert!(says(&mut connections, key, REASON).is_some());
            if !left_behind {
                assert_eq!(says(&mut connections, key, IN), None);
            }
            arm(&mut connections, key, EventFilter::IN);
            let disposition = connections.filter_packet(Entry::new(key, IN, 0), |_, _| holds);
            let is_delivered = matches!(disposition, Disposition::Deliver(_));
            assert_eq!(is_delivered, holds || !left_behind);
        }
    }

    #[test]
    fn a_removal_is_noticed_whoever_takes_it() {
        let mut connections = Connections::default();
        let key = adopted(&mut connections, 0);
        connections.release(key, SOCKET);
        connections.leave(key);
        assert_eq!(says(&mut connections, key, Events::REMOVE.bits()), None);
        assert!(!connections.is_leaving(key));
    }
}
