//! [`Operations`]: the operations in progress on the files of a port.

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

#[cfg(unix)]
use super::Owner;
use super::file::{FileCompletion, FileOperation, OperationId, PortFile};
use super::helpers::{Helpers, Perform, Performed};
use super::in_flight::{InFlight, OperationSlot, Reason};
use super::kernel_io::{self, KernelIo};
use super::opening::Opening;
use super::{Completed, FileDriver, Layer, system};
use crate::slots::Token;
use crate::system::SystemPort;
use crate::{Entry, Error};

impl FileDriver {
    /// Tests whether the driver works here, now.
    ///
    /// # Errors
    ///
    /// Why it does not work.
    pub fn probe(self) -> io::Result<()> {
        match self {
            FileDriver::Threads => Ok(()),
            other if kernel_io::DRIVER == Some(other) => KernelIo::probe(),
            _ => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

/// The mark of an operation whose packet was dequeued.
const DEQUEUED: u8 = 1;

/// The operations of a port, each in a slot from its beginning until its completion is taken.
///
/// `D` is what the owner of a deadline stores with an operation.
pub(crate) struct Operations<D> {
    /// For operations that outlive a call.
    this: Weak<Self>,
    in_flight: InFlight<FileOperation, Option<D>>,
    /// The completion key of posted packets. The overlapped value is the key of the slot.
    key: usize,
    /// The completion key of the system's packets.
    kernel_io_key: usize,
    /// The requested driver, if any.
    wanted: Option<FileDriver>,
    count: AtomicUsize,
}

impl<D: Send + 'static> Operations<D> {
    /// The completion keys are for posted packets, and for those of the system.
    pub(crate) fn new(
        port: SystemPort,
        opening: Arc<Opening>,
        [key, kernel_io_key]: [usize; 2],
        helpers: Helpers,
        wanted: Option<FileDriver>,
    ) -> Arc<Self> {
        Arc::new_cyclic(|this| Operations {
            this: Weak::clone(this),
            in_flight: InFlight::new(Layer::Connections, port, opening, helpers),
            key,
            kernel_io_key,
            wanted,
            count: AtomicUsize::new(0),
        })
    }

    /// The number of operations that were begun and whose completions were not taken.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Take a file.
    pub(crate) fn adopt(&self, file: File) -> Result<PortFile, (File, io::Error)> {
        if let Err(error) = system::check(&file) {
            return Err((file, error));
        }
        let kernel_io = self.open().ok();
        let association =
            kernel_io.and_then(|kernel_io| kernel_io.associate(&file, self.kernel_io_key));
        Ok(PortFile::new(file, association))
    }

    /// Begin an operation. Returns it if the port is closed or belongs to another process, or if neither the system nor
    /// a helper thread takes it.
    pub(crate) fn begin(
        &self,
        operation: FileOperation,
    ) -> Result<OperationId, (FileOperation, Error)> {
        let slots = &self.in_flight.slots;
        let _open = match self.in_flight.open() {
            Ok(open) => open,
            Err(error) => return Err((operation, error)),
        };
        let Some(token) = slots.insert(Default::default()) else {
            return Err((operation, Error::OutOfMemory));
        };
        if let Some(mut slot) = slots.get(token) {
            slot.operation = Some(operation);
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        let error = match self.start(token, self.kernel_io()) {
            Ok(_) => return Ok(OperationId(token)),
            Err(error) => error,
        };
        self.count.fetch_sub(1, Ordering::Relaxed);
        let operation = slots.remove(token).and_then(|slot| slot.operation);
        Err((operation.expect("nobody has begun with it"), error))
    }

    /// Returns false: if it is over, there is a packet.
    fn start(&self, token: Token, kernel_io: Option<&KernelIo>) -> Result<bool, Error> {
        let perform = || Some(Weak::upgrade(&self.this)? as Arc<dyn Perform>);
        if self.in_flight.start(token, kernel_io, perform)? {
            self.post(self.in_flight.slots.key(token));
        }
        Ok(false)
    }

    /// The system, if it performs operations itself, and was opened.
    fn kernel_io(&self) -> Option<&KernelIo> {
        if self.wanted == Some(FileDriver::Threads) {
            return None;
        }
        let kernel_io = self.in_flight.opened()?;
        #[cfg(unix)]
        kernel_io.attach(Layer::Connections, || Weak::clone(&self.this) as _);
        Some(kernel_io)
    }

    /// Open the requested driver. Others are opened when the first file is adopted.
    pub(crate) fn open_wanted(&self) -> Result<(), Error> {
        match self.wanted {
            None | Some(FileDriver::Threads) => Ok(()),
            wanted if wanted != kernel_io::DRIVER => Err(Error::BackendUnavailable),
            _ => match self.open() {
                Ok(_) => Ok(()),
                Err(error) => Err(system::shortage(&error).unwrap_or(Error::BackendUnavailable)),
            },
        }
    }

    /// The system, which is opened now if it was not before.
    fn open(&self) -> io::Result<&KernelIo> {
        let unsupported = || io::ErrorKind::Unsupported.into();
        if self.wanted == Some(FileDriver::Threads) || !self.in_flight.is_here() {
            return Err(unsupported());
        }
        self.in_flight.opening.open()?;
        self.kernel_io().ok_or_else(unsupported)
    }

    /// The driver that performs operations. It is determined now, if it was not before.
    pub(crate) fn driver(&self) -> FileDriver {
        match kernel_io::DRIVER {
            Some(driver) if self.open().is_ok() => driver,
            _ => FileDriver::Threads,
        }
    }

    /// Pass begun operations to the system.
    #[inline]
    pub(crate) fn flush(&self) {
        if let Some(kernel_io) = self.in_flight.opened() {
            if self.in_flight.is_here() {
                kernel_io.flush();
            }
        }
    }

    /// A packet of the system was dequeued. Returns the key of its operation, if that is complete.
    pub(crate) fn on_kernel_packet(&self, entry: &Entry) -> Option<usize> {
        // If it is closed, the closing thread finds it.
        let _entered = self.in_flight.gate.enter()?;
        let (key, completed) = self.in_flight.opened()?.on_completed(entry)?;
        self.end(key, completed)
    }

    /// The system has ended an operation. Returns its key if it is over.
    fn end(&self, key: usize, completed: Completed) -> Option<usize> {
        let kernel_io = self.kernel_io();
        let is_over = self
            .in_flight
            .end(key, completed, kernel_io, |token, kernel_io| {
                self.start(token, kernel_io)
            });
        is_over.then_some(key)
    }

    /// Store something with an operation. Returns it if the operation is complete.
    pub(crate) fn note_deadline(&self, id: OperationId, deadline: D) -> Result<(), D> {
        match self.in_flight.slots.get(id.0) {
            Some(mut slot) => {
                slot.note = Some(deadline);
                Ok(())
            }
            None => Err(deadline),
        }
    }

    /// Cancel an operation. False if there is none with this id, or it is complete.
    pub(crate) fn cancel(&self, id: OperationId, reason: Reason) -> bool {
        let is_over = self.in_flight.cancel(id.0, reason);
        match is_over {
            Some(true) => self.post(self.in_flight.slots.key(id.0)),
            Some(false) => self.flush(),
            None => {}
        }
        is_over.is_some()
    }

    /// The packet of a finished operation was dequeued: [closing](Self::close) leaves it to be taken. False if it is gone.
    pub(crate) fn on_dequeued(&self, key: usize) -> bool {
        let slot = self.in_flight.slots.get_by_key(key);
        slot.is_some_and(|slot| {
            slot.marks().store(DEQUEUED, Ordering::Relaxed);
            true
        })
    }

    /// This packet is queued again: if it is an operation's, closing takes that.
    pub(crate) fn on_requeued(&self, packet: &Entry) {
        if packet.completion_key == self.key {
            if let Some(slot) = self.in_flight.slots.get_by_key(packet.overlapped) {
                slot.marks().store(0, Ordering::Relaxed);
            }
        }
    }

    /// Take the completion of a finished operation.
    pub(crate) fn finish(&self, key: usize) -> Option<(FileCompletion, Option<D>)> {
        let (token, slot) = self.in_flight.finish(key)?;
        self.completion(token, slot)
    }

    /// The completion of a finished operation that was removed.
    fn completion(
        &self,
        token: Token,
        slot: OperationSlot<FileOperation, Option<D>>,
    ) -> Option<(FileCompletion, Option<D>)> {
        self.count.fetch_sub(1, Ordering::Relaxed);
        let (result, is_cancelled) = slot.stage.into_result()?;
        let operation = slot.operation?;
        let completion = operation.completed(OperationId(token), result, is_cancelled);
        Some((completion, slot.note))
    }

    /// Begin nothing more, wait for the operations that the system or a helper thread performs, and take the completions
    /// of all but those that were dequeued.
    pub(crate) fn close(&self) -> Vec<FileCompletion> {
        self.in_flight.helpers.close();
        let left = self.in_flight.close().into_iter();
        left.filter_map(|token| {
            let slot = self.in_flight.slots.remove_unless(token, |slot| {
                slot.marks().load(Ordering::Relaxed) == DEQUEUED
            })?;
            Some(self.completion(token, slot)?.0)
        })
        .collect()
    }

    #[cfg(all(test, target_os = "linux", not(interleavings)))]
    pub(super) fn in_flight(&self) -> &InFlight<FileOperation, Option<D>> {
        &self.in_flight
    }

    /// The number of threads that perform operations.
    pub(crate) fn threads(&self) -> usize {
        self.in_flight.helpers.threads()
    }

    fn post(&self, key: usize) {
        // If the port is closed, nobody takes it.
        let _ = self.in_flight.port.post(&[self.packet(key)], || {});
    }

    pub(crate) fn packet(&self, key: usize) -> Entry {
        Entry::new(self.key, 0, key)
    }
}

impl<D: Send + 'static> Perform for Operations<D> {
    fn perform(&self, key: usize) -> Performed {
        self.in_flight.perform(key, || self.post(key))
    }

    fn performed_apart(&self, key: usize, result: io::Result<Vec<u8>>) {
        self.in_flight
            .performed_apart(key, result, || self.post(key));
    }
}

#[cfg(unix)]
impl<D: Send + 'static> Owner for Operations<D> {
    fn is_queued(&self, key: usize) -> bool {
        self.in_flight.is_queued(key)
    }

    fn submits(&self, key: usize) -> bool {
        self.in_flight.submits(key)
    }

    fn refused(&self, key: usize) {
        if self.end(key, Completed::Cancelled).is_some() {
            self.post(key);
        }
    }

    fn on_completed(&self, key: usize, completed: Completed) -> Option<Entry> {
        self.end(key, completed).map(|key| self.packet(key))
    }
}
