//! The directory whose files are served.

use std::fs::File;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cap_std::ambient_authority;
use cap_std::fs::{Dir, DirEntry, OpenOptions, OpenOptionsExt};

use super::http::{Found, Listing, Place, is_hidden};
use crate::system::{self, Identity};

/// A directory that no path leads out of: neither by `..` nor by a link.
#[derive(Debug)]
pub(crate) struct Root {
    path: PathBuf,
    directory: Dir,
    rules: Rules,
    /// The latest listing, while somebody is sent it.
    latest: Mutex<Option<(Identity, Weak<Listing>)>>,
}

/// How long ago a directory has changed, at least, before no other state of it can have the same time.
const RESTED: Duration = Duration::from_secs(2);

/// What is shown beside files.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// What has a name that begins with a dot.
    pub(crate) shows_hidden: bool,
    /// What is in a directory without an index.
    pub(crate) lists: bool,
}

/// What was opened.
#[derive(Debug)]
pub(crate) enum Opened {
    File(File),
    Directory,
    Listing(Arc<Listing>),
}

impl Root {
    pub(crate) fn open_at(path: &Path, rules: Rules) -> io::Result<Self> {
        let directory = Dir::open_ambient_dir(path, ambient_authority())?;
        Ok(Root {
            path: path.to_owned(),
            directory,
            rules,
            latest: Mutex::default(),
        })
    }

    /// Opens what has the path of the root by now: a link may lead elsewhere, or the directory be another one. That may block.
    pub(crate) fn open_again(&self) -> io::Result<Self> {
        Self::open_at(&self.path, self.rules)
    }

