//! What workers have dequeued and not taken, or handed back and not armed, flows on when their threads block.
//!
//! The kernel sees that a thread blocks, and releases another one. But it knows nothing of the packets that the first has
//! dequeued. So one thread that waits looks, from [`FIRST_TICK`] up to [`LAST_TICK`], at the threads of workers that have
//! events in hand. One whose [`Progress`] is missing is blocked, or kept from a processor for long.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use crate::handover::Handover;
use crate::lock::lock;
use crate::sys::thread_state::{Look, Progress, ThreadState};

/// The first time after which a thread that waits looks at others.
pub(super) const FIRST_TICK: Duration = Duration::from_millis(1);
/// And the last, while nothing changes.
pub(super) const LAST_TICK: Duration = Duration::from_millis(4);

/// A worker on one thread, as others see it.
pub(super) struct Keeper {
    port: u32,
    handover: Weak<dyn Handover>,
    id: ThreadId,
    thread: ThreadState,
    /// Odd while it has events in hand.
    calls: AtomicU64,
}

impl Keeper {
    fn is_of(&self, port: u32, handover: &Arc<dyn Handover>) -> bool {
        self.port == port && std::ptr::addr_eq(self.handover.as_ptr(), Arc::as_ptr(handover))
    }

    /// It has nothing in hand any more. True if it had.
    fn leave(&self) -> bool {
        let calls = self.calls.load(Ordering::SeqCst);
        let order = Ordering::SeqCst;
        // Another thread may do the same.
        calls % 2 == 1
            && self
                .calls
                .compare_exchange(calls, calls + 1, order, order)
                .is_ok()
    }
}

thread_local! {
    /// Of this thread's last call with a handover.
    static KEEPER: RefCell<Option<Arc<Keeper>>> = const { RefCell::new(None) };
}

/// A keeper that was looked at.
struct Seen {
    keeper: Arc<Keeper>,
    calls: u64,
    progress: Progress,
    has_flowed_on: bool,
}

/// The keepers of a port.
pub(super) struct Keepers {
    port: u32,
    all: Mutex<Vec<Seen>>,
    /// How many have events in hand.
    in_hand: AtomicUsize,
    is_looking: AtomicBool,
}

impl Keepers {
    pub(super) fn new() -> Self {
        static PORTS: AtomicU32 = AtomicU32::new(1);
        Keepers {
            port: PORTS.fetch_add(1, Ordering::Relaxed),
            all: Mutex::default(),
            in_hand: AtomicUsize::new(0),
            is_looking: AtomicBool::new(false),
        }
    }

    /// A worker dequeues on this thread: it has nothing in hand. `None` while the thread ends.
    pub(super) fn begin(&self, handover: &Arc<dyn Handover>) -> Option<Arc<Keeper>> {
        let keeper = KEEPER.try_with(|kept| {
            let mut kept = kept.try_borrow_mut().ok()?;
            let known = kept
                .as_ref()
                .filter(|keeper| keeper.is_of(self.port, handover));
            let keeper = match known {
                Some(keeper) => Arc::clone(keeper),
                None => kept.insert(self.find(handover)).clone(),
            };
            Some(keeper)
        });
        let keeper = keeper.ok().flatten()?;
        self.leave(&keeper);
        Some(keeper)
    }

    fn leave(&self, keeper: &Keeper) {
        if keeper.leave() {
            self.in_hand.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// The keeper of a worker on this thread. On others it has nothing in hand.
    #[cold]
    fn find(&self, handover: &Arc<dyn Handover>) -> Arc<Keeper> {
        let mut all = lock(&self.all);
        all.retain(|seen| {
            let is_there = seen.keeper.handover.strong_count() > 0;
            if !is_there || seen.keeper.is_of(self.port, handover) {
                self.leave(&seen.keeper);
            }
            is_there
        });
        let id = thread::current().id();
        let is_it = |seen: &&Seen| seen.keeper.id == id && seen.keeper.is_of(self.port, handover);
        if let Some(seen) = all.iter().find(is_it) {
            return Arc::clone(&seen.keeper);
        }
        let keeper = Arc::new(Keeper {
            port: self.port,
            handover: Arc::downgrade(handover),
            id,
            thread: ThreadState::of_this(),
            calls: AtomicU64::new(0),
        });
        all.push(Seen {
            keeper: Arc::clone(&keeper),
            calls: 0,
            progress: Progress::default(),
            has_flowed_on: false,
        });
        keeper
    }

    /// The worker returns with so many events.
    pub(super) fn end(&self, keeper: &Keeper, events: usize) {
        if events > 0 {
            self.in_hand.fetch_add(1, Ordering::SeqCst);
            keeper.calls.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Whether somebody has events in hand, and nobody looks.
    pub(super) fn must_look(&self) -> bool {
        self.in_hand.load(Ordering::SeqCst) > 0 && !self.is_looking.load(Ordering::SeqCst)
    }

    /// This thread is about to wait. True if it is to look meanwhile.
    pub(super) fn begin_to_look(&self) -> bool {
        self.must_look() && !self.is_looking.swap(true, Ordering::SeqCst)
    }

    pub(super) fn end_to_look(&self) {
        self.is_looking.store(false, Ordering::SeqCst);
    }

    /// Look at the threads that have events in hand, and let those events flow on if the thread is blocked. True if one has dequeued
    /// since the last look.
    pub(super) fn look(&self) -> bool {
        let now = Instant::now();
        let mut has_moved = false;
        let mut blocked = Vec::new();
        let mut all = lock(&self.all);
        all.retain_mut(|seen| {
            let Some(handover) = seen.keeper.handover.upgrade() else {
                self.leave(&seen.keeper);
                return false;
            };
            let calls = seen.keeper.calls.load(Ordering::SeqCst);
            if calls != seen.calls {
                has_moved = true;
                seen.calls = calls;
                seen.progress = Progress::default();
            }
            if calls % 2 == 0 {
                blocked.push((handover, false));
                return true;
            }
            let look = seen.keeper.thread.look();
            let flows_on = match look {
                Look::Ended => true,
                Look::Time(time) => {
                    let is_blocked = seen.progress.is_missing(time, now);
                    let has_flowed_on = std::mem::replace(&mut seen.has_flowed_on, is_blocked);
                    is_blocked && !has_flowed_on
                }
                _ => false,
            };
            if look == Look::Ended {
                self.leave(&seen.keeper);
            }
            blocked.push((handover, flows_on));
            true
        });
        drop(all);
        // Each may be the last of its worker, and is dropped without the lock.
        for (handover, flows_on) in blocked {
            if flows_on {
                handover.flow_on();
            }
        }
        has_moved
    }
}
