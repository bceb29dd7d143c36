//! Operations on files with the caller's descriptor, memory and overlapped value.

#![allow(unsafe_code, reason = "the caller's memory, by the caller's promise")]

use std::collections::HashMap;
use std::io;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use super::helpers::{DEFAULT_THREADS, Helpers, Perform, Performed};
use super::in_flight::{InFlight, OperationSlot, Reason, Stage};
use super::kernel_io::KernelIo;
use super::opening::Opening;
use super::request::{Kind, Request};
use super::{Completed, Layer, Owner};
use crate::entry::Status;
use crate::lock::lock;
use crate::slots::Token;
use crate::system::SystemPort;
use crate::{Entry, Error, Origin};

/// `OVERLAPPED` — Where an operation on a file begins, and its result.
///
/// It belongs to the caller, and its address is the packet's [overlapped value](Entry::overlapped). Usually it is the
/// first field of a structure that has the buffer and whatever else the operation needs. It has the size and the fields
/// of the Windows structure. After an operation it can be used for the next one.
///
/// Only on Unix. On Windows, use the system's own.
#[doc(alias = "OVERLAPPED")]
#[repr(C)]
#[derive(Debug, Default)]
pub struct Overlapped {
    /// The status.
    internal: AtomicUsize,
    /// The bytes transferred.
    internal_high: AtomicUsize,
    offset: u32,
    offset_high: u32,
    event: usize,
}

const SUCCESS: usize = 0;
/// `STATUS_PENDING`
const PENDING: usize = 0x103;
/// `STATUS_END_OF_FILE`
const END_OF_FILE: usize = 0xC000_0011;
/// The system's error numbers, as statuses that are no others'.
const ERROR: usize = 0xE000_0000;

impl Overlapped {
    /// For an operation at this offset in the file.
    pub const fn new(offset: u64) -> Self {
        Overlapped {
            internal: AtomicUsize::new(SUCCESS),
            internal_high: AtomicUsize::new(0),
            offset: offset as u32,
            offset_high: (offset >> 32) as u32,
            event: 0,
        }
    }

    /// Where the operation begins in the file.
    pub const fn offset(&self) -> u64 {
        (self.offset_high as u64) << 32 | self.offset as u64
    }

    /// `HasOverlappedIoCompleted` — Whether the operation is in progress. If it is not, its packet may still be in the
    /// queue.
    #[doc(alias = "HasOverlappedIoCompleted")]
    pub fn is_pending(&self) -> bool {
        self.internal.load(Ordering::Acquire) == PENDING
    }

    /// `GetOverlappedResult` — How many bytes were read or written: 0 at the end of the file, and possibly fewer than
    /// requested.
    ///
    /// # Errors
    ///
    /// The system's error; `ECANCELED` if the operation was cancelled, or its port closed before it was done. While it is
    /// [in progress](Self::is_pending), [`WouldBlock`](io::ErrorKind::WouldBlock) without an
    /// [error number](io::Error::raw_os_error), which each error of the system has.
    #[doc(alias = "GetOverlappedResult")]
    pub fn result(&self) -> io::Result<usize> {
        match self.internal.load(Ordering::Acquire) {
            SUCCESS => Ok(self.internal_high.load(Ordering::Relaxed)),
            END_OF_FILE => Ok(0),
            PENDING => Err(io::ErrorKind::WouldBlock.into()),
            status => Err(io::Error::from_raw_os_error((status & !ERROR) as i32)),
        }
    }

    /// `ERROR_HANDLE_EOF` — Whether the operation was a read that began at or after the end of the file.
    #[doc(alias = "ERROR_HANDLE_EOF")]
    pub fn is_end_of_file(&self) -> bool {
        self.internal.load(Ordering::Acquire) == END_OF_FILE
    }

