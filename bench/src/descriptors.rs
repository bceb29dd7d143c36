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

/// How many a case may use, with some left for everything else.
pub(crate) fn available() -> usize {
    const ELSE: u64 = 256;
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(limit.saturating_sub(ELSE)).unwrap_or(usize::MAX)
}
