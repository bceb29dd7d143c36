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

/// Take the first one.
pub(crate) fn pop<T>(queue: &mut VecDeque<T>) -> Option<T> {
    let first = queue.pop_front();
    shrink(queue);
    first
}
