//! [`Waker`]: `EVFILT_USER`, or a pipe, wakes the thread that polls.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use super::sys::{self, Errno, Event, Filter, Queue, flags};

/// The number of the event for wake-ups.
const IDENT: u32 = 0;

/// What makes a queue ready on request.
pub(super) struct Waker {
    means: Means,
    /// Whoever is woken wakes the next.
    is_closed: AtomicBool,
}

enum Means {
    /// `EVFILT_USER`
    Event,
    /// On systems without it: the two ends of a pipe.
    Pipe { reader: OwnedFd, writer: OwnedFd },
}

impl Waker {
    pub(super) fn new(queue: &Queue) -> Result<Self, Errno> {
        let event = Event::new(IDENT, Filter::User, flags::ADD | flags::CLEAR, 0);
        match queue.change(&[event]) {
            Err(libc::EINVAL) => Self::pipe(queue),
            done => done.map(|()| Self::by(Means::Event)),
        }
    }

    pub(super) fn pipe(queue: &Queue) -> Result<Self, Errno> {
        let (reader, writer) = sys::pipe()?;
        let number = reader.as_raw_fd() as u32;
        queue.change(&[Event::new(number, Filter::Read, flags::ADD, 0)])?;
        Ok(Self::by(Means::Pipe { reader, writer }))
    }

    fn by(means: Means) -> Self {
        Waker {
            means,
            is_closed: AtomicBool::new(false),
        }
    }

    pub(super) fn wake(&self, queue: &Queue) {
        match &self.means {
            Means::Event => {
                // The event is there: it cannot fail. With another flag it would not wake.
                let event = Event::new(IDENT, Filter::User, 0, 0);
                let _ = queue.change(&[event.triggered()]);
            }
            Means::Pipe { writer, .. } => sys::signal(writer),
        }
    }

    /// Wake all threads that wait, and each that will. This takes no memory.
    pub(super) fn close(&self, queue: &Queue) {
        self.is_closed.store(true, Ordering::SeqCst);
        self.wake(queue);
    }

    /// Whether this is a wake-up, which is over with that.
    pub(super) fn is_woken(&self, queue: &Queue, event: &Event) -> bool {
        let is_woken = match &self.means {
            Means::Event => event.filter() == Filter::User,
            Means::Pipe { reader, .. } => {
                let number = reader.as_raw_fd() as u32;
                let is_woken = event.filter() == Filter::Read && event.ident() == number;
                if is_woken {
                    sys::drain(reader);
                }
                is_woken
            }
        };
        if is_woken && self.is_closed.load(Ordering::SeqCst) {
            self.wake(queue);
        }
        is_woken
    }
}
