//! macOS and the BSDs: `kqueue`.
//!
//! - Each registered socket has two filters, `EVFILT_READ` and `EVFILT_WRITE`, with `EV_DISPATCH`: after an event a
//!   filter is silent until it is enabled again. Enabling without `EV_ADD` also proves that the number stands for the
//!   same socket.
//! - What a call re-arms goes to the kernel together with its wait: one `kevent`.
//! - A level-triggered registration is enabled again when its report has been delivered.
//! - An edge-triggered one has filters in a second queue ([`edges`]).
//! - A wake-up is an `EVFILT_USER`, or a pipe.
//!
//! Each event wakes every thread that waits in a kqueue. So only one thread at a time waits there.
//!
//! Closing a number ends its filters, even if a duplicate of the socket is open. So reports are always of the
//! registered socket, and [`identity`] takes a call only for the first registration.
//! [`systems`] says where the systems differ.

#![allow(unsafe_code, reason = "sockets are known here by number only")]

mod complete;
mod conditions;
mod edges;
mod identity;
mod listen;
#[cfg(kqueue_stand_in)]
mod stand_in;
mod sys;
mod systems;
#[cfg(all(test, not(interleavings)))]
mod tests;
mod timer;
mod waker;

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use self::edges::Edges;
use self::identity::Kind;
use self::listen::Unconnected;
use self::sys::{Errno, Event, Filter, Queue, Token, flags};
use self::timer::{Time, Timer};
use self::waker::Waker;
use crate::engine::{
    ArmError, Backend, DESCRIPTOR, Followed, Interest, Kept, Mode, Outcome, Readiness, Rearm,
    Report, Reports, Validity, Wait, Wanted,
};
use crate::lock::lock;
use crate::sys::calls::{call_error, refusal};
use crate::{Error, RegistrationError};

/// A kqueue, a second one for edges, and the means to wake the waiting thread.
///
/// All descriptors are opened at the beginning, because they are needed when no descriptor is left.
pub(crate) struct Kqueue {
    queue: Queue,
    edges: Edges,
    waker: Waker,
    timer: Timer,
    unconnected: Unconnected,
    waiting: Mutex<Waiting>,
}

/// What threads that deliver pass to threads that wait.
#[derive(Default)]
struct Waiting {
    /// Threads that wait. Another loop that watches the queue counts as one.
    threads: usize,
    is_exposed: bool,
    /// Level-triggered sockets that were delivered, and not enabled again yet.
    due: Vec<u32>,
}

/// Memory of a call.
#[derive(Default)]
pub(crate) struct Memory {
    changes: Vec<Event>,
    events: Vec<Event>,
    due: Vec<u32>,
    polls: Vec<libc::pollfd>,
}

/// How many times in a row one call waits again after reports of no interest.
const AGAIN: usize = 64;

/// Room for a wake-up, two timers and the second queue.
const OTHERS: usize = 4;

impl Kqueue {
    pub(crate) fn new() -> Result<Self, Error> {
        Self::open().map_err(call_error)
    }

    fn open() -> Result<Self, Errno> {
        identity::prepare()?;
        let queue = Queue::new()?;
        let edges = Edges::new()?;
        queue.change(&[Event::new(
            edges.number(),
            Filter::Read,
            flags::ADD,
            Token(0),
        )])?;
        Ok(Kqueue {
            waker: Waker::new(&queue)?,
            queue,
            edges,
            timer: Timer::default(),
            unconnected: Unconnected::default(),
            waiting: Mutex::default(),
        })
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        lock(&self.waiting)
    }

    fn change(&self, changes: &[Event]) -> Result<(), ArmError> {
        self.queue.change(changes).map_err(arm_error)
    }

    /// Arm a socket whose filters are there, if another thread may have done so in another way.
    fn arm_late(&self, interest: &Interest) -> Result<(), ArmError> {
        if interest.mode() == Mode::Edge {
            return self.change(&conditions::silenced(interest, false));
        }
        self.edges.forget_older(interest);
        self.change(&conditions::changes(interest, false))
    }

    /// Arm what is wanted, even if another thread has armed it.
    fn follow(&self, wanted: &Wanted, interest: &Interest) -> Outcome {
        match wanted.follow(interest, |interest| self.arm_late(interest)) {
            Followed::Done(Ok(())) | Followed::Changed => Outcome::Armed,
            Followed::Done(Err(error)) => Outcome::Failed(error),
            Followed::Withdrawn => Outcome::Withdrawn,
        }
    }

    /// Arm what was delivered, now.
    fn arm_due(&self, wanted: &Wanted, due: &mut Vec<u32>) {
        for socket in due.drain(..) {
            if let Some(interest) = wanted.get(socket).filter(|it| it.mode() == Mode::Level) {
                // If it is closed, that is detected when it is registered again.
                self.follow(wanted, &interest);
            }
        }
    }

