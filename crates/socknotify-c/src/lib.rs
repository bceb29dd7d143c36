//! The C interface: `libsocknotify`.
//!
//! The headers in `include` document the functions for their callers; the comments here are for maintainers. Each
//! function checks the arguments, finds the port of a handle (`handles.rs`), copies between the caller's memory and the
//! library's ([`caller`]), and converts the result into a Win32 code ([`code`]).
//!
//! The library never holds a reference to the caller's memory. It reads and writes through raw pointers, one value at a
//! time, with any alignment. So arrays may be misaligned and may overlap.
//!
//! On Windows it is empty: there the functions are the system's, and `socknotify.dll` has the one that older versions
//! lack.
#![cfg(unix)]

mod call;
pub mod caller;
pub mod code;
pub mod files;
mod handles;
pub mod owned;
mod process;
mod reason;
mod thread;

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::{self, NonNull};
use std::time::Duration;

use socknotify::{CompletionPort, Entry, Error, Operation, RegisterError, interface};

use self::call::{entry_point, port};
use self::caller::{CallerArray, Kind, OverlappedEntry, PortState, SockNotifyRegistration};
use self::code::Code;
use self::thread::Thread;

/// The maximum number of packets that one call dequeues, whatever the caller's room.
const MOST_ENTRIES: usize = 1 << 16;

/// A place for every thread: `SN_UNLIMITED`.
const UNLIMITED: u32 = u32::MAX;

/// The timeout that never passes: `INFINITE`.
const INFINITE: u32 = u32::MAX;

fn timeout(milliseconds: u32) -> Option<Duration> {
    (milliseconds != INFINITE).then(|| Duration::from_millis(milliseconds.into()))
}

/// `CreateIoCompletionPort`, to make a port.
///
/// # Safety
///
/// `created` is null or can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sn_create_port(concurrency: u32, created: *mut *mut c_void) -> u32 {
    // SAFETY: this function asks of its caller what that one asks of this.
    unsafe { sn_create_port_on(concurrency, ptr::null(), created) }
}

/// The same on a particular backend.
///
/// # Safety
///
/// `created` is null or can be written to; `backend` is null or a string that ends.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sn_create_port_on(
    concurrency: u32,
    backend: *const c_char,
    created: *mut *mut c_void,
) -> u32 {
    entry_point(|| {
        let created = NonNull::new(created).ok_or(code::INVALID_PARAMETER)?;
        // SAFETY: the caller vouches for it.
        let backend = (!backend.is_null()).then(|| unsafe { CStr::from_ptr(backend) });
        let made = make(concurrency, backend)
            .and_then(|port| call::insert(port).ok_or(code::NO_SYSTEM_RESOURCES));
        let handle = made.map_or(ptr::null_mut(), |handle| {
            ptr::without_provenance_mut(handle.number())
        });
        // SAFETY: it is not null, and the caller vouches for the rest.
        unsafe { created.write_unaligned(handle) };
        made.map(drop)
    })
}

fn make(concurrency: u32, backend: Option<&CStr>) -> Result<CompletionPort, Code> {
    thread::make_key()?;
    socknotify::interface::leave_threads_unnamed();
    socknotify::interface::count_milliseconds();
    let mut builder = CompletionPort::builder();
    builder = match concurrency {
        UNLIMITED => builder.unlimited(),
        places => builder.concurrency(places as usize),
    };
    if let Some(name) = backend {
        let name = name.to_str().map_err(|_| code::NOT_SUPPORTED)?;
        builder = builder.backend(name.parse().map_err(|_| code::NOT_SUPPORTED)?);
    }
    builder.build().map_err(Error::code)
}

/// `CloseHandle`, for a port.
#[unsafe(no_mangle)]
pub extern "C" fn sn_close_port(port: *mut c_void) -> u32 {
    entry_point(|| {
        call::remove(port)?.close();
        Ok(())
    })
}

