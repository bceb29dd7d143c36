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

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::thread::JoinHandleExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use io_uring::types::{CancelBuilder, Fd, FsyncFlags};
use io_uring::{EnterFlags, IoUring, Probe, opcode, squeue};

use crate::Entry;
use crate::backend::SystemPort;
use crate::files::helpers::Ticket;
use crate::files::request::{Association, Kind, Request};
use crate::files::system;
use crate::files::{Begun, Completed, FileDriver, Operations};
use crate::support::lock::lock;

/// What this does.
pub(in crate::files) const DRIVER: Option<FileDriver> = Some(FileDriver::IoUring);

/// How long closing waits before it looks what has completed: the thread says so.
pub(in crate::files) const TICK: Duration = Duration::from_secs(3600);

/// How many operations one submission may have; and how many cancellations.
const BATCH: usize = 64;

/// A longer operation is a helper thread's, unless the device copies.
const INLINE_BYTES: u32 = 128 << 10;

/// The ring has room for a full submission.
const SUBMISSIONS: u32 = 256;

/// How many operations may be in the kernel at a time.
const OPERATIONS: usize = 2048;

/// Each has a completion, and so has a cancellation of each.
const COMPLETIONS: u32 = 2 * OPERATIONS as u32 + SUBMISSIONS;

/// `IOV_MAX` — The maximum number of parts.
const PARTS: u32 = 1024;

/// The completion of a cancellation. No key has this index.
const IGNORED: u64 = u64::MAX >> 1;

/// The completion of the poll of the waker. No key has this index.
const WOKEN: u64 = u64::MAX;

/// How long the kernel may lack memory or room for a submission before the ring counts as broken.
const SHORTAGE: Duration = Duration::from_secs(1);

/// How long the thread waits before it tries again.
const RETRY: Duration = Duration::from_millis(1);

/// What others share with the thread that owns the ring.
pub(in crate::files) struct KernelIo {
    queue: Mutex<Queue>,
    /// Something was queued since the last [`flush`](Self::flush).
    is_due: AtomicBool,
    /// `eventfd`
    waker: OwnedFd,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct Queue {
    /// In the order in which they were queued. What is cancelled leaves at once.
    operations: BTreeMap<Ticket, (usize, Request)>,
    next: Ticket,
    /// The keys of operations in the kernel that are to be cancelled.
    cancels: Vec<usize>,
    /// The thread waits in the kernel, or is about to.
    is_asleep: bool,
    /// The port is closed, or the kernel accepts no more entries.
    is_closed: bool,
}

impl KernelIo {
    /// Test whether a ring can be made.
    pub(in crate::files) fn probe() -> io::Result<()> {
        make().map(drop)
    }

    /// A ring whose completions are queued on the port of these operations, and its thread.
    pub(in crate::files) fn new(
        operations: &Arc<Operations>,
        _: &SystemPort,
    ) -> io::Result<Arc<Self>> {
        let ring = make()?;
        // SAFETY: no argument is a pointer.
        let waker = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if waker < 0 {
            return Err(io::Error::last_os_error());
        }
        let this = Arc::new(KernelIo {
            queue: Mutex::default(),
            is_due: AtomicBool::new(false),
            // SAFETY: it is new, and nobody else's.
            waker: unsafe { OwnedFd::from_raw_fd(waker) },
            thread: Mutex::default(),
        });
        let owner = Owner {
            shared: Arc::clone(&this),
            operations: Arc::clone(operations),
            ring,
            pending: VecDeque::new(),
            in_kernel: 0,
            is_watched: false,
            stuck_since: None,
        };
        let builder = thread::Builder::new().name("socknotify-ring".to_owned());
        *lock(&this.thread) = Some(builder.spawn(move || owner.serve())?);
        Ok(this)
    }

    /// Every file can be used.
    pub(in crate::files) fn associate(&self, _file: &File, _key: usize) -> Association {
        None
    }

    /// Queue an operation, which begins with the next [`flush`](Self::flush) at the latest.
    ///
    /// # Safety
    ///
    /// If [`Operations::submits`] allows it, the request's file and memory stay valid from then on, and nobody touches the
    /// memory, until [`Operations::on_completed`] was called for it.
    pub(in crate::files) unsafe fn begin(&self, key: usize, request: &Request) -> Begun {
        if !is_for_ring(request) {
            return Begun::Refused;
        }
        let mut queue = lock(&self.queue);
        if queue.is_closed {
            return Begun::Refused;
        }
        let ticket = queue.next;
        queue.next += 1;
        queue.operations.insert(ticket, (key, *request));
        self.is_due.store(true, Ordering::SeqCst);
        Begun::Queued(ticket)
    }

    /// A queued operation was cancelled.
    pub(in crate::files) fn withdraw(&self, ticket: Ticket) {
        lock(&self.queue).operations.remove(&ticket);
    }

