//! The report on a scenario: its totals, and whether they add up.

use std::time::Duration;

use serde_json::json;

use super::run::{Counter, Run, Tally};

/// Text or JSON, as the arguments have it, and whether all is in order.
pub(crate) fn on(run: &Run, time: Duration) -> (String, bool) {
    let Tally {
        connections, bytes, ..
    } = &run.tally;
    let bytes_expected = run.clients() * run.bytes_per_client();
    let problems = problems(
        run,
        &[
            ("connections", connections, run.clients()),
            ("bytes received", bytes, bytes_expected),
            ("REMOVE notifications", &run.tally.removals, run.removals()),
            ("packets posted", &run.tally.posts, run.threads()),
        ],
    );
    let is_in_order = problems.is_empty();
    let mut report = json!({
        "backend": run.port.backend().name(),
        "clients": run.clients(),
        "bytes_expected": bytes_expected,
        "bytes_received": bytes.get(),
        "notifications": run.tally.notifications.get(),
        "removals": run.tally.removals.get(),
        "threads": run.threads(),
        "max_running": run.tally.max_running.get(),
        "seconds": time.as_secs_f64(),
        "packets_posted": run.tally.posts.get(),
        "datagrams_sent_again": run.tally.repeats.get(),
    });
    let name = run.scenario.name;
    if run.arguments.output.json {
        report["scenario"] = name.into();
        report["ok"] = is_in_order.into();
        report["problems"] = problems.into();
        return (report.to_string(), is_in_order);
    }
    let mut text = format!("{name}\n");
    for (what, value) in report.as_object().into_iter().flatten() {
        let value = value
            .as_str()
            .map_or_else(|| value.to_string(), str::to_owned);
        text += &format!("  {:<20} {value:>12}\n", what.replace('_', " "));
    }
    let verdict = if is_in_order { "ok" } else { "NOT OK" };
    text += &format!("  {:<20} {verdict:>12}\n", "verdict");
    for problem in &problems {
        text += &format!("    - {problem}\n");
    }
    (text, is_in_order)
}

fn problems(run: &Run, totals: &[(&str, &Counter, u64)]) -> Vec<String> {
    let mut problems = run.problems().clone();
    // One that was given up has its reason already, and cannot add up.
    if run.has_given_up() {
        return problems;
    }
    for &(what, counted, expected) in totals {
        let counted = counted.get();
        if counted != expected {
            problems.push(format!("{what}: {counted} in place of {expected}"));
        }
    }
    let (running, places) = (run.tally.max_running.get(), run.port.concurrency());
    if running > places as u64 {
        problems.push(format!("{running} threads ran at once on {places} places"));
    }
    // All threads of the scenario are gone, so nothing of theirs may be left in the port.
    let snapshot = run.port.snapshot();
    for (what, count) in [
        ("registrations", snapshot.registrations.unwrap_or(0)),
        ("packets", snapshot.queued),
        ("running threads", snapshot.running.unwrap_or(0)),
        ("waiting threads", snapshot.waiting),
    ] {
        if count != 0 {
            problems.push(format!("the port still counts {count} {what} at the end"));
        }
    }
    problems
}

#[cfg(test)]
pub(super) mod tests {
    use clap::{Args, Command, FromArgMatches};

    use super::super::run::Outcome;
    use super::super::{Arguments, SCENARIOS, Scenario};
    use super::*;

    /// The first scenario with three clients on two places, or a program in its place.
    pub(in super::super) fn prepared(program: fn(&Run) -> Outcome) -> Run {
        let words = ["scenarios", "--clients=3", "--concurrency=2", "--json"];
        let matches = Arguments::augment_args(Command::new("scenarios")).get_matches_from(words);
        let arguments = Arguments::from_arg_matches(&matches).expect("they are right");
        let scenario = Scenario {
            program,
            ..SCENARIOS[0]
        };
        Run::prepare(scenario, arguments).expect("a port can be made")
    }

    /// Its totals add up.
    fn good_run() -> Run {
        let run = prepared(|_| Ok(()));
        run.tally.connections.add(3);
        run.tally.bytes.add(3 * 10 * 4);
        run.tally.removals.add(3 + 1);
        run.tally.posts.add(1);
        run
    }

    fn problems(run: &Run) -> Vec<String> {
        let (text, is_in_order) = on(run, Duration::ZERO);
        let report: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let problems = report["problems"].as_array().expect("a list");
        assert_eq!(
            (is_in_order, &report["ok"]),
            (problems.is_empty(), &is_in_order.into())
        );
        let texts = problems.iter().filter_map(|it| it.as_str());
        texts.map(str::to_owned).collect()
    }

    #[test]
    fn totals_that_add_up_are_in_order_and_each_that_does_not_is_told() {
        let run = good_run();
        assert_eq!(problems(&run), Vec::<String>::new());
        for total in [
            &run.tally.connections,
            &run.tally.bytes,
            &run.tally.removals,
            &run.tally.posts,
        ] {
            total.add(1);
        }
        let expected = [
            "connections: 4 in place of 3",
            "bytes received: 121 in place of 120",
            "REMOVE notifications: 5 in place of 4",
            "packets posted: 2 in place of 1",
        ];
        assert_eq!(problems(&run), expected);
    }

    #[test]
    fn more_running_threads_than_places_are_told() {
        let run = good_run();
        run.running(|| run.running(|| run.running(|| ())));
        run.running(|| ());
        assert_eq!(problems(&run), ["3 threads ran at once on 2 places"]);
    }

    #[test]
    fn what_is_left_in_the_port_is_told() {
        let run = good_run();
        let packet = socknotify::Entry::new(1, 2, 3);
        run.port.post(packet).expect("the port is open");
        assert_eq!(
            problems(&run),
            ["the port still counts 1 packets at the end"]
        );
    }

    #[test]
    fn a_run_that_was_given_up_tells_only_why() {
        let run = prepared(|_| Ok(()));
        run.give_up("first", 1);
        run.give_up("second", 2);
        assert_eq!(problems(&run), ["first: 1"]);
    }
}
