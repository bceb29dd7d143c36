//! The load generator.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Child, Command, Output, Stdio};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use serde_json::{Value, json};

use crate::clients::stats;
use crate::program::{PROGRAM, Server, eventually, one_of_three};
use crate::support::started;

fn load(address: &str, mode: &str, arguments: &[&str]) -> io::Result<Output> {
    let mut command = Command::new(PROGRAM);
    command.args(["load", "--connect", address, "--mode", mode]);
    if !arguments.contains(&"--seconds") {
        command.args(["--seconds", "1"]);
    }
    command.args(arguments);
    started(|| command.output())
}

#[test]
fn requests_are_made_and_answered_in_both_modes() -> io::Result<()> {
    for (mode, connections, pipeline) in [("echo", 10, 1), ("http", 10, 1), ("http", 3, 16)] {
        let server = Server::start(mode, &[])?;
        let (connections_text, pipeline_text) = (connections.to_string(), pipeline.to_string());
        let arguments = [
            "--json",
            "--connections",
            &connections_text,
            "--pipeline",
            &pipeline_text,
        ];
        let output = load(&server.address.to_string(), mode, &arguments)?;
        let report: Value = serde_json::from_slice(&output.stdout)?;
        assert_eq!(output.status.code(), Some(0), "{report}");
        assert_eq!(report["mode"], mode);
        assert_eq!(report["connections"], connections);
        assert_eq!(report["pipeline"], pipeline);
        assert_eq!(report["errors"], 0, "{report}");
        assert_eq!(report["fates"]["served"], connections, "{report}");
        assert_eq!(report["end"], "in_time");
        assert_eq!(report["problems"], json!([]));
        assert!(report["seconds"].as_f64() >= Some(1.0), "{report}");
        assert!(report["requests"].as_u64() > Some(0), "{report}");
        assert!(
            report["requests_per_second"].as_f64() > Some(0.0),
            "{report}"
        );
        let latency = &report["latency_us"];
        let values = ["p50", "p90", "p99", "p999", "max"].map(|name| latency[name].as_f64());
        assert!(values[0] > Some(0.0) && values.is_sorted(), "{report}");
        server.stop()?;
    }
    Ok(())
}

/// The report of a load that was not in order.
fn failed(output: &Output) -> io::Result<Value> {
    let report: Value = serde_json::from_slice(&output.stdout)?;
    assert_eq!(output.status.code(), Some(1), "{report}");
    assert_eq!(report["ok"], false, "{report}");
    Ok(report)
}

#[track_caller]
fn assert_tells(report: &Value, words: &str) {
    let problems = report["problems"].as_array().into_iter().flatten();
    let mut problems = problems.filter_map(Value::as_str);
    assert!(problems.any(|it| it.contains(words)), "{words}: {report}");
}

#[test]
fn a_server_that_answers_something_else_is_an_error_that_says_what() -> io::Result<()> {
    for (serves, asks, words) in [
        ("http", "echo", "it is HTTP; try --mode http"),
        ("echo", "http", "it is the request itself; try --mode echo"),
    ] {
        let server = Server::start(serves, &[])?;
        // It is over when all of them have had their answers.
        let output = load(
            &server.address.to_string(),
            asks,
            &["--json", "--seconds", "600"],
        )?;
        let report = failed(&output)?;
        assert_eq!(report["errors"], 100, "{report}");
        assert_eq!(report["fates"]["wrong"], 100, "{report}");
        assert_eq!(report["end"], "no_connection_left", "{report}");
        assert_tells(&report, words);
        server.stop()?;
    }
    Ok(())
}

