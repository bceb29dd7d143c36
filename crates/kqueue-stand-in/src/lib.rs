//! A kqueue for tests on Linux: socknotify's backend runs over it, as it runs over the kernel elsewhere.
//!
//! It behaves as NetBSD's does, or by [`Rules`] as OpenBSD's, over `epoll`: which event comes when, which comes back
//! after what change, what ends with a number, what a failed change leaves behind. Its tests say so point by point.
//! Names are those of the `libc` crate.
//!
//! What it cannot show: how the real kernel's calls and its sockets race with each other; what its sockets report
//! where they differ from Linux'; its resolution of time; what anything costs. And where a number is closed,
//! and then made to refer to the same open file again, it does not notice.

#![cfg(target_os = "linux")]
#![allow(
    missing_docs,
    non_camel_case_types,
    reason = "these are the system's names"
)]

mod knote;
mod queue;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub use libc::timespec;

use self::queue::Queue;

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kevent {
    pub ident: usize,
    pub filter: i16,
    pub flags: u16,
    pub fflags: u32,
    pub data: i64,
    pub udata: *mut c_void,
}

// SAFETY: the pointer is only passed on.
unsafe impl Send for kevent {}

pub const EVFILT_READ: i16 = -1;
pub const EVFILT_WRITE: i16 = -2;
pub const EVFILT_TIMER: i16 = -7;
pub const EVFILT_USER: i16 = -11;

pub const EV_ADD: u16 = 0x1;
pub const EV_DELETE: u16 = 0x2;
pub const EV_ENABLE: u16 = 0x4;
pub const EV_DISABLE: u16 = 0x8;
pub const EV_ONESHOT: u16 = 0x10;
pub const EV_CLEAR: u16 = 0x20;
pub const EV_RECEIPT: u16 = 0x40;
pub const EV_DISPATCH: u16 = 0x80;
pub const EV_ERROR: u16 = 0x4000;
pub const EV_EOF: u16 = 0x8000;

pub const NOTE_LOWAT: u32 = 0x1;
pub const NOTE_TRIGGER: u32 = 0x0100_0000;

thread_local! {
    static REFUSED: Cell<(i16, usize)> = const { Cell::new((0, 0)) };
}

/// Refuse so many additions of this filter by this thread, for want of memory. Returns how many of the call before are left.
pub fn refuse(filter: i16, additions: usize) -> usize {
    REFUSED.replace((filter, additions)).1
}

fn is_refused(filter: i16) -> bool {
    let (refused, left) = REFUSED.get();
    let is_refused = filter == refused && left > 0;
    if is_refused {
        REFUSED.set((refused, left - 1));
    }
    is_refused
}

/// All queues of a process.
#[derive(Default)]
struct Kernel {
    queues: Mutex<HashMap<i32, Arc<Queue>>>,
}

/// Null until the first queue is made, in a process and in each forked child.
static KERNEL: AtomicPtr<Kernel> = AtomicPtr::new(null_mut());

/// A bit for each descriptor that a queue is made of: a forked child closes them.
static DESCRIPTORS: [AtomicU64; 1 << 10] = [const { AtomicU64::new(0) }; 1 << 10];

fn kernel() -> &'static Kernel {
    static IS_PREPARED: AtomicBool = AtomicBool::new(false);
    // Two threads may both install it, which is harmless; nobody goes on before it is there.
    if !IS_PREPARED.load(Ordering::Acquire) {
        // SAFETY: the handler closes descriptors and stores to atomics.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        IS_PREPARED.store(true, Ordering::Release);
    }
    let mut kernel = KERNEL.load(Ordering::Acquire);
    if kernel.is_null() {
        let new = Box::into_raw(Box::default());
        let done = KERNEL.compare_exchange(null_mut(), new, Ordering::AcqRel, Ordering::Acquire);
        kernel = match done {
            Ok(_) => new,
            Err(other) => {
                // SAFETY: it was made above, and nobody else has it.
                drop(unsafe { Box::from_raw(new) });
                other
            }
        };
    }
    // SAFETY: what the pointer is set to is never freed.
    unsafe { &*kernel }
}

/// A queue is absent in a child.
extern "C" fn in_child() {
    KERNEL.store(null_mut(), Ordering::Release);
    queue::forget_silent();
    for (index, word) in DESCRIPTORS.iter().enumerate() {
        let mut bits = word.swap(0, Ordering::AcqRel);
        while bits != 0 {
            let number = index * 64 + bits.trailing_zeros() as usize;
            // SAFETY: the child's copy of the descriptor is nobody's.
            unsafe { libc::close(number as i32) };
            bits &= bits - 1;
        }
    }
}

