//! [`Scheduler`]: the parked threads, and whom to wake.
//!
//! Two rules keep every packet moving. Whoever may break one calls [`Scheduler::settle`], which names the thread to wake:
//!
//! 1. While packets are queued, one thread is on its way to them ([`Flag::WAKING`]), if one polls, or if one is parked and a
//!    permit is free. It takes what it has room for, and settles again: so threads wake one after the other, as long as there
//!    is work and a permit for it, and one packet does not wake two threads.
//! 2. While a thread is parked and nobody polls, a parked thread is released to poll, if a permit is free and nobody runs, or
//!    the policy is eager. Otherwise one is the *watcher* ([`Flag::WATCHED`], [`super::watch`]), if watching helps: a permit is
//!    free, or the limit may rise. Where one gets free while it sleeps until the next sample, it is woken.

use std::sync::Arc;

use super::gate::{Flag, Gate, Load};
use crate::support::sync::Condvar;

/// What a parked thread waits in. Each thread has its own.
pub(in crate::engine) type Parker = Arc<Condvar>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Parked,
    Watching,
    /// It has a permit, and counts as polling, since then.
    Released,
}

/// Whom to wake, once the lock is released.
#[derive(Debug)]
#[must_use]
pub(in crate::engine) enum Wake {
    Nobody,
    /// The parked thread in this parker.
    Parked(Parker),
    /// A thread that polls.
    Polling,
}

/// What decides whom to wake.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct Rules {
    /// How many threads may hold a permit at this moment.
    pub(in crate::engine) limit: usize,
    /// How many may poll.
    pub(in crate::engine) pollers: usize,
    /// A free permit is polled in, whoever runs.
    pub(in crate::engine) is_eager: bool,
    /// The limit may rise.
    pub(in crate::engine) adapts: bool,
}

impl Rules {
    fn is_free(&self, load: Load) -> bool {
        load.taken() < self.limit
    }

    /// Whether the watcher sleeps for longer than it may, since a permit is free by now.
    fn sleeps_too_long(&self, load: Load) -> bool {
        load.has(Flag::SAMPLES) && self.is_free(load)
    }

    /// Whether a parked thread is to poll, while nobody does.
    fn is_poller_missing(&self, load: Load) -> bool {
        self.is_free(load) && (self.is_eager || load.running() == 0)
    }

    /// Whether the watcher can help, while nobody polls.
    pub(super) fn watching_helps(&self, load: Load) -> bool {
        self.is_free(load) || self.adapts && !load.has(Flag::EXPOSED)
    }

    /// Whether [`Scheduler::settle`] may have something to do, as far as can be told without the lock.
    #[inline]
    pub(in crate::engine) fn may_have_to_settle(&self, load: Load, queued: usize) -> bool {
        if queued > 0 && (load.polling() > 0 || load.has(Flag::PARKED) || load.has(Flag::EXPOSED)) {
            return true;
        }
        load.has(Flag::PARKED)
            && load.polling() == 0
            && (self.is_poller_missing(load)
                || self.sleeps_too_long(load)
                || !load.has(Flag::WATCHED) && self.watching_helps(load))
    }
}

/// The threads that are parked, the newest last.
#[derive(Debug, Default)]
pub(in crate::engine) struct Scheduler {
    parked: Vec<(Parker, State)>,
}

impl Scheduler {
    pub(super) fn park(&mut self, gate: &Gate, parker: &Parker) {
        self.parked.push((Parker::clone(parker), State::Parked));
        gate.raise(Flag::PARKED);
    }

    /// It continues, released or not. Returns whether it was.
    pub(super) fn unpark(&mut self, gate: &Gate, parker: &Parker) -> bool {
        let Some(index) = self.position(parker) else {
            return false;
        };
        let (_, state) = self.parked.remove(index);
        if state == State::Watching {
            gate.lower(Flag::WATCHED);
        }
        self.publish(gate);
        state == State::Released
    }

    fn position(&self, parker: &Parker) -> Option<usize> {
        self.parked.iter().position(|it| Arc::ptr_eq(&it.0, parker))
    }

    /// What a thread does. `None` if it is not parked.
    pub(super) fn state(&self, parker: &Parker) -> Option<State> {
        Some(self.parked[self.position(parker)?].1)
    }

    fn publish(&self, gate: &Gate) {
        if self.parked.iter().all(|it| it.1 == State::Released) {
            gate.lower(Flag::PARKED);
        }
    }

    /// How many threads are parked, without those that are released.
    pub(in crate::engine) fn parked(&self) -> usize {
        let parked = self.parked.iter();
        parked.filter(|it| it.1 != State::Released).count()
    }

    /// Release the newest parked thread, if a permit is free: it takes what is queued, and then polls.
    pub(super) fn release(&mut self, gate: &Gate, rules: &Rules) -> Wake {
        let mut parked = self.parked.iter_mut();
        let Some(newest) = parked.rfind(|it| it.1 != State::Released) else {
            return Wake::Nobody;
        };
        if !gate.take_to_poll(rules.limit, rules.pollers) {
            return Wake::Nobody;
        }
        if std::mem::replace(&mut newest.1, State::Released) == State::Watching {
            gate.lower(Flag::WATCHED);
        }
        let parker = Parker::clone(&newest.0);
        self.publish(gate);
        Wake::Parked(parker)
    }

