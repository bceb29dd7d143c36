//! Linux: `epoll`.
//!
//! - A one-shot registration is `EPOLLONESHOT`: the kernel keeps silent while a thread works on the
//!   socket, however much arrives. To arm it again takes one `epoll_ctl`, which at the same time
//!   proves that the number still stands for the socket that was registered.
//! - A socket that the port owns is in the set for good, with `EPOLLET`. The engine arms it again by a
//!   look. Where there is a [ring](Ring), it is watched by that instead.
//! - A persistent registration stays as it is, level-triggered or `EPOLLET`, at no system call each.
//! - A wake-up is an `eventfd` in the same set, edge-triggered, so that it need not be read.
//!
//! `epoll` watches open files, not descriptor numbers. Closing a number ends the watch only if no
//! other number, here or in a forked child, stands for the same file. So one `poll` over each batch
//! of reports asks whether the numbers are still open.

use std::mem::{ManuallyDrop, MaybeUninit};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};
use rustix::io::{DupFlags, Errno};
use rustix::net::{AddressFamily, SocketType, sockopt};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use super::fork::Process;
use super::io_uring::Ring;
use crate::engine::{
    Identity, Kind, Mode, Poller, Report, ReportBuffer, Standing, TURN_MASK, Watch, WatchError,
};
use crate::{Error, EventFilter, Events, RegistrationError};

/// What the kernel gives back with a report: whose it is, and what it has to be read by.
///
/// 32 bits of socket, 28 of turn, two of the kind of socket, and two of the mode.
pub(super) const TURN_SHIFT: u32 = 32;
pub(super) const KIND_SHIFT: u32 = 60;
const MODE_SHIFT: u32 = 62;

/// Kinds and modes by their bits. A request is none of the set's.
pub(super) const KINDS: [Kind; 3] = [Kind::Stream, Kind::LocalStream, Kind::Datagram];
const MODES: [Mode; 4] = [Mode::Once, Mode::Level, Mode::Edge, Mode::Kept];

/// The data of the wake-up. No kind has these bits.
const WAKE: u64 = u64::MAX;

/// The data of the alarm.
const ALARM: u64 = u64::MAX - 1;

/// The data of the ring.
const RING: u64 = u64::MAX - 2;

/// An `epoll` set and the means to wake its waiters.
pub(crate) struct Epoll {
    set: OwnedFd,
    /// For the sockets that the port owns. It is in the set.
    ring: Option<Ring>,
    bell: OwnedFd,
    /// A timer. It is there from the beginning: it is needed when no descriptor is left.
    alarm: OwnedFd,
    /// An empty set, for a rebuild at a time when no descriptor is left.
    spare: Mutex<Option<OwnedFd>>,
    /// What another loop watches, once one does: a set with nothing but this poller's set in it. It
    /// stays the same file when that one is built anew.
    window: OnceLock<OwnedFd>,
    process: Process,
}

impl Epoll {
    pub(crate) fn new() -> Result<Self, Error> {
        let bell =
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(call_error)?;
        let set = empty_set().map_err(call_error)?;
        let alarm = timer().map_err(call_error)?;
        add_ringing(&set, &bell, WAKE).map_err(call_error)?;
        add_ringing(&set, &alarm, ALARM).map_err(call_error)?;
        Ok(Epoll {
            set,
            ring: None,
            bell,
            alarm,
            spare: Mutex::new(Some(empty_set().map_err(call_error)?)),
            window: OnceLock::new(),
            process: Process::this(),
        })
    }

    /// The same, with a ring for the sockets that the port owns.
    pub(crate) fn with_ring(ring: Ring) -> Result<Self, Error> {
        let this = Epoll::new()?;
        add_ring(&this.set, &ring).map_err(call_error)?;
        Ok(Epoll {
            ring: Some(ring),
            ..this
        })
    }

