//! Side-by-side measurements of socknotify against raw system calls and its peers.
//!
//! Every case runs all its implementations in turn, several rounds of them, and prints medians and
//! ratios. Ratios within one run are what counts: absolute figures are the machine's.
//!
//! It is for Linux: what it compares with is raw `epoll` and `io_uring`, and it counts with `strace`.
#![cfg(all(target_os = "linux", not(any(interleavings, kqueue_stand_in))))]

mod allocator;
mod case;
mod cases;
mod client;
mod closed_loop;
mod count;
mod descriptors;
mod environment;
mod exchange;
mod figure;
mod foreign;
mod implementation;
mod open_loop;
mod output;
mod processors;
mod random;
mod readme;
mod report;
mod row;
mod run;
mod servers;
mod stopwatch;
mod uring;
mod ways;

use std::io;
use std::path::PathBuf;

use clap::{Parser, Subcommand, value_parser};

use self::case::{Effort, Order, Parameter, Setting};
use self::environment::Environment;
use self::implementation::Implementation;
use self::run::Plan;

#[derive(Parser)]
#[command(about, version, args_conflicts_with_subcommands = true)]
struct Arguments {
    /// The cases to measure [default: all]; `list` names them.
    cases: Vec<String>,
    /// Fewer rounds and settings, for a run of some minutes.
    #[arg(long)]
    quick: bool,
    /// Print JSON: one object for each case, implementation and setting.
    #[arg(long)]
    json: bool,
    /// Write the rows, and where and when they were measured, into this directory.
    #[arg(long, value_name = "DIR")]
    report: Option<PathBuf>,
    /// Only implementations whose names contain this.
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Rounds, of which the median counts [default: 7, quick 3].
    #[arg(long)]
    rounds: Option<usize>,
    /// How long each round takes, where a client sets the pace; others do more or less in proportion [default: 500,
    /// quick 200].
    #[arg(long, value_parser = value_parser!(u32).range(1..))]
    milliseconds: Option<u32>,
    /// Only count system calls, instructions and allocations; measure no time.
    #[arg(long, conflicts_with = "timed")]
    counted: bool,
    /// Only measure time; count nothing, which needs strace and valgrind.
    #[arg(long)]
    timed: bool,
    #[command(flatten)]
    values: Values,
    #[command(subcommand)]
    part: Option<Part>,
}

/// Other values for the axes of the cases.
#[derive(clap::Args)]
struct Values {
    /// Sockets that are ready at once.
    #[arg(long, value_delimiter = ',')]
    batch: Vec<usize>,
    /// Threads of a server.
    #[arg(long, value_delimiter = ',')]
    threads: Vec<usize>,
    /// Connections of a server.
    #[arg(long, value_delimiter = ',')]
    connections: Vec<usize>,
    /// Microseconds of work for each request.
    #[arg(long, value_delimiter = ',')]
    work: Vec<usize>,
    /// Idle registrations.
    #[arg(long, value_delimiter = ',')]
    idle: Vec<usize>,
    /// Deadlines.
    #[arg(long, value_delimiter = ',')]
    deadlines: Vec<usize>,
    /// Processors that threads wake each other on.
    #[arg(long, value_delimiter = ',')]
    processors: Vec<usize>,
    /// Rates of a client, in percent of the highest.
    #[arg(long, value_delimiter = ',')]
    load: Vec<usize>,
    /// Percent of the requests that block.
    #[arg(long, value_delimiter = ',')]
    blocking: Vec<usize>,
    /// 1: the server has one processor, and the client the others; 0: they share all.
    #[arg(long, value_delimiter = ',')]
    apart: Vec<usize>,
    /// "written-armed" or "armed-written": whether data arrive before or after a socket is armed.
    #[arg(long, value_delimiter = ',')]
    order: Vec<Order>,
}

