//! The watcher: a parked thread that wakes from time to time while nobody polls.
//!
//! A thread that polls takes what comes. While none does, those that run may block or compute for long. So the oldest parked
//! thread sleeps for a short time, and then, if still nobody polls,
//!
//! - it has a thread polled again, if a permit is free and those that run have never found nothing to do meanwhile
//!   ([`WakePolicy::Bounded`]): they block or compute, or more is ready than they can serve;
//! - it has the [limit](super::limit) learn what is so, if none is free. Where that rises, a thread is released, which settles
//!   again when it has dequeued.
//!
//! It never waits for a thread that runs, and takes nothing from one.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::gate::Flag;
use super::limit::PERIOD;
use super::scheduler::{Parker, State};
use crate::WakePolicy;
use crate::engine::backend::Backend;
use crate::engine::{Engine, Guard};
use crate::os::on_time;
use crate::support::sync::{self, lock};

/// A sleep of no more than this has to end on time.
const SHORT: Duration = Duration::from_micros(200);

impl<B: Backend> Engine<B> {
    /// Wait until released, or the time is over. True if this thread has a permit now, and counts as polling.
    #[cold]
    pub(in crate::engine) fn park(
        &self,
        parker: &Parker,
        mut remaining: impl FnMut() -> Option<Duration>,
    ) -> bool {
        let mut core = lock(&self.core);
        if core.closed {
            return false;
        }
        core.scheduler.park(&self.gate, parker);
        // What others did before they saw it parked may need a thread: perhaps this one.
        let wake = self.settle(&mut core);
        self.wake(wake);
        while !core.closed && core.scheduler.state(parker) != Some(State::Released) {
            let left = remaining();
            if left == Some(Duration::ZERO) {
                break;
            }
            core = match core.scheduler.state(parker) == Some(State::Watching) {
                true => self.watch(core, parker, left),
                false => sync::wait(parker, core, &self.core, left),
            };
        }
        // If it was the watcher, or was released and its time is over, others are to continue: its call settles when it ends.
        core.scheduler.unpark(&self.gate, parker)
    }

    /// Sleep for a short time, and see that others continue.
    fn watch<'a>(&'a self, core: Guard<'a>, parker: &Parker, left: Option<Duration>) -> Guard<'a> {
        // In this order: who leaves a permit after that sees that the watcher is to be woken.
        self.gate.raise(Flag::SAMPLES);
        let is_free = self.gate.latest().taken() < self.limit();
        if is_free {
            self.gate.lower(Flag::SAMPLES);
        }
        let nap = match self.wake_policy {
            WakePolicy::Bounded(time) if is_free => time,
            _ => Duration::from_micros(self.pause.load(Ordering::Relaxed)),
        };
        let nap = left.map_or(nap, |left| left.min(nap));
        let wait = || sync::wait(parker, core, &self.core, Some(nap));
        let mut core = match nap <= SHORT {
            true => on_time(wait),
            false => wait(),
        };
        if core.closed || core.scheduler.state(parker) != Some(State::Watching) {
            return core;
        }
        let rules = self.rules();
        let load = self.gate.load();
        let is_polled = load.taken() >= rules.limit || load.polling() >= rules.pollers;
        let has_poller = load.polling() > 0 && (load.running() > 0 || is_polled);
        if has_poller || !rules.watching_helps(load) {
            core.scheduler.end_watch(&self.gate, parker, &rules);
            return core;
        }
        drop(core);
        let was_idle = self.was_idle.swap(false, Ordering::Relaxed);
        let has_risen = load.taken() >= rules.limit && self.sample();
        core = lock(&self.core);
        let load = self.gate.load();
        let is_one_missing = match load.running() {
            // One more may poll beside those that do.
            0 => true,
            _ => load.polling() == 0 && (has_risen || !was_idle),
        };
        if !core.closed && is_one_missing {
            let wake = core.scheduler.release(&self.gate, &self.rules());
            self.wake(wake);
        }
        core
    }

    /// Have the limit learn what is so. True if it has risen. With no lock of the engine held.
    fn sample(&self) -> bool {
        // The model checker knows no time: it rises with every second sample.
        if cfg!(interleavings) {
            let before = self.limit();
            let is_second = self.sampled.fetch_xor(1, Ordering::Relaxed) == 1;
            let rises = self.adapts && before < 4 && is_second;
            if rises {
                self.limit.store(before * 2, Ordering::Relaxed);
            }
            return rises;
        }
        let mut roster = lock(&self.roster);
        let before = self.limit();
        let Some((limit, pause)) = roster.sample(self.gate.load(), before) else {
            return false;
        };
        self.pause
            .store(pause.as_micros() as u64, Ordering::Relaxed);
        self.limit.store(limit, Ordering::Relaxed);
        drop(roster);
        let has_risen = limit > before;
        if has_risen {
            if let Some(call) = self.on_raise.get() {
                call();
            }
        }
        has_risen
    }

    /// A thread that dequeues takes a sample every [`PERIOD`] while the limit is raised: while permits are free, nobody
    /// watches, and it would be remembered over idle time.
    #[cold]
    #[inline(never)]
    pub(in crate::engine) fn sample_if_due(&self) {
        let now = self.made.elapsed().as_micros() as u64;
        let last = self.sampled.load(Ordering::Relaxed);
        // The model checker knows no time.
        let is_due = !cfg!(interleavings) && now.saturating_sub(last) >= PERIOD.as_micros() as u64;
        if is_due {
            // Another thread that sees the same takes one, too, which does no harm.
            self.sampled.store(now, Ordering::Relaxed);
            self.sample();
        }
    }

    /// Have this called whenever the limit rises, with no lock held. The first one stays.
    pub(crate) fn on_raise(&self, call: Box<dyn Fn() + Send + Sync>) {
        let _ = self.on_raise.set(call);
    }
}
