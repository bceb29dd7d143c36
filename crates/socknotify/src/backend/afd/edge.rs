//! The conditions of one edge-triggered registration, and how the next edge of each is detected.
//!
//! | a condition is | the next edge | then |
//! |---|---|---|
//! | awaited | completes the poll, which is for it | it is reported |
//! | `reported` | before a thread waits next it is polled, and the record tells whether it fell in between | awaited, if it does not hold; reported again, if it holds and is `recorded`; held, if it only holds |
//! | `held` | puts it into the record, which is watched and has a packet for that | it is reported |
//! | `seen` | never comes: an end or an error does not fall | |
//!
//! What is reported while a thread waits already is held at once: nobody would poll it. The record begins with the first
//! report. So while a thread waits, each condition that an enabled socket is registered for is polled, or is watched, or has
//! a packet.

use windows_sys::Win32::Networking::WinSock::SO_ACCEPTCONN;

use super::conditions::{FAILED, FIRST, Kind, LASTING, polled};
use super::device::{self, Poll};
use super::edges::Edges;
use super::packets::EDGES;
use super::winsock;
use crate::Events;
use crate::engine::Interest;
use crate::os::Fd;
use crate::os::windows::port::{self, KernelPort};

/// A poll in progress.
#[derive(Clone, Copy)]
pub(super) struct Current {
    pub(super) poll: *mut Poll,
    /// What it is for.
    pub(super) events: u32,
    /// Of the interest for which it was begun. If the socket was armed again since, the result may be older than that.
    pub(super) generation: u32,
}

impl Current {
    pub(super) fn covers(&self, events: u32) -> bool {
        events & !self.events == 0
    }
}

/// The edges of a socket.
#[derive(Default)]
pub(super) struct Edge {
    /// From the first report on. Before that it is not needed, and would make the socket non-blocking under Wine, also
    /// for `connect`.
    pub(super) edges: Option<Edges>,
    /// Conditions that were reported, and not polled since. If a poll finds them, the record says whether they have fallen.
    pub(super) reported: u32,
    /// Conditions that are watched, and not polled, because they hold.
    pub(super) held: u32,
    /// Conditions that have begun to hold by the record, and that were not reported since.
    pub(super) recorded: u32,
    /// The conditions that the socket can have.
    pub(super) possible: u32,
    /// Conditions that never fall, and were seen.
    pub(super) seen: u32,
    /// The last connection that was reported was not in the record.
    pub(super) repeated: bool,
}

/// What a poll says.
pub(super) struct Polled {
    /// What has begun to hold.
    pub(super) begun: u32,
    /// What holds still since it was reported.
    pub(super) still: u32,
}

impl Edge {
    pub(super) fn new(kind: Kind, fd: Fd) -> Self {
        let listens = || winsock::option(fd, SO_ACCEPTCONN).is_ok_and(|listens| listens != 0);
        // Without connections, and for a listener, there is no end.
        let possible = match kind {
            Kind::Datagram => FIRST & !device::ACCEPT,
            Kind::Stream if listens() => device::ACCEPT,
            Kind::Stream => FIRST | LASTING,
        };
        Edge {
            possible,
            ..Edge::default()
        }
    }

    /// It is armed for something else. What holds may be reported, once.
    pub(super) fn start_over(&mut self) {
        (self.reported, self.held, self.recorded, self.seen) = (0, 0, 0, 0);
    }

    /// Find out by the record which conditions have begun to hold since they were reported. It is begun with the first that
    /// holds.
    pub(super) fn read_record(&mut self, port: &KernelPort, fd: Fd, first: u32) {
        if self.edges.is_none() && first != 0 {
            self.edges = Edges::new(port, EDGES.key(), fd).ok();
        }
        // Without memory for a record, what holds may be reported once too often.
        self.recorded |= self.edges.as_ref().map_or(first, Edges::take);
    }

    /// A poll has found these conditions, and the record was [read](Self::read_record).
    pub(super) fn on_polled(&mut self, found: u32) -> Polled {
        let first = found & FIRST;
        let lasting = found & LASTING & self.possible & !self.seen;
        self.seen |= lasting;
        let mut begun =
            lasting | first & (!self.reported | self.recorded) | self.held & self.recorded;
        self.repeated &= begun & device::ACCEPT == 0;
        // After an accept that has found nothing, Wine's server may not record the next connection.
        if first & !begun & device::ACCEPT != 0 && !self.repeated && port::is_wine() {
            self.repeated = true;
            begun |= device::ACCEPT;
        }
        let still = first & !begun;
        self.recorded &= !(first | self.held);
        self.reported |= begun & FIRST;
        self.reported &= !still;
        Polled { begun, still }
    }

    /// What its poll is for.
    pub(super) fn polled(&self, interest: &Interest, kind: Kind) -> u32 {
        const INPUT: u32 = device::RECEIVE | device::RECEIVE_EXPEDITED | device::ACCEPT;
        let mut events = polled(interest, kind) & self.possible & !self.seen & !self.held;
        // After the end of a stream, nothing more arrives; and no socket has both data and connections. Under Wine, a poll
        // for what cannot come keeps its server busy.
        if self.seen & (device::DISCONNECT | device::ABORT) != 0 {
            events &= !INPUT;
        }
        if self.held & device::RECEIVE != 0 {
            events &= !device::ACCEPT;
        }
        if self.held & device::ACCEPT != 0 {
            events &= !device::RECEIVE;
        }
        if !interest.is_enabled() {
            events = 0;
        }
        events | device::LOCAL_CLOSE
    }

    /// After an error nothing can be sent.
    pub(super) fn without_out(&self, mut events: Events) -> Events {
        if self.seen & FAILED != 0 {
            events.remove(Events::OUT);
        }
        events
    }
}