#[test]
fn a_server_that_never_answers_is_an_error_that_says_why() -> io::Result<()> {
    let server = Server::start("discard", &[])?;
    for mode in ["http", "echo"] {
        let output = load(&server.address.to_string(), mode, &["--json"])?;
        let report = failed(&output)?;
        assert_eq!(report["fates"]["unanswered"], 100, "{report}");
        assert_eq!(report["fates"]["served"], 0, "{report}");
        let words =
            "the server sends nothing: it discards what it receives, or does not receive it";
        assert_tells(&report, words);
        let output = load(&server.address.to_string(), mode, &[])?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(text.contains("unanswered              100"), "{text}");
    }
    server.stop()?;
    Ok(())
}

/// A server of a few connections, each of which it serves in its own way.
fn serve_each(
    listener: TcpListener,
    ways: Vec<fn(&mut TcpStream) -> io::Result<()>>,
) -> JoinHandle<io::Result<()>> {
    thread::spawn(move || {
        let mut threads = Vec::new();
        for way in ways {
            let (mut stream, _) = listener.accept()?;
            threads.push(thread::spawn(move || {
                let outcome = way(&mut stream);
                // Under Wine a program that another test starts meanwhile inherits the socket, and keeps it open.
                if cfg!(windows) {
                    let _ = stream.shutdown(Shutdown::Both);
                }
                outcome
            }));
        }
        for thread in threads {
            thread.join().expect("no panic")?;
        }
        Ok(())
    })
}

fn echo(stream: &mut TcpStream) -> io::Result<()> {
    io::copy(&mut stream.try_clone()?, stream).map(drop)
}

fn echo_once(stream: &mut TcpStream) -> io::Result<()> {
    let mut request = [0; 64];
    stream.read_exact(&mut request)?;
    stream.write_all(&request)
}

/// As if it were busy with something else at first.
fn echo_late(stream: &mut TcpStream) -> io::Result<()> {
    // The load may be late itself: its time begins when all are connected.
    stream.peek(&mut [0])?;
    thread::sleep(Duration::from_millis(500));
    echo(stream)
}

/// Each byte of the answer by itself.
fn answer_in_chunks(stream: &mut TcpStream) -> io::Result<()> {
    let mut requests = BufReader::new(stream.try_clone()?);
    let mut line = String::new();
    while requests.read_line(&mut line)? > 0 {
        if line == "\r\n" {
            let answer = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\
                          5\r\nHello\r\n2;a=b\r\n, \r\n6\r\nworld!\r\n0\r\nA: b\r\n\r\n";
            for byte in answer.as_bytes() {
                stream.write_all(&[*byte])?;
            }
        }
        line.clear();
    }
    Ok(())
}

fn announce_too_much(stream: &mut TcpStream) -> io::Result<()> {
    stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n")?;
    swallow(stream)
}

fn swallow(stream: &mut TcpStream) -> io::Result<()> {
    io::copy(stream, &mut io::sink()).map(drop)
}

/// There is something to receive, so that the close is a reset.
fn reset(stream: &mut TcpStream) -> io::Result<()> {
    stream.peek(&mut [0]).map(drop)
}

#[test]
fn the_fate_of_each_connection_is_told() -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?.to_string();
    let server = serve_each(listener, vec![echo, echo_once, swallow, reset]);
    let output = load(&address, "echo", &["--json", "--connections", "4"])?;
    let report = failed(&output)?;
    // The one that was answered once may be closed or reset: the next request was on its way.
    let fates = &report["fates"];
    assert_eq!(fates["served"], 1, "{report}");
    assert_eq!(fates["unanswered"], 1, "{report}");
    let ended = ["closed", "broken"].map(|fate| fates[fate].as_u64().unwrap_or(0));
    assert_eq!(ended.iter().sum::<u64>(), 2, "{report}");
    assert_eq!(report["errors"], 2, "{report}");
    assert_eq!(report["end"], "in_time", "{report}");
    assert_tells(&report, "1 of 4 connections got no answer");
    // When the load has ended, so have its connections, in whatever way.
    let _ = server.join().expect("no panic");
    Ok(())
}

