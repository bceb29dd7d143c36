//! `socknotify serve`: servers on one port and many threads.
//!
//! HTTP and files are handlers of `socknotify-http` ([`site`], [`root`]); echo and the like are loops on a port of their own
//! ([`streams`]). The main thread serves, one waits for signals, and one shows figures ([`watch`]).

mod listen;
mod listing;
mod log;
mod place;
mod root;
mod site;
mod streams;
mod watch;

use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;
use std::{fmt, io};

use clap::ValueEnum;
use serde::Serialize;
use socknotify_http::{Handle, Limits, Server, Serving};

use crate::descriptors;
use crate::endpoint::Endpoint;
use crate::options::{self, PortOptions};
use crate::output;
use crate::system::{self, Signal};
use listen::{Bound, Listener};
use log::LogFile;
use root::{Root, Rules};
use site::Site;
use streams::Streams;

/// Serve clients on one port: echo, discard, HTTP or files on streams, echo of datagrams
///
/// Prints `listening on ADDRESS`, and a summary at the end. SIGTERM, SIGINT and Ctrl-C drain: the server accepts no more
/// connections, answers what has come and finishes what has begun, for the time of --grace, and exits. About a second later the
/// process is gone, whatever blocks: threads that wait for a disk are left behind, and named, and the exit code is 1. A second
/// one of these signals exits at once. SIGHUP opens the root and the access log again, and ends no server.
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

    /// Show what is in a directory that has no index.html, but for links that lead nowhere or out of the root
    #[arg(long, requires = "root")]
    listing: bool,

    /// Append each HTTP request, and how it was answered, to this file in the common log format, with the milliseconds that it
    /// took. SIGHUP opens it again. No request waits for it: what it does not keep up with is left out and counted. A pipe that
    /// nobody has open for reading is refused
    #[arg(long, value_name = "FILE")]
    access_log: Option<PathBuf>,

    /// Threads that serve, at most: as many as may run at once, and more while some block [default: 512]. With
    /// --mode echo a client that takes its bytes slowly has one as long as it takes something; over HTTP it has none
    #[arg(long, value_name = "NUMBER", value_parser = options::threads())]
    threads: Option<u32>,

    #[command(flatten)]
    port: PortOptions,

    /// Close a client that sends nothing for this long, or takes nothing of what it is sent; an HTTP request has
    /// to be complete within the same time
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = options::seconds)]
    idle_timeout: Duration,

    /// How long what has begun may take when the server is to end. Then it is cut off
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = options::seconds)]
    grace: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Mode {
    /// Send everything back
    Echo,
    /// Receive everything, and answer nothing
    Discard,
    /// HTTP/1.1 with one small answer for everything, and its statistics at /stats
    Http,
    /// HTTP/1.1 with the files beneath --root: ranges, conditions, and index.html for a directory
    Files,
    /// Send each UDP datagram back to its sender
    UdpEcho,
}

impl Mode {
    fn is_http(self) -> bool {
        matches!(self, Mode::Http | Mode::Files)
    }
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
        if self.mode == Mode::UdpEcho && matches!(self.listen, Endpoint::Unix(_)) {
            return Some(format!("--mode {mode} is for HOST:PORT, not for unix:PATH"));
        }
        None
    }
}

/// A server that runs, for the threads beside it.
#[derive(Clone)]
enum Running {
    Http(Handle),
    Streams(Arc<Streams>),
}

impl Running {
    fn drain(&self, within: Duration) {
        match self {
            Running::Http(handle) => handle.drain(within),
            Running::Streams(streams) => streams.drain(within),
        }
    }

    fn is_draining(&self) -> bool {
        match self {
            Running::Http(handle) => handle.is_draining(),
            Running::Streams(streams) => streams.is_draining(),
        }
    }

    fn figures(&self) -> Figures {
        match self {
            Running::Http(handle) => Figures::of(handle),
            Running::Streams(streams) => streams.figures(),
        }
    }
}

/// What a server reports: what it has now, and what it has done so far.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Figures {
    connections: usize,
    threads: usize,
    waiting_threads: usize,
    requests: u64,
    client_errors: u64,
    server_errors: u64,
    /// A file or a disk has failed while it was sent.
    failed_bodies: u64,
    body_bytes: u64,
    /// Lines that the access log has left out.
    not_logged: u64,
}

