//! A request for a file, and the head of its answer.

use std::io::Write;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use httpdate::HttpDate;
use percent_encoding::percent_decode_str;

use super::answer::{self, Told};
use super::conditions::{Conditions, IfRange, Precondition, Validators};
use super::listing::{self, Listing};
use super::range::Wish;
use crate::system::{self, Identity};

/// What a client wants to know of a file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct FileRequest {
    /// `None` if no file can be there.
    place: Option<Place>,
    /// With its question mark, as it was sent.
    query: String,
    is_head: bool,
    range: Option<Wish>,
    if_range: Option<IfRange>,
    conditions: Conditions,
    /// The header line that says whether the connection is to be used again.
    pub(super) connection: &'static str,
    /// The first line of the request, for the access log.
    pub(super) line: Box<str>,
}

/// Where something is beneath the root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Names with `/` between them. Empty for the root itself.
    path: Vec<u8>,
    /// The request ends in a slash.
    pub(crate) is_directory: bool,
}

/// What has become of opening a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    File {
        length: u64,
        modified: Option<SystemTime>,
        /// What else is another one if the file is.
        identity: Option<Identity>,
    },
    Directory,
    /// A directory without an index, whose listing may be shown.
    Listing(Arc<Listing>),
    Nothing,
    /// The server has no descriptor left.
    Busy,
}

/// The head of an answer, and the part of the file, or the page, that follows it. A small body is in the head.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) head: Vec<u8>,
    pub(crate) body: Range<u64>,
    pub(crate) page: Option<Box<listing::Page>>,
    pub(crate) told: Told,
}

impl FileRequest {
    pub(super) fn new(parsed: &httparse::Request<'_, '_>) -> Self {
        // A list may come in several lines.
        let list = |name: &str| {
            let headers = parsed.headers.iter();
            let headers = headers.filter(|header| header.name.eq_ignore_ascii_case(name));
            headers
                .map(|header| String::from_utf8_lossy(header.value).into_owned())
                .reduce(|list, more| format!("{list}, {more}"))
        };
        let date = |name| list(name)?.trim().parse().ok();
        let is_head = parsed.method == Some("HEAD");
        let target = parsed.path.unwrap_or_default();
        let query = target.find('?').map_or("", |start| &target[start..]);
        FileRequest {
            place: Place::new(target),
            query: query.split('#').next().unwrap_or_default().to_owned(),
            is_head,
            range: list("range")
                .and_then(|range| Wish::parse(&range))
                .filter(|_| !is_head),
            if_range: list("if-range").map(|header| IfRange::parse(&header)),
            conditions: Conditions {
                if_match: list("if-match"),
                if_unmodified_since: date("if-unmodified-since"),
                if_none_match: list("if-none-match"),
                if_modified_since: date("if-modified-since"),
            },
            connection: "",
            line: Box::default(),
        }
    }

    pub(crate) fn place(&self) -> Option<&Place> {
        self.place.as_ref()
    }

    /// The first line of the request, for the access log.
    pub(crate) fn line(&self) -> &str {
        &self.line
    }

    pub(crate) fn answer(&self, found: &Found) -> Answer {
        match (found, &self.place) {
            (
                &Found::File {
                    length,
                    modified,
                    identity,
                },
                _,
            ) => self.file(length, modified, identity),
            (Found::Directory, Some(place)) if !place.is_directory => {
                let path = listing::encode(&place.path);
                self.error(
                    "301 Moved Permanently",
                    &format!("Location: /{path}/{}\r\n", self.query),
                )
            }
            (Found::Listing(listing), Some(place)) => {
                let page = listing::Page::new(&place.path, Arc::clone(listing));
                let length = page.length();
                let headers = format!(
                    "Content-Type: text/html; charset=utf-8\r\nContent-Length: {length}\r\nCache-Control: no-store\r\n"
                );
                let mut answer = self.head("200 OK", &headers, 0..0);
                if !self.is_head {
                    answer.told.length = length;
                    answer.page = Some(Box::new(page));
                }
                answer
            }
            (Found::Busy, _) => self.error("503 Service Unavailable", "Retry-After: 1\r\n"),
            _ => self.error("404 Not Found", ""),
        }
    }

