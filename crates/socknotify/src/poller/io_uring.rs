//! Linux: `io_uring`, beside an `epoll` set, for the sockets that the port owns.
//!
//! - To arm a socket is a poll request in the ring. One `io_uring_enter` submits any number of them, and
//!   those whose sockets are ready are answered by the time that it returns.
//! - A request holds the open file: closing the socket does not reach the peer before the request has
//!   ended. So the engine withdraws it first, and what callers own stays with `epoll`.
//! - The ring is in the set, level-triggered, so that threads wait for both in one place, and the kernel
//!   wakes the newest one.
//! - The kernel ends a request on the thread that submitted it, and interrupts that thread for it,
//!   whatever it does. If it has ended, the answer is that the request was cancelled.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use io_uring::types::{CancelBuilder, Fd};
use io_uring::{IoUring, opcode, squeue};
use rustix::event::epoll;
use rustix::io::Errno;

use super::epoll::{
    KIND_SHIFT, KINDS, TURN_SHIFT, call_error, conditions, is_unconnected, poll_flags,
};
use crate::engine::{Mode, Report, Standing, TURN_MASK, Watch};
use crate::{Error, Events};

/// Requests that are submitted together, at the most.
const SUBMISSIONS: u32 = 256;

/// Answers for which there is room. The kernel keeps more, at a higher price.
const COMPLETIONS: u32 = 4096;

/// How often in a row a thread that finds answers in the ring may leave the set alone.
const PATIENCE: u8 = 16;

/// Set in the data of a request for more than one condition.
const SEVERAL: u64 = 1 << 62;

/// The data of what takes requests back. No kind has these bits.
const WITHDRAWAL: u64 = u64::MAX;

/// A ring. Any number of threads submit to it, and take from it.
pub(crate) struct Ring {
    ring: IoUring,
    /// Whoever has it may write to the queue of submissions.
    submissions: Mutex<()>,
    /// How much was ever pushed.
    pushed: AtomicU32,
    /// How much of it the kernel has dealt with, as far as somebody has seen.
    settled: AtomicU32,
    /// Whoever has it may take from the queue of completions.
    completions: Mutex<()>,
    /// How often in a row the set was left alone.
    passes: AtomicU8,
    /// There are, or were, sockets in the set.
    has_neighbours: AtomicBool,
}

impl Ring {
    /// `io_uring_setup` — Makes a ring, and tries what a kernel may lack.
    pub(crate) fn new() -> Result<Self, Error> {
        Self::with_room(SUBMISSIONS, COMPLETIONS)
    }

    fn with_room(submissions: u32, completions: u32) -> Result<Self, Error> {
        let ring = IoUring::builder()
            .setup_submit_all()
            .setup_cqsize(completions)
            .build(submissions)
            .map_err(|error| unavailable(&error))?;
        // Before 6.0 requests cannot be withdrawn all at once.
        withdraw_all(&ring).map_err(|error| unavailable(&error))?;
        Ok(Ring {
            ring,
            submissions: Mutex::new(()),
            pushed: AtomicU32::new(0),
            settled: AtomicU32::new(0),
            completions: Mutex::new(()),
            passes: AtomicU8::new(0),
            has_neighbours: AtomicBool::new(false),
        })
    }

    fn submissions(&self) -> MutexGuard<'_, ()> {
        self.submissions
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn completions(&self) -> MutexGuard<'_, ()> {
        self.completions
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Note that the set has sockets of its own.
    pub(super) fn meet_neighbour(&self) {
        self.has_neighbours.store(true, Ordering::Relaxed);
    }

    /// Whether it is time to look at the set, although the ring had answers.
    pub(super) fn is_sets_turn(&self) -> bool {
        let passes = self.passes.load(Ordering::Relaxed) + 1;
        let is_turn = passes >= PATIENCE || self.has_neighbours.load(Ordering::Relaxed);
        self.passes
            .store(if is_turn { 0 } else { passes }, Ordering::Relaxed);
        is_turn
    }

    /// `IORING_OP_POLL_ADD` — Requests a report.
    pub(super) fn request(&self, watch: &Watch) {
        let flags = u32::from(poll_flags(watch).bits());
        let poll = opcode::PollAdd::new(Fd(watch.socket as i32), flags);
        self.push(&poll.build().user_data(data(watch)));
    }

    /// `IORING_OP_ASYNC_CANCEL` — Takes a request back.
    pub(super) fn withdraw(&self, watch: &Watch) {
        let cancel = opcode::AsyncCancel::new(data(watch)).build();
        let quiet = cancel.flags(squeue::Flags::SKIP_SUCCESS);
        self.push(&quiet.user_data(WITHDRAWAL));
    }

