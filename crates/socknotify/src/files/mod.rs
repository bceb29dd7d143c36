//! Operations on files, which complete on a port; and helper threads for work that blocks.
//!
//! [`Operations`] has those of a port, whoever's the memory is, each in a slot. The system performs them, or a helper
//! thread does. On Linux the system's part is a ring with one thread (`kernel_io/ring.rs`) of its own.
//!
//! # Locks
//!
//! | lock | who has it | taken while it is held |
//! |---|---|---|
//! | `patience` | who closes | `slot`, or `callers` |
//! | `slot`, of one operation | who begins, cancels, completes or takes it; on Windows for `ReadFile` or `WriteFile` | `callers`, by who begins; one of the queues |
//! | `callers` | who begins, completes or cancels with the caller's memory; who closes | none |
//! | the ring's `queue`, the helpers' `state` | who begins, cancels, or takes a batch or a job, for a few lines | none |
//!
//! Nobody copies more than 16 KiB with a lock, but in `ReadFile` and `WriteFile`.

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
mod kernel_io;
#[cfg(unix)]
mod overlapped;
mod request;
#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

#[cfg(unix)]
use self::unix as system;
#[cfg(windows)]
use self::windows as system;

pub use self::buffer::Buffer;
pub use self::driver::FileDriver;
pub use self::file::{FileCompletion, FileOperation, OperationId, PortFile};
pub(crate) use self::helpers::{DEFAULT_THREADS, Helpers};
pub(crate) use self::in_flight::{Operations, Reason};
#[cfg(unix)]
pub use self::overlapped::Overlapped;
#[cfg(unix)]
pub(crate) use self::request::{Kind, Memory, Part};
