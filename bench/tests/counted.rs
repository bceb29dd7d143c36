//! What does not depend on a quiet machine: system calls, instructions, allocations, memory.
//!
//! The suite counts, optimised as people run it; here are the bounds. They lie a little above what there
//! is, because compilers and processors differ, and are to be lowered when there is less.
#![cfg(all(target_os = "linux", not(kqueue_stand_in)))]

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use serde_json::Value;

/// What a side may cost.
struct Bounds {
    side: &'static str,
    /// Sockets are written to, then armed and waited for in one call.
    data_first: Costs,
    /// Sockets are armed by one call, written to, and waited for by another.
    armed_first: Costs,
}

/// What one-shot notifications may cost, all but reading and writing.
struct Costs {
    /// System calls to arm 64 sockets again and to take their 64 notifications.
    system_calls_of_64: f64,
    /// Instructions for each of 64 notifications.
    instructions_of_64: f64,
    /// Instructions for a single one, which is the cost of a call; of two if armed, then written.
    instructions_of_1: f64,
}

const BOUNDS: [Bounds; 3] = [
    Bounds {
        side: "keys",
        data_first: Costs {
            // An `EPOLL_CTL_MOD` for each, and an `epoll_wait`.
            system_calls_of_64: 66.0,
            // 229 and 720 are counted.
            instructions_of_64: 245.0,
            instructions_of_1: 750.0,
        },
        armed_first: Costs {
            system_calls_of_64: 66.0,
            // 238 and 915.
            instructions_of_64: 255.0,
            instructions_of_1: 950.0,
        },
    },
    Bounds {
        side: "owned",
        data_first: Costs {
            // The room was full before: so the kernel is asked, and reports all. With more room, it is a readiness check,
            // and an `epoll_wait` in one call of eight.
            system_calls_of_64: 1.1,
            // 565 and 1517.
            instructions_of_64: 585.0,
            instructions_of_1: 1570.0,
        },
        armed_first: Costs {
            // The call that arms checks, and ends in an `epoll_wait`, too. A server arms and waits in one call.
            system_calls_of_64: 3.1,
            // 606 and 2233.
            instructions_of_64: 630.0,
            instructions_of_1: 2300.0,
        },
    },
    Bounds {
        side: "drained",
        data_first: Costs {
            // A short read of a Unix stream does not show that it is drained: as above. That of a TCP stream does, and
            // there is no check.
            system_calls_of_64: 1.1,
            instructions_of_64: 592.0,
            instructions_of_1: 1580.0,
        },
        armed_first: Costs {
            system_calls_of_64: 3.1,
            instructions_of_64: 637.0,
            instructions_of_1: 2310.0,
        },
    },
];

/// Bytes of the process for each idle registration.
const BYTES: [(&str, f64); 2] = [("keys", 64.0), ("owned", 195.0)];

#[test]
#[ignore = "builds an optimised bench: .ci/timed"]
fn a_one_shot_notification_is_few_system_calls_and_instructions() {
    for bounds in &BOUNDS {
        let orders = [
            ("one-shot, data first", &bounds.data_first),
            ("one-shot, armed first", &bounds.armed_first),
        ];
        for (case, costs) in orders {
            let of = |batch| {
                let rows = rows(case).into_iter();
                rows.filter(move |row| row["side"] == bounds.side && row["batch"] == batch)
            };
            check(of(64), "syscalls", costs.system_calls_of_64);
            check(of(64), "instructions", costs.instructions_of_64);
            check(of(1), "instructions", costs.instructions_of_1);
        }
    }
}

/// One `epoll_wait`, and the identity of every 60th notification.
#[test]
#[ignore = "builds an optimised bench: .ci/timed"]
fn levels_that_are_ready_again_are_one_system_call() {
    for (batch, at_most) in [(1, 1.1), (64, 2.1)] {
        let rows = rows("level").into_iter();
        let rows = rows.filter(|row| row["batch"] == batch);
        check(rows, "syscalls", at_most);
    }
}

