//! The port, for systems whose kernel has none.
//!
//! No system call is made here. [`Backend`] names what the engine needs of a system; the implementations are in
//! `crate::backend`. Owned connections use only [`owned`].
//!
//! ```text
//! process ── apply ──► table ──► batch ──► backend: arm, then wait
//!    │                                       │
//!    └──◄── caller's entries ◄── collect ◄───┘ reports
//!                                   ▲
//!            queue (packets) ───────┘        threads: who runs, who waits, whom to wake
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
//! 1. `crate::files`: the ring's locks; `crate::owned`, in this order: the schedule of deadlines and timers, or the listeners
//!    that pause; a timer's slot, or a connection's; or the connections that are left when the port closes, and their slots; or
//!    the list of messages.
//! 2. [`Engine::core`]: the queue, new and ending registrations, parked threads.
//! 3. [`Engine::roster`]: the threads that have dequeued. Never together with `core`.
//! 4. A backend's own locks.
//!
//! The locks of helper threads, and of a listener's list, guard nothing else and are held for a moment.

mod backend;
pub(crate) mod owned;
mod serve;
mod table;
mod threads;

#[cfg(all(test, interleavings))]
pub(crate) mod interleavings;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

pub(crate) use self::backend::{Arm, Backend, DESCRIPTOR, Reports, Wait, Waited};
pub(crate) use self::table::interest::{ArmError, Interest, Mode};
pub(crate) use self::table::{Outcome, Report, Table};
pub(crate) use self::threads::{ThisThread, leave_threads_unnamed};

use self::serve::Caller;
use self::threads::{
    AdaptiveLimit, Flag, Gate, Holder, Levels, Load, Record, Roster, Rules, Scheduler, UNLIMITED,
    Wake,
};
use crate::os::{Fd, Owner, Process};
use crate::support::deadline::Deadline;
use crate::support::sync::{AtomicUsize, Mutex, MutexGuard, lock};
use crate::{Entry, Error, Registration, RegistrationError, SlowThread, Snapshot, WakePolicy};