    /// `epoll_pwait2` — Adds to the buffer what the set has, or will have in time.
    fn wait_in_set(&self, buffer: &mut Buffer, room: usize, timeout: Option<Duration>) {
        // Beside the reports there may be a wake-up.
        buffer.events.reserve(room + 1);
        let timeout = timeout.map(timespec);
        let spare = &mut buffer.events.spare_capacity_mut()[..room + 1];
        // What a signal interrupts is a wait that ended for no reason.
        let count = match epoll::wait(&self.set, spare, timeout.as_ref()) {
            Ok((events, _)) => events.len(),
            Err(_) => 0,
        };
        // SAFETY: the kernel has written this many events, from the first on.
        unsafe { buffer.events.set_len(count) };
        buffer.read();
    }

    /// The same, with what the ring has.
    fn wait_with_ring(
        &self,
        ring: &Ring,
        buffer: &mut Buffer,
        room: usize,
        timeout: Option<Duration>,
    ) {
        let Buffer {
            reports, several, ..
        } = buffer;
        // An answer says what held when it was given. What is answered at once needs no other look.
        ring.take(reports, several, room);
        let waited = several.len();
        ring.submit();
        ring.take(reports, several, room);
        several.truncate(waited);
        let looks = timeout == Some(Duration::ZERO);
        if reports.is_empty() {
            self.wait_in_set(buffer, room, timeout);
            ring.take(&mut buffer.reports, &mut buffer.several, room);
        } else if looks || ring.is_sets_turn() {
            let room = room - reports.len();
            self.wait_in_set(buffer, room, Some(Duration::ZERO));
        }
        buffer.bring_up_to_date();
    }
}

impl AsFd for Epoll {
    fn as_fd(&self) -> BorrowedFd<'_> {
        if self.window.get().is_none() {
            // Under the lock of a rebuild, so that it shows the set that is.
            let _lock = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
            if let Ok(window) = empty_set().and_then(|window| show(window, &self.set)) {
                let _ = self.window.set(window);
            }
        }
        // If no descriptor is left, the set itself has to do.
        self.window.get().unwrap_or(&self.set).as_fd()
    }
}

impl Poller for Epoll {
    type Buffer = Buffer;

    fn belongs_here(&self) -> bool {
        self.process.is_this()
    }

    fn identify(&self, socket: u32) -> Result<Identity, RegistrationError> {
        let fd = descriptor(socket);
        let kind = match sockopt::socket_type(fd).map_err(refusal)? {
            SocketType::STREAM | SocketType::SEQPACKET => match sockopt::socket_domain(fd) {
                Ok(AddressFamily::UNIX) => Kind::LocalStream,
                _ => Kind::Stream,
            },
            _ => Kind::Datagram,
        };
        // Kernels before 4.12 have no cookies; there the inode number has to do.
        let id = sockopt::socket_cookie(fd)
            .or_else(|_| rustix::fs::fstat(fd).map(|stat| stat.st_ino))
            .map_err(refusal)?;
        Ok(Identity { kind, id })
    }

    fn adopted(&self) -> Mode {
        match self.ring {
            Some(_) => Mode::Request,
            None => Mode::Kept,
        }
    }

    fn watch(&self, watch: &Watch, again: bool) -> Result<(), WatchError> {
        if let Some(ring) = &self.ring {
            if watch.mode == Mode::Request {
                ring.request(watch);
                return Ok(());
            }
            ring.meet_neighbour();
        }
        let done = match again {
            true => modify(&self.set, watch),
            false => add(&self.set, watch),
        };
        done.map_err(watch_error)
    }

    fn withdraw(&self, request: &Watch) {
        if let Some(ring) = &self.ring {
            ring.withdraw(request);
        }
    }

    fn withdraw_all(&self) {
        if let Some(ring) = &self.ring {
            ring.withdraw_all();
        }
    }

    fn submit(&self) {
        if let Some(ring) = &self.ring {
            ring.submit();
        }
    }

    fn unwatch(&self, socket: u32) -> Result<(), WatchError> {
        epoll::delete(&self.set, descriptor(socket)).map_err(watch_error)
    }

