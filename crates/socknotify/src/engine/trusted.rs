//! Registrations of sockets that the port owns: see [`crate::owned`].
//!
//! From its notification until it is armed again, such a registration is disabled, and the notified thread has the
//! socket. No other thread may arm it, and none closes it while it is armed.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::apply::{enable_of, flag_of};
use super::backend::Backend;
use super::interest::{Flag, State, Word};
use super::scheduler::Flag as GateFlag;
use super::table::Slot;
use super::{Core, Engine};
use crate::entry::next_reason;
use crate::registration::Extra;
use crate::sys::{self, Fd, RawSocket};
use crate::{Entry, Error, EventFilter, Events, Registration, RegistrationError};

impl<B: Backend> Engine<B> {
    /// Register a socket under this key, disabled.
    pub(crate) fn adopt(
        &self,
        socket: RawSocket,
        key: usize,
    ) -> Result<Result<(), RegistrationError>, Error> {
        self.adopt_any(socket, key, false)
    }

    /// The same for any descriptor that can be watched, if it may be one that is no socket.
    pub(crate) fn adopt_any(
        &self,
        socket: RawSocket,
        key: usize,
        is_descriptor: bool,
    ) -> Result<Result<(), RegistrationError>, Error> {
        let mut core = self.enter()?;
        let adopted = sys::fd(socket).ok_or(sys::NO_FD).and_then(|fd| {
            if self.has(fd)? {
                return Err(RegistrationError::OtherKey);
            }
            self.forget(&mut core, fd);
            let extra = match is_descriptor {
                true => Extra::Descriptor,
                false => Extra::Owned,
            };
            let identity = self.claim(fd, extra, true)?;
            let flag = flag_of(identity);
            // Whether what is no socket can be watched is found out when it is added.
            let known = match flag {
                Flag::DESCRIPTOR => Flag::KNOWN,
                _ => Flag::NONE,
            };
            let word = self.table.entry(fd).begin(key, identity, |word| {
                let word = word.with_state(State::Disabled);
                word.with(Flag::OWNED).with(flag).with(known)
            });
            core.registered += 1;
            if known == Flag::KNOWN {
                self.arm_now(&mut core, fd, word, true)
                    .inspect_err(|_| self.forget(&mut core, fd))?;
            }
            Ok(())
        });
        Ok(adopted)
    }

    /// The registration of an adopted socket, if this is its key. The lock is held.
    fn owned(&self, fd: Fd, key: usize) -> Option<&Slot> {
        let slot = self.table.slot(fd)?;
        let word = slot.word();
        (word.is_live() && word.has(Flag::OWNED) && slot.key() == key).then_some(slot)
    }

    /// Arm an adopted socket for the first time, or queue the packet that was requested in place of that.
    pub(super) fn enable_owned(
        &self,
        core: &mut Core,
        fd: Fd,
        entry: &Registration<'_>,
    ) -> Result<(), RegistrationError> {
        let slot = self
            .owned(fd, entry.completion_key)
            .ok_or(RegistrationError::NotASocket)?;
        let word = slot.word();
        if word.has(Flag::INTERRUPTED) {
            let mut reasons = slot.reasons.load(Ordering::Relaxed);
            let reason = next_reason(&mut reasons);
            slot.reasons.store(reasons, Ordering::Relaxed);
            if reasons == 0 {
                let _ = slot.change(|word| Some(word.without(Flag::INTERRUPTED)));
            }
            self.queue_interruption(core, fd, slot, reason);
            return Ok(());
        }
        let is_new = !word.has(Flag::KNOWN);
        let to = enable_of::<B>(entry).ok_or(RegistrationError::InvalidTrigger)?;
        match slot.change(|word| word.is_live().then(|| to.apply(word).with(Flag::KNOWN))) {
            Ok((_, word)) => self.arm_now(core, fd, word, is_new).map_err(|error| {
                let _ = slot.change(|word| Some(word.without(Flag::KNOWN)));
                error.into()
            }),
            Err(_) => Err(RegistrationError::NotASocket),
        }
    }

    /// Whether [`arm_drained`](Self::arm_drained) ever arms a socket here.
    #[inline]
    pub(crate) fn arms_drained(&self) -> bool {
        B::KEEPS
    }

