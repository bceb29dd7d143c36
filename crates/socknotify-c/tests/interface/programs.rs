//! Programs in C and C++: the examples, and the ones that get everything wrong.

use std::path::Path;
use std::process::Command;

use crate::install::{EXAMPLES, Language, Link, MANUAL, SOURCES, compile, run, with_library};

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

/// Under memcheck: no error, no leak, and no system call that it does not know.
#[test]
#[ignore = "takes a minute; `.ci/memory` has it"]
fn memcheck_finds_nothing() {
    for (directory, file, language, leaks) in [
        (EXAMPLES, "poll.c", Language::C99, "full"),
        (EXAMPLES, "datagrams.c", Language::C99, "full"),
        (EXAMPLES, "server.c", Language::C99, "full"),
        (EXAMPLES, "answers.c", Language::C99, "full"),
        (EXAMPLES, "scenarios.cpp", Language::Cpp11, "full"),
        (EXAMPLES, "chat.cpp", Language::Cpp11, "full"),
        (MANUAL, "examples.c", Language::C99, "full"),
        (SOURCES, "owned.c", Language::C11, "full"),
        (SOURCES, "arguments.c", Language::C11, "full"),
        (SOURCES, "state.c", Language::C11, "full"),
        (SOURCES, "descriptors.c", Language::C11, "full"),
        (SOURCES, "files.c", Language::C11, "full"),
        // A thread-local of Rust's that is made by a destructor of a key is never freed.
        (SOURCES, "ending.c", Language::C11, "no"),
    ] {
        let source = Path::new(directory).join(file);
        let output = with_library(Path::new("valgrind"))
            .args(["-q", "--error-exitcode=1", "--fair-sched=try"])
            .arg(format!("--leak-check={leaks}"))
            .arg(compile(&source, language, Link::Shared, "memcheck"))
            .output()
            .expect("valgrind is there");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{file}: {}\n{said}", output.status);
        assert!(!said.contains("unhandled"), "{file}: {said}");
    }
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
fn answers_writes_and_removes_from_other_threads() {
    let said = runs(EXAMPLES, "answers.c", Language::C99);
    assert_eq!(said, "100 clients got 1000 answers, and 100 left at once\n");
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
fn chat_lets_every_client_hear_all_others_of_its_room() {
    assert_eq!(
        runs(EXAMPLES, "chat.cpp", Language::Cpp11),
        "20 clients in 4 rooms heard 1600 lines\n"
    );
}

#[test]
fn a_port_that_owns_connections_does_what_its_header_says() {
    runs(SOURCES, "owned.c", Language::C11);
}

#[test]
fn the_examples_of_the_manual_do_what_it_says() {
    runs(MANUAL, "examples.c", Language::C99);
}

#[test]
fn wrong_arguments_get_an_error_code() {
    runs(SOURCES, "arguments.c", Language::C11);
}

#[test]
fn ports_are_closed_under_threads_and_blocking_ones_lend_their_place() {
    runs(SOURCES, "threads.c", Language::C11);
}

#[test]
fn a_thread_that_ends_or_is_cancelled_leaves_its_place() {
    runs(SOURCES, "ending.c", Language::C11);
}

#[test]
fn in_a_forked_child_every_call_on_its_parents_port_fails() {
    runs(SOURCES, "fork.c", Language::C11);
}

#[test]
fn too_little_memory_for_the_entries_of_a_call_is_an_error() {
    runs(SOURCES, "memory.c", Language::C11);
}

#[test]
fn calls_need_little_stack() {
    let program = compile(
        &Path::new(SOURCES).join("stack.c"),
        Language::C11,
        Link::Shared,
        "run",
    );
    let said = run(with_library(&program).env("LD_BIND_NOW", "1"));
    for line in said.lines() {
        let (call, bytes) = line.split_once(' ').expect("a call and a number");
        let limit = match call {
            // Without optimisation it is more.
            _ if cfg!(debug_assertions) => 20,
            "sn_create_port" | "sn_owned_create" => 8,
            _ => 4,
        };
        let bytes: usize = bytes.parse().expect("a number");
        assert!(bytes <= limit * 1024, "{said}");
    }
    assert_eq!(said.lines().count(), 8);
}

#[test]
fn a_program_can_ask_why_an_entry_failed_and_what_a_port_looks_like() {
    runs(SOURCES, "state.c", Language::C11);
}

#[test]
fn any_descriptor_can_be_watched() {
    runs(SOURCES, "descriptors.c", Language::C11);
}

#[test]
fn files_are_read_and_written_with_both_spellings() {
    runs(SOURCES, "files.c", Language::C11);
}
