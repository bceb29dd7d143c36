//! Linux: `epoll`.
//!
//! - A one-shot registration is `EPOLLONESHOT`: the kernel is silent while a thread works on the
//!   socket, whatever arrives. Re-arming takes one `epoll_ctl`, which also proves that the number still stands for
//!   the registered socket.
//! - A socket that the port owns stays in the set, with `EPOLLET`. Re-arming is a readiness check: one `poll` for a
//!   whole batch.
//! - A persistent registration, level-triggered or `EPOLLET`, takes no system call to keep.
//! - A wake-up is an `eventfd` in the same set, edge-triggered, so that it need not be read.
//!
//! `epoll` watches open files, not descriptor numbers: [`identity`] says what follows from that. [`conditions`] and
//! [`unwanted`] handle what the kernel reports and the contract does not have.

#![allow(unsafe_code, reason = "sockets are known here by number only")]

mod conditions;
mod edges;
mod identity;
mod rearm;
mod rebuild;
mod sys;
mod timer;
mod unwanted;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

use self::edges::InitialEdges;
use self::rearm::PollPolicy;
use self::rebuild::Stale;
use self::sys::{Data, Errno, Event};
use self::timer::Timer;
use self::unwanted::Silent;
use crate::engine::{
    ArmError, Backend, DESCRIPTOR, Interest, Kept, Mode, Readiness, Rearm, Report, Reports,
    Validity, Wait, Wanted,
};
use crate::sys::calls::{call_error, refusal};
use crate::{Entry, Error, EventFilter, Events, RegistrationError};

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
    /// An empty set, for a rebuild.
    spare: Mutex<Option<OwnedFd>>,
    /// What another loop watches: a set that contains only the port's set. It stays the same file when that
    /// one is rebuilt.
    exposed: OwnedFd,
    is_exposed: AtomicBool,
    initial_edges: InitialEdges,
    silent: Silent,
    policy: PollPolicy,
    stale: Mutex<Stale>,
    /// Other completions of the port.
    completions: OnceLock<Arc<dyn Completions>>,
    /// Locked for writing while a socket is added or deleted, also if only as a check; for reading while one in the set
    /// is armed.
    members: RwLock<()>,
}

/// How many times in a row one call waits again after reports of no interest.
const AGAIN: usize = 64;

/// Memory of a call.
#[derive(Default)]
pub(crate) struct Memory {
    events: Vec<Event>,
    /// Numbers for `poll`.
    polls: Vec<libc::pollfd>,
}

impl Epoll {
    pub(crate) fn new() -> Result<Self, Error> {
        Self::open().map_err(call_error)
    }

    fn open() -> Result<Self, Errno> {
        let this = Epoll {
            set: sys::epoll_create()?,
            waker: sys::eventfd()?,
            timer: Timer::new()?,
            spare: Mutex::new(Some(sys::epoll_create()?)),
            exposed: sys::epoll_create()?,
            is_exposed: AtomicBool::new(false),
            initial_edges: InitialEdges::new()?,
            silent: Silent::default(),
            policy: PollPolicy::default(),
            stale: Mutex::default(),
            completions: OnceLock::new(),
            members: RwLock::default(),
        };
        this.add_own(&this.set)?;
        Ok(this)
    }

    /// Add the port's own descriptors to a set.
    fn add_own(&self, set: &OwnedFd) -> Result<(), Errno> {
        // Each wake-up, and each timer that goes off, wakes one waiting thread.
        let flags = (libc::EPOLLIN | libc::EPOLLET) as u32;
        sys::add(set, &self.waker, flags, Data::WAKER)?;
        sys::add(set, &self.timer, flags, Data::TIMER)?;
        match self.completions.get() {
            Some(completions) => sys::add(set, completions, flags, Data::COMPLETIONS),
            None => Ok(()),
        }
    }

