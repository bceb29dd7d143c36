//! Completions other than readiness: blocking work, and operations on files.
//!
//! # Locks of the ring
//!
//! The kernel copies cached data in the call that submits an operation. So nobody waits for the lock of a submission but
//! closing, once: who finds it taken leaves the queue to its owner, who looks again.
//!
//! | lock | who has it | for how long | taken while it is held |
//! |---|---|---|---|
//! | `submission` | a thread in `begin` or `process`, or the pump | one `io_uring_enter`: the kernel copies | `slot`, `queue`, both before that call |
//! | `completion` | the thread that found the ring ready | its operations complete; it copies nothing | `slot`, `queue`, the helpers' state, one after the other |
//! | `slot`, of one operation | who begins, cancels, completes or takes it | a few lines; on Windows `ReadFile` or `WriteFile` | `queue` |
//! | `queue` | who begins, or takes a batch | a push, a batch | none |
//!
//! A helper thread copies with no lock.

#![cfg_attr(
    any(
        kqueue_stand_in,
        all(target_os = "linux", not(target_pointer_width = "64")),
        not(any(target_os = "linux", windows))
    ),
    allow(dead_code, reason = "not every system does operations by itself")
)]

mod buffer;
mod driver;
mod file;
mod helpers;
mod in_flight;
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
mod kernel_io;
mod opening;
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
pub(crate) use self::helpers::{DEFAULT_THREADS, Helpers};
pub(crate) use self::in_flight::Reason;
pub(crate) use self::opening::Opening;
#[cfg(unix)]
pub use self::raw::Overlapped;
#[cfg(unix)]
pub(crate) use self::raw::Raw;
pub(crate) use self::table::Operations;

/// The layers of a port that begin operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layer {
    /// The memory is the caller's.
    #[cfg_attr(windows, allow(dead_code, reason = "there the system has these"))]
    Caller,
    /// The port owns connections, files and buffers.
    Connections,
}

/// The result of passing an operation to the system.
enum Begun {
    #[cfg_attr(unix, allow(dead_code, reason = "there they are queued"))]
    Pending,
    /// The system gets it with the next flush.
    #[cfg_attr(windows, allow(dead_code, reason = "there is no queue"))]
    Queued,
    /// The system does not perform it. A helper thread may.
    Refused,
    /// It has completed, without a packet.
    Over(io::Result<usize>),
}

/// What the system reports of an operation.
enum Completed {
    Done(io::Result<usize>),
    /// It was cancelled or interrupted, for whatever reason.
    Cancelled,
    /// It could not reach the memory. That may be because the thread that has submitted it has ended: another one finds
    /// out.
    #[cfg_attr(windows, allow(dead_code, reason = "there no thread's end matters"))]
    Faulted,
}

/// What the system asks the layer that an operation is of.
#[cfg(unix)]
trait Owner: Send + Sync {
    fn is_queued(&self, key: usize) -> bool;

    /// A queued operation is about to be submitted. False if it was cancelled.
    fn submits(&self, key: usize) -> bool;

    /// The system does not accept an operation after all.
    fn refused(&self, key: usize);

    /// The packet of an operation that the system has ended. `None` if it was begun again.
    fn on_completed(&self, key: usize, completed: Completed) -> Option<crate::Entry>;
}
