//! A port whose clock, processors and handlers are numbers: what [`AdaptiveLimit`] does to requests, without a thread.
//!
//! Each step is 10 µs. Threads that compute share the processors evenly; those that sleep use none. A thread takes one event at
//! a time. While requests wait and no permit is free, one thread watches: it samples when the limit says so. So does one that
//! dequeues, every [`PERIOD`] while the limit is raised.

use std::collections::VecDeque;
use std::time::Duration;

use super::limit::{AdaptiveLimit, Look, PERIOD, Sample};

const STEP: Duration = Duration::from_micros(10);

/// How many threads the port has.
const THREADS: usize = 512;

/// What a handler does: compute and sleep in turn, in steps, beginning with computing.
type Handler = Vec<u32>;

struct Port {
    limit: AdaptiveLimit,
    processors: f64,
    now: u32,
    dequeues: u64,
    seed: u64,
    queue: VecDeque<(u32, usize, Handler)>,
    running: Vec<Running>,
    next: usize,
    /// When the watcher samples next, and when a thread that dequeued has sampled.
    watched: u32,
    sampled: u32,
    /// The most that had an event at once, and how many had one, summed over the steps.
    most: usize,
    sum: usize,
}

/// A thread with an event.
struct Running {
    client: usize,
    /// When the request came, and when a thread took it.
    since: u32,
    taken: u32,
    /// What is left of the handler, and the part of a step of processor time that is left over.
    parts: VecDeque<u32>,
    part: f64,
    was_asleep: bool,
}

impl Running {
    /// An odd number of parts is left while it computes.
    fn computes(&self) -> bool {
        self.parts.len() % 2 == 1
    }
}

/// A request of this client was answered after so many steps.
type Answer = (usize, u32);

impl Port {
    fn new(processors: usize, concurrency: usize) -> Self {
        let limit = AdaptiveLimit::new(concurrency);
        Port {
            limit,
            processors: processors as f64,
            now: 0,
            dequeues: 0,
            seed: 1,
            queue: VecDeque::new(),
            running: Vec::new(),
            next: 0,
            watched: 0,
            sampled: 0,
            most: 0,
            sum: 0,
        }
    }

    /// No two handlers take exactly as long: each part takes from three quarters to five quarters of what it says.
    fn send(&mut self, client: usize, handler: Handler) {
        let mut vary = |part: u32| {
            self.seed = self
                .seed
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (part * (75 + (self.seed >> 33) as u32 % 51) / 100).max(1)
        };
        let handler = handler.into_iter().map(&mut vary).collect();
        self.queue.push_back((self.now, client, handler));
    }

    /// A thread waits for a permit, and nobody polls.
    fn is_wanted(&self) -> bool {
        let running = self.running.len();
        !self.queue.is_empty() && running >= self.limit.get() && running < THREADS
    }

    fn sample(&mut self) {
        let is_long = |it: &&Running| STEP * (self.now - it.taken) >= PERIOD;
        let long = self.running.iter().filter(is_long).count();
        let sample = Sample {
            now: STEP * self.now,
            dequeues: self.dequeues,
            holding: self.running.len(),
            long,
            threads: THREADS,
            is_wanted: self.is_wanted(),
        };
        let (running, next) = (&mut self.running, &mut self.next);
        let look = || {
            let (all, looked) = (running.len(), running.len().min(4));
            let (mut asleep, mut first) = (0, 0);
            for index in 0..looked {
                let it = &mut running[(*next + index) % all];
                let sleeps = !it.computes();
                let slept = std::mem::replace(&mut it.was_asleep, sleeps);
                asleep += usize::from(sleeps && slept);
                first += usize::from(sleeps && !slept);
            }
            // Those that were seen asleep once are looked at again.
            *next += if first > 0 { 0 } else { looked };
            let of_all = |running: usize| (all * running).div_ceil(looked.max(1));
            Some(Look {
                least_running: of_all(looked - asleep - first),
                most_running: of_all(looked - asleep),
            })
        };
        self.limit.observe(sample, look);
    }

