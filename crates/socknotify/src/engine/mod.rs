//! The port, for systems whose kernel has none.
//!
//! No system call is made here. [`Backend`] names what the engine needs of a system; the implementations are in
//! `crate::backend`.
//!
//! ```text
//! process ── apply ──► table ──► batch ──► backend: arm, then wait
//!    │                                       │
//!    └──◄── caller's entries ◄── collect ◄───┘ reports
//!                                   ▲
//!            queue (packets) ───────┘        scheduler, place, watch: who runs, who waits, whom to wake
//! ```
//!
//! Enabling a known registration, waiting, and delivering what the backend reports take no lock: a registration is one
//! atomic word ([`table`]), and the kernel's list is the only queue of ready sockets. The queue here is for what has no
//! kernel behind it: posted packets, completions, REMOVE, and what replaces notifications of owned sockets.
//!
//! # Lock order
//!
//! A thread that holds one of these locks takes only those below it.
//!
//! 1. To take what a worker has dequeued, for others ([`Handover`]).
//! 2. `operations`: the ring's locks (`crate::operations`); `owned`, in this order: a timer's slot, the schedule of
//!    deadlines, a connection's slot; or the connections that are left when the port closes, and their slots; or the list
//!    of messages (`crate::owned`).
//! 3. [`Engine::core`]: the queue, new and ending registrations, parked threads.
//! 4. [`Engine::roster`]: the threads that have dequeued. Never together with `core`.
//! 5. A thread's own lists ([`place::Holder`]).
//! 6. A backend's own locks.
//! 7. The owners' table of the process (`crate::sys`). No system call is made under it.
//!
//! The locks of helper threads, and of a listener's list, guard nothing else and are held for a moment. On Windows' own port,
//! which has no engine, the list of threads that block (`native/keepers.rs`) takes the place of 4.

mod apply;
mod backend;
mod collect;
mod interest;
mod place;
mod scheduler;
pub(crate) mod sync;
mod table;
mod trusted;
mod wait;
mod watch;

#[cfg(all(test, interleavings))]
pub(crate) mod interleavings;

use std::any::Any;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

pub(crate) use self::backend::{
    Arm, Backend, Caller, DESCRIPTOR, Polls, Report, Reports, Wait, Waited,
};
pub(crate) use self::interest::{ArmError, Interest, Mode};
pub(crate) use self::place::leave_threads_unnamed;
pub(crate) use self::table::{Left, Outcome, Table};

use self::place::{Holder, Places, Roster};
use self::scheduler::{Flag, Gate, Load, Policy, QUICK, Scheduler, UNLIMITED, Wake};
use self::sync::{AtomicUsize, Mutex, MutexGuard, lock};
use self::watch::LAST_TICK;
use crate::sys::{Fd, Owner, Process};
use crate::{Entry, Error, Registration, RegistrationError, SlowThread, Snapshot, WakePolicy};

/// A completion port on top of a backend.
pub(crate) struct Engine<B: Backend> {
    /// Different for every port that this process ever has, and never 0.
    id: u32,
    backend: B,
    /// The process that made the port.
    process: Process,
    /// The port's entry in the owners' table.
    owner: Owner,
    places: usize,
    wake_policy: WakePolicy,
    /// Whether to look at threads that have packets in hand: they may block.
    may_look: bool,
    table: Table,
    gate: Gate,
    /// The length of the queue.
    queued: AtomicUsize,
    /// How many more calls in a row may go without asking the backend for reports.
    skips: AtomicU32,
    /// Whose turn it is if a call has room for one: packets or reports.
    turn: AtomicBool,
    /// How long it took recently to handle a packet, in nanoseconds.
    handling: AtomicU32,
    /// Reports of registrations that have ended.
    stale: AtomicU64,
    /// Some threads dequeue into memory that others can reach.
    has_handovers: sync::AtomicBool,
    /// Level-triggered registrations have been delivered.
    has_levels: sync::AtomicBool,
    /// When threads looked at each other last, since `made`, in microseconds.
    looked: AtomicU64,
    made: Instant,
    /// In how many microseconds the thread that had the watch last would have looked: whoever gets it goes on so.
    tick: AtomicU32,
    /// How long it took to detect the last place that was left, in microseconds. 0 if there was none.
    detected_after: AtomicU64,
    /// What to call when threads are found to have left their places.
    when_left: OnceLock<Box<dyn Fn() + Send + Sync>>,
    roster: Mutex<Roster>,
    core: Mutex<Core>,
}

/// Something that waits to be dequeued.
struct Packet {
    entry: Entry,
    /// The registration whose removal this is: its descriptor and generation.
    notified: Option<(Fd, u32)>,
}

