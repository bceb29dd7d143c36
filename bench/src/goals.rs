//! What is to be reached, and what was found: one line for each goal.

use std::fmt;

use crate::case::{Order, Parameter, Setting};
use crate::exchange::{LARGE_FILE, SMALL_FILE};
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
    /// `Port::serve` with this room or a larger one, where handlers say nothing.
    Silent(usize),
    /// `Port::serve`, also where handlers say that they block.
    Serve,
    /// Operations on files.
    Files,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Limit {
    AtMost(f64),
    AtLeast(f64),
    /// The same of microseconds, in words of milliseconds.
    Within(f64),
    /// So many percent more or less than once.
    About(f64),
}

use Layer::{Any, Faithful, Files, Owned, Serve, Silent};
use Limit::{About, AtLeast, AtMost, Within};

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
    /// By how much it is more than theirs.
    MoreThan(Implementation),
    /// What it gains by a second thread, to what theirs does.
    SpeedUp(Implementation),
    /// To the same port, where it does not look whether threads block.
    ToUnwatched,
    /// With the most idle registrations, to the fewest, in each order.
    MostToLeastIdle,
}

/// Loops of one thread that serve.
const ONE_THREAD: &[Implementation] = &[
    Implementation::RawEpoll,
    Implementation::RawEpollEach,
    Implementation::Mio,
];

const EPOLL: Kind = Kind::ToBestOf(&[Implementation::RawEpoll]);
const MIO: Kind = Kind::ToBestOf(&[Implementation::Mio]);
const TOKIO: Kind = Kind::ToBestOf(&[Implementation::Tokio]);
const SPAWNING: Kind = Kind::ToBestOf(&[Implementation::TokioSpawning]);

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

