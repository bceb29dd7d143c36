//! [`Builder`]: options for a port.

use std::fmt;
use std::marker::PhantomData;

use super::{FileDriver, Port};
use crate::files::DEFAULT_THREADS;
use crate::{Backend, CompletionPort, Error, WakePolicy};

/// Options for a new [`Port`].
///
/// # Examples
///
/// ```
/// use std::net::TcpStream;
/// use socknotify::owned::Port;
///
/// # fn main() -> std::io::Result<()> {
/// let port = Port::<TcpStream>::builder().concurrency(4).build()?;
/// assert_eq!(port.concurrency(), 4);
/// # Ok(())
/// # }
/// ```
#[must_use]
pub struct Builder<T, M = ()> {
    options: crate::Builder,
    helper_threads: usize,
    file_driver: Option<FileDriver>,
    makes: PhantomData<fn() -> Port<T, M>>,
}

impl<T, M> Port<T, M> {
    /// Options for a new port.
    pub fn builder() -> Builder<T, M> {
        Builder {
            options: CompletionPort::builder(),
            helper_threads: DEFAULT_THREADS,
            file_driver: None,
            makes: PhantomData,
        }
    }
}

impl<T, M> Builder<T, M> {
    /// The concurrency value, as in [`crate::Builder::concurrency`].
    #[doc(alias = "NumberOfConcurrentThreads")]
    pub fn concurrency(mut self, value: usize) -> Self {
        self.options = self.options.concurrency(value);
        self
    }

    /// No more threads run than the concurrency value says, as in [`crate::Builder::strict`].
    pub fn strict(mut self) -> Self {
        self.options = self.options.strict();
        self
    }

    /// A permit for every thread, as in [`crate::Builder::unlimited`].
    pub fn unlimited(mut self) -> Self {
        self.options = self.options.unlimited();
        self
    }

    /// When the port wakes a further thread for a socket that becomes ready: by default [`WakePolicy::BOUNDED`], and on Windows
    /// [`WakePolicy::Eager`].
    pub fn wake_policy(mut self, policy: WakePolicy) -> Self {
        self.options = self.options.wake_policy(policy);
        self
    }

    /// The backend to use. By default the port takes the best one that works.
    pub fn backend(mut self, backend: Backend) -> Self {
        self.options = self.options.backend(backend);
        self
    }

    /// How to do operations on files. By default the port takes the best way that works, when the first file is
    /// adopted. One that is chosen here is opened with the port.
    pub fn file_driver(mut self, driver: FileDriver) -> Self {
        self.file_driver = Some(driver);
        self
    }

    /// The maximum number of helper threads for [blocking work](Port::offload): 32 by default, at least one. Where helper
    /// threads perform operations on files, there are as many for these alone. These have a lower priority on Linux (a
    /// nice value higher by 10) and Windows. On Linux at most as many copy from memory at once as there are processors,
    /// and files of one mount that may not answer, as those of FUSE and NFS, have half of the threads at most.
    pub fn helper_threads(mut self, most: usize) -> Self {
        self.helper_threads = most;
        self
    }

    /// Makes the port.
    ///
    /// # Errors
    ///
    /// As [`crate::Builder::build`], also for the chosen [`FileDriver`].
    pub fn build(self) -> Result<Port<T, M>, Error> {
        let port = self.options.build()?;
        let files = port.operations();
        files.configure(self.helper_threads, self.file_driver)?;
        Ok(Port::assemble(port, self.helper_threads))
    }
}

impl<T, M> fmt::Debug for Builder<T, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.options.fmt(f)
    }
}
