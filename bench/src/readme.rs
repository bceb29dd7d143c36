//! The tables of figures in README.md and bench/README.md: written from a report, and checked.
//!
//! Each stands between two comments, `<!-- NAME: … -->` and `<!-- end of NAME -->`. What is between them is
//! replaced as a whole.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{fs, io};

use serde_json::Value;
use socknotify::Backend;

use crate::case::Setting;
use crate::figure::Figure;
use crate::goals;
use crate::implementation::Implementation;
use crate::row::{self, Row};

#[derive(clap::Args)]
pub(crate) struct Options {
    /// The directory that `--report` has written, with rows.json and run.json. Given more than once, it is of parts
    /// of a run, on one machine and of one commit.
    #[arg(long, value_name = "DIR")]
    report: Vec<PathBuf>,
    /// Write nothing; fail if a document's tables are not those of the report. Without a report, fail if they
    /// differ in anything but figures.
    #[arg(long, required_unless_present = "report")]
    check: bool,
    /// The project's directory.
    #[arg(long, value_name = "DIR", default_value = ".")]
    root: PathBuf,
}

/// A document, its blocks, and what each of these has.
const DOCUMENTS: [(&str, &[(&str, Block)]); 2] = [
    ("README.md", &[("figures", Block::Tables(&FIGURES))]),
    (
        "bench/README.md",
        &[
            ("accepting", Block::Tables(&[ACCEPTING])),
            ("goals", Block::Goals),
        ],
    ),
];

