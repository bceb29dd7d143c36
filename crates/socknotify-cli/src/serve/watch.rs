//! The main thread of the server: shows figures, and brings about the end.

use std::io;
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use super::server::Server;
use super::signals::Signals;
use super::tally::Counts;

/// How often to look whether a signal has come.
const TICK: Duration = Duration::from_millis(25);

/// How long what has begun may take to be finished.
const GRACE: Duration = Duration::from_secs(5);

/// How often the live line changes.
const LINE: Duration = Duration::from_millis(500);

/// Waits for a signal, drains the server, and ends its threads. A thread that ends before that ends
/// them all, and the outcome says why.
pub(crate) fn until_the_end(
    server: &Server,
    signals: &Signals,
    threads: Vec<ScopedJoinHandle<'_, io::Result<()>>>,
    is_shown: bool,
) -> io::Result<()> {
    let mut line = LiveLine::new(is_shown, threads.len());
    while !threads.iter().any(ScopedJoinHandle::is_finished) {
        thread::sleep(TICK);
        line.show(server);
        if server.cut_off().is_none() && signals.have_come() {
            // When that is over, the threads end.
            server.drain(GRACE);
        }
    }
    line.bar.finish_and_clear();
    server.close();
    let mut outcome = Ok(());
    for thread in threads {
        let ended = thread
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("a thread panicked")));
        outcome = outcome.and(ended);
    }
    outcome
}

/// Figures that change in place, on a terminal.
struct LiveLine {
    bar: ProgressBar,
    threads: usize,
    since: Instant,
    before: Counts,
}

impl LiveLine {
    fn new(is_shown: bool, threads: usize) -> Self {
        let bar = match is_shown {
            false => ProgressBar::hidden(),
            true => ProgressBar::new_spinner().with_style(
                ProgressStyle::with_template("{msg}")
                    .unwrap_or_else(|_| ProgressStyle::default_spinner()),
            ),
        };
        LiveLine {
            bar,
            threads,
            since: Instant::now(),
            before: Counts::default(),
        }
    }

    fn show(&mut self, server: &Server) {
        let time = self.since.elapsed();
        if self.bar.is_hidden() || time < LINE {
            return;
        }
        let figures = server.figures();
        let now = figures.counts;
        let requests = now.requests - self.before.requests;
        let notifications = now.notifications - self.before.notifications;
        let dequeues = now.dequeues - self.before.dequeues;
        let state = server.snapshot();
        // With a bounded wake policy.
        let watches = if state.is_watched { ", 1 watches" } else { "" };
        self.bar.set_message(format!(
            "{} connections, {:.0} requests/s, {:.1} notifications per dequeue, {} of {} threads run{watches}",
            figures.open,
            requests as f64 / time.as_secs_f64(),
            notifications as f64 / dequeues.max(1) as f64,
            state.running.unwrap_or(0),
            self.threads,
        ));
        self.since = Instant::now();
        self.before = now;
    }
}
