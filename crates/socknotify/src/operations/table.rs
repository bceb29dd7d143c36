//! [`Operations`]: what is under way on the files of a port.

#![allow(unsafe_code, reason = "the system has the buffers that are here")]

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use super::direct::{self, Association, Direct};
use super::file::{FileCompletion, FileOperation, OperationId, PortFile};
use super::helpers::{Gate, Helpers, Perform};
use super::{Begun, FileDriver, Settled, system};
use crate::Entry;
use crate::slots::{Slots, Token};
use crate::sys::Process;
use crate::system::SystemPort;

/// The operations of a port, each in a slot from its beginning until its completion is taken.
///
/// `D` is what the owner of a deadline notes with an operation.
pub(crate) struct Operations<D> {
    slots: Slots<Flight<D>>,
    /// The completion key of packets that are posted. The overlapped value is the key of the slot.
    key: usize,
    /// The completion key of the system's packets.
    direct_key: usize,
    port: SystemPort,
    helpers: Helpers,
    /// Who is to do them, if anybody was asked for.
    wanted: Option<FileDriver>,
    /// The system itself, if it does them; from the first operation on.
    direct: OnceLock<Option<Arc<Direct>>>,
    process: Process,
    /// Locked for reading while an operation begins.
    closed: RwLock<bool>,
    count: AtomicUsize,
    /// What helper threads are at.
    gate: Gate,
}

struct Flight<D> {
    /// Not here while a helper thread works on it.
    operation: Option<FileOperation>,
    stage: Stage,
    deadline: Option<D>,
}

enum Stage {
    /// No thread has begun with it.
    Queued,
    Running,
    /// The system is at it, and may have been asked to end it.
    Direct(Option<Reason>),
    Done(io::Result<usize>),
    Cancelled(Reason),
}

/// Why an operation is cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    Asked,
    Deadline,
}

impl Reason {
    fn error(self) -> io::Error {
        match self {
            Reason::Asked => system::cancelled(),
            Reason::Deadline => io::ErrorKind::TimedOut.into(),
        }
    }
}

impl<D> Default for Flight<D> {
    fn default() -> Self {
        Flight {
            operation: None,
            stage: Stage::Queued,
            deadline: None,
        }
    }
}

