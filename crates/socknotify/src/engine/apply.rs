//! Registrations: from the caller's entries to the table and the poller.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::reports::BATCH;
use super::table::{Slot, State};
use super::{
    Core, Debt, Engine, Guard, Mode, Owed, Poller, ReportBuffer, Step, Watch, WatchError, ownership,
};
use crate::sys::{self, RawSocket};
use crate::{Events, Operation, Registration, RegistrationError};

/// How often in a row to go with what a look has found, and not to ask the poller for more.
const UNASKED: u8 = 3;

/// How many of the sockets that were looked at are ready.
enum Found {
    Nothing,
    Some,
    All,
}

/// How often to try for the report of what holds already, before it may pass for an edge.
const SETTLING_TRIES: usize = 8;

impl<P: Poller> Engine<P> {
    /// Apply a batch in order, each entry with its own result.
    ///
    /// An entry that arms a known level-triggered registration again leaves its word to the poller
    /// [owed](Registration::owed): that is one system call for each, which need not hold up others.
    pub(super) fn apply(&self, core: &mut Core<P::Buffer>, batch: &mut [Registration<'_>]) -> Debt {
        let mut debt = Debt::default();
        if P::MISSES_CLOSES && !batch.iter().all(|entry| is_fired(core, entry)) {
            self.poller.catch_up();
        }
        for index in 0..batch.len() {
            let registration = &mut batch[index];
            registration.owed = self.rearm(core, registration);
            registration.result = match &registration.owed {
                Some(owed) => {
                    debt.add(owed.step, registration.owned);
                    Ok(())
                }
                None => registration.check(),
            };
            if registration.owed.is_none() && registration.result.is_ok() {
                let (before, rest) = batch.split_at_mut(index);
                if debt.any {
                    self.rearm_owed_of(core, before, rest[0].raw_socket());
                }
                rest[0].result = match rest[0].owned {
                    true => self.arm(core, &rest[0]),
                    false => self.apply_one(core, &rest[0]),
                };
            }
        }
        if !core.settling.is_empty() {
            self.settle(core);
        }
        debt.changes = self.changes.load(Ordering::Relaxed);
        debt
    }

    /// What a registration is enabled for is about to be changed, if it is by this entry.
    pub(super) fn note_change(&self, slot: &Slot, registration: &Registration<'_>) {
        if (slot.filter, slot.trigger) != (registration.event_filter, registration.trigger) {
            self.changes.fetch_add(1, Ordering::Release);
        }
    }

    /// Enable a level-triggered registration that the poller knows already, and say what is owed to the
    /// poller for it. `None` if the entry is anything else, and nothing was done.
    fn rearm(&self, core: &mut Core<P::Buffer>, registration: &Registration<'_>) -> Option<Owed> {
        if !registration.is_level_enable() {
            return None;
        }
        let socket = sys::number(registration.raw_socket())?;
        let slot = core.table.slot(socket)?;
        let takes_requests = slot.mode() == Mode::Request;
        // A request that is answered at once would wake another thread, if one waits.
        let is_known = match takes_requests {
            true => slot.watched.is_none() && core.scheduler.is_anyone_polling(),
            false => slot.watched.is_some(),
        };
        if !slot.is_live() || !is_known || slot.key != registration.completion_key {
            return None;
        }
        if registration.owned && !slot.can_be_armed_with(registration.event_filter) {
            return None;
        }
        self.note_change(slot, registration);
        // Where it was reported, and then disabled, the poller has kept silent since.
        let is_silent = slot.state == State::Disabled && slot.watched == Some(Mode::Once);
        slot.enable(registration.event_filter, registration.trigger);
        slot.armed = core.clock;
        if let Some(unrest) = &mut slot.owned {
            unrest.arm();
        }
        let mode = slot.mode();
        let is_kept = (slot.watched, mode) == (Some(Mode::Kept), Mode::Kept);
        let step = if takes_requests || is_kept {
            Step::Look
        } else {
            // One in 256 times the poller is told in any case. It finds out if the number does not stand for
            // the registered socket any more, and a look does not.
            slot.looks = slot.looks.wrapping_add(1);
            slot.turn_over(mode);
            let may_look = registration.owned || slot.looks > 0;
            match is_silent && mode == Mode::Once && may_look {
                true => Step::TellOrLook,
                false => Step::Tell,
            }
        };
        Some(Owed {
            socket,
            turn: slot.turn,
            kind: slot.kind,
            mode,
            step,
            seen: Events::empty(),
        })
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
        self.note_change(slot, registration);
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
                if !self.is_same_socket(socket)? {
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
        let identity = ownership::claim(socket, self.id, || self.poller.identify(socket))?;
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
            slot.let_go_on(lasting.filter.wanted());
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
    pub(super) fn watch(&self, core: &mut Core<P::Buffer>, socket: u32) -> Result<(), WatchError> {
        let Some(slot) = core.table.slot(socket) else {
            return Err(WatchError::Unknown);
        };
        let mode = slot.mode();
        let again = slot.watched.is_some();
        let watch = slot.watch_anew(socket, mode);
        slot.let_go_on(Events::empty());
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
        settling.retain(|&token| {
            let slot = table.get(token).filter(|slot| slot.settling);
            slot.is_some_and(|slot| {
                slot.settling = false;
                slot.state == State::Enabled && slot.watched == Some(Mode::Edge)
            })
        });
        let watches = settling.iter().filter_map(|&token| {
            let slot = table.peek(token)?;
            Some(slot.watch(token.socket, Mode::Edge))
        });
        let mut buffer = buffers.pop().unwrap_or_default();
        self.poller.probe(&mut buffer, watches);
        let mut seen = buffer.seen().iter();
        settling.retain(|_| seen.next().is_some_and(|events| !events.is_empty()));
        buffers.push(buffer);
        let mut again = Vec::with_capacity(settling.len());
        for &token in &*settling {
            if let Some(slot) = table.get(token) {
                again.push(slot.watch_anew(token.socket, Mode::Edge));
                slot.settling = true;
            }
        }
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
    ///
    /// For sockets that are watched for good, this look is all there is to do. If all of them are ready,
    /// the poller is not even asked, for a few times in a row.
    pub(super) fn pay<'a>(
        &'a self,
        mut core: Guard<'a, P>,
        batch: &mut [Registration<'_>],
        debt: Debt,
    ) -> Guard<'a, P> {
        if !debt.takes_a_look() {
            drop(core);
            self.rearm_owed(batch, debt.changes);
            return self.lock();
        }
        let mut buffer = core.buffers.pop().unwrap_or_default();
        let began = core.begin_look();
        let may_skip = !debt.is_worth_looking() && core.unasked < UNASKED;
        core.fetching += 1;
        drop(core);
        let found = self.look(&mut buffer, batch);
        self.rearm_owed(batch, debt.changes);
        let asks = match found {
            Found::Nothing => debt.is_worth_looking(),
            Found::Some => true,
            Found::All => !may_skip,
        };
        if asks {
            self.poller.wait(&mut buffer, BATCH, Some(Duration::ZERO));
            self.poller.check(&mut buffer, |_| false);
            if buffer.woken() {
                self.poller.wake();
            }
        }
        core = self.lock();
        core.fetching -= 1;
        if !core.closed {
            core.unasked = if asks {
                0
            } else {
                core.unasked.saturating_add(1)
            };
            if asks {
                self.take_reports(&mut core, &buffer, began);
            }
            self.take_what_was_seen(&mut core, batch, began);
        }
        core.buffers.push(buffer);
        core
    }

    /// Look which of the sockets that are armed again are ready now. What is left of the steps after
    /// that is to tell the poller, or that there is something to notify.
    fn look(&self, buffer: &mut P::Buffer, batch: &mut [Registration<'_>]) -> Found {
        let watches = batch.iter().filter_map(|registration| {
            let owed = registration.owed.as_ref()?;
            owed.step
                .looks()
                .then(|| owed.watch(registration.event_filter))
        });
        self.poller.probe(buffer, watches);
        // The number may have become a socket of another port, which the poller would tell.
        let numbers = ownership::of_port(self.id);
        let mut seen = buffer.seen().iter();
        let mut ready = 0;
        for registration in batch {
            let owed = registration.owed.as_mut();
            let Some(owed) = owed.filter(|owed| owed.step.looks()) else {
                continue;
            };
            owed.seen = seen.next().copied().unwrap_or_default();
            let is_ready = !owed.seen.is_empty();
            ready += usize::from(is_ready);
            if owed.step == Step::TellOrLook {
                owed.step = match is_ready && numbers.has(owed.socket) {
                    true => Step::Look,
                    false => Step::Tell,
                };
            }
        }
        match ready {
            0 => Found::Nothing,
            _ if ready == buffer.seen().len() => Found::All,
            _ => Found::Some,
        }
    }

    /// Notify what a look has found that began at this time, unless another thread has armed the socket
    /// since. Where it has found nothing, the poller may have to be asked yet.
    fn take_what_was_seen(
        &self,
        core: &mut Core<P::Buffer>,
        batch: &mut [Registration<'_>],
        began: u64,
    ) {
        for registration in batch {
            let Some(owed) = registration.owed.filter(|owed| owed.step == Step::Look) else {
                continue;
            };
            let Some(slot) = core.table.slot(owed.socket) else {
                continue;
            };
            let is_current = slot.turn == owed.turn && slot.armed < began;
            if is_current && slot.state == State::Enabled {
                let events = owed.seen & slot.wanted();
                if events.is_empty() && owed.mode == Mode::Request {
                    registration.result = self.ask(slot, owed.socket);
                }
                core.queue.notify_slot(slot, owed.socket, events);
            }
        }
    }

    /// Have the poller watch again what this batch owes it, where so many changes are known of. Called
    /// without the lock.
    pub(super) fn rearm_owed(&self, batch: &mut [Registration<'_>], changes: usize) {
        for registration in &mut *batch {
            if let Some(Err((watch, error))) = self.tell(registration) {
                let mut core = self.lock();
                registration.result = self.rearm_failed(&mut core, registration, watch, error);
                self.leave(core);
            }
        }
        // Whoever has told the poller something else before that, had counted the change before.
        if self.changes.load(Ordering::Acquire) != changes {
            self.tell_again(batch);
        }
    }

    /// Say to the poller what is owed to it for one entry. `None` if nothing is.
    fn tell(&self, registration: &mut Registration<'_>) -> Option<Result<(), (Watch, WatchError)>> {
        let owed = registration
            .owed
            .as_mut()
            .filter(|owed| owed.step.tells())?;
        owed.step = Step::Told;
        let watch = owed.watch(registration.event_filter);
        let told = self.poller.watch(&watch, true);
        Some(told.map_err(|error| (watch, error)))
    }

    /// Registrations were changed while this thread told the poller of some. Where those are among them,
    /// the poller gets the word that counts.
    #[cold]
    fn tell_again(&self, batch: &[Registration<'_>]) {
        let mut core = self.lock();
        for owed in batch.iter().filter_map(|registration| registration.owed) {
            let slot = core.table.slot(owed.socket);
            if owed.step == Step::Told && slot.is_some_and(|slot| slot.turn != owed.turn) {
                self.watch_anew(&mut core, owed.socket);
            }
        }
        self.leave(core);
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
            if let Some(Err((watch, error))) = self.tell(registration) {
                registration.result = self.rearm_failed(core, registration, watch, error);
            }
        }
    }

    /// The poller would not take the word that was owed to it.
    #[cold]
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
            (_, None) => match core.table.was_removed(socket, turn) {
                // It was armed before that. By now the number may be anybody's.
                true => Ok(()),
                // Its socket was found to be closed; begin again with whatever there is now.
                false => self.enable(core, socket, registration),
            },
        }
    }
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
            && registration.is_level_enable()
    })
}

/// A socket that was there a moment ago, and that the poller does not find, was closed.
pub(super) fn refusal(error: WatchError) -> RegistrationError {
    match error {
        WatchError::Unknown => RegistrationError::NotASocket,
        WatchError::Refused(error) => error,
    }
}