impl Figures {
    fn of(handle: &Handle) -> Self {
        let it = handle.metrics();
        let errors = it.client_errors + it.server_errors;
        Figures {
            connections: it.connections,
            threads: it.threads,
            waiting_threads: it.waiting_threads,
            requests: it.informational + it.successful + it.redirections + errors,
            client_errors: it.client_errors,
            server_errors: it.server_errors,
            failed_bodies: it.failed_bodies,
            body_bytes: it.body_bytes,
            not_logged: it.log_left_out,
        }
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "requests       {:>12}", self.requests)?;
        let others = [
            ("client errors", self.client_errors),
            ("server errors", self.server_errors),
            ("failed bodies", self.failed_bodies),
            ("body bytes", self.body_bytes),
            ("not logged", self.not_logged),
        ];
        for (name, count) in others.into_iter().filter(|&(_, count)| count > 0) {
            write!(f, "\n{name:<14} {count:>12}")?;
        }
        Ok(())
    }
}

/// Serves until a signal ends it. True if nothing went wrong.
pub(crate) fn run(arguments: &Arguments) -> Result<bool, Box<dyn Error>> {
    descriptors::raise();
    let opened = |path: &PathBuf, error| format!("open {}: {error}", path.display());
    let rules = Rules {
        shows_hidden: arguments.hidden,
        lists: arguments.listing,
    };
    let root = arguments
        .root
        .as_ref()
        .map(|path| Root::open_at(path, rules).map_err(|error| opened(path, error)));
    let log = arguments
        .access_log
        .as_ref()
        .map(|path| LogFile::open(path).map_err(|error| opened(path, error)));
    let (root, log) = (root.transpose()?, log.transpose()?);
    let port = arguments.port.build()?;
    let (listener, mut bound) = Bound::bind(&arguments.listen, arguments.mode == Mode::UdpEcho)
        .map_err(|error| format!("listen on {}: {error}", arguments.listen))?;
    let mut serving = Serving::default().name("serve");
    if let Some(threads) = arguments.threads {
        serving = serving.threads(threads as usize);
    }
    // A disk may stand still: what is opened again is not waited for.
    let (reopen, reopens) = channel();
    let (idle, name) = (arguments.idle_timeout, bound.to_string());
    let (running, serve): (_, Box<dyn FnOnce() -> io::Result<()>>) = match listener {
        Listener::Streams(listener) if arguments.mode.is_http() => {
            let limits = Limits::default()
                .connections(usize::MAX)
                .idle(idle)
                .head_time(idle)
                .body_time(idle, 1 << 10)
                .stall(idle)
                // A file may be large, and a line slow.
                .answer_time(Duration::MAX);
            let mut server = Server::on_port(port, listener)
                .limits(limits)
                .serving(serving);
            if let Some(log) = &log {
                server = server.log(log.clone());
            }
            let handle = server.handle();
            let site = Arc::new(Site::new(handle.clone(), root));
            let reopened = Arc::clone(&site);
            thread::Builder::new().spawn(move || {
                for () in reopens {
                    reopened.reopen();
                    log.iter().for_each(LogFile::reopen);
                }
            })?;
            let serve = move || server.serve(move |request| site.answer(request));
            (Running::Http(handle), Box::new(serve))
        }
        listener => {
            let is_echo = arguments.mode != Mode::Discard;
            let streams = Arc::new(Streams::new(port, listener, is_echo, idle)?);
            let served = Arc::clone(&streams);
            (
                Running::Streams(streams),
                Box::new(move || served.serve(serving)),
            )
        }
    };
    // Before it prints that it listens: a program that waits for that may send a signal.
    let (grace, server) = (arguments.grace, running.clone());
    system::on_signals(move |signal| match signal {
        Signal::End => {
            // Before the listener is closed: then another server may take its place.
            bound.remove_file();
            server.drain(grace);
        }
        // A server of streams has nothing to open.
        Signal::Reopen => drop(reopen.send(())),
    })?;
    output::line(format_args!("listening on {name}"))?;
    let live_line = watch::show(&running)?;
    let outcome = serve();
    drop(live_line);
    output::line(running.figures())?;
    outcome?;
    Ok(true)
}
