//! Error codes of the system, as the library's errors.

use std::io;

use windows_sys::Win32::Foundation::{
    ERROR_ABANDONED_WAIT_0, ERROR_INVALID_HANDLE, ERROR_NO_SYSTEM_RESOURCES,
    ERROR_NOT_ENOUGH_MEMORY, ERROR_NOT_FOUND, ERROR_OUTOFMEMORY, WAIT_TIMEOUT,
};
use windows_sys::Win32::Networking::WinSock::WSAENOTSOCK;

use crate::{Error, RegistrationError};

const NOT_A_SOCKET: u32 = WSAENOTSOCK as u32;

/// The code of an error of the system.
pub(crate) fn code(error: &io::Error) -> u32 {
    error.raw_os_error().unwrap_or_default() as u32
}

/// Why a call failed.
pub(crate) fn call_error(code: u32) -> Error {
    match code {
        WAIT_TIMEOUT => Error::TimedOut,
        ERROR_ABANDONED_WAIT_0 => Error::Closed,
        ERROR_NOT_ENOUGH_MEMORY | ERROR_OUTOFMEMORY | ERROR_NO_SYSTEM_RESOURCES => {
            Error::OutOfMemory
        }
        code => Error::Os(code as i32),
    }
}

/// What a call fails with, from an error of the system.
pub(crate) fn error(error: &io::Error) -> Error {
    call_error(code(error))
}

/// Why a registration was refused.
pub(crate) fn refusal(code: u32) -> RegistrationError {
    match code {
        NOT_A_SOCKET | ERROR_INVALID_HANDLE => RegistrationError::NotASocket,
        ERROR_NOT_FOUND => RegistrationError::NotFound,
        ERROR_NOT_ENOUGH_MEMORY | ERROR_OUTOFMEMORY => RegistrationError::OutOfMemory,
        ERROR_NO_SYSTEM_RESOURCES => RegistrationError::LimitReached,
        code => RegistrationError::Os(code as i32),
    }
}
