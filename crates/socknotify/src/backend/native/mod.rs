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
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{OnceLock, PoisonError, RwLock, RwLockReadGuard, TryLockError};
use std::time::Duration;

use windows_sys::Win32::Foundation::{
    ERROR_ABANDONED_WAIT_0, ERROR_SUCCESS, ERROR_TIMEOUT, HANDLE, WAIT_TIMEOUT,
};
use windows_sys::Win32::Networking::WinSock::{SOCK_NOTIFY_REGISTRATION, SOCKET};
use windows_sys::Win32::System::IO::OVERLAPPED_ENTRY;

use self::function::Function;
use self::leaving::Leaving;
use crate::os::RawSocket;
use crate::os::windows::alarm::Alarm;
use crate::os::windows::codes;
use crate::os::windows::port::{KernelPort, milliseconds};
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
    open: RwLock<Option<Open>>,
    closed: AtomicBool,
    waiting: AtomicUsize,
    leaving: Leaving,
}

struct Open {
    // They are dropped in this order: the timer posts to the port.
    alarm: OnceLock<Alarm>,
    port: KernelPort,
}

impl Open {
    fn alarm(&self, key: usize) -> Result<&Alarm, Error> {
        Alarm::of(&self.alarm, &self.port, key)
    }
}

/// The port in use.
struct InUse<'a>(RwLockReadGuard<'a, Option<Open>>);

