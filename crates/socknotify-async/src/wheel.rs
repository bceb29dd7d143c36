//! Timers by their time, on the wheel that ports have for deadlines.
//!
//! Most timers are timeouts, which are cancelled or moved to a later time long before they are due. So a timer that is
//! moved to a later time stays where it is until that comes. So does one that is cancelled, and the next one that is set
//! takes its place: a connection that sets a timeout for each request finds the one that it has just cancelled.

use socknotify::interface::Wheel as Times;

/// No tick.
pub(crate) const NEVER: u64 = u64::MAX;

#[derive(Debug)]
pub(crate) struct Wheel<T> {
    /// When it looks at each of them, at the latest.
    times: Times,
    timers: Vec<Timer<T>>,
    /// Those that are not in use. Some of them have times.
    free: Vec<u32>,
    /// Memory for those that are not due when it looks.
    later: Vec<u32>,
}

#[derive(Debug)]
struct Timer<T> {
    /// When it is due.
    at: u64,
    /// `None` if it was cancelled, or has gone off.
    item: Option<T>,
}

impl<T> Wheel<T> {
    pub(crate) fn new() -> Self {
        Wheel {
            times: Times::new(),
            timers: Vec::new(),
            free: Vec::new(),
            later: Vec::new(),
        }
    }

    /// Wake a task at this tick. Returns what identifies the timer, and when [`take_due`](Self::take_due) has to be called
    /// for it: [`NEVER`] if that was known before.
    pub(crate) fn set(&mut self, at: u64, item: T) -> (u32, u64) {
        let index = self.free.pop().unwrap_or_else(|| {
            self.timers.push(Timer { at: 0, item: None });
            (self.timers.len() - 1) as u32
        });
        self.timers[index as usize].item = Some(item);
        (index, self.put(index, at))
    }

    /// Move a timer to this tick. `None` if it has gone off, or when `take_due` has to be called for it.
    pub(crate) fn reset(&mut self, index: u32, at: u64) -> Option<u64> {
        let is_set = self.timers[index as usize].item.is_some();
        is_set.then(|| self.put(index, at))
    }

    fn put(&mut self, index: u32, at: u64) -> u64 {
        self.timers[index as usize].at = at;
        if self.times.time(index).is_some_and(|seen| seen <= at) {
            return NEVER;
        }
        self.times.set(index, at);
        at
    }

    /// Cancel a timer, whether it has gone off or not.
    pub(crate) fn unset(&mut self, index: u32) -> Option<T> {
        self.free.push(index);
        self.timers[index as usize].item.take()
    }

    /// Take the timers that are due at this tick, or before, with theirs.
    pub(crate) fn take_due(&mut self, tick: u64, due: &mut Vec<(u64, T)>) {
        let (timers, later) = (&mut self.timers, &mut self.later);
        self.times.advance(tick, |index| {
            let timer = &mut timers[index as usize];
            if timer.at > tick && timer.item.is_some() {
                later.push(index);
            } else if let Some(item) = timer.item.take() {
                due.push((timer.at, item));
            }
        });
        for index in self.later.drain(..) {
            self.times.set(index, self.timers[index as usize].at);
        }
    }

    /// When `take_due` has to be called next.
    pub(crate) fn next(&self) -> u64 {
        self.times.next().unwrap_or(NEVER)
    }

    /// All timers, which are cancelled.
    pub(crate) fn take_all(&mut self) -> impl Iterator<Item = T> {
        self.timers.iter_mut().filter_map(|it| it.item.take())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Wake, Waker};

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Numbers without an order, the same each time.
    struct Numbers(u64);

    impl Numbers {
        fn below(&mut self, bound: u64) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0 % bound
        }

