//! `socknotify_owned.h`: a port that owns its connections, over [`socknotify::owned`].
//!
//! A connection has a handle that nothing else ever gets. While the program has the connection, it is in its entry; to arm
//! or end it takes it out. Threads that do not have it use its sender, and never its descriptor.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::{c_int, c_void};
use std::io::{self, ErrorKind, Write};
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use std::{mem, slice};

use socknotify::owned::{Event, Held, Outbox, OutboxError, Port, SendError, Sender, Source};
use socknotify::owned::{TimerId, Worker};
use socknotify::{Error, EventFilter, Events, RegistrationError, interface};

use crate::call::entry_point;
use crate::code::{self, Code};
use crate::handles::{Handle, Table};
use crate::process::Process;
use crate::thread::Thread;
use crate::{make, timeout};

const READY: u32 = 1;
const TIMED_OUT: u32 = 2;
const CANCELLED: u32 = 3;
const DRAINING: u32 = 4;
const CLOSED: u32 = 5;
const MESSAGE: u32 = 6;

/// `sn_owned_event`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct OwnedEvent {
    /// Of a connection or a message.
    pub handle: u64,
    /// The program's pointer.
    pub user: usize,
    /// `SN_OWNED_*`
    pub kind: u32,
    /// `SOCK_NOTIFY_EVENT_*`
    pub events: u32,
}

impl OwnedEvent {
    fn new(kind: u32, handle: u64, user: usize, events: u32) -> Self {
        OwnedEvent {
            handle,
            user,
            kind,
            events,
        }
    }
}

/// Every owning port of this process.
static OWNERS: Table<Arc<Owner>> = Table::new();

pub(crate) type OwnedWorker = Worker<Connection, OwnedEvent>;

pub(crate) struct Owner {
    port: Port<Connection, OwnedEvent>,
    /// Of bytes that wait to be sent, for each connection.
    limit: usize,
    entries: Mutex<BTreeMap<u64, Entry>>,
    timers: Mutex<BTreeMap<u64, TimerId>>,
    /// What is told once the port is closed.
    left: Mutex<VecDeque<OwnedEvent>>,
    process: Process,
}

/// What is known of a connection.
struct Entry {
    sender: Sender,
    user: usize,
    is_cancelled: bool,
    /// The connection, while the program has it.
    held: Option<Held<Connection>>,
    /// Closes it.
    _socket: OwnedFd,
}

pub(crate) struct Connection {
    owner: Weak<Owner>,
    handle: u64,
    descriptor: RawFd,
    outbox: Outbox,
    /// What the program waits for, and until when.
    filter: EventFilter,
    until: Option<Instant>,
}

impl Source for Connection {
    fn socket(&self) -> BorrowedFd<'_> {
        // SAFETY: it is open until this is dropped.
        unsafe { BorrowedFd::borrow_raw(self.descriptor) }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if let Some(owner) = self.owner.upgrade() {
            // None if the port has not adopted it. To drop it closes the descriptor.
            let entry = lock(&owner.entries).remove(&self.handle);
            if let Some(user) = entry.map(|entry| entry.user) {
                owner.tell(OwnedEvent::new(CLOSED, self.handle, user, 0));
            }
        }
    }
}

const HAS_KQUEUE: bool = cfg!(not(any(target_os = "linux", target_os = "android")));