    fn file(
        &self,
        length: u64,
        modified: Option<SystemTime>,
        identity: Option<Identity>,
    ) -> Answer {
        let since = modified.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        let since = since.map(|since| since.as_nanos());
        let file = Validators {
            tag: since.map(|since| match identity {
                Some((device, number, changed)) => {
                    format!("\"{length:x}-{since:x}-{device:x}-{number:x}-{changed:x}\"")
                }
                // Files of one length and time may differ.
                None => format!("W/\"{length:x}-{since:x}\""),
            }),
            // A date that is still to come says nothing (RFC 9110, section 8.8.2.1).
            modified: modified.and_then(|time| http_date(time.min(SystemTime::now()))),
        };
        let mut validators = String::new();
        if let Some(tag) = &file.tag {
            validators.push_str(&format!("ETag: {tag}\r\n"));
        }
        if let Some(date) = file.modified {
            validators.push_str(&format!("Last-Modified: {date}\r\n"));
        }
        match self.conditions.evaluate(&file) {
            Precondition::Send => {}
            Precondition::NotModified => return self.head("304 Not Modified", &validators, 0..0),
            Precondition::Failed => return self.error("412 Precondition Failed", &validators),
        }
        let is_same = self
            .if_range
            .as_ref()
            .is_none_or(|state| state.holds(&file, SystemTime::now()));
        let wish = self.range.filter(|_| is_same);
        let (status, body, range) = match wish.map(|wish| wish.within(length)) {
            None => ("200 OK", 0..length, String::new()),
            Some(Some(body)) => {
                let last = body.end.saturating_sub(1);
                let range = format!("Content-Range: bytes {}-{last}/{length}\r\n", body.start);
                ("206 Partial Content", body, range)
            }
            Some(None) => {
                let range = format!("Content-Range: bytes */{length}\r\n");
                return self.error("416 Range Not Satisfiable", &range);
            }
        };
        let path = self.place.as_ref().map(Place::file).unwrap_or_default();
        let kind = mime_guess::from_path(path).first_or_octet_stream();
        let charset = match kind.type_() == "text" {
            true => "; charset=utf-8",
            false => "",
        };
        let headers = format!(
            "Content-Type: {kind}{charset}\r\nContent-Length: {}\r\nAccept-Ranges: bytes\r\n{range}{validators}",
            body.end - body.start,
        );
        self.head(status, &headers, body)
    }

    fn error(&self, status: &str, headers: &str) -> Answer {
        let mut head = Vec::new();
        let told = answer::error(&mut head, status, headers, self.connection, self.is_head);
        Answer {
            head,
            body: 0..0,
            page: None,
            told,
        }
    }

    fn head(&self, status: &str, headers: &str, body: Range<u64>) -> Answer {
        let mut head = Vec::new();
        answer::begin(&mut head, status);
        // Memory takes everything.
        let _ = write!(head, "{headers}{}\r\n", self.connection);
        let body = if self.is_head { 0..0 } else { body };
        Answer {
            head,
            told: answer::told(status, body.end - body.start),
            body,
            page: None,
        }
    }
}

