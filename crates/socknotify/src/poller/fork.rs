//! Finding out, without a system call, that the process was forked.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

static FORKS: AtomicU32 = AtomicU32::new(0);

/// The process that something was made in, as opposed to children that were forked from it later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Process(u32);

extern "C" fn count() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

impl Process {
    pub(super) fn this() -> Self {
        static COUNTING: Once = Once::new();
        COUNTING.call_once(|| {
            // SAFETY: the handler touches one atomic, as a handler in a forked child may. If there is
            // no memory for it, children are not told apart, and nothing else changes.
            unsafe { libc::pthread_atfork(None, None, Some(count)) };
        });
        Process(FORKS.load(Ordering::Relaxed))
    }

    pub(super) fn is_this(self) -> bool {
        self.0 == FORKS.load(Ordering::Relaxed)
    }
}
