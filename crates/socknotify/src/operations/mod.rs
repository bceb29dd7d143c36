//! Completions other than readiness: blocking work, and operations on files.

#![cfg_attr(
    any(
        kqueue_stand_in,
        all(target_os = "linux", not(target_pointer_width = "64")),
        not(any(target_os = "linux", windows))
    ),
    allow(dead_code, reason = "not every system does operations by itself")
)]

mod buffer;
#[cfg_attr(
    all(
        target_os = "linux",
        not(kqueue_stand_in),
        any(
            target_arch = "x86_64",
            target_arch = "aarch64",
            target_arch = "riscv64",
            target_arch = "loongarch64",
            target_arch = "powerpc64"
        )
    ),
    path = "uring.rs"
)]
#[cfg_attr(windows, path = "overlapped.rs")]
mod direct;
mod driver;
mod file;
mod flights;
mod helpers;
#[cfg(unix)]
mod port;
#[cfg(unix)]
mod raw;
mod request;
#[cfg_attr(unix, path = "unix.rs")]
#[cfg_attr(windows, path = "windows.rs")]
mod system;
mod table;

use std::io;

pub use self::buffer::Buffer;
pub use self::driver::FileDriver;
pub use self::file::{FileCompletion, FileOperation, OperationId, PortFile};
pub(crate) use self::flights::Reason;
pub(crate) use self::helpers::{DEFAULT_THREADS, Helpers};
#[cfg(unix)]
pub use self::raw::Overlapped;
#[cfg(unix)]
pub(crate) use self::raw::Raw;
pub(crate) use self::table::Operations;

/// The result of passing an operation to the system.
enum Begun {
    UnderWay,
    /// The system does not perform it. A helper thread may.
    Refused,
    /// It has completed, without a packet.
    Over(io::Result<usize>),
}

/// What a packet of the system reports of an operation.
enum Settled {
    Done(io::Result<usize>),
    /// It was cancelled or interrupted, for whatever reason.
    Cancelled,
}

/// Makes packets of the system's completions.
#[cfg(unix)]
trait Settle: Send + Sync {
    /// `None` if it was begun again.
    fn settle(&self, key: usize, settled: Settled) -> Option<crate::Entry>;
}
