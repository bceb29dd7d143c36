//! macOS and the BSDs: `kqueue`.
//!
//! - Each registered socket has two filters, `EVFILT_READ` and `EVFILT_WRITE`. One-shot and level-triggered registrations
//!   have them with `EV_DISPATCH`: after an event a filter is silent until it is enabled again. Enabling without `EV_ADD`
//!   also proves that the number refers to the same file.
//! - Edge-triggered ones, and those that the engine has made quiet, have them with `EV_CLEAR`. A filter keeps the flags
//!   that it was added with. So a registration that changes from one kind to the other is deleted and added.
//! - What a call arms goes to the kernel together with its wait: one `kevent`.
//! - A wake-up is an `EVFILT_USER`, or a byte for a socket.
//!
//! Each event wakes every thread that waits in a kqueue. So only one thread at a time waits there.
//!
//! Closing a number ends its filters, even if a duplicate of the socket is open. So reports are always of the
//! registered socket, and [`identity`] takes a call only for the first registration.
//! [`systems`] says where the systems differ.
//!
//! # One call, and what may be late in it
//!
//! `kevent` applies changes and waits, possibly for long, and the thread reads the registration's word again only after
//! that (`Table::arm_latest`). So only changes that *enable* a filter for all it can report go that way, and no more of
//! them than the call has room, because each that fails takes room. All others are one call before the wait. If another
//! thread has armed the socket differently meanwhile, a late change may enable a filter that is not wanted, or bring back
//! an older generation: its one report is dropped, and the engine arms what is wanted now.
//!
//! If changes fail, the kernel applies the others, and returns only the failures, without waiting. Each socket that failed
//! is armed again by itself, to find out why.
//!
//! On OpenBSD each arming deletes and adds (`systems::changes_need_add`), before the wait: a change under `EV_ADD` would not
//! prove the identity.
//!
//! # Further
//!
//! - A low-water mark that no socket reaches (`NOTE_LOWAT`) turns a filter for data into one for ends and errors. A stream
//!   of which only OUT is wanted needs none: its filter for room shows errors too.
//! - Connections that the port owns are armed each time (`KEEPS` is false): enabling is free as part of the wait.
//! - Whoever takes the wake-up of a closed port triggers it again, so that every wait ends at once. The descriptor stays open
//!   until no thread can use it.
//! - Where the system has no memory, what is owed is remembered: the identity of filters that were lost, and that an alarm
//!   is to be set.

#![allow(unsafe_code, reason = "descriptors are known here by number only")]

mod complete;
mod identity;
mod listen;
mod sys;
mod systems;
#[cfg(all(test, not(interleavings)))]
mod tests;
mod timer;
mod translate;
mod waker;

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;

use self::complete::Found;
pub(crate) use self::complete::conditions;
use self::sys::{Errno, Event, Filter, Queue};
use self::translate::{Changes, Knotes};
use self::waker::Waker;
use crate::engine::{
    Arm, ArmError, Backend, DESCRIPTOR, Interest, Outcome, Report, Reports, Table, ThisThread,
    Wait, Waited,
};
use crate::os::Fd;
use crate::os::calls::{call_error, refusal};
use crate::support::lock::lock;
use crate::support::pages::SharedPages;
use crate::support::sync::{LocalKey, thread_local};
use crate::{Entry, Error, RegistrationError};

/// A kqueue, and the means to wake the waiting thread.
///
/// All descriptors are opened at the beginning, because they are needed when no descriptor is left.
pub(crate) struct Kqueue {
    queue: Queue,
    waker: Waker,
    /// By descriptor, the [`Knotes`] that were added last. Written with `adding` held.
    knotes: SharedPages<AtomicU8>,
    /// Held while filters are added or deleted.
    adding: Mutex<Lost>,
    /// Streams that neither listen nor are connected.
    unconnected: Mutex<Vec<Fd>>,
    /// The system had no memory for the alarm.
    owes_alarm: AtomicBool,
}

/// What has lost its filters because the system had no memory for others, with its identity. It is armed with new ones
/// later.
type Lost = HashMap<Fd, u64>;

