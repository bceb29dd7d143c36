//! Tests of the ring's queue and of its locks. They pass where there are no rings.

use std::ptr;
use std::sync::mpsc;
use std::time::Duration;

use super::super::{FileOperation, Operations, PortFile, Reason};
use super::*;
use crate::{CompletionPort, Error};

const PATIENCE: Duration = Duration::from_secs(30);

fn request(length: u32) -> Request {
    Request {
        file: -1,
        association: None,
        kind: Kind::Read,
        memory: ptr::null_mut(),
        length,
        parts: 0,
        offset: 0,
    }
}

/// A port with a file of ten bytes.
struct Fixture {
    port: CompletionPort,
    operations: Arc<Operations<()>>,
    kernel_io: Arc<KernelIo>,
    file: PortFile,
}

impl Fixture {
    fn new() -> Option<Self> {
        let port = CompletionPort::new().expect("a port");
        let helpers = Helpers::new(1);
        let opening = port.opening();
        let keys = [1, 2];
        let operations = Operations::new(port.system().clone(), opening, keys, helpers, None);
        let file = tempfile::tempfile().expect("a file");
        io::Write::write_all(&mut &file, b"0123456789").expect("it has room");
        let file = operations.adopt(file).ok()?;
        let Some(kernel_io) = port.opening().opened().map(Arc::clone) else {
            eprintln!("skipped: there is no ring here");
            return None;
        };
        Some(Fixture {
            port,
            operations,
            kernel_io,
            file,
        })
    }

    fn begin(&self) -> super::super::OperationId {
        let read = FileOperation::read_at(&self.file, vec![0; 10], 0);
        self.operations.begin(read).expect("it begins")
    }

    /// The next packet's operation: how many bytes it has read, if it was not cancelled.
    fn next(&self) -> Option<usize> {
        let entry = self.port.dequeue_one(Some(PATIENCE)).expect("a packet");
        assert_eq!(entry.completion_key, 1);
        let (done, _) = self
            .operations
            .finish(entry.overlapped)
            .expect("it is over");
        assert_eq!(done.is_cancelled, done.result.is_err());
        done.result.ok()
    }

    fn queued(&self) -> usize {
        lock(&self.kernel_io.queue).operations.len()
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.port.close();
        self.operations.close();
    }
}

#[test]
fn a_submission_is_bounded_in_bytes_and_operations() {
    let Some(Fixture { kernel_io, .. }) = &Fixture::new() else {
        return;
    };
    let lengths = [
        0,
        1,
        4096,
        64 << 10,
        INLINE_BYTES,
        INLINE_BYTES + 1,
        512 << 20,
    ];
    let mut queue = Queue::default();
    let mut random = fastrand::Rng::with_seed(5);
    for name in 0..10_000 {
        let length = lengths[random.usize(..lengths.len())];
        queue.operations.push_back((name, request(length)));
        queue.cancels.push_back(name);
    }
    let mut next = 0;
    while !queue.operations.is_empty() || !queue.cancels.is_empty() {
        let mut batch = Submission::default();
        kernel_io.take_batch(&mut queue, &mut batch);
        assert!(batch.operations.len() <= BATCH && batch.cancels.len() <= BATCH);
        assert!(batch.operations.len() + batch.cancels.len() <= SUBMISSIONS as usize);
        let lengths = batch.operations.iter().map(|(_, it)| it.length);
        let copied = lengths.filter(|&length| length <= INLINE_BYTES);
        let bytes: u64 = copied.map(u64::from).sum();
        assert!(bytes <= u64::from(BATCH_BYTES), "{bytes}");
        for (name, _) in batch.operations {
            assert_eq!(name, next);
            next += 1;
        }
    }
    assert_eq!(next, 10_000);
}

#[test]
fn helper_threads_perform_long_operations() {
    assert!(is_for_ring(&request(INLINE_BYTES)));
    assert!(!is_for_ring(&request(INLINE_BYTES + 1)));
}

