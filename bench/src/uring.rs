//! A ring with the flags for one thread that submits and waits.

use std::io;
use std::ops::{Deref, DerefMut};

use io_uring::types::CancelBuilder;
use io_uring::{IoUring, squeue};

/// The kernel makes no greater queue.
const MOST_COMPLETIONS: u32 = 65_536;

/// When it is dropped, no operation is in progress any more, so the memory of operations may be freed.
pub(crate) struct Ring(IoUring);

impl Ring {
    /// With room for this many submissions, and for more completions.
    pub(crate) fn new(entries: usize) -> io::Result<Self> {
        let entries = entries.next_power_of_two().max(256) as u32;
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_cqsize((entries * 4).min(MOST_COMPLETIONS))
            .build(entries);
        ring.map(Ring)
    }

    /// Put an entry down, for the next call that submits. If there is no room, it submits.
    ///
    /// # Safety
    ///
    /// What the entry refers to stays where it is until its completion, or until the ring is gone.
    pub(crate) unsafe fn push(&mut self, entry: &squeue::Entry) -> io::Result<()> {
        // SAFETY: the caller's promise.
        while unsafe { self.0.submission().push(entry) }.is_err() {
            self.0.submit()?;
        }
        Ok(())
    }
}

impl Deref for Ring {
    type Target = IoUring;

    fn deref(&self) -> &IoUring {
        &self.0
    }
}

impl DerefMut for Ring {
    fn deref_mut(&mut self) -> &mut IoUring {
        &mut self.0
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // The kernel takes its time to clear up after a ring that is closed.
        let everything = CancelBuilder::any();
        let _ = self.0.submitter().register_sync_cancel(None, everything);
    }
}
