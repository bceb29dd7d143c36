//! [`FileDriver`]: what performs operations on files.

use std::fmt;

/// What performs a port's operations on files.
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
    /// Linux: an `io_uring` ring for each port. Many containers forbid it.
    IoUring,
    /// Windows: overlapped operations on the port itself, for files that were opened with
    /// `FILE_FLAG_OVERLAPPED`; helper threads for others.
    Overlapped,
    /// The port's [helper threads](crate::owned::Builder::helper_threads).
    Threads,
}

impl FileDriver {
    /// The drivers of all systems, best first.
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
}

impl fmt::Display for FileDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
