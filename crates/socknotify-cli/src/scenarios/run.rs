//! One run of a scenario: what its threads share.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use socknotify::{CompletionPort, Entry, Registration};

use super::plan::Plan;
use super::problem::{Context, Problem};
use super::tally::Tally;

#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) plan: Plan,
    pub(crate) port: CompletionPort,
    pub(crate) tally: Tally,
    problems: Mutex<Vec<String>>,
    given_up: AtomicBool,
}

impl Run {
    pub(crate) fn prepare(plan: Plan) -> Result<Self, Problem> {
        // The threads are counted, and more run than there are places when one goes on that had left its place.
        let port = plan.port.builder().strict().build();
        Ok(Run {
            plan,
            port: port.context("cannot make a completion port")?,
            tally: Tally::default(),
            problems: Mutex::default(),
            given_up: AtomicBool::new(false),
        })
    }

    /// Notes a problem after which the scenario can still go on.
    pub(crate) fn note(&self, problem: &Problem) {
        self.problems
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(problem.to_string());
    }

    /// Notes the problem and ends the scenario: threads that wait in the port are released.
    ///
    /// Only the first one is noted. What fails later fails because of it.
    pub(crate) fn give_up(&self, problem: &Problem) {
        if !self.given_up.swap(true, Ordering::AcqRel) {
            self.note(problem);
            self.port.close();
        }
    }

    pub(crate) fn has_given_up(&self) -> bool {
        self.given_up.load(Ordering::Acquire)
    }

    pub(crate) fn problems(&self) -> Vec<String> {
        self.problems
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Registers one socket. It is a problem if that fails, for the call or for the entry.
    pub(crate) fn register(
        &self,
        what: &str,
        registration: Registration<'_>,
    ) -> Result<(), Problem> {
        self.port.register(registration).context(what)
    }

    pub(crate) fn post(&self, entry: Entry) -> Result<(), Problem> {
        self.port.post(entry).context("post a packet")?;
        self.tally.posts.add(1);
        Ok(())
    }
}

/// The outcome of a thread that was joined.
pub(crate) fn outcome_of(joined: thread::Result<Result<(), Problem>>) -> Result<(), Problem> {
    joined.unwrap_or_else(|_| Err(Problem::new("a thread panicked")))
}
