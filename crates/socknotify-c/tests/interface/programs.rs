//! Programs in C and C++: the examples, and the ones that get everything wrong.

use std::path::Path;
use std::process::Command;

use crate::install::{EXAMPLES, Language, Link, SOURCES, compile, has, run, with_library};

/// Compile a program, run it with either library, and return what it prints.
fn runs(directory: &str, file: &str, language: Language) -> String {
    let source = Path::new(directory).join(file);
    let with_static = run(&mut Command::new(compile(
        &source,
        language,
        Link::Static,
        "run",
    )));
    let with_shared = run(&mut with_library(&compile(
        &source,
        language,
        Link::Shared,
        "run",
    )));
    assert_eq!(with_static, with_shared);
    with_shared
}

/// Run a program under memcheck: no error, no leak.
fn is_clean(directory: &str, file: &str, language: Language) {
    if !has("valgrind") {
        return;
    }
    let program = compile(
        &Path::new(directory).join(file),
        language,
        Link::Shared,
        "memcheck",
    );
    run(with_library(Path::new("valgrind"))
        .args([
            "-q",
            "--error-exitcode=1",
            "--leak-check=full",
            "--fair-sched=try",
        ])
        .arg(program));
}

#[test]
fn poll_receives_everything_from_one_client() {
    assert_eq!(
        runs(EXAMPLES, "poll.c", Language::C99),
        "received 40 bytes\n"
    );
}

#[test]
fn datagrams_receives_every_datagram() {
    let said = runs(EXAMPLES, "datagrams.c", Language::C99);
    assert_eq!(said, "received 10 datagrams\n");
}

#[test]
fn server_receives_everything_from_a_hundred_clients() {
    let said = runs(EXAMPLES, "server.c", Language::C99);
    assert_eq!(said, "received 4000 bytes from 100 clients\n");
}

#[test]
fn scenarios_runs_all_three_with_the_win32_names() {
    assert_eq!(
        runs(EXAMPLES, "scenarios.cpp", Language::Cpp11),
        "poll replacement: 40 bytes\n\
         edge-triggered: 10 datagrams\n\
         multi-threaded: 4000 bytes from 100 clients\n"
    );
}

#[test]
fn memcheck_finds_nothing_in_poll() {
    is_clean(EXAMPLES, "poll.c", Language::C99);
}

#[test]
fn memcheck_finds_nothing_in_datagrams() {
    is_clean(EXAMPLES, "datagrams.c", Language::C99);
}

#[test]
fn memcheck_finds_nothing_in_server() {
    is_clean(EXAMPLES, "server.c", Language::C99);
}

#[test]
fn memcheck_finds_nothing_in_scenarios() {
    is_clean(EXAMPLES, "scenarios.cpp", Language::Cpp11);
}

#[test]
fn wrong_arguments_get_an_error_code() {
    runs(SOURCES, "arguments.c", Language::C11);
}

#[test]
fn memcheck_finds_nothing_when_arguments_are_wrong() {
    is_clean(SOURCES, "arguments.c", Language::C11);
}

#[test]
fn ports_are_closed_under_threads_and_blocking_ones_lend_their_place() {
    runs(SOURCES, "threads.c", Language::C11);
}

#[test]
fn a_program_can_ask_why_an_entry_failed_and_what_a_port_looks_like() {
    runs(SOURCES, "state.c", Language::C11);
}

#[test]
fn memcheck_finds_nothing_in_state() {
    is_clean(SOURCES, "state.c", Language::C11);
}

#[test]
fn files_are_read_and_written_with_both_spellings() {
    runs(SOURCES, "files.c", Language::C11);
}

#[test]
fn memcheck_finds_nothing_in_files() {
    is_clean(SOURCES, "files.c", Language::C11);
}
