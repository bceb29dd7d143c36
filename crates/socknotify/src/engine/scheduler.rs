//! Places and waiting threads.
//!
//! A thread that has dequeued packets holds one of the port's *places*. A thread that begins to wait
//! while a place is free *polls*: it waits in the backend, where the system wakes it when a socket
//! becomes ready. A thread is *parked* if all places are taken when it begins to wait, or when the backend wakes it,
//! or if as many threads poll already as [may](Backend::waiters).
//!
//! Two rules keep every packet moving:
//!
//! 1. While packets wait and a place is free, a waiting thread is on its way to them.
//! 2. While a thread is parked and a place is free, other threads wait in the backend: as many as places are free, or
//!    as [may](Backend::waiters) ([`WakePolicy::Eager`]); or one, which polls or watches ([`WakePolicy::Bounded`]).
//!
//! With the second policy one thread *watches* while others run. It sleeps for a short time, and again as long as
//! another thread dequeues in that time. If none has, it asks the backend itself. If the backend has nothing, and no
//! thread dequeues the next time either, it polls.
//!
//! A change that breaks one of the rules calls [`Scheduler::release`], which names the thread to wake. A thread
//! that returns with packets, or stops waiting, calls it too. So threads wake one after the other as long as
//! there is work and a place for it, and one packet does not wake two threads.
//!
//! Threads are released last in, first out. The system does that among the polling threads, the stack among the
//! parked ones. Between the two, a thread that returns from polling while a newer one waits leaves the packet to
//! that one ([`Scheduler::precedence`]).

use std::sync::Arc;
use std::time::Duration;

#[cfg(doc)]
use super::backend::Backend;
use super::sync::Condvar;
use crate::WakePolicy;

/// A thread's position in the order of arrival. Higher is newer.
pub(super) type Arrival = u64;

/// A waiting thread that does not poll.
#[derive(Debug)]
struct Parked {
    arrival: Arrival,
    parker: Arc<Condvar>,
}

/// Whom to wake, once the lock is released.
#[derive(Debug)]
#[must_use]
pub(super) enum Wake {
    Nobody,
    /// The parked thread in this parker.
    Parked(Arc<Condvar>),
    /// The newest thread that polls.
    Polling,
}

/// A thread that polls.
#[derive(Debug)]
struct Polling {
    arrival: Arrival,
    /// It began to poll after newer ones, and so is woken before them.
    is_ahead: bool,
    /// It sleeps until something comes. Otherwise it only takes what is there.
    sleeps: bool,
}

/// How a thread waits if it finds no packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// In the backend.
    Poll,
    /// Parked, for this long at a time.
    Watch(Duration),
    /// Parked.
    Park,
}

/// What a thread that is awake does if newer ones wait.
#[derive(Debug)]
pub(super) enum Precedence {
    /// It goes first.
    Own,
    /// It leaves the queue to a newer one, and waits again.
    Newer(Wake),
    /// The same, but it does not poll: it would be woken again.
    NewerPolling(Wake),
}

/// Up to this time per packet it pays to wait for the running thread: a few times what it takes to wake another.
const QUICK: Duration = Duration::from_micros(15);

/// One in this many calls that take packets is timed.
const SAMPLED: u32 = 8;

/// Who runs, who waits, and who comes next.
#[derive(Debug)]
pub(super) struct Scheduler {
    policy: WakePolicy,
    places: usize,
    /// How many threads hold a place. There may be too many, after one returned from blocking.
    pub(super) running: usize,
    /// How many threads may poll at once.
    pollers: usize,
    arrivals: Arrival,
    /// The number of times that packets were taken, modulo 2^32.
    pub(super) taken: u32,
    /// One of the parked threads watches.
    pub(super) is_watched: bool,
    /// How long it took recently to handle a packet.
    handling: Duration,
    /// Threads that poll, oldest first.
    polling: Vec<Polling>,
    /// Threads that were parked and released, and have not run since.
    released: Vec<Arrival>,
    /// Parked threads, oldest first.
    parked: Vec<Parked>,
    /// Whether a polling thread is being woken.
    is_wake_due: bool,
    /// Condition variables that nobody waits on.
    idle_parkers: Vec<Arc<Condvar>>,
}

