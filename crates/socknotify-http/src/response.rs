//! [`ResponseBody`], and how an answer is written.

use std::borrow::Cow;
use std::cell::RefCell;
use std::fmt;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::mem;
use std::net::TcpStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use http::header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, DATE, TRANSFER_ENCODING};
use http::response::Parts;
use http::{StatusCode, Version};

use crate::Response;
use crate::date;
use crate::head::lists;
use crate::wire::Sender;

/// Bytes of up to this many go out with their head, in one call.
const TOGETHER: usize = 64 << 10;

/// How much of a reader is sent at once, and how much of a file with the head.
const PIECE: usize = 16 << 10;

/// The body of a [`Response`]: bytes, a file, or what a reader returns.
///
/// Strings, vectors and slices that live for ever convert into one; `()` is an empty one. A string has the type `text/plain` in UTF-8, unless
/// the answer has a `Content-Type`; all else has none. The server writes `Content-Length`, or sends
/// chunks, and leaves the body out where HTTP has none: of an answer to HEAD, and with 204 and 304.
///
/// # Examples
///
/// ```
/// use socknotify_http::{Response, ResponseBody};
///
/// # fn main() -> std::io::Result<()> {
/// let text = Response::new("hello\n".into());
/// let file = Response::new(ResponseBody::file(std::fs::File::open("Cargo.toml")?)?);
/// let made = Response::new(ResponseBody::reader(&b"any `Read`"[..]));
/// # Ok(())
/// # }
/// ```
pub struct ResponseBody(Kind);

enum Kind {
    Bytes(Cow<'static, [u8]>, bool),
    /// Until it is sent.
    File(Option<File>, u64),
    Reader(Box<dyn Read + Send>, Option<u64>),
    Upgrade(Box<dyn FnOnce(Upgraded) + Send>),
}

/// A connection that speaks another protocol from here on: see [`ResponseBody::upgrade`].
#[derive(Debug)]
#[non_exhaustive]
pub struct Upgraded {
    /// The connection, in blocking mode, with the timeout of [`Limits::stall`](crate::Limits::stall) for each call.
    pub stream: TcpStream,
    /// What the client has sent of the other protocol already.
    pub read_ahead: Vec<u8>,
    /// The session of TLS that is to be used with the stream: see `rustls::StreamOwned`. `None` without TLS.
    #[cfg(feature = "tls")]
    pub tls: Option<Box<rustls::ServerConnection>>,
}

impl ResponseBody {
    /// A file, from its position to its end. Where the system can, it goes to the socket without being copied (`sendfile`).
    ///
    /// The file must not become shorter while it is sent: then the connection ends in the middle of the answer. If it cannot be read at
    /// all, the answer is 500.
    ///
    /// # Errors
    ///
    /// The system's, if the file's length or position cannot be had.
    #[doc(alias = "sendfile")]
    pub fn file(mut file: File) -> io::Result<Self> {
        let from = file.stream_position()?;
        let length = file.metadata()?.len().saturating_sub(from);
        Ok(ResponseBody(Kind::File(Some(file), length)))
    }

    /// A part of a file.
    ///
    /// # Errors
    ///
    /// As [`file`](Self::file); [`UnexpectedEof`](ErrorKind::UnexpectedEof) if the file is shorter.
    pub fn file_part(mut file: File, from: u64, length: u64) -> io::Result<Self> {
        let end = from.checked_add(length);
        if end.is_none_or(|end| file.metadata().is_ok_and(|it| it.len() < end)) {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        file.seek(SeekFrom::Start(from))?;
        Ok(ResponseBody(Kind::File(Some(file), length)))
    }

    /// So many bytes of a file, from its position on.
    pub(crate) fn rest_of(file: File, length: u64) -> Self {
        ResponseBody(Kind::File(Some(file), length))
    }

    /// What a reader returns until its end, in chunks. To a client of HTTP/1.0 the end of the connection is its end.
    ///
    /// If the reader fails or panics at once, the answer is 500. Later, the connection ends in the middle of the answer: so the client
    /// sees that it is not whole, unless it is one of HTTP/1.0.
    pub fn reader(reader: impl Read + Send + 'static) -> Self {
        ResponseBody(Kind::Reader(Box::new(reader), None))
    }

    /// The same, of this length. If there is less, the connection ends in the middle of the answer; more is not read.
    pub fn reader_of(length: u64, reader: impl Read + Send + 'static) -> Self {
        ResponseBody(Kind::Reader(Box::new(reader), Some(length)))
    }

    /// No body, but another protocol. The answer must have status 101, and say in its headers which protocol it is (`Upgrade`); then
    /// `call` has the connection, on this thread, which it may block for as long as it likes.
    ///
    /// The connection counts as ended for the server, and has no limits any more. The thread counts as one whose handler blocks, among
    /// those that there [may be](socknotify::owned::Serving::threads), and at the end it is waited for: for a connection that stays,
    /// `call` starts a thread of its own. With another status, for a request of HTTP/1.0, or if the request has a body that the client
    /// does not send to its end, it is an error of the handler's, and the client gets 500.
    pub fn upgrade(call: impl FnOnce(Upgraded) + Send + 'static) -> Self {
        ResponseBody(Kind::Upgrade(Box::new(call)))
    }

    /// How many bytes it has; `None` if that is not known.
    pub fn length(&self) -> Option<u64> {
        match &self.0 {
            Kind::Bytes(bytes, _) => Some(bytes.len() as u64),
            Kind::File(_, length) => Some(*length),
            Kind::Reader(_, length) => *length,
            Kind::Upgrade(_) => Some(0),
        }
    }

    pub(crate) fn is_upgrade(&self) -> bool {
        matches!(self.0, Kind::Upgrade(_))
    }

    pub(crate) fn into_upgrade(self) -> Option<Box<dyn FnOnce(Upgraded) + Send>> {
        match self.0 {
            Kind::Upgrade(call) => Some(call),
            _ => None,
        }
    }
}

impl fmt::Debug for ResponseBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseBody")
            .field("length", &self.length())
            .finish_non_exhaustive()
    }
}

