//! Timers that belong to no connection.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::owned::OperationId;
use crate::owned::slot::connections::{Connections, drop_all};
use crate::owned::time::deadlines::Deadlines;
use crate::support::slots::{Slots, Token};

/// Identifies a timer of a port. It is not reused before 2³¹ others were made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TimerId(pub(in crate::owned) Token);

/// The timers of a port.
pub(in crate::owned) struct Timers<M>(Slots<Option<Timer<M>>>);

struct Timer<M> {
    /// When it is due, in ticks.
    at: u64,
    action: Action<M>,
}

/// Makes a message for each period. It runs the caller's code: with no other lock.
pub(in crate::owned) type Make<M> = Mutex<Maker<dyn FnMut() -> M + Send>>;

pub(in crate::owned) struct Maker<F: ?Sized> {
    /// How many were in the queue when the last message was made: that one stands for them.
    pub(in crate::owned) late: usize,
    pub(in crate::owned) make: F,
}

/// What to do when a timer is due.
pub(in crate::owned) enum Action<M> {
    Send(M),
    /// Once per period, next at this time.
    SendEvery(Arc<Make<M>>, Duration, Instant),
    EndDrain,
    /// Cancel an operation on a file.
    Expire(OperationId),
}

impl<M> Timers<M> {
    pub(in crate::owned) fn new() -> Self {
        Timers(Slots::new())
    }

    /// Drop all of them.
    pub(in crate::owned) fn clear(&self) {
        let tokens: Vec<_> = self.0.iter_named().map(|(token, _)| token).collect();
        drop_all(tokens.into_iter().map(|token| self.0.remove(token)));
    }

    /// Set a timer. Returns the action if the port is closed, or there is no room for one more.
    pub(in crate::owned) fn set<T>(
        &self,
        connections: &Connections<T>,
        deadlines: &Deadlines,
        time: Instant,
        action: Action<M>,
    ) -> Result<TimerId, Action<M>> {
        if connections.is_closed() {
            return Err(action);
        }
        let Some(token) = self.0.insert(None) else {
            return Err(action);
        };
        match self.0.get(token) {
            Some(mut slot) if !connections.is_closed() => {
                let at = deadlines.ticks_until(time);
                *slot = Some(Timer { at, action });
                // Still with the slot locked, so that it cannot be due before.
                deadlines.set_timer(connections, token.index, at);
                Ok(TimerId(token))
            }
            slot => {
                drop(slot);
                self.0.remove(token);
                Err(action)
            }
        }
    }

    /// False if it has ended.
    pub(in crate::owned) fn cancel(&self, deadlines: &Deadlines, TimerId(token): TimerId) -> bool {
        let Some(mut slot) = self.0.get(token) else {
            return false;
        };
        let timer = slot.take();
        if timer.is_some() {
            // Still with the slot locked, so that no other timer has the index.
            deadlines.unset_timer(token.index);
            drop(slot);
            self.0.remove(token);
        }
        timer.is_some()
    }

    /// These indices are due, for the present timers or earlier ones. Returns what to do.
    pub(in crate::owned) fn ring<T>(
        &self,
        connections: &Connections<T>,
        deadlines: &Deadlines,
        due: Vec<u32>,
    ) -> Vec<Action<M>> {
        let now = deadlines.now();
        let mut actions = Vec::new();
        for index in due {
            let Some(mut slot) = self.0.get_by_index(index) else {
                continue;
            };
            let Some(Timer { action, .. }) = slot.take_if(|timer| timer.at <= now) else {
                continue;
            };
            if let Action::SendEvery(make, period, time) = &action {
                // Missed times are skipped.
                let missed = time.elapsed().as_nanos() / period.as_nanos();
                let missed = u32::try_from(missed).unwrap_or(u32::MAX);
                let next = *time + period.saturating_mul(missed) + *period;
                let at = deadlines.ticks_until(next);
                let action = Action::SendEvery(Arc::clone(make), *period, next);
                *slot = Some(Timer { at, action });
                deadlines.set_timer(connections, index, at);
            } else {
                let token = slot.token(index);
                drop(slot);
                self.0.remove(token);
            }
            actions.push(action);
        }
        actions
    }
}