    /// Cancel an operation that was submitted, if that is still possible.
    pub(in crate::files) fn cancel(&self, key: usize) {
        let mut queue = lock(&self.queue);
        queue.cancels.push(key);
        self.wake(&mut queue);
    }

    /// Wake the thread if something was queued.
    #[inline]
    pub(in crate::files) fn flush(&self) {
        if self.is_due.load(Ordering::SeqCst) && self.is_due.swap(false, Ordering::SeqCst) {
            self.wake(&mut lock(&self.queue));
        }
    }

    /// With the queue locked, so that the thread looks into it after this.
    fn wake(&self, queue: &mut Queue) {
        if mem::take(&mut queue.is_asleep) {
            let one = 1_u64;
            // SAFETY: it is there for the call. It wakes also if the counter is full, which fails.
            unsafe { libc::write(self.waker.as_raw_fd(), (&raw const one).cast(), 8) };
        }
    }

    /// No packet is the kernel's own: the thread takes the completions.
    pub(in crate::files) fn on_completed(&self, _entry: &Entry) -> Option<(usize, Completed)> {
        None
    }

    /// Accept nothing more, and have the kernel cancel what it can. The thread ends when the kernel has completed all.
    pub(in crate::files) fn close(&self) {
        let mut queue = lock(&self.queue);
        queue.is_closed = true;
        // Whatever it does, it looks.
        queue.is_asleep = true;
        self.wake(&mut queue);
    }

    /// Wait for the thread of a closed ring, whose operations are complete.
    pub(in crate::files) fn join(&self) {
        let thread = lock(&self.thread).take();
        let Some(thread) = thread else { return };
        // It may drop what the caller has given, and so be this one. `thread::current` would allocate in a caller's thread.
        // SAFETY: it has no preconditions.
        if thread.as_pthread_t() != unsafe { libc::pthread_self() } {
            let _ = thread.join();
        }
    }
}

fn make() -> io::Result<IoUring> {
    // A forked child inherits the mapping and does not use it. If the child did not inherit it, dropping the port
    // there would unmap whatever is at that address.
    let ring = IoUring::builder()
        .setup_cqsize(COMPLETIONS)
        .build(SUBMISSIONS)?;
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe)?;
    let needs = [
        opcode::Read::CODE,
        opcode::Write::CODE,
        opcode::Readv::CODE,
        opcode::Writev::CODE,
        opcode::Fsync::CODE,
        opcode::PollAdd::CODE,
        opcode::AsyncCancel::CODE,
    ];
    if !needs.into_iter().all(|code| probe.is_supported(code)) {
        return Err(io::ErrorKind::Unsupported.into());
    }
    // A sandbox may forbid only this call.
    ring.submit()?;
    Ok(ring)
}

/// The thread.
struct Owner {
    shared: Arc<KernelIo>,
    operations: Arc<Operations>,
    ring: IoUring,
    /// The names of the entries in the ring that the kernel has not taken.
    pending: VecDeque<u64>,
    /// The number of entries in the kernel whose completions were not taken.
    in_kernel: usize,
    /// The kernel watches the waker.
    is_watched: bool,
    /// Since when the kernel lacks memory or room for what is pending.
    stuck_since: Option<Instant>,
}

impl Owner {
    fn serve(mut self) {
        while self.submit() {
            self.report();
        }
        self.end();
    }

    /// Submit a batch, and wait for a completion if there is nothing to submit. False if the ring is closed or broken.
    fn submit(&mut self) -> bool {
        let mut queue = lock(&self.shared.queue);
        if queue.is_closed {
            return false;
        }
        let mut batch = Vec::new();
        let mut cancels = Vec::new();
        // The ring has room for one batch.
        if self.pending.is_empty() {
            let room = OPERATIONS.saturating_sub(self.in_kernel).min(BATCH);
            let next = || Some(queue.operations.pop_first()?.1);
            batch.extend(std::iter::from_fn(next).take(room));
            let count = queue.cancels.len().min(BATCH);
            cancels.extend(queue.cancels.drain(..count));
        }
        let is_idle = batch.is_empty() && cancels.is_empty() && self.pending.is_empty();
        queue.is_asleep = is_idle;
        drop(queue);
        if !mem::replace(&mut self.is_watched, true) {
            let fd = Fd(self.shared.waker.as_raw_fd());
            let poll = opcode::PollAdd::new(fd, libc::POLLIN as u32).build();
            self.push(poll.user_data(WOKEN));
        }
        for key in cancels {
            let cancel = opcode::AsyncCancel::new(key as u64).build();
            self.push(cancel.user_data(IGNORED));
        }
        for (key, request) in batch {
            if self.operations.submits(key) {
                self.push(entry(&request).user_data(key as u64));
            }
        }
        self.enter(is_idle)
    }

