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
mod log;
mod outgoing;
mod plan;
mod root;
mod server;
mod tally;
mod watch;

use std::error::Error;
use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use clap::ValueEnum;

use crate::endpoint::Endpoint;
use crate::options::{self, PortOptions};
use crate::signals::{Signals, Waker};
use crate::{descriptors, output};
use log::AccessLog;
use plan::{Mode, Plan};
use root::{Root, Rules};
use server::Server;
use watch::{LastResort, Threads};

/// Serve clients on one port and many threads: echo, discard, HTTP or files on streams, echo of datagrams
///
/// Prints `listening on ADDRESS`, and a summary at the end. SIGTERM, SIGINT and Ctrl-C drain: the server accepts no more
/// connections, answers what has come and finishes what has begun, for the time of --grace, and exits. What is cut off then
/// is counted. A second one of them exits at once.
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

    /// Serve files and directories whose names begin with a dot, too, also where links lead to them
    #[arg(long, requires = "root")]
    hidden: bool,

    /// Show what is in a directory that has no index.html
    #[arg(long, requires = "root")]
    listing: bool,

    /// Append each HTTP request, and how it was answered, to this file in the common log format. SIGHUP opens it again. If it
    /// cannot be written fast enough, as a pipe that nobody reads, lines are left out and counted; a pipe that nobody has open
    /// for reading is refused
    #[arg(long, value_name = "FILE")]
    access_log: Option<PathBuf>,

    /// Threads that serve [default: twice as many as may run at once]
    #[arg(long, value_name = "NUMBER", value_parser = options::threads())]
    threads: Option<u32>,

    #[command(flatten)]
    port: PortOptions,

    /// Close a client that sends nothing for this long, or takes nothing of what it is sent; an HTTP request has
    /// to be complete within the same time
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = options::seconds)]
    idle_timeout: Duration,

    /// How long what has begun may take when the server is to end. Then it is cut off; a second later the program has ended,
    /// whatever its threads wait for
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = options::seconds)]
    grace: Duration,
}

impl Arguments {
    /// Options that contradict each other, in ways that the parser does not know.
    pub(crate) fn contradiction(&self) -> Option<String> {
        let mode = self.mode.to_possible_value()?;
        let mode = mode.get_name();
        if self.root.is_some() && self.mode != Mode::Files {
            return Some(format!("--root is for --mode files, not for {mode}"));
        }
        if self.access_log.is_some() && !self.mode.is_http() {
            return Some(format!(
                "--access-log is for --mode http and files, not for {mode}"
            ));
        }
        if self.mode.is_datagrams() && matches!(self.listen, Endpoint::Unix(_)) {
            return Some(format!("--mode {mode} is for HOST:PORT, not for unix:PATH"));
        }
        None
    }
}

/// A thread of the server, which says how it ends, also if it panics.
struct Ends {
    outcome: Option<io::Result<()>>,
    to: Sender<io::Result<()>>,
    waker: Waker,
}

impl Drop for Ends {
    fn drop(&mut self) {
        let panicked = || Err(io::Error::other("a thread panicked"));
        // Nobody waits any more.
        let _ = self.to.send(self.outcome.take().unwrap_or_else(panicked));
        self.waker.wake();
    }
}

/// Serves until a signal ends it. True if nothing went wrong.
pub(crate) fn run(arguments: &Arguments) -> Result<bool, Box<dyn Error>> {
    descriptors::raise();
    // Before it prints that it listens: a program that waits for that may send a signal.
    let signals = Signals::catch(true)?;
    let root = arguments.root.as_deref().map(|path| {
        let rules = Rules {
            shows_hidden: arguments.hidden,
            lists: arguments.listing,
        };
        Root::open_at(path, rules).map_err(|error| format!("open {}: {error}", path.display()))
    });
    let log = arguments.access_log.as_deref().map(|path| {
        AccessLog::open(path).map_err(|error| format!("open {}: {error}", path.display()))
    });
    let server = Arc::new(Server::new(
        arguments.port.build()?,
        Plan::new(
            arguments.mode,
            arguments.idle_timeout,
            arguments.grace,
            root.transpose()?,
            log.transpose()?,
        ),
    ));
    let mut bound = server
        .listen(&arguments.listen)
        .map_err(|error| format!("listen on {}: {error}", arguments.listen))?;
    let processors = socknotify::default_concurrency().max(server.places());
    let count = arguments
        .threads
        .map_or(processors * 2, |threads| threads as usize);

    let (to, ended) = channel();
    let threads = Threads { count, ended };
    for _ in 0..count {
        let (server, to, waker) = (Arc::clone(&server), to.clone(), signals.waker());
        let run = move || {
            let outcome = None;
            let mut ends = Ends { outcome, to, waker };
            ends.outcome = Some(server.run_thread());
        };
        thread::Builder::new().spawn(run)?;
    }
    let last_resort = LastResort::start()?;
    output::line(format_args!("listening on {bound}"))?;
    let is_shown = io::stderr().is_terminal();
    let (left, outcome) = watch::until_the_end(
        &server,
        &mut bound,
        &signals,
        threads,
        last_resort,
        is_shown,
    );
    output::line(server.figures())?;
    if left > 0 {
        output::line(format_args!(
            "left behind    {:>12}",
            output::count(left, "thread")
        ))?;
    }
    outcome?;
    Ok(left == 0)
}