impl<D: Send + 'static> Operations<D> {
    /// Their packets have these completion keys: those that are posted, and those of the system.
    pub(crate) fn new(
        port: SystemPort,
        [key, direct_key]: [usize; 2],
        helpers: Helpers,
        wanted: Option<FileDriver>,
    ) -> Self {
        Operations {
            slots: Slots::new(),
            key,
            direct_key,
            port,
            helpers,
            wanted,
            direct: OnceLock::new(),
            process: Process::this(),
            closed: RwLock::new(false),
            count: AtomicUsize::new(0),
            gate: Gate::default(),
        }
    }

    /// How many were begun, and their completions not taken.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Take a file.
    pub(crate) fn adopt(&self, file: File) -> io::Result<PortFile> {
        system::check(&file)?;
        let direct = match self.process.is_this() {
            true => self.direct(),
            false => None,
        };
        let association =
            direct.map_or_else(Association::default, |direct| direct.associate(&file));
        Ok(PortFile::new(file, association))
    }

    /// Begin an operation. It comes back if the port is closed, or belongs to another process, or nothing is there to
    /// do it.
    pub(crate) fn begin(
        self: &Arc<Self>,
        operation: FileOperation,
    ) -> Result<OperationId, FileOperation> {
        if !self.process.is_this() {
            return Err(operation);
        }
        let closed = self.closed.read().unwrap_or_else(PoisonError::into_inner);
        if *closed {
            return Err(operation);
        }
        let Some(token) = self.slots.insert(Flight::default()) else {
            return Err(operation);
        };
        if let Some(mut flight) = self.slots.get(token) {
            flight.operation = Some(operation);
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        if self.start(token) {
            return Ok(OperationId(token));
        }
        self.count.fetch_sub(1, Ordering::Relaxed);
        let flight = self.slots.remove(token);
        let operation = flight.and_then(|flight| flight.operation);
        Err(operation.expect("nobody has begun with it"))
    }

    /// Have the system do the operation in a slot, or else a helper thread. False if there is none.
    fn start(self: &Arc<Self>, token: Token) -> bool {
        let key = self.slots.key(token);
        if let (Some(direct), Some(mut flight)) = (self.direct(), self.slots.get(token)) {
            let Flight {
                operation, stage, ..
            } = &mut *flight;
            let Some(operation) = operation else {
                return false;
            };
            // SAFETY: the operation stays in its slot until the stage is another one, and that is set by its
            // completion, or the slot is emptied when the system is closed. Meanwhile nobody touches its buffer:
            // what borrows it for the system is the pointer that this makes.
            match unsafe { direct.begin(key, operation) } {
                Begun::UnderWay => {
                    *stage = Stage::Direct(None);
                    return true;
                }
                Begun::Refused => {}
                Begun::Over(result) => {
                    *stage = Stage::Done(result);
                    drop(flight);
                    self.post(key);
                    return true;
                }
            }
        }
        let perform: Arc<dyn Perform> = Arc::clone(self) as _;
        self.helpers.perform(perform, key)
    }

    /// The system, if it does operations by itself.
    fn direct(&self) -> Option<&Direct> {
        let open = || match self.wanted {
            Some(FileDriver::Threads) => None,
            _ => Direct::new(&self.port, self.direct_key).ok(),
        };
        self.direct.get_or_init(open).as_deref()
    }

    /// Who does operations. It is found out now.
    pub(crate) fn driver(&self) -> FileDriver {
        match direct::DRIVER {
            Some(driver) if self.process.is_this() && self.direct().is_some() => driver,
            _ => FileDriver::Threads,
        }
    }

    /// See to it that all that was begun is on its way.
    #[inline]
    pub(crate) fn flush(self: &Arc<Self>) {
        if let Some(Some(direct)) = self.direct.get() {
            if self.process.is_this() {
                let refused = direct.flush();
                refused.into_iter().for_each(|key| self.restart(key));
            }
        }
    }

    /// The system has let go of an operation that nobody has cancelled.
    #[cold]
    fn restart(self: &Arc<Self>, key: usize) {
        let closed = self.closed.read().unwrap_or_else(PoisonError::into_inner);
        let Some((token, mut flight)) = self.slots.named(key) else {
            return;
        };
        if *closed || !matches!(flight.stage, Stage::Direct(_)) {
            return;
        }
        flight.stage = Stage::Queued;
        drop(flight);
        if self.start(token) {
            return;
        }
        if let Some(mut flight) = self.slots.get(token) {
            flight.stage = Stage::Done(Err(io::ErrorKind::OutOfMemory.into()));
        }
        self.post(key);
    }

    /// A packet of the system was dequeued. Returns the key of its operation, if that is over.
    pub(crate) fn settle(self: &Arc<Self>, entry: &Entry) -> Option<usize> {
        let direct = self.direct.get()?.as_ref()?;
        let (key, settled) = direct.settle(entry)?;
        let mut flight = self.slots.get_by_key(key)?;
        let Stage::Direct(cancelled) = flight.stage else {
            return None;
        };
        flight.stage = match (settled, cancelled) {
            (Settled::Done(result), _) => Stage::Done(result),
            (Settled::Cancelled, Some(reason)) => Stage::Cancelled(reason),
            (Settled::Cancelled, None) => {
                drop(flight);
                self.restart(key);
                self.flush();
                return None;
            }
        };
        Some(key)
    }

    /// Note something with an operation. It comes back if that is over.
    pub(crate) fn note_deadline(&self, id: OperationId, deadline: D) -> Result<(), D> {
        match self.slots.get(id.0) {
            Some(mut flight) => {
                flight.deadline = Some(deadline);
                Ok(())
            }
            None => Err(deadline),
        }
    }

    /// Have an operation end early. False if there is none by this name, or it is done.
    pub(crate) fn cancel(self: &Arc<Self>, id: OperationId, reason: Reason) -> bool {
        if !self.process.is_this() {
            return false;
        }
        let Some(mut flight) = self.slots.get(id.0) else {
            return false;
        };
        match flight.stage {
            Stage::Done(_) | Stage::Cancelled(_) => return false,
            // It ends by itself.
            Stage::Running => return true,
            Stage::Direct(cancelled) => {
                flight.stage = Stage::Direct(cancelled.or(Some(reason)));
                if let Some(Some(direct)) = self.direct.get() {
                    direct.cancel(self.slots.key(id.0));
                }
                drop(flight);
                self.flush();
                return true;
            }
            Stage::Queued => flight.stage = Stage::Cancelled(reason),
        }
        drop(flight);
        self.post(self.slots.key(id.0));
        true
    }

    /// Take the completion of an operation that is over.
    pub(crate) fn finish(&self, key: usize) -> Option<(FileCompletion, Option<D>)> {
        let (token, flight) = self.slots.named(key)?;
        if !matches!(flight.stage, Stage::Done(_) | Stage::Cancelled(_)) {
            return None;
        }
        drop(flight);
        let flight = self.slots.remove(token)?;
        self.count.fetch_sub(1, Ordering::Relaxed);
        let (result, is_cancelled) = match flight.stage {
            Stage::Done(result) => (result, false),
            Stage::Cancelled(reason) => (Err(reason.error()), true),
            _ => return None,
        };
        let operation = flight.operation?;
        let completion = FileCompletion {
            id: OperationId(token),
            file: operation.file,
            buffer: operation.buffer,
            result,
            is_cancelled,
        };
        Some((completion, flight.deadline))
    }

    /// Begin nothing more, wait for what the system or a helper thread is at, and drop all.
    pub(crate) fn close(&self) {
        if !self.process.is_this() {
            return;
        }
        *self.closed.write().unwrap_or_else(PoisonError::into_inner) = true;
        if let Some(Some(direct)) = self.direct.get() {
            direct.close();
        }
        self.gate.close();
        let tokens: Vec<_> = self.slots.iter_named().map(|(token, _)| token).collect();
        for token in tokens {
            // With no lock held: what a buffer does when it is dropped is its own business.
            if self.slots.remove(token).is_some() {
                self.count.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    fn post(&self, key: usize) {
        // If the port is closed, nobody takes it.
        let _ = self.port.post(&[self.packet(key)], || {});
    }

    pub(crate) fn packet(&self, key: usize) -> Entry {
        Entry::new(self.key, 0, key)
    }
}

impl<D: Send + 'static> Perform for Operations<D> {
    fn perform(&self, key: usize) {
        let Some(_entered) = self.gate.enter() else {
            return;
        };
        let begun = self.slots.get_by_key(key).and_then(|mut flight| {
            // Otherwise it was cancelled.
            matches!(flight.stage, Stage::Queued).then(|| {
                flight.stage = Stage::Running;
                flight.operation.take()
            })?
        });
        if let Some(mut operation) = begun {
            let result = operation.perform();
            if let Some(mut flight) = self.slots.get_by_key(key) {
                flight.operation = Some(operation);
                flight.stage = Stage::Done(result);
            }
            self.post(key);
        }
    }
}
