//! A request for a file, and the head of its answer.

use std::fmt::Write;
use std::ops::Range;
use std::time::{SystemTime, UNIX_EPOCH};

use httpdate::HttpDate;
use percent_encoding::percent_decode_str;

use super::range::Wish;

/// What a client wants to know of a file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct FileRequest {
    /// Where the file is beneath the root, with `/` between names. `None` if no file can be there.
    path: Option<String>,
    is_head: bool,
    range: Option<Wish>,
    /// The range counts only if the file is as old as this.
    if_range: Option<HttpDate>,
    if_modified_since: Option<HttpDate>,
    /// The header line that says whether the connection is to be used again.
    pub(super) connection: &'static str,
}

/// What has become of opening a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    File {
        length: u64,
        modified: Option<SystemTime>,
    },
    Nothing,
    /// The server has no descriptor left.
    Busy,
}

/// The head of an answer, and the part of the file that follows it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) head: Vec<u8>,
    pub(crate) body: Range<u64>,
}

impl FileRequest {
    pub(super) fn new(parsed: &httparse::Request<'_, '_>) -> Self {
        let header = |name: &str| {
            let mut headers = parsed.headers.iter();
            let header = headers.find(|header| header.name.eq_ignore_ascii_case(name))?;
            std::str::from_utf8(header.value).ok()
        };
        let date = |name| header(name)?.trim().parse().ok();
        let if_range = date("if-range");
        let is_head = parsed.method == Some("HEAD");
        // Without a date, the condition is a tag, and no file here has one.
        let has_range = !is_head && (header("if-range").is_none() || if_range.is_some());
        let range = header("range").filter(|_| has_range);
        FileRequest {
            path: path(parsed.path.unwrap_or_default()),
            is_head,
            range: range.and_then(Wish::parse),
            if_range,
            if_modified_since: date("if-modified-since"),
            connection: "",
        }
    }

    pub(crate) fn path(&self) -> Option<&str> {
        self.path.as_deref()
    }

    pub(crate) fn answer(&self, found: Found) -> Answer {
        let (length, modified) = match found {
            Found::File { length, modified } => (length, modified.and_then(http_date)),
            Found::Nothing => return self.text("404 Not Found"),
            Found::Busy => return self.text("503 Service Unavailable"),
        };
        let validator =
            modified.map_or_else(String::new, |date| format!("Last-Modified: {date}\r\n"));
        if let (Some(since), Some(modified)) = (self.if_modified_since, modified) {
            if modified <= since {
                return self.head("304 Not Modified", &validator, 0..0);
            }
        }
        let is_same = self.if_range.is_none_or(|date| Some(date) == modified);
        let wish = self.range.filter(|_| is_same);
        let (status, body, range) = match wish.map(|wish| wish.within(length)) {
            None => ("200 OK", 0..length, String::new()),
            Some(Some(body)) => {
                let last = body.end.saturating_sub(1);
                let range = format!("Content-Range: bytes {}-{last}/{length}\r\n", body.start);
                ("206 Partial Content", body, range)
            }
            Some(None) => {
                let range = format!("Content-Range: bytes */{length}\r\nContent-Length: 0\r\n");
                return self.head("416 Range Not Satisfiable", &range, 0..0);
            }
        };
        let kind = mime_guess::from_path(self.path().unwrap_or_default()).first_or_octet_stream();
        let headers = format!(
            "Content-Type: {kind}\r\nContent-Length: {}\r\nAccept-Ranges: bytes\r\n{range}{validator}",
            body.end - body.start,
        );
        self.head(status, &headers, body)
    }

    fn text(&self, status: &str) -> Answer {
        self.head(status, "Content-Length: 0\r\n", 0..0)
    }

    fn head(&self, status: &str, headers: &str, body: Range<u64>) -> Answer {
        let mut head = String::new();
        let now = HttpDate::from(SystemTime::now());
        let connection = self.connection;
        // Memory takes everything.
        let _ = write!(
            head,
            "HTTP/1.1 {status}\r\nDate: {now}\r\n{headers}{connection}\r\n"
        );
        Answer {
            head: head.into_bytes(),
            body: if self.is_head { 0..0 } else { body },
        }
    }
}

/// The path of a request's target, decoded. `None` if it names nothing that is beneath the root.
///
/// That it has no `..` spares a step into the system. Where it leads is for the system to find out: there are links.
fn path(target: &str) -> Option<String> {
    let path = target.split(['?', '#']).next().unwrap_or_default();
    let path = match path.strip_prefix('/') {
        Some(path) => path,
        // As a proxy is asked: http://host/path
        None => path.split_once("://")?.1.split_once('/')?.1,
    };
    let path = percent_decode_str(path).decode_utf8().ok()?;
    let is_name = |name: &str| {
        let is_foreign = cfg!(windows) && name.contains(['\\', ':']);
        name != ".." && !is_foreign && !name.contains('\0')
    };
    let mut names: Vec<_> = path.split('/').collect();
    if names.last() == Some(&"") {
        names.pop();
        names.push("index.html");
    }
    names.retain(|name| !matches!(*name, "" | "."));
    (!names.is_empty() && names.iter().all(|name| is_name(name))).then(|| names.join("/"))
}

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
    fn a_target_names_a_file_beneath_the_root_or_none() {
        for (target, expected) in [
            ("/", Some("index.html")),
            ("/a/b.txt?c=/../d", Some("a/b.txt")),
            ("//a/./b//", Some("a/b/index.html")),
            ("/a%20b%2fc", Some("a b/c")),
            ("/%C3%A4", Some("ä")),
            ("http://host:1/a", Some("a")),
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
            assert_eq!(path(target).as_deref(), expected, "{target}");
        }
    }

    fn answer(headers: &str, length: u64) -> (String, Range<u64>) {
        let text = format!("GET /a.html HTTP/1.1\r\n{headers}\r\n");
        let mut lines = [httparse::EMPTY_HEADER; 8];
        let mut parsed = httparse::Request::new(&mut lines);
        parsed.parse(text.as_bytes()).expect("a request");
        let modified = Some(UNIX_EPOCH + Duration::from_millis(1_000_500));
        let answer = FileRequest::new(&parsed).answer(Found::File { length, modified });
        let head = String::from_utf8(answer.head).expect("text");
        (head, answer.body)
    }

    const MODIFIED: &str = "Thu, 01 Jan 1970 00:16:40 GMT";

    #[test]
    fn a_file_has_a_type_a_length_and_a_date() {
        let (head, body) = answer("", 10);
        assert!(head.starts_with("HTTP/1.1 200 OK\r\nDate: "), "{head}");
        for header in [
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
