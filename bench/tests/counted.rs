//! What does not depend on a quiet machine: system calls, instructions, allocations, memory.
//!
//! The suite counts, optimised as people run it; here are the bounds. They lie a little above what there
//! is, because compilers and processors differ, and are to be lowered when there is less.
#![cfg(target_os = "linux")]

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use serde_json::Value;

/// What an implementation may cost.
struct Bounds {
    implementation: &'static str,
    /// System calls of a turn in which 64 sockets are armed again, and as many notifications taken.
    system_calls: Bound,
    /// Instructions for each of these notifications, all but reading and writing.
    instructions: Bound,
    /// Bytes of the process for each idle registration.
    bytes: Bound,
}

/// What a figure may be, and what it is to become.
struct Bound {
    at_most: f64,
    goal: f64,
}

const BOUNDS: [Bounds; 4] = [
    Bounds {
        implementation: "socknotify epoll",
        // Two; every 256th time one for each socket besides.
        system_calls: bound(2.3, 2.0),
        instructions: bound(480.0, 200.0),
        bytes: bound(64.0, 64.0),
    },
    Bounds {
        implementation: "socknotify epoll, owned",
        // One look; every fourth time epoll is asked besides.
        system_calls: bound(1.3, 2.0),
        instructions: bound(850.0, 200.0),
        bytes: bound(170.0, 64.0),
    },
    Bounds {
        implementation: "socknotify io_uring",
        // What the caller owns is with epoll.
        system_calls: bound(2.3, 2.0),
        instructions: bound(480.0, 200.0),
        bytes: bound(64.0, 64.0),
    },
    Bounds {
        implementation: "socknotify io_uring, owned",
        // One; every 16th time one more, for what is not in the ring.
        system_calls: bound(1.1, 1.0),
        instructions: bound(1050.0, 200.0),
        bytes: bound(170.0, 64.0),
    },
];

const fn bound(at_most: f64, goal: f64) -> Bound {
    Bound { at_most, goal }
}

#[test]
fn arming_64_sockets_and_taking_64_notifications_is_few_system_calls() {
    check("one-shot", "syscalls_per_turn", |it| &it.system_calls);
}

#[test]
fn a_notification_is_few_instructions() {
    check("one-shot", "instructions_per_notification", |it| {
        &it.instructions
    });
}

#[test]
fn an_idle_registration_is_few_bytes() {
    check("memory", "bytes_per_registration", |it| &it.bytes);
}

#[test]
fn nothing_is_allocated_on_the_way() {
    for case in ["one-shot", "edge", "level"] {
        for row in rows(case) {
            assert_eq!(figure(row, "allocations_per_turn"), 0.0, "{row}");
        }
    }
}

/// At full load a thread goes from one batch to the next, and those without a place stay asleep.
#[test]
fn many_threads_at_full_load_wake_nobody_and_allocate_nothing() {
    for row in rows("saturated") {
        assert_eq!(row["threads"], 16);
        for name in ["futex_calls_per_turn", "allocations_per_turn"] {
            // When threads start and end there are some, now more, now fewer.
            assert!(figure(row, name).abs() < 0.1, "{name}: {row}");
        }
    }
}

fn check(case: &str, name: &str, bound: impl Fn(&Bounds) -> &Bound) {
    for row in rows(case) {
        let mut bounds = BOUNDS.iter();
        let bounds = bounds.find(|it| row["impl"] == it.implementation);
        let Bound { at_most, goal } = bound(bounds.expect("bounds for every implementation"));
        let found = figure(row, name);
        println!("{}: {name} {found:.1}, goal {goal}", row["impl"]);
        assert!(found <= *at_most, "at most {at_most}: {row}");
    }
}

fn figure(row: &Value, name: &str) -> f64 {
    let figure = row[name].as_f64();
    figure.unwrap_or_else(|| panic!("{name} was not counted: {row}"))
}

/// Whether there is what counts. Without it there is nothing to check, but where CI runs it has to be there.
fn can_count() -> bool {
    let is_missing = |tool: &&str| Command::new(tool).arg("--version").output().is_err();
    let Some(tool) = ["strace", "valgrind"].into_iter().find(is_missing) else {
        return true;
    };
    assert!(std::env::var_os("CI").is_none(), "{tool} is missing");
    eprintln!("skipped: {tool} is missing");
    false
}

/// What the suite says of our own implementations in this case: one row for each, at least.
fn rows(case: &str) -> Vec<&'static Value> {
    if !can_count() {
        return Vec::new();
    }
    static ROWS: OnceLock<Vec<Value>> = OnceLock::new();
    let rows = ROWS.get_or_init(|| {
        let program = build();
        let runs: [&[&str]; 3] = [
            &["ready", "--counted", "--batch=64"],
            &["saturated", "--counted", "--batch=16", "--threads=16"],
            &["memory", "--quick", "--rounds=1"],
        ];
        runs.iter().flat_map(|it| run(&program, it)).collect()
    });
    let rows: Vec<_> = rows.iter().filter(|row| row["case"] == case).collect();
    assert!(!rows.is_empty(), "{case} was not counted");
    rows
}

fn run(program: &str, arguments: &[&str]) -> Vec<Value> {
    let output = Command::new(program)
        .args(arguments)
        .args(["--json", "--only=socknotify"])
        .stderr(Stdio::inherit())
        .output()
        .expect("the suite starts");
    assert!(output.status.success(), "{arguments:?}: {}", output.status);
    let output = String::from_utf8(output.stdout).expect("JSON is text");
    let rows = output.lines().map(serde_json::from_str);
    rows.collect::<Result<_, _>>().expect("lines of JSON")
}

/// The suite, built as people run it; tests are not optimised.
fn build() -> String {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent();
    let target = target.and_then(Path::to_str).expect("a target directory");
    let status = Command::new(env!("CARGO"))
        .args(["build", "--release", "--quiet", "--target-dir", target])
        .args(["--package", env!("CARGO_PKG_NAME")])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status()
        .expect("cargo starts");
    assert!(status.success(), "the suite builds");
    format!("{target}/release/{}", env!("CARGO_PKG_NAME"))
}
