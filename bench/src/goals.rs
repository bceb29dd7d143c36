//! What is to be reached, and what was found: one line for each goal.

use std::fmt;

use crate::case::{Order, Parameter, Setting};
use crate::figure::Figure;
use crate::implementation::Implementation;
use crate::row::Row;

/// A goal, in the words of the table in README.md.
pub(crate) struct Goal {
    /// What is measured, in words.
    pub(crate) case: &'static str,
    pub(crate) against: &'static str,
    limits: &'static [(Layer, Limit)],
    pub(crate) measure: Measure,
}

/// For which of ours a limit is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layer {
    Any,
    /// The port with keys.
    Faithful,
    /// The port that owns connections, with the default wake policy.
    Owned,
    /// The one of these in which reads tell the port that nothing is left.
    Drained,
    /// Whichever is better.
    Best,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Limit {
    AtMost(f64),
    AtLeast(f64),
    /// So many percent more or less than once.
    Within(f64),
}

use Layer::{Any, Best, Drained, Faithful, Owned};
use Limit::{AtLeast, AtMost, Within};

/// What is looked up in the rows of a case.
#[derive(Clone, Copy)]
pub(crate) struct Measure {
    pub(crate) case: &'static str,
    figure: Figure,
    kind: Kind,
    counts: fn(&Setting) -> bool,
}

