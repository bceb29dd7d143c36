//! [`Crew`]: how many threads a server has, and when it needs one more.

use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::drops::drop_all;

/// What is called when all threads work that a crew may have (true), and when one waits again (false).
pub type OnLimit = dyn Fn(bool) + Send + Sync;

/// The threads of a server, which are started as they are needed: when the last one that waits gets work, another one starts.
/// The more block, the more are to wait: the limit of those that run never exceeds twice the threads that there are, and a crowd
/// that blocks at once would wait for them to be started one after the other.
///
/// If the system refuses to start one, a thread that serves nobody tries again, since all others may block.
pub struct Crew {
    most: usize,
    /// The concurrency value of the port.
    concurrency: usize,
    /// How many threads there are, times [`THREAD`], and how many of them wait for work, or have been started and will.
    counts: AtomicU64,
    /// The system has refused to start the last one that was needed.
    is_short: AtomicBool,
    /// All that there may be work, or did so a moment ago.
    is_at_limit: AtomicBool,
    /// The last thing that was told.
    told: Mutex<bool>,
    on_limit: Option<Arc<OnLimit>>,
}

/// A thread more, in the counts.
const THREAD: u64 = 1 << 32;
/// One more that waits.
const WAITING: u64 = 1;

impl Crew {
    /// While the system starts no thread, try again this often. A thread that stays looks no more often whether it is one too many.
    pub const RETRY: Duration = Duration::from_millis(100);

    /// A crew without threads, of which there may be this many, for a port with this concurrency value.
    pub fn new(most: usize, concurrency: usize, on_limit: Option<Arc<OnLimit>>) -> Self {
        Crew {
            // The system has no room for so many.
            most: most.min(u32::MAX as usize),
            concurrency,
            counts: AtomicU64::new(0),
            is_short: AtomicBool::new(false),
            is_at_limit: AtomicBool::new(false),
            told: Mutex::new(false),
            on_limit,
        }
    }

    /// The number of threads.
    pub fn threads(&self) -> usize {
        self.counts().0
    }

    /// How many threads there may be.
    pub fn most(&self) -> usize {
        self.most
    }

    /// How many wait for work, or have been started and will.
    pub fn waiting(&self) -> usize {
        self.counts().1
    }

    /// How many threads there are, and how many of them wait.
    #[inline]
    fn counts(&self) -> (usize, usize) {
        split(self.counts.load(Ordering::SeqCst))
    }

    /// Change both counts at once, if this holds of them. Returns how many threads there were.
    fn change(
        &self,
        when: impl Fn(usize, usize) -> bool,
        change: impl Fn(u64) -> u64,
    ) -> Option<usize> {
        let order = Ordering::SeqCst;
        let changed = self.counts.fetch_update(order, order, |counts| {
            let (threads, waiting) = split(counts);
            when(threads, waiting).then(|| change(counts))
        });
        changed.ok().map(|counts| split(counts).0)
    }

    /// A thread is about to be started: this returns its number. `None` if there are as many as may be.
    ///
    /// Say then whether the system has [started](Self::started) it.
    pub fn start(&self) -> Option<usize> {
        let number = self.change(
            |threads, _| threads < self.most,
            |counts| counts + THREAD + WAITING,
        );
        if number.is_none() {
            // Those that refuse are no fewer than there may be.
            self.is_short.store(false, Ordering::SeqCst);
            if self.waiting() == 0 {
                self.tell_limit();
            }
        }
        number
    }

    /// Whether the system has started the thread.
    pub fn started(&self, is_started: bool) {
        self.is_short.store(!is_started, Ordering::SeqCst);
        if !is_started {
            self.counts.fetch_sub(THREAD + WAITING, Ordering::SeqCst);
        }
    }

    /// A thread that waited gets work. True if another one is to be started.
    #[inline]
    pub fn begin_work(&self) -> bool {
        self.counts.fetch_sub(WAITING, Ordering::SeqCst);
        self.needs_another()
    }

    /// Whether too few threads wait: ask again once one was started, since two at a time catch up.
    #[inline]
    pub fn needs_another(&self) -> bool {
        let (threads, waiting) = self.counts();
        waiting <= self.spare(threads, waiting)
    }

    /// How many are to wait, but one.
    #[inline]
    fn spare(&self, threads: usize, waiting: usize) -> usize {
        let blocked = threads.saturating_sub(waiting.saturating_add(self.concurrency));
        blocked.min(self.concurrency.max(blocked / 2))
    }

    /// A thread waits again.
    pub fn end_work(&self) {
        self.counts.fetch_add(WAITING, Ordering::SeqCst);
        if self.is_at_limit.load(Ordering::SeqCst) {
            self.tell_limit();
        }
    }

    /// Tell whether all threads work, if that is not what was told last.
    #[cold]
    fn tell_limit(&self) {
        // Who waits again looks from here on.
        self.is_at_limit.store(true, Ordering::SeqCst);
        let is_now = || {
            let (threads, waiting) = self.counts();
            waiting == 0 && threads >= self.most
        };
        // Who tells looks again when that is done.
        while let Ok(mut told) = self.told.try_lock() {
            let is_at_limit = is_now();
            self.is_at_limit.store(is_at_limit, Ordering::SeqCst);
            if mem::replace(&mut *told, is_at_limit) != is_at_limit {
                if let Some(call) = &self.on_limit {
                    // A panic ends no thread that serves.
                    drop_all([catch_unwind(AssertUnwindSafe(|| call(is_at_limit)))]);
                }
            }
            drop(told);
            if is_now() == is_at_limit {
                break;
            }
        }
    }

