//! What a thread keeps of the ports that it has dequeued from: [`Record`]; and what others see of it: [`Holder`].
//!
//! Only the thread itself writes either. When it ends, or dequeues from another port, it gives its permit back, and arms the
//! level-triggered registrations that it was notified of.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::thread::ThreadId;

use super::scheduler::Parker;
use crate::engine::{Backend, Engine, Scratch};
use crate::os::Fd;
use crate::support::sync::AtomicU64;

/// Level-triggered registrations that were delivered to a thread, with their generations.
pub(in crate::engine) type Levels = Vec<(Fd, u32)>;

/// Whether threads are known by their `ThreadId`. For one that another language has started, the standard library allocates to
/// have one, and memory checkers count that as possibly lost.
static NAMES_THREADS: AtomicBool = AtomicBool::new(true);

pub(crate) fn leave_threads_unnamed() {
    NAMES_THREADS.store(false, Ordering::Relaxed);
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
pub(crate) struct Holder {
    word: AtomicU64,
    /// How many packets a worker has taken of those that the thread has dequeued, and the key of the last one.
    taken: AtomicUsize,
    key: AtomicUsize,
    /// `None` if it was ending, or if nobody is told of slow threads.
    pub(super) id: Option<ThreadId>,
}

impl Holder {
    pub(super) fn new(id: Option<ThreadId>) -> Self {
        Holder {
            word: AtomicU64::new(0),
            taken: AtomicUsize::new(0),
            key: AtomicUsize::new(0),
            id,
        }
    }

    /// Tells it from the others.
    #[inline]
    pub(in crate::engine) fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Its worker takes a packet with this key.
    #[inline]
    pub(crate) fn take(&self, key: usize) {
        self.key.store(key, Ordering::Relaxed);
        // As a rule nobody else writes it. A worker that was moved to another thread may: a slow thread is dated wrong then.
        let taken = self.taken.load(Ordering::Relaxed);
        self.taken.store(taken.wrapping_add(1), Ordering::Release);
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

    /// It has the permit again that it lent, with what it had dequeued. False if it has dequeued meanwhile, and so has one already.
    pub(in crate::engine) fn resume_run(&self) -> bool {
        let word = self.word.load(Ordering::Relaxed);
        self.set(word | Word::RUNS);
        word & Word::RUNS == 0
    }

    /// How many packets its worker has taken, and the key of the last one.
    pub(super) fn taken(&self) -> (usize, Option<usize>) {
        let taken = self.taken.load(Ordering::Acquire);
        let key = self.key.load(Ordering::Relaxed);
        (taken, (taken > 0).then_some(key))
    }
}

/// What a thread keeps of a port that it has dequeued from.
pub(in crate::engine) struct Record<B: Backend> {
    /// Its address tells a port from others for as long as this is there.
    engine: Weak<Engine<B>>,
    pub(in crate::engine) holder: Arc<Holder>,
    pub(in crate::engine) parker: Parker,
    pub(in crate::engine) scratch: Scratch<B::Memory>,
}

impl<B: Backend> Record<B> {
    #[cold]
    fn new(engine: &Arc<Engine<B>>) -> Box<Self> {
        let id = match NAMES_THREADS.load(Ordering::Relaxed) {
            true => with_thread(|_: &mut Thread<B>| std::thread::current().id()),
            false => None,
        };
        Box::new(Record {
            engine: Arc::downgrade(engine),
            holder: engine.join(id),
            parker: Parker::default(),
            scratch: Scratch::default(),
        })
    }

    #[inline]
    fn is_of(&self, port: &Engine<B>) -> bool {
        std::ptr::eq(self.engine.as_ptr(), port)
    }

    /// The thread gives its permit back. False if it holds none.
    pub(in crate::engine) fn give_back(&mut self) -> bool {
        let runs = self.holder.end_run();
        if let (true, Some(engine)) = (runs, self.engine.upgrade()) {
            engine.on_given_back(&mut self.scratch);
        }
        runs
    }
}

impl<B: Backend> Drop for Record<B> {
    fn drop(&mut self) {
        self.give_back();
        if let Some(engine) = self.engine.upgrade() {
            engine.on_ended(&self.holder);
        }
    }
}

/// What a thread keeps of the ports over one backend.
pub(crate) struct Thread<B: Backend> {
    /// The port that it dequeued from last, unless it does so now.
    current: Option<Box<Record<B>>>,
    others: Vec<Box<Record<B>>>,
}

/// What each backend has a [static](Backend::thread) of.
pub(crate) type ThisThread<B> = RefCell<Thread<B>>;

impl<B: Backend> Default for Thread<B> {
    fn default() -> Self {
        Thread {
            current: None,
            others: Vec::new(),
        }
    }
}

/// `None` while the thread ends.
#[inline]
fn with_thread<B: Backend, R>(work: impl FnOnce(&mut Thread<B>) -> R) -> Option<R> {
    let done = B::thread().try_with(|thread| Some(work(&mut *thread.try_borrow_mut().ok()?)));
    done.ok().flatten()
}

/// The thread's record of this port, if it dequeued from that last.
#[inline]
pub(in crate::engine) fn take_current<B: Backend>(port: &Engine<B>) -> Option<Box<Record<B>>> {
    with_thread(|thread| thread.current.take_if(|it| it.is_of(port))).flatten()
}

/// The thread's record of this port, made if there is none. A permit of another port is given back.
#[inline]
pub(in crate::engine) fn take<B: Backend>(port: &Arc<Engine<B>>) -> Box<Record<B>> {
    take_current(port).unwrap_or_else(|| change(port))
}

#[cold]
fn change<B: Backend>(port: &Arc<Engine<B>>) -> Box<Record<B>> {
    let before: Option<Box<Record<B>>> = with_thread(|thread| thread.current.take()).flatten();
    if let Some(mut before) = before {
        before.give_back();
        with_thread(|thread| thread.others.push(before));
    }
    let found = with_thread(|thread| {
        // Those of ports that are gone leave.
        let others = &mut thread.others;
        others.retain(|it| it.engine.strong_count() > 0);
        let index = others.iter().position(|it| it.is_of(port))?;
        Some(others.swap_remove(index))
    });
    found.flatten().unwrap_or_else(|| Record::new(port))
}

/// Put back the record of a call that ends. While the thread ends, it is dropped: nothing else would say when that has ended.
#[inline]
pub(in crate::engine) fn put<B: Backend>(record: Box<Record<B>>) {
    let inner = with_thread(|thread| thread.current.replace(record));
    // A call within this one was of another port. Its permit is given back.
    drop(inner);
}

/// Work with the thread's record of this port. `None` if it dequeued from another one last, or from none.
pub(in crate::engine) fn with_current<B: Backend, R>(
    port: &Engine<B>,
    work: impl FnOnce(&mut Record<B>) -> R,
) -> Option<R> {
    let mut current = take_current(port)?;
    let done = work(&mut current);
    put(current);
    Some(done)
}
