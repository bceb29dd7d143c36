//! [`Environment`]: when, where and how a run was made, without which its figures mean little.

use std::fs;
use std::process::Command;

use serde_json::{Value, json};

/// What a report has to say of its run.
pub(crate) struct Environment {
    date: String,
    commit: String,
    processor: String,
    system: String,
    command: String,
    /// Quick or full, and how many rounds.
    effort: String,
    load: String,
}

impl Environment {
    /// Before the run: the load is that of others.
    pub(crate) fn now(is_quick: bool, rounds: usize) -> Self {
        let kind = if is_quick { "quick" } else { "full" };
        Environment {
            date: output(&["date", "-u", "+%Y-%m-%d %H:%M UTC"]),
            commit: commit(),
            processor: processor(),
            system: system(),
            command: command(),
            effort: format!("{kind}, rounds: {rounds}"),
            load: load(),
        }
    }

    /// What it is called, and what it is.
    pub(crate) fn entries(&self) -> [(&'static str, &str); 7] {
        [
            ("date", &self.date),
            ("commit", &self.commit),
            ("processor", &self.processor),
            ("system", &self.system),
            ("command", &self.command),
            ("effort", &self.effort),
            ("load average before", &self.load),
        ]
    }

    /// Whether what a run has found still stands: it is of this commit and machine, and of as many rounds.
    pub(crate) fn is_like(&self, run: &Value) -> bool {
        let parts = [
            ("commit", &self.commit),
            ("processor", &self.processor),
            ("system", &self.system),
            ("effort", &self.effort),
        ];
        parts.iter().all(|&(name, part)| run[name] == **part)
    }

    pub(crate) fn json(&self) -> Value {
        let entries = self.entries().into_iter();
        entries
            .map(|(name, value)| (name.replace(' ', "_"), json!(value)))
            .collect()
    }
}

/// The command line, without the directory that the program is in.
fn command() -> String {
    let mut words: Vec<_> = std::env::args().collect();
    if let Some(program) = words.first_mut() {
        *program = env!("CARGO_PKG_NAME").to_owned();
    }
    words.join(" ")
}

const UNKNOWN: &str = "unknown";

/// What a command prints.
fn output(command: &[&str]) -> String {
    let output = Command::new(command[0]).args(&command[1..]).output();
    let output = output.ok().filter(|output| output.status.success());
    let text = output.and_then(|output| String::from_utf8(output.stdout).ok());
    text.map_or(UNKNOWN.to_owned(), |text| text.trim().to_owned())
}

fn commit() -> String {
    let commit = output(&["git", "rev-parse", "--short", "HEAD"]);
    match &*output(&["git", "status", "--porcelain", "--untracked-files=no"]) {
        "" | UNKNOWN => commit,
        _ => format!("{commit}, with changes"),
    }
}

fn processor() -> String {
    let count = std::thread::available_parallelism().map_or(1, usize::from);
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .map_or(UNKNOWN, |rest| rest.trim_start_matches([' ', '\t', ':']));
    format!("{count} × {name}")
}

fn system() -> String {
    let system = rustix::system::uname();
    let (name, release) = (system.sysname(), system.release());
    format!("{} {}", name.to_string_lossy(), release.to_string_lossy())
}

/// Of the last one, five and fifteen minutes.
fn load() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let numbers: Vec<_> = text.split(' ').take(3).collect();
    numbers.join(", ")
}
