//! The tables of the documents: what is in their cells.

use std::fmt::Write;

use socknotify::Backend;
use socknotify::owned::FileDriver;

use super::Report;
use crate::case::Setting;
use crate::figure::{Figure, grouped};
use crate::foreign::Library;
use crate::implementation::Implementation;
use crate::row::{self, Row};

pub(super) struct Table {
    pub(super) about: &'static str,
    /// What the lines have in common.
    pub(super) head: &'static str,
    pub(super) columns: &'static [Column],
    pub(super) lines: &'static [Line],
}

pub(super) struct Column {
    pub(super) heading: &'static str,
    pub(super) implementation: Implementation,
    /// A cell is the ratio to this one's median; without it, the figure itself.
    pub(super) to: Option<Implementation>,
    pub(super) setting: &'static str,
}

pub(super) struct Line {
    pub(super) label: &'static str,
    pub(super) case: &'static str,
    pub(super) figure: Figure,
    pub(super) setting: &'static str,
}

pub(super) const KEYS: Implementation = Implementation::Socknotify(Backend::Epoll);
pub(super) const OWNED: Implementation = Implementation::Owned(Backend::Epoll);
pub(super) const SERVE: Implementation = Implementation::Serve(Backend::Epoll);
pub(super) const SERVE_BLOCKING: Implementation = Implementation::ServeBlocking(Backend::Epoll);
pub(super) const ASYNC: Implementation = Implementation::Async;
const EPOLL: Implementation = Implementation::RawEpoll;
const LIBUV: Implementation = Implementation::Foreign(Library::Libuv);
const LIBEVENT: Implementation = Implementation::Foreign(Library::Libevent);

const fn column(
    heading: &'static str,
    implementation: Implementation,
    to: Option<Implementation>,
    setting: &'static str,
) -> Column {
    Column {
        heading,
        implementation,
        to,
        setting,
    }
}

const fn line(
    label: &'static str,
    case: &'static str,
    figure: Figure,
    setting: &'static str,
) -> Line {
    Line {
        label,
        case,
        figure,
        setting,
    }
}

const fn to_tokio(heading: &'static str, implementation: Implementation) -> Column {
    column(heading, implementation, Some(Implementation::Tokio), "")
}

const fn to_epoll(
    heading: &'static str,
    implementation: Implementation,
    setting: &'static str,
) -> Column {
    column(heading, implementation, Some(EPOLL), setting)
}

const fn to_spawning(heading: &'static str, implementation: Implementation) -> Column {
    column(
        heading,
        implementation,
        Some(Implementation::TokioSpawning),
        "",
    )
}

const fn plain(heading: &'static str, implementation: Implementation) -> Column {
    column(heading, implementation, None, "")
}

/// By what handlers do.
const fn handlers(figure: Figure) -> [Line; 7] {
    [
        line("each looks a row up in SQLite", "lookup", figure, "apart=1"),
        line("none blocks", "blocking", figure, "blocking=0"),
        line("1 % sleep 50 ms", "blocking", figure, "blocking=1"),
        line("5 % do", "blocking", figure, "blocking=5"),
        line("20 % do", "blocking", figure, "blocking=20"),
        line(
            "each sleeps 0.3 ms",
            "blocking-brief",
            figure,
            "blocking=100",
        ),
        line(
            "each computes 15 ms",
            "blocking-compute",
            figure,
            "blocking=100",
        ),
    ]
}

const HANDLERS: &[Column] = &[
    plain("tokio, `spawn_blocking`", Implementation::TokioSpawning),
    plain("tokio", Implementation::Tokio),
    plain("`serve`", SERVE),
    plain("async", ASYNC),
    plain("a thread for each connection", Implementation::Threads),
];

