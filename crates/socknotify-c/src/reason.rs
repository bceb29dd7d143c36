//! Why an entry was not applied, and all codes in words.

use std::ffi::CStr;

use socknotify::{Backend, RegistrationError};

use crate::code::{self, Code};

const INVALID_OPERATION: Code = 0x2000_0001;
const INVALID_FILTER: Code = 0x2000_0002;
const INVALID_TRIGGER: Code = 0x2000_0003;
const OTHER_PORT: Code = 0x2000_0004;
const OTHER_KEY: Code = 0x2000_0005;
const REMOVE_PENDING: Code = 0x2000_0006;
const NOT_FOUND: Code = 0x2000_0007;
const NOT_A_SOCKET: Code = 0x2000_0008;
const LIMIT_REACHED: Code = 0x2000_0009;
const OUT_OF_MEMORY: Code = 0x2000_000A;
const OTHER: Code = 0x2000_000B;
const NOT_WATCHABLE: Code = 0x2000_000C;

/// `SN_REASON_*`
pub(crate) fn of(error: RegistrationError) -> Code {
    match error {
        RegistrationError::InvalidOperation => INVALID_OPERATION,
        RegistrationError::InvalidFilter => INVALID_FILTER,
        RegistrationError::InvalidTrigger => INVALID_TRIGGER,
        RegistrationError::OtherPort => OTHER_PORT,
        RegistrationError::OtherKey => OTHER_KEY,
        RegistrationError::RemovePending => REMOVE_PENDING,
        RegistrationError::NotFound => NOT_FOUND,
        RegistrationError::NotASocket | RegistrationError::NotOpen => NOT_A_SOCKET,
        RegistrationError::LimitReached => LIMIT_REACHED,
        RegistrationError::OutOfMemory => OUT_OF_MEMORY,
        RegistrationError::NotWatchable => NOT_WATCHABLE,
        _ => OTHER,
    }
}

/// The name of a backend.
pub(crate) fn backend(backend: Backend) -> &'static CStr {
    // Nothing that is made by the first call: a child that is forked meanwhile would wait for it.
    let names = [c"epoll", c"kqueue", c"native", c"afd"];
    let is_this = |name: &&CStr| name.to_bytes() == backend.name().as_bytes();
    names.into_iter().find(is_this).unwrap_or(c"")
}

/// A code, or a reason, in words.
pub(crate) fn text(code: Code) -> &'static CStr {
    match code {
        code::SUCCESS => c"success",
        code::TOO_MANY_OPEN_FILES => c"no descriptor is left for a port",
        code::INVALID_HANDLE => {
            c"not an open port of this process, or not a file that is open for this"
        }
        code::NOT_ENOUGH_MEMORY | OUT_OF_MEMORY => c"not enough memory",
        code::GEN_FAILURE | OTHER => c"the system refused",
        code::NOT_SUPPORTED => c"not supported here",
        code::INVALID_PARAMETER => c"arguments that are wrong or contradict each other",
        code::TIMEOUT => c"no packet came in time",
        code::ABANDONED_WAIT => c"the port was closed",
        code::NOT_FOUND | NOT_FOUND => c"not registered, associated or in progress here",
        code::ACCESS_DENIED => c"the file does not allow it",
        code::HANDLE_EOF => c"the file ends there",
        code::DISK_FULL => c"the disk is full",
        code::FILE_TOO_LARGE => c"the file would be too large",
        code::OPERATION_ABORTED => c"the operation was cancelled",
        code::IO_INCOMPLETE => c"the operation is in progress",
        code::WOULD_BLOCK => c"the queue is full",
        code::IO_DEVICE => c"the device has failed",
        code::INTERNAL_ERROR => c"a fault of the library",
        code::NO_SYSTEM_RESOURCES | LIMIT_REACHED => c"a limit of the system is reached",
        code::NOT_A_SOCKET | NOT_A_SOCKET => c"not an open socket",
        INVALID_OPERATION => c"two operations at once, or an unknown one",
        INVALID_FILTER => c"a filter bit that is no event",
        INVALID_TRIGGER => {
            c"not exactly one of LEVEL and EDGE, ONESHOT with PERSISTENT, or an unknown bit"
        }
        OTHER_PORT => c"the socket is registered with another port",
        OTHER_KEY => c"the socket is registered with another completion key",
        REMOVE_PENDING => c"the registration is being removed",
        NOT_WATCHABLE => c"the system cannot watch this descriptor",
        _ => c"unknown error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_backend_has_its_name() {
        for &it in Backend::ALL {
            assert_eq!(backend(it).to_str(), Ok(it.name()));
        }
    }
}
