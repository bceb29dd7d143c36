//! The port, for systems whose kernel has none.
//!
//! No system call is made here. [`Backend`] names what the engine needs of a system; the implementations are in
//! `crate::backend`.
//!
//! ```text
//! process ── register ──► table ──► rearm, wanted ──► backend: arm, rearm, disarm
//!    │                                                   │
//!    └───── dequeue ◄──── queue ◄──── reports ◄──────────┘ wait
//!              │
//!          scheduler: who may run, who waits where, whom to wake
//! ```
//!
//! One lock guards table, queue and scheduler. It is not held while a thread waits, nor while a batch is
//! re-armed.

mod backend;
mod dequeue;
mod interest;
mod owned;
mod place;
mod queue;
mod rearm;
mod register;
mod reports;
mod scheduler;
mod sync;
mod table;
mod wanted;

#[cfg(all(test, interleavings))]
mod interleavings;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

pub(crate) use self::backend::{
    Backend, DESCRIPTOR, Kept, Outcome, Readiness, Rearm, Report, Reports, Validity, Wait,
};
pub(crate) use self::interest::{ArmError, Interest, Mode};
#[cfg(all(target_os = "linux", not(kqueue_stand_in)))]
pub(crate) use self::interest::{GENERATIONS, word};
#[cfg(all(unix, any(kqueue_stand_in, not(target_os = "linux"))))]
pub(crate) use self::reports::is_newer;
pub(crate) use self::wanted::{Followed, Wanted};

use self::owned::RearmPolicy;
use self::place::{Places, Stay};
use self::queue::Queue;
use self::scheduler::{Scheduler, Wake};
use self::sync::{Mutex, MutexGuard};
use self::table::Table;
use crate::sys::{Owner, Process};
use crate::{Entry, Error, Registration, Snapshot, WakePolicy};

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
    wanted: Wanted,
    core: Mutex<Core<B>>,
}

/// What the lock guards.
struct Core<B: Backend> {
    table: Table,
    queue: Queue,
    scheduler: Scheduler,
    /// Counts the times that a registration was enabled.
    generation: u32,
    /// How sockets that the port owns are armed.
    rearm_policy: RearmPolicy,
    /// How many calls in a row returned what they had armed, without asking the backend for more.
    unasked: u8,
    /// Memory that no call uses at the moment.
    scratch: Vec<Box<Scratch<B>>>,
    /// The packet to queue when the backend's alarm goes off.
    alarm: Entry,
    /// Another loop watches the port itself.
    exposed: bool,
    closed: bool,
}

/// Memory of one call.
struct Scratch<B: Backend> {
    memory: B::Memory,
    reports: Reports,
    /// What this call re-arms, and has not passed to the backend yet.
    rearms: Vec<Rearm>,
    /// A connection could not be armed. Its owner has to be notified in any case.
    has_failed_owned: bool,
    /// Sockets to check.
    interests: Vec<Interest>,
    readiness: Vec<Readiness>,
}

impl<B: Backend> Scratch<B> {
    fn new() -> Box<Self> {
        Box::new(Scratch {
            memory: B::Memory::default(),
            reports: Reports::default(),
            rearms: Vec::with_capacity(16),
            has_failed_owned: false,
            interests: Vec::new(),
            readiness: Vec::new(),
        })
    }
}

impl<B: Backend> Core<B> {
    fn take_scratch(&mut self) -> Box<Scratch<B>> {
        self.scratch.pop().unwrap_or_else(Scratch::new)
    }

    /// Whom to wake after a change.
    fn release(&mut self) -> Wake {
        if self.closed {
            return Wake::Nobody;
        }
        if self.exposed && self.queue.len() > 0 && !self.scheduler.is_anyone_here() {
            return self.scheduler.wake_polling();
        }
        self.scheduler.release(self.queue.len())
    }
}

type Guard<'a, B> = MutexGuard<'a, Core<B>>;

impl<B: Backend> Engine<B> {
    pub(crate) fn new(backend: B, places: usize, wake_policy: WakePolicy) -> Self {
        static PORTS: AtomicU32 = AtomicU32::new(1);
        let id = PORTS.fetch_add(1, Ordering::Relaxed);
        let scheduler = Scheduler::new(places, backend.waiters(), wake_policy);
        Engine {
            id,
            backend,
            process: Process::this(),
            owner: Owner::new(id),
            places,
            wake_policy,
            wanted: Wanted::new(),
            core: Mutex::new(Core {
                table: Table::new(),
                queue: Queue::default(),
                scheduler,
                generation: 0,
                rearm_policy: RearmPolicy::default(),
                unasked: 0,
                scratch: Vec::new(),
                alarm: Entry::default(),
                exposed: false,
                closed: false,
            }),
        }
    }

    /// The backend, for its system-specific methods.
    #[allow(dead_code, reason = "not every backend can do more")]
    pub(crate) fn backend(&self) -> &B {
        &self.backend
    }

