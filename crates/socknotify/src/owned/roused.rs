//! [`Roused`]: workers to wake before others dequeue.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::lock::lock;

/// How many workers have messages, and have not been woken yet.
#[derive(Default)]
pub(super) struct Roused {
    count: Mutex<usize>,
    changed: Condvar,
}

impl Roused {
    pub(super) fn is_any(&self) -> bool {
        *lock(&self.count) > 0
    }

    pub(super) fn add(&self) {
        *lock(&self.count) += 1;
    }

    pub(super) fn remove(&self) {
        *lock(&self.count) -= 1;
        self.notify();
    }

    /// Have the waiting threads check again.
    pub(super) fn notify(&self) {
        // Not between their check and their wait.
        drop(lock(&self.count));
        self.changed.notify_all();
    }

    /// Wait until all are awake, or the port is closed. False on a timeout.
    pub(super) fn wait(&self, is_over: impl Fn() -> bool, deadline: Option<Instant>) -> bool {
        let mut count = lock(&self.count);
        while *count > 0 && !is_over() {
            let left = deadline.map(|it| it.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return false;
            }
            let left = left.unwrap_or(Duration::MAX);
            let waited = self.changed.wait_timeout(count, left);
            count = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}
