//! [`KernelPort`]: the kernel's completion port.

use std::io;
use std::os::windows::io::{AsRawHandle, FromRawHandle, OwnedHandle};
use std::ptr::{null, null_mut};
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use super::alarm::Alarm;
use super::{calls, codes};
use crate::{Entry, Error};
use windows_sys::Win32::Foundation::{HANDLE, INVALID_HANDLE_VALUE, NTSTATUS, STATUS_SUCCESS};
use windows_sys::Win32::System::IO::{
    CreateIoCompletionPort, OVERLAPPED, OVERLAPPED_ENTRY, PostQueuedCompletionStatus,
};
use windows_sys::Win32::System::LibraryLoader::{GetModuleHandleA, GetProcAddress};
use windows_sys::Win32::System::Threading::INFINITE;

#[link(name = "ntdll")]
unsafe extern "system" {
    fn NtQueryIoCompletion(
        port: HANDLE,
        class: i32,
        information: *mut i32,
        length: u32,
        returned: *mut u32,
    ) -> NTSTATUS;
    fn NtRemoveIoCompletionEx(
        port: HANDLE,
        packets: *mut OVERLAPPED_ENTRY,
        room: u32,
        removed: *mut u32,
        timeout: *const i64,
        alertable: u8,
    ) -> NTSTATUS;
}

/// A completion port of the kernel.
pub(crate) struct KernelPort {
    // They are dropped in this order: the timer posts to the port.
    alarm: OnceLock<Alarm>,
    handle: OwnedHandle,
}

impl KernelPort {
    /// A port that lets any number of threads run.
    pub(crate) fn new() -> io::Result<Self> {
        Self::with_concurrency(i32::MAX as u32)
    }

    /// A port that lets this many threads run.
    pub(crate) fn with_concurrency(concurrency: u32) -> io::Result<Self> {
        // SAFETY: the call touches no memory of ours; what it returns is a new handle.
        unsafe {
            let port =
                CreateIoCompletionPort(INVALID_HANDLE_VALUE, std::ptr::null_mut(), 0, concurrency);
            if port.is_null() {
                return Err(io::Error::last_os_error());
            }
            Ok(Self::from_handle(OwnedHandle::from_raw_handle(port)))
        }
    }

    /// A port that the caller has made.
    pub(crate) fn from_handle(handle: OwnedHandle) -> Self {
        KernelPort {
            alarm: OnceLock::new(),
            handle,
        }
    }

    /// Its alarm, which posts an empty packet with this key, the same every time. It is made when it is first needed: it takes
    /// a thread of the system's pool.
    pub(crate) fn alarm(&self, key: usize) -> Result<&Alarm, Error> {
        if let Some(alarm) = self.alarm.get() {
            return Ok(alarm);
        }
        let alarm = Alarm::new(self, key).map_err(|error| codes::error(&error))?;
        // Another thread may be first.
        Ok(self.alarm.get_or_init(|| alarm))
    }

    pub(crate) fn handle(&self) -> HANDLE {
        self.handle.as_raw_handle()
    }

