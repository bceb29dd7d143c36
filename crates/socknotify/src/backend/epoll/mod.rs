//! Linux: `epoll`.
//!
//! - A one-shot registration is `EPOLLONESHOT`: the kernel is silent until it is armed again. That takes one `epoll_ctl`,
//!   which also proves that the number still refers to the registered file.
//! - An edge-triggered one is `EPOLLET`, and takes no system call to keep.
//! - A level-triggered one, and a socket that the port owns, stays in the set with `EPOLLET`. To arm it again is at most a
//!   readiness check: one `poll` for a whole batch.
//! - What a readiness check finds goes back to the kernel's list with `EPOLL_CTL_MOD`, but for owned sockets that the call
//!   has room for. So that list is the only queue of what is ready.
//! - A wake-up is an `eventfd` in the same set, edge-triggered, so that it need not be read.
//!
//! `epoll` watches open files, not descriptor numbers. If a number is closed while a duplicate keeps the file open, the
//! file stays in the set. Its reports carry a generation that is not current any more once the number is registered
//! again; until then `EPOLL_CTL_MOD` finds out (`ENOENT`, `EBADF`, `EPERM`).

mod sys;
mod translate;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

pub(crate) use self::sys::count_milliseconds;
use self::sys::{Data, Errno, Reported, by_number};
use crate::engine::{
    Arm, ArmError, Backend, DESCRIPTOR, Interest, Mode, Report, Reports, Table, ThisThread, Wait,
    Waited,
};
use crate::os::calls::{call_error, refusal};
use crate::os::{Fd, RawSocket};
use crate::support::sync::{LocalKey, thread_local};
use crate::{Entry, Error, EventFilter, Events, RegistrationError};

/// An `epoll` set and the means to wake its waiters.
///
/// All descriptors are opened at the beginning, because they are needed when no descriptor is left.
pub(crate) struct Epoll {
    set: OwnedFd,
    waker: OwnedFd,
    timer: OwnedFd,
}

/// Memory of a call.
#[derive(Default)]
pub(crate) struct Memory {
    events: Reported,
    polls: Vec<libc::pollfd>,
    /// Armed sockets that a readiness check has found ready, by their places in the batch, with what holds.
    ready: Vec<(usize, Events)>,
}

/// `poll` — Which of these conditions hold, or an error, which counts in any case.
pub(crate) fn conditions(socket: RawSocket, filter: EventFilter) -> Events {
    let Some(fd) = crate::os::fd(socket) else {
        return Events::empty();
    };
    let mut poll = translate::pollfd(socket, filter);
    match sys::poll_now(std::slice::from_mut(&mut poll)) {
        Ok(()) => translate::events(translate::poll_events(&poll), fd) & filter.wanted(),
        Err(_) => Events::empty(),
    }
}

/// Whether the port owns the socket. What else is armed already is level-triggered.
#[inline]
fn is_owned(arm: &Arm) -> bool {
    arm.interest.word.mode() == Mode::Kept
}

const EDGE: u32 = libc::EPOLLIN as u32 | libc::EPOLLET as u32;

impl Epoll {
    pub(crate) fn new() -> Result<Self, Error> {
        Self::open().map_err(call_error)
    }

    fn open() -> Result<Self, Errno> {
        let this = Epoll {
            set: sys::epoll_create()?,
            waker: sys::eventfd()?,
            timer: sys::timerfd()?,
        };
        // Each wake-up, and each timer that goes off, wakes one waiting thread.
        sys::add(&this.set, &this.waker, EDGE, Data::WAKER)?;
        sys::add(&this.set, &this.timer, EDGE, Data::TIMER)?;
        Ok(this)
    }

    /// Watch what is in the set in another way.
    #[inline(always)]
    fn modify(&self, interest: &Interest) -> Result<(), ArmError> {
        let flags = translate::flags(interest);
        let data = Data::new(interest.fd, interest.word.generation());
        sys::modify(&self.set, by_number(&interest.fd), flags, data).map_err(arm_error)
    }

