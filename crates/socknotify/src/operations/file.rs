//! [`PortFile`], what is to be done with one, and what has become of it.

use std::fmt;
use std::fs::File;
use std::io;
use std::ops::{Deref, Range};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Buffer;
use super::direct::Association;
use super::system;
use crate::slots::Token;

/// A file whose operations complete on a port.
///
/// [`Port::adopt_file`](crate::owned::Port::adopt_file) makes one. A clone is the same file, which is closed when
/// the last one has gone and no operation is under way.
#[derive(Clone)]
pub struct PortFile(Arc<Inner>);

struct Inner {
    file: File,
    #[cfg_attr(not(windows), allow(dead_code, reason = "there it says nothing"))]
    association: Association,
}

impl PortFile {
    pub(super) fn new(file: File, association: Association) -> Self {
        PortFile(Arc::new(Inner { file, association }))
    }

    #[cfg(windows)]
    pub(super) fn association(&self) -> Association {
        self.0.association
    }

    /// The file, unless there is a clone, or an operation is under way.
    ///
    /// # Errors
    ///
    /// It comes back if there is.
    pub fn into_file(self) -> Result<File, Self> {
        Arc::try_unwrap(self.0)
            .map(|inner| inner.file)
            .map_err(PortFile)
    }
}

impl Deref for PortFile {
    type Target = File;

    fn deref(&self) -> &File {
        &self.0.file
    }
}

impl fmt::Debug for PortFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.file.fmt(f)
    }
}

/// Names an operation on a file, from its beginning to its end. It is never given again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OperationId(pub(super) Token);

impl fmt::Display for OperationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0.index, self.0.generation)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Read,
    Write,
    SyncAll,
    SyncData,
}

/// Something to be done with a file: see [`Port::begin`](crate::owned::Port::begin).
#[must_use = "it does nothing until it is begun"]
pub struct FileOperation {
    pub(super) file: PortFile,
    pub(super) kind: Kind,
    pub(super) buffer: Buffer,
    pub(super) range: Range<usize>,
    pub(super) offset: u64,
    deadline: Option<Instant>,
}

impl FileOperation {
    fn new(file: &PortFile, kind: Kind, buffer: Buffer, offset: u64) -> Self {
        FileOperation {
            file: file.clone(),
            kind,
            range: 0..buffer.len(),
            buffer,
            offset,
            deadline: None,
        }
    }

    /// `pread`, `ReadFile` — Reads into this buffer from this offset in the file on: at most as many bytes as the
    /// buffer has. 0 bytes say that the file ends there.
    #[doc(alias = "pread")]
    #[doc(alias = "ReadFile")]
    #[doc(alias = "IORING_OP_READ")]
    pub fn read_at(file: &PortFile, buffer: impl Into<Buffer>, offset: u64) -> Self {
        Self::new(file, Kind::Read, buffer.into(), offset)
    }

    /// `pwrite`, `WriteFile` — Writes what is in this buffer to the file, from this offset on. Where the file was
    /// opened to append, the system may write at its end instead.
    #[doc(alias = "pwrite")]
    #[doc(alias = "WriteFile")]
    #[doc(alias = "IORING_OP_WRITE")]
    pub fn write_at(file: &PortFile, buffer: impl Into<Buffer>, offset: u64) -> Self {
        Self::new(file, Kind::Write, buffer.into(), offset)
    }

    /// `fsync`, `FlushFileBuffers` — Has what was written reach the disk, as [`File::sync_all`] does. Operations that
    /// are under way at the same time may count or not.
    #[doc(alias = "fsync")]
    #[doc(alias = "FlushFileBuffers")]
    pub fn sync_all(file: &PortFile) -> Self {
        Self::new(file, Kind::SyncAll, Buffer::default(), 0)
    }

