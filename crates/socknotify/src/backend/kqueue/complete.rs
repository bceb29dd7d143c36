//! Two filters, one notification.
//!
//! A socket that is readable and writable has two events, and one call may have room for the first only. The packet shows
//! what held when it was taken from the kernel. So if an event shows one of two wanted conditions without the other, one
//! `poll` for all of them checks for the other. Edges are reported one by one.

use super::identity::{self, Kind};
use super::sys::{Filter, poll_now};
use super::translate::Knotes;
use crate::engine::{Report, Table};
use crate::os::{Fd, RawSocket};
use crate::{EventFilter, Events};

/// A report, and the kind of its descriptor.
pub(super) type Found = (Report, Kind);

/// Add further conditions that hold.
pub(super) fn complete(table: &Table, polls: &mut Vec<libc::pollfd>, found: &mut [Found]) {
    polls.clear();
    // One for each report, also if several are of one descriptor. Those with a negative number are passed over.
    polls.extend(found.iter().map(|(report, kind)| {
        let missing = missing(table, report, *kind);
        let mut poll = pollfd_for(report.fd, missing);
        if missing.is_empty() {
            poll.fd = -1;
        }
        poll
    }));
    if polls.iter().all(|poll| poll.fd < 0) || poll_now(polls).is_err() {
        return;
    }
    for ((report, _), poll) in found.iter_mut().zip(polls) {
        report.events |= events_of(poll.revents);
    }
}

/// Which conditions are wanted and may hold besides those that are reported.
fn missing(table: &Table, report: &Report, kind: Kind) -> Events {
    // After an error the kernel calls a socket readable and writable.
    if report.events.contains(Events::ERR) {
        return Events::empty();
    }
    let interest = table.interest(report.fd).filter(|interest| {
        interest.word.generation() == report.generation
            && interest.is_enabled()
            && Knotes::of(interest) == Knotes::Dispatch
    });
    let mut wanted = interest.map_or(Events::empty(), |interest| interest.word.filter().wanted());
    // At the end of a pipe, `poll` may also report the condition of the other end.
    if !kind.has(Filter::Read) {
        wanted.remove(Events::IN);
    }
    if !kind.has(Filter::Write) {
        wanted.remove(Events::OUT);
    }
    (wanted & (Events::IN | Events::OUT)) - report.events
}

fn pollfd_for(fd: Fd, missing: Events) -> libc::pollfd {
    let mut events = 0;
    if missing.contains(Events::IN) {
        events |= libc::POLLIN;
    }
    if missing.contains(Events::OUT) {
        events |= libc::POLLOUT;
    }
    libc::pollfd {
        fd: fd.0 as i32,
        events,
        revents: 0,
    }
}

fn events_of(revents: i16) -> Events {
    let mut events = Events::empty();
    if revents & (libc::POLLNVAL | libc::POLLERR) == 0 {
        events.set(Events::IN, revents & libc::POLLIN != 0);
        events.set(Events::OUT, revents & libc::POLLOUT != 0);
    }
    events
}

/// `poll` — Which of these conditions hold, or an error, which counts in any case. Not every system tells of an end of receiving
/// otherwise than as IN.
pub(crate) fn conditions(socket: RawSocket, filter: EventFilter) -> Events {
    // The system that has the stand-in.
    #[cfg(target_os = "linux")]
    const ENDS: i16 = libc::POLLRDHUP;
    #[cfg(not(target_os = "linux"))]
    const ENDS: i16 = libc::POLLHUP;
    let Some(fd) = crate::os::fd(socket) else {
        return Events::empty();
    };
    let wanted = filter.wanted();
    let mut poll = pollfd_for(fd, wanted);
    poll.events |= ENDS;
    if poll_now(std::slice::from_mut(&mut poll)).is_err() {
        return Events::empty();
    }
    let is_stream = identity::kind(fd) == Kind::Stream;
    let mut events = events_of(poll.revents);
    // A socket that was never connected is hung up, and writable.
    if poll.revents & libc::POLLHUP != 0 {
        events.remove(Events::OUT);
    }
    events.set(Events::ERR, poll.revents & libc::POLLERR != 0);
    events.set(Events::HANGUP, is_stream && poll.revents & ENDS != 0);
    events & wanted
}
