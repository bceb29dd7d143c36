//! Windows from build 20348: the kernel's own port, and its `ProcessSocketNotifications`.
//!
//! The kernel has the queue, the permits, the order of threads and the registrations. This module adds closing while
//! threads use the port, waits that end within a millisecond and never early, named errors, and waiting for the last notification of what leaves the port ([`leaving`]).
//!
//! *Closing.* As soon as a handle is closed, its value can be reused, and a thread that is about to wait would wait in
//! another port. So a thread that uses the port holds a lock for reading, also while it waits, and the handle is closed
//! under the lock for writing. A packet releases the first waiting thread, and each thread that finds the port closed posts
//! one for the next.
//!
//! *Owned connections.* `Held::into_inner`, which takes the socket back open, waits for the REMOVE notification, and posts
//! again what it dequeued before that.

#![allow(unsafe_code, reason = "the system's function, and handles")]

mod function;
mod leaving;

use std::cell::Cell;
use std::ptr::{null_mut, with_exposed_provenance_mut};
use std::slice::from_mut;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use windows_sys::Win32::Foundation::{
    ERROR_ABANDONED_WAIT_0, ERROR_SUCCESS, ERROR_TIMEOUT, HANDLE, WAIT_TIMEOUT,
};
use windows_sys::Win32::Networking::WinSock::{SOCK_NOTIFY_REGISTRATION, SOCKET};
use windows_sys::Win32::System::IO::OVERLAPPED_ENTRY;

use self::function::Function;
use self::leaving::Leaving;
use crate::os::RawSocket;
use crate::os::windows::codes;
use crate::os::windows::port::{KernelPort, entry, milliseconds};
use crate::support::deadline::Deadline;
use crate::{
    Entry, Error, EventFilter, Operation, Registration, RegistrationError, Snapshot, Trigger,
};

/// A completion port of the kernel, which also has the registrations.
pub(crate) struct Native {
    function: Function,
    concurrency: usize,
    /// A thread that uses the port holds this for reading, also while it waits. So no thread can use a handle that
    /// was closed and whose value is another's.
    open: RwLock<Option<KernelPort>>,
    closed: AtomicBool,
    waiting: AtomicUsize,
    leaving: Leaving,
}

/// The port in use.
struct InUse<'a>(RwLockReadGuard<'a, Option<KernelPort>>);

impl std::ops::Deref for InUse<'_> {
    type Target = KernelPort;

    fn deref(&self) -> &KernelPort {
        self.0.as_ref().expect("it is closed by nobody who uses it")
    }
}

impl Native {
    pub(crate) fn is_there() -> bool {
        function::find().is_some()
    }

    pub(crate) fn new(concurrency: usize) -> Result<Self, Error> {
        let function = function::find().ok_or(Error::BackendUnavailable)?;
        let places = i32::try_from(concurrency).unwrap_or(i32::MAX) as u32;
        let port = KernelPort::with_concurrency(places).map_err(|error| codes::error(&error))?;
        Ok(Native {
            function,
            concurrency,
            open: RwLock::new(Some(port)),
            closed: AtomicBool::new(false),
            waiting: AtomicUsize::new(0),
            leaving: Leaving::default(),
        })
    }

