//! `socknotify.dll`: `ProcessSocketNotifications` for systems that lack it.
//!
//! It works on any port made by `CreateIoCompletionPort`, and the program can dequeue with any call. If the system has
//! the function, this calls the system's.
#![cfg(windows)]

mod bridge;
mod call;
mod kernel;
mod sent;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

use windows_sys::Win32::Foundation::{
    ERROR_INTERNAL_ERROR, ERROR_INVALID_PARAMETER, ERROR_SHUTDOWN_IN_PROGRESS, ERROR_SUCCESS,
    HANDLE, SetLastError,
};
use windows_sys::Win32::Networking::WinSock::SOCK_NOTIFY_REGISTRATION;
use windows_sys::Win32::System::IO::OVERLAPPED_ENTRY;

use self::bridge::Bridge;
use self::call::Call;

type Function = unsafe extern "system" fn(
    HANDLE,
    u32,
    *mut SOCK_NOTIFY_REGISTRATION,
    u32,
    u32,
    *mut OVERLAPPED_ENTRY,
    *mut u32,
) -> u32;

/// The system's own function, or else ours.
static FUNCTION: OnceLock<Function> = OnceLock::new();

/// `ProcessSocketNotifications`
///
/// # Safety
///
/// As the system's: the arrays are as long as their counts say.
#[allow(non_snake_case, reason = "it is the system's name")]
#[unsafe(no_mangle)]
pub unsafe extern "system" fn ProcessSocketNotifications(
    port: HANDLE,
    registration_count: u32,
    registrations: *mut SOCK_NOTIFY_REGISTRATION,
    timeout: u32,
    room: u32,
    entries: *mut OVERLAPPED_ENTRY,
    received: *mut u32,
) -> u32 {
    let function = FUNCTION.get_or_init(|| kernel::find_function().unwrap_or(process));
    // SAFETY: the caller's promise.
    unsafe {
        function(
            port,
            registration_count,
            registrations,
            timeout,
            room,
            entries,
            received,
        )
    }
}

/// The replacement for the system's function.
///
/// # Safety
///
/// As for [`ProcessSocketNotifications`].
unsafe extern "system" fn process(
    port: HANDLE,
    registration_count: u32,
    registrations: *mut SOCK_NOTIFY_REGISTRATION,
    timeout: u32,
    room: u32,
    entries: *mut OVERLAPPED_ENTRY,
    received: *mut u32,
) -> u32 {
    // A null pointer is allowed with a count of 0, and only then.
    let is_wrong = (registration_count == 0) != registrations.is_null()
        || (room == 0) != entries.is_null()
        || (room == 0) != received.is_null()
        || (room == 0 && timeout != 0);
    let body = || {
        let bridge = match Bridge::of(port) {
            Ok(bridge) => bridge,
            Err(error) => return error,
        };
        let mut call = Call::new(&bridge, room > 0);
        for index in 0..registration_count as usize {
            // SAFETY: the caller's promise. The structure need not be aligned.
            unsafe {
                let place = registrations.add(index);
                let mut registration = place.read_unaligned();
                registration.registrationResult = call.register(&registration);
                place.write_unaligned(registration);
            }
        }
        if room == 0 {
            call.send_ready();
            return ERROR_SUCCESS;
        }
        // SAFETY: the caller's promise.
        unsafe { call.dequeue(entries, room, timeout, received) }
    };
    let error = if kernel::is_exiting() {
        ERROR_SHUTDOWN_IN_PROGRESS
    } else if is_wrong {
        ERROR_INVALID_PARAMETER
    } else {
        catch_unwind(AssertUnwindSafe(body)).unwrap_or(ERROR_INTERNAL_ERROR)
    };
    if error != ERROR_SUCCESS {
        // SAFETY: it sets a value of this thread's.
        unsafe { SetLastError(error) };
    }
    error
}