impl From<()> for ResponseBody {
    fn from((): ()) -> Self {
        ResponseBody(Kind::Bytes(Cow::Borrowed(b""), false))
    }
}

/// With `Content-Type: text/plain; charset=utf-8`, if the answer has no other one.
impl From<&'static str> for ResponseBody {
    fn from(text: &'static str) -> Self {
        ResponseBody(Kind::Bytes(Cow::Borrowed(text.as_bytes()), true))
    }
}

/// With `Content-Type: text/plain; charset=utf-8`, if the answer has no other one.
impl From<String> for ResponseBody {
    fn from(text: String) -> Self {
        ResponseBody(Kind::Bytes(Cow::Owned(text.into_bytes()), true))
    }
}

impl From<&'static [u8]> for ResponseBody {
    fn from(bytes: &'static [u8]) -> Self {
        ResponseBody(Kind::Bytes(Cow::Borrowed(bytes), false))
    }
}

impl From<Vec<u8>> for ResponseBody {
    fn from(bytes: Vec<u8>) -> Self {
        ResponseBody(Kind::Bytes(Cow::Owned(bytes), false))
    }
}

/// What the server says of an error, with the status as its text.
pub(crate) fn error(status: StatusCode) -> Response {
    let mut response = Response::new(format!("{status}\n").into());
    *response.status_mut() = status;
    response
}

/// What decides how an answer is written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer {
    pub(crate) version: Version,
    pub(crate) is_head: bool,
    pub(crate) persists: bool,
    pub(crate) now: Instant,
}

/// What was written.
#[derive(Debug)]
pub(crate) struct Written {
    pub(crate) status: StatusCode,
    pub(crate) length: u64,
    /// The body could not be read to its end.
    pub(crate) has_failed: bool,
    /// Whether the connection may be used again, once the rest was sent.
    pub(crate) end: Result<bool, Failure>,
    pub(crate) rest: Option<Rest>,
}

/// What a client has not taken yet of an answer.
#[derive(Debug, Default)]
pub(crate) struct Rest {
    bytes: Cow<'static, [u8]>,
    at: usize,
    /// Behind them.
    next: Cow<'static, [u8]>,
    /// So many bytes of a file at last.
    file: Option<(File, u64)>,
    /// So many bytes were sent, and are the head's.
    sent: u64,
    head: u64,
}

impl Rest {
    /// How many bytes of the body were sent.
    pub(crate) fn length(&self) -> u64 {
        self.sent.saturating_sub(self.head)
    }