    /// Have operations on this handle complete on the port, under this key.
    pub(crate) fn associate(&self, handle: HANDLE, key: usize) -> io::Result<()> {
        // SAFETY: the call touches no memory of ours; a handle that is none makes it fail.
        let port = unsafe { CreateIoCompletionPort(handle, self.handle(), key, 0) };
        if port.is_null() {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    pub(crate) fn post(&self, bytes: u32, key: usize, overlapped: usize) -> io::Result<()> {
        calls::note();
        // SAFETY: the kernel carries the pointer as a value, and does not dereference it.
        let posted = unsafe {
            PostQueuedCompletionStatus(self.handle(), bytes, key, overlapped as *const OVERLAPPED)
        };
        if posted == 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    /// Post a packet that must come: if there is no memory for it, until there is.
    pub(crate) fn insist(&self, key: usize, overlapped: usize) {
        while let Err(error) = self.post(0, key, overlapped) {
            match codes::error(&error) {
                Error::OutOfMemory => thread::sleep(Duration::from_millis(1)),
                // Nobody uses it any more.
                _ => return,
            }
        }
    }

    /// The number of packets in its queue.
    pub(crate) fn depth(&self) -> usize {
        let mut depth = 0;
        let length = size_of_val(&depth) as u32;
        // SAFETY: the value is there for the call, and as long as it says.
        unsafe { NtQueryIoCompletion(self.handle(), 0, &mut depth, length, null_mut()) };
        usize::try_from(depth).unwrap_or(0)
    }

    /// Wait for at least one packet, and take at most `room`. None on a timeout.
    ///
    /// Under Wine each packet is a request to its server, and so is finding out that there is no other. So a thread takes
    /// what is queued, and one packet if it has to wait. If there are more by then, the next call does not wait.
    pub(crate) fn take(
        &self,
        packets: &mut Vec<OVERLAPPED_ENTRY>,
        room: usize,
        timeout: Option<Duration>,
    ) {
        if room > 1 && timeout != Some(Duration::ZERO) && is_wine() {
            packets.clear();
            let queued = self.depth().min(room);
            if queued > 0 {
                self.remove(packets, queued, Some(Duration::ZERO));
            }
            // Another thread may have been faster.
            if packets.is_empty() {
                self.remove(packets, 1, timeout);
            }
        } else {
            self.remove(packets, room, timeout);
        }
    }

    /// `NtRemoveIoCompletionEx`
    ///
    /// This is what `GetQueuedCompletionStatusEx` calls. `socknotify.dll` intercepts that one, and is called by it.
    fn remove(&self, packets: &mut Vec<OVERLAPPED_ENTRY>, room: usize, timeout: Option<Duration>) {
        calls::note();
        packets.clear();
        packets.reserve(room);
        let mut count = 0;
        // In whole milliseconds, which is what the kernel can do. Under Wine shorter waits only take processor time.
        let ticks = timeout.map(|_| i64::from(milliseconds(timeout)) * -10_000);
        let timeout = ticks.as_ref().map_or(null(), std::ptr::from_ref);
        // SAFETY: the kernel writes at most `room` packets into memory reserved for them, and says how
        // many it has written.
        unsafe {
            let status = NtRemoveIoCompletionEx(
                self.handle(),
                packets.as_mut_ptr(),
                room as u32,
                &mut count,
                timeout,
                0,
            );
            if status == STATUS_SUCCESS {
                packets.set_len(count as usize);
            }
        }
    }
}

/// A packet of others.
pub(crate) fn entry(packet: &OVERLAPPED_ENTRY) -> Entry {
    let overlapped = packet.lpOverlapped.expose_provenance();
    let bytes = packet.dwNumberOfBytesTransferred;
    Entry::new(packet.lpCompletionKey, bytes, overlapped)
}

/// Whether this is Wine. There a port wakes the thread that has waited longest; Windows wakes the one that began to
/// wait last. The `cfg` `as_windows` says no, to run what Windows would.
pub(crate) fn is_wine() -> bool {
    if cfg!(as_windows) {
        return false;
    }
    static IS_WINE: OnceLock<bool> = OnceLock::new();
    // SAFETY: the names are strings that end; the library is never unloaded.
    *IS_WINE.get_or_init(|| unsafe {
        let library = GetModuleHandleA(c"ntdll.dll".as_ptr().cast());
        GetProcAddress(library, c"wine_get_version".as_ptr().cast()).is_some()
    })
}

/// A timeout for the kernel: not shorter, and at most some weeks. For a longer one the caller waits again.
pub(crate) fn milliseconds(timeout: Option<Duration>) -> u32 {
    match timeout {
        None => INFINITE,
        Some(timeout) => {
            let whole = timeout.as_nanos().div_ceil(1_000_000);
            whole.min(u128::from(INFINITE / 2)) as u32
        }
    }
}

/// A timeout in the kernel's own steps of 100 ns. Negative values count from now.
pub(crate) fn ticks(timeout: Duration) -> i64 {
    let ticks = timeout.as_nanos().div_ceil(100);
    -i64::try_from(ticks).unwrap_or(i64::MAX)
}
