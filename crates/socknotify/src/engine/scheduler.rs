//! Places and waiting threads: who runs, who waits, and whom to wake.
//!
//! A thread needs one of the port's *places* to take packets. It keeps the place while it handles them, and while it
//! waits in the backend for the next: it *polls*. So a thread that comes back for more changes nothing that others
//! share but the number of those who poll. A thread without a place is *parked*; so is one that finds enough others
//! polling.
//!
//! Two rules keep every packet moving:
//!
//! 1. While packets are queued and a place is free, or its holder polls, a thread is on its way to them.
//! 2. While a thread is parked and nobody polls, a parked thread is on its way to the backend, or one has the *watch*: it
//!    wakes from time to time, and looks at those who run ([`super::watch`]).
//!
//! Whoever breaks a rule mends it: [`Scheduler::settle`] names the thread to wake. Threads wake one after the other as
//! long as there is work and a place for it, and one packet does not wake two threads.
//!
//! The counts that both sides of the lock need are in one atomic word, the [`Gate`].

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::sync::{AtomicU64, Condvar};

/// How many threads hold a place and how many poll, with what threads need to know of those that are parked.
#[derive(Debug)]
pub(super) struct Gate(AtomicU64);

const HOLDER: u64 = 1;
const POLLER: u64 = 1 << 24;
const COUNT: u64 = POLLER - 1;

/// More places than threads.
pub(super) const UNLIMITED: usize = COUNT as usize / 2;

/// One bit of the [`Gate`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Flag(u64);

impl Flag {
    /// A thread is parked, and not released.
    pub(super) const PARKED: Flag = Flag(1 << 48);
    /// A thread that was parked is released, and does not run yet.
    pub(super) const RELEASED: Flag = Flag(1 << 49);
    /// A thread that waits has the watch.
    pub(super) const WATCHED: Flag = Flag(1 << 50);
    /// A thread that polls is being woken.
    pub(super) const WAKE_DUE: Flag = Flag(1 << 51);
    /// Another loop watches the port itself.
    pub(super) const EXPOSED: Flag = Flag(1 << 52);
    pub(super) const CLOSED: Flag = Flag(1 << 53);
    /// The watch is on its way to a thread that polls, which is being woken.
    pub(super) const WATCH_DUE: Flag = Flag(1 << 55);
    /// Threads were found to have left their places, and may go on.
    pub(super) const LEFT: Flag = Flag(1 << 54);
    /// The backend has refused to arm something that was armed before. It is tried again.
    pub(super) const REFUSED: Flag = Flag(1 << 56);
}

/// The [`Gate`] at one moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load(u64);

impl Load {
    /// Threads that hold a place: those that poll, and those that run with packets in hand. There may be too many,
    /// after one has returned from blocking.
    #[inline]
    pub(super) fn holders(self) -> usize {
        (self.0 & COUNT) as usize
    }

    /// Threads that wait in the backend.
    #[inline]
    pub(super) fn pollers(self) -> usize {
        ((self.0 / POLLER) & COUNT) as usize
    }

    /// The same without one of those who poll.
    pub(super) fn without_poller(self) -> Self {
        Load(self.0 - POLLER)
    }

    #[inline]
    pub(super) fn has(self, flag: Flag) -> bool {
        self.0 & flag.0 != 0
    }

    /// Whether a thread has packets in hand, and a place.
    #[inline]
    pub(super) fn does_anyone_run(self) -> bool {
        self.holders() > self.pollers()
    }

    /// Whether nobody has the watch: nor does it come to anybody, if it is on its way to one that polls and none does.
    #[inline]
    pub(super) fn is_unwatched(self) -> bool {
        !self.has(Flag::WATCHED) || self.has(Flag::WATCH_DUE) && self.pollers() == 0
    }
}

impl Gate {
    pub(super) fn new() -> Self {
        Gate(AtomicU64::new(0))
    }

    #[inline]
    pub(super) fn load(&self) -> Load {
        // The model checker has one order of all that is sequentially consistent for such operations only.
        match cfg!(interleavings) {
            true => self.latest(),
            false => Load(self.0.load(Ordering::SeqCst)),
        }
    }

    /// The same, in the order in which it was changed: a thread that polls after this sees what this thread did before.
    fn latest(&self) -> Load {
        Load(self.0.fetch_or(0, Ordering::SeqCst))
    }

    /// Take a place, if one is free.
    #[inline]
    pub(super) fn take_place(&self, places: usize) -> bool {
        self.change(|load| load.holders() < places, HOLDER)
    }

    /// Leave a place if more threads run than there are places. True if it was left.
    pub(super) fn leave_excess(&self, places: usize) -> bool {
        self.change(|load| load.holders() > places, HOLDER.wrapping_neg())
    }

