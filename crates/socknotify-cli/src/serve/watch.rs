//! What a server shows, and its end.

use std::io::{self, IsTerminal};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use super::News;
use super::listen::Bound;
use super::server::Server;
use super::tally::{Counts, Figures};
use crate::output::{self, count};
use crate::signals::Waker;

/// How often the state of the server is looked at, if it is shown.
const TICK: Duration = Duration::from_millis(25);

/// How often the live line changes, and how often it looks whether the server is idle no more.
const LINE: Duration = Duration::from_millis(500);

/// The end of the server, after what is not finished was cut off: how long threads have to end, the log to be written, and all
/// of it. Within a second the process is gone.
const THREADS: Duration = Duration::from_millis(600);
const LOG: Duration = Duration::from_millis(750);
pub(crate) const END: Duration = Duration::from_millis(950);

/// Says that the server listens, drains it when that is heard, and sums it up when its threads have ended, or will not. A thread
/// that ends before that drains it, too, and the outcome says why.
pub(crate) fn until_the_end(
    server: &'static Server,
    mut bound: Bound,
    news: &Receiver<News>,
    threads: usize,
    waker: &Waker,
) -> io::Result<()> {
    output::line(format_args!("listening on {bound}"))?;
    let shown = io::stderr()
        .is_terminal()
        .then(|| show(server, threads))
        .transpose()?;
    let mut running = threads;
    let mut outcome = Ok(());
    while running > 0 {
        let heard = match server.plan.cut_off() {
            None => news.recv().ok(),
            Some(cut_off) => news.recv_timeout(until(cut_off + THREADS)).ok(),
        };
        let drains = match heard {
            Some(News::Drain) => true,
            Some(News::Ended(ended)) => {
                running -= 1;
                outcome = outcome.and(ended);
                server.plan.drain(Duration::ZERO)
            }
            None => break,
        };
        if drains {
            // Before the listener is closed: then another server may take its place.
            bound.remove_file();
            server.drain();
            waker.wake();
        }
    }
    let cut_off = server.plan.cut_off().unwrap_or_else(Instant::now);
    if let Some((ends, ended)) = shown {
        drop(ends);
        // A terminal may stand still.
        let _ = ended.recv_timeout(until(cut_off + THREADS));
    }
    let left_behind = running + server.close(cut_off + THREADS);
    if let Some(log) = &server.plan.log {
        log.finish(cut_off + LOG);
    }
    output::line(Figures {
        left_behind,
        open: 0,
        ..server.figures()
    })?;
    outcome
}

fn until(time: Instant) -> Duration {
    time.saturating_duration_since(Instant::now())
}

/// Shows figures on a thread of its own, until what is returned is dropped; then the other end closes.
fn show(server: &'static Server, threads: usize) -> io::Result<(Sender<()>, Receiver<()>)> {
    let (ends, go_on) = channel();
    let (ended, has_ended) = channel();
    thread::Builder::new().spawn(move || {
        let _ended: Sender<()> = ended;
        let mut line = LiveLine::new(threads);
        while let Err(RecvTimeoutError::Timeout) =
            go_on.recv_timeout(if line.is_idle { LINE } else { TICK })
        {
            line.show(server);
        }
        line.bar.finish_and_clear();
    })?;
    Ok((ends, has_ended))
}

/// Figures that change in place, on a terminal.
struct LiveLine {
    bar: ProgressBar,
    threads: usize,
    since: Instant,
    before: Counts,
    /// How many threads ran, each time since then.
    running: usize,
    samples: usize,
    /// How many might run, at most.
    limit: usize,
    /// Nobody has asked for anything since the line changed.
    is_idle: bool,
}

impl LiveLine {
    fn new(threads: usize) -> Self {
        let bar = ProgressBar::new_spinner().with_style(
            // As much of the line as fits.
            ProgressStyle::with_template("{wide_msg}")
                .unwrap_or_else(|_| ProgressStyle::default_spinner()),
        );
        LiveLine {
            bar,
            threads,
            since: Instant::now(),
            before: Counts::default(),
            running: 0,
            samples: 0,
            limit: 0,
            is_idle: false,
        }
    }

    fn show(&mut self, server: &Server) {
        if let Some(cut_off) = server.plan.cut_off() {
            let left = cut_off.saturating_duration_since(Instant::now());
            self.is_idle = false;
            let line = draining(server.figures().open, left);
            if self.bar.message() != line {
                self.bar.set_message(line);
            }
            return;
        }
        let state = server.snapshot();
        self.running += state.running.unwrap_or(0);
        self.samples += 1;
        self.limit = self.limit.max(state.limit.unwrap_or(0));
        let time = self.since.elapsed();
        if time < LINE {
            return;
        }
        let figures = server.figures();
        let now = figures.counts;
        let requests = now.requests - self.before.requests;
        let notifications = now.notifications - self.before.notifications;
        let dequeues = now.dequeues - self.before.dequeues;
        self.is_idle = notifications == 0;
        let open = match !server.plan.mode.is_datagrams() {
            true => count(figures.open, "connection") + ", ",
            false => String::new(),
        };
        let limit = limit(self.limit, server.places());
        self.bar.set_message(format!(
            "{open}{:.0} requests/s, {:.1} of {} threads run{limit}, {:.1} notifications per dequeue",
            requests as f64 / time.as_secs_f64(),
            self.running as f64 / self.samples as f64,
            self.threads,
            notifications as f64 / dequeues.max(1) as f64,
        ));
        self.since = Instant::now();
        self.before = now;
        (self.running, self.samples) = (0, 0);
        self.limit = 0;
    }
}

/// How many threads might run, where these were more than the concurrency value: some block, or compute for long.
fn limit(limit: usize, concurrency: usize) -> String {
    match limit > concurrency {
        true => format!(" (limit {limit})"),
        false => String::new(),
    }
}

/// The line while the server drains.
fn draining(open: usize, left: Duration) -> String {
    format!(
        "draining: {} left, at most {} s; Ctrl-C ends it at once",
        count(open, "connection"),
        left.as_secs_f64().ceil(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_has_risen_is_shown() {
        assert_eq!(limit(2, 2), "");
        assert_eq!(limit(8, 2), " (limit 8)");
    }
}