    #[cold]
    fn add(&self, interest: &Interest) -> Result<(), ArmError> {
        let flags = translate::flags(interest);
        let data = Data::new(interest.fd, interest.word.generation());
        match sys::add(&self.set, by_number(&interest.fd), flags, data) {
            // Its number was closed and duplicated back.
            Err(libc::EEXIST) => self.modify(interest),
            Err(libc::EPERM) => Err(ArmError::Refused(RegistrationError::NotWatchable)),
            added => added.map_err(|error| ArmError::Refused(refusal(error))),
        }
    }

    /// Ask the kernel for as much as there is room for, up to this timeout, and report it.
    #[inline]
    fn ask(
        &self,
        memory: &mut Memory,
        room: &mut usize,
        timeout: Option<Duration>,
        waited: &mut Waited,
        reports: &mut impl Reports,
    ) {
        sys::wait(&self.set, &mut memory.events, *room, timeout);
        waited.asked = true;
        waited.is_full |= memory.events.len() >= *room;
        for (flags, data) in memory.events.iter().copied().map(sys::read) {
            if data.is_own() {
                self.handle_own(data, waited);
                continue;
            }
            *room -= 1;
            let fd = data.fd();
            let events = translate::events(flags, fd);
            reports.add(Report::new(fd, data.generation(), events));
        }
    }

    /// Poll what is armed already. Owned sockets that are found ready are left in `memory.ready`; others go to the kernel's
    /// list.
    ///
    /// `has_reported`: some of it may have been reported, and is not polled. Returns whether something could not be armed, and
    /// whether something was armed that may be ready: the kernel has it in its list.
    fn poll_batch(
        &self,
        table: &Table,
        memory: &mut Memory,
        batch: &mut [Arm],
        has_reported: bool,
    ) -> (bool, bool) {
        let mut has_failed = batch.iter().any(|arm| !arm.is_armed);
        let mut is_listed = false;
        let is_polled =
            |arm: &Arm| arm.is_armed && (!has_reported || table.is_waiting(&arm.interest));
        if !batch.iter().any(is_polled) {
            return (has_failed, is_listed);
        }
        let Memory { polls, ready, .. } = memory;
        polls.clear();
        let batched = batch.iter();
        polls.extend(batched.map(|arm| translate::pollfd_for(&arm.interest, is_polled(arm))));
        let is_known = sys::poll_now(polls).is_ok();
        for (index, (arm, poll)) in batch.iter_mut().zip(&*polls).enumerate() {
            if poll.fd < 0 || is_known && poll.revents == 0 {
                continue;
            }
            // Only owned sockets are certain to have the number still. Arming finds that out, and has them reported.
            if !is_known || poll.revents & libc::POLLNVAL != 0 || !is_owned(arm) {
                has_failed |= self.arm_latest(table, arm);
                is_listed = true;
                continue;
            }
            let events = translate::events(translate::poll_events(poll), arm.interest.fd);
            if !events.is_empty() {
                ready.push((index, events));
            }
        }
        (has_failed, is_listed)
    }

    /// One of the port's own descriptors was reported.
    #[cold]
    fn handle_own(&self, data: Data, waited: &mut Waited) {
        match data {
            Data::WAKER => waited.woken = true,
            _ => waited.alarmed = true,
        }
    }

    /// True if it could not be armed.
    #[inline]
    fn arm_latest(&self, table: &Table, arm: &mut Arm) -> bool {
        arm.outcome = table.arm_latest(&mut arm.interest, |interest| self.arm(interest, false));
        arm.outcome != crate::engine::Outcome::Armed
    }

    /// Report what was found ready, as far as there is room, and put the rest behind what the kernel has to report.
    #[inline(never)]
    fn report_ready(
        &self,
        table: &Table,
        memory: &Memory,
        batch: &mut [Arm],
        room: usize,
        reports: &mut impl Reports,
    ) {
        let mut room = room;
        for &(index, events) in &memory.ready {
            let arm = &mut batch[index];
            let interest = arm.interest;
            // The kernel may have reported the same.
            if !table.is_waiting(&interest) {
                continue;
            }
            if room == 0 {
                self.arm_latest(table, arm);
                continue;
            }
            room -= 1;
            reports.add(Report {
                fd: interest.fd,
                generation: interest.word.generation(),
                events,
                polled: Some(interest.word.arming()),
            });
        }
    }
}

