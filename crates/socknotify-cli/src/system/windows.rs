//! Windows, whose handles have no limit that a program comes near.

use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use windows_version::OsVersion;

use super::{Identity, Limits, System};
use crate::signals::Waker;

/// `WSAEMFILE`, `ERROR_TOO_MANY_OPEN_FILES`
pub(crate) const USED_UP: [i32; 2] = [10024, 4];

/// What a file to be served is opened with: `FILE_FLAG_OVERLAPPED`
pub(crate) const OPEN_FLAGS: u32 = 0x4000_0000;

/// No call promises not to block.
pub(crate) fn open_at_once<D>(
    _root: D,
    _path: &Path,
    _follows_links: bool,
) -> Option<io::Result<File>> {
    None
}

pub(crate) fn send_file<S>(
    _socket: S,
    _file: &File,
    _from: u64,
    _count: usize,
) -> Option<io::Result<usize>> {
    None
}

/// Opens a log to append to it.
pub(crate) fn open_log(path: &Path) -> io::Result<File> {
    File::options().append(true).create(true).open(path)
}

/// A file does whenever it is asked to.
pub(crate) fn takes_more(_file: &File, _time: Duration) -> bool {
    true
}

pub(crate) fn make_blocking(_file: &File) -> io::Result<()> {
    Ok(())
}

/// An operation on a file completes elsewhere.
pub(crate) fn read_at(_file: &File, _buffer: &mut [u8], _offset: u64) -> Option<io::Result<usize>> {
    None
}

/// A path is text.
pub(crate) fn path_of(bytes: Vec<u8>) -> Option<PathBuf> {
    Some(String::from_utf8(bytes).ok()?.into())
}

pub(crate) fn bytes_of(name: &OsStr) -> Option<Vec<u8>> {
    Some(name.to_str()?.as_bytes().to_vec())
}

/// Times can be set.
pub(crate) fn identity(_file: &Metadata) -> Option<Identity> {
    None
}

pub(crate) fn name() -> System {
    let OsVersion {
        major,
        minor,
        build,
        ..
    } = OsVersion::current();
    System {
        os: "Windows".to_owned(),
        kernel: format!("{major}.{minor}.{build}"),
        architecture: std::env::consts::ARCH.to_owned(),
    }
}

pub(crate) fn limits() -> Limits {
    Limits {
        soft: None,
        hard: None,
    }
}

pub(crate) fn set_limit(_soft: u64, _hard: Option<u64>) -> io::Result<()> {
    Ok(())
}

pub(crate) fn in_use() -> u64 {
    0
}

/// Sets `come` on Ctrl-C and Ctrl-Break. The second one ends the program at once, with this code.
pub(crate) fn catch_signals(
    come: &Arc<AtomicBool>,
    code: i32,
    _reopen: Option<&Arc<AtomicBool>>,
    waker: &Waker,
) -> io::Result<()> {
    let (come, waker) = (Arc::clone(come), waker.clone());
    ctrlc::set_handler(move || {
        if come.swap(true, Ordering::Relaxed) {
            std::process::exit(code);
        }
        waker.wake();
    })
    .map_err(io::Error::other)
}
