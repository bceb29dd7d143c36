//! Operations on files with the caller's descriptor, memory and overlapped value.

#![allow(unsafe_code, reason = "the caller's memory, by the caller's promise")]

use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, RawFd};
use std::slice;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock, Weak};

use super::direct::Direct;
use super::file::{FileOperation, Kind};
use super::helpers::{DEFAULT_THREADS, Gate, Helpers, Perform};
use super::{Begun, Settled, system};
use crate::slots::{Slots, Token};
use crate::sys::Process;
use crate::system::SystemPort;
use crate::{CompletionPort, Entry, Error};

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
    /// The bytes transferred; during the operation, its key.
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
    /// The system's error; `ECANCELED` if the operation was cancelled or its port closed;
    /// [`WouldBlock`](io::ErrorKind::WouldBlock) while it is in progress.
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

    fn settle(&self, kind: Kind, result: &io::Result<usize>, length: u32) {
        let (status, count) = match result {
            Ok(0) if kind == Kind::Read && length > 0 => (END_OF_FILE, 0),
            Ok(count) => (SUCCESS, *count),
            Err(error) => {
                let number = error.raw_os_error().unwrap_or(libc::EIO);
                (ERROR | number as usize, 0)
            }
        };
        self.internal_high.store(count, Ordering::Relaxed);
        self.internal.store(status, Ordering::Release);
    }
}

/// Only on Unix. On Windows `ReadFile` and `WriteFile` do the same on a file that is
/// [associated](https://learn.microsoft.com/windows/win32/fileio/createiocompletionport) with the port.
impl CompletionPort {
    /// `ReadFile` — Begins to read from a file into memory, at the offset in `overlapped`. When the operation is
    /// complete, a packet is queued with this key, the number of bytes, and the address of `overlapped`.
    /// [`Overlapped::result`] says whether it has succeeded.
    ///
    /// Any number can be in progress, and they complete in any order. On Linux the kernel performs them, unless that is
    /// forbidden; otherwise helper threads do.
    ///
    /// # Errors
    ///
    /// [`Error::Closed`] and [`Error::OtherProcess`]; [`Error::InvalidParameter`] if the length is over 1 GiB, or the
    /// offset beyond the end of any file; [`Error::OutOfMemory`]; [`Error::Os`] if the descriptor is no file: an
    /// operation on a pipe could take for ever. After an error no packet comes.
    ///
    /// # Safety
    ///
    /// Until its packet was dequeued, or [`close`](Self::close) has returned:
    ///
    /// - `memory` must be valid for that many bytes, and nobody else may read or write them;
    /// - `overlapped` must be valid, nobody may write to it, and it must not be used for a second operation;
    /// - the descriptor must stay open, and stand for the same file.
    ///
    /// This also holds after a call that timed out.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::fs::File;
    /// use socknotify::{CompletionPort, Overlapped};
    ///
    /// # fn main() -> std::io::Result<()> {
    /// # let path = std::env::temp_dir().join(format!("socknotify-raw-doc-{}", std::process::id()));
    /// # std::fs::write(&path, "0123456789")?;
    /// # let file = File::open(&path)?;
    /// let port = CompletionPort::new()?;
    /// let mut memory = [0; 4];
    /// let mut overlapped = Overlapped::new(3);
    /// let address = &raw mut overlapped;
    /// // SAFETY: all three stay valid until the packet was dequeued.
    /// unsafe { port.read_at(&file, &raw mut memory, 7, address)? };
    ///
    /// let entry = port.dequeue_one(None)?;
    /// assert_eq!((entry.completion_key, entry.overlapped), (7, address.addr()));
    /// assert_eq!(overlapped.result()?, 4);
    /// assert_eq!(&memory, b"3456");
    /// # std::fs::remove_file(&path)?;
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "ReadFile")]
    #[doc(alias = "pread")]
    pub unsafe fn read_at<F: AsFd>(
        &self,
        file: F,
        memory: *mut [u8],
        completion_key: usize,
        overlapped: *mut Overlapped,
    ) -> Result<(), Error> {
        // SAFETY: the promise is the same.
        unsafe { self.begin(Kind::Read, &file, memory, completion_key, overlapped) }
    }

    /// `WriteFile` — Begins to write memory to a file, as [`read_at`](Self::read_at) reads.
    ///
    /// # Errors
    ///
    /// As [`read_at`](Self::read_at).
    ///
    /// # Safety
    ///
    /// As [`read_at`](Self::read_at), except that others may read the memory meanwhile.
    #[doc(alias = "WriteFile")]
    #[doc(alias = "pwrite")]
    pub unsafe fn write_at<F: AsFd>(
        &self,
        file: F,
        memory: *const [u8],
        completion_key: usize,
        overlapped: *mut Overlapped,
    ) -> Result<(), Error> {
        let memory = memory.cast_mut();
        // SAFETY: the promise is the same, and what is written is only read.
        unsafe { self.begin(Kind::Write, &file, memory, completion_key, overlapped) }
    }

    /// `CancelIoEx` — Cancels an operation, if that is still possible. Its packet comes in any case, with an error or with
    /// its result. Returns false if it is not in progress on this port.
    ///
    /// # Safety
    ///
    /// `overlapped` can be read.
    #[doc(alias = "CancelIoEx")]
    pub unsafe fn cancel_operation(&self, overlapped: *const Overlapped) -> bool {
        // SAFETY: by the promise.
        let key = unsafe { (*overlapped).internal_high.load(Ordering::Relaxed) };
        self.raw().cancel(key, overlapped)
    }

    unsafe fn begin<F: AsFd>(
        &self,
        kind: Kind,
        file: &F,
        memory: *mut [u8],
        completion_key: usize,
        overlapped: *mut Overlapped,
    ) -> Result<(), Error> {
        // SAFETY: by the promise.
        let offset = unsafe { (*overlapped).offset() };
        let length = u32::try_from(memory.len()).ok();
        let is_possible = i64::try_from(offset).is_ok();
        let Some(length) = length.filter(|&length| length <= MOST && is_possible) else {
            return Err(Error::InvalidParameter);
        };
        let file = file.as_fd().as_raw_fd();
        let request = Request {
            file,
            kind,
            memory: memory.cast(),
            length,
            offset,
        };
        request.with_file(system::check).map_err(os_error)?;
        // SAFETY: by the promise.
        unsafe { self.raw().begin(request, completion_key, overlapped) }
    }
}

