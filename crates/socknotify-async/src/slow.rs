//! [`SlowTask`]: a task that blocks or computes for long, as a runtime tells of it.

use std::collections::HashMap;
use std::panic::Location;
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};
use std::time::Duration;

use socknotify::interface::SlowWatch;
use socknotify::{CompletionPort, SlowThread};

use crate::sync::lock;

/// A task that blocks or computes: see [`Builder::on_slow`](crate::Builder::on_slow).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SlowTask {
    /// Where the task was spawned that the thread has polled last. `None` if it has polled none.
    pub spawned_at: Option<&'static Location<'static>>,
    /// The thread, and what it does.
    pub thread: SlowThread,
}

pub(crate) type OnSlow = dyn Fn(&SlowTask) + Send + Sync;

/// Where the task was spawned that a thread has polled last.
type Polled = Arc<Mutex<Option<&'static Location<'static>>>>;

thread_local! {
    static POLLED: Polled = Polled::default();
}

/// What the threads of a runtime poll, if it is to tell of slow tasks.
pub(crate) struct Slow {
    after: Duration,
    threads: Mutex<HashMap<ThreadId, Polled>>,
}

impl Slow {
    pub(crate) fn new(after: Duration) -> Self {
        Slow {
            after,
            threads: Mutex::default(),
        }
    }

    /// This thread polls tasks from here on.
    pub(crate) fn begin(&self) {
        let polled = POLLED.with(Polled::clone);
        lock(&self.threads).insert(thread::current().id(), polled);
    }

    /// This thread polls no more.
    pub(crate) fn end(&self) {
        lock(&self.threads).remove(&thread::current().id());
    }

    /// This thread polls a task that was spawned here.
    pub(crate) fn polls(&self, spawned_at: &'static Location<'static>) {
        let _ = POLLED.try_with(|polled| *lock(polled) = Some(spawned_at));
    }

    /// Tell of slow tasks, as long as the runtime is not closed. Then this thread is to be unparked.
    pub(crate) fn watch(&self, port: &CompletionPort, call: &OnSlow, is_closed: impl Fn() -> bool) {
        let mut watch = SlowWatch::new(self.after);
        while !is_closed() {
            let name = |thread: SlowThread, _| {
                let polled = lock(&self.threads).get(&thread.thread).cloned();
                let spawned_at = polled.and_then(|polled| *lock(&polled));
                SlowTask { spawned_at, thread }
            };
            watch.look(port, name, call);
            thread::park_timeout(watch.pause());
        }
    }
}
