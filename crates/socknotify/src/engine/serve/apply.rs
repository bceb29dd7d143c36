//! Apply registrations: the caller's entries change the table, and are armed in batches.

use super::Caller;
use crate::engine::backend::{Arm, Backend, Wait};
use crate::engine::table::interest::{ArmError, Flag, Interest, State, Word, mode_of};
use crate::engine::table::{Outcome, Slot};
use crate::engine::threads::{self, Flag as GateFlag, Levels};
use crate::engine::{Core, DESCRIPTOR, Engine, Scratch};
use crate::os::{self, Fd};
use crate::support::sync::lock;
use crate::values::registration::Extra;
use crate::{Error, Operation, Registration, RegistrationError};

impl<B: Backend> Engine<B> {
    /// Apply registrations, and do not dequeue.
    pub(in crate::engine) fn register(
        &self,
        registrations: &mut [Registration<'_>],
        caller: Option<Caller<'_>>,
    ) -> Result<(), Error> {
        if self.is_closed() {
            return Err(Error::Closed);
        }
        let mut polls = caller.map(|it| it.polls).filter(|it| !it.is_empty());
        if registrations.is_empty() && polls.is_none() {
            // The caller asks whether the port can be used.
            return Ok(());
        }
        // With the memory of this thread's calls, if there is some.
        let mut record = threads::take_current(self);
        let mut new;
        let scratch = match &mut record {
            Some(record) => &mut record.scratch,
            None => {
                new = Scratch::default();
                &mut new
            }
        };
        if let Some(polls) = &mut polls {
            std::mem::swap(&mut scratch.batch, &mut polls.batch);
        }
        self.apply(scratch, registrations);
        self.arm(scratch, registrations);
        if let Some(polls) = polls {
            polls.refused.append(&mut scratch.refused);
        }
        if let Some(record) = record {
            threads::put(record);
        }
        Ok(())
    }

    /// Apply a batch in order, each entry with its own result. What is only to be armed is collected in the batch of
    /// [`Scratch`].
    #[inline]
    pub(in crate::engine) fn apply(
        &self,
        scratch: &mut Scratch<B::Memory>,
        entries: &mut [Registration<'_>],
    ) {
        for index in 0..entries.len() {
            let entry = &mut entries[index];
            let enabled = match entry.is_owned() {
                true => self.enabled_owned(entry),
                false => self.enable_again(entry),
            };
            match enabled {
                Some((interest, slot)) => {
                    entry.result = Ok(());
                    self.collect_arm(&mut scratch.batch, slot, interest, false, index as u32);
                }
                None => self.apply_other(scratch, entries, index),
            }
        }
    }

    /// Apply an entry that does anything else than to enable a registration that the system knows.
    #[cold]
    fn apply_other(
        &self,
        scratch: &mut Scratch<B::Memory>,
        entries: &mut [Registration<'_>],
        index: usize,
    ) {
        // What came before it has to be armed first.
        self.arm(scratch, entries);
        let entry = &mut entries[index];
        entry.result = entry.check(B::CONDITIONS);
        if entry.result.is_ok() && entry.operation != Operation::NONE {
            entry.result = self.apply_one(entry);
        }
        scratch.has_failed |= entry.is_owned() && entry.result.is_err();
    }

    /// Enable a registration that the system knows. `None`, with nothing done, if the entry does anything else.
    #[inline]
    fn enable_again(&self, entry: &Registration<'_>) -> Option<(Interest, &Slot)> {
        if !entry.is_usual_enable() {
            return None;
        }
        let fd = os::fd(entry.raw_socket())?;
        let slot = self.table.slot(fd)?;
        let word = slot.enable(
            entry.completion_key,
            entry.event_filter,
            mode_of(entry.trigger)?,
        )?;
        Some((Interest { fd, word }, slot))
    }

    /// Arm what was enabled, or collect it to be armed with the batch, if there is something to arm.
    #[inline(always)]
    pub(in crate::engine) fn collect_arm(
        &self,
        batch: &mut Vec<Arm>,
        slot: &Slot,
        mut interest: Interest,
        is_armed: bool,
        entry: u32,
    ) {
        let mut outcome = Outcome::Armed;
        if B::KEEPS && !is_armed {
            let arm = |interest: &Interest| self.backend.arm(interest, false);
            let armed = arm(&interest);
            if armed.is_err() || slot.word().generation() != interest.word.generation() {
                outcome = slot.arm_until_latest(&mut interest, armed, arm);
            }
            if outcome == Outcome::Armed {
                if interest.word.has(Flag::LATE) {
                    slot.on_armed(interest.word.generation());
                }
                return;
            }
        }
        batch.push(Arm {
            interest,
            is_armed,
            entry,
            outcome,
        });
    }

    /// Arm what this call has not armed yet, without waiting.
    pub(in crate::engine) fn arm(
        &self,
        scratch: &mut Scratch<B::Memory>,
        entries: &mut [Registration<'_>],
    ) {
        if scratch.batch.is_empty() {
            return;
        }
        let Scratch {
            memory,
            batch,
            packets,
            ..
        } = scratch;
        self.backend
            .wait(&self.table, memory, batch, &Wait::ARM, packets, &mut ());
        self.finish_batch(scratch, entries);
    }

    /// Handle what the backend could not arm. True if that is armed now, after the backend was asked for reports.
    #[inline]
    pub(in crate::engine) fn finish_batch(
        &self,
        scratch: &mut Scratch<B::Memory>,
        entries: &mut [Registration<'_>],
    ) -> bool {
        let mut batch = scratch.batch.iter();
        let has_failed = batch.any(|arm| arm.outcome != Outcome::Armed);
        if has_failed {
            self.handle_failed(scratch, entries);
        }
        scratch.batch.clear();
        has_failed
    }

    #[cold]
    fn handle_failed(&self, scratch: &mut Scratch<B::Memory>, entries: &mut [Registration<'_>]) {
        let mut core = lock(&self.core);
        for arm in &scratch.batch {
            if core.closed || arm.outcome == Outcome::Armed {
                continue;
            }
            let fd = arm.interest.fd;
            let slot = self.table.entry(fd);
            let word = slot.word();
            let is_current = word.generation() == arm.interest.word.generation();
            let entry = match (arm.entry, arm.outcome) {
                (_, Outcome::Overtaken)
                | (Arm::NO_ENTRY, Outcome::Failed(ArmError::Refused(_))) => {
                    self.postpone(&mut core, &arm.interest);
                    continue;
                }
                (Arm::NO_ENTRY, _) => {
                    // It was armed again. If the number refers to another file, its registration has ended.
                    if is_current && !self.is_watched(fd, word) {
                        self.forget(&mut core, fd);
                    }
                    continue;
                }
                (Arm::POLLED, _) => {
                    let armed = is_current.then(|| self.arm_now(&mut core, fd, word));
                    if let Some(Err(error)) = armed {
                        scratch.refused.push((slot.key(), error.into()));
                        scratch.has_failed = true;
                    }
                    continue;
                }
                (index, _) => &mut entries[index as usize],
            };
            if word.is_dequeued_since(arm.interest.word) {
                // Another thread has armed it.
                continue;
            }
            if is_current {
                entry.result = self.arm_known(&mut core, fd, entry, word);
            } else if !entry.is_owned()
                && (word.state() == State::Vacant
                    || word.is_live() && slot.key() == entry.completion_key)
            {
                // An earlier entry, or another thread, has found out that what was registered is closed. So this is
                // something else.
                entry.result = self.enable(&mut core, fd, entry);
            }
            scratch.has_failed |= entry.is_owned() && entry.result.is_err();
        }
        self.leave(core);
    }

    /// Whether the number refers to what the backend watches under it. It is armed, as it may have been notified.
    fn is_watched(&self, fd: Fd, word: Word) -> bool {
        let arm = |interest: &Interest| self.backend.arm(interest, false);
        // Another thread may change it meanwhile.
        let outcome = self.table.arm_latest(&mut Interest { fd, word }, arm);
        outcome != Outcome::Failed(ArmError::Stale)
    }

    /// Apply one entry that was checked, with the lock held throughout.
    fn apply_one(&self, entry: &Registration<'_>) -> Result<(), RegistrationError> {
        let fd = os::fd(entry.raw_socket()).ok_or(os::NO_FD)?;
        let mut core = lock(&self.core);
        if core.closed {
            // What the port owned has ended with it: who closes it takes that.
            return match entry.is_owned() {
                true => Ok(()),
                false => Err(RegistrationError::NotFound),
            };
        }
        let result = match entry.operation {
            _ if entry.is_owned() => self.arm_owned(&mut core, fd, entry),
            Operation::ENABLE => self
                .check_extra(fd, entry)
                .and_then(|()| self.enable(&mut core, fd, entry)),
            Operation::DISABLE => match self.disable(&mut core, fd) {
                // There is nothing to disable.
                Err(RegistrationError::NotFound) if entry.extra != Extra::Known => Ok(()),
                result => result,
            },
            _ => self.remove(&mut core, fd, entry.extra == Extra::Silent),
        };
        self.leave(core);
        result
    }

    /// Whether this port has the socket, or does not have it, as the entry requires.
    fn check_extra(&self, fd: Fd, entry: &Registration<'_>) -> Result<(), RegistrationError> {
        match entry.extra {
            Extra::New if self.has(fd)? => Err(RegistrationError::AlreadyRegistered),
            Extra::Known if !self.has(fd)? => {
                self.backend.identify_any(fd)?;
                Err(RegistrationError::NotFound)
            }
            _ => Ok(()),
        }
    }

    fn enable(
        &self,
        core: &mut Core,
        fd: Fd,
        entry: &Registration<'_>,
    ) -> Result<(), RegistrationError> {
        let Some(slot) = self.table.slot(fd) else {
            return self.enable_new(core, fd, entry);
        };
        let mode = mode_of(entry.trigger).ok_or(RegistrationError::InvalidTrigger)?;
        let enabled = slot.enable(entry.completion_key, entry.event_filter, mode);
        if let Some(word) = enabled {
            return self.arm_known(core, fd, entry, word);
        }
        let word = slot.word();
        match word.state() {
            State::Vacant | State::Removed => self.enable_new(core, fd, entry),
            _ if !self.is_same(fd, word)? => self.enable_new(core, fd, entry),
            State::Removing => Err(RegistrationError::RemovePending),
            State::Enabled | State::Disabled => Err(RegistrationError::OtherKey),
        }
    }

    /// Arm what is registered.
    fn arm_known(
        &self,
        core: &mut Core,
        fd: Fd,
        entry: &Registration<'_>,
        word: Word,
    ) -> Result<(), RegistrationError> {
        match self.arm_now(core, fd, word) {
            // It was closed, and this is something else.
            Err(ArmError::Stale) if !entry.is_owned() => self.enable_new(core, fd, entry),
            armed => Ok(armed?),
        }
    }

    /// Register what this port does not have.
    fn enable_new(
        &self,
        core: &mut Core,
        fd: Fd,
        entry: &Registration<'_>,
    ) -> Result<(), RegistrationError> {
        if entry.extra == Extra::Known {
            self.forget(core, fd);
            return Err(RegistrationError::NotFound);
        }
        let mode = mode_of(entry.trigger).ok_or(RegistrationError::InvalidTrigger)?;
        let enabled = |word: Word| word.enabled(entry.event_filter, mode);
        let (key, extra) = (entry.completion_key, entry.extra);
        let word = self.begin(core, fd, key, extra, entry.is_borrowed, enabled)?;
        self.arm_new(core, fd, word)
    }

    /// Begin a registration. If its number has one even so, that one's file was closed.
    pub(in crate::engine) fn begin(
        &self,
        core: &mut Core,
        fd: Fd,
        key: usize,
        extra: Extra,
        is_borrowed: bool,
        word: impl Fn(Word) -> Word,
    ) -> Result<Word, RegistrationError> {
        self.forget(core, fd);
        let identity = self.claim(fd, extra, is_borrowed)?;
        core.registered += 1;
        let slot = self.table.entry(fd);
        Ok(
            slot.begin(key, identity, |before| match identity & DESCRIPTOR {
                0 => word(before),
                _ => word(before).with(Flag::DESCRIPTOR),
            }),
        )
    }

    /// Arm a registration that has begun, or end it.
    pub(in crate::engine) fn arm_new(
        &self,
        core: &mut Core,
        fd: Fd,
        word: Word,
    ) -> Result<(), RegistrationError> {
        self.arm_now(core, fd, word).map_err(|error| {
            self.forget(core, fd);
            error.into()
        })
    }

    /// Identify what is to be registered, and claim it for this port, unless several ports may watch it: what is no socket,
    /// and what a runtime asks for by a call of its own, as of `epoll`.
    fn claim(&self, fd: Fd, extra: Extra, is_borrowed: bool) -> Result<u64, RegistrationError> {
        let identify = || match extra {
            Extra::Descriptor => self.backend.identify_any(fd),
            _ => self.backend.identify(fd),
        };
        let identity = identify()?;
        if identity & DESCRIPTOR != 0 {
            return Ok(identity);
        }
        let is_shared = matches!(extra, Extra::New | Extra::Known | Extra::Descriptor);
        if !(B::SHARES && is_shared) {
            self.owner.claim(fd, identity)?;
        }
        // The number may have been closed and used again since it was identified. What it refers to now must not be
        // watched under the other's identity.
        let again = if is_borrowed {
            Ok(identity)
        } else {
            identify()
        };
        if again != Ok(identity) {
            self.owner.release(fd);
            return Err(again.err().unwrap_or(RegistrationError::NotASocket));
        }
        Ok(identity)
    }

    /// Arm a registration, or add it if the system does not [know](Flag::KNOWN) it, with the lock held. If that fails, it is
    /// disabled.
    pub(in crate::engine) fn arm_now(
        &self,
        core: &mut Core,
        fd: Fd,
        word: Word,
    ) -> Result<(), ArmError> {
        let slot = self.table.entry(fd);
        let mut interest = Interest { fd, word };
        let mut is_new = !word.has(Flag::KNOWN);
        // Another thread may enable it meanwhile, if it is known, or owned. What could not be added is still new.
        let outcome = slot.arm_latest(&mut interest, |interest| {
            let armed = self.backend.arm(interest, is_new);
            is_new &= armed.is_err();
            armed
        });
        let changed = slot.change(|current| match outcome {
            _ if !current.is_live() => None,
            Outcome::Failed(_) => {
                let is_this = current.generation() == interest.word.generation();
                let fails = is_this && !current.is_dequeued_since(interest.word);
                fails.then(|| current.with_state(State::Disabled))
            }
            _ => Some(current.with(Flag::KNOWN)),
        });
        match (outcome, changed) {
            // Another thread has armed it.
            (Outcome::Failed(_), Err(word)) if word.is_dequeued_since(interest.word) => Ok(()),
            (Outcome::Failed(error), _) => Err(error),
            (Outcome::Overtaken, _) => {
                self.postpone(core, &interest);
                Ok(())
            }
            (Outcome::Armed, _) => Ok(()),
        }
    }

    fn disable(&self, core: &mut Core, fd: Fd) -> Result<(), RegistrationError> {
        let disabling = |word: Word| {
            let disabled = word.advanced().with_state(State::Disabled);
            let disabled = disabled.without(Flag::QUIET).without(Flag::DELIVERED);
            word.is_live().then_some(disabled)
        };
        let Some(Ok((_, word))) = self.table.slot(fd).map(|slot| slot.change(disabling)) else {
            return self.not_found(fd);
        };
        // This also finds out whether it is the same file.
        match self.arm_now(core, fd, word) {
            Err(ArmError::Stale) => self.is_another(core, fd),
            disabled => Ok(disabled?),
        }
    }

    fn remove(&self, core: &mut Core, fd: Fd, is_silent: bool) -> Result<(), RegistrationError> {
        let Some(slot) = self.table.slot(fd) else {
            return self.not_found(fd);
        };
        let removing = |word: Word| {
            word.is_live()
                .then(|| word.advanced().with_state(State::Removing))
        };
        let Ok((before, _)) = slot.change(removing) else {
            return self.not_found(fd);
        };
        let disarmed = match before.has(Flag::KNOWN) {
            true => self.backend.disarm(fd),
            false => Ok(()),
        };
        match disarmed {
            Err(ArmError::Stale) => return self.is_another(core, fd),
            Err(ArmError::Refused(error)) => {
                // What it was armed with is stale.
                let restored = before.advanced().advanced().without(Flag::DELIVERED);
                if slot.change(|_| Some(restored)).is_ok() {
                    self.arm_now(core, fd, restored)?;
                }
                return Err(error);
            }
            Ok(()) => {}
        }
        if is_silent {
            self.forget(core, fd);
            return Ok(());
        }
        self.queue_removal(core, fd, slot);
        Ok(())
    }

    /// This port has no such socket.
    fn not_found(&self, fd: Fd) -> Result<(), RegistrationError> {
        self.backend.identify(fd)?;
        Err(RegistrationError::NotFound)
    }

    /// What was registered under this number is closed, and this is something else.
    fn is_another(&self, core: &mut Core, fd: Fd) -> Result<(), RegistrationError> {
        self.forget(core, fd);
        self.not_found(fd)
    }

    /// Whether this port has the socket, and not only its number.
    pub(in crate::engine) fn has(&self, fd: Fd) -> Result<bool, RegistrationError> {
        let word = self.table.word(fd);
        match word.is_live() {
            true => self.is_same(fd, word),
            false => Ok(false),
        }
    }

    /// Whether the number refers to what this port registered under it. The lock is held.
    fn is_same(&self, fd: Fd, word: Word) -> Result<bool, RegistrationError> {
        let is_known = word.is_live() && word.has(Flag::KNOWN);
        let identity = match self.backend.identify(fd) {
            Err(RegistrationError::NotASocket) if word.has(Flag::DESCRIPTOR) => {
                return Ok(!is_known || self.is_watched(fd, word));
            }
            // A socket was registered, and this is none.
            Err(RegistrationError::NotASocket) => return Ok(false),
            identity => identity?,
        };
        Ok(self.table.slot(fd).is_some_and(|slot| slot.is_of(identity)))
    }

    /// End the registration of a file that was closed, or is deregistered. A removal that was accepted is still
    /// notified.
    pub(in crate::engine) fn forget(&self, core: &mut Core, fd: Fd) {
        let Some(slot) = self.table.slot(fd) else {
            return;
        };
        let is_registered = |word: Word| !matches!(word.state(), State::Vacant | State::Removed);
        if slot
            .change(|word| is_registered(word).then(|| word.cleared()))
            .is_ok()
        {
            core.registered -= 1;
            self.owner.release(fd);
        }
    }

    /// The notification of a persistent registration is about to be delivered. Now and then find out whether its
    /// number still refers to the same file, which may live on under a duplicate. If not, its registration ends.
    ///
    /// Its identity says so. To arm it again would say so, too, and report once more what still holds.
    #[cold]
    pub(in crate::engine) fn is_still_registered(
        &self,
        fd: Fd,
        generation: u32,
        slot: &Slot,
    ) -> bool {
        let mut core = lock(&self.core);
        let word = slot.word();
        if word.generation() != generation {
            // Another thread has changed it since: what was reported before that is still delivered.
            return true;
        }
        if core.closed {
            return false;
        }
        match self.is_same(fd, word) {
            Ok(false) | Err(RegistrationError::NotASocket | RegistrationError::NotOpen) => {
                self.forget(&mut core, fd);
                false
            }
            // An error of the system's says nothing. It is asked again.
            Ok(true) | Err(_) => true,
        }
    }

    /// The backend has refused to arm this again. Threads that dequeue and poll try it later.
    #[cold]
    pub(in crate::engine) fn postpone(&self, core: &mut Core, interest: &Interest) {
        let generation = interest.word.generation();
        let postponed = self.table.entry(interest.fd).change(|word| {
            let is_due = word.generation() == generation && word.is_enabled();
            (is_due && !word.has(Flag::DELIVERED)).then(|| word.with(Flag::DELIVERED))
        });
        if postponed.is_ok() {
            core.refused.push((interest.fd, generation));
            if self.gate.raise(GateFlag::REFUSED) {
                self.leave_refused();
            }
        }
    }

    /// What was postponed, to try it again.
    #[cold]
    pub(in crate::engine) fn collect_refused(&self, batch: &mut Vec<Arm>) {
        let mut core = lock(&self.core);
        if core.refused.is_empty() {
            self.gate.lower(GateFlag::REFUSED);
        }
        let mut refused = std::mem::take(&mut core.refused);
        drop(core);
        self.collect_delivered(&mut refused, batch, false);
    }

    /// What was delivered and is to be armed again: levels of this thread, or what was postponed.
    pub(in crate::engine) fn collect_delivered(
        &self,
        levels: &mut Levels,
        batch: &mut Vec<Arm>,
        is_armed: bool,
    ) {
        for (fd, generation) in levels.drain(..) {
            let Some(slot) = self.table.slot(fd) else {
                continue;
            };
            let armed = slot.change(|word| {
                let is_due = word.generation() == generation
                    && word.is_enabled()
                    && word.has(Flag::DELIVERED);
                is_due.then(|| word.without(Flag::DELIVERED).without(Flag::QUIET))
            });
            if let Ok((_, word)) = armed {
                let interest = Interest { fd, word };
                self.collect_arm(batch, slot, interest, is_armed, Arm::NO_ENTRY);
            }
        }
    }

    /// Arm those of this thread now, so that whatever still holds is reported to others.
    pub(in crate::engine) fn arm_levels(&self, scratch: &mut Scratch<B::Memory>) {
        if !scratch.levels.is_empty() && !self.is_closed() {
            self.collect_delivered(&mut scratch.levels, &mut scratch.batch, false);
            self.arm(scratch, &mut []);
        }
    }
}