/// Memory of a call.
#[derive(Default)]
pub(crate) struct Memory {
    changes: Vec<Event>,
    events: Vec<Event>,
    found: Vec<Found>,
    polls: Vec<libc::pollfd>,
}

impl Kqueue {
    pub(crate) fn new() -> Result<Self, Error> {
        Self::open().map_err(call_error)
    }

    fn open() -> Result<Self, Errno> {
        identity::prepare()?;
        let queue = Queue::new()?;
        Ok(Kqueue {
            waker: Waker::new(&queue)?,
            queue,
            knotes: SharedPages::new(),
            adding: Mutex::default(),
            unconnected: Mutex::default(),
            owes_alarm: AtomicBool::new(false),
        })
    }

    fn change(&self, changes: &[Event]) -> Result<(), ArmError> {
        self.queue.change(changes).map_err(arm_error)
    }

    fn has(&self, fd: Fd) -> Knotes {
        let knotes = self.knotes.get(fd.0);
        knotes.map_or(Knotes::Absent, |it| {
            Knotes::from_bits(it.load(Ordering::Acquire))
        })
    }

    fn set(&self, fd: Fd, knotes: Knotes) {
        self.knotes
            .entry(fd.0)
            .store(knotes as u8, Ordering::Release);
    }

    /// Whether the filters are there as they have to be, so that they need only be enabled.
    fn is_only_enabled(&self, interest: &Interest) -> bool {
        !systems::changes_need_add()
            && interest.is_enabled()
            && self.has(interest.fd) == Knotes::of(interest)
    }

    /// Of a change that failed, one of the two filters may be there.
    fn delete_what_is_there(&self, fd: Fd) {
        for &deletion in translate::deletions(fd).iter() {
            let _ = self.change(&[deletion]);
        }
        self.set(fd, Knotes::Absent);
    }

    /// Add filters that are not there, or delete them, which proves that they are there, and add them in another way. `adding`
    /// is held.
    fn add(&self, lost: &mut Lost, interest: &Interest, is_new: bool) -> Result<(), ArmError> {
        let fd = interest.fd;
        let lost_identity = lost.remove(&fd);
        let mut deletions = translate::deletions(fd);
        if is_new && self.has(fd) != Knotes::Absent {
            // Those of a file that was closed are gone.
            let _ = self.change(&deletions);
        }
        if is_new || lost_identity.is_some() {
            deletions = Changes::of([]);
        }
        let identity = lost_identity.unwrap_or_else(|| identity::latest(fd));
        // After a change that fails, none is made.
        let mut added = self.change(&deletions.and(&translate::additions(interest)));
        // The number may have been closed and used again, before or in between. What is lost is tried again, also for want of
        // memory, until that is seen.
        let may_be_another = !is_new && (added.is_ok() || lost_identity.is_some());
        if may_be_another && !identity::is_still(fd, identity) {
            added = Err(ArmError::Stale);
        }
        if added.is_ok() {
            self.set(fd, Knotes::of(interest));
        } else {
            if !is_new && matches!(added, Err(ArmError::Refused(_))) {
                lost.insert(fd, identity);
            }
            self.delete_what_is_there(fd);
        }
        added
    }

    /// Collect the changes that arm a batch. What takes more than to enable filters is armed at once. The first result is
    /// true if something could not be armed, the second one if the changes may be made late.
    ///
    /// A change that comes after another thread has armed the socket in another way must only add to what is reported.
    /// What that thread wants is still reported, with the generation of the late change, and armed again by whoever
    /// [gets](Backend::IS_SILENT_BEHIND) that.
    fn collect(&self, table: &Table, changes: &mut Vec<Event>, batch: &mut [Arm]) -> (bool, bool) {
        changes.clear();
        let mut has_failed = false;
        let mut may_be_late = true;
        for arm in batch {
            let interest = &mut arm.interest;
            // Filters of a later entry for the same socket must not get this one's generation.
            if table.is_waiting(interest) && self.is_only_enabled(interest) {
                changes.extend_from_slice(&translate::changes(interest));
                may_be_late &= translate::only_adds(interest);
            } else {
                arm.outcome = table.arm_latest(interest, |interest| self.arm(interest, false));
                has_failed |= arm.outcome != Outcome::Armed;
            }
        }
        (has_failed, may_be_late)
    }

