//! Dequeuing: take packets, or wait for them, in the backend or parked.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::backend::{Backend, Caller, Polls};
use super::place::{self, Holder, Record};
use super::scheduler::{Flag, QUICK};
use super::sync::{self, lock};
use super::watch::{BURST_TICK, FIRST_TICK, LAST_TICK};
use super::{Engine, Scratch};
use crate::sys::on_time;
use crate::{Entry, Error, Registration, WakePolicy};

/// When a wait ends.
struct Deadline {
    timeout: Option<Duration>,
    /// When the thread first asked how much time is left.
    since: Option<Instant>,
}

impl Deadline {
    /// The time left to wait; `None` for ever.
    #[inline]
    fn remaining(&mut self) -> Option<Duration> {
        let timeout = self.timeout?;
        if let Some(since) = self.since {
            return Some(timeout.saturating_sub(since.elapsed()));
        }
        // A call that does not wait reads no clock.
        if !timeout.is_zero() {
            self.since = Some(Instant::now());
        }
        Some(timeout)
    }

    fn has_passed(&mut self) -> bool {
        self.remaining() == Some(Duration::ZERO)
    }
}

/// How many times in a row a call that does not wait asks again after reports of no interest, besides those that each
/// registration can make before it is quiet.
const AGAIN: usize = 64;

/// One in this many calls that take packets is timed.
const SAMPLED: u32 = 8;

/// A call that dequeues.
pub(super) struct Call<'call, 'socket, B: Backend> {
    registrations: &'call mut [Registration<'socket>],
    polls: Option<&'call mut Polls>,
    scratch: &'call mut Scratch<B>,
    holder: &'call Arc<Holder>,
    deadline: Deadline,
    has_place: bool,
    /// It was parked, and released to poll or to take packets.
    is_released: bool,
    /// It counts as polling since then.
    counts_as_polling: bool,
    /// It has asked the backend without waiting, and found nothing.
    has_checked: bool,
    /// How often it has asked again without waiting.
    again: usize,
    /// It has the watch, unless it is parked: then the scheduler says so.
    has_watch: bool,
    /// In what time it looks next, if it has.
    pub(super) tick: Duration,
    /// In what time it tries again what was refused.
    retry: Duration,
}