#[test]
#[ignore = "builds an optimised bench: .ci/timed"]
fn an_idle_registration_is_few_bytes() {
    for (side, bytes) in BYTES {
        let rows = rows("idle").into_iter();
        let rows = rows.filter(|row| row["side"] == side);
        check(rows, "bytes", bytes);
    }
}

#[test]
#[ignore = "builds an optimised bench: .ci/timed"]
fn nothing_is_allocated_on_the_way() {
    for case in [
        "one-shot, data first",
        "one-shot, armed first",
        "edge",
        "level",
    ] {
        for row in rows(case) {
            assert_eq!(figure(row, "allocations"), 0.0, "{row}");
        }
    }
}

/// At full load a thread goes from one batch to the next, and those without a place stay asleep.
///
/// When threads start and end there are some calls, now more, now fewer: with other work on the machine a thread
/// is interrupted while it holds the lock. What turns cost by themselves shows in every run.
#[test]
#[ignore = "for a machine with nothing else to do: .ci/timed"]
fn many_threads_at_full_load_wake_few_and_allocate_nothing() {
    if !can_count() {
        return;
    }
    let program = build();
    let mut costs = Vec::new();
    for _ in 0..3 {
        costs.clear();
        for row in run(&program, "saturated") {
            // The thread that watches sleeps for a short time again and again. With strace a call that asks and checks takes longer
            // than that: the watcher sees it poll and stops, and is woken at its end. That is three calls.
            let futexes = if row["side"] == "owned" { 3.1 } else { 1.0 };
            for (name, most) in [("futexes", futexes), ("allocations", 0.1)] {
                if figure(&row, name).abs() >= most {
                    costs.push(format!("{name}: {row}"));
                }
            }
        }
        if costs.is_empty() {
            return;
        }
    }
    panic!("{costs:#?}");
}

fn check(rows: impl Iterator<Item = &'static Value>, name: &str, at_most: f64) {
    let mut count = 0;
    for row in rows {
        count += 1;
        let found = figure(row, name);
        println!("{}: {name} {found:.1}, at most {at_most}", row["side"]);
        assert!(found <= at_most, "at most {at_most}: {row}");
    }
    assert!(count > 0 || !can_count(), "{name} was not counted");
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

/// What is counted of this case: one row for each side, at least.
fn rows(case: &str) -> Vec<&'static Value> {
    if !can_count() {
        return Vec::new();
    }
    static ROWS: OnceLock<Vec<Value>> = OnceLock::new();
    let rows = ROWS.get_or_init(|| {
        let program = build();
        let cases = ["one-shot", "edge", "level", "idle"].iter();
        cases.flat_map(|case| run(&program, case)).collect()
    });
    let rows: Vec<_> = rows.iter().filter(|row| row["case"] == case).collect();
    assert!(!rows.is_empty(), "{case} was not counted");
    rows
}

fn run(program: &str, case: &str) -> Vec<Value> {
    let output = Command::new(program)
        .args(["counted", case])
        .stderr(Stdio::inherit())
        .output()
        .expect("the suite starts");
    assert!(output.status.success(), "{case}: {}", output.status);
    let output = String::from_utf8(output.stdout).expect("JSON is text");
    let rows = output.lines().map(serde_json::from_str);
    rows.collect::<Result<_, _>>().expect("lines of JSON")
}

/// The suite, optimised as people run it but for what is not counted; tests are not optimised.
fn build() -> String {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent();
    let target = target.and_then(Path::to_str).expect("a target directory");
    let status = Command::new(env!("CARGO"))
        .args(["build", "-q", "--profile=counted", "--target-dir", target])
        .args(["--package", env!("CARGO_PKG_NAME")])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status()
        .expect("cargo starts");
    assert!(status.success(), "the suite builds");
    format!("{target}/counted/{}", env!("CARGO_PKG_NAME"))
}
