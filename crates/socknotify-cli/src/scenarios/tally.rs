//! What a scenario counts while it runs.

use std::sync::atomic::{AtomicU64, Ordering};

/// The totals of one scenario, counted by all its threads.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Clients that the server has met.
    pub(crate) connections: Counter,
    /// Bytes that the server has received.
    pub(crate) bytes: Counter,
    /// Socket notifications that the server has dequeued.
    pub(crate) notifications: Counter,
    /// Those among them with the REMOVE bit.
    pub(crate) removals: Counter,
    /// Packets that were posted.
    pub(crate) posts: Counter,
    /// Datagrams that clients sent again because no acknowledgement came.
    pub(crate) repeats: Counter,
    /// Threads with packets in hand.
    pub(crate) running: Gauge,
}

impl Tally {
    /// A number that grows as long as the scenario gets anywhere.
    ///
    /// Notifications and repeats do not count: a server that is notified for ever and receives
    /// nothing is stuck.
    pub(crate) fn progress(&self) -> u64 {
        self.connections.get() + self.bytes.get() + self.removals.get() + self.posts.get()
    }
}

/// A number that only grows. Exact once the threads that count have been joined.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, amount: u64) {
        self.0.fetch_add(amount, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// How many threads are somewhere at once, and the most that ever were.
#[derive(Debug, Default)]
pub(crate) struct Gauge {
    inside: AtomicU64,
    most: AtomicU64,
}

impl Gauge {
    /// Counts this thread until the value that is returned goes.
    #[must_use]
    pub(crate) fn enter(&self) -> Inside<'_> {
        let inside = self.inside.fetch_add(1, Ordering::Relaxed) + 1;
        self.most.fetch_max(inside, Ordering::Relaxed);
        Inside(self)
    }

    pub(crate) fn most(&self) -> u64 {
        self.most.load(Ordering::Relaxed)
    }
}

/// A thread that a [`Gauge`] counts.
#[derive(Debug)]
pub(crate) struct Inside<'gauge>(&'gauge Gauge);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.inside.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gauge_keeps_the_most_that_were_inside_at_once() {
        let gauge = Gauge::default();
        let first = gauge.enter();
        let second = gauge.enter();
        drop((first, second));
        drop(gauge.enter());
        assert_eq!(gauge.most(), 2);
    }
}
