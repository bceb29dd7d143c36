//! What the program asks of the system: its name, how many descriptors it allows, and its
//! words for sockets and signals.

#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

#[cfg(unix)]
pub(crate) use unix::*;
#[cfg(windows)]
pub(crate) use windows::*;

/// What the system calls itself.
pub(crate) struct System {
    pub(crate) os: String,
    pub(crate) kernel: String,
    pub(crate) architecture: String,
}
