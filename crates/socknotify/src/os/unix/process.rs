//! [`Process`]: detects a fork without a system call.
//!
//! A thread that the child does not have may hold a lock. So each call checks whether it is in a child before it takes a
//! lock: a handler counts forks in the child, and calls compare two integers. It also takes the sockets from the parent's
//! ports, so the child may register inherited sockets with a port of its own.

#![allow(unsafe_code, reason = "the system has to call back")]

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::os::owners;

static FORKS: AtomicU32 = AtomicU32::new(0);

/// The process that made a value, as opposed to its forked children.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process(u32);

extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    owners::forget_all();
}

impl Process {
    /// The one that calls this.
    pub fn this() -> Self {
        static COUNTS: AtomicBool = AtomicBool::new(false);
        // Two threads may both install it, which is harmless. A child could inherit a lock that another
        // thread holds.
        if !COUNTS.load(Ordering::Acquire) {
            // SAFETY: the handler only stores to atomics, which is allowed in a forked child. If there is no
            // memory for it, children are not detected, and nothing else changes.
            unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
            COUNTS.store(true, Ordering::Release);
        }
        Process(FORKS.load(Ordering::Relaxed))
    }

    /// Whether it is the one that calls this.
    #[inline]
    pub fn is_this(self) -> bool {
        self.0 == FORKS.load(Ordering::Relaxed)
    }
}