fn os_error(error: io::Error) -> Error {
    Error::Os(error.raw_os_error().unwrap_or(libc::EINVAL))
}

/// How many bytes are transferred at once, at the most.
const MOST: u32 = 1 << 30;

/// An operation, as it is passed to the system.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) file: RawFd,
    pub(super) kind: Kind,
    pub(super) memory: *mut u8,
    pub(super) length: u32,
    pub(super) offset: u64,
}

impl Request {
    #[cfg_attr(
        not(all(target_os = "linux", target_pointer_width = "64", not(kqueue_stand_in))),
        allow(dead_code, reason = "where there are no rings")
    )]
    pub(super) fn of(operation: &mut FileOperation) -> io::Result<Self> {
        let kind = operation.kind;
        let (offset, (memory, length)) = match kind {
            Kind::Read => (operation.checked_offset()?, operation.memory_mut()?),
            Kind::Write => {
                let (memory, length) = operation.memory()?;
                (operation.checked_offset()?, (memory.cast_mut(), length))
            }
            Kind::SyncAll | Kind::SyncData => (0, (std::ptr::null_mut(), 0)),
        };
        Ok(Request {
            file: operation.file.as_raw_fd(),
            kind,
            memory,
            length,
            offset,
        })
    }

    fn with_file<R>(&self, work: impl FnOnce(&File) -> R) -> R {
        // SAFETY: it is not closed here.
        let file = ManuallyDrop::new(unsafe { File::from_raw_fd(self.file) });
        work(&file)
    }

    /// Perform it, and wait for it.
    ///
    /// # Safety
    ///
    /// The memory is valid, and nobody else uses it meanwhile.
    unsafe fn perform(&self) -> io::Result<usize> {
        let length = self.length as usize;
        self.with_file(|file| match self.kind {
            Kind::Read => {
                // SAFETY: by the promise.
                let bytes = unsafe { slice::from_raw_parts_mut(self.memory, length) };
                system::read_at(file, bytes, self.offset)
            }
            Kind::Write => {
                // SAFETY: by the promise.
                let bytes = unsafe { slice::from_raw_parts(self.memory, length) };
                system::write_at(file, bytes, self.offset)
            }
            Kind::SyncAll => file.sync_all().map(|()| 0),
            Kind::SyncData => file.sync_data().map(|()| 0),
        })
    }
}

