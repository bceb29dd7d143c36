//! [`InFlight`]: operations in progress, and what performs them: the system itself, or helper threads.

#![allow(
    unsafe_code,
    reason = "the system has the memory of operations that are here"
)]

use std::cell::{Cell, OnceCell};
use std::io;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use super::helpers::{Gate, Helpers, Perform, Performed, ThreadThatWaits};
use super::kernel_io::KernelIo;
use super::opening::Opening;
use super::request::{Progress, Request, Work};
use super::{Begun, Completed, Layer, system};
use crate::Error;
use crate::slots::{Slots, Token};
use crate::sys::Process;
use crate::system::SystemPort;

/// The operations of a port, each in a slot from its beginning until it is [finished](Self::finish).
///
/// `O` is an operation, and `N` what its owner stores with it.
pub(super) struct InFlight<O, N> {
    pub(super) slots: Slots<OperationSlot<O, N>>,
    pub(super) port: SystemPort,
    pub(super) helpers: Helpers,
    pub(super) layer: Layer,
    /// The system itself, if it performs them.
    pub(super) opening: Arc<Opening>,
    process: Process,
    /// Locked for reading while an operation begins.
    closed: RwLock<bool>,
    /// The threads that perform and complete operations.
    pub(super) gate: Gate,
}

pub(super) struct OperationSlot<O, N> {
    /// Not here while a helper thread works on it.
    pub(super) operation: Option<O>,
    pub(super) stage: Stage,
    pub(super) note: N,
}

#[derive(Default)]
pub(super) enum Stage {
    /// Nobody has begun it. Its key is in the queue of the ring or of the helper threads.
    #[default]
    Queued,
    /// A helper thread performs it, and ends it early if there is a reason.
    Running(Option<Reason>),
    /// A helper thread performs it with a file and memory of its own, because it may never end.
    Apart,
    /// The system performs it, and may have been asked to cancel it.
    InKernel(Option<Reason>),
    Done(io::Result<usize>),
    Cancelled(Reason),
}

/// Why an operation is cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    Asked,
    Deadline,
}

impl Stage {
    fn is_over(&self) -> bool {
        matches!(self, Stage::Done(_) | Stage::Cancelled(_))
    }

    /// The result of a finished operation, and whether it was cancelled.
    pub(super) fn into_result(self) -> Option<(io::Result<usize>, bool)> {
        match self {
            Stage::Done(result) => Some((result, false)),
            Stage::Cancelled(Reason::Asked) => Some((Err(system::cancelled()), true)),
            Stage::Cancelled(Reason::Deadline) => Some((Err(io::ErrorKind::TimedOut.into()), true)),
            _ => None,
        }
    }
}

impl<O, N: Default> Default for OperationSlot<O, N> {
    fn default() -> Self {
        OperationSlot {
            operation: None,
            stage: Stage::Queued,
            note: N::default(),
        }
    }
}

impl<O, N> InFlight<O, N> {
    /// Whether this is the process of the port.
    pub(super) fn is_here(&self) -> bool {
        self.process.is_this()
    }

    /// The system, if it was opened.
    #[inline]
    pub(super) fn opened(&self) -> Option<&KernelIo> {
        self.opening.opened().map(|kernel_io| &**kernel_io)
    }
}

impl<O: Work, N: Default> InFlight<O, N> {
    pub(super) fn new(
        layer: Layer,
        port: SystemPort,
        opening: Arc<Opening>,
        helpers: Helpers,
    ) -> Self {
        InFlight {
            slots: Slots::new(),
            port,
            helpers,
            layer,
            opening,
            process: Process::this(),
            closed: RwLock::new(false),
            gate: Gate::default(),
        }
    }

