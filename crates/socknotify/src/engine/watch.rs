//! The watch: one of the threads that wait looks at those that have packets in hand.
//!
//! A thread that blocks or computes may keep something that others could use: its place, what its worker has dequeued and
//! not taken, connections to arm, level-triggered registrations. So, while a thread waits (it polls or is parked) and
//! another has packets in hand that it could use, exactly one of those that wait has the *watch*, which is one field of
//! the gate. Three moments change who has it, and nothing else does:
//!
//! 1. A thread that begins to wait while others have packets takes it, if nobody has it.
//! 2. A thread that returns with packets, which others that wait could use, gives it to one of them, if nobody has it: to
//!    the oldest that is parked, else to one that polls, which is woken for it.
//! 3. The thread that has it and does not wait any more gives it up, and then does as in 2.
//!
//! It ends when nobody has packets in hand. Whoever has it wakes as [`next_tick`] says. Peers look too: a thread that
//! dequeues, at most every [`PEERS_LOOK`], if somebody waits for a place.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::backend::Backend;
use super::place::{self, Found, Holder};
use super::scheduler::{Flag, Load, Parker, Wake};
use super::sync::{self, lock};
use super::wait::Call;
use super::{Engine, Guard};
use crate::WakePolicy;
use crate::sys::on_time;

/// How often threads that dequeue look at others.
pub(super) const PEERS_LOOK: Duration = Duration::from_micros(100);
/// After this time a thread that has the watch looks first,
pub(super) const FIRST_TICK: Duration = Duration::from_millis(1);
/// and after twice the time before, up to this.
pub(super) const LAST_TICK: Duration = Duration::from_millis(5);
/// After a place was found free, or a thread was seen to sleep, it looks after this time: there may be a burst.
pub(super) const BURST_TICK: Duration = Duration::from_micros(50);

/// When the thread that has the watch looks next: after it meant to wait for `nap`, it has found this.
fn next_tick(nap: Duration, found: &Found) -> Duration {
    match found.freed > 0 || found.asleep {
        true => BURST_TICK,
        false => (nap * 2).clamp(BURST_TICK, LAST_TICK),
    }
}

/// The rule of last resort: while threads wait for a place and nobody dequeues, the thread that has held its place longest
/// is counted out, whatever it does.
#[derive(Debug, Default)]
pub(super) struct LastResort {
    /// When the thread that watches has looked last, and the processor time of the process then.
    looked: Option<(Instant, Duration)>,
    /// For how long nobody has dequeued, as far as the process has run, and what processor time it used meanwhile.
    quiet: Duration,
    used: Duration,
}

impl LastResort {
    /// For how long nobody has dequeued when the first thread is counted out.
    const PERIOD: Duration = Duration::from_millis(10);
    /// The same, if more threads are counted out than there are places.
    const LONGEST: Duration = Duration::from_millis(100);

    /// While `over` threads are counted out.
    fn period(over: usize, places: usize) -> Duration {
        if over > places {
            return Self::LONGEST;
        }
        Self::PERIOD + Self::PERIOD * over as u32 / places as u32
    }

    /// The thread that watches has looked, after it meant to wait for `nap`, and this is so `now`, with the processor time that
    /// the process has used. `has_moved`: a thread has dequeued since the last look, or need not any more. Returns in what time
    /// one is to be counted out, if nobody moves: zero if now.
    pub(super) fn due_in(
        &mut self,
        now: (Instant, Duration),
        nap: Duration,
        has_moved: bool,
        (over, places): (usize, usize),
    ) -> Duration {
        let before = self.looked.replace(now).unwrap_or(now);
        let passed = now.0.saturating_duration_since(before.0);
        let used = now.1.saturating_sub(before.1);
        // A process that was stopped, or kept from the processors, has run for no longer than this.
        let is_late = passed > nap + LAST_TICK;
        self.quiet += if is_late { passed.min(used) } else { passed };
        self.used += used;
        if has_moved {
            (self.quiet, self.used) = (Duration::ZERO, Duration::ZERO);
        }
        // If it hardly computes, more threads cost nothing.
        let computes = self.used * 10 >= self.quiet;
        let period = Self::period(if computes { over } else { 0 }, places);
        let left = period.saturating_sub(self.quiet);
        if left.is_zero() {
            (self.quiet, self.used) = (Duration::ZERO, Duration::ZERO);
        }
        left
    }
}

impl<B: Backend> Engine<B> {
    /// Whether threads wait, and nobody would see it if this one blocked with something that they could use.
    #[inline]
    pub(crate) fn is_unwatched(&self) -> bool {
        let load = self.gate.load();
        let is_anyone_waiting = load.pollers() > 0 || load.has(Flag::PARKED);
        self.may_look && is_anyone_waiting && load.is_unwatched()
    }

    /// This thread keeps something that others could use: one of those that wait gets the watch, if nobody has it.
    #[cold]
    pub(crate) fn look_after(&self) {
        let mut core = lock(&self.core);
        if core.closed {
            return;
        }
        let mut wake = core.scheduler.give_watch(&self.gate);
        if matches!(wake, Wake::Nobody) && self.gate.take_watch(true) {
            wake = core.scheduler.wake_polling(&self.gate);
        }
        drop(core);
        self.wake(wake);
    }

