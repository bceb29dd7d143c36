//! `socknotify serve`: a TCP server on one port and many threads.
//!
//! Whatever a thread holds is its own: a [`client`] comes out of the port with a notification, gets
//! one bounded turn, and goes back with a deadline. All threads run the same loop
//! ([`server`]); the main thread shows figures and waits for the signal to end ([`watch`]).

mod client;
mod desk;
mod http;
mod outgoing;
mod server;
mod signals;
mod tally;
mod watch;

use std::error::Error;
use std::io::{self, IsTerminal};
use std::thread;
use std::time::Duration;

use clap::ValueEnum;
use socknotify::Backend;

use crate::{backends, descriptors, output};
use server::Server;
use signals::Signals;

/// Serve TCP clients on one port and many threads: echo, discard or HTTP
///
/// Prints `listening on ADDRESS`, and a summary at the end. Ctrl-C drains: nothing is accepted any
/// more, what has begun is finished, and then the program ends. A second Ctrl-C ends it at once.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Where to listen; port 0 stands for any that is free
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7007")]
    listen: String,

    /// What to do with what clients send
    #[arg(long, value_enum, default_value_t = Mode::Echo)]
    mode: Mode,

    /// Threads that serve [default: two for each place of the port]
    #[arg(long, value_name = "NUMBER")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=10_000))]
    threads: Option<u32>,

    /// How many threads the port lets run at once [default: the number of processors]
    #[arg(long, value_name = "NUMBER")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=10_000))]
    concurrency: Option<u32>,

    /// What the port runs on [default: the best that works here]
    #[arg(long, value_name = "NAME", value_parser = backends::names())]
    backend: Option<Backend>,

    /// Seconds after which a client that sends nothing is closed; an HTTP request has to be there in
    /// full, and what is sent to a client has to be taken, within the same time
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds)]
    idle_timeout: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    /// Send everything back
    Echo,
    /// Receive everything, and answer nothing
    Discard,
    /// HTTP/1.1 with one small answer for everything, and figures at /stats
    Http,
}

/// A positive number of seconds, such as 0.5.
fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    match Duration::try_from_secs_f64(seconds) {
        Ok(time) if time >= Duration::from_millis(1) => Ok(time),
        _ => Err("a time from 0.001 s on is needed".to_owned()),
    }
}

/// Serves until a signal ends it. True if nothing went wrong.
pub(crate) fn run(arguments: &Arguments) -> Result<bool, Box<dyn Error>> {
    descriptors::raise();
    // Before anybody is told that it listens: whoever is may send a signal.
    let signals = Signals::catch()?;
    let places = arguments.concurrency.unwrap_or(0) as usize;
    let mut builder = socknotify::CompletionPort::builder().concurrency(places);
    if let Some(backend) = arguments.backend {
        builder = builder.backend(backend);
    }
    let server = Server::new(builder.build()?, arguments.mode, arguments.idle_timeout);
    let address = server
        .listen(&arguments.listen)
        .map_err(|error| format!("listen on {}: {error}", arguments.listen))?;
    let processors = socknotify::default_concurrency().max(server.places());
    let count = arguments
        .threads
        .map_or(processors * 2, |threads| threads as usize);

    let outcome = thread::scope(|scope| {
        let mut threads = Vec::with_capacity(count);
        for _ in 0..count {
            match thread::Builder::new().spawn_scoped(scope, || server.run_thread()) {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    server.close();
                    return Err(error);
                }
            }
        }
        if let Err(error) = output::line(format_args!("listening on {address}")) {
            server.close();
            return Err(error);
        }
        watch::until_the_end(&server, &signals, threads, io::stderr().is_terminal())
    });
    output::line(server.figures())?;
    outcome?;
    Ok(true)
}
