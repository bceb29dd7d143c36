//! The figures in README.md and bench/README.md: measured, or taken from a report; written, or checked.
//!
//! What is between the comments of a [block](document) is replaced as a whole.

mod document;
mod goals;
mod pictures;
mod sections;
mod tables;

use std::path::{Path, PathBuf};
use std::{fs, io};

use serde_json::Value;

use self::pictures::Picture;
use self::sections::{Extent, Section};
use self::tables::Table;
use crate::row::Row;

#[derive(clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    extent: Extent,
    /// Measure nothing: take the directory that `--report` has written, with rows.json and run.json. Given more than
    /// once, it is of parts of a run, on one machine and of one commit.
    #[arg(long, value_name = "DIR")]
    report: Vec<PathBuf>,
    /// Measure and write nothing; fail if the documents' figures are not those of the report. Without a report, fail
    /// if they differ in anything but figures.
    #[arg(long)]
    check: bool,
    /// The project's directory.
    #[arg(long, value_name = "DIR", default_value = ".")]
    root: PathBuf,
}

/// What stands between two comments of a document.
struct Block {
    document: &'static str,
    name: &'static str,
    /// Where its rows come from.
    sections: &'static [Section],
    pictures: &'static [Picture],
    tables: &'static [Table],
    has_goals: bool,
}

const BLOCKS: [Block; 8] = [
    Block {
        name: "blocking",
        sections: &[Section::Blocking],
        pictures: &[pictures::BLOCKING, pictures::WAITS],
        tables: &tables::BLOCKING,
        ..EMPTY
    },
    Block {
        name: "servers",
        sections: &[Section::Servers],
        pictures: &[pictures::SERVERS],
        tables: &tables::SERVERS,
        ..EMPTY
    },
    Block {
        document: BENCH,
        name: "readiness",
        sections: &[Section::Readiness],
        tables: &tables::READINESS,
        ..EMPTY
    },
    Block {
        document: BENCH,
        name: "handlers that block",
        sections: &[Section::Blocking],
        tables: &tables::BLOCKING_IN_FULL,
        ..EMPTY
    },
    Block {
        document: BENCH,
        name: "libraries in C",
        sections: &[Section::Servers, Section::Readiness],
        tables: &tables::FOREIGN,
        ..EMPTY
    },
    Block {
        document: BENCH,
        name: "files over HTTP",
        sections: &[Section::Files],
        tables: &tables::FILES,
        ..EMPTY
    },
    Block {
        document: BENCH,
        name: "accepting",
        sections: &[Section::Accepting],
        tables: &tables::ACCEPTING,
        ..EMPTY
    },
    Block {
        document: BENCH,
        name: "goals",
        sections: &[Section::Blocking, Section::Servers],
        has_goals: true,
        ..EMPTY
    },
];

const README: &str = "README.md";
const BENCH: &str = "bench/README.md";

const EMPTY: Block = Block {
    document: README,
    name: "",
    sections: &[],
    pictures: &[],
    tables: &[],
    has_goals: false,
};

impl Block {
    /// `None` if the report does not have it all.
    fn text(&self, report: &Report) -> Option<String> {
        let mut text = String::new();
        for picture in self.pictures {
            text += &picture.element();
            text.push('\n');
        }
        text += &report.measured();
        for table in self.tables {
            text += &table.text(report)?;
        }
        if self.has_goals {
            text += &goals::table(report)?;
        }
        Some(text)
    }

    /// Without figures.
    fn empty(&self) -> String {
        let mut text = String::new();
        for picture in self.pictures {
            text += &picture.element();
            text.push('\n');
        }
        text += "Measured\n";
        for table in self.tables {
            text += &table.empty();
        }
        if self.has_goals {
            text += &goals::shape();
        }
        text
    }
}

/// Measure, write or check.
///
/// # Errors
///
/// Names the document that could not be read or is not as it has to be.
pub(crate) fn run(options: &Options) -> io::Result<()> {
    if options.check && options.report.is_empty() {
        return check_shapes(&options.root);
    }
    let given = Report::of_all(options.report.iter().map(PathBuf::as_path))?;
    if given.is_none() {
        options.extent.measure()?;
    }
    let mut written = 0;
    for block in &BLOCKS {
        let report = match &given {
            Some(report) => Report {
                rows: report.rows.clone(),
                run: report.run.clone(),
            },
            None => match measured(&options.extent, block)? {
                Some(report) => report,
                None => continue,
            },
        };
        let Some(text) = block.text(&report) else {
            eprintln!("{}: not all of {} was run", block.document, block.name);
            continue;
        };
        written += 1;
        let path = options.root.join(block.document);
        let found = read(&path)?;
        let mut wanted = found.clone();
        document::replace(&mut wanted, block.name, &text)
            .ok_or_else(|| named(&path, format!("there is no block {}", block.name)))?;
        match options.check {
            true => document::same(&found, &wanted).map_err(|line| named(&path, line))?,
            false => {
                fs::write(&path, wanted)?;
                for picture in block.pictures {
                    picture.write(&options.root.join("docs/pictures"), &report)?;
                }
            }
        }
    }
    match written {
        0 => Err(io::Error::other(
            "nothing was run of which there is a figure",
        )),
        _ => Ok(()),
    }
}

