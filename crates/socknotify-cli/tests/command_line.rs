//! The program as a person or a script meets it: its options, its output and its exit codes.

mod support;

use std::io;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use support::started;

const PROGRAM: &str = env!("CARGO_BIN_EXE_socknotify");

const ALL: [&str; 3] = [
    "poll-replacement",
    "edge-triggered-udp",
    "multi-threaded-tcp",
];

fn socknotify(arguments: &[&str]) -> io::Result<Output> {
    started(|| Command::new(PROGRAM).args(arguments).output())
}

/// Runs the program after a command of the shell, such as `ulimit`.
#[cfg(unix)]
fn socknotify_after(shell: &str, arguments: &[&str]) -> io::Result<Output> {
    Command::new("sh")
        .arg("-c")
        .arg(format!(r#"{shell} && exec "$0" "$@""#))
        .arg(PROGRAM)
        .args(arguments)
        .output()
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn objects(output: &Output) -> Vec<Value> {
    stdout(output)
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("no JSON: {line}")))
        .collect()
}

/// Runs the scenarios and checks what has to hold of every report.
fn scenarios(
    names: &[&str],
    clients: u64,
    sends: u64,
    arguments: &[&str],
) -> io::Result<Vec<Value>> {
    let (clients_text, sends_text) = (clients.to_string(), sends.to_string());
    let mut line = vec![
        "scenarios",
        "--json",
        "--clients",
        &clients_text,
        "--sends",
        &sends_text,
    ];
    line.extend(arguments);
    let output = socknotify(&line)?;
    let reports = objects(&output);
    assert_eq!(
        output.status.code(),
        Some(0),
        "{reports:?} {}",
        stderr(&output)
    );
    assert_eq!(stderr(&output), "");
    assert_eq!(reports.len(), names.len());
    for (report, name) in reports.iter().zip(names) {
        let removals = if *name == "edge-triggered-udp" {
            1
        } else {
            clients + 1
        };
        assert_eq!(report["scenario"], *name);
        assert_eq!(report["ok"], true, "{report}");
        assert!(report["backend"].is_string(), "{report}");
        assert_eq!(report["clients"], clients);
        assert_eq!(report["bytes_expected"], clients * sends * 4);
        assert_eq!(report["bytes_received"], clients * sends * 4);
        assert_eq!(report["removals"], removals);
        assert!(
            report["notifications"].as_u64() >= Some(removals),
            "{report}"
        );
        assert!(report["threads"].as_u64() >= Some(1), "{report}");
        assert!(report["max_running"].as_u64() >= Some(1), "{report}");
        assert!(report["seconds"].as_f64() > Some(0.0), "{report}");
    }
    Ok(reports)
}

#[test]
fn all_scenarios_add_up_as_published() -> io::Result<()> {
    let reports = scenarios(&ALL, 100, 10, &[])?;
    assert_eq!(reports[0]["threads"], 1);
    assert_eq!(reports[1]["threads"], 1);
    assert_eq!(reports[2]["threads"], 16);
    Ok(())
}

#[test]
fn each_scenario_can_be_run_alone() -> io::Result<()> {
    for name in ALL {
        scenarios(&[name], 3, 2, &[name])?;
    }
    Ok(())
}

#[test]
fn one_client_one_send_and_one_thread_are_enough() -> io::Result<()> {
    let reports = scenarios(&ALL, 1, 1, &["--threads", "1"])?;
    assert!(reports.iter().all(|report| report["max_running"] == 1));
    Ok(())
}

#[test]
fn odd_numbers_add_up_too() -> io::Result<()> {
    scenarios(&ALL, 37, 13, &["--threads", "5"])?;
    Ok(())
}

#[test]
fn many_clients_on_many_threads_add_up() -> io::Result<()> {
    scenarios(&ALL, 1000, 3, &["--threads", "64"])?;
    Ok(())
}

#[test]
fn no_more_threads_run_than_there_are_places() -> io::Result<()> {
    let arguments = [
        "multi-threaded-tcp",
        "--threads",
        "16",
        "--concurrency",
        "1",
    ];
    let reports = scenarios(&["multi-threaded-tcp"], 100, 10, &arguments)?;
    assert_eq!(reports[0]["max_running"], 1);
    Ok(())
}

#[test]
fn a_backend_can_be_named() -> io::Result<()> {
    for candidate in diagnosis()?["backends"].as_array().into_iter().flatten() {
        let name = candidate["name"].as_str().unwrap_or_default();
        if candidate["available"] == true {
            let reports = scenarios(&ALL, 5, 5, &["--backend", name])?;
            assert!(reports.iter().all(|report| report["backend"] == name));
        }
    }
    Ok(())
}

#[test]
fn people_get_a_verdict_on_each_scenario() -> io::Result<()> {
    let output = socknotify(&["scenarios", "--clients", "4"])?;
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let report = stdout(&output);
    for name in ALL {
        assert!(report.contains(name), "{report}");
    }
    let verdicts = report.lines().filter(|line| line.contains("verdict"));
    assert_eq!(
        verdicts.filter(|line| line.ends_with(" ok")).count(),
        ALL.len()
    );
    Ok(())
}

#[test]
fn an_unknown_backend_is_a_usage_error_that_lists_the_known_ones() -> io::Result<()> {
    let output = socknotify(&["scenarios", "--backend", "carrier-pigeon"])?;
    assert_eq!(output.status.code(), Some(2));
    let known = match () {
        () if cfg!(windows) => "afd",
        () if cfg!(all(target_os = "linux", not(kqueue_stand_in))) => "epoll",
        () => "kqueue",
    };
    assert!(stderr(&output).contains(known), "{}", stderr(&output));
    Ok(())
}

#[test]
fn numbers_out_of_range_are_usage_errors() -> io::Result<()> {
    for option in ["--clients", "--sends", "--threads", "--concurrency"] {
        for value in ["0", "-1", "many"] {
            let output = socknotify(&["scenarios", &format!("{option}={value}")])?;
            assert_eq!(output.status.code(), Some(2), "{option} {value}");
            assert!(stderr(&output).contains(option), "{}", stderr(&output));
        }
    }
    Ok(())
}

#[test]
fn times_are_the_same_numbers_everywhere() -> io::Result<()> {
    for (command, option) in [("serve", "--idle-timeout"), ("serve", "--grace")] {
        for value in [
            "0", "0.0009", "-1", "1000001", "many", "10s", "inf", "NaN", "",
        ] {
            let output = socknotify(&[command, &format!("{option}={value}")])?;
            assert_eq!(output.status.code(), Some(2), "{option} {value}");
            let message = stderr(&output);
            assert!(message.contains(option), "{message}");
            let range = "a number of seconds from 0.001 to 1000000, such as 10 or 0.5";
            assert!(message.contains(range), "{message}");
        }
        // These are numbers; what is wrong with the command line is something else.
        for value in ["0.001", "0.5", "1", "1000000"] {
            let output = socknotify(&[command, option, value, "--threads", "0"])?;
            assert_eq!(output.status.code(), Some(2), "{option} {value}");
            assert!(!stderr(&output).contains(option), "{}", stderr(&output));
        }
    }
    Ok(())
}

/// What the help of a command says of an option.
fn help(command: &str, option: &str) -> io::Result<String> {
    let help = stdout(&socknotify(&[command, "-h"])?);
    let line = help
        .lines()
        .find_map(|line| line.trim().strip_prefix(option))
        .unwrap_or_else(|| panic!("no {option}: {help}"));
    let words: Vec<_> = line.split_whitespace().collect();
    Ok(words.join(" "))
}

#[test]
fn the_same_options_have_the_same_words_and_limits_everywhere() -> io::Result<()> {
    for (option, commands) in [
        ("--concurrency", &["scenarios", "serve"] as &[_]),
        ("--backend", &["scenarios", "serve"]),
        ("--json", &["scenarios", "doctor"]),
    ] {
        let words = help(commands[0], option)?;
        assert!(!words.is_empty());
        for command in commands {
            assert_eq!(help(command, option)?, words, "{command} {option}");
        }
    }
    for option in ["--threads", "--concurrency"] {
        for command in ["scenarios", "serve"] {
            for value in ["0", "10001", "-1", "many"] {
                let output = socknotify(&[command, &format!("{option}={value}")])?;
                assert_eq!(output.status.code(), Some(2), "{command} {option} {value}");
            }
            let output = socknotify(&[command, option, "10001"])?;
            assert!(stderr(&output).contains("1..=10000"), "{}", stderr(&output));
        }
    }
    let output = socknotify(&["scenarios", "--clients", "1000001"])?;
    assert!(
        stderr(&output).contains("1..=1000000"),
        "{}",
        stderr(&output)
    );
    Ok(())
}

#[test]
fn no_command_and_an_unknown_one_are_usage_errors() -> io::Result<()> {
    assert_eq!(socknotify(&[])?.status.code(), Some(2));
    assert_eq!(socknotify(&["scenery"])?.status.code(), Some(2));
    assert_eq!(
        socknotify(&["scenarios", "scenery"])?.status.code(),
        Some(2)
    );
    Ok(())
}

#[cfg(unix)]
#[test]
fn a_hard_limit_that_is_too_low_is_reported_with_the_number_needed() -> io::Result<()> {
    let output = socknotify_after("ulimit -n 64", &["scenarios", "--json"])?;
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(stdout(&output), "");
    let message = stderr(&output);
    let number = message.split(' ').find_map(|word| word.parse::<u32>().ok());
    // Both ends of a hundred connections, and a few more.
    assert!(number > Some(200), "{message}");
    assert!(message.contains("descriptors are needed"), "{message}");
    assert!(message.contains("hard limit 64"), "{message}");
    Ok(())
}

#[cfg(unix)]
#[test]
fn a_soft_limit_that_is_too_low_is_raised() -> io::Result<()> {
    let output = socknotify_after("ulimit -S -n 64", &["scenarios", "--json"])?;
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(objects(&output).len(), ALL.len());
    Ok(())
}

#[test]
fn readers_may_stop_reading() -> io::Result<()> {
    for arguments in [&["scenarios", "--clients", "2"] as &[_], &["doctor"]] {
        let mut program = Command::new(PROGRAM)
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        drop(program.stdout.take());
        let output = program.wait_with_output()?;
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        assert_eq!(stderr(&output), "");
    }
    Ok(())
}

#[test]
fn a_failure_that_nobody_reads_of_is_in_the_exit_code() -> io::Result<()> {
    let mut program = Command::new(PROGRAM)
        .args(["serve", "--listen", "unix:/no/such/directory/socket"])
        .stderr(Stdio::piped())
        .spawn()?;
    drop(program.stderr.take());
    assert_eq!(program.wait()?.code(), Some(1));
    Ok(())
}

fn diagnosis() -> io::Result<Value> {
    let output = socknotify(&["doctor", "--json"])?;
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let mut reports = objects(&output);
    assert_eq!(reports.len(), 1);
    Ok(reports.remove(0))
}

#[test]
fn the_doctor_describes_the_system() -> io::Result<()> {
    let report = diagnosis()?;
    assert!(report["os"].is_string(), "{report}");
    assert!(report["kernel"].is_string(), "{report}");
    assert!(report["architecture"].is_string(), "{report}");
    assert!(report["processors"].as_u64() >= Some(1), "{report}");
    assert!(
        report["default_concurrency"].as_u64() >= Some(1),
        "{report}"
    );
    let chosen = &report["chosen"];
    assert!(chosen["reason"].is_string(), "{report}");
    let backends = report["backends"].as_array().into_iter().flatten();
    let is_chosen = |candidate: &&Value| candidate["name"] == chosen["backend"];
    let candidates: Vec<_> = backends.filter(is_chosen).collect();
    assert_eq!(candidates.len(), 1, "{report}");
    assert_eq!(candidates[0]["available"], true, "{report}");
    Ok(())
}

#[cfg(target_os = "linux")]
#[test]
fn the_doctor_sees_a_thread_block() -> io::Result<()> {
    let blocking = &diagnosis()?["blocking"];
    assert!(blocking["limit"].as_u64() >= Some(2), "{blocking}");
    let rises = [&blocking["rises_asleep"], &blocking["rises_starved"]];
    assert!(rises.iter().any(|it| it.as_u64() >= Some(1)), "{blocking}");
    assert!(
        blocking["after_microseconds"].as_u64() >= Some(1),
        "{blocking}"
    );
    Ok(())
}

#[cfg(unix)]
#[test]
fn the_doctor_tells_the_descriptor_limits() -> io::Result<()> {
    let output = socknotify_after("ulimit -n 128 && ulimit -S -n 100", &["doctor", "--json"])?;
    let limits = &objects(&output)[0]["descriptors"];
    assert_eq!(
        (&limits["soft"], &limits["hard"]),
        (&100.into(), &128.into())
    );
    Ok(())
}

#[test]
fn the_doctor_speaks_to_people_too() -> io::Result<()> {
    let output = socknotify(&["doctor"])?;
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    for word in [
        "kernel",
        "backend",
        "chosen",
        "processors",
        "concurrency",
        "descriptors",
    ] {
        assert!(
            stdout(&output).contains(word),
            "{word}: {}",
            stdout(&output)
        );
    }
    Ok(())
}

#[test]
fn manual_pages_and_completions_are_generated_for_every_command() -> io::Result<()> {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("generated");
    // What an earlier build wrote is not what this one writes.
    let _ = std::fs::remove_dir_all(&directory);
    let output = socknotify(&["generate", &directory.to_string_lossy()])?;
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let read = |name: &str| std::fs::read_to_string(directory.join(name));
    let bash = read("socknotify.bash")?;
    for (command, option) in [
        ("scenarios", "sends"),
        ("serve", "idle-timeout"),
        ("doctor", "json"),
    ] {
        let page = read(&format!("socknotify-{command}.1"))?;
        // A hyphen is a minus sign there.
        let option = option.replace('-', "\\-");
        assert!(page.contains(&option), "{command}: {page}");
        assert!(bash.contains(command), "{bash}");
    }
    assert!(read("socknotify.1")?.contains(".TH socknotify 1"));
    // Those of `help` would say the same again.
    let names = std::fs::read_dir(&directory)?.map(|entry| Ok(entry?.file_name()));
    let names = names.collect::<io::Result<Vec<_>>>()?;
    let pages = names
        .iter()
        .filter_map(|name| name.to_str()?.strip_suffix(".1"));
    let mut pages: Vec<_> = pages.collect();
    pages.sort_unstable();
    let commands = ["doctor", "generate", "scenarios", "serve"];
    let mut expected = vec!["socknotify".to_owned()];
    expected.extend(commands.map(|command| format!("socknotify-{command}")));
    assert_eq!(pages, expected);
    for shell in ["_socknotify", "socknotify.fish", "_socknotify.ps1"] {
        assert!(read(shell)?.contains("idle-timeout"), "{shell}");
    }
    Ok(())
}

#[test]
fn generated_files_need_a_directory() -> io::Result<()> {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("no-directory");
    std::fs::write(&file, "")?;
    let output = socknotify(&["generate", &file.to_string_lossy()])?;
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("no-directory"),
        "{}",
        stderr(&output)
    );
    Ok(())
}

