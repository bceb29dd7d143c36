//! Standard output, for readers that may go away.

use std::fmt;
use std::io::{self, Write};
use std::process;

/// Print this. A reader that has gone, as `head` does, wants no more: the program ends.
pub(crate) fn print(text: fmt::Arguments<'_>) {
    match io::stdout().write_fmt(text) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => process::exit(0),
        Err(error) => {
            eprintln!("standard output: {error}");
            process::exit(1)
        }
    }
}

/// The same, and the end of the line.
pub(crate) fn line(text: fmt::Arguments<'_>) {
    print(format_args!("{text}\n"));
}