impl From<Entry> for Packet {
    fn from(entry: Entry) -> Self {
        Packet {
            entry,
            notified: None,
        }
    }
}

/// What the lock guards.
struct Core {
    /// The packets that have no kernel behind them.
    queue: VecDeque<Packet>,
    /// Those that do not wait behind others: what has no events behind it either, but a time, or somebody's wish.
    ahead: VecDeque<Packet>,
    /// A call has dequeued from `ahead` alone, though there were others: so the next one begins with them.
    is_queue_due: bool,
    scheduler: Scheduler,
    /// The number of registrations, including those that are being removed.
    registered: usize,
    /// Registrations to arm again that the backend has refused, with their generations.
    refused: Vec<(Fd, u32)>,
    alarm: Alarm,
    closed: bool,
}

/// The packet that is to be queued at some time. The backend tells when to look.
#[derive(Default)]
struct Alarm {
    packet: Entry,
    /// `None`: never.
    at: Option<Instant>,
}

impl Core {
    fn queued(&self) -> usize {
        self.ahead.len() + self.queue.len()
    }
}

/// What a thread keeps for its calls.
struct Scratch<B: Backend> {
    memory: B::Memory,
    /// What the call arms.
    batch: Vec<Arm>,
    /// A connection of this call could not be armed: its owner has to be notified in any case.
    has_failed: bool,
    /// Those of them that were to be polled: see [`Polls`].
    refused: Vec<(usize, RegistrationError)>,
    /// Some of the last batch was armed after the backend was asked for reports.
    has_armed_late: bool,
    packets: Vec<Entry>,
    /// Level-triggered registrations that the call delivers, with their generations.
    levels: Vec<(Fd, u32)>,
    /// The address of the handover that the holder has; 0 for none.
    handover: usize,
    /// Counts calls, to time one in several.
    calls: u32,
    /// When packets were taken, and how many, to measure how long it takes to handle them.
    taken: Option<(Instant, u32)>,
}

impl<B: Backend> Default for Scratch<B> {
    fn default() -> Self {
        Scratch {
            memory: B::Memory::default(),
            batch: Vec::new(),
            has_failed: false,
            refused: Vec::new(),
            has_armed_late: false,
            packets: Vec::new(),
            levels: Vec::new(),
            handover: 0,
            calls: 0,
            taken: None,
        }
    }
}

impl<B: Backend> Scratch<B> {
    #[inline]
    fn of(scratch: &mut Option<Box<dyn Any>>) -> &mut Self {
        let scratch = scratch.get_or_insert_with(|| Box::<Self>::default());
        scratch
            .downcast_mut()
            .expect("a port has one kind of backend for ever")
    }

    /// Take over what a worker has to poll.
    #[inline]
    fn add(&mut self, polls: &mut Polls) {
        match self.batch.is_empty() {
            true => std::mem::swap(&mut self.batch, &mut polls.batch),
            false => self.batch.append(&mut polls.batch),
        }
    }
}

type Guard<'a> = MutexGuard<'a, Core>;

impl<B: Backend> Engine<B> {
    pub(crate) fn new(backend: B, places: usize, wake_policy: WakePolicy, detects: bool) -> Self {
        static PORTS: AtomicU32 = AtomicU32::new(1);
        let id = PORTS.fetch_add(1, Ordering::Relaxed);
        Engine {
            id,
            process: Process::this(),
            owner: Owner::new(id),
            places,
            wake_policy,
            may_look: detects,
            table: Table::new(),
            gate: Gate::new(),
            queued: AtomicUsize::new(0),
            skips: AtomicU32::new(0),
            turn: AtomicBool::new(false),
            handling: AtomicU32::new(0),
            stale: AtomicU64::new(0),
            has_handovers: sync::AtomicBool::new(false),
            has_levels: sync::AtomicBool::new(false),
            looked: AtomicU64::new(0),
            made: Instant::now(),
            tick: AtomicU32::new(LAST_TICK.as_micros() as u32),
            detected_after: AtomicU64::new(0),
            when_left: OnceLock::new(),
            roster: Mutex::new(Roster::default()),
            core: Mutex::new(Core {
                queue: VecDeque::with_capacity(32),
                ahead: VecDeque::new(),
                is_queue_due: false,
                scheduler: Scheduler::new(places.min(UNLIMITED)),
                registered: 0,
                refused: Vec::new(),
                alarm: Alarm::default(),
                closed: false,
            }),
            backend,
        }
    }

    /// The backend, for its system-specific methods.
    #[cfg_attr(not(windows), allow(dead_code, reason = "for what the system adds"))]
    pub(crate) fn backend(&self) -> &B {
        &self.backend
    }