    /// Arm a socket whose thread has seen that nothing holds, if that takes no system call. False if nothing was done.
    #[inline]
    pub(crate) fn arm_drained(&self, socket: RawSocket, key: usize, filter: EventFilter) -> bool {
        B::KEEPS
            && sys::fd(socket)
                .and_then(|fd| self.table.slot(fd))
                .is_some_and(|slot| slot.enable_drained(key, filter))
    }

    fn queue_interruption(&self, core: &mut Core, fd: Fd, slot: &Slot, reason: u32) {
        slot.queued_reason.store(reason, Ordering::Relaxed);
        self.queue_notification(core, fd, slot, Events::from_bits_retain(reason));
    }

    /// End the registration of a socket that is not armed, without a notification.
    ///
    /// It is deleted from the backend in any case, also if it is closed next: a duplicate may keep it alive. Another kind
    /// of port saves itself that call.
    pub(crate) fn release(&self, socket: RawSocket, key: usize, _stays_open: bool) {
        let (Some(fd), Ok(mut core)) = (sys::fd(socket), self.enter()) else {
            return;
        };
        let Some(slot) = self.owned(fd, key) else {
            return;
        };
        let is_known = slot.word().has(Flag::KNOWN);
        self.forget(&mut core, fd);
        if is_known {
            // If that fails, its reports are stale.
            let _ = self.backend.disarm(fd);
        }
    }

    /// Disable a registration, if it is enabled, and queue its packet for this reason, which is one bit. True if that was
    /// done.
    ///
    /// `insist`: if the registration is not enabled, the packet comes when it is armed next.
    pub(crate) fn interrupt(
        &self,
        socket: RawSocket,
        key: usize,
        reason: u32,
        insist: bool,
    ) -> bool {
        let (Some(fd), Ok(mut core)) = (sys::fd(socket), self.enter()) else {
            return false;
        };
        let Some(slot) = self.owned(fd, key) else {
            return false;
        };
        loop {
            if self.halt_slot(slot) {
                self.queue_interruption(&mut core, fd, slot, reason);
                self.leave(core);
                return true;
            }
            // The same packet is in the queue already.
            if !insist || slot.queued_reason.load(Ordering::Relaxed) == reason {
                return false;
            }
            let marked =
                slot.change(|word| (!word.is_enabled()).then(|| word.with(Flag::INTERRUPTED)));
            if marked.is_ok() {
                slot.reasons.fetch_or(reason, Ordering::Relaxed);
                return false;
            }
        }
    }

    /// Disable a registration that is enabled. True if that was done.
    pub(crate) fn halt(&self, socket: RawSocket, key: usize) -> bool {
        let (Some(fd), Ok(_core)) = (sys::fd(socket), self.enter()) else {
            return false;
        };
        self.owned(fd, key).is_some_and(|slot| self.halt_slot(slot))
    }

    fn halt_slot(&self, slot: &Slot) -> bool {
        let halt = |word: Word| word.is_enabled().then(|| word.with_state(State::Disabled));
        slot.change(halt).is_ok()
    }

    /// Make what [`post_after`](Self::post_after) needs: then it cannot fail for want of resources. Any key may follow.
    pub(crate) fn prepare_alarm(&self, _key: usize) -> Result<(), Error> {
        let _core = self.enter()?;
        self.backend.prepare_alarm()
    }

    /// Queue this packet after this time. The latest call replaces earlier ones.
    pub(crate) fn post_after(&self, delay: Duration, entry: Entry) -> Result<(), Error> {
        let mut core = self.enter()?;
        core.alarm = entry;
        self.backend.set_alarm(delay)
    }

    /// The backend, for another loop to watch: it is ready if there is something to dequeue and no thread waits.
    #[allow(dead_code, reason = "not every system has such loops")]
    pub(crate) fn expose(&self) -> &B {
        if let Ok(core) = self.enter() {
            if !self.gate.load().has(GateFlag::EXPOSED) {
                self.gate.set(GateFlag::EXPOSED, true);
                self.leave(core);
            }
        }
        &self.backend
    }
}