    /// Collect the changes for the next wait. Those that cannot be late are made now.
    fn gather(&self, wanted: &Wanted, memory: &mut Memory, batch: &mut [Rearm]) {
        let Memory { changes, due, .. } = memory;
        changes.clear();
        for socket in due.drain(..) {
            match wanted.get(socket).filter(|it| it.mode() == Mode::Level) {
                Some(interest) if conditions::only_adds(&interest) => {
                    changes.extend_from_slice(&conditions::changes(&interest, false));
                }
                Some(interest) => drop(self.follow(wanted, &interest)),
                None => {}
            }
        }
        for rearm in batch {
            let interest = &rearm.interest;
            let is_current = wanted.get(interest.socket).as_ref() == Some(interest);
            if is_current && conditions::only_adds(interest) {
                self.edges.forget_older(interest);
                changes.extend_from_slice(&conditions::changes(interest, false));
            } else {
                rearm.outcome = self.follow(wanted, interest);
            }
        }
    }

    /// The kernel has refused a change.
    fn fail(&self, wanted: &Wanted, batch: &mut [Rearm], change: &Event, error: Errno) {
        let is_of = |rearm: &&mut Rearm| {
            let Rearm { interest, .. } = &**rearm;
            interest.socket == change.ident() && Token(interest.generation()) == change.token()
        };
        if let Some(rearm) = batch.iter_mut().find(is_of) {
            rearm.outcome = match wanted.get(rearm.interest.socket) {
                None => Outcome::Withdrawn,
                Some(current) if current != rearm.interest => Outcome::Armed,
                Some(_) => Outcome::Failed(arm_error(error)),
            };
        }
    }

    /// Turn what the kernel reported into reports.
    fn read(&self, wanted: &Wanted, events: &[Event], batch: &mut [Rearm], reports: &mut Reports) {
        for event in events {
            if let Some(answer) = event.answer() {
                if let Err(error) = answer {
                    self.fail(wanted, batch, event, error);
                }
            } else if self.waker.is_woken(event) {
                reports.woken = true;
            } else if event.filter() == Filter::Timer {
                match self.timer.read(&self.queue, event) {
                    Time::Alarm => reports.alarmed = true,
                    Time::Tick => self.check_unconnected(wanted),
                    Time::Early => {}
                }
            } else if event.ident() == self.edges.number() {
                self.edges.take(&mut reports.reports);
            } else {
                reports.reports.extend(self.report(wanted, event));
            }
        }
    }

    /// What the kernel reported of a socket, if it is wanted.
    fn report(&self, wanted: &Wanted, event: &Event) -> Option<Report> {
        let socket = event.ident();
        let interest = wanted.get(socket)?;
        let Token(generation) = event.token();
        if interest.generation() != generation {
            // It was enabled again since; or before, and this thread's change came after that.
            if interest.mode() != Mode::Edge {
                self.follow(wanted, &interest);
            }
            return None;
        }
        let events = conditions::of_event(event);
        if !events.intersects(interest.filter().wanted()) {
            self.edges.quiet(&interest);
            return None;
        }
        Some(Report {
            socket,
            generation,
            events,
            validity: Validity::Valid,
        })
    }
}

impl AsFd for Kqueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        let mut waiting = self.waiting();
        if !std::mem::replace(&mut waiting.is_exposed, true) {
            waiting.threads += 1;
        }
        self.queue.as_fd()
    }
}

impl Backend for Kqueue {
    type Memory = Memory;

    const ARMS_ON_WAIT: bool = true;
    const KEPT: Kept = Kept::Never;
    const REPORTS_POLLED: bool = true;

    fn waiters(&self) -> usize {
        1
    }

    fn identify(&self, socket: u32) -> Result<u64, RegistrationError> {
        let kind = match sys::is_stream(socket).map_err(refusal)? {
            true => Kind::Stream,
            false => Kind::Datagram,
        };
        identity::identify(socket, Some(kind)).map_err(refusal)
    }

    fn identify_any(&self, socket: u32) -> Result<u64, RegistrationError> {
        match self.identify(socket) {
            Err(RegistrationError::NotASocket) => {}
            identity => return identity,
        }
        // A filter accepts files, but never reports anything useful for them.
        if sys::is_file(socket) {
            return Err(RegistrationError::NotWatchable);
        }
        match identity::identify(socket, None) {
            Ok(identity) => Ok(DESCRIPTOR | identity),
            Err(libc::EBADF) => Err(RegistrationError::NotOpen),
            Err(_) => Err(RegistrationError::NotWatchable),
        }
    }

    fn is_still_armed(&self, socket: u32) -> bool {
        identity::is_same(socket)
    }

    fn arm_initial(&self, interest: &Interest, is_new: bool) -> Result<bool, ArmError> {
        self.change(&conditions::silenced(interest, is_new))?;
        // The kernel first reports what holds already.
        self.edges.renew(interest).map_err(arm_error)?;
        Ok(true)
    }

    fn arm(&self, interest: &Interest, is_new: bool) -> Result<(), ArmError> {
        if interest.mode() == Mode::Edge {
            self.change(&conditions::silenced(interest, is_new))?;
            self.edges.arm(interest).map_err(arm_error)?;
            if self.edges.has_found() {
                self.waker.wake(&self.queue);
            }
        } else if is_new {
            self.edges.forget(interest.socket);
            self.change(&conditions::changes(interest, true))?;
        } else {
            self.arm_late(interest)?;
        }
        match is_new {
            true => self
                .note_unconnected(interest.socket)
                .map_err(|error| ArmError::Refused(refusal(error))),
            false => Ok(()),
        }
    }