    /// Also take these completions from now on.
    #[cfg_attr(
        not(target_pointer_width = "64"),
        allow(dead_code, reason = "where there are no rings")
    )]
    pub(crate) fn complete(&self, completions: Arc<dyn Completions>) -> io::Result<()> {
        // Under the lock of a rebuild, so that it is added to the present set.
        let _spare = self.spare();
        let completions = self.completions.get_or_init(|| completions);
        let flags = (libc::EPOLLIN | libc::EPOLLET) as u32;
        let added = sys::add(&self.set, completions, flags, Data::COMPLETIONS);
        added.map_err(io::Error::from_raw_os_error)
    }

    fn control(&self, call: i32, interest: &Interest) -> Result<(), Errno> {
        let flags = conditions::flags(interest.filter(), interest.mode());
        sys::control(&self.set, call, interest.socket, flags, Data::of(interest))
    }

    /// Watch a socket that is in the set.
    fn modify(&self, interest: &Interest) -> Result<(), ArmError> {
        let _members = self.members.read().unwrap_or_else(PoisonError::into_inner);
        let modify = libc::EPOLL_CTL_MOD;
        self.control(modify, interest).map_err(arm_error)
    }

    /// The same, if another thread may have armed it before. If that armed edges, conditions that have begun to hold
    /// since must not count as initial. So one edge too many may come.
    fn arm_late(&self, interest: &Interest) -> Result<(), ArmError> {
        if interest.mode() == Mode::Edge {
            self.initial_edges.forget(interest.socket);
        }
        self.modify(interest)
    }

    /// Arm what is wanted, even if another thread has armed it. If the number stands for another socket, the check of a
    /// report detects that.
    fn follow_late(&self, wanted: &Wanted, interest: &Interest) {
        let _ = wanted.follow(interest, |interest| self.arm_late(interest));
    }

    /// Watch a socket that should not be in the set yet.
    fn add(&self, interest: &Interest) -> Result<(), ArmError> {
        let _members = self.members.write().unwrap_or_else(PoisonError::into_inner);
        let done = match self.control(libc::EPOLL_CTL_ADD, interest) {
            Err(libc::EEXIST) => self.control(libc::EPOLL_CTL_MOD, interest),
            done => done,
        };
        done.map_err(arm_error)
    }

    /// Turn what the kernel reported into reports, and check them.
    fn read(&self, wanted: &Wanted, events: &mut Vec<Event>, wait: &Wait, reports: &mut Reports) {
        if !self.initial_edges.is_empty() {
            self.initial_edges.suppress(events);
        }
        for event in &*events {
            let data = event.data();
            match data {
                Data::WAKER => reports.woken = true,
                Data::TIMER => reports.alarmed |= self.timer.is_over(),
                Data::IGNORED => {}
                Data::COMPLETIONS => {
                    if let Some(completions) = self.completions.get() {
                        completions.take(&mut reports.packets);
                    }
                }
                _ => {
                    if let Some(report) = self.report(wanted, data, event.flags(), wait, reports) {
                        reports.reports.push(report);
                    }
                }
            }
        }
    }

    /// What the kernel reported of a socket, if it is wanted.
    #[inline]
    fn report(
        &self,
        wanted: &Wanted,
        data: Data,
        flags: u32,
        wait: &Wait,
        reports: &mut Reports,
    ) -> Option<Report> {
        let socket = data.socket();
        let interest = match wanted.get(socket) {
            Some(interest) if interest.generation() == data.generation() => interest,
            other => {
                self.on_stale(wanted, data, other, reports);
                return None;
            }
        };
        let events = match conditions::is_plain(flags) {
            true => conditions::plain(flags),
            false => conditions::of_socket(flags, socket).unwrap_or_else(|| {
                self.silent.note(socket, &self.timer);
                Events::empty()
            }),
        };
        let validity = if !events.intersects(interest.filter().wanted()) {
            if data.is_quiet() || self.quiet(wanted, &interest) {
                return None;
            }
            Validity::Closed
        } else {
            if data.is_quiet() && interest.mode() == Mode::Level {
                // A wanted condition holds: from now on it is watched as requested.
                self.follow_late(wanted, &interest);
            }
            // Nobody closes a socket that the port owns, or that this call has borrowed.
            match wait.borrows(data.generation()) || interest.mode() == Mode::Kept {
                true => Validity::Valid,
                false => self.validity(socket),
            }
        };
        Some(Report {
            socket,
            generation: data.generation(),
            events,
            validity,
        })
    }
}

impl AsFd for Epoll {
    fn as_fd(&self) -> BorrowedFd<'_> {
        if !self.is_exposed.load(Ordering::Acquire) {
            // Under the lock of a rebuild, so that it contains the present set.
            let _spare = self.spare();
            if self.expose().is_ok() {
                self.is_exposed.store(true, Ordering::Release);
            }
        }
        self.exposed.as_fd()
    }
}

impl Backend for Epoll {
    type Memory = Memory;

    const KEPT: Kept = Kept::ForGood;
    const CONDITIONS: EventFilter = EventFilter::ALL
        .union(EventFilter::PRIORITY)
        .union(EventFilter::FULL_HANGUP);

    fn identify(&self, socket: u32) -> Result<u64, RegistrationError> {
        let identity = sys::identity(socket).map_err(refusal)?;
        Ok(identity & !DESCRIPTOR)
    }

    fn identify_any(&self, socket: u32) -> Result<u64, RegistrationError> {
        static OTHERS: AtomicU64 = AtomicU64::new(0);
        match self.identify(socket) {
            Err(RegistrationError::NotASocket) => {}
            identity => return identity,
        }
        self.try_to_watch(socket)?;
        let other = OTHERS.fetch_add(1, Ordering::Relaxed);
        Ok(DESCRIPTOR | (other % DESCRIPTOR))
    }

