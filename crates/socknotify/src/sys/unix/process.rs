//! Finding out, without a system call, that the process was forked.

#![allow(unsafe_code, reason = "the system has to call back")]

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::sys::owners;

static FORKS: AtomicU32 = AtomicU32::new(0);

/// The process that something was made in, as opposed to children that were forked from it later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process(u32);

extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    owners::forget_all();
}

impl Process {
    pub(crate) fn this() -> Self {
        static COUNTS: AtomicBool = AtomicBool::new(false);
        // Two threads may both see to it, which is harmless. A lock here would be inherited by a child
        // while another thread holds it.
        if !COUNTS.load(Ordering::Acquire) {
            // SAFETY: the handler stores to atomics, as a handler in a forked child may. If there is no
            // memory for it, children are not told apart, and nothing else changes.
            unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
            COUNTS.store(true, Ordering::Release);
        }
        Process(FORKS.load(Ordering::Relaxed))
    }

    pub(crate) fn is_this(self) -> bool {
        self.0 == FORKS.load(Ordering::Relaxed)
    }
}
