//! What a runtime knows of one socket: whether it is ready, and who waits for that.
//!
//! A socket is registered once, for edges in both directions; one that was accepted when a task waits for it, first for reading
//! alone, and only if it still waits when the poll of that task is over: a short connection may have ended by then. Readiness is
//! kept here until an operation finds that it has gone; so an operation on a socket that is ready costs its own system call, and
//! no other.

use std::io;
use std::sync::{Arc, PoisonError, RwLock};
use std::task::{Context, Poll, Waker};

use slab::Slab;
use socknotify::{Entry, Events};

use crate::context;
use crate::sync::Waiter;
use crate::sync::checked::{AtomicBool, AtomicU32, Mutex, Ordering, lock};

/// A direction in which a socket is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Read,
    Write,
}

/// One socket.
#[derive(Debug, Default)]
pub(crate) struct Source {
    /// Its place among the sources.
    pub(crate) key: usize,
    /// For no direction, for reading, or for both.
    registered: AtomicU32,
    /// It is to be registered for reading when a poll is over, or that has failed. Changed by those who have the lock of `register`,
    /// and by a task that waits.
    is_put_off: AtomicBool,
    directions: [State; 2],
}

/// One direction of a socket.
#[derive(Debug, Default)]
struct State {
    /// Flags, and above them a count of reports.
    word: AtomicU32,
    waiting: Mutex<Waiting>,
    /// For [`context::spend`].
    was_refused: std::sync::atomic::AtomicBool,
}

const READY: u32 = 1;
/// The peer has hung up, or there is an error: the last edge has come.
const OVER: u32 = 2;
/// The runtime has shut down.
const CLOSED: u32 = 4;
/// It counts as ready only because nothing is known of it: nothing was tried, or reported.
const GUESS: u32 = 8;
const REPORT: u32 = 16;

/// How many tasks wait as the only one, because they took each other's place. Beyond it, all are woken, and try again.
const DISPLACED: usize = 8;

/// What was seen of a direction when it was ready.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen(u32);

/// Who waits for one direction.
#[derive(Debug, Default)]
struct Waiting {
    /// The task that has polled last: one that reads, or one that writes.
    task: Option<Waiter>,
    /// Others, each under a number of its own; and under 0 those whose place that task has taken.
    others: Vec<(u64, Waiter)>,
    last: u64,
}

impl Waiting {
    /// The task's place was taken. Returns those that are to be woken.
    fn displace(&mut self, before: Waiter) -> Vec<Waiter> {
        let is_displaced = |(number, _): &(u64, Waiter)| *number == 0;
        let mut all = self.others.iter().filter(|it| is_displaced(it));
        if all.any(|(_, other)| other.will_wake(before.waker())) {
            return Vec::new();
        }
        self.others.push((0, before));
        if self.others.iter().filter(|it| is_displaced(it)).count() <= DISPLACED {
            return Vec::new();
        }
        // Together: those of one task, which was polled with another waker each time, have it polled once.
        let all = std::mem::take(&mut self.others);
        let (displaced, others) = all.into_iter().partition::<Vec<_>, _>(is_displaced);
        self.others = others;
        displaced.into_iter().map(|(_, waiter)| waiter).collect()
    }
}

impl State {
    /// Waits without an allocation, as the only task that does.
    fn poll(&self, cx: &Context<'_>) -> Poll<Seen> {
        self.poll_by(|| {
            let mut waiting = lock(&self.waiting);
            let task = waiting.task.as_ref();
            if task.is_some_and(|task| task.will_wake(cx.waker())) {
                return;
            }
            let before = waiting.task.replace(Waiter::new(cx.waker()));
            let displaced = before.map(|before| waiting.displace(before));
            drop(waiting);
            displaced.into_iter().flatten().for_each(Waiter::wake);
        })
    }

    /// Waits beside others. `number` is 0 before the first call.
    fn poll_beside(&self, cx: &Context<'_>, number: &mut u64) -> Poll<Seen> {
        self.poll_by(|| {
            let mut waiting = lock(&self.waiting);
            if *number == 0 {
                waiting.last += 1;
                *number = waiting.last;
            }
            let mut others = waiting.others.iter_mut();
            let before = match others.find(|(other, _)| other == number) {
                Some((_, waiter)) if waiter.will_wake(cx.waker()) => None,
                Some((_, waiter)) => Some(std::mem::replace(waiter, Waiter::new(cx.waker()))),
                None => {
                    let waiter = Waiter::new(cx.waker());
                    waiting.others.push((*number, waiter));
                    None
                }
            };
            // Dropping a waker may run any code.
            drop(waiting);
            drop(before);
        })
    }

    fn poll_by(&self, wait: impl FnOnce()) -> Poll<Seen> {
        let ready = || {
            let word = self.word.load(Ordering::Acquire);
            (word & (READY | CLOSED) != 0).then_some(Seen(word))
        };
        if let Some(seen) = ready() {
            return Poll::Ready(seen);
        }
        wait();
        // A report may have come before anyone waited.
        ready().map_or(Poll::Pending, Poll::Ready)
    }

