//! [`PortFile`], the [operations](FileOperation) on it, and their [completions](FileCompletion).

use std::fmt;
use std::fs::File;
use std::io;
use std::ops::{Deref, Range};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::slice::SliceIndex;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Buffer;
use super::request::{Kind, MOST, Memory, Nature, Part, Request};
use super::system;
use crate::support::drops::drop_all;
use crate::support::slots::Token;

/// A file whose operations complete on a port.
///
/// Made by [`Port::adopt_file`](crate::owned::Port::adopt_file). A clone is the same file, which is closed when the
/// last clone is dropped and no operation on it is in progress.
#[derive(Clone)]
pub struct PortFile(Arc<Inner>);

struct Inner {
    file: File,
    nature: Nature,
}

impl PortFile {
    pub(super) fn new(file: File, nature: Nature) -> Self {
        PortFile(Arc::new(Inner { file, nature }))
    }

    /// Returns the file, unless it has a clone or an operation in progress.
    ///
    /// # Errors
    ///
    /// Returns the `PortFile` if it has.
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

/// Identifies an operation on a file. It is not reused before 2³¹ others were made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OperationId(pub(super) Token);

impl fmt::Display for OperationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0.index, self.0.generation)
    }
}

/// An operation on a file, for [`Port::begin`](crate::owned::Port::begin).
#[must_use = "it does nothing until it is begun"]
pub struct FileOperation {
    file: PortFile,
    kind: Kind,
    buffer: Buffer,
    /// Not if there is one buffer.
    several: Option<Box<Several>>,
    range: Range<usize>,
    offset: u64,
    within: Option<Duration>,
    tag: u64,
}

/// The buffers of a vectored operation.
struct Several {
    buffers: Vec<Buffer>,
    /// Their memory, while it is in progress.
    parts: Vec<Part>,
}

impl FileOperation {
    fn new(file: &PortFile, kind: Kind, buffer: Buffer, offset: u64) -> Self {
        FileOperation {
            file: file.clone(),
            kind,
            range: 0..buffer.len(),
            buffer,
            several: None,
            offset,
            within: None,
            tag: 0,
        }
    }

