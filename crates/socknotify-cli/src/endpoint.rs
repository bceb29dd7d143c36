//! Where to listen, and what to connect to.

use std::convert::Infallible;
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
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(match text.strip_prefix(UNIX) {
            Some(path) => Endpoint::Unix(path.into()),
            None => Endpoint::Host(text.to_owned()),
        })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::Host(name) => f.write_str(name),
            Endpoint::Unix(path) => write!(f, "{UNIX}{}", path.display()),
        }
    }
}