    /// Send as much as the client takes at once. True if that is all.
    pub(crate) fn send(&mut self, mut stream: &TcpStream) -> Result<bool, Failure> {
        loop {
            if self.at == self.bytes.len() && !self.next.is_empty() {
                (self.bytes, self.at) = (mem::take(&mut self.next), 0);
            }
            let sent = match &mut self.file {
                _ if self.at < self.bytes.len() => stream.write(&self.bytes[self.at..]),
                None | Some((_, 0)) => return Ok(true),
                Some((file, left)) => {
                    (self.bytes, self.at) = (Cow::default(), 0);
                    send_file(stream, file, *left)
                }
            };
            match (sent, &mut self.file) {
                (Err(error), _) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                (Err(error), _) if error.kind() == ErrorKind::Interrupted => {}
                (Ok(count), _) if count > 0 && self.at < self.bytes.len() => {
                    self.at += count;
                    self.sent += count as u64;
                }
                (Ok(count), Some((_, left))) if count > 0 => {
                    *left -= count as u64;
                    self.sent += count as u64;
                }
                // The system does not send this file. Whether it or the client fails, a copy finds out.
                (_, Some((file, left))) if self.bytes.is_empty() => {
                    let mut piece = vec![0; (*left).min(PIECE as u64) as usize];
                    file.read_exact(&mut piece).map_err(|_| Failure::Body)?;
                    *left -= piece.len() as u64;
                    self.bytes = piece.into();
                }
                _ => return Err(Failure::Client),
            }
        }
    }
}

/// Why an answer is not whole.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The client has gone, or receives nothing.
    Client,
    /// The body cannot be read.
    Body,
}

/// Of the client's stream.
impl From<io::Error> for Failure {
    fn from(_: io::Error) -> Self {
        Failure::Client
    }
}

/// How the end of a body is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    None,
    Length(u64),
    Chunks,
    Close,
}

thread_local! {
    static OUT: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Write an answer to a client.
///
/// If its body fails before anything was sent, the client is told that. A reader may also panic.
pub(crate) fn write(
    client: Sender<'_>,
    answer: Answer,
    parts: &Parts,
    body: &mut ResponseBody,
) -> Written {
    let mut out = Out {
        bytes: OUT.take(),
        client,
        rest: None,
    };
    out.bytes.clear();
    let write = || write_with(&mut out, answer, parts, body);
    let written = catch_unwind(AssertUnwindSafe(write)).unwrap_or_else(|panic| {
        // To drop what it carries may panic as well.
        std::mem::forget(panic);
        Err(Failure::Body)
    });
    let has_failed = matches!(written, Err(Failure::Body));
    let (status, end) = match written {
        _ if has_failed && out.client.sent == 0 => {
            out.bytes.clear();
            let (parts, mut body) = error(StatusCode::INTERNAL_SERVER_ERROR).into_parts();
            let answer = Answer {
                persists: false,
                ..answer
            };
            (
                parts.status,
                write_with(&mut out, answer, &parts, &mut body),
            )
        }
        written => (parts.status, written),
    };
    if out.bytes.capacity() <= 2 * TOGETHER {
        OUT.set(out.bytes);
    }
    Written {
        status,
        length: out.client.sent.saturating_sub(out.client.head),
        has_failed,
        end,
        rest: out.rest,
    }
}

/// What goes to a client.
struct Out<'a> {
    bytes: Vec<u8>,
    client: Sender<'a>,
    rest: Option<Rest>,
}

impl Out<'_> {
    fn flush(&mut self) -> Result<(), Failure> {
        self.client.write_all(&self.bytes)?;
        self.bytes.clear();
        Ok(())
    }

    /// Send so many bytes of a reader, those that are there before them.
    fn copy(&mut self, reader: &mut impl Read, length: u64) -> Result<(), Failure> {
        let mut left = length;
        while left > 0 {
            let piece = left.min(PIECE as u64);
            self.read(reader, piece)?;
            self.flush()?;
            left -= piece;
        }
        Ok(())
    }

    /// Append so many bytes of a reader.
    fn read(&mut self, reader: &mut impl Read, length: u64) -> Result<(), Failure> {
        let begin = self.bytes.len();
        self.bytes.resize(begin + length as usize, 0);
        let read = reader.read_exact(&mut self.bytes[begin..]);
        read.map_err(|_| Failure::Body)
    }

    /// Send all that a reader returns, as it comes.
    fn copy_all(&mut self, reader: &mut impl Read, is_chunked: bool) -> Result<(), Failure> {
        let mut piece = vec![0; PIECE];
        loop {
            let count = match reader.read(&mut piece) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                count => count.map_err(|_| Failure::Body)?,
            };
            if is_chunked {
                // Memory takes everything. The last chunk is empty.
                let _ = write!(self.bytes, "{count:x}\r\n");
            }
            self.bytes.extend_from_slice(&piece[..count]);
            if is_chunked {
                self.bytes.extend_from_slice(b"\r\n");
            }
            if count == 0 {
                return Ok(());
            }
            self.flush()?;
        }
    }
}

