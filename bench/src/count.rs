//! What can be counted and does not depend on a quiet machine: system calls, instructions,
//! allocations.
//!
//! The program runs itself, twice: with some turns and with more. The difference is what turns cost,
//! without start and end. It runs [on one processor](crate::processors::on_each), so that it does not depend on
//! chance, nor on the tools, who comes to a lock when; and its tracer runs there too, because the two take turns.

use std::collections::BTreeMap;
use std::io;
use std::process::Command;

use crate::allocator;
use crate::case::{Case, Effort, Parameter, Setting};
use crate::figure::{Figure, Sample};
use crate::implementation::Implementation;
use crate::output;

/// How many turns of the first run: what happens every so many turns falls into both alike.
const FEW: usize = 64;

/// How many more turns the second run has: enough for what differs from one start to another not to
/// count. With several threads that is more.
fn more(setting: &Setting) -> usize {
    let has_threads = setting.iter().any(|(it, _)| it == Parameter::Threads);
    let notifications = if has_threads { 16_384 } else { 4_096 };
    (notifications / setting.get(Parameter::Batch)).next_multiple_of(FEW)
}

/// One turn's part of what `count` finds: `None` where the case does not apply.
pub(crate) fn per_turn(
    case: &Case,
    implementation: Implementation,
    setting: &Setting,
) -> io::Result<Option<Sample>> {
    let more = more(setting);
    let totals = |turns| totals(case, implementation, setting, turns);
    let (Some(few), Some(many)) = (totals(FEW)?, totals(FEW + more)?) else {
        return Ok(None);
    };
    let turns = more as f64;
    let mut sample = Sample::new();
    for (figure, total) in many {
        let each = match figure {
            Figure::Instructions => turns * setting.get(Parameter::Batch) as f64,
            _ => turns,
        };
        let before = few.get(&figure).copied().unwrap_or_default();
        sample.insert(figure, (total - before) / each);
    }
    Ok(Some(sample))
}

/// A tool that counting needs, and that is not installed.
pub(crate) fn missing_tool() -> Option<&'static str> {
    let is_missing = |tool: &&str| {
        let outcome = Command::new(tool).arg("--version").output();
        outcome.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
    };
    ["strace", "valgrind"].into_iter().find(is_missing)
}

/// Take off what the case does by itself. It allocates nothing.
pub(crate) fn take_off(bare: &Sample, sample: &mut Sample) {
    for (figure, value) in sample {
        *value -= bare.get(figure).copied().unwrap_or_default();
    }
}

fn totals(
    case: &Case,
    implementation: Implementation,
    setting: &Setting,
    turns: usize,
) -> io::Result<Option<Sample>> {
    let program = std::env::current_exe()?;
    let run = |tool: &[&str]| -> io::Result<(String, String)> {
        let output = Command::new(tool[0])
            .args(&tool[1..])
            .arg(&program)
            .args(["turns", case.name, &implementation.to_string()])
            .args([&setting.to_string(), &turns.to_string()])
            .output()
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", tool[0])))?;
        let [stdout, stderr] =
            [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        match output.status.success() {
            true => Ok((stdout, stderr)),
            false => Err(io::Error::other(format!("{tool:?}: {stderr}"))),
        }
    };

    let (allocations, calls) = run(&["strace", "-f", "-c", "-U", "name,calls"])?;
    let Ok(allocations) = allocations.trim().parse::<f64>() else {
        return Ok(None);
    };
    let calls = calls_by_name(&calls);
    let (_, instructions) = run(&[
        "valgrind",
        "--tool=callgrind",
        "--callgrind-out-file=/dev/null",
    ])?;
    Ok(Some(Sample::from([
        (Figure::SystemCalls, calls["total"]),
        (Figure::Futexes, calls.get("futex").copied().unwrap_or(0.0)),
        (Figure::Allocations, allocations),
        (Figure::Instructions, collected(&instructions)?),
    ])))
}

/// Out of the lines of `strace -c -U name,calls`.
fn calls_by_name(summary: &str) -> BTreeMap<String, f64> {
    let lines = summary.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let name = words.next()?;
        Some((name.to_owned(), words.next()?.parse().ok()?))
    });
    lines.collect()
}

/// Out of the last lines of callgrind: `Collected : 123`.
fn collected(output: &str) -> io::Result<f64> {
    let mut lines = output
        .lines()
        .filter_map(|line| line.split_once("Collected :"));
    let count = lines
        .next()
        .and_then(|(_, count)| count.trim().parse().ok());
    count.ok_or_else(|| io::Error::other(format!("callgrind says nothing: {output}")))
}

/// Do these turns, and print how often something was allocated meanwhile: the process that is counted.
pub(crate) fn run_turns(
    case: &Case,
    implementation: Implementation,
    setting: &Setting,
    turns: usize,
) -> io::Result<()> {
    let effort = Effort {
        rounds: 1,
        notifications: 0,
        milliseconds: 0,
    };
    let mut trial = (case.prepare)(setting, effort)?;
    let before = allocator::times();
    if trial.turns(implementation, turns)? {
        output::line(format_args!("{}", allocator::times() - before));
    }
    Ok(())
}
