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

use clap::builder::{PossibleValue, PossibleValuesParser};

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
    about: &'static str,
    /// With a connection for each client; else there is one socket.
    is_tcp: bool,
    has_threads: bool,
    program: fn(&Run) -> Outcome,
}

static SCENARIOS: [Scenario; 3] = [
    Scenario {
        name: "poll-replacement",
        about: "One thread, level-triggered persistent registrations, plain dequeuing",
        is_tcp: true,
        has_threads: false,
        program: tcp::run,
    },
    Scenario {
        name: "edge-triggered-udp",
        about: "One datagram socket, edge-triggered, drained on every notification",
        is_tcp: false,
        has_threads: false,
        program: udp::run,
    },
    Scenario {
        name: "multi-threaded-tcp",
        about: "Many threads on one port, one-shot level-triggered registrations",
        is_tcp: true,
        has_threads: true,
        program: tcp::run,
    },
];

const ALL: &str = "all";

/// Run Microsoft's three example programs, rebuilt over loopback, and check every total
///
/// Server and clients run in this process, on real sockets. The exit code is 1 if anything does not add up at the end:
/// a missing byte or REMOVE notification, or a registration that is left.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Which of them to run
    #[arg(default_value = ALL, value_parser = names())]
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

fn names() -> PossibleValuesParser {
    let each = SCENARIOS.iter();
    let each = each.map(|it| PossibleValue::new(it.name).help(it.about));
    let all = PossibleValue::new(ALL).help("All three, one after the other");
    PossibleValuesParser::new(each.chain([all]))
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
