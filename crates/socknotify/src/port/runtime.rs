//! [`CompletionPort::begin_operation`] and its like: operations on files with memory that the port owns, for async runtimes.
//! Programs use [`owned::Port`](crate::owned::Port).

use std::fs::File;
use std::io;

use crate::files::{FileCompletion, FileOperation, OperationId, PortFile, Reason};
use crate::{CompletionPort, Entry, Error};

#[doc(hidden)]
impl CompletionPort {
    /// Takes a file whose operations complete on this port.
    ///
    /// # Errors
    ///
    /// As [`owned::Port::adopt_file`](crate::owned::Port::adopt_file).
    pub fn adopt_file(&self, file: File, key: usize) -> Result<PortFile, (File, io::Error)> {
        self.operations().adopt(file, key)
    }

    /// Begins an operation. Its packet has this completion key, which is the one that its file was adopted with.
    ///
    /// # Errors
    ///
    /// As [`owned::Port::begin`](crate::owned::Port::begin).
    pub fn begin_operation(
        &self,
        operation: FileOperation,
        key: usize,
    ) -> Result<OperationId, (FileOperation, Error)> {
        let begun = self.operations().begin(operation, key);
        self.operations().flush();
        begun
    }

    /// The completion of a packet with the key of operations. `None` if there is nothing more to come of it.
    pub fn take_completion(&self, packet: &Entry) -> Option<FileCompletion> {
        let operations = self.operations();
        let packet = operations.on_kernel_packet(packet).unwrap_or(*packet);
        Some(operations.finish(packet.overlapped)?.0)
    }

    /// Cancels an operation, as [`owned::Port::cancel_operation`](crate::owned::Port::cancel_operation).
    pub fn cancel_begun(&self, id: OperationId) -> bool {
        self.operations().cancel(id, Reason::Asked)
    }
    /// Begins no more operations, and waits for those that the system or a thread performs. Returns the completions of all
    /// whose packets nobody has dequeued.
    pub fn end_operations(&self) -> Vec<FileCompletion> {
        self.operations().close_owned().0
    }
}
