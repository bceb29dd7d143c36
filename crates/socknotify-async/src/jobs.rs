//! Work of [`unblock`](crate::unblock()): which of it begins, so that it never has all threads.
//!
//! Work begins while another thread waits for events, or if no other work runs: tasks that block may wait for it. Work that may
//! not begin waits as a task does, without a thread, until other work ends, or a thread that is about to wait for events finds
//! that it may begin.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use crate::shared::Shared;
use crate::sync::lock;

#[derive(Default)]
pub(crate) struct Jobs {
    /// How many wait: read without the lock, by threads that have said before that they wait for events. So it is written before
    /// anyone asks whether there is such a thread.
    length: AtomicUsize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    running: usize,
    /// Tasks of what waits, each with its number.
    waiting: VecDeque<(u64, Waker)>,
    /// The number of the last one.
    last: u64,
}

/// Work, in a task of its own.
pub(crate) struct Job {
    shared: Arc<Shared>,
    is_running: bool,
    /// 0 before it has waited.
    number: u64,
}

impl Job {
    /// Waits until it may begin. It has ended when the value is dropped.
    pub(crate) async fn begin(shared: Arc<Shared>) -> Self {
        let mut job = Job {
            shared,
            is_running: false,
            number: 0,
        };
        poll_fn(|cx| job.poll(cx)).await;
        job
    }

    fn poll(&mut self, cx: &Context<'_>) -> Poll<()> {
        let (shared, jobs) = (&self.shared, &self.shared.jobs);
        let mut state = lock(&jobs.state);
        if shared.is_closed() {
            // The task is dropped next.
            return Poll::Pending;
        }
        let length = state.waiting.len();
        jobs.length.store(length + 1, Ordering::SeqCst);
        // This thread is none that waits.
        if state.running == 0 || shared.waiting_threads() > 0 {
            jobs.length.store(length, Ordering::SeqCst);
            state.running += 1;
            self.is_running = true;
            return Poll::Ready(());
        }
        let waker = cx.waker().clone();
        if self.number == 0 {
            state.last += 1;
            self.number = state.last;
            state.waiting.push_back((self.number, waker));
        } else {
            // It was the first.
            state.waiting.push_front((self.number, waker));
        }
        Poll::Pending
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let jobs = &self.shared.jobs;
        let mut state = lock(&jobs.state);
        let mut waiting = state.waiting.iter();
        if let Some(place) = waiting.position(|(number, _)| *number == self.number) {
            let before = state.waiting.remove(place);
            jobs.length.store(state.waiting.len(), Ordering::SeqCst);
            drop(state);
            drop(before);
            return;
        }
        state.running -= usize::from(self.is_running);
        // It has run, or was told to: the next one finds out whether it may.
        let next = jobs.pop(&mut state);
        drop(state);
        next.into_iter().for_each(Waker::wake);
    }
}

impl Jobs {
    fn pop(&self, state: &mut State) -> Option<Waker> {
        let next = state.waiting.pop_front();
        self.length.store(state.waiting.len(), Ordering::SeqCst);
        next.map(|(_, waker)| waker)
    }

    /// A thread is about to wait for events, and counts as one that does. Returns the task of work that may begin now.
    #[inline]
    pub(crate) fn next(&self, shared: &Shared) -> Option<Waker> {
        if self.length.load(Ordering::SeqCst) == 0 {
            return None;
        }
        let mut state = lock(&self.state);
        let may_begin = state.running == 0 || shared.waiting_threads() > 1 || shared.may_start();
        may_begin.then(|| self.pop(&mut state)).flatten()
    }

    /// The runtime is closed: tasks are dropped.
    pub(crate) fn close(&self) {
        let waiting = std::mem::take(&mut lock(&self.state).waiting);
        self.length.store(0, Ordering::SeqCst);
        drop(waiting);
    }
}
