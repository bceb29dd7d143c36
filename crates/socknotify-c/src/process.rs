//! Which process this is: a forked child is another one.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::files;

static FORKS: AtomicU32 = AtomicU32::new(0);

/// The process that made a value, as opposed to its forked children.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Process(u32);

extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    files::forget_inherited();
}

impl Process {
    pub(crate) fn this() -> Self {
        static COUNTS: AtomicBool = AtomicBool::new(false);
        // Two threads may both install it, which is harmless.
        if !COUNTS.load(Ordering::Acquire) {
            // SAFETY: the handler only stores to atomics, which is allowed in a forked child.
            unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
            COUNTS.store(true, Ordering::Release);
        }
        Process(FORKS.load(Ordering::Relaxed))
    }

    pub(crate) fn is_this(self) -> bool {
        self.0 == FORKS.load(Ordering::Relaxed)
    }
}
