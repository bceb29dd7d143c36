//! [`RequestBody`]: what a handler reads of a request.

use std::io::{self, ErrorKind, Read};
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

use http::{HeaderMap, StatusCode};
use httparse::Status;
use socknotify::owned::Limited;

use crate::head::{self, Head};
use crate::{Limits, wire::Wire};

/// The longest line that begins a chunk: its length, and what a client adds to it.
const CHUNK_LINE: usize = 256;

/// What a handler has left of a body is received and dropped up to this much. With more than that, the connection ends.
const UNREAD: u64 = 64 << 10;

/// A body of up to this many bytes is received before its handler is called, without a thread that waits for it.
pub(crate) const EARLY: usize = 64 << 10;

/// From this room on, a read goes into the handler's buffer, and not through the connection's.
const DIRECT: usize = 1024;

/// The body of a [`Request`](crate::Request). To read it waits for the client, if it is longer than 64 KiB: a shorter one is there when
/// the handler is called.
///
/// A client that sends `Expect: 100-continue` is asked for it by the first read, whatever its length. If a read
/// fails because the client breaks a rule, the request is answered with what the client did, in place of what the handler returns:
///
/// | error | the body | answer |
/// |---|---|---|
/// | [`InvalidData`](ErrorKind::InvalidData) | is not well formed | 400 |
/// | [`TimedOut`](ErrorKind::TimedOut) | comes too slowly | 408 |
/// | [`FileTooLarge`](ErrorKind::FileTooLarge) | is longer than [`Limits::body`], or its trailers than [`Limits::head`] | 413 |
/// | [`UnexpectedEof`](ErrorKind::UnexpectedEof), and any other | ends early, or its connection fails | none |
#[derive(Debug)]
pub struct RequestBody<'a> {
    wire: &'a mut Wire,
    peer: SocketAddr,
    limits: &'a Limits,
    /// So many bytes are left of it, or of a chunk, and this is behind them.
    left: u64,
    next: Next,
    /// The client waits to be asked.
    must_ask: bool,
    received: u64,
    /// When the first read began.
    begun: Option<Instant>,
    failed: Option<ErrorKind>,
    trailers: HeaderMap,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    End,
    FirstChunk,
    Chunk,
}

impl<'a> RequestBody<'a> {
    pub(crate) fn new(
        wire: &'a mut Wire,
        peer: SocketAddr,
        limits: &'a Limits,
        head: &Head,
    ) -> Self {
        let (left, next) = match head.length {
            Some(length) => (length, Next::End),
            None => (0, Next::FirstChunk),
        };
        RequestBody {
            wire,
            peer,
            limits,
            left,
            next,
            must_ask: head.expects_continue,
            received: 0,
            begun: None,
            failed: None,
            trailers: HeaderMap::new(),
        }
    }

    /// The client's address. Of a Unix socket's client 0.0.0.0, and port 0.
    pub fn peer_addr(&self) -> SocketAddr {
        self.peer
    }

    /// The session of TLS: what the client has asked for (SNI), and its certificates. `None` without TLS.
    #[cfg(feature = "tls")]
    pub fn tls(&self) -> Option<&rustls::ServerConnection> {
        self.wire.tls.as_deref()
    }

    /// How many bytes are left to read; `None` if the client does not say.
    pub fn remaining(&self) -> Option<u64> {
        (self.next == Next::End).then_some(self.left)
    }

    /// What the client sent after a body in chunks: empty before that was read to its end.
    pub fn trailers(&self) -> &HeaderMap {
        &self.trailers
    }

    /// What the client did wrong, as far as it was read; an error without a status has no answer.
    pub(crate) fn failure(&self) -> Option<Option<StatusCode>> {
        self.failed.map(|kind| match kind {
            ErrorKind::InvalidData => Some(StatusCode::BAD_REQUEST),
            ErrorKind::TimedOut => Some(StatusCode::REQUEST_TIMEOUT),
            ErrorKind::FileTooLarge => Some(StatusCode::PAYLOAD_TOO_LARGE),
            _ => None,
        })
    }

