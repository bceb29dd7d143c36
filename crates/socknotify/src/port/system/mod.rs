//! The port of this system, and the one place that picks it.

#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

use std::sync::Arc;

#[cfg(unix)]
pub(crate) use self::unix::SystemPort;
#[cfg(windows)]
pub(crate) use self::windows::SystemPort;
#[cfg(windows)]
use crate::backend::Afd;
#[cfg(all(target_os = "linux", not(kqueue_stand_in)))]
use crate::backend::Epoll;
#[cfg(all(unix, any(kqueue_stand_in, not(target_os = "linux"))))]
use crate::backend::Kqueue;
#[cfg(windows)]
use crate::backend::native::Native;
use crate::engine::Engine;
use crate::{Backend, Error, WakePolicy};

impl Backend {
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

/// A backend, and why it was chosen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Choice {
    pub(crate) backend: Backend,
    pub(crate) reason: &'static str,
}

impl Choice {
    pub(crate) fn make(wanted: Option<Backend>) -> Result<Self, Error> {
        match wanted {
            Some(backend) => Ok(Choice {
                backend,
                reason: "asked for",
            }),
            None => Ok(Self::best()),
        }
    }

    #[cfg(unix)]
    fn best() -> Self {
        Choice {
            // There is one.
            backend: Backend::ALL[0],
            reason: "the only backend for this system",
        }
    }

    #[cfg(windows)]
    fn best() -> Self {
        match Native::is_there() {
            true => Choice {
                backend: Backend::Native,
                reason: "the system has ProcessSocketNotifications",
            },
            false => Choice {
                backend: Backend::Afd,
                reason: "the system has no ProcessSocketNotifications",
            },
        }
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
