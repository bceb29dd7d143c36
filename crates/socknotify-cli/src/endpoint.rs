//! Where to listen, and what to connect to.

use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
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
                // In other programs that is a name without a file.
                path if path.starts_with('@') => Err(format!(
                    "it takes paths, and no abstract names; a file of that name is unix:./{path}"
                )),
                path => Ok(Endpoint::Unix(path.into())),
            };
        }
        let bare = text.trim_start_matches('[').trim_end_matches(']');
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) if !text.ends_with(']') && !is_cut_short(host) => (host, port),
            _ if bare.contains(':') => return Err(format!("it has no port, as [{bare}]:7007 has")),
            _ if text.parse::<u16>().is_ok() => return Err(no_host(text)),
            _ => return Err(format!("it has no port, as {text}:7007 has")),
        };
        if port.parse::<u16>().is_err() {
            return Err("its port is no number from 0 to 65535".to_owned());
        }
        if host.is_empty() {
            return Err(no_host(port));
        }
        if host.contains(':') && !(host.starts_with('[') && host.ends_with(']')) {
            let bare = host.trim_start_matches('[').trim_end_matches(']');
            return Err(format!(
                "a number with colons stands in brackets: [{bare}]:{port}"
            ));
        }
        Ok(Endpoint::Host(text.to_owned()))
    }
}

/// Whether the colon behind this is one of the number's own, as in `fe80::1`.
fn is_cut_short(host: &str) -> bool {
    host.ends_with(':') && !host.ends_with("::")
}

/// The addresses of a host and a port, as an [`Endpoint`] has them.
///
/// The standard library takes the zone of an address only as a number; the system's resolver takes its name, without brackets.
pub(crate) fn addresses(name: &str) -> io::Result<impl Iterator<Item = SocketAddr> + use<>> {
    let zoned = name.strip_prefix('[').and_then(|it| it.split_once("]:"));
    match zoned.and_then(|(host, port)| Some((host, port.parse::<u16>().ok()?))) {
        Some(zoned) => zoned.to_socket_addrs(),
        None => name.to_socket_addrs(),
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

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_zone_is_a_name_or_a_number() -> io::Result<()> {
        let addresses = |name| -> io::Result<Vec<_>> { Ok(addresses(name)?.collect()) };
        let by_name = addresses("[fe80::1%lo]:7007")?;
        // It is the first one of every network namespace.
        assert_eq!(by_name, ["[fe80::1%1]:7007".parse().expect("an address")]);
        assert_eq!(addresses("[fe80::1%1]:7007")?, by_name);
        assert!(addresses("[fe80::1%nowhere]:7007").is_err());
        Ok(())
    }
}
