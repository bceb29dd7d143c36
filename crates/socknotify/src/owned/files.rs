//! Operations on files, whose completions come out of the port.

use std::fs::File;
use std::io;
use std::sync::Arc;

use super::port::Shared;
use super::timers::{Action, TimerId};
use super::{
    Event, FileDriver, FileOperation, OperationId, Port, PortFile, SendError, Source, Worker,
};
use crate::operations::{Operations, Reason};

/// What is under way on files; with each, the timer of its deadline.
pub(super) type Files = Arc<Operations<TimerId>>;

impl<T, M> Port<T, M> {
    /// Take a file whose operations are to complete on this port.
    ///
    /// # Errors
    ///
    /// What is no file, but a pipe, a socket or a terminal, is refused, and closed: operations on it could take for
    /// ever. Descriptors of these are adopted as connections are.
    ///
    /// On Windows, a file that was opened with `FILE_FLAG_OVERLAPPED` is associated with the port for good; helper
    /// threads do the operations on others.
    ///
    /// # Examples
    ///
    /// See [`begin`](Self::begin).
    #[doc(alias = "CreateIoCompletionPort")]
    pub fn adopt_file(&self, file: File) -> io::Result<PortFile> {
        self.shared.files.adopt(file)
    }

    /// Begin an operation on a file. When it is done, [`Event::Completed`] comes, with the file, the buffer and
    /// the result.
    ///
    /// Any number may be under way, on one file and on many; the system does them in any order. Closing the port
    /// [waits](Self::close) for those that the system is at.
    ///
    /// # Errors
    ///
    /// The operation comes back when the port is closed, in a forked child of the port's process, and when
    /// the system has neither memory nor a thread for it. Everything else is the operation's result.
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
    pub fn begin(&self, operation: FileOperation) -> Result<OperationId, SendError<FileOperation>> {
        let id = self.shared.begin(operation)?;
        self.shared.files.flush();
        Ok(id)
    }

    /// Cancel an operation on a file. If that is in time, it completes with an error, and
    /// [`is_cancelled`](super::FileCompletion::is_cancelled) says so; otherwise with its result. Either way it
    /// completes once.
    ///
    /// Returns false if it is done already.
    #[doc(alias = "CancelIoEx")]
    #[doc(alias = "IORING_OP_ASYNC_CANCEL")]
    pub fn cancel_operation(&self, id: OperationId) -> bool {
        self.shared.files.cancel(id, Reason::Asked)
    }

    /// Who does operations on files. It is found out when a file is adopted, or by this.
    pub fn file_driver(&self) -> FileDriver {
        self.shared.files.driver()
    }

    /// How many operations on files were begun, and their completions not taken.
    pub fn operations(&self) -> usize {
        self.shared.files.count()
    }
}

impl<T: Source, M> Worker<T, M> {
    /// Begin an operation on a file, as [`Port::begin`] does; at the latest with the next
    /// [`process`](Self::process), which is one step into the system for any number of them.
    ///
    /// # Errors
    ///
    /// As [`Port::begin`].
    pub fn begin(
        &mut self,
        operation: FileOperation,
    ) -> Result<OperationId, SendError<FileOperation>> {
        self.shared.begin(operation)
    }
}

impl<T, M> Shared<T, M> {
    fn begin(&self, operation: FileOperation) -> Result<OperationId, SendError<FileOperation>> {
        if self.home.is_closed() {
            return Err(SendError(operation));
        }
        let deadline = operation.deadline();
        let id = self.files.begin(operation).map_err(SendError)?;
        if let Some(deadline) = deadline {
            if let Ok(timer) = self.set_timer(deadline, Action::Expire(id)) {
                if let Err(timer) = self.files.note_deadline(id, timer) {
                    self.cancel_timer(timer);
                }
            }
        }
        Ok(id)
    }

    /// The time of this operation is over.
    pub(super) fn expire(&self, id: OperationId) {
        self.files.cancel(id, Reason::Deadline);
    }

    /// The packet of an operation was dequeued.
    pub(super) fn completed(&self, key: usize) -> Option<Event<T, M>> {
        let (completion, timer) = self.files.finish(key)?;
        if let Some(timer) = timer {
            self.cancel_timer(timer);
        }
        Some(Event::Completed(completion))
    }
}