pub(crate) const GOALS: [Goal; 43] = [
    goal(
        "no handler blocks, 64 connections: requests/s",
        "tokio",
        &[(Silent(16), AtLeast(0.95))],
        rate("blocking", TOKIO, |it| blocking(it) == 0),
    ),
    goal(
        "1 % of the handlers sleep 50 ms: requests/s",
        "tokio, `spawn_blocking`",
        &[(Silent(0), AtLeast(0.85))],
        rate("blocking", SPAWNING, |it| blocking(it) == 1),
    ),
    goal(
        "5 and 20 % do",
        "the same",
        &[(Silent(0), AtLeast(0.95))],
        rate("blocking", SPAWNING, |it| matches!(blocking(it), 5 | 20)),
    ),
    goal(
        "1 and 5 %: p99 of the others, ms",
        "the clock",
        &[(Silent(0), Within(8.0))],
        measure("blocking", Figure::P99, Kind::Value, |it| {
            matches!(blocking(it), 1 | 5)
        }),
    ),
    goal(
        "5 % take a lock that others have: requests/s",
        "tokio, `spawn_blocking`",
        &[(Silent(0), AtLeast(0.95))],
        rate("blocking-lock", SPAWNING, |it| blocking(it) == 5),
    ),
    goal(
        "5 % read from the disk: requests/s",
        "the same",
        &[(Silent(0), AtLeast(0.95))],
        rate("blocking-file", SPAWNING, |it| blocking(it) == 5),
    ),
    goal(
        "5 % compute 10 ms: how many at once, for each place",
        "counted",
        &[(Silent(0), AtMost(1.25))],
        measure("blocking-compute", Figure::Computing, Kind::Value, |it| {
            blocking(it) == 5
        }),
    ),
    goal(
        "one place, a handler waits for the next one: median, ms",
        "the clock",
        &[(Faithful, Within(2.0)), (Serve, Within(2.0))],
        measure("waits-for-next", Figure::P50, Kind::Value, |_| true),
    ),
    goal(
        "the same: longest, ms",
        "the clock",
        &[(Faithful, Within(10.0)), (Serve, Within(10.0))],
        measure("waits-for-next", Figure::Longest, Kind::Value, |_| true),
    ),
    goal(
        "4 places, one of ten handlers sleeps 1 s: the others, ms",
        "the clock",
        &[(Faithful, Within(15.0)), (Serve, Within(15.0))],
        measure("bystanders", Figure::Longest, Kind::Value, |_| true),
    ),
    goal(
        "2 places, 16 handlers sleep 100 ms: all of them, ms",
        "the clock",
        &[(Faithful, Within(150.0)), (Serve, Within(150.0))],
        measure("together", Figure::Longest, Kind::Value, |_| true),
    ),
    goal(
        "HTTP, no handler blocks: requests/s",
        "without detection",
        &[(Owned, AtLeast(0.98))],
        rate("http", Kind::ToUnwatched, |_| true),
    ),
    goal(
        "echo, the same",
        "the same",
        &[(Owned, AtLeast(0.98))],
        rate("echo", Kind::ToUnwatched, |_| true),
    ),
    goal(
        "one-shot, 1 ready, both orders: net CPU time",
        "raw epoll",
        &[(Faithful, AtMost(1.25))],
        net("one-shot", EPOLL, |it| batch(it) == 1),
    ),
    goal(
        "the same, 4 ready",
        "the same",
        &[(Faithful, AtMost(1.1))],
        net("one-shot", EPOLL, |it| batch(it) == 4),
    ),
    goal(
        "the same, 16 to 512 ready",
        "the same",
        &[(Faithful, AtMost(1.05))],
        net("one-shot", EPOLL, |it| batch(it) >= 16),
    ),
    goal(
        "one-shot, 1 ready, armed first: net CPU time",
        "the same",
        &[(Owned, AtMost(1.25))],
        net("one-shot", EPOLL, |it| armed_written(it) && batch(it) == 1),
    ),
    goal(
        "the same, 4 ready",
        "the same",
        &[(Owned, AtMost(1.0))],
        net("one-shot", EPOLL, |it| armed_written(it) && batch(it) == 4),
    ),
    goal(
        "the same, 16 to 512 ready",
        "the same",
        &[(Owned, AtMost(0.7))],
        net("one-shot", EPOLL, |it| armed_written(it) && batch(it) >= 16),
    ),
    goal(
        "one-shot, 64 ready, data first: net CPU time",
        "the same",
        &[(Owned, AtMost(0.6))],
        net("one-shot", EPOLL, |it| written_armed(it) && batch(it) == 64),
    ),
    goal(
        "edge, 1 ready: net CPU time",
        "raw epoll",
        &[(Faithful, AtMost(1.3))],
        net("edge", EPOLL, |it| batch(it) == 1),
    ),
    goal(
        "the same, 4 ready",
        "the same",
        &[(Faithful, AtMost(1.2))],
        net("edge", EPOLL, |it| batch(it) == 4),
    ),
    goal(
        "the same, 16 to 512 ready",
        "the same",
        &[(Faithful, AtMost(1.15))],
        net("edge", EPOLL, |it| batch(it) >= 16),
    ),
    goal(
        "the same, 4 to 512 ready",
        "mio",
        &[(Faithful, AtMost(1.1))],
        net("edge", MIO, |it| batch(it) >= 4),
    ),
    goal(
        "level, one thread: CPU time",
        "raw epoll",
        &[(Faithful, AtMost(1.05))],
        measure("level", Figure::Cpu, EPOLL, |_| true),
    ),
    goal(
        "system calls per batch beyond raw epoll's",
        "counted",
        &[(Any, AtMost(0.0))],
        measure(
            "one-shot",
            Figure::SystemCalls,
            Kind::MoreThan(Implementation::RawEpoll),
            written_armed,
        ),
    ),
    goal(
        "own instructions, one-shot, 1 ready, data first",
        "callgrind",
        &[(Faithful, AtMost(600.0)), (Owned, AtMost(800.0))],
        measure("one-shot", Figure::Instructions, Kind::Value, |it| {
            written_armed(it) && batch(it) == 1
        }),
    ),
    goal(
        "own instructions per notification, one-shot, 64 ready",
        "callgrind",
        &[(Faithful, AtMost(220.0)), (Owned, AtMost(350.0))],
        measure("one-shot", Figure::Instructions, Kind::Value, |it| {
            batch(it) == 64
        }),
    ),
    goal(
        "the same, edge",
        "callgrind",
        &[(Faithful, AtMost(80.0))],
        measure("edge", Figure::Instructions, Kind::Value, |it| {
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
        "everything ready, two threads to one: notifications/s",
        "raw epoll's speed-up",
        &[(Any, AtLeast(1.0))],
        measure(
            "saturated",
            Figure::Gross,
            Kind::SpeedUp(Implementation::RawEpoll),
            |_| true,
        ),
    ),
    goal(
        "registering and removing: CPU time",
        "raw epoll",
        &[(Any, AtMost(1.5))],
        measure("churn", Figure::Cpu, EPOLL, |_| true),
    ),
    goal(
        "HTTP, 100 connections: requests/s",
        "tokio",
        &[(Owned, AtLeast(1.2))],
        rate("http", TOKIO, |it| connections(it) == 100),
    ),
    goal(
        "the same, 1,000 connections",
        "tokio",
        &[(Owned, AtLeast(1.1))],
        rate("http", TOKIO, |it| connections(it) == 1000),
    ),
    goal(
        "echo, 100 connections, 16 threads: requests/s",
        "tokio",
        &[(Owned, AtLeast(1.1))],
        rate("echo", TOKIO, |it| {
            connections(it) == 100 && threads(it) == 16
        }),
    ),
    goal(
        "the same, 64 threads",
        "the same",
        &[(Owned, AtLeast(1.0))],
        rate("echo", TOKIO, |it| {
            connections(it) == 100 && threads(it) == 64
        }),
    ),
    goal(
        "echo, 1 thread, room 64: requests/s",
        "best of raw epoll, mio",
        &[(Any, AtLeast(1.0))],
        rate("echo-one", Kind::ToBestOf(ONE_THREAD), |_| true),
    ),
    goal(
        "HTTP at half of the highest rate: p99",
        "tokio",
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
        "net CPU time with 10,000 idle sockets",
        "with 10",
        &[(Any, About(20.0))],
        net("idle", Kind::MostToLeastIdle, |_| true),
    ),
    goal(
        "files of 4 KiB over HTTP, cached: requests/s",
        "tokio",
        &[(Files, AtLeast(2.4))],
        rate("files-http", TOKIO, |it| file(it) == (SMALL_FILE, true)),
    ),
    goal(
        "files of 16 MiB, cached: requests/s",
        "tokio",
        &[(Files, AtLeast(1.3))],
        rate("files-http", TOKIO, |it| file(it) == (LARGE_FILE, true)),
    ),
    goal(
        "the same: CPU time per request",
        "tokio",
        &[(Files, AtMost(0.4))],
        measure("files-http", Figure::ServerCpu, TOKIO, |it| {
            file(it) == (LARGE_FILE, true)
        }),
    ),
];

/// Its length, and whether it is cached.
fn file(setting: &Setting) -> (usize, bool) {
    let is_cached = setting.get(Parameter::Cached) == 1;
    (setting.get(Parameter::Bytes), is_cached)
}

fn blocking(setting: &Setting) -> usize {
    setting.get(Parameter::Blocking)
}

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
            Implementation::Socknotify(_) => matches!(self, Any | Faithful),
            Implementation::Owned(_) => matches!(self, Any | Owned),
            Implementation::Serve(_, room) => match self {
                Silent(least) => room >= least,
                _ => self == Serve,
            },
            Implementation::ServeBlocking(_) => self == Serve,
            Implementation::Files(_) => self == Files,
            _ => false,
        }
    }
}