    /// One step. Returns the answers.
    fn step(&mut self) -> Vec<Answer> {
        self.now += 1;
        let computing = self.running.iter().filter(|it| it.computes()).count() as f64;
        let share = (self.processors / computing.max(1.0)).min(1.0);
        let mut answers = Vec::new();
        let now = self.now;
        self.running.retain_mut(|it| {
            it.part += if it.computes() { share } else { 1.0 };
            while it.part >= 1.0 && !it.parts.is_empty() {
                it.part -= 1.0;
                match it.parts.front_mut() {
                    Some(left) if *left > 1 => *left -= 1,
                    _ => _ = it.parts.pop_front(),
                }
            }
            let ends = it.parts.is_empty();
            if ends {
                answers.push((it.client, now - it.since));
            }
            !ends
        });
        if self.is_wanted() && now >= self.watched {
            self.sample();
            self.watched = now + (self.limit.pause.as_micros() / STEP.as_micros()) as u32;
        }
        while self.running.len() < self.limit.get().min(THREADS) && !self.queue.is_empty() {
            if self.limit.is_raised() && STEP * (now - self.sampled) >= PERIOD {
                self.sampled = now;
                self.sample();
                continue;
            }
            let Some((since, client, handler)) = self.queue.pop_front() else {
                break;
            };
            self.dequeues += 1;
            self.running.push(Running {
                client,
                since,
                taken: now,
                parts: handler.into(),
                part: 0.0,
                was_asleep: false,
            });
            self.most = self.most.max(self.running.len());
        }
        self.sum += self.running.len();
        answers
    }

    fn steps(&mut self, steps: u32) {
        (0..steps).for_each(|_| drop(self.step()));
    }
}

mod tests {
    use super::*;

    /// In steps.
    const MS: u32 = 100;

    /// What a closed loop of clients has seen.
    #[derive(Debug)]
    struct Seen {
        /// Answers in a second.
        rate: u32,
        /// How many handlers ran at once, on average and at most.
        average: f64,
        most: usize,
    }

    /// Each client sends again when it is answered, always the same, on two processors.
    fn closed_loop(concurrency: usize, clients: usize, handler: &[u32], ms: u32) -> Seen {
        let mut port = Port::new(2, concurrency);
        (0..clients).for_each(|it| port.send(it, handler.to_vec()));
        let mut answered = 0;
        for _ in 0..ms * MS {
            for (client, _) in port.step() {
                answered += 1;
                port.send(client, handler.to_vec());
            }
        }
        Seen {
            rate: answered * 1000 / ms,
            average: port.sum as f64 / f64::from(ms * MS),
            most: port.most,
        }
    }

    /// The longest wait of requests that come each millisecond and take 0.02 ms, beside so many that came at once.
    fn longest_wait_beside(clients: usize, handler: &[u32]) -> f64 {
        const QUICK: usize = usize::MAX;
        let mut port = Port::new(2, 2);
        (0..clients).for_each(|it| port.send(it, handler.to_vec()));
        let (mut answered, mut longest) = (0, 0);
        while answered < clients {
            if port.now % MS == 0 {
                port.send(QUICK, vec![2]);
            }
            for (client, time) in port.step() {
                match client {
                    QUICK => longest = longest.max(time),
                    _ => answered += 1,
                }
            }
        }
        f64::from(longest) / f64::from(MS)
    }

    /// A thread waits for a moment in a lock of its own program, for a page, or for its turn.
    #[test]
    fn f2_a_moments_wait_raises_nothing() {
        for handler in [[50, 3, 50], [15, 3, 15]] {
            let seen = closed_loop(2, 1000, &handler, 300);
            assert_eq!(seen.most, 2, "{handler:?}: {seen:?}");
        }
    }

    #[test]
    fn f2_short_sleepers_keep_their_permits() {
        let seen = closed_loop(2, 64, &[1, 30, 1], 300);
        assert!(seen.rate >= 60_000, "{seen:?}");
    }

