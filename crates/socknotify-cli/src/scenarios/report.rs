//! The report on a scenario: its totals, and whether they add up.

use std::fmt;
use std::time::Duration;

use serde::Serialize;
use socknotify::Snapshot;

use super::run::Run;

/// What happened, beside what should have. The first eleven fields are what programs rely on.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    scenario: &'static str,
    ok: bool,
    backend: &'static str,
    clients: u32,
    bytes_expected: u64,
    bytes_received: u64,
    notifications: u64,
    removals: u64,
    threads: u32,
    max_running: u64,
    seconds: f64,
    packets_posted: u64,
    problems: Vec<String>,
    #[serde(skip)]
    connections: u64,
    #[serde(skip)]
    removals_expected: u64,
    #[serde(skip)]
    packets_expected: u64,
    #[serde(skip)]
    places: u64,
    #[serde(skip)]
    repeats: u64,
}

impl Report {
    pub(crate) fn make(run: &Run, time: Duration) -> Self {
        let Run {
            plan, port, tally, ..
        } = run;
        let mut report = Report {
            scenario: plan.scenario.name(),
            ok: false,
            backend: port.backend().name(),
            clients: plan.clients,
            bytes_expected: plan.bytes(),
            bytes_received: tally.bytes.get(),
            notifications: tally.notifications.get(),
            removals: tally.removals.get(),
            threads: plan.threads,
            max_running: tally.running.most(),
            seconds: time.as_secs_f64(),
            packets_posted: tally.posts.get(),
            problems: run.problems(),
            connections: tally.connections.get(),
            removals_expected: plan.removals(),
            packets_expected: plan.posts(),
            places: port.concurrency() as u64,
            repeats: tally.repeats.get(),
        };
        // One that was given up has its reason already, and cannot add up.
        if !run.has_given_up() {
            report.compare_totals();
            report.look_for_leftovers(&port.snapshot());
        }
        report.ok = report.problems.is_empty();
        report
    }

    pub(crate) fn is_in_order(&self) -> bool {
        self.ok
    }

    /// The report as it is printed.
    pub(crate) fn text(&self, json: bool) -> serde_json::Result<String> {
        if json {
            serde_json::to_string(self)
        } else {
            Ok(self.to_string())
        }
    }

    fn compare_totals(&mut self) {
        let totals = [
            ("connections", self.connections, self.clients.into()),
            ("bytes received", self.bytes_received, self.bytes_expected),
            (
                "REMOVE notifications",
                self.removals,
                self.removals_expected,
            ),
            ("packets posted", self.packets_posted, self.packets_expected),
        ];
        for (what, counted, expected) in totals {
            if counted != expected {
                self.problems
                    .push(format!("{what}: {counted} in place of {expected}"));
            }
        }
        if self.max_running > self.places {
            self.problems.push(format!(
                "{} threads ran at once on {} places",
                self.max_running, self.places
            ));
        }
    }

    /// All threads of the scenario are gone, so nothing of theirs may be left in the port.
    fn look_for_leftovers(&mut self, snapshot: &Snapshot) {
        let leftovers = [
            ("registrations", snapshot.registrations.unwrap_or(0)),
            ("packets", snapshot.queued),
            ("running threads", snapshot.running.unwrap_or(0)),
            ("waiting threads", snapshot.waiting),
        ];
        for (what, count) in leftovers {
            if count != 0 {
                self.problems
                    .push(format!("the port still counts {count} {what} at the end"));
            }
        }
    }

    fn row(f: &mut fmt::Formatter<'_>, label: &str, value: impl fmt::Display) -> fmt::Result {
        writeln!(f, "  {label:<16} {value:>12}")
    }

    fn row_of(
        f: &mut fmt::Formatter<'_>,
        label: &str,
        value: u64,
        expected: impl fmt::Display,
    ) -> fmt::Result {
        writeln!(f, "  {label:<16} {value:>12}  of {expected}")
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} on {}", self.scenario, self.backend)?;
        Self::row_of(f, "connections", self.connections, self.clients)?;
        Self::row_of(
            f,
            "bytes received",
            self.bytes_received,
            self.bytes_expected,
        )?;
        Self::row(f, "notifications", self.notifications)?;
        Self::row_of(f, "REMOVEs", self.removals, self.removals_expected)?;
        Self::row_of(
            f,
            "packets posted",
            self.packets_posted,
            self.packets_expected,
        )?;
        if self.repeats > 0 {
            Self::row(f, "sent again", self.repeats)?;
        }
        Self::row(f, "threads", self.threads)?;
        Self::row_of(
            f,
            "most at once",
            self.max_running,
            format_args!("{} places", self.places),
        )?;
        Self::row(f, "seconds", format!("{:.3}", self.seconds))?;
        Self::row(f, "verdict", if self.ok { "ok" } else { "NOT OK" })?;
        for problem in &self.problems {
            writeln!(f, "    - {problem}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use socknotify::Entry;

    use super::super::plan::{Plan, Scenario};
    use super::super::problem::Problem;
    use super::*;

    /// A run of three TCP clients whose totals add up.
    fn good_run() -> Run {
        let plan = Plan::sample(Scenario::PollReplacement, 3);
        let run = Run::prepare(plan).expect("a port can be made");
        run.tally.connections.add(3);
        run.tally.bytes.add(3 * 10 * 4);
        run.tally.removals.add(3 + 1);
        run
    }

    fn problems(run: &Run) -> Vec<String> {
        let report = Report::make(run, Duration::ZERO);
        assert_eq!(report.is_in_order(), report.problems.is_empty());
        report.problems
    }

    #[test]
    fn totals_that_add_up_are_in_order() {
        assert_eq!(problems(&good_run()), Vec::<String>::new());
    }

    #[test]
    fn each_total_that_does_not_add_up_is_told() {
        let run = good_run();
        run.tally.connections.add(1);
        run.tally.bytes.add(1);
        run.tally.removals.add(1);
        run.tally.posts.add(1);
        let expected = [
            "connections: 4 in place of 3",
            "bytes received: 121 in place of 120",
            "REMOVE notifications: 5 in place of 4",
            "packets posted: 1 in place of 0",
        ];
        assert_eq!(problems(&run), expected);
    }

    #[test]
    fn more_running_threads_than_places_are_told() {
        let run = good_run();
        let running = [(); 3].map(|()| run.tally.running.enter());
        drop(running);
        assert_eq!(problems(&run), ["3 threads ran at once on 2 places"]);
    }

    #[test]
    fn what_is_left_in_the_port_is_told() {
        let run = good_run();
        run.port
            .post(Entry::new(1, 2, 3))
            .expect("the port is open");
        assert_eq!(
            problems(&run),
            ["the port still counts 1 packets at the end"]
        );
    }

    #[test]
    fn a_run_that_was_given_up_tells_only_why() {
        let run = Run::prepare(Plan::sample(Scenario::MultiThreadedTcp, 3)).expect("a port");
        run.give_up(&Problem::new("first"));
        run.give_up(&Problem::new("second"));
        assert_eq!(problems(&run), ["first"]);
    }
}
