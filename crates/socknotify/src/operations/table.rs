//! [`Operations`]: what is under way on the files of a port.

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};

use super::file::{FileCompletion, FileOperation, OperationId, PortFile};
use super::helpers::{Helpers, Perform};
use super::system;
use crate::Entry;
use crate::slots::Slots;
use crate::sys::Process;
use crate::system::SystemPort;

/// The operations of a port, each in a slot from its beginning until its completion is taken.
///
/// `D` is what the owner of a deadline notes with an operation.
pub(crate) struct Operations<D> {
    slots: Slots<Flight<D>>,
    /// The completion key of their packets. The overlapped value is the key of the slot.
    key: usize,
    port: SystemPort,
    helpers: Helpers,
    process: Process,
    /// Locked for reading while an operation begins.
    closed: RwLock<bool>,
    count: AtomicUsize,
    running: Mutex<Running>,
    ended: Condvar,
}

/// What helper threads are at.
#[derive(Default)]
struct Running {
    count: usize,
    closed: bool,
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

fn lock<V>(mutex: &Mutex<V>) -> MutexGuard<'_, V> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<D: Send + 'static> Operations<D> {
    /// Their packets have this completion key.
    pub(crate) fn new(port: SystemPort, key: usize, helpers: Helpers) -> Self {
        Operations {
            slots: Slots::new(),
            key,
            port,
            helpers,
            process: Process::this(),
            closed: RwLock::new(false),
            count: AtomicUsize::new(0),
            running: Mutex::default(),
            ended: Condvar::new(),
        }
    }

    /// How many were begun, and their completions not taken.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Take a file.
    pub(crate) fn adopt(&self, file: File) -> io::Result<PortFile> {
        system::check(&file)?;
        Ok(PortFile::new(file))
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
        let perform: Arc<dyn Perform> = Arc::clone(self) as _;
        if self.helpers.perform(perform, self.slots.key(token)) {
            return Ok(OperationId(token));
        }
        self.count.fetch_sub(1, Ordering::Relaxed);
        let flight = self.slots.remove(token);
        let operation = flight.and_then(|flight| flight.operation);
        Err(operation.expect("nobody has begun with it"))
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
    pub(crate) fn cancel(&self, id: OperationId, reason: Reason) -> bool {
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
            Stage::Queued => flight.stage = Stage::Cancelled(reason),
        }
        drop(flight);
        self.post(self.slots.key(id.0));
        true
    }

    /// The packet of this operation was dequeued.
    pub(crate) fn finish(&self, key: usize) -> Option<(FileCompletion, Option<D>)> {
        let (token, flight) = self.slots.named(key)?;
        if matches!(flight.stage, Stage::Queued | Stage::Running) {
            // It is not its packet.
            return None;
        }
        drop(flight);
        let flight = self.slots.remove(token)?;
        self.count.fetch_sub(1, Ordering::Relaxed);
        let (result, is_cancelled) = match flight.stage {
            Stage::Done(result) => (result, false),
            Stage::Cancelled(reason) => (Err(reason.error()), true),
            Stage::Queued | Stage::Running => return None,
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
        let mut running = lock(&self.running);
        running.closed = true;
        while running.count > 0 {
            running = self
                .ended
                .wait(running)
                .unwrap_or_else(PoisonError::into_inner);
        }
        drop(running);
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
        let mut running = lock(&self.running);
        if running.closed {
            return;
        }
        running.count += 1;
        drop(running);
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
        lock(&self.running).count -= 1;
        self.ended.notify_all();
    }
}
