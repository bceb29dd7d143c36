//! Memory whose addresses come again by chance.
//!
//! What depends on an address then differs from one run of a model to the next, whose path it does not follow any more: the
//! checker reports that. With an allocator that mostly returns what was freed last, it would seldom show.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

struct ByChance;

#[global_allocator]
static MEMORY: ByChance = ByChance;

impl ByChance {
    /// True half of the time.
    fn decide() -> bool {
        const STEP: u64 = 0x9E37_79B9_7F4A_7C15;
        static STEPS: AtomicU64 = AtomicU64::new(0);
        let mixed = STEPS.fetch_add(STEP, Ordering::Relaxed);
        let mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed >> 63 == 0
    }
}

#[allow(unsafe_code, reason = "an allocator")]
// SAFETY: all memory is the system's, by the same layout.
unsafe impl GlobalAlloc for ByChance {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller promises.
        let first = unsafe { System.alloc(layout) };
        if first.is_null() || Self::decide() {
            return first;
        }
        // SAFETY: the same; and the first one was allocated above, and nobody has it.
        unsafe {
            let second = System.alloc(layout);
            System.dealloc(first, layout);
            second
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller promises.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(memory, layout) };
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as the caller promises.
        unsafe { System.realloc(memory, layout, size) }
    }
}
