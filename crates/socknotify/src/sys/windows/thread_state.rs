//! The processor time of a thread. Windows shows the state of a thread only in a list of all processes' threads.

#![allow(unsafe_code, reason = "the calls take bare handles")]

use std::os::windows::io::{AsRawHandle, BorrowedHandle, OwnedHandle};
use std::time::Duration;

use windows_sys::Win32::Foundation::{FILETIME, WAIT_OBJECT_0};
use windows_sys::Win32::System::Threading::{
    GetCurrentProcess, GetCurrentThread, GetProcessTimes, GetThreadTimes, WaitForSingleObject,
};
use windows_sys::Win32::System::WindowsProgramming::QueryThreadCycleTime;

use crate::sys::Process;
use crate::sys::thread_state::{Activity, Look};

/// A thread of this process.
#[derive(Debug)]
pub(crate) struct Thread {
    /// Not its id, which another thread can get. `None` if there was no memory for a handle.
    handle: Option<OwnedHandle>,
}

impl Thread {
    pub(crate) const METHOD: Option<&'static str> = Some("the thread's processor cycles");

    /// Takes a handle.
    pub(crate) fn this(_: Process) -> Self {
        // SAFETY: the pseudo handle is always good, and copied before this ends.
        let this = unsafe { BorrowedHandle::borrow_raw(GetCurrentThread()) };
        Thread {
            handle: this.try_clone_to_owned().ok(),
        }
    }

    /// Nothing costs less than a look here.
    pub(crate) fn activity(&self) -> Activity {
        Activity::Unknown
    }

    pub(crate) fn look(&self) -> Look {
        let Some(handle) = &self.handle else {
            return Look::Unknown;
        };
        // SAFETY: the handle is open.
        if unsafe { WaitForSingleObject(handle.as_raw_handle(), 0) } == WAIT_OBJECT_0 {
            return Look::Ended;
        }
        let time = cycles(handle).or_else(|| times(handle));
        time.map_or(Look::Unknown, Look::Time)
    }
}

/// `QueryThreadCycleTime` — The processor cycles of a thread.
fn cycles(thread: &OwnedHandle) -> Option<u64> {
    let mut cycles = 0;
    // SAFETY: the handle is open, and `cycles` can be written to for the call.
    let done = unsafe { QueryThreadCycleTime(thread.as_raw_handle(), &mut cycles) };
    (done != 0).then_some(cycles)
}

/// `GetThreadTimes` — The processor time of a thread, in nanoseconds. It grows in steps of 10 ms or 16 ms.
fn times(thread: &OwnedHandle) -> Option<u64> {
    let (mut made, mut ended, mut in_kernel, mut in_user) = (ZERO, ZERO, ZERO, ZERO);
    // SAFETY: the handle is open, and the times can be written to for the call.
    let done = unsafe {
        let thread = thread.as_raw_handle();
        GetThreadTimes(thread, &mut made, &mut ended, &mut in_kernel, &mut in_user)
    };
    (done != 0).then(|| nanoseconds(in_kernel) + nanoseconds(in_user))
}

/// `GetProcessTimes` — The processor time of this process.
pub(crate) fn process_time() -> Option<Duration> {
    let (mut made, mut ended, mut in_kernel, mut in_user) = (ZERO, ZERO, ZERO, ZERO);
    // SAFETY: the pseudo handle is always good, and the times can be written to for the call.
    let done = unsafe {
        let process = GetCurrentProcess();
        GetProcessTimes(process, &mut made, &mut ended, &mut in_kernel, &mut in_user)
    };
    (done != 0).then(|| Duration::from_nanos(nanoseconds(in_kernel) + nanoseconds(in_user)))
}

const ZERO: FILETIME = FILETIME {
    dwLowDateTime: 0,
    dwHighDateTime: 0,
};

fn nanoseconds(time: FILETIME) -> u64 {
    (u64::from(time.dwHighDateTime) << 32 | u64::from(time.dwLowDateTime)) * 100
}

#[cfg(test)]
mod tests;
