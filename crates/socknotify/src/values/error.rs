//! Errors: [`Error`] of a call, [`RegistrationError`] of one entry, [`RegisterError`] for either.

use std::{fmt, io};

/// Why a call on a port failed.
///
/// With [`TimedOut`](Self::TimedOut) the registrations of the call have been applied, and each holds its result. The
/// same holds for [`Closed`](Self::Closed) if the port was closed while the call waited. With every other error nothing
/// was applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// No packet came in time: `WAIT_TIMEOUT`.
    TimedOut,
    /// The port was closed: `ERROR_ABANDONED_WAIT_0`.
    Closed,
    /// The arguments contradict each other: `ERROR_INVALID_PARAMETER`.
    InvalidParameter,
    /// The port belongs to the process that made it, and this is a forked child of that process:
    /// `ERROR_INVALID_HANDLE`.
    OtherProcess,
    /// The backend asked for does not work here: `ERROR_NOT_SUPPORTED`.
    BackendUnavailable,
    /// The process or the system has no file descriptor left: `ERROR_TOO_MANY_OPEN_FILES`.
    TooManyOpenFiles,
    /// The system has no memory left: `ERROR_NOT_ENOUGH_MEMORY`.
    OutOfMemory,
    /// The system refused for a reason of its own, given as its error number, which is the Win32 code on
    /// Windows: `ERROR_GEN_FAILURE` elsewhere.
    Os(i32),
}

impl Error {
    /// The Win32 code of this error.
    #[doc(alias = "GetLastError")]
    pub const fn code(self) -> u32 {
        match self {
            Error::TimedOut => 258,
            Error::Closed => 735,
            Error::InvalidParameter => 87,
            Error::OtherProcess => 6,
            Error::BackendUnavailable => 50,
            Error::TooManyOpenFiles => 4,
            Error::OutOfMemory => 8,
            Error::Os(number) => code(number),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Error::TimedOut => "no packet came in time",
            Error::Closed => "the completion port was closed",
            Error::InvalidParameter => {
                "a call with no room for entries cannot wait for any, and dequeuing needs room"
            }
            Error::OtherProcess => "the completion port belongs to the parent process",
            Error::BackendUnavailable => "the backend is not available on this system",
            Error::TooManyOpenFiles => "no file descriptor is left for a completion port",
            Error::OutOfMemory => "not enough memory",
            Error::Os(number) => return refused(f, *number),
        })
    }
}

impl std::error::Error for Error {}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = match error {
            Error::TimedOut => io::ErrorKind::TimedOut,
            Error::Closed => io::ErrorKind::NotConnected,
            Error::InvalidParameter => io::ErrorKind::InvalidInput,
            Error::BackendUnavailable => io::ErrorKind::Unsupported,
            Error::OutOfMemory => io::ErrorKind::OutOfMemory,
            Error::OtherProcess | Error::TooManyOpenFiles => io::ErrorKind::Other,
            Error::Os(number) => return io::Error::from_raw_os_error(number),
        };
        io::Error::new(kind, error)
    }
}

/// Why one entry of a batch was not applied: `registrationResult`.
///
/// Windows' own port has one code for [`OtherPort`](Self::OtherPort), [`OtherKey`](Self::OtherKey) and
/// [`RemovePending`](Self::RemovePending): [`Os(87)`](Self::Os), `ERROR_INVALID_PARAMETER`.
///
/// The entry changed nothing, and the other entries of the batch are not affected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RegistrationError {
    /// Two operations at once, or an unknown one: `ERROR_INVALID_PARAMETER`.
    InvalidOperation,
    /// The filter has an unknown bit, or a condition that this system does not report:
    /// `ERROR_INVALID_PARAMETER`.
    InvalidFilter,
    /// Not exactly one of LEVEL and EDGE, ONESHOT with PERSISTENT, or an unknown bit:
    /// `ERROR_INVALID_PARAMETER`.
    InvalidTrigger,
    /// The socket is registered with another port: `ERROR_INVALID_PARAMETER`. On Unix
    /// [`Registration::add`](crate::Registration::add) and `Registration::descriptor` do not mind.
    OtherPort,
    /// The registration was made with another completion key: `ERROR_INVALID_PARAMETER`.
    ///
    /// Remove it, wait for its last notification, and enable it with the new key.
    OtherKey,
    /// The registration is being removed, and its REMOVE notification was not dequeued yet:
    /// `ERROR_INVALID_PARAMETER`.
    RemovePending,
    /// This port has no registration of the socket: `ERROR_NOT_FOUND`.
    NotFound,
    /// The descriptor is open, but not a socket: `WSAENOTSOCK`. On Windows also if it is not open.
    NotASocket,
    /// The descriptor is not open: `WSAENOTSOCK`.
    NotOpen,
    /// The system cannot watch this descriptor, such as a regular file: `ERROR_NOT_SUPPORTED`.
    NotWatchable,
    /// This port has the socket already, and the entry was to [add](crate::Registration::add) it:
    /// `ERROR_ALREADY_EXISTS`.
    AlreadyRegistered,
    /// The system has no memory left for a registration: `ERROR_NOT_ENOUGH_MEMORY`.
    OutOfMemory,
    /// The system allows no more watched sockets: `ERROR_NO_SYSTEM_RESOURCES`.
    LimitReached,
    /// The system refused for a reason of its own, given as its error number, which is the Win32 code on
    /// Windows: `ERROR_GEN_FAILURE` elsewhere.
    Os(i32),
}

