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
