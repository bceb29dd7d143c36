//! [`Operations`]: the operations in progress on the files of a port, and what performs them: the system, or helper
//! threads.

#![allow(
    unsafe_code,
    reason = "the system has the memory of operations that are here"
)]

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

use super::file::{FileCompletion, FileOperation, OperationId, PortFile};
use super::helpers::Helpers;
use super::kernel_io::{self, Completed, KernelIo};
use super::request::{Nature, Request};
use super::{FileDriver, system};
use crate::backend::SystemPort;
use crate::os::Process;
use crate::support::drops::drop_all;
use crate::support::lock::lock;
use crate::support::slots::{Occupied, Slots, Token};
use crate::{Entry, Error};

impl FileDriver {
    /// Tests whether the driver works here, now.
    ///
    /// # Errors
    ///
    /// Why it does not work.
    pub fn probe(self) -> io::Result<()> {
        match self {
            FileDriver::Threads => Ok(()),
            other if kernel_io::DRIVER == Some(other) => kernel_io::probe(),
            _ => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

/// Reads may be done as they are begun if no more are in progress: of more, the packets would be in the way of sockets.
const FEW: usize = 64;

/// How long closing waits at a time: on Windows nobody says what has completed.
const TICK: Duration = match cfg!(windows) {
    true => Duration::from_millis(1),
    false => Duration::from_secs(3600),
};

/// The operations of a port, each in a slot from its beginning until its completion is taken.
pub(crate) struct Operations {
    /// For threads that outlive a call.
    this: Weak<Self>,
    slots: Slots<Slot>,
    port: SystemPort,
    pub(super) helpers: Helpers,
    kernel_io: OnceLock<Arc<dyn KernelIo>>,
    /// Held while that is opened. True if it never will be: threads are wanted, the system refuses it for good, or the port is
    /// closed.
    is_refused: Mutex<bool>,
    process: Process,
    /// Nothing more begins. Who begins an operation finds this in its locked slot; who closes finds the slot afterwards.
    is_closing: AtomicBool,
    /// Those with the caller's memory, by the addresses of their blocks.
    pub(super) callers: Mutex<HashMap<usize, Token>>,
    /// How many with owned buffers were begun and not taken.
    count: AtomicUsize,
    /// Closing waits no longer than this.
    patience: Mutex<Option<Instant>>,
    /// Signalled, once it is closing, when an operation has ended. Goes with `patience`.
    ended: Condvar,
}

#[derive(Default)]
pub(super) struct Slot {
    /// Not here while a helper thread works on it.
    pub(super) operation: Option<Operation>,
    pub(super) stage: Stage,
    /// Its packet was dequeued: who has that takes the completion, also when the port is closed.
    is_dequeued: bool,
    pub(super) packet: Entry,
    /// The timer of its deadline.
    timer: Option<Token>,
    /// Closing has not waited for it: its end is nobody's.
    is_left_behind: bool,
}

/// What an operation is made of.
pub(super) enum Operation {
    /// File and memory are the caller's.
    #[cfg_attr(windows, allow(dead_code, reason = "there the system has these"))]
    Callers(Request),
    /// File and buffers are here.
    Owned(FileOperation),
}

#[derive(Default)]
pub(super) enum Stage {
    /// Nobody has begun it. If it is cancelled, it stays in its queue, where its key finds nothing.
    #[default]
    Queued,
    /// A helper thread performs it, and ends it early if there is a reason.
    Running(Option<Reason>),
    /// The system performs it, and may have been asked to cancel it.
    InKernel(Option<Reason>),
    /// With this result, and whether it was cancelled.
    Over(io::Result<usize>, bool),
}

/// Why an operation is cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    Asked,
    Deadline,
}

impl Stage {
    pub(super) fn done(result: io::Result<usize>) -> Self {
        Stage::Over(result, false)
    }

    fn cancelled(reason: Reason) -> Self {
        let error = match reason {
            Reason::Asked => io::Error::from_raw_os_error(system::CANCELLED),
            Reason::Deadline => io::ErrorKind::TimedOut.into(),
        };
        Stage::Over(Err(error), true)
    }

    fn is_over(&self) -> bool {
        matches!(self, Stage::Over(..))
    }

    /// Whether the system or a thread has its memory.
    fn is_busy(&self) -> bool {
        matches!(self, Stage::Running(_) | Stage::InKernel(_))
    }
}

impl Operation {
    fn request(&mut self) -> io::Result<Request> {
        match self {
            Operation::Callers(request) => Ok(*request),
            Operation::Owned(operation) => operation.request(),
        }
    }

    fn nature(&self) -> Nature {
        match self {
            Operation::Callers(request) => request.nature,
            Operation::Owned(operation) => operation.nature(),
        }
    }
}

impl Operations {
    pub(crate) fn new(port: SystemPort) -> Arc<Self> {
        Arc::new_cyclic(|this| Operations {
            this: Weak::clone(this),
            slots: Slots::new(),
            port,
            helpers: Helpers::for_files(),
            kernel_io: OnceLock::new(),
            is_refused: Mutex::new(false),
            process: Process::this(),
            is_closing: AtomicBool::new(false),
            callers: Mutex::default(),
            count: AtomicUsize::new(0),
            patience: Mutex::default(),
            ended: Condvar::new(),
        })
    }

    /// Use this many helper threads, and this driver, which is opened now. Others are opened when the first file is adopted.
    pub(crate) fn configure(
        &self,
        threads: usize,
        wanted: Option<FileDriver>,
    ) -> Result<(), Error> {
        self.helpers.set_most(threads);
        match wanted {
            None => {}
            Some(FileDriver::Threads) => *lock(&self.is_refused) = true,
            wanted if wanted != kernel_io::DRIVER => return Err(Error::BackendUnavailable),
            _ => {
                let opened = self.open().map(drop);
                opened.map_err(|error| {
                    system::shortage(&error).unwrap_or(Error::BackendUnavailable)
                })?;
            }
        }
        Ok(())
    }

    /// Whether this is the process of the port.
    pub(super) fn is_here(&self) -> bool {
        self.process.is_this()
    }

    /// The system, if it performs operations itself, and was opened.
    #[inline]
    fn opened(&self) -> Option<&dyn KernelIo> {
        self.kernel_io.get().map(|kernel_io| &**kernel_io)
    }

    /// Open it, if it is not open. If the system has no descriptor, memory or thread for it now, the next call tries
    /// again.
    pub(super) fn open(&self) -> io::Result<&dyn KernelIo> {
        if !self.is_here() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        if let Some(kernel_io) = self.opened() {
            return Ok(kernel_io);
        }
        let mut is_refused = lock(&self.is_refused);
        if !*is_refused && self.opened().is_none() {
            let this = self.this.upgrade().ok_or(io::ErrorKind::Unsupported)?;
            let opened = kernel_io::open(&this, &self.port).inspect_err(|error| {
                *is_refused = system::shortage(error).is_none();
            })?;
            let _ = self.kernel_io.set(opened);
        }
        self.opened().ok_or(io::ErrorKind::Unsupported.into())
    }

    /// The driver that performs operations. It is determined now, if it was not before.
    pub(crate) fn driver(&self) -> FileDriver {
        match kernel_io::DRIVER {
            Some(driver) if self.open().is_ok() => driver,
            _ => FileDriver::Threads,
        }
    }

    /// Take a file. The system's packets for it have this completion key.
    pub(crate) fn adopt(&self, file: File, key: usize) -> Result<PortFile, (File, io::Error)> {
        let mut nature = match system::check(&file) {
            Ok(nature) => nature,
            Err(error) => return Err((file, error)),
        };
        if let Ok(kernel_io) = self.open() {
            kernel_io.associate(&file, key, &mut nature);
        }
        Ok(PortFile::new(file, nature))
    }

    /// Whether an operation can begin.
    fn check(&self) -> Result<(), Error> {
        if !self.is_here() {
            return Err(Error::OtherProcess);
        }
        match self.is_closing.load(Ordering::SeqCst) {
            true => Err(Error::Closed),
            false => Ok(()),
        }
    }

    /// Begin an operation, whose packets have this completion key. Returns it if the port is closed or belongs to another
    /// process, or if neither the system nor a helper thread takes it.
    pub(crate) fn begin(
        &self,
        mut operation: FileOperation,
        key: usize,
    ) -> Result<OperationId, (FileOperation, Error)> {
        if let Err(error) = self.check() {
            return Err((operation, error));
        }
        // For the system here, for a helper thread there: this runs the code of the buffer's owner.
        let is_systems = self.opened().is_some() && operation.nature().is_systems;
        let request = is_systems.then(|| operation.request());
        let Some((token, mut slot)) = self.slots.insert_default() else {
            return Err((operation, Error::OutOfMemory));
        };
        slot.operation = Some(Operation::Owned(operation));
        slot.packet = Entry::new(key, 0, self.slots.key(token));
        let is_one_of_few = self.count.fetch_add(1, Ordering::Relaxed) < FEW;
        let Err((error, refused)) = self.start(token, slot, request, is_one_of_few) else {
            return Ok(OperationId(token));
        };
        self.count.fetch_sub(1, Ordering::Relaxed);
        match refused.operation {
            Some(Operation::Owned(operation)) => Err((operation, error)),
            _ => unreachable!("nobody has begun with it"),
        }
    }

    /// The same with the caller's memory, for which the packet is queued when it is complete.
    ///
    /// # Safety
    ///
    /// The file and the memory of the request, and the block at the packet's overlapped value, stay valid until that
    /// packet was queued, or [`close`](Self::close) has returned.
    #[cfg(unix)]
    pub(super) unsafe fn begin_callers(
        &self,
        request: Request,
        packet: Entry,
    ) -> Result<(), Error> {
        let _ = self.open();
        self.check()?;
        let (token, mut slot) = self.slots.insert_default().ok_or(Error::OutOfMemory)?;
        slot.operation = Some(Operation::Callers(request));
        slot.packet = packet;
        // Who cancels it by its block waits until it has begun.
        let mut callers = lock(&self.callers);
        let is_one_of_few = callers.len() < FEW;
        callers.insert(packet.overlapped, token);
        drop(callers);
        let request = request.nature.is_systems.then_some(Ok(request));
        let started = self.start(token, slot, request, is_one_of_few);
        started.map_err(|(error, _)| {
            drop(self.forget_block(packet.overlapped, token));
            self.on_ended();
            error
        })?;
        self.flush();
        Ok(())
    }

    /// The block at this address is not this operation's any more. It may be another one's already.
    #[cfg(unix)]
    fn forget_block(
        &self,
        block: usize,
        token: Token,
    ) -> std::sync::MutexGuard<'_, HashMap<usize, Token>> {
        let mut callers = lock(&self.callers);
        if callers.get(&block) == Some(&token) {
            callers.remove(&block);
        }
        callers
    }

    /// Pass the operation in a slot to the system, if that is to have it, or else to a helper thread. Removes it if neither
    /// takes it, or the port is closed meanwhile.
    #[allow(clippy::result_large_err, reason = "it is seldom refused")]
    fn start(
        &self,
        token: Token,
        mut slot: Occupied<'_, Slot>,
        request: Option<io::Result<Request>>,
        is_one_of_few: bool,
    ) -> Result<(), (Error, Slot)> {
        let key = self.slots.key(token);
        let start = || {
            self.check()?;
            let begun = match (request, self.opened()) {
                // SAFETY: the operation stays in its slot until the stage is another one, and that is set by its completion
                // only. Meanwhile nobody touches its memory: what borrows it for the system is the pointer in the request.
                (Some(Ok(request)), Some(kernel_io)) => unsafe {
                    match is_one_of_few && request.read_at_once() {
                        true => Some(Stage::done(Ok(request.memory.length))),
                        false => kernel_io.begin(self, key, &request),
                    }
                },
                (Some(Err(error)), _) => Some(Stage::done(Err(error))),
                _ => None,
            };
            begun.map_or_else(|| self.to_helpers(key, &slot), Ok)
        };
        match start() {
            Ok(stage) => slot.stage = stage,
            Err(error) => return Err((error, self.slots.vacate(token.index, slot))),
        }
        let is_over = slot.stage.is_over();
        drop(slot);
        if is_over {
            self.report(key);
        }
        Ok(())
    }

    /// Whether an operation is there, without its lock.
    pub(super) fn has(&self, key: usize) -> bool {
        self.slots.has(key)
    }

    /// Queue an operation for a helper thread.
    fn to_helpers(&self, key: usize, slot: &Slot) -> Result<Stage, Error> {
        let this = self.this.upgrade().ok_or(Error::Closed)?;
        let device = slot.operation.as_ref().and_then(|it| it.nature().device);
        self.helpers.perform(this, key, device)?;
        Ok(Stage::Queued)
    }

    /// Have the system begin with what was queued for it.
    #[inline]
    pub(crate) fn flush(&self) {
        if let Some(kernel_io) = self.opened() {
            if self.is_here() {
                kernel_io.flush();
            }
        }
    }

    /// Store the timer of an operation's deadline. Returns it if the operation is complete.
    pub(crate) fn note_deadline(&self, id: OperationId, timer: Token) -> Result<(), Token> {
        let slot = self.slots.get(id.0);
        slot.map(|mut slot| slot.timer = Some(timer)).ok_or(timer)
    }

    /// Cancel an operation. False if there is none with this id, or it is complete.
    pub(crate) fn cancel(&self, id: OperationId, reason: Reason) -> bool {
        if !self.is_here() {
            return false;
        }
        let Some(mut slot) = self.slots.get(id.0) else {
            return false;
        };
        let key = self.slots.key(id.0);
        match &mut slot.stage {
            Stage::Over(..) => return false,
            Stage::Queued => {
                slot.stage = Stage::cancelled(reason);
                drop(slot);
                self.report(key);
            }
            Stage::Running(stops @ None) => *stops = Some(reason),
            Stage::InKernel(stops @ None) => {
                *stops = Some(reason);
                if let Some(kernel_io) = self.opened() {
                    kernel_io.cancel(key);
                }
            }
            // The system knows, or the thread.
            Stage::Running(_) | Stage::InKernel(_) => {}
        }
        true
    }

    /// The system is about to get a queued operation. False if that was cancelled.
    #[cfg_attr(windows, allow(dead_code, reason = "there is no queue"))]
    pub(super) fn submits(&self, key: usize) -> bool {
        let slot = self.slots.get_by_key(key);
        let slot = slot.filter(|slot| matches!(slot.stage, Stage::Queued));
        slot.map(|mut slot| slot.stage = Stage::InKernel(None))
            .is_some()
    }

    /// The system has ended an operation. Returns its packet, if it is over.
    pub(super) fn on_completed(&self, key: usize, completed: Completed) -> Option<Entry> {
        let mut slot = self.slots.get_by_key(key)?;
        let Stage::InKernel(reason) = slot.stage else {
            return None;
        };
        slot.stage = match (completed, reason) {
            (Completed::Done(result), _) => Stage::done(result),
            (Completed::Cancelled, Some(reason)) => Stage::cancelled(reason),
            // The system has ended it by itself, or does not take it after all.
            (Completed::Cancelled, None) => self.to_helpers(key, &slot).unwrap_or_else(|_| {
                let error = io::Error::from_raw_os_error(system::OUT_OF_MEMORY);
                Stage::done(Err(error))
            }),
        };
        let is_over = slot.stage.is_over();
        drop(slot);
        is_over.then(|| self.packet(key))?
    }

    /// A packet of the system was dequeued. Returns that of its operation, if it is complete.
    pub(crate) fn on_kernel_packet(&self, entry: &Entry) -> Option<Entry> {
        let (key, completed) = self.opened()?.on_packet(entry)?;
        self.on_completed(key, completed)
    }

    /// Perform an operation, in a helper thread, unless it was cancelled. The thread says when it is about to wait for a device.
    pub(super) fn perform(&self, key: usize, waits: &dyn Fn()) {
        let begun = self.slots.get_by_key(key).and_then(|mut slot| {
            matches!(slot.stage, Stage::Queued).then(|| {
                slot.stage = Stage::Running(None);
                slot.operation.take()
            })?
        });
        let Some(mut operation) = begun else { return };
        // Why the thread does not go on.
        let mut stopped = None;
        let mut goes_on = || {
            let slot = self.slots.get_by_key(key);
            stopped = slot.and_then(|slot| match slot.stage {
                Stage::Running(reason) => reason,
                _ => None,
            });
            stopped.is_none()
        };
        // SAFETY: the memory is the operation's, which this thread has alone; or its caller's, who has promised it.
        let perform = |request: Request| unsafe { request.perform(&mut goes_on, waits) };
        let result = operation.request().and_then(perform);
        if let Some(mut slot) = self.slots.get_by_key(key) {
            slot.operation = Some(operation);
            slot.stage = stopped.map_or(Stage::done(result), Stage::cancelled);
        }
        self.report(key);
    }

    /// Queue the packet of an operation that is over.
    fn report(&self, key: usize) {
        self.queue(self.packet(key).as_slice());
    }

    /// Queue packets of operations. If the port is closed, nobody dequeues them.
    pub(super) fn queue(&self, packets: &[Entry]) {
        if !packets.is_empty() {
            #[cfg(unix)]
            self.port.complete(packets);
            #[cfg(windows)]
            let _ = self.port.post(packets, || {});
        }
    }

    /// The packet of an operation that is over. From here on the caller's memory may be its caller's again at any time.
    fn packet(&self, key: usize) -> Option<Entry> {
        let (token, slot) = self.slots.named(key)?;
        let packet = match &slot.operation {
            #[cfg(unix)]
            &Some(Operation::Callers(request)) => {
                let Slot { stage, packet, .. } = self.slots.vacate(token.index, slot);
                let Stage::Over(result, _) = stage else {
                    return None;
                };
                let _callers = self.forget_block(packet.overlapped, token);
                // SAFETY: the block is there until its packet was dequeued, and that is queued after this; and while it is
                // among those that closing waits for. With the lock, so that it can begin another operation at once.
                Some(unsafe { super::overlapped::complete(packet, &request, result) })
            }
            _ if slot.is_left_behind => {
                self.count.fetch_sub(1, Ordering::Relaxed);
                // Nobody waits for it any more.
                drop_all([self.slots.vacate(token.index, slot)]);
                None
            }
            _ => {
                let packet = slot.packet;
                drop(slot);
                Some(packet)
            }
        };
        self.on_ended();
        packet
    }

    /// An operation has ended: who closes may wait for it.
    fn on_ended(&self) {
        if self.is_closing.load(Ordering::SeqCst) {
            drop(lock(&self.patience));
            self.ended.notify_all();
        }
    }

    /// The packet of a finished operation was dequeued: [closing](Self::close) leaves it to be taken. False if it is gone.
    pub(crate) fn on_dequeued(&self, key: usize) -> bool {
        let slot = self.slots.get_by_key(key);
        slot.map(|mut slot| slot.is_dequeued = true).is_some()
    }

    /// This packet is queued again: if it is an operation's, closing takes that.
    pub(crate) fn on_requeued(&self, packet: &Entry) {
        if let Some(mut slot) = self.slots.get_by_key(packet.overlapped) {
            if slot.packet.completion_key == packet.completion_key {
                slot.is_dequeued = false;
            }
        }
    }
}

impl Operations {
    /// Take the completion of a finished operation, and the timer of its deadline.
    pub(crate) fn finish(&self, key: usize) -> Option<(FileCompletion, Option<Token>)> {
        let (token, slot) = self.slots.named(key)?;
        if !slot.stage.is_over() {
            return None;
        }
        self.completion(token, self.slots.vacate(token.index, slot))
    }

