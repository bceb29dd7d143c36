//! [`ResponseBody`], and how an answer is written.

use std::borrow::Cow;
use std::fmt;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::mem;
use std::net::{SocketAddr, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use http::header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, DATE, TRANSFER_ENCODING};
use http::response::Parts;
use http::{StatusCode, Version};

use crate::server::{Running, Shared};
use crate::wire::Wire;
use crate::{Response, date, head::lists};

/// Bytes of up to this many go out with their head, in one call.
const TOGETHER: usize = 64 << 10;

/// Most heads are no longer.
const HEAD: usize = 512;

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
pub struct ResponseBody(pub(crate) Kind);

pub(crate) enum Kind {
    Bytes(Cow<'static, [u8]>, bool),
    File(File, u64),
    Reader(Box<dyn Read + Send>, Option<u64>),
    Upgrade(Box<dyn FnOnce(Upgraded) + Send>),
}

/// A connection that speaks another protocol from here on: see [`ResponseBody::upgrade`].
#[derive(Debug)]
#[non_exhaustive]
pub struct Upgraded {
    /// The connection, in blocking mode, with the timeout of [`Limits::stall`](crate::Limits::stall) for each call: one that takes longer
    /// fails, and so does one during which a signal comes, with [`Interrupted`](ErrorKind::Interrupted).
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
    /// all, the answer is 500. Files of [`try_clone`](File::try_clone) have one position together: open the file for each answer.
    ///
    /// On Linux a client that goes meanwhile raises `SIGPIPE`, which `sendfile` cannot be told to leave out. A program in Rust ignores it.
    /// One that has given it back its default, or whose `main` is in C, has to ignore it, or ends.
    ///
    /// # Errors
    ///
    /// The system's, if the file's length or position cannot be had.
    #[doc(alias = "sendfile")]
    pub fn file(mut file: File) -> io::Result<Self> {
        let from = file.stream_position()?;
        let length = file.metadata()?.len().saturating_sub(from);
        Ok(ResponseBody(Kind::File(file, length)))
    }

    /// A part of a file, as [`file`](Self::file): the file must not be shorter.
    ///
    /// # Errors
    ///
    /// The system's, if the file has no positions.
    pub fn file_part(mut file: File, from: u64, length: u64) -> io::Result<Self> {
        file.seek(SeekFrom::Start(from))?;
        Ok(ResponseBody(Kind::File(file, length)))
    }

    /// What a reader returns until its end, in chunks. To a client of HTTP/1.0 the end of the connection is its end. The head goes out
    /// with what the reader returns first: where that takes long, as with events, let it be something that says nothing.
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
    ///
    /// The example `websocket` of the repository's `socknotify-examples` has websockets by `tungstenite`.
    #[doc(alias = "websocket")]
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
}

impl fmt::Debug for ResponseBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ResponseBody").field(&self.length()).finish()
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

/// What the server says of an error.
pub(crate) fn error(status: StatusCode) -> Response {
    let mut response = Response::new(format!("{status}\n").into());
    *response.status_mut() = status;
    response
}

/// What it returns; `None` if it panics. The panic hook has reported that, and to drop what it carries may panic as well.
#[inline]
pub(crate) fn caught<R>(call: impl FnOnce() -> R) -> Option<R> {
    catch_unwind(AssertUnwindSafe(call))
        .map_err(mem::forget)
        .ok()
}

/// What decides how an answer is written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer {
    pub(crate) version: Version,
    pub(crate) is_head: bool,
    pub(crate) persists: bool,
}

/// Why sending does not go on.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The client has no room for more now, or a signal has ended a call.
    Full,
    /// The client has gone, or its time is over.
    Client,
    /// The body cannot be read.
    Body,
}

/// An answer on its way to its client. It waits for nobody, and goes on where it stopped.
pub(crate) struct Sending {
    /// Whether the connection may be used again, and more.
    pub(crate) answer: Answer,
    pub(crate) status: StatusCode,
    /// What of its body is to be sent, and not in `bytes` yet.
    pub(crate) body: ResponseBody,
    /// What goes next, and how much of it went.
    bytes: Cow<'static, [u8]>,
    gone: usize,
    /// When it has to be sent.
    pub(crate) end: Instant,
    /// How many bytes went, and how many of what goes are no body's, but the head's and those between chunks.
    sent: u64,
    framing: u64,
    /// The body could not be read to its end.
    pub(crate) has_failed: bool,
    /// While it waits for its client: who counts it, what it answers, and how much the client's system had not taken.
    pub(crate) counted: Option<(Arc<Shared>, SocketAddr)>,
    pub(crate) running: Running,
    pub(crate) untaken: Option<u64>,
}

