//! The contract's conditions, and the kernel's filters.
//!
//! | | `EVFILT_READ` | `EVFILT_WRITE` |
//! |---|---|---|
//! | IN | data, a connection, an end | |
//! | OUT | | room, or the end of one's own sending |
//! | HANGUP | the end, on a stream | an end with an error |
//! | ERR | an end with an error; or else a `recv` that peeks says so | an end with an error |
//!
//! An end of writing alone may be one's own `shutdown`. A datagram socket with an error is readable, and
//! the event does not say why.

use std::ops::Deref;

use super::identity::{self, Kind};
use super::sys::{self, Access, Event, Filter, Token, flags};
use crate::engine::Interest;
use crate::{EventFilter, Events};

/// The changes to watch a socket once for these conditions. `EVFILT_READ` shows errors whatever the filter is, or
/// `EVFILT_WRITE` for descriptors that can only be written.
///
/// If the filters are new (`is_new`), the unwanted one is disabled. Otherwise it is left unchanged: it reports at most
/// once, which is recognised as stale.
pub(super) fn changes(interest: &Interest, is_new: bool) -> Changes {
    let socket = interest.socket;
    let kind = identity::kind(socket);
    Changes::new(|filter| {
        let condition = match filter {
            Filter::Read => EventFilter::IN,
            _ => EventFilter::OUT,
        };
        let is_wanted = interest.filter().contains(condition);
        let shows_errors = filter == Filter::Read || kind == Kind::Writer;
        if !kind.has(filter) || !(is_new || is_wanted || shows_errors) {
            return None;
        }
        let enable = match is_wanted || shows_errors {
            true => flags::ENABLE,
            false => flags::DISABLE,
        };
        let change = change(interest, filter, is_new, enable);
        Some(match shows_errors && !is_wanted {
            true => change.ends_only(),
            false => change,
        })
    })
}

fn change(interest: &Interest, filter: Filter, is_new: bool, flag: u32) -> Event {
    let add = match is_new {
        true => flags::ADD | flags::DISPATCH,
        false => 0,
    };
    let token = Token(interest.generation());
    Event::new(interest.socket, filter, add | flag, token)
}

/// At most one for each filter.
#[derive(Clone, Copy)]
pub(super) struct Changes {
    events: [Event; 2],
    count: usize,
}

impl Changes {
    fn new(change: impl Fn(Filter) -> Option<Event>) -> Self {
        let none = Event::new(0, Filter::Read, 0, Token(0));
        let mut changes = Changes {
            events: [none; 2],
            count: 0,
        };
        for event in [Filter::Read, Filter::Write].into_iter().filter_map(change) {
            changes.events[changes.count] = event;
            changes.count += 1;
        }
        changes
    }
}

impl Deref for Changes {
    type Target = [Event];

    fn deref(&self) -> &[Event] {
        &self.events[..self.count]
    }
}

/// The changes to add all filters, disabled.
pub(super) fn silenced(interest: &Interest, is_new: bool) -> Changes {
    let kind = identity::kind(interest.socket);
    Changes::new(|filter| {
        let change = change(interest, filter, is_new, flags::DISABLE);
        kind.has(filter).then_some(change)
    })
}

/// The changes to delete all filters.
pub(super) fn deletions(socket: u32) -> Changes {
    let kind = identity::kind(socket);
    Changes::new(|filter| {
        let change = Event::new(socket, filter, flags::DELETE, Token(0));
        kind.has(filter).then_some(change)
    })
}

/// Whether a change only adds to what is reported. Then it may come late, after another thread has armed the
/// socket differently: what that thread wants is still reported, with the generation of this change, and
/// is armed again.
pub(super) fn only_adds(interest: &Interest) -> bool {
    let condition = match identity::kind(interest.socket) {
        Kind::Writer => EventFilter::OUT,
        _ => EventFilter::IN,
    };
    interest.filter().contains(condition)
}

/// Which conditions hold by an event.
pub(super) fn of_event(event: &Event) -> Events {
    let socket = event.ident();
    let kind = identity::kind(socket);
    let is_error = event.is_error();
    let mut events = Events::empty();
    match event.filter() {
        // The reader of a pipe was closed.
        _ if event.is_end() && !kind.is_socket() && is_of_writing(event) => events = Events::ERR,
        _ if event.is_failed_connect() => events = Events::ERR,
        Filter::Write if is_error => events = Events::ERR | hangup(kind),
        Filter::Write => events = Events::OUT,
        Filter::Read if event.is_end() => {
            events = Events::IN | hangup(kind);
            events.set(Events::ERR, is_error);
        }
        Filter::Read => {
            // Together with data, only datagram sockets can have an error to check for.
            let may_have_error = match kind {
                Kind::Datagram => true,
                Kind::Stream => event.amount() <= 0,
                Kind::Reader | Kind::Writer | Kind::Other => false,
            };
            let has_error = may_have_error && sys::has_error(socket);
            events.set(Events::ERR, has_error);
            // An error alone is nothing to receive.
            events.set(Events::IN, event.amount() > 0 || !has_error);
        }
        Filter::User | Filter::Timer => {}
    }
    events
}

/// Whether an end is one of writing. If a kernel has refused `EVFILT_WRITE`, it shows in `EVFILT_READ`.
fn is_of_writing(event: &Event) -> bool {
    event.filter() == Filter::Write || sys::access(event.ident()) == Access::Write
}

/// The events of an end: a datagram socket has no connection that could be hung up.
fn hangup(kind: Kind) -> Events {
    match kind {
        Kind::Datagram => Events::empty(),
        _ => Events::HANGUP,
    }
}