impl Limit {
    fn is_kept(self, value: f64) -> bool {
        match self {
            AtMost(limit) => value <= limit,
            AtLeast(limit) => value >= limit,
            Within(milliseconds) => value <= milliseconds * 1000.0,
            About(percent) => (value - 1.0).abs() * 100.0 <= percent,
        }
    }
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Any => "",
            Faithful => "keys ",
            Owned => "owned ",
            Silent(0) => "`serve` ",
            Silent(least) => return write!(f, "`serve`, room {least} or more, "),
            Serve | Files => "",
        })
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AtMost(limit) => write!(f, "≤ {limit}"),
            AtLeast(limit) => write!(f, "≥ {limit}"),
            Within(milliseconds) => write!(f, "≤ {milliseconds}"),
            About(percent) => write!(f, "± {percent} %"),
        }
    }
}

/// The kind of one of ours, in the words of the limits.
fn name(ours: Implementation) -> &'static str {
    match ours {
        Implementation::Socknotify(_) => "keys",
        Implementation::Owned(_) => "owned",
        Implementation::Serve(..) => "`serve`",
        Implementation::ServeBlocking(_) => "`blocking`",
        _ => "files",
    }
}

/// What ours of one kind reach.
struct Reached {
    name: &'static str,
    least: f64,
    most: f64,
    /// By all of its values, in each limit that is for it.
    is_kept: bool,
}

