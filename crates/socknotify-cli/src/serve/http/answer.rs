//! Answers, as bytes.

use super::request::{Method, Refusal, Request, Target};

const HELLO: &str = "Hello, world!\n";

/// Asks for the body of a request that waits to be asked.
pub(super) const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// Appends the answer to a request.
pub(super) fn write(
    out: &mut Vec<u8>,
    method: Method,
    target: &Target,
    connection: &str,
    stats: impl FnOnce() -> String,
) {
    let is_head = method == Method::Head;
    match (method, target) {
        // Files are answered elsewhere.
        (Method::Other, _) | (_, Target::File(_)) => {
            let headers = format!("Allow: GET, HEAD\r\n{connection}");
            write_parts(out, "405 Method Not Allowed", &headers, "", false);
        }
        (_, Target::Hello) => {
            let kind = "Content-Type: text/plain\r\n";
            write_with_kind(out, kind, connection, HELLO, is_head);
        }
        (_, Target::Stats) => {
            let kind = "Content-Type: application/json\r\nCache-Control: no-store\r\n";
            write_with_kind(out, kind, connection, &stats(), is_head);
        }
    }
}

/// The header line that says whether the connection is to be used again.
pub(super) fn connection(request: &Request, persists: bool) -> &'static str {
    match (persists, request.is_version_1_0) {
        (false, _) => "Connection: close\r\n",
        (true, true) => "Connection: keep-alive\r\n",
        (true, false) => "",
    }
}

/// Appends the answer to what was refused.
pub(super) fn refuse(out: &mut Vec<u8>, refusal: Refusal) {
    let status = match refusal {
        Refusal::BadRequest => "400 Bad Request",
        Refusal::HeadTooLarge => "431 Request Header Fields Too Large",
        Refusal::LengthRequired => "411 Length Required",
        Refusal::NotImplemented => "501 Not Implemented",
    };
    write_parts(out, status, "Connection: close\r\n", "", false);
}

fn write_with_kind(out: &mut Vec<u8>, kind: &str, connection: &str, body: &str, is_head: bool) {
    out.extend_from_slice(b"HTTP/1.1 200 OK\r\n");
    out.extend_from_slice(kind.as_bytes());
    write_rest(out, connection, body, is_head);
}

fn write_parts(out: &mut Vec<u8>, status: &str, headers: &str, body: &str, is_head: bool) {
    out.extend_from_slice(b"HTTP/1.1 ");
    out.extend_from_slice(status.as_bytes());
    out.extend_from_slice(b"\r\n");
    write_rest(out, headers, body, is_head);
}

fn write_rest(out: &mut Vec<u8>, headers: &str, body: &str, is_head: bool) {
    out.extend_from_slice(headers.as_bytes());
    out.extend_from_slice(b"Content-Length: ");
    out.extend_from_slice(body.len().to_string().as_bytes());
    out.extend_from_slice(b"\r\n\r\n");
    if !is_head {
        out.extend_from_slice(body.as_bytes());
    }
}