impl<B: Backend> Engine<B> {
    /// Apply registrations, and dequeue.
    pub(super) fn dequeue(
        self: &Arc<Self>,
        registrations: &mut [Registration<'_>],
        entries: &mut [Entry],
        timeout: Option<Duration>,
        caller: Option<Caller<'_>>,
    ) -> Result<usize, Error> {
        let (polls, handover) = match caller {
            Some(caller) => (Some(caller.polls), Some(caller.handover)),
            None => (None, None),
        };
        let new = || {
            let places: Weak<Self> = Arc::downgrade(self);
            Box::new(Record::new(self.id, places, lock(&self.roster).add()))
        };
        let taken = place::take(self.id, new);
        let is_ending = taken.is_none();
        let mut record = taken.unwrap_or_else(new);
        let Record {
            holder, scratch, ..
        } = &mut *record;
        let scratch = Scratch::<B>::of(scratch);
        let has_place = holder.begin_call();
        if let Some((since, packets)) = scratch.taken.take() {
            self.on_handled(since.elapsed() / packets);
        }
        let mut call = Call {
            scratch,
            registrations,
            polls,
            holder: &*holder,
            deadline: Deadline {
                timeout,
                since: None,
            },
            has_place,
            is_released: false,
            counts_as_polling: false,
            has_checked: false,
            again: 0,
            has_watch: false,
            tick: FIRST_TICK,
            retry: FIRST_TICK,
        };
        let result = self.run(&mut call, entries);
        self.stop_counting(&mut call);
        let Call {
            scratch,
            polls,
            has_place,
            has_watch,
            ..
        } = call;
        if let (true, Some(polls)) = (scratch.has_failed, polls) {
            polls.refused.append(&mut scratch.refused);
        }
        let has_levels = !scratch.levels.is_empty();
        if has_levels {
            sync::set(&self.has_levels);
            holder.levels().append(&mut scratch.levels);
            if self.gate.load().has(Flag::EXPOSED) {
                // The loop that watches the port has to see that they are still ready.
                self.arm_levels(holder);
            }
        }
        match result {
            Ok(count) => {
                let address = handover.map_or(0, |it| Arc::as_ptr(it).cast::<()>().addr());
                if scratch.handover != address {
                    scratch.handover = address;
                    holder.set_handover(handover);
                    sync::set(&self.has_handovers);
                }
                scratch.calls = scratch.calls.wrapping_add(1);
                let is_timed =
                    scratch.calls % SAMPLED == 0 && self.wake_policy != WakePolicy::Eager;
                // The model checker knows no time.
                if is_timed && !cfg!(interleavings) {
                    scratch.taken = Some((Instant::now(), count as u32));
                }
                holder.end_call();
            }
            Err(_) => holder.end_empty_call(),
        }
        if has_watch {
            self.leave_watch(result.is_ok());
        }
        if has_levels && self.is_unwatched() {
            self.look_after();
        }
        let load = match result.is_err() && has_place {
            true => self.gate.leave_place(),
            false => self.gate.load(),
        };
        if load.has(Flag::REFUSED) {
            self.leave_refused();
        }
        self.settle_if_due(load);
        // While the thread ends, nothing would say when it has ended: so the record is dropped.
        if !is_ending {
            place::put(record);
        }
        result
    }

    /// A thread that polls has to try what was refused, from time to time, in place of this one.
    #[cold]
    pub(super) fn leave_refused(&self) {
        if self.gate.load().pollers() > 0 {
            self.backend.wake();
        }
    }

    /// A packet took this long to handle.
    #[cold]
    fn on_handled(&self, time: Duration) {
        // A very long time counts no more than a long one.
        let time = time.min(QUICK * 8).as_nanos() as u32;
        let before = self.handling.load(Ordering::Relaxed);
        self.handling
            .store((before * 7 + time) / 8, Ordering::Relaxed);
    }

    fn run(&self, call: &mut Call<'_, '_, B>, entries: &mut [Entry]) -> Result<usize, Error> {
        let mut load = self.gate.load();
        if load.has(Flag::CLOSED) {
            return Err(Error::Closed);
        }
        call.scratch.has_failed = false;
        if let Some(polls) = &mut call.polls {
            call.scratch.add(polls);
        }
        self.apply(call.scratch, call.registrations);
        if sync::is_set(&self.has_levels) {
            self.collect_levels(call.holder, &mut call.scratch.batch);
        }
        if load.has(Flag::REFUSED) {
            self.collect_refused(&mut call.scratch.batch);
        }
        if load.holders() > 1 || load.has(Flag::LEFT) {
            self.look_at_peers(load);
        }
        loop {
            // A thread that has come back from blocking took a place too many.
            if call.has_place
                && load.holders() > self.limit()
                && self.gate.leave_excess(self.limit())
            {
                self.stop_counting(call);
                call.has_place = false;
            }
            if !call.has_place && !self.gate.take_place(self.limit()) {
                self.arm(call.scratch, call.registrations);
                if call.scratch.has_failed || call.deadline.has_passed() {
                    return Err(Error::TimedOut);
                }
                self.park(call);
            } else {
                call.has_place = true;
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

    /// Take what there is, or wait for it in the backend. `None`: there may be something now.
    #[inline]
    fn collect(
        &self,
        call: &mut Call<'_, '_, B>,
        entries: &mut [Entry],
    ) -> Option<Result<usize, Error>> {
        let queued = self.queued.load(Ordering::SeqCst);
        let count = if queued > 0 {
            self.stop_counting(call);
            self.collect_both(call, entries, queued)
        } else {
            let timeout = match call.scratch.has_failed {
                true => Some(Duration::ZERO),
                false => call.deadline.remaining(),
            };
            match timeout {
                Some(Duration::ZERO) => {
                    self.stop_counting(call);
                    let (count, is_full) = self.ask_now(call, entries);
                    let is_over = count == 0 && self.queued.load(Ordering::SeqCst) == 0;
                    if is_over && (!is_full || self.has_asked_enough(call.again)) {
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

    /// Edges that nobody wants any more may come for ever.
    fn has_asked_enough(&self, again: usize) -> bool {
        // Each registration is reported when it was armed, and when it was made quiet.
        again >= AGAIN && again - AGAIN >= lock(&self.core).registered * 2
    }

    /// Packets are queued. Take them, and reports too.
    #[inline(never)]
    fn collect_both(
        &self,
        call: &mut Call<'_, '_, B>,
        entries: &mut [Entry],
        queued: usize,
    ) -> usize {
        let room = self.room_for_reports(entries.len(), queued);
        let mut count = 0;
        if room > 0 {
            count = self.ask_now(call, &mut entries[..room]).0;
        } else {
            self.arm(call.scratch, call.registrations);
            self.on_skipped();
        }
        count + self.take_packets(&mut entries[count..])
    }

    /// Ask the backend without waiting. Also returns whether there may be more: it may have had out-of-date answers alone,
    /// before it asked the system.
    #[inline(never)]
    fn ask_now(&self, call: &mut Call<'_, '_, B>, entries: &mut [Entry]) -> (usize, bool) {
        let (count, waited) = self.ask(call.scratch, entries, Some(Duration::ZERO));
        if waited.woken {
            // It is for a thread that takes a packet, which this one does, or another is woken.
            self.on_woken(call);
        }
        self.finish_batch(call.scratch, call.registrations);
        let has_asked = waited.asked || entries.is_empty();
        let may_be_more = waited.is_full || waited.woken || call.scratch.has_armed_late;
        (count, may_be_more || !has_asked)
    }

    /// Wait in the backend, if no other thread does so in place of this one. `None`: there may be something now.
    fn poll(
        &self,
        call: &mut Call<'_, '_, B>,
        entries: &mut [Entry],
        timeout: Option<Duration>,
    ) -> Option<usize> {
        let before = match std::mem::take(&mut call.counts_as_polling) {
            true => self.gate.load().without_poller(),
            false => self.gate.begin_polling(),
        };
        let does_anyone_run = before.holders() > before.pollers() + 1;
        // A thread that runs and is quick comes back sooner than this one would wake.
        let is_left_to_others = does_anyone_run && !call.is_released && !self.is_eager();
        if is_left_to_others || before.pollers() >= self.backend.waiters() {
            self.gate.end_polling();
            if !std::mem::replace(&mut call.has_checked, true) {
                // A thread that is awake takes what is there before it sleeps.
                return Some(self.ask_now(call, entries).0);
            }
            call.has_checked = false;
            call.has_place = false;
            self.gate.leave_place();
            self.park(call);
            return None;
        }
        if self.queued.load(Ordering::SeqCst) > 0 {
            self.gate.end_polling();
            return None;
        }
        call.has_checked = false;
        let had_watch = call.has_watch;
        call.has_watch = self.has_watch(had_watch, does_anyone_run);
        if call.has_watch && !had_watch {
            call.tick = self.first_tick();
        }
        let retries = before.has(Flag::REFUSED);
        let times = [
            timeout,
            call.has_watch.then_some(call.tick),
            retries.then_some(call.retry),
        ];
        let until = times.into_iter().flatten().min();
        let (count, waited) = match call.has_watch && call.tick == BURST_TICK {
            true => on_time(|| self.ask(call.scratch, entries, until)),
            false => self.ask(call.scratch, entries, until),
        };
        self.gate.end_polling();
        if waited.woken {
            self.on_woken(call);
        }
        self.finish_batch(call.scratch, call.registrations);
        if count == 0 && retries {
            self.collect_refused(&mut call.scratch.batch);
            call.retry = (call.retry * 2).min(LAST_TICK);
        }
        if count == 0 && call.has_watch {
            let (found, next) = self.look_as_watch(call.tick, true);
            self.release_for_places(found.freed);
            call.tick = next;
        }
        Some(count)
    }

    /// This thread has got the wake-up for one that polls.
    #[inline]
    fn on_woken(&self, call: &mut Call<'_, '_, B>) {
        if self.gate.take_wake() {
            call.has_watch = true;
            call.tick = self.first_tick();
        }
    }

    /// It does not poll, though it was released for that.
    #[inline]
    fn stop_counting(&self, call: &mut Call<'_, '_, B>) {
        if std::mem::take(&mut call.counts_as_polling) {
            self.gate.end_polling();
        }
    }

    /// Wait until released, or until the time is over.
    #[cold]
    fn park(&self, call: &mut Call<'_, '_, B>) {
        let mut core = lock(&self.core);
        if core.closed {
            return;
        }
        let parker = core.scheduler.park(&self.gate);
        let load = self.gate.load();
        // It would have to be released first, or needs what others keep.
        let needs_watch = load.does_anyone_run() && self.may_look && self.keep();
        if call.has_watch || needs_watch && self.gate.take_watch(false) {
            core.scheduler.set_watcher(&parker);
        }
        // What other threads did before this one was seen to be parked may need a thread: perhaps this one.
        let wake = self.settle(&mut core);
        self.wake(wake);
        let mut had_watch = std::mem::take(&mut call.has_watch);
        while !core.closed && !core.scheduler.is_released(&parker) {
            let left = call.deadline.remaining();
            if left == Some(Duration::ZERO) {
                break;
            }
            let has_watch = core.scheduler.is_watcher(&parker);
            if has_watch && !had_watch {
                call.tick = self.first_tick();
            }
            had_watch = has_watch;
            core = match has_watch {
                true => self.watch(core, call, &parker, left),
                false => sync::wait(&parker, core, &self.core, left),
            };
        }
        // Take the place before another thread is released for it.
        call.is_released = core.scheduler.is_released(&parker);
        call.has_place = call.is_released && self.gate.take_place(self.limit());
        if call.has_place {
            // Or another one is released to poll.
            self.gate.begin_polling();
            call.counts_as_polling = true;
        }
        call.has_watch = core.scheduler.unpark(&self.gate, parker);
        self.leave(core);
    }
}
