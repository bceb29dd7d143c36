//! Side-by-side measurements of socknotify against raw system calls and its peers.
//!
//! Every case runs all its implementations in turn, several rounds of them, and prints medians and
//! ratios. Ratios within one run are what counts: absolute figures are the machine's.

mod client;
mod deadlines;
mod echo;
mod http;
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
    /// What one notification costs, of each kind, against raw system calls and the peers.
    Ready(ready::Options),
    /// An HTTP responder, against the same on tokio.
    Http(http::Options),
    /// What a deadline costs, by how many there are.
    Deadlines(deadlines::Options),
    /// The other side of a server, in a process of its own.
    #[command(hide = true)]
    Client(client::Options),
}

fn main() -> io::Result<()> {
    match Arguments::parse().case {
        Case::Echo(options) => echo::run(&options),
        Case::Ready(options) => ready::run(&options),
        Case::Http(options) => http::run(&options),
        Case::Deadlines(options) => deadlines::run(&options),
        Case::Client(options) => client::run(&options),
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
