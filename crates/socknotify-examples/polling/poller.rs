//! polling's poller for Unix, over a port: `.ci/suites` puts this in the place of polling's for `epoll`.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::Instant;

use socknotify::{Entry, EventFilter, Events as Conditions, Trigger};

use crate::{Event, PollMode};

#[path = "port.rs"]
mod port;

#[derive(Debug)]
pub struct Poller {
    selector: port::Selector,
}

impl Poller {
    pub fn new() -> io::Result<Poller> {
        let selector = port::Selector::new()?;
        Ok(Poller { selector })
    }

    pub fn supports_level(&self) -> bool {
        true
    }

    pub fn supports_edge(&self) -> bool {
        true
    }

    /// # Safety
    ///
    /// The descriptor is open.
    pub unsafe fn add(&self, fd: RawFd, event: Event, mode: PollMode) -> io::Result<()> {
        // SAFETY: the caller has it open.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        self.selector.add(fd, event.key, filter(&event), trigger(mode))
    }

    pub fn modify(&self, fd: BorrowedFd<'_>, event: Event, mode: PollMode) -> io::Result<()> {
        self.selector.change(fd, event.key, filter(&event), trigger(mode))
    }

    pub fn delete(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.selector.remove(fd)
    }

    pub fn wait_deadline(&self, events: &mut Events, deadline: Option<Instant>) -> io::Result<()> {
        let timeout = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        self.selector.wait(&mut events.list, events.room, timeout)
    }

    /// A packet is what a waiting thread is woken with.
    pub fn notify(&self) -> io::Result<()> {
        Ok(self.selector.port.post(Entry::default())?)
    }
}

impl AsFd for Poller {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.selector.as_fd()
    }
}

impl AsRawFd for Poller {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

fn filter(event: &Event) -> EventFilter {
    let mut filter = EventFilter::NONE;
    if event.readable {
        filter |= EventFilter::IN;
    }
    if event.writable {
        filter |= EventFilter::OUT;
    }
    if event.extra.is_pri() {
        filter |= EventFilter::PRIORITY;
    }
    filter
}

fn trigger(mode: PollMode) -> Trigger {
    match mode {
        PollMode::Oneshot => Trigger::ONESHOT | Trigger::LEVEL,
        PollMode::Level => Trigger::PERSISTENT | Trigger::LEVEL,
        PollMode::Edge => Trigger::PERSISTENT | Trigger::EDGE | Trigger::INITIAL,
        PollMode::EdgeOneshot => Trigger::ONESHOT | Trigger::EDGE | Trigger::INITIAL,
    }
}

pub struct Events {
    list: Vec<port::Ready>,
    room: usize,
}

impl Events {
    pub fn with_capacity(room: usize) -> Events {
        let list = Vec::with_capacity(room);
        Events { list, room }
    }

    pub fn iter(&self) -> impl Iterator<Item = Event> + '_ {
        let ended = Conditions::FULL_HANGUP | Conditions::ERR;
        self.list.iter().map(move |ready| Event {
            key: ready.token,
            readable: ready.events.intersects(Conditions::IN | Conditions::PRIORITY | ended),
            writable: ready.events.intersects(Conditions::OUT | ended),
            extra: EventExtra {
                conditions: ready.events,
            },
        })
    }

    pub fn clear(&mut self) {
        self.list.clear();
    }

    pub fn capacity(&self) -> usize {
        self.room
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventExtra {
    conditions: Conditions,
}

impl EventExtra {
    pub const fn empty() -> EventExtra {
        EventExtra {
            conditions: Conditions::empty(),
        }
    }

    fn set(&mut self, condition: Conditions, is_set: bool) {
        match is_set {
            true => self.conditions |= condition,
            false => self.conditions &= !condition,
        }
    }

    pub fn set_hup(&mut self, is_set: bool) {
        self.set(Conditions::FULL_HANGUP, is_set);
    }

    pub fn set_pri(&mut self, is_set: bool) {
        self.set(Conditions::PRIORITY, is_set);
    }

    pub fn is_hup(&self) -> bool {
        self.conditions.contains(Conditions::FULL_HANGUP)
    }

    pub fn is_pri(&self) -> bool {
        self.conditions.contains(Conditions::PRIORITY)
    }

    /// A failed connect is no hangup.
    pub fn is_connect_failed(&self) -> Option<bool> {
        Some(self.conditions.contains(Conditions::ERR))
    }

    pub fn is_err(&self) -> Option<bool> {
        Some(self.conditions.contains(Conditions::ERR))
    }
}
