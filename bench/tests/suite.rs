//! Every case runs, with small values, and says what it found.
#![cfg(all(target_os = "linux", not(kqueue_stand_in)))]

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

#[test]
fn every_case_measures_ours_and_theirs_and_reports_it() {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("report");
    let small = [
        "--quick",
        "--timed",
        "--rounds=1",
        "--batch=4",
        "--threads=2",
        "--connections=8",
        "--idle=100",
        "--deadlines=100",
        "--processors=1",
    ];
    let report = directory.to_str().expect("a path");
    let rows = run(&[&small[..], &["--milliseconds=60", "--report", report]].concat());
    let cases = cases();
    assert!(!cases.is_empty());
    assert_tells_of_the_run(&directory);
    for case in cases {
        // Their handlers say nothing: in so short a time they may answer nobody.
        let may_be_silent = |row: &Value| case.starts_with("blocking") && row["impl"] == "tokio";
        let rows = rows.iter().filter(|row| row["case"] == *case);
        let mut rows: Vec<_> = rows.cloned().collect();
        let is_silent = |row: &Value| row["requests_per_second"] == 0.0 && !may_be_silent(row);
        if rows.iter().any(is_silent) {
            // Beside other work that time can pass without an answer.
            rows = run(&[&small[..], &["--milliseconds=3000", &case]].concat());
        }
        let is_ours = |row: &&Value| {
            let name = row["impl"].as_str().expect("a name");
            name.starts_with("socknotify") || name == "wheel"
        };
        let ours = rows.iter().filter(is_ours).count();
        assert!(ours > 0 && rows.len() > ours, "{case}: {rows:?}");
        for row in &rows {
            if may_be_silent(row) {
                assert!(row["requests_per_second"].is_f64(), "{row}");
                continue;
            }
            if case == "memory" {
                assert!(row["kernel_bytes_per_registration"].is_f64(), "{row}");
                continue;
            }
            let time = [
                "ns_per_notification",
                "requests_per_second",
                "latency_longest_us",
            ];
            assert!(is_positive(row, &time), "{row}");
            if row["latency_longest_us"].is_f64() {
                continue;
            }
            // Threads that wake each other are timed by the clock alone.
            let cpu = ["cpu_ns_per_notification", "server_cpu_us_per_request"];
            assert!(case == "post" || is_positive(row, &cpu), "{row}");
            if case == "blocking-compute" {
                assert!(is_positive(row, &["computing_per_place"]), "{row}");
            }
            if case == "latency" || case == "blocking" {
                let quantiles = ["latency_p50_us", "latency_p99_us", "latency_p999_us"];
                let [p50, p99, p999] = quantiles.map(|it| row[it].as_f64());
                assert!(p50 > Some(0.0) && p50 <= p99 && p99 <= p999, "{row}");
            }
        }
    }
}

#[test]
fn readme_measures_a_section_writes_what_it_found_and_keeps_it() {
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join("documents");
    let _ = std::fs::remove_dir_all(&root);
    std::fs::create_dir_all(root.join("bench")).expect("a directory");
    for name in ["README.md", "bench/README.md"] {
        let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name);
        std::fs::copy(document, root.join(name)).expect("a copy");
    }
    let results = root.join("results");
    let [root_name, results_name] = [&root, &results].map(|it| it.to_str().expect("a path"));
    let readme = |arguments: &[&str]| {
        let given = ["readme", "--root", root_name, "--results", results_name];
        let output = suite(&[&given, arguments].concat()).output();
        let output = output.expect("it starts");
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.success(), errors)
    };
    let measure = ["--section=blocking", "--rounds=1", "--milliseconds=40"];
    let (is_done, errors) = readme(&measure);
    assert!(is_done, "{errors}");
    let text = std::fs::read_to_string(root.join("README.md")).expect("text");
    assert!(text.contains("full, rounds: 1;"), "{text}");
    for theme in ["light", "dark"] {
        let name = format!("docs/pictures/blocking-{theme}.svg");
        assert!(text.contains(&name));
        let picture = std::fs::read_to_string(root.join(name)).expect("a picture");
        assert!(picture.ends_with("</svg>\n"));
    }
    assert_eq!(readme(&["--check"]), (true, String::new()));

    // It is not measured again, and the same comes of it.
    let (is_done, errors) = readme(&measure);
    assert!(
        is_done && errors.contains("blocking-file is there"),
        "{errors}"
    );
    assert_eq!(
        std::fs::read_to_string(root.join("README.md")).expect("text"),
        text
    );

    // From reports of its parts: the same.
    let parts = std::fs::read_dir(&results).expect("the results");
    let parts = parts.map(|part| part.expect("a part").path().display().to_string());
    let parts: Vec<_> = parts.collect();
    let mut report: Vec<_> = parts.iter().flat_map(|part| ["--report", part]).collect();
    let (is_done, errors) = readme(&report);
    report.push("--check");
    assert!(is_done, "{errors}");
    let (is_same, errors) = readme(&report);
    assert!(is_same, "{errors}");
    let text = std::fs::read_to_string(root.join("README.md")).expect("text");
    std::fs::write(root.join("README.md"), text.replace("| 1.00 ", "| 1.01 ")).expect("written");
    let (is_same, errors) = readme(&report);
    assert!(!is_same && errors.contains("| 1.01 "), "{errors}");
}

