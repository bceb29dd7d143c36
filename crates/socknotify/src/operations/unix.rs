//! Files on Unix.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt};

/// Whether this is a file, of which an operation ends by itself.
pub(super) fn check(file: &File) -> io::Result<()> {
    let kind = file.metadata()?.file_type();
    match kind.is_file() || kind.is_block_device() {
        true => Ok(()),
        // What `pread` says of a pipe.
        false => Err(io::Error::from_raw_os_error(libc::ESPIPE)),
    }
}

/// What an operation that was cancelled completes with.
pub(super) fn cancelled() -> io::Error {
    io::Error::from_raw_os_error(libc::ECANCELED)
}

/// `pread`
pub(super) fn read_at(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
    uninterrupted(|| file.read_at(bytes, offset))
}

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
