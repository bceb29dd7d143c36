//! The access log.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock};
use std::time::SystemTime;

use httpdate::HttpDate;
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

use super::http::Told;
use crate::output;

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

/// Where the lines go, which threads append with one call each.
#[derive(Debug)]
pub(crate) struct AccessLog {
    path: PathBuf,
    file: RwLock<File>,
    has_failed: AtomicBool,
}

impl AccessLog {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        Ok(AccessLog {
            path: path.to_owned(),
            file: RwLock::new(open(path)?),
            has_failed: AtomicBool::new(false),
        })
    }

    /// Opens the file of this name again, which may be another one meanwhile. If that fails, the server goes on with the old
    /// one, and says so.
    pub(crate) fn reopen(&self) {
        match open(&self.path) {
            Ok(file) => {
                *self.file.write().unwrap_or_else(PoisonError::into_inner) = file;
                self.has_failed.store(false, Ordering::Relaxed);
            }
            Err(error) => output::problem(format_args!("open {}: {error}", self.path.display())),
        }
    }

    /// Appends what a thread has to say. If that fails, it is lost: the server goes on, and says so once.
    pub(crate) fn append(&self, log: &mut Log) {
        if log.lines.is_empty() {
            return;
        }
        let file = self.file.read().unwrap_or_else(PoisonError::into_inner);
        let outcome = (&*file).write_all(log.lines.as_bytes());
        drop(file);
        log.lines.clear();
        if let Err(error) = outcome {
            if !self.has_failed.swap(true, Ordering::Relaxed) {
                output::problem(format_args!("the access log has gaps: {error}"));
            }
        }
    }
}

fn open(path: &Path) -> io::Result<File> {
    File::options().append(true).create(true).open(path)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

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
