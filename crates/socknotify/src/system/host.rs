//! A port that the caller has made and dequeues from with the system's calls, for `socknotify.dll`.

use std::os::windows::io::OwnedHandle;
use std::sync::Arc;

use windows_sys::Win32::Foundation::HANDLE;
use windows_sys::Win32::System::IO::OVERLAPPED_ENTRY;

use super::SystemPort;
use crate::backend::{Afd, closes, is_own};
use crate::engine::Engine;
use crate::windows::codes;
use crate::windows::port::KernelPort;
use crate::{CompletionPort, Entry, Error, WakePolicy};

/// More than the threads of any port: the kernel counts those that run.
const PLACES: usize = 1 << 20;

#[doc(hidden)]
impl CompletionPort {
    /// A port on this one of the kernel.
    ///
    /// # Errors
    ///
    /// As [`CompletionPort::new`].
    pub fn on(port: OwnedHandle) -> Result<Self, Error> {
        let afd =
            Afd::on(KernelPort::from_handle(port), true).map_err(|error| codes::error(&error))?;
        let engine = Engine::new(afd, PLACES, WakePolicy::Eager, true);
        Ok(Self::of(SystemPort::Engine(Arc::new(engine))))
    }

    /// The library's handle of the kernel's port.
    pub fn kernel_port(&self) -> HANDLE {
        match self.system() {
            SystemPort::Engine(engine) => engine.backend().handle(),
            SystemPort::Native(_) => std::ptr::null_mut(),
        }
    }

    /// Packets that somebody else has taken from the kernel's port: they are dequeued as if nobody had.
    pub fn feed(&self, packets: &[OVERLAPPED_ENTRY]) {
        if let SystemPort::Engine(engine) = self.system() {
            engine.backend().feed(packets);
        }
    }

    /// Have one thread that waits in the kernel's port, or the next one that will, return from there.
    pub fn wake(&self) {
        self.feed(&[]);
    }

    /// From here on, [`closing`](Self::closing) is called for each handle.
    pub fn say_closes() {
        closes::say();
    }

    /// The handle with this value is about to be closed.
    pub fn closing(value: usize) {
        closes::closing(value);
    }

    /// Whether a packet of the kernel's port is only for the library.
    pub fn is_own(packet: &OVERLAPPED_ENTRY) -> bool {
        is_own(packet.lpCompletionKey)
    }
}

#[doc(hidden)]
impl Entry {
    /// The status that the kernel's packet had: of an operation.
    pub fn status(&self) -> i32 {
        self.status
    }
}
