//! [`Alarm`]: a thread pool's timer that posts a packet.

use std::io;
use std::mem::ManuallyDrop;
use std::os::windows::io::{FromRawHandle, OwnedHandle};
use std::ptr::null;
use std::sync::Mutex;
use std::time::Duration;

use windows_sys::Win32::Foundation::FILETIME;
use windows_sys::Win32::System::Threading::{
    CloseThreadpool, CloseThreadpoolTimer, CreateThreadpool, CreateThreadpoolTimer,
    PTP_CALLBACK_INSTANCE, PTP_POOL, PTP_TIMER, SetThreadpoolThreadMaximum,
    SetThreadpoolThreadMinimum, SetThreadpoolTimer, TP_CALLBACK_ENVIRON_V3,
    TP_CALLBACK_PRIORITY_NORMAL, WaitForThreadpoolTimerCallbacks,
};

use super::port::{KernelPort, ticks};
use crate::support::lock::lock;

struct Destination {
    /// The handle is not closed with this.
    port: ManuallyDrop<KernelPort>,
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
    pub(super) fn new(port: &KernelPort, key: usize) -> io::Result<Self> {
        let environment = TP_CALLBACK_ENVIRON_V3 {
            Version: 3,
            Pool: pool()?,
            CallbackPriority: TP_CALLBACK_PRIORITY_NORMAL,
            Size: size_of::<TP_CALLBACK_ENVIRON_V3>() as u32,
            ..TP_CALLBACK_ENVIRON_V3::default()
        };
        // SAFETY: the handle is open for longer than the alarm is there, and not closed by this.
        let port = unsafe { OwnedHandle::from_raw_handle(port.handle()) };
        let port = ManuallyDrop::new(KernelPort::from_handle(port));
        let destination = Box::into_raw(Box::new(Destination { port, key }));
        // SAFETY: the destination lives until no callback can come any more.
        let timer = unsafe { CreateThreadpoolTimer(Some(ring), destination.cast(), &environment) };
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

/// The threads of all alarms: one, which stays. A pool that starts a thread when a time has come loses the alarm if the
/// system can start none then.
fn pool() -> io::Result<PTP_POOL> {
    static POOL: Mutex<PTP_POOL> = Mutex::new(0);
    let mut pool = lock(&POOL);
    if *pool == 0 {
        // SAFETY: the calls touch no memory of ours, and the pool is there until it is closed.
        unsafe {
            let new = CreateThreadpool(null());
            if new == 0 {
                return Err(io::Error::last_os_error());
            }
            SetThreadpoolThreadMaximum(new, 1);
            if SetThreadpoolThreadMinimum(new, 1) == 0 {
                let error = io::Error::last_os_error();
                CloseThreadpool(new);
                return Err(error);
            }
            *pool = new;
        }
    }
    Ok(*pool)
}

/// Called by a thread of the pool. The packet must come: who waits for it sets no other alarm for what is due later.
unsafe extern "system" fn ring(
    _instance: PTP_CALLBACK_INSTANCE,
    destination: *mut core::ffi::c_void,
    _timer: PTP_TIMER,
) {
    // SAFETY: it lives until no call can come any more; the port does too.
    unsafe {
        let destination = &*destination.cast::<Destination>();
        destination.port.insist(destination.key, 0);
    }
}