/// The results of a block's sections; `None` if it is not about what was asked for, or they are not all there.
fn measured(extent: &Extent, block: &Block) -> io::Result<Option<Report>> {
    let asked = extent.sections();
    if !block.sections.iter().any(|it| asked.contains(it)) {
        return Ok(None);
    }
    let parts = block.sections.iter().flat_map(|section| section.parts());
    let directories: Vec<_> = parts.map(|part| extent.results.join(part.name)).collect();
    let there = directories.iter().filter(|it| it.is_dir());
    match Report::of_all(there.map(PathBuf::as_path)) {
        Err(error) => {
            eprintln!("{}: {} is not written: {error}", block.document, block.name);
            Ok(None)
        }
        report => report,
    }
}

/// Whether the documents differ in nothing but figures.
fn check_shapes(root: &Path) -> io::Result<()> {
    for document in [README, BENCH] {
        let path = root.join(document);
        let found = read(&path)?;
        let mut wanted = found.clone();
        let blocks = || BLOCKS.iter().filter(|block| block.document == document);
        for block in blocks() {
            document::replace(&mut wanted, block.name, &block.empty())
                .ok_or_else(|| named(&path, format!("there is no block {}", block.name)))?;
        }
        let [found, wanted] =
            [found, wanted].map(|text| document::shape(&text, blocks().map(|it| it.name)));
        document::same(&found, &wanted).map_err(|line| named(&path, line))?;
    }
    Ok(())
}

fn read(path: &Path) -> io::Result<String> {
    fs::read_to_string(path).map_err(|error| named(path, error))
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

/// From so many processors on, other programs have a part in the figures.
const BUSY: f64 = 0.1;

impl Report {
    fn read(directory: &Path) -> io::Result<Self> {
        let rows = read(&directory.join("rows.json"))?;
        let rows = rows.lines().map(|line| {
            let value = serde_json::from_str(line).ok();
            let row = value.as_ref().and_then(Row::from_json);
            row.ok_or_else(|| io::Error::other(format!("not a row: {line}")))
        });
        Ok(Report {
            rows: rows.collect::<io::Result<_>>()?,
            run: serde_json::from_str(&read(&directory.join("run.json"))?)?,
        })
    }

    /// All of these together.
    fn of_all<'a>(directories: impl Iterator<Item = &'a Path>) -> io::Result<Option<Self>> {
        let mut all: Option<Report> = None;
        for directory in directories {
            let part = Report::read(directory)?;
            all = Some(match all {
                None => part,
                Some(parts) => parts.with(part)?,
            });
        }
        Ok(all)
    }

    /// With the rows of another part. What others did is the most.
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
        if busy(&part.run) > busy(&self.run) {
            self.run[BUSY_BEFORE] = part.run[BUSY_BEFORE].clone();
        }
        self.rows.extend(part.rows);
        Ok(self)
    }

    /// When, where and how.
    fn measured(&self) -> String {
        let of = |name: &str| self.run[name].as_str().unwrap_or("unknown");
        let busy = busy(&self.run);
        let busy = match busy >= BUSY {
            true => format!("; **beside other programs** (which kept {busy:.1} processors busy)"),
            false => String::new(),
        };
        format!(
            "Measured {}, commit {}: {}; {}, {}{busy}.\n",
            of("date"),
            of("commit"),
            of("effort"),
            of("processor"),
            of("system")
        )
    }
}

const BUSY_BEFORE: &str = "busy_processors_before";