    /// Takes every request back that was made.
    pub(super) fn withdraw_all(&self) {
        self.submit();
        // There may be none.
        let _ = withdraw_all(&self.ring);
    }

    fn push(&self, entry: &squeue::Entry) {
        loop {
            let lock = self.submissions();
            // SAFETY: whoever makes such a queue has the lock. What is pushed refers to no memory; a
            // number that is no open file fails when it is submitted.
            if unsafe { self.ring.submission_shared().push(entry) }.is_ok() {
                self.pushed.fetch_add(1, Ordering::Release);
                return;
            }
            drop(lock);
            self.submit();
        }
    }

    /// What was pushed, and not submitted yet; and whether the kernel has kept answers back.
    fn backlog(&self) -> (usize, bool) {
        let _lock = self.submissions();
        // SAFETY: whoever makes such a queue has the lock.
        let queue = unsafe { self.ring.submission_shared() };
        (queue.len(), queue.cq_overflow())
    }

    /// `io_uring_enter` — Submits all that was pushed before, be it by other threads.
    ///
    /// When this returns, the kernel has dealt with it: it moves on its end of the queue no earlier.
    pub(super) fn submit(&self) {
        let pushed = self.pushed.load(Ordering::Acquire);
        if self.settled.load(Ordering::Acquire) == pushed {
            return;
        }
        loop {
            let (backlog, _) = self.backlog();
            if backlog == 0 {
                break;
            }
            let outcome = self.ring.submit();
            match outcome.map_err(|error| Errno::from_io_error(&error)) {
                Ok(count) if count >= backlog => break,
                Ok(_) | Err(Some(Errno::INTR)) => {}
                // The kernel is out of memory for the moment.
                Err(Some(Errno::AGAIN | Errno::BUSY)) => std::thread::yield_now(),
                // Nothing that can be helped here: the ring was not made for this process.
                Err(_) => return,
            }
        }
        self.settled.store(pushed, Ordering::Release);
    }

    /// Take answers, as long as there are fewer than `room` reports.
    pub(super) fn take(&self, reports: &mut Vec<Report>, several: &mut Vec<usize>, room: usize) {
        let _lock = self.completions();
        loop {
            // SAFETY: whoever makes such a queue has the lock.
            let mut queue = unsafe { self.ring.completion_shared() };
            let is_empty = queue.is_empty();
            while reports.len() < room {
                let Some(answer) = queue.next() else { break };
                let data = answer.user_data();
                if data == WITHDRAWAL {
                    continue;
                }
                if data & SEVERAL != 0 {
                    several.push(reports.len());
                }
                reports.push(report(data, answer.result()));
            }
            drop(queue);
            // What did not fit is handed over when there is room, and when it is asked for.
            if !is_empty || !self.backlog().1 || self.ring.submit().is_err() {
                return;
            }
        }
    }
}

impl AsFd for Ring {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the ring has its descriptor as long as it lives.
        unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) }
    }
}

/// `io_uring_register` — Takes every request back that was submitted.
///
/// Submitting that would make this thread one of those that the kernel interrupts when the ring goes.
fn withdraw_all(ring: &IoUring) -> io::Result<()> {
    let all = CancelBuilder::any();
    ring.submitter().register_sync_cancel(None, all)
}

/// What the kernel is to give back with the answer.
fn data(watch: &Watch) -> u64 {
    let several = watch.filter.bits().count_ones() > 1;
    u64::from(watch.socket)
        | u64::from(watch.turn) << TURN_SHIFT
        | (watch.kind as u64) << KIND_SHIFT
        | if several { SEVERAL } else { 0 }
}

/// What an answer says.
fn report(data: u64, result: i32) -> Report {
    let kind = KINDS[(data >> KIND_SHIFT & 3) as usize % KINDS.len()];
    let seen = epoll::EventFlags::from_bits_retain(result as u32);
    let cancelled = result == -libc::ECANCELED;
    Report {
        socket: data as u32,
        turn: (data >> TURN_SHIFT) as u32 & TURN_MASK,
        kind,
        events: match result {
            0.. => conditions(seen, kind),
            _ if cancelled => Events::empty(),
            // What the kernel would not watch is in no good state.
            _ => Events::ERR,
        },
        standing: match cancelled {
            true => Standing::Doubtful,
            false => Standing::Good,
        },
        mode: Mode::Request,
        // When a Unix socket connects, the kernel wakes nobody.
        dormant: result >= 0
            && kind == crate::engine::Kind::LocalStream
            && is_unconnected(seen, kind),
    }
}