    /// Keep it open for as long as an operation begins.
    pub(super) fn open(&self) -> Result<RwLockReadGuard<'_, bool>, Error> {
        if !self.is_here() {
            return Err(Error::OtherProcess);
        }
        let closed = self.closed.read().unwrap_or_else(PoisonError::into_inner);
        match *closed {
            true => Err(Error::Closed),
            false => Ok(closed),
        }
    }

    /// Pass the operation in a slot to the system, or else to a helper thread. Returns whether it is over. Fails if
    /// neither takes it.
    pub(super) fn start(
        &self,
        token: Token,
        kernel_io: Option<&KernelIo>,
        perform: impl FnOnce() -> Option<Arc<dyn Perform>>,
    ) -> Result<bool, Error> {
        let key = self.slots.key(token);
        if let (Some(kernel_io), Some(mut slot)) = (kernel_io, self.slots.get(token)) {
            if slot.stage.is_over() {
                // It was cancelled meanwhile.
                return Ok(false);
            }
            let operation = slot.operation.as_mut().ok_or(Error::Closed)?;
            let begun = match operation.request() {
                // SAFETY: the operation stays in its slot until the stage is another one, and that is set by its
                // completion, or the slot is emptied when the system is closed. Meanwhile nobody touches its memory:
                // what borrows it for the system is the pointer in the request.
                Ok(request) => unsafe { kernel_io.begin(self.layer, key, &request) },
                Err(error) => Begun::Over(Err(error)),
            };
            match begun {
                Begun::Pending => {
                    slot.stage = Stage::InKernel(None);
                    return Ok(false);
                }
                Begun::Queued => return Ok(false),
                Begun::Over(result) => {
                    slot.stage = Stage::Done(result);
                    return Ok(true);
                }
                Begun::Refused => {}
            }
        }
        let perform = perform().ok_or(Error::Closed)?;
        self.helpers.perform(perform, key).map(|()| false)
    }

    /// Whether nobody has begun an operation.
    #[cfg(unix)]
    pub(super) fn is_queued(&self, key: usize) -> bool {
        let slot = self.slots.get_by_key(key);
        slot.is_some_and(|slot| matches!(slot.stage, Stage::Queued))
    }

    /// Whether nothing is left to do for an operation, which may be gone.
    fn is_over(&self, key: usize) -> bool {
        let slot = self.slots.get_by_key(key);
        slot.is_none_or(|slot| slot.stage.is_over())
    }

    /// The system is about to get a queued operation. False if that was cancelled.
    #[cfg(unix)]
    pub(super) fn submits(&self, key: usize) -> bool {
        match self.slots.get_by_key(key) {
            Some(mut slot) if matches!(slot.stage, Stage::Queued) => {
                slot.stage = Stage::InKernel(None);
                true
            }
            _ => false,
        }
    }

    /// The system has ended an operation. Returns whether it is over. If not, the system has cancelled it by itself,
    /// and it is to be [restarted](Self::restart).
    fn on_completed(&self, key: usize, completed: Completed) -> Option<bool> {
        let mut slot = self.slots.get_by_key(key)?;
        let cancelled = match (&slot.stage, &completed) {
            (Stage::InKernel(cancelled), _) => *cancelled,
            // The system has refused it in the queue.
            (Stage::Queued, Completed::Cancelled) => None,
            _ => return None,
        };
        slot.stage = match (completed, cancelled) {
            (Completed::Done(result), _) => Stage::Done(result),
            (Completed::Cancelled | Completed::Faulted, Some(reason)) => Stage::Cancelled(reason),
            // From here on it can be cancelled as one that was never begun.
            (Completed::Cancelled | Completed::Faulted, None) => Stage::Queued,
        };
        Some(slot.stage.is_over())
    }

    /// The system has ended an operation. Returns whether it is over. If not, it was begun again: the kernel cancels the
    /// operations of a thread that ends, and may interrupt others.
    pub(super) fn end(
        &self,
        key: usize,
        completed: Completed,
        kernel_io: Option<&KernelIo>,
        start: impl FnOnce(Token, Option<&KernelIo>) -> Result<bool, Error>,
    ) -> bool {
        let kernel_io = match completed {
            Completed::Faulted => None,
            _ => kernel_io,
        };
        self.on_completed(key, completed)
            .is_some_and(|is_over| is_over || self.restart(key, |token| start(token, kernel_io)))
    }

    /// Start an operation again that the system has cancelled by itself, unless it was cancelled meanwhile. True if
    /// nothing takes it, so that it is over.
    #[cold]
    fn restart(&self, key: usize, start: impl FnOnce(Token) -> Result<bool, Error>) -> bool {
        let (Ok(_open), Some((token, slot))) = (self.open(), self.slots.named(key)) else {
            return false;
        };
        let is_queued = matches!(slot.stage, Stage::Queued);
        drop(slot);
        if !is_queued {
            return false;
        }
        start(token).unwrap_or_else(|_| match self.slots.get(token) {
            Some(mut slot) if !slot.stage.is_over() => {
                slot.stage = Stage::Done(Err(system::out_of_memory()));
                true
            }
            _ => false,
        })
    }

    /// Cancel an operation. Returns whether it is over; `None` if there is no such operation, or it was over before.
    /// One that the system performs is cancelled by the next flush.
    pub(super) fn cancel(&self, token: Token, reason: Reason) -> Option<bool> {
        if !self.is_here() {
            return None;
        }
        let mut slot = self.slots.get(token)?;
        let is_over = match slot.stage {
            Stage::Done(_) | Stage::Cancelled(_) => return None,
            // The system knows, or the thread.
            Stage::Running(Some(_)) | Stage::InKernel(Some(_)) => false,
            Stage::Running(None) => {
                slot.stage = Stage::Running(Some(reason));
                false
            }
            Stage::InKernel(None) => {
                slot.stage = Stage::InKernel(Some(reason));
                if let Some(kernel_io) = self.opened() {
                    kernel_io.cancel(self.layer, self.slots.key(token));
                }
                false
            }
            Stage::Queued | Stage::Apart => {
                slot.stage = Stage::Cancelled(reason);
                true
            }
        };
        drop(slot);
        if is_over {
            // It may be in either queue.
            if let Some(kernel_io) = self.opened() {
                kernel_io.on_withdrawn();
            }
            self.helpers.on_withdrawn(|key| self.is_over(key));
        }
        Some(is_over)
    }

    /// Perform an operation, in a helper thread, unless it was cancelled.
    pub(super) fn perform(&self, key: usize, done: impl FnOnce()) -> Performed {
        let Some(_entered) = self.gate.enter() else {
            return Performed::Done;
        };
        let begun = self.slots.get_by_key(key).and_then(|mut slot| {
            matches!(slot.stage, Stage::Queued).then(|| {
                slot.stage = Stage::Running(None);
                slot.operation.take()
            })?
        });
        let Some(mut operation) = begun else {
            return Performed::Done;
        };
        let end = |operation, stage| {
            if let Some(mut slot) = self.slots.get_by_key(key) {
                slot.operation = Some(operation);
                slot.stage = stage;
            }
        };
        let request = operation.request();
        if let Some(apart) = request.as_ref().ok().and_then(Request::apart) {
            let thread = self.helpers.apart();
            let stage = match thread {
                Some(_) => Stage::Apart,
                None => Stage::Queued,
            };
            if self.put_back(key, operation, stage) {
                done();
                return Performed::Done;
            }
            return match thread {
                Some(thread) => Performed::Apart(thread, apart),
                None => Performed::NotYet,
            };
        }
        let performing = Performing {
            in_flight: self,
            key,
            stopped: Cell::new(None),
            waits: OnceCell::new(),
        };
        // SAFETY: the memory is the operation's, which this thread has alone; or its caller's, who has promised it.
        let perform = |request: Request| unsafe { request.perform(&performing) };
        let result = request.and_then(perform);
        let stopped = performing.stopped.take();
        drop(performing);
        let stage = stopped.map_or(Stage::Done(result), Stage::Cancelled);
        end(operation, stage);
        done();
        Performed::Done
    }

    /// Nobody asks any more whether an operation was cancelled. True if it was: then it is over.
    fn put_back(&self, key: usize, operation: O, stage: Stage) -> bool {
        let Some(mut slot) = self.slots.get_by_key(key) else {
            return false;
        };
        slot.operation = Some(operation);
        let reason = match slot.stage {
            Stage::Running(reason) => reason,
            _ => None,
        };
        slot.stage = reason.map_or(stage, Stage::Cancelled);
        reason.is_some()
    }

    /// Why a thread does not go on with an operation.
    fn stops(&self, key: usize) -> Option<Reason> {
        if self.gate.is_closed() {
            return Some(Reason::Asked);
        }
        match self.slots.get_by_key(key)?.stage {
            Stage::Running(reason) => reason,
            _ => None,
        }
    }

    /// What was read apart. Nobody has waited for it: the operation may be cancelled, and the port closed.
    #[cold]
    pub(super) fn performed_apart(
        &self,
        key: usize,
        result: io::Result<Vec<u8>>,
        done: impl FnOnce(),
    ) {
        let Some(_entered) = self.gate.enter() else {
            return;
        };
        let Some(mut slot) = self.slots.get_by_key(key) else {
            return;
        };
        if !matches!(slot.stage, Stage::Apart) {
            return;
        }
        let request = slot.operation.as_mut().map(Work::request);
        let copied = result.and_then(|bytes| match request {
            // SAFETY: the memory is the operation's, or its caller's, who has promised it. The slot is locked.
            Some(request) => Ok(unsafe { request?.copy(&bytes) }),
            None => Ok(0),
        });
        slot.stage = Stage::Done(copied);
        drop(slot);
        done();
    }

    /// Remove an operation that is over.
    pub(super) fn finish(&self, key: usize) -> Option<(Token, OperationSlot<O, N>)> {
        let (token, slot) = self.slots.named(key)?;
        if !slot.stage.is_over() {
            return None;
        }
        drop(slot);
        Some((token, self.slots.remove(token)?))
    }

    /// Begin nothing more, and wait for the operations that the system or a helper thread performs. Returns those left,
    /// all of which are over.
    pub(super) fn close(&self) -> Vec<Token> {
        if !self.is_here() {
            return Vec::new();
        }
        *self.closed.write().unwrap_or_else(PoisonError::into_inner) = true;
        self.close_kernel_io();
        self.gate.close();
        let left: Vec<_> = self.slots.iter_named().map(|(token, _)| token).collect();
        for &token in &left {
            let key = self.slots.key(token);
            let completed = self.opened().and_then(|kernel_io| kernel_io.completed(key));
            completed.and_then(|completed| self.on_completed(key, completed));
            if let Some(mut slot) = self.slots.get(token) {
                if !slot.stage.is_over() {
                    slot.stage = Stage::Cancelled(Reason::Asked);
                }
            }
        }
        left
    }
}

