//! `socknotify`: tries socket state notifications on this machine.
#![forbid(unsafe_code)]

mod descriptors;
mod doctor;
mod endpoint;
mod generate;
mod load;
mod options;
mod output;
mod scenarios;
mod serve;
mod signals;
mod stream;
mod system;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

/// Try socket state notifications on this machine.
///
/// The exit code is 0 when all is well, 1 when something is not, and 2 when the command line is
/// wrong.
#[derive(Parser)]
#[command(name = "socknotify", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the three published programs over loopback and check that every total adds up
    Scenarios(scenarios::Arguments),
    /// Serve TCP clients on one port and many threads: echo, discard or HTTP
    Serve(serve::Arguments),
    /// Make requests of a server, and tell how many it answers and how long that takes
    Load(load::Arguments),
    /// Tell what this system offers: backends, processors, descriptor limits
    Doctor(doctor::Arguments),
    /// Write manual pages and shell completions into a directory
    Generate(generate::Arguments),
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        Command::Scenarios(arguments) => scenarios::run(&arguments),
        Command::Serve(arguments) => serve::run(&arguments),
        Command::Load(arguments) => load::run(&arguments),
        Command::Doctor(arguments) => doctor::run(&arguments),
        Command::Generate(arguments) => generate::run(&arguments, Arguments::command()),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("socknotify: {error}");
            ExitCode::FAILURE
        }
    }
}
