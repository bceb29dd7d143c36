//! Registrations of sockets that the port owns. This is all that [`crate::owned`] knows of the engine.
//!
//! Who may use the socket is decided elsewhere, under a lock of its own: under that it is enabled, and by whom is no
//! concern of this. From its notification on such a registration is disabled, until it is enabled again.

use std::time::{Duration, Instant};

use super::backend::Backend;
pub(crate) use super::serve::{Caller, Polls};
pub(crate) use super::table::Left;
use super::table::Slot;
use super::table::interest::{Flag, Interest, Mode, State, Word};
pub(crate) use super::threads::Holder;
use super::threads::{self, Flag as GateFlag};
use super::{Core, Engine};
use crate::os::{self, Fd, RawSocket};
use crate::values::entry::Arming;
use crate::values::registration::Extra;
use crate::{Entry, Error, EventFilter, Registration, RegistrationError};

impl<B: Backend> Engine<B> {
    /// Register a socket under this key, disabled; or any descriptor that can be watched, if it may be one that is no socket.
    pub(crate) fn adopt(
        &self,
        socket: RawSocket,
        key: usize,
        is_descriptor: bool,
    ) -> Result<Result<(), RegistrationError>, Error> {
        let mut core = self.enter()?;
        let adopted = os::fd(socket).ok_or(os::NO_FD).and_then(|fd| {
            if self.has(fd)? {
                return Err(RegistrationError::OtherKey);
            }
            let extra = match is_descriptor {
                true => Extra::Descriptor,
                false => Extra::Owned,
            };
            let disabled = |word: Word| word.with_state(State::Disabled).with(Flag::OWNED);
            let word = self.begin(&mut core, fd, key, extra, true, disabled)?;
            // Whether what is no socket can be watched is found out when it is added.
            match word.has(Flag::DESCRIPTOR) {
                true => self.arm_new(&mut core, fd, word),
                false => Ok(()),
            }
        });
        Ok(adopted)
    }

    /// Enable an adopted socket, if this is its key, by this number. Its notifications carry that.
    ///
    /// This takes no lock, and makes no system call: who has the socket's own lock decides what is armed last. What is
    /// left to do is for [`process`](Self::process), of any thread, at any time.
    ///
    /// `is_drained`: no wanted condition held when the socket's thread was done.
    #[inline(always)]
    pub(crate) fn enable_owned(
        &self,
        socket: RawSocket,
        key: usize,
        filter: EventFilter,
        arming: Arming,
        is_drained: bool,
    ) -> Result<Left, RegistrationError> {
        let mode = match B::KEEPS {
            true => Mode::Kept,
            false => Mode::Once,
        };
        let slot = os::fd(socket).and_then(|fd| Some((fd, self.table.slot(fd)?)));
        let Some((fd, slot)) = slot else {
            return Err(RegistrationError::NotASocket);
        };
        slot.enable_owned(fd, key, (filter, mode), arming, is_drained)
            .ok_or(RegistrationError::NotASocket)
    }

    /// Whether a thread has dequeued the notification of this arming, or has [claimed](Self::claim_owned) it.
    pub(crate) fn is_dequeued(&self, socket: RawSocket, key: usize, arming: Arming) -> bool {
        self.slot_of(socket)
            .is_some_and(|slot| slot.is_dequeued(key, arming))
    }

    /// Disable what was enabled by this number, so that nobody dequeues its notification. False if a thread has.
    pub(crate) fn claim_owned(&self, socket: RawSocket, key: usize, arming: Arming) -> bool {
        self.slot_of(socket)
            .is_some_and(|slot| slot.claim_owned(key, arming))
    }

    #[inline]
    fn slot_of(&self, socket: RawSocket) -> Option<&Slot> {
        self.table.slot(os::fd(socket)?)
    }

    /// What is to be armed of a socket that was enabled. `None` if the system does not know it yet, or it was closed meanwhile.
    #[inline]
    pub(super) fn enabled_owned(&self, entry: &Registration<'_>) -> Option<(Interest, &Slot)> {
        let fd = os::fd(entry.raw_socket())?;
        let (slot, word) = self.owned(fd, entry.completion_key)?;
        word.has(Flag::KNOWN)
            .then_some((Interest { fd, word }, slot))
    }

    /// The slot and the word of a socket that the port owns under this key.
    #[inline]
    fn owned(&self, fd: Fd, key: usize) -> Option<(&Slot, Word)> {
        let slot = self.table.slot(fd)?;
        let word = slot.word();
        (word.is_owned() && slot.key() == key).then_some((slot, word))
    }

    /// Arm an adopted socket for the first time. If it has ended, there is nothing to do.
    pub(super) fn arm_owned(
        &self,
        core: &mut Core,
        fd: Fd,
        entry: &Registration<'_>,
    ) -> Result<(), RegistrationError> {
        if let Some((slot, word)) = self.owned(fd, entry.completion_key) {
            self.arm_now(core, fd, word)?;
            slot.on_armed(word.generation());
        }
        Ok(())
    }

    /// End the registration of a socket that is not armed, without a notification.
    ///
    /// It is deleted from the backend in any case, also if it is closed next: a duplicate may keep it alive. Another kind
    /// of port saves itself that call.
    pub(crate) fn release(&self, socket: RawSocket, key: usize, _stays_open: bool) {
        let (Some(fd), Ok(mut core)) = (os::fd(socket), self.enter()) else {
            return;
        };
        let Some((_, word)) = self.owned(fd, key) else {
            return;
        };
        self.forget(&mut core, fd);
        if word.has(Flag::KNOWN) {
            // If that fails, its reports are stale.
            let _ = self.backend.disarm(fd);
        }
    }

    /// Make what [`post_after`](Self::post_after) needs: then it cannot fail for want of resources. Any key may follow.
    pub(crate) fn prepare_alarm(&self, _key: usize) -> Result<(), Error> {
        let _core = self.enter()?;
        self.backend.prepare_alarm()
    }

    /// Queue this packet after this time. The latest call replaces earlier ones.
    pub(crate) fn post_after(&self, delay: Duration, entry: Entry) -> Result<(), Error> {
        let mut core = self.enter()?;
        // Before the system counts, so that it does not come early.
        let at = Instant::now().checked_add(delay);
        self.backend.set_alarm(delay)?;
        self.set_alarm(&mut core, at, entry);
        Ok(())
    }

    /// The backend, for another loop to watch: it is ready if there is something to dequeue and no thread waits. What this thread
    /// was notified of before is armed; what another one was, when that dequeues again.
    #[allow(dead_code, reason = "not every system has such loops")]
    pub(crate) fn expose(&self) -> &B {
        if let Ok(core) = self.enter() {
            if self.gate.raise(GateFlag::EXPOSED) {
                self.leave(core);
                threads::with_current(self, |record| self.arm_levels(&mut record.scratch));
            }
        }
        &self.backend
    }
}