impl Place {
    /// The place that a request's target names, decoded. `None` if it names nothing that is beneath the root.
    ///
    /// That it has no `..` spares a step into the system. Where it leads is for the system to find out: there are links.
    fn new(target: &str) -> Option<Self> {
        let path = target.split(['?', '#']).next().unwrap_or_default();
        let path = match path.strip_prefix('/') {
            Some(path) => path,
            // As a proxy is asked: http://host/path
            None => {
                let authority = path.split_once("://")?.1;
                authority.split_once('/').map_or("", |(_, path)| path)
            }
        };
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

/// None for a time that HTTP cannot say.
fn http_date(time: SystemTime) -> Option<HttpDate> {
    const YEAR_9999: u64 = 253_370_764_800;
    let since = time.duration_since(UNIX_EPOCH).ok()?;
    (since.as_secs() < YEAR_9999).then(|| HttpDate::from(time))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_target_names_a_place_beneath_the_root_or_none() {
        for (target, expected) in [
            ("/", Some("index.html")),
            ("/a/b.txt?c=/../d", Some("a/b.txt")),
            ("//a/./b//", Some("a/b/index.html")),
            ("/a%20b%2fc", Some("a b/c")),
            ("/%C3%A4", Some("ä")),
            ("http://host:1/a", Some("a")),
            ("http://host:1", Some("index.html")),
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
            ("host:80", None),
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

    fn parsed(target: &str, headers: &str, found: &Found) -> Answer {
        let text = format!("GET {target} HTTP/1.1\r\n{headers}\r\n");
        let mut lines = [httparse::EMPTY_HEADER; 8];
        let mut parsed = httparse::Request::new(&mut lines);
        parsed.parse(text.as_bytes()).expect("a request");
        FileRequest::new(&parsed).answer(found)
    }

    fn answer(headers: &str, length: u64) -> (String, Range<u64>) {
        let modified = Some(UNIX_EPOCH + Duration::from_millis(1_000_500));
        let found = Found::File {
            length,
            modified,
            identity: Some((6, 7, 8)),
        };
        let answer = parsed("/a.html", headers, &found);
        let head = String::from_utf8(answer.head).expect("text");
        (head, answer.body)
    }

    #[test]
    fn a_directory_without_its_slash_moves_and_never_to_another_host() {
        for (target, location) in [
            ("/a", Some("/a/")),
            ("//a%20b/./c?d=/e", Some("/a%20b/c/?d=/e")),
            ("http://a/b", Some("/b/")),
            ("/a/", None),
        ] {
            let answer = parsed(target, "", &Found::Directory);
            let head = String::from_utf8(answer.head).expect("text");
            match location {
                None => assert!(head.starts_with("HTTP/1.1 404 "), "{head}"),
                Some(location) => {
                    assert!(head.starts_with("HTTP/1.1 301 "), "{head}");
                    assert!(
                        head.contains(&format!("\r\nLocation: {location}\r\n")),
                        "{head}"
                    );
                }
            }
        }
    }

    const MODIFIED: &str = "Thu, 01 Jan 1970 00:16:40 GMT";

    #[test]
    fn a_file_has_a_type_a_length_and_a_date() {
        let (head, body) = answer("", 10);
        assert!(head.starts_with("HTTP/1.1 200 OK\r\nDate: "), "{head}");
        // 1,000,500 milliseconds, as nanoseconds.
        let tag = format!("ETag: \"a-{:x}-6-7-8\"", 1_000_500_000_000_u64);
        for header in [
            &*tag,
            "Content-Type: text/html; charset=utf-8",
            "Content-Length: 10",
            "Accept-Ranges: bytes",
        ] {
            assert!(head.contains(&format!("\r\n{header}\r\n")), "{head}");
        }
        assert!(
            head.contains(&format!("\r\nLast-Modified: {MODIFIED}\r\n")),
            "{head}"
        );
        assert!(head.ends_with("\r\n\r\n") && body == (0..10), "{head}");
    }

    #[test]
    fn a_file_of_tomorrow_was_modified_at_the_latest_now() {
        let found = |time| Found::File {
            length: 1,
            modified: Some(time),
            identity: None,
        };
        let tomorrow = SystemTime::now() + Duration::from_secs(86_400);
        let head = String::from_utf8(parsed("/a", "", &found(tomorrow)).head).expect("text");
        let date = |name: &str| -> SystemTime {
            let line = head.lines().find_map(|line| line.strip_prefix(name));
            let date: HttpDate = line.and_then(|date| date.parse().ok()).expect("a date");
            date.into()
        };
        assert!(date("Last-Modified: ") <= date("Date: "), "{head}");
        assert!(head.contains("\r\nETag: W/\"1-"), "{head}");
    }

    #[test]
    fn a_part_counts_only_of_the_file_that_the_client_knows() {
        let (head, body) = answer("Range: bytes=2-4\r\n", 10);
        assert!(
            head.starts_with("HTTP/1.1 206 ") && body == (2..5),
            "{head}"
        );
        assert!(
            head.contains("\r\nContent-Range: bytes 2-4/10\r\n"),
            "{head}"
        );
        let same = format!("Range: bytes=2-4\r\nIf-Range: {MODIFIED}\r\n");
        assert_eq!(answer(&same, 10).1, 2..5);
        for other in ["Thu, 01 Jan 1970 00:16:41 GMT", "\"tag\""] {
            let other = format!("Range: bytes=2-4\r\nIf-Range: {other}\r\n");
            assert_eq!(answer(&other, 10).1, 0..10);
        }
        let (head, body) = answer("Range: bytes=10-\r\n", 10);
        assert!(
            head.starts_with("HTTP/1.1 416 ") && body.is_empty(),
            "{head}"
        );
        assert!(head.contains("\r\nContent-Range: bytes */10\r\n"), "{head}");
    }

    #[test]
    fn a_file_that_has_not_changed_is_not_sent_again() {
        for (date, status) in [
            (MODIFIED, 304),
            ("Thu, 01 Jan 1970 00:16:41 GMT", 304),
            ("Thu, 01 Jan 1970 00:16:39 GMT", 200),
            ("yesterday", 200),
        ] {
            let (head, body) = answer(&format!("If-Modified-Since: {date}\r\n"), 10);
            assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{head}");
            assert_eq!(body.is_empty(), status == 304);
        }
    }

    #[test]
    fn a_time_that_has_no_date_is_left_out() {
        assert_eq!(http_date(UNIX_EPOCH - Duration::from_secs(1)), None);
        assert!(http_date(UNIX_EPOCH + Duration::from_secs(253_370_764_799)).is_some());
        assert_eq!(
            http_date(UNIX_EPOCH + Duration::from_secs(253_402_300_800)),
            None
        );
    }
}