    /// What the packet of an operation says of it, without the block whose address it carries: that may be gone when
    /// the port was closed meanwhile. `None` for other packets. For interfaces above this one.
    #[doc(hidden)]
    pub fn of_packet(packet: &Entry) -> Option<Self> {
        (packet.origin() == Some(Origin::Completion)).then(|| {
            let overlapped = Overlapped::new(0);
            overlapped.on_completed(packet.status, packet.transferred as usize);
            overlapped
        })
    }

    fn on_completed(&self, status: Status, count: usize) {
        let status = match status {
            Status::SUCCESS => SUCCESS,
            Status::END_OF_FILE => END_OF_FILE,
            Status(number) => ERROR | usize::from(number),
        };
        self.internal_high.store(count, Ordering::Relaxed);
        self.internal.store(status, Ordering::Release);
    }
}

impl Status {
    fn new(kind: Kind, result: &io::Result<usize>, length: u32) -> Self {
        match result {
            Ok(0) if kind == Kind::Read && length > 0 => Status::END_OF_FILE,
            Ok(_) => Status::SUCCESS,
            Err(error) => Status(error.raw_os_error().unwrap_or(libc::EIO) as u16),
        }
    }
}

/// The operations of a port, each in a slot from its beginning until its packet is queued.
pub(crate) struct Raw {
    /// For operations that outlive a call.
    this: Weak<Raw>,
    /// With each, its packet.
    in_flight: InFlight<Request, Entry>,
    /// Those in progress, by the addresses of their blocks.
    begun: Mutex<HashMap<usize, Token>>,
}

impl Raw {
    pub(crate) fn new(port: SystemPort) -> Arc<Self> {
        Arc::new_cyclic(|this| Raw {
            this: Weak::clone(this),
            in_flight: InFlight::new(
                Layer::Caller,
                port.clone(),
                Opening::new(port),
                Helpers::for_files(DEFAULT_THREADS),
            ),
            begun: Mutex::default(),
        })
    }

    /// For another layer of the same port.
    pub(crate) fn opening(&self) -> &Arc<Opening> {
        &self.in_flight.opening
    }

    /// # Safety
    ///
    /// As for [`CompletionPort::read_at`](crate::CompletionPort::read_at).
    pub(super) unsafe fn begin(
        &self,
        request: Request,
        completion_key: usize,
        overlapped: *mut Overlapped,
    ) -> Result<(), Error> {
        let slots = &self.in_flight.slots;
        let open = self.in_flight.open()?;
        let slot = OperationSlot {
            operation: Some(request),
            stage: Stage::Queued,
            note: Entry::new(completion_key, 0, overlapped.expose_provenance()),
        };
        let token = slots.insert(slot).ok_or(Error::OutOfMemory)?;
        lock(&self.begun).insert(overlapped.addr(), token);
        // SAFETY: by the promise. Nobody has begun with it.
        let status = unsafe { &*overlapped };
        let before = status.internal.swap(PENDING, Ordering::Relaxed);
        let key = slots.key(token);
        let is_over = self.start(token, self.kernel_io()).inspect_err(|_| {
            lock(&self.begun).remove(&overlapped.addr());
            slots.remove(token);
            status.internal.store(before, Ordering::Relaxed);
        })?;
        drop(open);
        if is_over {
            self.complete(key);
        }
        self.flush();
        Ok(())
    }

    fn start(&self, token: Token, kernel_io: Option<&KernelIo>) -> Result<bool, Error> {
        let perform = || Some(Weak::upgrade(&self.this)? as Arc<dyn Perform>);
        self.in_flight.start(token, kernel_io, perform)
    }

    /// The system, if it performs operations itself.
    fn kernel_io(&self) -> Option<&KernelIo> {
        let kernel_io = self.in_flight.opening.open().ok()?;
        kernel_io.attach(Layer::Caller, || Weak::clone(&self.this) as _);
        Some(kernel_io)
    }

    #[inline]
    fn flush(&self) {
        if let Some(kernel_io) = self.in_flight.opened() {
            kernel_io.flush();
        }
    }