/// Why there is no ring: what is refused here is refused for good, and means that there is none.
fn unavailable(error: &io::Error) -> Error {
    match Errno::from_io_error(error) {
        Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM) => {
            call_error(Errno::from_io_error(error).unwrap_or(Errno::NOMEM))
        }
        _ => Error::BackendUnavailable,
    }
}

#[cfg(all(test, not(interleavings)))]
mod tests {
    use std::collections::BTreeSet;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::backend::{Backend, Choice};
    use crate::engine::{Engine, Kind};
    use crate::owned::{Event, Port};
    use crate::poller::Epoll;
    use crate::{CompletionPort, EventFilter};

    const PATIENCE: Duration = Duration::from_secs(30);

    /// A ring with room for one request and two answers; none where there are no rings.
    fn tiny_ring() -> Option<Ring> {
        let ring = Ring::with_room(1, 2);
        assert_eq!(ring.is_ok(), Ring::new().is_ok());
        ring.ok()
    }

    fn watch(socket: &UnixStream) -> Watch {
        Watch {
            socket: socket.as_raw_fd() as u32,
            turn: 1,
            kind: Kind::LocalStream,
            filter: EventFilter::IN,
            mode: Mode::Request,
        }
    }

    fn answers(ring: &Ring, room: usize) -> Vec<Report> {
        let mut reports = Vec::new();
        ring.take(&mut reports, &mut Vec::new(), room);
        reports
    }

    #[test]
    fn answers_for_which_there_is_no_room_are_kept() -> io::Result<()> {
        const SOCKETS: usize = 100;
        let Some(ring) = tiny_ring() else {
            return Ok(());
        };
        let mut sockets = Vec::new();
        for _ in 0..SOCKETS {
            let (ours, mut theirs) = UnixStream::pair()?;
            theirs.write_all(b"x")?;
            ring.request(&watch(&ours));
            sockets.push((ours, theirs));
        }
        ring.submit();
        let (requests, is_overflowing) = ring.backlog();
        assert!(requests == 0 && is_overflowing);
        let mut seen = BTreeSet::new();
        while seen.len() < SOCKETS {
            let found = answers(&ring, 7);
            assert!(!found.is_empty() && found.len() <= 7);
            for report in found {
                assert_eq!(
                    (report.events, report.standing),
                    (Events::IN, Standing::Good)
                );
                assert!(seen.insert(report.socket), "one answer to each request");
            }
        }
        assert!(answers(&ring, 7).is_empty() && !ring.backlog().1);
        Ok(())
    }

    #[test]
    fn a_request_that_is_withdrawn_lets_go_of_the_socket() -> io::Result<()> {
        let Some(ring) = tiny_ring() else {
            return Ok(());
        };
        for all in [false, true] {
            let (ours, mut theirs) = UnixStream::pair()?;
            theirs.set_read_timeout(Some(PATIENCE))?;
            let watch = watch(&ours);
            ring.request(&watch);
            match all {
                false => ring.withdraw(&watch),
                true => ring.withdraw_all(),
            }
            ring.submit();
            drop(ours);
            assert_eq!(theirs.read(&mut [0])?, 0);
            let report = answers(&ring, 2)[0];
            assert!(report.events.is_empty());
            assert_eq!(report.standing, Standing::Doubtful);
        }
        Ok(())
    }

    #[test]
    fn a_port_with_a_ring_that_is_much_too_small_hears_of_everything() -> io::Result<()> {
        const CONNECTIONS: usize = 100;
        let Some(ring) = tiny_ring() else {
            return Ok(());
        };
        let choice = Choice {
            backend: Backend::IoUring,
            reason: "tiny",
        };
        let poller = Epoll::with_ring(ring)?;
        let port = CompletionPort::assemble(choice, Arc::new(Engine::new(poller, 2)));
        let port = Port::<UnixStream>::from(port);
        let mut worker = port.worker(10);
        let mut peers = Vec::new();
        for _ in 0..CONNECTIONS {
            let (ours, theirs) = UnixStream::pair()?;
            worker.arm(port.adopt(ours)?, EventFilter::IN);
            peers.push(theirs);
        }
        for round in 0..10 {
            // Armed before it is ready, and afterwards.
            if round % 2 == 0 {
                let _ = worker.process(Some(Duration::ZERO));
            }
            for peer in &mut peers {
                peer.write_all(b"x")?;
            }
            let mut served = Vec::new();
            while served.len() < CONNECTIONS {
                worker.process(Some(PATIENCE))?;
                while let Some(event) = worker.take() {
                    let Event::Ready(mut connection, Events::IN) = event else {
                        panic!("{event:?}");
                    };
                    connection.read_exact(&mut [0])?;
                    served.push(connection);
                }
            }
            for connection in served {
                worker.arm(connection, EventFilter::IN);
            }
        }
        Ok(())
    }
}
