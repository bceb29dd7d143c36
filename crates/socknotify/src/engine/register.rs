//! Registrations: from the caller's entries to the table.

use super::backend::{Backend, Kept, Outcome, Rearm};
use super::interest::{ArmError, GENERATIONS, Mode, is_between};
use super::owned::RearmPolicy;
use super::queue::Queue;
use super::table::{Slot, State};
use super::{Core, Engine, Scratch};
use crate::registration::Only;
use crate::sys;
use crate::{Events, Operation, Registration, RegistrationError, Trigger};

/// The generations that a call has armed and whose sockets it has borrowed: the first, and the one after the
/// last.
pub(super) type Armed = (u32, u32);

fn next(generation: u32) -> u32 {
    generation.wrapping_add(1) & GENERATIONS
}

/// Set what is wanted from now on. A notification that waits in the queue keeps only that.
#[inline]
fn enable(slot: &mut Slot, queue: &mut Queue, entry: &Registration<'_>) {
    slot.filter = entry.event_filter;
    slot.trigger = entry.trigger;
    slot.state = State::Enabled;
    if slot.ticket != 0 {
        let wanted = slot.wanted();
        queue.retain(slot, wanted);
    }
}

/// The mode to arm a registration with.
#[inline]
fn mode<B: Backend>(slot: &Slot, policy: &mut RearmPolicy) -> Mode {
    if slot.is_owned && B::KEPT != Kept::Never {
        policy.mode()
    } else if slot.trigger.contains(Trigger::EDGE) {
        Mode::Edge
    } else if slot.trigger.contains(Trigger::ONESHOT) {
        Mode::Once
    } else {
        Mode::Level
    }
}

/// How a registration that the system knows is enabled again.
enum Again {
    /// It is armed already, and everything that holds will be reported.
    Armed,
    Rearm(Rearm),
}

