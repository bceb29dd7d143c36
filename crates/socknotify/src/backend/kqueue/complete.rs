//! Two filters, one notification.
//!
//! A socket that is readable and writable has two events, and two threads may have taken one each; or one
//! filter was not enabled again yet, and the other is still enabled. The contract wants one notification with
//! all conditions that hold. So if an event shows one of two wanted conditions without the other, `poll` checks for
//! the other.

use super::identity;
use super::sys::{self, Filter};
use crate::Events;
use crate::engine::{Mode, Report, Wanted};

/// Add further conditions that hold to the reports.
pub(super) fn complete(wanted: &Wanted, polls: &mut Vec<libc::pollfd>, reports: &mut [Report]) {
    polls.clear();
    for (index, report) in reports.iter().enumerate() {
        // The two events of one socket are next to each other.
        let is_of_it = |other: Option<&Report>| other.is_some_and(|it| it.socket == report.socket);
        let is_complete =
            is_of_it(reports.get(index + 1)) || index > 0 && is_of_it(reports.get(index - 1));
        let missing = match wanted.get(report.socket) {
            Some(interest) if interest.mode() != Mode::Edge && !is_complete => {
                let kind = identity::kind(report.socket);
                let mut missing =
                    (interest.filter().wanted() & (Events::IN | Events::OUT)) - report.events;
                // At the end of a pipe, `poll` may also report the condition of the other end.
                if !kind.has(Filter::Read) {
                    missing.remove(Events::IN);
                }
                if !kind.has(Filter::Write) {
                    missing.remove(Events::OUT);
                }
                missing
            }
            _ => Events::empty(),
        };
        // After an error, `poll` reports every condition.
        if !missing.is_empty() && !report.events.contains(Events::ERR) {
            polls.push(question(report.socket, missing));
        }
    }
    if polls.is_empty() || sys::poll_now(polls).is_err() {
        return;
    }
    let mut polls = polls.iter().peekable();
    for report in reports {
        if let Some(poll) = polls.next_if(|poll| poll.fd as u32 == report.socket) {
            report.events |= found(poll.revents);
        }
    }
}

fn question(socket: u32, wanted: Events) -> libc::pollfd {
    let mut events = 0;
    if wanted.contains(Events::IN) {
        events |= libc::POLLIN;
    }
    if wanted.contains(Events::OUT) {
        events |= libc::POLLOUT;
    }
    libc::pollfd {
        fd: socket as i32,
        events,
        revents: 0,
    }
}

/// Which conditions `poll` has found.
fn found(revents: i16) -> Events {
    let mut events = Events::empty();
    if revents & (libc::POLLNVAL | libc::POLLERR) == 0 {
        events.set(Events::IN, revents & libc::POLLIN != 0);
        events.set(Events::OUT, revents & libc::POLLOUT != 0);
    }
    events
}
