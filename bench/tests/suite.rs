//! Every case runs, with small values, and says what it found.
#![cfg(target_os = "linux")]

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

#[test]
fn every_case_measures_ours_and_theirs_and_reports_it() {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("report");
    let rows = run(&[
        "--quick",
        "--timed",
        "--rounds=1",
        "--batch=4",
        "--threads=2",
        "--connections=8",
        "--idle=100",
        "--deadlines=100",
        "--processors=1",
        "--report",
        directory.to_str().expect("a path"),
    ]);
    let page = std::fs::read_to_string(directory.join("index.html")).expect("a page");
    let cases = cases();
    assert!(!cases.is_empty());
    for case in cases {
        let rows: Vec<_> = rows.iter().filter(|row| row["case"] == *case).collect();
        let is_ours = |row: &&&Value| {
            let name = row["impl"].as_str().expect("a name");
            name.starts_with("socknotify ") || name == "wheel"
        };
        let ours = rows.iter().filter(is_ours).count();
        assert!(ours > 0 && rows.len() > ours, "{case}: {rows:?}");
        for row in rows {
            let figures = ["ns_per_notification", "requests_per_second"];
            let figure = figures.iter().find_map(|&figure| row[figure].as_f64());
            let is_memory = row["kernel_bytes_per_registration"].is_f64();
            assert!(is_memory || figure.is_some_and(|it| it > 0.0), "{row}");
        }
        let plot = format!("{case}-0.svg");
        assert!(page.contains(&plot), "{plot} is on the page");
        let plot = std::fs::read_to_string(directory.join(plot)).expect("a plot");
        assert!(plot.contains("</svg>"));
    }
}

#[test]
fn ready_stands_for_three_cases_and_only_for_some_implementations() {
    let rows = run(&[
        "ready",
        "--quick",
        "--timed",
        "--rounds=1",
        "--batch=2",
        "--only=raw epoll",
    ]);
    let cases: BTreeSet<_> = rows.iter().map(|row| row["case"].as_str()).collect();
    let expected = ["edge", "level", "one-shot"].map(Some);
    assert_eq!(cases, BTreeSet::from(expected));
    for row in rows {
        let name = row["impl"].as_str().expect("a name");
        let is_bare = name == "reads and writes alone";
        assert!(is_bare || name.contains("raw epoll"), "{row}");
        assert_eq!(is_bare, row["net_ns_per_notification"].is_null(), "{row}");
        assert_eq!(row["batch"], 2);
    }
}

#[test]
fn a_case_that_does_not_exist_is_an_error() {
    let output = suite(&["no-such-case"]).output().expect("it starts");
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("no-such-case"));
}

fn suite(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_socknotify-bench"));
    command.args(arguments);
    command
}

/// The names that `list` prints.
fn cases() -> Vec<String> {
    let output = suite(&["list"]).output().expect("it starts");
    let output = String::from_utf8(output.stdout).expect("text");
    let names = output.lines().filter_map(|it| it.split_whitespace().next());
    names.map(str::to_owned).collect()
}

fn run(arguments: &[&str]) -> Vec<Value> {
    let output = suite(arguments).arg("--json").output().expect("it starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let output = String::from_utf8(output.stdout).expect("JSON is text");
    let rows = output.lines().map(serde_json::from_str);
    rows.collect::<Result<_, _>>().expect("lines of JSON")
}