pub(super) const BLOCKING: [Table; 4] = [
    Table {
        about: "**Requests per second**, relative to tokio with `spawn_blocking`. More is better. The SQLite server has one \
                processor, and its client the other.",
        head: "handlers",
        columns: &[
            to_spawning("tokio, `spawn_blocking`", Implementation::TokioSpawning),
            to_spawning("tokio", Implementation::Tokio),
            to_spawning("`serve`", SERVE),
            to_spawning("async", ASYNC),
            to_spawning("a thread for each connection", Implementation::Threads),
        ],
        lines: &handlers(Figure::Rate),
    },
    Table {
        about: "**CPU time of the server per request**, in microseconds. Less is better.",
        head: "handlers",
        columns: HANDLERS,
        lines: &[
            line(
                "each looks a row up in SQLite",
                "lookup",
                Figure::ServerCpu,
                "apart=1",
            ),
            line("none blocks", "blocking", Figure::ServerCpu, "blocking=0"),
            line(
                "5 % sleep 50 ms",
                "blocking",
                Figure::ServerCpu,
                "blocking=5",
            ),
        ],
    },
    Table {
        about: "**99th percentile of the latency**, in milliseconds, of the requests whose handlers do not sleep. Less is \
                better.",
        head: "handlers",
        columns: HANDLERS,
        lines: &[
            line(
                "each looks a row up in SQLite",
                "lookup",
                Figure::P99,
                "apart=1",
            ),
            line("none blocks", "blocking", Figure::P99, "blocking=0"),
            line("1 % sleep 50 ms", "blocking", Figure::P99, "blocking=1"),
            line("5 % do", "blocking", Figure::P99, "blocking=5"),
            line("20 % do", "blocking", Figure::P99, "blocking=20"),
        ],
    },
    Table {
        about: "**The longest wait of another connection**, in milliseconds, while handlers that come at once sleep or \
                compute. Less is better.",
        head: "handlers",
        columns: HANDLERS,
        lines: &[
            line("10 sleep 50 ms", "burst", Figure::Longest, "connections=10"),
            line("30 do", "burst", Figure::Longest, "connections=30"),
            line("100 do", "burst", Figure::Longest, "connections=100"),
            line("4 compute 1 s", "compute", Figure::Longest, "connections=4"),
        ],
    },
];

const SERVING: &[Column] = &[
    to_tokio("tokio", Implementation::Tokio),
    to_tokio(
        "raw `epoll`, a set per thread",
        Implementation::RawEpollEach,
    ),
    to_tokio("keys", KEYS),
    to_tokio("owned", OWNED),
];

pub(super) const SERVERS: [Table; 4] = [
    Table {
        about: "**The server has one processor, and the client the other**: requests per second, relative to tokio. More is \
                better.",
        head: "",
        columns: SERVING,
        lines: &[
            line(
                "HTTP, 100 connections",
                "http",
                Figure::Rate,
                "apart=1 connections=100",
            ),
            line(
                "HTTP, 1,000 connections",
                "http",
                Figure::Rate,
                "apart=1 connections=1000",
            ),
        ],
    },
    Table {
        about: "How long a client waits there for the slowest answer of a hundred, relative to tokio. Less is better.",
        head: "",
        columns: SERVING,
        lines: &[
            line(
                "HTTP, 100 connections",
                "http",
                Figure::P99,
                "apart=1 connections=100",
            ),
            line(
                "HTTP, 1,000 connections",
                "http",
                Figure::P99,
                "apart=1 connections=1000",
            ),
        ],
    },
    Table {
        about: "**At a fixed rate**, half of tokio's highest, 100 connections, relative to tokio. Less is better.",
        head: "",
        columns: SERVING,
        lines: &[
            line(
                "CPU time per request",
                "latency",
                Figure::ServerCpu,
                "apart=1 load=50",
            ),
            line("latency, median", "latency", Figure::P50, "apart=1 load=50"),
            line(
                "latency, 99th percentile",
                "latency",
                Figure::P99,
                "apart=1 load=50",
            ),
        ],
    },
    Table {
        about: "**A closed loop on shared processors**: client and server take each other's time, and who wakes how many \
                threads counts for much. Requests per second, relative to tokio.",
        head: "",
        columns: SERVING,
        lines: &[
            line(
                "HTTP, 100 connections",
                "http",
                Figure::Rate,
                "apart=0 connections=100",
            ),
            line(
                "HTTP, 1,000 connections",
                "http",
                Figure::Rate,
                "apart=0 connections=1000",
            ),
            line(
                "echo, 100 connections, 16 threads",
                "echo",
                Figure::Rate,
                "connections=100 work=0 threads=16",
            ),
        ],
    },
];

pub(super) const READINESS: [Table; 2] = [
    Table {
        about: "**One thread, one-shot**: CPU time per notification, relative to raw `epoll` with an `EPOLL_CTL_MOD` \
                for each. The program's own reads and writes do not count. Less is better. *Data first*: data \
                arrive before the socket is armed, as in a server under load. *Armed first*: data arrive after, as \
                when clients wait for answers.",
        head: "ready at once",
        columns: &[
            to_epoll("data first: raw `epoll`", EPOLL, "order=written-armed"),
            to_epoll("keys", KEYS, "order=written-armed"),
            to_epoll("owned", OWNED, "order=written-armed"),
            to_epoll("armed first: raw `epoll`", EPOLL, "order=armed-written"),
            to_epoll("keys", KEYS, "order=armed-written"),
            to_epoll("owned", OWNED, "order=armed-written"),
        ],
        lines: &[
            line("1", "one-shot", Figure::NetCpu, "batch=1"),
            line("4", "one-shot", Figure::NetCpu, "batch=4"),
            line("64", "one-shot", Figure::NetCpu, "batch=64"),
        ],
    },
    Table {
        about: "**One thread, edge-triggered and persistent**: the same for the port with keys. Less is better.",
        head: "ready at once",
        columns: &[
            to_epoll("raw `epoll`", EPOLL, ""),
            to_epoll("mio", Implementation::Mio, ""),
            to_epoll("keys", KEYS, ""),
        ],
        lines: &[
            line("1", "edge", Figure::NetCpu, "batch=1"),
            line("64", "edge", Figure::NetCpu, "batch=64"),
        ],
    },
];

