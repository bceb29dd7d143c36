//! A [`CompletionPort`] over a completion port of the caller's, who dequeues with the system's calls: for `socknotify.dll`.

use std::os::windows::io::OwnedHandle;
use std::sync::Arc;

use windows_sys::Win32::Foundation::HANDLE;
use windows_sys::Win32::System::IO::OVERLAPPED_ENTRY;

use crate::backend::SystemPort;
use crate::backend::{Afd, closes};
use crate::engine::Engine;
use crate::os::windows::codes;
use crate::os::windows::port::KernelPort;
use crate::{CompletionPort, Entry, Error, WakePolicy};

/// More than the threads of any port: the kernel counts those that run.
const PERMITS: usize = 1 << 20;

/// A port on this one of the kernel.
///
/// # Errors
///
/// As [`CompletionPort::new`].
pub fn port_on(port: OwnedHandle) -> Result<CompletionPort, Error> {
    let afd = Afd::on(KernelPort::from_handle(port), true).map_err(|error| codes::error(&error))?;
    let engine = Engine::new(afd, PERMITS, WakePolicy::Eager, false);
    Ok(CompletionPort::of(SystemPort::Engine(Arc::new(engine))))
}

/// The library's handle of the kernel's port.
pub fn kernel_port(port: &CompletionPort) -> HANDLE {
    match port.system() {
        SystemPort::Engine(engine) => engine.backend().handle(),
        SystemPort::Native(_) => std::ptr::null_mut(),
    }
}

/// Packets that somebody else has taken from the kernel's port: they are dequeued as if nobody had.
pub fn feed(port: &CompletionPort, packets: &[OVERLAPPED_ENTRY]) {
    if let SystemPort::Engine(engine) = port.system() {
        engine.backend().feed(packets);
    }
}

/// Have one thread that waits in the kernel's port, or the next one that will, return from there.
pub fn wake(port: &CompletionPort) {
    feed(port, &[]);
}

/// From here on, [`closing`] is called for each handle.
pub fn say_closes() {
    closes::say();
}

/// The handle with this value is about to be closed.
pub fn closing(value: usize) {
    closes::closing(value);
}

/// Whether a packet of the kernel's port is only for the library.
pub fn is_own(packet: &OVERLAPPED_ENTRY) -> bool {
    crate::backend::is_own(packet.lpCompletionKey)
}

/// The status that the kernel's packet had: of an operation.
pub fn status(entry: &Entry) -> i32 {
    entry.status
}
