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
    pub(crate) is_shown: bool,
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
