//! What a server sends back.

use std::fmt;

use httparse::Status;

use super::plan::Mode;

/// The most header lines of an answer.
const HEADERS: usize = 64;

/// The largest head of an answer.
const HEAD_LIMIT: usize = 16 * 1024;

/// Finds the ends of answers.
#[derive(Debug)]
pub(crate) enum Answers {
    /// Each is what was sent. So much of the next one has come.
    Echo { position: usize },
    Http {
        /// The head of the next one, or a line between chunks, as far as it has come.
        kept: Vec<u8>,
        /// What is to come of the body. `None` between answers.
        body: Option<Body>,
        /// The server closes the connection after the latest one.
        is_last: bool,
        /// They have no bodies.
        is_head: bool,
    },
}

/// What comes next of an answer's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Body {
    /// So many bytes, and then it is over.
    Rest(u64),
    /// The length of a chunk.
    ChunkSize,
    /// So many bytes of a chunk.
    Chunk(u64),
    /// The end of the line after a chunk.
    ChunkEnd,
    /// Header lines after the last chunk.
    Trailer,
}

/// What no server should answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WrongAnswer {
    /// Other bytes than those that were sent.
    NotAnEcho,
    /// HTTP, where an echo was expected.
    IsHttp,
    /// The request itself, where HTTP was expected.
    IsEcho,
    NotHttp,
    HeadTooLarge,
    /// HTTP with this status.
    Status(u16),
    /// HTTP that does not say where the answer ends.
    NoLength,
    LengthIsNoNumber,
    /// Several, which differ.
    TwoLengths,
    LengthTooLarge,
    BadChunk,
    /// There was no request for it.
    Unasked,
}

impl fmt::Display for WrongAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WrongAnswer::NotAnEcho => f.write_str("it is not what was sent"),
            WrongAnswer::IsHttp => f.write_str("it is HTTP; try --mode http"),
            WrongAnswer::IsEcho => f.write_str("it is the request itself; try --mode echo"),
            WrongAnswer::NotHttp => f.write_str("it is not HTTP"),
            WrongAnswer::HeadTooLarge => f.write_str("its HTTP headers are too large"),
            WrongAnswer::Status(code) => write!(f, "it has HTTP status {code}"),
            WrongAnswer::NoLength => f.write_str("it has no Content-Length and no chunks"),
            WrongAnswer::LengthIsNoNumber => f.write_str("its Content-Length is no number"),
            WrongAnswer::TwoLengths => f.write_str("it has two different Content-Length"),
            WrongAnswer::LengthTooLarge => f.write_str("its Content-Length is too large"),
            WrongAnswer::BadChunk => f.write_str("its chunks are malformed"),
            WrongAnswer::Unasked => f.write_str("there was no request for it"),
        }
    }
}

impl Answers {
    pub(crate) fn new(mode: Mode, is_head: bool) -> Self {
        match mode {
            Mode::Echo => Answers::Echo { position: 0 },
            Mode::Http => Answers::Http {
                kept: Vec::new(),
                body: None,
                is_last: false,
                is_head,
            },
        }
    }

    /// Whether the server has said that it closes the connection, in an answer that is complete.
    pub(crate) fn are_over(&self) -> bool {
        matches!(
            self,
            Answers::Http {
                is_last: true,
                body: None,
                ..
            }
        )
    }

    /// How many answers end in these bytes. None is counted after the last one.
    pub(crate) fn count(&mut self, bytes: &[u8], request: &[u8]) -> Result<usize, WrongAnswer> {
        match self {
            Answers::Echo { position } => count_echoes(position, bytes, request),
            Answers::Http {
                kept,
                body,
                is_last,
                is_head,
            } => {
                let mut joined = Vec::new();
                let mut rest = bytes;
                if !kept.is_empty() {
                    joined = std::mem::take(kept);
                    joined.extend_from_slice(bytes);
                    rest = &joined;
                }
                let count = count_answers(&mut rest, body, is_last, *is_head, request)?;
                if !rest.is_empty() {
                    *kept = rest.to_vec();
                }
                drop(joined);
                Ok(count)
            }
        }
    }
}

fn count_echoes(
    position: &mut usize,
    mut bytes: &[u8],
    request: &[u8],
) -> Result<usize, WrongAnswer> {
    let mut count = 0;
    while !bytes.is_empty() {
        let expected = &request[*position..];
        let length = expected.len().min(bytes.len());
        if bytes[..length] != expected[..length] {
            return Err(match bytes.starts_with(b"HTTP/") {
                true => WrongAnswer::IsHttp,
                false => WrongAnswer::NotAnEcho,
            });
        }
        bytes = &bytes[length..];
        *position += length;
        if *position == request.len() {
            *position = 0;
            count += 1;
        }
    }
    Ok(count)
}

