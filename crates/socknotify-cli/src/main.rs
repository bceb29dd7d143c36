//! `socknotify`: servers and diagnostics on completion ports.
#![forbid(unsafe_code)]

mod descriptors;
mod doctor;
mod endpoint;
mod generate;
mod options;
mod output;
mod scenarios;
mod serve;
mod system;

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};

/// Servers and diagnostics on completion ports
///
/// The exit code is 0 on success, 1 if something failed, and 2 if the command line is wrong.
#[derive(Parser)]
#[command(name = "socknotify", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    // What each does is said at its arguments.
    Scenarios(scenarios::Arguments),
    Serve(serve::Arguments),
    Doctor(doctor::Arguments),
    Generate(generate::Arguments),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let contradiction = match &arguments.command {
        Command::Serve(serve) => serve.contradiction(),
        _ => None,
    };
    if let Some(contradiction) = contradiction {
        let mut command = Arguments::command();
        command.build();
        let command = command.find_subcommand_mut("serve").expect("it is one");
        command
            .error(ErrorKind::ArgumentConflict, contradiction)
            .exit();
    }
    let outcome = match arguments.command {
        Command::Scenarios(arguments) => scenarios::run(&arguments).map_err(|error| error as _),
        Command::Serve(arguments) => serve::run(&arguments),
        Command::Doctor(arguments) => doctor::run(&arguments),
        Command::Generate(arguments) => generate::run(&arguments, Arguments::command()),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            output::problem(error);
            ExitCode::FAILURE
        }
    }
}