fn echo_once_and_hang(stream: &mut TcpStream) -> io::Result<()> {
    echo_once(stream)?;
    swallow(stream)
}

#[test]
fn a_server_that_answers_once_and_then_hangs_is_an_error() -> io::Result<()> {
    for rate in [&[][..], &["--rate", "20"]] {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?.to_string();
        let server = serve_each(listener, vec![echo_once_and_hang]);
        let arguments = [&["--json", "--connections", "1", "--seconds", "4"], rate].concat();
        let report = failed(&load(&address, "echo", &arguments)?)?;
        assert!(report["unanswered"].as_u64() > Some(0), "{report}");
        // Their time so far.
        assert!(
            report["latency_us"]["max"].as_f64() > Some(200_000.0),
            "{report}"
        );
        assert_tells(&report, "1 of 1 connection got answers, and then none");
        let _ = server.join().expect("no panic");
    }
    Ok(())
}

/// As a server does that closes each connection after some requests.
#[test]
fn a_connection_that_the_server_has_said_to_close_is_made_anew() -> io::Result<()> {
    fn answer_twice(stream: &mut TcpStream) -> io::Result<()> {
        let mut requests = BufReader::new(stream.try_clone()?);
        for connection in ["keep-alive", "close"] {
            let mut line = String::new();
            while line != "\r\n" {
                line.clear();
                if requests.read_line(&mut line)? == 0 {
                    return Ok(());
                }
            }
            write!(
                stream,
                "HTTP/1.1 200 OK\r\nConnection: {connection}\r\nContent-Length: 2\r\n\r\nok"
            )?;
        }
        // More requests may have come.
        stream.shutdown(Shutdown::Write)?;
        swallow(stream)
    }

    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?.to_string();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream?;
            thread::spawn(move || answer_twice(&mut stream));
        }
        io::Result::Ok(())
    });
    for more in [&[][..], &["--pipeline", "4"], &["--rate", "200"]] {
        let arguments = [&["--json", "--connections", "3"], more].concat();
        let output = load(&address, "http", &arguments)?;
        let report: Value = serde_json::from_slice(&output.stdout)?;
        // On a machine with other work it may be late.
        let is_late = report["behind"].as_u64() > Some(0);
        assert!(output.status.success() || is_late, "{report}");
        let numbers = ["requests", "reconnects"].map(|name| report[name].as_u64().unwrap_or(0));
        assert!(
            numbers[1] > 0 && numbers[0] <= 2 * (numbers[1] + 3),
            "{report}"
        );
        assert_eq!(report["fates"]["served"], 3, "{report}");
    }
    Ok(())
}

/// One request, after which the server says that it closes the connection.
pub(crate) fn answer_and_close<'a, S>(mut stream: &'a S) -> io::Result<()>
where
    &'a S: Read + Write,
{
    let mut lines = BufReader::new(stream).lines();
    while lines
        .next()
        .transpose()?
        .is_some_and(|line| !line.is_empty())
    {}
    stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok")
}

/// It was answered before.
#[test]
fn a_connection_that_cannot_be_made_anew_is_told_once() -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?.to_string();
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept()?;
        drop(listener);
        answer_and_close(&stream)?;
        swallow(&mut stream)
    });
    let output = load(&address, "http", &["--json", "--connections", "1"])?;
    let report = failed(&output)?;
    assert_eq!(report["fates"]["unanswered"], 0, "{report}");
    // A program that another test starts may have the listener for a moment: then it is made, and reset.
    assert_eq!(report["errors"], 1, "{report}");
    server.join().expect("no panic")
}

