//! The head of a request.

use httparse::{Header, Status};

use super::file::FileRequest;
use super::host::is_host;

/// The largest head that is read.
pub(super) const HEAD_LIMIT: usize = 16 * 1024;

/// The most header lines that are read.
const HEADERS: usize = 100;

/// What a server has to give.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Site {
    /// Files. Otherwise it is a small answer, and statistics.
    pub(crate) has_files: bool,
    /// Each request is told to an access log.
    pub(crate) is_logged: bool,
}

/// What matters of a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Request {
    /// Its first line, for the access log. Empty without one.
    pub(super) line: Box<str>,
    pub(super) method: Method,
    pub(super) target: Target,
    pub(super) body: u64,
    /// The body comes when the server has asked for it.
    pub(super) waits_to_continue: bool,
    pub(super) is_version_1_0: bool,
    /// Whether the connection is to be used again.
    pub(super) persists: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    Get,
    Head,
    /// One that is not allowed for anything here.
    Other,
    Unknown,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Target {
    Hello,
    Stats,
    File(Box<FileRequest>),
}

/// Why a request is not answered. The connection ends with it, because the next request's beginning is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    BadRequest,
    HeadTooLarge,
    LengthRequired,
    NotImplemented,
    Version,
    /// The client waits to be asked for the body of a request that is not understood here.
    BodyNotWanted,
}

/// The request at the beginning of these bytes, and how long its head is. `None` if it is not there in
/// full.
pub(super) fn parse(bytes: &[u8], site: Site) -> Result<Option<(Request, usize)>, Refusal> {
    match parse_as(bytes, site, None) {
        Err(Refusal::Version) => match later_minor(bytes) {
            // It is written as 1.1 where it is parsed. Nothing here differs between them.
            Some(at) => {
                let mut as_known = bytes.to_vec();
                let minor = std::mem::replace(&mut as_known[at], b'1');
                parse_as(&as_known, site, Some(minor - b'0'))
            }
            None => Err(Refusal::Version),
        },
        outcome => outcome,
    }
}

/// The request, which has this minor version if not the one that is parsed.
fn parse_as(
    bytes: &[u8],
    site: Site,
    minor: Option<u8>,
) -> Result<Option<(Request, usize)>, Refusal> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS];
    let mut parsed = httparse::Request::new(&mut headers);
    match parsed.parse(bytes) {
        Ok(Status::Complete(length)) if length <= HEAD_LIMIT => {
            parsed.version = minor.or(parsed.version);
            let request = understand(&parsed, site)?;
            Ok(Some((request, length)))
        }
        Ok(Status::Partial) if bytes.len() < HEAD_LIMIT => Ok(None),
        Ok(_) | Err(httparse::Error::TooManyHeaders) => Err(Refusal::HeadTooLarge),
        Err(httparse::Error::Version) if version(bytes).is_some() => Err(Refusal::Version),
        Err(_) => Err(Refusal::BadRequest),
    }
}

/// The version of HTTP in which a first line ends that is a method, a target and a version, such as `HTTP/1.1`.
fn version(bytes: &[u8]) -> Option<&[u8]> {
    let line = bytes
        .trim_ascii_start()
        .split(|&byte| byte == b'\n')
        .next()?;
    let mut parts = line.trim_ascii_end().split(|&byte| byte == b' ');
    let (_, _, version, None) = (parts.next()?, parts.next()?, parts.next()?, parts.next()) else {
        return None;
    };
    let is_version = matches!(version, [b'H', b'T', b'T', b'P', b'/', major, b'.', minor]
        if major.is_ascii_digit() && minor.is_ascii_digit());
    is_version.then_some(version)
}

/// Where the minor version is, if it is later than 1.1: who speaks it understands 1.1, too. RFC 9110, section 2.5.
fn later_minor(bytes: &[u8]) -> Option<usize> {
    let before = b" HTTP/1.";
    version(bytes)?.strip_prefix(&before[1..])?;
    let at = bytes.windows(before.len()).position(|it| it == before)?;
    Some(at + before.len())
}

/// Whether a target is one of these forms: `/path`, `scheme://host/path`, and what only one method has.
fn is_target(method: &str, target: &str) -> bool {
    let is_scheme = |scheme: &str| {
        scheme.starts_with(|first: char| first.is_ascii_alphabetic())
            && scheme
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
    };
    match (method, target) {
        ("OPTIONS", "*") | ("CONNECT", _) => true,
        (_, target) if target.starts_with('/') => true,
        (_, target) => target
            .split_once("://")
            .is_some_and(|(scheme, _)| is_scheme(scheme)),
    }
}