    /// The kernel has a batch, except what it refused: arm what another thread wants by now. True if something could not
    /// be armed.
    /// `None`: it has refused all.
    fn follow(&self, table: &Table, batch: &mut [Arm], refused: Option<&[Event]>) -> bool {
        let mut has_failed = false;
        for arm in batch.iter_mut().filter(|arm| arm.outcome == Outcome::Armed) {
            let (fd, generation) = (arm.interest.fd, arm.interest.word.generation());
            let is_this = |it: &Event| it.fd() == fd && it.generation() == generation;
            let mut is_made = refused.is_some_and(|them| !them.iter().any(is_this));
            arm.outcome = table.arm_latest(&mut arm.interest, |interest| {
                match std::mem::take(&mut is_made) {
                    true => Ok(()),
                    // This finds out why.
                    false => self.arm(interest, false),
                }
            });
            has_failed |= arm.outcome != Outcome::Armed;
        }
        has_failed
    }

    /// Whether two edges of one registration may come in one call, as one notification. Of the two events of another, the
    /// engine drops the second.
    fn may_have_two_edges(&self, table: &Table, fd: Fd) -> bool {
        self.has(fd) == Knotes::Clear
            && table
                .interest(fd)
                .is_some_and(|it| translate::watches_both(&it))
    }

    /// Turn what the kernel reported into reports.
    fn read(&self, table: &Table, memory: &mut Memory, waited: &mut Waited) {
        let found = &mut memory.found;
        found.clear();
        for event in &memory.events {
            if self.waker.is_woken(&self.queue, event) {
                waited.woken = true;
            } else if event.filter() == Filter::Timer {
                match event.ident() {
                    timer::ALARM => waited.alarmed = true,
                    _ => self.check_unconnected(table),
                }
            } else if event.answer().is_none() {
                let (fd, generation) = (event.fd(), event.generation());
                let kind = identity::kind(fd);
                let shown = translate::events(event, kind);
                let is_same = |(it, _): &&mut Found| it.fd == fd && it.generation == generation;
                let earlier = match self.may_have_two_edges(table, fd) {
                    true => found.iter_mut().find(is_same),
                    // The two events of a socket are next to each other if both conditions held when it was armed.
                    false => found.last_mut().filter(is_same),
                };
                match earlier {
                    Some((earlier, _)) => earlier.events |= shown,
                    None => found.push((Report::new(fd, generation, shown), kind)),
                }
            }
        }
        complete::complete(table, &mut memory.polls, found);
    }
}

impl AsFd for Kqueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.queue.as_fd()
    }
}

impl Backend for Kqueue {
    type Memory = Memory;

