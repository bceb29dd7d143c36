//! mio's selector for Unix, over a port: `.ci/suites` puts this in the place of mio's for `epoll`.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use socknotify::EventFilter;

use crate::{Interest, Token};

#[path = "port.rs"]
mod port;

static NEXT_ID: AtomicUsize = AtomicUsize::new(1);

#[derive(Debug)]
pub struct Selector {
    id: usize,
    port: port::Selector,
}

pub(crate) type Event = port::Ready;
pub(crate) type Events = Vec<Event>;

impl Selector {
    pub fn new() -> io::Result<Selector> {
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        let port = port::Selector::new()?;
        Ok(Selector { id, port })
    }

    pub fn try_clone(&self) -> io::Result<Selector> {
        let Selector { id, ref port } = *self;
        let port = port.clone();
        Ok(Selector { id, port })
    }

    pub fn select(&self, events: &mut Events, timeout: Option<Duration>) -> io::Result<()> {
        events.clear();
        self.port.wait(events, events.capacity(), timeout)
    }

    pub fn register(&self, fd: RawFd, token: Token, interests: Interest) -> io::Result<()> {
        self.port
            .add(borrow(fd)?, token.0, filter(interests), port::EDGES)
    }

    pub fn reregister(&self, fd: RawFd, token: Token, interests: Interest) -> io::Result<()> {
        self.port
            .change(borrow(fd)?, token.0, filter(interests), port::EDGES)
    }

    pub fn deregister(&self, fd: RawFd) -> io::Result<()> {
        self.port.remove(borrow(fd)?)
    }

    pub fn id(&self) -> usize {
        self.id
    }
}

impl AsFd for Selector {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.port.as_fd()
    }
}

impl AsRawFd for Selector {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

fn borrow<'fd>(fd: RawFd) -> io::Result<BorrowedFd<'fd>> {
    // It must not be borrowed.
    if fd == -1 {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    // SAFETY: mio has it from a source, which has it open for the call.
    Ok(unsafe { BorrowedFd::borrow_raw(fd) })
}

fn filter(interests: Interest) -> EventFilter {
    let mut filter = EventFilter::NONE;
    if interests.is_readable() {
        filter |= EventFilter::IN | EventFilter::HANGUP;
    }
    if interests.is_writable() {
        filter |= EventFilter::OUT;
    }
    if interests.is_priority() {
        filter |= EventFilter::PRIORITY;
    }
    filter
}

pub mod event {
    use std::fmt;

    use socknotify::Events;

    use super::Event;
    use crate::Token;

    pub fn token(event: &Event) -> Token {
        Token(event.token)
    }

    pub fn is_readable(event: &Event) -> bool {
        event.events.intersects(Events::IN | Events::PRIORITY)
    }

    pub fn is_writable(event: &Event) -> bool {
        event.events.contains(Events::OUT)
    }

    pub fn is_error(event: &Event) -> bool {
        event.events.contains(Events::ERR)
    }

    pub fn is_read_closed(event: &Event) -> bool {
        event.events.intersects(Events::HANGUP | Events::FULL_HANGUP)
    }

    pub fn is_write_closed(event: &Event) -> bool {
        event.events.contains(Events::FULL_HANGUP)
            || event.events.contains(Events::OUT | Events::ERR)
            || event.events == Events::ERR
    }

    pub fn is_priority(event: &Event) -> bool {
        event.events.contains(Events::PRIORITY)
    }

    pub fn is_aio(_: &Event) -> bool {
        false
    }

    pub fn is_lio(_: &Event) -> bool {
        false
    }

    pub fn debug_details(f: &mut fmt::Formatter<'_>, event: &Event) -> fmt::Result {
        fn check(got: &Events, want: &Events) -> bool {
            got.contains(*want)
        }
        debug_detail!(
            Bits(Events),
            check,
            Events::IN,
            Events::OUT,
            Events::HANGUP,
            Events::ERR,
            Events::PRIORITY,
            Events::FULL_HANGUP,
        );
        f.debug_struct("Ready")
            .field("token", &event.token)
            .field("events", &Bits(event.events))
            .finish()
    }
}

pub(crate) use crate::sys::unix::waker::Waker;

cfg_io_source! {
    mod stateless_io_source;
    pub(crate) use stateless_io_source::IoSourceState;
}
