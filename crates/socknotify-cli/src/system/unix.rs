//! Unix.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use super::{Limits, System};

/// Errors that say that no descriptor is left, for this process or for the whole system.
pub(crate) const USED_UP: [i32; 2] = [Errno::MFILE.raw_os_error(), Errno::NFILE.raw_os_error()];

/// What a file to be served is opened with. What is a pipe must not keep the thread until somebody writes to it.
pub(crate) const OPEN_FLAGS: i32 = OFlags::NONBLOCK.union(OFlags::NOCTTY).bits() as i32;

/// `openat2` — Opens a file beneath a directory, if the kernel has in memory what it needs for that, and no link is on the
/// way that is not to be followed.
#[cfg(target_os = "linux")]
pub(crate) fn open_at_once(
    root: impl AsFd,
    path: &str,
    follows_links: bool,
) -> Option<io::Result<File>> {
    use rustix::fs::{Mode, ResolveFlags, openat2};

    let flags = OFlags::from_bits_retain(OPEN_FLAGS as _) | OFlags::CLOEXEC;
    let mut resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS | ResolveFlags::CACHED;
    resolve.set(ResolveFlags::NO_SYMLINKS, !follows_links);
    match openat2(root, path, flags, Mode::empty(), resolve) {
        Ok(file) => Some(Ok(file.into())),
        Err(Errno::NOENT) => Some(Err(io::ErrorKind::NotFound.into())),
        // It is not in memory, there is a link, or the kernel is older than the call or the flag. Whatever else it is, it is again.
        Err(_) => None,
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn open_at_once(
    _root: impl AsFd,
    _path: &str,
    _follows_links: bool,
) -> Option<io::Result<File>> {
    None
}

/// `sendfile` — Sends a part of a file, as much as the socket takes. `None` if the system, or the file's, cannot.
///
/// It waits for the disk if the file is not in memory. It never waits for the peer: the socket does not block.
#[cfg(target_os = "linux")]
pub(crate) fn send_file(
    socket: impl AsFd,
    file: &File,
    from: u64,
    count: usize,
) -> Option<io::Result<usize>> {
    let mut offset = from;
    match rustix::fs::sendfile(socket, file, Some(&mut offset), count) {
        Err(Errno::INVAL | Errno::NOSYS) => None,
        sent => Some(sent.map_err(Into::into)),
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn send_file(
    _socket: impl AsFd,
    _file: &File,
    _from: u64,
    _count: usize,
) -> Option<io::Result<usize>> {
    None
}

/// Undoes what it was opened with: an operation on a file waits for the disk.
pub(crate) fn make_blocking(file: &File) -> io::Result<()> {
    let flags = fcntl_getfl(file)?;
    Ok(fcntl_setfl(file, flags - OFlags::NONBLOCK)?)
}

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

/// The number of open descriptors, 0 if the system does not report it.
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