    #[inline]
    fn thread() -> &'static LocalKey<ThisThread<Self>> {
        thread_local!(static THREAD: ThisThread<Kqueue> = ThisThread::default());
        &THREAD
    }

    const KEEPS: bool = false;
    const IS_SILENT_BEHIND: bool = true;
    const SHARES: bool = true;

    fn waiters(&self) -> usize {
        1
    }

    fn identify(&self, fd: Fd) -> Result<u64, RegistrationError> {
        let kind = sys::kind_of_socket(fd).map_err(refusal)?;
        identity::identify(fd, Some(kind)).map_err(refusal)
    }

    fn identify_any(&self, fd: Fd) -> Result<u64, RegistrationError> {
        match self.identify(fd) {
            Err(RegistrationError::NotASocket) => {}
            identity => return identity,
        }
        // A filter accepts files, but never reports anything useful for them.
        if sys::is_file(fd) {
            return Err(RegistrationError::NotWatchable);
        }
        match identity::identify(fd, None) {
            Ok(identity) => Ok(DESCRIPTOR | identity),
            Err(libc::EBADF) => Err(RegistrationError::NotOpen),
            Err(_) => Err(RegistrationError::NotWatchable),
        }
    }

    fn arm(&self, interest: &Interest, is_new: bool) -> Result<(), ArmError> {
        let fd = interest.fd;
        if is_new {
            // From before its filters are there: it may begin to listen at any time.
            self.note_unconnected(fd)
                .map_err(|error| ArmError::Refused(refusal(error)))?;
            return self.add(&mut lock(&self.adding), interest, true);
        }
        let is_only_changed = || !interest.is_enabled() || self.is_only_enabled(interest);
        if is_only_changed() {
            match self.change(&translate::changes(interest)) {
                // Another thread may be about to replace them.
                Err(ArmError::Stale) => {}
                done => return done,
            }
        }
        let mut adding = lock(&self.adding);
        if !adding.contains_key(&fd) && is_only_changed() {
            return self.change(&translate::changes(interest));
        }
        self.add(&mut adding, interest, false)
    }

    fn disarm(&self, fd: Fd) -> Result<(), ArmError> {
        let mut adding = lock(&self.adding);
        match adding.remove(&fd) {
            Some(identity) if identity::is_still(fd, identity) => Ok(()),
            Some(_) => Err(ArmError::Stale),
            None => {
                self.change(&translate::deletions(fd))?;
                self.set(fd, Knotes::Absent);
                Ok(())
            }
        }
    }

    fn wait(
        &self,
        table: &Table,
        memory: &mut Memory,
        batch: &mut [Arm],
        wait: &Wait,
        _packets: &mut Vec<Entry>,
        reports: &mut impl Reports,
    ) -> Waited {
        let mut waited = Waited::default();
        let Memory {
            changes, events, ..
        } = memory;
        let (mut has_failed, may_be_late) = self.collect(table, changes, batch);
        // If a change fails, there has to be room for that.
        if !changes.is_empty() && (!may_be_late || changes.len() > wait.room) {
            let changed = self.queue.change_each(changes, events);
            has_failed |= self.follow(table, batch, changed.is_ok().then_some(events));
            changes.clear();
        }
        if wait.room == 0 {
            return waited;
        }
        let owes_alarm =
            self.owes_alarm.load(Ordering::SeqCst) && self.owes_alarm.swap(false, Ordering::SeqCst);
        let timeout = if has_failed {
            Some(Duration::ZERO)
        } else if owes_alarm {
            Wait::until_retry(wait.timeout)
        } else {
            wait.timeout
        };
        let done = self.queue.wait(changes, events, wait.room, timeout);
        if !changes.is_empty() {
            let are_answers = events.first().is_some_and(|event| event.answer().is_some());
            let refused = match done {
                Ok(()) if are_answers => Some(&events[..]),
                // After a signal, the changes were made.
                Ok(()) | Err(libc::EINTR) => Some(&[][..]),
                Err(_) => None,
            };
            self.follow(table, batch, refused);
            if are_answers {
                // Refused changes are all that is returned.
                let _ = self
                    .queue
                    .wait(&[], events, wait.room, Some(Duration::ZERO));
            }
        }
        waited.asked = true;
        // As one that has gone off early, it is set again.
        waited.alarmed = owes_alarm;
        waited.is_full = events.len() >= wait.room;
        self.read(table, memory, &mut waited);
        memory
            .found
            .iter()
            .for_each(|(found, _)| reports.add(*found));
        waited
    }

    fn wake(&self) {
        self.waker.wake(&self.queue);
    }

    fn set_alarm(&self, after: Duration) -> Result<(), Error> {
        if timer::set(&self.queue, timer::ALARM, Some(after)).is_err() {
            self.owes_alarm.store(true, Ordering::SeqCst);
            self.wake();
        }
        Ok(())
    }

    fn close(&self) {
        self.waker.close(&self.queue);
    }
}

fn arm_error(error: Errno) -> ArmError {
    match error {
        // The number has no such filter, or is closed.
        libc::ENOENT | libc::EBADF => ArmError::Stale,
        other => ArmError::Refused(refusal(other)),
    }
}