/// An operation that a helper thread performs.
struct Performing<'a, O, N> {
    in_flight: &'a InFlight<O, N>,
    key: usize,
    /// Why the thread does not go on.
    stopped: Cell<Option<Reason>>,
    /// The thread waits for a device.
    waits: OnceCell<ThreadThatWaits<'a>>,
}

impl<O: Work, N: Default> Progress for Performing<'_, O, N> {
    fn goes_on(&self) -> bool {
        self.stopped.set(self.in_flight.stops(self.key));
        self.stopped.get().is_none()
    }

    fn waits(&self) {
        self.waits.get_or_init(|| self.in_flight.helpers.waits());
    }
}

impl<O, N> InFlight<O, N> {
    /// Nothing begins any more. Another layer of the port may use the system as long as this one has no operations.
    fn close_kernel_io(&self)
    where
        N: Default,
    {
        if let Some(kernel_io) = self.opened() {
            if self.slots.iter().next().is_some() {
                kernel_io.close();
            }
        }
    }
}

impl<O, N> Drop for InFlight<O, N> {
    fn drop(&mut self) {
        // If a panic has kept the owner from closing, the system may still use the memory in the slots.
        if let (true, Some(kernel_io)) = (self.is_here(), self.opened()) {
            kernel_io.close();
        }
    }
}

