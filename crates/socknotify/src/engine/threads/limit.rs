//! [`AdaptiveLimit`]: how many threads may run handlers.
//!
//! It is the concurrency value, and more while that leaves work undone: a thread that blocks uses no processor, and nobody can
//! ask it why it does not come back. So while a thread waits for a permit, the [watcher](super::watch) takes a [`Sample`] now
//! and then:
//!
//! | a thread waits for a permit, nobody polls, and | the limit |
//! |---|---|
//! | fewer threads run than the concurrency value: the others sleep | doubles |
//! | nobody has dequeued for [`STARVED`] × limit / concurrency value | doubles |
//! | nobody has dequeued for [`STALE`], which is less than that | rises by the concurrency value |
//! | neither | stays |
//!
//! It never exceeds twice the threads that there are. A [`PERIOD`] after it has changed, if somebody has dequeued meanwhile, it falls by a
//! quarter of what exceeds the concurrency value and the most that were used; or of all that exceeds the concurrency value, if more
//! than that ran at every sample. A thread that has had one event for a [`PERIOD`] does not count in that: it keeps its permit, and
//! others have theirs. Where the system does not show who sleeps, it falls only by what nobody uses. After [`STALE`] in which
//! nobody waited, all is forgotten.
//!
//! This file reads no clock, takes no lock and knows no thread: all that it learns is in the samples.

use std::time::Duration;

/// Two samples have at least this much between them,
pub(super) const WINDOW: Duration = Duration::from_micros(100);
/// and at most this, while a thread waits for a permit.
pub(super) const LONGEST: Duration = Duration::from_millis(2);
/// The limit rises if nobody dequeues for so long, times the limit over the concurrency value: what computes for less keeps the
/// order in which it came, and what computes for longer shares the processors, the more of it the longer it takes.
pub(super) const STARVED: Duration = Duration::from_millis(2);
/// It falls if it has not changed for so long.
pub(super) const PERIOD: Duration = Duration::from_millis(10);
/// Nobody is kept waiting for longer than this, and what was learned before is out of date.
pub(super) const STALE: Duration = Duration::from_millis(100);
/// A watcher that comes later than this was kept from the processors, and so were those that it watches.
const LATE: Duration = Duration::from_millis(5);

/// The port at one moment. Times are since the port was made.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sample {
    pub(super) now: Duration,
    /// How many times the port's threads have dequeued.
    pub(super) dequeues: u64,
    /// How many threads hold a permit, and do not poll.
    pub(super) holding: usize,
    /// How many of them have held it for a [`PERIOD`] with the same event.
    pub(super) long: usize,
    /// How many threads the port has.
    pub(super) threads: usize,
    /// A thread waits for a permit, none is free, and nobody polls.
    pub(super) is_wanted: bool,
}

/// What a look at a few of the threads that hold permits says of all.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    /// So many run, if those are believed to sleep that were seen asleep now.
    pub(super) least_running: usize,
    /// So many, if only those are that an earlier look has seen asleep with the same event. If the two differ, another look soon
    /// is worth its price.
    pub(super) most_running: usize,
}

/// How many threads may run handlers.
#[derive(Debug)]
pub(in crate::engine) struct AdaptiveLimit {
    concurrency: usize,
    limit: usize,
    last: Option<Sample>,
    /// When the limit has changed, and when a thread was seen to have dequeued.
    changed: Duration,
    dequeued: Duration,
    /// For how long nobody has dequeued since then, as far as the process has run.
    starved: Duration,
    /// The most that held a permit since the limit fell, and the fewest that ran since it changed.
    most_holding: usize,
    fewest_running: Option<usize>,
    /// In what time the next sample is due, while a thread waits for a permit.
    pub(super) pause: Duration,
    pub(super) rises: Rises,
}

/// How often the limit has risen.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::engine) struct Rises {
    /// Because threads slept with what they had dequeued.
    pub(in crate::engine) asleep: u64,
    /// Because nobody dequeued.
    pub(in crate::engine) starved: u64,
}

impl AdaptiveLimit {
    pub(in crate::engine) fn new(concurrency: usize) -> Self {
        let concurrency = concurrency.max(1);
        AdaptiveLimit {
            concurrency,
            limit: concurrency,
            last: None,
            changed: Duration::ZERO,
            dequeued: Duration::ZERO,
            starved: Duration::ZERO,
            most_holding: 0,
            fewest_running: None,
            pause: WINDOW,
            rises: Rises::default(),
        }
    }

