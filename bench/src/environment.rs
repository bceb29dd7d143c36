//! When and where a run was made, without which its figures mean little.

use std::fs;
use std::process::Command;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

/// With how many processors others keep busy. To find that takes a second, in which this program sleeps.
pub(crate) fn now() -> Value {
    let first = Times::now();
    thread::sleep(Duration::from_secs(1));
    let busy = first.zip(Times::now());
    json!({
        "date": output(&["date", "-u", "+%Y-%m-%d %H:%M UTC"]),
        "commit": commit(),
        "processor": processor(),
        "system": system(),
        "busy_processors": busy.map(|(first, then)| first.busy_until(then)),
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
    // What follows says who built it.
    let release = release.to_string_lossy();
    let release = release.split('-').next().unwrap_or_default();
    format!("{} {release}", name.to_string_lossy())
}

/// What all processors have done since the system was started, in ticks of the clock.
#[derive(Clone, Copy)]
struct Times {
    processors: u32,
    idle: u64,
    all: u64,
}

impl Times {
    fn now() -> Option<Self> {
        Times::from_stat(&fs::read_to_string("/proc/stat").ok()?)
    }

    fn from_stat(text: &str) -> Option<Self> {
        let sum = text.lines().next()?.strip_prefix("cpu ")?;
        // User, nice, system, idle, waiting for a disk, interrupts of two kinds, stolen. Guests are among the first two.
        let times = sum.split_whitespace().take(8).map(|time| time.parse());
        let times: Vec<u64> = times.collect::<Result<_, _>>().ok()?;
        let is_processor = |line: &&str| line.starts_with("cpu") && !line.starts_with("cpu ");
        Some(Times {
            processors: text.lines().filter(is_processor).count().try_into().ok()?,
            idle: times.get(3)? + times.get(4)?,
            all: times.iter().sum(),
        })
    }

    /// How many processors were busy, on average.
    fn busy_until(self, then: Times) -> f64 {
        let idle = then.idle.saturating_sub(self.idle);
        let all = then.all.saturating_sub(self.all);
        if all == 0 {
            return 0.0;
        }
        f64::from(self.processors) * (1.0 - idle as f64 / all as f64).max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_is_what_is_neither_idle_nor_waits_for_a_disk() {
        let text = |sum| format!("cpu  {sum}\ncpu0 1 2 3\ncpu1 1 2 3\nintr 7 8\n");
        let [first, then] = [
            "500 0 100 9000 100 0 0 0 0 0",
            "530 0 110 9140 110 0 5 5 9 0",
        ]
        .map(|sum| Times::from_stat(&text(sum)).expect("it is complete"));
        assert_eq!(first.busy_until(then), 0.5);
        assert_eq!(first.busy_until(first), 0.0);
        assert!(Times::from_stat("cpu  1 2\n").is_none());
        assert!(Times::now().is_some_and(|now| now.processors > 0 && now.idle < now.all));
    }
}