    /// The completion of a finished operation that was removed.
    fn completion(&self, token: Token, slot: Slot) -> Option<(FileCompletion, Option<Token>)> {
        self.count.fetch_sub(1, Ordering::Relaxed);
        match (slot.operation?, slot.stage) {
            (Operation::Owned(operation), Stage::Over(result, is_cancelled)) => {
                let completion = operation.completed(OperationId(token), result, is_cancelled);
                Some((completion, slot.timer))
            }
            _ => None,
        }
    }

    /// The number of operations with owned buffers that were begun and whose completions were not taken.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// The number of threads that perform operations.
    pub(crate) fn threads(&self) -> usize {
        self.helpers.threads()
    }

    /// Closing waits no longer than until then for operations with owned buffers.
    pub(crate) fn close_by(&self, end: Instant) {
        let mut patience = lock(&self.patience);
        *patience = Some(patience.map_or(end, |before| before.min(end)));
    }

    /// Begin nothing more, cancel what can be cancelled, and wait for operations with the caller's memory.
    pub(crate) fn close(&self) {
        if self.is_here() {
            self.shut();
            self.wait_while(None, || !lock(&self.callers).is_empty());
        }
    }

    /// The same, and wait for those with owned buffers, [as long as may be](Self::close_by). Returns the completions of
    /// all but those that were dequeued, and how many operations the system or a thread still performs.
    pub(crate) fn close_owned(&self) -> (Vec<FileCompletion>, usize) {
        if !self.is_here() {
            return (Vec::new(), 0);
        }
        self.shut();
        let until = *lock(&self.patience);
        let is_any_busy = || self.slots.iter().any(|slot| slot.stage.is_busy());
        self.wait_while(until, is_any_busy);
        let (mut completions, mut left_behind) = (Vec::new(), 0);
        for (token, mut slot) in self.slots.iter_named() {
            if slot.stage.is_busy() {
                slot.is_left_behind = true;
                left_behind += 1;
            } else if !slot.is_dequeued {
                let slot = self.slots.vacate(token.index, slot);
                completions.extend(self.completion(token, slot).map(|it| it.0));
            }
        }
        (completions, left_behind)
    }

