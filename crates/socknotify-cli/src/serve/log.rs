//! The access log.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write};
use std::mem;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, SystemTime};

use httpdate::HttpDate;
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

use super::http::Told;
use crate::{output, system};

/// What a log shows of a request otherwise than it came. What is not ASCII is so in any case.
const NOT_PLAIN: &AsciiSet = &CONTROLS.add(b'"').add(b'\\');

/// What a thread has to say of the requests that it has answered. Without an access log, nothing.
#[derive(Debug, Default)]
pub(crate) struct Log {
    is_on: bool,
    /// Whose request it is.
    peer: String,
    lines: String,
}

impl Log {
    pub(crate) fn new(is_on: bool) -> Self {
        Log {
            is_on,
            ..Log::default()
        }
    }

    /// What follows is about this peer's requests.
    pub(crate) fn begin(&mut self, peer: impl FnOnce() -> String) {
        if self.is_on {
            self.peer = peer();
        }
    }

    /// A request was answered: its first line, and what is told of the answer.
    pub(crate) fn answered(&mut self, line: &str, told: Told) {
        if self.is_on {
            let Told { status, length } = told;
            // Controls, quotation marks, and what a terminal may take for either.
            let line = utf8_percent_encode(line, NOT_PLAIN);
            let (peer, time) = (&self.peer, time(SystemTime::now()));
            // Memory takes everything.
            let _ = writeln!(
                self.lines,
                "{peer} - - [{time}] \"{line}\" {status} {length}"
            );
        }
    }
}

/// A time as the common log format has it, in UTC.
fn time(time: SystemTime) -> String {
    // `Sun, 06 Nov 1994 08:49:37 GMT`
    let date = HttpDate::from(time).to_string();
    let mut words = date.split(' ').skip(1);
    let mut next = || words.next().unwrap_or_default();
    format!("{}/{}/{}:{} +0000", next(), next(), next(), next())
}

/// How many bytes of lines may wait to be written. What comes beyond that is left out, and counted.
const MOST_WAITING: usize = 4 << 20;

/// Where the lines go. A thread of its own writes them: a file that stands still, or a pipe that nobody reads, keeps no thread of
/// the server waiting.
#[derive(Debug)]
pub(crate) struct AccessLog {
    orders: Sender<Order>,
    state: Arc<State>,
}

enum Order {
    Append(String),
    Reopen,
    /// Say when all before this is done.
    Flush(Sender<()>),
}

#[derive(Debug, Default)]
struct State {
    /// How many bytes wait to be written.
    waiting: AtomicUsize,
    /// How many lines were left out.
    left_out: AtomicU64,
}

impl State {
    fn leave_out(&self, lines: &str) {
        let count = lines.bytes().filter(|&byte| byte == b'\n').count();
        self.left_out.fetch_add(count as u64, Ordering::Relaxed);
    }

    fn left_out(&self) -> u64 {
        self.left_out.load(Ordering::Relaxed)
    }
}

impl AccessLog {
    /// Opens it, and starts its thread.
    ///
    /// # Errors
    ///
    /// The system's; also if it is a pipe that nobody has open for reading.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let file = open(path)?;
        let (orders, received) = channel();
        let state = Arc::new(State::default());
        let log = AccessLog {
            orders,
            state: Arc::clone(&state),
        };
        let path = path.to_owned();
        thread::Builder::new()
            .name("access log".into())
            .spawn(move || write_all(file, &path, &received, &state))?;
        Ok(log)
    }

    /// Opens the file of this name again, which may be another one meanwhile. If that fails, the server goes on with the old
    /// one, and says so.
    pub(crate) fn reopen(&self) {
        let _ = self.orders.send(Order::Reopen);
    }

    /// Appends what a thread has to say. If too much waits to be written, it is left out, and counted.
    pub(crate) fn append(&self, log: &mut Log) {
        let lines = mem::take(&mut log.lines);
        if lines.is_empty() {
            return;
        }
        let length = lines.len();
        let waiting = self.state.waiting.fetch_add(length, Ordering::Relaxed);
        if waiting + length > MOST_WAITING {
            self.state.waiting.fetch_sub(length, Ordering::Relaxed);
            self.state.leave_out(&lines);
        } else {
            let _ = self.orders.send(Order::Append(lines));
        }
    }

    /// How many lines were left out.
    pub(crate) fn left_out(&self) -> u64 {
        self.state.left_out()
    }

    /// Waits until all lines are written, for this time at most.
    pub(crate) fn flush(&self, within: Duration) {
        let (done, is_done) = channel();
        let _ = self.orders.send(Order::Flush(done));
        let _ = is_done.recv_timeout(within);
    }
}

/// Writes what comes, until the log is dropped. Says once, until the log is opened again, that lines are left out.
fn write_all(mut file: File, path: &Path, orders: &Receiver<Order>, state: &State) {
    let (mut has_gaps, mut left_out) = (false, 0);
    for order in orders {
        match order {
            Order::Append(lines) => {
                let outcome = file.write_all(lines.as_bytes());
                if outcome.is_err() {
                    state.leave_out(&lines);
                }
                state.waiting.fetch_sub(lines.len(), Ordering::Relaxed);
                let left_out_before = mem::replace(&mut left_out, state.left_out());
                if left_out > left_out_before && !mem::replace(&mut has_gaps, true) {
                    let why = outcome.err().map(|error| error.to_string());
                    let why = why.unwrap_or_else(|| "it takes too long to write".to_owned());
                    output::problem(format_args!("the access log has gaps: {why}"));
                }
            }
            Order::Reopen => match open(path) {
                Ok(opened) => (file, has_gaps) = (opened, false),
                Err(error) => output::problem(format_args!("open {}: {error}", path.display())),
            },
            Order::Flush(done) => drop(done),
        }
    }
}

/// A pipe without a reader is refused, in place of waiting for one.
fn open(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.append(true).create(true);
    system::open_to_write(&mut options, path)
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    #[test]
    fn a_line_is_in_the_common_log_format() {
        let told = Told {
            status: 404,
            length: 10,
        };
        let mut log = Log::new(true);
        log.begin(|| "127.0.0.1".to_owned());
        log.answered("GET /\"\\ HTTP/1.1", told);
        let line = &log.lines;
        assert!(line.starts_with("127.0.0.1 - - ["), "{line}");
        assert!(
            line.ends_with("] \"GET /%22%5C HTTP/1.1\" 404 10\n"),
            "{line}"
        );
        log.lines.clear();
        log.answered("GET /\u{9b}\u{202e}\u{1}ä HTTP/1.1", told);
        let line = &log.lines;
        assert!(
            line.contains("\"GET /%C2%9B%E2%80%AE%01%C3%A4 HTTP/1.1\""),
            "{line}"
        );
        let date = UNIX_EPOCH + Duration::from_secs(784_111_777);
        assert_eq!(time(date), "06/Nov/1994:08:49:37 +0000");
        let mut off = Log::default();
        off.begin(|| unreachable!("nobody wants to know"));
        off.answered("GET / HTTP/1.1", told);
        assert_eq!(off.lines, "");
    }
}
