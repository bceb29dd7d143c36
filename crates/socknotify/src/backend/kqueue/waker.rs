//! Waking the thread that waits.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use super::sys::{self, Errno, Event, Filter, Queue, flags};

/// The number of the event for wake-ups.
const IDENT: u32 = 0;

/// What makes a queue ready on request.
pub(super) enum Waker {
    /// `EVFILT_USER`
    Event,
    /// On systems without it: the two ends of a pipe.
    Pipe {
        reader: OwnedFd,
        writer: OwnedFd,
        /// It stays readable.
        is_closed: AtomicBool,
    },
}

impl Waker {
    pub(super) fn new(queue: &Queue) -> Result<Self, Errno> {
        let event = Event::new(IDENT, Filter::User, flags::ADD | flags::CLEAR, 0);
        match queue.change(&[event]) {
            Err(libc::EINVAL) => Self::pipe(queue),
            done => done.map(|()| Waker::Event),
        }
    }

    pub(super) fn pipe(queue: &Queue) -> Result<Self, Errno> {
        let (reader, writer) = sys::pipe()?;
        let number = reader.as_raw_fd() as u32;
        queue.change(&[Event::new(number, Filter::Read, flags::ADD, 0)])?;
        Ok(Waker::Pipe {
            reader,
            writer,
            is_closed: AtomicBool::new(false),
        })
    }

    pub(super) fn wake(&self, queue: &Queue) {
        match self {
            Waker::Event => {
                // The event is there: it cannot fail. With another flag it would not wake.
                let event = Event::new(IDENT, Filter::User, 0, 0);
                let _ = queue.change(&[event.triggered()]);
            }
            Waker::Pipe { writer, .. } => sys::signal(writer),
        }
    }

    /// Wake all threads that wait, and each that will.
    pub(super) fn close(&self, queue: &Queue) {
        match self {
            Waker::Event => {
                let event = |flags| Event::new(IDENT, Filter::User, flags, 0);
                // Without `EV_CLEAR`, it stays triggered.
                let again = [
                    event(flags::DELETE),
                    event(flags::ADD),
                    event(0).triggered(),
                ];
                let _ = queue.change(&again);
            }
            Waker::Pipe {
                writer, is_closed, ..
            } => {
                is_closed.store(true, Ordering::SeqCst);
                sys::signal(writer);
            }
        }
    }

    /// Whether this is a wake-up, which is over with that.
    pub(super) fn is_woken(&self, event: &Event) -> bool {
        match self {
            Waker::Event => event.filter() == Filter::User,
            Waker::Pipe {
                reader,
                writer,
                is_closed,
            } => {
                let is_woken =
                    event.filter() == Filter::Read && event.ident() == reader.as_raw_fd() as u32;
                if is_woken {
                    sys::drain(reader);
                    if is_closed.load(Ordering::SeqCst) {
                        sys::signal(writer);
                    }
                }
                is_woken
            }
        }
    }
}