    /// Receive and drop what the handler has left. True if the next request may follow.
    pub(crate) fn skip(&mut self) -> bool {
        let left = self.remaining();
        if left == Some(0) {
            return true;
        }
        // What it was not asked for, it may send or not.
        if self.must_ask || left.is_some_and(|left| left > UNREAD) {
            return false;
        }
        // With room for what ends the last chunk.
        let skipped = io::copy(&mut self.by_ref().take(UNREAD + 1), &mut io::sink());
        skipped.is_ok() && self.remaining() == Some(0)
    }

    /// The stream until the body is to be there, as far as is known now.
    fn limited(&mut self) -> impl Fn(&TcpStream) -> Limited<&TcpStream> + use<> {
        let begun = *self.begun.get_or_insert_with(Instant::now);
        let end = self.limits.body_end(begun, self.received);
        let stall = self.limits.stall;
        move |stream| Limited::until(stream, end).stall(stall)
    }

    /// Have the client send the body.
    fn ask(&mut self) -> io::Result<()> {
        if self.must_ask && self.wire.input.bytes().is_empty() {
            let limited = self.limited();
            let mut text = &b"HTTP/1.1 100 Continue\r\n\r\n"[..];
            while !text.is_empty() || self.wire.has_unsent() {
                text = &text[self.wire.send(text, &limited)?..];
            }
        }
        self.must_ask = false;
        Ok(())
    }