enum Block {
    Tables(&'static [Table]),
    Goals,
}

struct Table {
    about: &'static str,
    /// What the lines have in common.
    head: &'static str,
    columns: &'static [Column],
    lines: &'static [Line],
}

struct Column {
    heading: &'static str,
    implementation: Implementation,
    /// A cell is the ratio to this one's figure; without it, the figure itself.
    to: Option<Implementation>,
    setting: &'static str,
}

struct Line {
    label: &'static str,
    case: &'static str,
    figure: Figure,
    setting: &'static str,
}

const KEYS: Implementation = Implementation::Socknotify(Backend::Epoll);
const OWNED: Implementation = Implementation::Owned(Backend::Epoll);
const EAGER: Implementation = Implementation::Eager(Backend::Epoll);

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

const TO_EPOLL: Option<Implementation> = Some(Implementation::RawEpoll);
const TO_MIO: Option<Implementation> = Some(Implementation::Mio);
const TO_TOKIO: Option<Implementation> = Some(Implementation::Tokio);

const RAW_TO_TOKIO: Column = column(
    "raw `epoll`, a set per thread",
    Implementation::RawEpollEach,
    TO_TOKIO,
    "",
);
const KEYS_TO_TOKIO: Column = column("keys", KEYS, TO_TOKIO, "");
const OWNED_TO_TOKIO: Column = column("owned", OWNED, TO_TOKIO, "");
const EAGER_TO_TOKIO: Column = column("eager", EAGER, TO_TOKIO, "");

const FIGURES: [Table; 4] = [
    Table {
        about: "**One thread, one-shot**: CPU time per notification, relative to raw `epoll` with an `EPOLL_CTL_MOD` \
                for each. The program's own reads and writes do not count. Less is better. *Data first*: data \
                arrive before the socket is armed, as in a server under load. *Armed first*: data arrive after, as \
                when clients wait for answers.",
        head: "ready at once",
        columns: &[
            column("data first: keys", KEYS, TO_EPOLL, "order=written-armed"),
            column("owned", OWNED, TO_EPOLL, "order=written-armed"),
            column("armed first: keys", KEYS, TO_EPOLL, "order=armed-written"),
            column("owned", OWNED, TO_EPOLL, "order=armed-written"),
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
            column("relative to raw `epoll`", KEYS, TO_EPOLL, ""),
            column("relative to mio", KEYS, TO_MIO, ""),
        ],
        lines: &[
            line("1", "edge", Figure::NetCpu, "batch=1"),
            line("64", "edge", Figure::NetCpu, "batch=64"),
        ],
    },
    Table {
        about: "**Servers**: requests per second, relative to tokio. More is better.",
        head: "",
        columns: &[RAW_TO_TOKIO, KEYS_TO_TOKIO, OWNED_TO_TOKIO],
        lines: &[
            line(
                "HTTP, 100 connections",
                "http",
                Figure::Rate,
                "connections=100",
            ),
            line(
                "HTTP, 1,000 connections",
                "http",
                Figure::Rate,
                "connections=1000",
            ),
            line(
                "echo, 100 connections, 16 threads",
                "echo",
                Figure::Rate,
                "connections=100 work=0 threads=16",
            ),
            line(
                "echo, 100 connections, 64 threads",
                "echo",
                Figure::Rate,
                "connections=100 work=0 threads=64",
            ),
            line(
                "echo, 10,000 connections, 16 threads",
                "echo",
                Figure::Rate,
                "connections=10000 work=0 threads=16",
            ),
            line(
                "echo, 10,000 connections, 64 threads",
                "echo",
                Figure::Rate,
                "connections=10000 work=0 threads=64",
            ),
        ],
    },
    Table {
        about: "**Latency** of HTTP with 100 connections, at half of tokio's highest rate, relative to tokio. Less \
                is better. *Eager* is the owned port with `WakePolicy::Eager`.",
        head: "",
        columns: &[RAW_TO_TOKIO, KEYS_TO_TOKIO, OWNED_TO_TOKIO, EAGER_TO_TOKIO],
        lines: &[
            line("median", "latency", Figure::P50, "load=50"),
            line("99th percentile", "latency", Figure::P99, "load=50"),
        ],
    },
];

const ACCEPTING: Table = Table {
    about: "CPU time of the whole server per connection, in nanoseconds.",
    head: "threads",
    columns: &[
        column("`accept` in a loop", Implementation::Bare, None, ""),
        column("owned", OWNED, None, ""),
        column("tokio", Implementation::Tokio, None, ""),
    ],
    lines: &[
        line("1", "accept", Figure::Cpu, "threads=1"),
        line("2", "accept", Figure::Cpu, "threads=2"),
        line("4", "accept", Figure::Cpu, "threads=4"),
    ],
};

/// Write or check the documents.
///
/// # Errors
///
/// Names the document that could not be read or is not as it has to be.
pub(crate) fn run(options: &Options) -> io::Result<()> {
    let mut report: Option<Report> = None;
    for directory in &options.report {
        let part = Report::read(directory)?;
        report = Some(match report {
            None => part,
            Some(parts) => parts.with(part)?,
        });
    }
    for (name, blocks) in &DOCUMENTS {
        let path = options.root.join(name);
        let found = fs::read_to_string(&path).map_err(|error| named(&path, error))?;
        let mut wanted = found.clone();
        let text = |block: &Block| report.as_ref().unwrap_or(&Report::default()).block(block);
        for (block, contents) in *blocks {
            replace(&mut wanted, block, &text(contents))
                .ok_or_else(|| named(&path, format!("there is no block {block}")))?;
        }
        match (options.check, &report) {
            (false, _) => fs::write(&path, wanted)?,
            (true, Some(_)) => same(&found, &wanted).map_err(|line| named(&path, line))?,
            (true, None) => {
                let shapes = [&found, &wanted].map(|text| shape(text, blocks));
                same(&shapes[0], &shapes[1]).map_err(|line| named(&path, line))?;
            }
        }
    }
    Ok(())
}

fn named(path: &Path, error: impl ToString) -> io::Error {
    io::Error::other(format!("{}: {}", path.display(), error.to_string()))
}

/// What a run has found.
#[derive(Default)]
struct Report {
    rows: Vec<Row>,
    /// When and where.
    run: Value,
}

impl Report {
    fn read(directory: &Path) -> io::Result<Self> {
        let read = |name| {
            let path = directory.join(name);
            fs::read_to_string(&path).map_err(|error| named(&path, error))
        };
        let rows = read("rows.json")?;
        let rows = rows.lines().map(|line| {
            let value = serde_json::from_str(line).ok();
            let row = value.as_ref().and_then(Row::from_json);
            row.ok_or_else(|| io::Error::other(format!("not a row: {line}")))
        });
        Ok(Report {
            rows: rows.collect::<io::Result<_>>()?,
            run: serde_json::from_str(&read("run.json")?)?,
        })
    }