    fn change(&self, may: impl Fn(Load) -> bool, by: u64) -> bool {
        let mut load = self.load();
        while may(load) {
            let next = load.0.wrapping_add(by);
            match self
                .0
                .compare_exchange(load.0, next, Ordering::SeqCst, Ordering::SeqCst)
            {
                Ok(_) => return true,
                Err(other) => load = Load(other),
            }
        }
        false
    }

    /// A thread has a place again that it had left, also if there is none.
    pub(super) fn return_place(&self) {
        self.0.fetch_add(HOLDER, Ordering::SeqCst);
    }

    /// A place is left. Returns what is so now.
    pub(super) fn leave_place(&self) -> Load {
        Load(self.0.fetch_sub(HOLDER, Ordering::SeqCst) - HOLDER)
    }

    /// A thread that has a place is about to poll. Returns what was so before.
    #[inline]
    pub(super) fn begin_polling(&self) -> Load {
        Load(self.0.fetch_add(POLLER, Ordering::SeqCst))
    }

    /// It has returned. Returns what is so now.
    #[inline]
    pub(super) fn end_polling(&self) -> Load {
        Load(self.0.fetch_sub(POLLER, Ordering::SeqCst) - POLLER)
    }

    pub(super) fn set(&self, flag: Flag, is_set: bool) {
        match is_set {
            true => self.0.fetch_or(flag.0, Ordering::SeqCst),
            false => self.0.fetch_and(!flag.0, Ordering::SeqCst),
        };
    }

    /// Take the watch, if nobody has it: for this thread or a parked one, or for one that polls and is to be woken.
    pub(super) fn take_watch(&self, is_due: bool) -> bool {
        let mut load = self.load();
        while load.is_unwatched() {
            let due = if is_due { Flag::WATCH_DUE.0 } else { 0 };
            let next = load.0 & !Flag::WATCH_DUE.0 | Flag::WATCHED.0 | due;
            match self
                .0
                .compare_exchange(load.0, next, Ordering::SeqCst, Ordering::SeqCst)
            {
                Ok(_) => return true,
                Err(other) => load = Load(other),
            }
        }
        false
    }

    /// The thread that has the watch gives it up. Returns what is so now.
    pub(super) fn end_watch(&self) -> Load {
        let watch = Flag::WATCHED.0 | Flag::WATCH_DUE.0;
        Load(self.0.fetch_and(!watch, Ordering::SeqCst) & !watch)
    }

    /// This thread has got the wake-up for one that polls. True if the watch came with it.
    pub(super) fn take_wake(&self) -> bool {
        let due = Flag::WAKE_DUE.0 | Flag::WATCH_DUE.0;
        Load(self.0.fetch_and(!due, Ordering::SeqCst)).has(Flag::WATCH_DUE)
    }

    /// Set a flag. False if it was set before.
    pub(super) fn raise(&self, flag: Flag) -> bool {
        self.0.fetch_or(flag.0, Ordering::SeqCst) & flag.0 == 0
    }
}

/// What a parked thread waits in. No two threads have the same.
pub(super) type Parker = Arc<Condvar>;

/// Whom to wake, once the lock is released.
#[derive(Debug)]
#[must_use]
pub(super) enum Wake {
    Nobody,
    /// The parked thread in this parker.
    Parked(Parker),
    /// A thread that polls.
    Polling,
}

/// What decides whether a parked thread polls or watches while others run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Policy {
    /// It polls, if a place is free.
    pub(super) is_eager: bool,
    /// It watches, also if no place is free: one may be left.
    pub(super) detects: bool,
}

/// The threads that are parked.
#[derive(Debug)]
pub(super) struct Scheduler {
    places: usize,
    /// Oldest first.
    parked: Vec<Parker>,
    /// Threads that were parked and released, and do not run yet.
    released: Vec<Parker>,
    /// The parked thread that has the watch, also after it was released.
    watcher: Option<Parker>,
    /// Those that nobody waits in.
    idle: Vec<Parker>,
}

impl Scheduler {
    pub(super) fn new(places: usize) -> Self {
        Scheduler {
            places,
            parked: Vec::new(),
            released: Vec::new(),
            watcher: None,
            idle: Vec::new(),
        }
    }

    /// How many threads are parked, or were released and do not run yet.
    pub(super) fn waiting(&self) -> usize {
        self.parked.len() + self.released.len()
    }

    /// A thread parks. It waits in the parker that this returns.
    pub(super) fn park(&mut self, gate: &Gate) -> Parker {
        let parker = self.idle.pop().unwrap_or_default();
        self.parked.push(Parker::clone(&parker));
        gate.set(Flag::PARKED, true);
        parker
    }

    pub(super) fn is_released(&self, parker: &Parker) -> bool {
        self.released.iter().any(|it| Arc::ptr_eq(it, parker))
    }

