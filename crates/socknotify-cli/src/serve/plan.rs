//! What holds for all clients of a server.

use std::io;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
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
    /// With the number of the signal that it was opened again for.
    root: Option<RwLock<(u64, Arc<Root>)>>,
    pub(crate) log: Option<AccessLog>,
    drain: OnceLock<Drain>,
}

/// The server ends.
#[derive(Clone, Copy, Debug)]
struct Drain {
    /// Until then, requests that come are answered if others that came with them are.
    half: Instant,
    /// When what is not finished is closed.
    cut_off: Instant,
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
            root: root.map(|root| RwLock::new((0, Arc::new(root)))),
            log,
            drain: OnceLock::new(),
        }
    }

    /// Where files are.
    pub(crate) fn root(&self) -> Option<Arc<Root>> {
        let root = self.root.as_ref()?.read();
        Some(Arc::clone(&root.unwrap_or_else(PoisonError::into_inner).1))
    }

    /// Has what follows find what has the path of the root by now, for the signal of this number. That may block; what comes later
    /// than that of a later signal does not count.
    pub(crate) fn reopen_root(&self, number: u64) -> io::Result<()> {
        let (Some(place), Some(root)) = (&self.root, self.root()) else {
            return Ok(());
        };
        let root = Arc::new(root.open_again()?);
        let mut place = place.write().unwrap_or_else(PoisonError::into_inner);
        if place.0 < number {
            *place = (number, root);
        }
        Ok(())
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
        self.drain.get().map(|drain| drain.cut_off)
    }

    /// Whether the server drains, and takes nothing more from a client for which this is so: nothing has come of it that was
    /// not received.
    pub(crate) fn takes_no_more(&self, is_empty: impl FnOnce() -> bool) -> bool {
        let drain = self.drain.get();
        drain.is_some_and(|drain| drain.half <= Instant::now() || is_empty())
    }

    /// The server drains from now on, for at most this time. Returns whether it did not before.
    pub(crate) fn drain(&self, grace: Duration) -> bool {
        let now = Instant::now();
        let drain = Drain {
            half: now + grace / 2,
            cut_off: now + grace,
        };
        self.drain.set(drain).is_ok()
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