    fn rearm(&self, wanted: &Wanted, memory: &mut Memory, batch: &mut [Rearm]) {
        self.gather(wanted, memory, batch);
        let Memory {
            changes, events, ..
        } = memory;
        if changes.is_empty() {
            return;
        }
        let error = self.queue.change_each(changes, events).err();
        for rearm in batch.iter_mut().filter(|it| it.outcome == Outcome::Armed) {
            let Interest { socket, .. } = rearm.interest;
            match wanted.get(socket) {
                None => rearm.outcome = Outcome::Withdrawn,
                Some(current) if current != rearm.interest => {
                    // The other thread may have been first.
                    self.follow(wanted, &current);
                }
                Some(_) => {
                    if let Some(error) = error {
                        rearm.outcome = Outcome::Failed(arm_error(error));
                    }
                }
            }
        }
        for answer in &*events {
            if let Some(Err(error)) = answer.answer() {
                self.fail(wanted, batch, answer, error);
            }
        }
    }

    fn disarm(&self, socket: u32) -> Result<(), ArmError> {
        self.edges.forget(socket);
        self.change(&conditions::deletions(socket))
    }

    /// Enabling a filter makes it report what holds. So this enables, and the next wait returns the result.
    fn poll_now(
        &self,
        memory: &mut Memory,
        interests: &[Interest],
        readiness: &mut Vec<Readiness>,
    ) {
        let Memory {
            changes, events, ..
        } = memory;
        changes.clear();
        for interest in interests {
            changes.extend_from_slice(&conditions::changes(interest, false));
        }
        // A closed socket has nothing to report.
        let _ = self.queue.change_each(changes, events);
        readiness.clear();
        readiness.resize(interests.len(), Readiness::Unknown);
    }

    fn wait(
        &self,
        wanted: &Wanted,
        memory: &mut Memory,
        batch: &mut [Rearm],
        reports: &mut Reports,
        wait: &Wait,
    ) {
        reports.clear();
        let mut left = wait.timeout;
        let waits = left != Some(Duration::ZERO);
        // Only a wait with a timeout other than zero needs the time.
        let end = match left {
            None | Some(Duration::ZERO) => None,
            Some(timeout) => Instant::now().checked_add(timeout),
        };
        {
            // From here on a thread that delivers a level enables it at once.
            let mut waiting = self.waiting();
            waiting.threads += usize::from(waits);
            memory.due.append(&mut waiting.due);
        }
        self.gather(wanted, memory, batch);
        let Memory {
            changes,
            events,
            polls,
            ..
        } = memory;
        let room = wait.room + OTHERS;
        for again in 0.. {
            if self.edges.has_found() {
                self.edges.take(&mut reports.reports);
            }
            let has_failed = batch.iter().any(|it| it.outcome != Outcome::Armed);
            if has_failed || !reports.is_empty() {
                left = Some(Duration::ZERO);
            }
            if let Err(error) = self.queue.wait(changes, events, room, left) {
                // After a signal, the changes were made.
                if error != libc::EINTR {
                    for change in &*changes {
                        self.fail(wanted, batch, change, error);
                    }
                }
            }
            let is_full = events.len() >= room;
            self.read(wanted, events, batch, reports);
            // If there is no room for both, only the results of changes are returned.
            let was_answered = events.first().is_some_and(|it| it.answer().is_some());
            let has_failed = batch.iter().any(|it| it.outcome != Outcome::Armed);
            if has_failed || !reports.reports.is_empty() || events.is_empty() {
                break;
            }
            changes.clear();
            // All reports of sockets were of no interest. There may be more.
            if left == Some(Duration::ZERO) || !reports.is_empty() {
                if !(is_full || was_answered) || again >= AGAIN {
                    break;
                }
                left = Some(Duration::ZERO);
            } else {
                left = end.map(|end| end.saturating_duration_since(Instant::now()));
            }
        }
        self.waiting().threads -= usize::from(waits);
        complete::complete(wanted, polls, &mut reports.reports);
    }

    fn delivered(&self, socket: u32) {
        self.waiting().due.push(socket);
    }

    fn flush(&self, wanted: &Wanted) {
        let mut waiting = self.waiting();
        if waiting.threads == 0 || waiting.due.is_empty() {
            return;
        }
        let mut due = std::mem::take(&mut waiting.due);
        drop(waiting);
        self.arm_due(wanted, &mut due);
    }

    fn wake(&self, after: Option<Duration>) -> Result<(), Error> {
        match after {
            None => {
                self.waker.wake(&self.queue);
                Ok(())
            }
            Some(delay) => self.timer.set_alarm(&self.queue, delay).map_err(call_error),
        }
    }
}

fn arm_error(error: Errno) -> ArmError {
    match error {
        // The number has no such filter, or is closed.
        libc::ENOENT | libc::EBADF => ArmError::Stale,
        other => ArmError::Refused(refusal(other)),
    }
}
