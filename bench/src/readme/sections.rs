//! What is measured for the documents: some cases, with few settings, so that it takes some minutes.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Instant;

use super::Report;
use super::tables::{KEYS, OWNED};
#[cfg(test)]
use crate::case::Case;
use crate::case::{Effort, Parameter};
use crate::environment::Environment;
use crate::implementation::Implementation;
use crate::output;
use crate::row;
use crate::run::Plan;
use crate::{cases, count, report};

/// Cases that are measured and shown together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Section {
    /// Handlers that block: the first figure of the README.
    Blocking,
    /// HTTP and echo servers.
    Servers,
    /// What a notification costs on one thread.
    Readiness,
    /// Files over HTTP.
    Files,
    /// What else the goals are about; most of it is counted.
    Goals,
}

impl Section {
    pub(crate) const ALL: [Section; 5] = [
        Section::Blocking,
        Section::Servers,
        Section::Readiness,
        Section::Files,
        Section::Goals,
    ];

    const fn name(self) -> &'static str {
        match self {
            Section::Blocking => "blocking",
            Section::Servers => "servers",
            Section::Readiness => "readiness",
            Section::Files => "files",
            Section::Goals => "goals",
        }
    }

    pub(crate) const fn parts(self) -> &'static [Part] {
        match self {
            Section::Blocking => &BLOCKING,
            Section::Servers => &SERVERS,
            Section::Readiness => &READINESS,
            Section::Files => &FILES,
            Section::Goals => &GOALS,
        }
    }
}

/// A case, with values of its axes in place of its own.
pub(crate) struct Part {
    /// Of its results.
    pub(crate) name: &'static str,
    pub(crate) case: &'static str,
    values: &'static [(Parameter, &'static [usize])],
    /// System calls, instructions and allocations in place of time, of these sides.
    counted: &'static [Implementation],
    /// In place of the others' rounds: what takes long, and measures in several parts.
    rounds: Option<usize>,
}

impl Part {
    /// The values that it takes of one of its case's axes.
    #[cfg(test)]
    pub(super) fn values_of(&self, case: &Case, parameter: Parameter) -> &'static [usize] {
        let mut values = self.values.iter();
        if let Some((_, values)) = values.find(|(it, _)| *it == parameter) {
            return values;
        }
        let mut axes = case.axes.iter();
        let axis = axes.find(|axis| axis.parameter == parameter);
        axis.map_or(&[], |axis| axis.values)
    }
}

const fn part(case: &'static str, values: &'static [(Parameter, &'static [usize])]) -> Part {
    Part {
        name: case,
        case,
        values,
        counted: &[],
        rounds: None,
    }
}

const fn counted(
    name: &'static str,
    case: &'static str,
    values: &'static [(Parameter, &'static [usize])],
) -> Part {
    Part {
        name,
        case,
        values,
        counted: &[Implementation::RawEpoll, KEYS, OWNED],
        rounds: None,
    }
}

const FIVE: &[(Parameter, &[usize])] = &[(Parameter::Blocking, &[5])];

const BLOCKING: [Part; 7] = [
    part("blocking", &[]),
    part("blocking-lock", FIVE),
    part("blocking-file", FIVE),
    part("blocking-compute", FIVE),
    part("waits-for-next", &[]),
    part("bystanders", &[]),
    part("together", &[]),
];

const SERVERS: [Part; 4] = [
    part("http", &[]),
    part(
        "echo",
        &[
            (Parameter::Connections, &[100]),
            (Parameter::Work, &[0]),
            (Parameter::Threads, &[16, 64]),
        ],
    ),
    part("echo-one", &[(Parameter::Connections, &[100])]),
    part("latency", &[(Parameter::Load, &[50])]),
];

const BATCHES: &[(Parameter, &[usize])] = &[(Parameter::Batch, &[1, 4, 64])];

const READINESS: [Part; 3] = [
    part("one-shot", BATCHES),
    part("edge", BATCHES),
    part("level", BATCHES),
];

const FILES: [Part; 1] = [part("files-http", &[])];

const GOALS: [Part; 7] = [
    part("saturated", &[(Parameter::Threads, &[1, 2])]),
    part("churn", &[]),
    part("post", &[]),
    Part {
        rounds: Some(1),
        ..part("accept", &[])
    },
    part("idle", &[(Parameter::Idle, &[10, 10_000])]),
    counted(
        "one-shot-counted",
        "one-shot",
        &[(Parameter::Batch, &[1, 64])],
    ),
    counted("edge-counted", "edge", &[(Parameter::Batch, &[64])]),
];

/// How much is measured, and where it is kept.
#[derive(clap::Args)]
pub(crate) struct Extent {
    /// Only these sections [default: all].
    #[arg(long, value_name = "NAME")]
    pub(crate) section: Vec<Section>,
    /// Rounds, of which the median counts.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// How long each round takes, where a client sets the pace.
    #[arg(long, default_value_t = 400)]
    milliseconds: usize,
    /// Measure again what was measured at this commit, too.
    #[arg(long)]
    again: bool,
    /// Where results are kept.
    #[arg(long, value_name = "DIR", default_value = "target/readme")]
    pub(crate) results: std::path::PathBuf,
}

impl Extent {
    pub(crate) fn sections(&self) -> &[Section] {
        match &*self.section {
            [] => &Section::ALL,
            some => some,
        }
    }

    /// Measure what is not there, and keep it.
    pub(crate) fn measure(&self) -> io::Result<()> {
        let here = Environment::now(false, self.rounds);
        for section in self.sections() {
            let begin = Instant::now();
            for part in section.parts() {
                let directory = self.results.join(part.name);
                let is_there = Report::read(&directory).is_ok_and(|it| here.is_like(&it.run));
                if is_there && !self.again {
                    eprintln!("{} is there, of this commit", part.name);
                } else {
                    self.measure_part(part, &directory, &here)?;
                }
            }
            let time = begin.elapsed().as_secs();
            eprintln!("\nsection {}: {time} s", section.name());
        }
        Ok(())
    }

    fn measure_part(&self, part: &Part, directory: &Path, here: &Environment) -> io::Result<()> {
        let is_counted = !part.counted.is_empty();
        if let (true, Some(tool)) = (is_counted, count::missing_tool()) {
            eprintln!("{} is left out: it needs {tool}", part.name);
            return Ok(());
        }
        let plan = Plan {
            effort: Effort {
                rounds: part.rounds.unwrap_or(self.rounds),
                notifications: 50 * self.milliseconds,
                milliseconds: self.milliseconds,
            },
            only_count: is_counted,
            only_time: !is_counted,
            quick: false,
            values: part
                .values
                .iter()
                .map(|&(parameter, values)| (parameter, values.to_vec()))
                .collect(),
            only: part.counted.iter().map(Implementation::to_string).collect(),
            is_exact: true,
        };
        let environment = here.before_run();
        let mut rows = Vec::new();
        for case in cases::named(&[part.case.to_owned()])? {
            output::line(format_args!("\n{}: {}", case.name, case.about));
            plan.run(case, |setting, found| {
                row::print_table(case, setting, &found);
                rows.extend(found);
            })?;
        }
        fs::create_dir_all(directory)?;
        // The rows come last: what is not complete is not there.
        report::write_run(directory, &environment)?;
        report::write_rows(directory, &rows)
    }
}
