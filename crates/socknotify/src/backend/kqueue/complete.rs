//! Two filters, one notification.
//!
//! A socket that is readable and writable has two events, and two threads may have taken one each; or one
//! filter is to be enabled again by now, and the other is still enabled. The contract has one notification with
//! all that holds. So where an event shows one of two wanted conditions, and the other one did not come with
//! it, `poll` is asked about that.

use super::sys::{self, Poll};
use crate::Events;
use crate::engine::{Mode, Report, Wanted};

/// Add to reports what holds besides.
pub(super) fn complete(wanted: &Wanted, polls: &mut Vec<Poll>, reports: &mut [Report]) {
    polls.clear();
    for (index, report) in reports.iter().enumerate() {
        // The two events of one socket are beside each other.
        let is_of_it = |other: Option<&Report>| other.is_some_and(|it| it.socket == report.socket);
        let is_complete =
            is_of_it(reports.get(index + 1)) || index > 0 && is_of_it(reports.get(index - 1));
        let missing = match wanted.get(report.socket) {
            Some(interest) if interest.mode() != Mode::Edge && !is_complete => {
                (interest.filter().wanted() & (Events::IN | Events::OUT)) - report.events
            }
            _ => Events::empty(),
        };
        // After an error, `poll` calls a socket ready for everything.
        if !missing.is_empty() && !report.events.contains(Events::ERR) {
            polls.push(Poll::new(report.socket, missing));
        }
    }
    if polls.is_empty() || sys::poll_now(polls).is_err() {
        return;
    }
    let mut polls = polls.iter().peekable();
    for report in reports {
        if let Some(poll) = polls.next_if(|poll| poll.socket() == report.socket) {
            report.events |= poll.found();
        }
    }
}
