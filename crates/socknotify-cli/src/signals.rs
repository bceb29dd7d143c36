//! The signals that end the program in good order.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::system;

/// What the shell reports for a program that Ctrl-C has ended.
const INTERRUPTED: i32 = 130;

/// Remembers that a signal has come. The second one ends the program at once.
pub(crate) struct Signals(Arc<AtomicBool>);

impl Signals {
    pub(crate) fn catch() -> io::Result<Self> {
        let come = Arc::new(AtomicBool::new(false));
        system::catch_signals(&come, INTERRUPTED)?;
        Ok(Signals(come))
    }

    pub(crate) fn have_come(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
