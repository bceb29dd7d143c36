//! Threads that meet at known points.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use socknotify::CompletionPort;

use super::PATIENCE;

/// Waits for something that other threads bring about.
#[track_caller]
pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    let mut pause = Duration::from_micros(20);
    while !condition() {
        assert!(Instant::now() < end, "this does not come about: {what}");
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(2));
    }
}

/// Waits until this many threads wait in the port.
#[track_caller]
pub(crate) fn wait_for_waiting(port: &CompletionPort, threads: usize) {
    wait_until(&format!("{threads} threads wait"), || {
        port.snapshot().waiting == threads
    });
}

/// Closes a port when a test's scope ends, however it ends, so that no thread waits in it for ever.
pub(crate) struct CloseAtEnd<'a>(pub(crate) &'a CompletionPort, pub(crate) &'a [&'a Gate]);

impl Drop for CloseAtEnd<'_> {
    fn drop(&mut self) {
        self.0.close();
        for gate in self.1 {
            gate.open_for_all();
        }
    }
}

/// Tells threads that compute when a test's scope ends, however it ends.
pub(crate) struct SetAtEnd<'a>(pub(crate) &'a AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Lets threads pass one by one.
#[derive(Default)]
pub(crate) struct Gate {
    passes: Mutex<usize>,
    opened: Condvar,
}

impl Gate {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Lets this many threads pass, now or later.
    pub(crate) fn open(&self, threads: usize) {
        let mut passes = self.passes.lock().unwrap_or_else(PoisonError::into_inner);
        *passes = passes.saturating_add(threads);
        self.opened.notify_all();
    }

    pub(crate) fn open_for_all(&self) {
        self.open(usize::MAX / 2);
    }

    /// Waits for leave to pass.
    #[track_caller]
    pub(crate) fn pass(&self) {
        let passes = self.passes.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut passes, waited) = self
            .opened
            .wait_timeout_while(passes, PATIENCE, |passes| *passes == 0)
            .unwrap_or_else(PoisonError::into_inner);
        assert!(!waited.timed_out(), "the gate stays shut");
        *passes -= 1;
    }
}
