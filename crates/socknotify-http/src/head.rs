//! The head of a request. What two readers could read in two ways is refused (RFC 9112, section 11.2).

use std::cell::{Cell, RefCell};
use std::io::ErrorKind;
use std::mem::{self, MaybeUninit};

use bytes::BytesMut;
use http::header::{HOST, HeaderMap, HeaderName, HeaderValue};
use http::uri::{Authority, Uri};
use http::{Method, Request, StatusCode, Version};
use httparse::{EMPTY_HEADER, Status};

use crate::limits::Limits;

/// The most headers of a request.
const HEADERS: usize = 100;

const BAD: StatusCode = StatusCode::BAD_REQUEST;

thread_local! {
    /// Memory that heads are copied to, one behind the other.
    static COPIES: RefCell<BytesMut> = RefCell::new(BytesMut::with_capacity(4096));
    /// Memory of the last request's headers.
    static SPARE: Cell<Option<HeaderMap>> = const { Cell::new(None) };
}

/// What the server itself has to know of a head.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    /// How long the body is; `None` if it comes in chunks.
    pub(crate) length: Option<u64>,
    /// The connection may be used again.
    pub(crate) persists: bool,
    /// The client waits to be asked for the body.
    pub(crate) expects_continue: bool,
}

/// The head that these bytes begin with, and its length; `None` if it is not complete. Else the status that refuses it. What a
/// handler sees of it is in the request then, which has to be new.
pub(crate) fn parse(
    bytes: &[u8],
    limits: &Limits,
    request: &mut Request<()>,
) -> Result<Option<(Head, usize)>, StatusCode> {
    // What is behind a limit is not looked at: so in which parts it comes does not matter.
    let head = &bytes[..bytes.len().min(limits.head)];
    let line = &head[..head.len().min(limits.line)];
    let (mut known, mut status) = (head, StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
    if line.len() < bytes.len() && memchr::memchr(b'\n', line).is_none() {
        (known, status) = (line, StatusCode::URI_TOO_LONG);
    }
    let mut headers = [const { MaybeUninit::uninit() }; HEADERS];
    let mut parsed = httparse::Request::new(&mut []);
    let length = match parsed.parse_with_uninit_headers(known, &mut headers) {
        Ok(Status::Complete(length)) => length,
        Ok(Status::Partial) if known.len() < bytes.len() => return Err(status),
        Ok(Status::Partial) => return Ok(None),
        Err(httparse::Error::TooManyHeaders) => return Err(status),
        Err(httparse::Error::Version) => {
            let version = known.splitn(3, |&it| it == b' ').nth(2);
            return match version.and_then(|it| it.strip_prefix(b"HTTP/")) {
                Some([b'0'..=b'9', ..]) => Err(StatusCode::HTTP_VERSION_NOT_SUPPORTED),
                _ => Err(BAD),
            };
        }
        Err(_) => return Err(BAD),
    };
    if !has_whole_ends(&bytes[..length], parsed.headers) {
        return Err(BAD);
    }
    let (method, target) = (parsed.method.ok_or(BAD)?, parsed.path.ok_or(BAD)?);
    // What is behind a `#`, `Uri` would drop; and of what is before the method, a line may end with LF alone.
    if target.contains('#') || offset(bytes, method.as_bytes()) > 0 {
        return Err(BAD);
    }
    *request.method_mut() = Method::from_bytes(method.as_bytes()).map_err(|_| BAD)?;
    // One copy for all values.
    let copy = COPIES.with_borrow_mut(|it| {
        it.extend_from_slice(&bytes[..length]);
        it.split().freeze()
    });
    let part = |part: &[u8]| copy.slice_ref(&copy[offset(bytes, part)..][..part.len()]);
    let uri = Uri::from_maybe_shared(part(target.as_bytes())).map_err(|_| BAD)?;
    let version = match parsed.version {
        Some(0) => Version::HTTP_10,
        _ => Version::HTTP_11,
    };
    if let Some(spare) = SPARE.take() {
        *request.headers_mut() = spare;
    }
    let mut fields = Fields::default();
    for header in parsed.headers.iter() {
        let name = HeaderName::from_bytes(header.name.as_bytes()).map_err(|_| BAD)?;
        fields.add(name.as_str(), header.value)?;
        let value = HeaderValue::from_maybe_shared(part(header.value)).map_err(|_| BAD)?;
        request.headers_mut().append(name, value);
    }
    check_target(request.method(), &uri)?;
    if !fields.host.map_or(version == Version::HTTP_10, is_host) {
        return Err(BAD);
    }
    // The target's host counts, whatever the header says (RFC 9112, section 3.2.2).
    if let Some(authority) = uri.authority() {
        let host = HeaderValue::from_str(authority.as_str()).map_err(|_| BAD)?;
        request.headers_mut().insert(HOST, host);
    }
    *request.uri_mut() = uri;
    *request.version_mut() = version;
    let body = body_length(fields.length, fields.coding, version)?;
    let expects_continue = match fields.expect {
        None => false,
        Some(it) if it.eq_ignore_ascii_case(b"100-continue") => version == Version::HTTP_11,
        Some(_) => return Err(StatusCode::EXPECTATION_FAILED),
    };
    let persists = !fields.closes && (version == Version::HTTP_11 || fields.keeps_alive);
    let head = Head {
        length: body,
        persists,
        expects_continue,
    };
    Ok(Some((head, length)))
}

/// A request was answered: its headers' memory serves for the next one of this thread.
#[inline]
pub(crate) fn reuse(headers: &mut HeaderMap) {
    headers.clear();
    SPARE.with(|it| it.set(Some(mem::take(headers))));
}

/// What the server itself has to know.
#[derive(Default)]
struct Fields<'a> {
    host: Option<&'a [u8]>,
    length: Option<&'a [u8]>,
    coding: Option<&'a [u8]>,
    expect: Option<&'a [u8]>,
    closes: bool,
    keeps_alive: bool,
}

