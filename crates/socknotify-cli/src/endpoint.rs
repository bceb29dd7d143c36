//! Where to listen, and what to connect to.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// The prefix of a Unix socket's path.
const UNIX: &str = "unix:";

/// `HOST:PORT`, or `unix:PATH`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    /// A host's name or number, and a port.
    Host(String),
    /// A Unix socket.
    Unix(PathBuf),
}

impl FromStr for Endpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix(UNIX) {
            return match path {
                "" => Err("it has no path, as unix:/tmp/socket has".to_owned()),
                path => Ok(Endpoint::Unix(path.into())),
            };
        }
        let Some((host, port)) = text.rsplit_once(':') else {
            if text.parse::<u16>().is_ok() {
                return Err(no_host(text));
            }
            return Err(format!("it has no port, as {text}:7007 has"));
        };
        if port.parse::<u16>().is_err() {
            return Err("its port is no number from 0 to 65535".to_owned());
        }
        if host.is_empty() {
            return Err(no_host(port));
        }
        if host.contains(':') && !(host.starts_with('[') && host.ends_with(']')) {
            return Err(format!(
                "a number with colons stands in brackets: [{host}]:{port}"
            ));
        }
        Ok(Endpoint::Host(text.to_owned()))
    }
}

fn no_host(port: &str) -> String {
    format!(
        "it has no host, as 127.0.0.1:{port} has, or 0.0.0.0:{port} for all addresses of this machine"
    )
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::Host(name) => f.write_str(name),
            Endpoint::Unix(path) => write!(f, "{UNIX}{}", path.display()),
        }
    }
}