#[test]
fn a_method_a_path_and_headers_are_sent() -> io::Result<()> {
    fn expect_it(stream: &mut TcpStream) -> io::Result<()> {
        let mut requests = BufReader::new(stream.try_clone()?);
        loop {
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") {
                if requests.read_line(&mut head)? == 0 {
                    return Ok(());
                }
            }
            let expected = "HEAD /a?b HTTP/1.1\r\nhost: c\r\nAccept: */*\r\n\r\n";
            let status = if head == expected {
                "200 OK"
            } else {
                "400 Bad Request"
            };
            write!(stream, "HTTP/1.1 {status}\r\nContent-Length: 7\r\n\r\n")?;
        }
    }

    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?.to_string();
    let server = serve_each(listener, vec![expect_it]);
    let arguments = ["--method", "HEAD", "--path", "/a?b", "--header", "host: c"];
    let arguments = [&arguments[..], &["--header", "Accept: */*"]].concat();
    let arguments = [
        &["--json", "--connections", "1", "--seconds", "4"],
        &arguments[..],
    ]
    .concat();
    let output = load(&address, "http", &arguments)?;
    let report: Value = serde_json::from_slice(&output.stdout)?;
    assert_eq!(output.status.code(), Some(0), "{report}");
    let _ = server.join().expect("no panic");
    let refused = load(&address, "echo", &["--path", "/a"])?;
    assert_eq!(refused.status.code(), Some(2));
    Ok(())
}

#[test]
fn a_server_that_sends_a_part_of_an_answer_is_not_one_that_sends_nothing() -> io::Result<()> {
    fn begin(stream: &mut TcpStream) -> io::Result<()> {
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Le")?;
        swallow(stream)
    }

    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?.to_string();
    let server = serve_each(listener, vec![begin]);
    let report = failed(&load(&address, "http", &["--json", "--connections", "1"])?)?;
    assert_tells(&report, "sends a part of it, and then nothing");
    let _ = server.join().expect("no panic");
    Ok(())
}

#[test]
fn latency_at_a_rate_counts_from_scheduled_times() -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?.to_string();
    let server = serve_each(listener, vec![echo_late]);
    let arguments = ["--json", "--connections", "1", "--rate", "100"];
    let output = load(&address, "echo", &arguments)?;
    let report: Value = serde_json::from_slice(&output.stdout)?;
    assert_eq!(report["rate"], 100.0, "{report}");
    // A closed loop would make one request while the server is busy, and have one long latency. Here some fifty are
    // due in that time, of hundred.
    assert!(
        report["latency_us"]["p90"].as_f64() > Some(200_000.0),
        "{report}"
    );
    let (answered, behind) = (report["requests"].as_u64(), report["behind"].as_u64());
    let due = answered
        .zip(behind)
        .map(|(answered, behind)| answered + behind);
    assert!(due >= Some(100), "{report}");
    let _ = server.join().expect("no panic");
    Ok(())
}

#[test]
fn connections_on_which_no_request_was_due_are_no_error() -> io::Result<()> {
    let server = Server::start("echo", &[])?;
    let arguments = ["--json", "--connections", "100", "--rate", "10"];
    // A request that has no answer 200 ms later is an error.
    one_of_three(|| {
        let output = load(&server.address.to_string(), "echo", &arguments)?;
        let report: Value = serde_json::from_slice(&output.stdout)?;
        assert!(report["fates"]["unused"].as_u64() > Some(80), "{report}");
        match (output.status.code(), report["fates"]["unanswered"].as_u64()) {
            (Some(0), Some(0)) => Ok(()),
            _ => Err(io::Error::other(report.to_string())),
        }
    })?;
    server.stop()?;
    Ok(())
}

#[test]
fn a_server_that_does_not_keep_up_with_the_rate_is_an_error() -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?.to_string();
    let server = serve_each(listener, vec![echo_once, swallow]);
    let arguments = ["--json", "--connections", "2", "--rate", "1000"];
    let report = failed(&load(&address, "echo", &arguments)?)?;
    assert!(report["behind"].as_u64() > Some(900), "{report}");
    assert_tells(&report, "the server did not keep up");
    let _ = server.join().expect("no panic");
    Ok(())
}

