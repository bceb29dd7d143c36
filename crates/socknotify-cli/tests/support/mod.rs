//! Starting a process.

use std::io;

/// Starts a process. Under Wine one ends now and then before its program has begun; then another is started.
pub(crate) fn started<T>(mut start: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    /// `ERROR_INTERNAL_ERROR`, which is what Wine says of that.
    const ENDED_EARLY: i32 = 1359;
    for _ in 0..3 {
        match start() {
            Err(error) if cfg!(windows) && error.raw_os_error() == Some(ENDED_EARLY) => {}
            outcome => return outcome,
        }
    }
    start()
}