#[derive(Clone, Copy)]
enum Kind {
    /// The value itself.
    Value,
    /// To the best of theirs, in each setting.
    ToBestOf(&'static [Implementation]),
    /// To the port with keys.
    ToFaithful,
    /// To the best of theirs with as many threads as are best for it.
    ToBestThreadsOf(&'static [Implementation]),
    /// With the most idle registrations, to the fewest, in each order.
    MostToLeastIdle,
}

/// Raw servers.
const RAW: &[Implementation] = &[
    Implementation::RawEpoll,
    Implementation::RawEpollEach,
    Implementation::RawUring,
];

/// Raw loops of one thread.
const RAW_LOOPS: &[Implementation] = &[
    Implementation::RawEpoll,
    Implementation::RawEpollOnePoll,
    Implementation::RawUring,
];

/// Loops of one thread that serve.
const ONE_THREAD: &[Implementation] = &[
    Implementation::RawEpoll,
    Implementation::RawEpollEach,
    Implementation::Mio,
];

/// All servers but ours.
const THEIRS: &[Implementation] = &[
    Implementation::RawEpoll,
    Implementation::RawEpollEach,
    Implementation::RawUring,
    Implementation::Polling,
    Implementation::Mio,
    Implementation::Tokio,
];

const EPOLL: Kind = Kind::ToBestOf(&[Implementation::RawEpoll]);
const POLLING: Kind = Kind::ToBestOf(&[Implementation::Polling]);
const MIO: Kind = Kind::ToBestOf(&[Implementation::Mio]);
const TOKIO: Kind = Kind::ToBestOf(&[Implementation::Tokio]);

const fn measure(
    case: &'static str,
    figure: Figure,
    kind: Kind,
    counts: fn(&Setting) -> bool,
) -> Measure {
    Measure {
        case,
        figure,
        kind,
        counts,
    }
}

/// CPU time, one thread, net of reads and writes.
const fn net(case: &'static str, kind: Kind, counts: fn(&Setting) -> bool) -> Measure {
    measure(case, Figure::NetCpu, kind, counts)
}

/// Requests per second.
const fn rate(case: &'static str, kind: Kind, counts: fn(&Setting) -> bool) -> Measure {
    measure(case, Figure::Rate, kind, counts)
}

const fn goal(
    case: &'static str,
    against: &'static str,
    limits: &'static [(Layer, Limit)],
    measure: Measure,
) -> Goal {
    Goal {
        case,
        against,
        limits,
        measure,
    }
}

pub(crate) const GOALS: [Goal; 33] = [
    goal(
        "one-shot, armed then written, 4 to 512 ready, net CPU time",
        "raw epoll, one-shot, a MOD each, same order",
        &[(Faithful, AtMost(1.0))],
        net("one-shot", EPOLL, |it| armed_written(it) && batch(it) >= 4),
    ),
    goal(
        "the same, 16 to 512 ready",
        "the same",
        &[(Owned, AtMost(0.65))],
        net("one-shot", EPOLL, |it| armed_written(it) && batch(it) >= 16),
    ),
    goal(
        "the same, 4 ready",
        "the same",
        &[(Owned, AtMost(0.9))],
        net("one-shot", EPOLL, |it| armed_written(it) && batch(it) == 4),
    ),
    goal(
        "the same, 1 ready",
        "the same",
        &[(Faithful, AtMost(1.25)), (Owned, AtMost(1.15))],
        net("one-shot", EPOLL, |it| armed_written(it) && batch(it) == 1),
    ),
    goal(
        "one-shot, written then armed, 16 to 512 ready, net CPU time",
        "raw epoll, one-shot, a MOD each, same order",
        &[(Any, AtMost(0.65))],
        net("one-shot", EPOLL, |it| written_armed(it) && batch(it) >= 16),
    ),
    goal(
        "the same, 1 ready",
        "the same",
        &[(Faithful, AtMost(1.25)), (Owned, AtMost(1.15))],
        net("one-shot", EPOLL, |it| written_armed(it) && batch(it) == 1),
    ),
    goal(
        "one-shot, both orders, net CPU time",
        "polling",
        &[(Any, AtMost(0.5))],
        net("one-shot", POLLING, |_| true),
    ),
    goal(
        "the same",
        "the best raw loop of all",
        &[(Best, AtMost(1.15))],
        net("one-shot", Kind::ToBestOf(RAW_LOOPS), |_| true),
    ),
    goal(
        "edge persistent, 1 ready, net CPU time",
        "raw epoll, edge",
        &[(Any, AtMost(1.3))],
        net("edge", EPOLL, |it| batch(it) == 1),
    ),
    goal(
        "the same",
        "mio",
        &[(Any, AtMost(1.3))],
        net("edge", MIO, |it| batch(it) == 1),
    ),
    goal(
        "edge persistent, 4 to 512 ready, net CPU time",
        "raw epoll, edge",
        &[(Any, AtMost(1.15))],
        net("edge", EPOLL, |it| batch(it) >= 4),
    ),
    goal(
        "the same",
        "mio",
        &[(Any, AtMost(1.0))],
        net("edge", MIO, |it| batch(it) >= 4),
    ),
    goal(
        "registering and removing, CPU time",
        "raw epoll",
        &[(Any, AtMost(1.5))],
        measure("churn", Figure::Cpu, EPOLL, |_| true),
    ),
    goal(
        "system calls with 64 re-arms, written then armed",
        "counted",
        &[(Any, AtMost(2.0))],
        measure("one-shot", Figure::SystemCalls, Kind::Value, |it| {
            written_armed(it) && batch(it) == 64
        }),
    ),
    goal(
        "system calls per batch of 64 drained connections, written then armed",
        "counted",
        &[(Drained, AtMost(1.0))],
        measure("one-shot", Figure::SystemCalls, Kind::Value, |it| {
            written_armed(it) && batch(it) == 64
        }),
    ),
    goal(
        "instructions of our own, a call with 1 ready (written then armed)",
        "callgrind",
        &[(Faithful, AtMost(700.0)), (Owned, AtMost(900.0))],
        measure("one-shot", Figure::Instructions, Kind::Value, |it| {
            written_armed(it) && batch(it) == 1
        }),
    ),
    goal(
        "instructions of our own per notification, 64 ready, both orders",
        "callgrind",
        &[(Faithful, AtMost(250.0)), (Owned, AtMost(400.0))],
        measure("one-shot", Figure::Instructions, Kind::Value, |it| {
            batch(it) == 64
        }),
    ),
    goal(
        "allocations on the hot path",
        "counted",
        &[(Any, AtMost(0.0))],
        measure("one-shot", Figure::Allocations, Kind::Value, |_| true),
    ),
    goal(
        "echo, 16 threads, requests per second",
        "raw epoll, same threads",
        &[(Any, AtLeast(1.2))],
        rate("echo", EPOLL, |it| threads(it) == 16),
    ),
    goal(
        "echo, 64 threads, requests per second",
        "the same",
        &[(Any, AtLeast(1.4))],
        rate("echo", EPOLL, |it| threads(it) == 64),
    ),
    goal(
        "the same",
        "the best raw row of any thread count",
        &[(Any, AtLeast(1.0))],
        rate("echo", Kind::ToBestThreadsOf(RAW), |it| threads(it) == 64),
    ),
    goal(
        "echo, 16 and 64 threads, requests per second",
        "tokio, as many workers",
        &[(Any, AtLeast(1.0))],
        rate("echo", TOKIO, |it| matches!(threads(it), 16 | 64)),
    ),
    goal(
        "echo, 20 µs of work, 2 to 64 threads, requests per second",
        "the best of all others, same threads",
        &[(Any, AtLeast(1.0))],
        rate("echo", Kind::ToBestOf(THEIRS), |it| {
            it.get(Parameter::Work) == 20 && threads(it) >= 2
        }),
    ),
    goal(
        "echo, 1 thread, room for 64, requests per second",
        "the best of raw epoll and mio",
        &[(Any, AtLeast(1.0))],
        rate("echo-one", Kind::ToBestOf(ONE_THREAD), |_| true),
    ),
    goal(
        "HTTP, 100 connections, requests per second",
        "the port with keys",
        &[(Owned, AtLeast(1.0))],
        rate("http", Kind::ToFaithful, |it| connections(it) == 100),
    ),
    goal(
        "the same, CPU time of the server per request",
        "the port with keys",
        &[(Owned, AtMost(1.0))],
        measure("http", Figure::ServerCpu, Kind::ToFaithful, |it| {
            connections(it) == 100
        }),
    ),
    goal(
        "HTTP, 100 and 1,000 connections, requests per second",
        "tokio, same work",
        &[(Owned, AtLeast(1.2))],
        rate("http", TOKIO, |_| true),
    ),
    goal(
        "the same, CPU time of the server per request",
        "tokio, same work",
        &[(Owned, AtMost(0.9))],
        measure("http", Figure::ServerCpu, TOKIO, |_| true),
    ),
    goal(
        "HTTP, 100 connections, waits for each request",
        "itself before there were wake policies, 0.15",
        &[(Any, AtMost(0.05))],
        measure("http", Figure::Switches, Kind::Value, |it| {
            connections(it) == 100
        }),
    ),
    goal(
        "HTTP at half of the highest rate, 99th percentile of the latency",
        "tokio, same rate",
        &[(Any, AtMost(1.0))],
        measure("latency", Figure::P99, TOKIO, |it| {
            it.get(Parameter::Load) == 50
        }),
    ),
    goal(
        "post to wake",
        "mio's waker",
        &[(Any, AtMost(1.1))],
        measure("post", Figure::Gross, MIO, |_| true),
    ),
    goal(
        "memory of our own per idle registration, bytes",
        "counted",
        &[(Any, AtMost(64.0))],
        // What a port takes by itself is spread over many.
        measure("memory", Figure::Bytes, Kind::Value, |it| {
            it.get(Parameter::Idle) >= 1000
        }),
    ),
    goal(
        "cost per notification from 10 to most idle",
        "itself with 10",
        &[(Any, Within(20.0))],
        net("idle", Kind::MostToLeastIdle, |_| true),
    ),
];

fn batch(setting: &Setting) -> usize {
    setting.get(Parameter::Batch)
}

fn threads(setting: &Setting) -> usize {
    setting.get(Parameter::Threads)
}

fn connections(setting: &Setting) -> usize {
    setting.get(Parameter::Connections)
}

fn armed_written(setting: &Setting) -> bool {
    setting.order() == Order::ArmedWritten
}

fn written_armed(setting: &Setting) -> bool {
    setting.order() == Order::WrittenArmed
}

impl Layer {
    fn has(self, ours: Implementation) -> bool {
        match ours {
            Implementation::Socknotify(_) => matches!(self, Any | Best | Faithful),
            Implementation::Owned(_) => matches!(self, Any | Best | Owned),
            Implementation::Drained(_) => matches!(self, Any | Best | Owned | Drained),
            _ => false,
        }
    }
}

impl Limit {
    fn is_kept(self, value: f64) -> bool {
        match self {
            AtMost(limit) => value <= limit,
            AtLeast(limit) => value >= limit,
            Within(percent) => (value - 1.0).abs() * 100.0 <= percent,
        }
    }
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Any => "",
            Faithful => "keys: ",
            Owned => "owned: ",
            Drained => "drained: ",
            Best => "the better of ours: ",
        })
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AtMost(limit) => write!(f, "at most {limit}"),
            AtLeast(limit) => write!(f, "at least {limit}"),
            Within(percent) => write!(f, "within {percent} %"),
        }
    }
}