/// The kinds of blocking that the README does not show, and what they cost.
pub(super) const BLOCKING_IN_FULL: [Table; 3] = [
    Table {
        about: "Requests per second, relative to tokio with `spawn_blocking`. More is better.",
        head: "requests that block",
        columns: &[
            to_spawning("tokio, `spawn_blocking`", Implementation::TokioSpawning),
            to_spawning("tokio", Implementation::Tokio),
            to_spawning("`serve`", SERVE),
            to_spawning("`blocking`", SERVE_BLOCKING),
            to_spawning("async", ASYNC),
            to_spawning("a thread for each", Implementation::Threads),
        ],
        lines: &kinds(Figure::Rate),
    },
    Table {
        about: "99th percentile of the latency of the requests that do not block, in milliseconds.",
        head: "requests that block",
        columns: ALL_BLOCKING,
        lines: &kinds(Figure::P99),
    },
    Table {
        about: "CPU time of the server per request, in microseconds.",
        head: "requests that block",
        columns: ALL_BLOCKING,
        lines: &kinds(Figure::ServerCpu),
    },
];

const ALL_BLOCKING: &[Column] = &[
    plain("tokio, `spawn_blocking`", Implementation::TokioSpawning),
    plain("tokio", Implementation::Tokio),
    plain("`serve`", SERVE),
    plain("`blocking`", SERVE_BLOCKING),
    plain("async", ASYNC),
    plain("a thread for each", Implementation::Threads),
];

const fn kinds(figure: Figure) -> [Line; 2] {
    [
        line("5 %: a lock", "blocking-lock", figure, "blocking=5"),
        line("5 %: the disk", "blocking-file", figure, "blocking=5"),
    ]
}

/// Libraries in C.
pub(super) const FOREIGN: [Table; 2] = [
    Table {
        about: "Requests per second of the echo server, relative to raw `epoll` with a set per thread.",
        head: "",
        columns: &[
            column(
                "raw `epoll`",
                Implementation::RawEpollEach,
                Some(Implementation::RawEpollEach),
                "",
            ),
            column("libuv", LIBUV, Some(Implementation::RawEpollEach), ""),
            column("libevent", LIBEVENT, Some(Implementation::RawEpollEach), ""),
            column("keys", KEYS, Some(Implementation::RawEpollEach), ""),
            column("owned", OWNED, Some(Implementation::RawEpollEach), ""),
        ],
        lines: &[
            line("1 thread", "echo-one", Figure::Rate, "connections=100"),
            line(
                "16 threads",
                "echo",
                Figure::Rate,
                "connections=100 work=0 threads=16",
            ),
        ],
    },
    Table {
        about: "CPU time per notification on one thread, relative to raw `epoll` in the same mode. libuv has no edges; \
                its one-shot is a stop and a start.",
        head: "",
        columns: &[
            to_epoll("raw `epoll`", EPOLL, ""),
            to_epoll("libuv", LIBUV, ""),
            to_epoll("libevent", LIBEVENT, ""),
            to_epoll("keys", KEYS, ""),
        ],
        lines: &[
            line(
                "one-shot, data first, 64 ready",
                "one-shot",
                Figure::NetCpu,
                "order=written-armed batch=64",
            ),
            line("level, 1 ready", "level", Figure::NetCpu, "batch=1"),
            line("level, 64 ready", "level", Figure::NetCpu, "batch=64"),
        ],
    },
];

pub(super) const FILES: [Table; 1] = [Table {
    about: "Requests per second, relative to tokio. More is better.",
    head: "a file of",
    columns: &SERVING_FILES,
    lines: &files(Figure::Rate),
}];

const SERVING_FILES: [Column; 4] = [
    to_tokio("tokio", Implementation::Tokio),
    to_tokio("tokio, opens at once", Implementation::TokioAtOnce),
    to_tokio(
        "the port, `io_uring`",
        Implementation::Files(FileDriver::IoUring),
    ),
    to_tokio(
        "the port, helper threads",
        Implementation::Files(FileDriver::Threads),
    ),
];

const fn files(figure: Figure) -> [Line; 4] {
    const CASE: &str = "files-http";
    [
        line("4 KiB, cached", CASE, figure, "cached=1 bytes=4096"),
        line("16 MiB, cached", CASE, figure, "cached=1 bytes=16777216"),
        line("4 KiB, from the disk", CASE, figure, "cached=0 bytes=4096"),
        line(
            "16 MiB, from the disk",
            CASE,
            figure,
            "cached=0 bytes=16777216",
        ),
    ]
}