    /// Receive more into the connection's buffer. That may be nothing: a signal ends the call, or a lot is there.
    fn receive(&mut self) -> io::Result<()> {
        self.ask()?;
        let limited = self.limited();
        match self.wire.receive(limited)? {
            true => Ok(()),
            false => Err(ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Read of what is left, which is something.
    fn read_some(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX);
        let room = buffer.len().min(most);
        let buffer = &mut buffer[..room];
        while self.wire.input.bytes().is_empty() {
            if room >= DIRECT && self.wire.is_plain() {
                self.ask()?;
                let limited = self.limited();
                return match limited(&self.wire.stream).read(buffer)? {
                    0 => Err(ErrorKind::UnexpectedEof.into()),
                    count => Ok(count),
                };
            }
            self.receive()?;
        }
        let count = self.wire.input.bytes().read(buffer)?;
        self.wire.input.take(count);
        Ok(count)
    }

    fn read_any(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.left == 0 && self.next != Next::End {
            let is_first = self.next == Next::FirstChunk;
            match frame(self.wire.input.bytes(), is_first, self.limits)? {
                None => self.receive()?,
                Some(frame) if self.received.saturating_add(frame.chunk) > self.limits.body => {
                    return Err(ErrorKind::FileTooLarge.into());
                }
                Some(frame) => {
                    self.wire.input.take(frame.length);
                    (self.left, self.trailers) = (frame.chunk, frame.trailers);
                    self.next = match self.left {
                        0 => Next::End,
                        _ => Next::Chunk,
                    };
                }
            }
        }
        if self.left == 0 {
            return Ok(0);
        }
        let count = self.read_some(buffer)?;
        self.left -= count as u64;
        self.received += count as u64;
        Ok(count)
    }
}

/// What is before a chunk, or behind the last one.
struct Frame {
    length: usize,
    /// The length of the chunk that follows. 0 if none does.
    chunk: u64,
    trailers: HeaderMap,
}

/// The chunks of a body that is being received, as far as their lengths are there.
#[derive(Clone, Copy, Default)]
pub(crate) struct Chunks {
    /// Where the last one ends: so nothing is looked at twice.
    end: usize,
    /// How long they are together.
    sum: u64,
}

impl Chunks {
    /// Whether a body in chunks that begins with these bytes is complete, or longer than is received early or allowed, or not well
    /// formed.
    pub(crate) fn is_whole(&mut self, bytes: &[u8], limits: &Limits) -> bool {
        let longest = limits.body.min(EARLY as u64);
        while let Some(rest) = bytes.get(self.end..) {
            match frame(rest, self.end == 0, limits) {
                Ok(None) => break,
                Ok(Some(frame)) if (1..=longest - self.sum).contains(&frame.chunk) => {
                    self.end += frame.length + frame.chunk as usize;
                    self.sum += frame.chunk;
                }
                _ => return true,
            }
        }
        bytes.len() >= EARLY
    }
}

/// What these bytes begin with between two chunks; `None` if it is not complete.
fn frame(bytes: &[u8], is_first: bool, limits: &Limits) -> io::Result<Option<Frame>> {
    let end = if is_first { &b""[..] } else { b"\r\n" };
    let Some(line) = bytes.strip_prefix(end) else {
        return match end.starts_with(bytes) {
            true => Ok(None),
            false => Err(ErrorKind::InvalidData.into()),
        };
    };
    let Some((chunk, length)) = chunk_length(line)? else {
        return Ok(None);
    };
    let mut frame = Frame {
        length: end.len() + length,
        chunk,
        trailers: HeaderMap::new(),
    };
    if chunk == 0 {
        let Some((trailers, length)) = head::trailers(&line[length..], limits.head)? else {
            return Ok(None);
        };
        frame.trailers = trailers;
        frame.length += length;
    }
    Ok(Some(frame))
}

/// The length of the chunk whose line these bytes begin with, and of the line. `None` if that is not complete.
fn chunk_length(bytes: &[u8]) -> io::Result<Option<(u64, usize)>> {
    let bytes = &bytes[..bytes.len().min(CHUNK_LINE)];
    let is_control = |byte: &u8| byte.is_ascii_control() && *byte != b'\t';
    // `httparse` takes for one some that others do not.
    let is_line = |line: &[u8]| {
        let has_digits = line.first().is_some_and(u8::is_ascii_hexdigit);
        has_digits && line.trim_ascii_end() == line && !line.iter().any(is_control)
    };
    match httparse::parse_chunk_size(bytes) {
        Ok(Status::Partial) if bytes.len() < CHUNK_LINE => Ok(None),
        Ok(Status::Complete((end, length))) if is_line(&bytes[..end - 2]) => {
            Ok(Some((length, end)))
        }
        _ => Err(ErrorKind::InvalidData.into()),
    }
}

/// Waits for the client. Errors stay: each further read fails with the same kind.
impl Read for RequestBody<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        if let Some(kind) = self.failed {
            return Err(kind.into());
        }
        loop {
            match self.read_any(buffer) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                outcome => {
                    return outcome.inspect_err(|error| self.failed = Some(error.kind()));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_a_chunk_is_digits_and_an_extension() {
        for (line, length) in [
            ("0\r\n", 0),
            ("a\r\n", 10),
            ("00fF\r\n", 255),
            ("5;a=b;c=\"d\"\r\n", 5),
            ("5 ;a\r\n", 5),
            ("5\t;a\r\n", 5),
            ("ffffffffffffffff\r\n", u64::MAX),
        ] {
            for end in 0..line.len() {
                assert_eq!(chunk_length(&line.as_bytes()[..end]).ok(), Some(None));
            }
            let parsed = chunk_length(line.as_bytes()).expect(line);
            assert_eq!(parsed, Some((length, line.len())), "{line:?}");
        }
        let long = format!("5;{}\r\n", "a".repeat(CHUNK_LINE));
        for line in [
            "\r\n",
            "\n",
            "5\n",
            "5\r\r\n",
            " 5\r\n",
            "5 \r\n",
            "+5\r\n",
            "-5\r\n",
            "0x5\r\n",
            "5g\r\n",
            "5,\r\n",
            "5;\0\r\n",
            "5;a\r\rb\r\n",
            "5\r;a\r\n",
            "5\x0c;a\r\n",
            "5 \r ;a\r\n",
            "1ffffffffffffffff\r\n",
            &long,
        ] {
            assert!(chunk_length(line.as_bytes()).is_err(), "{line:?}");
        }
    }
}