        /// A delay of any magnitude.
        fn delay(&mut self) -> u64 {
            let bits = self.below(40);
            self.below(1 << bits)
        }
    }

    /// A wheel beside a map that says what is due when.
    #[test]
    fn timers_go_off_at_their_tick_and_not_once_they_were_moved_or_cancelled() {
        for seed in 1..=20 {
            let mut numbers = Numbers(seed);
            let mut wheel = Wheel::<Waker>::new();
            let mut due = BTreeMap::new();
            let mut tick = numbers.delay();
            let mut alarm = NEVER;
            for _ in 0..4000 {
                let at = tick + 1 + numbers.delay();
                let any = due.keys().nth(numbers.below(due.len() as u64 + 1) as usize);
                match (numbers.below(4), any.copied()) {
                    (0, Some(index)) => {
                        assert!(wheel.unset(index).is_some());
                        due.remove(&index);
                    }
                    (1, Some(index)) => {
                        alarm = alarm.min(wheel.reset(index, at).expect("it is set"));
                        due.insert(index, at);
                    }
                    (2, _) => {
                        let (index, next) = wheel.set(at, Waker::noop().clone());
                        alarm = alarm.min(next);
                        assert_eq!(due.insert(index, at), None);
                    }
                    _ => {
                        // The alarm is enough to see each one at its time.
                        let first = due.values().min().copied().unwrap_or(NEVER);
                        assert!(alarm <= first, "{alarm} {first}");
                        tick = match numbers.below(3) {
                            0 if alarm < NEVER => alarm.max(tick),
                            _ => tick + numbers.delay(),
                        };
                        let mut taken = Vec::new();
                        wheel.take_due(tick, &mut taken);
                        let mut taken: Vec<_> = taken.into_iter().map(|(at, _)| at).collect();
                        taken.sort_unstable();
                        let gone: Vec<_> = due.extract_due(tick);
                        for &(index, _) in &gone {
                            assert_eq!(wheel.reset(index, tick + 1), None);
                            assert!(wheel.unset(index).is_none());
                        }
                        let gone: Vec<_> = gone.into_iter().map(|(_, at)| at).collect();
                        assert_eq!(taken, gone);
                        alarm = wheel.next();
                        assert!(alarm > tick);
                    }
                }
            }
            assert_eq!(wheel.take_all().count(), due.len());
        }
    }

    trait ExtractDue {
        fn extract_due(&mut self, tick: u64) -> Vec<(u32, u64)>;
    }

    impl ExtractDue for BTreeMap<u32, u64> {
        fn extract_due(&mut self, tick: u64) -> Vec<(u32, u64)> {
            let mut due: Vec<_> = self.iter().map(|(&index, &at)| (index, at)).collect();
            due.retain(|&(_, at)| at <= tick);
            due.sort_by_key(|&(_, at)| at);
            self.retain(|_, at| *at > tick);
            due
        }
    }

    #[test]
    fn a_timer_that_is_set_again_for_later_takes_the_place_of_the_one_before() {
        let mut wheel = Wheel::<Waker>::new();
        for tick in 0..100_000 {
            // As often as a server has requests, thirty seconds each.
            let (index, _) = wheel.set(tick + 30_000, Waker::noop().clone());
            wheel.unset(index);
            if wheel.next() <= tick {
                wheel.take_due(tick, &mut Vec::new());
            }
        }
        assert_eq!(wheel.timers.len(), 1);
    }

    #[test]
    fn cancelled_timers_keep_no_task() {
        let mut wheel = Wheel::<Waker>::new();
        let count = Arc::new(Count::default());
        let timers: Vec<_> = (0..100_000)
            .map(|number| wheel.set(number % 7919, Waker::from(Arc::clone(&count))).0)
            .collect();
        assert_eq!(Arc::strong_count(&count), 100_001);
        for index in timers {
            drop(wheel.unset(index));
        }
        assert_eq!(Arc::strong_count(&count), 1);
        let mut due = Vec::new();
        wheel.take_due(10_000, &mut due);
        assert!(due.is_empty());
        assert_eq!(wheel.next(), NEVER);
    }

    /// A place that was free goes to whoever sets the next timer, in any slot.
    #[test]
    fn an_earlier_timer_takes_the_place_of_a_later_one() {
        let mut wheel = Wheel::<Waker>::new();
        let later = [5000, 5001, 5002].map(|at| wheel.set(at, Waker::noop().clone()).0);
        // The middle of its slot's list.
        drop(wheel.unset(later[1]));
        let earlier = wheel.set(3, Waker::noop().clone());
        assert_eq!(earlier, (later[1], 3));
        let at = |due: Vec<(u64, Waker)>| due.into_iter().map(|(at, _)| at).collect::<Vec<_>>();
        let mut due = Vec::new();
        wheel.take_due(2, &mut due);
        assert_eq!(at(due), []);
        let mut due = Vec::new();
        wheel.take_due(3, &mut due);
        assert_eq!(at(due), [3]);
        let mut due = Vec::new();
        wheel.take_due(5001, &mut due);
        assert_eq!(at(due), [5000]);
        let mut due = Vec::new();
        wheel.take_due(5002, &mut due);
        assert_eq!(at(due), [5002]);
    }
}
