//! A process for one test.

use std::io;
use std::process::Command;

/// Whether this is a process of this test alone. If it is not, the test is run in one, and has passed.
///
/// A child can start a thread only if no thread of its parent was starting or ending at the fork: `std` has a lock for that moment,
/// which the child would wait for.
pub(crate) fn is_alone(test: &str) -> io::Result<bool> {
    const ALONE: &str = "SOCKNOTIFY_TEST_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return Ok(true);
    }
    let alone = Command::new(std::env::current_exe()?)
        .args([test, "--exact", "--test-threads=1"])
        .env(ALONE, "")
        .output()?;
    let output = String::from_utf8_lossy(&alone.stdout);
    assert!(output.contains("1 passed"), "{alone:?}");
    Ok(false)
}