fn count_answers(
    rest: &mut &[u8],
    body: &mut Option<Body>,
    is_last: &mut bool,
    is_head: bool,
    request: &[u8],
) -> Result<usize, WrongAnswer> {
    let mut count = 0;
    loop {
        if let Some(begun) = *body {
            let length = rest.len();
            *body = skip(rest, begun)?;
            if body.is_none() {
                count += 1;
            } else if *body == Some(begun) && rest.len() == length {
                // The rest of it has not come.
                return Ok(count);
            }
            continue;
        }
        if rest.is_empty() || *is_last {
            return Ok(count);
        }
        let mut headers = [httparse::EMPTY_HEADER; HEADERS];
        let mut answer = httparse::Response::new(&mut headers);
        match answer.parse(rest) {
            Ok(Status::Complete(length)) => {
                let has_body = match answer.code {
                    // The answer is still to come.
                    Some(code @ 100..=199) if code != 101 => {
                        *rest = &rest[length..];
                        continue;
                    }
                    Some(204) => false,
                    None | Some(200..=299) => !is_head,
                    Some(code) => return Err(WrongAnswer::Status(code)),
                };
                *is_last = is_last_answer(&answer);
                *body = Some(match has_body {
                    true => body_of(answer.headers)?,
                    false => Body::Rest(0),
                });
                *rest = &rest[length..];
            }
            Ok(Status::Partial) if rest.len() < HEAD_LIMIT => return Ok(count),
            Ok(Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
                return Err(WrongAnswer::HeadTooLarge);
            }
            Err(_) if rest.starts_with(&request[..rest.len().min(request.len())]) => {
                return Err(WrongAnswer::IsEcho);
            }
            Err(_) => return Err(WrongAnswer::NotHttp),
        }
    }
}

/// Skips one part of a body, as far as it has come. What comes next; `None` if that was the end.
fn skip(rest: &mut &[u8], body: Body) -> Result<Option<Body>, WrongAnswer> {
    let skip_bytes = |rest: &mut &[u8], left: u64| {
        let skipped = rest.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        *rest = &rest[skipped..];
        left - skipped as u64
    };
    Ok(match body {
        Body::Rest(left) => match skip_bytes(rest, left) {
            0 => None,
            left => Some(Body::Rest(left)),
        },
        Body::Chunk(left) => match skip_bytes(rest, left) {
            0 => Some(Body::ChunkEnd),
            left => Some(Body::Chunk(left)),
        },
        Body::ChunkSize => match httparse::parse_chunk_size(rest) {
            Ok(Status::Complete((length, size))) => {
                *rest = &rest[length..];
                Some(match size {
                    0 => Body::Trailer,
                    size => Body::Chunk(size),
                })
            }
            Ok(Status::Partial) if rest.len() < HEAD_LIMIT => Some(body),
            _ => return Err(WrongAnswer::BadChunk),
        },
        Body::ChunkEnd => match rest.strip_prefix(b"\r\n") {
            Some(others) => {
                *rest = others;
                Some(Body::ChunkSize)
            }
            None if b"\r\n".starts_with(rest) => Some(body),
            None => return Err(WrongAnswer::BadChunk),
        },
        Body::Trailer => match rest.iter().position(|&byte| byte == b'\n') {
            Some(end) => {
                let line = &rest[..end];
                *rest = &rest[end + 1..];
                match line {
                    b"" | b"\r" => None,
                    _ => Some(body),
                }
            }
            None if rest.len() < HEAD_LIMIT => Some(body),
            None => return Err(WrongAnswer::HeadTooLarge),
        },
    })
}

/// Whether the server closes the connection after this one.
fn is_last_answer(answer: &httparse::Response<'_, '_>) -> bool {
    let mut has_said = [false; 2];
    for header in answer.headers.iter() {
        if header.name.eq_ignore_ascii_case("connection") {
            for word in header.value.split(|&byte| byte == b',') {
                has_said[0] |= word.trim_ascii().eq_ignore_ascii_case(b"close");
                has_said[1] |= word.trim_ascii().eq_ignore_ascii_case(b"keep-alive");
            }
        }
    }
    has_said[0] || answer.version == Some(0) && !has_said[1]
}

