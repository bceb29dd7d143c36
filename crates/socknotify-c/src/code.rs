//! Win32 error codes, with the values of the Windows headers.

use socknotify::RegistrationError;

/// What a function returns, or an entry gets as its result.
pub type Code = u32;

/// `ERROR_SUCCESS`
pub const SUCCESS: Code = 0;
/// `ERROR_INVALID_HANDLE`
pub const INVALID_HANDLE: Code = 6;
/// `ERROR_NOT_ENOUGH_MEMORY`
pub const NOT_ENOUGH_MEMORY: Code = 8;
/// `ERROR_TOO_MANY_OPEN_FILES`
pub const TOO_MANY_OPEN_FILES: Code = 4;
/// `ERROR_GEN_FAILURE`
pub const GEN_FAILURE: Code = 31;
/// `ERROR_NOT_SUPPORTED`
pub const NOT_SUPPORTED: Code = 50;
/// `ERROR_NOT_FOUND`
pub const NOT_FOUND: Code = 1168;
/// `WSAENOTSOCK`
pub const NOT_A_SOCKET: Code = 10038;
/// `ERROR_INVALID_PARAMETER`
pub const INVALID_PARAMETER: Code = 87;
/// `WAIT_TIMEOUT`
pub const TIMEOUT: Code = 258;
/// `ERROR_ABANDONED_WAIT_0`
pub const ABANDONED_WAIT: Code = 735;
/// `ERROR_INTERNAL_ERROR`
pub const INTERNAL_ERROR: Code = 1359;
/// `ERROR_NO_SYSTEM_RESOURCES`
pub const NO_SYSTEM_RESOURCES: Code = 1450;

/// `ERROR_ACCESS_DENIED`
pub const ACCESS_DENIED: Code = 5;
/// `ERROR_HANDLE_EOF`
pub const HANDLE_EOF: Code = 38;
/// `ERROR_DISK_FULL`
pub const DISK_FULL: Code = 112;
/// `ERROR_FILE_TOO_LARGE`
pub const FILE_TOO_LARGE: Code = 223;
/// `ERROR_OPERATION_ABORTED`
pub const OPERATION_ABORTED: Code = 995;
/// `ERROR_IO_INCOMPLETE`
pub const IO_INCOMPLETE: Code = 996;
/// `WSAEWOULDBLOCK`
pub const WOULD_BLOCK: Code = 10035;
/// `ERROR_IO_DEVICE`
pub const IO_DEVICE: Code = 1117;

/// The code for an entry's own outcome.
pub(crate) fn of_registration(result: Result<(), RegistrationError>) -> Code {
    result.map_or_else(RegistrationError::code, |()| SUCCESS)
}