#[test]
fn the_documents_have_tables_as_a_report_gives_them() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let output = suite(&["readme", "--check", "--root"]).arg(root).output();
    let output = output.expect("it starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
}

/// When, where and how it was made.
fn assert_tells_of_the_run(directory: &Path) {
    let text = std::fs::read_to_string(directory.join("run.json")).expect("the run");
    let run: Value = serde_json::from_str(&text).expect("JSON");
    for name in [
        "date",
        "commit",
        "processor",
        "system",
        "command",
        "effort",
        "busy_processors_before",
    ] {
        assert!(run[name].is_string(), "{name}: {run}");
    }
    let rows = std::fs::read_to_string(directory.join("rows.json")).expect("the rows");
    assert!(rows.lines().count() > 10);
}

#[test]
fn ready_means_three_cases_and_only_for_some_implementations() {
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
        for net in ["net_ns_per_notification", "net_cpu_ns_per_notification"] {
            assert_eq!(is_bare, row[net].is_null(), "{row}");
        }
        assert_eq!(row["batch"], 2);
    }
}

#[test]
fn one_shot_reports_both_orders_and_the_spread_of_cpu_time() {
    let arguments = ["one-shot", "--quick", "--timed", "--rounds=1", "--batch=1"];
    let rows = run(&arguments);
    let implementations = |order: &str| -> Vec<_> {
        let rows = rows.iter().filter(|row| row["order"] == order);
        rows.map(|row| row["impl"].as_str()).collect()
    };
    let written_armed = implementations("written-armed");
    assert!(written_armed.contains(&Some("raw epoll")));
    assert_eq!(written_armed, implementations("armed-written"));
    for row in rows.iter().filter(|row| row["ratio"].is_f64()) {
        let median = &row["net_cpu_ns_per_notification"];
        let quartiles = &row["net_cpu_ns_per_notification_spread"];
        let [lower, median, upper] = [&quartiles[0], median, &quartiles[1]].map(Value::as_f64);
        assert!(lower <= median && median <= upper, "{row}");
    }

    let rows = run(&[&arguments[..], &["--order=armed-written"]].concat());
    assert!(!rows.is_empty());
    assert!(rows.iter().all(|row| row["order"] == "armed-written"));
}

#[test]
fn readers_may_stop_reading() {
    for arguments in [
        &["list"] as &[_],
        &["post", "--quick", "--timed", "--rounds=1", "--processors=1"],
    ] {
        let mut suite = suite(arguments);
        let suite = suite.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut suite = suite.spawn().expect("it starts");
        drop(suite.stdout.take());
        let output = suite.wait_with_output().expect("it ends");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && errors.is_empty(), "{errors}");
    }
}

#[test]
fn a_case_that_does_not_exist_is_an_error() {
    let output = suite(&["no-such-case"]).output().expect("it starts");
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("no-such-case"));
}

/// Whether the row has one of these figures, and that is more than nothing.
fn is_positive(row: &Value, figures: &[&str]) -> bool {
    let mut found = figures.iter().filter_map(|&figure| row[figure].as_f64());
    found.any(|value| value > 0.0)
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