    fn is_still_armed(&self, socket: u32) -> bool {
        self.is_armed(socket) == Ok(true)
    }

    fn has_packets(&self) -> bool {
        self.completions.get().is_some()
    }

    fn arm_initial(&self, interest: &Interest, is_new: bool) -> Result<bool, ArmError> {
        if interest.socket > Data::MAX_SOCKET {
            return Err(ArmError::Refused(RegistrationError::LimitReached));
        }
        self.initial_edges.forget(interest.socket);
        // The kernel first reports what holds already.
        match is_new {
            true => self.add(interest)?,
            false => self.modify(interest)?,
        }
        Ok(true)
    }

    fn carry_edges(&self, interest: &Interest) -> bool {
        self.initial_edges.carry(interest);
        true
    }

    fn arm(&self, interest: &Interest, is_new: bool) -> Result<(), ArmError> {
        if interest.socket > Data::MAX_SOCKET {
            return Err(ArmError::Refused(RegistrationError::LimitReached));
        }
        let control = || match is_new {
            true => self.add(interest),
            false => self.modify(interest),
        };
        match interest.mode() {
            Mode::Edge => self.initial_edges.arm(interest, control).inspect_err(|_| {
                // It may be in one set and not in the other.
                let _ = self.disarm(interest.socket);
            }),
            _ => control(),
        }
    }

    fn rearm(&self, wanted: &Wanted, memory: &mut Memory, batch: &mut [Rearm]) {
        self.rearm_batch(wanted, memory, batch);
    }

    fn disarm(&self, socket: u32) -> Result<(), ArmError> {
        self.initial_edges.forget(socket);
        let _members = self.members.write().unwrap_or_else(PoisonError::into_inner);
        sys::control(&self.set, libc::EPOLL_CTL_DEL, socket, 0, Data::IGNORED).map_err(arm_error)
    }

    fn poll_now(
        &self,
        memory: &mut Memory,
        interests: &[Interest],
        readiness: &mut Vec<Readiness>,
    ) {
        let polls = &mut memory.polls;
        polls.clear();
        polls.extend(interests.iter().map(|it| conditions::question(it, true)));
        let is_known = sys::poll_now(polls).is_ok();
        readiness.clear();
        readiness.extend(interests.iter().zip(&*polls).map(|(interest, poll)| {
            match conditions::answer(poll, interest, is_known) {
                // A poll only knows the number.
                Readiness::Ready(_)
                    if interest.mode() != Mode::Kept
                        && self.is_armed(interest.socket) != Ok(true) =>
                {
                    Readiness::Unknown
                }
                readiness => readiness,
            }
        }));
    }

    fn wait(
        &self,
        wanted: &Wanted,
        memory: &mut Memory,
        _batch: &mut [Rearm],
        reports: &mut Reports,
        wait: &Wait,
    ) {
        reports.clear();
        let mut left = wait.timeout;
        // Only a wait with a timeout other than zero needs the time.
        let end = match left {
            None | Some(Duration::ZERO) => None,
            Some(timeout) => Instant::now().checked_add(timeout),
        };
        for again in 0.. {
            if self.silent.has_any() {
                self.report_silent(wanted, reports);
            }
            if !reports.is_empty() {
                left = Some(Duration::ZERO);
            }
            // Room for a wake-up too.
            sys::wait(&self.set, &mut memory.events, wait.room + 1, left);
            let count = memory.events.len();
            self.read(wanted, &mut memory.events, wait, reports);
            if wait.is_exclusive && reports.wants_exclusive {
                self.rebuild(wanted, memory, reports);
            }
            if !reports.reports.is_empty() || count == 0 {
                return;
            }
            // All reports of sockets were of no interest. There may be more.
            if left == Some(Duration::ZERO) || !reports.is_empty() {
                if count <= wait.room || again >= AGAIN {
                    return;
                }
                left = Some(Duration::ZERO);
            } else {
                left = end.map(|end| end.saturating_duration_since(Instant::now()));
            }
        }
    }

    fn wake(&self, after: Option<Duration>) -> Result<(), Error> {
        match after {
            None => {
                sys::signal(&self.waker);
                Ok(())
            }
            Some(delay) => self.timer.set_alarm(delay).map_err(call_error),
        }
    }
}

fn arm_error(error: Errno) -> ArmError {
    match error {
        // The number is not in the set, is closed, or stands for a file that cannot be in one.
        libc::ENOENT | libc::EBADF | libc::EPERM => ArmError::Stale,
        other => ArmError::Refused(refusal(other)),
    }
}
