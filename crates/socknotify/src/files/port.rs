//! [`CompletionPort`]: operations on files.

#![allow(unsafe_code, reason = "the caller's memory, by the caller's promise")]

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd};

use super::overlapped::{self, Overlapped};
use super::request::{Kind, MOST, Part, Request};
use super::{OperationId, Reason, system};
use crate::support::lock::lock;
use crate::{CompletionPort, Entry, Error};

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
    /// - the descriptor must stay open, and refer to the same file.
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
        unsafe {
            self.begin(
                Kind::Read,
                &file,
                Memory::of(memory),
                completion_key,
                overlapped,
            )
        }
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
        unsafe {
            self.begin(
                Kind::Write,
                &file,
                Memory::of(memory),
                completion_key,
                overlapped,
            )
        }
    }

    /// `preadv` — Begins to read from a file into several parts of memory, one after the other, as
    /// [`read_at`](Self::read_at) reads into one.
    ///
    /// # Errors
    ///
    /// As [`read_at`](Self::read_at); at most `i32::MAX` parts.
    ///
    /// # Safety
    ///
    /// As [`read_at`](Self::read_at); and so must the array be valid.
    #[doc(alias = "preadv")]
    #[doc(alias = "ReadFileScatter")]
    pub unsafe fn read_vectored_at<F: AsFd>(
        &self,
        file: F,
        parts: *const [IoSliceMut<'_>],
        completion_key: usize,
        overlapped: *mut Overlapped,
    ) -> Result<(), Error> {
        // SAFETY: the promise is the same; and an `IoSliceMut` has the layout of a part.
        unsafe {
            let memory = Memory::of_parts(parts.cast(), parts.len());
            self.begin(Kind::ReadParts, &file, memory, completion_key, overlapped)
        }
    }

    /// `pwritev` — Begins to write several parts of memory to a file, as [`read_vectored_at`](Self::read_vectored_at)
    /// reads.
    ///
    /// # Errors
    ///
    /// As [`read_vectored_at`](Self::read_vectored_at).
    ///
    /// # Safety
    ///
    /// As [`read_vectored_at`](Self::read_vectored_at), except that others may read the memory meanwhile.
    #[doc(alias = "pwritev")]
    #[doc(alias = "WriteFileGather")]
    pub unsafe fn write_vectored_at<F: AsFd>(
        &self,
        file: F,
        parts: *const [IoSlice<'_>],
        completion_key: usize,
        overlapped: *mut Overlapped,
    ) -> Result<(), Error> {
        // SAFETY: the promise is the same; and an `IoSlice` has the layout of a part.
        unsafe {
            let memory = Memory::of_parts(parts.cast(), parts.len());
            self.begin(Kind::WriteParts, &file, memory, completion_key, overlapped)
        }
    }

    /// `fsync`, `FlushFileBuffers` — Begins to wait until what was written to a file is on the disk; `fdatasync` if only
    /// the data matter. The packet has 0 bytes, and the offset means nothing.
    ///
    /// # Errors
    ///
    /// As [`read_at`](Self::read_at).
    ///
    /// # Safety
    ///
    /// As [`read_at`](Self::read_at), without the memory.
    #[doc(alias = "fsync")]
    #[doc(alias = "fdatasync")]
    #[doc(alias = "FlushFileBuffers")]
    pub unsafe fn sync<F: AsFd>(
        &self,
        file: F,
        only_data: bool,
        completion_key: usize,
        overlapped: *mut Overlapped,
    ) -> Result<(), Error> {
        let kind = if only_data {
            Kind::SyncData
        } else {
            Kind::SyncAll
        };
        // SAFETY: the promise is the same.
        unsafe { self.begin(kind, &file, Memory::NONE, completion_key, overlapped) }
    }

    /// `CancelIoEx` — Cancels an operation, if that is still possible. Its packet comes in any case, with an error or
    /// with its result. Returns false if it is not in progress on this port.
    ///
    /// The pointer is looked up among those of the operations in progress, and nothing is read through it: the operation
    /// may have ended meanwhile.
    #[doc(alias = "CancelIoEx")]
    pub fn cancel_operation(&self, overlapped: *const Overlapped) -> bool {
        let operations = self.operations();
        // In a forked child another thread may have had it locked.
        operations.is_here() && {
            let found = lock(&operations.callers).get(&overlapped.addr()).copied();
            found.is_some_and(|token| operations.cancel(OperationId(token), Reason::Asked))
        }
    }

    unsafe fn begin<F: AsFd>(
        &self,
        kind: Kind,
        file: &F,
        memory: Memory,
        completion_key: usize,
        overlapped: *mut Overlapped,
    ) -> Result<(), Error> {
        // SAFETY: by the promise.
        let offset = unsafe { (*overlapped).offset() };
        let length = u32::try_from(memory.length).ok();
        let is_possible = i64::try_from(offset).is_ok() && memory.parts <= i32::MAX as usize;
        let Some(length) = length.filter(|&length| length <= MOST && is_possible) else {
            return Err(Error::InvalidParameter);
        };
        let file = file.as_fd().as_raw_fd();
        // SAFETY: it is open.
        let borrowed = unsafe { system::borrow(file) };
        let nature = system::check(&borrowed).map_err(os_error)?;
        let request = Request {
            file,
            nature,
            association: None,
            kind,
            memory: memory.first,
            length,
            parts: memory.parts as u32,
            offset,
        };
        let packet = Entry::new(completion_key, 0, overlapped.expose_provenance());
        // SAFETY: by the promise.
        let begun = unsafe {
            overlapped::begin(overlapped);
            self.operations().begin_callers(request, packet)
        };
        if begun.is_err() {
            // SAFETY: as above.
            unsafe { overlapped::withdraw(overlapped) };
        }
        begun
    }
}

/// The caller's memory, or an array of parts of it.
struct Memory {
    first: *mut u8,
    /// How many bytes, of all parts together.
    length: usize,
    parts: usize,
}

impl Memory {
    const NONE: Self = Memory {
        first: std::ptr::null_mut(),
        length: 0,
        parts: 0,
    };

    fn of(memory: *mut [u8]) -> Self {
        Memory {
            first: memory.cast(),
            length: memory.len(),
            parts: 0,
        }
    }

    /// # Safety
    ///
    /// That many parts can be read.
    unsafe fn of_parts(first: *const Part, parts: usize) -> Self {
        let length = (0..parts).fold(0_usize, |sum, index| {
            // SAFETY: by the promise.
            sum.saturating_add(unsafe { (*first.add(index)).length })
        });
        Memory {
            first: first.cast_mut().cast(),
            length,
            parts,
        }
    }
}

fn os_error(error: io::Error) -> Error {
    Error::Os(error.raw_os_error().unwrap_or(libc::EINVAL))
}
