//! What is armed follows what is wanted: the only place where the system is told.

use super::backend::{ArmError, Backend, Interest, Outcome, Rearm};
use super::register::refusal;
use super::table::State;
use super::{Core, Engine, Guard, Scratch};
use crate::{Registration, RegistrationError};

/// What became of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HandedOver {
    /// All is armed.
    Armed,
    /// Some are ready, all others are armed.
    Ready,
    /// Some are not armed, and have to be dealt with before anybody waits for them.
    Failed,
}

impl<B: Backend> Engine<B> {
    /// Have the system watch what was just [wanted](Self::want), with the lock held.
    pub(super) fn arm(
        &self,
        core: &mut Core<B>,
        interest: &Interest,
        is_new: bool,
    ) -> Result<(), ArmError> {
        self.backend.arm(interest, is_new).inspect_err(|_| {
            if let Some(slot) = core.table.slot(interest.socket) {
                slot.state = State::Disabled;
                slot.armed = None;
            }
            self.wanted.withdraw(interest.socket);
        })
    }

    /// Have the system stop watching a registration that is to be disabled or removed.
    pub(super) fn disarm(&self, core: &mut Core<B>, socket: u32) -> Result<(), RegistrationError> {
        let Some(slot) = core.table.live(socket) else {
            self.backend.identify(socket)?;
            return Err(RegistrationError::NotFound);
        };
        let is_same = match slot.armed {
            None => self.is_same_socket(socket)?,
            Some(_) => {
                // Whoever arms it at this moment sees that it is not wanted any more.
                self.wanted.withdraw(socket);
                slot.armed = None;
                match self.backend.disarm(socket) {
                    Ok(()) => true,
                    Err(ArmError::Stale) => false,
                    Err(ArmError::Refused(error)) => return Err(error),
                }
            }
        };
        if is_same {
            return Ok(());
        }
        self.forget(core, socket);
        self.backend.identify(socket)?;
        Err(RegistrationError::NotFound)
    }

    /// Arm what this call has yet to arm, with the lock held: something that follows in the batch comes
    /// after it.
    pub(super) fn flush_rearms(
        &self,
        core: &mut Core<B>,
        scratch: &mut Scratch<B>,
        batch: &mut [Registration<'_>],
    ) {
        for rearm in scratch.rearms.drain(..) {
            if let Err(error) = self.backend.arm(&rearm.interest, false) {
                self.rearm_failed(core, &rearm, error, batch);
            }
        }
    }

    /// Arm what this call has yet to arm, with the lock released meanwhile.
    pub(super) fn rearm<'a>(
        &'a self,
        core: Guard<'a, B>,
        scratch: &mut Scratch<B>,
        batch: &mut [Registration<'_>],
    ) -> Guard<'a, B> {
        if scratch.rearms.is_empty() {
            return core;
        }
        drop(core);
        self.hand_over(scratch);
        let mut core = self.lock();
        self.take_outcomes(&mut core, scratch, batch);
        core
    }

    /// The first half of that, without the lock.
    pub(super) fn hand_over(&self, scratch: &mut Scratch<B>) -> HandedOver {
        if scratch.rearms.is_empty() {
            return HandedOver::Armed;
        }
        let Scratch { memory, rearms, .. } = scratch;
        self.backend.rearm(&self.wanted, memory, rearms);
        // What is done needs no more attention.
        rearms.retain(|rearm| rearm.outcome != Outcome::Armed);
        let is_ready = |rearm: &Rearm| matches!(rearm.outcome, Outcome::Ready(_));
        match rearms.is_empty() {
            true => HandedOver::Armed,
            false if rearms.iter().all(is_ready) => HandedOver::Ready,
            false => HandedOver::Failed,
        }
    }

    /// The second half, with the lock.
    pub(super) fn take_outcomes(
        &self,
        core: &mut Core<B>,
        scratch: &mut Scratch<B>,
        batch: &mut [Registration<'_>],
    ) {
        for rearm in scratch.rearms.drain(..) {
            if core.closed {
                continue;
            }
            let socket = rearm.interest.socket;
            match rearm.outcome {
                Outcome::Armed => {}
                Outcome::Ready(events) => {
                    let Core { table, queue, .. } = core;
                    let slot = table.slot(socket);
                    // Unless another thread has had it since.
                    if let Some(slot) = slot.filter(|slot| {
                        slot.state == State::Enabled && slot.generation == rearm.generation
                    }) {
                        queue.notify(slot, socket, events & slot.wanted());
                    }
                }
                Outcome::Withdrawn => {
                    // By another thread, to which the socket seemed to be closed: so it is another one.
                    let entry = &mut batch[rearm.entry as usize];
                    let slot = core.table.slot(socket);
                    if slot.is_some_and(|slot| slot.state == State::Vacant) && !entry.owned {
                        entry.result = self.enable(core, socket, entry);
                    }
                }
                Outcome::Failed(error) => self.rearm_failed(core, &rearm, error, batch),
            }
        }
    }

    /// The system would not arm this again.
    #[cold]
    fn rearm_failed(
        &self,
        core: &mut Core<B>,
        rearm: &Rearm,
        error: ArmError,
        batch: &mut [Registration<'_>],
    ) {
        let entry = &mut batch[rearm.entry as usize];
        let socket = rearm.interest.socket;
        let slot = core.table.live(socket);
        let Some(slot) = slot.filter(|slot| slot.generation == rearm.generation) else {
            // Another thread has changed it since, and armed it for itself.
            return;
        };
        entry.result = match error {
            // The socket that was registered is closed, and this is another.
            ArmError::Stale if !entry.owned => self.enable_new(core, socket, entry),
            error => {
                slot.state = State::Disabled;
                Err(refusal(error))
            }
        };
    }
}