impl std::ops::Deref for InUse<'_> {
    type Target = Open;

    fn deref(&self) -> &Open {
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
            open: RwLock::new(Some(Open {
                alarm: OnceLock::new(),
                port,
            })),
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
        let open = match self.open.try_read() {
            Ok(open) => open,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Err(Error::Closed),
        };
        match &*open {
            Some(_) => Ok(InUse(open)),
            None => Err(Error::Closed),
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
        let open = self.enter()?;
        Memory::lend(|memory| {
            self.check(registrations, memory);
            match entries.is_empty() {
                true => self.register(&open, registrations, memory).map(|()| 0),
                false => self.register_and_wait(&open, registrations, entries, deadline, memory),
            }
        })
    }

    /// Refuse entries that are invalid in themselves, and list the others for the kernel.
    fn check(&self, registrations: &mut [Registration<'_>], memory: &mut Memory) {
        for (index, registration) in registrations.iter_mut().enumerate() {
            registration.result = match registration.extra.is_extension() {
                true => Err(RegistrationError::InvalidOperation),
                false => registration.check(EventFilter::ALL),
            };
            let is_enable = registration.operation == Operation::ENABLE;
            if is_enable && registration.trigger.contains(Trigger::INITIAL) {
                registration.result = Err(RegistrationError::InvalidTrigger);
            }
            if registration.result.is_err() || registration.operation == Operation::NONE {
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
            memory.places.push(index);
        }
    }

    /// Apply the batch, if there is one, and take nothing.
    fn register(
        &self,
        open: &Open,
        registrations: &mut [Registration<'_>],
        memory: &mut Memory,
    ) -> Result<(), Error> {
        if memory.batch.is_empty() {
            return Ok(());
        }
        let status = self.call(open, memory, 0, Some(Duration::ZERO));
        self.apply_outcomes(registrations, memory, status);
        done(status)
    }

    /// Apply the batch, and take packets, at least one.
    fn register_and_wait(
        &self,
        open: &Open,
        registrations: &mut [Registration<'_>],
        entries: &mut [Entry],
        mut deadline: Deadline,
        memory: &mut Memory,
    ) -> Result<usize, Error> {
        let mut left = deadline.remaining();
        let waits = left != Some(Duration::ZERO);
        loop {
            self.waiting.fetch_add(usize::from(waits), Ordering::SeqCst);
            let status = self.call(open, memory, entries.len(), left);
            self.waiting.fetch_sub(usize::from(waits), Ordering::SeqCst);
            self.apply_outcomes(registrations, memory, status);
            let mut may_be_more = false;
            match status {
                ERROR_SUCCESS => {
                    let count = self.deliver(entries, memory);
                    if self.is_closed() {
                        Self::release_waiter(open);
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
        open: &Open,
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
                open.port.handle(),
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
        for (&index, entry) in memory.places.iter().zip(&memory.batch) {
            let registration = &mut registrations[index];
            if applied {
                registration.result = result(entry.registrationResult);
            }
        }
        memory.places.clear();
        memory.batch.clear();
    }

    /// Deliver the packets that are still of interest.
    fn deliver(&self, entries: &mut [Entry], memory: &Memory) -> usize {
        let packets = memory.packets.iter().filter(|packet| !is_own(packet));
        let packets = packets.map(|packet| entry(packet).unknown());
        let packets = packets.filter(|packet| !self.leaving.on_packet(packet));
        let mut count = 0;
        for (place, packet) in entries.iter_mut().zip(packets) {
            *place = packet;
            count += 1;
        }
        count
    }

    pub(crate) fn post(
        &self,
        entries: &[Entry],
        before_waking: impl FnOnce(),
    ) -> Result<(), Error> {
        let open = self.enter()?;
        for entry in entries {
            open.port
                .post(entry.transferred, entry.completion_key, entry.overlapped)
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
        let open = self.enter()?;
        open.alarm(entry.completion_key)?.set(delay);
        Ok(())
    }

    pub(crate) fn associate(&self, handle: HANDLE, key: usize) -> Result<(), Error> {
        self.enter()?
            .port
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
        let open = self.enter()?;
        Memory::lend(|memory| self.apply_one(&open, memory, arming(socket, key)))
    }

    /// Apply one entry, and take nothing.
    fn apply_one(
        &self,
        open: &Open,
        memory: &mut Memory,
        entry: SOCK_NOTIFY_REGISTRATION,
    ) -> Result<Result<(), RegistrationError>, Error> {
        memory.batch.push(entry);
        let status = self.call(open, memory, 0, Some(Duration::ZERO));
        let outcome = result(memory.batch[0].registrationResult);
        memory.batch.clear();
        done(status).map(|()| outcome)
    }

    /// End the registration of a connection that is not armed, without a notification. If it is closed next, no call is
    /// needed.
    pub(crate) fn release(&self, socket: RawSocket, key: usize, stays_open: bool) {
        if !stays_open {
            return;
        }
        let Ok(open) = self.enter() else { return };
        self.leaving.begin(key);
        let remove = SOCK_NOTIFY_REGISTRATION {
            operation: Operation::REMOVE.bits(),
            ..arming(socket, key)
        };
        Memory::lend(|memory| match self.apply_one(&open, memory, remove) {
            Ok(Ok(())) => self.await_removal(&open, key, memory),
            _ => self.leaving.end(key),
        });
    }

    /// Wait until this thread or another has dequeued REMOVE. Only then can the socket be registered
    /// again.
    fn await_removal(&self, open: &Open, key: usize, memory: &mut Memory) {
        const ROOM: usize = 64;
        let mut others = Vec::new();
        let mut pause = Duration::ZERO;
        while !self.is_closed() && self.leaving.has(key) {
            self.call(open, memory, ROOM, Some(pause));
            pause = match memory.packets.is_empty() {
                true => Duration::from_millis(1),
                false => Duration::ZERO,
            };
            let packets = memory.packets.drain(..).map(|packet| entry(&packet));
            others.extend(packets.filter(|packet| self.leaving.is_for_others(key, packet)));
        }
        for packet in others {
            let (bytes, key) = (packet.transferred, packet.completion_key);
            let _ = open.port.post(bytes, key, packet.overlapped);
        }
    }

    /// Close the port when no thread uses it any more. Waiting threads are released; each one releases the next.
    pub(crate) fn close(&self) {
        if self.closed.swap(true, Ordering::SeqCst) {
            return;
        }
        if let Some(open) = &*self.open.read().unwrap_or_else(PoisonError::into_inner) {
            Self::release_waiter(open);
        }
        *self.open.write().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Release a thread that waits in the port, which is closed.
    fn release_waiter(open: &Open) {
        open.port.insist(0, own());
    }

    pub(crate) fn concurrency(&self) -> usize {
        self.concurrency
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        Snapshot {
            queued: self.enter().map_or(0, |open| open.port.depth()),
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

fn entry(packet: &OVERLAPPED_ENTRY) -> Entry {
    let overlapped = packet.lpOverlapped.expose_provenance();
    let bytes = packet.dwNumberOfBytesTransferred;
    Entry::new(packet.lpCompletionKey, bytes, overlapped)
}

fn is_own(packet: &OVERLAPPED_ENTRY) -> bool {
    packet.lpOverlapped.addr() == own()
}

/// A thread's memory for calls, kept from one to the next.
#[derive(Default)]
struct Memory {
    batch: Vec<SOCK_NOTIFY_REGISTRATION>,
    /// Which entries those are.
    places: Vec<usize>,
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

/// ENABLE for a connection, for errors only.
fn arming(socket: RawSocket, key: usize) -> SOCK_NOTIFY_REGISTRATION {
    SOCK_NOTIFY_REGISTRATION {
        socket: socket as SOCKET,
        completionKey: with_exposed_provenance_mut(key),
        eventFilter: EventFilter::NONE.bits(),
        operation: Operation::ENABLE.bits(),
        triggerFlags: Trigger::ONESHOT.union(Trigger::LEVEL).bits(),
        registrationResult: 0,
    }
}

/// What a call that takes nothing comes to.
fn done(status: u32) -> Result<(), Error> {
    match status {
        ERROR_SUCCESS => Ok(()),
        other => Err(codes::call_error(other)),
    }
}

fn result(code: u32) -> Result<(), RegistrationError> {
    match code {
        ERROR_SUCCESS => Ok(()),
        code => Err(codes::refusal(code)),
    }
}