    /// `pread`, `ReadFile` — Reads from the file at this offset, at most as many bytes as the buffer has. A result of 0
    /// bytes means that the file ends there.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::net::TcpStream;
    /// use socknotify::owned::{Event, FileOperation, Port};
    ///
    /// # fn main() -> std::io::Result<()> {
    /// # let file = tempfile::tempfile()?;
    /// let port = Port::<TcpStream>::new()?;
    /// let file = port.adopt_file(file)?;
    /// port.begin(FileOperation::read_at(&file, vec![0; 4096], 0))?;
    ///
    /// let mut worker = port.worker(8);
    /// worker.process(None)?;
    /// let Some(Event::Completed(done)) = worker.take() else { panic!() };
    /// assert_eq!(done.result?, 0, "it is empty");
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "pread")]
    #[doc(alias = "ReadFile")]
    #[doc(alias = "IORING_OP_READ")]
    pub fn read_at(file: &PortFile, buffer: impl Into<Buffer>, offset: u64) -> Self {
        Self::new(file, Kind::Read, buffer.into(), offset)
    }

    /// `pwrite`, `WriteFile` — Writes the buffer to the file at this offset. If the file was opened to append, the
    /// system may write at its end instead.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::net::TcpStream;
    /// use socknotify::owned::{Event, FileOperation, Port};
    ///
    /// # fn main() -> std::io::Result<()> {
    /// # let file = tempfile::tempfile()?;
    /// let port = Port::<TcpStream>::new()?;
    /// let file = port.adopt_file(file)?;
    /// port.begin(FileOperation::write_at(&file, b"hello".to_vec(), 0))?;
    ///
    /// let mut worker = port.worker(8);
    /// worker.process(None)?;
    /// let Some(Event::Completed(done)) = worker.take() else { panic!() };
    /// assert_eq!(done.result?, 5);
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "pwrite")]
    #[doc(alias = "WriteFile")]
    #[doc(alias = "IORING_OP_WRITE")]
    pub fn write_at(file: &PortFile, buffer: impl Into<Buffer>, offset: u64) -> Self {
        Self::new(file, Kind::Write, buffer.into(), offset)
    }

    /// `preadv` — Reads from the file at this offset into these buffers, one after the other. They come back as
    /// [`buffers`](FileCompletion::buffers), each with its length.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::net::TcpStream;
    /// use socknotify::owned::{Event, FileOperation, Port};
    ///
    /// # fn main() -> std::io::Result<()> {
    /// # let path = std::env::temp_dir().join(format!("socknotify-parts-{}", std::process::id()));
    /// # let file = std::fs::File::options().read(true).write(true).create(true).truncate(true).open(&path)?;
    /// let port = Port::<TcpStream>::new()?;
    /// let mut worker = port.worker(8);
    /// let file = port.adopt_file(file)?;
    /// let [head, body] = [b"head".to_vec(), b"body".to_vec()];
    /// port.begin(FileOperation::write_vectored_at(&file, vec![head.into(), body.into()], 0))?;
    /// worker.process(None)?;
    /// let Some(Event::Completed(done)) = worker.take() else { panic!() };
    /// assert_eq!(done.result?, 8);
    ///
    /// port.begin(FileOperation::read_vectored_at(&file, done.buffers, 2))?;
    /// worker.process(None)?;
    /// let Some(Event::Completed(done)) = worker.take() else { panic!() };
    /// assert_eq!(done.result?, 6);
    /// assert_eq!((&*done.buffers[0], &done.buffers[1][..2]), (&b"adbo"[..], &b"dy"[..]));
    /// # std::fs::remove_file(&path)?;
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "preadv")]
    #[doc(alias = "readv")]
    #[doc(alias = "IORING_OP_READV")]
    pub fn read_vectored_at(file: &PortFile, buffers: Vec<Buffer>, offset: u64) -> Self {
        Self::of_parts(file, Kind::Read, buffers, offset)
    }

    /// `pwritev` — Writes these buffers to the file at this offset, one after the other, as
    /// [`read_vectored_at`](Self::read_vectored_at) reads.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::net::TcpStream;
    /// use socknotify::owned::{Event, FileOperation, Port};
    ///
    /// # fn main() -> std::io::Result<()> {
    /// # let file = tempfile::tempfile()?;
    /// let port = Port::<TcpStream>::new()?;
    /// let file = port.adopt_file(file)?;
    /// port.begin(FileOperation::write_vectored_at(&file, vec![b"a".to_vec().into(), b"bc".to_vec().into()], 0))?;
    ///
    /// let mut worker = port.worker(8);
    /// worker.process(None)?;
    /// let Some(Event::Completed(done)) = worker.take() else { panic!() };
    /// assert_eq!(done.result?, 3);
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "pwritev")]
    #[doc(alias = "writev")]
    #[doc(alias = "IORING_OP_WRITEV")]
    pub fn write_vectored_at(file: &PortFile, buffers: Vec<Buffer>, offset: u64) -> Self {
        Self::of_parts(file, Kind::Write, buffers, offset)
    }

    fn of_parts(file: &PortFile, kind: Kind, buffers: Vec<Buffer>, offset: u64) -> Self {
        let parts = Vec::with_capacity(buffers.len());
        FileOperation {
            several: Some(Box::new(Several { buffers, parts })),
            ..Self::new(file, kind, Buffer::default(), offset)
        }
    }

    /// `fsync`, `FlushFileBuffers` — Waits until everything written is on the disk, as [`File::sync_all`] does. Writes
    /// that are in progress at the same time may be included or not.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::net::TcpStream;
    /// use socknotify::owned::{Event, FileOperation, Port};
    ///
    /// # fn main() -> std::io::Result<()> {
    /// # let file = tempfile::tempfile()?;
    /// let port = Port::<TcpStream>::new()?;
    /// let file = port.adopt_file(file)?;
    /// port.begin(FileOperation::sync_all(&file))?;
    ///
    /// let mut worker = port.worker(8);
    /// worker.process(None)?;
    /// let Some(Event::Completed(done)) = worker.take() else { panic!() };
    /// done.result?;
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "fsync")]
    #[doc(alias = "FlushFileBuffers")]
    pub fn sync_all(file: &PortFile) -> Self {
        Self::new(file, Kind::SyncAll, Buffer::default(), 0)
    }

    /// `fdatasync` — The same without metadata that is not needed to read the data, as [`File::sync_data`].
    ///
    /// # Examples
    ///
    /// ```
    /// use std::net::TcpStream;
    /// use socknotify::owned::{Event, FileOperation, Port};
    ///
    /// # fn main() -> std::io::Result<()> {
    /// # let file = tempfile::tempfile()?;
    /// let port = Port::<TcpStream>::new()?;
    /// let file = port.adopt_file(file)?;
    /// port.begin(FileOperation::sync_data(&file))?;
    ///
    /// let mut worker = port.worker(8);
    /// worker.process(None)?;
    /// let Some(Event::Completed(done)) = worker.take() else { panic!() };
    /// done.result?;
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "fdatasync")]
    pub fn sync_data(file: &PortFile) -> Self {
        Self::new(file, Kind::SyncData, Buffer::default(), 0)
    }

    /// Uses this part of the buffer only. If it is not within the buffer, the operation fails. Not for several buffers,
    /// which are used whole; nor does it change what is synced.
    pub fn range(mut self, range: Range<usize>) -> Self {
        self.range = range;
        self
    }

    /// A number that the [completion](FileCompletion::tag) returns: 0 if none was given.
    ///
    /// Another thread may take the completion before [`begin`](crate::owned::Port::begin) has returned the id. So a
    /// program that looks up whose operation it was enters it under a tag first, and then begins it.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::collections::HashMap;
    /// use std::net::TcpStream;
    /// use socknotify::owned::{Event, FileOperation, Port};
    ///
    /// # fn main() -> std::io::Result<()> {
    /// # let file = tempfile::tempfile()?;
    /// let port = Port::<TcpStream>::new()?;
    /// let file = port.adopt_file(file)?;
    /// let mut jobs = HashMap::from([(7, "report")]);
    /// port.begin(FileOperation::write_at(&file, b"hello".to_vec(), 0).tag(7))?;
    ///
    /// let mut worker = port.worker(8);
    /// worker.process(None)?;
    /// let Some(Event::Completed(done)) = worker.take() else { panic!() };
    /// assert_eq!(jobs.remove(&done.tag), Some("report"));
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "user_data")]
    pub fn tag(mut self, tag: u64) -> Self {
        self.tag = tag;
        self
    }

    /// Cancels the operation if it takes longer than this, from when it is [begun](crate::owned::Port::begin). Then it
    /// completes with [`TimedOut`](io::ErrorKind::TimedOut). If the system cannot cancel it any more, it completes when
    /// it is done.
    pub fn within(mut self, time: Duration) -> Self {
        self.within = Some(time);
        self
    }

    /// Returns the buffer of an operation that was not begun.
    pub fn into_buffer(self) -> Buffer {
        self.buffer
    }

    /// Returns the buffers of a vectored operation that was not begun.
    pub fn into_buffers(self) -> Vec<Buffer> {
        self.several.map_or(Vec::new(), |several| several.buffers)
    }

    /// What it is when it has completed.
    pub(super) fn completed(
        self,
        id: OperationId,
        result: io::Result<usize>,
        is_cancelled: bool,
    ) -> FileCompletion {
        FileCompletion {
            id,
            tag: self.tag,
            file: self.file,
            buffer: self.buffer,
            buffers: self.several.map_or(Vec::new(), |it| it.buffers),
            result,
            is_cancelled,
        }
    }

    /// The deadline, if it is begun now.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        Instant::now().checked_add(self.within?)
    }

    pub(super) fn nature(&self) -> Nature {
        self.file.0.nature
    }

    /// As the system gets it. This runs the code of the buffer's owner.
    pub(super) fn request(&mut self) -> io::Result<Request> {
        // Some systems give larger values other meanings.
        if i64::try_from(self.offset).is_err() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let is_read = self.kind == Kind::Read;
        let mut memory = unless_panics(|| {
            let Some(several) = &mut self.several else {
                let range = match self.kind {
                    Kind::Read | Kind::Write => self.range.clone(),
                    // It has no buffer.
                    Kind::SyncAll | Kind::SyncData => 0..0,
                };
                let whole = part(&mut self.buffer, range, is_read)?;
                return Some(Memory::of(whole));
            };
            let parts = several.buffers.iter_mut();
            let parts = parts.filter_map(|it| part(it, .., is_read));
            several.parts = parts.map(|it| Part::new(it.cast(), it.len())).collect();
            Some(Memory::of_parts(&several.parts))
        })?;
        memory.length = memory.length.min(MOST as usize);
        Ok(Request {
            file: system::raw(&self.file.0.file),
            nature: self.file.0.nature,
            kind: self.kind,
            memory,
            offset: self.offset,
        })
    }
}

