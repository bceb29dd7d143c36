//! Watches over a running scenario: shows how far it is, and ends it when it is stuck.

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use super::problem::Problem;
use super::run::{Run, outcome_of};

/// How long a scenario may go without any progress.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long a scenario may take to end once its port was closed.
const GRACE: Duration = Duration::from_secs(10);

/// How often to look. Only what is shown depends on it, and when a stuck scenario is found out.
const TICK: Duration = Duration::from_millis(50);

/// What to show while a scenario runs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Display {
    Nothing,
    ProgressBar,
}

/// How a scenario ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// All its threads are gone.
    Over,
    /// It did not even end when its port was closed; its threads were left behind.
    Abandoned,
}

/// Runs `program` to its end on a thread of its own. Tells how it ended, and how long it took.
pub(crate) fn supervise(
    run: &Arc<Run>,
    program: fn(&Run) -> Result<(), Problem>,
    display: Display,
) -> (Ending, Duration) {
    let bar = progress_bar(run, display);
    let start = Instant::now();
    let ending = watch(run, program, PATIENCE, GRACE, &bar);
    bar.finish_and_clear();
    (ending, start.elapsed())
}

fn watch(
    run: &Arc<Run>,
    program: fn(&Run) -> Result<(), Problem>,
    patience: Duration,
    grace: Duration,
    bar: &ProgressBar,
) -> Ending {
    let (over, is_over) = mpsc::channel::<()>();
    let scenario = thread::spawn({
        let run = Arc::clone(run);
        move || {
            // Goes when this closure ends, in whatever way; the channel then hangs up.
            let _over = over;
            program(&run)
        }
    });

    let mut progress = Progress::new(run.tally.progress());
    let mut given_up = None;
    while is_over.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
        show(run, bar);
        if !run.has_given_up() {
            if progress.stood_still(run.tally.progress()) >= patience {
                run.give_up(&stuck(run, patience));
            }
        } else if given_up.get_or_insert_with(Instant::now).elapsed() >= grace {
            run.note(&Problem::new(format_args!(
                "did not end within {} s after its port was closed",
                grace.as_secs()
            )));
            return Ending::Abandoned;
        }
    }
    if let Err(problem) = outcome_of(scenario.join()) {
        run.give_up(&problem);
    }
    Ending::Over
}

fn stuck(run: &Run, patience: Duration) -> Problem {
    let snapshot = run.port.snapshot();
    let number = |number: Option<usize>| match number {
        Some(number) => number.to_string(),
        None => "unknown".to_owned(),
    };
    Problem::new(format_args!(
        "no progress for {} s; the port has {} registrations, {} packets, {} running and {} waiting threads",
        patience.as_secs(),
        number(snapshot.registrations),
        snapshot.queued,
        number(snapshot.running),
        snapshot.waiting,
    ))
}

/// A number that should grow, and since when it has not.
struct Progress {
    last: u64,
    since: Instant,
}

impl Progress {
    fn new(value: u64) -> Self {
        Progress {
            last: value,
            since: Instant::now(),
        }
    }

    fn stood_still(&mut self, value: u64) -> Duration {
        if value != self.last {
            *self = Progress::new(value);
        }
        self.since.elapsed()
    }
}

fn progress_bar(run: &Run, display: Display) -> ProgressBar {
    const TEMPLATE: &str = "{prefix} [{bar:30}] {msg}, {bytes} of {total_bytes}, {elapsed}";
    match display {
        Display::Nothing => ProgressBar::hidden(),
        Display::ProgressBar => {
            let style = ProgressStyle::with_template(TEMPLATE)
                .unwrap_or_else(|_| ProgressStyle::default_bar());
            ProgressBar::new(run.plan.bytes())
                .with_prefix(run.plan.scenario.name())
                .with_style(style.progress_chars("=> "))
        }
    }
}

fn show(run: &Run, bar: &ProgressBar) {
    if !bar.is_hidden() {
        bar.set_message(format!("{} connections", run.tally.connections.get()));
        bar.set_position(run.tally.bytes.get());
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::{Plan, Scenario};
    use super::super::problem::Context;
    use super::*;

    const SHORT: Duration = Duration::from_millis(100);

    fn some_run() -> Arc<Run> {
        let plan = Plan::sample(Scenario::PollReplacement, 1);
        Arc::new(Run::prepare(plan).expect("a port can be made"))
    }

    fn watched(
        program: fn(&Run) -> Result<(), Problem>,
        patience: Duration,
    ) -> (Ending, Vec<String>) {
        let run = some_run();
        let ending = watch(&run, program, patience, patience, &ProgressBar::hidden());
        (ending, run.problems())
    }

    #[test]
    fn a_scenario_that_waits_for_ever_is_ended_and_says_so() {
        let wait = |run: &Run| run.port.dequeue_one(None).map(drop).context("wait");
        let (ending, problems) = watched(wait, SHORT);
        assert_eq!(ending, Ending::Over);
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(problems[0].starts_with("no progress"), "{problems:?}");
    }

    #[test]
    fn a_scenario_that_does_not_heed_the_close_is_left_behind() {
        let ignore_it = |_: &Run| loop {
            thread::park();
        };
        let (ending, problems) = watched(ignore_it, SHORT);
        assert_eq!(ending, Ending::Abandoned);
        assert!(problems[1].starts_with("did not end"), "{problems:?}");
    }

    #[test]
    fn a_scenario_that_panics_is_a_problem() {
        let (ending, problems) = watched(|_| panic!("on purpose"), PATIENCE);
        assert_eq!((ending, &*problems[0]), (Ending::Over, "a thread panicked"));
    }

    #[test]
    fn a_scenario_that_ends_well_has_no_problems() {
        assert_eq!(watched(|_| Ok(()), PATIENCE), (Ending::Over, vec![]));
    }
}