/// The body that a head announces.
fn body_of(headers: &[httparse::Header<'_>]) -> Result<Body, WrongAnswer> {
    let values = |name: &'static str| {
        let headers = headers.iter();
        let headers = headers.filter(move |header| header.name.eq_ignore_ascii_case(name));
        headers.map(|header| header.value.trim_ascii())
    };
    let value = |name| values(name).next();
    if let Some(coding) = value("transfer-encoding") {
        return match coding.eq_ignore_ascii_case(b"chunked") {
            true => Ok(Body::ChunkSize),
            false => Err(WrongAnswer::NoLength),
        };
    }
    let length = value("content-length").ok_or(WrongAnswer::NoLength)?;
    if values("content-length").any(|other| other != length) {
        return Err(WrongAnswer::TwoLengths);
    }
    if length.is_empty() || !length.iter().all(u8::is_ascii_digit) {
        return Err(WrongAnswer::LengthIsNoNumber);
    }
    let length = std::str::from_utf8(length).unwrap_or_default();
    length
        .parse()
        .map(Body::Rest)
        .map_err(|_| WrongAnswer::LengthTooLarge)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(mode: Mode, text: &[u8], piece: usize) -> Result<usize, WrongAnswer> {
        let mut answers = Answers::new(mode, false);
        text.chunks(piece)
            .map(|piece| answers.count(piece, b"abc"))
            .sum()
    }

    #[test]
    fn it_does_not_matter_how_answers_are_cut() {
        let http = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nHTTP/\
                     HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
        let chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n\
                        5;name=value\r\nHTTP/\r\n000A\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\n\
                        HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
        for piece in 1..=chunked.len() {
            assert_eq!(count(Mode::Echo, b"abcabcab", piece), Ok(2));
            assert_eq!(count(Mode::Http, http, piece), Ok(2));
            assert_eq!(count(Mode::Http, chunked, piece), Ok(2), "{piece}");
        }
    }

    #[test]
    fn what_comes_before_the_answer_is_none() {
        let hints = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n\
                      HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab\
                      HTTP/1.1 204 No Content\r\n\r\n";
        for piece in 1..=hints.len() {
            assert_eq!(count(Mode::Http, hints, piece), Ok(2), "{piece}");
        }
        let mut head = Answers::new(Mode::Http, true);
        let answers = b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n".repeat(3);
        assert_eq!(head.count(&answers, b"HEAD"), Ok(3));
    }

    #[test]
    fn the_last_answer_says_so() {
        for (head, is_last) in [
            ("HTTP/1.1 200 OK\r\n", false),
            ("HTTP/1.1 200 OK\r\nConnection: a, Close\r\n", true),
            ("HTTP/1.0 200 OK\r\n", true),
            ("HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n", false),
        ] {
            let mut answers = Answers::new(Mode::Http, false);
            let text = format!("{head}Content-Length: 1\r\n\r\n");
            assert_eq!(answers.count(text.as_bytes(), b"GET"), Ok(0));
            assert!(!answers.are_over(), "its body is to come");
            assert_eq!(answers.count(b"a", b"GET"), Ok(1));
            assert_eq!(answers.are_over(), is_last, "{head}");
        }
    }

    #[test]
    fn wrong_answers_are_told_apart() {
        let http = |text: &[u8]| count(Mode::Http, text, 100);
        let status = |line: &str| format!("HTTP/1.1 {line}\r\nContent-Length: 0\r\n\r\n");
        assert_eq!(count(Mode::Echo, b"abd", 100), Err(WrongAnswer::NotAnEcho));
        let refusal = status("400 Bad Request");
        let outcome = count(Mode::Echo, refusal.as_bytes(), 100);
        assert_eq!(outcome, Err(WrongAnswer::IsHttp));
        assert_eq!(http(refusal.as_bytes()), Err(WrongAnswer::Status(400)));
        assert_eq!(http(b"HTTP/1.1 200 OK\r\n\r\n"), Err(WrongAnswer::NoLength));
        let with = |header: &str, body: &str| {
            http(format!("HTTP/1.1 200 OK\r\n{header}\r\n\r\n{body}").as_bytes())
        };
        let length = |value: &str| with(&format!("Content-Length: {value}"), "");
        assert_eq!(
            length("99999999999999999999"),
            Err(WrongAnswer::LengthTooLarge)
        );
        let two = |one, two| {
            with(
                &format!("Content-Length: {one}\r\nContent-Length: {two}"),
                "a",
            )
        };
        assert_eq!(two(1, 2), Err(WrongAnswer::TwoLengths));
        assert_eq!(two(1, 1), Ok(1));
        for value in ["", "-1", "+1", "1, 1", "many"] {
            assert_eq!(length(value), Err(WrongAnswer::LengthIsNoNumber), "{value}");
        }
        assert_eq!(
            with("Transfer-Encoding: gzip", ""),
            Err(WrongAnswer::NoLength)
        );
        for body in ["x\r\n", "1\r\nabc", "ffffffffffffffffff\r\n"] {
            let outcome = with("Transfer-Encoding: chunked", body);
            assert_eq!(outcome, Err(WrongAnswer::BadChunk), "{body}");
        }
        assert_eq!(http(b"abcabc"), Err(WrongAnswer::IsEcho));
        assert_eq!(http(b"nonsense"), Err(WrongAnswer::NotHttp));
        let long = format!("HTTP/1.1 200 OK\r\nA: {}", "a".repeat(HEAD_LIMIT));
        let outcome = count(Mode::Http, long.as_bytes(), HEAD_LIMIT / 3);
        assert_eq!(outcome, Err(WrongAnswer::HeadTooLarge));
    }
}
