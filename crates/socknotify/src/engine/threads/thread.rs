//! What a thread keeps of the ports that it has dequeued from: [`Record`]; and what others see of it: [`Holder`].
//!
//! Only the thread itself writes either. When it ends, or dequeues from another port, it gives its permit back, and arms the
//! level-triggered registrations that it was notified of.

use std::any::Any;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::mem;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::thread::ThreadId;

use super::scheduler::Parker;
use crate::os::Fd;
use crate::support::sync::{AtomicU64, Mutex, lock, thread_local};

/// Level-triggered registrations that were delivered to a thread, with their generations.
pub(in crate::engine) type Levels = Vec<(Fd, u32)>;

/// Whether threads are known by their `ThreadId`. For one that another language has started, the standard library allocates to
/// have one, and memory checkers count that as possibly lost.
static NAMES_THREADS: AtomicBool = AtomicBool::new(true);

pub(crate) fn leave_threads_unnamed() {
    NAMES_THREADS.store(false, Ordering::Relaxed);
}

/// How many packets a worker has taken of those that it has dequeued, and the key of the last one.
#[derive(Debug, Default)]
pub(crate) struct Taking {
    count: AtomicUsize,
    key: AtomicUsize,
}

impl Taking {
    /// The worker takes a packet with this key.
    #[inline]
    pub(crate) fn take(&self, key: usize) {
        self.key.store(key, Ordering::Relaxed);
        // Nobody else writes it.
        let count = self.count.load(Ordering::Relaxed);
        self.count.store(count.wrapping_add(1), Ordering::Release);
    }

    pub(super) fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    pub(crate) fn key(&self) -> usize {
        self.key.load(Ordering::Relaxed)
    }
}

/// What a thread does in a port, and how many times it has dequeued.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Word(u64);

impl Word {
    /// It has dequeued and not handled, and holds a permit.
    const RUNS: u64 = 1;
    const DEQUEUE: u64 = 2;

    pub(super) fn runs(self) -> bool {
        self.0 & Self::RUNS != 0
    }

    /// How many times it has dequeued.
    pub(super) fn dequeues(self) -> u64 {
        self.0 / Self::DEQUEUE
    }
}

/// A thread, as a port sees it.
pub(in crate::engine) struct Holder {
    word: AtomicU64,
    /// Where the worker that it has dequeued with says what it has taken.
    taking: Mutex<Option<Arc<Taking>>>,
    /// `None` if it was ending, or if nobody is told of slow threads.
    pub(super) id: Option<ThreadId>,
}

impl Holder {
    pub(super) fn new() -> Self {
        Holder {
            word: AtomicU64::new(0),
            taking: Mutex::new(None),
            id: match NAMES_THREADS.load(Ordering::Relaxed) {
                true => with_thread(|_| std::thread::current().id()),
                false => None,
            },
        }
    }

    pub(super) fn word(&self) -> Word {
        Word(self.word.load(Ordering::Acquire))
    }

    fn set(&self, word: u64) {
        self.word.store(word, Ordering::Release);
    }

    /// It begins a call, or gives its permit back. True if it holds one.
    #[inline]
    pub(in crate::engine) fn end_run(&self) -> bool {
        let word = self.word.load(Ordering::Relaxed);
        if word & Word::RUNS == 0 {
            return false;
        }
        self.set(word & !Word::RUNS);
        true
    }

    /// It returns with packets.
    #[inline]
    pub(in crate::engine) fn begin_run(&self) {
        let word = self.word.load(Ordering::Relaxed);
        self.set(word.wrapping_add(Word::DEQUEUE) | Word::RUNS);
    }

    /// It has its permit again, with what it had dequeued.
    fn resume_run(&self) {
        self.set(self.word.load(Ordering::Relaxed) | Word::RUNS);
    }

    pub(in crate::engine) fn set_taking(&self, taking: Option<&Arc<Taking>>) {
        *lock(&self.taking) = taking.cloned();
    }

    /// How many packets its worker has taken, and the key of the last one. `None` if it has no worker.
    pub(super) fn taken(&self) -> Option<(usize, usize)> {
        let taking = lock(&self.taking);
        taking.as_ref().map(|it| (it.count(), it.key()))
    }
}

/// A port, as far as a thread that holds a permit of it is concerned.
pub(in crate::engine) trait Permits: Send + Sync {
    /// The thread has given its permit back, with these levels.
    fn on_given_back(&self, levels: &mut Levels);

    /// The thread has ended.
    fn on_ended(&self, holder: &Arc<Holder>);
}