    /// The oldest parked thread becomes the watcher, if there is none.
    fn give_watch(&mut self, gate: &Gate) -> Wake {
        match self.parked.iter_mut().find(|it| it.1 == State::Parked) {
            Some(oldest) if gate.raise(Flag::WATCHED) => {
                oldest.1 = State::Watching;
                Wake::Parked(Parker::clone(&oldest.0))
            }
            _ => Wake::Nobody,
        }
    }

    /// The watcher stops watching: another thread polls, or it cannot help. It continues if that is not so any more.
    pub(super) fn end_watch(&mut self, gate: &Gate, parker: &Parker, rules: &Rules) {
        let Some(index) = self.position(parker) else {
            return;
        };
        self.parked[index].1 = State::Parked;
        let load = gate.lower(Flag::WATCHED);
        if load.polling() == 0 && rules.watching_helps(load) && gate.raise(Flag::WATCHED) {
            self.parked[index].1 = State::Watching;
        }
    }

    /// Whom to wake, if one of the two rules requires it.
    pub(in crate::engine) fn settle(&mut self, gate: &Gate, queued: usize, rules: &Rules) -> Wake {
        let load = gate.latest();
        // Without a thread that polls, the wake-up before was for whoever polls next.
        if queued > 0 && !(load.has(Flag::WAKING) && load.polling() > 0) {
            // Where nobody is here, the loop that watches the port is woken.
            let is_left = load.has(Flag::EXPOSED) && !load.has(Flag::PARKED);
            if load.polling() > 0 || is_left && !load.has(Flag::WAKING) {
                gate.raise(Flag::WAKING);
                return Wake::Polling;
            }
            let wake = self.release(gate, rules);
            if let Wake::Parked(_) = wake {
                gate.raise(Flag::WAKING);
                return wake;
            }
        }
        if load.polling() > 0 || !load.has(Flag::PARKED) {
            return Wake::Nobody;
        }
        if rules.is_poller_missing(load) {
            let wake = self.release(gate, rules);
            if let Wake::Parked(_) = wake {
                return wake;
            }
        }
        if rules.sleeps_too_long(load) {
            gate.lower(Flag::SAMPLES);
            let mut parked = self.parked.iter();
            if let Some((watcher, _)) = parked.find(|it| it.1 == State::Watching) {
                return Wake::Parked(Parker::clone(watcher));
            }
        }
        match rules.watching_helps(load) {
            true => self.give_watch(gate),
            false => Wake::Nobody,
        }
    }

    /// All parked threads, to wake because the port is closed.
    pub(in crate::engine) fn parkers(&self) -> Vec<Parker> {
        self.parked.iter().map(|it| Parker::clone(&it.0)).collect()
    }
}

#[cfg(all(test, not(interleavings)))]
mod tests {
    use super::*;

    fn of_two_permits() -> (Gate, Scheduler, Rules) {
        let rules = Rules {
            limit: 2,
            pollers: 2,
            is_eager: false,
            adapts: true,
        };
        (Gate::new(), Scheduler::default(), rules)
    }

    /// A thread that polled was woken for a packet, and came back with a report: a parked thread takes the packet at once, and does
    /// not only watch.
    #[test]
    fn f5_a_wake_up_for_a_thread_that_polls_no_more_keeps_no_packet() {
        let (gate, mut scheduler, rules) = of_two_permits();
        assert!(gate.take(rules.limit));
        gate.begin_polling();
        scheduler.park(&gate, &Parker::default());
        assert!(matches!(scheduler.settle(&gate, 1, &rules), Wake::Polling));
        gate.end_polling();
        let wake = scheduler.settle(&gate, 1, &rules);
        assert!(
            matches!(&wake, Wake::Parked(parker) if scheduler.state(parker) == Some(State::Released))
        );
        assert_eq!(gate.load().polling(), 1);
        // It is on its way.
        assert!(matches!(scheduler.settle(&gate, 1, &rules), Wake::Nobody));
    }

    /// A ready socket would wait for the rest of a sleep that began when no permit was free.
    #[test]
    fn f5_a_watcher_that_sleeps_until_the_next_sample_is_woken_when_a_permit_is_free() {
        let (gate, mut scheduler, rules) = of_two_permits();
        assert!(gate.take(rules.limit) && gate.take(rules.limit));
        scheduler.park(&gate, &Parker::default());
        let wake = scheduler.settle(&gate, 0, &rules);
        assert!(
            matches!(&wake, Wake::Parked(parker) if scheduler.state(parker) == Some(State::Watching))
        );
        gate.raise(Flag::SAMPLES);
        assert!(!rules.may_have_to_settle(gate.load(), 0));
        assert!(rules.may_have_to_settle(gate.leave(), 0));
        let wake = scheduler.settle(&gate, 0, &rules);
        assert!(
            matches!(&wake, Wake::Parked(parker) if scheduler.state(parker) == Some(State::Watching))
        );
        // Once is enough.
        assert!(!rules.may_have_to_settle(gate.load(), 0));
        assert!(matches!(scheduler.settle(&gate, 0, &rules), Wake::Nobody));
    }
}
