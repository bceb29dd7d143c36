//! Registrations of sockets that the port's user has given to the port: see [`crate::owned`].
//!
//! Between its notification and the time that it is armed again such a registration is disabled, and
//! whoever was notified has the socket. Nobody else may arm it, and nobody closes it while it is armed.

use std::time::Duration;

use super::table::State;
use super::{Core, Engine, Poller, ownership};
use crate::sys::{self, RawSocket};
use crate::{Entry, Error, Events, RegistrationError};

impl<P: Poller> Engine<P> {
    /// Register a socket under this key, disabled.
    pub(crate) fn adopt(
        &self,
        socket: RawSocket,
        key: usize,
    ) -> Result<Result<(), RegistrationError>, Error> {
        let mut core = self.enter()?;
        let Some(socket) = sys::number(socket) else {
            return Ok(Err(RegistrationError::NotASocket));
        };
        Ok(self.poller.identify(socket).and_then(|identity| {
            let is_known = core.table.slot(socket).is_some_and(|slot| slot.is_live())
                && ownership::owns(socket, self.id, identity.id);
            if is_known {
                return Err(RegistrationError::OtherKey);
            }
            self.forget(&mut core, socket);
            ownership::claim(socket, self.id, identity.id)?;
            core.table.insert(socket, key, identity.kind);
            Ok(())
        }))
    }

    /// End the registration of a socket that is not armed, without a notification. The poller need not
    /// be told if the socket is closed next.
    pub(crate) fn release(&self, socket: RawSocket, key: usize, stays_open: bool) {
        let (Some(socket), Ok(mut core)) = (sys::number(socket), self.enter()) else {
            return;
        };
        let live = core.table.slot(socket).filter(|slot| slot.is_live());
        let Some(slot) = live.filter(|slot| slot.key == key) else {
            return;
        };
        if stays_open && slot.watched.is_some() {
            let _ = self.poller.unwatch(socket);
        }
        self.forget(&mut core, socket);
    }

    /// Disarm a registration, if it is armed, and have its packet give this value. True if that was done.
    ///
    /// `insist`: the value takes the place of what a packet says that is in the queue already; and if
    /// there is none, and the registration is not armed, it comes when it is armed the next time.
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
        let Core { table, queue, .. } = &mut *core;
        let live = table.slot(socket).filter(|slot| slot.is_live());
        let Some(slot) = live.filter(|slot| slot.key == key) else {
            return false;
        };
        if slot.queued && !insist {
            return false;
        }
        if !slot.queued && slot.state != State::Enabled {
            if insist {
                slot.interruption = reason;
            }
            return false;
        }
        slot.state = State::Disabled;
        slot.pending = Events::empty();
        let token = slot.token(socket);
        queue.notify(table, token, Events::from_bits_retain(reason));
        self.leave(core);
        true
    }

    /// Queue this packet when the time is over. The latest time counts.
    pub(crate) fn post_after(&self, delay: Duration, entry: Entry) -> Result<(), Error> {
        let mut core = self.enter()?;
        core.alarm = entry;
        self.poller.set_alarm(delay)
    }

    /// The poller, to be watched itself: it wakes whoever watches it when there is something to
    /// dequeue and nobody waits.
    #[allow(dead_code, reason = "not every system has such loops")]
    pub(crate) fn expose(&self) -> &P {
        if let Ok(mut core) = self.enter() {
            if !core.exposed {
                core.exposed = true;
                self.leave(core);
            }
        }
        &self.poller
    }
}