    /// A thread has waited in vain. True if it ends: enough others wait. From here on it does not count, so one may be started in
    /// its place.
    pub fn ends(&self) -> bool {
        let is_enough = |threads, waiting: usize| waiting > 1 + self.spare(threads, waiting);
        let ends = self.change(is_enough, |counts| counts - THREAD - WAITING);
        ends.is_some()
    }

    /// How long a thread waits next that has waited in vain and does not end: the only one for ever, since it stays. Beside others
    /// it has to look again: it is one too many when those that block now wait again.
    pub fn next_timeout(&self, idle: Duration) -> Option<Duration> {
        (self.threads() > 1).then_some(idle.max(Self::RETRY))
    }

    /// A thread has ended with the others, and does not count any more, nor as one that waits, as it did when it learned of that.
    pub fn ended(&self) {
        let end = |counts| counts - THREAD - WAITING * u64::from(split(counts).1 > 0);
        self.change(|_, _| true, end);
    }

    /// Whether the system has refused to start the last thread that was needed.
    pub fn is_short(&self) -> bool {
        self.is_short.load(Ordering::SeqCst)
    }
}

/// How many threads there are, by the counts, and how many of them wait.
#[inline]
fn split(counts: u64) -> (usize, usize) {
    ((counts / THREAD) as usize, counts as u32 as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_needed_when_the_last_one_gets_work() {
        let crew = Crew::new(2, 8, None);
        assert_eq!((crew.start(), crew.start()), (Some(0), Some(1)));
        assert_eq!([crew.begin_work(), crew.begin_work()], [false, true]);
        crew.end_work();
        assert!(!crew.ends(), "the last one that waits stays");
        crew.end_work();
        assert!(crew.ends());
        assert_eq!(crew.threads(), 1);
        // In place of the one that ends.
        assert!(crew.begin_work());
        assert_eq!(crew.start(), Some(1));
    }

    #[test]
    fn more_wait_the_more_are_blocked() {
        let crew = Crew::new(100, 2, None);
        let mut waiting = Vec::new();
        crew.start();
        crew.start();
        for _ in 0..12 {
            if crew.begin_work() {
                crew.start();
                if crew.needs_another() {
                    crew.start();
                }
            }
            waiting.push(crew.waiting());
        }
        assert_eq!(waiting, [1, 1, 2, 3, 3, 3, 3, 4, 4, 5, 5, 6]);
    }

    /// Else each that gets work would start what has just ended.
    #[test]
    fn as_many_stay_as_are_started() {
        let crew = Crew::new(100, 2, None);
        (0..40).for_each(|_| _ = crew.start());
        (0..20).for_each(|_| _ = crew.begin_work());
        while crew.ends() {}
        let waiting = crew.waiting();
        crew.end_work();
        assert!(!crew.begin_work() && crew.waiting() == waiting);
        assert_eq!(waiting, 10, "half of the 18 that block, and one");
        (0..20).for_each(|_| crew.end_work());
        while crew.ends() {}
        assert_eq!(crew.threads(), 1);
    }

    #[test]
    fn without_a_limit_one_waits() {
        let crew = Crew::new(100, usize::MAX, None);
        crew.start();
        for _ in 0..50 {
            assert!(crew.begin_work() && crew.start().is_some());
            assert!(!crew.needs_another());
        }
        assert_eq!((crew.threads(), crew.waiting()), (51, 1));
    }

    /// Beside a handler that blocks, for however long.
    #[test]
    fn the_last_one_that_waits_is_not_busy_with_it() {
        let crew = Crew::new(2, 8, None);
        (0..2).for_each(|_| _ = crew.start());
        assert!(!crew.begin_work() && !crew.ends());
        assert_eq!(crew.next_timeout(Duration::ZERO), Some(Crew::RETRY));
        let long = 2 * Crew::RETRY;
        assert_eq!(crew.next_timeout(long), Some(long));
    }

    #[test]
    fn what_is_refused_counts_as_missing_until_one_is_started() {
        let crew = Crew::new(3, 8, None);
        crew.start();
        assert!(crew.begin_work() && crew.start().is_some());
        crew.started(false);
        assert!(crew.is_short() && crew.needs_another());
        assert_eq!(crew.start(), Some(1));
        crew.started(true);
        assert!(!crew.is_short() && !crew.needs_another());
    }

    #[test]
    fn the_limit_is_reported_once_and_when_it_is_over() {
        let told = Arc::new(std::sync::Mutex::new(Vec::new()));
        let tell = Arc::clone(&told);
        let on_limit = move |is_at_limit| tell.lock().expect("no panic").push(is_at_limit);
        let crew = Crew::new(1, 8, Some(Arc::new(on_limit)));
        crew.start();
        for _ in 0..2 {
            assert!(crew.begin_work());
            assert_eq!((crew.start(), crew.start()), (None, None));
            crew.end_work();
        }
        assert_eq!(*told.lock().expect("no panic"), [true, false, true, false]);
    }
}
