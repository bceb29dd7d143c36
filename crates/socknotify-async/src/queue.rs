//! The queue of runnable tasks: who puts one in, who runs it, and who is called.
//!
//! There is one list for each place of the port, each behind a lock of its own, and one for what comes from elsewhere. A
//! thread has one that it prefers, and takes from all: so what a thread leaves behind when it blocks is nobody's own. That
//! would wait for ever behind tasks that are always ready, which come back to the lists of those who run them; so in some
//! turns a thread takes from what it does not prefer.
//!
//! A thread that runs tasks looks at all lists before it waits. Others are called, by a packet of the port:
//!
//! - at once ([`Call::Now`]) for a task that is put in by a thread that runs none, or that is about to block;
//! - after a while ([`Call::Soon`]) when a thread runs one task and others wait. It may be back before, which is cheaper
//!   than to wake another thread; it may as well block, or compute for long.
//!
//! There is at most one packet of each kind on its way. The thread that takes it says so ([`Queue::answer`]) before it
//! looks at the lists, with their locks. So either it sees a task that was put in, or whoever put that in calls again: to put
//! in and to call need no fence.

use std::collections::VecDeque;

use crate::sync::checked::{AtomicBool, AtomicUsize, Mutex, Ordering, lock};

/// When another thread is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Now,
    Soon,
}

/// One in so many turns is for other lists than that which a thread prefers.
const OTHERS: usize = 4;

pub(crate) struct Queue<T> {
    lists: Box<[List<T>]>,
    /// What threads put in that are none of the runtime's.
    elsewhere: List<T>,
    /// For each [`Call`], whether its packet is on its way.
    calls: [AtomicBool; 2],
}

struct List<T> {
    /// Read without the lock, by those who look for tasks.
    length: AtomicUsize,
    items: Mutex<VecDeque<T>>,
}

impl<T> List<T> {
    fn new() -> Self {
        List {
            length: AtomicUsize::new(0),
            items: Mutex::new(VecDeque::new()),
        }
    }

    fn put(&self, item: T) {
        let mut items = lock(&self.items);
        items.push_back(item);
        self.length.store(items.len(), Ordering::Relaxed);
    }

    fn take(&self) -> Option<T> {
        if self.length.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let mut items = lock(&self.items);
        let item = items.pop_front();
        self.length.store(items.len(), Ordering::Relaxed);
        item
    }
}

impl<T> Queue<T> {
    /// A queue of this many lists.
    pub(crate) fn new(lists: usize) -> Self {
        Queue {
            lists: (0..lists.max(1)).map(|_| List::new()).collect(),
            elsewhere: List::new(),
            calls: [AtomicBool::new(false), AtomicBool::new(false)],
        }
    }

    /// Put a task into the list of this number; without one, it comes from elsewhere.
    pub(crate) fn put(&self, list: Option<usize>, item: T) {
        let list = list.map(|list| &self.lists[list % self.lists.len()]);
        list.unwrap_or(&self.elsewhere).put(item);
    }

    /// Take a task: from this list if it has one, or what comes from elsewhere, or from another list.
    pub(crate) fn take(&self, list: usize) -> Option<T> {
        let count = self.lists.len();
        let others = || (1..count).find_map(|step| self.lists[(list + step) % count].take());
        let own = self.lists[list % count].take();
        own.or_else(|| self.elsewhere.take()).or_else(others)
    }

    /// The same, but in some turns first from elsewhere, from one list after the other, or from the longest one. Otherwise
    /// lists of unequal length stay so, and one that no running thread prefers waits.
    pub(crate) fn take_in_turn(&self, list: usize, turn: usize) -> Option<T> {
        if turn % OTHERS != 0 {
            return self.take(list);
        }
        let other = match turn / OTHERS % 4 {
            0 | 2 => self.elsewhere.take(),
            1 => self.lists[turn / (4 * OTHERS) % self.lists.len()].take(),
            _ => {
                let length = |it: &&List<T>| it.length.load(Ordering::Relaxed);
                self.lists.iter().max_by_key(length).and_then(List::take)
            }
        };
        other.or_else(|| self.take(list))
    }

    fn all(&self) -> impl Iterator<Item = &List<T>> {
        self.lists.iter().chain([&self.elsewhere])
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all()
            .all(|list| list.length.load(Ordering::Relaxed) == 0)
    }

    /// The same, with all locks: who puts in later than this sees what was written before this.
    pub(crate) fn is_surely_empty(&self) -> bool {
        let lengths = self.all().map(|list| lock(&list.items).len());
        lengths.sum::<usize>() == 0
    }

    /// True if the caller has to send the packet, as none is on its way. It has put in what it calls for, or had the lock of that
    /// list since.
    #[inline]
    pub(crate) fn call(&self, call: Call) -> bool {
        let is_called = &self.calls[call as usize];
        // Most often it is, and then nothing is written that others read.
        !is_called.load(Ordering::Relaxed) && !is_called.swap(true, Ordering::Relaxed)
    }

    /// The packet was taken. The caller looks at the lists after this.
    pub(crate) fn answer(&self, call: Call) {
        self.calls[call as usize].store(false, Ordering::Relaxed);
        self.is_surely_empty();
    }
}

#[cfg(all(test, not(interleavings)))]
mod tests {
    use super::*;

    /// Two threads, each with a list of its own, run tasks that are always ready.
    #[test]
    fn tasks_of_a_long_list_run_as_often_as_those_of_a_short_one() {
        let queue = Queue::new(2);
        (0..60).for_each(|task| queue.put(Some(0), task));
        (60..64).for_each(|task| queue.put(Some(1), task));
        let mut runs = [0; 64];
        for turn in 0..64_000 {
            let list = turn % 2;
            let task = queue.take_in_turn(list, turn / 2).expect("all are ready");
            runs[task] += 1;
            queue.put(Some(list), task);
        }
        let (least, most) = (runs.iter().min().unwrap(), runs.iter().max().unwrap());
        assert!(most < &(2 * least), "{least} {most}");
    }
    /// One thread runs tasks that are always ready, and no thread prefers the other lists.
    #[test]
    fn what_no_running_thread_prefers_and_what_comes_from_elsewhere_is_taken() {
        let queue = Queue::new(3);
        for (list, turns) in [
            (None, 2 * OTHERS),
            (Some(1), 12 * OTHERS),
            (Some(2), 12 * OTHERS),
        ] {
            (0..64).for_each(|task| queue.put(Some(0), task));
            queue.put(list, 64);
            let taken = (0..turns).any(|turn| {
                let task = queue.take_in_turn(0, turn).expect("all are ready");
                queue.put(Some(0), task);
                task == 64
            });
            assert!(taken, "{list:?}");
        }
    }
}