    fn wait(&self, buffer: &mut Buffer, room: usize, timeout: Option<Duration>) {
        buffer.begin();
        match &self.ring {
            Some(ring) => self.wait_with_ring(ring, buffer, room, timeout),
            None => self.wait_in_set(buffer, room, timeout),
        }
    }

    fn check(&self, buffer: &mut Buffer, is_good: impl Fn(u32) -> bool) {
        let Buffer {
            reports, numbers, ..
        } = buffer;
        numbers.clear();
        // Nobody closes a socket that the port owns.
        let doubted = |report: &&mut Report| {
            !matches!(report.mode, Mode::Kept | Mode::Request) && !is_good(report.socket)
        };
        for report in reports.iter_mut().filter(doubted) {
            let fd = descriptor(report.socket);
            numbers.push(PollFd::from_borrowed_fd(fd, asked_of(report.events)));
        }
        if numbers.is_empty() || poll(numbers, Some(&Timespec::default())).is_err() {
            return;
        }
        for (report, number) in reports.iter_mut().filter(doubted).zip(numbers.iter()) {
            let found = number.revents();
            if found == asked_of(report.events) {
                // It is as it was reported.
            } else if found.contains(PollFlags::NVAL) {
                report.standing = Standing::Gone;
            } else if !state(number, report.kind).contains(report.events) {
                report.standing = Standing::Doubtful;
            }
        }
    }

    fn probe(&self, buffer: &mut Buffer, watches: impl Iterator<Item = Watch> + Clone) {
        let Buffer { numbers, seen, .. } = buffer;
        numbers.clear();
        seen.clear();
        numbers.extend(
            watches.clone().map(|watch| {
                PollFd::from_borrowed_fd(descriptor(watch.socket), poll_flags(&watch))
            }),
        );
        if numbers.is_empty() || poll(numbers, Some(&Timespec::default())).is_err() {
            return;
        }
        seen.extend(numbers.iter().zip(watches).map(|(number, watch)| {
            let events = state(number, watch.kind);
            match events.intersects(watch.filter.wanted()) {
                true => events,
                false => Events::empty(),
            }
        }));
    }

    fn observe(&self, watch: &Watch) {
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        if spare.is_none() {
            *spare = empty_set().ok();
        }
        if let Some(set) = &*spare {
            let _ = add(set, watch);
            take_one(set);
        }
    }

    fn has_risen(&self, watch: &Watch) -> bool {
        let spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        spare.as_ref().is_none_or(|set| {
            let risen = take_one(set);
            // Where it could not be observed, nothing is known.
            epoll::delete(set, descriptor(watch.socket)).is_err() || risen
        })
    }

    fn wake(&self) {
        // The counter is never read. It would take 2^64 wake-ups to fill it.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }

    fn set_alarm(&self, delay: Duration) -> Result<(), Error> {
        let once = Itimerspec {
            it_interval: Timespec::default(),
            // Zero would unset it.
            it_value: timespec(delay.max(Duration::from_nanos(1))),
        };
        timerfd_settime(&self.alarm, TimerfdTimerFlags::empty(), &once)
            .map(drop)
            .map_err(call_error)
    }

    fn rebuild(&self, watches: &[Watch], fetch: &mut dyn FnMut()) -> Option<Vec<u32>> {
        let mut kept = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        let new = kept.take().or_else(|| empty_set().ok())?;
        add_ringing(&new, &self.bell, WAKE).ok()?;
        add_ringing(&new, &self.alarm, ALARM).ok()?;
        if let Some(ring) = &self.ring {
            add_ring(&new, ring).ok()?;
        }
        let mut lost = Vec::new();
        let mut has_room = true;
        let mut add = |watch: &Watch| match add(&new, watch) {
            Ok(()) => {}
            Err(Errno::NOMEM | Errno::NOSPC) => has_room = false,
            Err(_) => lost.push(watch.socket),
        };
        let (edges, others): (Vec<_>, Vec<_>) =
            watches.iter().partition(|watch| watch.mode == Mode::Edge);
        edges.into_iter().for_each(&mut add);
        // What the new set has to say of them now, held all the time, or the old one says it too.
        let mut first = Vec::<epoll::Event>::with_capacity(watches.len() + 1);
        let spare = rustix::buffer::spare_capacity(&mut first);
        let _ = epoll::wait(&new, spare, Some(&Timespec::default()));
        fetch();
        others.into_iter().for_each(add);
        if !has_room {
            return None;
        }
        // Whoever waits on the old set is sent away by a bell that rings for ever,
        self.wake();
        let data = epoll::EventData::new_u64(WAKE);
        let _ = epoll::modify(&self.set, &self.bell, data, epoll::EventFlags::IN);
        // and whoever comes to wait from here on, waits on the new one, under the old number.
        // SAFETY: the number stays open throughout, and stays this poller's; it is not closed here.
        let mut set = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(self.set.as_raw_fd()) });
        let _ = rustix::io::dup3(&new, &mut set, DupFlags::CLOEXEC);
        if let Some(window) = self.window.get() {
            let _ = show(window, &self.set);
        }
        // If a wake-up was under way, the new set has swallowed it.
        self.wake();
        drop(new);
        *kept = empty_set().ok();
        Some(lost)
    }
}

