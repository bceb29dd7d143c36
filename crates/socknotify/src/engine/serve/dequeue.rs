//! Dequeue: take a permit, and what is ready; otherwise poll, or park.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{Caller, Polls};
use crate::engine::Engine;
use crate::engine::backend::{Backend, Wait};
use crate::engine::threads::{self, Flag, Record};
use crate::support::deadline::Deadline;
use crate::support::sync::lock;
use crate::{Entry, Error, Registration};

/// How many times in a row a call that does not wait asks again after reports of no interest, besides those that each
/// registration can make before it is quiet.
const AGAIN: usize = 64;

/// A call that dequeues.
struct Call<'call, 'socket, B: Backend> {
    registrations: &'call mut [Registration<'socket>],
    polls: Option<&'call mut Polls>,
    record: Box<Record<B>>,
    deadline: Deadline,
    has_permit: bool,
    /// It counts as polling.
    polls_now: bool,
    /// It was parked, and released to poll.
    is_released: bool,
    /// It has asked the backend without waiting, and found nothing.
    has_checked: bool,
    /// How often it has asked again without waiting.
    again: usize,
}

impl<B: Backend> Engine<B> {
    /// Apply registrations, and dequeue.
    pub(in crate::engine) fn dequeue(
        self: &Arc<Self>,
        registrations: &mut [Registration<'_>],
        entries: &mut [Entry],
        deadline: Deadline,
        caller: Option<Caller<'_>>,
    ) -> Result<usize, Error> {
        let (polls, known) = caller.map(|it| (it.polls, it.holder)).unzip();
        let record = threads::take(self);
        let mut call = Call {
            registrations,
            polls,
            has_permit: record.holder.end_run(),
            record,
            deadline,
            polls_now: false,
            is_released: false,
            has_checked: false,
            again: 0,
        };
        let result = self.run(&mut call, entries);
        self.stop_polling(&mut call);
        let Record {
            holder, scratch, ..
        } = &mut *call.record;
        if let (true, Some(polls)) = (scratch.has_failed, call.polls) {
            polls.refused.append(&mut scratch.refused);
        }
        if !scratch.levels.is_empty() && self.gate.load().has(Flag::EXPOSED) {
            // The loop that watches the port has to see that they are still ready.
            self.arm_levels(scratch);
        }
        let load = match result {
            Ok(_) => {
                if let Some(known) = known {
                    if known.as_ref().is_none_or(|it| !Arc::ptr_eq(it, holder)) {
                        *known = Some(Arc::clone(holder));
                    }
                }
                if self.last.load(Ordering::Relaxed) != holder.address() {
                    self.last.store(holder.address(), Ordering::Relaxed);
                }
                holder.begin_run();
                self.gate.load()
            }
            Err(_) if call.has_permit => self.gate.leave(),
            Err(_) => self.gate.load(),
        };
        if load.has(Flag::REFUSED) {
            self.leave_refused();
        }
        self.settle_if_due(load);
        threads::put(call.record);
        result
    }

    /// A thread that polls has to try what was refused, from time to time, in place of this one.
    #[cold]
    pub(in crate::engine) fn leave_refused(&self) {
        if self.gate.load().polling() > 0 {
            self.backend.wake();
        }
    }

    fn run(&self, call: &mut Call<'_, '_, B>, entries: &mut [Entry]) -> Result<usize, Error> {
        let mut load = self.gate.load();
        if load.has(Flag::CLOSED) {
            return Err(Error::Closed);
        }
        let scratch = &mut call.record.scratch;
        scratch.has_failed = false;
        if let Some(polls) = &mut call.polls {
            std::mem::swap(&mut scratch.batch, &mut polls.batch);
        }
        self.apply(scratch, call.registrations);
        if !scratch.levels.is_empty() {
            self.collect_delivered(&mut scratch.levels, &mut scratch.batch, B::KEEPS);
        }
        if load.has(Flag::REFUSED) {
            self.collect_refused(&mut scratch.batch);
        }
        if self.limit() > self.concurrency {
            self.sample_if_due();
        }
        self.queue_alarm_if_due(scratch, &call.deadline);
        loop {
            // The limit has fallen, or a thread has returned from a scope of blocking work.
            if call.has_permit && load.taken() > self.limit() {
                self.leave_excess(call);
            }
            if !call.has_permit && !self.gate.take(self.limit()) {
                self.arm(&mut call.record.scratch, call.registrations);
                if call.record.scratch.has_failed || call.deadline.has_passed() {
                    return Err(Error::TimedOut);
                }
                self.wait_for_permit(call);
            } else {
                call.has_permit = true;
                if let Some(result) = self.collect(call, entries) {
                    return result;
                }
            }
            load = self.gate.load();
            if load.has(Flag::CLOSED) {
                return Err(Error::Closed);
            }
        }
    }

    #[cold]
    fn leave_excess(&self, call: &mut Call<'_, '_, B>) {
        if self.gate.leave_excess(self.limit(), call.polls_now) {
            call.has_permit = false;
            call.polls_now = false;
        }
    }

    /// Wait until released, or until the time is over.
    fn wait_for_permit(&self, call: &mut Call<'_, '_, B>) {
        // It may have been woken to try what was refused.
        if self.gate.load().has(Flag::REFUSED) {
            self.leave_refused();
        }
        let deadline = &mut call.deadline;
        call.is_released = self.park(&call.record.parker, || deadline.remaining());
        call.has_permit = call.is_released;
        call.polls_now = call.is_released;
    }

    /// Take what there is, or wait for it in the backend. `None`: there may be something now.
    #[inline]
    fn collect(
        &self,
        call: &mut Call<'_, '_, B>,
        entries: &mut [Entry],
    ) -> Option<Result<usize, Error>> {
        let queued = self.queued.load(Ordering::SeqCst);
        let count = if queued > 0 {
            self.stop_polling(call);
            self.collect_both(call, entries, queued)
        } else {
            let timeout = match call.record.scratch.has_failed {
                true => Some(Duration::ZERO),
                false => call.deadline.remaining(),
            };
            match timeout {
                Some(Duration::ZERO) => {
                    self.stop_polling(call);
                    let (count, is_full) = self.ask_now(call, entries);
                    let is_over = count == 0 && self.queued.load(Ordering::SeqCst) == 0;
                    // Edges that nobody wants any more may come for ever. Each registration is reported when it was armed, and when it
                    // was made quiet.
                    let most = || AGAIN + lock(&self.core).registered * 2;
                    if is_over && (!is_full || call.again >= AGAIN && call.again >= most()) {
                        return Some(Err(Error::TimedOut));
                    }
                    call.again += 1;
                    count
                }
                timeout => self.poll(call, entries, timeout)?,
            }
        };
        if count == 0 {
            return None;
        }
        let is_more_queued = self.queued.load(Ordering::SeqCst) > 0 && count < entries.len();
        Some(Ok(match is_more_queued {
            true => count + self.take_packets(&mut entries[count..]),
            false => count,
        }))
    }

    /// Packets are queued. Take them, and reports too.
    #[inline(never)]
    fn collect_both(
        &self,
        call: &mut Call<'_, '_, B>,
        entries: &mut [Entry],
        queued: usize,
    ) -> usize {
        // Each gets at least half of the room, or every second turn.
        let room = match entries.len() {
            _ if self.may_skip() => 0,
            1 => usize::from(self.turn.fetch_xor(true, Ordering::Relaxed)),
            room => room - queued.min(room / 2),
        };
        let mut count = 0;
        if room > 0 {
            count = self.ask_now(call, &mut entries[..room]).0;
        } else {
            self.arm(&mut call.record.scratch, call.registrations);
        }
        count + self.take_packets(&mut entries[count..])
    }

    /// Ask the backend without waiting. Also returns whether there may be more: it may have had out-of-date answers alone,
    /// before it asked the system.
    #[inline(never)]
    fn ask_now(&self, call: &mut Call<'_, '_, B>, entries: &mut [Entry]) -> (usize, bool) {
        let (count, waited) = self.ask(&mut call.record.scratch, entries, Some(Duration::ZERO));
        if waited.woken {
            // It is for a thread that takes a packet, which this one does, or another is woken.
            self.gate.lower_waking();
        }
        let has_armed_late = self.finish_batch(&mut call.record.scratch, call.registrations);
        let has_asked = waited.asked || entries.is_empty();
        let may_be_more = waited.is_full || waited.woken || has_armed_late;
        (count, may_be_more || !has_asked)
    }

    /// Wait in the backend, if no other thread does so in place of this one. `None`: there may be something now.
    fn poll(
        &self,
        call: &mut Call<'_, '_, B>,
        entries: &mut [Entry],
        timeout: Option<Duration>,
    ) -> Option<usize> {
        let was_released = std::mem::replace(&mut call.polls_now, true);
        let load = match was_released {
            true => self.gate.load(),
            false => self.gate.begin_polling(),
        };
        if !call.is_released && !self.polls_itself(call, load.running(), load.polling()) {
            self.stop_polling(call);
            if !std::mem::replace(&mut call.has_checked, true) {
                // A thread that is awake takes what is there before it sleeps.
                return Some(self.ask_now(call, entries).0);
            }
            self.found_nothing();
            call.has_checked = false;
            self.gate.leave();
            self.wait_for_permit(call);
            return None;
        }
        if self.queued.load(Ordering::SeqCst) > 0 {
            self.stop_polling(call);
            return None;
        }
        call.has_checked = false;
        self.found_nothing();
        let retries = load.has(Flag::REFUSED);
        let until = match retries {
            true => Wait::until_retry(timeout),
            false => timeout,
        };
        let (count, waited) = self.ask(&mut call.record.scratch, entries, until);
        self.stop_polling(call);
        if waited.woken {
            self.gate.lower_waking();
        }
        self.finish_batch(&mut call.record.scratch, call.registrations);
        if count == 0 && retries {
            self.collect_refused(&mut call.record.scratch.batch);
        }
        Some(count)
    }

    /// Whether this thread polls, which has found nothing, beside so many that run and poll, itself among those.
    ///
    /// It does not if another one dequeues: that one, if it is quick, dequeues again sooner than this one would wake.
    fn polls_itself(&self, call: &Call<'_, '_, B>, running: usize, polling: usize) -> bool {
        let is_quick_beside = || {
            let is_other = self.last.load(Ordering::Relaxed) != call.record.holder.address();
            running > 0 && is_other && !self.is_eager()
        };
        polling <= self.pollers() && !is_quick_beside()
    }

    /// What this thread has dequeued last was nothing to do. It counts as if another one had dequeued since, which works with that:
    /// each edge of its socket would wake this one.
    pub(crate) fn in_vain(&self) {
        self.last.store(0, Ordering::Relaxed);
    }

    /// Those that run keep up with what is ready.
    #[inline]
    fn found_nothing(&self) {
        if !self.was_idle.load(Ordering::Relaxed) {
            self.was_idle.store(true, Ordering::Relaxed);
        }
    }

    /// It does not poll any more.
    #[inline]
    fn stop_polling(&self, call: &mut Call<'_, '_, B>) {
        if std::mem::take(&mut call.polls_now) {
            self.gate.end_polling();
        }
    }
}
