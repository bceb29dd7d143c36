//! The signals that end the program in good order, and the one that has it open its log again.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use crate::system;

/// What the shell reports for a program that Ctrl-C has ended.
const INTERRUPTED: i32 = 130;

/// Remembers which signals have come. The second one that ends the program does so at once.
pub(crate) struct Signals {
    come: Arc<AtomicBool>,
    reopen: Arc<AtomicBool>,
    wakes: Receiver<()>,
    waker: Waker,
}

/// Ends a [`wait`](Signals::wait).
#[derive(Clone)]
pub(crate) struct Waker(Sender<()>);

impl Signals {
    /// `reopens`: SIGHUP, where there is such a signal, does not end the program.
    pub(crate) fn catch(reopens: bool) -> io::Result<Self> {
        let (sender, wakes) = channel();
        let signals = Signals {
            come: Arc::default(),
            reopen: Arc::default(),
            wakes,
            waker: Waker(sender),
        };
        let reopen = reopens.then_some(&signals.reopen);
        system::catch_signals(&signals.come, INTERRUPTED, reopen, &signals.waker)?;
        Ok(signals)
    }

    pub(crate) fn have_come(&self) -> bool {
        self.come.load(Ordering::Relaxed)
    }

    /// Whether the log is to be opened again, since this was last asked.
    pub(crate) fn reopen(&self) -> bool {
        self.reopen.swap(false, Ordering::Relaxed)
    }

    /// Waits until a signal comes, a waker wakes, or the time is over.
    pub(crate) fn wait(&self, time: Option<Duration>) {
        // Its other end is here, too.
        let _ = match time {
            Some(time) => self.wakes.recv_timeout(time).ok(),
            None => self.wakes.recv().ok(),
        };
    }
}

impl Waker {
    pub(crate) fn wake(&self) {
        // Nobody waits any more.
        let _ = self.0.send(());
    }
}