    /// With the rows of another part.
    fn with(mut self, part: Report) -> io::Result<Self> {
        for name in ["commit", "processor", "system"] {
            if self.run[name] != part.run[name] {
                return Err(io::Error::other(format!(
                    "the reports differ in their {name}"
                )));
            }
        }
        let effort = |run: &Value| run["effort"].as_str().unwrap_or_default().to_owned();
        let (efforts, other) = (effort(&self.run), effort(&part.run));
        if !efforts.split(" and ").any(|it| it == other) {
            self.run["effort"] = format!("{efforts} and {other}").into();
        }
        self.rows.extend(part.rows);
        Ok(self)
    }

    fn block(&self, block: &Block) -> String {
        let of = |name: &str| self.run[name].as_str().unwrap_or("unknown");
        let mut text = format!(
            "Measured {}, commit {}: {}; {}, {}.\n",
            of("date"),
            of("commit"),
            of("effort"),
            of("processor"),
            of("system")
        );
        match block {
            Block::Tables(tables) => {
                for table in *tables {
                    text += &self.table(table);
                }
            }
            Block::Goals => {
                text.push('\n');
                text += &goals::markdown(&self.rows);
            }
        }
        text
    }

    fn table(&self, table: &Table) -> String {
        let mut text = format!("\n{}\n\n| {} |", wrapped(table.about), table.head);
        for column in table.columns {
            write!(text, " {} |", column.heading).expect("memory takes it");
        }
        text += "\n|---|";
        text += &"---|".repeat(table.columns.len());
        for line in table.lines {
            write!(text, "\n| {} |", line.label).expect("memory takes it");
            for column in table.columns {
                let cell = self.cell(line, column);
                write!(text, " {} |", cell.as_deref().unwrap_or(NOT_RUN)).expect("memory takes it");
            }
        }
        text.push('\n');
        text
    }

    fn row(&self, line: &Line, column: &Column, implementation: Implementation) -> Option<&Row> {
        let wanted: Setting = format!("{} {}", line.setting, column.setting)
            .parse()
            .ok()?;
        self.rows.iter().find(|row| {
            let mut values = wanted.iter();
            row.case == line.case
                && row.implementation == implementation
                && values.all(|value| row.setting.iter().any(|it| it == value))
        })
    }

    /// The median, with the quartiles of the rounds; of a ratio, those to the other one's median.
    fn cell(&self, line: &Line, column: &Column) -> Option<String> {
        let row = self.row(line, column, column.implementation)?;
        let (value, range) = row.with_spread(line.figure)?;
        let Some(to) = column.to else {
            let [value, least, most] = [value, range[0], range[1]].map(|it| line.figure.show(it));
            return Some(format!("{value} ({least} to {most})"));
        };
        let (of, its_range) = self.row(line, column, to)?.with_spread(line.figure)?;
        let mark = match row::overlap(range, its_range) {
            true => "≈ ",
            false => "",
        };
        let [value, least, most] = [value, range[0], range[1]].map(|it| it / of);
        Some(format!("{mark}{value:.2} ({least:.2} to {most:.2})"))
    }
}

/// In place of what a report does not have.
const NOT_RUN: &str = "not run";

/// In lines of at most 120 characters, as the documents have them.
fn wrapped(text: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().expect("there is one");
        if line.is_empty() {
            line.push_str(word);
        } else if line.chars().count() + 1 + word.chars().count() <= 120 {
            write!(line, " {word}").expect("memory takes it");
        } else {
            lines.push(word.to_owned());
        }
    }
    lines.join("\n")
}

