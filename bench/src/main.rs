//! Side-by-side measurements of socknotify against raw system calls and its peers.
//!
//! Every case runs all its implementations in turn, several rounds of them, and prints medians and
//! ratios. Ratios within one run are what counts: absolute figures are the machine's.

mod echo;
mod ready;
mod ways;

use std::io;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(about, version)]
struct Arguments {
    #[command(subcommand)]
    case: Case,
}

#[derive(Subcommand)]
enum Case {
    /// An echo server with many threads on one port, against raw epoll with as many threads.
    Echo(echo::Options),
    /// What one notification costs, for each trigger, against raw epoll.
    Ready(ready::Options),
    /// The other side of `echo`, in a process of its own.
    #[command(hide = true)]
    EchoClient(echo::ClientOptions),
}

fn main() -> io::Result<()> {
    match Arguments::parse().case {
        Case::Echo(options) => echo::run(&options),
        Case::Ready(options) => ready::run(&options),
        Case::EchoClient(options) => echo::client(&options),
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
