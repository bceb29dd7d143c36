//! The queue of runnable tasks: who puts one in, who runs it, and who is called.
//!
//! There is one list for each place of the port, each behind a lock of its own. A thread has one that it prefers, and
//! takes from all: so what a thread leaves behind when it blocks is nobody's own.
//!
//! A thread that runs tasks looks at all lists before it waits. Others are called, by a packet of the port:
//!
//! - at once ([`Call::Now`]) for a task that is put in by a thread that runs none, or that is about to block;
//! - after a while ([`Call::Soon`]) when a thread runs one task and others wait. It may be back before, which is cheaper
//!   than to wake another thread; it may as well block, or compute for long.
//!
//! There is at most one packet of each kind on its way. The thread that takes it says so ([`Queue::answer`]) before it
//! looks at the lists. So either it sees a task that was put in, or whoever put that in calls again.

use std::collections::VecDeque;

use crate::sync::checked::{AtomicBool, AtomicUsize, Mutex, Ordering, fence, lock};

/// When another thread is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Now,
    Soon,
}

/// One in so many tasks is taken from the longest list.
const OTHERS: u32 = 16;

pub(crate) struct Queue<T> {
    lists: Box<[List<T>]>,
    /// For each [`Call`], whether its packet is on its way.
    calls: [AtomicBool; 2],
}

struct List<T> {
    /// Read without the lock, by those who look for tasks.
    length: AtomicUsize,
    items: Mutex<VecDeque<T>>,
}

impl<T> List<T> {
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
        let list = || List {
            length: AtomicUsize::new(0),
            items: Mutex::new(VecDeque::new()),
        };
        Queue {
            lists: (0..lists.max(1)).map(|_| list()).collect(),
            calls: [AtomicBool::new(false), AtomicBool::new(false)],
        }
    }

    /// Put a task into the list of this number.
    pub(crate) fn put(&self, list: usize, item: T) {
        let list = &self.lists[list % self.lists.len()];
        let mut items = lock(&list.items);
        items.push_back(item);
        list.length.store(items.len(), Ordering::Relaxed);
    }

    /// Take a task, from this list if it has one, or from another.
    pub(crate) fn take(&self, list: usize) -> Option<T> {
        let count = self.lists.len();
        (0..count).find_map(|step| self.lists[(list + step) % count].take())
    }

    /// The same, but in one turn of so many from the longest list: otherwise lists of unequal length stay so.
    pub(crate) fn take_in_turn(&self, list: usize, turn: u32) -> Option<T> {
        if turn % OTHERS != 0 {
            return self.take(list);
        }
        let length = |it: &&List<T>| it.length.load(Ordering::Relaxed);
        let longest = self.lists.iter().max_by_key(length);
        longest.and_then(List::take).or_else(|| self.take(list))
    }

    pub(crate) fn is_empty(&self) -> bool {
        let mut lists = self.lists.iter();
        lists.all(|list| list.length.load(Ordering::Relaxed) == 0)
    }

    /// True if the caller has to send the packet, as none is on its way.
    #[inline]
    pub(crate) fn call(&self, call: Call) -> bool {
        // What was put in before comes before this, and the looks of those who answer after theirs.
        fence(Ordering::SeqCst);
        let is_called = &self.calls[call as usize];
        // Most often it is, and then nothing is written that others read.
        !is_called.load(Ordering::Relaxed) && !is_called.swap(true, Ordering::Relaxed)
    }

    /// The packet was taken. The caller looks at the lists after this.
    pub(crate) fn answer(&self, call: Call) {
        self.calls[call as usize].swap(false, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }
}

#[cfg(all(test, not(interleavings)))]
mod tests {
    use super::*;

    /// Two threads, each with a list of its own, run tasks that are always ready.
    #[test]
    fn tasks_of_a_long_list_run_as_often_as_those_of_a_short_one() {
        let queue = Queue::new(2);
        (0..60).for_each(|task| queue.put(0, task));
        (60..64).for_each(|task| queue.put(1, task));
        let mut runs = [0; 64];
        for turn in 0..64_000 {
            let list = turn as usize % 2;
            let task = queue.take_in_turn(list, turn / 2).expect("all are ready");
            runs[task] += 1;
            queue.put(list, task);
        }
        let (least, most) = (runs.iter().min().unwrap(), runs.iter().max().unwrap());
        assert!(most < &(2 * least), "{least} {most}");
    }
}