    fn push(&mut self, entry: squeue::Entry) {
        // SAFETY: what the entry refers to stays valid, by the promise of the caller that began it.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        assert!(pushed.is_ok(), "fewer are pending than there is room for");
        self.pending.push_back(entry.get_user_data());
    }

    /// Submit the entries of the ring, and wait for a completion if so. False if the kernel accepts no more entries.
    fn enter(&mut self, waits: bool) -> bool {
        if self.pending.is_empty() {
            if waits {
                self.wait();
            }
            return true;
        }
        let (count, flags) = (self.pending.len() as u32, EnterFlags::GETEVENTS.bits());
        // SAFETY: no argument is a pointer.
        let entered = unsafe {
            let submitter = self.ring.submitter();
            submitter.enter::<()>(count, 0, flags, None)
        };
        match entered.map_err(|error| error.raw_os_error()) {
            Ok(count) => {
                self.pending.drain(..count);
                self.in_kernel += count;
                if count > 0 {
                    self.stuck_since = None;
                    if waits && self.pending.is_empty() {
                        self.wait();
                    }
                    return true;
                }
            }
            Err(Some(libc::EINTR)) => return true,
            Err(Some(libc::EAGAIN | libc::EBUSY | libc::ENOMEM)) => {}
            Err(_) => return false,
        }
        // What it lacks memory or room for stays in the ring.
        thread::sleep(RETRY);
        let since = self.stuck_since.get_or_insert_with(Instant::now);
        since.elapsed() < SHORTAGE
    }

    /// `poll` — Wait for a completion, or a signal. Valgrind takes `io_uring_enter` for a call that does not wait: no other
    /// thread of the program would run meanwhile.
    fn wait(&self) {
        let mut ring = libc::pollfd {
            fd: self.ring.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: the structure is there for the call.
        unsafe { libc::poll(&raw mut ring, 1, -1) };
    }

    /// Take all completions, and queue their packets.
    fn report(&mut self) {
        let mut packets = Vec::new();
        for completion in self.ring.completion() {
            self.in_kernel -= 1;
            match completion.user_data() {
                IGNORED => {}
                WOKEN => {
                    self.is_watched = false;
                    let mut count = [0; 8];
                    // SAFETY: there is room for the counter.
                    unsafe {
                        let waker = self.shared.waker.as_raw_fd();
                        libc::read(waker, count.as_mut_ptr().cast(), count.len());
                    }
                }
                key => {
                    let completed = completed(completion.result());
                    packets.extend(self.operations.on_completed(key as usize, completed));
                }
            }
        }
        self.operations.queue(&packets);
    }

    /// The port is closed, or the kernel refuses what it allowed before: helper threads have the rest.
    #[cold]
    fn end(mut self) {
        let mut queue = lock(&self.shared.queue);
        queue.is_closed = true;
        let queued = mem::take(&mut queue.operations);
        drop(queue);
        let is_stuck = !self.pending.is_empty();
        let queued = queued.into_values().map(|(key, _)| key);
        let queued = queued.filter(|&key| self.operations.submits(key));
        let pending = self.pending.drain(..).map(|name| name as usize);
        let refused: Vec<_> = pending.chain(queued).collect();
        let refuse = |key| self.operations.on_completed(key, Completed::Cancelled);
        let packets: Vec<_> = refused.into_iter().filter_map(refuse).collect();
        self.operations.queue(&packets);
        if !is_stuck {
            // From Linux 5.19 on. Earlier kernels complete them all.
            let cancel = opcode::AsyncCancel2::new(CancelBuilder::any()).build();
            self.push(cancel.user_data(IGNORED));
        }
        // The poll ends in any case.
        self.shared.close();
        loop {
            self.report();
            if self.in_kernel == 0 {
                return;
            }
            if !self.enter(true) {
                thread::sleep(RETRY);
            }
        }
    }
}

/// An operation as a submission entry.
fn entry(request: &Request) -> squeue::Entry {
    let &Request {
        file,
        kind,
        memory,
        length,
        parts,
        offset,
        ..
    } = request;
    let fd = Fd(file);
    match kind {
        Kind::Read => opcode::Read::new(fd, memory, length).offset(offset).build(),
        Kind::Write => opcode::Write::new(fd, memory, length)
            .offset(offset)
            .build(),
        Kind::ReadParts => opcode::Readv::new(fd, memory.cast(), parts)
            .offset(offset)
            .build(),
        Kind::WriteParts => opcode::Writev::new(fd, memory.cast(), parts)
            .offset(offset)
            .build(),
        Kind::SyncAll => opcode::Fsync::new(fd).build(),
        Kind::SyncData => opcode::Fsync::new(fd).flags(FsyncFlags::DATASYNC).build(),
    }
}

/// Whether it takes no long time to submit an operation.
fn is_for_ring(request: &Request) -> bool {
    request.parts <= PARTS
        && (request.length <= INLINE_BYTES || system::is_unbuffered(request.file))
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
