//! [`Implementation`]: whose cost is measured.

use std::fmt;
use std::str::FromStr;

use socknotify::Backend;
use socknotify::owned::FileDriver;

use crate::foreign::{self, Library};
use crate::uring::Ring;

/// One of the sides that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Implementation {
    /// The case's own reads and writes, without notifications.
    Bare,
    /// `epoll`: level-triggered, one-shot or edge-triggered, as the case is.
    RawEpoll,
    /// `epoll`, edge-triggered for good; one `poll` finds out of a whole batch what is ready.
    RawEpollOnePoll,
    /// `epoll`, edge-triggered: one set for each thread, with its share of the connections.
    RawEpollEach,
    /// `io_uring`; in a server, one ring for each thread.
    RawUring,
    /// `eventfd`, by itself.
    Eventfd,
    Polling,
    Mio,
    Tokio,
    /// The same, where a task opens a file itself if that does not block.
    TokioAtOnce,
    /// The port with keys.
    Socknotify(Backend),
    /// The port that owns connections.
    Owned(Backend),
    /// The same, where it learns from reads that nothing is left.
    Drained(Backend),
    /// The port that owns connections, where it wakes a thread at once for each that becomes ready.
    Eager(Backend),
    /// The same, where it does not look whether threads block.
    Unwatched(Backend),
    /// `Port::serve`, whose handlers block and say nothing.
    Serve(Backend),
    /// The same, where they block inside `Worker::blocking`.
    ServeBlocking(Backend),
    /// Tasks of `socknotify-async`, which block and say nothing.
    Async,
    /// A thread for each connection.
    Threads,
    /// A task that blocks says so by `spawn_blocking`.
    TokioSpawning,
    /// Libraries in C, see [`crate::foreign`].
    Foreign(Library),
    /// `pread`, in as many threads as operations are under way.
    Pread,
    /// Operations on files of the port that owns connections.
    Files(FileDriver),
    /// The timing wheel of the owning port.
    Wheel,
    Heap,
    Tree,
}

impl Implementation {
    /// `Port::serve`, where handlers say nothing and where they say that they block, on each backend.
    pub(crate) fn serving() -> impl Iterator<Item = Implementation> {
        Self::with(Implementation::Serve).chain(Self::with(Implementation::ServeBlocking))
    }

    /// Both layers of ours, on each backend.
    pub(crate) fn ours() -> impl Iterator<Item = Implementation> {
        let layers = |&it| [Implementation::Socknotify(it), Implementation::Owned(it)];
        Backend::ALL.iter().flat_map(layers)
    }

    /// One on each backend.
    pub(crate) fn with(
        make: fn(Backend) -> Implementation,
    ) -> impl Iterator<Item = Implementation> {
        Backend::ALL.iter().copied().map(make)
    }

    /// Servers: these, then ours, then those.
    pub(crate) fn servers(
        first: &[Implementation],
        last: &[Implementation],
    ) -> Vec<Implementation> {
        let mut all = Self::around(first, last);
        let end = all.len() - last.len();
        let more = Self::with(Implementation::Eager).chain(Self::with(Implementation::Unwatched));
        all.splice(end..end, more);
        all
    }

    /// These, then ours, then those.
    pub(crate) fn around(first: &[Implementation], last: &[Implementation]) -> Vec<Implementation> {
        let first = first.iter().copied();
        first
            .chain(Self::ours())
            .chain(last.iter().copied())
            .collect()
    }

    /// Whether the system has what it takes, and allows it.
    pub(crate) fn works_here(self) -> bool {
        match self {
            Implementation::RawUring => Ring::new(1).is_ok(),
            Implementation::Socknotify(backend)
            | Implementation::Owned(backend)
            | Implementation::Drained(backend)
            | Implementation::Eager(backend) => backend.probe().is_ok(),
            Implementation::Unwatched(backend)
            | Implementation::Serve(backend)
            | Implementation::ServeBlocking(backend) => backend.probe().is_ok(),
            Implementation::Files(driver) => driver.probe().is_ok(),
            Implementation::Foreign(library) => foreign::load(library).is_some(),
            _ => true,
        }
    }

    pub(crate) fn is_ours(self) -> bool {
        matches!(
            self,
            Implementation::Socknotify(_)
                | Implementation::Owned(_)
                | Implementation::Drained(_)
                | Implementation::Eager(_)
                | Implementation::Unwatched(_)
                | Implementation::Serve(_)
                | Implementation::Async
                | Implementation::ServeBlocking(_)
                | Implementation::Files(_)
                | Implementation::Wheel
        )
    }
}

impl fmt::Display for Implementation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Implementation::Bare => "reads and writes alone",
            Implementation::RawEpoll => "raw epoll",
            Implementation::RawEpollOnePoll => "raw epoll, one poll",
            Implementation::RawEpollEach => "raw epoll, a set each",
            Implementation::RawUring => "raw io_uring",
            Implementation::Eventfd => "raw eventfd",
            Implementation::Polling => "polling",
            Implementation::Mio => "mio",
            Implementation::Tokio => "tokio",
            Implementation::TokioAtOnce => "tokio, opens at once",
            Implementation::Socknotify(backend) => return f.pad(&format!("socknotify {backend}")),
            Implementation::Owned(backend) => {
                return f.pad(&format!("socknotify {backend}, owned"));
            }
            Implementation::Drained(backend) => {
                return f.pad(&format!("socknotify {backend}, drained"));
            }
            Implementation::Eager(backend) => {
                return f.pad(&format!("socknotify {backend}, owned, eager"));
            }
            Implementation::Unwatched(backend) => {
                return f.pad(&format!("socknotify {backend}, owned, unwatched"));
            }
            Implementation::Serve(backend) => {
                return f.pad(&format!("socknotify {backend}, serve"));
            }
            Implementation::ServeBlocking(backend) => {
                return f.pad(&format!("socknotify {backend}, serve, blocking"));
            }
            Implementation::Async => "socknotify-async",
            Implementation::Threads => "a thread for each",
            Implementation::TokioSpawning => "tokio, spawn_blocking",
            Implementation::Foreign(library) => library.name(),
            Implementation::Pread => "pread in threads",
            Implementation::Files(driver) => {
                return f.pad(&format!("socknotify files, {driver}"));
            }
            Implementation::Wheel => "wheel",
            Implementation::Heap => "heap",
            Implementation::Tree => "tree",
        })
    }
}

impl FromStr for Implementation {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        use Implementation::*;
        Self::around(
            &[
                Bare,
                RawEpoll,
                RawEpollOnePoll,
                RawEpollEach,
                RawUring,
                Eventfd,
                Pread,
            ],
            &[
                Polling,
                Mio,
                Tokio,
                TokioAtOnce,
                TokioSpawning,
                Async,
                Threads,
                Wheel,
                Heap,
                Tree,
            ],
        )
        .into_iter()
        .chain(Self::with(Drained))
        .chain(Self::with(Eager))
        .chain(Self::with(Unwatched))
        .chain(Self::serving())
        .chain(Library::ALL.map(Foreign))
        .chain(FileDriver::ALL.map(Files))
        .into_iter()
        .find(|implementation| implementation.to_string() == name)
        .ok_or_else(|| format!("no implementation is called {name:?}"))
    }
}
