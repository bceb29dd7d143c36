//! How many file descriptors this process may have.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raise the limit as far as the process may, and further where it is privileged. Child processes
/// inherit it.
pub(crate) fn raise() {
    let highest = std::fs::read_to_string("/proc/sys/fs/nr_open");
    let highest = highest.ok().and_then(|text| text.trim().parse().ok());
    for limit in [highest, getrlimit(Resource::Nofile).maximum] {
        let limits = Rlimit {
            current: limit,
            maximum: limit,
        };
        if limit.is_some() && setrlimit(Resource::Nofile, limits).is_ok() {
            return;
        }
    }
}
