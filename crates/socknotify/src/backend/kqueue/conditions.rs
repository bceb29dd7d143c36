//! The contract's conditions, and the kernel's filters.
//!
//! | | `EVFILT_READ` | `EVFILT_WRITE` |
//! |---|---|---|
//! | IN | data, a connection, an end | |
//! | OUT | | room, or the end of one's own sending |
//! | HANGUP | the end, on a stream | an end with an error |
//! | ERR | an end with an error; or else a `recv` that peeks says so | an end with an error |
//!
//! An end of writing alone may be one's own `shutdown`. A datagram socket that has an error is readable, and
//! nothing in the event says why.

use std::ops::Deref;

use super::identity;
use super::sys::{self, Event, Filter, Token, flags};
use crate::engine::Interest;
use crate::{EventFilter, Events};

/// What to change so that a socket is watched once for these conditions. Errors show in `EVFILT_READ`
/// whatever the filter.
///
/// If both filters are to be there from now on (`is_new`), the one that is not wanted is disabled. If not, it is
/// left as it is: it reports once at most, and that is known to be stale.
pub(super) fn changes(interest: &Interest, is_new: bool) -> Changes {
    let filter = interest.filter();
    let token = Token(interest.generation());
    let add = if is_new {
        flags::ADD | flags::DISPATCH
    } else {
        0
    };
    let read = Event::new(interest.socket, Filter::Read, add | flags::ENABLE, token);
    let read = match filter.contains(EventFilter::IN) {
        true => read,
        false => read.ends_only(),
    };
    let wants_room = filter.contains(EventFilter::OUT);
    let enable = if wants_room {
        flags::ENABLE
    } else {
        flags::DISABLE
    };
    let write = Event::new(interest.socket, Filter::Write, add | enable, token);
    Changes {
        events: [read, write],
        count: 1 + usize::from(is_new || wants_room),
    }
}

/// One change or two.
pub(super) struct Changes {
    events: [Event; 2],
    count: usize,
}

impl Deref for Changes {
    type Target = [Event];

    fn deref(&self) -> &[Event] {
        &self.events[..self.count]
    }
}

/// What to change so that both filters are there, and neither reports.
pub(super) fn silenced(interest: &Interest, is_new: bool) -> [Event; 2] {
    let token = Token(interest.generation());
    let add = if is_new {
        flags::ADD | flags::DISPATCH
    } else {
        0
    };
    let disable = add | flags::DISABLE;
    [Filter::Read, Filter::Write].map(|filter| Event::new(interest.socket, filter, disable, token))
}

/// What to change so that both filters are gone.
pub(super) fn deletions(socket: u32) -> [Event; 2] {
    [Filter::Read, Filter::Write].map(|it| Event::new(socket, it, flags::DELETE, Token(0)))
}

/// Whether a change only adds to what is reported. Then it may come late, after another thread has armed the
/// socket in another way: what that one waits for is reported all the same, under this one's generation, and
/// is armed again.
pub(super) fn only_adds(interest: &Interest) -> bool {
    interest.filter().contains(EventFilter::IN)
}

/// Which conditions hold by an event.
pub(super) fn of_event(event: &Event) -> Events {
    let socket = event.ident();
    let is_error = event.is_error();
    let mut events = Events::empty();
    match event.filter() {
        // The reader of a pipe is gone.
        Filter::Write if event.is_end() && sys::is_stream(socket).is_err() => events = Events::ERR,
        _ if event.is_failed_connect() => events = Events::ERR,
        Filter::Write if is_error => events = Events::ERR | hangup(socket),
        Filter::Write => events = Events::OUT,
        Filter::Read if event.is_end() => {
            events = Events::IN | hangup(socket);
            events.set(Events::ERR, is_error);
        }
        Filter::Read => {
            // With data there is an error to be asked about on datagram sockets only.
            let may_have_error = event.amount() <= 0 || !identity::is_stream(socket);
            let has_error = may_have_error && sys::has_error(socket);
            events.set(Events::ERR, has_error);
            // An error alone is nothing to receive.
            events.set(Events::IN, event.amount() > 0 || !has_error);
        }
        Filter::User | Filter::Timer => {}
    }
    events
}

/// What an end is: a datagram socket has no connection that could be hung up.
fn hangup(socket: u32) -> Events {
    match identity::is_stream(socket) {
        true => Events::HANGUP,
        false => Events::empty(),
    }
}
