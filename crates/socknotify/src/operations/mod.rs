//! What completes on a port and is no readiness: work that blocks, and operations on files.

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

/// What has become of an operation that the system was to begin.
enum Begun {
    UnderWay,
    /// The system does not do it. A helper thread may.
    Refused,
    /// There is no packet.
    Over(io::Result<usize>),
}

/// What a packet of the system says of an operation.
enum Settled {
    Done(io::Result<usize>),
    /// It was cancelled, by whomever, or interrupted.
    Cancelled,
}

/// Makes packets of the system's completions.
#[cfg(unix)]
trait Settle: Send + Sync {
    /// `None` if it was begun again.
    fn settle(&self, key: usize, settled: Settled) -> Option<crate::Entry>;
}