/// Wherever it waits, it breaks off.
impl Drop for Sending {
    fn drop(&mut self) {
        if let Some((shared, peer)) = self.counted.take() {
            shared.exchange(&mut self.running);
            shared.count(self, false, peer);
            shared.exchange(&mut self.running);
        }
    }
}

impl Sending {
    /// An answer that begins now, and has to be sent by `end`.
    pub(crate) fn new(response: Response, mut answer: Answer, now: Instant, end: Instant) -> Self {
        let (parts, mut body) = response.into_parts();
        let status = parts.status;
        let has_body = !(status.is_informational() || matches!(status.as_u16(), 204 | 304));
        let mut digits = itoa::Buffer::new();
        let framing = match body.length() {
            _ if !has_body => None,
            Some(length) => Some(("content-length", digits.format(length))),
            None if answer.version == Version::HTTP_11 => Some(("transfer-encoding", "chunked")),
            None => {
                // Its end is that of the connection.
                answer.persists = false;
                None
            }
        };
        let mut head = Vec::with_capacity(HEAD);
        answer.persists = write_head(&mut head, answer, &parts, now);
        let is_text = has_body && matches!(body.0, Kind::Bytes(_, true));
        if is_text && !parts.headers.contains_key(CONTENT_TYPE) {
            head.extend_from_slice(b"content-type: text/plain; charset=utf-8\r\n");
        }
        if let Some((name, value)) = framing {
            line(&mut head, name, value.as_bytes());
        }
        head.extend_from_slice(b"\r\n");
        if (!has_body || answer.is_head) && !matches!(body.0, Kind::Upgrade(_)) {
            caught(|| body = ().into());
        }
        Sending {
            answer,
            status,
            body,
            framing: head.len() as u64,
            bytes: Cow::Owned(head),
            gone: 0,
            end,
            sent: 0,
            has_failed: false,
            counted: None,
            running: Running::default(),
            untaken: None,
        }
    }

    /// How much of the body was sent. Of a chunk that broke off, what is around it counts as sent.
    pub(crate) fn length(&self) -> u64 {
        self.sent.saturating_sub(self.framing)
    }

    /// Send as much as the client has room for.
    ///
    /// If the body fails before anything was sent, the client is told that. A reader may also panic.
    pub(crate) fn go_on(&mut self, wire: &mut Wire) -> Result<(), Stop> {
        let sent = caught(|| self.send(wire)).unwrap_or(Err(Stop::Body));
        self.has_failed |= matches!(sent, Err(Stop::Body));
        if !self.has_failed || self.sent > 0 {
            return sent;
        }
        self.answer.persists = false;
        let response = error(StatusCode::INTERNAL_SERVER_ERROR);
        // To drop the body may panic, too.
        caught(|| *self = Sending::new(response, self.answer, Instant::now(), self.end));
        self.has_failed = true;
        self.send(wire)
    }

    fn send(&mut self, wire: &mut Wire) -> Result<(), Stop> {
        // Whether the body can be read is known before anything is sent.
        if self.sent == 0 && self.bytes.len() as u64 == self.framing {
            self.fill()?;
        }
        loop {
            while self.gone < self.bytes.len() || wire.has_unsent() {
                let sent = wire.send(&self.bytes[self.gone..], |stream| stream);
                let count = sent.map_err(|error| match error.kind() {
                    ErrorKind::WouldBlock | ErrorKind::Interrupted => Stop::Full,
                    _ => Stop::Client,
                })?;
                self.gone += count;
                self.sent += count as u64;
            }
            (self.bytes, self.gone) = (Cow::default(), 0);
            #[cfg(target_os = "linux")]
            self.send_file(wire)?;
            self.fill()?;
            if self.bytes.is_empty() {
                return Ok(());
            }
            if Instant::now() >= self.end {
                return Err(Stop::Client);
            }
        }
    }

