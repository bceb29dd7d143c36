//! What completes on a port and is no readiness: work that blocks, and operations on files.

mod buffer;
mod file;
mod helpers;
#[cfg_attr(unix, path = "unix.rs")]
#[cfg_attr(windows, path = "windows.rs")]
mod system;
mod table;

pub use self::buffer::Buffer;
pub use self::file::{FileCompletion, FileOperation, OperationId, PortFile};
pub(crate) use self::helpers::{DEFAULT_THREADS, Helpers};
pub(crate) use self::table::{Operations, Reason};
