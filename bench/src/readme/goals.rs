//! What is to be reached, as data: one line for each goal.

use std::fmt::Write;

use super::Report;
use super::tables::{ASYNC, OWNED, SERVE, SERVE_BLOCKING, show};
use crate::figure::Figure;
use crate::implementation::Implementation;

struct Goal {
    what: &'static str,
    case: &'static str,
    setting: &'static str,
    figure: Figure,
    side: Implementation,
    /// The figure is its ratio to this one's.
    to: Option<Implementation>,
    limit: f64,
}

const fn goal(
    what: &'static str,
    (case, setting): (&'static str, &'static str),
    figure: Figure,
    side: Implementation,
    to: Option<Implementation>,
    limit: f64,
) -> Goal {
    Goal {
        what,
        case,
        setting,
        figure,
        side,
        to,
        limit,
    }
}

use Figure::{Longest, P99, Rate, ServerCpu};

const SPAWNING: Option<Implementation> = Some(Implementation::TokioSpawning);
const TOKIO: Option<Implementation> = Some(Implementation::Tokio);
const LOOKUP: (&str, &str) = ("lookup", "apart=1");
const ONE: (&str, &str) = ("blocking", "blocking=1");
const FIVE: (&str, &str) = ("blocking", "blocking=5");
const TWENTY: (&str, &str) = ("blocking", "blocking=20");
const DISK: (&str, &str) = ("blocking-file", "blocking=5");
const APART: (&str, &str) = ("http", "apart=1 connections=100");
const MANY_APART: (&str, &str) = ("http", "apart=1 connections=1000");
const SHARED: (&str, &str) = ("http", "apart=0 connections=100");
const FIXED: (&str, &str) = ("latency", "apart=1 load=50");

const GOALS: [Goal; 25] = [
    goal(
        "lookup, `serve`: requests/s to `spawn_blocking`",
        LOOKUP,
        Rate,
        SERVE,
        SPAWNING,
        1.5,
    ),
    goal(
        "lookup, async: the same",
        LOOKUP,
        Rate,
        ASYNC,
        SPAWNING,
        1.5,
    ),
    goal(
        "lookup, `serve`: CPU time to `spawn_blocking`",
        LOOKUP,
        ServerCpu,
        SERVE,
        SPAWNING,
        0.42,
    ),
    goal(
        "lookup, async: the same",
        LOOKUP,
        ServerCpu,
        ASYNC,
        SPAWNING,
        0.42,
    ),
    goal(
        "10 sleep 50 ms, `serve`: another's longest wait, ms",
        ("burst", "connections=10"),
        Longest,
        SERVE,
        None,
        5.0,
    ),
    goal(
        "the same, async",
        ("burst", "connections=10"),
        Longest,
        ASYNC,
        None,
        5.0,
    ),
    goal(
        "30 sleep 50 ms, `serve`",
        ("burst", "connections=30"),
        Longest,
        SERVE,
        None,
        8.0,
    ),
    goal(
        "the same, async",
        ("burst", "connections=30"),
        Longest,
        ASYNC,
        None,
        8.0,
    ),
    goal(
        "100 sleep 50 ms, `serve`",
        ("burst", "connections=100"),
        Longest,
        SERVE,
        None,
        18.0,
    ),
    goal(
        "the same, async",
        ("burst", "connections=100"),
        Longest,
        ASYNC,
        None,
        18.0,
    ),
    goal(
        "4 compute 1 s, `serve`: another's longest wait, ms",
        ("compute", "connections=4"),
        Longest,
        SERVE,
        None,
        60.0,
    ),
    goal(
        "the same, async",
        ("compute", "connections=4"),
        Longest,
        ASYNC,
        None,
        60.0,
    ),
    goal(
        "1 % sleep 50 ms, `serve`: requests/s to `spawn_blocking`",
        ONE,
        Rate,
        SERVE,
        SPAWNING,
        0.95,
    ),
    goal("5 % do", FIVE, Rate, SERVE, SPAWNING, 0.97),
    goal("20 % do", TWENTY, Rate, SERVE, SPAWNING, 1.0),
    goal(
        "5 % sleep 50 ms, `serve`: CPU time to `spawn_blocking`",
        FIVE,
        ServerCpu,
        SERVE,
        SPAWNING,
        1.1,
    ),
    goal(
        "1 % sleep 50 ms, `serve`: p99 of the others, ms",
        ONE,
        P99,
        SERVE,
        None,
        1.5,
    ),
    goal("5 % do", FIVE, P99, SERVE, None, 1.5),
    goal(
        "5 % read from the disk, `serve`: requests/s to `spawn_blocking`",
        DISK,
        Rate,
        SERVE,
        SPAWNING,
        0.85,
    ),
    goal(
        "the same, `blocking`",
        DISK,
        Rate,
        SERVE_BLOCKING,
        SPAWNING,
        0.95,
    ),
    goal(
        "HTTP, 100 connections, server on one processor: requests/s to tokio",
        APART,
        Rate,
        OWNED,
        TOKIO,
        1.05,
    ),
    goal(
        "the same, 1,000 connections",
        MANY_APART,
        Rate,
        OWNED,
        TOKIO,
        1.05,
    ),
    goal(
        "the same, 100 connections at a fixed rate: CPU time to tokio",
        FIXED,
        ServerCpu,
        OWNED,
        TOKIO,
        0.95,
    ),
    goal("the same: p99 to tokio", FIXED, P99, OWNED, TOKIO, 1.0),
    goal(
        "HTTP, 100 connections, shared processors: requests/s to tokio",
        SHARED,
        Rate,
        OWNED,
        TOKIO,
        1.0,
    ),
];

const HEAD: &str = "\n| case | goal | measured | result |\n|---|---|---|---|\n";

impl Goal {
    /// The limit, in the words of the table.
    fn limit(&self) -> String {
        let sign = if self.figure == Rate { "≥" } else { "≤" };
        format!("{sign} {}", self.limit)
    }

    /// The figure in the words of the table, and whether it is within the limit.
    fn found(&self, report: &Report) -> Option<(String, bool)> {
        let get = |side| {
            report
                .row(self.case, self.setting, self.figure, side)?
                .get(self.figure)
        };
        let value = get(self.side)?;
        let (value, text) = match self.to {
            Some(to) => {
                let ratio = value / get(to)?;
                (ratio, format!("{ratio:.2}"))
            }
            // Microseconds.
            None => (value / 1000.0, show(self.figure, value)),
        };
        let is_met = if self.figure == Rate {
            value >= self.limit
        } else {
            value <= self.limit
        };
        Some((text, is_met))
    }
}

/// `None` if one was not run.
pub(super) fn table(report: &Report) -> Option<String> {
    let mut table = HEAD.to_owned();
    for goal in &GOALS {
        let (measured, is_met) = goal.found(report)?;
        let result = if is_met { "met" } else { "missed" };
        let (what, limit) = (goal.what, goal.limit());
        writeln!(table, "| {what} | {limit} | {measured} | {result} |").expect("memory takes it");
    }
    Some(table)
}

/// Without figures.
pub(super) fn shape() -> String {
    let lines = GOALS.iter();
    let lines = lines.map(|goal| format!("| {} | {} | # | met |\n", goal.what, goal.limit()));
    HEAD.to_owned() + &lines.collect::<String>()
}
