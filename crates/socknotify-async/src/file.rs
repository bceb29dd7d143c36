//! [`File`]: operations on files, which the system performs meanwhile.

use std::fmt;
use std::future::poll_fn;
use std::io::{self, Seek, SeekFrom};
use std::ops::Range;
use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker, ready};

use futures_io::{AsyncRead, AsyncSeek};
use slab::Slab;
use socknotify::Error;
use socknotify::owned::{FileCompletion, FileOperation, OperationId, PortFile};

use crate::context;
use crate::shared::{FILES, Shared};
use crate::source::shut_down;
use crate::sync::{Waiter, lock};

/// A file, whose operations the system performs while tasks go on: with `io_uring`, overlapped operations, or helper
/// threads.
///
/// A buffer moves into an operation, and comes back with its result. An operation that is dropped is cancelled, unless the
/// system has begun it; its buffer is dropped when the system is done with it.
///
/// It also reads, and seeks, by the traits of `futures-io`. They have a place of their own in the file,
/// which is its beginning at first. What a read has read that was dropped, the next one returns, until a seek. The position of
/// the descriptor stays where it was; on Windows, operations move it.
///
/// For a file that the system has in memory, [`std::fs`] is faster: a task may block.
///
/// # Examples
///
/// ```
/// use socknotify_async::File;
///
/// # fn main() -> std::io::Result<()> {
/// # socknotify_async::Runtime::new()?.block_on(async {
/// let file = File::open("README.md")?;
/// let (count, buffer) = file.read_at(vec![0; 9], 0).await;
/// assert_eq!(&buffer[..count?], b"# socknot");
/// # Ok(())
/// # })
/// # }
/// ```
pub struct File {
    file: PortFile,
    shared: Arc<Shared>,
    /// Where the traits read.
    offset: u64,
    /// For [`context::spend`].
    was_refused: AtomicBool,
    reads: Option<Pending>,
    /// What they have read, and what of it was not taken.
    bytes: Vec<u8>,
    left: Range<usize>,
}

/// The most that one read by the traits takes.
const MOST: usize = 256 * 1024;

impl File {
    /// Opens a file to read it. The thread may block for that.
    ///
    /// # Errors
    ///
    /// The system's.
    ///
    /// # Panics
    ///
    /// If this thread is in no runtime.
    #[track_caller]
    pub fn open(path: impl AsRef<Path>) -> io::Result<Self> {
        let shared = context::expect();
        let file = shared.block(|| std::fs::File::open(path))?;
        Self::new(file, shared)
    }

    fn new(file: std::fs::File, shared: Arc<Shared>) -> io::Result<Self> {
        if shared.is_closed() {
            return Err(shut_down());
        }
        let adopted = shared.with_port(|port| port.adopt_file(file, FILES));
        Ok(File {
            file: adopted?.map_err(|(_, error)| error)?,
            shared,
            offset: 0,
            was_refused: AtomicBool::new(false),
            reads: None,
            bytes: Vec::new(),
            left: 0..0,
        })
    }

    /// Reads into a buffer, from this offset. Returns the number of bytes, 0 at the end of the file, and the buffer.
    ///
    /// # Errors
    ///
    /// The system's, as the first part of the result; and one if the runtime has shut down, with another buffer.
    pub async fn read_at(&self, buffer: Vec<u8>, offset: u64) -> (io::Result<usize>, Vec<u8>) {
        self.perform(FileOperation::read_at(&self.file, buffer, offset))
            .await
    }

    /// Writes a buffer at this offset. Returns the number of bytes, which may be fewer, and the buffer.
    ///
    /// # Errors
    ///
    /// The system's, as the first part of the result; and one if the runtime has shut down, with another buffer.
    pub async fn write_at(&self, buffer: Vec<u8>, offset: u64) -> (io::Result<usize>, Vec<u8>) {
        self.perform(FileOperation::write_at(&self.file, buffer, offset))
            .await
    }

    /// `fsync` — Waits until what was written is stored, and the file's metadata.
    ///
    /// # Errors
    ///
    /// The system's; and one if the runtime has shut down.
    pub async fn sync_all(&self) -> io::Result<()> {
        let operation = FileOperation::sync_all(&self.file);
        self.perform(operation).await.0.map(drop)
    }