    /// The number of places, as far as they are counted.
    #[inline]
    fn limit(&self) -> usize {
        self.places.min(UNLIMITED)
    }

    /// The lock, if the port can be used.
    fn enter(&self) -> Result<Guard<'_>, Error> {
        // After a fork, a thread that this process does not have may hold the lock.
        if !self.process.is_this() {
            return Err(Error::OtherProcess);
        }
        let core = lock(&self.core);
        if core.closed {
            return Err(Error::Closed);
        }
        Ok(core)
    }

    fn wake(&self, wake: Wake) {
        match wake {
            Wake::Nobody => {}
            Wake::Parked(parker) => parker.notify_one(),
            Wake::Polling => self.backend.wake(),
        }
    }

    /// Whether a further thread should poll while others run, rather than watch.
    #[inline]
    fn is_eager(&self) -> bool {
        match self.wake_policy {
            WakePolicy::Eager => true,
            WakePolicy::Bounded(_) => {
                u128::from(self.handling.load(Ordering::Relaxed)) > QUICK.as_nanos()
            }
        }
    }

    /// Threads that have packets in hand may keep something that others need, besides their places.
    #[inline]
    fn keep(&self) -> bool {
        sync::is_set(&self.has_handovers) || sync::is_set(&self.has_levels)
    }

    /// Whether it matters that a thread blocks, and can be seen.
    #[inline]
    fn detects(&self) -> bool {
        self.may_look && (self.places < UNLIMITED || self.keep())
    }

    #[inline]
    fn policy(&self) -> Policy {
        Policy {
            is_eager: self.is_eager(),
            detects: self.detects(),
        }
    }

    /// Release the lock, and wake the threads that are due.
    fn leave(&self, mut core: Guard<'_>) {
        let wake = self.settle(&mut core);
        drop(core);
        self.wake(wake);
    }

    fn settle(&self, core: &mut Core) -> Wake {
        if core.closed {
            return Wake::Nobody;
        }
        let queued = core.queued();
        let wake = core.scheduler.settle(&self.gate, queued, self.policy());
        let load = self.gate.load();
        let is_anyone_here = load.pollers() > 0 || core.scheduler.waiting() > 0;
        match wake {
            Wake::Nobody if load.has(Flag::EXPOSED) && queued > 0 && !is_anyone_here => {
                core.scheduler.wake_polling(&self.gate)
            }
            wake => wake,
        }
    }

    /// Wake the threads that are due, if any may be.
    #[inline]
    fn settle_if_due(&self, load: Load) {
        let queued = self.queued.load(Ordering::SeqCst);
        let is_idle = queued == 0 && !load.has(Flag::PARKED);
        if !is_idle && Scheduler::may_have_to_settle(load, self.limit(), queued, self.policy()) {
            self.leave(lock(&self.core));
        }
    }

    /// Publish the length of the queue.
    fn publish_queued(&self, core: &Core) {
        self.queued.store(core.queued(), Ordering::SeqCst);
    }

    /// Queue packets, and do something more before the thread that dequeues them wakes.
    pub(crate) fn post(
        &self,
        entries: &[Entry],
        before_waking: impl FnOnce(),
    ) -> Result<(), Error> {
        self.queue(entries.iter().copied().map(Entry::posted), before_waking)
    }

    /// Queue a completion of something else. If the port is closed, nobody dequeues it.
    #[cfg_attr(windows, allow(dead_code, reason = "there the system does"))]
    pub(crate) fn complete(&self, entries: &[Entry]) {
        let _ = self.queue(entries.iter().copied().map(Entry::completion), || {});
    }

    fn queue(
        &self,
        entries: impl Iterator<Item = Entry>,
        before_waking: impl FnOnce(),
    ) -> Result<(), Error> {
        let mut core = self.enter()?;
        core.queue.extend(entries.map(Packet::from));
        self.publish_queued(&core);
        let wake = self.settle(&mut core);
        drop(core);
        before_waking();
        self.wake(wake);
        Ok(())
    }

    /// Queue a packet that is not to wait behind others, but for those that came before it by this way.
    pub(crate) fn post_ahead(&self, entry: Entry) -> Result<(), Error> {
        let mut core = self.enter()?;
        core.ahead.push_back(entry.into());
        self.publish_queued(&core);
        self.leave(core);
        Ok(())
    }

    /// Put packets that were dequeued back at the head of the queue, in this order.
    pub(crate) fn requeue(&self, entries: &[Entry]) -> Result<(), Error> {
        let mut core = self.enter()?;
        for &entry in entries.iter().rev() {
            core.queue.push_front(entry.into());
        }
        self.publish_queued(&core);
        self.leave(core);
        Ok(())
    }

    pub(crate) fn close(&self) {
        let Ok(mut core) = self.enter() else { return };
        core.closed = true;
        self.gate.set(Flag::CLOSED, true);
        // Before another port can register the sockets.
        self.backend.close();
        for (fd, slot) in self.table.registered() {
            let _ = slot.change(|word| Some(word.cleared()));
            self.owner.release(fd);
        }
        core.registered = 0;
        core.queue.clear();
        core.ahead.clear();
        self.publish_queued(&core);
        let parkers = core.scheduler.parkers();
        drop(core);
        for parker in parkers {
            parker.notify_one();
        }
    }

    #[inline]
    fn is_closed(&self) -> bool {
        self.gate.load().has(Flag::CLOSED)
    }

    pub(crate) fn concurrency(&self) -> usize {
        self.places
    }

    pub(crate) fn wake_policy(&self) -> WakePolicy {
        self.wake_policy
    }

    /// In a forked child the port has nothing.
    pub(crate) fn slow(
        &self,
        one_of: &mut dyn FnMut(ThreadId, Duration) -> bool,
    ) -> Vec<(SlowThread, Option<usize>)> {
        if !self.process.is_this() {
            return Vec::new();
        }
        let mut threads = lock(&self.roster).busy();
        threads.retain(|it| it.is(one_of));
        // What the system says is read with no lock held.
        threads.iter().filter_map(|it| it.describe()).collect()
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        if !self.process.is_this() {
            return Snapshot {
                registrations: Some(0),
                queued: 0,
                running: Some(0),
                waiting: 0,
                is_watched: false,
                left: Some(0),
                counted_out: Some(0),
                detected_after: None,
                stale: 0,
            };
        }
        let roster = lock(&self.roster);
        let (left, counted_out) = (roster.left(), roster.counted_out());
        drop(roster);
        let core = lock(&self.core);
        let load = self.gate.load();
        let detected_after = self.detected_after.load(Ordering::Relaxed);
        Snapshot {
            registrations: Some(core.registered),
            queued: core.queued(),
            running: Some(load.holders().saturating_sub(load.pollers())),
            waiting: load.pollers() + core.scheduler.waiting(),
            is_watched: load.has(Flag::WATCHED),
            left: Some(left),
            counted_out: Some(counted_out),
            detected_after: (detected_after > 0).then(|| Duration::from_micros(detected_after)),
            stale: self.stale.load(Ordering::Relaxed),
        }
    }

    /// Give this thread's place back, if it holds one.
    pub(crate) fn give_place_back(&self) {
        if let Some((holder, true)) = place::lend(self.id) {
            self.on_left(&holder);
        }
    }

    /// Lend this thread's place, if it holds one, until the returned value is dropped.
    pub(crate) fn lend_place(&self) -> LentPlace<'_, B> {
        let lent = place::lend(self.id);
        if let Some((holder, true)) = &lent {
            self.on_left(holder);
        }
        let lent = lent.map(|(holder, _)| holder);
        LentPlace { engine: self, lent }
    }
}

