//! [`Port::begin`]: operations on files, which complete as events.

use std::fs::File;

use super::port::Shared;
use super::slot::packet::OfPort;
use super::time::{Action, TimerId};
use super::{AdoptError, BeginError, FileDriver, FileOperation, OperationId, Port, PortFile};
use crate::files::Reason;

impl<T, M> Port<T, M> {
    /// Adopts a file, so that operations on it complete on this port.
    ///
    /// # Errors
    ///
    /// Returns the file if it is a pipe, a socket or a terminal, because an operation on it might never end: adopt these
    /// as connections. A directory is refused, too, and so is a file that the kernel makes up when it is read, as those
    /// of `/proc`: read it in [`offload`](Self::offload).
    ///
    /// On Windows, a file that was opened with `FILE_FLAG_OVERLAPPED` stays associated with the port until it is
    /// closed; helper threads perform operations on other files.
    ///
    /// # Examples
    ///
    /// See [`begin`](Self::begin).
    #[doc(alias = "CreateIoCompletionPort")]
    pub fn adopt_file(&self, file: File) -> Result<PortFile, AdoptError<File>> {
        let key = OfPort::KernelIo.key(&self.shared.connections.slots);
        let adopted = self.shared.files.adopt(file, key);
        adopted.map_err(|(file, reason)| AdoptError::new(file, reason))
    }

    /// Begins an operation on a file. It completes as [`Event::Completed`](super::Event::Completed), with the file, the
    /// buffer and the result.
    ///
    /// Any number can be in progress, on one file and on many, and they complete in any order. Closing the port
    /// [waits](Self::close) for those that the system has begun, and returns those that were not dequeued.
    ///
    /// # Errors
    ///
    /// Returns the operation if the port is closed, in a forked child of the port's process, or if the system has no
    /// memory or thread for it. Other errors are in the operation's result.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::fs::File;
    /// use std::net::TcpStream;
    /// use socknotify::owned::{Event, FileOperation, Port};
    ///
    /// # fn main() -> std::io::Result<()> {
    /// # let path = std::env::temp_dir().join(format!("socknotify-doc-{}", std::process::id()));
    /// # std::fs::write(&path, "0123456789")?;
    /// let port = Port::<TcpStream>::new()?;
    /// let file = port.adopt_file(File::open(&path)?)?;
    /// port.begin(FileOperation::read_at(&file, vec![0; 4096], 6))?;
    ///
    /// let mut worker = port.worker(8);
    /// worker.process(None)?;
    /// let Some(Event::Completed(done)) = worker.take() else { panic!() };
    /// let count = done.result?;
    /// assert_eq!(&done.buffer[..count], b"6789");
    /// # std::fs::remove_file(&path)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn begin(
        &self,
        operation: FileOperation,
    ) -> Result<OperationId, BeginError<FileOperation>> {
        let id = self.shared.begin(operation)?;
        self.shared.files.flush();
        Ok(id)
    }

    /// Cancels an operation on a file. It completes once in any case: with an error and
    /// [`is_cancelled`](super::FileCompletion::is_cancelled), or with its result if it was too late to cancel it.
    ///
    /// Returns false if it has completed.
    #[doc(alias = "CancelIoEx")]
    #[doc(alias = "IORING_OP_ASYNC_CANCEL")]
    pub fn cancel_operation(&self, id: OperationId) -> bool {
        self.shared.files.cancel(id, Reason::Asked)
    }

    /// What performs operations on files. The port determines it when the first file is adopted, or in this call. If the
    /// system has no descriptor or memory for a ring then, helper threads perform operations until the next file is
    /// adopted.
    pub fn file_driver(&self) -> FileDriver {
        self.shared.files.driver()
    }

    /// The number of operations on files that were begun and whose completions were not taken.
    pub fn operations(&self) -> usize {
        self.shared.files.count()
    }
}

impl<T, M> Shared<T, M> {
    pub(super) fn begin(
        &self,
        operation: FileOperation,
    ) -> Result<OperationId, BeginError<FileOperation>> {
        if let Err(reason) = self.connections.check() {
            return Err(BeginError::new(operation, reason));
        }
        let deadline = operation.deadline();
        self.connections.begin_work();
        let key = OfPort::Operation.key(&self.connections.slots);
        let begun = self.files.begin(operation, key);
        let id = begun.map_err(|(operation, reason)| {
            self.connections.end_work(1);
            BeginError::new(operation, reason)
        })?;
        if let Some(deadline) = deadline {
            if let Ok(timer) = self.clock.set_timer(deadline, Action::Expire(id)) {
                if let Err(timer) = self.files.note_deadline(id, timer.0) {
                    self.clock.cancel_timer(TimerId(timer));
                }
            }
        }
        Ok(id)
    }
}
