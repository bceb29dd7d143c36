//! The directory whose files are served.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::{Component, Path, PathBuf};

use cap_std::ambient_authority;
use cap_std::fs::{Dir, DirEntry};
use socknotify_http::http::header::{CACHE_CONTROL, CONTENT_TYPE, LOCATION, RETRY_AFTER};
use socknotify_http::http::{HeaderValue, StatusCode};
use socknotify_http::{Request, Response, file_response};

use super::listing;
use super::place::{Place, is_hidden};
use super::site::{status, with};
use crate::system;

/// A directory that no path leads out of: neither by `..` nor by a link.
#[derive(Debug)]
pub(crate) struct Root {
    path: PathBuf,
    directory: Dir,
    rules: Rules,
}

/// What is shown beside files.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// What has a name that begins with a dot.
    pub(crate) shows_hidden: bool,
    /// What is in a directory without an index.
    pub(crate) lists: bool,
}

/// How often a path is followed that others change meanwhile.
const TRIES: usize = 10;

impl Root {
    pub(crate) fn open_at(path: &Path, rules: Rules) -> io::Result<Self> {
        let directory = Dir::open_ambient_dir(path, ambient_authority())?;
        Ok(Root {
            path: path.to_owned(),
            directory,
            rules,
        })
    }

    /// Opens what has the path of the root by now: a link may lead elsewhere, or the directory be another one. That may block.
    pub(crate) fn open_again(&self) -> io::Result<Self> {
        Self::open_at(&self.path, self.rules)
    }

    pub(crate) fn answer(&self, request: &Request<'_>) -> Response {
        let uri = request.uri();
        let place = Place::new(uri.path());
        let Some(place) = place.filter(|it| !it.is_hidden() || self.rules.shows_hidden) else {
            return status(StatusCode::NOT_FOUND);
        };
        let path = place.file();
        let file = self.open(&path, false);
        let answered = match file.and_then(|file| file_response(request, file, content_type(&path)))
        {
            Err(error) if error.kind() == ErrorKind::IsADirectory && !place.is_directory => {
                let query = uri.query().map(|it| format!("?{it}")).unwrap_or_default();
                let location = format!("/{}/{query}", listing::encode(place.path()));
                let moved = status(StatusCode::MOVED_PERMANENTLY);
                Ok(with(moved, LOCATION, &location))
            }
            Err(error)
                if error.kind() == ErrorKind::NotFound
                    && place.is_directory
                    && self.rules.lists =>
            {
                self.list(&place)
            }
            answered => answered,
        };
        answered.unwrap_or_else(|error| match is_nothing(&error) {
            true => status(StatusCode::NOT_FOUND),
            // It may be there: whoever asks may try again.
            false => with(status(StatusCode::SERVICE_UNAVAILABLE), RETRY_AFTER, "1"),
        })
    }

    /// Opens a file or a directory, wherever links lead beneath the root, but for what is hidden.
    ///
    /// Where they lead is found out first; what has that path is then opened without following any. So nothing else is opened
    /// though links change meanwhile.
    fn open(&self, path: &Path, is_directory: bool) -> io::Result<File> {
        let mut followed = path.to_owned();
        for _ in 0..TRIES {
            let error = match system::open_beneath(&self.directory, &followed, is_directory) {
                Ok(file) => return Ok(file),
                Err(error) => error,
            };
            if error.kind() == ErrorKind::NotFound && followed == path {
                return Err(error);
            }
            let real = self.directory.canonicalize(path)?;
            if self.hides(&real) {
                return Err(ErrorKind::PermissionDenied.into());
            }
            if real == followed {
                return Err(error);
            }
            followed = real;
        }
        Err(ErrorKind::ResourceBusy.into())
    }

    fn hides(&self, path: &Path) -> bool {
        let is_hidden =
            |name| matches!(name, Component::Normal(name) if is_hidden(name.as_encoded_bytes()));
        !self.rules.shows_hidden && path.components().any(is_hidden)
    }

    /// The page of what is in a directory, as far as it is served: no link that leads out of the root, nowhere, or to a hidden
    /// name, and nothing but files and directories.
    fn list(&self, place: &Place) -> io::Result<Response> {
        let directory = Dir::from_std_file(self.open(&place.directory(), true)?);
        let mut names = Vec::new();
        for entry in directory.entries()? {
            let entry = entry?;
            let name = entry.file_name();
            if self.hides(Path::new(&name)) {
                continue;
            }
            match (self.is_directory(place, &entry), system::bytes_of(&name)) {
                (Ok(Some(is_directory)), Some(name)) => names.push((name, is_directory)),
                (Err(error), _) if !is_nothing(&error) => return Err(error),
                _ => {}
            }
        }
        names.sort_unstable();
        let page = Response::new(listing::page(place.path(), &names).into());
        let page = with(page, CONTENT_TYPE, "text/html; charset=utf-8");
        Ok(with(page, CACHE_CONTROL, "no-store"))
    }

    /// Whether an entry of this directory is one, perhaps behind a link. `None` if it is no file either.
    fn is_directory(&self, place: &Place, entry: &DirEntry) -> io::Result<Option<bool>> {
        let mut kind = entry.file_type()?;
        if kind.is_symlink() {
            // From the root: it may lead out of this directory.
            let path = place.directory().join(entry.file_name());
            if self.hides(&self.directory.canonicalize(&path)?) {
                return Ok(None);
            }
            kind = self.directory.metadata(path)?.file_type();
        }
        Ok((kind.is_file() || kind.is_dir()).then(|| kind.is_dir()))
    }
}

fn content_type(path: &Path) -> HeaderValue {
    match mime_guess::from_path(path).first_raw() {
        Some(kind) if kind.starts_with("text/") => {
            let kind = HeaderValue::try_from(format!("{kind}; charset=utf-8"));
            kind.unwrap_or(HeaderValue::from_static("text/plain"))
        }
        kind => HeaderValue::from_static(kind.unwrap_or("application/octet-stream")),
    }
}

/// Whether an error says that nothing is there that can be served. After others, such as one of the disk, that is not known.
fn is_nothing(error: &io::Error) -> bool {
    let is_of_path = matches!(
        error.kind(),
        ErrorKind::NotFound
            | ErrorKind::NotADirectory
            | ErrorKind::IsADirectory
            | ErrorKind::PermissionDenied
            | ErrorKind::InvalidInput
    );
    is_of_path
        || error
            .raw_os_error()
            .is_some_and(|code| system::NO_FILE.contains(&code))
}
