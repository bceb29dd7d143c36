//! Linux: operations in an `io_uring` ring.
//!
//! Each port has one ring, which the port's set watches. Any thread submits, and any thread that waits in the port
//! takes completions. If the data are in the page cache, an operation completes while it is submitted: the submitting
//! thread copies. So one submission is small, in bytes and in operations, and what is left is submitted by a thread of
//! the ring's own. A longer operation is left to a helper thread, which reads it in pieces.
//!
//! When a thread ends, the kernel cancels what it has submitted. It may also interrupt an operation. Such operations
//! are submitted again. One that has just got its data when the thread ends fails with `EFAULT`: a helper thread performs
//! it.

#![allow(unsafe_code, reason = "the kernel writes into memory after the call")]

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, TryLockError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use io_uring::types::{CancelBuilder, Fd, FsyncFlags, Timespec};
use io_uring::{EnterFlags, IoUring, Probe, opcode, squeue};

use super::helpers::{Helpers, Perform, Performed};
use super::request::{Association, Kind, Request};
use super::system::RawFile;
use super::{Begun, Completed, FileDriver, Layer, Owner};
use crate::Entry;
use crate::backend::Completions;
use crate::lock::lock;
use crate::system::SystemPort;

/// What this does.
pub(super) const DRIVER: Option<FileDriver> = Some(FileDriver::IoUring);

/// How many operations one submission may have; and how many cancellations.
const BATCH: usize = 64;

/// How many bytes one submission may copy.
const BATCH_BYTES: u32 = 256 << 10;

/// A longer operation is a helper thread's, unless the device copies. The kernel has threads for it, too, but they have
/// the priority of the one that submits.
const INLINE_BYTES: u32 = 128 << 10;

/// The ring has room for a full submission.
const SUBMISSIONS: u32 = 128;

/// How many operations may be in the kernel at a time.
const OPERATIONS: usize = 2048;

/// Each has a completion, and so has a cancellation of each.
const COMPLETIONS: u32 = 4096;

/// `IOV_MAX` — The maximum number of parts.
const PARTS: u32 = 1024;

/// The completion of a cancellation.
const IGNORED: u64 = u64::MAX;

/// A bit of the slot's index that no key has: it says which layer of the port the operation is of.
const OF_CONNECTIONS: u64 = 1 << 31;

/// How long the pump waits before it ends, whereupon the kernel cancels what it has submitted.
const PUMP_IDLE: Duration = Duration::from_secs(60);

/// How long the kernel may lack memory or room for a submission before the ring counts as broken.
const SHORTAGE: Duration = Duration::from_secs(1);

/// How long the pump waits before it tries again.
const RETRY: Duration = Duration::from_millis(1);

/// A ring.
///
/// The locks, in their order: an operation's slot or `submission`; then `queue`. A slot is also locked with `submission`
/// held. The kernel copies with `submission` held alone, and no thread waits for it but the one that closes.
pub(super) struct KernelIo {
    this: Weak<KernelIo>,
    ring: IoUring,
    owners: [OnceLock<Weak<dyn Owner>>; 2],
    queue: Mutex<Queue>,
    /// The queue may have entries.
    is_queued: AtomicBool,
    submission: Mutex<Submission>,
    /// Held by the thread that takes completions.
    completion: Mutex<()>,
    /// The number of entries in the kernel whose completions were not taken.
    in_ring: AtomicUsize,
    /// Submits what exceeds one submission.
    pump: Helpers,
    is_pump_due: AtomicBool,
}

/// What was not submitted yet.
#[derive(Default)]
struct Queue {
    state: State,
    /// Some may have been cancelled.
    operations: VecDeque<(u64, Request)>,
    /// About how many were cancelled.
    withdrawn: usize,
    /// The names of operations in the kernel that are to be cancelled.
    cancels: VecDeque<u64>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum State {
    #[default]
    Open,
    /// The kernel accepts no more entries.
    Broken,
    Closed,
}

/// Memory for a submission.
#[derive(Default)]
struct Submission {
    operations: Vec<(u64, Request)>,
    cancels: Vec<u64>,
    /// The names of the entries in the ring that the kernel has not taken.
    pending: VecDeque<u64>,
    /// Since when the kernel lacks memory or room for them.
    stuck_since: Option<Instant>,
    /// The kernel has refused entries. They are still in the ring, so nothing can be submitted behind them.
    is_refused: bool,
}

/// What is left after a submission.
#[derive(PartialEq, Eq)]
enum Rest {
    Nothing,
    /// It can be submitted at once.
    More,
    /// The kernel lacks memory or room for it now.
    Stuck,
}

/// The layers of the port, during a call.
struct Owners([Option<Arc<dyn Owner>>; 2]);

impl Owners {
    fn of(&self, name: u64) -> Option<(&dyn Owner, usize)> {
        let index = usize::from(name & OF_CONNECTIONS != 0);
        let key = (name & !OF_CONNECTIONS) as usize;
        Some((&**self.0[index].as_ref()?, key))
    }