    #[cfg(all(test, not(interleavings)))]
    pub(super) fn get(&self) -> usize {
        self.limit
    }

    /// Whether it is above the concurrency value. While nobody waits for a permit, a thread that dequeues takes a sample every
    /// [`PERIOD`]: else it would not fall.
    pub(super) fn is_raised(&self) -> bool {
        self.limit > self.concurrency
    }

    /// Learn what is so now. `look` makes system calls, and so is asked only if it decides; `None` where the system does not show
    /// whether a thread sleeps.
    pub(super) fn observe(&mut self, sample: Sample, look: impl FnOnce() -> Option<Look>) -> usize {
        self.most_holding = self.most_holding.max(sample.holding);
        let passed = self
            .last
            .map_or(Duration::MAX, |last| sample.now.saturating_sub(last.now));
        if passed < WINDOW {
            self.pause = WINDOW - passed;
            return self.limit;
        }
        match self.last.replace(sample) {
            // A watcher that comes late was kept from the processors: somebody has waited all the time.
            Some(last) if passed < STALE || last.is_wanted && sample.is_wanted => {
                self.learn(passed, last, sample, look)
            }
            _ => self.forget(sample),
        }
        self.limit
    }

    fn learn(
        &mut self,
        passed: Duration,
        last: Sample,
        sample: Sample,
        look: impl FnOnce() -> Option<Look>,
    ) {
        if sample.dequeues != last.dequeues {
            (self.dequeued, self.starved) = (sample.now, Duration::ZERO);
        } else {
            self.starved += passed.min(self.pause + LATE);
        }
        let has_elapsed = |since: Duration| sample.now.saturating_sub(since) >= PERIOD;
        let may_fall = self.is_raised() && has_elapsed(self.changed) && !has_elapsed(self.dequeued);
        let decides = sample.is_wanted || may_fall && self.fewest_running.is_none();
        let look = if decides { look() } else { None };
        if let Some(running) = look.map(|it| it.least_running) {
            self.fewest_running = Some(self.fewest_running.map_or(running, |it| it.min(running)));
        }
        let sleeps = look.is_some_and(|it| it.most_running < self.concurrency);
        let used = self.limit.max(sample.holding);
        let patience = (STARVED * used as u32 / self.concurrency as u32).min(STALE);
        if sample.is_wanted && (sleeps || self.starved >= patience) {
            self.starved = Duration::ZERO;
            // So many compute that nobody dequeues for longer than anybody is kept waiting.
            let is_slow = !sleeps && patience == STALE;
            let raised = match is_slow {
                true => used + self.concurrency,
                false => self.limit + used,
            };
            // More than there are: those that are being started need not wait for the next rise.
            let raised = raised.min((2 * sample.threads).max(self.limit));
            if raised > self.limit {
                let cause = if sleeps {
                    &mut self.rises.asleep
                } else {
                    &mut self.rises.starved
                };
                *cause += 1;
            }
            self.change(sample.now, raised);
            self.pause = WINDOW;
        } else if may_fall {
            let is_crowded = self.fewest_running.is_some_and(|it| it > self.concurrency);
            let used = std::mem::take(&mut self.most_holding);
            let keep = self.concurrency
                + if is_crowded {
                    sample.long
                } else {
                    sample.long.max(used)
                };
            self.change(
                sample.now,
                self.limit - self.limit.saturating_sub(keep).div_ceil(4),
            );
            self.pause = LONGEST;
        } else if look.is_some_and(|it| it.least_running < it.most_running) {
            self.pause = WINDOW;
        } else {
            self.pause = (self.pause * 2).clamp(WINDOW, LONGEST);
        }
    }

    fn change(&mut self, now: Duration, limit: usize) {
        self.limit = limit;
        self.changed = now;
        self.fewest_running = None;
    }

    fn forget(&mut self, sample: Sample) {
        self.change(
            sample.now,
            self.limit.min(self.concurrency + sample.holding),
        );
        (self.dequeued, self.starved) = (sample.now, Duration::ZERO);
        self.most_holding = sample.holding;
        self.pause = WINDOW;
    }
}

#[cfg(all(test, not(interleavings)))]
mod tests {
    use super::*;

    const US: Duration = Duration::from_micros(1);

    /// A port of two permits, and a clock that the test moves.
    struct Port(AdaptiveLimit, Sample);

    impl Port {
        fn new() -> Self {
            Port(
                AdaptiveLimit::new(2),
                Sample {
                    is_wanted: true,
                    holding: 2,
                    threads: 512,
                    ..Sample::default()
                },
            )
        }

