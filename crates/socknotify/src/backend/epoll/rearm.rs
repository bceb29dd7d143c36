//! Re-arming a batch.

use std::sync::atomic::{AtomicU32, Ordering};

use super::{Epoll, Memory, conditions, sys};
use crate::engine::{Followed, Interest, Outcome, Readiness, Rearm, Wanted};

/// Whether to `poll` one-shot registrations before they are armed.
///
/// If they are ready already, one `poll` finds that for all, and they need not be armed. If data come later, for
/// instance from clients that wait for their answers, the `poll` is wasted. So the results of recent polls decide.
#[derive(Debug)]
pub(super) struct PollPolicy {
    /// While it is not 0, a batch is polled.
    credit: AtomicU32,
    /// Batches since the last one that was polled.
    skipped: AtomicU32,
}

impl Default for PollPolicy {
    fn default() -> Self {
        PollPolicy {
            credit: AtomicU32::new(Self::FULL),
            skipped: AtomicU32::new(0),
        }
    }
}

impl PollPolicy {
    /// The minimum number of sockets, if their numbers could stand for others: then each one that is ready takes
    /// another call to check.
    const AT_LEAST: usize = 4;
    /// After a poll that found many ready.
    const FULL: u32 = 8;
    /// While there is no credit, one in this many batches is polled.
    const TRY: u32 = 32;

    fn polls(&self) -> bool {
        if self.credit.load(Ordering::Relaxed) > 0 {
            return true;
        }
        // Two threads that count at the same time may count once.
        let skipped = self.skipped.load(Ordering::Relaxed) + 1;
        self.skipped.store(skipped % Self::TRY, Ordering::Relaxed);
        skipped == Self::TRY
    }

    /// Learn from the result of a poll.
    fn learn(&self, ready: usize, sockets: usize) {
        let credit = match ready * 2 >= sockets {
            true => Self::FULL,
            false => self.credit.load(Ordering::Relaxed).saturating_sub(1),
        };
        self.credit.store(credit, Ordering::Relaxed);
    }
}

impl Epoll {
    pub(super) fn rearm_batch(&self, wanted: &Wanted, memory: &mut Memory, batch: &mut [Rearm]) {
        let mut silent = 0;
        let mut kept = 0;
        let mut is_worthwhile = false;
        for rearm in &*batch {
            silent += usize::from(rearm.is_silent);
            kept += usize::from(rearm.is_armed);
            is_worthwhile |= rearm.is_silent && rearm.is_owned;
        }
        is_worthwhile |= silent >= PollPolicy::AT_LEAST;
        let polls_silent = is_worthwhile && self.policy.polls();
        if !polls_silent && kept == 0 {
            for rearm in batch {
                self.arm_again(wanted, rearm);
            }
            return;
        }
        let polls = &mut memory.polls;
        polls.clear();
        polls.extend(batch.iter().map(|rearm| {
            let is_polled = rearm.is_armed || polls_silent && rearm.is_silent;
            conditions::question(&rearm.interest, is_polled)
        }));
        let is_known = sys::poll_now(polls).is_ok();
        let mut ready = 0;
        for (rearm, poll) in batch.iter_mut().zip(&*polls) {
            let Interest { socket, .. } = rearm.interest;
            match conditions::answer(poll, &rearm.interest, is_known) {
                // A poll only knows the number.
                Readiness::Ready(events) if rearm.is_owned || self.is_armed(socket) == Ok(true) => {
                    ready += usize::from(rearm.is_silent);
                    rearm.outcome = Outcome::Ready(events);
                }
                Readiness::NotReady if rearm.is_armed => {}
                _ => self.arm_again(wanted, rearm),
            }
        }
        if polls_silent {
            self.policy.learn(ready, silent);
        }
    }

    fn arm_again(&self, wanted: &Wanted, rearm: &mut Rearm) {
        let followed = wanted.follow(&rearm.interest, |interest| self.arm_late(interest));
        rearm.outcome = match followed {
            Followed::Done(Ok(())) | Followed::Changed => Outcome::Armed,
            Followed::Done(Err(error)) => Outcome::Failed(error),
            Followed::Withdrawn => Outcome::Withdrawn,
        };
    }
}