    /// `fdatasync` — The same without what is not needed to read it again, as [`File::sync_data`].
    #[doc(alias = "fdatasync")]
    pub fn sync_data(file: &PortFile) -> Self {
        Self::new(file, Kind::SyncData, Buffer::default(), 0)
    }

    /// Use this part of the buffer only. One that is not within the buffer makes the operation fail.
    pub fn range(mut self, range: Range<usize>) -> Self {
        self.range = range;
        self
    }

    /// Cancel the operation if it takes longer than this. Then it completes with
    /// [`TimedOut`](io::ErrorKind::TimedOut). What the system does not let go of, completes when it is done.
    pub fn within(mut self, time: Duration) -> Self {
        self.deadline = Instant::now().checked_add(time);
        self
    }

    /// The buffer, if the operation was not begun.
    pub fn into_buffer(self) -> Buffer {
        self.buffer
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// The bytes to read into.
    pub(super) fn memory_mut(&mut self) -> io::Result<(*mut u8, u32)> {
        let FileOperation { buffer, range, .. } = self;
        let bytes = unless_panics(|| buffer.get_mut(range.clone()).ok_or_else(out_of_range))?;
        Ok((bytes.as_mut_ptr(), bytes.len().min(MOST) as u32))
    }

    /// The bytes to write.
    pub(super) fn memory(&self) -> io::Result<(*const u8, u32)> {
        let FileOperation { buffer, range, .. } = self;
        let bytes = unless_panics(|| buffer.get(range.clone()).ok_or_else(out_of_range))?;
        Ok((bytes.as_ptr(), bytes.len().min(MOST) as u32))
    }

    /// The offset, if a file can be that long. What is beyond has other meanings to some systems.
    pub(super) fn checked_offset(&self) -> io::Result<u64> {
        match i64::try_from(self.offset) {
            Ok(_) => Ok(self.offset),
            Err(_) => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    /// Do it, and wait for it.
    pub(super) fn perform(&mut self) -> io::Result<usize> {
        let FileOperation {
            file,
            kind,
            buffer,
            range,
            offset,
            ..
        } = self;
        let attempt = || match kind {
            Kind::Read => {
                let bytes = buffer.get_mut(range.clone()).ok_or_else(out_of_range)?;
                system::read_at(file, bytes, *offset)
            }
            Kind::Write => {
                let bytes = buffer.get(range.clone()).ok_or_else(out_of_range)?;
                system::write_at(file, bytes, *offset)
            }
            Kind::SyncAll => file.sync_all().map(|()| 0),
            Kind::SyncData => file.sync_data().map(|()| 0),
        };
        unless_panics(attempt)
    }
}

/// How many bytes are transferred at once, at the most.
const MOST: usize = 1 << 30;

/// The owner of a buffer may be of a type that panics.
fn unless_panics<R>(attempt: impl FnOnce() -> io::Result<R>) -> io::Result<R> {
    let outcome = catch_unwind(AssertUnwindSafe(attempt));
    outcome.unwrap_or_else(|_| Err(io::Error::other("the buffer panicked")))
}

fn out_of_range() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidInput,
        "the buffer does not have this range",
    )
}

impl fmt::Debug for FileOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileOperation")
            .field("kind", &self.kind)
            .field("offset", &self.offset)
            .field("range", &self.range)
            .finish_non_exhaustive()
    }
}

/// What has become of an operation on a file.
#[derive(Debug)]
#[non_exhaustive]
pub struct FileCompletion {
    /// What [`begin`](crate::owned::Port::begin) returned.
    pub id: OperationId,
    /// The file.
    pub file: PortFile,
    /// The buffer that the operation was made with. What was read is at the beginning of its
    /// [range](FileOperation::range).
    pub buffer: Buffer,
    /// How many bytes were read or written: 0 at the end of the file, and maybe fewer than asked for.
    pub result: io::Result<usize>,
    /// It was cancelled, by its name or by its deadline, and has an error for that.
    pub is_cancelled: bool,
}
