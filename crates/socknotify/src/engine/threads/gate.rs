//! [`Gate`]: how many threads hold a permit and how many of them poll, with what threads need to know of those that are
//! parked, in one atomic word.
//!
//! ```text
//! | 63..55 | 54..48 flags | 47..24 polling | 23..0 permits taken |
//! ```
//!
//! A thread that polls holds a permit. Who releases a parked thread takes its permit for it, and counts it as polling: so a
//! permit is free, or it is not, and nobody keeps count of threads on their way.

use std::sync::atomic::Ordering::SeqCst;

use crate::support::sync::AtomicU64;

const PERMIT: u64 = 1;
const POLLING: u64 = 1 << 24;
const COUNT: u64 = POLLING - 1;

/// More permits than threads.
pub(in crate::engine) const UNLIMITED: usize = COUNT as usize / 2;

/// One bit of the [`Gate`].
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct Flag(u64);

impl Flag {
    pub(in crate::engine) const CLOSED: Flag = Flag(1 << 48);
    /// Another loop watches the port itself.
    pub(in crate::engine) const EXPOSED: Flag = Flag(1 << 49);
    /// The backend has refused to arm something that was armed before. It is tried again.
    pub(in crate::engine) const REFUSED: Flag = Flag(1 << 50);
    /// A thread that polls is on its way to what is queued.
    pub(super) const WAKING: Flag = Flag(1 << 51);
    /// A thread is parked, and not released.
    pub(super) const PARKED: Flag = Flag(1 << 52);
    /// A parked thread is the watcher.
    pub(super) const WATCHED: Flag = Flag(1 << 53);
    /// It sleeps until the next sample, as no permit was free.
    pub(super) const SAMPLES: Flag = Flag(1 << 54);
}

/// The [`Gate`] at one moment.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct Load(u64);

impl Load {
    /// Permits taken. There may be too many: the limit has fallen, or a thread has returned from a scope of blocking work.
    #[inline]
    pub(in crate::engine) fn taken(self) -> usize {
        (self.0 & COUNT) as usize
    }

    /// Threads that wait in the backend, or are released to do so.
    #[inline]
    pub(in crate::engine) fn polling(self) -> usize {
        ((self.0 / POLLING) & COUNT) as usize
    }

    /// Threads that have dequeued and not handled.
    #[inline]
    pub(in crate::engine) fn running(self) -> usize {
        self.taken().saturating_sub(self.polling())
    }

    #[inline]
    pub(in crate::engine) fn has(self, flag: Flag) -> bool {
        self.0 & flag.0 != 0
    }
}

#[derive(Debug)]
pub(in crate::engine) struct Gate(AtomicU64);

impl Gate {
    pub(in crate::engine) fn new() -> Self {
        Gate(AtomicU64::new(0))
    }

    #[inline]
    pub(in crate::engine) fn load(&self) -> Load {
        // The model checker has one order of all that is sequentially consistent for such operations only.
        match cfg!(interleavings) {
            true => self.latest(),
            false => Load(self.0.load(SeqCst)),
        }
    }

    /// The same, in the order in which it was changed: a thread that polls after this sees what this thread did before.
    pub(super) fn latest(&self) -> Load {
        Load(self.0.fetch_or(0, SeqCst))
    }

    fn change(&self, may: impl Fn(Load) -> bool, by: u64) -> bool {
        let change = |word| may(Load(word)).then(|| word.wrapping_add(by));
        self.0.fetch_update(SeqCst, SeqCst, change).is_ok()
    }

    /// Take a permit, if one is free.
    #[inline]
    pub(in crate::engine) fn take(&self, limit: usize) -> bool {
        self.change(|load| load.taken() < limit, PERMIT)
    }

    /// Take a permit for a thread that is released, which polls, if one is free and fewer poll than may.
    pub(super) fn take_to_poll(&self, limit: usize, pollers: usize) -> bool {
        let may = |load: Load| load.taken() < limit && load.polling() < pollers;
        self.change(may, PERMIT + POLLING)
    }

    /// Leave a permit that is one too many.
    #[cold]
    pub(in crate::engine) fn leave_excess(&self, limit: usize, polls: bool) -> bool {
        let permit = PERMIT + if polls { POLLING } else { 0 };
        self.change(|load| load.taken() > limit, permit.wrapping_neg())
    }

    /// Leave a permit. Returns what is so now.
    pub(in crate::engine) fn leave(&self) -> Load {
        Load(self.0.fetch_sub(PERMIT, SeqCst) - PERMIT)
    }

    /// Take a permit though none may be free: a scope of blocking work has ended.
    pub(in crate::engine) fn take_back(&self) {
        self.0.fetch_add(PERMIT, SeqCst);
    }

    /// A thread that holds a permit is about to poll. Returns what is so now.
    #[inline]
    pub(in crate::engine) fn begin_polling(&self) -> Load {
        Load(self.0.fetch_add(POLLING, SeqCst) + POLLING)
    }

    #[inline]
    pub(in crate::engine) fn end_polling(&self) {
        self.0.fetch_sub(POLLING, SeqCst);
    }

    /// Set a flag. False if it was set before.
    pub(in crate::engine) fn raise(&self, flag: Flag) -> bool {
        self.0.fetch_or(flag.0, SeqCst) & flag.0 == 0
    }

    /// A thread that was on its way to what is queued is there, or is not on its way any more.
    #[inline]
    pub(in crate::engine) fn lower_waking(&self) {
        if self.load().has(Flag::WAKING) {
            self.lower(Flag::WAKING);
        }
    }

    /// Clear a flag. Returns what is so now.
    pub(in crate::engine) fn lower(&self, flag: Flag) -> Load {
        Load(self.0.fetch_and(!flag.0, SeqCst) & !flag.0)
    }
}