/// A completion port on top of a backend.
pub(crate) struct Engine<B: Backend> {
    backend: B,
    /// The process that made the port.
    process: Process,
    /// The port's entry in the owners' table.
    owner: Owner,
    concurrency: usize,
    /// How many threads may hold a permit now: the concurrency value, and more while that leaves work undone.
    limit: std::sync::atomic::AtomicUsize,
    /// It may rise.
    adapts: bool,
    wake_policy: WakePolicy,
    table: Table,
    gate: Gate,
    /// The length of the queue.
    queued: AtomicUsize,
    /// How many packets and reports more may come out before the backend is asked.
    skips: AtomicU32,
    /// When the backend was asked last and had no more than there was room for, and when the alarm is due, in microseconds
    /// since the port was made.
    asked: AtomicU64,
    due: AtomicU64,
    /// Whose turn it is if a call has room for one: packets or reports.
    turn: AtomicBool,
    /// Reports of registrations that have ended.
    stale: AtomicU64,
    /// The thread that dequeued last, by the address of its holder; 0 once that has ended, as another one may get the address.
    last: std::sync::atomic::AtomicUsize,
    /// A thread has found nothing to do since the watcher looked last.
    was_idle: AtomicBool,
    /// When a thread that dequeues has taken a sample last, and in what time the watcher takes the next one, in microseconds.
    sampled: AtomicU64,
    pause: AtomicU64,
    made: Instant,
    /// What to call when the limit rises.
    on_raise: OnceLock<Box<dyn Fn() + Send + Sync>>,
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
#[derive(Default)]
struct Core {
    /// The packets that have no kernel behind them.
    queue: VecDeque<Packet>,
    /// Those that do not wait behind others: what has no events behind it either, but a time, or somebody's wish.
    ahead: VecDeque<Packet>,
    /// A call with an odd room has dequeued one more from `ahead`: the next one dequeues one more of the others.
    is_queue_due: bool,
    scheduler: Scheduler,
    /// The number of registrations, including those that are being removed.
    registered: usize,
    /// Registrations to arm again that the backend has refused, with their generations.
    refused: Vec<(Fd, u32)>,
    /// What is queued when [`Engine::due`] has come.
    alarm: Entry,
    closed: bool,
}

impl Core {
    fn queued(&self) -> usize {
        self.ahead.len() + self.queue.len()
    }
}

/// What a thread keeps for its calls.
#[derive(Default)]
struct Scratch<Memory> {
    memory: Memory,
    /// What the call arms.
    batch: Vec<Arm>,
    /// A connection of this call could not be armed: its owner has to be notified in any case.
    has_failed: bool,
    /// Those of them that were to be polled: see [`Polls`](serve::Polls).
    refused: Vec<(usize, RegistrationError)>,
    packets: Vec<Entry>,
    /// Level-triggered registrations that the thread was notified of, which its next call arms.
    levels: Levels,
}

type Guard<'a> = MutexGuard<'a, Core>;

impl<B: Backend> Engine<B> {
    /// `adapts`: the limit of threads that run may exceed the concurrency value.
    pub(crate) fn new(
        backend: B,
        concurrency: usize,
        wake_policy: WakePolicy,
        adapts: bool,
    ) -> Self {
        let adapts = adapts && concurrency < UNLIMITED;
        let limit = adapts.then(|| AdaptiveLimit::new(concurrency));
        Engine {
            process: Process::this(),
            owner: Owner::new(),
            concurrency,
            limit: std::sync::atomic::AtomicUsize::new(concurrency.min(UNLIMITED)),
            adapts,
            wake_policy,
            table: Table::new(),
            gate: Gate::new(),
            queued: AtomicUsize::new(0),
            skips: AtomicU32::new(0),
            asked: AtomicU64::new(0),
            due: AtomicU64::new(serve::collect::NEVER),
            turn: AtomicBool::new(false),
            stale: AtomicU64::new(0),
            last: std::sync::atomic::AtomicUsize::new(0),
            was_idle: AtomicBool::new(false),
            sampled: AtomicU64::new(0),
            pause: AtomicU64::new(0),
            made: Instant::now(),
            on_raise: OnceLock::new(),
            roster: Mutex::new(Roster::new(limit)),
            core: Mutex::new(Core {
                queue: VecDeque::with_capacity(32),
                ..Core::default()
            }),
            backend,
        }
    }

    /// The backend, for its system-specific methods.
    #[cfg_attr(not(windows), allow(dead_code, reason = "for what the system adds"))]
    pub(crate) fn backend(&self) -> &B {
        &self.backend
    }

