//! The driver's conditions, and the library's.

use super::device;
use crate::Events;
use crate::engine::Interest;

/// The kind of socket, as far as the conditions differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// It connects or listens.
    Stream,
    /// It does neither.
    Datagram,
}

/// Conditions of the driver that never fall once they hold.
pub(super) const LASTING: u32 = device::DISCONNECT | device::ABORT | device::CONNECT_FAIL;

/// Of these, those after which nothing can be sent.
pub(super) const FAILED: u32 = device::ABORT | device::CONNECT_FAIL;

/// Conditions of the driver that rise and fall.
pub(super) const FIRST: u32 =
    device::RECEIVE | device::RECEIVE_EXPEDITED | device::SEND | device::ACCEPT;

/// Those by which each of the contract's is found.
const FOUND_BY: [(Events, u32); 4] = [
    (
        Events::IN,
        device::RECEIVE | device::ACCEPT | device::DISCONNECT,
    ),
    (Events::OUT, device::SEND),
    (Events::PRIORITY, device::RECEIVE_EXPEDITED),
    (Events::HANGUP, device::DISCONNECT),
];

/// What a poll is for. It finds nothing that is not wanted.
pub(super) fn polled(interest: &Interest, kind: Kind) -> u32 {
    let wanted = possible(interest.word.filter().wanted(), kind);
    let found_by = FOUND_BY.iter().filter(|(event, _)| wanted.contains(*event));
    let always = device::ABORT | device::CONNECT_FAIL | device::LOCAL_CLOSE;
    found_by.fold(always, |events, (_, by)| events | by)
}

/// Translate the driver's conditions into the contract's.
pub(super) fn conditions(found: u32, kind: Kind) -> Events {
    // It was never connected, so there is nothing to receive.
    if found & device::CONNECT_FAIL != 0 {
        return Events::ERR | Events::HANGUP;
    }
    let found_by = FOUND_BY.iter().filter(|(_, by)| found & by != 0);
    let mut events: Events = found_by.map(|(event, _)| *event).collect();
    if found & device::ABORT != 0 {
        // A send on a reset connection does not block either, but is useless.
        events.remove(Events::OUT);
        events |= Events::IN | Events::HANGUP | Events::ERR;
    }
    possible(events, kind)
}

/// Without a connection there is no end of one.
fn possible(mut events: Events, kind: Kind) -> Events {
    if kind == Kind::Datagram {
        events.remove(Events::HANGUP);
    }
    events
}
