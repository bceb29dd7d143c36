//! Registrations: from the caller's entries to the table and the poller.

use std::time::Duration;

use super::reports::BATCH;
use super::table::State;
use super::{Core, Engine, Guard, Mode, Owed, Poller, ReportBuffer, Watch, WatchError, ownership};
use crate::sys::{self, RawSocket};
use crate::{Events, Operation, Registration, RegistrationError, Trigger};

/// How many sockets have to be armed again together for a look at all of them to be worth while.
const WORTH_PROBING: usize = if cfg!(interleavings) { 1 } else { 4 };

/// One in so many times the poller is told to watch in any case. It finds out if the number does not
/// stand for the registered socket any more, and a look does not.
const PROBES_IN_A_ROW: u8 = 16;

/// How often to try for the report of what holds already, before it may pass for an edge.
const SETTLING_TRIES: usize = 8;

impl<P: Poller> Engine<P> {
    /// Apply a batch in order, each entry with its own result.
    ///
    /// An entry that arms a known level-triggered registration again leaves its word to the poller
    /// [owed](Registration::owed): that is one system call for each, which need not hold up others.
    pub(super) fn apply(&self, core: &mut Core<P::Buffer>, batch: &mut [Registration<'_>]) {
        if !batch.iter().all(|entry| is_fired(core, entry)) {
            self.poller.catch_up();
        }
        for index in 0..batch.len() {
            let (before, rest) = batch.split_at_mut(index);
            let registration = &mut rest[0];
            registration.owed = None;
            registration.result = match registration.check() {
                Ok(()) if interrupt(core, registration) || rearm(core, registration) => Ok(()),
                Ok(()) => {
                    self.rearm_owed_of(core, before, registration.raw_socket());
                    self.apply_one(core, registration)
                }
                Err(error) => Err(error),
            };
        }
        self.settle(core);
    }

    /// Apply one entry that was checked, with the lock held throughout.
    fn apply_one(
        &self,
        core: &mut Core<P::Buffer>,
        registration: &Registration<'_>,
    ) -> Result<(), RegistrationError> {
        if registration.operation == Operation::NONE {
            return Ok(());
        }
        let socket = sys::number(registration.raw_socket()).ok_or(RegistrationError::NotASocket)?;
        match registration.operation {
            Operation::ENABLE => self.enable(core, socket, registration),
            Operation::DISABLE => {
                self.unwatch(core, socket)?;
                if let Some(slot) = core.table.slot(socket) {
                    slot.state = State::Disabled;
                }
                Ok(())
            }
            _ => {
                self.unwatch(core, socket)?;
                self.fetch_before_packet(core);
                if let Some(slot) = core.table.slot(socket) {
                    slot.state = State::Removing;
                    let token = slot.token(socket);
                    core.queue.notify(&mut core.table, token, Events::REMOVE);
                }
                Ok(())
            }
        }
    }

    fn enable(
        &self,
        core: &mut Core<P::Buffer>,
        socket: u32,
        registration: &Registration<'_>,
    ) -> Result<(), RegistrationError> {
        let Some(slot) = core.table.slot(socket) else {
            return self.enable_new(core, socket, registration);
        };
        let same_key = slot.key == registration.completion_key;
        match slot.state {
            State::Vacant => self.enable_new(core, socket, registration),
            State::Enabled | State::Disabled if same_key && slot.watched.is_some() => {
                if slot.stays_edge_with(registration) {
                    return self.enable_edges_again(core, socket, registration);
                }
                slot.enable(registration.event_filter, registration.trigger);
                let watched = self.watch(core, socket);
                self.or_enable_new(core, socket, registration, watched)
            }
            state => {
                if !registration.owned && !self.is_same_socket(socket)? {
                    return self.enable_new(core, socket, registration);
                }
                if state == State::Removing {
                    return Err(RegistrationError::RemovePending);
                }
                if !same_key {
                    return Err(RegistrationError::OtherKey);
                }
                slot.enable(registration.event_filter, registration.trigger);
                self.watch(core, socket).map_err(refusal)
            }
        }
    }

    /// Register a socket that this port does not have. If its number has a registration all the same,
    /// that one's socket was closed.
    fn enable_new(
        &self,
        core: &mut Core<P::Buffer>,
        socket: u32,
        registration: &Registration<'_>,
    ) -> Result<(), RegistrationError> {
        self.forget(core, socket);
        let identity = self.poller.identify(socket)?;
        ownership::claim(socket, self.id, identity.id)?;
        core.table
            .insert(socket, registration.completion_key, identity.kind)
            .enable(registration.event_filter, registration.trigger);
        self.watch(core, socket).map_err(|error| {
            self.forget(core, socket);
            refusal(error)
        })
    }

    /// Enable an edge-triggered registration that is enabled. Its edges go on: none is lost.
    fn enable_edges_again(
        &self,
        core: &mut Core<P::Buffer>,
        socket: u32,
        registration: &Registration<'_>,
    ) -> Result<(), RegistrationError> {
        if !self.is_same_socket(socket)? {
            return self.enable_new(core, socket, registration);
        }
        let Some(slot) = core.table.slot(socket) else {
            return self.enable_new(core, socket, registration);
        };
        let filter = registration.event_filter;
        if slot.filter == filter {
            slot.enable(filter, registration.trigger);
            return Ok(());
        }
        // What is wanted before and after.
        let lasting = Watch {
            filter: slot.filter & filter,
            ..slot.watch(socket, Mode::Edge)
        };
        // The poller takes the change for a beginning, and reports what holds. So what it has seen
        // before is fetched; and of what it reports then, that is an edge which has risen meanwhile.
        self.poller.observe(&lasting);
        self.fetch(core);
        let watched = match core.table.of_turn(socket, lasting.turn) {
            Some(slot) if slot.is_live() => {
                slot.enable(filter, registration.trigger);
                self.watch(core, socket)
            }
            _ => Err(WatchError::Unknown),
        };
        if let Some(slot) = core.table.of_turn(socket, lasting.turn) {
            slot.going_on = lasting.filter.wanted();
        }
        self.settle(core);
        if self.poller.has_risen(&lasting) {
            self.look_at(core, &lasting);
        }
        self.or_enable_new(core, socket, registration, watched)
    }

    /// The outcome of watching a socket that is registered already. If the poller does not know it, the
    /// socket that was registered is closed, and this is another.
    fn or_enable_new(
        &self,
        core: &mut Core<P::Buffer>,
        socket: u32,
        registration: &Registration<'_>,
        watched: Result<(), WatchError>,
    ) -> Result<(), RegistrationError> {
        match watched {
            Err(WatchError::Unknown) => self.enable_new(core, socket, registration),
            Err(WatchError::Refused(error)) => Err(error),
            Ok(()) => Ok(()),
        }
    }

    /// Have the poller watch an enabled registration.
    fn watch(&self, core: &mut Core<P::Buffer>, socket: u32) -> Result<(), WatchError> {
        let Some(slot) = core.table.slot(socket) else {
            return Err(WatchError::Unknown);
        };
        let mode = slot.mode();
        let again = slot.watched.is_some();
        let watch = slot.watch_anew(socket, mode);
        slot.going_on = Events::empty();
        slot.settling = mode == Mode::Edge;
        if slot.settling {
            core.settling.push(slot.token(socket));
        }
        self.poller.watch(&watch, again).inspect_err(|_| {
            slot.state = State::Disabled;
            slot.watched = None;
        })
    }

    /// Let edges begin for the registrations that were enabled just now: take what the poller reports
    /// of them, which holds already and so is no edge.
    ///
    /// Another thread may have been given it. Then the poller is told anew, so that it reports once
    /// more, and that thread comes with a report of an earlier turn.
    fn settle(&self, core: &mut Core<P::Buffer>) {
        for _ in 0..SETTLING_TRIES {
            if core.settling.is_empty() {
                return;
            }
            self.fetch(core);
            if !core.may_be_in_hand() {
                break;
            }
            for watch in self.holding(core) {
                // If it is gone, it will be found out when it is used again.
                let _ = self.poller.watch(&watch, true);
            }
        }
        let Core {
            settling, table, ..
        } = core;
        for token in settling.drain(..) {
            if let Some(slot) = table.get(token) {
                slot.settling = false;
            }
        }
    }

    /// Of the registrations that were enabled just now, keep those that hold a condition which the
    /// poller has not reported to this thread, and say what it is to be told anew.
    fn holding(&self, core: &mut Core<P::Buffer>) -> Vec<Watch> {
        let Core {
            settling,
            table,
            buffers,
            ..
        } = core;
        let mut buffer = buffers.pop().unwrap_or_default();
        buffer.clear();
        settling.retain(|&token| table.get(token).is_some_and(|slot| slot.settling));
        let watches = settling.iter().filter_map(|&token| {
            let slot = table.get(token)?;
            slot.settling = false;
            (slot.state == State::Enabled && slot.watched == Some(Mode::Edge))
                .then(|| slot.watch(token.socket, Mode::Edge))
        });
        self.poller.probe(&mut buffer, watches);
        settling.clear();
        let mut again = Vec::with_capacity(buffer.reports().len());
        for report in buffer.reports() {
            if let Some(slot) = table.of_turn(report.socket, report.turn) {
                settling.push(slot.token(report.socket));
                again.push(slot.watch_anew(report.socket, Mode::Edge));
                slot.settling = true;
            }
        }
        buffers.push(buffer);
        again
    }

    /// Have the poller stop watching a registration that is to be disabled or removed.
    fn unwatch(&self, core: &mut Core<P::Buffer>, socket: u32) -> Result<(), RegistrationError> {
        let Some(slot) = core.table.slot(socket).filter(|slot| slot.is_live()) else {
            self.poller.identify(socket)?;
            return Err(RegistrationError::NotFound);
        };
        let known = match slot.watched.take() {
            None => self.is_same_socket(socket)?,
            Some(_) => match self.poller.unwatch(socket) {
                Ok(()) => true,
                Err(WatchError::Unknown) => false,
                Err(WatchError::Refused(error)) => return Err(error),
            },
        };
        if known {
            return Ok(());
        }
        self.forget(core, socket);
        self.poller.identify(socket)?;
        Err(RegistrationError::NotFound)
    }

    /// Whether the number stands for the socket that this port registered under it.
    pub(super) fn is_same_socket(&self, socket: u32) -> Result<bool, RegistrationError> {
        let identity = self.poller.identify(socket)?;
        Ok(ownership::owns(socket, self.id, identity.id))
    }

    /// End the registration of a socket that was closed. A removal that was accepted still comes out.
    pub(super) fn forget(&self, core: &mut Core<P::Buffer>, socket: u32) {
        let Some(slot) = core.table.slot(socket) else {
            return;
        };
        if slot.state == State::Removing {
            let token = slot.token(socket);
            core.queue.detach(&mut core.table, token);
        }
        core.table.end(socket);
        ownership::release(socket, self.id);
    }

    /// Say to the poller what this batch still owes it, with the lock released meanwhile.
    ///
    /// When several sockets are armed again, chances are that some of them are ready. To find out takes
    /// one system call for all; those that are need not be watched, and their notifications go to the
    /// queue, behind those of the sockets that the poller has to report at this time.
    pub(super) fn pay<'a>(
        &'a self,
        mut core: Guard<'a, P>,
        batch: &mut [Registration<'_>],
    ) -> Guard<'a, P> {
        if !is_worth_probing(batch) {
            drop(core);
            self.rearm_owed(batch);
            return self.lock();
        }
        let mut buffer = core.buffers.pop().unwrap_or_default();
        core.fetching += 1;
        drop(core);
        self.poller.wait(&mut buffer, BATCH, Some(Duration::ZERO));
        self.poller.check(&mut buffer, |_| false);
        if buffer.woken() {
            self.poller.wake();
        }
        let reported = buffer.reports().len();
        let watches = batch.iter().filter(|entry| may_probe(entry));
        let watches = watches.filter_map(|entry| entry.owed.map(|owed| owed.watch));
        self.poller.probe(&mut buffer, watches);

        let mut ready = buffer.reports()[reported..].iter().peekable();
        for registration in batch.iter_mut().filter(|entry| may_probe(entry)) {
            let socket = registration.owed.map(|owed| owed.watch.socket);
            let found = ready.next_if(|report| Some(report.socket) == socket);
            // The number may have become a socket of another port, which the poller would tell.
            if found.is_some_and(|report| ownership::is_owner(report.socket, self.id)) {
                registration.owed = None;
            }
        }
        self.rearm_owed(batch);
        let mut core = self.lock();
        core.fetching -= 1;
        if !core.closed {
            self.take_reports(&mut core, &buffer);
        }
        core.buffers.push(buffer);
        core
    }

