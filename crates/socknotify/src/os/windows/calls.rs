//! Counts system calls, for tests of how many an operation makes.

#[cfg(test)]
use std::cell::Cell;

#[cfg(test)]
thread_local! {
    static MADE: Cell<usize> = const { Cell::new(0) };
}

/// This thread makes a call.
pub(crate) fn note() {
    #[cfg(test)]
    MADE.set(MADE.get() + 1);
}

/// The calls that this thread has made.
#[cfg(test)]
pub(crate) fn made() -> usize {
    MADE.get()
}
