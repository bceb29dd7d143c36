//! [`Overlapped`]: the caller's block of an operation, and the operations that have one.

#![allow(unsafe_code, reason = "the caller's block, by the caller's promise")]

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::request::{Kind, MOST, Memory, Request};
use super::{OperationId, Operations, Reason, system};
use crate::support::lock::lock;
use crate::values::entry::Status;
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
    fn new(kind: Kind, result: &io::Result<usize>, length: usize) -> Self {
        match result {
            Ok(0) if kind == Kind::Read && length > 0 => Status::END_OF_FILE,
            Ok(_) => Status::SUCCESS,
            Err(error) => Status(error.raw_os_error().unwrap_or(libc::EIO) as u16),
        }
    }
}

impl Operations {
    /// Begins an operation at the block's offset.
    ///
    /// # Safety
    ///
    /// The memory and the block are valid until the operation is dequeued.
    pub(crate) unsafe fn begin_at<F: AsFd>(
        &self,
        kind: Kind,
        file: F,
        memory: Memory,
        completion_key: usize,
        overlapped: *mut Overlapped,
    ) -> Result<(), Error> {
        let offset = match kind {
            Kind::SyncAll | Kind::SyncData => 0,
            // SAFETY: by the promise.
            _ => unsafe { (*overlapped).offset() },
        };
        let is_short = memory.length <= MOST as usize && memory.parts <= i32::MAX as usize;
        if !is_short || i64::try_from(offset).is_err() {
            return Err(Error::InvalidParameter);
        }
        let file = file.as_fd().as_raw_fd();
        // SAFETY: it is open.
        let borrowed = unsafe { system::borrow(file) };
        let nature = system::check(&borrowed).map_err(os_error)?;
        let request = Request {
            file,
            nature,
            kind,
            memory,
            offset,
        };
        let packet = Entry::new(completion_key, 0, overlapped.expose_provenance());
        // SAFETY: by the promise.
        unsafe {
            (*overlapped).internal.store(PENDING, Ordering::Relaxed);
            let begun = self.begin_callers(request, packet);
            if begun.is_err() {
                (*overlapped).internal.store(SUCCESS, Ordering::Relaxed);
            }
            begun
        }
    }

    /// Cancels the operation with this block, if it is in progress.
    pub(crate) fn cancel_callers(&self, overlapped: *const Overlapped) -> bool {
        // In a forked child another thread may have had it locked.
        self.is_here() && {
            let found = lock(&self.callers).get(&overlapped.addr()).copied();
            found.is_some_and(|token| self.cancel(OperationId(token), Reason::Asked))
        }
    }
}

fn os_error(error: io::Error) -> Error {
    Error::Os(error.raw_os_error().unwrap_or(libc::EINVAL))
}

/// The packet of an operation, whose block says from now on how it has ended, and is its caller's again.
///
/// # Safety
///
/// The block at the packet's overlapped value is valid.
pub(super) unsafe fn complete(
    mut packet: Entry,
    request: &Request,
    result: io::Result<usize>,
) -> Entry {
    packet.status = Status::new(request.kind, &result, request.memory.length);
    let count = result.unwrap_or(0);
    packet.transferred = count as u32;
    let overlapped = ptr::with_exposed_provenance::<Overlapped>(packet.overlapped);
    // SAFETY: by the promise.
    unsafe { (*overlapped).on_completed(packet.status, count) };
    packet
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