#[test]
fn what_the_device_copies_begins_at_once() -> io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt;

    let path = tempfile::NamedTempFile::new()?.into_temp_path();
    let mut options = File::options();
    let Ok(file) = options.read(true).custom_flags(libc::O_DIRECT).open(&path) else {
        eprintln!("skipped: this file system has no direct operations");
        return Ok(());
    };
    assert!(is_for_ring(&Request {
        file: file.as_raw_fd(),
        ..request(INLINE_BYTES + 1)
    }));
    Ok(())
}

#[test]
fn one_call_submits_one_batch_and_posting_and_dequeuing_none() {
    const COUNT: usize = 1000;
    let Some(fixture) = &Fixture::new() else {
        return;
    };
    // As if the pump had not begun yet.
    fixture.kernel_io.is_pump_due.store(true, Ordering::SeqCst);
    for _ in 0..COUNT {
        fixture.begin();
    }
    fixture.port.post(Entry::new(7, 0, 0)).expect("it is open");
    assert_eq!(fixture.port.snapshot().queued, 1);
    let entry = fixture.port.dequeue_one(Some(PATIENCE));
    assert_eq!(entry.expect("a packet").completion_key, 7);
    assert_eq!(fixture.queued(), COUNT);
    fixture.operations.flush();
    assert_eq!(fixture.queued(), COUNT - BATCH);
    for _ in 0..BATCH {
        assert_eq!(fixture.next(), Some(10));
    }
    assert_eq!(fixture.queued(), COUNT - BATCH);
    fixture.kernel_io.is_pump_due.store(false, Ordering::SeqCst);
    fixture.operations.flush();
    for _ in BATCH..COUNT {
        assert_eq!(fixture.next(), Some(10));
    }
}

#[test]
fn nobody_waits_while_another_thread_submits() {
    let Some(fixture) = &Fixture::new() else {
        return;
    };
    // As if the kernel copied.
    let submission = lock(&fixture.kernel_io.submission);
    let (tell, told) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(move || {
            for _ in 0..1000 {
                fixture.begin();
            }
            fixture.operations.flush();
            fixture.port.post(Entry::new(5, 6, 7)).expect("it is open");
            fixture.port.snapshot();
            let entry = fixture.port.dequeue_one(None).expect("it was posted");
            assert_eq!(entry, Entry::new(5, 6, 7));
            let nothing = fixture.port.dequeue_one(Some(Duration::ZERO));
            assert_eq!(nothing, Err(Error::TimedOut));
            let _ = tell.send(());
        });
        let outcome = told.recv_timeout(PATIENCE);
        drop(submission);
        assert_eq!(outcome, Ok(()));
    });
    assert_eq!(fixture.queued(), 1000);
    fixture.operations.flush();
    for _ in 0..1000 {
        assert_eq!(fixture.next(), Some(10));
    }
}

#[test]
fn a_flush_while_another_thread_submits_is_not_lost() {
    let Some(fixture) = &Fixture::new() else {
        return;
    };
    for round in 0..1000 {
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    fixture.begin();
                    fixture.operations.flush();
                });
            }
        });
        for _ in 0..2 {
            assert_eq!(fixture.next(), Some(10), "round {round}");
        }
    }
}

#[test]
fn what_was_not_submitted_is_cancelled_at_once_and_leaves_the_queue() {
    const COUNT: usize = 10_000;
    let Some(fixture) = &Fixture::new() else {
        return;
    };
    let submission = lock(&fixture.kernel_io.submission);
    let first = fixture.begin();
    for _ in 0..COUNT {
        let id = fixture.begin();
        assert!(fixture.operations.cancel(id, Reason::Asked));
        assert!(!fixture.operations.cancel(id, Reason::Asked), "it is over");
        assert_eq!(fixture.next(), None);
        assert!(fixture.queued() <= 2 * BATCH, "{}", fixture.queued());
    }
    assert!(lock(&fixture.kernel_io.queue).cancels.is_empty());
    drop(submission);
    fixture.operations.flush();
    assert_eq!(fixture.next(), Some(10));
    assert!(!fixture.operations.cancel(first, Reason::Asked));
}

