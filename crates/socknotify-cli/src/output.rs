//! Standard output, for readers that may go away.

use std::fmt;
use std::io::{self, Write};

/// Prints a line.
///
/// The reader of the output may stop early, as `head` does. That is no error: the exit code still
/// shows the result.
pub(crate) fn line(text: impl fmt::Display) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    match writeln!(stdout, "{text}").and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        outcome => outcome,
    }
}

/// Says on standard error what went wrong. If nobody reads that, the exit code shows it.
pub(crate) fn problem(text: impl fmt::Display) {
    let _ = writeln!(io::stderr(), "socknotify: {text}");
}

/// A number of things, such as `1 request` or `2 requests`.
pub(crate) fn count(number: usize, thing: &str) -> String {
    let ending = if number == 1 { "" } else { "s" };
    format!("{number} {thing}{ending}")
}