impl<B: Backend> Places for Engine<B> {
    fn on_left(&self, holder: &Holder) {
        if self.process.is_this() {
            self.flow_on(holder);
            let load = self.gate.leave_place();
            self.settle_if_due(load);
        }
    }

    fn on_ended(&self, holder: &Arc<Holder>) {
        if self.process.is_this() {
            self.arm_levels(holder);
            lock(&self.roster).remove(holder);
        }
    }
}

/// A place that is lent to another thread.
pub(crate) struct LentPlace<'a, B: Backend> {
    engine: &'a Engine<B>,
    lent: Option<Arc<Holder>>,
}

impl<B: Backend> Drop for LentPlace<'_, B> {
    fn drop(&mut self) {
        let Some(holder) = self.lent.take() else {
            return;
        };
        let engine = self.engine;
        if engine.process.is_this() {
            // First the place, which may be found to be left as soon as the thread has it.
            engine.gate.return_place();
            if !place::restore(engine.id, &holder) {
                // Meanwhile it may have looked taken to others.
                engine.settle_if_due(engine.gate.leave_place());
            }
        }
    }
}

impl<B: Backend> Engine<B> {
    /// Apply registrations, and dequeue.
    pub(crate) fn process(
        self: &Arc<Self>,
        registrations: &mut [Registration<'_>],
        entries: &mut [Entry],
        timeout: Option<Duration>,
        caller: Option<Caller<'_>>,
    ) -> Result<usize, Error> {
        if !self.process.is_this() {
            return Err(Error::OtherProcess);
        }
        match entries.is_empty() {
            true => self.register(registrations, caller).map(|()| 0),
            false => self.dequeue(registrations, entries, timeout, caller),
        }
    }
}
