//! The report on a load.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::drive::End;
use super::fates::{Ended, Fates};
use super::plan::{Pace, Plan};
use super::score::{Score, decimals};
use crate::output::count;

#[derive(Debug, Serialize)]
pub(crate) struct Report {
    ok: bool,
    mode: &'static str,
    connections: u32,
    pipeline: usize,
    /// Requests in a second that were asked for: then it was an open loop.
    rate: Option<f64>,
    seconds: f64,
    end: End,
    /// Those that were answered.
    requests: u64,
    requests_per_second: f64,
    /// In an open loop, requests that were due and not answered by the end.
    behind: Option<u64>,
    /// Requests that had waited for long when the time was over.
    unanswered: u64,
    /// Connections that were made anew, as the server had said that it closes them.
    reconnects: u64,
    errors: u64,
    fates: Counts,
    latency_us: Latency,
    problems: Vec<String>,
}

/// How many connections have had each fate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
struct Counts {
    /// Answered, and open at the end.
    served: u64,
    /// Open at the end, without any answer.
    unanswered: u64,
    /// In an open loop, open at the end, and no request was due on it.
    unused: u64,
    unconnected: u64,
    closed: u64,
    broken: u64,
    wrong: u64,
}

#[derive(Debug, Serialize)]
struct Latency {
    p50: f64,
    p90: f64,
    p99: f64,
    p999: f64,
    max: f64,
}

impl Report {
    pub(crate) fn new(
        plan: &Plan,
        connected: u64,
        time: Duration,
        end: End,
        score: &Score,
    ) -> Self {
        let seconds = time.as_secs_f64();
        let fates = &score.fates;
        let counts = Counts::new(connected, fates);
        let rate = match plan.pace {
            Pace::Answers => None,
            Pace::Rate(rate) => Some(rate),
        };
        let behind = rate.map(|rate| {
            let due = (rate * seconds).ceil() as u64;
            due.saturating_sub(score.requests)
        });
        let mut problems = problems(plan, &counts, time, end, score);
        if let Some(behind) = behind.filter(|&behind| behind > connected) {
            problems.push(format!(
                "the server did not keep up: {behind} requests that were due were not answered"
            ));
        }
        let per_second = score.requests as f64 / seconds;
        Report {
            ok: problems.is_empty(),
            mode: plan.mode.name(),
            connections: plan.connections,
            pipeline: plan.pipeline,
            rate,
            seconds,
            end,
            requests: score.requests,
            requests_per_second: match time.is_zero() {
                true => 0.0,
                false if per_second < 100.0 => (per_second * 100.0).round() / 100.0,
                false => per_second.round(),
            },
            behind,
            unanswered: score.unanswered,
            reconnects: score.reconnects,
            errors: fates.errors(),
            fates: counts,
            latency_us: Latency {
                p50: score.percentile(50.0),
                p90: score.percentile(90.0),
                p99: score.percentile(99.0),
                p999: score.percentile(99.9),
                max: score.longest(),
            },
            problems,
        }
    }

    pub(crate) fn is_in_order(&self) -> bool {
        self.ok
    }
}

impl Counts {
    fn new(connected: u64, fates: &Fates) -> Self {
        let Fates {
            unconnected,
            closed,
            broken,
            wrong,
            ..
        } = fates;
        let ended = closed.count + broken.count + wrong.count + fates.lost;
        Counts {
            served: fates.served(),
            unanswered: connected - ended - fates.served() - fates.unused,
            unused: fates.unused,
            unconnected: unconnected.count,
            closed: closed.count,
            broken: broken.count,
            wrong: wrong.count,
        }
    }
}

/// What was not as it should be, in whole sentences.
fn problems(plan: &Plan, counts: &Counts, time: Duration, end: End, score: &Score) -> Vec<String> {
    let fates = &score.fates;
    let mut problems = Vec::new();
    let early = match end {
        End::InTime => None,
        End::NoConnectionLeft => Some("no connection was left"),
        End::Interrupted => Some("it was interrupted"),
    };
    if let Some(reason) = early {
        let (seconds, planned) = (time.as_secs_f64(), plan.time.as_secs_f64());
        problems.push(format!(
            "it ended after {seconds:.3} of {planned} s: {reason}"
        ));
    }
    for (ended, what) in [
        (&fates.unconnected, "could not be made"),
        (&fates.closed, "were closed by the server"),
        (&fates.broken, "failed"),
        (&fates.wrong, "got a wrong answer"),
    ] {
        let Ended { count, reason } = ended;
        match reason {
            _ if *count == 0 => {}
            None => problems.push(format!("{} {what}", of(*count, plan))),
            Some(reason) => problems.push(format!("{} {what}: {reason}", of(*count, plan))),
        }
    }
    if counts.unanswered > 0 {
        let connections = of(counts.unanswered, plan);
        let server = match (fates.answered, fates.errors()) {
            _ if fates.parts > 0 => "; the server sends a part of it, and then nothing",
            (0, 0) => {
                "; the server sends nothing: it discards what it receives, or does not receive it"
            }
            _ => "",
        };
        problems.push(format!("{connections} got no answer{server}"));
    }
    if score.silent > 0 {
        problems.push(format!(
            "{} got answers, and then none any more, for up to {:.3} s",
            of(score.silent, plan),
            score.longest() / 1e6,
        ));
    }
    problems
}

fn of(some: u64, plan: &Plan) -> String {
    format!(
        "{some} of {}",
        count(plan.connections as usize, "connection")
    )
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Latency {
            p50,
            p90,
            p99,
            p999,
            max,
        } = self.latency_us;
        let connections = count(self.connections as usize, "connection");
        write!(f, "{}, {connections}, ", self.mode)?;
        match self.rate {
            None => {
                let requests = count(self.pipeline, "request");
                writeln!(f, "{requests} in progress on each (closed loop)")?;
            }
            Some(rate) => writeln!(f, "{rate} requests due per second (open loop)")?,
        }
        writeln!(f, "  seconds          {:>12.3}", self.seconds)?;
        writeln!(f, "  requests         {:>12}", self.requests)?;
        writeln!(f, "  per second       {:>12}", self.requests_per_second)?;
        if let Some(behind) = self.behind {
            writeln!(f, "  due, unanswered  {behind:>12}")?;
        }
        for (what, count) in [
            ("waiting at end", self.unanswered),
            ("reconnects", self.reconnects),
        ] {
            if count > 0 {
                writeln!(f, "  {what:<17}{count:>12}")?;
            }
        }
        if self.requests > 0 {
            let latencies = [
                ("latency, 50 %", p50),
                ("         90 %", p90),
                ("         99 %", p99),
                ("         99.9 %", p999),
                ("         max", max),
            ];
            for (what, time) in latencies {
                let decimals = decimals(time).max(0) as usize;
                writeln!(f, "  {what:<17}{time:>12.decimals$} us")?;
            }
        }
        let Counts {
            served,
            unanswered,
            unused,
            unconnected,
            closed,
            broken,
            wrong,
        } = self.fates;
        write!(f, "  connections served {served:>10}")?;
        for (fate, count) in [
            ("unanswered", unanswered),
            ("not used", unused),
            ("not connected", unconnected),
            ("closed", closed),
            ("failed", broken),
            ("answered wrongly", wrong),
        ] {
            if count > 0 {
                write!(f, "\n    {fate:<16} {count:>10}")?;
            }
        }
        for problem in &self.problems {
            write!(f, "\n  - {problem}")?;
        }
        Ok(())
    }
}