    /// Opens what is at this place. That may block.
    pub(crate) fn open(&self, place: &Place) -> io::Result<Opened> {
        if self.hides(place) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let opened = self.follow(place)?;
        if !self.rules.shows_hidden && self.is_hidden(place, &opened)? {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(opened)
    }

    /// Opens it, wherever links lead beneath the root.
    fn follow(&self, place: &Place) -> io::Result<Opened> {
        let path = place.file();
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(system::OPEN_FLAGS);
        match self.directory.open_with(&path, &options) {
            Ok(file) => Ok(Opened::File(file.into_std())),
            Err(error)
                if error.kind() == io::ErrorKind::NotFound
                    && place.is_directory
                    && self.rules.lists =>
            {
                self.list(place).map(Opened::Listing)
            }
            // Not every system opens a directory as if it were a file.
            Err(_)
                if self
                    .directory
                    .metadata(&path)
                    .is_ok_and(|found| found.is_dir()) =>
            {
                Ok(Opened::Directory)
            }
            Err(error) => Err(error),
        }
    }

    /// Opens a file, if that does not block. `None` if it could, or nobody knows.
    pub(crate) fn open_at_once(&self, place: &Place) -> Option<io::Result<Opened>> {
        if self.hides(place) {
            return Some(Err(io::ErrorKind::NotFound.into()));
        }
        // Links may lead to what is hidden.
        let follows_links = self.rules.shows_hidden;
        match system::open_at_once(&self.directory, &place.file(), follows_links)? {
            // There may be a listing in its place.
            Err(_) if place.is_directory && self.rules.lists => None,
            outcome => Some(outcome.map(Opened::File)),
        }
    }

    fn hides(&self, place: &Place) -> bool {
        !self.rules.shows_hidden && place.is_hidden()
    }

    /// Whether links have led to a name that begins with a dot, or below one.
    fn is_hidden(&self, place: &Place, opened: &Opened) -> io::Result<bool> {
        let path = match opened {
            Opened::Listing(_) => place.directory(),
            Opened::Directory => place.file(),
            Opened::File(file) => {
                let kind = file.metadata()?;
                if !kind.is_file() && !kind.is_dir() {
                    // It is not served, and to find its path could block: it may be a pipe.
                    return Ok(false);
                }
                place.file()
            }
        };
        self.leads_to_hidden(&path)
    }

    fn leads_to_hidden(&self, path: &Path) -> io::Result<bool> {
        let path = self.directory.canonicalize(path)?;
        let mut names = path.components();
        Ok(names.any(|name| match name {
            Component::Normal(name) => is_hidden(name.as_encoded_bytes()),
            _ => false,
        }))
    }

    /// What is in a directory, as far as it is served: no link that leads out of the root, nowhere, or to a hidden name, and
    /// nothing but files and directories.
    ///
    /// Those who are sent it at the same time share it, if it has not changed. Where links lead can change without it.
    fn list(&self, place: &Place) -> io::Result<Arc<Listing>> {
        let directory = self.directory.open_dir(place.directory())?;
        let metadata = directory.try_clone()?.into_std_file().metadata()?;
        let now = SystemTime::now();
        let now = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let has_rested = |&(_, _, changed): &Identity| {
            now.as_nanos() as i128 - changed >= RESTED.as_nanos() as i128
        };
        let identity = system::identity(&metadata).filter(has_rested);
        let latest = || self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        if let (Some(identity), Some((of, listing))) = (identity, &*latest()) {
            if let Some(listing) = listing.upgrade().filter(|_| *of == identity) {
                return Ok(listing);
            }
        }
        let (mut listing, mut has_links) = (Listing::default(), false);
        for entry in directory.entries()? {
            let entry = entry?;
            let name = entry.file_name();
            if is_hidden(name.as_encoded_bytes()) && !self.rules.shows_hidden {
                continue;
            }
            has_links |= entry.file_type().is_ok_and(|kind| kind.is_symlink());
            let is_directory = match self.is_directory(place, &entry) {
                Ok(Some(is_directory)) => is_directory,
                Err(error) if is_used_up(&error) => return Err(error),
                _ => continue,
            };
            if let Some(name) = system::bytes_of(&name) {
                listing.add(&name, is_directory);
            }
        }
        let listing = Arc::new(listing.sort());
        if let Some(identity) = identity.filter(|_| !has_links) {
            *latest() = Some((identity, Arc::downgrade(&listing)));
        }
        Ok(listing)
    }

    /// Whether an entry of this directory is one, perhaps behind a link. `None` if it is no file either.
    fn is_directory(&self, place: &Place, entry: &DirEntry) -> io::Result<Option<bool>> {
        let mut kind = entry.file_type()?;
        if kind.is_symlink() {
            // From the root: it may lead out of this directory.
            let path = place.directory().join(entry.file_name());
            if !self.rules.shows_hidden && self.leads_to_hidden(&path)? {
                return Ok(None);
            }
            kind = self.directory.metadata(path)?.file_type();
        }
        Ok((kind.is_file() || kind.is_dir()).then(|| kind.is_dir()))
    }
}

/// Whether no descriptor is left.
fn is_used_up(error: &io::Error) -> bool {
    let code = error.raw_os_error();
    code.is_some_and(|code| system::USED_UP.contains(&code))
}

/// The file, if it is one, and what else was found. Reading the metadata of an open file does not block.
pub(crate) fn examine(opened: io::Result<Opened>) -> (Option<File>, Found) {
    let file = match opened {
        Ok(Opened::File(file)) => Ok(file),
        Ok(Opened::Directory) => return (None, Found::Directory),
        Ok(Opened::Listing(entries)) => return (None, Found::Listing(entries)),
        Err(error) => Err(error),
    };
    let examined = file.and_then(|file| {
        let metadata = file.metadata()?;
        system::make_blocking(&file)?;
        Ok((file, metadata))
    });
    match examined {
        Ok((file, metadata)) if metadata.is_file() => {
            let found = Found::File {
                length: metadata.len(),
                modified: metadata.modified().ok(),
                identity: system::identity(&metadata),
            };
            (Some(file), found)
        }
        Ok((_, metadata)) if metadata.is_dir() => (None, Found::Directory),
        Err(error) if is_used_up(&error) => (None, Found::Busy),
        _ => (None, Found::Nothing),
    }
}