/// The memory of a range. The owner of a buffer may answer otherwise each time: pointer and length are of one answer.
fn part<R>(buffer: &mut Buffer, range: R, is_read: bool) -> Option<*mut [u8]>
where
    R: SliceIndex<[u8], Output = [u8]>,
{
    Some(match is_read {
        true => buffer.get_mut(range)?,
        false => (&raw const *buffer.get(range)?).cast_mut(),
    })
}

/// The bytes of a range. The owner of a buffer may panic.
fn unless_panics<R>(bytes: impl FnOnce() -> Option<R>) -> io::Result<R> {
    let outcome = catch_unwind(AssertUnwindSafe(bytes));
    let outcome = outcome.map_err(|panic| {
        // What a panic carries may panic again when it is dropped.
        drop_all([panic]);
        io::Error::other("the buffer panicked")
    })?;
    outcome.ok_or_else(|| {
        let reason = "the buffer does not have this range";
        io::Error::new(io::ErrorKind::InvalidInput, reason)
    })
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

/// A completed operation on a file.
#[derive(Debug)]
#[non_exhaustive]
pub struct FileCompletion {
    /// What [`begin`](crate::owned::Port::begin) returned.
    pub id: OperationId,
    /// What [`FileOperation::tag`] was given.
    pub tag: u64,
    /// The file.
    pub file: PortFile,
    /// The buffer of the operation. What was read is at the beginning of its [range](FileOperation::range).
    pub buffer: Buffer,
    /// The buffers of a [vectored](FileOperation::read_vectored_at) operation, which has no other.
    pub buffers: Vec<Buffer>,
    /// How many bytes were read or written: 0 at the end of the file, and possibly fewer than requested.
    pub result: io::Result<usize>,
    /// Whether it was cancelled, by its id or by its deadline. Then `result` is an error.
    pub is_cancelled: bool,
}

#[cfg(all(test, not(interleavings)))]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_counts_from_when_the_operation_is_begun() -> io::Result<()> {
        const HOUR: Duration = Duration::from_secs(3600);
        let file = PortFile::new(tempfile::tempfile()?, Nature::default());
        let operation = FileOperation::sync_all(&file).within(HOUR);
        let before = Instant::now();
        assert!(operation.deadline() >= Some(before + HOUR));
        // A time that is too long never comes.
        let operation = FileOperation::sync_all(&file).within(Duration::MAX);
        assert_eq!(operation.deadline(), None);
        Ok(())
    }
}