impl Scheduler {
    pub(super) fn new(places: usize, pollers: usize, policy: WakePolicy) -> Self {
        Scheduler {
            policy,
            places,
            pollers,
            running: 0,
            arrivals: 0,
            taken: 0,
            is_watched: false,
            handling: Duration::ZERO,
            polling: Vec::new(),
            released: Vec::new(),
            parked: Vec::new(),
            is_wake_due: false,
            idle_parkers: Vec::new(),
        }
    }

    /// How many threads sleep, or have been woken and do not run yet.
    pub(super) fn waiting(&self) -> usize {
        let sleeping = self.polling.iter().filter(|thread| thread.sleeps);
        sleeping.count() + self.released.len() + self.parked.len()
    }

    /// Whether a thread is in a call that dequeues.
    pub(super) fn is_anyone_here(&self) -> bool {
        !(self.polling.is_empty() && self.released.is_empty() && self.parked.is_empty())
    }

    /// Whether a thread may run with packets in hand.
    pub(super) fn has_place(&self) -> bool {
        self.running < self.places
    }

    /// Whether one more thread may wait in the backend.
    pub(super) fn may_poll(&self) -> bool {
        self.has_place() && self.polling.len() < self.pollers
    }

    pub(super) fn is_anyone_polling(&self) -> bool {
        !self.polling.is_empty()
    }

    /// How a thread waits that has watched this many times in a row while no thread dequeued.
    pub(super) fn way(&self, idle: u32) -> Way {
        if !self.may_poll() {
            return Way::Park;
        }
        match self.policy {
            WakePolicy::Eager => Way::Poll,
            WakePolicy::Bounded(_) if self.running == 0 || !self.is_quick() => Way::Poll,
            WakePolicy::Bounded(_) if self.is_listened_to() => Way::Park,
            WakePolicy::Bounded(_) if idle > 1 => Way::Poll,
            WakePolicy::Bounded(time) => Way::Watch(time),
        }
    }

    /// Whether a thread polls or watches, or is about to.
    fn is_listened_to(&self) -> bool {
        self.is_anyone_polling() || !self.released.is_empty() || self.is_watched
    }

    /// Packets are taken. True if the time to handle them should be measured.
    pub(super) fn on_taken(&mut self) -> bool {
        self.taken = self.taken.wrapping_add(1);
        // The model checker knows no time.
        !cfg!(interleavings) && self.policy != WakePolicy::Eager && self.taken % SAMPLED == 0
    }

    /// A packet took this long to handle.
    pub(super) fn on_handled(&mut self, time: Duration) {
        // A very long time counts no more than a long one.
        let time = time.min(QUICK * 8);
        self.handling = (self.handling * 7 + time) / 8;
    }

    /// Whether handling a packet takes no longer than waking a thread for it.
    fn is_quick(&self) -> bool {
        self.handling <= QUICK
    }

    /// A thread begins to wait.
    pub(super) fn arrive(&mut self) -> Arrival {
        self.arrivals += 1;
        self.arrivals
    }

    /// Whether a thread that came later polls.
    pub(super) fn is_newer_polling(&self, arrival: Arrival) -> bool {
        self.newest_polling() > Some(arrival)
    }

    pub(super) fn begin_polling(&mut self, arrival: Arrival, sleeps: bool) {
        let index = self
            .polling
            .partition_point(|other| other.arrival < arrival);
        let is_ahead = index < self.polling.len();
        let thread = Polling {
            arrival,
            is_ahead,
            sleeps,
        };
        self.polling.insert(index, thread);
    }

    /// A thread has returned from polling; `woken` if because of the wake-up. Returns whether it was woken before newer
    /// ones that are still waiting.
    pub(super) fn end_polling(&mut self, arrival: Arrival, woken: bool) -> bool {
        if woken {
            self.is_wake_due = false;
        }
        let mut polling = self.polling.iter();
        let Some(index) = polling.position(|other| other.arrival == arrival) else {
            return false;
        };
        let thread = self.polling.remove(index);
        thread.is_ahead && index < self.polling.len()
    }

    /// A thread parks. It waits in the parker that this returns.
    pub(super) fn park(&mut self, arrival: Arrival) -> Arc<Condvar> {
        let parker = self
            .idle_parkers
            .pop()
            .unwrap_or_else(|| Arc::new(Condvar::new()));
        let index = self.parked.partition_point(|other| other.arrival < arrival);
        self.parked.insert(
            index,
            Parked {
                arrival,
                parker: Arc::clone(&parker),
            },
        );
        parker
    }

