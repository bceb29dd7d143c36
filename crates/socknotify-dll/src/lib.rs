//! `socknotify.dll`: `ProcessSocketNotifications` for systems that lack it.
//!
//! It works on any port made by `CreateIoCompletionPort`, and the program can dequeue with any call. If the system has
//! the function, this calls the system's.
//!
//! The library has no thread. What runs, it runs in the caller's threads:
//!
//! | module | what | under which lock |
//! |---|---|---|
//! | [`hooks`] | the system's calls that dequeue and close, intercepted | none |
//! | [`ports`] | which handles are ports that have sockets | its table's, for nothing but the table |
//! | [`port`](self::port) | one port: arguments and packets, to and from the engine | none; the engine has its own, for each port |
//! | [`kernel`] | calls of the system | none |
//!
//! # Delivery
//!
//! The driver's polls complete on the caller's port, beside the packets of the program. Such a packet has a key that
//! nobody else has, and the address of a poll. It is translated when it is dequeued, so each registration has at most one
//! packet in the queue.
//!
//! - Threads that wait in a port before sockets are registered with it are counted. When the engine takes the port over, a
//!   packet for each sends it into the engine, and one more follows each call until all are there. If the program has
//!   several handles of the port, those who wait in any port are counted; while somebody does in another one, each call
//!   asks the system whether it has.
//! - Levels are armed again by the thread that got them, when it dequeues again, in whichever call (C4), or when it is seen
//!   to block or ends.
//! - Packets of others pass unchanged. What a call finds ready when it arms is posted behind them, and each call asks for
//!   them: so none waits for ever behind busy sockets.
//!
//! # Cost
//!
//! No more thread switches than a poll of the driver that completes on a port. An edge takes one more request between the
//! wake-up and the report; the first of a socket creates an event object. Under Wine each call is one or several requests to its
//! server, and those decide.
#![cfg(windows)]

mod hooks;
mod kernel;
mod port;
mod ports;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::time::Duration;

use ::port::Error;
use windows_sys::Win32::Foundation::{
    ERROR_ABANDONED_WAIT_0, ERROR_INTERNAL_ERROR, ERROR_INVALID_HANDLE, ERROR_INVALID_PARAMETER,
    ERROR_NOT_SUPPORTED, ERROR_SHUTDOWN_IN_PROGRESS, ERROR_SUCCESS, HANDLE, SetLastError,
};
use windows_sys::Win32::Networking::WinSock::SOCK_NOTIFY_REGISTRATION;
use windows_sys::Win32::System::IO::OVERLAPPED_ENTRY;
use windows_sys::Win32::System::Threading::INFINITE;

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
    // Whoever links this function links that too.
    std::hint::black_box(&raw const hooks::AT_START);
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
        if !hooks::install() {
            return ERROR_NOT_SUPPORTED;
        }
        let handle = port;
        let port = match ports::of(handle) {
            Ok(port) => port,
            Err(error) => return error,
        };
        let timeout = match timeout {
            INFINITE => None,
            milliseconds => Some(Duration::from_millis(milliseconds.into())),
        };
        // SAFETY: the caller's promise.
        let outcome = unsafe {
            let outcome = port.process(registrations, registration_count, entries, room, timeout);
            if room > 0 {
                received.write_unaligned(outcome.unwrap_or(0));
            }
            outcome
        };
        ports::wake_those_in_system(handle, &port);
        match outcome {
            Ok(_) => ERROR_SUCCESS,
            // It was closed before this call, or while it waited.
            Err(Error::Closed) if room == 0 => ERROR_INVALID_HANDLE,
            Err(Error::Closed) => ERROR_ABANDONED_WAIT_0,
            Err(error) => error.code(),
        }
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