    fn submits(&self, name: u64) -> bool {
        self.of(name).is_some_and(|(owner, key)| owner.submits(key))
    }

    fn is_queued(&self, name: u64) -> bool {
        self.of(name)
            .is_some_and(|(owner, key)| owner.is_queued(key))
    }
}

impl KernelIo {
    /// Test whether a ring can be made.
    pub(super) fn probe() -> io::Result<()> {
        Self::make().map(drop)
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
            opcode::AsyncCancel::CODE,
        ];
        if !needs.into_iter().all(|code| probe.is_supported(code)) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        // A sandbox may forbid only this call.
        ring.submit()?;
        Ok(ring)
    }

    /// A ring whose completions are queued on this port.
    pub(super) fn new(port: &SystemPort) -> io::Result<Arc<Self>> {
        let ring = Self::make()?;
        let this = Arc::new_cyclic(|this| KernelIo {
            this: Weak::clone(this),
            ring,
            owners: Default::default(),
            queue: Mutex::default(),
            is_queued: AtomicBool::new(false),
            submission: Mutex::default(),
            completion: Mutex::default(),
            in_ring: AtomicUsize::new(0),
            pump: Helpers::one(PUMP_IDLE),
            is_pump_due: AtomicBool::new(false),
        });
        // Whatever its error is, the port takes no other ring after that.
        let taken = port.backend().complete(Arc::clone(&this) as _);
        taken.map_err(io::Error::other)?;
        Ok(this)
    }

    /// Completions of this layer's operations are reported to this from now on.
    pub(super) fn attach(&self, layer: Layer, owner: impl FnOnce() -> Weak<dyn Owner>) {
        self.owners[layer as usize].get_or_init(owner);
    }

    fn owners(&self) -> Owners {
        let owner = |owner: &OnceLock<Weak<dyn Owner>>| owner.get().and_then(Weak::upgrade);
        Owners(self.owners.each_ref().map(owner))
    }

    /// Every file can be used.
    pub(super) fn associate(&self, _file: &File, _key: usize) -> Association {
        None
    }

    /// Queue an operation for the next [`flush`](Self::flush).
    ///
    /// # Safety
    ///
    /// If [`Owner::submits`] allows it, the request's file and memory stay valid from then on, and nobody touches the
    /// memory, until its completion was taken, or [`close`](Self::close) has returned.
    pub(super) unsafe fn begin(&self, layer: Layer, key: usize, request: &Request) -> Begun {
        let name = key as u64;
        if name & OF_CONNECTIONS != 0 || !is_for_ring(request) {
            return Begun::Refused;
        }
        let name = match layer {
            Layer::Caller => name,
            Layer::Connections => name | OF_CONNECTIONS,
        };
        let mut queue = lock(&self.queue);
        if queue.state != State::Open {
            return Begun::Refused;
        }
        queue.operations.push_back((name, *request));
        self.is_queued.store(true, Ordering::SeqCst);
        Begun::Queued
    }

    /// Cancel an operation that was submitted, if that is still possible, with the next [`flush`](Self::flush).
    pub(super) fn cancel(&self, layer: Layer, key: usize) {
        let name = match layer {
            Layer::Caller => key as u64,
            Layer::Connections => key as u64 | OF_CONNECTIONS,
        };
        let mut queue = lock(&self.queue);
        match queue.state {
            State::Open => {
                queue.cancels.push_back(name);
                self.is_queued.store(true, Ordering::SeqCst);
            }
            State::Broken => {
                drop(queue);
                self.cancel_at_once(CancelBuilder::user_data(name));
            }
            State::Closed => {}
        }
    }