/// Sends without a signal, and without waiting.
struct Stream(RawFd);

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        const FLAGS: c_int = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
        let first = bytes.as_ptr().cast();
        // SAFETY: the bytes are there.
        let sent = unsafe { libc::send(self.0, first, bytes.len(), FLAGS) };
        usize::try_from(sent).map_err(|_| match io::Error::last_os_error() {
            // So the BSDs and macOS say that it still connects. There is room when it is connected.
            error if HAS_KQUEUE && error.kind() == ErrorKind::NotConnected => {
                ErrorKind::WouldBlock.into()
            }
            error => error,
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Owner {
    fn tell(&self, event: OwnedEvent) {
        if let Err(SendError(event)) = self.port.send(event) {
            lock(&self.left).push_back(event);
        }
    }

    fn with<R>(&self, handle: u64, call: impl FnOnce(&mut Entry) -> Option<R>) -> Result<R, Code> {
        let mut entries = lock(&self.entries);
        let found = entries.get_mut(&handle).and_then(call);
        found.ok_or(code::NOT_FOUND)
    }

    /// Arm a connection for what it waits for, and to send what is queued.
    fn arm(&self, mut held: Held<Connection>) {
        let it = &mut *held;
        // If it fails, something is left, and the next event tells.
        let _ = it.outbox.send(Stream(it.descriptor));
        let mut filter = it.filter;
        if !it.outbox.is_empty() {
            filter |= EventFilter::OUT;
        }
        let interest = interface::interest(filter);
        let interest = it.until.map_or(interest, |until| interest.until(until));
        self.port.arm(held, interest);
    }

    fn next(&self, worker: &mut OwnedWorker, time: Option<Duration>) -> Result<OwnedEvent, Code> {
        let end = time.and_then(|time| Instant::now().checked_add(time));
        loop {
            let time = end.map(|end| end.saturating_duration_since(Instant::now()));
            match worker.process(time) {
                Ok(0) => return Err(code::TIMEOUT),
                Ok(_) => {}
                Err(Error::Closed) => break,
                Err(error) => return Err(error.code()),
            }
            if let Some(event) = worker.take().and_then(|event| self.report(event)) {
                return Ok(event);
            }
        }
        // Who has posted a message has its handle before its event comes; and nobody finds nothing left before all is there.
        let mut timers = lock(&self.timers);
        // What was armed is dropped, and so told.
        let messages = self.port.close().take_messages();
        timers.clear();
        let mut left = lock(&self.left);
        left.extend(messages);
        left.pop_front().ok_or(code::ABANDONED_WAIT)
    }

    /// What the program is told. Nothing if there was only something to send.
    fn report(&self, event: Event<Connection, OwnedEvent>) -> Option<OwnedEvent> {
        let (mut held, mut kind, mut events) = match event {
            Event::Ready(held, events) => (held, READY, events),
            Event::TimedOut(held) => (held, TIMED_OUT, Events::empty()),
            Event::Cancelled(held) => (held, CANCELLED, Events::empty()),
            Event::Draining(held) => (held, DRAINING, Events::empty()),
            Event::Message(event) => {
                lock(&self.timers).remove(&event.handle);
                return Some(event);
            }
            // What the system refuses to watch is dropped, and so closed.
            _ => return None,
        };
        let it = &mut *held;
        let sent = it.outbox.send(Stream(it.descriptor));
        if !it.outbox.is_empty() || !it.filter.contains(EventFilter::OUT) {
            events.remove(Events::OUT);
        }
        if sent.is_err() {
            events |= Events::ERR;
        }
        let mut entries = lock(&self.entries);
        let entry = entries.get_mut(&it.handle)?;
        // Else it was woken to send.
        if kind == CANCELLED && !mem::take(&mut entry.is_cancelled) {
            kind = READY;
        }
        if kind == READY && events.is_empty() {
            drop(entries);
            self.arm(held);
            return None;
        }
        let event = OwnedEvent::new(kind, it.handle, entry.user, events.bits());
        entry.held = Some(held);
        Some(event)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Of a connection or a message of whatever port.
fn next_handle() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A port's number is the complement of its handle's: so neither kind of port is taken for the other.
fn handle(port: *mut c_void) -> Result<Handle, Code> {
    Handle::from_number(!port.addr()).ok_or(code::INVALID_HANDLE)
}

/// Why a port does not adopt: because of the socket, because of the port, or for a reason of the system's own.
fn refusal(reason: io::Error) -> Code {
    let reason = reason.downcast().map(RegistrationError::code);
    reason.unwrap_or_else(|reason| reason.downcast().map_or(code::GEN_FAILURE, Error::code))
}

/// Run the body of a function, with a port of this process.
fn on(port: *mut c_void, body: impl FnOnce(&Arc<Owner>) -> Result<(), Code>) -> u32 {
    entry_point(|| {
        let owner = OWNERS.pin(handle(port)?);
        let owner = owner.filter(|owner| owner.process.is_this());
        let owner = owner.ok_or(code::INVALID_HANDLE);
        body(&*owner.inspect_err(|_| Thread::forget_worker(port))?)
    })
}

/// A place for a result.
fn out<T>(place: *mut T) -> Result<NonNull<T>, Code> {
    NonNull::new(place).ok_or(code::INVALID_PARAMETER)
}

/// Make a port.
///
/// # Safety
///
/// `created` is null or can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sn_owned_create(
    concurrency: u32,
    queue_limit: usize,
    created: *mut *mut c_void,
) -> u32 {
    entry_point(|| {
        let created = out(created)?;
        let owner = Owner {
            port: Port::from(make(concurrency, None)?),
            limit: queue_limit,
            entries: Mutex::default(),
            timers: Mutex::default(),
            left: Mutex::default(),
            process: Process::this(),
        };
        let handle = OWNERS.insert(Arc::new(owner));
        let number = !handle.ok_or(code::NO_SYSTEM_RESOURCES)?.number();
        // SAFETY: it is not null, and the caller vouches for the rest.
        unsafe { created.write_unaligned(ptr::without_provenance_mut(number)) };
        Ok(())
    })
}

/// Close a port, and all that it has.
#[unsafe(no_mangle)]
pub extern "C" fn sn_owned_close(port: *mut c_void) -> u32 {
    on(port, |owner| {
        OWNERS.remove(handle(port)?).ok_or(code::INVALID_HANDLE)?;
        owner.port.close();
        Thread::forget_worker(port);
        // Dropped without the lock, which connections take then.
        let mut entries = lock(&owner.entries);
        let held: Vec<_> = entries.values_mut().map(|it| it.held.take()).collect();
        drop(entries);
        drop(held);
        Ok(())
    })
}

/// Report each connection as draining. Close the port when all are closed, or after this time.
#[unsafe(no_mangle)]
pub extern "C" fn sn_owned_drain(port: *mut c_void, within_ms: u32) -> u32 {
    on(port, |owner| {
        owner.port.drain(Duration::from_millis(within_ms.into()));
        Ok(())
    })
}

/// Give a connection to the port. The program has it.
///
/// # Safety
///
/// The descriptor is the caller's to give, and `handle` is null or can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sn_owned_adopt(
    port: *mut c_void,
    descriptor: c_int,
    user: *mut c_void,
    handle: *mut u64,
) -> u32 {
    on(port, |owner| {
        let place = out(handle)?;
        u32::try_from(descriptor).map_err(|_| code::NOT_A_SOCKET)?;
        let handle = next_handle();
        let connection = Connection {
            owner: Arc::downgrade(owner),
            handle,
            descriptor,
            outbox: Outbox::new(owner.limit),
            filter: EventFilter::NONE,
            until: None,
        };
        let held = owner.port.adopt(connection);
        let held = held.map_err(|refused| refusal(refused.into()))?;
        let entry = Entry {
            sender: held.outbox.sender(&held),
            user: user.expose_provenance(),
            is_cancelled: false,
            held: Some(held),
            // SAFETY: it is the caller's, and open, for the port has adopted it.
            _socket: unsafe { OwnedFd::from_raw_fd(descriptor) },
        };
        // Before others find it: who closes the port has its last event come.
        // SAFETY: it is not null, and the caller vouches for the rest.
        unsafe { place.write_unaligned(handle) };
        lock(&owner.entries).insert(handle, entry);
        Ok(())
    })
}

/// Take the next event.
///
/// # Safety
///
/// `event` is null or can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sn_owned_next(
    port: *mut c_void,
    event: *mut OwnedEvent,
    timeout_ms: u32,
) -> u32 {
    on(port, |owner| {
        let place = out(event)?;
        let event = Thread::with(|thread| {
            thread.worker.take_if(|(of, _)| *of != port);
            let make = || (port, owner.port.worker(1));
            let (_, worker) = thread.worker.get_or_insert_with(make);
            let next = owner.next(worker, timeout(timeout_ms));
            if next.is_err_and(|code| code == code::ABANDONED_WAIT) {
                // As if it was closed, which it may be next.
                thread.worker = None;
            }
            next
        })?;
        // SAFETY: it is not null, and the caller vouches for the rest.
        unsafe { place.write_unaligned(event) };
        Ok(())
    })
}

/// Arm a connection that the program has.
#[unsafe(no_mangle)]
pub extern "C" fn sn_owned_arm(port: *mut c_void, handle: u64, events: u32, time_ms: u32) -> u32 {
    on(port, |owner| {
        // SOCK_NOTIFY_REGISTER_EVENTS_ALL: none but IN, OUT and HANGUP.
        let filter = u16::try_from(events).ok().filter(|&bits| bits <= 0x07);
        let filter = EventFilter::from_bits_retain(filter.ok_or(code::INVALID_PARAMETER)?);
        let mut held = owner.with(handle, |entry| entry.held.take())?;
        held.filter = filter;
        held.until = timeout(time_ms).and_then(|time| Instant::now().checked_add(time));
        owner.arm(held);
        Ok(())
    })
}

/// Close a connection that the program has.
#[unsafe(no_mangle)]
pub extern "C" fn sn_owned_end(port: *mut c_void, handle: u64) -> u32 {
    on(port, |owner| {
        owner.with(handle, |entry| entry.held.take()).map(drop)
    })
}

/// Interrupt the wait of a connection, or cancel a message.
#[unsafe(no_mangle)]
pub extern "C" fn sn_owned_cancel(port: *mut c_void, handle: u64) -> u32 {
    on(port, |owner| {
        let timer = lock(&owner.timers).remove(&handle);
        let is_done = match timer {
            Some(timer) => owner.port.cancel_timer(timer),
            None => owner.port.cancel(owner.with(handle, |entry| {
                entry.is_cancelled = true;
                Some(entry.sender.id())
            })?),
        };
        is_done.then_some(()).ok_or(code::NOT_FOUND)
    })
}

/// Queue bytes for a connection to send.
///
/// # Safety
///
/// So many bytes can be read, and do not change meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sn_owned_send(
    port: *mut c_void,
    handle: u64,
    bytes: *const c_void,
    length: usize,
) -> u32 {
    on(port, |owner| {
        let first = out(bytes.cast_mut())?.as_ptr().cast();
        isize::try_from(length).map_err(|_| code::INVALID_PARAMETER)?;
        // SAFETY: it is not null, memory can have this length, and the caller vouches for the rest.
        let bytes = unsafe { slice::from_raw_parts(first, length) };
        let sender = owner.with(handle, |entry| Some(entry.sender.clone()))?;
        sender.send(bytes).map_err(|error| match error {
            OutboxError::Full => code::WOULD_BLOCK,
            _ => code::NOT_FOUND,
        })
    })
}