    /// This thread had the watch, and does not wait any more. `runs`: it has packets in hand.
    pub(super) fn leave_watch(&self, runs: bool) {
        let load = self.gate.end_watch();
        // Of those that others have in hand, what they keep is not known. Those without a place are due to be woken as the
        // rules of the scheduler say.
        // One that leaves a place too many may have been released to poll, and counts as polling for a moment longer.
        let others = load.holders().saturating_sub(load.pollers());
        if others > usize::from(runs) && self.keep() && self.is_unwatched() {
            self.look_after();
        }
    }

    /// A thread begins to wait in the backend, or does so again, and this was so before. True if it has the watch.
    pub(super) fn has_watch(&self, had_it: bool, does_anyone_run: bool) -> bool {
        // It has a place: so it could use only what others keep besides theirs.
        let is_of_use = || self.may_look && self.keep();
        if does_anyone_run && is_of_use() {
            return had_it || self.gate.take_watch(false);
        }
        // One may have returned with packets meanwhile, the first that it keeps, and seen that it is watched.
        let load = match had_it {
            true => self.gate.end_watch(),
            false => return false,
        };
        load.does_anyone_run() && is_of_use() && self.gate.take_watch(false)
    }

    /// In what time a thread looks that has just got the watch.
    pub(super) fn first_tick(&self) -> Duration {
        FIRST_TICK.min(Duration::from_micros(
            self.tick.load(Ordering::Relaxed).into(),
        ))
    }

    /// The thread that has the watch looks, after it meant to wait for `nap`. `has_place`: it has one, and nothing to do.
    /// Returns what it finds, and in what time it looks again.
    pub(super) fn look_as_watch(&self, nap: Duration, has_place: bool) -> (Found, Duration) {
        self.look(place::MOST, Some(nap), has_place)
    }

    /// Look at the threads that have packets in hand, and let what they keep flow on. Returns what was found: where it does
    /// not matter that a thread blocks, whether one moves.
    fn look(&self, most: usize, nap: Option<Duration>, has_place: bool) -> (Found, Duration) {
        let detects = self.detects();
        let most = if detects { most } else { 0 };
        let load = self.gate.load();
        let is_idle = has_place || load.holders() < self.limit() || load.pollers() > 0;
        let mut roster = lock(&self.roster);
        let mut found = roster.look(&self.gate, is_idle, most);
        let mut next = FIRST_TICK;
        if let Some(nap) = nap {
            let is_place_wanted = !is_idle && load.has(Flag::PARKED) && !load.has(Flag::EXPOSED);
            let mut due_in = LAST_TICK;
            // The model checker knows no time.
            if detects && is_place_wanted && !cfg!(interleavings) {
                due_in = roster.count_out_if_due(&self.gate, self.limit(), nap, &mut found);
            }
            next = next_tick(nap, &found).min(due_in.max(BURST_TICK));
            self.tick.store(next.as_micros() as u32, Ordering::Relaxed);
        }
        drop(roster);
        if let Some(after) = found.after {
            let micros = after.as_micros().clamp(1, u128::from(u64::MAX)) as u64;
            self.detected_after.store(micros, Ordering::Relaxed);
        }
        for holder in &found.keepers {
            self.flow_on(holder);
        }
        if found.freed > 0 {
            if let Some(call) = self.when_left.get() {
                call();
            }
        }
        (found, next)
    }

    /// Have this called whenever threads are found to have left their places, with no lock held. The first one stays.
    pub(crate) fn when_left(&self, call: Box<dyn Fn() + Send + Sync>) {
        let _ = self.when_left.set(call);
    }

    /// Let others have what a thread keeps.
    pub(super) fn flow_on(&self, holder: &Holder) {
        self.arm_levels(holder);
        if let Some(handover) = holder.handover() {
            handover.flow_on();
        }
    }

    /// Release a parked thread for each place that was found free.
    pub(super) fn release_for_places(&self, freed: usize) {
        for _ in 0..freed {
            let mut core = lock(&self.core);
            if core.closed {
                return;
            }
            let wake = core.scheduler.release_for_place(&self.gate);
            drop(core);
            self.wake(wake);
        }
    }

    /// A thread that dequeues looks at others, if somebody waits for a place, or may go on without one, and it is time.
    #[inline(never)]
    pub(super) fn look_at_peers(&self, load: Load) {
        let is_waited_for = load.holders() > 1 && (load.has(Flag::PARKED) || self.keep());
        if !self.detects() || !is_waited_for && !load.has(Flag::LEFT) {
            return;
        }
        let pause = match is_waited_for {
            true => PEERS_LOOK,
            false => FIRST_TICK,
        };
        let now = self.made.elapsed().as_micros() as u64;
        let last = self.looked.load(Ordering::Relaxed);
        let order = Ordering::Relaxed;
        let is_due = now.saturating_sub(last) >= pause.as_micros() as u64
            && self
                .looked
                .compare_exchange(last, now, order, order)
                .is_ok();
        // The model checker knows no time.
        if cfg!(interleavings) || is_due {
            let (found, _) = self.look(place::PEERS_MOST, None, false);
            self.release_for_places(found.freed);
        }
    }