    /// `IORING_REGISTER_SYNC_CANCEL` — Cancel operations without a submission. From Linux 6.0 on.
    #[cold]
    fn cancel_at_once(&self, which: CancelBuilder) {
        let submitter = self.ring.submitter();
        // Nothing is done about what cannot be cancelled any more.
        let _ = submitter.register_sync_cancel(Some(Timespec::new()), which);
    }

    /// A queued operation was cancelled. When these are the most, they are removed.
    pub(super) fn on_withdrawn(&self) {
        let owners = self.owners();
        let mut queue = lock(&self.queue);
        queue.withdrawn += 1;
        if queue.withdrawn < BATCH || queue.withdrawn < queue.operations.len() / 2 {
            return;
        }
        queue.withdrawn = 0;
        let mut operations = std::mem::take(&mut queue.operations);
        drop(queue);
        // A slot is locked before the queue is.
        operations.retain(|&(name, _)| owners.is_queued(name));
        let mut queue = lock(&self.queue);
        if queue.state == State::Closed {
            // Closing has emptied the queue, and nobody would take these.
            return;
        }
        operations.append(&mut queue.operations);
        queue.operations = operations;
        self.is_queued.store(true, Ordering::SeqCst);
        drop(queue);
        self.flush();
    }

    /// Submit what was queued: a batch in this thread, and what is left in another.
    #[inline]
    pub(super) fn flush(&self) {
        if self.is_queued.load(Ordering::SeqCst) && self.submit() != Rest::Nothing {
            self.submit_rest();
        }
    }

    /// Submit what was queued, in another thread if there is one.
    #[cold]
    fn submit_rest(&self) {
        if !self.pump() {
            self.submit_all();
        }
    }

    /// Have a thread submit what was queued. False if there is none.
    #[cold]
    fn pump(&self) -> bool {
        if self.is_pump_due.swap(true, Ordering::SeqCst) {
            return true;
        }
        let this = self.this.upgrade();
        let is_due = this.is_some_and(|this| self.pump.perform(this, 0).is_ok());
        if !is_due {
            self.is_pump_due.store(false, Ordering::SeqCst);
        }
        is_due
    }

    /// Submit one batch after the other. Between them others get the processor.
    fn submit_all(&self) {
        loop {
            match self.submit() {
                Rest::Nothing => return,
                Rest::More => thread::yield_now(),
                Rest::Stuck => thread::sleep(RETRY),
            }
        }
    }

    /// Submit a batch.
    ///
    /// Nothing waits here: if another thread submits, that one looks for more when it is done.
    fn submit(&self) -> Rest {
        // Dropped without the lock: these may be the last references.
        let owners = self.owners();
        let (refused, is_stuck) = {
            let mut submission = match self.submission.try_lock() {
                Ok(submission) => submission,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => return Rest::Nothing,
            };
            let refused = self.submit_batch(&mut submission, &owners);
            (refused, submission.stuck_since.is_some())
        };
        for name in refused {
            if let Some((owner, key)) = owners.of(name) {
                owner.refused(key);
            }
        }
        if !self.is_queued.load(Ordering::SeqCst) {
            return Rest::Nothing;
        }
        if is_stuck {
            return Rest::Stuck;
        }
        let queue = lock(&self.queue);
        let has_operations = !queue.operations.is_empty();
        if !queue.cancels.is_empty()
            || has_operations && (queue.state != State::Open || self.room() > 0)
        {
            Rest::More
        } else {
            Rest::Nothing
        }
    }

    /// How many more operations may be in the kernel.
    fn room(&self) -> usize {
        OPERATIONS.saturating_sub(self.in_ring.load(Ordering::SeqCst))
    }