impl Goal {
    /// The limits, in words.
    pub(crate) fn limits(&self) -> String {
        if let [(Faithful, limit), (Serve, other)] = self.limits {
            if limit == other {
                return limit.to_string();
            }
        }
        let limits = self.limits.iter();
        let limits: Vec<_> = limits
            .map(|(layer, limit)| format!("{layer}{limit}"))
            .collect();
        limits.join("; ")
    }

    fn reached(&self, rows: &[Row]) -> Vec<Reached> {
        let found = Found(rows);
        let mut all: Vec<Reached> = Vec::new();
        for ours in Implementation::all_ours() {
            let limits = self.limits.iter().filter(|(layer, _)| layer.has(ours));
            let limits: Vec<_> = limits.map(|&(_, limit)| limit).collect();
            if limits.is_empty() {
                continue;
            }
            let name = name(ours);
            for value in found.measure(&self.measure, ours) {
                let is_kept = limits.iter().all(|limit| limit.is_kept(value));
                match all.iter_mut().find(|it| it.name == name) {
                    Some(reached) => {
                        reached.least = reached.least.min(value);
                        reached.most = reached.most.max(value);
                        reached.is_kept &= is_kept;
                    }
                    None => all.push(Reached {
                        name,
                        least: value,
                        most: value,
                        is_kept,
                    }),
                }
            }
        }
        all
    }

    /// What was found: empty if the case was not run.
    pub(crate) fn measured(&self, rows: &[Row]) -> String {
        let is_time = self.limits.iter().any(|it| matches!(it.1, Within(_)));
        let show = |value| match self.measure.kind {
            _ if is_time => format!("{:.2}", value / 1000.0),
            Kind::Value | Kind::MoreThan(_) => self.measure.figure.show(value),
            _ => format!("{value:.2}"),
        };
        let reached = self.reached(rows);
        let named = reached.len() > 1;
        let reached = reached.into_iter().map(|it| {
            let name = if named { it.name } else { "" };
            let space = if named { " " } else { "" };
            let (least, most) = (show(it.least), show(it.most));
            match least == most {
                true => format!("{name}{space}{least}"),
                false => format!("{name}{space}{least} to {most}"),
            }
        });
        reached.collect::<Vec<_>>().join("; ")
    }

    /// "met", or who has missed it; `None` if the case was not run.
    pub(crate) fn result(&self, rows: &[Row]) -> Option<String> {
        let reached = self.reached(rows);
        let missed: Vec<_> = reached.iter().filter(|it| !it.is_kept).collect();
        if reached.is_empty() {
            None
        } else if missed.is_empty() {
            Some("met".to_owned())
        } else if missed.len() == reached.len() {
            Some("missed".to_owned())
        } else {
            let names: Vec<_> = missed.iter().map(|it| it.name).collect();
            Some(format!("missed by {}", names.join(", ")))
        }
    }

    fn line(&self, measured: &str, result: &str) -> String {
        let Goal { case, against, .. } = self;
        let limits = self.limits();
        format!("| {case} | {against} | {limits} | {measured} | {result} |\n")
    }
}

const HEAD: &str = "| case | against | goal | measured | result |\n|---|---|---|---|---|\n";

/// The goals that were run, and the names of the others.
pub(crate) fn markdown(rows: &[Row]) -> String {
    let mut table = String::from(HEAD);
    let mut others = Vec::new();
    for goal in &GOALS {
        match goal.result(rows) {
            Some(result) => table += &goal.line(&goal.measured(rows), &result),
            None => others.push(goal.case),
        }
    }
    if !others.is_empty() {
        table += &format!("\nNot run: {}.\n", others.join("; "));
    }
    table
}

/// The table of all goals, without figures.
pub(crate) fn shape() -> String {
    let lines = GOALS.iter().map(|goal| goal.line("#", "met"));
    HEAD.to_owned() + &lines.collect::<String>()
}

