//! The signals that end the program.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

/// What the shell reports for a program that Ctrl-C has ended.
const INTERRUPTED: i32 = 130;

/// Remembers that a signal has come. The second one ends the program at once.
pub(crate) struct Signals(Arc<AtomicBool>);

impl Signals {
    pub(crate) fn catch() -> io::Result<Self> {
        let come = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            // In this order: the first signal must not find the flag set by itself.
            flag::register_conditional_shutdown(signal, INTERRUPTED, Arc::clone(&come))?;
            flag::register(signal, Arc::clone(&come))?;
        }
        Ok(Signals(come))
    }

    pub(crate) fn have_come(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
