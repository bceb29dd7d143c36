//! `socknotify serve`: a server on one port and many threads.
//!
//! A notification moves a [`client`] out of the port, to one thread. That thread serves it once, for a bounded
//! amount of work, and arms it again with a deadline. All threads run the same loop ([`server`]). One more shows figures and
//! brings about the end ([`watch`]); the main thread waits for signals, and ends the process in time.

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
use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::path::PathBuf;
use std::sync::mpsc::{Sender, TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant};

use clap::ValueEnum;

use crate::descriptors;
use crate::endpoint::Endpoint;
use crate::options::{self, PortOptions};
use crate::output;
use crate::signals::Signals;
use log::AccessLog;
use plan::{Mode, Plan};
use root::{Root, Rules};
use server::Server;

/// Serve clients on one port and many threads: echo, discard, HTTP or files on streams, echo of datagrams
///
/// Prints `listening on ADDRESS`, and a summary at the end. SIGTERM, SIGINT and Ctrl-C drain: the server accepts no more
/// connections, answers what has come and finishes what has begun, for the time of --grace, and exits. What is cut off then
/// is counted. A second later at most the process is gone, whatever blocks: threads that wait for a disk are left behind, and
/// counted. The exit code is 1 if not even the summary is taken. A second one of these signals exits at once. SIGHUP opens
/// the root and the access log again, and ends no server.
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

    /// Append each HTTP request, and how it was answered, to this file in the common log format. SIGHUP opens it again.
    /// No request waits for it: if it takes less than there is, up to 4 MiB of lines are kept. What does not fit is left out
    /// and counted, and the log says where: `# missing here: 3 lines`. A pipe that nobody has open for reading is refused
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

    /// How long what has begun may take when the server is to end. Then it is cut off, and the process ends within a second
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

/// What the thread hears that serves until the end.
enum News {
    /// A signal has come.
    Drain,
    /// A thread of the server has ended.
    Ended(io::Result<()>),
}

/// Serves on this thread, and says how that ends.
fn serve(server: &Server, news: &Sender<News>) {
    let outcome = panic::catch_unwind(AssertUnwindSafe(|| server.run_thread()));
    let outcome = outcome.unwrap_or_else(|_| Err(io::Error::other("a thread panicked")));
    // Nobody hears it after the end.
    let _ = news.send(News::Ended(outcome));
}

/// Serves until a signal ends it. True if nothing went wrong.
///
/// This thread does nothing that may block, and so can end the process in time whatever the others do.
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
    let server = Server::new(
        arguments.port.build()?,
        Plan::new(
            arguments.mode,
            arguments.idle_timeout,
            root.transpose()?,
            log.transpose()?,
        ),
    );
    // Threads that are left behind have it as long as the process is there.
    let server: &'static Server = Box::leak(Box::new(server));
    let bound = server
        .listen(&arguments.listen)
        .map_err(|error| format!("listen on {}: {error}", arguments.listen))?;
    let processors = socknotify::default_concurrency().max(server.places());
    let threads = arguments
        .threads
        .map_or(processors * 2, |threads| threads as usize);

    let (news, heard) = channel();
    for _ in 0..threads {
        let news = news.clone();
        thread::Builder::new().spawn(move || serve(server, &news))?;
    }
    let (says, outcome) = channel();
    let waker = signals.waker();
    thread::Builder::new().spawn(move || {
        let outcome = watch::until_the_end(server, bound, &heard, threads, &waker);
        // The process ends if this is not heard.
        let _ = says.send(outcome);
        waker.wake();
    })?;
    let mut reopened = 0;
    loop {
        match outcome.try_recv() {
            Ok(outcome) => {
                outcome?;
                return Ok(true);
            }
            Err(TryRecvError::Disconnected) => return Err("a thread panicked".into()),
            Err(TryRecvError::Empty) => {}
        }
        if signals.have_come() && server.plan.drain(arguments.grace) {
            // It has not ended, or has just done so.
            let _ = news.send(News::Drain);
        }
        if signals.reopen() {
            if let Some(log) = &server.plan.log {
                log.reopen();
            }
            // A disk may stand still. Without a thread the root stays as it is.
            reopened += 1;
            let number = reopened;
            let _ = thread::Builder::new().spawn(move || {
                if let Err(error) = server.plan.reopen_root(number) {
                    output::problem(format_args!("open the root again: {error}"));
                }
            });
        }
        let left = server.plan.cut_off().map(|cut_off| {
            let end = cut_off + watch::END;
            end.saturating_duration_since(Instant::now())
        });
        if left.is_some_and(|left| left.is_zero()) {
            // Not even its summary was taken.
            return Ok(false);
        }
        signals.wait(left);
    }
}