    /// The parked thread that has the watch sleeps for a short time, and looks.
    pub(super) fn watch<'a>(
        &'a self,
        mut core: Guard<'a>,
        call: &mut Call<'_, '_, B>,
        parker: &Parker,
        left: Option<Duration>,
    ) -> Guard<'a> {
        let is_free = |load: Load| load.holders() < self.limit();
        let nap = match self.wake_policy {
            WakePolicy::Bounded(time) if is_free(self.gate.load()) => time.min(call.tick),
            _ => call.tick,
        };
        let nap = left.map_or(nap, |left| left.min(nap));
        let wait = || sync::wait(parker, core, &self.core, Some(nap));
        core = match nap == BURST_TICK {
            true => on_time(wait),
            false => wait(),
        };
        if core.closed || core.scheduler.is_released(parker) {
            return core;
        }
        drop(core);
        let (found, next) = self.look_as_watch(nap, false);
        call.tick = next;
        let load = self.gate.load();
        let needs_no_poller = load.pollers() >= self.backend.waiters();
        let is_one_missing = if !load.does_anyone_run() {
            // One more may poll beside those who do.
            true
        } else if load.pollers() > 0 {
            found.moved && self.is_eager()
        } else {
            !found.moved || self.is_eager() || self.has_more()
        };
        if found.freed > 0 {
            self.release_for_places(found.freed);
        } else if is_free(load) && is_one_missing && !needs_no_poller {
            self.release_for_places(1);
        }
        core = lock(&self.core);
        let is_idle = !self.gate.load().does_anyone_run();
        if !core.closed && is_idle && core.scheduler.is_watcher(parker) {
            let load = core.scheduler.end_watch(&self.gate);
            if load.does_anyone_run() && self.gate.take_watch(false) {
                core.scheduler.set_watcher(parker);
            }
        }
        core
    }
}

#[cfg(all(test, not(interleavings)))]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// A watch that means to look every 5 ms: when it counts a thread out, in ms. At each of its looks it is `late` by so much; of
    /// the time, the process uses this part of a processor.
    fn counted_out(over: usize, late: impl Fn(u32) -> Duration, part: f64) -> Option<u128> {
        let mut rule = LastResort::default();
        let begin = Instant::now();
        let mut passed = Duration::ZERO;
        (0..200).find_map(|look| {
            let now = (begin + passed, passed.mul_f64(part));
            let left = rule.due_in(now, LAST_TICK, false, (over, 2));
            let after = passed.as_millis();
            passed += LAST_TICK + late(look);
            left.is_zero().then_some(after)
        })
    }

    #[test]
    fn f6_the_first_is_counted_out_after_ten_milliseconds() {
        assert_eq!(counted_out(0, |_| Duration::ZERO, 2.0), Some(10));
    }

    #[test]
    fn f6_the_next_is_counted_out_later_the_more_there_are() {
        let times = |part| [1, 2, 3, 60].map(|over| counted_out(over, |_| Duration::ZERO, part));
        assert_eq!(times(2.0), [15, 20, 100, 100].map(Some));
        // Unless the process hardly computes.
        assert_eq!(times(0.05), [Some(10); 4]);
    }

    #[test]
    fn f6_a_process_that_does_not_run_counts_nobody_out() {
        // It is stopped between any two looks.
        assert_eq!(counted_out(0, |_| 50 * MS, 0.0), None);
        // Once.
        let late = |look| if look == 0 { 1000 * MS } else { Duration::ZERO };
        assert_eq!(counted_out(0, late, 0.0), Some(1015));
        // It gets a tenth of a processor.
        assert_eq!(counted_out(0, |_| 15 * MS, 0.1), Some(100));
    }

    #[test]
    fn f6_who_dequeues_begins_it_anew() {
        let mut rule = LastResort::default();
        let begin = Instant::now();
        for look in 0..100 {
            let now = (begin + 5 * look * MS, 5 * look * MS);
            let left = rule.due_in(now, LAST_TICK, look % 2 == 0, (0, 2));
            assert!(!left.is_zero());
        }
    }

    #[test]
    fn f4_looks_are_rare_but_after_a_find() {
        let nothing = Found::default();
        let naps = |mut nap| {
            let next = || {
                nap = next_tick(nap, &nothing);
                nap.as_micros()
            };
            std::iter::repeat_with(next).take(6).collect::<Vec<_>>()
        };
        assert_eq!(naps(FIRST_TICK), [2000, 4000, 5000, 5000, 5000, 5000]);
        assert_eq!(naps(BURST_TICK), [100, 200, 400, 800, 1600, 3200]);
        let place = Found {
            freed: 1,
            ..Found::default()
        };
        let asleep = Found {
            asleep: true,
            ..Found::default()
        };
        // One that was seen to sleep is seen again soon.
        assert_eq!(
            [place, asleep].map(|it| next_tick(LAST_TICK, &it)),
            [BURST_TICK; 2]
        );
    }
}