/// Makes packets of the system's completions.
pub(super) trait Settle: Send + Sync {
    /// `None` if it was begun again.
    fn settle(&self, key: usize, settled: Settled) -> Option<Entry>;
}

/// The operations of a port, each in a slot from its beginning until its packet is queued.
pub(crate) struct Raw {
    /// For operations that outlive a call.
    this: Weak<Raw>,
    slots: Slots<Flight>,
    port: SystemPort,
    helpers: Helpers,
    /// The system itself, if it performs them; from the first operation on.
    direct: OnceLock<Option<Arc<Direct>>>,
    process: Process,
    /// Locked for reading while an operation begins.
    closed: RwLock<bool>,
    gate: Gate,
}

#[derive(Clone, Copy, Default)]
struct Flight {
    operation: Option<Operation>,
    stage: Stage,
}

#[derive(Clone, Copy)]
struct Operation {
    request: Request,
    completion_key: usize,
    overlapped: *mut Overlapped,
}

// SAFETY: who began the operation has promised that its memory is nobody else's until it is over.
unsafe impl Send for Flight {}

#[derive(Clone, Copy, Default)]
enum Stage {
    /// No helper thread has begun it.
    #[default]
    Queued,
    Running,
    /// The system performs it, and may have been asked to cancel it.
    Direct {
        is_cancelled: bool,
    },
}

impl Raw {
    pub(crate) fn new(port: SystemPort) -> Arc<Self> {
        Arc::new_cyclic(|this| Raw {
            this: Weak::clone(this),
            slots: Slots::new(),
            port,
            helpers: Helpers::new(DEFAULT_THREADS),
            direct: OnceLock::new(),
            process: Process::this(),
            closed: RwLock::new(false),
            gate: Gate::default(),
        })
    }

    /// # Safety
    ///
    /// As for [`CompletionPort::read_at`].
    unsafe fn begin(
        &self,
        request: Request,
        completion_key: usize,
        overlapped: *mut Overlapped,
    ) -> Result<(), Error> {
        if !self.process.is_this() {
            return Err(Error::OtherProcess);
        }
        let closed = self.closed.read().unwrap_or_else(PoisonError::into_inner);
        if *closed {
            return Err(Error::Closed);
        }
        let operation = Operation {
            request,
            completion_key,
            overlapped,
        };
        let flight = Flight {
            operation: Some(operation),
            stage: Stage::Queued,
        };
        let token = self.slots.insert(flight).ok_or(Error::OutOfMemory)?;
        // SAFETY: by the promise. Nobody has begun with it.
        let status = unsafe { &*overlapped };
        let before = status.internal.swap(PENDING, Ordering::Relaxed);
        let key = self.slots.key(token);
        status.internal_high.store(key, Ordering::Relaxed);
        if !self.start(token) {
            self.slots.remove(token);
            status.internal.store(before, Ordering::Relaxed);
            return Err(Error::OutOfMemory);
        }
        self.flush();
        Ok(())
    }

    fn direct(&self) -> Option<&Direct> {
        let open = || Direct::raw(&self.port, Weak::clone(&self.this) as _).ok();
        self.direct.get_or_init(open).as_deref()
    }

    /// Pass the operation in a slot to the system, or else to a helper thread. False if neither takes it.
    fn start(&self, token: Token) -> bool {
        let key = self.slots.key(token);
        if let (Some(direct), Some(mut flight)) = (self.direct(), self.slots.get(token)) {
            let Some(operation) = flight.operation else {
                return false;
            };
            // SAFETY: who has begun the operation has promised it.
            let begun = unsafe { direct.begin_raw(key, &operation.request) };
            if matches!(begun, Begun::UnderWay) {
                flight.stage = Stage::Direct {
                    is_cancelled: false,
                };
                return true;
            }
            flight.stage = Stage::Queued;
        }
        let perform = Weak::upgrade(&self.this).map(|this| this as Arc<dyn Perform>);
        perform.is_some_and(|perform| self.helpers.perform(perform, key))
    }

