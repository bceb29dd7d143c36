//! Unix.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use super::System;
use crate::descriptors::Limits;

/// Errors that say that no descriptor is left, for this process or for the whole system.
pub(crate) const USED_UP: [i32; 2] = [Errno::MFILE.raw_os_error(), Errno::NFILE.raw_os_error()];

pub(crate) fn name() -> System {
    let system = rustix::system::uname();
    System {
        os: system.sysname().to_string_lossy().into_owned(),
        kernel: system.release().to_string_lossy().into_owned(),
        architecture: system.machine().to_string_lossy().into_owned(),
    }
}

/// How many descriptors this process may have.
pub(crate) fn limits() -> Limits {
    let limit = getrlimit(Resource::Nofile);
    Limits {
        soft: limit.current,
        hard: limit.maximum,
    }
}

/// Sets the soft limit.
pub(crate) fn set_limit(soft: u64, hard: Option<u64>) -> io::Result<()> {
    let limit = Rlimit {
        current: Some(soft),
        maximum: hard,
    };
    Ok(setrlimit(Resource::Nofile, limit)?)
}

/// How many descriptors are open now, 0 where the system does not tell.
pub(crate) fn in_use() -> u64 {
    std::fs::read_dir("/dev/fd").map_or(0, |open| open.count() as u64)
}

/// Sets `come` when a signal asks the program to end. The second one ends it at once, with this code.
pub(crate) fn catch_signals(come: &Arc<AtomicBool>, code: i32) -> io::Result<()> {
    for signal in [SIGINT, SIGTERM] {
        // In this order: the first signal must not find the flag set by itself.
        flag::register_conditional_shutdown(signal, code, Arc::clone(come))?;
        flag::register(signal, Arc::clone(come))?;
    }
    Ok(())
}
