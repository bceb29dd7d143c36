//! Where a file is beneath the root, as the target of a request names it.

use std::path::PathBuf;

use percent_encoding::percent_decode_str;

use crate::system;

/// Where something is beneath the root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Names with `/` between them. Empty for the root itself.
    path: Vec<u8>,
    /// The request ends in a slash.
    pub(crate) is_directory: bool,
}

impl Place {
    /// The place that the path of a request's target names, decoded. `None` if it names nothing that is beneath the root.
    ///
    /// That it has no `..` spares a step into the system. Where it leads is for the system to find out: there are links.
    pub(crate) fn new(path: &str) -> Option<Self> {
        let path = path.strip_prefix('/')?;
        let path: Vec<u8> = percent_decode_str(path).collect();
        let is_name = |name: &[u8]| {
            let is_foreign = cfg!(windows) && (name.contains(&b'\\') || name.contains(&b':'));
            name != b".." && !is_foreign && !name.contains(&0)
        };
        // As one that ends with a slash: `.` is its directory.
        let is_directory =
            matches!(&*path, b"" | b".") || path.ends_with(b"/") || path.ends_with(b"/.");
        let names: Vec<_> = path
            .split(|&byte| byte == b'/')
            .filter(|name| !matches!(*name, b"" | b"."))
            .collect();
        let is_place = is_directory || !names.is_empty();
        let path = names.join(&b'/');
        let is_place = is_place && names.iter().all(|name| is_name(name));
        (is_place && system::path_of(path.clone()).is_some())
            .then_some(Place { path, is_directory })
    }

    /// Names with `/` between them.
    pub(crate) fn path(&self) -> &[u8] {
        &self.path
    }

    /// The file that is served for it: of a directory, its index.
    pub(crate) fn file(&self) -> PathBuf {
        let path = system::path_of(self.path.clone()).unwrap_or_default();
        match self.is_directory {
            true => path.join(INDEX),
            false => path,
        }
    }

    /// The directory that may be listed for it.
    pub(crate) fn directory(&self) -> PathBuf {
        match self.path.is_empty() {
            true => ".".into(),
            false => system::path_of(self.path.clone()).unwrap_or_default(),
        }
    }

    /// Whether one of its names begins with a dot.
    pub(crate) fn is_hidden(&self) -> bool {
        self.path.split(|&byte| byte == b'/').any(is_hidden)
    }
}

/// Whether a name begins with a dot.
///
/// On Windows a name with `~` may be the short one of such a name.
pub(crate) fn is_hidden(name: &[u8]) -> bool {
    name.starts_with(b".") || (cfg!(windows) && name.contains(&b'~'))
}

/// What a directory shows if it is there.
const INDEX: &str = "index.html";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_names_a_place_beneath_the_root_or_none() {
        for (target, expected) in [
            ("/", Some("index.html")),
            ("/a/b.txt", Some("a/b.txt")),
            ("//a/./b//", Some("a/b/index.html")),
            ("/a%20b%2fc", Some("a b/c")),
            ("/%C3%A4", Some("ä")),
            ("/...", Some("...")),
            ("/a/../b", None),
            ("/%2e%2e/b", None),
            ("/a%2f..%2fb", None),
            ("/..", None),
            ("/a%00b", None),
            #[cfg(windows)]
            ("/%FF", None),
            ("/.", Some("index.html")),
            ("/a/.", Some("a/index.html")),
            ("/a./.b", Some("a./.b")),
            ("*", None),
            ("", None),
        ] {
            let file = Place::new(target).map(|place| place.file());
            assert_eq!(file, expected.map(PathBuf::from), "{target}");
        }
    }

    #[test]
    fn a_name_that_begins_with_a_dot_is_hidden() {
        for (target, expected) in [
            ("/", false),
            ("/a.b/c.", false),
            ("/.a", true),
            ("/a/.b/c", true),
            ("/%2ea", true),
            ("/...", true),
        ] {
            let hidden = Place::new(target).map(|place| place.is_hidden());
            assert_eq!(hidden, Some(expected), "{target}");
        }
    }
}