/// Where the contents of a block are.
fn block_in(document: &str, name: &str) -> Option<std::ops::Range<usize>> {
    let begin = document.find(&format!("<!-- {name}: "))?;
    let begin = begin + document[begin..].find("-->")? + "-->".len();
    let end = begin + document[begin..].find(&format!("\n<!-- end of {name} -->"))?;
    Some(begin..end)
}

fn replace(document: &mut String, name: &str, text: &str) -> Option<()> {
    let place = block_in(document, name)?;
    document.replace_range(place, &format!("\n\n{text}"));
    Some(())
}

/// The first line that is not as wanted.
fn same(found: &str, wanted: &str) -> Result<(), String> {
    let mut wanted_lines = wanted.lines();
    for line in found.lines() {
        match wanted_lines.next() {
            Some(wanted) if line == wanted => {}
            wanted => {
                let wanted = wanted.unwrap_or("the end");
                return Err(format!("found:  {line}\nwanted: {wanted}"));
            }
        }
    }
    match wanted_lines.next() {
        Some(line) => Err(format!("missing: {line}")),
        None => Ok(()),
    }
}

/// The blocks of a document, with a mark in place of each figure.
fn shape(document: &str, blocks: &[(&str, Block)]) -> String {
    let mut shape = String::new();
    for (name, contents) in blocks {
        let block = block_in(document, name).map_or("", |place| &document[place]);
        for line in block.lines() {
            shape += &match (line.strip_prefix('|'), contents) {
                (Some(cells), Block::Goals) => goal_shape(cells),
                (Some(cells), Block::Tables(_)) => {
                    let cells = cells.split('|').enumerate();
                    let cells = cells.map(|(number, cell)| match number > 0 && is_figure(cell) {
                        true => "#",
                        false => cell,
                    });
                    cells.collect::<Vec<_>>().join("|")
                }
                (None, _) if line.starts_with("Measured ") => "Measured".to_owned(),
                (None, _) => line.to_owned(),
            };
            shape.push('\n');
        }
    }
    shape
}

/// A goal without what was measured, if there is a result.
fn goal_shape(cells: &str) -> String {
    let cells: Vec<_> = cells.split('|').map(str::trim).collect();
    match &*cells {
        [case, against, goal, measured, result, ""]
            if (*result == NOT_RUN && measured.is_empty())
                || (!measured.is_empty() && (*result == "met" || result.starts_with("missed"))) =>
        {
            [case, against, goal, "#"].join("|")
        }
        _ => cells.join("|"),
    }
}

