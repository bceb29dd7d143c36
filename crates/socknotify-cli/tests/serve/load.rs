//! The load generator.

use std::io;
use std::net::TcpListener;
use std::process::{Command, Output};

use serde_json::Value;

use crate::program::{PROGRAM, Server};

fn load(address: &str, mode: &str, arguments: &[&str]) -> io::Result<Output> {
    Command::new(PROGRAM)
        .args(["load", "--connect", address, "--mode", mode])
        .args(["--seconds", "1"])
        .args(arguments)
        .output()
}

#[test]
fn requests_are_made_and_answered_in_both_modes() -> io::Result<()> {
    for (mode, connections, pipeline) in [("echo", 50, 1), ("http", 50, 1), ("http", 3, 16)] {
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

#[test]
fn a_server_that_answers_something_else_is_an_error() -> io::Result<()> {
    let server = Server::start("http", &[])?;
    let output = load(&server.address.to_string(), "echo", &["--json"])?;
    let report: Value = serde_json::from_slice(&output.stdout)?;
    assert_eq!(output.status.code(), Some(1), "{report}");
    assert_eq!(report["errors"], 100, "{report}");
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
    Ok(())
}