#[test]
fn an_operation_in_the_kernel_is_cancelled_once() {
    let Some(fixture) = &Fixture::new() else {
        return;
    };
    // Nobody takes its completion.
    let id = fixture.begin();
    fixture.operations.flush();
    assert_eq!(fixture.queued(), 0);
    let submission = lock(&fixture.kernel_io.submission);
    for _ in 0..1000 {
        assert!(fixture.operations.cancel(id, Reason::Asked));
    }
    assert_eq!(lock(&fixture.kernel_io.queue).cancels.len(), 1);
    drop(submission);
    fixture.operations.flush();
    fixture.next();
}

#[test]
fn closing_submits_nothing_that_was_queued() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let submission = lock(&fixture.kernel_io.submission);
    for _ in 0..10_000 {
        let write = FileOperation::write_at(&fixture.file, b"x".to_vec(), 0);
        fixture.operations.begin(write).expect("it begins");
    }
    drop(submission);
    fixture.operations.close();
    assert_eq!(fixture.operations.count(), 0);
    assert_eq!(fixture.kernel_io.in_ring.load(Ordering::SeqCst), 0);
    let mut first = [0];
    std::os::unix::fs::FileExt::read_at(&*fixture.file, &mut first, 0).expect("it is open");
    assert_eq!(&first, b"0");
}

/// As when the thread that has submitted it ends at the wrong moment.
#[test]
fn an_operation_that_could_not_reach_its_memory_is_performed_by_a_thread() {
    let Some(fixture) = &Fixture::new() else {
        return;
    };
    fixture.begin();
    let queued = lock(&fixture.kernel_io.queue).operations.pop_front();
    let (name, _) = queued.expect("it is queued");
    let key = (name & !OF_CONNECTIONS) as usize;
    let owner: &dyn Owner = &*fixture.operations;
    assert!(owner.submits(key));
    assert_eq!(owner.on_completed(key, Completed::Faulted), None);
    assert_eq!(fixture.next(), Some(10));
}

/// The layer of operations of which none was begun, whose port closes while the queue is searched.
struct ClosesMeanwhile(Arc<KernelIo>);

impl Owner for ClosesMeanwhile {
    fn is_queued(&self, _: usize) -> bool {
        self.0.close();
        true
    }

    fn submits(&self, _: usize) -> bool {
        false
    }

    fn refused(&self, _: usize) {}

    fn on_completed(&self, _: usize, _: Completed) -> Option<Entry> {
        None
    }
}

#[test]
fn what_is_withdrawn_while_the_ring_closes_leaves_nothing_to_submit() {
    let port = CompletionPort::new().expect("a port");
    let Ok(kernel_io) = KernelIo::new(port.system()) else {
        eprintln!("skipped: there is no ring here");
        return;
    };
    let owner = Arc::new(ClosesMeanwhile(Arc::clone(&kernel_io)));
    kernel_io.attach(Layer::Caller, || Arc::downgrade(&owner) as _);
    for key in 0..2 * BATCH {
        // SAFETY: nothing is submitted.
        let begun = unsafe { kernel_io.begin(Layer::Caller, key, &request(1)) };
        assert!(matches!(begun, Begun::Queued));
    }
    let (tell, told) = mpsc::channel();
    let theirs = Arc::clone(&kernel_io);
    thread::spawn(move || {
        (0..BATCH).for_each(|_| theirs.on_withdrawn());
        theirs.flush();
        tell.send(())
    });
    assert_eq!(told.recv_timeout(PATIENCE), Ok(()), "it submits for ever");
    assert!(lock(&kernel_io.queue).operations.is_empty());
}

#[test]
fn a_thread_that_takes_completions_submits_what_is_queued_if_there_is_no_pump() {
    const COUNT: usize = 2 * OPERATIONS;
    let Some(fixture) = &Fixture::new() else {
        return;
    };
    // As if the system had no thread.
    fixture.kernel_io.pump.close();
    for _ in 0..COUNT {
        fixture.begin();
    }
    fixture.operations.flush();
    for _ in 0..COUNT {
        assert_eq!(fixture.next(), Some(10));
    }
}