/// Note that a descriptor is a queue's, or is none any more.
fn note_descriptor(number: i32, is_open: bool) {
    let Some(word) = DESCRIPTORS.get(number as usize / 64) else {
        return;
    };
    let bit = 1 << (number % 64);
    match is_open {
        true => word.fetch_or(bit, Ordering::AcqRel),
        false => word.fetch_and(!bit, Ordering::AcqRel),
    };
}

fn queues() -> MutexGuard<'static, HashMap<i32, Arc<Queue>>> {
    lock(&kernel().queues)
}

/// The queue that has this number.
fn queue(number: i32) -> Option<Arc<Queue>> {
    queues().get(&number).cloned()
}

fn lock<V: ?Sized>(mutex: &Mutex<V>) -> MutexGuard<'_, V> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn fail(error: i32) -> i32 {
    // SAFETY: it is this thread's.
    unsafe { *libc::__errno_location() = error };
    -1
}

/// Makes a queue.
///
/// # Safety
///
/// None; the system's has it.
pub unsafe fn kqueue() -> i32 {
    kqueue_by(rules())
}

/// Makes a queue that follows these rules.
pub fn kqueue_by(rules: Rules) -> i32 {
    match Queue::new(rules) {
        Ok(queue) => {
            let number = queue.number();
            queues().insert(number, Arc::new(queue));
            number
        }
        Err(error) => fail(error),
    }
}

/// Closes a descriptor, which may be a queue.
///
/// # Safety
///
/// It has to be the caller's.
pub unsafe fn close(number: i32) -> i32 {
    let queue = queues().remove(&number);
    match queue {
        Some(queue) => {
            queue.end_waits();
            queue.close();
            0
        }
        // SAFETY: the caller's promise.
        None => unsafe { libc::close(number) },
    }
}

/// Whose rules a queue follows, where they differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rules {
    /// Every change of a filter overwrites what it was added with, and has it looked at again.
    NetBsd,
    /// Only a change with `EV_ADD` does.
    OpenBsd,
}

/// The rules of this process: OpenBSD's, if it runs with `SOCKNOTIFY_STAND_IN=openbsd`.
pub fn rules() -> Rules {
    // No lock, for which a child would wait that is forked meanwhile. Threads that come at once find the same.
    static IS_KNOWN: AtomicBool = AtomicBool::new(false);
    static IS_OPEN_BSD: AtomicBool = AtomicBool::new(false);
    if !IS_KNOWN.load(Ordering::Acquire) {
        let name = std::env::var_os("SOCKNOTIFY_STAND_IN");
        let is_open_bsd = name.is_some_and(|name| name == "openbsd");
        IS_OPEN_BSD.store(is_open_bsd, Ordering::Relaxed);
        IS_KNOWN.store(true, Ordering::Release);
    }
    match IS_OPEN_BSD.load(Ordering::Relaxed) {
        true => Rules::OpenBsd,
        false => Rules::NetBsd,
    }
}

/// Receives; but what peeks leaves a socket's error as it is, which Linux does not.
///
/// # Safety
///
/// There has to be so much memory.
pub unsafe fn recv(socket: i32, buffer: *mut c_void, length: usize, flags: i32) -> isize {
    if flags & libc::MSG_PEEK != 0 {
        if let Some(error) = knote::error(socket) {
            return fail(error) as isize;
        }
    }
    // SAFETY: the caller's promise.
    unsafe { libc::recv(socket, buffer, length, flags) }
}

/// Makes changes, and takes what is ready, or will be in time.
///
/// # Safety
///
/// There have to be so many changes, and room for so many events; they may be in one place.
pub unsafe fn kevent(
    number: i32,
    changes: *const kevent,
    change_count: i32,
    events: *mut kevent,
    room: i32,
    timeout: *const timespec,
) -> i32 {
    let Some(queue) = queue(number) else {
        return fail(libc::EBADF);
    };
    // SAFETY: the caller's promise.
    let timeout = unsafe { timeout.as_ref() };
    if timeout.is_some_and(|time| !(0..1_000_000_000).contains(&time.tv_nsec)) {
        return fail(libc::EINVAL);
    }
    let end = match timeout {
        None => None,
        Some(time) => {
            let time = Duration::new(time.tv_sec as u64, time.tv_nsec as u32);
            Instant::now().checked_add(time)
        }
    };
    let mut found = Vec::new();
    // SAFETY: the caller's promise. They are read before anything is written.
    let changes: Vec<kevent> = match change_count {
        0 => Vec::new(),
        // SAFETY: the caller's promise.
        count => unsafe { std::slice::from_raw_parts(changes, count as usize) }.to_vec(),
    };
    let result = queue.kevent(&changes, &mut found, room as usize, end);
    for (index, event) in found.iter().enumerate() {
        // SAFETY: there are no more than there is room for.
        unsafe { events.add(index).write(*event) };
    }
    match result {
        Ok(()) => found.len() as i32,
        Err(error) => fail(error),
    }
}