    /// `sendfile` — Send of a file what the client has room for, as far as the system does it for such a file. Whether the file or
    /// the client fails, a copy finds out.
    #[cfg(target_os = "linux")]
    fn send_file(&mut self, wire: &Wire) -> Result<(), Stop> {
        use rustix::io::Errno;

        /// Between such parts the time is looked at.
        const AT_ONCE: u64 = 1 << 20;

        let Kind::File(file, left) = &mut self.body.0 else {
            return Ok(());
        };
        while *left > 0 && wire.is_plain() {
            if Instant::now() >= self.end {
                return Err(Stop::Client);
            }
            let most = (*left).min(AT_ONCE) as usize;
            match rustix::fs::sendfile(&wire.stream, &*file, None, most) {
                Err(Errno::AGAIN | Errno::INTR) => return Err(Stop::Full),
                Ok(0) | Err(_) => break,
                Ok(count) => {
                    *left -= count as u64;
                    self.sent += count as u64;
                }
            }
        }
        Ok(())
    }

    /// Add what comes next of the body: nothing at its end.
    fn fill(&mut self) -> Result<(), Stop> {
        match &mut self.body.0 {
            Kind::Bytes(bytes, _) if self.bytes.is_empty() => self.bytes = mem::take(bytes),
            Kind::Bytes(bytes, _) if bytes.len() <= TOGETHER => {
                self.bytes.to_mut().extend_from_slice(&mem::take(bytes));
            }
            // It goes behind its head.
            Kind::Bytes(..) | Kind::Upgrade(_) => {}
            Kind::File(file, left) if self.sent == 0 && *left > TOGETHER as u64 => {
                // A long one goes from its beginning as the system has it. This finds out whether it can be read.
                file.read_exact(&mut [0]).map_err(|_| Stop::Body)?;
                file.seek_relative(-1).map_err(|_| Stop::Body)?;
            }
            Kind::File(file, left) => read_piece(file, left, self.bytes.to_mut())?,
            Kind::Reader(reader, Some(left)) => read_piece(reader, left, self.bytes.to_mut())?,
            Kind::Reader(reader, None) => {
                let mut piece = vec![0; PIECE];
                let count = match reader.read(&mut piece) {
                    Err(error) if error.kind() == ErrorKind::Interrupted => return Err(Stop::Full),
                    count => count.map_err(|_| Stop::Body)?,
                };
                let out = self.bytes.to_mut();
                let begin = out.len();
                let is_chunk = self.answer.version == Version::HTTP_11;
                if is_chunk {
                    // Memory takes everything. The last chunk is empty.
                    let _ = write!(out, "{count:x}\r\n");
                }
                out.extend_from_slice(&piece[..count]);
                if is_chunk {
                    out.extend_from_slice(b"\r\n");
                }
                self.framing += (out.len() - begin - count) as u64;
                if count == 0 {
                    self.body = ().into();
                }
            }
        }
        Ok(())
    }
}

/// Append the next of so many bytes of a reader.
fn read_piece(reader: &mut impl Read, left: &mut u64, out: &mut Vec<u8>) -> Result<(), Stop> {
    let piece = (*left).min(PIECE as u64);
    let begin = out.len();
    out.resize(begin + piece as usize, 0);
    let read = reader.read_exact(&mut out[begin..]);
    read.map_err(|_| Stop::Body)?;
    *left -= piece;
    Ok(())
}

fn line(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    for part in [name.as_bytes(), b": ", value, b"\r\n"] {
        out.extend_from_slice(part);
    }
}

/// Write a head but for what the body makes of it. True if the connection may be used again.
fn write_head(out: &mut Vec<u8>, answer: Answer, parts: &Parts, now: Instant) -> bool {
    let (status, headers) = (parts.status, &parts.headers);
    let reason = status.canonical_reason().unwrap_or("");
    for part in ["HTTP/1.1 ", status.as_str(), " ", reason, "\r\n"] {
        out.extend_from_slice(part.as_bytes());
    }
    let mut persists = answer.persists;
    let switches = status == StatusCode::SWITCHING_PROTOCOLS;
    for (name, value) in headers {
        let has = |option| name == CONNECTION && lists(value.as_bytes(), option);
        persists &= !has("close");
        // How the body ends, and whether the connection goes on, is the server's to say.
        let is_own = has("close") || has("keep-alive") || switches && name == CONNECTION;
        if !is_own && name != CONTENT_LENGTH && name != TRANSFER_ENCODING {
            line(out, name.as_str(), value.as_bytes());
        }
    }
    let connection = match persists {
        _ if switches => Some("upgrade"),
        false => Some("close"),
        true => (answer.version == Version::HTTP_10).then_some("keep-alive"),
    };
    if let Some(value) = connection {
        line(out, "connection", value.as_bytes());
    }
    if !headers.contains_key(DATE) {
        date::on_date(now, |line| out.extend_from_slice(line.as_bytes()));
    }
    persists
}
