//! Files on Unix.

#![allow(unsafe_code, reason = "files are known here by number")]

use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::{FileExt, FileTypeExt};

pub(super) use std::os::fd::RawFd as RawFile;

use crate::Error;
use crate::sys::calls::call_error;

/// Whether this is a file, so that an operation on it always ends.
pub(super) fn check(file: &File) -> io::Result<()> {
    let kind = file.metadata()?.file_type();
    if kind.is_file() || kind.is_block_device() {
        return Ok(());
    }
    // The errors of `pread`.
    Err(io::Error::from_raw_os_error(match kind.is_dir() {
        true => libc::EISDIR,
        false => libc::ESPIPE,
    }))
}

/// Another descriptor for the same file, if a read may never end: it has no length, so it may be one that the kernel
/// makes up.
pub(super) fn endless(file: &File) -> Option<File> {
    let metadata = file.metadata().ok()?;
    let is_endless = metadata.is_file() && metadata.len() == 0;
    // Without a descriptor an empty file can be read all the same; closing waits for the read then.
    is_endless.then(|| file.try_clone().ok())?
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

/// `preadv2` with `RWF_NOWAIT` — Read what is in memory. `None` if nothing is, or the file's system cannot tell.
#[cfg(target_os = "linux")]
pub(super) fn read_cached(file: &File, bytes: &mut [u8], offset: u64) -> Option<usize> {
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
    usize::try_from(count).ok()
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
