//! Side-by-side measurements of socknotify against raw system calls and its peers: a module for each question.
//!
//! Every side of a case is measured in turn, in several rounds. Ratios within one run are what counts: absolute figures are
//! the machine's.
//!
//! It is for Linux: what it compares with is raw `epoll`, and it counts with `strace`.
#![cfg(all(target_os = "linux", not(any(interleavings, kqueue_stand_in))))]

mod accept;
mod allocator;
mod blocking;
mod client;
mod compare;
mod counted;
mod descriptors;
mod environment;
mod files;
mod notifications;
mod processors;
mod random;
mod servers;
mod stopwatch;

use std::io;

use clap::{Parser, Subcommand};

use self::compare::Options;

#[derive(Parser)]
#[command(about, version)]
struct Arguments {
    #[command(subcommand)]
    question: Question,
}

#[derive(Subcommand)]
enum Question {
    /// What do handlers that block cost, and how long do others wait meanwhile?
    Blocking(Options),
    /// How many requests does an HTTP server answer whose handlers do not block?
    Servers(Options),
    /// What does a notification cost on one thread?
    Notifications(Options),
    /// What does it cost to accept a connection?
    Accept(Options),
    /// How many files does a server of files send?
    Files(Options),
    /// How many system calls, instructions, allocations and bytes? It needs no quiet machine.
    Counted {
        /// Only cases whose names contain this
        #[arg(default_value = "")]
        case: String,
    },
    /// Repeat one turn of a counted case, for profilers; print the number of allocations.
    Turns(counted::Turns),
    /// The client of the servers whose handlers block, in a separate process.
    #[command(hide = true)]
    Client(client::Options),
}

/// Does what the command line asks for. Prints a line of JSON for each side of each case, with the lower quartile, the median
/// and the upper quartile of each figure; the first line says when and where.
///
/// # Errors
///
/// What the first case that fails says.
pub fn run() -> io::Result<()> {
    let question = Arguments::parse().question;
    descriptors::raise();
    match question {
        Question::Blocking(options) => options.measure(blocking::run),
        Question::Servers(options) => options.measure(servers::run),
        Question::Notifications(options) => options.measure(notifications::run),
        Question::Accept(options) => options.measure(accept::run),
        Question::Files(options) => options.measure(files::run),
        Question::Counted { case } => counted::run(&case),
        Question::Turns(turns) => turns.run(),
        Question::Client(options) => client::run(&options),
    }
}
