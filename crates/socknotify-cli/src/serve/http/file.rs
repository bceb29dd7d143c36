//! A request for a file, and the head of its answer.

use std::io::Write;
use std::ops::Range;
use std::time::{SystemTime, UNIX_EPOCH};

use httpdate::HttpDate;
use percent_encoding::percent_decode_str;

use super::answer::{self, Page, Told};
use super::conditions::{Conditions, IfRange, Precondition, Validators};
use super::listing::{self, Entry};
use super::range::Wish;

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
    pub(crate) path: String,
    /// The request ends in a slash.
    pub(crate) is_directory: bool,
}

/// What has become of opening a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    File {
        length: u64,
        modified: Option<SystemTime>,
    },
    Directory,
    /// A directory without an index, whose listing may be shown.
    Listing(Vec<Entry>),
    Nothing,
    /// The server has no descriptor left.
    Busy,
}

/// The head of an answer, and the part of the file that follows it. A body that is no file's is in the head.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) head: Vec<u8>,
    pub(crate) body: Range<u64>,
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
            (&Found::File { length, modified }, _) => self.file(length, modified),
            (Found::Directory, Some(place)) if !place.is_directory => {
                let path = listing::encode(&place.path);
                self.error(
                    "301 Moved Permanently",
                    &format!("Location: /{path}/{}\r\n", self.query),
                )
            }
            (Found::Listing(entries), Some(place)) => self.page(&Page {
                status: "200 OK",
                headers: "Cache-Control: no-store\r\n",
                kind: "text/html; charset=utf-8",
                body: &listing::page(&place.path, entries),
            }),
            (Found::Busy, _) => self.error("503 Service Unavailable", "Retry-After: 1\r\n"),
            _ => self.error("404 Not Found", ""),
        }
    }

    fn file(&self, length: u64, modified: Option<SystemTime>) -> Answer {
        let since = modified.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        let file = Validators {
            tag: since.map(|since| format!("\"{length:x}-{:x}\"", since.as_nanos())),
            modified: modified.and_then(http_date),
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
        let headers = format!(
            "Content-Type: {kind}\r\nContent-Length: {}\r\nAccept-Ranges: bytes\r\n{range}{validators}",
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
            told,
        }
    }

    fn page(&self, page: &Page<'_>) -> Answer {
        let mut head = Vec::new();
        let told = page.write(&mut head, self.connection, self.is_head);
        Answer {
            head,
            body: 0..0,
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
        let path = percent_decode_str(path).decode_utf8().ok()?;
        let is_name = |name: &str| {
            let is_foreign = cfg!(windows) && name.contains(['\\', ':']);
            name != ".." && !is_foreign && !name.contains('\0')
        };
        let is_directory = path.is_empty() || path.ends_with('/');
        let names: Vec<_> = path
            .split('/')
            .filter(|name| !matches!(*name, "" | "."))
            .collect();
        let is_place = is_directory || !names.is_empty();
        (is_place && names.iter().all(|name| is_name(name))).then(|| Place {
            path: names.join("/"),
            is_directory,
        })
    }

    /// The file that is served for it: of a directory, its index.
    pub(crate) fn file(&self) -> String {
        match (self.is_directory, &*self.path) {
            (false, path) => path.to_owned(),
            (true, "") => INDEX.to_owned(),
            (true, path) => format!("{path}/{INDEX}"),
        }
    }

    /// The directory that may be listed for it.
    pub(crate) fn directory(&self) -> &str {
        match &*self.path {
            "" => ".",
            path => path,
        }
    }

    /// Whether one of its names begins with a dot.
    pub(crate) fn is_hidden(&self) -> bool {
        self.path.split('/').any(is_hidden)
    }
}

/// Whether a name begins with a dot.
///
/// On Windows a name with `~` may be the short one of such a name.
pub(crate) fn is_hidden(name: &str) -> bool {
    name.starts_with('.') || (cfg!(windows) && name.contains('~'))
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
            ("/%FF", None),
            ("/.", None),
            ("*", None),
            ("host:80", None),
            ("", None),
        ] {
            let file = Place::new(target).map(|place| place.file());
            assert_eq!(file.as_deref(), expected, "{target}");
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
        let answer = parsed("/a.html", headers, &Found::File { length, modified });
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
        let tag = format!("ETag: \"a-{:x}\"", 1_000_500_000_000_u64);
        for header in [
            &*tag,
            "Content-Type: text/html",
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