/// `ProcessSocketNotifications`.
///
/// # Safety
///
/// Each pointer is null, or valid for as many elements as the count beside it says; `received` for
/// one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sn_process(
    port: *mut c_void,
    registration_count: u32,
    registrations: *mut SockNotifyRegistration,
    timeout_ms: u32,
    entry_count: u32,
    entries: *mut OverlappedEntry,
    received: *mut u32,
) -> u32 {
    let registrations = (registrations, registration_count);
    // SAFETY: the caller vouches for the pointers and the counts beside them.
    let arrays = unsafe { arrays(registrations, (entries, entry_count)) };
    // SAFETY: the same.
    unsafe {
        process(
            port,
            registration_count,
            arrays,
            Kind::Socket,
            timeout_ms,
            received,
        )
    }
}

/// The same, where ENABLE takes any descriptor.
///
/// # Safety
///
/// As for [`sn_process`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sn_process_descriptors(
    port: *mut c_void,
    registration_count: u32,
    registrations: *mut SockNotifyRegistration,
    timeout_ms: u32,
    entry_count: u32,
    entries: *mut OverlappedEntry,
    received: *mut u32,
) -> u32 {
    let registrations = (registrations, registration_count);
    // SAFETY: the caller vouches for the pointers and the counts beside them.
    let arrays = unsafe { arrays(registrations, (entries, entry_count)) };
    // SAFETY: the same.
    unsafe {
        process(
            port,
            registration_count,
            arrays,
            Kind::Descriptor,
            timeout_ms,
            received,
        )
    }
}

/// `GetQueuedCompletionStatusEx`.
///
/// # Safety
///
/// As for [`sn_process`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sn_dequeue(
    port: *mut c_void,
    entries: *mut OverlappedEntry,
    entry_count: u32,
    received: *mut u32,
    timeout_ms: u32,
) -> u32 {
    // A plain dequeue without room is as wrong as one with room and no memory for it.
    let entry_count = if entries.is_null() { 1 } else { entry_count };
    let none = ptr::null_mut();
    // SAFETY: this function asks of its caller what that one asks of this.
    unsafe { sn_process(port, 0, none, timeout_ms, entry_count, entries, received) }
}

/// `GetQueuedCompletionStatus`.
///
/// # Safety
///
/// Each pointer is null or can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sn_dequeue_one(
    port: *mut c_void,
    transferred: *mut u32,
    completion_key: *mut usize,
    overlapped: *mut *mut c_void,
    timeout_ms: u32,
) -> u32 {
    entry_point(|| {
        if let Some(overlapped) = NonNull::new(overlapped) {
            // SAFETY: it is not null, and the caller vouches for the rest.
            unsafe { overlapped.write_unaligned(ptr::null_mut()) };
        }
        if transferred.is_null() || completion_key.is_null() || overlapped.is_null() {
            return Err(code::INVALID_PARAMETER);
        }
        let handle = port;
        let port = self::port(handle)?;
        Thread::with(|thread| {
            thread.dequeues_from(handle);
            Ok(())
        })?;
        let packet = port.dequeue_one(timeout(timeout_ms)).map_err(Error::code)?;
        // SAFETY: none is null, and the caller vouches for the rest.
        unsafe {
            transferred.write_unaligned(packet.transferred);
            completion_key.write_unaligned(packet.completion_key);
            overlapped.write_unaligned(ptr::with_exposed_provenance_mut(packet.overlapped));
        }
        // An operation that has failed is a packet, too.
        files::of_packet(&packet)
    })
}

/// `PostQueuedCompletionStatus`.
#[unsafe(no_mangle)]
pub extern "C" fn sn_post(
    port: *mut c_void,
    transferred: u32,
    completion_key: usize,
    overlapped: *mut c_void,
) -> u32 {
    entry_point(|| {
        let entry = Entry::new(completion_key, transferred, overlapped.expose_provenance());
        self::port(port)?.post(entry).map_err(Error::code)
    })
}

/// Run `work`, which may block, and lend the thread's place to another meanwhile.
///
/// # Safety
///
/// `work` is null or a function that may be called with `context`, and that returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sn_blocking(
    port: *mut c_void,
    work: Option<unsafe extern "C" fn(*mut c_void)>,
    context: *mut c_void,
) -> u32 {
    entry_point(|| {
        let work = work.ok_or(code::INVALID_PARAMETER)?;
        // SAFETY: the caller vouches for it.
        self::port(port)?.blocking(|| unsafe { work(context) });
        Ok(())
    })
}

