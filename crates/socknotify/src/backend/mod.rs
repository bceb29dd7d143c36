//! The kernels' readiness interfaces, side by side, and the one place that picks among them.

#[cfg(windows)]
mod afd;
#[cfg(windows)]
mod either;
#[cfg(all(target_os = "linux", not(kqueue_stand_in)))]
mod epoll;
#[cfg(all(unix, any(kqueue_stand_in, not(target_os = "linux"))))]
mod kqueue;
#[cfg(windows)]
pub(crate) mod native;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

#[cfg(windows)]
pub(crate) use self::afd::{Afd, closes, is_own};
#[cfg(all(target_os = "linux", not(kqueue_stand_in)))]
pub(crate) use self::epoll::{Epoll, conditions, count_milliseconds};
#[cfg(all(unix, any(kqueue_stand_in, not(target_os = "linux"))))]
pub(crate) use self::kqueue::{Kqueue, conditions};

#[cfg(windows)]
pub(crate) use self::either::SystemPort;
#[cfg(windows)]
use self::native::Native;
use crate::engine::Engine;
#[cfg(windows)]
pub(crate) use crate::os::conditions;
use crate::{Error, WakePolicy};

/// What a port is beneath.
#[cfg(all(target_os = "linux", not(kqueue_stand_in)))]
pub(crate) type SystemPort = Arc<Engine<Epoll>>;
#[cfg(all(unix, any(kqueue_stand_in, not(target_os = "linux"))))]
pub(crate) type SystemPort = Arc<Engine<Kqueue>>;

/// What a port is built on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Backend {
    /// Linux: `epoll`.
    #[cfg(all(target_os = "linux", not(kqueue_stand_in)))]
    Epoll,
    /// macOS and the BSDs: `kqueue`.
    #[cfg(all(unix, any(kqueue_stand_in, not(target_os = "linux"))))]
    Kqueue,
    /// Windows from build 20348: the kernel's own `ProcessSocketNotifications`.
    #[cfg(windows)]
    Native,
    /// Windows: polls of the socket driver, on a completion port of the kernel.
    #[cfg(windows)]
    Afd,
}

impl Backend {
    /// The backends that this build knows, best first.
    pub const ALL: &'static [Backend] = &[
        #[cfg(all(target_os = "linux", not(kqueue_stand_in)))]
        Backend::Epoll,
        #[cfg(all(unix, any(kqueue_stand_in, not(target_os = "linux"))))]
        Backend::Kqueue,
        #[cfg(windows)]
        Backend::Native,
        #[cfg(windows)]
        Backend::Afd,
    ];

    /// The name that programs and options use: `"epoll"`, `"kqueue"`, `"native"`, `"afd"`.
    pub const fn name(self) -> &'static str {
        match self {
            #[cfg(all(target_os = "linux", not(kqueue_stand_in)))]
            Backend::Epoll => "epoll",
            #[cfg(all(unix, any(kqueue_stand_in, not(target_os = "linux"))))]
            Backend::Kqueue => "kqueue",
            #[cfg(windows)]
            Backend::Native => "native",
            #[cfg(windows)]
            Backend::Afd => "afd",
        }
    }

    /// Tests whether the backend works here, now.
    ///
    /// # Errors
    ///
    /// Why it does not work.
    ///
    /// # Examples
    ///
    /// ```
    /// for backend in socknotify::Backend::ALL {
    ///     match backend.probe() {
    ///         Ok(()) => println!("{backend}: available"),
    ///         Err(error) => println!("{backend}: {error}"),
    ///     }
    /// }
    /// ```
    pub fn probe(self) -> Result<(), Error> {
        self.open(1, WakePolicy::default(), true).map(drop)
    }

    /// A port on this backend, with this many permits. `adapts`: and more, while those that hold them block.
    pub(crate) fn open(
        self,
        concurrency: usize,
        policy: WakePolicy,
        adapts: bool,
    ) -> Result<SystemPort, Error> {
        Ok(match self {
            #[cfg(all(target_os = "linux", not(kqueue_stand_in)))]
            Backend::Epoll => Arc::new(Engine::new(Epoll::new()?, concurrency, policy, adapts)),
            #[cfg(all(unix, any(kqueue_stand_in, not(target_os = "linux"))))]
            Backend::Kqueue => Arc::new(Engine::new(Kqueue::new()?, concurrency, policy, adapts)),
            #[cfg(windows)]
            Backend::Native => SystemPort::Native(Arc::new(Native::new(concurrency)?)),
            #[cfg(windows)]
            Backend::Afd => SystemPort::Engine(Arc::new(Engine::new(
                Afd::new()?,
                concurrency,
                policy,
                adapts,
            ))),
        })
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Backend {
    type Err = UnknownBackend;

    fn from_str(name: &str) -> Result<Self, UnknownBackend> {
        Backend::ALL
            .iter()
            .copied()
            .find(|backend| backend.name() == name)
            .ok_or(UnknownBackend)
    }
}

/// A name that is no backend's in this build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownBackend;

impl fmt::Display for UnknownBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("unknown backend; this build has: ")?;
        let names: Vec<_> = Backend::ALL.iter().map(|it| it.name()).collect();
        f.write_str(&names.join(", "))
    }
}

impl std::error::Error for UnknownBackend {}

/// A backend, and why it was chosen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Choice {
    pub(crate) backend: Backend,
    pub(crate) reason: &'static str,
}

impl Choice {
    pub(crate) fn make(wanted: Option<Backend>) -> Result<Self, Error> {
        let (backend, reason) = match wanted {
            Some(backend) => (backend, "asked for"),
            // There is one.
            #[cfg(unix)]
            None => (Backend::ALL[0], "the only backend for this system"),
            #[cfg(windows)]
            None if Native::is_there() => {
                (Backend::Native, "the system has ProcessSocketNotifications")
            }
            #[cfg(windows)]
            None => (Backend::Afd, "the system has no ProcessSocketNotifications"),
        };
        Ok(Choice { backend, reason })
    }
}

/// [`BOUNDED`](Self::BOUNDED) on Linux, [`Eager`](Self::Eager) on Windows.
impl Default for WakePolicy {
    fn default() -> Self {
        match cfg!(windows) {
            true => WakePolicy::Eager,
            false => WakePolicy::BOUNDED,
        }
    }
}