/// What one of ours reaches.
struct Reached {
    name: String,
    least: f64,
    most: f64,
    /// By all of its values, in each limit that is for it.
    is_kept: bool,
}

impl Goal {
    /// The limits, in words.
    pub(crate) fn limits(&self) -> String {
        let limits = self.limits.iter();
        let limits: Vec<_> = limits
            .map(|(layer, limit)| format!("{layer}{limit}"))
            .collect();
        limits.join("; ")
    }

    fn reached(&self, rows: &[Row]) -> Vec<Reached> {
        let found = Found(rows);
        let ours = Implementation::all_ours().filter_map(|ours| {
            let limits = self.limits.iter().filter(|(layer, _)| layer.has(ours));
            let limits: Vec<_> = limits.map(|&(_, limit)| limit).collect();
            let values = match limits.is_empty() {
                true => Vec::new(),
                false => found.measure(&self.measure, ours),
            };
            let is_kept = |&value: &f64| limits.iter().all(|limit| limit.is_kept(value));
            let name = ours.to_string();
            Some(Reached {
                name: name.trim_start_matches("socknotify ").to_owned(),
                least: values.iter().copied().min_by(f64::total_cmp)?,
                most: values.iter().copied().max_by(f64::total_cmp)?,
                is_kept: values.iter().all(is_kept),
            })
        });
        ours.collect()
    }