fn empty_set() -> rustix::io::Result<OwnedFd> {
    epoll::create(epoll::CreateFlags::CLOEXEC)
}

/// Have a window show this set.
fn show<W: AsFd>(window: W, set: &OwnedFd) -> rustix::io::Result<W> {
    epoll::add(
        &window,
        set,
        epoll::EventData::new_u64(0),
        epoll::EventFlags::IN,
    )?;
    Ok(window)
}

/// Take one report, if there is one.
fn take_one(set: &OwnedFd) -> bool {
    let mut events = [MaybeUninit::<epoll::Event>::uninit()];
    epoll::wait(set, &mut events, Some(&Timespec::default()))
        .is_ok_and(|(seen, _)| !seen.is_empty())
}

/// Watch a socket that is in a set.
fn modify(set: &OwnedFd, watch: &Watch) -> rustix::io::Result<()> {
    let data = epoll::EventData::new_u64(data(watch));
    epoll::modify(set, descriptor(watch.socket), data, flags(watch))
}

/// Watch a socket that is not, or should not be, in a set.
fn add(set: &OwnedFd, watch: &Watch) -> rustix::io::Result<()> {
    let data = epoll::EventData::new_u64(data(watch));
    match epoll::add(set, descriptor(watch.socket), data, flags(watch)) {
        Err(Errno::EXIST) => modify(set, watch),
        done => done,
    }
}

/// Have a bell or a timer wake those who wait on a set, one for each time that it rings.
fn add_ringing(set: &OwnedFd, bell: &OwnedFd, data: u64) -> rustix::io::Result<()> {
    let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
    epoll::add(set, bell, epoll::EventData::new_u64(data), flags)
}

/// Have a ring wake those who wait on a set, as long as there is something in it.
fn add_ring(set: &OwnedFd, ring: &Ring) -> rustix::io::Result<()> {
    epoll::add(
        set,
        ring,
        epoll::EventData::new_u64(RING),
        epoll::EventFlags::IN,
    )
}

/// A timer that is not set.
fn timer() -> rustix::io::Result<OwnedFd> {
    let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
    timerfd_create(TimerfdClockId::Monotonic, flags)
}

/// The descriptor that a number stands for.
fn descriptor(socket: u32) -> BorrowedFd<'static> {
    // SAFETY: the number came in as one that is not negative. It is handed to the kernel only, which
    // checks it, and to no call that closes it or reads or writes through it.
    unsafe { BorrowedFd::borrow_raw(socket as i32) }
}

/// What the kernel is to give back with reports of this watch.
fn data(watch: &Watch) -> u64 {
    u64::from(watch.socket)
        | u64::from(watch.turn) << TURN_SHIFT
        | (watch.kind as u64) << KIND_SHIFT
        | (watch.mode as u64) << MODE_SHIFT
}

