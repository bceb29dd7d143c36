//! Linux: operations in an `io_uring` ring.
//!
//! Each port has one ring, which the port's set watches. Any thread submits, and any thread that waits in the port
//! takes completions. If the data are in the page cache, an operation completes while it is submitted.
//!
//! When a thread ends, the kernel cancels what it has submitted. It may also interrupt an operation. Such operations
//! are submitted again.

#![allow(unsafe_code, reason = "the kernel writes into memory after the call")]

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::thread;
use std::time::Duration;

use io_uring::types::{CancelBuilder, Fd, FsyncFlags};
use io_uring::{EnterFlags, IoUring, Probe, opcode, squeue};

use super::request::{Association, Kind, Request};
use super::{Begun, FileDriver, Settle, Settled};
use crate::backend::Completions;
use crate::lock::lock;
use crate::system::SystemPort;
use crate::{Entry, Origin};

/// What this does.
pub(super) const DRIVER: Option<FileDriver> = Some(FileDriver::IoUring);

/// How many operations can be submitted at once.
const SUBMISSIONS: u32 = 256;

/// How many operations may be in the kernel at a time, so that there is room for all their completions.
const COMPLETIONS: u32 = 4096;

/// No operation's key.
const IGNORED: u64 = u64::MAX;

/// How many times in a row the kernel may lack memory before it counts as out of memory.
const ATTEMPTS: usize = 1000;

/// A ring.
pub(super) struct Direct {
    ring: IoUring,
    packets: Packets,
    submission: Mutex<Submission>,
    /// Held by the thread that takes completions.
    completion: Mutex<()>,
    /// The number of operations in the ring that have not completed.
    in_ring: AtomicUsize,
    /// The ring has entries that were not submitted yet.
    is_pending: AtomicBool,
    has_backlog: AtomicBool,
}

/// What to make of completions.
enum Packets {
    /// Packets with this completion key, for [`Direct::settle`].
    Of(usize),
    Raw(Weak<dyn Settle>),
}

#[derive(Default)]
struct Submission {
    /// The keys of the entries that were not submitted yet.
    pending: Vec<u64>,
    /// Entries that the ring has no room for yet.
    backlog: VecDeque<squeue::Entry>,
    /// The kernel accepts no more entries.
    is_broken: bool,
}

impl Direct {
    /// Test whether a ring can be made.
    pub(super) fn probe() -> io::Result<()> {
        Self::open().map(drop)
    }

