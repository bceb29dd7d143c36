//! What every exported function needs: an end for panics, no cancellation, and the port that a handle refers to.

use std::ffi::{c_int, c_void};
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};

use socknotify::CompletionPort;

use crate::code::{self, Code};
use crate::handles::{Handle, Pin, Table};
use crate::process::Process;

/// Every port of this process, and in a forked child those of its parent.
static PORTS: Table<Port> = Table::new();

/// A port, and the process that made it.
pub(crate) struct Port {
    port: CompletionPort,
    process: Process,
}

impl Deref for Port {
    type Target = CompletionPort;

    fn deref(&self) -> &CompletionPort {
        &self.port
    }
}

/// Run the body of an exported function. A panic ends here.
pub(crate) fn entry_point(body: impl FnOnce() -> Result<(), Code>) -> u32 {
    let _cancellation = CancellationOff::new();
    let outcome = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|payload| {
        // Dropping it could panic again.
        std::mem::forget(payload);
        Err(code::INTERNAL_ERROR)
    });
    outcome.err().unwrap_or(code::SUCCESS)
}

#[cfg(not(target_os = "android"))]
unsafe extern "C" {
    safe fn pthread_setcancelstate(state: c_int, old: Option<&mut c_int>) -> c_int;
}

/// There no thread can be cancelled.
#[cfg(target_os = "android")]
fn pthread_setcancelstate(_state: c_int, _old: Option<&mut c_int>) -> c_int {
    0
}

/// `PTHREAD_CANCEL_DISABLE`
const DISABLE: c_int = if cfg!(target_vendor = "apple") { 0 } else { 1 };

/// No cancellation of this thread until it is dropped: unwinding must not begin within Rust's functions, whose callers
/// have more to do.
struct CancellationOff {
    before: c_int,
}

impl CancellationOff {
    fn new() -> Self {
        let mut before = DISABLE;
        pthread_setcancelstate(DISABLE, Some(&mut before));
        CancellationOff { before }
    }
}

impl Drop for CancellationOff {
    fn drop(&mut self) {
        pthread_setcancelstate(self.before, None);
    }
}

/// Give a port a handle. None, with the port closed, if there are no more.
pub(crate) fn insert(port: CompletionPort) -> Option<Handle> {
    let process = Process::this();
    PORTS.insert(Port { port, process })
}

/// The port that a handle refers to, if this process has made it. It stays in being while the result does, also when
/// another thread closes it.
pub(crate) fn port(handle: *mut c_void) -> Result<Pin<'static, Port>, Code> {
    let handle = Handle::from_number(handle.addr()).ok_or(code::INVALID_HANDLE)?;
    let port = PORTS.pin(handle).ok_or(code::INVALID_HANDLE)?;
    match port.process.is_this() {
        true => Ok(port),
        false => Err(code::INVALID_HANDLE),
    }
}

/// The same, of whichever process. From now on the handle refers to nothing.
pub(crate) fn remove(handle: *mut c_void) -> Result<Pin<'static, Port>, Code> {
    let handle = Handle::from_number(handle.addr()).ok_or(code::INVALID_HANDLE)?;
    PORTS.remove(handle).ok_or(code::INVALID_HANDLE)
}
