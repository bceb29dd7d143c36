//! When and where a run was made, without which its figures mean little.

use std::fs;
use std::process::Command;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

pub(crate) fn now() -> Value {
    json!({
        "date": output(&["date", "-u", "+%Y-%m-%d %H:%M UTC"]),
        "commit": commit(),
        "processor": processor(),
        "system": system(),
        "busy_processors": busy(),
    })
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
    let count = thread::available_parallelism().map_or(1, usize::from);
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
    // What follows says who built it.
    let release = release.to_string_lossy();
    let release = release.split('-').next().unwrap_or_default();
    format!("{} {release}", name.to_string_lossy())
}

/// How many processors are busy, on average of a second, in which this program sleeps.
fn busy() -> Option<f64> {
    let times = || {
        let text = fs::read_to_string("/proc/uptime").ok()?;
        let (uptime, idle) = text.trim().split_once(' ')?;
        Some((uptime.parse::<f64>().ok()?, idle.parse::<f64>().ok()?))
    };
    let (began, idle) = times()?;
    thread::sleep(Duration::from_secs(1));
    let (ended, idle_then) = times()?;
    let processors = fs::read_to_string("/proc/cpuinfo").ok()?;
    let processors = processors.lines().filter(|it| it.starts_with("processor"));
    let busy = processors.count() as f64 - (idle_then - idle) / (ended - began);
    Some((busy.max(0.0) * 100.0).round() / 100.0)
}
