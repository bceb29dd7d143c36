//! The library's conditions as flags of `epoll` and `poll`, and back.

use super::sys::{self, Kind};
use crate::engine::{Interest, Mode};
use crate::os::Fd;
use crate::{EventFilter, Events};

const IN: u32 = libc::EPOLLIN as u32;
const OUT: u32 = libc::EPOLLOUT as u32;
const RDHUP: u32 = libc::EPOLLRDHUP as u32;
const HUP: u32 = libc::EPOLLHUP as u32;
const ERR: u32 = libc::EPOLLERR as u32;
const PRI: u32 = libc::EPOLLPRI as u32;
const ONESHOT: u32 = libc::EPOLLONESHOT as u32;
const EDGE: u32 = libc::EPOLLET as u32;

/// What the kernel is to watch for. It reports errors and hang-ups in any case.
#[inline]
pub(super) fn flags(interest: &Interest) -> u32 {
    if !interest.is_enabled() {
        // At most one hang-up or error comes.
        return ONESHOT | EDGE;
    }
    const TRIGGERS: [u32; 4] = {
        let mut triggers = [0; 4];
        triggers[Mode::Once as usize] = ONESHOT;
        triggers[Mode::Level as usize] = EDGE;
        triggers[Mode::Edge as usize] = EDGE;
        // Urgent data keep a receive from taking all there is.
        triggers[Mode::Kept as usize] = EDGE | PRI;
        triggers
    };
    let trigger = match interest.word.is_quiet() {
        true => EDGE,
        false => TRIGGERS[interest.word.mode() as usize],
    };
    // Without RDHUP, a stream that was hung up looks like one that was never connected.
    trigger | RDHUP | wanted(interest.word.filter())
}

/// The flags of the wanted conditions, which are at other places in the kernel's word.
#[inline]
fn wanted(filter: EventFilter) -> u32 {
    let bits = u32::from(filter.bits());
    const { assert!(IN == 1 && PRI == 2 && OUT == 4) };
    ((bits & 3) + (bits & 2)) | bits >> 13 & PRI
}

/// The conditions of any flags, which `poll` and `epoll` have alike.
#[inline]
pub(super) fn events(flags: u32, fd: Fd) -> Events {
    if flags & !(IN | OUT) == 0 {
        // They mean the same for every kind of descriptor.
        plain(flags)
    } else {
        of_descriptor(flags, fd)
    }
}

#[inline]
fn plain(flags: u32) -> Events {
    Events::from_bits_retain(flags & IN | (flags & OUT) >> 1)
}

/// The conditions of flags that mean something else for each kind of descriptor. None for a stream that neither is, nor was, nor tried to be
/// connected, which the kernel calls hung up, and writable.
#[cold]
fn of_descriptor(flags: u32, fd: Fd) -> Events {
    let kind = match flags & (HUP | RDHUP) {
        0 => Kind::Datagram,
        _ => sys::kind(fd),
    };
    if flags & (HUP | RDHUP | ERR) == HUP && kind != Kind::Other {
        return Events::empty();
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
            // The kernel calls a connection that was reset writable, and a connect that failed readable too.
            events.remove(Events::OUT);
            if sys::was_never_connected(fd) {
                events = Events::ERR | Events::HANGUP;
            }
        }
    }
    events
}

/// What to ask `poll` of a descriptor that is armed already; nothing, if it is not polled.
#[inline]
pub(super) fn pollfd_for(interest: &Interest, is_polled: bool) -> libc::pollfd {
    let fd = if is_polled { interest.fd.0 as i32 } else { -1 };
    pollfd(fd, interest.word.filter())
}

/// What to ask `poll` for these conditions.
#[inline]
pub(super) fn pollfd(fd: i32, filter: EventFilter) -> libc::pollfd {
    libc::pollfd {
        fd,
        events: wanted(filter) as i16 | libc::POLLRDHUP,
        revents: 0,
    }
}

/// What `poll` has found, in the flags of `epoll`, which are the same.
#[inline]
pub(super) fn poll_events(poll: &libc::pollfd) -> u32 {
    u32::from(poll.revents as u16)
}

#[cfg(all(test, not(interleavings)))]
mod tests {
    use super::*;

    #[test]
    fn poll_and_epoll_have_the_same_flags() {
        for (poll, epoll) in [
            (libc::POLLIN, libc::EPOLLIN),
            (libc::POLLOUT, libc::EPOLLOUT),
            (libc::POLLRDHUP, libc::EPOLLRDHUP),
            (libc::POLLHUP, libc::EPOLLHUP),
            (libc::POLLERR, libc::EPOLLERR),
            (libc::POLLPRI, libc::EPOLLPRI),
        ] {
            let poll = libc::pollfd {
                fd: 0,
                events: 0,
                revents: poll,
            };
            assert_eq!(poll_events(&poll), epoll as u32);
        }
    }

    #[test]
    fn conditions_have_flags() {
        let filter = EventFilter::IN | EventFilter::PRIORITY;
        assert_eq!(wanted(filter), IN | PRI);
        assert_eq!(wanted(EventFilter::ALL), IN | OUT);
        assert_eq!(plain(IN | OUT), Events::IN | Events::OUT);
        assert_eq!(plain(OUT), Events::OUT);
    }
}