    /// `fdatasync` — The same, without metadata that reading does not need.
    ///
    /// # Errors
    ///
    /// The system's; and one if the runtime has shut down.
    pub async fn sync_data(&self) -> io::Result<()> {
        let operation = FileOperation::sync_data(&self.file);
        self.perform(operation).await.0.map(drop)
    }

    async fn perform(&self, operation: FileOperation) -> (io::Result<usize>, Vec<u8>) {
        // One that fails at once is tried again, maybe for ever.
        context::spends().await;
        let mut pending = match Pending::begin(&self.shared, operation) {
            Ok(pending) => pending,
            Err((error, buffer)) => return (Err(error), buffer),
        };
        poll_fn(|cx| pending.poll(cx)).await
    }
}

/// Has the current runtime perform operations on the file.
///
/// # Panics
///
/// If this thread is in no runtime.
impl TryFrom<std::fs::File> for File {
    type Error = io::Error;

    fn try_from(file: std::fs::File) -> io::Result<Self> {
        Self::new(file, context::expect())
    }
}

impl AsyncRead for File {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        // What was begun has counted.
        if self.reads.is_none() {
            ready!(context::spend(cx, &self.was_refused));
        }
        let this = self.get_mut();
        while this.left.is_empty() && !buffer.is_empty() {
            if this.reads.is_none() {
                let mut bytes = std::mem::take(&mut this.bytes);
                this.left = 0..0;
                bytes.resize(buffer.len().min(MOST), 0);
                let read = FileOperation::read_at(&this.file, bytes, this.offset);
                let begun = Pending::begin(&this.shared, read);
                this.reads = Some(begun.map_err(|(error, _)| error)?);
            }
            let Some(reads) = &mut this.reads else {
                continue;
            };
            let (count, bytes) = ready!(reads.poll(cx));
            (this.reads, this.bytes) = (None, bytes);
            match count? {
                0 => return Poll::Ready(Ok(0)),
                count => this.left = 0..count,
            }
        }
        let count = buffer.len().min(this.left.len());
        let taken = this.left.start..this.left.start + count;
        this.left.start = taken.end;
        this.offset += count as u64;
        buffer[..count].copy_from_slice(&this.bytes[taken]);
        Poll::Ready(Ok(count))
    }
}

impl AsyncSeek for File {
    fn poll_seek(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: SeekFrom,
    ) -> Poll<io::Result<u64>> {
        ready!(context::spend(cx, &self.was_refused));
        let this = self.get_mut();
        let offset = match to {
            SeekFrom::Start(offset) => Some(offset),
            SeekFrom::Current(more) => this.offset.checked_add_signed(more),
            // The system may have to ask a server for it.
            SeekFrom::End(more) => {
                let length = this.shared.block(|| length(&this.file))?;
                length.checked_add_signed(more)
            }
        };
        this.offset = offset.ok_or(io::ErrorKind::InvalidInput)?;
        (this.reads, this.left) = (None, 0..0);
        Poll::Ready(Ok(this.offset))
    }
}

/// How long a file is, or a block device, whose own position moves.
fn length(mut file: &std::fs::File) -> io::Result<u64> {
    let metadata = file.metadata()?;
    match metadata.is_file() {
        true => Ok(metadata.len()),
        false => file.seek(SeekFrom::End(0)),
    }
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("File")
            .field("file", &self.file)
            .field("offset", &self.offset)
            .finish_non_exhaustive()
    }
}

/// An operation that was begun. Dropped, it is cancelled.
#[derive(Debug)]
struct Pending {
    shared: Arc<Shared>,
    /// `None` when it is over.
    key: Option<usize>,
    id: OperationId,
}

