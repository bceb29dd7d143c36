//! Dequeuing: take packets, or wait for them, in the backend or parked.

use std::sync::{Arc, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::backend::{BATCH, Backend, Outcome, Wait};
use super::place::{self, Places, Stay};
use super::rearm::HandedOver;
use super::register::Armed;
use super::scheduler::{Arrival, Precedence, Wake, Way};
use super::sync::Nap;
use super::{Core, Engine, Guard, Scratch};
use crate::{Entry, Error, Registration};

/// When a wait ends.
#[derive(Clone, Copy, Debug)]
enum Deadline {
    Never,
    At(Instant),
    /// At once: take what is ready, and do not wait.
    Now,
}

impl Deadline {
    fn after(timeout: Option<Duration>) -> Self {
        match timeout {
            None => Deadline::Never,
            Some(Duration::ZERO) => Deadline::Now,
            // A time too far away to be represented never comes.
            Some(timeout) => Instant::now()
                .checked_add(timeout)
                .map_or(Deadline::Never, Deadline::At),
        }
    }

    /// The time left to wait; `None` for ever.
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

/// How many calls in a row may skip asking the backend, if all that they armed is ready, or something could not
/// be armed.
const UNASKED: u8 = 3;

/// A call that dequeues.
struct Call<'call, 'socket, B: Backend> {
    scratch: Box<Scratch<B>>,
    registrations: &'call mut [Registration<'socket>],
    /// What it has armed.
    armed: Armed,
    room: usize,
    arrival: Arrival,
    deadline: Deadline,
    /// It has polled the backend without waiting, and found nothing.
    has_checked: bool,
    /// How many times in a row it has watched while no thread dequeued.
    idle: u32,
}

impl<B: Backend> Call<'_, '_, B> {
    /// Whether the thread of this call has a reason to end its parking.
    fn is_due(&self, core: &Core<B>) -> bool {
        core.closed || core.scheduler.is_released(self.arrival) || self.deadline.has_passed()
    }
}

impl<B: Backend> Engine<B> {
    /// Dequeue packets, after the registrations were applied. Also arms what is not armed yet.
    pub(super) fn dequeue<'a>(
        self: &'a Arc<Self>,
        mut core: Guard<'a, B>,
        mut scratch: Box<Scratch<B>>,
        registrations: &mut [Registration<'_>],
        armed: Armed,
        entries: &mut [Entry],
        timeout: Option<Duration>,
    ) -> Result<usize, Error> {
        let room = entries.len();
        self.refresh(&mut core, &mut scratch, room);
        let mut call = Call {
            scratch,
            registrations,
            armed,
            room,
            arrival: core.scheduler.arrive(),
            deadline: Deadline::after(timeout),
            has_checked: false,
            idle: 0,
        };
        // Wait at least once, even with a timeout of zero, to fetch what the system reports.
        let mut has_waited = false;
        let result = loop {
            if core.closed {
                break Err(Error::Closed);
            }
            let count = self.take(&mut core, entries);
            if count > 0 {
                break Ok(count);
            }
            if has_waited && call.deadline.has_passed() || call.scratch.has_failed_owned {
                break Err(Error::TimedOut);
            }
            core = self.wait(core, &mut call, &mut has_waited);
        };
        core = self.rearm(core, &mut call.scratch, call.registrations);
        core.scratch.push(call.scratch);
        if core.closed {
            // Closing wakes one thread that waits in the backend; each woken thread wakes the next.
            let wake = core.scheduler.is_anyone_polling();
            drop(core);
            if wake {
                self.wake(Wake::Polling);
            }
        } else {
            self.leave(core);
        }
        result
    }

    /// Wait until there may be packets for this thread, or its time is over.
    fn wait<'a>(
        &'a self,
        mut core: Guard<'a, B>,
        call: &mut Call<'_, '_, B>,
        has_waited: &mut bool,
    ) -> Guard<'a, B> {
        let mut is_aside = false;
        loop {
            let way = match is_aside {
                true => Way::Park,
                false => core.scheduler.way(call.idle),
            };
            // A thread that is awake takes what is queued before it sleeps.
            let checks = !is_aside && !call.has_checked && core.scheduler.has_place();
            let is_polling = way == Way::Poll || checks;
            let was_ahead;
            if is_polling {
                call.has_checked = way != Way::Poll;
                (core, was_ahead) = self.poll(core, call, has_waited);
            } else if !call.scratch.rearms.is_empty() {
                return self.rearm(core, &mut call.scratch, call.registrations);
            } else {
                *has_waited = true;
                call.has_checked = false;
                core = match way {
                    Way::Watch(time) => self.watch(core, call, time),
                    _ => self.park(core, call),
                };
                if call.idle > 0 {
                    // A packet may have come even so. If not, the next packet wakes this thread.
                    continue;
                }
                was_ahead = core.scheduler.is_newer_polling(call.arrival);
            }
            let packets = core.queue.len();
            let precedence = core.scheduler.precedence(call.arrival, was_ahead, packets);
            is_aside |= matches!(precedence, Precedence::NewerPolling(_));
            if let Precedence::Newer(wake) | Precedence::NewerPolling(wake) = precedence {
                self.wake(wake);
                if !call.deadline.has_passed() {
                    continue;
                }
            }
            if !is_polling {
                self.refresh(&mut core, &mut call.scratch, call.room);
            }
            return core;
        }
    }

    /// Move packets to the caller, if its thread can take a place.
    fn take(self: &Arc<Self>, core: &mut Core<B>, entries: &mut [Entry]) -> usize {
        if core.queue.len() == 0 || !core.scheduler.has_place() {
            return 0;
        }
        let Core { queue, table, .. } = core;
        let count = queue.dequeue(
            table,
            entries,
            |socket| self.backend.delivered(socket),
            |socket| self.owner.release(socket),
        );
        let this = || {
            let this: Weak<Self> = Arc::downgrade(self);
            this as Weak<dyn Places>
        };
        if count > 0 {
            let is_timed = core.scheduler.on_taken();
            let stay = is_timed.then(|| Stay::new(count));
            if place::give(self.id, this, stay) {
                core.scheduler.running += 1;
            }
        }
        count
    }

    /// Wait in the backend, or only poll it ([`Call::has_checked`]), after arming what this call arms, and turn the
    /// reports into notifications. Also returns whether newer threads are still waiting.
    fn poll<'a>(
        &'a self,
        mut core: Guard<'a, B>,
        call: &mut Call<'_, '_, B>,
        has_waited: &mut bool,
    ) -> (Guard<'a, B>, bool) {
        let Call {
            scratch, arrival, ..
        } = call;
        core.scheduler.begin_polling(*arrival, !call.has_checked);
        let began = core.generation;
        let may_skip = core.unasked < UNASKED;
        drop(core);
        let handed_over = match B::ARMS_ON_WAIT {
            true => HandedOver::Armed,
            false => self.hand_over(scratch),
        };
        // First handle what could not be armed: it may be ready when it is registered again.
        let mut has_failed = handed_over == HandedOver::Failed;
        let is_all_ready = handed_over == HandedOver::Ready(call.registrations.len());
        let asks = !(may_skip && (has_failed || is_all_ready));
        let wait = Wait {
            // One more report than this thread takes: if there is one, another thread is woken for it.
            room: call.room.saturating_add(1).min(BATCH),
            timeout: match handed_over {
                HandedOver::Armed if call.has_checked => Some(Duration::ZERO),
                HandedOver::Armed => call.deadline.remaining(),
                // Sockets that are ready already are queued after those that were reported before.
                _ => Some(Duration::ZERO),
            },
            borrowed: call.armed,
            is_exclusive: false,
        };
        let Scratch {
            memory,
            rearms,
            reports,
            ..
        } = &mut **scratch;
        match asks {
            true => self
                .backend
                .wait(&self.wanted, memory, rearms, reports, &wait),
            false => reports.clear(),
        }
        if B::ARMS_ON_WAIT {
            has_failed = rearms.iter().any(|it| it.outcome != Outcome::Armed);
        }
        *has_waited = asks && !has_failed;
        let is_woken = reports.woken;
        let mut core = self.lock();
        core.unasked = if asks { 0 } else { core.unasked + 1 };
        let mut was_ahead = core.scheduler.end_polling(*arrival, is_woken);
        if !self.backend.wakes_newest() {
            was_ahead = core.scheduler.is_newer_polling(*arrival);
        }
        if !core.closed {
            if has_failed {
                self.take_outcomes(&mut core, scratch, call.registrations);
            }
            let is_stray = self.take_reports(&mut core, scratch, began);
            if scratch.reports.wants_exclusive {
                self.fetch(&mut core);
            }
            if !scratch.rearms.is_empty() {
                self.take_outcomes(&mut core, scratch, call.registrations);
            }
            if core.queue.len() == 0 {
                // There may be more reports.
                *has_waited &= scratch.reports.reports.len() < wait.room;
                if is_stray {
                    core.rearm_policy.on_spurious_wakeup();
                }
            }
        }
        scratch.rearms.clear();
        (core, was_ahead)
    }

    /// Wait until released, or until the timeout.
    fn park<'a>(&'a self, mut core: Guard<'a, B>, call: &mut Call<'_, '_, B>) -> Guard<'a, B> {
        self.backend.flush(&self.wanted);
        call.idle = 0;
        let parker = core.scheduler.park(call.arrival);
        while !call.is_due(&core) {
            core = match call.deadline.remaining() {
                None => parker.wait(core).unwrap_or_else(PoisonError::into_inner),
                Some(time) => {
                    let waited = parker.wait_timeout(core, time);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        core.scheduler.unpark(call.arrival, parker);
        core
    }

    /// The same, in slices of this time, as long as another thread dequeues within each. If none does, the running
    /// threads are [idle](Call::idle), or busy for long.
    fn watch<'a>(
        &'a self,
        mut core: Guard<'a, B>,
        call: &mut Call<'_, '_, B>,
        time: Duration,
    ) -> Guard<'a, B> {
        self.backend.flush(&self.wanted);
        let parker = core.scheduler.park(call.arrival);
        core.scheduler.is_watched = true;
        let mut is_idle = false;
        while !is_idle && !call.is_due(&core) {
            let taken = core.scheduler.taken;
            let left = call.deadline.remaining();
            let mut nap = Nap::new(left.map_or(time, |left| left.min(time)));
            while !nap.is_over() && !call.is_due(&core) {
                core = nap.wait(&parker, core, &self.core);
            }
            is_idle = core.scheduler.taken == taken;
        }
        is_idle &= !call.is_due(&core);
        call.idle = if is_idle { call.idle + 1 } else { 0 };
        core.scheduler.is_watched = false;
        core.scheduler.unpark(call.arrival, parker);
        if is_idle && self.backend.waiters() > 1 {
            // The system wakes it before others that poll already, so it counts as the newest.
            call.arrival = core.scheduler.arrive();
        }
        core
    }
}