/// Give the place of this thread back.
#[unsafe(no_mangle)]
pub extern "C" fn sn_release(port: *mut c_void) -> u32 {
    entry_point(|| {
        self::port(port)?.release();
        Ok(())
    })
}

/// End a registration at once, without a notification.
#[unsafe(no_mangle)]
pub extern "C" fn sn_deregister(port: *mut c_void, socket: usize) -> u32 {
    entry_point(|| {
        let entry = SockNotifyRegistration {
            socket,
            operation: Operation::REMOVE.bits(),
            ..SockNotifyRegistration::default()
        };
        let outcome =
            self::port(port)?.register(interface::silent(entry.to_registration(Kind::Socket)));
        outcome.map_err(RegisterError::code)
    })
}

/// Why one entry of this thread's latest call was not applied.
#[unsafe(no_mangle)]
pub extern "C" fn sn_reason(index: u32) -> u32 {
    Thread::result(index as usize).map_or_else(reason::of, |()| 0)
}

/// The present state of a port.
///
/// # Safety
///
/// `state` is null, or its size can be read, and as many bytes can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sn_query_port(port: *mut c_void, state: *mut PortState) -> u32 {
    entry_point(|| {
        let state = NonNull::new(state).ok_or(code::INVALID_PARAMETER)?;
        // SAFETY: it is not null, and the caller vouches for the rest.
        let size = unsafe { state.cast::<u32>().read_unaligned() };
        // A program that was built with a later header has room for more; none has less than the first version's.
        if (size as usize) < size_of::<PortState>() {
            return Err(code::INVALID_PARAMETER);
        }
        let port = self::port(port)?;
        let snapshot = port.snapshot();
        let number = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
        let found = PortState {
            size: size_of::<PortState>() as u32,
            concurrency: number(port.concurrency()),
            running: number(snapshot.running.unwrap_or(0)),
            waiting: number(snapshot.waiting),
            queued: number(snapshot.queued),
            registrations: number(snapshot.registrations.unwrap_or(0)),
            limit: snapshot.limit.map_or(u32::MAX, number),
        };
        // SAFETY: it is not null, and the caller vouches for the rest.
        unsafe { state.write_unaligned(found) };
        Ok(())
    })
}

/// A descriptor by which another loop can watch a port.
///
/// # Safety
///
/// `descriptor` is null or can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sn_port_descriptor(port: *mut c_void, descriptor: *mut c_int) -> u32 {
    entry_point(|| {
        let descriptor = NonNull::new(descriptor).ok_or(code::INVALID_PARAMETER)?;
        let number = self::port(port)?.as_fd().as_raw_fd();
        // SAFETY: it is not null, and the caller vouches for the rest.
        unsafe { descriptor.write_unaligned(number) };
        Ok(())
    })
}

/// The name of a port's backend.
#[unsafe(no_mangle)]
pub extern "C" fn sn_backend(port: *mut c_void) -> *const c_char {
    let mut name = ptr::null();
    entry_point(|| {
        name = reason::backend(self::port(port)?.backend()).as_ptr();
        Ok(())
    });
    name
}

/// The text of an error code or a reason.
#[unsafe(no_mangle)]
pub extern "C" fn sn_strerror(error: u32) -> *const c_char {
    reason::text(error).as_ptr()
}

/// The version of the library.
#[unsafe(no_mangle)]
pub extern "C" fn sn_version() -> u32 {
    const fn number(text: &str) -> u32 {
        let mut value = 0;
        let mut index = 0;
        while index < text.len() {
            value = value * 10 + (text.as_bytes()[index] - b'0') as u32;
            index += 1;
        }
        value
    }
    const {
        number(env!("CARGO_PKG_VERSION_MAJOR")) * 1_000_000
            + number(env!("CARGO_PKG_VERSION_MINOR")) * 1000
            + number(env!("CARGO_PKG_VERSION_PATCH"))
    }
}

