//! Windows, whose handles have no limit that a program comes near.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use cap_std::fs::Dir;
use windows_version::OsVersion;

use super::{INTERRUPTED, Limits, Signal, System};

/// `ERROR_INVALID_NAME`, `ERROR_BAD_PATHNAME`, `ERROR_FILENAME_EXCED_RANGE`, `ERROR_CANT_RESOLVE_FILENAME`
pub(crate) const NO_FILE: [i32; 4] = [123, 161, 206, 1921];

/// Opens a file or a directory, and fails if a link is on the way.
pub(crate) fn open_beneath(root: &Dir, path: &Path, is_directory: bool) -> io::Result<File> {
    // There is no call for it. Whoever may make links can change one here.
    let real = root.canonicalize(path)?;
    if real != path && path != Path::new(".") {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    match is_directory {
        true => Ok(root.open_dir(path)?.into_std_file()),
        // A directory is not opened as if it were a file.
        false if root.metadata(path)?.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
        false => Ok(root.open(path)?.into_std()),
    }
}

/// Opens a log to append to it.
pub(crate) fn open_log(path: &Path) -> io::Result<File> {
    File::options().append(true).create(true).open(path)
}

/// A path is text.
pub(crate) fn path_of(bytes: Vec<u8>) -> Option<PathBuf> {
    Some(String::from_utf8(bytes).ok()?.into())
}

pub(crate) fn bytes_of(name: &OsStr) -> Option<Vec<u8>> {
    Some(name.to_str()?.as_bytes().to_vec())
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

/// Calls this for Ctrl-C and Ctrl-Break, on a thread of its own.
pub(crate) fn on_signals(mut call: impl FnMut(Signal) + Send + 'static) -> io::Result<()> {
    let mut has_come = false;
    let handler = move || {
        if std::mem::replace(&mut has_come, true) {
            std::process::exit(INTERRUPTED);
        }
        call(Signal::End);
    };
    ctrlc::set_handler(handler).map_err(io::Error::other)
}
