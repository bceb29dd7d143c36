//! The live line of a server, on a terminal.

use std::io::{self, IsTerminal};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use super::Running;
use crate::output::count;

/// How often the line changes.
const LINE: Duration = Duration::from_millis(500);

/// How long the end of the server waits for the line to go: a terminal may stand still.
const GOES: Duration = Duration::from_millis(500);

/// A line that goes when this is dropped.
pub(crate) struct LiveLine {
    end: Option<Sender<()>>,
    ended: Receiver<()>,
}

impl Drop for LiveLine {
    fn drop(&mut self) {
        self.end = None;
        let _ = self.ended.recv_timeout(GOES);
    }
}

/// Shows figures that change in place, on a thread of its own, if standard error is a terminal.
pub(crate) fn show(server: &Running) -> io::Result<Option<LiveLine>> {
    if !io::stderr().is_terminal() {
        return Ok(None);
    }
    let (end, waits) = channel();
    let (says, ended) = channel::<()>();
    let server = server.clone();
    thread::Builder::new().spawn(move || {
        let _says = says;
        // As much of the line as fits.
        let style = ProgressStyle::with_template("{wide_msg}");
        let style = style.unwrap_or_else(|_| ProgressStyle::default_spinner());
        let bar = ProgressBar::new_spinner().with_style(style);
        let (mut since, mut before) = (Instant::now(), server.figures().requests);
        while let Err(RecvTimeoutError::Timeout) = waits.recv_timeout(LINE) {
            let figures = server.figures();
            let rate = (figures.requests - before) as f64 / since.elapsed().as_secs_f64();
            (since, before) = (Instant::now(), figures.requests);
            let line = format!(
                "{}, {rate:.0} requests/s, {} of {} work{}",
                count(figures.connections, "connection"),
                figures.threads - figures.waiting_threads.min(figures.threads),
                count(figures.threads, "thread"),
                match server.is_draining() {
                    true => "; draining, Ctrl-C ends it at once",
                    false => "",
                },
            );
            if bar.message() != line {
                bar.set_message(line);
            }
        }
        bar.finish_and_clear();
    })?;
    Ok(Some(LiveLine {
        end: Some(end),
        ended,
    }))
}