fn understand(parsed: &httparse::Request<'_, '_>, site: Site) -> Result<Request, Refusal> {
    let is_version_1_0 = parsed.version == Some(0);
    let (mut hosts, mut ranges) = (0, 0);
    let mut length = None;
    let mut coding = None;
    let (mut close, mut keep_alive, mut waits_to_continue) = (false, false, false);
    for header in parsed.headers.iter() {
        if is_named(header, "host") {
            hosts += 1;
            if !is_host(header.value) {
                return Err(Refusal::BadRequest);
            }
        } else if is_named(header, "range") {
            ranges += 1;
        } else if is_named(header, "content-length") {
            let value = number(header.value).ok_or(Refusal::BadRequest)?;
            // Two lengths that differ are a way to smuggle requests.
            if length.replace(value).is_some_and(|before| before != value) {
                return Err(Refusal::BadRequest);
            }
        } else if is_named(header, "transfer-encoding") {
            coding = Some(header.value);
        } else if is_named(header, "connection") {
            close |= lists(header, "close");
            keep_alive |= lists(header, "keep-alive");
        } else if is_named(header, "expect") {
            waits_to_continue |= lists(header, "100-continue");
        }
    }
    match coding {
        // So is a length beside a coding.
        Some(_) if length.is_some() => return Err(Refusal::BadRequest),
        Some(coding) if coding.eq_ignore_ascii_case(b"chunked") => {
            return Err(Refusal::LengthRequired);
        }
        Some(_) => return Err(Refusal::NotImplemented),
        None => {}
    }
    if hosts > 1 || (hosts == 0 && !is_version_1_0) || ranges > 1 {
        return Err(Refusal::BadRequest);
    }
    let method = match parsed.method {
        Some("GET") => Method::Get,
        Some("HEAD") => Method::Head,
        Some("POST" | "PUT" | "DELETE" | "OPTIONS" | "PATCH" | "CONNECT" | "TRACE") => {
            Method::Other
        }
        _ => Method::Unknown,
    };
    let target = parsed.path.unwrap_or_default();
    if method != Method::Unknown && !is_target(parsed.method.unwrap_or_default(), target) {
        return Err(Refusal::BadRequest);
    }
    let waits_to_continue = waits_to_continue && !is_version_1_0;
    if waits_to_continue && length > Some(0) {
        match method {
            Method::Get | Method::Head => {}
            Method::Other => return Err(Refusal::BodyNotWanted),
            Method::Unknown => return Err(Refusal::NotImplemented),
        }
    }
    let line = || {
        let (method, path) = (parsed.method?, parsed.path?);
        Some(format!("{method} {path} HTTP/1.{}", parsed.version?).into())
    };
    Ok(Request {
        line: match site.is_logged {
            true => line().unwrap_or_default(),
            false => Box::default(),
        },
        method,
        target: match parsed.path.and_then(|path| path.split('?').next()) {
            _ if site.has_files => Target::File(Box::new(FileRequest::new(parsed))),
            Some("/stats") => Target::Stats,
            _ => Target::Hello,
        },
        body: length.unwrap_or(0),
        waits_to_continue,
        is_version_1_0,
        persists: !close && (keep_alive || !is_version_1_0),
    })
}

fn is_named(header: &Header<'_>, name: &str) -> bool {
    header.name.eq_ignore_ascii_case(name)
}

/// Whether a list, such as `keep-alive, Upgrade`, has this element.
fn lists(header: &Header<'_>, element: &str) -> bool {
    header
        .value
        .split(|&byte| byte == b',')
        .any(|it| it.trim_ascii().eq_ignore_ascii_case(element.as_bytes()))
}

