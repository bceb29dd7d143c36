//! Answers, as bytes.

use std::io::Write;
use std::time::SystemTime;

use httpdate::HttpDate;

use super::request::{Method, Refusal, Request, Target};

const HELLO: &str = "Hello, world!\n";

const TEXT: &str = "text/plain; charset=utf-8";

const NOT_IMPLEMENTED: &str = "501 Not Implemented";

/// What a server can do with what it has.
const ALLOW: &str = "Allow: GET, HEAD\r\n";

/// Asks for the body of a request that waits to be asked.
pub(super) const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// What an access log tells of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) status: u16,
    /// How long its body is.
    pub(crate) length: u64,
}

/// An answer with a body of text. Its status, its header lines and the body.
pub(super) struct Page<'a> {
    pub(super) status: &'a str,
    pub(super) headers: &'a str,
    pub(super) kind: &'a str,
    pub(super) body: &'a str,
}

impl Page<'_> {
    /// Appends it, without the body if nobody wants that.
    pub(super) fn write(&self, out: &mut Vec<u8>, connection: &str, is_head: bool) -> Told {
        let Page {
            status,
            headers,
            kind,
            body,
        } = self;
        let length = body.len();
        begin(out, status);
        // Memory takes everything.
        let _ = write!(
            out,
            "Content-Type: {kind}\r\nContent-Length: {length}\r\n{headers}{connection}\r\n"
        );
        let length = if is_head { 0 } else { length };
        out.extend_from_slice(&body.as_bytes()[..length]);
        told(status, length as u64)
    }
}

/// An error says in its body what it says in its status.
pub(super) fn error(
    out: &mut Vec<u8>,
    status: &str,
    headers: &str,
    connection: &str,
    is_head: bool,
) -> Told {
    let page = Page {
        status,
        headers,
        kind: TEXT,
        body: &format!("{status}\n"),
    };
    page.write(out, connection, is_head)
}

/// Appends what each answer begins with.
pub(super) fn begin(out: &mut Vec<u8>, status: &str) {
    let now = HttpDate::from(SystemTime::now());
    // Memory takes everything.
    let _ = write!(out, "HTTP/1.1 {status}\r\nDate: {now}\r\n");
}

pub(super) fn told(status: &str, length: u64) -> Told {
    let code = status.split(' ').next().and_then(|code| code.parse().ok());
    Told {
        status: code.unwrap_or_default(),
        length,
    }
}

/// Appends the answer to a request.
pub(super) fn write(
    out: &mut Vec<u8>,
    method: Method,
    target: &Target,
    connection: &str,
    stats: impl FnOnce() -> String,
) -> Told {
    let is_head = method == Method::Head;
    let stats = match (method, target) {
        (Method::Unknown, _) => {
            return error(out, NOT_IMPLEMENTED, "", connection, is_head);
        }
        // Files are answered elsewhere.
        (Method::Other, _) | (_, Target::File(_)) => {
            return error(out, "405 Method Not Allowed", ALLOW, connection, is_head);
        }
        (_, Target::Hello) => None,
        (_, Target::Stats) => Some(stats()),
    };
    let page = Page {
        status: "200 OK",
        headers: match stats {
            None => "",
            Some(_) => "Cache-Control: no-store\r\n",
        },
        kind: match stats {
            None => TEXT,
            Some(_) => "application/json",
        },
        body: stats.as_deref().unwrap_or(HELLO),
    };
    page.write(out, connection, is_head)
}

/// The header line that says whether the connection is to be used again.
pub(super) fn connection(request: &Request, persists: bool) -> &'static str {
    match (persists, request.is_version_1_0) {
        (false, _) => CLOSE,
        (true, true) => "Connection: keep-alive\r\n",
        (true, false) => "",
    }
}

const CLOSE: &str = "Connection: close\r\n";

/// Appends the answer to what was refused.
pub(super) fn refuse(out: &mut Vec<u8>, refusal: Refusal) -> Told {
    let (status, headers) = match refusal {
        Refusal::BadRequest => ("400 Bad Request", ""),
        Refusal::HeadTooLarge => ("431 Request Header Fields Too Large", ""),
        Refusal::LengthRequired => ("411 Length Required", ""),
        Refusal::NotImplemented => (NOT_IMPLEMENTED, ""),
        Refusal::Version => ("505 HTTP Version Not Supported", ""),
        Refusal::BodyNotWanted => ("405 Method Not Allowed", ALLOW),
    };
    error(out, status, headers, CLOSE, false)
}
