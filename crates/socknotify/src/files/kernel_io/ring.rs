//! Linux: operations in an `io_uring` ring.
//!
//! A port has one ring, and one thread that owns it: only that submits, waits and takes completions. Others queue what it
//! is to begin or to cancel, and wake it if it sleeps. So nobody waits for a call that copies data from the page cache,
//! or for anybody else's submission; and the kernel never cancels operations because the thread has ended that
//! submitted them.
//!
//! The ring gets only what the kernel can begin without waiting: operations on files for which it knows `RWF_NOWAIT`. It
//! takes another file with a `poll` function, as those of FUSE, for readable at any time, and would wait for its daemon
//! in the submission. Nor does it get long ones, whose copying would keep the others back.

#![allow(unsafe_code, reason = "the kernel writes into memory after the call")]

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::thread::JoinHandleExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use io_uring::types::{Fd, FsyncFlags};
use io_uring::{IoUring, opcode, squeue};
use rustix::event::{EventfdFlags, eventfd};

use super::{Completed, FileDriver, KernelIo, Operations, Request, Stage};
use crate::backend::SystemPort;
use crate::files::request::{Kind, Memory};
use crate::files::system;
use crate::support::burst;
use crate::support::lock::lock;

pub(in crate::files) const DRIVER: Option<FileDriver> = Some(FileDriver::IoUring);

/// How many entries one submission may have.
const BATCH: usize = 64;

/// A longer operation is a helper thread's, unless the device copies.
const INLINE_BYTES: usize = 128 << 10;

/// The ring has room for a full submission, and for what ends it.
const SUBMISSIONS: u32 = 2 * BATCH as u32;

/// How many operations may be in the kernel at a time.
const OPERATIONS: usize = 2048;

/// Each has a completion, and so has a cancellation of each.
const COMPLETIONS: u32 = 2 * OPERATIONS as u32 + SUBMISSIONS;

/// `IOV_MAX` — The maximum number of parts.
const PARTS: usize = 1024;

/// The completion of a cancellation. No key has this index.
const IGNORED: u64 = u64::MAX;

/// What others share with the thread that owns the ring.
struct Ring {
    queue: Mutex<Queue>,
    /// Something was queued since the last [`flush`](KernelIo::flush).
    is_due: AtomicBool,
    /// `eventfd` — The thread reads it, and the kernel writes to it when something has completed.
    waker: OwnedFd,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct Queue {
    /// The keys of operations, which begin in this order unless they were cancelled; and, first and without a request, of
    /// those in the kernel that are to be cancelled.
    commands: VecDeque<(usize, Option<Request>)>,
    /// The thread waits in the kernel, or is about to.
    is_asleep: bool,
    /// The port is closed, or the kernel accepts no more entries.
    is_closed: bool,
}

/// Test whether a ring can be made.
pub(in crate::files) fn probe() -> io::Result<()> {
    make().map(drop)
}

/// A ring whose completions are queued on the port of these operations, and its thread.
pub(in crate::files) fn open(
    operations: &Arc<Operations>,
    _: &SystemPort,
) -> io::Result<Arc<dyn KernelIo>> {
    let (ring, waker) = make()?;
    let shared = Arc::new(Ring {
        queue: Mutex::default(),
        is_due: AtomicBool::new(false),
        waker,
        thread: Mutex::default(),
    });
    let owner = Owner {
        shared: Arc::clone(&shared),
        operations: Arc::clone(operations),
        ring,
        pending: Vec::new(),
        in_kernel: 0,
    };
    let builder = thread::Builder::new().name("socknotify-ring".to_owned());
    *lock(&shared.thread) = Some(builder.spawn(move || owner.serve())?);
    Ok(shared)
}

impl Ring {
    /// With the queue locked, so that the thread looks into it after this.
    fn wake(&self, queue: &mut Queue) {
        if mem::take(&mut queue.is_asleep) {
            let _ = rustix::io::write(&self.waker, &1_u64.to_ne_bytes());
        }
    }
}

impl KernelIo for Ring {
    unsafe fn begin(
        &self,
        operations: &Operations,
        key: usize,
        request: &Request,
    ) -> Option<Stage> {
        let mut queue = lock(&self.queue);
        if queue.is_closed || !is_for_ring(request) {
            return None;
        }
        let command = (key, Some(*request));
        burst::push(&mut queue.commands, command, |it| operations.has(it.0));
        self.is_due.store(true, Ordering::SeqCst);
        Some(Stage::Queued)
    }

    fn cancel(&self, key: usize) {
        let mut queue = lock(&self.queue);
        queue.commands.push_front((key, None));
        self.wake(&mut queue);
    }

    #[inline]
    fn flush(&self) {
        if self.is_due.load(Ordering::SeqCst) && self.is_due.swap(false, Ordering::SeqCst) {
            self.wake(&mut lock(&self.queue));
        }
    }

    /// The thread ends when all is complete.
    fn close(&self) {
        let mut queue = lock(&self.queue);
        queue.is_closed = true;
        // Whatever it does, it looks.
        queue.is_asleep = true;
        self.wake(&mut queue);
    }