/// What the kernel is to watch for. It reports errors and hang-ups in any case.
fn flags(watch: &Watch) -> epoll::EventFlags {
    let mut flags = match watch.mode {
        Mode::Once | Mode::Request => epoll::EventFlags::ONESHOT,
        Mode::Level => epoll::EventFlags::empty(),
        Mode::Edge | Mode::Kept => epoll::EventFlags::ET,
    };
    flags.set(
        epoll::EventFlags::IN,
        watch.filter.contains(EventFilter::IN),
    );
    flags.set(
        epoll::EventFlags::OUT,
        watch.filter.contains(EventFilter::OUT),
    );
    // Without it, a stream that was hung up cannot be told from one that was never connected.
    flags.set(epoll::EventFlags::RDHUP, watch.kind != Kind::Datagram);
    flags
}

/// What `poll` is asked for, to confirm these conditions.
fn asked_of(events: Events) -> PollFlags {
    let mut asked = PollFlags::empty();
    asked.set(PollFlags::IN, events.contains(Events::IN));
    asked.set(PollFlags::OUT, events.contains(Events::OUT));
    asked.set(PollFlags::RDHUP, events.contains(Events::HANGUP));
    asked
}

/// The conditions that `poll` found.
fn state(number: &PollFd<'_>, kind: Kind) -> Events {
    let found = number.revents();
    let mut seen = epoll::EventFlags::empty();
    seen.set(epoll::EventFlags::IN, found.contains(PollFlags::IN));
    seen.set(epoll::EventFlags::OUT, found.contains(PollFlags::OUT));
    seen.set(epoll::EventFlags::RDHUP, found.contains(PollFlags::RDHUP));
    seen.set(epoll::EventFlags::HUP, found.contains(PollFlags::HUP));
    seen.set(epoll::EventFlags::ERR, found.contains(PollFlags::ERR));
    conditions(seen, kind)
}

/// What `poll` is to look for.
pub(super) fn poll_flags(watch: &Watch) -> PollFlags {
    let mut flags = PollFlags::empty();
    flags.set(PollFlags::IN, watch.filter.contains(EventFilter::IN));
    flags.set(PollFlags::OUT, watch.filter.contains(EventFilter::OUT));
    flags.set(PollFlags::RDHUP, watch.kind != Kind::Datagram);
    flags
}

/// The contract's conditions, out of what the kernel says.
pub(super) fn conditions(seen: epoll::EventFlags, kind: Kind) -> Events {
    use epoll::EventFlags as Seen;

    if Seen::IN.union(Seen::OUT).contains(seen) {
        let mut events = Events::empty();
        events.set(Events::IN, seen.contains(Seen::IN));
        events.set(Events::OUT, seen.contains(Seen::OUT));
        return events;
    }
    let failed = seen.contains(Seen::ERR);
    let hung_up = seen.contains(Seen::HUP);
    if is_unconnected(seen, kind) {
        return Events::empty();
    }
    let mut events = Events::empty();
    events.set(Events::IN, seen.contains(Seen::IN));
    events.set(Events::ERR, failed);
    match kind {
        Kind::Stream | Kind::LocalStream => {
            // A connect that failed, or a connection that was reset, counts as writable.
            events.set(
                Events::OUT,
                seen.contains(Seen::OUT) && !(failed && hung_up),
            );
            events.set(Events::HANGUP, seen.intersects(Seen::RDHUP | Seen::HUP));
        }
        Kind::Datagram => events.set(Events::OUT, seen.contains(Seen::OUT)),
    }
    events
}

/// Whether this is a stream that neither is, nor was, nor tried to be connected. The kernel calls it
/// hung up, and writable.
pub(super) fn is_unconnected(seen: epoll::EventFlags, kind: Kind) -> bool {
    use epoll::EventFlags as Seen;

    kind != Kind::Datagram && seen & (Seen::HUP | Seen::RDHUP | Seen::ERR) == Seen::HUP
}