        /// After so many microseconds, while a look shows this: the limit.
        fn after_look(&mut self, us: u32, look: Option<Look>) -> usize {
            self.1.now += US * us;
            if self.1.is_wanted {
                self.1.holding = self.1.holding.max(self.0.get());
            }
            self.0.observe(self.1, || look)
        }

        /// The same, while so many threads run.
        fn after(&mut self, us: u32, running: usize) -> usize {
            let look = Look {
                least_running: running,
                most_running: running,
            };
            self.after_look(us, Some(look))
        }

        /// A port whose holders have slept until the limit was this.
        fn raised_to(limit: usize) -> Self {
            let mut port = Port::new();
            while port.after(100, 0) < limit {}
            assert_eq!(port.0.get(), limit);
            port
        }

        /// Others dequeue every half of a millisecond for a second, while a look shows this. Returns the limit.
        fn after_a_second(&mut self, look: Option<Look>) -> usize {
            for _ in 0..2000 {
                self.1.dequeues += 1;
                self.after_look(500, look);
            }
            self.0.get()
        }
    }

    #[test]
    fn f4_it_doubles_while_holders_sleep() {
        let mut port = Port::new();
        let limits: Vec<_> = (0..5).map(|_| port.after(100, 0)).collect();
        assert_eq!(
            limits,
            [2, 4, 8, 16, 32],
            "the first sample only begins a window"
        );
    }

    #[test]
    fn f4_one_that_sleeps_is_enough() {
        let mut port = Port::new();
        assert_eq!([port.after(100, 1), port.after(100, 1)], [2, 4]);
    }

    #[test]
    fn f2_it_stays_while_as_many_run_and_dequeue() {
        let mut port = Port::new();
        for _ in 0..1000 {
            port.1.dequeues += 1;
            assert_eq!(port.after(500, 2), 2);
        }
    }

    #[test]
    fn f4_it_doubles_while_nobody_dequeues_the_later_the_higher_it_is() {
        let mut port = Port::new();
        port.after(100, 2);
        let rises: Vec<_> = (1..=300)
            .filter(|_| {
                let before = port.0.get();
                port.after(1000, before) > before
            })
            .collect();
        assert_eq!(
            rises,
            [2, 6, 14, 30, 62, 126, 226],
            "milliseconds: at most a hundred between two"
        );
    }

    #[test]
    fn f4_a_late_look_raises_it_once() {
        let mut port = Port::new();
        port.after(100, 2);
        assert_eq!(
            port.after(90_000, 2),
            4,
            "the process was stopped, or kept from the processors"
        );
        assert_eq!(
            port.after(1_000_000, 4),
            8,
            "however late: somebody waited all the time"
        );
    }

    #[test]
    fn f4_a_late_look_counts_for_its_nap_and_five_ms() {
        let mut port = Port::raised_to(32);
        // Nobody is kept waiting for 32 ms before the sixth: naps grow to 2 ms.
        let limits: Vec<_> = (0..6).map(|_| port.after(1_000_000, 32)).collect();
        assert_eq!(limits, [32, 32, 32, 32, 32, 64]);
    }

    #[test]
    fn f4_one_look_at_a_sleeper_does_not_raise_it() {
        let mut port = Port::new();
        let once = Look {
            least_running: 0,
            most_running: 2,
        };
        port.after(100, 2);
        assert_eq!(port.after_look(100, Some(once)), 2);
        assert_eq!(port.0.pause, WINDOW, "it is looked at again soon");
        assert_eq!(port.after(100, 1), 4);
    }

    #[test]
    fn f4_a_rise_adds_as_many_as_hold_permits() {
        let mut port = Port::new();
        port.1.holding = 7;
        assert_eq!([port.after(100, 0), port.after(100, 0)], [2, 9]);
    }

    #[test]
    fn f4_rises_are_counted_by_their_causes() {
        let mut port = Port::raised_to(8);
        port.after(2_000, 8);
        (0..4).for_each(|_| _ = port.after(2_000, 8));
        let rises = port.0.rises;
        assert_eq!((port.0.get(), rises.asleep, rises.starved), (16, 2, 1));
        port.1.threads = 8;
        port.after(100, 0);
        assert_eq!(port.0.get(), 16, "twice the threads");
        assert_eq!(port.0.rises.asleep, 2);
    }

