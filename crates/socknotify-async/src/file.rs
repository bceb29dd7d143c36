//! [`File`]: operations on files, which the system performs meanwhile.

use std::collections::HashMap;
use std::future::poll_fn;
use std::io;
use std::net::TcpStream;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::thread;

use socknotify::owned::{
    Event, FileCompletion, FileOperation, OperationId, Port, PortFile, Worker,
};

use crate::context;
use crate::shared::Shared;
use crate::source::shut_down;
use crate::sync::{lock, wake};

/// A file, whose operations the system performs while tasks go on: with `io_uring`, overlapped operations, or helper
/// threads.
///
/// A buffer moves into an operation, and comes back with its result. An operation that is dropped is cancelled, unless the
/// system has begun it; its buffer is dropped when the system is done with it.
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
#[derive(Debug)]
pub struct File {
    file: PortFile,
    files: Arc<Files>,
}

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
        Self::new(file, &shared)
    }

    fn new(file: std::fs::File, shared: &Shared) -> io::Result<Self> {
        let files = shared.files()?;
        let file = files.port.adopt_file(file)?;
        Ok(File { file, files })
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
        /// Dropped, it cancels the operation.
        struct Pending<'a>(&'a Files, OperationId);
        impl Drop for Pending<'_> {
            fn drop(&mut self) {
                self.0.forget(self.1);
            }
        }
        // One that fails at once is tried again, maybe for ever.
        poll_fn(|cx| context::spend(cx)).await;
        let files = &*self.files;
        let id = match files.begin(operation) {
            Ok(id) => id,
            Err((error, buffer)) => return (Err(error), buffer),
        };
        let pending = Pending(files, id);
        match poll_fn(|cx| files.poll(pending.1, cx)).await {
            Some(completion) => (completion.result, completion.buffer.into_vec()),
            None => (Err(shut_down()), Vec::new()),
        }
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
        Self::new(file, &context::expect())
    }
}

/// The operations of a runtime. They complete on a port of their own, with a thread that waits in it: one that dequeues
/// from two ports has a place in one of them only.
#[derive(Debug)]
pub(crate) struct Files {
    port: Port<TcpStream>,
    /// `None` when the runtime has shut down.
    pending: Mutex<Option<HashMap<OperationId, State>>>,
}

#[derive(Debug)]
enum State {
    Begun(Option<Waker>),
    Done(FileCompletion),
}

impl Files {
    pub(crate) fn start() -> io::Result<Arc<Self>> {
        let files = Arc::new(Files {
            port: Port::builder().unlimited().build()?,
            pending: Mutex::new(Some(HashMap::new())),
        });
        let worker = files.port.worker(64);
        let of = Arc::clone(&files);
        let thread = thread::Builder::new().name("socknotify-files".into());
        thread.spawn(move || of.serve(worker))?;
        Ok(files)
    }

    /// The thread.
    fn serve(&self, mut worker: Worker<TcpStream>) {
        while worker.process(None).is_ok() {
            while let Some(event) = worker.take() {
                if let Event::Completed(completion) = event {
                    self.complete(completion);
                }
            }
        }
    }

    fn complete(&self, completion: FileCompletion) {
        let mut pending = lock(&self.pending);
        let state = pending.as_mut().and_then(|it| it.get_mut(&completion.id));
        // Without one, nobody waits for it any more.
        let before = state.map(|state| std::mem::replace(state, State::Done(completion)));
        drop(pending);
        if let Some(State::Begun(Some(waker))) = before {
            wake(waker);
        }
    }

    fn begin(&self, operation: FileOperation) -> Result<OperationId, (io::Error, Vec<u8>)> {
        // It may complete at once.
        let mut pending = lock(&self.pending);
        let Some(pending) = pending.as_mut() else {
            return Err((shut_down(), operation.into_buffer().into_vec()));
        };
        match self.port.begin(operation) {
            Ok(id) => {
                pending.insert(id, State::Begun(None));
                Ok(id)
            }
            Err(error) => {
                let reason = error.reason().into();
                Err((reason, error.into_inner().into_buffer().into_vec()))
            }
        }
    }

    /// `None` if the runtime has shut down.
    fn poll(&self, id: OperationId, cx: &Context<'_>) -> Poll<Option<FileCompletion>> {
        let begun = State::Begun(Some(cx.waker().clone()));
        let mut pending = lock(&self.pending);
        let Some(operations) = pending.as_mut() else {
            return Poll::Ready(None);
        };
        let before = operations.insert(id, begun);
        if let Some(State::Done(completion)) = before {
            let begun = operations.remove(&id);
            drop(pending);
            drop(begun);
            return Poll::Ready(Some(completion));
        }
        // Dropping a waker may run any code.
        drop(pending);
        drop(before);
        Poll::Pending
    }

    fn forget(&self, id: OperationId) {
        let state = lock(&self.pending).as_mut().and_then(|it| it.remove(&id));
        if let Some(State::Begun(_)) = &state {
            self.port.cancel_operation(id);
        }
    }

    /// Operations that the system has begun end first.
    pub(crate) fn close(&self) {
        let pending = lock(&self.pending).take();
        for state in pending.into_iter().flat_map(HashMap::into_values) {
            if let State::Begun(Some(waker)) = state {
                wake(waker);
            }
        }
        self.port.close();
    }
}
