//! [`Thread`]: how each system shows whether a thread runs.

#[cfg(target_vendor = "apple")]
mod apple;
#[cfg(all(target_os = "linux", not(any(interleavings, simulated))))]
mod linux;
#[cfg(any(target_os = "freebsd", target_os = "netbsd"))]
mod listed;
#[cfg(simulated)]
mod simulated;
#[cfg(any(interleavings, target_os = "openbsd", target_os = "dragonfly"))]
mod unknown;

#[cfg(target_vendor = "apple")]
pub(crate) use self::apple::Thread;
#[cfg(all(target_os = "linux", not(any(interleavings, simulated))))]
pub(crate) use self::linux::Thread;
#[cfg(any(target_os = "freebsd", target_os = "netbsd"))]
pub(crate) use self::listed::Thread;
#[cfg(simulated)]
pub(crate) use self::simulated::Thread;
#[cfg(any(interleavings, target_os = "openbsd", target_os = "dragonfly"))]
pub(crate) use self::unknown::Thread;
