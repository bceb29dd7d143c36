//! The directory whose files are served.

use std::fs::File;
use std::io;
use std::path::Path;

use cap_std::ambient_authority;
use cap_std::fs::{Dir, OpenOptions, OpenOptionsExt};

use super::http::Found;
use crate::system;

/// A directory that no path leads out of: neither by `..` nor by a link.
#[derive(Debug)]
pub(crate) struct Root(Dir);

impl Root {
    pub(crate) fn open_at(path: &Path) -> io::Result<Self> {
        Dir::open_ambient_dir(path, ambient_authority()).map(Root)
    }

    /// Opens a file. That may block.
    pub(crate) fn open(&self, path: &str) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(system::OPEN_FLAGS);
        self.0.open_with(path, &options).map(|file| file.into_std())
    }

    /// Opens a file, if that does not block. `None` if it could, or nobody knows.
    pub(crate) fn open_at_once(&self, path: &str) -> Option<io::Result<File>> {
        system::open_at_once(&self.0, path)
    }
}

/// The file, if it is one, and its metadata. Reading the metadata of an open file does not block.
pub(crate) fn examine(opened: io::Result<File>) -> (Option<File>, Found) {
    let examined = opened.and_then(|file| {
        let metadata = file.metadata()?;
        system::make_blocking(&file)?;
        Ok((file, metadata))
    });
    match examined {
        Ok((file, metadata)) if metadata.is_file() => {
            let found = Found::File {
                length: metadata.len(),
                modified: metadata.modified().ok(),
            };
            (Some(file), found)
        }
        Err(error)
            if error
                .raw_os_error()
                .is_some_and(|code| system::USED_UP.contains(&code)) =>
        {
            (None, Found::Busy)
        }
        _ => (None, Found::Nothing),
    }
}
