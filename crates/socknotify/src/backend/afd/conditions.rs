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

/// What a poll is for. It finds nothing that is not wanted.
pub(super) fn polled(interest: &Interest, kind: Kind) -> u32 {
    let mut events = device::ABORT | device::CONNECT_FAIL | device::LOCAL_CLOSE;
    let wanted = interest.word.filter().wanted();
    if wanted.contains(Events::IN) {
        events |= device::RECEIVE | device::ACCEPT | device::DISCONNECT;
    }
    if wanted.contains(Events::OUT) {
        events |= device::SEND;
    }
    if wanted.contains(Events::PRIORITY) {
        events |= device::RECEIVE_EXPEDITED;
    }
    if wanted.contains(Events::HANGUP) && kind == Kind::Stream {
        events |= device::DISCONNECT;
    }
    events
}

/// Translate the driver's conditions into the contract's.
pub(super) fn conditions(found: u32, kind: Kind) -> Events {
    let is = |events: u32| found & events != 0;
    // It was never connected, so there is nothing to receive.
    if is(device::CONNECT_FAIL) {
        return Events::ERR | Events::HANGUP;
    }
    let reset = is(device::ABORT);
    let mut events = Events::empty();
    events.set(
        Events::IN,
        is(device::RECEIVE | device::ACCEPT | device::DISCONNECT | device::ABORT),
    );
    events.set(Events::PRIORITY, is(device::RECEIVE_EXPEDITED));
    // A send on a reset connection does not block either, but is useless.
    events.set(Events::OUT, is(device::SEND) && !reset);
    events.set(Events::ERR, reset);
    events.set(
        Events::HANGUP,
        kind == Kind::Stream && is(device::DISCONNECT | device::ABORT),
    );
    events
}