/// Digits, and nothing else.
fn number(value: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(value).ok()?;
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(text: &str) -> Option<Refusal> {
        parse(text.as_bytes(), Site::default()).err()
    }

    fn request(text: &str) -> Request {
        match parse(text.as_bytes(), Site::default()) {
            Ok(Some((request, length))) => {
                assert_eq!(length, text.len());
                request
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_request_is_there_when_its_last_byte_is() {
        let text = "GET /a HTTP/1.1\r\nHost: b\r\n\r\n";
        for length in 0..text.len() {
            assert_eq!(parse(&text.as_bytes()[..length], Site::default()), Ok(None));
        }
        assert!(request(text).persists);
    }

    #[test]
    fn the_version_and_the_connection_header_tell_whether_it_goes_on() {
        for (version, connection, persists) in [
            ("1.1", "", true),
            ("1.1", "Connection: close\r\n", false),
            ("1.1", "Connection: te, CLOSE\r\n", false),
            ("1.0", "", false),
            ("1.0", "Connection: Keep-Alive\r\n", true),
            ("1.0", "Connection: keep-alive, close\r\n", false),
        ] {
            let text = format!("GET / HTTP/{version}\r\nHost: a\r\n{connection}\r\n");
            assert_eq!(request(&text).persists, persists, "{text}");
        }
    }

    /// RFC 9110, section 2.5.
    #[test]
    fn a_later_minor_version_is_served_as_the_latest_that_is_known() {
        let text = "\r\nPOST /a HTTP/1.2\r\nHost: b\r\nContent-Length: 3\r\n\r\n";
        for length in 0..text.len() {
            let part = &text.as_bytes()[..length];
            assert_eq!(parse(part, Site::default()), Ok(None), "{length}");
        }
        let later = request(text);
        assert_eq!(later, request(&text.replace("HTTP/1.2", "HTTP/1.1")));
        assert!(later.persists && later.body == 3);
        // The log says what was sent.
        let logged = Site {
            is_logged: true,
            ..Site::default()
        };
        let Ok(Some((request, _))) = parse(text.as_bytes(), logged) else {
            panic!("it is a request");
        };
        assert_eq!(&*request.line, "POST /a HTTP/1.2");
    }

    #[test]
    fn only_an_unmistakable_length_counts() {
        let with = |headers: &str| format!("POST / HTTP/1.1\r\nHost: a\r\n{headers}\r\n\r\n");
        assert_eq!(request(&with("Content-Length: 12")).body, 12);
        let twice = "Content-Length: 12\r\ncontent-length: 12";
        assert_eq!(request(&with(twice)).body, 12);
        for (headers, expected) in [
            ("Content-Length: +1", Refusal::BadRequest),
            ("Content-Length: -1", Refusal::BadRequest),
            ("Content-Length:", Refusal::BadRequest),
            ("Content-Length: 1, 1", Refusal::BadRequest),
            ("Content-Length: 99999999999999999999", Refusal::BadRequest),
            (
                "Content-Length: 1\r\nContent-Length: 2",
                Refusal::BadRequest,
            ),
            (
                "Content-Length: 1\r\nTransfer-Encoding: chunked",
                Refusal::BadRequest,
            ),
            ("Transfer-Encoding: chunked", Refusal::LengthRequired),
            ("Transfer-Encoding: gzip", Refusal::NotImplemented),
        ] {
            assert_eq!(refusal(&with(headers)), Some(expected), "{headers}");
        }
    }

    #[test]
    fn what_is_no_request_is_refused() {
        for text in [
            "\x16\x03\x01 hello",
            "GET /\r\n\r\n",
            "GET / HTTP/x.0\r\n\r\n",
            "GET / FTP/1.1\r\n\r\n",
            "GET /a b HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET /a b HTTP/2.0\r\nHost: a\r\n\r\n",
            "GET /a  HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET / HTTP/1.2 HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET / HTTP/1.12\r\nHost: a\r\n\r\n",
            "GET / HTTP/1.2\r\n\r\n",
            "GET a/b://x/a.txt HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET a.txt HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET * HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET / HTTP/1.1\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
            "GET / HTTP/1.1\r\nHost : a\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a b/\r\n\r\n",
            "GET / HTTP/1.0\r\nHost: a b/\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\nRange: bytes=0-1\r\nrange: bytes=2-3\r\n\r\n",
        ] {
            assert_eq!(refusal(text), Some(Refusal::BadRequest), "{text}");
        }
    }

    #[test]
    fn what_is_spoken_elsewhere_is_told_from_nonsense() {
        let unsupported = Some(Refusal::Version);
        assert_eq!(refusal("GET / HTTP/2.0\r\n\r\n"), unsupported);
        assert_eq!(refusal("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), unsupported);
        for (line, method) in [
            ("BREW / HTTP/1.1", Method::Unknown),
            ("get / HTTP/1.1", Method::Unknown),
            ("OPTIONS * HTTP/1.1", Method::Other),
            ("CONNECT a:80 HTTP/1.1", Method::Other),
            ("GET svn+ssh://a/b HTTP/1.1", Method::Get),
        ] {
            let request = request(&format!("{line}\r\nHost: a\r\n\r\n"));
            assert_eq!(request.method, method, "{line}");
        }
    }

    #[test]
    fn a_head_that_is_too_large_is_refused() {
        let long = format!("GET / HTTP/1.1\r\nHost: {}", "a".repeat(HEAD_LIMIT));
        assert_eq!(refusal(&long), Some(Refusal::HeadTooLarge));
        assert_eq!(
            refusal(&format!("{long}\r\n\r\n")),
            Some(Refusal::HeadTooLarge)
        );
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(HEADERS + 1));
        assert_eq!(refusal(&many), Some(Refusal::HeadTooLarge));
    }
}
