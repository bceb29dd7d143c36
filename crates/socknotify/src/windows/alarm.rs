//! A timer of the system's thread pool that posts a packet.

use std::io;
use std::ptr::null;
use std::time::Duration;

use windows_sys::Win32::Foundation::{FILETIME, HANDLE};
use windows_sys::Win32::System::IO::PostQueuedCompletionStatus;
use windows_sys::Win32::System::Threading::{
    CloseThreadpoolTimer, CreateThreadpoolTimer, PTP_CALLBACK_INSTANCE, PTP_TIMER,
    SetThreadpoolTimer, WaitForThreadpoolTimerCallbacks,
};

use super::port::{KernelPort, ticks};

struct Destination {
    port: HANDLE,
    key: usize,
}

/// A timer that posts an empty packet with this key.
pub(crate) struct Alarm {
    timer: PTP_TIMER,
    destination: *mut Destination,
}

// SAFETY: the timer may be set by any thread, and the destination is only read.
unsafe impl Send for Alarm {}
// SAFETY: the same.
unsafe impl Sync for Alarm {}

impl Alarm {
    /// It must be dropped before the port.
    pub(crate) fn new(port: &KernelPort, key: usize) -> io::Result<Self> {
        let port = port.handle();
        let destination = Box::into_raw(Box::new(Destination { port, key }));
        // SAFETY: the destination lives until no callback can come any more.
        let timer = unsafe { CreateThreadpoolTimer(Some(ring), destination.cast(), null()) };
        let alarm = Alarm { timer, destination };
        if timer == 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(alarm)
    }

    /// Post after this time, in place of the time that was set before.
    pub(crate) fn set(&self, delay: Duration) {
        let due = ticks(delay).min(-1);
        let due = FILETIME {
            dwLowDateTime: due as u32,
            dwHighDateTime: (due >> 32) as u32,
        };
        // SAFETY: the timer is there, and the time for as long as the call takes.
        unsafe { SetThreadpoolTimer(self.timer, &due, 0, 0) };
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        // SAFETY: after the second call no callback is running, and none comes.
        unsafe {
            if self.timer != 0 {
                SetThreadpoolTimer(self.timer, null(), 0, 0);
                WaitForThreadpoolTimerCallbacks(self.timer, 1);
                CloseThreadpoolTimer(self.timer);
            }
            drop(Box::from_raw(self.destination));
        }
    }
}

/// Called by a thread of the system's pool.
unsafe extern "system" fn ring(
    _instance: PTP_CALLBACK_INSTANCE,
    destination: *mut core::ffi::c_void,
    _timer: PTP_TIMER,
) {
    // SAFETY: it lives until no call can come any more; the port does too.
    unsafe {
        let destination = &*destination.cast::<Destination>();
        PostQueuedCompletionStatus(destination.port, 0, destination.key, null());
    }
}