    pub(super) fn is_watcher(&self, parker: &Parker) -> bool {
        let watcher = self.watcher.as_ref();
        watcher.is_some_and(|it| Arc::ptr_eq(it, parker))
    }

    /// A thread that has the watch parks with it.
    pub(super) fn set_watcher(&mut self, parker: &Parker) {
        self.watcher = Some(Parker::clone(parker));
    }

    /// The oldest parked thread gets the watch, if nobody has it.
    pub(super) fn give_watch(&mut self, gate: &Gate) -> Wake {
        match self.parked.first() {
            Some(oldest) if gate.take_watch(false) => {
                self.watcher = Some(Parker::clone(oldest));
                Wake::Parked(Parker::clone(oldest))
            }
            _ => Wake::Nobody,
        }
    }

    /// The parked thread that has the watch gives it up. Returns what is so then.
    pub(super) fn end_watch(&mut self, gate: &Gate) -> Load {
        self.watcher = None;
        gate.end_watch()
    }

    /// A parked thread goes on, released or not. True if it has the watch.
    pub(super) fn unpark(&mut self, gate: &Gate, parker: Parker) -> bool {
        let has_watch = self.is_watcher(&parker);
        if has_watch {
            self.watcher = None;
        }
        self.parked.retain(|it| !Arc::ptr_eq(it, &parker));
        self.released.retain(|it| !Arc::ptr_eq(it, &parker));
        self.idle.push(parker);
        self.publish(gate);
        has_watch
    }

    fn publish(&self, gate: &Gate) {
        gate.set(Flag::PARKED, !self.parked.is_empty());
        gate.set(Flag::RELEASED, !self.released.is_empty());
    }

    /// Release the newest parked thread.
    pub(super) fn release(&mut self, gate: &Gate) -> Wake {
        let Some(parker) = self.parked.pop() else {
            return Wake::Nobody;
        };
        self.released.push(Parker::clone(&parker));
        self.publish(gate);
        Wake::Parked(parker)
    }

    /// Whether a place is free, and no thread is on its way to it.
    pub(super) fn is_place_free(&self, load: Load) -> bool {
        load.holders() + self.released.len() < self.places
    }

    /// Release a thread for a place that was found to be free.
    pub(super) fn release_for_place(&mut self, gate: &Gate) -> Wake {
        match self.is_place_free(gate.load()) {
            true => self.release(gate),
            false => Wake::Nobody,
        }
    }

    /// Whom to wake, if one of the two rules requires it.
    pub(super) fn settle(&mut self, gate: &Gate, queued: usize, policy: Policy) -> Wake {
        let load = gate.latest();
        // Without one that polls, the wake-up is for whoever polls next.
        let is_woken = load.has(Flag::WAKE_DUE) && load.pollers() > 0;
        let wakes = self.released.len() + usize::from(is_woken);
        let is_free = self.is_place_free(load);
        if queued > wakes {
            if load.pollers() > 0 {
                return self.wake_polling(gate);
            }
            if is_free && !self.parked.is_empty() {
                return self.release(gate);
            }
        }
        if load.pollers() == 0 && self.released.is_empty() && !self.parked.is_empty() {
            if is_free && (policy.is_eager || load.holders() == 0) {
                return self.release(gate);
            }
            if is_free || policy.detects {
                return self.give_watch(gate);
            }
        }
        Wake::Nobody
    }

    /// Wake a thread that polls, unless one is being woken.
    pub(super) fn wake_polling(&self, gate: &Gate) -> Wake {
        match gate.raise(Flag::WAKE_DUE) {
            true => Wake::Polling,
            false => Wake::Nobody,
        }
    }

    /// Whether [`settle`](Self::settle) may have something to do, as far as can be told without the lock.
    #[inline]
    pub(super) fn may_have_to_settle(
        load: Load,
        places: usize,
        queued: usize,
        policy: Policy,
    ) -> bool {
        if queued > 0 && (load.pollers() > 0 || load.has(Flag::PARKED) || load.has(Flag::EXPOSED)) {
            return true;
        }
        if !load.has(Flag::PARKED) || load.pollers() > 0 || load.has(Flag::RELEASED) {
            return false;
        }
        let is_free = load.holders() < places;
        let is_poller_missing = is_free && (policy.is_eager || load.holders() == 0);
        is_poller_missing || load.is_unwatched() && (is_free || policy.detects)
    }

    /// All parked threads, to wake because the port is closed.
    pub(super) fn parkers(&self) -> Vec<Parker> {
        self.parked.clone()
    }
}

/// Up to this time per packet it pays to wait for the running thread: a few times what it takes to wake another.
pub(super) const QUICK: Duration = Duration::from_micros(15);
