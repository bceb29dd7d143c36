//! Linux: `epoll`.
//!
//! - A one-shot registration, and a level-triggered one, is `EPOLLONESHOT`: the kernel is silent until it is armed again.
//!   That takes one `epoll_ctl`, which also proves that the number still refers to the registered file.
//! - An edge-triggered one is `EPOLLET`, and takes no system call to keep.
//! - A socket that the port owns stays in the set with `EPOLLET`. To arm it again is at most a readiness check: one
//!   `poll` for a whole batch.
//! - What a readiness check finds and the call has no room for goes back to the kernel's list with `EPOLL_CTL_MOD`. So
//!   that list is the only queue of what is ready.
//! - A wake-up is an `eventfd` in the same set, edge-triggered, so that it need not be read.
//!
//! `epoll` watches open files, not descriptor numbers. If a number is closed while a duplicate keeps the file open, the
//! file stays in the set. Its reports carry a generation that is not current any more once the number is registered
//! again; until then `EPOLL_CTL_MOD` finds out (`ENOENT`, `EBADF`, `EPERM`).

#![allow(unsafe_code, reason = "descriptors are known here by number only")]

mod sys;
mod timer;
mod translate;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use self::sys::{Data, Errno, Event};
use self::timer::Timer;
use crate::engine::{
    Arm, ArmError, Backend, DESCRIPTOR, Interest, Report, Reports, Table, Wait, Waited,
};
use crate::sys::Fd;
use crate::sys::calls::{call_error, refusal};
use crate::{Entry, Error, EventFilter, RegistrationError};

/// Something whose descriptor is readable when it has completions.
pub(crate) trait Completions: AsFd + Send + Sync {
    /// Take all completions.
    fn take(&self, packets: &mut Vec<Entry>);
}

/// An `epoll` set and the means to wake its waiters.
///
/// All descriptors are opened at the beginning, because they are needed when no descriptor is left.
pub(crate) struct Epoll {
    set: OwnedFd,
    waker: OwnedFd,
    timer: Timer,
    /// Other completions of the port.
    completions: OnceLock<Arc<dyn Completions>>,
}