thread_local! {
    static LAST_ERROR: Cell<u32> = const { Cell::new(code::SUCCESS) };
}

/// `GetLastError`.
#[unsafe(no_mangle)]
pub extern "C" fn sn_last_error() -> u32 {
    LAST_ERROR.get()
}

/// `SetLastError`.
#[unsafe(no_mangle)]
pub extern "C" fn sn_set_last_error(error: u32) {
    LAST_ERROR.set(error);
}

/// The caller's registrations, and room for packets.
type Arrays = (
    CallerArray<SockNotifyRegistration>,
    CallerArray<OverlappedEntry>,
);

/// # Safety
///
/// Each pointer is null, or valid for as many elements as the count beside it says.
unsafe fn arrays(
    registrations: (*mut SockNotifyRegistration, u32),
    entries: (*mut OverlappedEntry, u32),
) -> Result<Arrays, Code> {
    // SAFETY: by the promise.
    unsafe {
        let registrations = CallerArray::new(registrations.0, registrations.1)?;
        Ok((registrations, CallerArray::new(entries.0, entries.1)?))
    }
}

/// The body of the functions that apply and dequeue.
///
/// # Safety
///
/// `received` is null or can be written to.
unsafe fn process(
    port: *mut c_void,
    registration_count: u32,
    arrays: Result<Arrays, Code>,
    kind: Kind,
    timeout_ms: u32,
    received: *mut u32,
) -> u32 {
    entry_point(|| {
        let taken = arrays.and_then(|(registrations, entries)| {
            if received.is_null() != entries.is_empty() || (entries.is_empty() && timeout_ms != 0) {
                return Err(code::INVALID_PARAMETER);
            }
            apply_and_dequeue(port, registrations, kind, timeout_ms, entries)
        });
        if registration_count > 0 && taken.is_err_and(|code| code != code::TIMEOUT) {
            Thread::forget_results();
        }
        if let Some(received) = NonNull::new(received) {
            // SAFETY: it is not null, and the caller vouches for the rest.
            unsafe { received.write_unaligned(taken.unwrap_or(0)) };
        }
        taken.map(drop)
    })
}

/// Returns how many entries were written.
fn apply_and_dequeue(
    handle: *mut c_void,
    registrations: CallerArray<SockNotifyRegistration>,
    kind: Kind,
    timeout_ms: u32,
    entries: CallerArray<OverlappedEntry>,
) -> Result<u32, Code> {
    let port = port(handle)?;
    Thread::with(|thread| {
        if !entries.is_empty() {
            thread.dequeues_from(handle);
        }
        let room = entries.len().min(MOST_ENTRIES);
        let (batch, room) = thread.prepare(registrations, kind, room)?;
        let taken = port.process(batch, room, timeout(timeout_ms));
        // With any other error nothing was applied, or all of it went with the port.
        if matches!(taken, Ok(_) | Err(Error::TimedOut)) {
            for (index, registration) in batch.iter().enumerate() {
                registrations.set_result(index, code::of_registration(registration.result()));
            }
        }
        let taken = taken.map_err(Error::code)?;
        for (index, entry) in taken.iter().enumerate() {
            entries.write(index, OverlappedEntry::from(*entry));
        }
        Ok(taken.len() as u32)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_error_code() {
        assert_eq!(entry_point(|| panic!("on purpose")), code::INTERNAL_ERROR);
    }

    #[test]
    fn a_panic_whose_payload_panics_when_dropped_becomes_an_error_code() {
        struct Spiteful;
        impl Drop for Spiteful {
            fn drop(&mut self) {
                panic!("again");
            }
        }
        let code = entry_point(|| std::panic::panic_any(Spiteful));
        assert_eq!(code, code::INTERNAL_ERROR);
    }

    #[test]
    fn only_the_largest_number_is_for_ever() {
        assert_eq!(timeout(0), Some(Duration::ZERO));
        assert_eq!(
            timeout(INFINITE - 1),
            Some(Duration::from_millis(4_294_967_294))
        );
        assert_eq!(timeout(INFINITE), None);
    }
}