/// A time for the kernel. The longest that every kernel takes is some weeks; a wait may end early,
/// and the engine waits again.
fn timespec(time: Duration) -> Timespec {
    const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);
    let time = time.min(LONGEST);
    Timespec {
        tv_sec: time.as_secs() as i64,
        tv_nsec: time.subsec_nanos().into(),
    }
}

pub(super) fn call_error(error: Errno) -> Error {
    match error {
        Errno::MFILE | Errno::NFILE => Error::TooManyOpenFiles,
        Errno::NOMEM => Error::OutOfMemory,
        Errno::NOSYS => Error::BackendUnavailable,
        other => Error::Os(other.raw_os_error()),
    }
}

fn refusal(error: Errno) -> RegistrationError {
    match error {
        Errno::BADF | Errno::NOTSOCK => RegistrationError::NotASocket,
        Errno::NOMEM | Errno::NOBUFS => RegistrationError::OutOfMemory,
        Errno::NOSPC => RegistrationError::LimitReached,
        other => RegistrationError::Os(other.raw_os_error()),
    }
}

fn watch_error(error: Errno) -> WatchError {
    match error {
        // The number is not in the set, is closed, or stands for a file that cannot be in one.
        Errno::NOENT | Errno::BADF | Errno::PERM => WatchError::Unknown,
        other => WatchError::Refused(refusal(other)),
    }
}

/// Memory for the reports of one wait.
#[derive(Default)]
pub(crate) struct Buffer {
    events: Vec<epoll::Event>,
    reports: Vec<Report>,
    /// Which of them are answers of the ring to requests for more than one condition.
    several: Vec<usize>,
    /// Sockets for `poll`.
    numbers: Vec<PollFd<'static>>,
    seen: Vec<Events>,
    woken: bool,
    alarmed: bool,
}

// SAFETY: an event may hold a pointer, which is why it is not `Send` by itself. Here it never does.
unsafe impl Send for Buffer {}

impl Buffer {
    /// Forget all.
    fn begin(&mut self) {
        self.woken = false;
        self.alarmed = false;
        self.reports.clear();
        self.several.clear();
        self.events.clear();
    }

    /// Look what has become true since the ring gave its answers.
    fn bring_up_to_date(&mut self) {
        let Buffer {
            reports,
            several,
            numbers,
            ..
        } = self;
        if several.is_empty() {
            return;
        }
        numbers.clear();
        let all = PollFlags::IN | PollFlags::OUT | PollFlags::RDHUP;
        let sockets = several.iter().map(|&index| reports[index].socket);
        numbers.extend(sockets.map(|it| PollFd::from_borrowed_fd(descriptor(it), all)));
        if poll(numbers, Some(&Timespec::default())).is_err() {
            return;
        }
        for (&index, number) in several.iter().zip(numbers.iter()) {
            let report = &mut reports[index];
            if report.standing == Standing::Good {
                report.events |= state(number, report.kind);
            }
        }
    }

    /// Make reports out of events.
    fn read(&mut self) {
        for event in &self.events {
            let data = event.data.u64();
            if data == WAKE {
                self.woken = true;
                continue;
            }
            if data == ALARM {
                self.alarmed = true;
                continue;
            }
            if data == RING {
                continue;
            }
            let flags = event.flags;
            let kind = KINDS[(data >> KIND_SHIFT & 3) as usize % KINDS.len()];
            self.reports.push(Report {
                socket: data as u32,
                turn: (data >> TURN_SHIFT) as u32 & TURN_MASK,
                kind,
                events: conditions(flags, kind),
                standing: Standing::Good,
                mode: MODES[(data >> MODE_SHIFT) as usize % MODES.len()],
                // When a Unix socket connects, the kernel wakes nobody.
                dormant: kind == Kind::LocalStream && is_unconnected(flags, kind),
            });
        }
    }
}

impl ReportBuffer for Buffer {
    fn reports(&self) -> &[Report] {
        &self.reports
    }

    fn seen(&self) -> &[Events] {
        &self.seen
    }

    fn woken(&self) -> bool {
        self.woken
    }

    fn alarmed(&self) -> bool {
        self.alarmed
    }
}