pub(super) const ACCEPTING: [Table; 1] = [Table {
    about: "CPU time of the whole server per connection, in nanoseconds.",
    head: "threads",
    columns: &[
        plain("`accept` in a loop", Implementation::Bare),
        plain("owned", OWNED),
        plain("tokio", Implementation::Tokio),
    ],
    lines: &[
        line("1", "accept", Figure::Cpu, "threads=1"),
        line("2", "accept", Figure::Cpu, "threads=2"),
        line("4", "accept", Figure::Cpu, "threads=4"),
    ],
}];

/// In the cell of a side that does not take part: it cannot be had here, or has nothing of this kind.
pub(super) const LEFT_OUT: &str = "–";

/// A quartile is far from the median if it is so many times as large or as small.
const FAR: f64 = 1.1;

impl Table {
    /// `None` if the report has no row of a line.
    pub(super) fn text(&self, report: &Report) -> Option<String> {
        let lines = self.lines.iter().map(|line| {
            let cells = self.columns.iter().map(|column| report.cell(line, column));
            let cells: Vec<_> = cells.collect();
            let is_there = cells.iter().any(Option::is_some);
            is_there.then_some(cells)
        });
        let lines: Vec<_> = lines.collect::<Option<_>>()?;
        Some(self.with_cells(&lines))
    }

    /// With nothing in its cells.
    pub(super) fn empty(&self) -> String {
        let line = vec![None; self.columns.len()];
        self.with_cells(&vec![line; self.lines.len()])
    }

    fn with_cells(&self, lines: &[Vec<Option<String>>]) -> String {
        let mut text = format!("\n{}\n\n| {} |", wrapped(self.about, 120), self.head);
        for column in self.columns {
            write!(text, " {} |", column.heading).expect("memory takes it");
        }
        text += "\n|---|";
        text += &"---|".repeat(self.columns.len());
        for (line, cells) in self.lines.iter().zip(lines) {
            write!(text, "\n| {} |", line.label).expect("memory takes it");
            for cell in cells {
                let cell = cell.as_deref().unwrap_or(LEFT_OUT);
                write!(text, " {cell} |").expect("memory takes it");
            }
        }
        text.push('\n');
        text
    }
}

impl Report {
    pub(super) fn row(
        &self,
        case: &str,
        setting: &str,
        figure: Figure,
        implementation: Implementation,
    ) -> Option<&Row> {
        let wanted: Setting = setting.parse().ok()?;
        self.rows.iter().find(|row| {
            let mut values = wanted.iter();
            row.case == case
                && row.implementation == implementation
                && row.get(figure).is_some()
                && values.all(|value| row.setting.iter().any(|it| it == value))
        })
    }

    /// The median, with the quartiles of the rounds if one is far from it; of a ratio, those to the other one's median.
    fn cell(&self, line: &Line, column: &Column) -> Option<String> {
        let setting = format!("{} {}", line.setting, column.setting);
        let row = |implementation| self.row(line.case, &setting, line.figure, implementation);
        let (median, range) = row(column.implementation)?.with_spread(line.figure)?;
        let is_far = range[0] < median / FAR || range[1] > median * FAR;
        let show = |value: &dyn Fn(f64) -> String| match is_far {
            true => format!(
                "{} ({} to {})",
                value(median),
                value(range[0]),
                value(range[1])
            ),
            false => value(median),
        };
        let Some(to) = column.to else {
            return Some(show(&|value| self::show(line.figure, value)));
        };
        let (of, its_range) = row(to)?.with_spread(line.figure)?;
        let is_within = to != column.implementation && row::overlap(range, its_range);
        let mark = if is_within { "≈ " } else { "" };
        Some(mark.to_owned() + &show(&|value| format!("{:.2}", value / of)))
    }
}

/// Latencies in milliseconds, which is what tables say.
pub(super) fn show(figure: Figure, value: f64) -> String {
    match figure {
        Figure::P50 | Figure::P99 | Figure::P999 | Figure::Longest => {
            let decimals = if value < 10_000.0 { 2 } else { 0 };
            format!("{:.*}", decimals, value / 1000.0)
        }
        Figure::ServerCpu if value < 100.0 => format!("{value:.1}"),
        _ => grouped(value),
    }
}

/// In lines of at most so many characters.
pub(super) fn wrapped(text: &str, most: usize) -> String {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().expect("there is one");
        if line.is_empty() {
            line.push_str(word);
        } else if line.chars().count() + 1 + word.chars().count() <= most {
            write!(line, " {word}").expect("memory takes it");
        } else {
            lines.push(word.to_owned());
        }
    }
    lines.join("\n")
}
