//! What is measured for the documents: some cases, with few settings, so that it takes some minutes.

use std::io;
use std::path::Path;
use std::time::Instant;

use super::Report;
use super::tables::{KEYS, OWNED};
#[cfg(test)]
use crate::case::Case;
use crate::case::{Effort, Parameter};
use crate::environment::Environment;
use crate::foreign::Library;
use crate::implementation::Implementation;
use crate::output;
use crate::row;
use crate::run::Plan;
use crate::{cases, report};

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
    /// Accepting connections.
    Accepting,
}

impl Section {
    pub(crate) const ALL: [Section; 5] = [
        Section::Blocking,
        Section::Servers,
        Section::Readiness,
        Section::Files,
        Section::Accepting,
    ];

    const fn name(self) -> &'static str {
        match self {
            Section::Blocking => "blocking",
            Section::Servers => "servers",
            Section::Readiness => "readiness",
            Section::Files => "files",
            Section::Accepting => "accepting",
        }
    }

    pub(crate) const fn parts(self) -> &'static [Part] {
        match self {
            Section::Blocking => &BLOCKING,
            Section::Servers => &SERVERS,
            Section::Readiness => &READINESS,
            Section::Files => &FILES,
            Section::Accepting => &ACCEPTING,
        }
    }
}

/// A case, with values of its axes in place of its own.
pub(crate) struct Part {
    /// Of its results.
    pub(crate) name: &'static str,
    pub(crate) case: &'static str,
    values: &'static [(Parameter, &'static [usize])],
    /// Only these sides, unless there are none.
    only: &'static [Implementation],
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
        only: &[],
        rounds: None,
    }
}

const FIVE: &[(Parameter, &[usize])] = &[(Parameter::Blocking, &[5])];

const BLOCKING: [Part; 8] = [
    part("lookup", &[(Parameter::Apart, &[1])]),
    part("blocking", &[]),
    Part {
        rounds: Some(15),
        ..part("burst", &[])
    },
    Part {
        rounds: Some(3),
        ..part("compute", &[(Parameter::Connections, &[4])])
    },
    part("blocking-compute", &[(Parameter::Blocking, &[100])]),
    part("blocking-brief", &[(Parameter::Blocking, &[100])]),
    part("blocking-lock", FIVE),
    part("blocking-file", FIVE),
];

const SERVERS: [Part; 4] = [
    Part {
        only: HTTP,
        // With each server the rate is now one, now another, by half: see bench/README.md.
        rounds: Some(21),
        ..part("http", &[])
    },
    Part {
        only: HTTP,
        rounds: Some(15),
        ..part(
            "latency",
            &[(Parameter::Apart, &[1]), (Parameter::Load, &[50])],
        )
    },
    Part {
        only: ECHO,
        ..part(
            "echo",
            &[
                (Parameter::Connections, &[100]),
                (Parameter::Work, &[0]),
                (Parameter::Threads, &[16]),
            ],
        )
    },
    Part {
        only: ECHO,
        ..part("echo-one", &[(Parameter::Connections, &[100])])
    },
];

const HTTP: &[Implementation] = &[
    Implementation::Tokio,
    Implementation::RawEpollEach,
    KEYS,
    OWNED,
];

const ECHO: &[Implementation] = &[
    Implementation::Tokio,
    Implementation::RawEpollEach,
    KEYS,
    OWNED,
    Implementation::Foreign(Library::Libuv),
    Implementation::Foreign(Library::Libevent),
];

const BATCHES: &[(Parameter, &[usize])] = &[(Parameter::Batch, &[1, 4, 64])];

const READINESS: [Part; 3] = [
    part("one-shot", BATCHES),
    part("edge", &[(Parameter::Batch, &[1, 64])]),
    part("level", &[(Parameter::Batch, &[1, 64])]),
];

const FILES: [Part; 1] = [part("files-http", &[])];

const ACCEPTING: [Part; 1] = [Part {
    rounds: Some(1),
    ..part("accept", &[])
}];

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
    #[arg(long, default_value_t = 300)]
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
                } else if let Err(error) = self.measure_part(part, &directory, &here) {
                    // The others are worth measuring all the same.
                    eprintln!("{}: {error}", part.name);
                }
            }
            let time = begin.elapsed().as_secs();
            eprintln!("\nsection {}: {time} s", section.name());
        }
        Ok(())
    }

    fn measure_part(&self, part: &Part, directory: &Path, here: &Environment) -> io::Result<()> {
        let plan = Plan {
            effort: Effort {
                rounds: part.rounds.unwrap_or(self.rounds),
                notifications: 50 * self.milliseconds,
                milliseconds: self.milliseconds,
            },
            only_count: false,
            only_time: true,
            quick: false,
            values: part
                .values
                .iter()
                .map(|&(parameter, values)| (parameter, values.to_vec()))
                .collect(),
            only: part.only.iter().map(Implementation::to_string).collect(),
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
        report::write(directory, &environment, &rows)
    }
}
