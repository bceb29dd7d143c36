//! Arming a batch again.

use std::sync::atomic::{AtomicU32, Ordering};

use super::{Epoll, Memory, conditions};
use crate::engine::{Backend, Followed, Outcome, Readiness, Rearm, Wanted};

/// Whether one-shot registrations are worth a `poll` before they are armed.
///
/// If they are ready already, one `poll` finds that for all, and they need not be armed. If data come later,
/// as they do from clients that wait for their answers, it costs something and finds nothing. So what recent
/// polls have found decides.
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
    /// How many sockets there have to be, if their numbers could stand for others: then one more call for
    /// each that is ready has to tell.
    const AT_LEAST: usize = 4;
    /// After a poll that found many ready.
    const FULL: u32 = 8;
    /// While there is no credit, one in so many batches is polled.
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

    /// What a poll has found.
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
        let silent = batch.iter().filter(|it| it.is_silent);
        let silent = silent.count();
        let is_worthwhile =
            silent >= PollPolicy::AT_LEAST || batch.iter().any(|it| it.is_silent && it.is_owned);
        let polls_silent = is_worthwhile && self.policy.polls();
        let is_polled = |rearm: &&mut Rearm| rearm.is_armed || polls_silent && rearm.is_silent;
        if polls_silent || batch.iter().any(|it| it.is_armed) {
            // Those that are not polled stay unknown, and are armed below.
            let mut ready = 0;
            memory.indices.clear();
            let polled = batch.iter_mut().enumerate();
            let polled = polled.filter(|(_, rearm)| is_polled(rearm));
            memory.indices.extend(polled.map(|(index, _)| index as u32));
            let indices = std::mem::take(&mut memory.indices);
            let mut found = std::mem::take(&mut memory.readiness);
            found.clear();
            let interests = indices.iter().map(|&index| &batch[index as usize].interest);
            conditions::poll(memory, interests, |_, readiness| found.push(readiness));
            for (&index, &readiness) in indices.iter().zip(&found) {
                let rearm = &mut batch[index as usize];
                let (socket, generation) = (rearm.interest.socket, rearm.interest.generation);
                rearm.readiness = match readiness {
                    // A poll goes by the number alone.
                    Readiness::Ready(_)
                        if !rearm.is_owned
                            && self.is_armed(wanted, socket, generation) != Ok(true) =>
                    {
                        Readiness::Unknown
                    }
                    readiness => readiness,
                };
                ready +=
                    usize::from(rearm.is_silent && matches!(rearm.readiness, Readiness::Ready(_)));
            }
            if polls_silent {
                self.policy.learn(ready, silent);
            }
            memory.indices = indices;
            memory.readiness = found;
        }
        for rearm in batch {
            rearm.outcome = match rearm.readiness {
                Readiness::Ready(events) => Outcome::Ready(events),
                Readiness::NotReady if rearm.is_armed => Outcome::Armed,
                _ => match wanted.follow(&rearm.interest, |interest| self.arm(interest, false)) {
                    Followed::Told(Ok(())) | Followed::Changed => Outcome::Armed,
                    Followed::Told(Err(error)) => Outcome::Failed(error),
                    Followed::Withdrawn => Outcome::Withdrawn,
                },
            };
        }
    }
}
