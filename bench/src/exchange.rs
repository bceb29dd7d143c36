//! What a client and a server exchange, and what the client finds by that.

use std::time::Duration;

use crate::figure::Sample;

/// How long an echoed message is, in bytes.
pub(crate) const MESSAGE: usize = 64;

const REQUEST: &[u8] = b"GET /greeting HTTP/1.1\r\n\
    Host: localhost\r\n\
    User-Agent: socknotify-bench\r\n\
    Accept: text/plain\r\n\r\n";

/// What an HTTP server answers.
pub(crate) const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\n\
    Content-Type: text/plain\r\n\
    Content-Length: 14\r\n\r\n\
    Hello, world!\n";

/// What goes to and fro.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum Exchange {
    Echo,
    Http,
    SmallFile,
    LargeFile,
    /// A byte, which says what its handler does.
    Byte,
}

/// The byte of a request whose handler answers at once.
pub(crate) const QUICK: u8 = 0;
/// The byte of a request whose handler blocks.
pub(crate) const BLOCKING: u8 = 1;

/// How long a file is, in bytes.
pub(crate) const SMALL_FILE: usize = 4096;
pub(crate) const LARGE_FILE: usize = 16 << 20;

/// What comes before a file.
pub(crate) fn file_head(length: u64) -> String {
    let kind = "application/octet-stream";
    format!("HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\r\n")
}

impl Exchange {
    pub(crate) fn request(self) -> &'static [u8] {
        match self {
            Exchange::Echo => &[0x5a; MESSAGE],
            Exchange::Byte => &[QUICK],
            Exchange::Http | Exchange::SmallFile | Exchange::LargeFile => REQUEST,
        }
    }

    /// How long an answer is, in bytes.
    pub(crate) fn response(self) -> usize {
        match self {
            Exchange::Echo => MESSAGE,
            Exchange::Byte => 1,
            Exchange::Http => RESPONSE.len(),
            Exchange::SmallFile => file_head(SMALL_FILE as u64).len() + SMALL_FILE,
            Exchange::LargeFile => file_head(LARGE_FILE as u64).len() + LARGE_FILE,
        }
    }
}

/// What a client has found.
pub(crate) struct Found {
    /// All answers, also those before and after that were not timed.
    pub(crate) answers: f64,
    pub(crate) figures: Sample,
}

/// How long a client sends before it counts.
pub(crate) fn warm_up(time: Duration) -> Duration {
    time / 5
}
