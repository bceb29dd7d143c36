//! The contract's conditions, and the kernel's filters.
//!
//! | | `EVFILT_READ` | `EVFILT_WRITE` |
//! |---|---|---|
//! | IN | data, a connection, an end | |
//! | OUT | | room, or the end of one's own sending |
//! | HANGUP | the end, on a stream; a failed connect | an end with an error |
//! | ERR | an end with an error; or else a `recv` that peeks says so | an end with an error |
//!
//! An end of writing alone may be one's own `shutdown`. A datagram socket with an error is readable, and
//! the event does not say why.

use std::ops::Deref;

use super::identity::{self, Kind};
use super::sys::{self, Event, Filter, flags};
use crate::engine::{Interest, Mode};
use crate::os::Fd;
use crate::{EventFilter, Events};

/// How the filters of a descriptor were added, which they keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Knotes {
    Absent,
    /// `EV_DISPATCH`: disabled with each event.
    Dispatch,
    /// `EV_CLEAR`: an event for each change.
    Clear,
}

impl Knotes {
    #[inline]
    pub(super) fn of(interest: &Interest) -> Self {
        match interest.word.mode() {
            _ if interest.word.is_quiet() => Knotes::Clear,
            Mode::Edge => Knotes::Clear,
            Mode::Once | Mode::Level | Mode::Kept => Knotes::Dispatch,
        }
    }

    #[inline]
    pub(super) fn from_bits(bits: u8) -> Self {
        match bits {
            0 => Knotes::Absent,
            1 => Knotes::Dispatch,
            _ => Knotes::Clear,
        }
    }
}

/// What a filter is to report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Watch {
    Nothing,
    /// Ends and errors.
    Ends,
    /// Data or room, too.
    All,
}

/// What one filter has to report, so that together they report all that is wanted, and errors in any case.
#[inline]
fn watch(interest: &Interest, kind: Kind, filter: Filter) -> Watch {
    let wanted = interest.word.filter();
    let condition = match filter {
        Filter::Read => EventFilter::IN,
        _ => EventFilter::OUT,
    };
    let shows_ends = match (kind, filter) {
        // Both filters show errors, and the one for data shows the peer's end.
        (Kind::Stream, Filter::Read) => wanted.contains(EventFilter::HANGUP),
        (Kind::Stream, _) => wanted.is_empty(),
        (Kind::Writer, _) => true,
        (_, filter) => filter == Filter::Read,
    };
    match interest.is_enabled() {
        false => Watch::Nothing,
        _ if wanted.contains(condition) => Watch::All,
        _ if shows_ends => Watch::Ends,
        _ => Watch::Nothing,
    }
}

/// Whether both filters may report something.
pub(super) fn watches_both(interest: &Interest) -> bool {
    let kind = identity::kind(interest.fd);
    let is_watched = |filter| watch(interest, kind, filter) != Watch::Nothing;
    is_watched(Filter::Read) && is_watched(Filter::Write)
}

/// The change of one filter.
#[inline]
fn change(interest: &Interest, filter: Filter, watch: Watch, add: u32) -> Event {
    let enable = match watch {
        Watch::Nothing => flags::DISABLE,
        Watch::Ends | Watch::All => flags::ENABLE,
    };
    let change = Event::new(
        interest.fd.0,
        filter,
        add | enable,
        interest.word.generation(),
    );
    match watch {
        Watch::Ends => change.ends_only(),
        Watch::Nothing | Watch::All => change,
    }
}

/// The changes to watch a descriptor for an interest, if its filters are there as they have to be.
///
/// Without `EV_CLEAR`, a filter of which nothing is wanted is left unchanged: it reports at most once, which is recognised
/// as stale.
#[inline]
pub(super) fn changes(interest: &Interest) -> Changes {
    let kind = identity::kind(interest.fd);
    let may_leave = interest.is_enabled() && Knotes::of(interest) == Knotes::Dispatch;
    Changes::new(kind, |filter| {
        let watch = watch(interest, kind, filter);
        let is_left = may_leave && watch == Watch::Nothing;
        (!is_left).then(|| change(interest, filter, watch, 0))
    })
}

