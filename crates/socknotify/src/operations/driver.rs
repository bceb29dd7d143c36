//! [`FileDriver`]: who does operations on files.

use std::fmt;
use std::io;

use super::direct::{self, Direct};

/// Who does a port's operations on files.
///
/// # Examples
///
/// ```
/// use socknotify::owned::FileDriver;
///
/// for driver in FileDriver::ALL {
///     match driver.probe() {
///         Ok(()) => println!("{driver}: available"),
///         Err(error) => println!("{driver}: {error}"),
///     }
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FileDriver {
    /// Linux: a ring of the kernel's for each port. Many containers forbid it.
    IoUring,
    /// Windows: overlapped operations on the port itself, for files that were opened for that
    /// (`FILE_FLAG_OVERLAPPED`). For others, helper threads.
    Overlapped,
    /// The port's [helper threads](crate::owned::Builder::helper_threads).
    Threads,
}

impl FileDriver {
    /// All that there are on some system, best first.
    pub const ALL: [FileDriver; 3] = [
        FileDriver::IoUring,
        FileDriver::Overlapped,
        FileDriver::Threads,
    ];

    /// The name that programs and options use: `"io_uring"`, `"overlapped"`, `"threads"`.
    pub const fn name(self) -> &'static str {
        match self {
            FileDriver::IoUring => "io_uring",
            FileDriver::Overlapped => "overlapped",
            FileDriver::Threads => "threads",
        }
    }

    /// Try whether it works here, now.
    ///
    /// # Errors
    ///
    /// What keeps it from working.
    pub fn probe(self) -> io::Result<()> {
        match self {
            FileDriver::Threads => Ok(()),
            other if direct::DRIVER == Some(other) => Direct::probe(),
            _ => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

impl fmt::Display for FileDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