#[test]
fn what_is_no_address_is_a_usage_error_that_says_what_is_missing() -> io::Result<()> {
    for (address, words) in [
        ("unix:", "it has no path"),
        ("foo", "it has no port, as foo:7007 has"),
        ("8080", "it has no host, as 127.0.0.1:8080 has"),
        (":7", "0.0.0.0:7 for all addresses"),
        ("", "it has no port"),
        ("a:b", "its port is no number"),
        ("a:65536", "its port is no number"),
        ("::1:80", "in brackets: [::1]:80\n"),
        ("[::1:80", "in brackets: [::1]:80\n"),
        ("::1]:80", "in brackets: [::1]:80\n"),
        ("fe80::1%lo:80", "in brackets: [fe80::1%lo]:80\n"),
        ("[::1]", "it has no port, as [::1]:7007 has"),
        ("[::1", "it has no port, as [::1]:7007 has"),
        ("fe80::1", "it has no port, as [fe80::1]:7007 has"),
        (":::80", "in brackets: [::]:80\n"),
        ("unix:@name", "a file of that name is unix:./@name"),
    ] {
        let output = socknotify(&["serve", &format!("--listen={address}")])?;
        assert_eq!(output.status.code(), Some(2), "{address}");
        assert!(stderr(&output).contains(words), "{}", stderr(&output));
    }
    Ok(())
}

/// A zone that has a name is found: the system says what it has against the address there.
#[cfg(target_os = "linux")]
#[test]
fn an_address_may_have_a_zone_with_a_name() -> io::Result<()> {
    for mode in ["echo", "udp-echo"] {
        let output = socknotify(&["serve", "--mode", mode, "--listen", "[fe80::1%lo]:0"])?;
        assert_eq!(output.status.code(), Some(1));
        let message = stderr(&output);
        assert!(message.contains("(os error "), "{message}");
    }
    Ok(())
}

#[test]
fn options_of_another_mode_are_usage_errors() -> io::Result<()> {
    for arguments in [
        &["--mode", "echo", "--root", "."][..],
        &["--root", "."],
        &["--mode", "http", "--root", "."],
        &["--mode", "http", "--hidden"],
        &["--mode", "http", "--listing"],
        &["--mode", "echo", "--access-log", "log"],
        &["--mode", "udp-echo", "--listen", "unix:socket"],
    ] {
        let output = socknotify(&[&["serve"], arguments].concat())?;
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let said = stderr(&output);
        assert!(
            said.contains("Usage: ") && said.contains(" serve "),
            "{said}"
        );
    }
    Ok(())
}
