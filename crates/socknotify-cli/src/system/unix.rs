//! Unix.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::{flag, low_level};

use super::{Identity, Limits, System};
use crate::signals::Waker;

/// Errors that say that no descriptor is left, for this process or for the whole system.
pub(crate) const USED_UP: [i32; 2] = [Errno::MFILE.raw_os_error(), Errno::NFILE.raw_os_error()];

/// What a file to be served is opened with. What is a pipe must not keep the thread until somebody writes to it.
pub(crate) const OPEN_FLAGS: i32 = OFlags::NONBLOCK.union(OFlags::NOCTTY).bits() as i32;

/// `openat2` — Opens a file beneath a directory, if the kernel has in memory what it needs for that, and no link is on the
/// way that is not to be followed.
#[cfg(target_os = "linux")]
pub(crate) fn open_at_once(
    root: impl AsFd,
    path: &Path,
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
    _path: &Path,
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
        // A filter of system calls refuses it with EPERM.
        Err(Errno::INVAL | Errno::NOSYS | Errno::PERM) => None,
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

/// Opens a log to append to it. A pipe that nobody has open for reading is refused (`ENXIO`), and no write to one waits.
pub(crate) fn open_log(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.append(true).create(true).custom_flags(OPEN_FLAGS);
    options.open(path)
}

/// `poll` — Waits until a file takes something, or fails, at most for this time.
pub(crate) fn takes_more(file: &File, time: Duration) -> bool {
    let time = Timespec::try_from(time).ok();
    let mut files = [PollFd::new(file, PollFlags::OUT)];
    // If it was interrupted, it is called again.
    poll(&mut files, time.as_ref()).is_ok_and(|count| count > 0)
}

/// Undoes what it was opened with: an operation on a file waits for the disk.
pub(crate) fn make_blocking(file: &File) -> io::Result<()> {
    let flags = fcntl_getfl(file)?;
    Ok(fcntl_setfl(file, flags - OFlags::NONBLOCK)?)
}

/// `pread` — Reads from a file. `None` if the system cannot read so from this one.
pub(crate) fn read_at(file: &File, buffer: &mut [u8], offset: u64) -> Option<io::Result<usize>> {
    Some(file.read_at(buffer, offset))
}

/// A path of these bytes. `None` if none can have them.
pub(crate) fn path_of(bytes: Vec<u8>) -> Option<PathBuf> {
    Some(OsString::from_vec(bytes).into())
}

/// The bytes of a name. `None` if it stands in no URL.
pub(crate) fn bytes_of(name: &OsStr) -> Option<Vec<u8>> {
    Some(name.as_bytes().to_vec())
}

/// What changes whenever another file comes in the place of one, or its bytes change, also if its time is set back. `None`
/// if nothing does.
pub(crate) fn identity(file: &Metadata) -> Option<Identity> {
    let changed = i128::from(file.ctime()) * 1_000_000_000 + i128::from(file.ctime_nsec());
    Some((file.dev(), file.ino(), changed))
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

/// Sets `come` when a signal asks the program to end. The second one ends it at once, with this code. SIGHUP sets `reopen`.
/// Each of them wakes, after that.
pub(crate) fn catch_signals(
    come: &Arc<AtomicBool>,
    code: i32,
    reopen: Option<&Arc<AtomicBool>>,
    waker: &Waker,
) -> io::Result<()> {
    let (mut wakes, write) = UnixStream::pair()?;
    for signal in [SIGINT, SIGTERM] {
        // In this order: the first signal must not find the flag set by itself.
        flag::register_conditional_shutdown(signal, code, Arc::clone(come))?;
        flag::register(signal, Arc::clone(come))?;
        low_level::pipe::register(signal, write.try_clone()?)?;
    }
    if let Some(reopen) = reopen {
        flag::register(SIGHUP, Arc::clone(reopen))?;
        low_level::pipe::register(SIGHUP, write)?;
    }
    let waker = waker.clone();
    thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            loop {
                match wakes.read(&mut [0; 64]) {
                    Ok(1..) => waker.wake(),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Ok(0) | Err(_) => return,
                }
            }
        })?;
    Ok(())
}
