//! How long tests wait.

use std::time::Duration;

/// How long something may take that has to come. Nothing waits this long unless it is lost.
pub(crate) const PATIENCE: Duration = Duration::from_secs(if cfg!(emulated) {
    300
} else if cfg!(windows) {
    // Under Wine all calls of all tests are messages to one process.
    120
} else {
    30
});