/// Memory of a call.
#[derive(Default)]
pub(crate) struct Memory {
    events: Vec<Event>,
    polls: Vec<libc::pollfd>,
    /// Armed sockets that a readiness check has found ready.
    ready: Vec<(Interest, Report)>,
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
            timer: Timer::new()?,
            completions: OnceLock::new(),
        };
        // Each wake-up, and each timer that goes off, wakes one waiting thread.
        sys::add(&this.set, &this.waker, EDGE, Data::WAKER)?;
        sys::add(&this.set, &this.timer, EDGE, Data::TIMER)?;
        Ok(this)
    }

    /// Also take these completions from now on.
    #[cfg_attr(
        not(target_pointer_width = "64"),
        allow(dead_code, reason = "where there are no rings")
    )]
    pub(crate) fn complete(&self, completions: Arc<dyn Completions>) -> io::Result<()> {
        let completions = self.completions.get_or_init(|| completions);
        let added = sys::add(&self.set, completions, EDGE, Data::COMPLETIONS);
        added.map_err(io::Error::from_raw_os_error)
    }

    #[inline]
    fn control(&self, call: i32, interest: &Interest) -> Result<(), ArmError> {
        let flags = translate::flags(interest);
        let data = Data::new(interest.fd, interest.generation());
        sys::control(&self.set, call, interest.fd, flags, data).map_err(arm_error)
    }

    /// Poll what is armed already; what is found ready is left in `memory.ready`. True if something could not be armed.
    fn poll_batch(&self, table: &Table, memory: &mut Memory, batch: &mut [Arm]) -> bool {
        let mut has_failed = false;
        let Memory { polls, ready, .. } = memory;
        polls.clear();
        for arm in &*batch {
            if arm.is_armed {
                polls.push(translate::pollfd_for(&arm.interest));
            } else {
                has_failed = true;
            }
        }
        if polls.is_empty() {
            return has_failed;
        }
        let is_known = sys::poll_now(polls).is_ok();
        let armed = batch.iter_mut().filter(|arm| arm.is_armed);
        for (arm, poll) in armed.zip(&*polls) {
            let fd = arm.interest.fd;
            if !is_known || poll.revents & libc::POLLNVAL != 0 {
                // This has it reported if it is ready.
                has_failed |= self.arm_latest(table, arm);
                continue;
            }
            let events = translate::events(translate::poll_events(poll), fd);
            if !events.is_empty() {
                let generation = arm.interest.generation();
                ready.push((
                    arm.interest,
                    Report {
                        fd,
                        generation,
                        events,
                    },
                ));
            }
        }
        has_failed
    }

    /// One of the port's own descriptors was reported.
    #[cold]
    fn handle_own(&self, data: Data, waited: &mut Waited, packets: &mut Vec<Entry>) {
        match data {
            Data::WAKER => waited.woken = true,
            Data::TIMER => waited.alarmed |= self.timer.is_over(),
            _ => {
                if let Some(completions) = self.completions.get() {
                    completions.take(packets);
                }
            }
        }
    }

    /// True if it could not be armed.
    #[inline]
    fn arm_latest(&self, table: &Table, arm: &mut Arm) -> bool {
        arm.outcome = table.arm_latest(&arm.interest, |interest| self.arm(interest, false));
        arm.outcome != crate::engine::Outcome::Armed
    }

    /// Report what was found ready, as far as there is room, and put the rest behind what the kernel has to report.
    fn report_ready(
        &self,
        table: &Table,
        memory: &Memory,
        room: usize,
        reports: &mut impl Reports,
    ) {
        let (taken, left) = memory.ready.split_at(memory.ready.len().min(room));
        taken.iter().for_each(|(_, ready)| reports.add(*ready));
        for (interest, _) in left {
            table.arm_latest(interest, |interest| self.arm(interest, false));
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

    const KEEPS: bool = true;
    const ARMS_EACH: bool = true;
    const CONDITIONS: EventFilter = EventFilter::ALL
        .union(EventFilter::PRIORITY)
        .union(EventFilter::FULL_HANGUP);

    fn identify(&self, fd: Fd) -> Result<u64, RegistrationError> {
        let identity = sys::identity(fd).map_err(refusal)?;
        Ok(identity & !DESCRIPTOR)
    }

    fn identify_any(&self, fd: Fd) -> Result<u64, RegistrationError> {
        static OTHERS: AtomicU64 = AtomicU64::new(0);
        match self.identify(fd) {
            Err(RegistrationError::NotASocket) => {}
            identity => return identity,
        }
        // Whether it can be watched is found out when it is added.
        let other = OTHERS.fetch_add(1, Ordering::Relaxed);
        Ok(DESCRIPTOR | (other % DESCRIPTOR))
    }

    #[inline]
    fn arm(&self, interest: &Interest, is_new: bool) -> Result<(), ArmError> {
        if !is_new {
            return self.control(libc::EPOLL_CTL_MOD, interest);
        }
        let flags = translate::flags(interest);
        let data = Data::new(interest.fd, interest.generation());
        match sys::control(&self.set, libc::EPOLL_CTL_ADD, interest.fd, flags, data) {
            // Its number was closed and duplicated back.
            Err(libc::EEXIST) => self.control(libc::EPOLL_CTL_MOD, interest),
            Err(libc::EPERM) => Err(ArmError::Refused(RegistrationError::NotWatchable)),
            added => added.map_err(|error| ArmError::Refused(refusal(error))),
        }
    }

    fn disarm(&self, fd: Fd) -> Result<(), ArmError> {
        sys::control(&self.set, libc::EPOLL_CTL_DEL, fd, 0, Data::WAKER).map_err(arm_error)
    }

    #[inline]
    fn wait(
        &self,
        table: &Table,
        memory: &mut Memory,
        batch: &mut [Arm],
        wait: &Wait,
        packets: &mut Vec<Entry>,
        reports: &mut impl Reports,
    ) -> Waited {
        let mut waited = Waited::default();
        memory.ready.clear();
        let has_failed = !batch.is_empty() && self.poll_batch(table, memory, batch);
        let mut left = wait.timeout;
        if !memory.ready.is_empty() {
            if wait.room == 0 || wait.may_skip {
                // The kernel had fewer reports than the last call asked for.
                self.report_ready(table, memory, wait.room, reports);
                return waited;
            }
            left = Some(Duration::ZERO);
        } else if wait.room == 0 {
            return waited;
        }
        if has_failed {
            left = Some(Duration::ZERO);
        }
        sys::wait(&self.set, &mut memory.events, wait.room, left);
        waited.asked = true;
        waited.is_full = memory.events.len() >= wait.room;
        let mut own = 0;
        for event in &memory.events {
            let data = event.data();
            if data.is_own() {
                own += 1;
                self.handle_own(data, &mut waited, packets);
                continue;
            }
            let fd = data.fd();
            reports.add(Report {
                fd,
                generation: data.generation(),
                events: translate::events(event.flags(), fd),
            });
        }
        if !memory.ready.is_empty() {
            // The kernel may have reported the same.
            memory
                .ready
                .retain(|(interest, _)| table.is_waiting(interest));
            let count = memory.events.len() - own;
            self.report_ready(table, memory, wait.room - count, reports);
        }
        waited
    }

    fn wake(&self) {
        sys::signal(&self.waker);
    }

    fn set_alarm(&self, after: Duration) -> Result<(), Error> {
        self.timer.set(after).map_err(call_error)
    }

    fn close(&self) {
        // From here on every wait ends at once.
        let _ = sys::control_own(
            &self.set,
            libc::EPOLL_CTL_MOD,
            &self.waker,
            libc::EPOLLIN as u32,
            Data::WAKER,
        );
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