    /// Returns the names of operations that the kernel does not accept.
    fn submit_batch(&self, submission: &mut Submission, owners: &Owners) -> Vec<u64> {
        let mut queue = lock(&self.queue);
        match queue.state {
            State::Open => {}
            State::Closed => return Vec::new(),
            State::Broken => return queue.give_up(),
        }
        // The ring has room for one batch.
        if !submission.pending.is_empty() {
            drop(queue);
            return self.enter(submission);
        }
        self.take_batch(&mut queue, submission);
        if queue.operations.is_empty() && queue.cancels.is_empty() {
            self.is_queued.store(false, Ordering::SeqCst);
        }
        drop(queue);
        for &name in &submission.cancels {
            let cancel = opcode::AsyncCancel::new(name).build();
            self.push(&mut submission.pending, cancel.user_data(IGNORED));
        }
        for (name, request) in submission.operations.drain(..) {
            if owners.submits(name) {
                self.push(&mut submission.pending, entry(&request).user_data(name));
            }
        }
        self.enter(submission)
    }

    /// Take as much as one submission may have.
    fn take_batch(&self, queue: &mut Queue, batch: &mut Submission) {
        let count = queue.cancels.len().min(BATCH);
        batch.cancels.extend(queue.cancels.drain(..count));
        let (room, mut bytes) = (self.room().min(BATCH), 0);
        while let Some((_, request)) = queue.operations.front() {
            // The device copies a longer one.
            let copied = match request.length > INLINE_BYTES {
                true => 0,
                false => request.length,
            };
            if batch.operations.len() >= room || bytes + copied > BATCH_BYTES {
                break;
            }
            bytes += copied;
            batch.operations.extend(queue.operations.pop_front());
        }
    }

    fn push(&self, pending: &mut VecDeque<u64>, entry: squeue::Entry) {
        // SAFETY: the lock is held, so there is no other queue. What the entry refers to stays valid, by the promise of
        // the caller that began it.
        let pushed = unsafe { self.ring.submission_shared().push(&entry) };
        assert!(pushed.is_ok(), "fewer are pending than there is room for");
        pending.push_back(entry.get_user_data());
        self.in_ring.fetch_add(1, Ordering::SeqCst);
    }

    /// Submit the entries of the ring. Returns the names of operations that the kernel does not accept. Those that it
    /// lacks memory or room for now stay in the ring.
    fn enter(&self, submission: &mut Submission) -> Vec<u64> {
        while !submission.pending.is_empty() {
            let count = submission.pending.len() as u32;
            // SAFETY: no argument is a pointer.
            let entered = unsafe { self.ring.submitter().enter::<()>(count, 0, 0, None) };
            match entered.map_err(|error| error.raw_os_error()) {
                Ok(count) if count > 0 => {
                    submission.pending.drain(..count);
                    submission.stuck_since = None;
                }
                Err(Some(libc::EINTR)) => {}
                Ok(_) | Err(Some(libc::EAGAIN | libc::EBUSY | libc::ENOMEM))
                    if !submission.is_stuck_for_long() =>
                {
                    self.is_queued.store(true, Ordering::SeqCst);
                    return Vec::new();
                }
                _ => return self.give_up(submission),
            }
        }
        submission.cancels.clear();
        Vec::new()
    }

    /// The kernel refuses a call that it allowed before. Withdraw these entries.
    #[cold]
    fn give_up(&self, submission: &mut Submission) -> Vec<u64> {
        submission.is_refused = true;
        submission.stuck_since = None;
        let pending = &mut submission.pending;
        self.in_ring.fetch_sub(pending.len(), Ordering::SeqCst);
        let mut names: Vec<_> = pending.drain(..).collect();
        names.retain(|&name| name != IGNORED);
        let mut queue = lock(&self.queue);
        if queue.state == State::Open {
            queue.state = State::Broken;
        }
        let cancels = std::mem::take(&mut queue.cancels);
        names.extend(queue.give_up());
        drop(queue);
        for name in submission.cancels.drain(..).chain(cancels) {
            self.cancel_at_once(CancelBuilder::user_data(name));
        }
        names
    }

    /// Take all completions, report them to their owners, and add their packets. The lock is held.
    fn report(&self, _: &MutexGuard<'_, ()>, owners: &Owners, packets: &mut Vec<Entry>) {
        // SAFETY: the lock is held, so there is no other queue.
        let queue = unsafe { self.ring.completion_shared() };
        let mut count = 0;
        for completion in queue {
            count += 1;
            if completion.user_data() != IGNORED {
                let owner = owners.of(completion.user_data());
                let result = completed(completion.result());
                packets.extend(owner.and_then(|(owner, key)| owner.on_completed(key, result)));
            }
        }
        self.in_ring.fetch_sub(count, Ordering::SeqCst);
    }