impl Values {
    fn by_parameter(self) -> Vec<(Parameter, Vec<usize>)> {
        vec![
            (Parameter::Batch, self.batch),
            (Parameter::Threads, self.threads),
            (Parameter::Connections, self.connections),
            (Parameter::Work, self.work),
            (Parameter::Idle, self.idle),
            (Parameter::Deadlines, self.deadlines),
            (Parameter::Processors, self.processors),
            (Parameter::Load, self.load),
            (Parameter::Blocking, self.blocking),
            (Parameter::Apart, self.apart),
            (
                Parameter::Order,
                self.order.iter().map(|&it| it as usize).collect(),
            ),
        ]
    }
}

#[derive(Subcommand)]
enum Part {
    /// List the cases.
    List,
    /// Repeat one turn of a case, for profilers; print the number of allocations.
    Turns {
        case: String,
        implementation: Implementation,
        /// Such as "order=armed-written batch=64".
        setting: Setting,
        turns: usize,
    },
    /// Write the tables of figures in the documents from a report, or check them.
    Readme(readme::Options),
    /// The client of a server, in a separate process.
    #[command(hide = true)]
    Client(client::Options),
}

/// Does what the command line asks for.
///
/// # Errors
///
/// What the first case that fails says.
pub fn run() -> io::Result<()> {
    let arguments = Arguments::parse();
    descriptors::raise();
    match arguments.part {
        Some(Part::List) => list(),
        Some(Part::Client(options)) => client::run(&options)?,
        Some(Part::Readme(options)) => readme::run(&options)?,
        Some(Part::Turns {
            case,
            implementation,
            setting,
            turns,
        }) => {
            for case in cases::named(&[case])? {
                count::run_turns(case, implementation, &setting, turns)?;
            }
        }
        None => measure(arguments)?,
    }
    Ok(())
}

fn list() {
    for case in cases::ALL {
        output::line(format_args!("{:<14} {}", case.name, case.about));
    }
}

fn measure(arguments: Arguments) -> io::Result<()> {
    let json = arguments.json;
    let report = arguments.report.clone();
    let chosen = cases::named(&arguments.cases)?;
    let quick = arguments.quick;
    let mut plan = plan(arguments);
    let mut environment = Environment::now(quick, plan.effort.rounds);
    if report.is_some() {
        environment = environment.before_run();
    }
    if let (false, Some(tool)) = (plan.only_time, count::missing_tool()) {
        let text = format!("counting needs {tool}, which is not installed");
        if plan.only_count {
            return Err(io::Error::other(text));
        }
        eprintln!("{text}; going on without");
        plan.only_time = true;
    }
    let mut rows = Vec::new();
    let mut failure = Ok(());
    for &case in &chosen {
        if !json {
            output::line(format_args!("\n{}: {}", case.name, case.about));
        }
        let outcome = plan.run(case, |setting, found| {
            match json {
                true => found
                    .iter()
                    .for_each(|row| output::line(format_args!("{}", row.json()))),
                false => row::print_table(case, setting, &found),
            }
            rows.extend(found);
        });
        // The other cases are worth running all the same.
        if let Err(error) = outcome {
            eprintln!("{}: {error}", case.name);
            failure = Err(error);
        }
    }
    if let Some(directory) = report {
        report::write(&directory, &environment, &rows)?;
    }
    failure
}

/// What the command line asks for.
fn plan(arguments: Arguments) -> Plan {
    let mut effort = match arguments.quick {
        true => Effort {
            rounds: 3,
            notifications: 20_000,
            milliseconds: 200,
        },
        false => Effort {
            rounds: 7,
            notifications: 200_000,
            milliseconds: 500,
        },
    };
    effort.rounds = arguments.rounds.unwrap_or(effort.rounds);
    if let Some(milliseconds) = arguments.milliseconds {
        let milliseconds = milliseconds as usize;
        effort.notifications = effort.notifications * milliseconds / effort.milliseconds;
        effort.milliseconds = milliseconds;
    }
    Plan {
        effort,
        only_count: arguments.counted,
        only_time: arguments.timed,
        quick: arguments.quick,
        values: arguments.values.by_parameter(),
        only: arguments.only,
        is_exact: false,
    }
}
