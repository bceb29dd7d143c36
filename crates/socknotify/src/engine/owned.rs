//! Registrations of sockets that the port owns: see [`crate::owned`].
//!
//! From its notification until it is armed again, such a registration is disabled, and the notified thread has the
//! socket. No other thread may arm it, and none closes it while it is armed.

use std::time::Duration;

use super::backend::Backend;
use super::interest::Mode;
use super::queue::Queue;
use super::table::{Slot, State};
use super::{Core, Engine};
use crate::entry::next_reason;
use crate::sys::{self, RawSocket};
use crate::{Entry, Error, Events, Registration, RegistrationError};

/// Whether the sockets that the port owns stay armed, or are armed each time.
///
/// If a socket stays armed, data that arrive while a thread has the connection wake another thread for nothing. If that
/// happens for more than one in four armed sockets, as with quick clients and several threads, sockets are armed each
/// time for a while.
#[derive(Debug, Default)]
pub(super) struct RearmPolicy {
    /// Grows with each spurious wake-up, and falls with each armed socket.
    score: u32,
    /// How many more sockets are armed each time before the policy tries again to keep them armed.
    left: u32,
}

impl RearmPolicy {
    const SPURIOUS: u32 = 4;
    const TOO_MANY: u32 = 64;
    const WHILE: u32 = 4096;

    /// How the next socket is armed.
    pub(super) fn mode(&mut self) -> Mode {
        if self.left > 0 {
            self.left -= 1;
            return Mode::Once;
        }
        self.score = self.score.saturating_sub(1);
        Mode::Kept
    }

    /// A thread was woken for nothing.
    pub(super) fn on_spurious_wakeup(&mut self) {
        self.score += Self::SPURIOUS;
        if self.score >= Self::TOO_MANY && self.left == 0 {
            self.score = 0;
            self.left = Self::WHILE;
        }
    }
}

impl<B: Backend> Engine<B> {
    /// Register a socket under this key, disabled.
    pub(crate) fn adopt(
        &self,
        socket: RawSocket,
        key: usize,
    ) -> Result<Result<(), RegistrationError>, Error> {
        let mut core = self.enter()?;
        Ok(self.adopt_number(&mut core, socket, key, false))
    }

    /// The same for any descriptor that can be watched.
    #[cfg_attr(windows, allow(dead_code, reason = "there, only sockets can"))]
    pub(crate) fn adopt_any(
        &self,
        socket: RawSocket,
        key: usize,
    ) -> Result<Result<(), RegistrationError>, Error> {
        let mut core = self.enter()?;
        Ok(self.adopt_number(&mut core, socket, key, true))
    }

    fn adopt_number(
        &self,
        core: &mut Core<B>,
        socket: RawSocket,
        key: usize,
        is_descriptor: bool,
    ) -> Result<(), RegistrationError> {
        let socket = sys::number(socket).ok_or(sys::NO_NUMBER)?;
        if self.has(core, socket)? {
            return Err(RegistrationError::OtherKey);
        }
        self.forget(core, socket);
        self.claim(socket, is_descriptor)?;
        core.table.insert(socket, key).is_owned = true;
        Ok(())
    }

    /// The registration of an adopted socket, if this is its key.
    fn owned(core: &mut Core<B>, socket: u32, key: usize) -> Option<(&mut Slot, &mut Queue)> {
        let Core { table, queue, .. } = core;
        let slot = table.live(socket)?;
        (slot.is_owned && slot.key == key).then_some((slot, queue))
    }

    /// Arm an adopted socket for the first time, or queue the packet that was requested in place of that.
    pub(super) fn enable_owned(
        &self,
        core: &mut Core<B>,
        socket: u32,
        entry: &Registration<'_>,
    ) -> Result<(), RegistrationError> {
        let Some((slot, queue)) = Self::owned(core, socket, entry.completion_key) else {
            return Err(RegistrationError::NotASocket);
        };
        if slot.interruption != 0 {
            let reason = next_reason(&mut slot.interruption);
            queue.notify(slot, socket, Events::from_bits_retain(reason));
            return Ok(());
        }
        let is_new = slot.armed.is_none();
        Ok(self.want(core, socket, entry, is_new)?)
    }

