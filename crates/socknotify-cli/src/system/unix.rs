//! Unix.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;

use cap_std::fs::Dir;
use rustix::fs::{Mode, OFlags, fcntl_setfl, openat};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::Signals;

use super::{INTERRUPTED, Limits, Signal, System};

/// Errors of opening a path beside those of the standard library's kinds that say that nothing is there to serve: links in a circle,
/// a name that is too long, and what is no file.
pub(crate) const NO_FILE: [i32; 4] = [
    Errno::LOOP.raw_os_error(),
    Errno::NAMETOOLONG.raw_os_error(),
    Errno::NXIO.raw_os_error(),
    Errno::NODEV.raw_os_error(),
];

/// What a directory on the way is opened with.
#[cfg(target_os = "linux")]
const SEARCH: OFlags = OFlags::PATH;
#[cfg(not(target_os = "linux"))]
const SEARCH: OFlags = OFlags::RDONLY;

/// `openat` — Opens a file or a directory, name by name, and fails if one of them is a link. The path has no `..`.
pub(crate) fn open_beneath(root: &Dir, path: &Path, is_directory: bool) -> io::Result<File> {
    let directory = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    // What is a pipe must not keep the thread until somebody writes to it.
    let file = OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut parent: Option<OwnedFd> = None;
    let mut names = path.components().peekable();
    while let Some(name) = names.next() {
        let flags = match (names.peek(), is_directory) {
            (Some(_), _) => SEARCH | directory,
            (None, true) => directory,
            (None, false) => file,
        };
        let at = parent.as_ref().map_or(root.as_fd(), |it| it.as_fd());
        parent = Some(openat(at, name.as_os_str(), flags, Mode::empty())?);
    }
    let opened = parent.ok_or(Errno::INVAL)?;
    if !is_directory {
        // Some file systems would say that a read has to wait.
        fcntl_setfl(&opened, OFlags::empty())?;
    }
    Ok(opened.into())
}

/// Opens a log to append to it. A pipe that nobody has open for reading is refused (`ENXIO`).
pub(crate) fn open_log(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits();
    options.append(true).create(true).custom_flags(flags as i32);
    let file = options.open(path)?;
    // A write waits for a reader that is slow.
    fcntl_setfl(&file, OFlags::APPEND)?;
    Ok(file)
}

/// A path of these bytes. `None` if none can have them.
pub(crate) fn path_of(bytes: Vec<u8>) -> Option<PathBuf> {
    Some(OsString::from_vec(bytes).into())
}

/// The bytes of a name. `None` if it stands in no URL.
pub(crate) fn bytes_of(name: &OsStr) -> Option<Vec<u8>> {
    Some(name.as_bytes().to_vec())
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

/// Calls this for each SIGINT, SIGTERM and SIGHUP, on a thread of its own.
pub(crate) fn on_signals(mut call: impl FnMut(Signal) + Send + 'static) -> io::Result<()> {
    let has_come = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // In this order: the first signal must not find the flag set by itself.
        flag::register_conditional_shutdown(signal, INTERRUPTED, Arc::clone(&has_come))?;
        flag::register(signal, Arc::clone(&has_come))?;
    }
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    let wait = move || {
        for signal in signals.forever() {
            call(match signal {
                SIGHUP => Signal::Reopen,
                _ => Signal::End,
            });
        }
    };
    let thread = thread::Builder::new().name("signals".into());
    thread.spawn(wait).map(drop)
}