    /// Whether a thread that parked has been released since.
    pub(super) fn is_released(&self, arrival: Arrival) -> bool {
        self.released.contains(&arrival)
    }

    /// A parked thread continues, released or not.
    pub(super) fn unpark(&mut self, arrival: Arrival, parker: Arc<Condvar>) {
        self.parked.retain(|other| other.arrival != arrival);
        self.released.retain(|&other| other != arrival);
        self.idle_parkers.push(parker);
    }

    /// Release a thread, if one of the two rules requires it.
    #[inline]
    pub(super) fn release(&mut self, packets: usize) -> Wake {
        match self.parked.is_empty() && self.polling.is_empty() {
            true => Wake::Nobody,
            false => self.release_waiting(packets),
        }
    }

    fn release_waiting(&mut self, packets: usize) -> Wake {
        let on_the_way = self.on_the_way();
        if packets > on_the_way && self.running + on_the_way < self.places {
            if self.newest_parked() > self.newest_polling() {
                return self.release_parked();
            }
            if self.is_anyone_polling() && !self.is_wake_due {
                return self.wake_polling();
            }
        }
        let is_short = match self.policy {
            WakePolicy::Eager => {
                let alert = self.polling.len() + self.released.len();
                self.running + alert < self.places && alert < self.pollers
            }
            WakePolicy::Bounded(_) => self.has_place() && !self.is_listened_to(),
        };
        match is_short && !self.parked.is_empty() {
            true => self.release_parked(),
            false => Wake::Nobody,
        }
    }

    /// Who goes first: the thread that is awake, or a newer one that waits.
    ///
    /// A packet is only passed on to the newest thread of all. If it were passed to any newer one, two threads could
    /// pass it back and forth, past a third.
    pub(super) fn precedence(
        &mut self,
        arrival: Arrival,
        was_ahead: bool,
        packets: usize,
    ) -> Precedence {
        if packets == 0 || !self.has_place() {
            return Precedence::Own;
        }
        let newer = |other: &&Arrival| **other > arrival;
        if packets <= self.released.iter().filter(newer).count() {
            return Precedence::Newer(Wake::Nobody);
        }
        let newest = self.newest_polling().max(Some(arrival));
        if self.newest_parked() > newest {
            return Precedence::Newer(self.release_parked());
        }
        // If it was not woken before the newer ones, they are returning with packets too.
        if newest == Some(arrival) || !was_ahead {
            return Precedence::Own;
        }
        Precedence::NewerPolling(self.wake_polling())
    }

    fn newest_polling(&self) -> Option<Arrival> {
        self.polling.last().map(|newest| newest.arrival)
    }

    fn newest_parked(&self) -> Option<Arrival> {
        self.parked.last().map(|newest| newest.arrival)
    }

    /// Wake the newest thread that polls, unless one is being woken.
    pub(super) fn wake_polling(&mut self) -> Wake {
        match std::mem::replace(&mut self.is_wake_due, true) {
            false => Wake::Polling,
            true => Wake::Nobody,
        }
    }

    /// Threads that were woken and have not run since.
    fn on_the_way(&self) -> usize {
        self.released.len() + usize::from(self.is_wake_due)
    }

    fn release_parked(&mut self) -> Wake {
        match self.parked.pop() {
            Some(Parked { arrival, parker }) => {
                self.released.push(arrival);
                Wake::Parked(parker)
            }
            None => Wake::Nobody,
        }
    }

    /// All parked threads, to wake because the port is closed.
    pub(super) fn parkers(&self) -> Vec<Arc<Condvar>> {
        self.parked
            .iter()
            .map(|parked| Arc::clone(&parked.parker))
            .collect()
    }
}

#[cfg(all(test, not(interleavings)))]
mod tests {
    use super::*;

    #[test]
    fn a_packet_is_handed_on_to_the_newest_thread_of_all() {
        let mut scheduler = Scheduler::new(2, usize::MAX, WakePolicy::Eager);
        let [oldest, parked, newest] = [(); 3].map(|()| scheduler.arrive());
        scheduler.begin_polling(newest, true);
        let _parker = scheduler.park(parked);
        // It is the last to begin, so it is woken first.
        scheduler.begin_polling(oldest, true);
        let was_ahead = scheduler.end_polling(oldest, false);
        assert!(was_ahead);
        let precedence = scheduler.precedence(oldest, was_ahead, 1);
        assert!(matches!(
            precedence,
            Precedence::NewerPolling(Wake::Polling)
        ));
    }
}
