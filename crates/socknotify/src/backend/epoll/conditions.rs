//! The contract's conditions, out of what the kernel says.

use super::sys::{self, Kind};
use crate::engine::{Interest, Mode, Readiness};
use crate::{EventFilter, Events};

const IN: u32 = libc::EPOLLIN as u32;
const OUT: u32 = libc::EPOLLOUT as u32;
const RDHUP: u32 = libc::EPOLLRDHUP as u32;
const HUP: u32 = libc::EPOLLHUP as u32;
const ERR: u32 = libc::EPOLLERR as u32;
const PRI: u32 = libc::EPOLLPRI as u32;

/// What the kernel is to watch for. It reports errors and hang-ups in any case.
#[inline]
pub(super) fn flags(filter: EventFilter, mode: Mode) -> u32 {
    // Without RDHUP, a stream that was hung up looks like one that was never connected.
    let mut flags = RDHUP
        | match mode {
            Mode::Once => libc::EPOLLONESHOT as u32,
            Mode::Level => 0,
            Mode::Edge => libc::EPOLLET as u32,
            Mode::Kept => libc::EPOLLET as u32 | PRI,
        };
    if filter.contains(EventFilter::IN) {
        flags |= IN;
    }
    if filter.contains(EventFilter::OUT) {
        flags |= OUT;
    }
    if filter.contains(EventFilter::PRIORITY) {
        flags |= PRI;
    }
    flags
}

/// Whether these mean the same for every kind of socket.
#[inline]
pub(super) fn is_plain(flags: u32) -> bool {
    flags & !(IN | OUT) == 0
}

/// The conditions of [plain](is_plain) flags.
#[inline]
pub(super) fn plain(flags: u32) -> Events {
    // Those that they stand for are at other places in the kernel's word.
    let mut events = Events::empty();
    if flags & IN != 0 {
        events |= Events::IN;
    }
    if flags & OUT != 0 {
        events |= Events::OUT;
    }
    events
}

/// The conditions of any flags. `None` for a stream that neither is, nor was, nor tried to be connected,
/// which the kernel calls hung up, and writable.
pub(super) fn of_socket(flags: u32, socket: u32) -> Option<Events> {
    let kind = match flags & (HUP | RDHUP) {
        0 => Kind::Datagram,
        _ => sys::kind(socket),
    };
    if flags & (HUP | RDHUP | ERR) == HUP && kind != Kind::Other {
        return None;
    }
    let mut events = plain(flags);
    events.set(Events::ERR, flags & ERR != 0);
    events.set(Events::PRIORITY, flags & PRI != 0);
    if kind == Kind::Other && flags & HUP != 0 {
        // To read does not block, but says that this is the end.
        events |= Events::HANGUP | Events::FULL_HANGUP | Events::IN;
    } else if kind == Kind::Stream {
        events |= Events::HANGUP;
        events.set(Events::FULL_HANGUP, flags & HUP != 0);
        if flags & (HUP | ERR) == HUP | ERR {
            // The kernel calls a connection that was reset writable, and a connect that failed hung up too.
            events.remove(Events::OUT);
            if sys::was_never_connected(socket) {
                events = Events::ERR;
            }
        }
    }
    Some(events)
}

/// What `poll` is asked for.
#[inline]
fn asked(filter: EventFilter) -> i16 {
    let mut asked = libc::POLLRDHUP;
    if filter.contains(EventFilter::IN) {
        asked |= libc::POLLIN;
    }
    if filter.contains(EventFilter::OUT) {
        asked |= libc::POLLOUT;
    }
    if filter.contains(EventFilter::PRIORITY) {
        asked |= libc::POLLPRI;
    }
    asked
}

/// What `poll` found, in the words of `epoll`, which are the same.
#[inline]
pub(super) fn found(revents: i16) -> u32 {
    u32::from(revents as u16)
}

/// What to ask `poll` of this number; if nothing, it passes it over.
#[inline]
pub(super) fn question(interest: &Interest, is_asked: bool) -> libc::pollfd {
    libc::pollfd {
        fd: if is_asked { interest.socket as i32 } else { -1 },
        events: asked(interest.filter()),
        revents: 0,
    }
}

/// Which wanted conditions hold of the number, by what `poll` has found.
#[inline]
pub(super) fn answer(poll: &libc::pollfd, interest: &Interest, is_known: bool) -> Readiness {
    let found = found(poll.revents);
    if !is_known || poll.fd < 0 || poll.revents & libc::POLLNVAL != 0 {
        Readiness::Unknown
    } else if found == 0 {
        Readiness::NotReady
    } else if is_plain(found) {
        Readiness::Ready(plain(found))
    } else {
        match of_socket(found, interest.socket) {
            Some(events) if events.intersects(interest.filter().wanted()) => {
                Readiness::Ready(events)
            }
            _ => Readiness::NotReady,
        }
    }
}

#[cfg(all(test, not(interleavings)))]
mod tests {
    use super::*;

    #[test]
    fn poll_and_epoll_have_the_same_words() {
        for (poll, epoll) in [
            (libc::POLLIN, libc::EPOLLIN),
            (libc::POLLOUT, libc::EPOLLOUT),
            (libc::POLLRDHUP, libc::EPOLLRDHUP),
            (libc::POLLHUP, libc::EPOLLHUP),
            (libc::POLLERR, libc::EPOLLERR),
            (libc::POLLPRI, libc::EPOLLPRI),
        ] {
            assert_eq!(found(poll), epoll as u32);
        }
    }
}