/// How many bytes wait to be sent.
///
/// # Safety
///
/// `bytes` is null or can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sn_owned_queued(port: *mut c_void, handle: u64, bytes: *mut usize) -> u32 {
    on(port, |owner| {
        let place = out(bytes)?;
        let room = owner.with(handle, |entry| Some(entry.sender.room()))?;
        // SAFETY: it is not null, and the caller vouches for the rest.
        unsafe { place.write_unaligned(owner.limit - room) };
        Ok(())
    })
}

/// Send a message to a thread, after this time.
///
/// # Safety
///
/// `handle` is null or can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sn_owned_post(
    port: *mut c_void,
    user: *mut c_void,
    after_ms: u32,
    handle: *mut u64,
) -> u32 {
    on(port, |owner| {
        let place = out(handle)?;
        let handle = next_handle();
        let event = OwnedEvent::new(MESSAGE, handle, user.expose_provenance(), 0);
        // It may be due before it is in the map, from which its event removes it.
        let mut timers = lock(&owner.timers);
        let after = Duration::from_millis(after_ms.into());
        let timer = owner.port.send_after(after, event);
        timers.insert(handle, timer.map_err(|_| code::ABANDONED_WAIT)?);
        // SAFETY: it is not null, and the caller vouches for the rest.
        unsafe { place.write_unaligned(handle) };
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use std::os::fd::IntoRawFd;
    use std::os::unix::net::UnixStream;
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    /// Else a program takes the port for closed.
    #[test]
    fn a_connection_is_refused_with_the_code_of_the_reason() {
        for (reason, code) in [
            (RegistrationError::NotASocket.into(), code::NOT_A_SOCKET),
            (RegistrationError::Os(libc::EPERM).into(), code::GEN_FAILURE),
            (Error::OutOfMemory.into(), code::NOT_ENOUGH_MEMORY),
            (Error::Closed.into(), code::ABANDONED_WAIT),
        ] {
            assert_eq!(refusal(reason), code);
        }
    }

    /// Its handle may be written to what its pointer refers to, which is freed in its last event.
    #[test]
    fn who_finds_a_connection_finds_its_handle_written() {
        const PATIENCE: Duration = Duration::from_secs(30);
        static HANDLE: AtomicU64 = AtomicU64::new(0);
        let mut port = ptr::null_mut();
        // SAFETY: there is room for the port.
        assert_eq!(unsafe { sn_owned_create(1, 0, &mut port) }, code::SUCCESS);
        let owner = OWNERS.pin(handle(port).expect("a handle")).expect("open");
        let (ours, _theirs) = UnixStream::pair().expect("a pair");
        let descriptor = ours.into_raw_fd();
        // A thread that closes the port is faster.
        let closing = lock(&owner.entries);
        let number = port.addr();
        let adopting = thread::spawn(move || {
            let port = ptr::without_provenance_mut(number);
            // SAFETY: it is given away, and there is room for the handle.
            unsafe { sn_owned_adopt(port, descriptor, ptr::null_mut(), HANDLE.as_ptr()) }
        });
        let begin = Instant::now();
        while HANDLE.load(Ordering::Relaxed) == 0 {
            assert!(begin.elapsed() < PATIENCE, "it is not written");
            thread::yield_now();
        }
        drop(closing);
        assert_eq!(adopting.join().ok(), Some(code::SUCCESS));
        assert_eq!(sn_owned_close(port), code::SUCCESS);
    }

    /// Its handle may be written to what its pointer refers to, which is freed in its event.
    #[test]
    fn a_message_that_was_left_comes_when_its_handle_was_written() {
        const QUIET: Duration = Duration::from_millis(50);
        let mut port = ptr::null_mut();
        // SAFETY: there is room for the port.
        assert_eq!(unsafe { sn_owned_create(1, 0, &mut port) }, code::SUCCESS);
        let owner = OWNERS.pin(handle(port).expect("a handle")).expect("open");
        // A thread posts, and has not written the handle.
        let posting = lock(&owner.timers);
        let message = OwnedEvent::new(MESSAGE, next_handle(), 7, 0);
        assert!(owner.port.send(message).is_ok());
        // Without connections this is the end.
        owner.port.drain(Duration::ZERO);
        assert!(owner.port.send(message).is_err());
        let (tell, told) = mpsc::channel();
        let number = port.addr();
        let taking = thread::spawn(move || {
            let mut event = message;
            let port = ptr::without_provenance_mut(number);
            // SAFETY: there is room for the event.
            let outcome = unsafe { sn_owned_next(port, &mut event, u32::MAX) };
            tell.send((outcome, event.handle))
                .expect("it is waited for");
        });
        assert!(told.recv_timeout(QUIET).is_err());
        drop(posting);
        assert_eq!(told.recv(), Ok((code::SUCCESS, message.handle)));
        taking.join().expect("no panic");
        assert_eq!(sn_owned_close(port), code::SUCCESS);
    }
}