    fn join(&self) {
        let thread = lock(&self.thread).take();
        let Some(thread) = thread else { return };
        // It may drop what the caller has given, and so be this one. `thread::current` would allocate in a caller's thread.
        // SAFETY: it has no preconditions.
        if thread.as_pthread_t() != unsafe { libc::pthread_self() } {
            let _ = thread.join();
        }
    }
}

/// A ring and its waker.
fn make() -> io::Result<(IoUring, OwnedFd)> {
    // A forked child inherits the mapping and does not use it. If the child did not inherit it, dropping the port
    // there would unmap whatever is at that address.
    let ring = IoUring::builder()
        .setup_cqsize(COMPLETIONS)
        .build(SUBMISSIONS)?;
    // From Linux 5.6 on, which has all operations.
    if !ring.params().is_feature_rw_cur_pos() {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let waker = eventfd(0, EventfdFlags::CLOEXEC)?;
    ring.submitter().register_eventfd(waker.as_raw_fd())?;
    // A sandbox may forbid only this call.
    ring.submit()?;
    Ok((ring, waker))
}

/// The thread.
struct Owner {
    shared: Arc<Ring>,
    operations: Arc<Operations>,
    ring: IoUring,
    /// The names of the entries in the ring that the kernel has not taken.
    pending: Vec<u64>,
    /// The number of entries in the kernel whose completions were not taken.
    in_kernel: usize,
}

impl Owner {
    fn serve(mut self) {
        while self.submit() {
            self.report();
        }
        self.end();
    }

    /// Submit a batch, or wait if there is none. False if the ring is closed and all is complete, or the kernel refuses it.
    fn submit(&mut self) -> bool {
        let mut queue = lock(&self.shared.queue);
        let mut batch = Vec::new();
        while batch.len() < BATCH {
            let has_room = self.in_kernel + batch.len() < OPERATIONS;
            let is_next = |&(_, request): &(_, Option<_>)| has_room || request.is_none();
            if !queue.commands.front().is_some_and(is_next) {
                break;
            }
            batch.extend(burst::pop(&mut queue.commands));
        }
        if batch.is_empty() && queue.is_closed && self.in_kernel == 0 {
            return false;
        }
        queue.is_asleep = batch.is_empty();
        drop(queue);
        if batch.is_empty() {
            self.wait();
            return true;
        }
        for (key, request) in batch {
            match request {
                Some(request) if self.operations.submits(key) => {
                    self.push(entry(&request).user_data(key as u64));
                }
                Some(_) => {}
                None => {
                    let cancel = opcode::AsyncCancel::new(key as u64).build();
                    self.push(cancel.user_data(IGNORED));
                }
            }
        }
        self.enter()
    }

    fn push(&mut self, entry: squeue::Entry) {
        // SAFETY: what the entry refers to stays valid, by the promise of the caller that began it.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        assert!(pushed.is_ok(), "fewer are pending than there is room for");
        self.pending.push(entry.get_user_data());
    }

    /// `io_uring_enter` — Submit the entries of the ring. False if the kernel has no memory for them, or accepts no more.
    fn enter(&mut self) -> bool {
        while !self.pending.is_empty() {
            match self.ring.submit() {
                Ok(count @ 1..) => {
                    self.pending.drain(..count);
                    self.in_kernel += count;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                _ => return false,
            }
        }
        true
    }

    /// `read` — Wait for a completion, the waker, or a signal. Valgrind takes `io_uring_enter` for a call that does not
    /// wait: no other thread of the program would run meanwhile.
    fn wait(&self) {
        let _ = rustix::io::read(&self.shared.waker, &mut [0; 8]);
    }

    /// Take all completions, and queue their packets.
    fn report(&mut self) {
        let mut packets = Vec::new();
        for completion in self.ring.completion() {
            self.in_kernel -= 1;
            // A cancellation's key finds nothing.
            let key = completion.user_data() as usize;
            let completed = completed(completion.result());
            packets.extend(self.operations.on_completed(key, completed));
        }
        self.operations.queue(&packets);
    }

    /// The port is closed, and nothing is left; or the kernel refuses what it allowed before, and helper threads have the rest.
    #[cold]
    fn end(mut self) {
        let mut queue = lock(&self.shared.queue);
        queue.is_closed = true;
        let queued = mem::take(&mut queue.commands);
        drop(queue);
        let operations = &self.operations;
        let queued = queued.into_iter().map(|(key, _)| key);
        let queued = queued.filter(|&key| operations.submits(key));
        let rest = self.pending.drain(..).map(|name| name as usize);
        let refuse = |key| operations.on_completed(key, Completed::Cancelled);
        let packets: Vec<_> = rest.chain(queued).filter_map(refuse).collect();
        operations.queue(&packets);
        self.report();
        while self.in_kernel > 0 {
            self.wait();
            self.report();
        }
    }
}

/// An operation as a submission entry.
fn entry(request: &Request) -> squeue::Entry {
    let fd = Fd(request.file);
    let (Memory { first, parts, .. }, offset) = (request.memory, request.offset);
    let (length, count) = (request.memory.length as u32, parts as u32);
    match request.kind {
        Kind::Read if parts == 0 => opcode::Read::new(fd, first, length).offset(offset).build(),
        Kind::Read => opcode::Readv::new(fd, first.cast(), count)
            .offset(offset)
            .build(),
        Kind::Write if parts == 0 => opcode::Write::new(fd, first, length).offset(offset).build(),
        Kind::Write => opcode::Writev::new(fd, first.cast(), count)
            .offset(offset)
            .build(),
        Kind::SyncAll => opcode::Fsync::new(fd).build(),
        Kind::SyncData => opcode::Fsync::new(fd).flags(FsyncFlags::DATASYNC).build(),
    }
}

/// Whether it takes no long time to submit an operation.
fn is_for_ring(request: &Request) -> bool {
    let Memory { length, parts, .. } = request.memory;
    parts <= PARTS && (length <= INLINE_BYTES || system::is_unbuffered(request.file))
}

/// The result in a completion.
fn completed(result: i32) -> Completed {
    match result {
        count @ 0.. => Completed::Done(Ok(count as usize)),
        error => match -error {
            libc::ECANCELED | libc::EINTR => Completed::Cancelled,
            error => Completed::Done(Err(io::Error::from_raw_os_error(error))),
        },
    }
}
