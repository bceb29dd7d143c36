//! [`Roster`]: the threads that have dequeued from a port, as others see them.
//!
//! It counts them, samples the states of a few that run, and passes that to the limit. It changes nothing that a thread has.

use std::sync::Arc;
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use super::gate::{Flag, Load};
use super::limit::{AdaptiveLimit, Look, PERIOD, Rises, Sample};
use super::thread::{Holder, Word};
use crate::SlowThread;
use crate::os::thread_state::{Activity, ThreadState};

/// How many of the threads that run one look reads the states of.
const LOOKED_AT: usize = 4;

/// A thread that was seen before.
struct Seen {
    holder: Arc<Holder>,
    /// May have a descriptor open. It is not the thread's: that may end without destructors.
    state: Arc<ThreadState>,
    word: Word,
    /// How many packets its worker had taken.
    taken: usize,
    /// Since when it has been seen with the event that it has.
    since: Instant,
    /// A look has seen it asleep with that.
    was_asleep: bool,
}

impl Seen {
    /// See whether it has another event. Returns what it does.
    fn update(&mut self, now: Instant) -> Word {
        let word = self.holder.word();
        if word != self.word {
            self.word = word;
            self.begin(now);
        }
        word
    }

    fn begin(&mut self, now: Instant) {
        self.since = now;
        self.was_asleep = false;
    }
}

/// A thread that runs.
pub(in crate::engine) struct Busy {
    id: ThreadId,
    state: Arc<ThreadState>,
    time: Duration,
    key: Option<usize>,
}

impl Busy {
    /// What is known of it, and the key of the packet that its worker has taken last.
    pub(in crate::engine) fn describe(&self) -> (SlowThread, Option<usize>) {
        let thread = SlowThread {
            time: self.time,
            ..SlowThread::of(self.id, self.state.describe())
        };
        (thread, self.key)
    }
}

/// The threads that have dequeued from a port.
pub(in crate::engine) struct Roster {
    made: Instant,
    threads: Vec<Seen>,
    /// How many times threads had dequeued that have ended.
    ended: u64,
    /// Where the next look begins.
    next: usize,
    /// The next one of which to find out whether it has ended.
    checked: usize,
    /// `None`: the limit is strict, or there is none.
    limit: Option<AdaptiveLimit>,
}

impl Roster {
    pub(in crate::engine) fn new(limit: Option<AdaptiveLimit>) -> Self {
        Roster {
            made: Instant::now(),
            threads: Vec::new(),
            ended: 0,
            next: 0,
            checked: 0,
            limit,
        }
    }

    /// Add the calling thread. Threads that have ended without a word are dropped: a few are checked, the next ones in turn.
    /// That is more than are added, so the list does not grow. Returns how many permits these held.
    pub(in crate::engine) fn add(&mut self, id: Option<ThreadId>) -> (Arc<Holder>, usize) {
        let permits = self.drop_ended();
        let holder = Arc::new(Holder::new(id));
        self.threads.push(Seen {
            holder: Arc::clone(&holder),
            state: Arc::new(ThreadState::of_this()),
            word: Word::default(),
            taken: 0,
            since: Instant::now(),
            was_asleep: false,
        });
        (holder, permits)
    }

    fn drop_ended(&mut self) -> usize {
        let mut permits = 0;
        for _ in 0..LOOKED_AT.min(self.threads.len()) {
            let index = self.checked % self.threads.len();
            self.checked = index + 1;
            if self.threads[index].state.has_ended() {
                permits += usize::from(self.remove_at(index).runs());
                self.checked = index;
            }
        }
        permits
    }

    fn remove_at(&mut self, index: usize) -> Word {
        let word = self.threads.remove(index).holder.word();
        self.ended += word.dequeues();
        word
    }

    pub(in crate::engine) fn remove(&mut self, holder: &Arc<Holder>) {
        let mut threads = self.threads.iter();
        if let Some(index) = threads.position(|it| Arc::ptr_eq(&it.holder, holder)) {
            self.remove_at(index);
        }
    }

    /// How often the limit has risen.
    pub(in crate::engine) fn rises(&self) -> Rises {
        self.limit.as_ref().map_or(Rises::default(), |it| it.rises)
    }

    /// Those that run, and are one of these, by thread and by how long they have had their events.
    pub(in crate::engine) fn busy(
        &mut self,
        one_of: &mut dyn FnMut(ThreadId, Duration) -> bool,
    ) -> Vec<Busy> {
        let now = Instant::now();
        let mut busy = Vec::new();
        for seen in &mut self.threads {
            if !seen.update(now).runs() {
                continue;
            }
            let (taken, key) = seen.holder.taken();
            if std::mem::replace(&mut seen.taken, taken) != taken {
                seen.begin(now);
            }
            let time = now.saturating_duration_since(seen.since);
            if let Some(id) = seen.holder.id.filter(|&id| one_of(id, time)) {
                busy.push(Busy {
                    id,
                    state: Arc::clone(&seen.state),
                    time,
                    key,
                });
            }
        }
        busy
    }

    /// See what is so, and have the limit learn it. Returns the limit, and in what time the next sample is due while a thread waits
    /// for a permit; `None` if it does not adapt.
    pub(super) fn sample(&mut self, load: Load, limit: usize) -> Option<(usize, Duration)> {
        let mut adaptive = self.limit.take()?;
        let now = Instant::now();
        let mut dequeues = self.ended;
        let mut long = 0;
        for seen in &mut self.threads {
            let word = seen.update(now);
            dequeues = dequeues.wrapping_add(word.dequeues());
            let is_long = || now.saturating_duration_since(seen.since) >= PERIOD;
            long += usize::from(word.runs() && is_long());
        }
        let is_wanted = load.taken() >= limit
            && load.polling() == 0
            && load.has(Flag::PARKED)
            && !load.has(Flag::EXPOSED);
        let sample = Sample {
            now: now.saturating_duration_since(self.made),
            dequeues,
            holding: load.running(),
            long,
            threads: self.threads.len(),
            is_wanted,
        };
        let look = || self.look(load.running());
        let limit = adaptive.observe(sample, look);
        let pause = adaptive.pause;
        self.limit = Some(adaptive);
        Some((limit, pause))
    }

    /// Look at a few of the threads that run, the next ones in turn. `None`: the system does not show whether they sleep.
    fn look(&mut self, running: usize) -> Option<Look> {
        let (mut busy, mut looked, mut asleep, mut first) = (0, 0, 0, 0);
        let begin = self.next.min(self.threads.len());
        for index in (begin..self.threads.len()).chain(0..begin) {
            let seen = &mut self.threads[index];
            if !seen.word.runs() {
                continue;
            }
            busy += 1;
            if looked == LOOKED_AT {
                continue;
            }
            looked += 1;
            self.next = index + 1;
            let sleeps = match seen.state.activity() {
                // One that has ended without a word keeps its permit until it is dropped.
                Activity::Asleep | Activity::Ended => true,
                Activity::Running => false,
                Activity::Unknown => return None,
            };
            let slept = std::mem::replace(&mut seen.was_asleep, sleeps);
            asleep += usize::from(sleeps && slept);
            first += usize::from(sleeps && !slept);
        }
        if first > 0 {
            // They are looked at again.
            self.next = begin;
        }
        // Those that the gate counts and that are not seen to run are on their way.
        let of_all = |awake: usize| {
            let seen = if looked > 0 {
                (busy * awake).div_ceil(looked)
            } else {
                0
            };
            running.saturating_sub(busy) + seen
        };
        Some(Look {
            least_running: of_all(looked - asleep - first),
            most_running: of_all(looked - asleep),
        })
    }
}
