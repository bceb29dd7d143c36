//! Dequeuing: take packets, or wait for them in the poller or parked.

use std::sync::{Arc, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::place::{self, Places};
use super::reports::{BATCH, DORMANT_LOOK, note_disturbance};
use super::scheduler::{Arrival, Precedence, Wake};
use super::{Core, Debt, Engine, Guard, Poller, ReportBuffer, ownership};
use crate::sys;
use crate::{Entry, Error, Operation, Registration};

/// When a wait ends.
#[derive(Clone, Copy, Debug)]
enum Deadline {
    Never,
    At(Instant),
    /// At once: look, and do not wait.
    Now,
}

impl Deadline {
    fn after(timeout: Option<Duration>) -> Self {
        match timeout {
            None => Deadline::Never,
            Some(Duration::ZERO) => Deadline::Now,
            // A time too far away to be represented does not come.
            Some(timeout) => Instant::now()
                .checked_add(timeout)
                .map_or(Deadline::Never, Deadline::At),
        }
    }

    /// How long there is still to wait; `None` for ever.
    fn remaining(self) -> Option<Duration> {
        match self {
            Deadline::Never => None,
            Deadline::At(instant) => Some(instant.saturating_duration_since(Instant::now())),
            Deadline::Now => Some(Duration::ZERO),
        }
    }

    fn has_passed(self) -> bool {
        self.remaining() == Some(Duration::ZERO)
    }
}

/// Among how many registrations it is cheaper to search for a socket than to ask the system of it.
const WORTH_SEARCHING: usize = 4;

impl<P: Poller> Engine<P> {
    /// Dequeue packets, after the registrations were applied; what those owe the poller is paid on
    /// the way.
    pub(super) fn dequeue<'a>(
        self: &'a Arc<Self>,
        mut core: Guard<'a, P>,
        registrations: &mut [Registration<'_>],
        debt: Debt,
        entries: &mut [Entry],
        timeout: Option<Duration>,
    ) -> Result<usize, Error> {
        let deadline = Deadline::after(timeout);
        self.refresh(&mut core, entries.len());
        let mut owes = debt.any;
        let arrival = core.scheduler.arrive();
        // Waiting once, if only for no time, fetches what the system knows.
        let mut waited = false;
        let result = loop {
            if core.closed {
                break Err(Error::Closed);
            }
            let count = self.take(&mut core, entries);
            if count > 0 {
                break Ok(count);
            }
            if waited && deadline.has_passed() {
                break Err(Error::TimedOut);
            }
            let mut aside = false;
            core = loop {
                let parks = aside || !core.scheduler.has_place();
                if owes && (parks || debt.takes_a_look()) {
                    owes = false;
                    break self.pay(core, registrations, debt);
                }
                waited = true;
                let was_ahead;
                if parks {
                    core = self.park(core, arrival, deadline);
                    was_ahead = core.scheduler.is_newer_polling(arrival);
                } else {
                    if self.look_at_dormant(&mut core) {
                        break core;
                    }
                    let owed = std::mem::take(&mut owes).then_some(debt.changes);
                    (core, was_ahead) =
                        self.poll(core, arrival, registrations, owed, entries.len(), deadline);
                }
                let packets = core.queue.len();
                let wake = match core.scheduler.precedence(arrival, was_ahead, packets) {
                    Precedence::Own => Wake::Nobody,
                    Precedence::Newer(wake) if !deadline.has_passed() => {
                        self.wake(wake);
                        continue;
                    }
                    Precedence::NewerPolling(wake) if !deadline.has_passed() => {
                        self.wake(wake);
                        aside = true;
                        continue;
                    }
                    Precedence::Newer(wake) | Precedence::NewerPolling(wake) => wake,
                };
                self.wake(wake);
                if parks {
                    self.refresh(&mut core, entries.len());
                }
                break core;
            };
        };
        if core.closed {
            // Closing wakes one thread in the poller, and each wakes the next.
            let wake = core.scheduler.is_anyone_polling();
            drop(core);
            if wake {
                self.poller.wake();
            }
        } else {
            self.leave(core);
        }
        if owes {
            self.leave(self.pay(self.lock(), registrations, debt));
        }
        result
    }

    /// Move packets to the caller, if there is a place for its thread, which takes it.
    fn take(self: &Arc<Self>, core: &mut Core<P::Buffer>, entries: &mut [Entry]) -> usize {
        if core.queue.len() == 0 || !core.scheduler.has_place() {
            return 0;
        }
        let Core { queue, table, .. } = core;
        let count = queue.dequeue(
            table,
            entries,
            |socket| self.poller.delivered(socket),
            |socket| ownership::release(socket, self.id),
        );
        let this = || {
            let this: Weak<Self> = Arc::downgrade(self);
            this as Weak<dyn Places>
        };
        if count > 0 && place::give(self.id, this) {
            core.scheduler.take_place();
        }
        count
    }

    /// Wait in the poller, after it got the word that is owed to it, and turn what it reports into
    /// notifications. Says also whether newer threads are still there.
    ///
    /// The sockets of this call's registrations are borrowed for as long as it takes, and so are open.
    fn poll<'a>(
        &'a self,
        mut core: Guard<'a, P>,
        arrival: Arrival,
        registrations: &mut [Registration<'_>],
        owed: Option<usize>,
        room: usize,
        deadline: Deadline,
    ) -> (Guard<'a, P>, bool) {
        let looks = !core.dormant.is_empty();
        core.looking += usize::from(looks);
        let timeout = match deadline.remaining() {
            timeout if !looks => timeout,
            None => Some(DORMANT_LOOK),
            Some(timeout) => Some(timeout.min(DORMANT_LOOK)),
        };
        core.scheduler.enter_poller(arrival);
        let began = core.begin_look();
        let mut buffer = core.buffers.pop().unwrap_or_default();
        drop(core);
        if let Some(changes) = owed {
            self.rearm_owed(registrations, changes);
        }
        self.poller.wait(&mut buffer, room.min(BATCH), timeout);
        // What was armed just now, and is borrowed still, was shown to be open.
        let armed = &registrations[..registrations.len().min(WORTH_SEARCHING)];
        self.poller.check(&mut buffer, |socket| {
            armed.iter().any(|registration| {
                registration.operation == Operation::ENABLE
                    && registration.result.is_ok()
                    && sys::number(registration.raw_socket()) == Some(socket)
            })
        });
        let mut core = self.lock();
        core.looking -= usize::from(looks);
        let mut was_ahead = core.scheduler.leave_poller(arrival, buffer.woken());
        if !self.poller.wakes_newest() {
            was_ahead = core.scheduler.is_newer_polling(arrival);
        }
        if !core.closed {
            self.take_reports(&mut core, &buffer, began);
            if core.queue.len() == 0 {
                note_disturbance(&mut core, &buffer);
            }
        }
        core.buffers.push(buffer);
        (core, was_ahead)
    }

    /// Wait until released, or until the time is over.
    fn park<'a>(
        &'a self,
        mut core: Guard<'a, P>,
        arrival: Arrival,
        deadline: Deadline,
    ) -> Guard<'a, P> {
        self.poller.submit();
        let chair = core.scheduler.park(arrival);
        while !core.closed && !core.scheduler.is_released(arrival) && !deadline.has_passed() {
            core = match deadline.remaining() {
                None => chair.wait(core).unwrap_or_else(PoisonError::into_inner),
                Some(time) => {
                    let waited = chair.wait_timeout(core, time);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        core.scheduler.unpark(arrival, chair);
        core
    }
}