    fn flush(&self) {
        if let Some(Some(direct)) = self.direct.get() {
            for key in direct.flush() {
                let packet = self.settle(key, Settled::Cancelled);
                self.port.complete(packet.as_slice());
            }
        }
    }

    fn cancel(&self, key: usize, overlapped: *const Overlapped) -> bool {
        if !self.process.is_this() {
            return false;
        }
        let Some((_, mut flight)) = self.slots.named(key) else {
            return false;
        };
        let is_meant = |it: &Operation| std::ptr::eq(it.overlapped, overlapped);
        if !flight.operation.as_ref().is_some_and(is_meant) {
            return false;
        }
        match &mut flight.stage {
            // It ends by itself.
            Stage::Running => {}
            Stage::Direct { is_cancelled } => {
                *is_cancelled = true;
                if let Some(Some(direct)) = self.direct.get() {
                    direct.cancel(key);
                }
                drop(flight);
                self.flush();
            }
            Stage::Queued => {
                drop(flight);
                if let Some(_entered) = self.gate.enter() {
                    let packet = self.finish(key, Err(system::cancelled()));
                    self.port.complete(packet.as_slice());
                }
            }
        }
        true
    }

    /// The operation is complete. From here on, its memory may be the caller's again at any time.
    fn finish(&self, key: usize, result: io::Result<usize>) -> Option<Entry> {
        let (token, flight) = self.slots.named(key)?;
        drop(flight);
        let operation = self.slots.remove(token)?.operation?;
        let Request { kind, length, .. } = operation.request;
        // SAFETY: it is there until the packet was dequeued, and that is queued after this.
        unsafe { (*operation.overlapped).settle(kind, &result, length) };
        let count = result.unwrap_or(0) as u32;
        let address = operation.overlapped.expose_provenance();
        Some(Entry::new(operation.completion_key, count, address))
    }

    /// Begin nothing more, and wait for the operations that the system or a helper thread performs.
    pub(crate) fn close(&self) {
        if !self.process.is_this() {
            return;
        }
        *self.closed.write().unwrap_or_else(PoisonError::into_inner) = true;
        self.helpers.close();
        if let Some(Some(direct)) = self.direct.get() {
            direct.close();
        }
        self.gate.close();
        let keys = self
            .slots
            .iter_named()
            .map(|(token, _)| self.slots.key(token));
        for key in keys.collect::<Vec<_>>() {
            self.finish(key, Err(system::cancelled()));
        }
    }
}

impl Settle for Raw {
    fn settle(&self, key: usize, settled: Settled) -> Option<Entry> {
        // If it is closed, what closes it sees to the rest.
        let _entered = self.gate.enter()?;
        let (token, flight) = self.slots.named(key)?;
        let stage = flight.stage;
        drop(flight);
        let result = match (settled, stage) {
            (Settled::Done(result), _) => result,
            (Settled::Cancelled, Stage::Direct { is_cancelled: true }) => Err(system::cancelled()),
            // A thread that ends takes what it has submitted along, and the kernel may be interrupted.
            (Settled::Cancelled, _) if self.start(token) => return None,
            (Settled::Cancelled, _) => Err(io::Error::from_raw_os_error(libc::ENOMEM)),
        };
        self.finish(key, result)
    }
}

impl Perform for Raw {
    fn perform(&self, key: usize) {
        let Some(_entered) = self.gate.enter() else {
            return;
        };
        let begun = self.slots.get_by_key(key).and_then(|mut flight| {
            // Otherwise it was cancelled.
            matches!(flight.stage, Stage::Queued).then(|| {
                flight.stage = Stage::Running;
                flight.operation
            })?
        });
        if let Some(operation) = begun {
            // SAFETY: who has begun the operation has promised it.
            let result = unsafe { operation.request.perform() };
            self.port.complete(self.finish(key, result).as_slice());
        }
    }
}
