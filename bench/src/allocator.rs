//! The system's allocator, with a count of what goes through it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicIsize, AtomicUsize, Ordering};

static TIMES: AtomicUsize = AtomicUsize::new(0);
static BYTES: AtomicIsize = AtomicIsize::new(0);

struct Counting;

// SAFETY: it does what the system's allocator does, and counts.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        TIMES.fetch_add(1, Ordering::Relaxed);
        BYTES.fetch_add(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: the caller keeps to the same conditions.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: the caller keeps to the same conditions.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// How often something has been allocated.
pub(crate) fn times() -> usize {
    TIMES.load(Ordering::Relaxed)
}

/// How many bytes are allocated now.
pub(crate) fn bytes() -> isize {
    BYTES.load(Ordering::Relaxed)
}
