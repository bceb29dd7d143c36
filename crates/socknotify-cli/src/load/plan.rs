//! What a load is to do.

use std::time::Duration;

use clap::ValueEnum;

use crate::endpoint::Endpoint;

#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) mode: Mode,
    pub(crate) request: Vec<u8>,
    pub(crate) connections: u32,
    pub(crate) pipeline: usize,
    pub(crate) threads: usize,
    pub(crate) time: Duration,
    pub(crate) pace: Pace,
    pub(crate) is_shown: bool,
}

/// When requests are sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Pace {
    /// Each when an answer has come: a closed loop.
    Answers,
    /// So many in a second, on all connections together, whatever the server does: an open loop.
    Rate(f64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    /// Sends everything back
    Echo,
    /// HTTP/1.1
    Http,
}

impl Mode {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Mode::Echo => "echo",
            Mode::Http => "http",
        }
    }

    /// The bytes of one request.
    pub(crate) fn request(self, server: &Endpoint) -> Vec<u8> {
        let host = match server {
            Endpoint::Host(name) => name,
            Endpoint::Unix(_) => "localhost",
        };
        match self {
            Mode::Echo => (b'0'..=b'o').collect(),
            Mode::Http => format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n").into_bytes(),
        }
    }
}
