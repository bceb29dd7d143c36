//! `socknotify load`: makes requests of a server, and measures.
//!
//! Connections are made first ([`connect`]). Then each keeps a number of requests in progress, another for every
//! answer, or sends them when they are due ([`client`]), until the time is over ([`drive`]).

mod answers;
mod client;
mod connect;
mod drive;
mod fates;
mod plan;
mod report;
mod score;

use std::error::Error;
use std::io::{self, IsTerminal};
use std::time::Duration;

use socknotify::owned::Port;

use crate::endpoint::{self, Endpoint};
use crate::options::{self, OutputOptions, PortOptions};
use crate::signals::Signals;
use crate::{descriptors, output};
use connect::Address;
use drive::End;
use fates::Fates;
use plan::{Http, Mode, Pace, Plan};
use report::Report;
use score::Score;

/// Descriptors that are neither a connection nor open already.
const SPARE_DESCRIPTORS: u64 = 16;

/// Send requests to a server, and report the rate, the latency and what became of each connection
///
/// This is a closed loop: each connection sends a request when an answer has come, and the latency is the time from
/// sending a request to its complete answer. A server that is slow is asked less, which hides how long others would
/// have waited.
///
/// With --rate it is an open loop: requests are due at a steady rate, whatever the server does, and the latency is
/// the time from when a request was due. One that is due while its connection waits for an answer is sent after that
/// answer.
///
/// A request that has no answer at the end counts if it has waited for long: for 200 ms, and for twice as long as any that
/// was answered. Its latency is the time so far. A connection is made anew when the server has said that it closes it.
///
/// There is no TLS. Ctrl-C ends the run early, with a report on the time until then.
///
/// The exit code is 1 if a connection failed, was closed by the server, or got a wrong answer or none, if the run
/// ended early, and if the server did not keep up with --rate.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The server: HOST:PORT, or unix:PATH
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7007")]
    connect: Endpoint,

    /// Protocol of the server
    #[arg(long, value_enum, default_value_t = Mode::Echo)]
    mode: Mode,

    #[command(flatten)]
    http: Http,

    /// Connections, all at the same time
    #[arg(long, value_name = "NUMBER", default_value_t = 100, value_parser = options::connections())]
    connections: u32,

    /// How long to send requests
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = options::seconds)]
    seconds: Duration,

    /// Requests in progress at once on each connection
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pipeline: u32,

    /// Requests that are due in a second, on all connections together: an open loop
    #[arg(long, value_name = "NUMBER", value_parser = rate, conflicts_with = "pipeline")]
    rate: Option<f64>,

    /// Threads that send requests [default: as many as may run at once]
    #[arg(long, value_name = "NUMBER", value_parser = options::threads())]
    threads: Option<u32>,

    #[command(flatten)]
    port: PortOptions,

    #[command(flatten)]
    output: OutputOptions,
}

impl Arguments {
    /// Options that contradict each other, in ways that the parser does not know.
    pub(crate) fn contradiction(&self) -> Option<String> {
        let is_strange = self.mode != Mode::Http && self.http.is_asked_for();
        is_strange.then(|| {
            let mode = self.mode.name();
            format!("--method, --path and --header are for --mode http, not for {mode}")
        })
    }
}

/// Makes requests, and prints a report. True if every connection was served until the time was over.
pub(crate) fn run(arguments: &Arguments) -> Result<bool, Box<dyn Error>> {
    let signals = Signals::catch(false)?;
    let needed = u64::from(arguments.connections) + SPARE_DESCRIPTORS;
    descriptors::provide(descriptors::in_use() + needed)?;
    let server = &arguments.connect;
    let port = Port::from(arguments.port.build()?);
    let plan = Plan {
        mode: arguments.mode,
        request: arguments.mode.request(server, &arguments.http),
        is_head: arguments.http.method == "HEAD",
        connections: arguments.connections,
        pipeline: arguments.pipeline as usize,
        threads: arguments
            .threads
            .map_or(port.concurrency(), |threads| threads as usize),
        time: arguments.seconds,
        pace: arguments.rate.map_or(Pace::Answers, Pace::Rate),
        is_shown: !arguments.output.json && io::stderr().is_terminal(),
    };
    let (mut clients, mut fates) = (Vec::new(), Fates::default());
    let addresses = addresses(server);
    if let Err(error) = &addresses {
        fates.none_connected(plan.connections, error);
    }
    // A name may refer to several, of which the server listens at one.
    let mut address = None;
    for next in addresses.into_iter().flatten() {
        (clients, fates) = connect::all(&port, &next, &plan, &signals)?;
        address = Some(next);
        if !clients.is_empty() {
            break;
        }
    }
    let connected = clients.len() as u64;
    let (mut score, time, end) = match (connected, &address) {
        (1.., Some(address)) => drive::drive(&port, clients, address, &plan, &signals)?,
        _ if signals.have_come() => (Score::new(), Duration::ZERO, End::Interrupted),
        _ => {
            if !arguments.output.json {
                let reason = fates.unconnected.reason.unwrap_or_default();
                return Err(format!("connect to {server}: {reason}").into());
            }
            (Score::new(), Duration::ZERO, End::NoConnectionLeft)
        }
    };
    score.fates.add(&fates);
    let report = Report::new(&plan, connected, time, end, &score);
    if arguments.output.json {
        output::line(serde_json::to_string(&report)?)?;
    } else {
        output::line(&report)?;
    }
    Ok(report.is_in_order())
}

/// A number of requests in a second, such as 1000 or 0.5.
fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok();
    rate.filter(|rate| (0.001..=10_000_000.0).contains(rate))
        .ok_or_else(|| "it takes a number from 0.001 to 10000000".to_owned())
}

fn addresses(server: &Endpoint) -> io::Result<Vec<Address>> {
    match server {
        Endpoint::Host(name) => {
            let addresses: Vec<_> = endpoint::addresses(name)?.map(Address::Internet).collect();
            match addresses.is_empty() {
                true => Err(io::ErrorKind::AddrNotAvailable.into()),
                false => Ok(addresses),
            }
        }
        #[cfg(unix)]
        Endpoint::Unix(path) => Ok(vec![Address::Unix(path.clone())]),
        #[cfg(not(unix))]
        Endpoint::Unix(_) => Err(io::ErrorKind::Unsupported.into()),
    }
}