impl<B: Backend> Engine<B> {
    /// Apply a batch in order, each entry with its own result.
    ///
    /// An entry that enables a known level-triggered registration again only goes to [`Scratch::rearms`]: arming takes
    /// a system call for each, for which the lock is released.
    pub(super) fn apply(
        &self,
        core: &mut Core<B>,
        scratch: &mut Scratch<B>,
        batch: &mut [Registration<'_>],
    ) -> Armed {
        scratch.has_failed_owned = false;
        let first = next(core.generation);
        // The first generation that was not passed to the backend yet.
        let mut pending = first;
        let mut is_fetched = false;
        for index in 0..batch.len() {
            let entry = &mut batch[index];
            if let Some(again) = self.enable_again(core, entry, index as u32, pending) {
                entry.result = Ok(());
                if let Again::Rearm(rearm) = again {
                    scratch.rearms.push(rearm);
                }
                continue;
            }
            entry.result = entry.check(B::CONDITIONS);
            if entry.result.is_err() || entry.operation == Operation::NONE {
                continue;
            }
            is_fetched &= scratch.rearms.is_empty() && entry.operation != Operation::ENABLE;
            self.flush_rearms(core, scratch, batch);
            pending = next(core.generation);
            let entry = &mut batch[index];
            entry.result = self.apply_one(core, entry, &mut is_fetched);
            scratch.has_failed_owned |= entry.owned && entry.result.is_err();
        }
        match batch.iter().all(|entry| entry.is_borrowed) {
            true => (first, next(core.generation)),
            false => (0, 0),
        }
    }

    /// Enable a level-triggered registration that the system knows already. `None` if the entry is anything else,
    /// and nothing was done.
    #[inline]
    fn enable_again(
        &self,
        core: &mut Core<B>,
        entry: &Registration<'_>,
        index: u32,
        pending: u32,
    ) -> Option<Again> {
        if !entry.is_level_enable() {
            return None;
        }
        let socket = sys::number(entry.raw_socket())?;
        let Core {
            table,
            queue,
            generation,
            rearm_policy,
            ..
        } = core;
        let slot = table.live(socket)?;
        let armed = slot.armed?;
        // An earlier entry of this batch comes first: the number may stand for another socket.
        let is_pending = is_between(slot.generation, (pending, next(*generation)));
        if slot.key != entry.completion_key || slot.interruption != 0 || is_pending {
            return None;
        }
        let is_silent = slot.state == State::Disabled && armed == Mode::Once;
        *generation = next(*generation);
        slot.generation = *generation;
        enable(slot, queue, entry);
        let mode = mode::<B>(slot, rearm_policy);
        let is_armed =
            mode == Mode::Kept && armed == Mode::Kept && slot.armed_filter == slot.filter;
        if !is_armed {
            self.wanted.set(&slot.arm(socket, mode));
        }
        let has_risen = std::mem::take(&mut slot.has_risen);
        let is_certain = entry.is_drained && !has_risen && !slot.is_exceptional;
        if is_armed && is_certain && B::KEPT == Kept::ForGood {
            return Some(Again::Armed);
        }
        Some(Again::Rearm(Rearm {
            interest: slot.interest(socket, mode),
            is_armed,
            is_silent: is_silent && mode == Mode::Once,
            is_owned: slot.is_owned,
            generation: slot.generation,
            entry: index,
            outcome: Outcome::Armed,
        }))
    }

    /// Apply one entry that was checked, with the lock held throughout.
    fn apply_one(
        &self,
        core: &mut Core<B>,
        entry: &Registration<'_>,
        is_fetched: &mut bool,
    ) -> Result<(), RegistrationError> {
        let socket = sys::number(entry.raw_socket()).ok_or(sys::NO_NUMBER)?;
        match entry.operation {
            _ if entry.owned => self.enable_owned(core, socket, entry),
            Operation::ENABLE => {
                self.check_only(core, socket, entry.only)?;
                self.enable(core, socket, entry)
            }
            Operation::DISABLE => {
                match self.disarm(core, socket) {
                    // There is nothing to disable.
                    Err(RegistrationError::NotFound) if entry.only != Only::Known => return Ok(()),
                    outcome => outcome?,
                }
                if let Some(slot) = core.table.slot(socket) {
                    slot.state = State::Disabled;
                }
                Ok(())
            }
            _ => {
                self.disarm(core, socket)?;
                if entry.is_silent {
                    self.forget(core, socket);
                    return Ok(());
                }
                if !std::mem::replace(is_fetched, true) {
                    self.fetch_before_packet(core);
                }
                let Core { table, queue, .. } = core;
                if let Some(slot) = table.slot(socket) {
                    slot.state = State::Removing;
                    queue.notify(slot, socket, Events::REMOVE);
                }
                Ok(())
            }
        }
    }

    /// Whether this port has the socket, or does not have it, as the entry requires.
    fn check_only(
        &self,
        core: &mut Core<B>,
        socket: u32,
        only: Only,
    ) -> Result<(), RegistrationError> {
        if only == Only::Any {
            return Ok(());
        }
        let is_known = self.has(core, socket)?;
        match only {
            Only::New if is_known => Err(RegistrationError::AlreadyRegistered),
            Only::Known if !is_known => {
                self.backend.identify_any(socket)?;
                Err(RegistrationError::NotFound)
            }
            _ => Ok(()),
        }
    }

    pub(super) fn enable(
        &self,
        core: &mut Core<B>,
        socket: u32,
        entry: &Registration<'_>,
    ) -> Result<(), RegistrationError> {
        let Some(slot) = core.table.slot(socket) else {
            return self.enable_new(core, socket, entry);
        };
        let has_same_key = slot.key == entry.completion_key;
        match slot.state {
            State::Vacant | State::Removed => self.enable_new(core, socket, entry),
            State::Enabled | State::Disabled if has_same_key && slot.armed.is_some() => {
                let goes_on = slot.state == State::Enabled && slot.armed == Some(Mode::Edge);
                // What holds is notified again, for carried edges as for new ones.
                let is_initial = entry.trigger.contains(Trigger::INITIAL);
                if goes_on && entry.trigger.contains(Trigger::EDGE) && !is_initial {
                    return self.enable_edge_again(core, socket, entry);
                }
                let armed = self.want(core, socket, entry, false);
                self.or_enable_new(core, socket, entry, armed)
            }
            state => {
                let is_armed = slot.armed.is_some();
                if !self.is_same_socket(socket, is_armed)? {
                    return self.enable_new(core, socket, entry);
                }
                if state == State::Removing {
                    return Err(RegistrationError::RemovePending);
                }
                if !has_same_key {
                    return Err(RegistrationError::OtherKey);
                }
                Ok(self.want(core, socket, entry, true)?)
            }
        }
    }

    /// Register a socket that this port does not have. If its number has a registration even so, that registration's
    /// socket was closed.
    pub(super) fn enable_new(
        &self,
        core: &mut Core<B>,
        socket: u32,
        entry: &Registration<'_>,
    ) -> Result<(), RegistrationError> {
        self.forget(core, socket);
        if entry.only == Only::Known {
            return Err(RegistrationError::NotFound);
        }
        self.claim(socket, entry.is_descriptor)?;
        core.table.insert(socket, entry.completion_key);
        self.want(core, socket, entry, true).map_err(|error| {
            self.forget(core, socket);
            error.into()
        })
    }

    /// Claim the socket, or any other descriptor that can be watched, for this port.
    pub(super) fn claim(&self, socket: u32, is_descriptor: bool) -> Result<(), RegistrationError> {
        self.owner.claim(socket, || match is_descriptor {
            true => self.backend.identify_any(socket),
            false => self.backend.identify(socket),
        })
    }

    /// Enable an edge-triggered registration that is enabled. Its edges carry on: none is lost.
    fn enable_edge_again(
        &self,
        core: &mut Core<B>,
        socket: u32,
        entry: &Registration<'_>,
    ) -> Result<(), RegistrationError> {
        let is_same = self.is_same_socket(socket, true)?;
        let Core { table, queue, .. } = core;
        let Some(slot) = table.live(socket).filter(|_| is_same) else {
            return self.enable_new(core, socket, entry);
        };
        if slot.armed_filter == entry.event_filter {
            enable(slot, queue, entry);
            return Ok(());
        }
        slot.armed_filter = entry.event_filter;
        slot.revision = slot.revision.wrapping_add(1);
        let interest = slot.interest(socket, Mode::Edge);
        // With another filter the edges start again. What began to hold before is queued.
        self.fetch(core);
        if self.backend.carry_edges(&interest) {
            self.fetch(core);
        }
        let Core { table, queue, .. } = core;
        let Some(slot) = table.live(socket) else {
            return self.enable_new(core, socket, entry);
        };
        enable(slot, queue, entry);
        self.wanted.set(&interest);
        let armed = self.arm(core, &interest, false);
        self.or_enable_new(core, socket, entry, armed)
    }

    /// If the system does not know the registered socket, it was closed, and this is another one.
    fn or_enable_new(
        &self,
        core: &mut Core<B>,
        socket: u32,
        entry: &Registration<'_>,
        armed: Result<(), ArmError>,
    ) -> Result<(), RegistrationError> {
        match armed {
            Err(ArmError::Stale) => self.enable_new(core, socket, entry),
            Err(ArmError::Refused(error)) => Err(error),
            Ok(()) => Ok(()),
        }
    }

    /// Enable a registration, publish what to watch from now on, and arm it.
    pub(super) fn want(
        &self,
        core: &mut Core<B>,
        socket: u32,
        entry: &Registration<'_>,
        is_new: bool,
    ) -> Result<(), ArmError> {
        let Core {
            table,
            queue,
            generation,
            rearm_policy,
            ..
        } = core;
        *generation = next(*generation);
        let slot = table.entry(socket);
        slot.generation = *generation;
        enable(slot, queue, entry);
        let interest = slot.arm(socket, mode::<B>(slot, rearm_policy));
        self.wanted.set(&interest);
        self.arm(core, &interest, is_new)
    }

    /// Whether this port has the socket, and not only its number.
    pub(super) fn has(&self, core: &mut Core<B>, socket: u32) -> Result<bool, RegistrationError> {
        let armed = core.table.live(socket).map(|slot| slot.armed.is_some());
        armed.map_or(Ok(false), |is_armed| self.is_same_socket(socket, is_armed))
    }

    /// Whether the number stands for the socket that this port registered under it.
    ///
    /// `is_armed`: the system still watches what was registered. This distinguishes descriptors that are no sockets.
    pub(super) fn is_same_socket(
        &self,
        socket: u32,
        is_armed: bool,
    ) -> Result<bool, RegistrationError> {
        match self.backend.identify(socket) {
            Err(RegistrationError::NotASocket) if self.owner.owns_descriptor(socket) => {
                Ok(!is_armed || self.backend.is_still_armed(socket))
            }
            identity => Ok(self.owner.owns(socket, identity?)),
        }
    }

    /// End the registration of a socket that was closed. A removal that was accepted is still notified.
    pub(super) fn forget(&self, core: &mut Core<B>, socket: u32) {
        let Core { table, queue, .. } = core;
        let Some(slot) = table.slot(socket) else {
            return;
        };
        match slot.state {
            State::Vacant | State::Removed => return,
            State::Removing => queue.detach(slot),
            State::Enabled | State::Disabled => queue.withdraw(slot),
        }
        table.end(socket, State::Vacant);
        self.wanted.withdraw(socket);
        self.owner.release(socket);
    }
}
