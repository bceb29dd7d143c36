//! Windows: overlapped operations, on the port itself.
//!
//! A file that was opened for overlapped operations (`FILE_FLAG_OVERLAPPED`) is associated with the port when it is
//! adopted. Other files, and `sync` operations, have no overlapped operations: helper threads perform them.

#![allow(unsafe_code, reason = "the kernel writes into memory after the call")]

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::windows::io::AsRawHandle;
use std::ptr::slice_from_raw_parts_mut;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use windows_sys::Win32::Foundation::{
    HANDLE, RtlNtStatusToDosError, STATUS_CANCELLED, STATUS_END_OF_FILE, STATUS_PENDING,
};
use windows_sys::Win32::System::IO::{CancelIoEx, OVERLAPPED};

use super::{Completed, Entry, FileDriver, KernelIo, Nature, Operations, Request, Stage};
use crate::backend::SystemPort;
use crate::files::request::Kind;
use crate::files::system;
use crate::support::lock::lock;

pub(in crate::files) const DRIVER: Option<FileDriver> = Some(FileDriver::Overlapped);

/// A port whose packets are those of the kernel's.
struct AssociatedPort {
    /// Different for each.
    id: u64,
    port: SystemPort,
    in_flight: Mutex<InFlight>,
}

#[derive(Default)]
struct InFlight {
    /// The structures that the kernel uses, by the keys of operations.
    pending: HashMap<usize, PendingIo>,
    /// The keys, by the addresses of these structures.
    keys: HashMap<usize, usize>,
    /// Structures that the kernel does not use any more.
    spare: Vec<*mut OVERLAPPED>,
}

struct PendingIo {
    handle: HANDLE,
    overlapped: *mut OVERLAPPED,
}

// SAFETY: the pointers are to memory that is handed back and forth between this and the kernel, under the lock; handles
// belong to the process.
unsafe impl Send for InFlight {}

pub(in crate::files) fn probe() -> io::Result<()> {
    Ok(())
}

/// Operations that complete on this port.
pub(in crate::files) fn open(
    _: &Arc<Operations>,
    port: &SystemPort,
) -> io::Result<Arc<dyn KernelIo>> {
    static PORTS: AtomicU64 = AtomicU64::new(0);
    Ok(Arc::new(AssociatedPort {
        id: PORTS.fetch_add(1, Ordering::Relaxed),
        port: port.clone(),
        in_flight: Mutex::default(),
    }))
}

impl KernelIo for AssociatedPort {
    /// `CreateIoCompletionPort` — Have the operations on a file complete on the port under this key, if it was opened
    /// for that.
    fn associate(&self, file: &File, key: usize, nature: &mut Nature) {
        nature.is_systems = self.port.associate(file.as_raw_handle(), key).is_ok();
        nature.association = nature.is_systems.then_some(self.id);
    }

    unsafe fn begin(&self, _: &Operations, key: usize, request: &Request) -> Option<Stage> {
        let &Request {
            file: handle,
            nature,
            kind,
            memory,
            offset,
        } = request;
        let is_overlapped = matches!(kind, Kind::Read | Kind::Write) && memory.parts == 0;
        if nature.association != Some(self.id) || !is_overlapped {
            return None;
        }
        let bytes = slice_from_raw_parts_mut(memory.first, memory.length);
        // Without the lock: what is in the system's cache is copied in this call.
        let overlapped = lock(&self.in_flight).add(key, handle, offset);
        // SAFETY: by the caller's promise the memory stays valid. The structure is freed only when the kernel does not
        // use it any more. The handle is the file's, and open.
        Some(
            match unsafe { system::begin(kind, handle, bytes, overlapped) } {
                // Its packet comes also if it is complete.
                Ok(()) => Stage::InKernel(None),
                Err(error) => {
                    lock(&self.in_flight).forget(overlapped.addr());
                    Stage::done(system::unless_at_end(error))
                }
            },
        )
    }

    /// `CancelIoEx` — Cancel an operation, if that is still possible.
    fn cancel(&self, key: usize) {
        if let Some(pending) = lock(&self.in_flight).pending.get(&key) {
            pending.cancel();
        }
    }

    fn on_packet(&self, entry: &Entry) -> Option<(usize, Completed)> {
        let mut in_flight = lock(&self.in_flight);
        let key = *in_flight.keys.get(&entry.overlapped)?;
        Some((key, in_flight.take_completed(key)?))
    }

    fn completed(&self, key: usize) -> Option<Completed> {
        lock(&self.in_flight).take_completed(key)
    }
}

impl InFlight {
    /// A structure for an operation that begins now. It is in the table before its packet can come.
    fn add(&mut self, key: usize, handle: HANDLE, offset: u64) -> *mut OVERLAPPED {
        let fresh = system::overlapped(offset);
        let overlapped = match self.spare.pop() {
            Some(spare) => {
                // SAFETY: the kernel does not use it any more.
                unsafe { spare.write(fresh) };
                spare
            }
            None => Box::into_raw(Box::new(fresh)),
        };
        self.keys.insert(overlapped.addr(), key);
        self.pending.insert(key, PendingIo { handle, overlapped });
        overlapped
    }

    /// The outcome of an operation that the kernel has completed.
    fn take_completed(&mut self, key: usize) -> Option<Completed> {
        let pending = self.pending.get(&key)?;
        let (status, count) = pending.status();
        if status == STATUS_PENDING {
            return None;
        }
        self.forget(pending.overlapped.addr());
        Some(match status {
            0.. => Completed::Done(Ok(count)),
            STATUS_END_OF_FILE => Completed::Done(Ok(0)),
            STATUS_CANCELLED => Completed::Cancelled,
            status => {
                // SAFETY: a number goes in and a number comes out.
                let code = unsafe { RtlNtStatusToDosError(status) };
                Completed::Done(Err(io::Error::from_raw_os_error(code as i32)))
            }
        })
    }

    /// The kernel does not use this any more.
    fn forget(&mut self, address: usize) {
        let key = self.keys.remove(&address);
        let pending = key.and_then(|key| self.pending.remove(&key));
        self.spare.extend(pending.map(|pending| pending.overlapped));
    }
}

impl PendingIo {
    /// The kernel's status, and how many bytes were transferred.
    fn status(&self) -> (i32, usize) {
        // SAFETY: the structure is there as long as this; the kernel may write to it, and the status last.
        unsafe {
            let status = (&raw const (*self.overlapped).Internal).read_volatile();
            let count = (&raw const (*self.overlapped).InternalHigh).read_volatile();
            (status as i32, count)
        }
    }

    fn cancel(&self) {
        // SAFETY: the operation's file is open while this is known.
        unsafe { CancelIoEx(self.handle, self.overlapped) };
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        // What the kernel still uses stays.
        let pending = self.pending.values();
        let pending = pending.filter(|pending| pending.status().0 != STATUS_PENDING);
        let pending = pending.map(|pending| pending.overlapped);
        for overlapped in pending.chain(self.spare.iter().copied()) {
            // SAFETY: it was made by a box, and nothing else refers to it.
            drop(unsafe { Box::from_raw(overlapped) });
        }
    }
}
