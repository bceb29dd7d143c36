//! Every question is measured, with small values, and the document has what was found.
#![cfg(all(target_os = "linux", not(kqueue_stand_in)))]

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

#[test]
fn handlers_that_block_are_measured() {
    for (case, side, sides) in [
        ("none blocks", "", 5),
        ("each sleeps 0.3 ms", "tokio", 2),
        ("5 % read", "serve", 2),
    ] {
        let rows = measured("blocking", &["--case", case, "--side", side], "rate_per_s");
        assert_eq!(rows.len(), sides);
        assert!(
            rows.iter().all(|row| row["cpu_us"][1].as_f64() > Some(0.0)),
            "{rows:?}"
        );
    }
    let rows = measured("blocking", &["--case=10 sleep"], "longest_us");
    assert_eq!(rows.len(), 5);
    // Whose workers all sleep, and say nothing.
    let tokio = rows
        .iter()
        .find(|row| row["side"] == "tokio")
        .expect("a row");
    assert!(tokio["longest_us"][1].as_f64() > Some(50_000.0), "{tokio}");
}

#[test]
fn servers_of_answers_and_of_files_are_measured() {
    if !can_run("wrk") {
        return;
    }
    let rows = measured("servers", &["--case=100 connections, shared"], "rate_per_s");
    let sides: Vec<_> = rows.iter().map(|row| row["side"].as_str()).collect();
    assert_eq!(sides, ["tokio", "raw epoll", "keys", "owned"].map(Some));
    for row in &rows {
        let [p50, p99] = ["p50_us", "p99_us"].map(|it| row[it][1].as_f64());
        assert!(
            p50 > Some(0.0) && p50 <= p99 && row["cpu_us"][1].as_f64() > Some(0.0),
            "{row}"
        );
    }
    let files = ["--case=4 KiB, cached", "--side=o"];
    assert_eq!(measured("files", &files, "rate_per_s").len(), 3);
}

#[test]
fn notifications_and_accepting_are_measured() {
    for (case, sides) in [
        ("one-shot, armed first, 4", ["raw epoll", "keys", "owned"]),
        ("edge, 64", ["raw epoll", "keys", "mio"]),
        ("level, 1 ready", ["raw epoll", "keys", "keys"]),
    ] {
        let rows = measured("notifications", &["--case", case], "cpu_ns");
        for side in sides {
            let row = rows.iter().find(|row| row["side"] == side).expect(side);
            assert!(row["net_cpu_ns"].is_array(), "{row}");
        }
        let bare = &rows[0];
        assert!(
            bare["side"] == "reads and writes alone" && bare["net_cpu_ns"].is_null(),
            "{bare}"
        );
    }
    let rows = measured("accept", &["--case=2 threads", "--side=o"], "cpu_ns");
    let sides: Vec<_> = rows.iter().map(|row| row["side"].as_str()).collect();
    assert_eq!(sides, ["a loop", "owned", "tokio"].map(Some));
}

#[test]
fn the_document_has_the_tables_of_the_figures() {
    if can_run("python3") {
        let tables = Path::new(env!("CARGO_MANIFEST_DIR")).join("tables");
        let output = Command::new(tables)
            .arg("--check")
            .output()
            .expect("it starts");
        assert!(output.status.success(), "{output:?}");
    }
}

/// The rows of a question, of which each has this figure, with its quartiles in order. The line before them says when and
/// where.
fn measured(question: &str, arguments: &[&str], figure: &str) -> Vec<Value> {
    // wrk measures for a second at least.
    let rounds = if figure == "rate_per_s" { 1 } else { 2 };
    let rounds = format!("--rounds={rounds}");
    let small = [question, &rounds, "--milliseconds=100"];
    let output = suite(&[&small[..], arguments].concat());
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let output = String::from_utf8(output.stdout).expect("JSON is text");
    let lines = output.lines().map(serde_json::from_str::<Value>);
    let mut rows: Vec<_> = lines.collect::<Result<_, _>>().expect("lines of JSON");
    let run = rows.remove(0);
    for name in ["date", "commit", "processor", "system"] {
        assert!(run[name].is_string(), "{name}: {run}");
    }
    assert!(!rows.is_empty(), "{errors}");
    for row in &rows {
        let [lower, median, upper] = [0, 1, 2].map(|index| row[figure][index].as_f64());
        assert!(
            lower.is_some() && lower <= median && median <= upper,
            "{row}"
        );
        // In so short a time a server whose handlers say nothing may answer nobody.
        assert!(median > Some(0.0) || question == "blocking", "{row}");
    }
    rows
}

/// Whether there is this program. Without it there is nothing to check, but where CI runs it has to be there.
fn can_run(program: &str) -> bool {
    let is_there = Command::new(program).arg("--version").output().is_ok();
    assert!(
        is_there || std::env::var_os("CI").is_none(),
        "{program} is missing"
    );
    is_there
}

fn suite(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_socknotify-bench"));
    command.args(arguments).output().expect("it starts")
}