/// What a thread keeps of a port that it has dequeued from.
pub(in crate::engine) struct Record {
    port: u32,
    permits: Weak<dyn Permits>,
    pub(in crate::engine) holder: Arc<Holder>,
    pub(in crate::engine) parker: Parker,
    pub(in crate::engine) levels: Levels,
    /// Memory of its calls.
    pub(in crate::engine) scratch: Option<Box<dyn Any>>,
}

impl Record {
    pub(in crate::engine) fn new(
        port: u32,
        permits: Weak<dyn Permits>,
        holder: Arc<Holder>,
    ) -> Self {
        Record {
            port,
            permits,
            holder,
            parker: Parker::default(),
            levels: Levels::new(),
            scratch: None,
        }
    }

    /// The thread gives its permit back, if it holds one.
    fn give_back(&mut self) {
        if self.holder.end_run() {
            if let Some(permits) = self.permits.upgrade() {
                permits.on_given_back(&mut self.levels);
            }
        }
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        self.give_back();
        if let Some(permits) = self.permits.upgrade() {
            permits.on_ended(&self.holder);
        }
    }
}

/// A thread's relation to ports.
#[derive(Default)]
struct Thread {
    /// The port that it dequeued from last, unless it does so now.
    current: Option<Box<Record>>,
    /// By port.
    others: BTreeMap<u32, Box<Record>>,
}

impl Thread {
    /// The record of this port, if the thread dequeued from that last.
    fn current(&mut self, port: u32) -> Option<&mut Record> {
        self.current.as_deref_mut().filter(|it| it.port == port)
    }
}

thread_local! {
    static THREAD: RefCell<Thread> = RefCell::new(Thread::default());
}

/// `None` while the thread ends.
#[inline]
fn with_thread<R>(work: impl FnOnce(&mut Thread) -> R) -> Option<R> {
    let done = THREAD.try_with(|thread| Some(work(&mut *thread.try_borrow_mut().ok()?)));
    done.ok().flatten()
}

/// The thread's record of this port, made by `new` if there is none. A permit of another port is given back. `None` while the
/// thread ends.
#[inline]
pub(in crate::engine) fn take(port: u32, new: impl FnOnce() -> Box<Record>) -> Option<Box<Record>> {
    let taken = with_thread(|thread| thread.current.take_if(|it| it.port == port))?;
    taken.or_else(|| change(port, new))
}

#[cold]
fn change(port: u32, new: impl FnOnce() -> Box<Record>) -> Option<Box<Record>> {
    let mut before = with_thread(|thread| thread.current.take())?;
    if let Some(before) = &mut before {
        before.give_back();
    }
    let found = with_thread(|thread| {
        if let Some(before) = before {
            thread.others.insert(before.port, before);
        }
        let found = thread.others.remove(&port);
        if found.is_none() {
            // Those of ports that are gone, since there will be one more.
            let is_there = |it: &Record| it.permits.strong_count() > 0;
            thread.others.retain(|_, it| is_there(it));
        }
        found
    })?;
    Some(found.unwrap_or_else(new))
}

/// Put back the record of a call that ends.
#[inline]
pub(in crate::engine) fn put(record: Box<Record>) {
    let inner = with_thread(|thread| thread.current.replace(record));
    // A call within this one was of another port. Its permit is given back.
    drop(inner);
}

/// Work with the memory of this thread's calls on this port, if there is some.
pub(in crate::engine) fn with_scratch(port: u32, work: impl FnOnce(&mut Option<Box<dyn Any>>)) {
    let kept = with_thread(|thread| thread.current(port)?.scratch.take());
    let mut scratch = kept.flatten();
    work(&mut scratch);
    with_thread(|thread| {
        if let Some(current) = thread.current(port) {
            current.scratch = scratch;
        }
    });
}

/// This thread gives its permit of this port back. Returns what it was notified of, and `None` if it holds none.
pub(in crate::engine) fn lend(port: u32) -> Option<Levels> {
    with_thread(|thread| {
        let current = thread.current(port)?;
        let runs = current.holder.end_run();
        runs.then(|| mem::take(&mut current.levels))
    })
    .flatten()
}

/// What this thread was notified of by this port, which it keeps no more.
pub(in crate::engine) fn take_levels(port: u32) -> Levels {
    let taken = with_thread(|thread| Some(mem::take(&mut thread.current(port)?.levels)));
    taken.flatten().unwrap_or_default()
}

/// Give this thread the permit back that it lent. False if it has dequeued meanwhile, and so has one already, here or of
/// another port.
pub(in crate::engine) fn restore(port: u32) -> bool {
    with_thread(|thread| match thread.current(port) {
        Some(current) if !current.holder.word().runs() => {
            current.holder.resume_run();
            true
        }
        _ => false,
    }) == Some(true)
}