impl RegistrationError {
    /// The Win32 code of this error.
    #[doc(alias = "registrationResult")]
    pub const fn code(self) -> u32 {
        match self {
            RegistrationError::InvalidOperation
            | RegistrationError::InvalidFilter
            | RegistrationError::InvalidTrigger
            | RegistrationError::OtherPort
            | RegistrationError::OtherKey
            | RegistrationError::RemovePending => 87,
            RegistrationError::NotFound => 1168,
            RegistrationError::NotASocket | RegistrationError::NotOpen => 10038,
            RegistrationError::NotWatchable => 50,
            RegistrationError::AlreadyRegistered => 183,
            RegistrationError::OutOfMemory => 8,
            RegistrationError::LimitReached => 1450,
            RegistrationError::Os(number) => code(number),
        }
    }
}

impl fmt::Display for RegistrationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RegistrationError::InvalidOperation => "an entry asks for at most one known operation",
            RegistrationError::InvalidFilter => "the event filter has a bit that is unknown here",
            RegistrationError::InvalidTrigger => {
                "the trigger needs exactly one of LEVEL and EDGE, and not both ONESHOT and PERSISTENT"
            }
            RegistrationError::OtherPort => {
                "the socket is registered with another completion port"
            }
            RegistrationError::OtherKey => {
                "the socket is registered with another completion key"
            }
            RegistrationError::RemovePending => {
                "the socket is being removed, and its REMOVE notification was not dequeued yet"
            }
            RegistrationError::NotFound => "the socket is not registered with this completion port",
            RegistrationError::NotASocket => "not a socket",
            RegistrationError::NotOpen => "not open",
            RegistrationError::NotWatchable => "the system cannot watch this descriptor",
            RegistrationError::AlreadyRegistered => {
                "the socket is registered with this completion port already"
            }
            RegistrationError::OutOfMemory => "not enough memory for a registration",
            RegistrationError::LimitReached => "the system's limit of watched sockets is reached",
            RegistrationError::Os(number) => return refused(f, *number),
        })
    }
}

impl std::error::Error for RegistrationError {}

impl From<RegistrationError> for io::Error {
    fn from(error: RegistrationError) -> Self {
        let kind = match error {
            RegistrationError::InvalidOperation
            | RegistrationError::InvalidFilter
            | RegistrationError::InvalidTrigger
            | RegistrationError::NotASocket
            | RegistrationError::NotOpen
            | RegistrationError::NotWatchable => io::ErrorKind::InvalidInput,
            RegistrationError::OtherPort
            | RegistrationError::OtherKey
            | RegistrationError::RemovePending
            | RegistrationError::AlreadyRegistered => io::ErrorKind::AlreadyExists,
            RegistrationError::NotFound => io::ErrorKind::NotFound,
            RegistrationError::OutOfMemory => io::ErrorKind::OutOfMemory,
            RegistrationError::LimitReached => io::ErrorKind::Other,
            RegistrationError::Os(number) => return io::Error::from_raw_os_error(number),
        };
        io::Error::new(kind, error)
    }
}

/// Why [`CompletionPort::register`](crate::CompletionPort::register) failed: the call itself, or an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RegisterError {
    /// The call failed, and nothing was applied.
    Call(Error),
    /// This entry was not applied. The others of its batch are not affected.
    Entry(RegistrationError),
}

impl RegisterError {
    /// The Win32 code of this error.
    pub const fn code(self) -> u32 {
        match self {
            RegisterError::Call(error) => error.code(),
            RegisterError::Entry(error) => error.code(),
        }
    }
}

impl fmt::Display for RegisterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RegisterError::Call(error) => error.fmt(f),
            RegisterError::Entry(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for RegisterError {}

impl From<Error> for RegisterError {
    fn from(error: Error) -> Self {
        RegisterError::Call(error)
    }
}

impl From<RegistrationError> for RegisterError {
    fn from(error: RegistrationError) -> Self {
        RegisterError::Entry(error)
    }
}

impl From<RegisterError> for io::Error {
    fn from(error: RegisterError) -> Self {
        match error {
            RegisterError::Call(error) => error.into(),
            RegisterError::Entry(error) => error.into(),
        }
    }
}

/// The Win32 code for what the system calls by this number. Where it is none, `ERROR_GEN_FAILURE`.
const fn code(number: i32) -> u32 {
    if cfg!(windows) { number as u32 } else { 31 }
}

/// What people are told of an error of the system's own.
fn refused(f: &mut fmt::Formatter<'_>, number: i32) -> fmt::Result {
    let error = io::Error::from_raw_os_error(number);
    write!(f, "the system refused: {error}")
}
