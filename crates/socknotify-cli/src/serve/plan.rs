//! What holds for all clients of a server.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use clap::ValueEnum;

use super::http::Site;
use super::log::AccessLog;
use super::root::Root;

#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) mode: Mode,
    pub(crate) idle_timeout: Duration,
    /// Where the files are that are served.
    pub(crate) root: Option<Arc<Root>>,
    pub(crate) log: Option<AccessLog>,
    cut_off: OnceLock<Instant>,
}

impl Plan {
    pub(crate) fn new(
        mode: Mode,
        idle_timeout: Duration,
        root: Option<Root>,
        log: Option<AccessLog>,
    ) -> Self {
        Plan {
            mode,
            idle_timeout,
            root: root.map(Arc::new),
            log,
            cut_off: OnceLock::new(),
        }
    }

    /// What is there for HTTP.
    pub(crate) fn site(&self) -> Site {
        Site {
            has_files: self.mode == Mode::Files,
            is_logged: self.log.is_some(),
        }
    }

    /// When the server closes what is not finished: `None` until it drains.
    pub(crate) fn cut_off(&self) -> Option<Instant> {
        self.cut_off.get().copied()
    }

    /// The server drains from now on, for at most this time.
    pub(crate) fn drain_within(&self, time: Duration) {
        self.cut_off.get_or_init(|| Instant::now() + time);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    /// Send everything back
    Echo,
    /// Receive everything, and answer nothing
    Discard,
    /// HTTP/1.1 with one small answer for everything, and its statistics at /stats
    Http,
    /// HTTP/1.1 with the files beneath --root: ranges, conditions, and index.html for a directory
    Files,
    /// Send each UDP datagram back to its sender
    UdpEcho,
}

impl Mode {
    pub(crate) fn is_http(self) -> bool {
        matches!(self, Mode::Http | Mode::Files)
    }

    pub(crate) fn is_datagrams(self) -> bool {
        self == Mode::UdpEcho
    }
}