impl Pending {
    fn begin(shared: &Arc<Shared>, operation: FileOperation) -> Result<Self, (io::Error, Vec<u8>)> {
        let Some(key) = shared.files.add() else {
            return Err((shut_down(), operation.into_buffer().into_vec()));
        };
        let operation = operation.tag(key as u64);
        let begun = match shared.with_port(|port| port.begin_operation(operation, FILES)) {
            Ok(Ok(id)) => Ok(id),
            Ok(Err((operation, error))) => Err((error, operation.into_buffer().into_vec())),
            Err(error) => Err((error, Vec::new())),
        };
        match begun {
            Ok(id) => Ok(Pending {
                shared: Arc::clone(shared),
                key: Some(key),
                id,
            }),
            Err((error, buffer)) => {
                shared.files.remove(key);
                let error = match error {
                    Error::Closed => shut_down(),
                    error => error.into(),
                };
                // Where the system starts no thread. A trait of `futures-io` would have promised to wake the task.
                let error = match error.kind() {
                    io::ErrorKind::WouldBlock => io::Error::other(error),
                    _ => error,
                };
                Err((error, buffer))
            }
        }
    }

    fn poll(&mut self, cx: &Context<'_>) -> Poll<(io::Result<usize>, Vec<u8>)> {
        let key = self.key.expect("it is not over");
        let completion = ready!(self.shared.files.poll(key, cx));
        self.key = None;
        Poll::Ready(match completion {
            Some(completion) => (completion.result, completion.buffer.into_vec()),
            None => (Err(shut_down()), Vec::new()),
        })
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if let Some(key) = self.key.filter(|_| self.shared.is_here()) {
            if self.shared.files.forget(key) {
                let _ = self.shared.with_port(|port| port.cancel_begun(self.id));
            }
        }
    }
}

/// The operations of a runtime, by their tags. `None` when it has shut down.
#[derive(Debug)]
pub(crate) struct Files(Mutex<Option<Slab<State>>>);

#[derive(Debug)]
enum State {
    Begun(Option<Waiter>),
    /// Its tag is not another one's until it has completed.
    Forgotten,
    Done(FileCompletion),
}

impl Files {
    pub(crate) fn new() -> Self {
        Files(Mutex::new(Some(Slab::new())))
    }

    fn add(&self) -> Option<usize> {
        let mut all = lock(&self.0);
        all.as_mut().map(|all| all.insert(State::Begun(None)))
    }

    fn remove(&self, key: usize) -> Option<State> {
        lock(&self.0).as_mut().and_then(|all| all.try_remove(key))
    }

    /// An operation has completed. A task of anyone else's comes to `foreign`.
    pub(crate) fn complete(&self, completion: FileCompletion, foreign: &mut Vec<Waker>) {
        let key = completion.tag as usize;
        let mut all = lock(&self.0);
        let Some(state) = all.as_mut().and_then(|all| all.get_mut(key)) else {
            return;
        };
        if let State::Begun(waiter) = state {
            let waiter = waiter.take();
            *state = State::Done(completion);
            drop(all);
            waiter.into_iter().for_each(|it| it.wake_own(foreign));
        } else {
            drop(all);
            self.remove(key);
        }
    }

    /// `None` if the runtime has shut down.
    fn poll(&self, key: usize, cx: &Context<'_>) -> Poll<Option<FileCompletion>> {
        let mut all = lock(&self.0);
        match all.as_mut().map(|all| &mut all[key]) {
            Some(State::Begun(waiter)) => {
                let before = waiter.replace(Waiter::new(cx.waker()));
                drop(all);
                // It may run any code.
                drop(before);
                return Poll::Pending;
            }
            None => return Poll::Ready(None),
            Some(_) => drop(all),
        }
        Poll::Ready(match self.remove(key) {
            Some(State::Done(completion)) => Some(completion),
            _ => None,
        })
    }

    /// True if it is to be cancelled.
    fn forget(&self, key: usize) -> bool {
        let mut all = lock(&self.0);
        let Some(state) = all.as_mut().map(|all| &mut all[key]) else {
            return false;
        };
        let before = std::mem::replace(state, State::Forgotten);
        drop(all);
        if let State::Done(_) = before {
            self.remove(key);
            return false;
        }
        true
    }

    /// Every operation that waits fails. Tasks of anyone else's come to `foreign`.
    pub(crate) fn close(&self, foreign: &mut Vec<Waker>) {
        let all = lock(&self.0).take();
        for (_, state) in all.into_iter().flatten() {
            if let State::Begun(Some(waiter)) = state {
                waiter.wake_own(foreign);
            }
        }
    }
}
