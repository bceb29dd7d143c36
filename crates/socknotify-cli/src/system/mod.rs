//! What the program asks of the system: its name, how many descriptors it allows, and its
//! words for sockets and signals.

#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

use serde::Serialize;

#[cfg(unix)]
pub(crate) use unix::*;
#[cfg(windows)]
pub(crate) use windows::*;

/// What a signal asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    /// To end the program. It comes once: the second one ends it at once.
    End,
    /// To open files again.
    #[cfg_attr(windows, expect(dead_code))]
    Reopen,
}

/// What the shell reports for a program that Ctrl-C has ended.
const INTERRUPTED: i32 = 130;

/// What the system calls itself.
pub(crate) struct System {
    pub(crate) os: String,
    pub(crate) kernel: String,
    pub(crate) architecture: String,
}

/// The limits of this process. `None` means no limit.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Limits {
    /// The limit in force.
    pub(crate) soft: Option<u64>,
    /// How far the process may raise it.
    pub(crate) hard: Option<u64>,
}