    /// Have the poller watch again what this batch owes it. Called without the lock.
    pub(super) fn rearm_owed(&self, batch: &mut [Registration<'_>]) {
        for registration in batch {
            let Some(Owed { watch, .. }) = registration.owed.take() else {
                continue;
            };
            if let Err(error) = self.poller.watch(&watch, true) {
                let mut core = self.lock();
                registration.result = self.rearm_failed(&mut core, registration, watch, error);
                self.leave(core);
            }
        }
    }

    /// Say to the poller what earlier entries of this batch owe it for this one socket, so that a
    /// later entry finds it in order.
    fn rearm_owed_of(
        &self,
        core: &mut Core<P::Buffer>,
        earlier: &mut [Registration<'_>],
        socket: RawSocket,
    ) {
        for registration in earlier {
            if registration.raw_socket() != socket {
                continue;
            }
            let Some(Owed { watch, .. }) = registration.owed.take() else {
                continue;
            };
            if let Err(error) = self.poller.watch(&watch, true) {
                registration.result = self.rearm_failed(core, registration, watch, error);
            }
        }
    }

    /// The poller would not take the word that was owed to it.
    fn rearm_failed(
        &self,
        core: &mut Core<P::Buffer>,
        registration: &Registration<'_>,
        watch: Watch,
        error: WatchError,
    ) -> Result<(), RegistrationError> {
        if core.closed {
            return Ok(());
        }
        let Watch { socket, turn, .. } = watch;
        let live = core.table.of_turn(socket, turn);
        let live = live.filter(|slot| slot.is_live());
        if registration.owned {
            // Who has the connection now may have closed it, and the number may be another's.
            return match live.filter(|slot| slot.state == State::Enabled) {
                Some(slot) => {
                    slot.state = State::Disabled;
                    slot.watched = None;
                    Err(refusal(error))
                }
                None => Ok(()),
            };
        }
        match (error, live) {
            (WatchError::Refused(error), Some(slot)) => {
                slot.state = State::Disabled;
                Err(error)
            }
            // The socket that was registered is closed, and this is another.
            (WatchError::Unknown, Some(_)) => self.enable_new(core, socket, registration),
            // The registration ended meanwhile; begin again with whatever there is now.
            (_, None) => self.enable(core, socket, registration),
        }
    }
}

/// Queue the packet that was asked for instead of arming. False if none was.
fn interrupt<B>(core: &mut Core<B>, registration: &Registration<'_>) -> bool {
    if !registration.owned {
        return false;
    }
    let Some(socket) = sys::number(registration.raw_socket()) else {
        return false;
    };
    let Some(slot) = core.table.slot(socket) else {
        return false;
    };
    let reason = std::mem::take(&mut slot.interruption);
    let token = slot.token(socket);
    if reason != 0 {
        let reason = Events::from_bits_retain(reason);
        core.queue.notify(&mut core.table, token, reason);
    }
    reason != 0
}

/// Whether the entry arms a one-shot registration whose notification was delivered.
fn is_fired<B>(core: &mut Core<B>, registration: &Registration<'_>) -> bool {
    let socket = sys::number(registration.raw_socket());
    let slot = socket.and_then(|socket| core.table.slot(socket));
    slot.is_some_and(|slot| {
        slot.state == State::Disabled
            && slot.watched == Some(Mode::Once)
            && !slot.queued
            && slot.key == registration.completion_key
            && registration.operation == Operation::ENABLE
            && registration.trigger.contains(Trigger::LEVEL)
    })
}

/// Enable a level-triggered registration that the poller watches already, and note that its word to
/// the poller is owed. False if the entry is anything else.
fn rearm<B>(core: &mut Core<B>, registration: &mut Registration<'_>) -> bool {
    if registration.operation != Operation::ENABLE || !registration.trigger.contains(Trigger::LEVEL)
    {
        return false;
    }
    let Some(socket) = sys::number(registration.raw_socket()) else {
        return false;
    };
    let Some(slot) = core.table.slot(socket) else {
        return false;
    };
    if !slot.is_live() || slot.watched.is_none() || slot.key != registration.completion_key {
        return false;
    }
    let silent = slot.state == State::Disabled && slot.watched == Some(Mode::Once);
    slot.enable(registration.event_filter, registration.trigger);
    let mode = slot.mode();
    slot.probes = (slot.probes + 1) % PROBES_IN_A_ROW;
    registration.owed = Some(Owed {
        watch: slot.watch_anew(socket, mode),
        may_probe: silent && mode == Mode::Once && slot.probes > 0,
    });
    true
}

/// Whether enough sockets are armed again together for a look at all of them.
pub(super) fn is_worth_probing(batch: &[Registration<'_>]) -> bool {
    batch.len() >= WORTH_PROBING
        && batch.iter().filter(|entry| may_probe(entry)).count() >= WORTH_PROBING
}

fn may_probe(registration: &Registration<'_>) -> bool {
    registration.owed.is_some_and(|owed| owed.may_probe)
}

/// A socket that was there a moment ago, and that the poller does not find, was closed.
fn refusal(error: WatchError) -> RegistrationError {
    match error {
        WatchError::Unknown => RegistrationError::NotASocket,
        WatchError::Refused(error) => error,
    }
}
