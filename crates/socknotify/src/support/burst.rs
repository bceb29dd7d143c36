//! Queues that give memory back after a burst.

use std::collections::VecDeque;

/// An empty queue keeps memory for so many.
const KEPT: usize = 4096;

/// Give memory back that a burst needed, if nothing is left of it.
#[inline]
pub(crate) fn shrink<T>(queue: &mut VecDeque<T>) {
    if queue.is_empty() && queue.capacity() > KEPT {
        queue.shrink_to(KEPT);
    }
}

/// Put one behind the others. Before the queue grows, those leave that are of no use any more.
pub(crate) fn push<T>(queue: &mut VecDeque<T>, last: T, stays: impl FnMut(&T) -> bool) {
    if queue.len() == queue.capacity() {
        queue.retain(stays);
        // Not again before as many have come, however few have left.
        queue.reserve(queue.len() + 1);
    }
    queue.push_back(last);
}

/// Take the first one.
pub(crate) fn pop<T>(queue: &mut VecDeque<T>) -> Option<T> {
    let first = queue.pop_front();
    shrink(queue);
    first
}

#[cfg(all(test, not(interleavings)))]
mod tests {
    use super::*;

    #[test]
    fn what_leaves_a_long_queue_is_looked_for_seldom() {
        const STAY: usize = 1 << 12;
        let (mut queue, mut looks) = (VecDeque::with_capacity(STAY), 0);
        queue.extend(std::iter::repeat_n(true, STAY - 1));
        for _ in 0..10 * STAY {
            push(&mut queue, false, |&stays| {
                looks += 1;
                stays
            });
        }
        assert!(looks <= 30 * STAY, "{looks}");
        assert!(queue.capacity() <= 4 * STAY);
    }
}
