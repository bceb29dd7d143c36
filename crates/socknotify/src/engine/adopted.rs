//! Registrations of sockets that the port's user has given to the port: see [`crate::owned`].
//!
//! Between its notification and the time that it is armed again such a registration is disabled, and
//! whoever was notified has the socket. Nobody else may arm it, and nobody closes it while it is armed.

use std::time::Duration;

use super::apply::refusal;
use super::table::{Slot, State};
use super::{Core, Engine, Mode, Poller, Report, Standing, ownership};
use crate::sys::{self, RawSocket};
use crate::{Entry, Error, Events, Registration, RegistrationError};

/// How a socket is best watched: for good, or armed each time.
///
/// The poller says which it is. What arrives while a thread has the connection wakes another thread for
/// nothing, if the socket is watched for good. Where that happens more often than every fourth time, as
/// it does when a client does not wait for answers, the poller is told each time instead, for a while.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unrest {
    best: Mode,
    score: u8,
    /// How often it is to be armed before it is tried again to watch it for good.
    turns_left: u8,
}

impl Unrest {
    const DISTURBANCE: u8 = 4;
    const TOO_MUCH: u8 = 16;
    const TURNS: u8 = 64;

    /// `best`: how the poller watches it best.
    pub(super) fn new(best: Mode) -> Self {
        Unrest {
            best,
            score: 0,
            turns_left: 0,
        }
    }

    pub(super) fn mode(self) -> Mode {
        match self.turns_left {
            0 => self.best,
            _ => Mode::Once,
        }
    }

    /// It is armed.
    pub(super) fn arm(&mut self) {
        match self.turns_left {
            0 => self.score = self.score.saturating_sub(1),
            _ => self.turns_left -= 1,
        }
    }

    /// It woke a thread for nothing.
    pub(super) fn disturb(&mut self) {
        if self.best != Mode::Kept {
            return;
        }
        self.score += Self::DISTURBANCE;
        if self.score >= Self::TOO_MUCH {
            // The next time, once is enough.
            self.score = Self::TOO_MUCH - Self::DISTURBANCE;
            self.turns_left = Self::TURNS;
        }
    }
}

/// When a socket was armed whose request was submitted earlier: the answer may be of before that.
const OUTDATED: u64 = u64::MAX;

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
        Ok(self.adopt_number(&mut core, socket, key))
    }

    fn adopt_number(
        &self,
        core: &mut Core<P::Buffer>,
        socket: u32,
        key: usize,
    ) -> Result<(), RegistrationError> {
        let is_live = core.table.slot(socket).is_some_and(|slot| slot.is_live());
        if is_live && self.is_same_socket(socket)? {
            return Err(RegistrationError::OtherKey);
        }
        self.forget(core, socket);
        let identity = ownership::claim(socket, self.id, || self.poller.identify(socket))?;
        let slot = core.table.insert(socket, key, identity.kind);
        slot.owned = Some(Unrest::new(self.poller.adopted()));
        Ok(())
    }

    /// Arm the registration of an adopted socket for the first time or with another filter; or queue the
    /// packet that was asked for instead.
    pub(super) fn arm(
        &self,
        core: &mut Core<P::Buffer>,
        registration: &Registration<'_>,
    ) -> Result<(), RegistrationError> {
        let Some(socket) = sys::number(registration.raw_socket()) else {
            return Err(RegistrationError::NotASocket);
        };
        let key = registration.completion_key;
        let live = core.table.slot(socket).filter(|slot| slot.is_live());
        let Some(slot) = live.filter(|slot| slot.key == key) else {
            return Err(RegistrationError::NotASocket);
        };
        let reason = std::mem::take(&mut slot.interruption);
        if reason != 0 {
            let reason = Events::from_bits_retain(reason);
            core.queue.notify_slot(slot, socket, reason);
            return Ok(());
        }
        if slot.mode() == Mode::Request {
            return self.request(slot, socket, registration);
        }
        self.note_change(slot, registration);
        slot.enable(registration.event_filter, registration.trigger);
        slot.armed = core.clock;
        // With the lock held: whoever has the connection next must not be overtaken.
        self.watch(core, socket).map_err(refusal)
    }

    /// Arm by a request; or leave it to the one that an interruption has left behind.
    fn request(
        &self,
        slot: &mut Slot,
        socket: u32,
        registration: &Registration<'_>,
    ) -> Result<(), RegistrationError> {
        let is_asked = slot.watched == Some(Mode::Request);
        let is_same = slot.filter == registration.event_filter;
        if is_asked && !is_same {
            let left = slot.watch(socket, Mode::Request);
            self.poller.withdraw(&left);
        }
        slot.enable(registration.event_filter, registration.trigger);
        if is_asked && is_same {
            slot.armed = OUTDATED;
            return Ok(());
        }
        self.ask(slot, socket)
    }

    /// With the lock held: who closes the socket next finds the request, and withdraws it.
    pub(super) fn ask(&self, slot: &mut Slot, socket: u32) -> Result<(), RegistrationError> {
        slot.armed = 0;
        let watch = slot.watch_anew(socket, Mode::Request);
        self.poller.watch(&watch, false).map_err(refusal)
    }

    /// A request has ended. It is the last report of its turn.
    pub(super) fn take_answer(&self, core: &mut Core<P::Buffer>, report: &Report) {
        let socket = report.socket;
        let current = core.table.slot(socket).filter(|slot| {
            slot.is_live() && slot.turn == report.turn && slot.watched == Some(Mode::Request)
        });
        let Some(slot) = current else { return };
        slot.watched = None;
        if slot.state != State::Enabled {
            return;
        }
        // The thread that asked has ended, or what was seen may have been dealt with.
        let counts = report.standing == Standing::Good && slot.armed != OUTDATED;
        let events = report.events & slot.wanted();
        let outcome = if !counts {
            self.ask(slot, socket)
        } else if events.is_empty() {
            // Something that nobody asked for. Another request would be answered with the same, over
            // and over; so from here on the poller watches for changes.
            slot.owned = Some(Unrest::new(Mode::Kept));
            self.watch(core, socket).map_err(refusal)
        } else {
            core.queue.notify_slot(slot, socket, events);
            return;
        };
        if let (Err(_), Some(slot)) = (outcome, core.table.slot(socket)) {
            core.queue.notify_slot(slot, socket, Events::ERR);
        }
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
        match slot.watched {
            // It would hold the socket.
            Some(Mode::Request) => {
                let left = slot.watch(socket, Mode::Request);
                self.poller.withdraw(&left);
            }
            Some(_) if stays_open => {
                let _ = self.poller.unwatch(socket);
            }
            _ => {}
        }
        self.forget(&mut core, socket);
        drop(core);
        self.poller.submit();
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

#[cfg(all(test, not(interleavings)))]
mod tests {
    use super::*;

    #[test]
    fn a_socket_that_disturbs_is_armed_each_time_for_a_while() {
        let mut unrest = Unrest::new(Mode::Kept);
        for _ in 0..100 {
            // Now and then is in order.
            unrest.disturb();
            (0..4).for_each(|_| unrest.arm());
            assert_eq!(unrest.mode(), Mode::Kept);
        }
        (0..4).for_each(|_| unrest.disturb());
        for _ in 0..Unrest::TURNS {
            assert_eq!(unrest.mode(), Mode::Once);
            unrest.arm();
        }
        assert_eq!(unrest.mode(), Mode::Kept);
        unrest.disturb();
        assert_eq!(unrest.mode(), Mode::Once);
    }
}