    /// The operations that there are, one after the other, with no lock held.
    fn tokens(&self) -> impl Iterator<Item = Token> {
        self.slots.iter_named().map(|(token, _)| token)
    }

    fn shut(&self) {
        if self.is_closing.swap(true, Ordering::SeqCst) {
            return;
        }
        *lock(&self.is_refused) = true;
        for token in self.tokens() {
            self.cancel(OperationId(token), Reason::Asked);
        }
        self.helpers.close();
        if let Some(kernel_io) = self.opened() {
            kernel_io.close();
        }
    }

    /// Wait for operations to end, at most until then; and if all have ended, for the thread that owns the ring.
    fn wait_while(&self, until: Option<Instant>, is_any_busy: impl Fn() -> bool) {
        let mut patience = lock(&self.patience);
        while is_any_busy() {
            let left = until.map_or(TICK, |end| end.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return;
            }
            drop(self.ended.wait_timeout(patience, left.min(TICK)));
            self.take_completed();
            patience = lock(&self.patience);
        }
        drop(patience);
        if let Some(kernel_io) = self.opened() {
            if !self.slots.iter().any(|slot| slot.stage.is_busy()) {
                kernel_io.join();
            }
        }
    }

    /// Where the system's packets say what has completed: nobody dequeues them any more.
    fn take_completed(&self) {
        if !cfg!(windows) {
            return;
        }
        for token in self.tokens() {
            let key = self.slots.key(token);
            if let Some(completed) = self.opened().and_then(|it| it.completed(key)) {
                self.on_completed(key, completed);
            }
        }
    }
}

/// What the system still uses stays where it is. It uses nothing of a forked child, where another thread may have had a slot locked.
impl Drop for Operations {
    fn drop(&mut self) {
        let slots = self.is_here().then(|| self.slots.iter());
        for mut slot in slots.into_iter().flatten() {
            if matches!(slot.stage, Stage::InKernel(_)) {
                std::mem::forget(slot.operation.take());
            }
        }
    }
}

#[cfg(all(test, unix, not(interleavings)))]
mod tests {
    use super::*;
    use crate::CompletionPort;

    /// Another thread was about to begin an operation when the process was forked.
    #[test]
    fn o8_a_child_drops_a_port_whose_slot_is_locked() -> io::Result<()> {
        let port = CompletionPort::new()?;
        let operations = Operations::new(port.system().clone());
        let _locked = operations.slots.insert_default();
        // SAFETY: the child frees memory, and ends. What is locked is not used any more.
        let child = unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::alarm(20);
                drop(Arc::from_raw(Arc::as_ptr(&operations)));
                libc::_exit(0);
            }
            child
        };
        let mut status = 0;
        // SAFETY: there is room for the status.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        Ok(())
    }
}