    /// No packet is the kernel's own: operations complete when their completions are taken.
    pub(super) fn on_completed(&self, _entry: &Entry) -> Option<(usize, Completed)> {
        None
    }

    /// Closing has reported them all.
    pub(super) fn completed(&self, _key: usize) -> Option<Completed> {
        None
    }

    /// Accept nothing more, and wait until the kernel has completed all submitted operations.
    pub(super) fn close(&self) {
        let mut queue = lock(&self.queue);
        let state = std::mem::replace(&mut queue.state, State::Closed);
        queue.give_up();
        drop(queue);
        self.pump.close();
        let mut submission = lock(&self.submission);
        if state == State::Open && !submission.is_refused {
            if !submission.pending.is_empty() {
                // What the kernel has not taken, it does not get.
                self.give_up(&mut submission);
            } else {
                // From Linux 5.19 on. Earlier kernels complete them all.
                let cancel = opcode::AsyncCancel2::new(CancelBuilder::any()).build();
                self.push(&mut submission.pending, cancel.user_data(IGNORED));
            }
            self.enter(&mut submission);
            while !submission.pending.is_empty() {
                thread::sleep(RETRY);
                self.enter(&mut submission);
            }
        }
        if submission.is_refused {
            self.cancel_at_once(CancelBuilder::any());
        }
        drop(submission);
        // Dropped without the lock: these may be the last references.
        let owners = self.owners();
        let completion = lock(&self.completion);
        loop {
            // Nobody takes packets any more.
            self.report(&completion, &owners, &mut Vec::new());
            if self.in_ring.load(Ordering::SeqCst) == 0 {
                return;
            }
            let flags = EnterFlags::GETEVENTS.bits();
            // SAFETY: no argument is a pointer.
            let waited = unsafe { self.ring.submitter().enter::<()>(0, 1, flags, None) };
            let refused = |error: &io::Error| error.raw_os_error() != Some(libc::EINTR);
            if waited.as_ref().is_err_and(refused) {
                thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

impl Submission {
    /// The kernel lacks memory or room. Whether it has for long.
    fn is_stuck_for_long(&mut self) -> bool {
        let since = self.stuck_since.get_or_insert_with(Instant::now);
        since.elapsed() > SHORTAGE
    }
}

impl Queue {
    /// Remove everything. Returns the names of operations.
    fn give_up(&mut self) -> Vec<u64> {
        self.cancels.clear();
        self.withdrawn = 0;
        self.operations.drain(..).map(|(name, _)| name).collect()
    }
}

/// The pump.
impl Perform for KernelIo {
    fn perform(&self, _: usize) -> Performed {
        self.is_pump_due.store(false, Ordering::SeqCst);
        self.submit_all();
        Performed::Done
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
    request.parts <= PARTS && (request.length <= INLINE_BYTES || is_unbuffered(request.file))
}

/// Whether the device itself copies, so that no operation takes long to begin.
fn is_unbuffered(file: RawFile) -> bool {
    // SAFETY: no argument is a pointer, and if this is no file, there is an error.
    let flags = unsafe { libc::fcntl(file, libc::F_GETFL) };
    flags != -1 && flags & libc::O_DIRECT != 0
}

impl AsFd for KernelIo {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the ring lives as long as this.
        unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) }
    }
}

impl Completions for KernelIo {
    fn take(&self, packets: &mut Vec<Entry>) {
        // Dropped without the lock: these may be the last references.
        let owners = self.owners();
        let completion = lock(&self.completion);
        self.report(&completion, &owners, packets);
        drop(completion);
        // There may be room for more. This thread has others to report, so it does not copy, unless no other thread does.
        if self.is_queued.load(Ordering::SeqCst) {
            self.submit_rest();
        }
    }
}

/// The result in a completion.
fn completed(result: i32) -> Completed {
    match result {
        count @ 0.. => Completed::Done(Ok(count as usize)),
        error => match -error {
            libc::ECANCELED | libc::EINTR => Completed::Cancelled,
            libc::EFAULT => Completed::Faulted,
            error => Completed::Done(Err(io::Error::from_raw_os_error(error))),
        },
    }
}

#[cfg(all(test, not(interleavings)))]
#[path = "uring_tests.rs"]
mod tests;