    #[test]
    fn f2_what_computes_for_a_millisecond_at_most_keeps_its_order() {
        for work in [2, 10, 30, MS] {
            let seen = closed_loop(2, 1000, &[work], 200);
            assert_eq!(seen.most, 2, "{work}: {seen:?}");
        }
    }

    /// Its answers are further apart than [`STARVED`](super::super::limit::STARVED), the more so the more of it runs.
    #[test]
    fn f2_what_computes_for_longer_shares_the_processors_within_bounds() {
        let seen = closed_loop(2, 1000, &[5 * MS], 1000);
        assert!(seen.most <= 32 && seen.average <= 16.0, "{seen:?}");
        let seen = closed_loop(1, 1000, &[5 * MS], 1000);
        assert!(seen.most <= 12 && seen.average <= 6.0, "{seen:?}");
    }

    /// However long it takes: what runs too much would keep everybody from the processors, and so be taken for more need.
    #[test]
    fn f2_what_computes_for_long_does_not_run_away() {
        for (work, most) in [(12 * MS, 100), (20 * MS, 150), (50 * MS, 200)] {
            let seen = closed_loop(2, 1000, &[work], 1500);
            assert!(seen.most <= most, "{work}: {seen:?}");
        }
    }

    #[test]
    fn f4_what_sleeps_and_computes_uses_both_processors() {
        let seen = closed_loop(2, 20, &[50, 50, 50, 50, 1], 300);
        assert!(seen.rate >= 1_900, "{seen:?}");
        let seen = closed_loop(2, 400, &[1, 10 * MS, 1], 60);
        assert!(seen.rate >= 34_000, "{seen:?}");
    }

    #[test]
    fn f4_a_request_waits_at_most_ten_milliseconds_whatever_handlers_do() {
        for handler in [
            vec![1, 1000 * MS, 1],
            vec![1000 * MS],
            [3, 3].repeat(10_000),
            [1, 2 * MS, 3 * MS].repeat(300),
        ] {
            let mut port = Port::new(2, 2);
            (0..2).for_each(|it| port.send(it, handler.clone()));
            port.steps(10);
            port.send(9, vec![2]);
            let waited = (0..)
                .find(|_| port.step().iter().any(|it| it.0 == 9))
                .unwrap();
            assert!(waited <= 10 * MS, "{waited}");
        }
    }

    #[test]
    fn f4_a_request_beside_n_that_compute_waits_in_proportion() {
        for n in [8, 16] {
            let waited = longest_wait_beside(n, &[300 * MS]);
            assert!(waited <= 4.5 * n as f64 / 2.0, "{n}: {waited} ms");
        }
    }

    #[test]
    fn f4_a_request_beside_a_crowd_that_sleeps_waits_for_two_ms() {
        for crowd in [vec![1, 50 * MS, 1], vec![1, 50 * MS, 10 * MS]] {
            let waited = longest_wait_beside(50, &crowd);
            assert!(waited <= 2.0, "{crowd:?}: {waited} ms");
        }
    }

    #[test]
    fn f4_sleepers_all_sleep_at_once_within_a_few_looks() {
        let mut port = Port::new(2, 2);
        (0..64).for_each(|it| port.send(it, vec![1, 50 * MS, 1]));
        port.steps(3 * MS);
        assert_eq!(port.most, 64);
    }

    /// While permits are free nobody watches: so whoever dequeues samples.
    #[test]
    fn f2_a_limit_is_not_remembered_over_idle_time() {
        let mut port = Port::new(2, 2);
        (0..64).for_each(|it| port.send(it, vec![1, 20 * MS, 1]));
        port.steps(30 * MS);
        assert_eq!(port.most, 64);
        port.steps(300 * MS);
        port.most = 0;
        (0..200).for_each(|it| port.send(it, vec![MS]));
        port.steps(50 * MS);
        assert_eq!(port.most, 2);
    }
}