/// Such as "0.71", "≈ 1.02 (0.96 to 1.10)", "3200 (3100 to 3300)"; or that it was not run.
fn is_figure(cell: &str) -> bool {
    let is_number = |text: &str| text.parse::<f64>().is_ok();
    let is_range = |text: &str| {
        text.split_once(" to ")
            .is_some_and(|(least, most)| is_number(least) && is_number(most))
    };
    let cell = cell.trim();
    let cell = cell.strip_prefix("≈ ").unwrap_or(cell);
    match cell.split_once(" (") {
        Some((value, range)) => is_number(value) && range.strip_suffix(')').is_some_and(is_range),
        None => cell == NOT_RUN || is_number(cell) || is_range(cell),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCUMENT: &str =
        "before\n<!-- figures: from a report -->\n\nold\n\n<!-- end of figures -->\nafter\n";
    const BLOCKS: &[(&str, Block)] = &[("figures", Block::Tables(&FIGURES))];

    fn report() -> Report {
        let row = |implementation: &str, rate: f64| {
            let row = serde_json::json!({
                "case": "http", "impl": implementation, "connections": 100,
                "requests_per_second": rate,
                "requests_per_second_spread": [rate * 0.9, rate * 1.1],
            });
            Row::from_json(&row).expect("a row")
        };
        Report {
            rows: vec![
                row("tokio", 1000.0),
                row("raw epoll, a set each", 500.0),
                row("socknotify epoll, owned", 1100.0),
            ],
            run: serde_json::json!({"date": "2026-11-22", "effort": "full, rounds: 7"}),
        }
    }

    #[test]
    fn a_block_gets_ratios_of_medians_with_their_spread() {
        let mut document = DOCUMENT.to_owned();
        let text = report().block(&BLOCKS[0].1);
        replace(&mut document, "figures", &text).expect("the block is there");
        let line =
            "| HTTP, 100 connections | 0.50 (0.45 to 0.55) | not run | ≈ 1.10 (0.99 to 1.21) |\n";
        assert!(document.contains(line), "{document}");
        assert!(document.contains("Measured 2026-11-22, commit unknown: full, rounds: 7;"));
        assert!(document.starts_with("before\n") && document.ends_with("-->\nafter\n"));
        assert!(!document.contains("old"));

        let again = document.clone();
        replace(&mut document, "figures", &text).expect("the block is there");
        assert_eq!(document, again);
    }

    #[test]
    fn parts_of_a_run_are_put_together() {
        let mut other = report();
        other.rows.clear();
        other.run["effort"] = "full, rounds: 9".into();
        let both = report().with(other).expect("of one machine");
        assert_eq!(both.rows.len(), report().rows.len());
        let text = both.block(&BLOCKS[0].1);
        assert!(
            text.contains("full, rounds: 7 and full, rounds: 9;"),
            "{text}"
        );
        let mut elsewhere = report();
        elsewhere.run["processor"] = "another".into();
        assert!(report().with(elsewhere).is_err());
    }

    #[test]
    fn the_shape_is_that_of_another_report_until_anything_but_a_figure_differs() {
        let [mut found, mut empty] = [DOCUMENT.to_owned(), DOCUMENT.to_owned()];
        replace(&mut found, "figures", &report().block(&BLOCKS[0].1)).expect("a block");
        replace(
            &mut empty,
            "figures",
            &Report::default().block(&BLOCKS[0].1),
        )
        .expect("a block");
        let wanted = shape(&empty, BLOCKS);
        assert_eq!(same(&shape(&found, BLOCKS), &wanted), Ok(()));
        for (part, other) in [
            ("HTTP, 100", "HTTP, 10"),
            ("1.10 (", "fast ("),
            ("0.99 to", "0.99 or"),
            ("not run", "soon"),
            ("More is better", "Less is better"),
        ] {
            let changed = found.replacen(part, other, 1);
            assert_ne!(changed, found);
            assert!(same(&shape(&changed, BLOCKS), &wanted).is_err(), "{other}");
        }
    }

    #[test]
    fn every_setting_of_a_table_is_one_that_its_case_has() {
        let tables = FIGURES.iter().chain([&ACCEPTING]);
        for table in tables {
            for line in table.lines {
                let case = crate::cases::named(&[line.case.to_owned()]).expect("a case")[0];
                for column in table.columns {
                    let wanted: Setting = format!("{} {}", line.setting, column.setting)
                        .parse()
                        .expect("a setting");
                    for (parameter, value) in wanted.iter() {
                        let mut axes = case.axes.iter();
                        let axis = axes.find(|axis| axis.parameter == parameter);
                        assert!(axis.is_some_and(|axis| axis.values.contains(&value)));
                    }
                    let all = (case.implementations)();
                    assert!(
                        [Some(column.implementation), column.to]
                            .into_iter()
                            .flatten()
                            .all(|it| all.contains(&it))
                    );
                }
            }
        }
    }
}