    /// It is ready no more, unless a report has come since this was seen.
    fn clear(&self, Seen(word): Seen) {
        let order = Ordering::AcqRel;
        let _ = self
            .word
            .compare_exchange(word, word & !(READY | GUESS), order, Ordering::Relaxed);
    }

    /// Tasks of anyone else's come to `foreign`, to be woken last.
    fn report(&self, flags: u32, foreign: &mut Vec<Waker>) {
        let add = |word: u32| Some((word & !GUESS | flags).wrapping_add(REPORT));
        let (order, relaxed) = (Ordering::AcqRel, Ordering::Relaxed);
        let before = self.word.fetch_update(order, relaxed, add);
        if flags & CLOSED == 0 && before.is_ok_and(|word| word & READY != 0) {
            // Whoever made it ready wakes those who waited, and since then nobody has waited.
            return;
        }
        let mut waiting = lock(&self.waiting);
        let task = waiting.task.take();
        let others = std::mem::take(&mut waiting.others);
        drop(waiting);
        let others = others.into_iter().map(|(_, waiter)| waiter);
        task.into_iter()
            .chain(others)
            .for_each(|waiter| waiter.wake_own(foreign));
    }
}

impl Source {
    fn state(&self, direction: Direction) -> &State {
        &self.directions[direction as usize]
    }

    /// An operation is about to be done: see [`context::spend`].
    #[inline]
    pub(crate) fn spend(&self, cx: &Context<'_>, direction: Direction) -> Poll<()> {
        context::spend(cx, &self.state(direction).was_refused)
    }

    /// Waits until it is ready, as the only task that waits for this direction.
    #[inline]
    pub(crate) fn poll(&self, cx: &Context<'_>, direction: Direction) -> Poll<io::Result<Seen>> {
        self.state(direction).poll(cx).map(check)
    }

    /// The same, beside others. See [`State::poll_beside`].
    pub(crate) fn poll_beside(
        &self,
        cx: &Context<'_>,
        direction: Direction,
        number: &mut u64,
    ) -> Poll<io::Result<Seen>> {
        self.state(direction).poll_beside(cx, number).map(check)
    }

    /// One that has waited beside others does not any more.
    pub(crate) fn forget(&self, direction: Direction, number: u64) {
        let mut waiting = lock(&self.state(direction).waiting);
        let mut others = waiting.others.iter();
        let index = others.position(|(other, _)| *other == number);
        let waker = index.map(|index| waiting.others.swap_remove(index));
        drop(waiting);
        drop(waker);
    }

    /// What can be told without waiting.
    pub(crate) fn seen(&self, direction: Direction) -> Seen {
        Seen(self.state(direction).word.load(Ordering::Acquire))
    }

    /// If nothing is known of it yet, wait for the report of what holds already.
    pub(crate) fn doubt(&self, direction: Direction) {
        let seen = self.seen(direction);
        if seen.0 & GUESS != 0 {
            self.clear(direction, seen);
        }
    }

    /// An operation would have blocked.
    pub(crate) fn clear(&self, direction: Direction, seen: Seen) {
        self.state(direction).clear(seen);
    }

    /// Have it registered for this direction, if nobody has yet. `tells`: what holds already is reported then. Otherwise whoever has
    /// tried before tries again.
    pub(crate) fn register<E>(
        &self,
        direction: Direction,
        tells: bool,
        register: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        // Two tasks may come here at once. This lock is as good as another.
        let _waiting = lock(&self.directions[0].waiting);
        if !self.is_registered(direction) {
            register()?;
            if !tells {
                // What they have seen is out of date.
                for state in &self.directions {
                    state.word.fetch_add(REPORT, Ordering::AcqRel);
                }
            }
            let registered = 1 + direction as u32;
            self.registered.store(registered, Ordering::Release);
        }
        Ok(())
    }

    /// A task waits to read: it is to be [registered](Self::register_put_off) when the task's poll is over. False if that was said
    /// before: who asks twice in a poll waits inside of it.
    #[cfg(unix)]
    pub(crate) fn put_off(&self) -> bool {
        !self.is_put_off.swap(true, Ordering::AcqRel)
    }

    /// The poll is over. Nothing is done if the socket is [about to be closed](Self::leaves). If it fails, who waits tries once more,
    /// and gets the error.
    #[cfg(unix)]
    pub(crate) fn register_put_off<E>(&self, register: impl FnOnce() -> Result<(), E>) {
        let tried = self.register(Direction::Read, true, || {
            match self.is_put_off.load(Ordering::Acquire) {
                true => register().map_err(Some),
                false => Err(None),
            }
        });
        match tried {
            Ok(()) => self.is_put_off.store(false, Ordering::Release),
            Err(None) => {}
            Err(Some(_)) => {
                let mut foreign = Vec::new();
                self.state(Direction::Read).report(READY, &mut foreign);
                foreign.into_iter().for_each(crate::sync::wake);
            }
        }
    }

