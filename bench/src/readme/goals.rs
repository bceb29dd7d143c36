//! What is to be reached, as data: one line for each goal.

use std::fmt::Write;

use super::Report;
use super::tables::{ASYNC, OWNED, SERVE, SERVE_BLOCKING, show};
use crate::figure::Figure;
use crate::implementation::Implementation;

/// How the line begins that counts those that are met.
pub(super) const MET: &str = "Met:";

struct Goal {
    what: &'static str,
    /// A case, and a setting of it.
    at: (&'static str, &'static str),
    figure: Figure,
    side: Implementation,
    /// The figure is its ratio to this one's.
    to: Option<Implementation>,
    limit: f64,
}

const SPAWNING: Implementation = Implementation::TokioSpawning;
const TOKIO: Implementation = Implementation::Tokio;
const LOOKUP: (&str, &str) = ("lookup", "apart=1");
const BURST_10: (&str, &str) = ("burst", "connections=10");
const BURST_30: (&str, &str) = ("burst", "connections=30");
const BURST_100: (&str, &str) = ("burst", "connections=100");
const COMPUTE: (&str, &str) = ("compute", "connections=4");
const ONE: (&str, &str) = ("blocking", "blocking=1");
const FIVE: (&str, &str) = ("blocking", "blocking=5");
const TWENTY: (&str, &str) = ("blocking", "blocking=20");
const DISK: (&str, &str) = ("blocking-file", "blocking=5");
const APART: (&str, &str) = ("http", "apart=1 connections=100");
const MANY_APART: (&str, &str) = ("http", "apart=1 connections=1000");
const SHARED: (&str, &str) = ("http", "apart=0 connections=100");
const FIXED: (&str, &str) = ("latency", "apart=1 load=50");

macro_rules! goals {
    (@to) => { None };
    (@to $to:ident) => { Some($to) };
    ($($what:literal: $at:ident, $figure:ident of $side:ident $(to $to:ident)?, $limit:literal;)*) => {
        &[$(Goal {
            what: $what,
            at: $at,
            figure: Figure::$figure,
            side: $side,
            to: goals!(@to $($to)?),
            limit: $limit,
        },)*]
    };
}

const GOALS: &[Goal] = goals! {
    "lookup, `serve`: requests/s to `spawn_blocking`": LOOKUP, Rate of SERVE to SPAWNING, 1.5;
    "lookup, async: requests/s to `spawn_blocking`": LOOKUP, Rate of ASYNC to SPAWNING, 1.5;
    "lookup, `serve`: CPU time to `spawn_blocking`": LOOKUP, ServerCpu of SERVE to SPAWNING, 0.42;
    "lookup, async: CPU time to `spawn_blocking`": LOOKUP, ServerCpu of ASYNC to SPAWNING, 0.42;
    "10 sleep 50 ms, `serve`: another's longest wait, ms": BURST_10, Longest of SERVE, 5.0;
    "10 sleep 50 ms, async: another's longest wait, ms": BURST_10, Longest of ASYNC, 5.0;
    "30 sleep 50 ms, `serve`: another's longest wait, ms": BURST_30, Longest of SERVE, 8.0;
    "30 sleep 50 ms, async: another's longest wait, ms": BURST_30, Longest of ASYNC, 8.0;
    "100 sleep 50 ms, `serve`: another's longest wait, ms": BURST_100, Longest of SERVE, 18.0;
    "100 sleep 50 ms, async: another's longest wait, ms": BURST_100, Longest of ASYNC, 18.0;
    "4 compute 1 s, `serve`: another's longest wait, ms": COMPUTE, Longest of SERVE, 60.0;
    "4 compute 1 s, async: another's longest wait, ms": COMPUTE, Longest of ASYNC, 60.0;
    "1 % sleep 50 ms, `serve`: requests/s to `spawn_blocking`": ONE, Rate of SERVE to SPAWNING, 0.95;
    "5 % sleep 50 ms, `serve`: requests/s to `spawn_blocking`": FIVE, Rate of SERVE to SPAWNING, 0.97;
    "20 % sleep 50 ms, `serve`: requests/s to `spawn_blocking`": TWENTY, Rate of SERVE to SPAWNING, 1.0;
    "5 % sleep 50 ms, `serve`: CPU time to `spawn_blocking`": FIVE, ServerCpu of SERVE to SPAWNING, 1.1;
    "1 % sleep 50 ms, `serve`: p99 of the others, ms": ONE, P99 of SERVE, 1.5;
    "5 % sleep 50 ms, `serve`: p99 of the others, ms": FIVE, P99 of SERVE, 1.5;
    "5 % read from the disk, `serve`: requests/s to `spawn_blocking`": DISK, Rate of SERVE to SPAWNING, 0.85;
    "5 % read from the disk, `blocking`: requests/s to `spawn_blocking`": DISK, Rate of SERVE_BLOCKING to SPAWNING, 0.95;
    "HTTP, 100 connections, server on one processor: requests/s to tokio": APART, Rate of OWNED to TOKIO, 1.05;
    "HTTP, 1,000 connections, server on one processor: requests/s to tokio": MANY_APART, Rate of OWNED to TOKIO, 1.05;
    "HTTP, 100 connections at a fixed rate: CPU time to tokio": FIXED, ServerCpu of OWNED to TOKIO, 0.95;
    "HTTP, 100 connections at a fixed rate: p99 to tokio": FIXED, P99 of OWNED to TOKIO, 1.0;
    "HTTP, 100 connections, shared processors: requests/s to tokio": SHARED, Rate of OWNED to TOKIO, 1.0;
};

impl Goal {
    /// The figure in the words of the table, and whether it is within the limit.
    fn found(&self, report: &Report) -> Option<(String, bool)> {
        let get = |side| {
            let row = report.row(self.at.0, self.at.1, self.figure, side)?;
            row.get(self.figure)
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
        let is_met = match self.figure {
            Figure::Rate => value >= self.limit,
            _ => value <= self.limit,
        };
        Some((text, is_met))
    }
}

/// Those that are missed. `None` if one was not run.
pub(super) fn table(report: &Report) -> Option<String> {
    let (mut met, mut missed) = (0, String::new());
    for goal in GOALS {
        let (measured, is_met) = goal.found(report)?;
        let sign = if goal.figure == Figure::Rate {
            "≥"
        } else {
            "≤"
        };
        match is_met {
            true => met += 1,
            false => {
                let Goal { what, limit, .. } = goal;
                writeln!(missed, "| {what} | {sign} {limit} | {measured} |")
                    .expect("memory takes it");
            }
        }
    }
    Some(text(met, &missed))
}

/// Without figures.
pub(super) fn shape() -> String {
    text(0, "")
}

fn text(met: usize, missed: &str) -> String {
    let count = GOALS.len();
    format!(
        "\n{MET} {met} of {count}, all in [`goals.rs`](src/readme/goals.rs). Missed:\n\n\
         | case | goal | measured |\n|---|---|---|\n{missed}"
    )
}