    /// What was found: empty if the case was not run.
    pub(crate) fn measured(&self, rows: &[Row]) -> String {
        let show = |value| match self.measure.kind {
            Kind::Value => self.measure.figure.show(value),
            _ => format!("{value:.2}"),
        };
        let reached = self.reached(rows).into_iter().map(|it| {
            let (least, most) = (show(it.least), show(it.most));
            match least == most {
                true => format!("{}: {least}", it.name),
                false => format!("{}: {least} to {most}", it.name),
            }
        });
        reached.collect::<Vec<_>>().join("; ")
    }

    /// "met", or who has missed it.
    pub(crate) fn result(&self, rows: &[Row]) -> String {
        let reached = self.reached(rows);
        let missed: Vec<_> = reached.iter().filter(|it| !it.is_kept).collect();
        let is_best = self.limits.iter().any(|&(layer, _)| layer == Best);
        if reached.is_empty() {
            "not run".to_owned()
        } else if missed.is_empty() || (is_best && missed.len() < reached.len()) {
            "met".to_owned()
        } else if missed.len() == reached.len() {
            "missed".to_owned()
        } else {
            let names: Vec<_> = missed.iter().map(|it| &*it.name).collect();
            format!("missed by {}", names.join("; "))
        }
    }
}

/// The table of README.md.
pub(crate) fn markdown(rows: &[Row]) -> String {
    let mut table =
        String::from("| case | against | goal | measured | result |\n|---|---|---|---|---|\n");
    for goal in &GOALS {
        let Goal { case, against, .. } = goal;
        let (limits, measured, result) = (goal.limits(), goal.measured(rows), goal.result(rows));
        table += &format!("| {case} | {against} | {limits} | {measured} | {result} |\n");
    }
    table
}

/// All rows that there are.
struct Found<'a>(&'a [Row]);

