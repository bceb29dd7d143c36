//! `socknotify load`: makes requests of a server, and measures.
//!
//! Connections are made first ([`connect`]). Then each keeps a number of requests under way: for every
//! answer another request is sent ([`client`]), until the time is over ([`drive`]).

mod answers;
mod client;
mod connect;
mod drive;
mod report;
mod score;

use std::error::Error;
use std::io::{self, IsTerminal};
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use clap::ValueEnum;
use socknotify::owned::Port;

use crate::{descriptors, output};
use drive::Plan;
use report::Report;

/// Descriptors that are neither a connection nor open already.
const SPARE_DESCRIPTORS: u64 = 16;

/// Make requests of a server, and tell how many it answers and how long that takes
///
/// A latency is the time from the send of a request to its whole answer. What is under way when the time
/// is over does not count. The exit code is 1 if a connection cannot be made, or nothing is answered.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The server
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7007")]
    connect: String,

    /// What the server does
    #[arg(long, value_enum, default_value_t = Mode::Echo)]
    mode: Mode,

    /// Connections, all of them at the same time
    #[arg(long, value_name = "NUMBER", default_value_t = 100)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    connections: u32,

    /// How long to make requests
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    seconds: u32,

    /// Requests of each connection that are under way at once
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pipeline: u32,

    /// Threads that make requests [default: the number of processors]
    #[arg(long, value_name = "NUMBER")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000))]
    threads: Option<u32>,

    /// Print one JSON object and nothing else
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    /// It sends everything back
    Echo,
    /// It speaks HTTP/1.1
    Http,
}

impl Mode {
    fn name(self) -> &'static str {
        match self {
            Mode::Echo => "echo",
            Mode::Http => "http",
        }
    }
}

/// Makes requests, and prints a report. True if anything was answered.
pub(crate) fn run(arguments: &Arguments) -> Result<bool, Box<dyn Error>> {
    let needed = u64::from(arguments.connections) + SPARE_DESCRIPTORS;
    descriptors::provide(descriptors::in_use() + needed)?;
    let address = address(&arguments.connect)
        .map_err(|error| format!("connect to {}: {error}", arguments.connect))?;
    let threads = match arguments.threads {
        Some(threads) => threads as usize,
        None => socknotify::default_concurrency(),
    };
    let plan = Plan {
        mode: arguments.mode,
        request: request(arguments.mode, &arguments.connect),
        pipeline: arguments.pipeline as usize,
        threads,
        time: Duration::from_secs(arguments.seconds.into()),
        is_shown: !arguments.json && io::stderr().is_terminal(),
    };
    let port = Port::from(socknotify::CompletionPort::with_concurrency(threads)?);
    let connections = arguments.connections as usize;
    let clients = connect::all(&port, address, connections, &plan)
        .map_err(|error| format!("connect to {address}: {error}"))?;
    let (score, time) = drive::drive(&port, clients, &plan)?;
    let report = Report::new(
        arguments.mode.name(),
        arguments.connections,
        arguments.pipeline,
        time,
        &score,
    );
    if arguments.json {
        output::line(serde_json::to_string(&report)?)?;
    } else {
        output::line(&report)?;
    }
    Ok(score.requests > 0)
}

fn address(name: &str) -> io::Result<SocketAddr> {
    let mut addresses = name.to_socket_addrs()?;
    addresses
        .next()
        .ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
}

/// The bytes of one request.
fn request(mode: Mode, host: &str) -> Vec<u8> {
    match mode {
        Mode::Echo => (b'0'..=b'o').collect(),
        Mode::Http => format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n").into_bytes(),
    }
}
