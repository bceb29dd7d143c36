//! One run of a scenario: what its threads share, what they count, and how long they may take.

use std::error::Error;
use std::fmt::Display;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{process, thread};

use socknotify::{CompletionPort, Entry};

use super::{Arguments, Scenario};
use crate::output;

/// The length of one send, as in Microsoft's programs.
pub(crate) const SEND_LENGTH: usize = 4;
/// How long a scenario that was given up has to end, at least: on a busy machine, too.
const END: Duration = Duration::from_secs(10);

pub(crate) type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) scenario: Scenario,
    pub(crate) arguments: Arguments,
    pub(crate) port: CompletionPort,
    pub(crate) tally: Tally,
    problems: Mutex<Vec<String>>,
    given_up: AtomicBool,
}

/// What all threads count.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Clients that the server has met.
    pub(crate) connections: Counter,
    /// Bytes that the server has received.
    pub(crate) bytes: Counter,
    /// Socket notifications that the server has dequeued.
    pub(crate) notifications: Counter,
    /// Those among them with the REMOVE bit.
    pub(crate) removals: Counter,
    /// Packets that were posted.
    pub(crate) posts: Counter,
    /// Datagrams that clients sent again because no acknowledgement came.
    pub(crate) repeats: Counter,
    /// Threads that have dequeued something and not handled it, and the most that ever had.
    running: Counter,
    pub(crate) max_running: Counter,
}

impl Run {
    pub(crate) fn prepare(scenario: Scenario, arguments: Arguments) -> Outcome<Self> {
        // The threads are counted, and more run than there are places when one goes on that had left its place.
        let port = arguments.port.builder().strict().build()?;
        Ok(Run {
            scenario,
            arguments,
            port,
            tally: Tally::default(),
            problems: Mutex::default(),
            given_up: AtomicBool::new(false),
        })
    }

    pub(crate) fn clients(&self) -> u64 {
        self.arguments.clients.into()
    }

    /// The server's. As many packets are posted: each tells one to end.
    pub(crate) fn threads(&self) -> u64 {
        match self.scenario.has_threads {
            true => self.arguments.threads.into(),
            false => 1,
        }
    }

    pub(crate) fn bytes_per_client(&self) -> u64 {
        u64::from(self.arguments.sends) * SEND_LENGTH as u64
    }

    /// The registrations that are removed, each with one notification: those of the connections and the listener, or that of
    /// the only socket.
    pub(crate) fn removals(&self) -> u64 {
        self.clients() * u64::from(self.scenario.is_tcp) + 1
    }

    /// Notes a problem after which the scenario can still go on.
    pub(crate) fn note(&self, problem: impl Display) {
        self.problems().push(problem.to_string());
    }

    /// Notes the problem and ends the scenario: threads that wait in the port are released.
    ///
    /// Only the first one is noted. What fails later fails because of it.
    pub(crate) fn give_up(&self, who: &str, problem: impl Display) {
        if !self.given_up.swap(true, Ordering::AcqRel) {
            self.note(format_args!("{who}: {problem}"));
            self.port.close();
        }
    }

    pub(crate) fn has_given_up(&self) -> bool {
        self.given_up.load(Ordering::Acquire)
    }

    pub(crate) fn problems(&self) -> MutexGuard<'_, Vec<String>> {
        self.problems.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn post(&self, completion_key: usize) -> Outcome {
        self.port.post(Entry::new(completion_key, 0, 0))?;
        self.tally.posts.add(1);
        Ok(())
    }

    /// Counts this thread as running meanwhile.
    pub(crate) fn running<T>(&self, handle: impl FnOnce() -> T) -> T {
        let running = self.tally.running.add(1);
        self.tally
            .max_running
            .0
            .fetch_max(running, Ordering::Relaxed);
        let handled = handle();
        self.tally.running.0.fetch_sub(1, Ordering::Relaxed);
        handled
    }

    /// Does this; the scenario is given up if it fails or panics.
    pub(crate) fn attempt(&self, who: &str, work: impl FnOnce() -> Outcome) {
        let work = std::panic::AssertUnwindSafe(work);
        let outcome =
            std::panic::catch_unwind(work).unwrap_or_else(|_| Err("a thread panicked".into()));
        if let Err(problem) = outcome {
            self.give_up(who, problem);
        }
    }

    /// Runs the scenario. It is given up if it makes no progress for so long. If it does not even end in as much time after
    /// that, and [`END`], the program ends.
    pub(crate) fn supervise(&self, mut patience: Duration) {
        let (over, is_over) = mpsc::channel::<()>();
        thread::scope(|scope| {
            let scenario = scope.spawn(move || {
                self.attempt("server", || (self.scenario.program)(self));
                drop(over);
            });
            let mut before = self.progress();
            while is_over.recv_timeout(patience) == Err(RecvTimeoutError::Timeout) {
                let is_stuck = std::mem::replace(&mut before, self.progress()) == before;
                let problem = format!("{patience:?}: {:?}", self.port.snapshot());
                if is_stuck && self.has_given_up() {
                    output::problem(format_args!("does not end: {problem}"));
                    process::exit(1);
                } else if is_stuck {
                    self.give_up("no progress", problem);
                    patience = patience.max(END);
                }
            }
            // The port counts a thread until it is gone, which the scope's own end does not wait for.
            scenario.join().unwrap_or_default();
        });
    }

    /// A number that grows as long as the scenario gets anywhere.
    ///
    /// Notifications and repeats do not count: a server that is notified for ever and receives nothing is stuck.
    fn progress(&self) -> u64 {
        let tally = &self.tally;
        tally.connections.get() + tally.bytes.get() + tally.removals.get() + tally.posts.get()
    }
}

/// A number that many threads count. Exact once they have been joined.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// Returns what it is by that.
    pub(crate) fn add(&self, amount: u64) -> u64 {
        self.0.fetch_add(amount, Ordering::Relaxed) + amount
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::prepared;
    use super::*;

    /// What is told of such a scenario.
    fn supervised(program: fn(&Run) -> Outcome, patience: Duration) -> Vec<String> {
        let run = prepared(program);
        run.supervise(patience);
        run.problems().clone()
    }

    #[test]
    fn a_scenario_that_waits_for_ever_is_ended_and_says_so() {
        let patience = Duration::from_millis(20);
        let problems = supervised(|run| Ok(run.port.dequeue_one(None).map(drop)?), patience);
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(problems[0].starts_with("no progress: 20ms"), "{problems:?}");
    }

    #[test]
    fn a_scenario_that_panics_is_a_problem_and_one_that_ends_well_is_not() {
        let patience = Duration::from_secs(60);
        let panicked = supervised(|_| panic!("on purpose"), patience);
        assert_eq!(panicked, ["server: a thread panicked"]);
        assert_eq!(supervised(|_| Ok(()), patience), Vec::<String>::new());
    }
}