    /// Where the system does not show who sleeps.
    #[test]
    fn f4_without_looks_it_rises_and_falls_by_counts() {
        let mut port = Port::new();
        (0..20).for_each(|_| _ = port.after_look(1000, None));
        assert_eq!(port.0.get(), 16, "after 2, 4 and 8 ms");
        assert_eq!(port.0.rises.asleep, 0);
        assert_eq!(port.after_a_second(None), 16);
        (port.1.is_wanted, port.1.holding) = (false, 0);
        assert_eq!(port.after_a_second(None), 2);
    }

    #[test]
    fn f2_it_never_exceeds_twice_the_threads_that_there_are() {
        let mut port = Port::new();
        port.1.threads = 5;
        let limits: Vec<_> = (0..5).map(|_| port.after(100, 0)).collect();
        assert_eq!(limits, [2, 4, 8, 10, 10]);
    }

    #[test]
    fn f2_it_falls_by_a_quarter_of_what_nobody_uses() {
        let mut port = Port::raised_to(32);
        (port.1.is_wanted, port.1.holding) = (false, 0);
        let mut next = || {
            port.1.dequeues += 1;
            port.after(10_000, 0)
        };
        // The first time, 16 were used.
        let limits: Vec<_> = (0..8).map(|_| next()).collect();
        assert_eq!(limits, [28, 21, 16, 12, 9, 7, 5, 4]);
    }

    #[test]
    fn f2_a_rise_puts_the_fall_off_by_ten_milliseconds() {
        let mut port = Port::raised_to(32);
        for ms in 1..=10 {
            port.1.dequeues += 1;
            let limit = port.after(1000, 32);
            assert_eq!(limit < 32, ms == 10, "{ms} ms: {limit}");
        }
    }

    #[test]
    fn f2_it_does_not_fall_while_nobody_dequeues() {
        let mut port = Port::raised_to(32);
        port.1.threads = 16;
        (0..1000).for_each(|_| assert_eq!(port.after(1000, 32), 32));
    }

    #[test]
    fn f2_it_falls_while_more_run_than_the_concurrency_value() {
        let mut port = Port::raised_to(32);
        let crowd = Look {
            least_running: 32,
            most_running: 32,
        };
        assert_eq!(port.after_a_second(Some(crowd)), 2);
    }

    /// They keep their permits, and others have theirs.
    #[test]
    fn f2_long_handlers_do_not_count_in_the_fall() {
        let mut port = Port::raised_to(32);
        port.1.long = 20;
        let crowd = Look {
            least_running: 32,
            most_running: 32,
        };
        assert_eq!(port.after_a_second(Some(crowd)), 22);
        (port.1.is_wanted, port.1.holding) = (false, 0);
        assert_eq!(port.after_a_second(None), 22);
    }

    /// One look at a sleeper is enough for that.
    #[test]
    fn f2_it_stays_while_what_it_allows_is_used_by_sleepers() {
        let mut port = Port::raised_to(32);
        let once = Look {
            least_running: 2,
            most_running: 32,
        };
        assert_eq!(port.after_a_second(Some(once)), 32);
    }

    #[test]
    fn f2_after_idle_time_it_is_forgotten() {
        let mut port = Port::raised_to(32);
        (port.1.is_wanted, port.1.holding, port.1.long) = (false, 1, 1);
        assert_eq!(
            port.after(100_000, 0),
            3,
            "the one that is still out, and the concurrency value"
        );
    }

    #[test]
    fn it_is_never_below_the_concurrency_value_and_those_that_are_long_out() {
        // Any samples, by a small generator of numbers.
        let mut seed = 1u64;
        let mut next = |below: u64| {
            seed = seed
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (seed >> 33) % below
        };
        for _ in 0..200 {
            let concurrency = 1 + next(8) as usize;
            let mut limit = AdaptiveLimit::new(concurrency);
            let mut sample = Sample::default();
            for _ in 0..500 {
                sample.now += US * next(20_000) as u32;
                sample.dequeues += next(3);
                sample.holding = next(limit.get() as u64 + 2) as usize;
                sample.long = sample.holding.min(next(8) as usize);
                sample.threads = next(600) as usize;
                sample.is_wanted = next(2) == 0;
                let before = limit.get();
                let running = next(before as u64 + 1) as usize;
                let after = limit.observe(sample, || {
                    (running % 3 > 0).then_some(Look {
                        least_running: running / 2,
                        most_running: running,
                    })
                });
                assert!(
                    after >= concurrency
                        && (after >= before
                            || after
                                >= concurrency + sample.long.min(before - concurrency.min(before)))
                );
                assert!(limit.pause <= LONGEST && limit.pause > Duration::ZERO);
                if after > 4096 {
                    break;
                }
            }
        }
    }
}
