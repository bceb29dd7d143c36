//! Reads, writes and kinds of files on Unix.

#![allow(unsafe_code, reason = "files are known here by number")]

use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::FileExt;

pub(super) use std::os::fd::RawFd as RawFile;

use super::request::Nature;
use crate::Error;
use crate::os::calls::call_error;

/// Whether this is a file, so that an operation on it ends.
///
/// This asks nobody but the kernel, so that it does not wait for the daemon of a FUSE file, or for another machine.
#[cfg(target_os = "linux")]
pub(super) fn check(file: &File) -> io::Result<Nature> {
    // SAFETY: any bits are a value of the structure.
    let mut status: libc::statx = unsafe { std::mem::zeroed() };
    let (fd, path) = (file.as_raw_fd(), c"".as_ptr());
    let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
    let wanted = libc::STATX_TYPE | libc::STATX_SIZE | libc::STATX_BLOCKS;
    // SAFETY: the path ends, and there is room for the status.
    let done = unsafe { libc::statx(fd, path, flags, wanted, &raw mut status) };
    // What is made up has no blocks, whatever its length.
    let (mode, is_stored_nowhere, device) = if done == 0 {
        let device = libc::makedev(status.stx_dev_major, status.stx_dev_minor);
        let is_stored_nowhere = status.stx_size == 0 || status.stx_blocks == 0;
        (
            libc::mode_t::from(status.stx_mode),
            is_stored_nowhere,
            device,
        )
    } else {
        use std::os::unix::fs::MetadataExt;
        // A sandbox may not know the call.
        let metadata = file.metadata()?;
        let is_stored_nowhere = metadata.len() == 0 || metadata.blocks() == 0;
        (metadata.mode(), is_stored_nowhere, metadata.dev())
    };
    check_kind(mode)?;
    let is_file = mode & libc::S_IFMT == libc::S_IFREG;
    // Nor is there a device that has it.
    if is_file && is_stored_nowhere && libc::major(device) == 0 && is_made_up(device)? {
        return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
    }
    let is_systems = never_waits(file);
    Ok(Nature {
        is_systems,
        device: (!is_systems).then_some(device),
        ..Nature::default()
    })
}

/// The same.
#[cfg(not(target_os = "linux"))]
pub(super) fn check(file: &File) -> io::Result<Nature> {
    use std::os::unix::fs::MetadataExt;
    check_kind(file.metadata()?.mode() as libc::mode_t)?;
    Ok(Nature::default())
}

fn check_kind(mode: libc::mode_t) -> io::Result<()> {
    // The errors of `pread`.
    Err(io::Error::from_raw_os_error(match mode & libc::S_IFMT {
        libc::S_IFREG | libc::S_IFBLK => return Ok(()),
        libc::S_IFDIR => libc::EISDIR,
        _ => libc::ESPIPE,
    }))
}

/// Whether the kernel makes up what is in the files of this device when they are read, as in `/proc`: that may take for ever.
///
/// This looks into the list of mounts, because `fstatfs` asks a FUSE file's daemon, or another machine.
#[cfg(target_os = "linux")]
fn is_made_up(device: libc::dev_t) -> io::Result<bool> {
    const SYSTEMS: [&str; 17] = [
        "binfmt_misc",
        "bpf",
        "cgroup",
        "cgroup2",
        "configfs",
        "debugfs",
        "efivarfs",
        "fusectl",
        "mqueue",
        "nfsd",
        "proc",
        "pstore",
        "securityfs",
        "selinuxfs",
        "smackfs",
        "sysfs",
        "tracefs",
    ];
    let mounts = match std::fs::read("/proc/self/mountinfo") {
        // Where there is no `/proc`, there is little else of the kind.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        mounts => mounts?,
    };
    let number = format!("{}:{}", libc::major(device), libc::minor(device));
    // The third field, and the first one behind the optional ones.
    let system = String::from_utf8_lossy(&mounts).lines().find_map(|mount| {
        let (first, last) = mount.split_once(" - ")?;
        let is_of_device = first.split(' ').nth(2) == Some(&number);
        is_of_device.then(|| last.split(' ').next().unwrap_or_default().to_owned())
    });
    Ok(system.is_some_and(|system| SYSTEMS.contains(&&*system)))
}

