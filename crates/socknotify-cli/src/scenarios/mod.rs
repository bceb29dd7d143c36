//! `socknotify scenarios`: Microsoft's three example programs, rebuilt over loopback.
//!
//! A scenario is a server on a completion port and its clients, all in this process and on real sockets. It counts what
//! happens ([`run`]), and afterwards the totals are compared with what they have to be ([`report`]).

mod clients;
mod report;
mod run;
mod tcp;
mod udp;

use std::time::{Duration, Instant};

use crate::options::{self, OutputOptions, PortOptions};
use crate::{descriptors, output};
use run::{Outcome, Run};

/// How long a scenario may go without any progress.
const PATIENCE: Duration = Duration::from_secs(60);

/// Descriptors for what is neither a client's nor open before the start: the listener, the port.
const SPARE_DESCRIPTORS: u64 = 32;

/// One of Microsoft's programs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scenario {
    name: &'static str,
    /// With a connection for each client; else there is one socket.
    is_tcp: bool,
    has_threads: bool,
    program: fn(&Run) -> Outcome,
}

const SCENARIOS: [Scenario; 3] = [
    Scenario {
        name: "poll-replacement",
        is_tcp: true,
        has_threads: false,
        program: tcp::run,
    },
    Scenario {
        name: "edge-triggered-udp",
        is_tcp: false,
        has_threads: false,
        program: udp::run,
    },
    Scenario {
        name: "multi-threaded-tcp",
        is_tcp: true,
        has_threads: true,
        program: tcp::run,
    },
];

const ALL: &str = "all";
const NAMES: [&str; 4] = [ALL, SCENARIOS[0].name, SCENARIOS[1].name, SCENARIOS[2].name];

/// Run Microsoft's three example programs, rebuilt over loopback, and check every total
///
/// Server and clients run in this process, on real sockets. The exit code is 1 if anything does not add up at the end:
/// a missing byte or REMOVE notification, or a registration that is left.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Which of them to run: all, one after the other; poll-replacement, one thread with level-triggered persistent
    /// registrations and plain dequeuing; edge-triggered-udp, one datagram socket that is drained on every notification;
    /// multi-threaded-tcp, many threads on one port with one-shot level-triggered registrations
    #[arg(default_value = ALL, value_parser = NAMES)]
    scenario: String,

    /// Clients, all connected at the same time
    #[arg(long, value_name = "NUMBER", default_value_t = 100, value_parser = options::connections())]
    clients: u32,

    /// Sends of 4 bytes per client
    #[arg(long, value_name = "NUMBER", default_value_t = 10)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000_000_000))]
    sends: u32,

    /// Server threads of multi-threaded-tcp; the other scenarios have one
    #[arg(long, value_name = "NUMBER", default_value_t = 16, value_parser = options::threads())]
    threads: u32,

    #[command(flatten)]
    port: PortOptions,

    #[command(flatten)]
    output: OutputOptions,
}

/// Runs the selected scenarios and prints a report on each. True if all of them are in order.
pub(crate) fn run(arguments: &Arguments) -> Outcome<bool> {
    let asked = &arguments.scenario;
    let scenarios = SCENARIOS
        .iter()
        .filter(|it| asked == ALL || *asked == it.name);
    // Before the first one starts: a limit that is too low should not show halfway through. Both ends of a connection are in
    // this process.
    let has_tcp = scenarios.clone().any(|it| it.is_tcp);
    let sockets = u64::from(arguments.clients) * if has_tcp { 2 } else { 1 };
    descriptors::provide(descriptors::in_use() + sockets + SPARE_DESCRIPTORS)?;

    let mut all_in_order = true;
    for scenario in scenarios {
        let run = Run::prepare(*scenario, arguments.clone())?;
        let start = Instant::now();
        run.supervise(PATIENCE);
        let (text, is_in_order) = report::on(&run, start.elapsed());
        output::line(text)?;
        all_in_order &= is_in_order;
    }
    Ok(all_in_order)
}