    /// The socket is about to be closed, or to be somebody else's.
    pub(crate) fn leaves(&self) {
        if self.is_put_off.load(Ordering::Acquire) {
            let _waiting = lock(&self.directions[0].waiting);
            self.is_put_off.store(false, Ordering::Release);
        }
    }

    /// What is registered for writing is for reading, too.
    #[inline]
    pub(crate) fn is_registered(&self, direction: Direction) -> bool {
        self.registered.load(Ordering::Acquire) > direction as u32
    }

    /// An operation has taken what was there. If the stream has ended, no other report comes.
    #[inline]
    pub(crate) fn drained(&self, direction: Direction, seen: Seen) {
        if seen.0 & OVER == 0 {
            self.clear(direction, seen);
        }
    }

    pub(crate) fn report(&self, events: Events, foreign: &mut Vec<Waker>) {
        let is_over = events.intersects(Events::HANGUP | Events::ERR);
        let flags = if is_over { READY | OVER } else { READY };
        if is_over || events.contains(Events::IN) {
            self.state(Direction::Read).report(flags, foreign);
        }
        if is_over || events.contains(Events::OUT) {
            self.state(Direction::Write).report(flags, foreign);
        }
    }
}

fn check(seen: Seen) -> io::Result<Seen> {
    match seen.0 & CLOSED {
        0 => Ok(seen),
        _ => Err(shut_down()),
    }
}

/// The error of what needs a runtime that has shut down.
pub(crate) fn shut_down() -> io::Error {
    io::Error::other("the runtime has shut down")
}

/// The sockets of a runtime. Their keys are those of their registrations.
#[derive(Debug, Default)]
pub(crate) struct Sources(RwLock<Slab<Arc<Source>>>);

impl Sources {
    /// A new one. It counts as ready until an operation finds otherwise.
    pub(crate) fn add(&self) -> Arc<Source> {
        let mut sources = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let place = sources.vacant_entry();
        let source = Arc::new(Source {
            key: place.key(),
            ..Source::default()
        });
        for state in &source.directions {
            state.word.store(READY | GUESS, Ordering::Relaxed);
        }
        Arc::clone(place.insert(source))
    }

    pub(crate) fn remove(&self, source: &Source) {
        let mut sources = self.0.write().unwrap_or_else(PoisonError::into_inner);
        sources.remove(source.key);
    }

    fn get(&self, key: usize) -> Option<Arc<Source>> {
        let sources = self.0.read().unwrap_or_else(PoisonError::into_inner);
        sources.get(key).cloned()
    }

    /// Wake those who wait for what is reported. A report of a socket that was closed meanwhile may go to the one that
    /// has its key now, which looks once in vain. Tasks of anyone else's come to `foreign`.
    pub(crate) fn dispatch(&self, entries: &[Entry], foreign: &mut Vec<Waker>) {
        for entry in entries {
            if let Some(source) = self.get(entry.completion_key) {
                source.report(entry.events(), foreign);
            }
        }
    }

    /// Every operation that waits fails. Tasks of anyone else's come to `foreign`.
    pub(crate) fn close(&self, foreign: &mut Vec<Waker>) {
        let sources = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let all: Vec<_> = sources
            .iter()
            .map(|(_, source)| Arc::clone(source))
            .collect();
        drop(sources);
        for source in all {
            for state in &source.directions {
                state.report(CLOSED, foreign);
            }
        }
    }
}

#[cfg(all(test, unix, not(interleavings)))]
mod tests {
    use super::*;

    /// The waker of somebody's executor.
    struct Panics;

    impl std::task::Wake for Panics {
        fn wake(self: Arc<Self>) {
            std::panic::resume_unwind(Box::new("a fault"));
        }
    }

    /// Who waits is woken, whatever comes of that, tries again, and gets the error then.
    #[test]
    fn a_registration_that_fails_when_a_poll_is_over_is_tried_once_more() {
        let source = Sources::default().add();
        let waker = Waker::from(Arc::new(Panics));
        let cx = Context::from_waker(&waker);
        let seen = source.seen(Direction::Read);
        source.clear(Direction::Read, seen);
        assert!(source.poll(&cx, Direction::Read).is_pending());
        assert!(source.put_off());
        source.register_put_off(|| Err(5));
        assert!(source.poll(&cx, Direction::Read).is_ready());
        assert!(!source.put_off(), "it is tried at once");
        let tried = source.register(Direction::Read, true, || Err(6));
        assert_eq!(tried, Err(6));
        // What is about to be closed is not registered, nor what is registered already.
        source.leaves();
        source.register_put_off(|| -> Result<(), ()> { panic!("it leaves") });
        assert!(source.put_off());
        source.register_put_off(|| Ok::<_, ()>(()));
        assert!(source.is_registered(Direction::Read));
        source.register_put_off(|| -> Result<(), ()> { panic!("it is registered") });
    }
}