    /// Nothing is read through the pointer: the operation may have ended, and its block with it.
    pub(super) fn cancel(&self, overlapped: *const Overlapped) -> bool {
        // In a forked child another thread may have had it locked.
        if !self.in_flight.is_here() {
            return false;
        }
        let found = lock(&self.begun).get(&overlapped.addr()).copied();
        let Some(token) = found else {
            return false;
        };
        let is_over = self.in_flight.cancel(token, Reason::Asked);
        match is_over {
            Some(true) => {
                if let Some(_entered) = self.in_flight.gate.enter() {
                    self.complete(self.in_flight.slots.key(token));
                }
            }
            Some(false) => self.flush(),
            None => {}
        }
        is_over.is_some()
    }

    /// Queue the packet of an operation that is over.
    fn complete(&self, key: usize) {
        let packet = self.finish(key);
        self.in_flight.port.complete(packet.as_slice());
    }

    /// The operation is complete. From here on, its memory may be the caller's again at any time.
    fn finish(&self, key: usize) -> Option<Entry> {
        let (_, slot) = self.in_flight.finish(key)?;
        let Request { kind, length, .. } = slot.operation?;
        let (result, _) = slot.stage.into_result()?;
        let mut packet = slot.note;
        packet.status = Status::new(kind, &result, length);
        let count = result.unwrap_or(0);
        packet.transferred = count as u32;
        // The block may begin another operation when its status says so.
        lock(&self.begun).remove(&packet.overlapped);
        let overlapped = ptr::with_exposed_provenance::<Overlapped>(packet.overlapped);
        // SAFETY: it is there until the packet was dequeued, and that is queued after this.
        unsafe { (*overlapped).on_completed(packet.status, count) };
        Some(packet)
    }

    /// Begin nothing more, and wait for the operations that the system or a helper thread performs.
    pub(crate) fn close(&self) {
        for token in self.in_flight.close() {
            self.finish(self.in_flight.slots.key(token));
        }
        self.in_flight.helpers.close();
    }
}

impl Owner for Raw {
    fn is_queued(&self, key: usize) -> bool {
        self.in_flight.is_queued(key)
    }

    fn submits(&self, key: usize) -> bool {
        self.in_flight.submits(key)
    }

    fn refused(&self, key: usize) {
        let packet = self.on_completed(key, Completed::Cancelled);
        self.in_flight.port.complete(packet.as_slice());
    }

    fn on_completed(&self, key: usize, completed: Completed) -> Option<Entry> {
        // If it is closed, the closing thread handles the rest.
        let _entered = self.in_flight.gate.enter()?;
        let kernel_io = self.kernel_io();
        let is_over = self
            .in_flight
            .end(key, completed, kernel_io, |token, kernel_io| {
                self.start(token, kernel_io)
            });
        is_over.then(|| self.finish(key))?
    }
}

impl Perform for Raw {
    fn perform(&self, key: usize) -> Performed {
        self.in_flight.perform(key, || self.complete(key))
    }

    fn performed_apart(&self, key: usize, result: io::Result<Vec<u8>>) {
        self.in_flight
            .performed_apart(key, result, || self.complete(key));
    }
}

#[cfg(all(test, not(interleavings)))]
mod tests {
    use super::*;

    #[test]
    fn an_error_that_says_try_again_is_not_an_operation_in_progress() {
        let overlapped = Overlapped::new(0);
        overlapped.internal.store(PENDING, Ordering::Relaxed);
        assert!(overlapped.is_pending());
        let pending = overlapped.result().expect_err("it is in progress");
        assert_eq!(pending.raw_os_error(), None);
        let again = Err(io::Error::from_raw_os_error(libc::EAGAIN));
        overlapped.on_completed(Status::new(Kind::Read, &again, 1), 0);
        assert!(!overlapped.is_pending());
        let again = overlapped.result().expect_err("the system has refused");
        assert_eq!(again.raw_os_error(), Some(libc::EAGAIN));
    }
}
