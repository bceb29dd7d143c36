//! The access log.

use std::fmt::{self, Write as _};
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use std::{mem, thread};

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

/// How much waits to be written, besides what the writer has in hand. What does not fit is lost, and counted.
const ROOM: usize = 4 << 20;

/// How much is written at once: a pipe takes it whole or not at all.
const PART: usize = 4096;

/// How often to try again where the log takes nothing.
const RETRY: Duration = Duration::from_millis(100);

/// Where the lines go: to a thread that writes them, in the order in which they come. No other thread waits for the file.
#[derive(Debug)]
pub(crate) struct AccessLog(Arc<Queue>);

#[derive(Debug, Default)]
struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    lines: Vec<u8>,
    /// How many lines are not written: these, and those that the writer has in hand.
    pending: u64,
    /// How many did not fit behind these.
    missing: u64,
    /// How many are lost in all.
    lost: u64,
    /// The file is to be opened again.
    reopens: bool,
    /// Nothing more comes.
    ends: bool,
    has_ended: bool,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AccessLog {
    /// Opens the file, and starts the thread that writes to it.
    ///
    /// # Errors
    ///
    /// The system's; also if it is a pipe that nobody has open for reading.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let queue = Arc::new(Queue::default());
        let writer = Writer {
            queue: Arc::clone(&queue),
            path: path.to_owned(),
            file: system::open_log(path)?,
            lines: Vec::new(),
            written: 0,
            missing: 0,
            missing_after: 0,
            is_late: false,
            is_torn: false,
            has_failed: false,
        };
        let thread = thread::Builder::new().name("access log".into());
        thread.spawn(move || writer.run())?;
        Ok(AccessLog(queue))
    }

    /// Has the file of this name opened again, which may be another one meanwhile.
    pub(crate) fn reopen(&self) {
        self.0.lock().reopens = true;
        self.0.changed.notify_all();
    }

    /// Takes what a thread has to say. If there is no room for it, it is lost.
    pub(crate) fn append(&self, log: &mut Log) {
        if log.lines.is_empty() {
            return;
        }
        let count = lines_in(log.lines.as_bytes());
        let mut state = self.0.lock();
        let was_empty = state.lines.is_empty() && state.missing == 0;
        // Nothing is taken behind a gap, so that the writer knows where it is.
        if state.missing == 0 && state.lines.len() + log.lines.len() <= ROOM {
            state.lines.extend_from_slice(log.lines.as_bytes());
            state.pending += count;
        } else {
            state.missing += count;
            state.lost += count;
        }
        drop(state);
        log.lines.clear();
        if was_empty {
            self.0.changed.notify_all();
        }
    }

    /// How many lines were lost so far.
    pub(crate) fn lost(&self) -> u64 {
        self.0.lock().lost
    }

    /// Waits until everything is written, at most until then. What is not is lost.
    pub(crate) fn finish(&self, until: Instant) {
        let mut state = self.0.lock();
        state.ends = true;
        self.0.changed.notify_all();
        while !state.has_ended {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                state.lost += mem::take(&mut state.pending);
                return;
            }
            let waited = self.0.changed.wait_timeout(state, left);
            (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// What the thread that writes has.
struct Writer {
    queue: Arc<Queue>,
    path: PathBuf,
    file: File,
    lines: Vec<u8>,
    /// How much of these.
    written: usize,
    /// How many lines are missing before these, and behind them. The log is to say so.
    missing: u64,
    missing_after: u64,
    /// The log has taken nothing, and is to be tried again.
    is_late: bool,
    /// It ends within a line.
    is_torn: bool,
    /// It was said what is wrong, since the file was opened.
    has_failed: bool,
}

/// Why the writer does not wait.
struct Take {
    /// The file is to be opened again.
    reopens: bool,
    /// Something has not fitted.
    has_gap: bool,
}

impl Writer {
    fn run(mut self) {
        while let Some(Take { reopens, has_gap }) = self.take() {
            if reopens {
                self.reopen();
            }
            if has_gap {
                self.say("it takes less than there is");
            }
            let outcome = self.write();
            self.is_late =
                matches!(&outcome, Err(error) if error.kind() == io::ErrorKind::WouldBlock);
            match outcome {
                Err(error) if !self.is_late => self.fail(&error),
                _ => {}
            }
        }
    }

    /// Waits for something to do, and takes what is to be written. `None` at the end.
    fn take(&mut self) -> Option<Take> {
        let mut state = self.queue.lock();
        loop {
            // What did not fit meanwhile came behind what is in hand and what waits.
            if self.lines.is_empty() && self.missing_after == 0 {
                self.lines = mem::take(&mut state.lines);
                self.missing_after = mem::take(&mut state.missing);
            }
            let has_gap = self.missing_after + state.missing > 0;
            if state.reopens || self.is_late || has_gap || !self.lines.is_empty() {
                let reopens = mem::take(&mut state.reopens);
                return Some(Take { reopens, has_gap });
            }
            if state.ends {
                state.has_ended = true;
                self.queue.changed.notify_all();
                return None;
            }
            let waited = self.queue.changed.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// If that fails, the old one stays.
    fn reopen(&mut self) {
        match system::open_log(&self.path) {
            Ok(file) => {
                self.file = file;
                self.has_failed = false;
                self.is_torn = false;
                // A line that has begun begins again there.
                let begun = &self.lines[..self.written];
                self.written = begun
                    .iter()
                    .rposition(|&it| it == b'\n')
                    .map_or(0, |at| at + 1);
            }
            Err(error) => output::problem(format_args!("open {}: {error}", self.path.display())),
        }
    }

    /// Writes what is in hand.
    ///
    /// # Errors
    ///
    /// The file's; `WouldBlock` if it takes nothing for a while.
    fn write(&mut self) -> io::Result<()> {
        self.note_missing()?;
        while self.written < self.lines.len() {
            let rest = &self.lines[self.written..];
            let part = &rest[..rest.len().min(PART)];
            let end = part.iter().rposition(|&it| it == b'\n');
            let part = &part[..end.map_or(part.len(), |at| at + 1)];
            let count = put(&self.file, part)?;
            let lines = lines_in(&part[..count]);
            self.written += count;
            let mut state = self.queue.lock();
            state.pending = state.pending.saturating_sub(lines);
        }
        self.lines = Vec::new();
        self.written = 0;
        self.missing = mem::take(&mut self.missing_after);
        self.note_missing()
    }

    fn note_missing(&mut self) -> io::Result<()> {
        if self.missing == 0 {
            return Ok(());
        }
        let newline = if self.is_torn { "\n" } else { "" };
        let missing = output::count(self.missing as usize, "line");
        let note = format!("{newline}# missing here: {missing}\n");
        let count = put(&self.file, note.as_bytes())?;
        self.is_torn = count < note.len();
        if self.is_torn {
            return Err(io::ErrorKind::WriteZero.into());
        }
        self.missing = 0;
        Ok(())
    }

    /// What is in hand is lost. The server goes on.
    fn fail(&mut self, error: &io::Error) {
        let (begun, rest) = self.lines.split_at(self.written);
        self.is_torn |= begun.last().is_some_and(|&last| last != b'\n');
        let lost = lines_in(rest);
        self.missing += lost + mem::take(&mut self.missing_after);
        let mut state = self.queue.lock();
        state.pending = state.pending.saturating_sub(lost);
        state.lost += lost;
        drop(state);
        self.lines = Vec::new();
        self.written = 0;
        self.say(error);
    }

    /// Says what is wrong, once.
    fn say(&mut self, reason: impl fmt::Display) {
        if !mem::replace(&mut self.has_failed, true) {
            output::problem(format_args!("the access log has gaps: {reason}"));
        }
    }
}

/// Writes once. `WouldBlock` if the file takes nothing for a while.
fn put(mut file: &File, bytes: &[u8]) -> io::Result<usize> {
    if !system::takes_more(file, RETRY) {
        return Err(io::ErrorKind::WouldBlock.into());
    }
    loop {
        match file.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                thread::sleep(RETRY);
                return Err(error);
            }
            outcome => return outcome,
        }
    }
}

fn lines_in(bytes: &[u8]) -> u64 {
    bytes.iter().filter(|&&byte| byte == b'\n').count() as u64
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