/// Whether the kernel begins operations on a file without waiting. It says at once if it does not.
#[cfg(target_os = "linux")]
fn never_waits(file: &File) -> bool {
    match try_read_cached(file, &mut [0], 0) {
        Ok(_) => true,
        // The first is that of a file that was not opened to read: nobody knows of it.
        Err(error) => !matches!(
            error.raw_os_error(),
            Some(libc::EBADF | libc::EOPNOTSUPP | libc::ENOSYS | libc::EPERM | libc::EACCES)
        ),
    }
}

/// The descriptor number of a file.
pub(super) fn raw(file: &File) -> RawFile {
    file.as_raw_fd()
}

/// The file with this descriptor number.
///
/// # Safety
///
/// It is open, and stays open.
pub(super) unsafe fn borrow(file: RawFile) -> ManuallyDrop<File> {
    // SAFETY: by the promise. It is not closed.
    ManuallyDrop::new(unsafe { File::from_raw_fd(file) })
}

/// The error of an operation for which the system has no memory.
pub(super) fn out_of_memory() -> io::Error {
    io::Error::from_raw_os_error(libc::ENOMEM)
}

/// The error if the system lacks something now, and may have it later.
pub(super) fn shortage(error: &io::Error) -> Option<Error> {
    match error.raw_os_error()? {
        number @ (libc::EMFILE | libc::ENFILE | libc::ENOMEM) => Some(call_error(number)),
        libc::EAGAIN => Some(Error::OutOfMemory),
        _ => None,
    }
}

/// The error of a cancelled operation.
pub(super) fn cancelled() -> io::Error {
    io::Error::from_raw_os_error(libc::ECANCELED)
}

/// `pread`
pub(super) fn read_at(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
    uninterrupted(|| file.read_at(bytes, offset))
}

/// Whether [`read_cached`] ever reads anything.
pub(super) const CAN_READ_CACHED: bool = cfg!(target_os = "linux");

/// Read what is in memory. `None` if nothing is, or the file's system cannot tell.
#[cfg(target_os = "linux")]
pub(super) fn read_cached(file: &File, bytes: &mut [u8], offset: u64) -> Option<usize> {
    try_read_cached(file, bytes, offset).ok()
}

/// Whether the device itself copies, so that no operation takes long to begin.
#[cfg(target_os = "linux")]
pub(super) fn is_unbuffered(file: RawFile) -> bool {
    // SAFETY: no argument is a pointer, and if this is no file, there is an error.
    let flags = unsafe { libc::fcntl(file, libc::F_GETFL) };
    flags != -1 && flags & libc::O_DIRECT != 0
}

/// `preadv2` with `RWF_NOWAIT`
#[cfg(target_os = "linux")]
fn try_read_cached(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
    let part = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    };
    let halves = [offset, offset >> 32].map(|half| half as libc::c_long);
    // SAFETY: the memory is there for the call.
    let count = unsafe {
        libc::syscall(
            libc::SYS_preadv2,
            file.as_raw_fd(),
            &raw const part,
            1 as libc::c_int,
            halves[0],
            halves[1],
            libc::RWF_NOWAIT,
        )
    };
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}

#[cfg(not(target_os = "linux"))]
pub(super) fn read_cached(_: &File, _: &mut [u8], _offset: u64) -> Option<usize> {
    None
}

/// `setpriority` — This thread gets about a tenth of what one with the priority of now gets, if both want a processor.
#[cfg(target_os = "linux")]
pub(super) fn lower_priority() {
    const STEPS: i32 = 10;
    // SAFETY: no argument is a pointer. Here a thread has a priority of its own.
    unsafe {
        let now = libc::getpriority(libc::PRIO_PROCESS, 0);
        libc::setpriority(libc::PRIO_PROCESS, 0, now + STEPS);
    }
}

/// Elsewhere a process has a priority, and no thread.
#[cfg(not(target_os = "linux"))]
pub(super) fn lower_priority() {}

/// `pwrite`
pub(super) fn write_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<usize> {
    uninterrupted(|| file.write_at(bytes, offset))
}

fn uninterrupted(mut call: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            outcome => return outcome,
        }
    }
}