fn busy(run: &Value) -> f64 {
    let text = run[BUSY_BEFORE].as_str().unwrap_or_default();
    text.parse().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCUMENT: &str =
        "before\n<!-- servers: from a report -->\n\nold\n\n<!-- end of servers -->\nafter\n";

    fn servers() -> &'static Block {
        let block = BLOCKS.iter().find(|block| block.name == "servers");
        block.expect("there is one")
    }

    /// All rows of the block, each of these sides with this rate and latency.
    fn report() -> Report {
        let sides = [
            ("tokio", 1000.0),
            ("raw epoll, a set each", 500.0),
            ("socknotify epoll, owned", 1100.0),
        ];
        let mut rows = Vec::new();
        for (name, rate) in sides {
            for line in servers().tables.iter().flat_map(|table| table.lines) {
                let mut row = serde_json::json!({
                    "case": line.case, "impl": name,
                    "requests_per_second": rate,
                    "requests_per_second_spread": [rate * 0.9, rate * 1.1],
                    "latency_p50_us": 10.0,
                    "latency_p99_us": 20.0,
                    "server_cpu_us_per_request": 5.0,
                });
                let setting: crate::case::Setting = line.setting.parse().expect("a setting");
                for (parameter, value) in setting.iter() {
                    row[parameter.name()] = value.into();
                }
                rows.push(Row::from_json(&row).expect("a row"));
            }
        }
        let run = serde_json::json!({
            "date": "2026-11-22", "effort": "full, rounds: 7", BUSY_BEFORE: "0.03",
        });
        Report { rows, run }
    }

    #[test]
    fn a_block_gets_ratios_of_medians_with_their_spread_and_a_picture() {
        let text = servers().text(&report()).expect("it is complete");
        let mut document = DOCUMENT.to_owned();
        document::replace(&mut document, "servers", &text).expect("the block is there");
        let line = "| HTTP, 100 connections | 1.00 (0.90 to 1.10) | 0.50 (0.45 to 0.55) | – | \
                    ≈ 1.10 (0.99 to 1.21) |\n";
        assert!(document.contains(line), "{document}");
        assert!(document.contains("Measured 2026-11-22, commit unknown: full, rounds: 7;"));
        assert!(!document.contains("beside other programs"));
        assert!(
            document.contains("alt=\"Servers whose handlers do not block: requests per second. ")
        );
        assert!(document.starts_with("before\n") && document.ends_with("-->\nafter\n"));
        assert!(!document.contains("old"));

        let again = document.clone();
        document::replace(&mut document, "servers", &text).expect("the block is there");
        assert_eq!(document, again);
    }

    #[test]
    fn a_block_of_which_a_line_was_not_run_is_not_written() {
        let mut report = report();
        report.rows.retain(|row| row.case != "latency");
        assert!(servers().text(&report).is_none());
    }

    #[test]
    fn what_ran_beside_other_programs_says_so() {
        let mut report = report();
        report.run[BUSY_BEFORE] = "1.24".into();
        assert!(
            report
                .measured()
                .contains("**beside other programs** (which kept 1.2 processors busy)")
        );
    }

    #[test]
    fn parts_of_a_run_are_put_together() {
        let mut other = report();
        other.rows.clear();
        other.run["effort"] = "full, rounds: 9".into();
        let both = report().with(other).expect("of one machine");
        assert_eq!(both.rows.len(), report().rows.len());
        let text = both.measured();
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
        let text = servers().text(&report()).expect("it is complete");
        document::replace(&mut found, "servers", &text).expect("a block");
        document::replace(&mut empty, "servers", &servers().empty()).expect("a block");
        let shape = |text: &str| document::shape(text, std::iter::once("servers"));
        let wanted = shape(&empty);
        assert_eq!(document::same(&shape(&found), &wanted), Ok(()));
        for (part, other) in [
            ("| HTTP, 100", "| HTTP, 10"),
            ("1.10 (", "fast ("),
            ("0.99 to", "0.99 or"),
            ("More is better", "Less is better"),
            ("servers-light", "server-light"),
        ] {
            let changed = found.replacen(part, other, 1);
            assert_ne!(changed, found);
            assert!(
                document::same(&shape(&changed), &wanted).is_err(),
                "{other}"
            );
        }
    }

    #[test]
    fn every_line_of_a_table_is_measured_for_it() {
        for block in &BLOCKS {
            let parts = block.sections.iter().flat_map(|section| section.parts());
            let parts: Vec<_> = parts.collect();
            for line in block.tables.iter().flat_map(|table| table.lines) {
                let case = crate::cases::named(&[line.case.to_owned()]).expect("a case")[0];
                let part = parts.iter().find(|part| part.case == line.case);
                let part = part.unwrap_or_else(|| panic!("{} is not measured", line.case));
                let columns = block
                    .tables
                    .iter()
                    .filter(|it| it.lines.iter().any(|it| std::ptr::eq(it, line)));
                for column in columns.flat_map(|table| table.columns) {
                    let setting = format!("{} {}", line.setting, column.setting);
                    let setting: crate::case::Setting = setting.parse().expect("a setting");
                    for (parameter, value) in setting.iter() {
                        let values = part.values_of(case, parameter);
                        assert!(values.contains(&value), "{} {}", line.case, line.setting);
                    }
                }
            }
        }
    }

    #[test]
    fn pictures_are_the_same_on_a_light_and_on_a_dark_page_but_for_colors() {
        let directory = tempfile::tempdir().expect("a directory");
        pictures::SERVERS
            .write(directory.path(), &report())
            .expect("written");
        let read = |name: &str| fs::read_to_string(directory.path().join(name)).expect("a picture");
        let [light, dark] = ["servers-light.svg", "servers-dark.svg"].map(read);
        assert_ne!(light, dark);
        let without_colors = |text: &str| {
            let parts = text.split('#').enumerate();
            let parts = parts.map(|(number, part)| if number == 0 { part } else { &part[6..] });
            parts.collect::<String>()
        };
        assert_eq!(without_colors(&light), without_colors(&dark));
        assert!(light.starts_with("<svg ") && light.ends_with("</svg>\n"));
        assert!(light.contains("<title>") && light.contains("110 %"));
        // Of the three sides in two groups.
        assert_eq!(light.matches("<tspan").count(), 6);
    }
}
