//! The kernels' readiness interfaces, side by side, and their names.

#[cfg(windows)]
mod afd;
#[cfg(all(target_os = "linux", not(kqueue_stand_in)))]
mod epoll;
#[cfg(all(unix, any(kqueue_stand_in, not(target_os = "linux"))))]
mod kqueue;
#[cfg(windows)]
pub(crate) mod native;

use std::fmt;
use std::str::FromStr;

#[cfg(windows)]
pub(crate) use self::afd::{Afd, closes, is_own};
#[cfg(all(target_os = "linux", not(kqueue_stand_in)))]
pub(crate) use self::epoll::{Epoll, conditions, count_milliseconds};
#[cfg(all(unix, any(kqueue_stand_in, not(target_os = "linux"))))]
pub(crate) use self::kqueue::{Kqueue, conditions};

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
        for (index, backend) in Backend::ALL.iter().enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            write!(f, "{separator}{backend}")?;
        }
        Ok(())
    }
}

impl std::error::Error for UnknownBackend {}
