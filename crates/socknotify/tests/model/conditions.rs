//! The state of a socket, and which of the contract's conditions hold for it (part D).

use rustix::event::PollFlags;
use socknotify::Events;

/// What kind of socket it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// One end of a Unix stream pair.
    Unix,
    /// A TCP connection.
    Tcp,
    /// A UDP socket.
    Udp,
    /// A listening TCP socket.
    Listener,
}

/// The state of the connection to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    /// It was never connected, or never bound.
    Unconnected,
    /// Both may send.
    Open,
    /// The peer has shut down sending.
    Ended,
    /// The peer is closed. This end has seen only the end of the stream.
    Left,
    /// Neither may send.
    Dead,
    /// A connect failed.
    Refused,
}

/// One socket, as far as its peer and its owner have determined its state.
#[derive(Clone, Debug)]
pub(crate) struct Socket {
    pub(crate) kind: Kind,
    pub(crate) link: Link,
    /// Bytes, datagrams or connections that wait to be received.
    pub(crate) unread: usize,
    /// An error that waits to be received.
    pub(crate) error: bool,
    /// There is no room for sending.
    pub(crate) full: bool,
    /// Sends that the peer has not read.
    pub(crate) unread_by_peer: usize,
}

impl Socket {
    pub(crate) fn new(kind: Kind, link: Link) -> Self {
        Socket {
            kind,
            link,
            unread: 0,
            error: false,
            full: false,
            unread_by_peer: 0,
        }
    }

    /// The conditions that hold, by D1 to D6.
    pub(crate) fn holds(&self) -> Events {
        let mut events = Events::empty();
        events.set(Events::IN, self.unread > 0);
        events.set(Events::ERR, self.error);
        match (self.kind, self.link) {
            (Kind::Listener, _) => {}
            (Kind::Udp, _) | (_, Link::Open) => events.set(Events::OUT, !self.full),
            (_, Link::Unconnected) => {}
            // As long as its error is pending, a failed connect has this besides (D4).
            (_, Link::Refused) => events.set(Events::HANGUP, self.error),
            (_, Link::Ended | Link::Left) => {
                events |= Events::IN | Events::HANGUP;
                events.set(Events::OUT, !self.full);
            }
            (_, Link::Dead) => events |= Events::IN | Events::HANGUP,
        }
        events
    }

    /// The conditions that hold, and those of which the contract leaves open whether they do: a send
    /// that fails does not block either, nor does a receive on what never was connected.
    pub(crate) fn may_hold(&self) -> Events {
        self.holds()
            | match (self.kind, self.link) {
                (Kind::Tcp | Kind::Unix, Link::Dead) => Events::OUT,
                (Kind::Tcp, Link::Refused) if self.error => Events::empty(),
                (Kind::Tcp, Link::Refused) => Events::IN | Events::HANGUP | Events::OUT,
                _ => Events::empty(),
            }
    }

    /// What `poll` reports for such a socket once everything under way has arrived.
    pub(crate) fn polled(&self) -> PollFlags {
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::IN, self.unread > 0);
        flags.set(PollFlags::ERR, self.error);
        flags.set(PollFlags::OUT, self.kind != Kind::Listener && !self.full);
        match (self.kind, self.link) {
            (Kind::Udp | Kind::Listener, _) | (_, Link::Open) => {}
            (_, Link::Unconnected) => flags |= PollFlags::HUP,
            (_, Link::Ended | Link::Left) => flags |= PollFlags::IN | PollFlags::RDHUP,
            (_, Link::Dead | Link::Refused) => {
                flags |= PollFlags::IN | PollFlags::RDHUP | PollFlags::HUP;
            }
        }
        flags
    }

    /// Whether the peer can send.
    pub(crate) fn peer_can_send(&self) -> bool {
        self.link == Link::Open
    }

    /// Whether the peer is there.
    pub(crate) fn has_peer(&self) -> bool {
        matches!(self.link, Link::Open | Link::Ended)
    }

    /// The peer shuts down sending.
    pub(crate) fn end(&mut self) {
        self.link = Link::Ended;
    }

    /// The peer is closed, orderly as far as that is possible.
    pub(crate) fn peer_closed(&mut self) {
        match self.kind {
            Kind::Unix => {
                self.error = self.unread_by_peer > 0;
                self.link = Link::Dead;
                self.full = false;
            }
            // What the peer has not read, it resets.
            Kind::Tcp if self.unread_by_peer > 0 => self.reset(),
            Kind::Tcp | Kind::Udp => self.link = Link::Left,
            Kind::Listener => {}
        }
    }

    /// The connection is aborted.
    pub(crate) fn reset(&mut self) {
        self.link = Link::Dead;
        self.error = true;
    }
}
