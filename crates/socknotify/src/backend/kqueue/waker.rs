//! [`Waker`]: `EVFILT_USER`, or a pair of sockets, wakes the thread that polls.

use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};

use super::sys::{Errno, Event, Filter, Queue, errno_of, flags};

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
    /// On systems without it.
    Pair {
        ours: UnixStream,
        theirs: UnixStream,
    },
}

impl Waker {
    pub(super) fn new(queue: &Queue) -> Result<Self, Errno> {
        let event = Event::new(IDENT, Filter::User, flags::ADD | flags::CLEAR, 0);
        match queue.change(&[event]) {
            Err(libc::EINVAL) => Self::pair(queue),
            done => done.map(|()| Self::by(Means::Event)),
        }
    }

    pub(super) fn pair(queue: &Queue) -> Result<Self, Errno> {
        let pair = UnixStream::pair().and_then(|(ours, theirs)| {
            ours.set_nonblocking(true)?;
            theirs.set_nonblocking(true)?;
            Ok((ours, theirs))
        });
        let (ours, theirs) = pair.map_err(|error| errno_of(&error))?;
        let number = ours.as_raw_fd() as u32;
        queue.change(&[Event::new(number, Filter::Read, flags::ADD, 0)])?;
        Ok(Self::by(Means::Pair { ours, theirs }))
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
            // If there is no room, it is readable as it is.
            Means::Pair { theirs, .. } => _ = (&*theirs).write(&[0]),
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
            Means::Pair { ours, .. } => {
                let number = ours.as_raw_fd() as u32;
                let is_woken = event.filter() == Filter::Read && event.ident() == number;
                while is_woken && (&*ours).read(&mut [0; 64]).is_ok_and(|count| count > 0) {}
                is_woken
            }
        };
        if is_woken && self.is_closed.load(Ordering::SeqCst) {
            self.wake(queue);
        }
        is_woken
    }
}