    /// How many threads may hold a permit now.
    #[inline]
    fn limit(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    /// How many threads may poll.
    #[inline]
    fn pollers(&self) -> usize {
        self.backend.waiters().min(self.concurrency)
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

    /// Whether a further thread polls while others run, if a permit is free.
    #[inline]
    fn is_eager(&self) -> bool {
        self.wake_policy == WakePolicy::Eager || self.limit() > self.concurrency
    }

    #[inline]
    fn rules(&self) -> Rules {
        Rules {
            limit: self.limit(),
            pollers: self.pollers(),
            is_eager: self.is_eager(),
            adapts: self.adapts,
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
        core.scheduler.settle(&self.gate, queued, &self.rules())
    }

    /// Wake the threads that are due, if any may be.
    #[inline]
    fn settle_if_due(&self, load: Load) {
        let queued = self.queued.load(Ordering::SeqCst);
        if self.rules().may_have_to_settle(load, queued) {
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
        let packets = entries.iter().map(|entry| entry.posted().into());
        self.queue(|core| core.queue.extend(packets), before_waking)
    }

    /// Queue a completion of something else. If the port is closed, nobody dequeues it.
    #[cfg_attr(windows, allow(dead_code, reason = "there the system does"))]
    pub(crate) fn complete(&self, entries: &[Entry]) {
        let packets = entries.iter().map(|entry| entry.completion().into());
        let _ = self.queue(|core| core.queue.extend(packets), || {});
    }

    /// Queue a packet that is not to wait behind others, but for those that came before it by this way.
    pub(crate) fn post_ahead(&self, entry: Entry) -> Result<(), Error> {
        self.queue(|core| core.ahead.push_back(entry.into()), || {})
    }

    /// Put packets that were dequeued back at the head of the queue, in this order.
    pub(crate) fn requeue(&self, entries: &[Entry]) -> Result<(), Error> {
        let put_back = |core: &mut Core| {
            for &entry in entries.iter().rev() {
                core.queue.push_front(entry.into());
            }
        };
        self.queue(put_back, || {})
    }

    fn queue(
        &self,
        put: impl FnOnce(&mut Core),
        before_waking: impl FnOnce(),
    ) -> Result<(), Error> {
        let mut core = self.enter()?;
        put(&mut core);
        self.publish_queued(&core);
        let wake = self.settle(&mut core);
        drop(core);
        before_waking();
        self.wake(wake);
        Ok(())
    }

    pub(crate) fn close(&self) {
        let Ok(mut core) = self.enter() else { return };
        core.closed = true;
        self.gate.raise(Flag::CLOSED);
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
        self.concurrency
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
        let threads = lock(&self.roster).busy(one_of);
        // What the system says is read with no lock held.
        threads.iter().map(|it| it.describe()).collect()
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        if !self.process.is_this() {
            return Snapshot {
                registrations: Some(0),
                running: Some(0),
                ..Snapshot::NOTHING
            };
        }
        let rises = lock(&self.roster).rises();
        let core = lock(&self.core);
        let load = self.gate.load();
        Snapshot {
            registrations: Some(core.registered),
            queued: core.queued(),
            running: Some(load.running()),
            waiting: load.polling() + core.scheduler.parked(),
            limit: (self.concurrency < UNLIMITED).then(|| self.limit()),
            rises_asleep: rises.asleep,
            rises_starved: rises.starved,
            stale: self.stale.load(Ordering::Relaxed),
        }
    }

    /// Give this thread's permit back, if it holds one.
    pub(crate) fn give_permit_back(&self) {
        threads::with_current(self, Record::give_back);
    }

    /// Lend this thread's permit, if it holds one, until the returned value is dropped.
    pub(crate) fn lend_permit(&self) -> LentPermit<'_, B> {
        let has_lent = threads::with_current(self, Record::give_back) == Some(true);
        LentPermit {
            engine: has_lent.then_some(self),
        }
    }

    /// The calling thread dequeues for the first time. Returns what others see of it.
    fn join(&self, id: Option<ThreadId>) -> Arc<Holder> {
        let (holder, left) = lock(&self.roster).add(id);
        (0..left).for_each(|_| self.settle_if_due(self.gate.leave()));
        holder
    }

    /// A thread has given its permit back.
    fn on_given_back(&self, scratch: &mut Scratch<B::Memory>) {
        if self.process.is_this() {
            self.arm_levels(scratch);
            self.settle_if_due(self.gate.leave());
        }
    }

    /// A thread has ended.
    fn on_ended(&self, holder: &Arc<Holder>) {
        if self.process.is_this() {
            let (this, order) = (holder.address(), Ordering::Relaxed);
            let _ = self.last.compare_exchange(this, 0, order, order);
            lock(&self.roster).remove(holder);
        }
    }
}

/// A permit that is lent to another thread.
pub(crate) struct LentPermit<'a, B: Backend> {
    engine: Option<&'a Engine<B>>,
}

impl<B: Backend> Drop for LentPermit<'_, B> {
    fn drop(&mut self) {
        if let Some(engine) = self.engine {
            let resume = |record: &mut Record<B>| record.holder.resume_run();
            if engine.process.is_this() && threads::with_current(engine, resume) == Some(true) {
                engine.gate.take_back();
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
        deadline: impl Into<Deadline>,
        caller: Option<Caller<'_>>,
    ) -> Result<usize, Error> {
        if !self.process.is_this() {
            return Err(Error::OtherProcess);
        }
        match entries.is_empty() {
            true => self.register(registrations, caller).map(|()| 0),
            false => self.dequeue(registrations, entries, deadline.into(), caller),
        }
    }
}
