//! What is armed follows what is wanted. This is the only place where sockets are armed.

use super::backend::{Backend, Outcome, Rearm};
use super::interest::{ArmError, Interest, Mode};
use super::table::State;
use super::{Core, Engine, Guard, Scratch};
use crate::{Registration, RegistrationError, Trigger};

/// What became of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HandedOver {
    /// All is armed.
    Armed,
    /// This many are ready; all others are armed.
    Ready(usize),
    /// Some are not armed, and have to be handled before a thread waits for them.
    Failed,
}

impl<B: Backend> Engine<B> {
    /// Arm what was just published in [`Wanted`](super::Wanted), with the lock held.
    pub(super) fn arm(
        &self,
        core: &mut Core<B>,
        interest: &Interest,
        is_new: bool,
    ) -> Result<(), ArmError> {
        let slot = core.table.slot(interest.socket);
        let notifies_initial = interest.mode() == Mode::Edge
            && slot.is_some_and(|slot| slot.trigger.contains(Trigger::INITIAL));
        let armed = match notifies_initial {
            false => self.backend.arm(interest, is_new),
            true => self.arm_initial(core, interest, is_new),
        };
        armed.inspect_err(|_| {
            if let Some(slot) = core.table.slot(interest.socket) {
                slot.state = State::Disabled;
                slot.armed = None;
            }
            self.wanted.withdraw(interest.socket);
        })
    }

    /// Arm edges, and notify what holds already.
    fn arm_initial(
        &self,
        core: &mut Core<B>,
        interest: &Interest,
        is_new: bool,
    ) -> Result<(), ArmError> {
        if !self.backend.arm_initial(interest, is_new)? {
            let mut scratch = core.take_scratch();
            scratch.interests.clear();
            scratch.interests.push(*interest);
            self.merge_what_holds(core, &mut scratch);
            core.scratch.push(scratch);
        }
        Ok(())
    }

    /// Stop watching a registration that will be disabled or removed.
    pub(super) fn disarm(&self, core: &mut Core<B>, socket: u32) -> Result<(), RegistrationError> {
        let Some(slot) = core.table.live(socket) else {
            self.backend.identify(socket)?;
            return Err(RegistrationError::NotFound);
        };
        let is_same = match slot.armed {
            None => self.is_same_socket(socket, false)?,
            Some(_) => {
                // A thread that arms it at this moment sees that it is not wanted any more.
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

    /// Arm what this call has not armed yet, with the lock held, because a later entry of the batch has to come after
    /// it.
    pub(super) fn flush_rearms(
        &self,
        core: &mut Core<B>,
        scratch: &mut Scratch<B>,
        batch: &mut [Registration<'_>],
    ) {
        for rearm in scratch.rearms.drain(..) {
            if let Err(error) = self.backend.arm(&rearm.interest, false) {
                scratch.has_failed_owned |= self.rearm_failed(core, &rearm, error, batch);
            }
        }
    }

    /// Arm what this call has not armed yet, with the lock released meanwhile.
    #[inline]
    pub(super) fn rearm<'a>(
        &'a self,
        core: Guard<'a, B>,
        scratch: &mut Scratch<B>,
        batch: &mut [Registration<'_>],
    ) -> Guard<'a, B> {
        match scratch.rearms.is_empty() {
            true => core,
            false => self.rearm_unlocked(core, scratch, batch),
        }
    }

    fn rearm_unlocked<'a>(
        &'a self,
        core: Guard<'a, B>,
        scratch: &mut Scratch<B>,
        batch: &mut [Registration<'_>],
    ) -> Guard<'a, B> {
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
        let mut ready = 0;
        for rearm in rearms.iter() {
            match rearm.outcome {
                Outcome::Armed => {}
                Outcome::Ready(_) => ready += 1,
                Outcome::Withdrawn | Outcome::Failed(_) => return HandedOver::Failed,
            }
        }
        if ready > 0 {
            return HandedOver::Ready(ready);
        }
        // It needs no more attention.
        rearms.clear();
        HandedOver::Armed
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
                    // Unless another thread has dequeued it since.
                    if let Some(slot) = slot.filter(|slot| {
                        slot.state == State::Enabled && slot.generation == rearm.generation
                    }) {
                        slot.note(events);
                        queue.notify(slot, socket, events & slot.wanted());
                    }
                }
                Outcome::Withdrawn => {
                    // By another thread, which found the socket closed. So this is another one.
                    let entry = &mut batch[rearm.entry as usize];
                    let slot = core.table.slot(socket);
                    if slot.is_some_and(|slot| slot.state == State::Vacant) && !entry.owned {
                        entry.result = self.enable(core, socket, entry);
                    }
                }
                Outcome::Failed(error) => {
                    scratch.has_failed_owned |= self.rearm_failed(core, &rearm, error, batch);
                }
            }
        }
    }

    /// The system refused to re-arm this. True if it belongs to a connection.
    #[cold]
    fn rearm_failed(
        &self,
        core: &mut Core<B>,
        rearm: &Rearm,
        error: ArmError,
        batch: &mut [Registration<'_>],
    ) -> bool {
        let entry = &mut batch[rearm.entry as usize];
        let socket = rearm.interest.socket;
        let slot = core.table.live(socket);
        let Some(slot) = slot.filter(|slot| slot.generation == rearm.generation) else {
            // Another thread has changed it since, and armed it for itself.
            return false;
        };
        entry.result = match error {
            // The socket that was registered is closed, and this is another.
            ArmError::Stale if !entry.owned => self.enable_new(core, socket, entry),
            error => {
                slot.state = State::Disabled;
                Err(error.into())
            }
        };
        entry.owned
    }
}