impl<'a> Fields<'a> {
    /// Which of several values counts, two readers could see in two ways.
    fn add(&mut self, name: &str, value: &'a [u8]) -> Result<(), StatusCode> {
        let field = match name {
            "host" => &mut self.host,
            "content-length" => &mut self.length,
            "transfer-encoding" => &mut self.coding,
            "expect" => &mut self.expect,
            "connection" => {
                self.closes |= lists(value, "close");
                self.keeps_alive |= lists(value, "keep-alive");
                return Ok(());
            }
            _ => return Ok(()),
        };
        field.replace(value).map_or(Ok(()), |_| Err(BAD))
    }
}

/// Whether each line ends with CR and LF: others take an LF alone for an end, or do not.
fn has_whole_ends(head: &[u8], headers: &[httparse::Header<'_>]) -> bool {
    let is_begin = |at: usize| at == 0 || head[..at].ends_with(b"\r\n");
    let begin = headers
        .iter()
        .all(|it| is_begin(offset(head, it.name.as_bytes())));
    begin && (head == b"\r\n" || head.ends_with(b"\r\n\r\n"))
}

/// Where this part of the bytes is in them.
fn offset(bytes: &[u8], part: &[u8]) -> usize {
    part.as_ptr().addr() - bytes.as_ptr().addr()
}

fn check_target(method: &Method, uri: &Uri) -> Result<(), StatusCode> {
    let authority = uri.authority();
    match uri.path() {
        // A server that is no proxy has no tunnels.
        _ if *method == Method::CONNECT => Err(StatusCode::NOT_IMPLEMENTED),
        _ if authority.is_some_and(|it| !is_host(it.as_str().as_bytes())) => Err(BAD),
        "*" if *method == Method::OPTIONS => Ok(()),
        path if path.starts_with('/') => Ok(()),
        _ => Err(BAD),
    }
}

/// Whether this is a host, perhaps with a port, and names no user.
fn is_host(host: &[u8]) -> bool {
    let port = host.iter().rev().take_while(|it| it.is_ascii_digit());
    let name = &host[..host.len() - port.count()];
    let name = name.strip_suffix(b":").unwrap_or(host);
    let is_plain = |&byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-');
    name.iter().all(is_plain) || Authority::try_from(name).is_ok_and(|it| it.host() == it.as_str())
}

/// `None` if the body comes in chunks.
fn body_length(
    length: Option<&[u8]>,
    coding: Option<&[u8]>,
    version: Version,
) -> Result<Option<u64>, StatusCode> {
    match (length, coding) {
        (None, None) => Ok(Some(0)),
        (Some(length), None) => number(length).map(Some).ok_or(BAD),
        (None, Some(coding)) if version == Version::HTTP_11 => {
            match coding.to_ascii_lowercase().strip_prefix(b"chunked") {
                Some([]) => Ok(None),
                None if !coding.is_empty() => Err(StatusCode::NOT_IMPLEMENTED),
                _ => Err(BAD),
            }
        }
        _ => Err(BAD),
    }
}

/// Digits, and nothing else.
pub(crate) fn number(value: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(value).ok();
    text.filter(|it| !it.starts_with('+'))?.parse().ok()
}

/// Whether a list, such as `keep-alive, Upgrade`, has this element.
pub(crate) fn lists(value: &[u8], element: &str) -> bool {
    let mut elements = value.split(|&byte| byte == b',');
    elements.any(|it| it.trim_ascii().eq_ignore_ascii_case(element.as_bytes()))
}

/// Trailers of at most so many bytes, and their length; `None` if they are not complete.
pub(crate) fn trailers(bytes: &[u8], most: usize) -> Result<Option<(HeaderMap, usize)>, ErrorKind> {
    let known = &bytes[..bytes.len().min(most)];
    let mut headers = [EMPTY_HEADER; HEADERS];
    match httparse::parse_headers(known, &mut headers) {
        Ok(Status::Partial) if known.len() < bytes.len() => Err(ErrorKind::FileTooLarge),
        Ok(Status::Partial) => Ok(None),
        Ok(Status::Complete((length, headers))) if has_whole_ends(&bytes[..length], headers) => {
            let fields = headers.iter().map(|it| {
                let name = HeaderName::from_bytes(it.name.as_bytes()).ok()?;
                Some((name, HeaderValue::from_bytes(it.value).ok()?))
            });
            let map: Option<HeaderMap> = fields.collect();
            Ok(Some((map.ok_or(ErrorKind::InvalidData)?, length)))
        }
        _ => Err(ErrorKind::InvalidData),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(bytes: &[u8], limits: &Limits) -> Result<Option<(Head, usize)>, StatusCode> {
        super::parse(bytes, limits, &mut Request::new(()))
    }

    fn parse_text(text: &str) -> Result<Option<(Head, usize)>, StatusCode> {
        parse(text.as_bytes(), &Limits::default())
    }

    fn parts_and_head(text: &str) -> (http::request::Parts, Head) {
        let mut request = Request::new(());
        match super::parse(text.as_bytes(), &Limits::default(), &mut request) {
            Ok(Some((head, length))) => {
                assert_eq!(length, text.len());
                (request.into_parts().0, head)
            }
            other => panic!("{text:?}: {other:?}"),
        }
    }

    fn head(text: &str) -> Head {
        parts_and_head(text).1
    }

    fn refusal(text: &str) -> u16 {
        parse_text(text).expect_err(text).as_u16()
    }

    #[test]
    fn a_head_is_there_when_its_last_byte_is() {
        let text = "POST /a?b HTTP/1.1\r\nHost: c\r\nX-D: e\r\nContent-Length: 3\r\n\r\n";
        for length in 0..text.len() {
            assert!(matches!(parse_text(&text[..length]), Ok(None)));
        }
        let (parts, head) = parts_and_head(text);
        assert_eq!((parts.method, head.length), (Method::POST, Some(3)));
        assert_eq!(parts.uri, "/a?b");
        assert_eq!(parts.headers["x-d"], "e");
        assert!(head.persists && !head.expects_continue);
    }

    #[test]
    fn the_version_and_the_connection_header_say_whether_it_goes_on() {
        for (version, connection, persists) in [
            ("1.1", "", true),
            ("1.1", "Connection: close\r\n", false),
            ("1.1", "Connection: te, CLOSE\r\n", false),
            ("1.1", "Connection: te\r\nConnection: close\r\n", false),
            ("1.0", "", false),
            ("1.0", "Connection: Keep-Alive\r\n", true),
            ("1.0", "Connection: keep-alive, close\r\n", false),
        ] {
            let text = format!("GET / HTTP/{version}\r\nHost: a\r\n{connection}\r\n");
            assert_eq!(head(&text).persists, persists, "{text}");
        }
    }

    #[test]
    fn only_an_unmistakable_length_counts() {
        let with = |headers: &str| format!("POST / HTTP/1.1\r\nHost: a\r\n{headers}\r\n\r\n");
        assert_eq!(head(&with("Content-Length: 12")).length, Some(12));
        assert_eq!(head(&with("Transfer-Encoding: Chunked")).length, None);
        for (headers, expected) in [
            ("Content-Length: +1", 400),
            ("Content-Length: -1", 400),
            ("Content-Length: 0x1", 400),
            ("Content-Length: 1 1", 400),
            ("Content-Length:", 400),
            ("Content-Length: 1, 1", 400),
            ("Content-Length: 99999999999999999999", 400),
            ("Content-Length: 1\r\nContent-Length: 1", 400),
            ("Content-Length: 1\r\nContent-Length: 2", 400),
            ("Content-Length: 1\r\nTransfer-Encoding: chunked", 400),
            ("Transfer-Encoding: chunked, chunked", 400),
            (
                "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
                400,
            ),
            ("Transfer-Encoding: chunkedx", 400),
            ("Transfer-Encoding: gzip, chunked", 501),
            ("Transfer-Encoding: identity", 501),
            ("Transfer-Encoding:", 400),
        ] {
            assert_eq!(refusal(&with(headers)), expected, "{headers}");
        }
        let old = "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n";
        assert_eq!(refusal(old), 400);
    }

    #[test]
    fn what_is_no_request_is_refused() {
        for text in [
            "\x16\x03\x01 hello\r\n\r\n",
            "GET /\r\n\r\n",
            "GET /a b HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET  / HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET / HTTP/x.0\r\n\r\n",
            "GET / FTP/1.1\r\n\r\n",
            "GET /#a HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET a.txt HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET * HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET / HTTP/1.1\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
            "GET / HTTP/1.1\r\nHost : a\r\n\r\n",
            "GET / HTTP/1.1\r\n Host: a\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\nX: b\r\n c\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a b/\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: u@a\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\n\r\n",
            "GET / HTTP/1.1\nHost: a\n\n",
            "\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET / HTTP/1.0\n\r\n",
            "GET / HTTP/1.0\r\n\n",
            "GET / HTTP/1.1\r\nHost: a\nX: b\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\nX: b\rY: c\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\nX: \0\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\nX(: b\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\nX\r\n\r\n",
        ] {
            assert_eq!(refusal(text), 400, "{text:?}");
        }
    }

    #[test]
    fn in_which_parts_it_comes_does_not_matter() {
        let limits = Limits::default().line(40).head(80);
        let long = "a".repeat(70);
        for (text, status) in [
            ("GET / HTTP/1.2\r\nHost: a\r\n\r\n", 505),
            ("GET / HTTP/2.0\r\n\r\n", 505),
            ("PRI * HTTP/2.0\r\n\r\n", 505),
            ("GET / HTTP/x.0\r\n\r\n", 400),
            (&format!("{long} / HTTP/1.1\r\nHost: a\r\n\r\n"), 414),
            (&format!("GET /{long}\0"), 414),
            (&format!("GET / HTTP/1.1\r\nX: {long}\0"), 431),
        ] {
            let outcome = |end| match parse(&text.as_bytes()[..end], &limits) {
                Ok(None) => None,
                Ok(Some(_)) => Some(0),
                Err(status) => Some(status.as_u16()),
            };
            let first = (0..=text.len()).find_map(outcome);
            assert_eq!(first, Some(status), "{text:?}");
            assert_eq!(outcome(text.len()), first, "{text:?}");
        }
    }

    #[test]
    fn what_is_understood_and_not_done_says_so() {
        let unknown = "GET / HTTP/2.0\r\n\r\n";
        assert_eq!(refusal(unknown), 505);
        assert_eq!(refusal("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), 505);
        assert_eq!(refusal("CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n"), 501);
        let expects = |what| format!("POST / HTTP/1.1\r\nHost: a\r\nExpect: {what}\r\n\r\n");
        assert!(head(&expects("100-Continue")).expects_continue);
        assert_eq!(refusal(&expects("200-ok")), 417);
        let (all, _) = parts_and_head("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(all.uri.path(), "*");
        let (absolute, _) = parts_and_head("GET http://a:1/b HTTP/1.1\r\nHost: c\r\n\r\n");
        assert_eq!(absolute.uri.path(), "/b");
        assert_eq!(absolute.headers["host"], "a:1");
    }

    #[test]
    fn what_is_too_long_is_refused_before_its_end() {
        let limits = Limits::default().line(1000).head(4000);
        let status = |text: &str| match parse(text.as_bytes(), &limits) {
            Err(status) => status.as_u16(),
            Ok(_) => 0,
        };
        let target = format!("GET /{}", "a".repeat(1100));
        assert_eq!(status(&target), 414);
        assert_eq!(
            status(&format!("{target} HTTP/1.1\r\nHost: a\r\n\r\n")),
            414
        );
        let header = format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}", "a".repeat(4000));
        assert_eq!(status(&header), 431);
        assert_eq!(status(&format!("{header}\r\n\r\n")), 431);
        // Whatever the version, and with nothing too much.
        for version in ["1.0", "1.1"] {
            let line = |length: usize| {
                let target = format!("http://a/{}", "a".repeat(length - 24));
                format!("GET {target} HTTP/{version}\r\nHost: a\r\n\r\n")
            };
            assert_eq!(status(&line(1000)), 0, "{version}");
            assert_eq!(status(&line(1001)), 414, "{version}");
            let head = |length: usize| {
                let head = format!("GET / HTTP/{version}\r\nHost: a\r\nX: ");
                format!("{head}{}\r\n\r\n", "a".repeat(length - head.len() - 4))
            };
            assert_eq!(status(&head(4000)), 0, "{version}");
            assert_eq!(status(&head(4001)), 431, "{version}");
            assert_eq!(status(&head(8000)[..4001]), 431, "{version}");
        }
        let unlimited = Limits::default().line(usize::MAX).head(usize::MAX);
        assert!(matches!(parse(b"GET / HT", &unlimited), Ok(None)));
        let many = "A: b\r\n".repeat(HEADERS + 1);
        assert_eq!(status(&format!("GET / HTTP/1.1\r\n{many}\r\n")), 431);
    }

    /// However it is changed, what is parsed is parsed alike by its parts: none is complete before its end.
    #[test]
    fn whatever_comes_it_is_complete_at_one_place() {
        const PARTS: [&[u8]; 24] = [
            b"GET",
            b" ",
            b"/",
            b"a",
            b"?",
            b"HTTP/1.1",
            b"HTTP/1.0",
            b"\r\n",
            b"\n",
            b"\r",
            b":",
            b"Host: a",
            b"Content-Length",
            b"Transfer-Encoding",
            b"chunked",
            b"Connection: close",
            b"1",
            b",",
            b"\0",
            b"\xff",
            b"Expect: 100-continue",
            b"\t",
            b"GET / HTTP/1.1\r\nHost: a\r\n",
            b"\r\n\r\n",
        ];
        let limits = Limits::default();
        let mut random = fastrand::Rng::with_seed(7);
        let (mut whole, mut refused) = (0, 0);
        for _ in 0..20_000 {
            let mut bytes = b"GET / HTTP/1.1\r\nHost: a\r\n".to_vec();
            bytes.truncate(random.usize(..=bytes.len()));
            for _ in 0..random.usize(..12) {
                bytes.extend_from_slice(PARTS[random.usize(..PARTS.len())]);
            }
            bytes.extend_from_slice(b"\r\n\r\n");
            match parse(&bytes, &limits) {
                Ok(None) => {}
                Ok(Some((head, length))) => {
                    whole += 1;
                    let (lines, ends) = (b"\n", b"\r\n");
                    assert_eq!(
                        memchr::memmem::find_iter(&bytes[..length], lines).count(),
                        memchr::memmem::find_iter(&bytes[..length], ends).count()
                    );
                    for shorter in 0..length {
                        assert!(!matches!(parse(&bytes[..shorter], &limits), Ok(Some(_))));
                    }
                    bytes.extend_from_slice(b"GET / HTTP/1.1\r\n");
                    let again = parse(&bytes, &limits).expect("it is well formed");
                    let (again, at) = again.expect("it is whole");
                    assert_eq!((at, again.length), (length, head.length));
                }
                Err(_) => refused += 1,
            }
        }
        assert!(whole > 100 && refused > 100, "{whole} and {refused}");
    }
}
