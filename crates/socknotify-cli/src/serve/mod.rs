//! `socknotify serve`: a server on one port and many threads.
//!
//! A notification moves a [`client`] out of the port, to one thread. That thread serves it once, for a bounded
//! amount of work, and arms it again with a deadline. All threads run the same loop ([`server`]); the main
//! thread shows figures and waits for the signal to end ([`watch`]).

mod client;
mod datagrams;
mod delivery;
mod desk;
mod http;
mod listen;
mod outgoing;
mod plan;
mod root;
mod server;
mod tally;
mod watch;

use std::error::Error;
use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use crate::endpoint::Endpoint;
use crate::options::{self, PortOptions};
use crate::signals::Signals;
use crate::{descriptors, output};
use plan::{Mode, Plan};
use root::Root;
use server::Server;

/// Serve clients on one port and many threads: echo, discard, HTTP or files on streams, echo of datagrams
///
/// Prints `listening on ADDRESS`, and a summary at the end. Ctrl-C drains: the server accepts no more connections,
/// finishes the requests that have begun, and exits. A second Ctrl-C exits at once.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Where to listen: HOST:PORT (port 0: any free one) or unix:PATH
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7007")]
    listen: Endpoint,

    /// What to do with what clients send
    #[arg(long, value_enum, default_value_t = Mode::Echo)]
    mode: Mode,

    /// Directory to serve with --mode files. No path or link leads out of it
    #[arg(long, value_name = "DIRECTORY", required_if_eq("mode", "files"))]
    root: Option<PathBuf>,

    /// Threads that serve [default: twice as many as may run at once]
    #[arg(long, value_name = "NUMBER", value_parser = options::threads())]
    threads: Option<u32>,

    #[command(flatten)]
    port: PortOptions,

    /// Close a client that sends nothing for this long; an HTTP request has to be complete, and a client has
    /// to receive what it is sent, within the same time
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = options::seconds)]
    idle_timeout: Duration,
}

/// Serves until a signal ends it. True if nothing went wrong.
pub(crate) fn run(arguments: &Arguments) -> Result<bool, Box<dyn Error>> {
    descriptors::raise();
    // Before it prints that it listens: a program that waits for that may send a signal.
    let signals = Signals::catch()?;
    let root = arguments.root.as_deref().map(|path| {
        Root::open_at(path).map_err(|error| format!("open {}: {error}", path.display()))
    });
    let server = Server::new(
        arguments.port.build()?,
        Plan::new(arguments.mode, arguments.idle_timeout, root.transpose()?),
    );
    let bound = server
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
        if let Err(error) = output::line(format_args!("listening on {bound}")) {
            server.close();
            return Err(error);
        }
        watch::until_the_end(&server, &signals, threads, io::stderr().is_terminal())
    });
    output::line(server.figures())?;
    outcome?;
    Ok(true)
}