#[cfg(all(test, unix, not(interleavings)))]
mod tests {
    use super::super::request::Kind;
    use super::*;
    use crate::CompletionPort;

    fn request() -> Request {
        Request {
            file: -1,
            association: None,
            kind: Kind::SyncAll,
            memory: std::ptr::null_mut(),
            length: 0,
            parts: 0,
            offset: 0,
        }
    }

    fn in_flight() -> InFlight<Request, ()> {
        let port = CompletionPort::new().expect("a port");
        let system = port.system().clone();
        InFlight::new(Layer::Caller, system, port.opening(), Helpers::new(1))
    }

    fn begin(in_flight: &InFlight<Request, ()>) -> (Token, usize) {
        let slot = OperationSlot {
            operation: Some(request()),
            stage: Stage::Queued,
            note: (),
        };
        let token = in_flight.slots.insert(slot).expect("room");
        let key = in_flight.slots.key(token);
        assert!(in_flight.submits(key));
        (token, key)
    }

    /// As when the thread that has submitted it ends, and meanwhile another one cancels it.
    #[test]
    fn a_cancellation_counts_that_comes_after_the_kernels() {
        let in_flight = in_flight();
        let (token, key) = begin(&in_flight);
        assert_eq!(
            in_flight.on_completed(key, Completed::Cancelled),
            Some(false)
        );
        assert_eq!(in_flight.cancel(token, Reason::Asked), Some(true));
        let is_over = in_flight.restart(key, |_| panic!("it begins again"));
        assert!(!is_over, "its end was reported");
        let (_, slot) = in_flight.finish(key).expect("it is over");
        let (result, is_cancelled) = slot.stage.into_result().expect("it is over");
        assert!(result.is_err() && is_cancelled);
    }

