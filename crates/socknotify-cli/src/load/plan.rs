//! What a load is to do.

use std::time::Duration;

use clap::ValueEnum;

use crate::endpoint::Endpoint;

#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) mode: Mode,
    pub(crate) request: Vec<u8>,
    /// Answers have no bodies.
    pub(crate) is_head: bool,
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
    pub(crate) fn request(self, server: &Endpoint, http: &Http) -> Vec<u8> {
        let host = match server {
            Endpoint::Host(name) => name,
            Endpoint::Unix(_) => "localhost",
        };
        if self == Mode::Echo {
            return (b'0'..=b'o').collect();
        }
        let Http {
            method,
            path,
            headers,
        } = http;
        let mut head = format!("{method} {path} HTTP/1.1\r\n");
        let is_host = |header: &String| header.to_ascii_lowercase().starts_with("host:");
        if !headers.iter().any(is_host) {
            head.push_str(&format!("Host: {host}\r\n"));
        }
        for header in headers {
            head.push_str(&format!("{header}\r\n"));
        }
        head.push_str("\r\n");
        head.into_bytes()
    }
}

/// What is asked for with HTTP. There is no body, and no TLS.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Http {
    /// Method of HTTP requests, which have no body
    #[arg(long, default_value = "GET", value_parser = method)]
    pub(crate) method: String,

    /// Path of HTTP requests, with its query
    #[arg(long, default_value = "/", value_parser = path)]
    pub(crate) path: String,

    /// Header line of HTTP requests, such as 'Accept: text/html'; may be given several times
    #[arg(long = "header", value_name = "NAME: VALUE", value_parser = header)]
    pub(crate) headers: Vec<String>,
}

impl Http {
    /// Whether any of it is not as it is without a word.
    pub(crate) fn is_asked_for(&self) -> bool {
        self.method != "GET" || self.path != "/" || !self.headers.is_empty()
    }
}

fn method(text: &str) -> Result<String, String> {
    let is_method = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphabetic());
    is_method
        .then(|| text.to_owned())
        .ok_or_else(|| "it takes a word, such as HEAD".to_owned())
}

fn path(text: &str) -> Result<String, String> {
    let is_path = text.starts_with('/') && text.bytes().all(|byte| byte.is_ascii_graphic());
    is_path
        .then(|| text.to_owned())
        .ok_or_else(|| "it begins with / and has no spaces; other characters as %20".to_owned())
}

fn header(text: &str) -> Result<String, String> {
    let is_line = !text.contains(|one: char| one.is_control());
    match text.split_once(':') {
        Some((name, _)) if is_line && !name.is_empty() && !name.contains(' ') => {
            Ok(text.to_owned())
        }
        _ => Err("it takes a name, a colon and a value".to_owned()),
    }
}