#[test]
fn answers_may_come_in_chunks() -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?.to_string();
    let server = serve_each(listener, vec![answer_in_chunks]);
    let output = load(&address, "http", &["--json", "--connections", "1"])?;
    let report: Value = serde_json::from_slice(&output.stdout)?;
    assert_eq!(output.status.code(), Some(0), "{report}");
    assert!(report["requests"].as_u64() > Some(1), "{report}");
    let _ = server.join().expect("no panic");
    Ok(())
}

#[test]
fn a_length_that_is_too_large_is_said_to_be_that() -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?.to_string();
    let server = serve_each(listener, vec![announce_too_much]);
    let output = load(&address, "http", &["--json", "--connections", "1"])?;
    assert_tells(&failed(&output)?, "its Content-Length is too large");
    let _ = server.join().expect("no panic");
    Ok(())
}

/// A load that would last, once the server has answered something.
fn long_load(server: &Server) -> io::Result<Child> {
    let mut command = Command::new(PROGRAM);
    command
        .args(["load", "--connect", &server.address.to_string()])
        .args(["--mode", "http", "--seconds", "600", "--connections", "10"])
        .arg("--json")
        .stdout(Stdio::piped());
    let load = crate::system::spawn(command)?;
    eventually("requests are made", || {
        let requests = stats(server.address)?["requests"].as_u64();
        Ok(requests > Some(100))
    })?;
    Ok(load)
}

#[test]
#[cfg_attr(
    windows,
    ignore = "Wine keeps a connection open whose process was killed while a thread was in a call of it"
)]
fn when_the_server_goes_it_ends_early_and_says_so() -> io::Result<()> {
    let mut server = Server::start("http", &[])?;
    let load = long_load(&server)?;
    server.process.kill()?;
    let report = failed(&load.wait_with_output()?)?;
    assert_eq!(report["end"], "no_connection_left", "{report}");
    assert_eq!(report["errors"], 10, "{report}");
    assert!(report["requests"].as_u64() > Some(0), "{report}");
    assert!(report["seconds"].as_f64() < Some(600.0), "{report}");
    assert_tells(&report, "of 600 s: no connection was left");
    Ok(())
}

#[test]
fn when_it_is_interrupted_it_reports_what_it_has_measured() -> io::Result<()> {
    let server = Server::start("http", &[])?;
    let load = long_load(&server)?;
    crate::system::interrupt(&load)?;
    let report = failed(&load.wait_with_output()?)?;
    assert_eq!(report["end"], "interrupted", "{report}");
    assert_eq!(report["errors"], 0, "{report}");
    // Some may not have had their turn.
    let fates = ["served", "unanswered"].map(|fate| report["fates"][fate].as_u64().unwrap_or(0));
    assert!(fates[0] > 0 && fates[0] + fates[1] == 10, "{report}");
    assert!(report["requests"].as_u64() > Some(0), "{report}");
    assert!(report["latency_us"]["p50"].as_f64() > Some(0.0), "{report}");
    assert_tells(&report, "of 600 s: it was interrupted");
    server.stop()?;
    Ok(())
}

#[test]
fn a_server_that_is_not_there_is_an_error() -> io::Result<()> {
    // Nobody else gets the port as long as it is bound, and nobody listens at that address.
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = format!("127.0.0.2:{}", listener.local_addr()?.port());
    let output = load(&address, "echo", &[])?;
    assert_eq!(output.status.code(), Some(1));
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(message.contains(&address), "{message}");
    let report = failed(&load(&address, "echo", &["--json"])?)?;
    assert_eq!(report["fates"]["unconnected"], 100, "{report}");
    assert_tells(&report, "100 of 100 connections could not be made: ");
    // One whose name nobody knows, either.
    let report = failed(&load("a.invalid:80", "echo", &["--json"])?)?;
    assert_eq!(report["fates"]["unconnected"], 100, "{report}");
    Ok(())
}
