//! The main thread of the server: shows figures, and brings about the end.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use super::listen::Bound;
use super::server::Server;
use super::tally::Counts;
use crate::output::count;
use crate::signals::Signals;

/// How often the state of the server is looked at, if it is shown.
const TICK: Duration = Duration::from_millis(25);

/// How often the live line changes, and how often it looks whether the server is idle no more.
const LINE: Duration = Duration::from_millis(500);

/// How long threads may take to end once the port is closed.
const LEAVE: Duration = Duration::from_millis(150);

/// The threads of a server, and how each ends.
pub(crate) struct Threads {
    pub(crate) count: usize,
    pub(crate) ended: Receiver<io::Result<()>>,
}

/// Ends the program at a time, whatever its other threads wait for: also this one, for who reads what it prints.
pub(crate) struct LastResort(Sender<Instant>);

impl LastResort {
    /// Starts its thread, which may not be to be had when it is needed.
    pub(crate) fn start() -> io::Result<Self> {
        let (sender, times) = channel::<Instant>();
        let run = move || {
            if let Ok(time) = times.recv() {
                thread::sleep(time.saturating_duration_since(Instant::now()));
                std::process::exit(1);
            }
        };
        thread::Builder::new().name("end".into()).spawn(run)?;
        Ok(LastResort(sender))
    }

    fn arm(&self, time: Instant) {
        let _ = self.0.send(time);
    }
}

/// Waits for a signal, drains the server, and ends its threads. A thread that ends before that ends
/// them all, and the outcome says why. Returns how many threads have not ended in time.
pub(crate) fn until_the_end(
    server: &Server,
    bound: &mut Bound,
    signals: &Signals,
    threads: Threads,
    last_resort: LastResort,
    is_shown: bool,
) -> (usize, io::Result<()>) {
    let mut line = LiveLine::new(is_shown, threads.count);
    let mut end: Option<Instant> = None;
    let (mut left, mut outcome) = (threads.count, Ok(()));
    loop {
        let ended = threads.ended.try_recv();
        if let Ok(ended) = ended {
            left -= 1;
            outcome = outcome.and(ended);
            continue;
        }
        if left < threads.count || end.is_some_and(|end| end <= Instant::now()) {
            break;
        }
        let tick = is_shown.then_some(if line.is_idle { LINE } else { TICK });
        let to_end = end.map(|end| end.saturating_duration_since(Instant::now()));
        signals.wait([tick, to_end].into_iter().flatten().min());
        if end.is_none() && signals.have_come() {
            // Before the listener is closed: then another server may take its place.
            bound.remove_file();
            // When that is over, the threads end.
            let over = server.drain();
            last_resort.arm(over + 2 * LEAVE);
            end = Some(over);
        }
        if signals.reopen() {
            if let Some(log) = &server.plan.log {
                log.reopen();
            }
        }
        line.show(server);
    }
    line.bar.finish_and_clear();
    if end.is_none() {
        last_resort.arm(Instant::now() + 4 * LEAVE);
    }
    server.close();
    let until = Instant::now() + LEAVE;
    while left > 0 {
        let time = until.saturating_duration_since(Instant::now());
        let Ok(ended) = threads.ended.recv_timeout(time) else {
            break;
        };
        left -= 1;
        outcome = outcome.and(ended);
    }
    if let Some(log) = &server.plan.log {
        // As long as there is time.
        log.flush(end.map_or(LEAVE, |end| {
            (end + LEAVE).saturating_duration_since(Instant::now())
        }));
    }
    (left, outcome)
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
    /// One watched them, by the wake policy.
    is_watched: bool,
    /// How many had left their places, at most.
    left: usize,
    /// Nobody has asked for anything since the line changed.
    is_idle: bool,
}

impl LiveLine {
    fn new(is_shown: bool, threads: usize) -> Self {
        let bar = match is_shown {
            false => ProgressBar::hidden(),
            true => ProgressBar::new_spinner().with_style(
                // As much of the line as fits.
                ProgressStyle::with_template("{wide_msg}")
                    .unwrap_or_else(|_| ProgressStyle::default_spinner()),
            ),
        };
        LiveLine {
            bar,
            threads,
            since: Instant::now(),
            before: Counts::default(),
            running: 0,
            samples: 0,
            is_watched: false,
            left: 0,
            is_idle: false,
        }
    }

    fn show(&mut self, server: &Server) {
        if self.bar.is_hidden() {
            return;
        }
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
        self.is_watched |= state.is_watched;
        self.left = self.left.max(state.left.unwrap_or(0));
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
        let watches = if self.is_watched { ", 1 watches" } else { "" };
        let left = left(self.left, state.detected_after);
        self.bar.set_message(format!(
            "{open}{:.0} requests/s, {:.1} of {} threads run{watches}{left}, {:.1} notifications per dequeue",
            requests as f64 / time.as_secs_f64(),
            self.running as f64 / self.samples as f64,
            self.threads,
            notifications as f64 / dequeues.max(1) as f64,
        ));
        self.since = Instant::now();
        self.before = now;
        (self.running, self.samples) = (0, 0);
        (self.is_watched, self.left) = (false, 0);
    }
}

/// Threads that block, and so have left their places to others, with how long it took to find out the last time.
fn left(count: usize, detected_after: Option<Duration>) -> String {
    match (count, detected_after) {
        (0, _) => String::new(),
        (count, None) => format!(", {count} blocked"),
        (count, Some(after)) => format!(", {count} blocked (seen after {after:.1?})"),
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
    fn places_that_were_left_are_shown() {
        let after = Some(Duration::from_micros(1260));
        assert_eq!(left(0, after), "");
        assert_eq!(left(2, None), ", 2 blocked");
        assert_eq!(left(2, after), ", 2 blocked (seen after 1.3ms)");
    }
}