    fn open() -> io::Result<IoUring> {
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

    /// A ring whose completions are queued on this port under this key.
    pub(super) fn new(port: &SystemPort, key: usize) -> io::Result<Arc<Self>> {
        Self::with(port, Packets::Of(key))
    }

    /// A ring whose completions are settled before they are queued on this port.
    pub(super) fn raw(port: &SystemPort, settle: Weak<dyn Settle>) -> io::Result<Arc<Self>> {
        Self::with(port, Packets::Raw(settle))
    }

    fn with(port: &SystemPort, packets: Packets) -> io::Result<Arc<Self>> {
        let this = Arc::new(Direct {
            ring: Self::open()?,
            packets,
            submission: Mutex::default(),
            completion: Mutex::default(),
            in_ring: AtomicUsize::new(0),
            is_pending: AtomicBool::new(false),
            has_backlog: AtomicBool::new(false),
        });
        port.backend().complete(Arc::clone(&this) as _)?;
        Ok(this)
    }

    /// Every file can be used.
    pub(super) fn associate(&self, _file: &File) -> Association {
        None
    }

    /// Put an operation into the ring, for the next [`flush`](Self::flush).
    ///
    /// # Safety
    ///
    /// The request's file and memory stay valid, and nobody touches the memory, until its completion was taken, or
    /// [`close`](Self::close) has returned.
    pub(super) unsafe fn begin(&self, key: usize, request: &Request) -> Begun {
        let entry = entry(request);
        let mut submission = lock(&self.submission);
        if submission.is_broken {
            return Begun::Refused;
        }
        self.put(&mut submission, entry.user_data(key as u64));
        Begun::UnderWay
    }

    /// Cancel an operation, if that is still possible.
    pub(super) fn cancel(&self, key: usize) {
        let mut submission = lock(&self.submission);
        if !submission.is_broken {
            let cancel = opcode::AsyncCancel::new(key as u64).build();
            self.put(&mut submission, cancel.user_data(IGNORED));
        }
    }

    fn put(&self, submission: &mut Submission, entry: squeue::Entry) {
        let is_full = submission.pending.len() >= SUBMISSIONS as usize
            || self.in_ring.load(Ordering::Acquire) >= COMPLETIONS as usize;
        if is_full || !submission.backlog.is_empty() {
            submission.backlog.push_back(entry);
            self.has_backlog.store(true, Ordering::SeqCst);
        } else {
            self.push(submission, &entry);
        }
        self.is_pending.store(true, Ordering::Release);
    }

    fn push(&self, submission: &mut Submission, entry: &squeue::Entry) {
        // SAFETY: the lock is held, so there is no other queue. What the entry refers to stays valid, by the promise of
        // the caller that began it.
        let pushed = unsafe { self.ring.submission_shared().push(entry) };
        assert!(pushed.is_ok(), "fewer are pending than there is room for");
        submission.pending.push(entry.get_user_data());
        self.in_ring.fetch_add(1, Ordering::AcqRel);
    }

    /// Submit all entries of the ring. Returns the keys of those that the kernel does not accept.
    pub(super) fn flush(&self) -> Vec<usize> {
        match self.is_pending.load(Ordering::Acquire) {
            true => self.submit(&mut lock(&self.submission)),
            false => Vec::new(),
        }
    }

    fn submit(&self, submission: &mut Submission) -> Vec<usize> {
        self.is_pending.store(false, Ordering::Release);
        if submission.is_broken {
            return Vec::new();
        }
        let mut attempts = 0;
        loop {
            while !submission.pending.is_empty() {
                let count = submission.pending.len() as u32;
                let submitter = self.ring.submitter();
                // SAFETY: no argument is a pointer.
                let entered = unsafe { submitter.enter::<()>(count, 0, 0, None) };
                match entered.map_err(|error| error.raw_os_error()) {
                    Ok(count) if count > 0 => {
                        submission.pending.drain(..count);
                        attempts = 0;
                    }
                    Err(Some(libc::EINTR)) => {}
                    Ok(_) | Err(Some(libc::EAGAIN | libc::EBUSY)) if attempts < ATTEMPTS => {
                        attempts += 1;
                        thread::yield_now();
                    }
                    _ => return self.give_up(submission),
                }
            }
            let room = (COMPLETIONS as usize).saturating_sub(self.in_ring.load(Ordering::Acquire));
            let count = room.min(SUBMISSIONS as usize).min(submission.backlog.len());
            for entry in submission.backlog.drain(..count).collect::<Vec<_>>() {
                self.push(submission, &entry);
            }
            if count == 0 {
                break;
            }
        }
        if submission.backlog.is_empty() {
            self.has_backlog.store(false, Ordering::SeqCst);
        }
        Vec::new()
    }

    /// The kernel refuses a call that it allowed before. Withdraw these entries.
    #[cold]
    fn give_up(&self, submission: &mut Submission) -> Vec<usize> {
        submission.is_broken = true;
        let pending = std::mem::take(&mut submission.pending);
        self.in_ring.fetch_sub(pending.len(), Ordering::AcqRel);
        let backlog = std::mem::take(&mut submission.backlog);
        self.has_backlog.store(false, Ordering::SeqCst);
        let backlog = backlog.iter().map(squeue::Entry::get_user_data);
        let keys = pending.into_iter().chain(backlog);
        keys.filter(|&key| key != IGNORED)
            .map(|key| key as usize)
            .collect()
    }

    /// Take all completions. The lock is held.
    fn reap(&self, _completion: &MutexGuard<'_, ()>, mut each: impl FnMut(usize, i32)) {
        // SAFETY: the lock is held, so there is no other queue.
        let queue = unsafe { self.ring.completion_shared() };
        let mut count = 0;
        for completion in queue {
            count += 1;
            if completion.user_data() != IGNORED {
                each(completion.user_data() as usize, completion.result());
            }
        }
        self.in_ring.fetch_sub(count, Ordering::AcqRel);
    }

    /// The operation of a packet, and its outcome.
    pub(super) fn settle(&self, entry: &Entry) -> Option<(usize, Settled)> {
        // Nobody else can make such a packet.
        if entry.origin() != Some(Origin::Completion) {
            return None;
        }
        Some((entry.overlapped, settled(entry.transferred as i32)))
    }

    /// Accept nothing more, and wait until the kernel has completed all submitted operations.
    pub(super) fn close(&self) {
        let mut submission = lock(&self.submission);
        submission.backlog.clear();
        self.submit(&mut submission);
        if !submission.is_broken {
            // From Linux 5.19 on. Earlier kernels complete them all.
            let cancel = opcode::AsyncCancel2::new(CancelBuilder::any()).build();
            self.put(&mut submission, cancel.user_data(IGNORED));
            self.submit(&mut submission);
        }
        submission.is_broken = true;
        drop(submission);
        let completion = lock(&self.completion);
        loop {
            self.reap(&completion, |_, _| ());
            if self.in_ring.load(Ordering::Acquire) == 0 {
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

/// An operation as a submission entry.
fn entry(request: &Request) -> squeue::Entry {
    let &Request {
        file,
        kind,
        memory,
        length,
        offset,
        ..
    } = request;
    let fd = Fd(file);
    match kind {
        Kind::Read => opcode::Read::new(fd, memory, length).offset(offset).build(),
        Kind::Write => opcode::Write::new(fd, memory, length)
            .offset(offset)
            .build(),
        Kind::SyncAll => opcode::Fsync::new(fd).build(),
        Kind::SyncData => opcode::Fsync::new(fd).flags(FsyncFlags::DATASYNC).build(),
    }
}

impl AsFd for Direct {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the ring lives as long as this.
        unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) }
    }
}

impl Completions for Direct {
    fn take(&self, packets: &mut Vec<Entry>) {
        let raw = match &self.packets {
            Packets::Of(_) => None,
            Packets::Raw(settle) => settle.upgrade(),
        };
        let packet = |key, result: i32| match (&self.packets, &raw) {
            (&Packets::Of(completion_key), _) => {
                Some(Entry::new(completion_key, result as u32, key))
            }
            // Otherwise the port is closed.
            (Packets::Raw(_), raw) => raw.as_ref()?.settle(key, settled(result)),
        };
        let mut has_begun_again = false;
        let completion = lock(&self.completion);
        self.reap(&completion, |key, result| match packet(key, result) {
            Some(packet) => packets.push(packet),
            None => has_begun_again = raw.is_some(),
        });
        drop(completion);
        if has_begun_again || self.has_backlog.load(Ordering::SeqCst) {
            // There is room for more.
            let refused = self.submit(&mut lock(&self.submission));
            let interrupted = |key| packet(key, -libc::EINTR);
            packets.extend(refused.into_iter().filter_map(interrupted));
        }
    }
}

/// The result in a completion.
fn settled(result: i32) -> Settled {
    match result {
        count @ 0.. => Settled::Done(Ok(count as usize)),
        error => match -error {
            libc::ECANCELED | libc::EINTR => Settled::Cancelled,
            error => Settled::Done(Err(io::Error::from_raw_os_error(error))),
        },
    }
}