    fn enter(&self) -> Result<InUse<'_>, Error> {
        if self.is_closed() {
            return Err(Error::Closed);
        }
        // Only closing takes it otherwise. A thread that looks at others is in the port already, and must not wait for that.
        match self.open.try_read() {
            Ok(open) if open.is_some() => Ok(InUse(open)),
            _ => Err(Error::Closed),
        }
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    pub(crate) fn process(
        &self,
        registrations: &mut [Registration<'_>],
        entries: &mut [Entry],
        deadline: Deadline,
    ) -> Result<usize, Error> {
        let port = self.enter()?;
        Memory::lend(|memory| {
            self.check(registrations, memory);
            match entries.is_empty() {
                true => self.register(&port, registrations, memory).map(|()| 0),
                false => self.register_and_wait(&port, registrations, entries, deadline, memory),
            }
        })
    }

    /// Refuse entries that are invalid in themselves, and list the others for the kernel.
    fn check(&self, registrations: &mut [Registration<'_>], memory: &mut Memory) {
        for registration in registrations {
            let is_enable = registration.operation == Operation::ENABLE;
            registration.result = if registration.extra.is_extension() {
                Err(RegistrationError::InvalidOperation)
            } else if is_enable && registration.trigger.contains(Trigger::INITIAL) {
                Err(RegistrationError::InvalidTrigger)
            } else {
                registration.check(EventFilter::ALL)
            };
            if !is_for_kernel(registration) {
                continue;
            }
            let key = registration.completion_key;
            memory.batch.push(SOCK_NOTIFY_REGISTRATION {
                socket: registration.raw_socket() as SOCKET,
                completionKey: with_exposed_provenance_mut(key),
                eventFilter: registration.event_filter.bits(),
                operation: registration.operation.bits(),
                triggerFlags: registration.trigger.bits(),
                registrationResult: 0,
            });
        }
    }

    /// Apply the batch, if there is one, and take nothing.
    fn register(
        &self,
        port: &KernelPort,
        registrations: &mut [Registration<'_>],
        memory: &mut Memory,
    ) -> Result<(), Error> {
        if memory.batch.is_empty() {
            return Ok(());
        }
        let status = self.call(port, memory, 0, Some(Duration::ZERO));
        self.apply_outcomes(registrations, memory, status);
        match status {
            ERROR_SUCCESS => Ok(()),
            other => Err(codes::call_error(other)),
        }
    }

    /// Apply the batch, and take packets, at least one.
    fn register_and_wait(
        &self,
        port: &KernelPort,
        registrations: &mut [Registration<'_>],
        entries: &mut [Entry],
        mut deadline: Deadline,
        memory: &mut Memory,
    ) -> Result<usize, Error> {
        let mut left = deadline.remaining();
        let waits = left != Some(Duration::ZERO);
        loop {
            self.waiting.fetch_add(usize::from(waits), Ordering::SeqCst);
            let status = self.call(port, memory, entries.len(), left);
            self.waiting.fetch_sub(usize::from(waits), Ordering::SeqCst);
            self.apply_outcomes(registrations, memory, status);
            let mut may_be_more = false;
            match status {
                ERROR_SUCCESS => {
                    let count = self.deliver(entries, memory);
                    if self.is_closed() {
                        Self::release_waiter(port);
                    }
                    if count > 0 {
                        return Ok(count);
                    }
                    if self.is_closed() {
                        return Err(Error::Closed);
                    }
                    // Behind the dropped ones.
                    may_be_more = true;
                }
                WAIT_TIMEOUT => {}
                other => return Err(codes::call_error(other)),
            }
            // The kernel counts in ticks, and may be early.
            left = deadline.remaining();
            if left == Some(Duration::ZERO) && !may_be_more {
                return Err(Error::TimedOut);
            }
        }
    }

    /// One call of the function, with the batch, and memory for so many packets.
    fn call(
        &self,
        port: &KernelPort,
        memory: &mut Memory,
        room: usize,
        timeout: Option<Duration>,
    ) -> u32 {
        let Memory { batch, packets, .. } = memory;
        packets.clear();
        packets.reserve(room);
        let mut count = 0;
        let (entries, received) = match room {
            0 => (null_mut(), null_mut()),
            _ => (packets.as_mut_ptr(), &raw mut count),
        };
        let registrations = match batch.is_empty() {
            true => null_mut(),
            false => batch.as_mut_ptr(),
        };
        // SAFETY: the arrays have these lengths, and live for the call. The kernel has written as many packets as it
        // says.
        unsafe {
            let status = (self.function)(
                port.handle(),
                batch.len() as u32,
                registrations,
                milliseconds(timeout),
                room as u32,
                entries,
                received,
            );
            if status == ERROR_SUCCESS {
                packets.set_len(count as usize);
            }
            // There are two codes for a timeout.
            match status {
                ERROR_TIMEOUT => WAIT_TIMEOUT,
                status => status,
            }
        }
    }

    /// Store the results of the batch.
    fn apply_outcomes(
        &self,
        registrations: &mut [Registration<'_>],
        memory: &mut Memory,
        status: u32,
    ) {
        let applied = [ERROR_SUCCESS, WAIT_TIMEOUT, ERROR_ABANDONED_WAIT_0].contains(&status);
        let listed = registrations.iter_mut().filter(|it| is_for_kernel(it));
        for (registration, entry) in listed.zip(&memory.batch) {
            if applied {
                registration.result = match entry.registrationResult {
                    ERROR_SUCCESS => Ok(()),
                    code => Err(codes::refusal(code)),
                };
            }
        }
        memory.batch.clear();
    }

    /// Deliver the packets that are still of interest.
    fn deliver(&self, entries: &mut [Entry], memory: &Memory) -> usize {
        let packets = memory.packets.iter().filter(|packet| !is_own(packet));
        let packets = packets.map(|packet| entry(packet).with_origin(None));
        let packets = packets.filter(|packet| !self.leaving.on_packet(packet));
        let places = entries.iter_mut().zip(packets);
        places.map(|(place, packet)| *place = packet).count()
    }

    pub(crate) fn post(
        &self,
        entries: &[Entry],
        before_waking: impl FnOnce(),
    ) -> Result<(), Error> {
        let port = self.enter()?;
        for entry in entries {
            port.post(entry.transferred, entry.completion_key, entry.overlapped)
                .map_err(|error| codes::error(&error))?;
        }
        before_waking();
        Ok(())
    }

    /// Make what [`post_after`](Self::post_after) needs for packets with this key: then it cannot fail for want of
    /// resources.
    pub(crate) fn prepare_alarm(&self, key: usize) -> Result<(), Error> {
        self.enter()?.alarm(key).map(drop)
    }

    /// Queue an empty packet with this entry's key, the same every time, after this time. The latest call replaces
    /// earlier ones.
    pub(crate) fn post_after(&self, delay: Duration, entry: Entry) -> Result<(), Error> {
        let port = self.enter()?;
        port.alarm(entry.completion_key)?.set(delay);
        Ok(())
    }

    pub(crate) fn associate(&self, handle: HANDLE, key: usize) -> Result<(), Error> {
        self.enter()?
            .associate(handle, key)
            .map_err(|error| codes::error(&error))
    }

    /// Register a socket under this key, for errors only.
    pub(crate) fn adopt(
        &self,
        socket: RawSocket,
        key: usize,
        _is_descriptor: bool,
    ) -> Result<Result<(), RegistrationError>, Error> {
        let mut entry = Registration::arm(socket, key, EventFilter::NONE);
        self.process(from_mut(&mut entry), &mut [], Deadline::from(None))?;
        Ok(entry.result)
    }

    /// End the registration of a connection that is not armed, without a notification. If it is closed next, no call is
    /// needed.
    pub(crate) fn release(&self, socket: RawSocket, key: usize, stays_open: bool) {
        if !stays_open {
            return;
        }
        let Ok(port) = self.enter() else { return };
        self.leaving.begin(key);
        let mut remove = Registration::arm(socket, key, EventFilter::NONE);
        remove.operation = Operation::REMOVE;
        let removed = self.process(from_mut(&mut remove), &mut [], Deadline::from(None));
        match removed.is_ok() && remove.result.is_ok() {
            true => Memory::lend(|memory| self.await_removal(&port, key, memory)),
            false => self.leaving.end(key),
        }
    }

    /// Wait until this thread or another has dequeued REMOVE. Only then can the socket be registered
    /// again.
    fn await_removal(&self, port: &KernelPort, key: usize, memory: &mut Memory) {
        const ROOM: usize = 64;
        let mut others = Vec::new();
        let mut pause = Duration::ZERO;
        while !self.is_closed() && self.leaving.has(key) {
            self.call(port, memory, ROOM, Some(pause));
            pause = match memory.packets.is_empty() {
                true => Duration::from_millis(1),
                false => Duration::ZERO,
            };
            let packets = memory.packets.drain(..).map(|packet| entry(&packet));
            others.extend(packets.filter(|packet| self.leaving.is_for_others(key, packet)));
        }
        for packet in others {
            let (bytes, key) = (packet.transferred, packet.completion_key);
            let _ = port.post(bytes, key, packet.overlapped);
        }
    }

    /// Close the port when no thread uses it any more. Waiting threads are released; each one releases the next.
    pub(crate) fn close(&self) {
        if self.closed.swap(true, Ordering::SeqCst) {
            return;
        }
        if let Some(port) = &*self.open.read().unwrap_or_else(PoisonError::into_inner) {
            Self::release_waiter(port);
        }
        *self.open.write().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Release a thread that waits in the port, which is closed.
    fn release_waiter(port: &KernelPort) {
        port.insist(0, own());
    }

    pub(crate) fn concurrency(&self) -> usize {
        self.concurrency
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        Snapshot {
            queued: self.enter().map_or(0, |port| port.depth()),
            waiting: self.waiting.load(Ordering::SeqCst),
            ..Snapshot::NOTHING
        }
    }
}

/// Packets that only release a thread, because the port is closed, point to this. No other packet does.
static RELEASE: u8 = 0;

fn own() -> usize {
    (&raw const RELEASE).addr()
}

/// Whether an entry that was [checked](Native::check) is one of the batch.
fn is_for_kernel(registration: &Registration<'_>) -> bool {
    registration.result.is_ok() && registration.operation != Operation::NONE
}

fn is_own(packet: &OVERLAPPED_ENTRY) -> bool {
    packet.lpOverlapped.addr() == own()
}

/// A thread's memory for calls, kept from one to the next.
#[derive(Default)]
struct Memory {
    batch: Vec<SOCK_NOTIFY_REGISTRATION>,
    packets: Vec<OVERLAPPED_ENTRY>,
}

thread_local! {
    static MEMORY: Cell<Memory> = Cell::default();
}

impl Memory {
    /// Work with the memory of this thread.
    fn lend<R>(work: impl FnOnce(&mut Self) -> R) -> R {
        let mut memory = MEMORY.try_with(Cell::take).unwrap_or_default();
        let done = work(&mut memory);
        let _ = MEMORY.try_with(|place| place.set(memory));
        done
    }
}
