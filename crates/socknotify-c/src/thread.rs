//! What the library keeps for a thread from one call to the next, and what happens when the thread ends.
//!
//! It hangs on a key of POSIX threads, and not on a thread-local of Rust's. Those are destroyed first, and one that a
//! thread uses for the first time after that, in the destructor of another key, is never destroyed. The destructor of
//! this key runs again in that case.

use std::alloc::{Layout, alloc};
use std::ffi::{c_int, c_void};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

use socknotify::{Entry, Registration, RegistrationError};

use crate::call;
use crate::caller::{CallerArray, Kind, SockNotifyRegistration};
use crate::code::{self, Code};
use crate::owned::OwnedWorker;

/// Memory for one call's registrations and packets, and the thread's place.
#[derive(Debug)]
pub(crate) struct Thread {
    batch: Vec<Registration<'static>>,
    room: Vec<Entry>,
    /// The handle of the port that it dequeued from last, in which it may have a place. Null if none.
    port: *mut c_void,
    /// Of the owning port from which it took an event last.
    pub(crate) worker: Option<(*mut c_void, OwnedWorker)>,
}

/// The key, plus one; 0 until it is made.
static KEY: AtomicU64 = AtomicU64::new(0);

fn key() -> Option<libc::pthread_key_t> {
    KEY.load(Ordering::Acquire)
        .checked_sub(1)
        .map(|key| key as libc::pthread_key_t)
}

/// Make the key, once in each process. Every port is made after it.
pub(crate) fn make_key() -> Result<(), Code> {
    if key().is_some() {
        return Ok(());
    }
    let mut made: libc::pthread_key_t = 0;
    // SAFETY: there is room for the key, and the destructor takes what the key is set to.
    if unsafe { libc::pthread_key_create(&mut made, Some(on_end)) } != 0 {
        return Err(code::NO_SYSTEM_RESOURCES);
    }
    let number = made as u64 + 1;
    let set = KEY.compare_exchange(0, number, Ordering::AcqRel, Ordering::Acquire);
    if set.is_err() {
        // SAFETY: another thread was faster, and nobody has used this one.
        unsafe { libc::pthread_key_delete(made) };
    }
    Ok(())
}

/// The thread ends, or calls destructors at its end.
unsafe extern "C" fn on_end(thread: *mut c_void) {
    // SAFETY: it was made by `new` on this thread, whose key is null by now.
    let thread = unsafe { Box::from_raw(thread.cast::<Thread>()) };
    call::entry_point(|| {
        // A thread that ends regularly has left its place already: Rust's own destructors ran before.
        if !thread.port.is_null() {
            if let Ok(port) = call::port(thread.port) {
                port.release();
            }
        }
        drop(thread);
        Ok(())
    });
}

impl Thread {
    fn present() -> Option<NonNull<Thread>> {
        // SAFETY: it is a key, which is never deleted.
        let set = unsafe { libc::pthread_getspecific(key()?) };
        NonNull::new(set.cast())
    }

    #[cold]
    fn new() -> Result<NonNull<Thread>, Code> {
        let key = key().ok_or(code::INVALID_HANDLE)?;
        // SAFETY: the type has a size.
        let memory = unsafe { alloc(Layout::new::<Thread>()) }.cast::<Thread>();
        let thread = NonNull::new(memory).ok_or(code::NOT_ENOUGH_MEMORY)?;
        let empty = Thread {
            batch: Vec::new(),
            room: Vec::new(),
            port: ptr::null_mut(),
            worker: None,
        };
        // SAFETY: the memory is for one, and nobody else has it.
        unsafe { thread.write(empty) };
        // SAFETY: it is a key, and its destructor takes such a pointer.
        let failed: c_int = unsafe { libc::pthread_setspecific(key, thread.as_ptr().cast()) };
        if failed != 0 {
            // SAFETY: as made above, and not stored.
            drop(unsafe { Box::from_raw(thread.as_ptr()) });
            return Err(code::NOT_ENOUGH_MEMORY);
        }
        Ok(thread)
    }

    /// Run one call with what this thread has.
    pub(crate) fn with<R>(call: impl FnOnce(&mut Thread) -> Result<R, Code>) -> Result<R, Code> {
        let mut thread = Self::present().map_or_else(Self::new, Ok)?;
        // SAFETY: only this thread has it, and no call runs within another one's.
        call(unsafe { thread.as_mut() })
    }

    /// It is about to dequeue from this port, and may have a place there from now on.
    pub(crate) fn dequeues_from(&mut self, port: *mut c_void) {
        self.port = port;
    }

    /// The latest call has no results.
    #[cold]
    pub(crate) fn forget_results() {
        if let Some(mut thread) = Self::present() {
            // SAFETY: only this thread has it, and no call runs within another one's.
            unsafe { thread.as_mut() }.batch.clear();
        }
    }

    /// It keeps nothing of an owning port that was closed: its descriptors would stay open.
    #[cold]
    pub(crate) fn forget_worker(port: *mut c_void) {
        if let Some(mut thread) = Self::present() {
            // SAFETY: only this thread has it, and no call runs within another one's.
            let thread = unsafe { thread.as_mut() };
            thread.worker.take_if(|(of, _)| *of == port);
        }
    }

    /// What became of one entry of the latest call with registrations. Success if there was no such entry.
    pub(crate) fn result(index: usize) -> Result<(), RegistrationError> {
        // SAFETY: only this thread has it, and no call runs within another one's.
        let thread = Self::present().map(|thread| unsafe { thread.as_ref() });
        let entry = thread.and_then(|thread| thread.batch.get(index));
        entry.map_or(Ok(()), Registration::result)
    }

    /// The library's form of the registrations, and room for packets.
    pub(crate) fn prepare(
        &mut self,
        registrations: CallerArray<SockNotifyRegistration>,
        kind: Kind,
        room: usize,
    ) -> Result<(&mut [Registration<'static>], &mut [Entry]), Code> {
        let Thread {
            batch, room: spare, ..
        } = self;
        let batch: &mut [Registration<'static>] = match registrations.is_empty() {
            true => &mut [],
            false => fill(batch, registrations, kind)?,
        };
        if let Some(missing) = room.checked_sub(spare.len()) {
            spare
                .try_reserve(missing)
                .map_err(|_| code::NOT_ENOUGH_MEMORY)?;
            spare.resize(spare.len() + missing, Entry::default());
        }
        Ok((batch, &mut spare[..room]))
    }
}

/// Copies of all registrations, in place of an earlier call's.
fn fill<'a>(
    batch: &'a mut Vec<Registration<'static>>,
    registrations: CallerArray<SockNotifyRegistration>,
    kind: Kind,
) -> Result<&'a mut [Registration<'static>], Code> {
    batch.clear();
    batch
        .try_reserve(registrations.len())
        .map_err(|_| code::NOT_ENOUGH_MEMORY)?;
    let values = registrations.values();
    batch.extend(values.map(|it| it.to_registration(kind)));
    Ok(batch)
}
