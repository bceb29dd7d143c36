//! `socknotify scenarios`: Microsoft's three example programs, rebuilt over loopback.
//!
//! A scenario is a server on a completion port and its clients, all in this process and all on real
//! sockets. It counts what happens ([`tally`]); afterwards the totals are compared with what the
//! [`plan`] promised ([`report`]), while a [`supervisor`] sees to it that nothing hangs.

mod clients;
mod connections;
mod edge_triggered_udp;
mod multi_threaded_tcp;
mod plan;
mod poll_replacement;
mod problem;
mod report;
mod run;
mod supervisor;
mod tally;
mod tcp;

use std::error::Error;
use std::io::{self, IsTerminal};
use std::sync::Arc;

use clap::ValueEnum;

use crate::options::{self, OutputOptions, PortOptions};
use crate::{descriptors, output};
use plan::{Plan, Scenario};
use problem::Problem;
use report::Report;
use run::Run;
use supervisor::{Display, Ending};

/// Run Microsoft's three example programs, rebuilt over loopback, and check every total
///
/// Server and clients run in this process, on real sockets. The exit code is 1 if anything does not add up at the end:
/// a missing byte or REMOVE notification, or a registration that is left.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Which of them to run
    #[arg(value_enum, default_value_t = Selection::All)]
    scenario: Selection,

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

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Selection {
    /// One thread, level-triggered persistent registrations, plain dequeuing
    PollReplacement,
    /// One datagram socket, edge-triggered, drained on every notification
    EdgeTriggeredUdp,
    /// Many threads on one port, one-shot level-triggered registrations
    MultiThreadedTcp,
    /// All three, one after the other
    All,
}

impl Selection {
    fn scenarios(self) -> &'static [Scenario] {
        match self {
            Selection::PollReplacement => &[Scenario::PollReplacement],
            Selection::EdgeTriggeredUdp => &[Scenario::EdgeTriggeredUdp],
            Selection::MultiThreadedTcp => &[Scenario::MultiThreadedTcp],
            Selection::All => &[
                Scenario::PollReplacement,
                Scenario::EdgeTriggeredUdp,
                Scenario::MultiThreadedTcp,
            ],
        }
    }
}

fn program(scenario: Scenario) -> fn(&Run) -> Result<(), Problem> {
    match scenario {
        Scenario::PollReplacement => poll_replacement::run,
        Scenario::EdgeTriggeredUdp => edge_triggered_udp::run,
        Scenario::MultiThreadedTcp => multi_threaded_tcp::run,
    }
}

/// Runs the selected scenarios and prints a report on each. True if all of them are in order.
pub(crate) fn run(arguments: &Arguments) -> Result<bool, Box<dyn Error>> {
    let open = descriptors::in_use();
    let plans: Vec<Plan> = arguments
        .scenario
        .scenarios()
        .iter()
        .map(|&scenario| arguments.plan(scenario, open))
        .collect();
    // Before the first one starts: a limit that is too low should not show halfway through.
    descriptors::provide(plans.iter().map(Plan::descriptors).max().unwrap_or(0))?;

    let mut all_in_order = true;
    for plan in plans {
        let run = Arc::new(Run::prepare(plan)?);
        let (ending, time) =
            supervisor::supervise(&run, program(plan.scenario), arguments.display());
        let report = Report::make(&run, time);
        output::line(report.text(arguments.output.json)?)?;
        all_in_order &= report.is_in_order();
        if ending == Ending::Abandoned {
            // Its threads are still about and would disturb the next one.
            break;
        }
    }
    Ok(all_in_order)
}

impl Arguments {
    fn plan(&self, scenario: Scenario, open_descriptors: u64) -> Plan {
        Plan {
            scenario,
            clients: self.clients,
            sends: self.sends,
            threads: match scenario {
                Scenario::MultiThreadedTcp => self.threads,
                Scenario::PollReplacement | Scenario::EdgeTriggeredUdp => 1,
            },
            port: self.port,
            open_descriptors,
        }
    }

    fn display(&self) -> Display {
        if self.output.json || !io::stderr().is_terminal() {
            Display::Nothing
        } else {
            Display::ProgressBar
        }
    }
}
