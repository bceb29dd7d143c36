//! What every exported function needs: an end for panics, and the port that a handle stands for.

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};

use socknotify::CompletionPort;

use crate::code::{self, Code};
use crate::handles::{Handle, Pin, Table};

/// Every port of this process.
pub(crate) static PORTS: Table<CompletionPort> = Table::new();

/// Run the body of an exported function. A panic ends here.
pub(crate) fn entry_point(body: impl FnOnce() -> Result<(), Code>) -> u32 {
    let outcome = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|payload| {
        // Dropping it could panic again.
        std::mem::forget(payload);
        Err(code::INTERNAL_ERROR)
    });
    outcome.err().unwrap_or(code::SUCCESS)
}

/// The port that a handle stands for. It stays in being while the result does, also when another
/// thread closes it.
pub(crate) fn port(handle: *mut c_void) -> Result<Pin<'static, CompletionPort>, Code> {
    let handle = Handle::from_number(handle.addr()).ok_or(code::INVALID_HANDLE)?;
    PORTS.pin(handle).ok_or(code::INVALID_HANDLE)
}