impl AsFd for Epoll {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.set.as_fd()
    }
}

impl Backend for Epoll {
    type Memory = Memory;

    #[inline]
    fn thread() -> &'static LocalKey<ThisThread<Self>> {
        thread_local!(static THREAD: ThisThread<Epoll> = ThisThread::default());
        &THREAD
    }

    const KEEPS: bool = true;
    const SHARES: bool = true;
    const CONDITIONS: EventFilter = EventFilter::ALL
        .union(EventFilter::PRIORITY)
        .union(EventFilter::FULL_HANGUP);

    fn identify(&self, fd: Fd) -> Result<u64, RegistrationError> {
        let identity = sys::identity(fd).map_err(refusal)?;
        Ok(identity & !DESCRIPTOR)
    }

    fn identify_any(&self, fd: Fd) -> Result<u64, RegistrationError> {
        match self.identify(fd) {
            // Whether it can be watched is found out when it is added.
            Err(RegistrationError::NotASocket) => Ok(DESCRIPTOR),
            identity => identity,
        }
    }

    #[inline(always)]
    fn arm(&self, interest: &Interest, is_new: bool) -> Result<(), ArmError> {
        match is_new {
            true => self.add(interest),
            false => self.modify(interest),
        }
    }

    fn disarm(&self, fd: Fd) -> Result<(), ArmError> {
        sys::delete(&self.set, fd).map_err(arm_error)
    }

    #[inline]
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
        memory.ready.clear();
        let (mut room, mut timeout) = (wait.room, wait.timeout);
        if !batch.is_empty() {
            // Level-triggered registrations that are ready again are as a rule in the kernel's list, which is cheaper than to
            // find that out and arm them.
            let has_levels = || batch.iter().any(|arm| arm.is_armed && !is_owned(arm));
            let asks_first = room > 0 && (wait.has_more || has_levels());
            if asks_first {
                self.ask(
                    memory,
                    &mut room,
                    Some(Duration::ZERO),
                    &mut waited,
                    reports,
                );
            }
            // What was reported need not be polled.
            let has_reported = asks_first && !memory.events.is_empty();
            let (has_failed, is_listed) = self.poll_batch(table, memory, batch, has_reported);
            let is_ready = !memory.ready.is_empty();
            if has_reported || is_ready || has_failed {
                timeout = Some(Duration::ZERO);
            }
            let is_over = match asks_first {
                // What was armed is reported as far as there is room.
                true => timeout == Some(Duration::ZERO) && !is_listed,
                // It may be that the kernel had fewer reports than the last call asked for.
                false => wait.room == 0 || is_ready && wait.may_skip,
            };
            if is_over {
                self.report_ready(table, memory, batch, room, reports);
                return waited;
            }
        }
        self.ask(memory, &mut room, timeout, &mut waited, reports);
        if !memory.ready.is_empty() {
            self.report_ready(table, memory, batch, room, reports);
        }
        waited
    }

    fn wake(&self) {
        sys::signal(&self.waker);
    }

    fn set_alarm(&self, after: Duration) -> Result<(), Error> {
        sys::set_timer(&self.timer, after).map_err(call_error)
    }

    fn close(&self) {
        // From here on every wait ends at once.
        let _ = sys::modify(&self.set, &self.waker, libc::EPOLLIN as u32, Data::WAKER);
        sys::signal(&self.waker);
    }
}

fn arm_error(error: Errno) -> ArmError {
    match error {
        // The number is not in the set, is closed, or refers to a file that cannot be in one, or to the set itself.
        libc::ENOENT | libc::EBADF | libc::EPERM | libc::EINVAL | libc::ELOOP => ArmError::Stale,
        other => ArmError::Refused(refusal(other)),
    }
}
