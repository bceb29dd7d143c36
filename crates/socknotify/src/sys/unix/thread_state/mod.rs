//! What a thread does: each system shows it in its own way.

#[cfg(target_vendor = "apple")]
mod apple;
#[cfg(target_os = "linux")]
mod linux;
#[cfg(any(target_os = "freebsd", target_os = "netbsd"))]
mod listed;
#[cfg(any(target_os = "openbsd", target_os = "dragonfly"))]
mod unknown;

#[cfg(target_vendor = "apple")]
pub(crate) use self::apple::Thread;
#[cfg(target_os = "linux")]
pub(crate) use self::linux::Thread;
#[cfg(any(target_os = "freebsd", target_os = "netbsd"))]
pub(crate) use self::listed::Thread;
#[cfg(any(target_os = "openbsd", target_os = "dragonfly"))]
pub(crate) use self::unknown::Thread;