    /// End the registration of a socket that is not armed, without a notification. If the socket is closed next, no
    /// system call is needed.
    pub(crate) fn release(&self, socket: RawSocket, key: usize, stays_open: bool) {
        let (Some(socket), Ok(mut core)) = (sys::number(socket), self.enter()) else {
            return;
        };
        let Some((slot, _)) = Self::owned(&mut core, socket, key) else {
            return;
        };
        if slot.armed.is_some() && stays_open {
            self.wanted.withdraw(socket);
            // If that fails, its reports are stale.
            let _ = self.backend.disarm(socket);
        }
        self.forget(&mut core, socket);
        drop(core);
        self.backend.flush(&self.wanted);
    }

    /// Disarm a registration, if it is armed, and queue its packet with this value, which is one bit. True if that
    /// was done.
    ///
    /// `insist`: the value replaces events that are in the queue already. If the registration is not armed, or another
    /// value is in the queue, the packet comes when the registration is armed next.
    pub(crate) fn interrupt(
        &self,
        socket: RawSocket,
        key: usize,
        reason: u32,
        insist: bool,
    ) -> bool {
        let (Some(socket), Ok(mut core)) = (sys::number(socket), self.enter()) else {
            return false;
        };
        let Some((slot, queue)) = Self::owned(&mut core, socket, key) else {
            return false;
        };
        let is_queued = slot.ticket != 0;
        let says = Events::from_bits_retain(reason);
        if slot.state != State::Enabled {
            if insist && !(is_queued && slot.pending == says) {
                slot.interruption |= reason;
            }
            return false;
        }
        if is_queued && !insist {
            return false;
        }
        slot.state = State::Disabled;
        slot.pending = Events::empty();
        queue.notify(slot, socket, says);
        self.leave(core);
        true
    }

    /// Disarm a registration that is armed and has nothing to report. True if that was done.
    pub(crate) fn halt(&self, socket: RawSocket, key: usize) -> bool {
        let (Some(socket), Ok(mut core)) = (sys::number(socket), self.enter()) else {
            return false;
        };
        let Some((slot, _)) = Self::owned(&mut core, socket, key) else {
            return false;
        };
        let is_armed = slot.state == State::Enabled && slot.ticket == 0;
        if is_armed {
            slot.state = State::Disabled;
        }
        is_armed
    }

    /// Queue this packet after this time. The latest call replaces earlier ones.
    pub(crate) fn post_after(&self, delay: Duration, entry: Entry) -> Result<(), Error> {
        let mut core = self.enter()?;
        core.alarm = entry;
        self.backend.wake(Some(delay))
    }

    /// The backend, for another loop to watch: it is ready if there is something to dequeue and no thread waits.
    #[allow(dead_code, reason = "not every system has such loops")]
    pub(crate) fn expose(&self) -> &B {
        if let Ok(mut core) = self.enter() {
            if !core.exposed {
                core.exposed = true;
                self.leave(core);
            }
        }
        &self.backend
    }
}

#[cfg(all(test, not(interleavings)))]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_armed_each_time_for_a_while_after_many_spurious_wakeups() {
        let mut policy = RearmPolicy::default();
        for _ in 0..100 {
            // A few are acceptable.
            policy.on_spurious_wakeup();
            assert!((0..4).all(|_| policy.mode() == Mode::Kept));
        }
        let many = RearmPolicy::TOO_MANY / RearmPolicy::SPURIOUS;
        (0..many).for_each(|_| policy.on_spurious_wakeup());
        assert!((0..RearmPolicy::WHILE).all(|_| policy.mode() == Mode::Once));
        assert_eq!(policy.mode(), Mode::Kept);
    }
}
