//! [`Operations`]: the operations in progress on the files of a port.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::direct::{self, Direct};
use super::file::{FileCompletion, FileOperation, OperationId, PortFile};
use super::flights::{Flights, Reason};
use super::helpers::{Helpers, Perform};
use super::{FileDriver, system};
use crate::Entry;
use crate::slots::Token;
use crate::system::SystemPort;

impl FileDriver {
    /// Tests whether the driver works here, now.
    ///
    /// # Errors
    ///
    /// Why it does not work.
    pub fn probe(self) -> io::Result<()> {
        match self {
            FileDriver::Threads => Ok(()),
            other if direct::DRIVER == Some(other) => Direct::probe(),
            _ => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

/// The operations of a port, each in a slot from its beginning until its completion is taken.
///
/// `D` is what the owner of a deadline stores with an operation.
pub(crate) struct Operations<D> {
    flights: Flights<FileOperation, Option<D>>,
    /// The completion key of posted packets. The overlapped value is the key of the slot.
    key: usize,
    /// The completion key of the system's packets.
    direct_key: usize,
    /// The requested driver, if any.
    wanted: Option<FileDriver>,
    count: AtomicUsize,
}

impl<D: Send + 'static> Operations<D> {
    /// The completion keys are for posted packets, and for those of the system.
    pub(crate) fn new(
        port: SystemPort,
        [key, direct_key]: [usize; 2],
        helpers: Helpers,
        wanted: Option<FileDriver>,
    ) -> Self {
        Operations {
            flights: Flights::new(port, helpers),
            key,
            direct_key,
            wanted,
            count: AtomicUsize::new(0),
        }
    }

    /// The number of operations that were begun and whose completions were not taken.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Take a file.
    pub(crate) fn adopt(&self, file: File) -> io::Result<PortFile> {
        system::check(&file)?;
        let direct = self.flights.is_here().then(|| self.direct()).flatten();
        let association = direct.and_then(|direct| direct.associate(&file));
        Ok(PortFile::new(file, association))
    }

    /// Begin an operation. Returns it if the port is closed or belongs to another process, or if neither the system nor
    /// a helper thread takes it.
    pub(crate) fn begin(
        self: &Arc<Self>,
        operation: FileOperation,
    ) -> Result<OperationId, FileOperation> {
        let slots = &self.flights.slots;
        let Ok(_open) = self.flights.open() else {
            return Err(operation);
        };
        let Some(token) = slots.insert(Default::default()) else {
            return Err(operation);
        };
        if let Some(mut flight) = slots.get(token) {
            flight.operation = Some(operation);
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        if self.start(token).is_some() {
            return Ok(OperationId(token));
        }
        self.count.fetch_sub(1, Ordering::Relaxed);
        let operation = slots.remove(token).and_then(|flight| flight.operation);
        Err(operation.expect("nobody has begun with it"))
    }

    fn start(self: &Arc<Self>, token: Token) -> Option<bool> {
        let perform = || Some(Arc::clone(self) as Arc<dyn Perform>);
        let is_over = self.flights.start(token, self.direct(), perform)?;
        if is_over {
            self.post(self.flights.slots.key(token));
        }
        Some(false)
    }

    /// The system, if it performs operations itself.
    fn direct(&self) -> Option<&Direct> {
        self.flights.direct(|| match self.wanted {
            Some(FileDriver::Threads) => Err(io::ErrorKind::Unsupported.into()),
            _ => Direct::new(&self.flights.port, self.direct_key),
        })
    }

    /// The driver that performs operations. It is determined now, if it was not before.
    pub(crate) fn driver(&self) -> FileDriver {
        match direct::DRIVER {
            Some(driver) if self.flights.is_here() && self.direct().is_some() => driver,
            _ => FileDriver::Threads,
        }
    }

    /// Pass all begun operations to the system.
    #[inline]
    pub(crate) fn flush(self: &Arc<Self>) {
        if let Some(direct) = self.flights.opened() {
            if self.flights.is_here() {
                let refused = direct.flush();
                refused.into_iter().for_each(|key| self.restart(key));
            }
        }
    }

    #[cold]
    fn restart(self: &Arc<Self>, key: usize) {
        if self.flights.restart(key, |token| self.start(token)) {
            self.post(key);
        }
    }

    /// A packet of the system was dequeued. Returns the key of its operation, if that is complete.
    pub(crate) fn settle(self: &Arc<Self>, entry: &Entry) -> Option<usize> {
        let (key, settled) = self.flights.opened()?.settle(entry)?;
        let is_over = self.flights.settle(key, settled)?;
        if !is_over {
            self.restart(key);
            self.flush();
        }
        is_over.then_some(key)
    }

    /// Store something with an operation. Returns it if the operation is complete.
    pub(crate) fn note_deadline(&self, id: OperationId, deadline: D) -> Result<(), D> {
        match self.flights.slots.get(id.0) {
            Some(mut flight) => {
                flight.note = Some(deadline);
                Ok(())
            }
            None => Err(deadline),
        }
    }

    /// Cancel an operation. False if there is none with this id, or it is complete.
    pub(crate) fn cancel(self: &Arc<Self>, id: OperationId, reason: Reason) -> bool {
        let is_over = self.flights.cancel(id.0, reason);
        match is_over {
            Some(true) => self.post(self.flights.slots.key(id.0)),
            Some(false) => self.flush(),
            None => {}
        }
        is_over.is_some()
    }

    /// Take the completion of a finished operation.
    pub(crate) fn finish(&self, key: usize) -> Option<(FileCompletion, Option<D>)> {
        let (token, flight) = self.flights.finish(key)?;
        self.count.fetch_sub(1, Ordering::Relaxed);
        let (result, is_cancelled) = flight.stage.into_result()?;
        let operation = flight.operation?;
        let completion = FileCompletion {
            id: OperationId(token),
            file: operation.file,
            buffer: operation.buffer,
            result,
            is_cancelled,
        };
        Some((completion, flight.note))
    }

    /// Begin nothing more, wait for the operations that the system or a helper thread performs, and drop all.
    pub(crate) fn close(&self) {
        for token in self.flights.close() {
            // With no lock held: dropping a buffer may run any code.
            if self.flights.slots.remove(token).is_some() {
                self.count.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    fn post(&self, key: usize) {
        // If the port is closed, nobody takes it.
        let _ = self.flights.port.post(&[self.packet(key)], || {});
    }

    pub(crate) fn packet(&self, key: usize) -> Entry {
        Entry::new(self.key, 0, key)
    }
}

impl<D: Send + 'static> Perform for Operations<D> {
    fn perform(&self, key: usize) {
        self.flights.perform(key, || self.post(key));
    }
}