/// True if the connection may be used again.
fn write_with(
    out: &mut Out<'_>,
    answer: Answer,
    parts: &Parts,
    body: &mut ResponseBody,
) -> Result<bool, Failure> {
    let status = parts.status;
    let has_body = !(status.is_informational()
        || status == StatusCode::NO_CONTENT
        || status == StatusCode::NOT_MODIFIED);
    let ending = match body.length() {
        _ if !has_body => Ending::None,
        Some(length) => Ending::Length(length),
        None if answer.version == Version::HTTP_11 => Ending::Chunks,
        None => Ending::Close,
    };
    let is_text = matches!(body.0, Kind::Bytes(_, true));
    let persists = write_head(&mut out.bytes, answer, parts, ending, is_text);
    out.client.head = out.bytes.len() as u64;
    let mut rest = Rest::default();
    match &mut body.0 {
        _ if !has_body || answer.is_head => {}
        Kind::Upgrade(_) => {}
        Kind::Bytes(bytes, _) if bytes.len() <= TOGETHER => out.bytes.extend_from_slice(bytes),
        Kind::Bytes(bytes, _) => rest.next = mem::take(bytes),
        Kind::File(file, length) => {
            // Whether it can be read is known before anything is sent.
            let mut file = file.take().ok_or(Failure::Body)?;
            let first = (*length).min(PIECE as u64);
            out.read(&mut file, first)?;
            rest.file = Some((file, *length - first));
        }
        Kind::Reader(reader, Some(length)) => out.copy(reader, *length)?,
        Kind::Reader(reader, None) => out.copy_all(reader, ending == Ending::Chunks)?,
    }
    if !out.client.is_plain || out.client.sent > 0 {
        out.flush()?;
        out.client.write_all(&rest.next)?;
        if let Some((mut file, left)) = rest.file {
            out.copy(&mut file, left)?;
        }
        return Ok(persists);
    }
    rest.head = out.client.head;
    rest.bytes = mem::take(&mut out.bytes).into();
    let outcome = rest.send(out.client.stream);
    out.client.sent = rest.sent;
    match outcome? {
        true => out.bytes = rest.bytes.into_owned(),
        false => out.rest = Some(rest),
    }
    Ok(persists)
}

fn line(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    for part in [name.as_bytes(), b": ", value, b"\r\n"] {
        out.extend_from_slice(part);
    }
}

/// True if the connection may be used again.
fn write_head(
    out: &mut Vec<u8>,
    answer: Answer,
    parts: &Parts,
    ending: Ending,
    is_text: bool,
) -> bool {
    let reason = parts.status.canonical_reason().unwrap_or("");
    for part in ["HTTP/1.1 ", parts.status.as_str(), " ", reason, "\r\n"] {
        out.extend_from_slice(part.as_bytes());
    }
    let mut persists = answer.persists && ending != Ending::Close;
    let (mut has_type, mut has_date, mut has_connection) = (false, false, false);
    for (name, value) in &parts.headers {
        // How the body ends, and whether the connection goes on, is the server's to say.
        if name == CONTENT_LENGTH || name == TRANSFER_ENCODING {
            continue;
        }
        if name == CONNECTION && lists(value.as_bytes(), "close") {
            persists = false;
            continue;
        }
        has_connection |= name == CONNECTION;
        has_type |= name == CONTENT_TYPE;
        has_date |= name == DATE;
        line(out, name.as_str(), value.as_bytes());
    }
    if is_text && !has_type {
        line(out, "content-type", b"text/plain; charset=utf-8");
    }
    match ending {
        Ending::Length(length) => {
            let mut digits = itoa::Buffer::new();
            line(out, "content-length", digits.format(length).as_bytes());
        }
        Ending::Chunks => line(out, "transfer-encoding", b"chunked"),
        Ending::None | Ending::Close => {}
    }
    if parts.status == StatusCode::SWITCHING_PROTOCOLS {
        if !has_connection {
            line(out, "connection", b"upgrade");
        }
    } else if !persists {
        line(out, "connection", b"close");
    } else if answer.version == Version::HTTP_10 {
        line(out, "connection", b"keep-alive");
    }
    if !has_date {
        out.extend_from_slice(b"date: ");
        date::write(out, answer.now);
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"\r\n");
    persists
}

/// `sendfile` — Send up to so many bytes of a file, as far as the system does it for such a file.
#[cfg(target_os = "linux")]
fn send_file(stream: &TcpStream, file: &File, length: u64) -> io::Result<usize> {
    /// The system sends no more at once.
    const MOST: u64 = 1 << 30;

    Ok(rustix::fs::sendfile(
        stream,
        file,
        None,
        length.min(MOST) as usize,
    )?)
}

#[cfg(not(target_os = "linux"))]
fn send_file(_: &TcpStream, _: &File, _: u64) -> io::Result<usize> {
    Err(ErrorKind::Unsupported.into())
}
