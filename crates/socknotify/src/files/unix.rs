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
    use std::os::unix::fs::MetadataExt;

    use rustix::fs::{AtFlags, StatxFlags, statx};

    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let wanted = StatxFlags::TYPE | StatxFlags::SIZE | StatxFlags::BLOCKS;
    let (mode, length, blocks, device) = match statx(file, c"", flags, wanted) {
        Ok(it) => {
            let device = libc::makedev(it.stx_dev_major, it.stx_dev_minor);
            (it.stx_mode.into(), it.stx_size, it.stx_blocks, device)
        }
        // A sandbox may not know the call.
        Err(_) => {
            let it = file.metadata()?;
            (it.mode(), it.len(), it.blocks(), it.dev())
        }
    };
    check_kind(mode)?;
    let is_file = mode & libc::S_IFMT == libc::S_IFREG;
    // What is made up has no blocks, whatever its length, and there is no device that has it.
    let may_be_made_up = is_file && (length == 0 || blocks == 0) && libc::major(device) == 0;
    if may_be_made_up && is_made_up(device)? {
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
    use rustix::io::Errno;

    !matches!(
        try_read_cached(file, &mut [0], 0),
        // The first is that of a file that was not opened to read: nobody knows of it.
        Err(Errno::BADF | Errno::OPNOTSUPP | Errno::NOSYS | Errno::PERM | Errno::ACCESS)
    )
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
pub(super) const OUT_OF_MEMORY: i32 = libc::ENOMEM;

/// The error of a cancelled operation.
pub(super) const CANCELLED: i32 = libc::ECANCELED;

/// The error if the system lacks something now, and may have it later.
pub(super) fn shortage(error: &io::Error) -> Option<Error> {
    match error.raw_os_error()? {
        number @ (libc::EMFILE | libc::ENFILE | libc::ENOMEM) => Some(call_error(number)),
        libc::EAGAIN => Some(Error::OutOfMemory),
        _ => None,
    }
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
fn try_read_cached(file: &File, bytes: &mut [u8], offset: u64) -> rustix::io::Result<usize> {
    use rustix::io::{ReadWriteFlags, preadv2};

    let mut parts = [io::IoSliceMut::new(bytes)];
    preadv2(file, &mut parts, offset, ReadWriteFlags::NOWAIT)
}

#[cfg(not(target_os = "linux"))]
pub(super) fn read_cached(_: &File, _: &mut [u8], _offset: u64) -> Option<usize> {
    None
}

/// `nice` — This thread gets about a tenth of what one with the priority of now gets, if both want a processor.
#[cfg(target_os = "linux")]
pub(super) fn lower_priority() {
    // SAFETY: no argument is a pointer. Here a thread has a priority of its own.
    unsafe { libc::nice(10) };
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