    fn lock(&self) -> Guard<'_, B> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lock, if the port can be used.
    fn enter(&self) -> Result<Guard<'_, B>, Error> {
        // After a fork, a thread that this process does not have may hold the lock.
        if !self.process.is_this() {
            return Err(Error::OtherProcess);
        }
        let core = self.lock();
        if core.closed {
            return Err(Error::Closed);
        }
        Ok(core)
    }

    fn wake(&self, wake: Wake) {
        match wake {
            Wake::Nobody => {}
            Wake::Parked(parker) => parker.notify_one(),
            Wake::Polling => {
                // There is no time to set.
                let _ = self.backend.wake(None);
            }
        }
    }

    /// Release the lock, and wake the threads that are due.
    fn leave(&self, mut core: Guard<'_, B>) {
        let wake = core.release();
        drop(core);
        self.wake(wake);
        self.backend.flush(&self.wanted);
    }

    pub(crate) fn process(
        self: &Arc<Self>,
        registrations: &mut [Registration<'_>],
        entries: &mut [Entry],
        timeout: Option<Duration>,
    ) -> Result<usize, Error> {
        if entries.is_empty() {
            let mut core = self.enter()?;
            let mut scratch = core.take_scratch();
            self.apply(&mut core, &mut scratch, registrations);
            core = self.rearm(core, &mut scratch, registrations);
            core.scratch.push(scratch);
            self.leave(core);
            return Ok(0);
        }
        if !self.process.is_this() {
            return Err(Error::OtherProcess);
        }
        let (had_place, stay) = place::vacate(self.id);
        let handling = stay.map(Stay::for_each);
        let mut core = self.lock();
        if had_place {
            core.scheduler.running -= 1;
        }
        if let Some(time) = handling {
            core.scheduler.on_handled(time);
        }
        if core.closed {
            return Err(Error::Closed);
        }
        let mut scratch = core.take_scratch();
        let borrowed = self.apply(&mut core, &mut scratch, registrations);
        self.dequeue(core, scratch, registrations, borrowed, entries, timeout)
    }

    /// Queue packets, and do something more before the thread that dequeues them wakes.
    pub(crate) fn post(
        &self,
        entries: &[Entry],
        before_waking: impl FnOnce(),
    ) -> Result<(), Error> {
        self.queue(entries.iter().copied().map(Entry::posted), before_waking)
    }

    /// Put packets that were dequeued before ahead of what is queued.
    pub(crate) fn requeue(&self, entries: &[Entry]) -> Result<(), Error> {
        let mut core = self.enter()?;
        core.queue.prepend(entries);
        self.leave(core);
        Ok(())
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
        self.fetch_before_packet(&mut core);
        core.queue.extend(entries);
        let wake = core.release();
        drop(core);
        before_waking();
        self.wake(wake);
        Ok(())
    }

    pub(crate) fn close(&self) {
        let Ok(mut core) = self.enter() else { return };
        core.closed = true;
        // Before another port can register the sockets.
        self.backend.close();
        for socket in core.table.sockets() {
            self.wanted.withdraw(socket);
            self.owner.release(socket);
        }
        core.table = Table::new();
        core.queue.clear();
        let parkers = core.scheduler.parkers();
        drop(core);
        for parker in parkers {
            parker.notify_one();
        }
        // Each woken thread wakes the next.
        self.wake(Wake::Polling);
    }

    pub(crate) fn concurrency(&self) -> usize {
        self.places
    }

    pub(crate) fn wake_policy(&self) -> WakePolicy {
        self.wake_policy
    }

    /// In a forked child the port has nothing.
    pub(crate) fn snapshot(&self) -> Snapshot {
        if !self.process.is_this() {
            return Snapshot {
                registrations: Some(0),
                queued: 0,
                running: Some(0),
                waiting: 0,
                is_watched: false,
            };
        }
        let core = self.lock();
        Snapshot {
            registrations: Some(core.table.len()),
            queued: core.queue.len(),
            running: Some(core.scheduler.running),
            waiting: core.scheduler.waiting(),
            is_watched: core.scheduler.is_watched,
        }
    }

    /// Give this thread's place back, if it holds one.
    pub(crate) fn give_place_back(&self) {
        if place::take_back(self.id) {
            self.on_place_left();
        }
    }

    /// Lend this thread's place, if it holds one, until the returned value is dropped.
    pub(crate) fn lend_place(&self) -> LentPlace<'_, B> {
        let lent = place::take_back(self.id);
        if lent {
            self.on_place_left();
        }
        LentPlace { engine: self, lent }
    }
}

impl<B: Backend> Places for Engine<B> {
    fn on_place_left(&self) {
        if self.process.is_this() {
            let mut core = self.lock();
            core.scheduler.running -= 1;
            self.leave(core);
        }
    }
}

/// A place that is lent to another thread.
pub(crate) struct LentPlace<'a, B: Backend> {
    engine: &'a Engine<B>,
    lent: bool,
}

impl<B: Backend> Drop for LentPlace<'_, B> {
    fn drop(&mut self) {
        if self.lent && self.engine.process.is_this() {
            let mut core = self.engine.lock();
            if place::restore(self.engine.id) {
                core.scheduler.running += 1;
            }
        }
    }
}