    #[test]
    fn a_cancellation_counts_that_comes_before_the_kernels() {
        let in_flight = in_flight();
        let (token, key) = begin(&in_flight);
        assert_eq!(in_flight.cancel(token, Reason::Deadline), Some(false));
        assert_eq!(
            in_flight.on_completed(key, Completed::Cancelled),
            Some(true)
        );
        assert!(!in_flight.restart(key, |_| panic!("it begins again")));
        assert_eq!(in_flight.cancel(token, Reason::Asked), None);
    }

    #[test]
    fn what_the_kernel_has_cancelled_by_itself_begins_again_once() {
        let in_flight = in_flight();
        let (token, key) = begin(&in_flight);
        assert_eq!(
            in_flight.on_completed(key, Completed::Cancelled),
            Some(false)
        );
        let mut begun = 0;
        let is_over = in_flight.restart(key, |it| {
            assert_eq!(it, token);
            begun += 1;
            Ok(false)
        });
        assert_eq!((begun, is_over), (1, false));
        assert!(in_flight.submits(key));
        assert!(!in_flight.submits(key));
        assert_eq!(
            in_flight.on_completed(key, Completed::Done(Ok(0))),
            Some(true)
        );
        assert_eq!(in_flight.on_completed(key, Completed::Done(Ok(0))), None);
    }

    /// What the thread keeps is a descriptor and memory of its own, and not the port's.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_read_that_never_ends_keeps_nothing_of_its_port() -> io::Result<()> {
        use std::fs::File;
        use std::io::Read;
        use std::os::unix::fs::OpenOptionsExt;
        use std::thread;
        use std::time::{Duration, Instant};

        use super::super::{FileDriver, FileOperation, Operations};

        const PATH: &str = "/proc/kmsg";
        let mut options = File::options();
        let options = options.read(true).custom_flags(libc::O_NONBLOCK);
        let Ok(mut log) = options.open(PATH) else {
            eprintln!("skipped: {PATH} cannot be read");
            return Ok(());
        };
        while log.read(&mut [0; 1 << 16]).is_ok_and(|count| count > 0) {}
        let end = Instant::now() + Duration::from_secs(30);
        let wait_until = |is_so: &dyn Fn() -> bool| {
            while !is_so() {
                assert!(Instant::now() < end);
                thread::sleep(Duration::from_millis(1));
            }
        };

        let port = CompletionPort::new().expect("a port");
        let operations = Operations::<()>::new(
            port.system().clone(),
            port.opening(),
            [1, 2],
            Helpers::new(1),
            Some(FileDriver::Threads),
        );
        let log = operations.adopt(File::open(PATH)?).expect("it is a file");
        let read = FileOperation::read_at(&log, vec![0; 8], 0);
        let Ok(_) = operations.begin(read) else {
            panic!("it begins");
        };
        let is_apart = || {
            let mut in_flight = operations.in_flight().slots.iter();
            in_flight.all(|slot| !matches!(slot.stage, Stage::Queued | Stage::Running(_)))
        };
        wait_until(&is_apart);
        operations.close();
        let weak = Arc::downgrade(&operations);
        drop(operations);
        wait_until(&|| weak.strong_count() == 0);
        Ok(())
    }
}