impl Found<'_> {
    fn rows(&self, case: &str, implementation: Implementation) -> impl Iterator<Item = &Row> {
        let is_meant = move |row: &&Row| row.case == case && row.implementation == implementation;
        self.0.iter().filter(is_meant)
    }

    /// One value for each setting that counts.
    fn measure(&self, measure: &Measure, ours: Implementation) -> Vec<f64> {
        let &Measure {
            case,
            figure,
            kind,
            counts,
        } = measure;
        let rows = || self.rows(case, ours).filter(|row| counts(&row.setting));
        let same = |one: &Setting, other: &Setting| one == other;
        let but_for_threads = |one: &Setting, other: &Setting| {
            one.without(Parameter::Threads) == other.without(Parameter::Threads)
        };
        match kind {
            Kind::Value => rows().filter_map(|row| row.get(figure)).collect(),
            Kind::ToBestOf(theirs) => rows()
                .filter_map(|row| self.to_best(row, figure, theirs, same))
                .collect(),
            Kind::ToBestThreadsOf(theirs) => rows()
                .filter_map(|row| self.to_best(row, figure, theirs, but_for_threads))
                .collect(),
            Kind::ToFaithful => {
                let Implementation::Owned(backend) = ours else {
                    return Vec::new();
                };
                let faithful = [Implementation::Socknotify(backend)];
                rows()
                    .filter_map(|row| self.to_best(row, figure, &faithful, same))
                    .collect()
            }
            Kind::MostToLeastIdle => {
                let ratio = |order| {
                    let values = rows().filter(|row| row.setting.order() == order);
                    let values: Vec<_> = values.filter_map(|row| row.get(figure)).collect();
                    match &*values {
                        [few, .., many] => Some(many / few),
                        _ => None,
                    }
                };
                Order::ALL.into_iter().filter_map(ratio).collect()
            }
        }
    }

    /// A row's figure, to the best of theirs in settings that are like its own.
    fn to_best(
        &self,
        row: &Row,
        figure: Figure,
        theirs: &[Implementation],
        is_like: impl Fn(&Setting, &Setting) -> bool,
    ) -> Option<f64> {
        let theirs = theirs.iter().flat_map(|&it| self.rows(row.case, it));
        let theirs = theirs
            .filter(|it| is_like(&it.setting, &row.setting))
            .filter_map(|it| it.get(figure));
        let best = match figure {
            Figure::Rate => theirs.max_by(f64::total_cmp),
            _ => theirs.min_by(f64::total_cmp),
        };
        Some(row.get(figure)? / best?)
    }
}

#[cfg(test)]
mod tests {
    use socknotify::Backend;

    use super::*;
    use crate::figure::Sample;

    const BACKEND: Backend = Backend::ALL[0];

    /// One-shot with 64 ready, in this order: net CPU time of raw epoll and of both layers.
    fn rows(order: Order, values: [f64; 3]) -> Vec<Row> {
        let sides = [
            Implementation::RawEpoll,
            Implementation::Socknotify(BACKEND),
            Implementation::Owned(BACKEND),
        ];
        let setting = Setting::default()
            .with(Parameter::Order, order as usize)
            .with(Parameter::Batch, 64);
        let row = |(implementation, value)| Row {
            case: "one-shot",
            implementation,
            setting: setting.clone(),
            figures: Sample::from([(Figure::NetCpu, value)]),
            spread: Default::default(),
            ratio: None,
            is_within_spread: false,
        };
        sides.into_iter().zip(values).map(row).collect()
    }

    #[test]
    fn a_goal_is_met_if_every_one_it_is_for_keeps_its_limit() {
        let [faithful, owned, ..] = &GOALS;
        let any = &GOALS[4];
        assert_eq!(owned.limits(), "owned: at most 0.65");
        let rows_of = |values| rows(Order::ArmedWritten, values);
        assert_eq!(faithful.result(&rows_of([100.0, 100.0, 300.0])), "met");
        assert_eq!(faithful.result(&rows_of([100.0, 101.0, 1.0])), "missed");
        assert_eq!(owned.result(&rows_of([100.0, 300.0, 65.0])), "met");
        assert_eq!(any.result(&rows_of([100.0, 60.0, 60.0])), "not run");
        let found = rows(Order::WrittenArmed, [100.0, 70.0, 60.0]);
        assert_eq!(any.result(&found), format!("missed by {BACKEND}"));
        let measured = format!("{BACKEND}: 0.70; {BACKEND}, owned: 0.60");
        assert_eq!(any.measured(&found), measured);
        assert_eq!(
            any.result(&rows(Order::WrittenArmed, [100.0, 70.0, 66.0])),
            "missed"
        );
    }

    #[test]
    fn the_better_of_ours_is_enough_where_the_goal_says_so() {
        let best = GOALS.iter().find(|it| it.limits[0].0 == Best);
        let best = best.expect("there is one");
        let rows_of = |values| rows(Order::ArmedWritten, values);
        assert_eq!(best.result(&rows_of([100.0, 200.0, 110.0])), "met");
        assert_eq!(best.result(&rows_of([100.0, 200.0, 120.0])), "missed");
    }
}
