//! [`CompletionPort::read_at`] and its like: operations on files, with the caller's memory.

#![allow(unsafe_code, reason = "the caller's memory, by the caller's promise")]

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::AsFd;

use crate::files::{Kind, Memory, Overlapped, Part};
use crate::{CompletionPort, Error};

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
        let (files, memory) = (&self.operations, Memory::of(memory));
        // SAFETY: the promise is the same.
        unsafe { files.begin_at(Kind::Read, file, memory, completion_key, overlapped) }
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
        let (files, memory) = (&self.operations, Memory::of(memory.cast_mut()));
        // SAFETY: the promise is the same, and what is written is only read.
        unsafe { files.begin_at(Kind::Write, file, memory, completion_key, overlapped) }
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
    /// As [`read_at`](Self::read_at); and so must the array be valid, also if it is empty.
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
            let memory = Memory::of_parts(&*(parts as *const [Part]));
            let files = &self.operations;
            files.begin_at(Kind::Read, file, memory, completion_key, overlapped)
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
            let memory = Memory::of_parts(&*(parts as *const [Part]));
            let files = &self.operations;
            files.begin_at(Kind::Write, file, memory, completion_key, overlapped)
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
        let kind = match only_data {
            true => Kind::SyncData,
            false => Kind::SyncAll,
        };
        let (files, none) = (&self.operations, Memory::of(&mut []));
        // SAFETY: the promise is the same.
        unsafe { files.begin_at(kind, file, none, completion_key, overlapped) }
    }

    /// `CancelIoEx` — Cancels an operation, if that is still possible. Its packet comes in any case, with an error or
    /// with its result. Returns false if it is not in progress on this port.
    ///
    /// The pointer is looked up among those of the operations in progress, and nothing is read through it: the operation
    /// may have ended meanwhile.
    #[doc(alias = "CancelIoEx")]
    pub fn cancel_operation(&self, overlapped: *const Overlapped) -> bool {
        self.operations().cancel_callers(overlapped)
    }
}