/// The changes to add all filters. Those of which nothing is wanted are disabled.
pub(super) fn additions(interest: &Interest) -> Changes {
    let kind = identity::kind(interest.fd);
    let add = match Knotes::of(interest) {
        Knotes::Clear => flags::ADD | flags::CLEAR,
        Knotes::Dispatch | Knotes::Absent => flags::ADD | flags::DISPATCH,
    };
    Changes::new(kind, |filter| {
        Some(change(interest, filter, watch(interest, kind, filter), add))
    })
}

/// The changes to delete all filters.
pub(super) fn deletions(fd: Fd) -> Changes {
    Changes::new(identity::kind(fd), |filter| {
        Some(Event::new(fd.0, filter, flags::DELETE, 0))
    })
}

/// Whether [`changes`] only add to what is reported: they disable no filter, and hide no data behind a low-water mark.
#[inline]
pub(super) fn only_adds(interest: &Interest) -> bool {
    let kind = identity::kind(interest.fd);
    let is_complete = |filter| watch(interest, kind, filter) != Watch::Ends;
    Knotes::of(interest) == Knotes::Dispatch
        && is_complete(Filter::Read)
        && is_complete(Filter::Write)
}

/// At most one for each filter, or of another size.
#[derive(Clone, Copy)]
pub(super) struct Changes<const MOST: usize = 2> {
    events: [Event; MOST],
    count: usize,
}

impl Changes {
    #[inline]
    fn new(kind: Kind, change: impl Fn(Filter) -> Option<Event>) -> Self {
        let filters = [Filter::Read, Filter::Write].into_iter();
        let filters = filters.filter(|&it| kind.has(it));
        Self::of(filters.filter_map(change))
    }

    /// These, and then those.
    pub(super) fn and(&self, further: &Self) -> Changes<4> {
        Changes::of(self.iter().chain(further.iter()).copied())
    }
}

impl<const MOST: usize> Changes<MOST> {
    #[inline]
    pub(super) fn of(changes: impl IntoIterator<Item = Event>) -> Self {
        let mut events = [Event::none(); MOST];
        let places = events.iter_mut().zip(changes);
        let count = places.map(|(place, change)| *place = change).count();
        Changes { events, count }
    }
}

impl<const MOST: usize> Deref for Changes<MOST> {
    type Target = [Event];

    fn deref(&self) -> &[Event] {
        &self.events[..self.count]
    }
}

/// Which conditions hold by an event.
pub(super) fn events(event: &Event, kind: Kind) -> Events {
    let fd = event.fd();
    let is_error = event.is_error();
    let mut events = Events::empty();
    match event.filter() {
        // The reader of a pipe was closed.
        _ if event.is_end() && !kind.is_socket() && is_of_writing(event) => events = Events::ERR,
        _ if event.is_failed_connect() => events = Events::ERR | hangup(kind),
        Filter::Write if is_error => events = Events::ERR | hangup(kind),
        Filter::Write => events = Events::OUT,
        Filter::Read if event.is_end() => {
            events = Events::IN | hangup(kind);
            events.set(Events::ERR, is_error);
        }
        Filter::Read => {
            // Together with data, only datagram sockets can have an error to check for.
            let may_have_error = match kind {
                Kind::Datagram | Kind::UnixDatagram => true,
                Kind::Stream => event.amount() <= 0,
                Kind::Reader | Kind::Writer | Kind::Other => false,
            };
            let has_error = may_have_error && sys::has_error(fd);
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
    event.filter() == Filter::Write || sys::access(event.fd()) == libc::O_WRONLY
}

/// The events of an end: a datagram socket of the Internet has no connection that could be hung up.
fn hangup(kind: Kind) -> Events {
    match kind {
        Kind::Datagram => Events::empty(),
        _ => Events::HANGUP,
    }
}