/// The goals that were not run.
pub(crate) fn not_run(rows: &[Row]) -> Vec<&'static str> {
    let goals = GOALS.iter().filter(|goal| goal.result(rows).is_none());
    goals.map(|goal| goal.case).collect()
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
        match kind {
            Kind::Value => rows().filter_map(|row| row.get(figure)).collect(),
            Kind::ToBestOf(theirs) => rows()
                .filter_map(|row| self.to_best(row, figure, theirs))
                .collect(),
            Kind::MoreThan(theirs) => rows()
                .filter_map(|row| {
                    let same = self
                        .rows(case, theirs)
                        .filter(|it| it.setting == row.setting);
                    let than = same.filter_map(|it| it.get(figure)).next()?;
                    // What is counted varies by parts of a call.
                    Some((row.get(figure)? - than).round())
                })
                .collect(),
            Kind::SpeedUp(theirs) => {
                let gain = |implementation| {
                    let with = |threads: usize| {
                        let mut rows = self.rows(case, implementation);
                        let row = rows.find(|it| it.setting.get(Parameter::Threads) == threads)?;
                        row.get(figure)
                    };
                    Some(with(1)? / with(2)?)
                };
                let ratio = gain(ours).zip(gain(theirs));
                ratio
                    .map(|(ours, theirs)| ours / theirs)
                    .into_iter()
                    .collect()
            }
            Kind::ToUnwatched => {
                let Implementation::Owned(backend) = ours else {
                    return Vec::new();
                };
                let unwatched = [Implementation::Unwatched(backend)];
                rows()
                    .filter_map(|row| self.to_best(row, figure, &unwatched))
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

    /// A row's figure, to the best of theirs in the same setting.
    fn to_best(&self, row: &Row, figure: Figure, theirs: &[Implementation]) -> Option<f64> {
        let theirs = theirs.iter().flat_map(|&it| self.rows(row.case, it));
        let theirs = theirs
            .filter(|it| it.setting == row.setting)
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

    fn goal_of(case: &str) -> &'static Goal {
        let goal = GOALS.iter().find(|goal| goal.case == case);
        goal.expect("there is one")
    }

    #[test]
    fn a_goal_is_met_if_every_one_it_is_for_keeps_its_limit() {
        let faithful = goal_of("the same, 16 to 512 ready");
        let owned = goal_of("one-shot, 64 ready, data first: net CPU time");
        assert_eq!(owned.limits(), "owned ≤ 0.6");
        let rows_of = |values| rows(Order::WrittenArmed, values);
        let met = Some("met".to_owned());
        let missed = Some("missed".to_owned());
        assert_eq!(faithful.result(&rows_of([100.0, 105.0, 300.0])), met);
        assert_eq!(faithful.result(&rows_of([100.0, 106.0, 1.0])), missed);
        assert_eq!(owned.result(&rows_of([100.0, 300.0, 60.0])), met);
        let armed_first = rows(Order::ArmedWritten, [100.0, 60.0, 60.0]);
        assert_eq!(owned.result(&armed_first), None);
        assert_eq!(owned.measured(&rows_of([100.0, 1.0, 70.0])), "0.70");
    }

    #[test]
    fn who_misses_a_goal_is_named_if_others_meet_it() {
        let goal = goal_of("4 places, one of ten handlers sleeps 1 s: the others, ms");
        let row = |implementation, value| Row {
            case: "bystanders",
            implementation,
            setting: Setting::default(),
            figures: Sample::from([(Figure::Longest, value)]),
            spread: Default::default(),
            ratio: None,
            is_within_spread: false,
        };
        let rows = [
            row(Implementation::Socknotify(BACKEND), 1000.0),
            row(Implementation::Serve(BACKEND, 3), 2000.0),
            row(Implementation::Serve(BACKEND, 64), 15_001.0),
        ];
        let missed = "missed by `serve`".to_owned();
        assert_eq!(goal.result(&rows), Some(missed));
        assert_eq!(goal.result(&rows[..2]), Some("met".to_owned()));
        assert_eq!(goal.measured(&rows), "keys 1.00; `serve` 2.00 to 15.00");
        assert!(not_run(&rows).len() == GOALS.len() - 1);
    }
}
