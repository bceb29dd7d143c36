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
        /// The head of the next one, as far as it has come.
        kept: Vec<u8>,
        /// What is to come of the body.
        body: u64,
        is_in_body: bool,
    },
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
            WrongAnswer::NoLength => f.write_str("it has no Content-Length"),
            WrongAnswer::Unasked => f.write_str("there was no request for it"),
        }
    }
}

impl Answers {
    pub(crate) fn new(mode: Mode) -> Self {
        match mode {
            Mode::Echo => Answers::Echo { position: 0 },
            Mode::Http => Answers::Http {
                kept: Vec::new(),
                body: 0,
                is_in_body: false,
            },
        }
    }

    /// How many answers end in these bytes.
    pub(crate) fn count(&mut self, bytes: &[u8], request: &[u8]) -> Result<usize, WrongAnswer> {
        match self {
            Answers::Echo { position } => count_echoes(position, bytes, request),
            Answers::Http {
                kept,
                body,
                is_in_body,
            } => {
                let mut joined = Vec::new();
                let mut rest = bytes;
                if !kept.is_empty() {
                    joined = std::mem::take(kept);
                    joined.extend_from_slice(bytes);
                    rest = &joined;
                }
                let count = count_answers(&mut rest, body, is_in_body, request)?;
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
    body: &mut u64,
    is_in_body: &mut bool,
    request: &[u8],
) -> Result<usize, WrongAnswer> {
    let mut count = 0;
    loop {
        if *is_in_body {
            let skipped = rest.len().min(usize::try_from(*body).unwrap_or(usize::MAX));
            *rest = &rest[skipped..];
            *body -= skipped as u64;
            if *body > 0 {
                return Ok(count);
            }
            *is_in_body = false;
            count += 1;
        }
        if rest.is_empty() {
            return Ok(count);
        }
        let mut headers = [httparse::EMPTY_HEADER; HEADERS];
        let mut answer = httparse::Response::new(&mut headers);
        match answer.parse(rest) {
            Ok(Status::Complete(length)) => {
                match answer.code {
                    None | Some(200) => {}
                    Some(code) => return Err(WrongAnswer::Status(code)),
                }
                *body = body_length(answer.headers).ok_or(WrongAnswer::NoLength)?;
                *is_in_body = true;
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

fn body_length(headers: &[httparse::Header<'_>]) -> Option<u64> {
    let header = headers
        .iter()
        .find(|header| header.name.eq_ignore_ascii_case("content-length"))?;
    std::str::from_utf8(header.value).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(mode: Mode, text: &[u8], piece: usize) -> Result<usize, WrongAnswer> {
        let mut answers = Answers::new(mode);
        text.chunks(piece)
            .map(|piece| answers.count(piece, b"abc"))
            .sum()
    }

    #[test]
    fn it_does_not_matter_how_answers_are_cut() {
        let http = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nHTTP/\
                     HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
        for piece in 1..http.len() {
            assert_eq!(count(Mode::Echo, b"abcabcab", piece), Ok(2));
            assert_eq!(count(Mode::Http, http, piece), Ok(2));
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
        assert_eq!(http(b"abcabc"), Err(WrongAnswer::IsEcho));
        assert_eq!(http(b"nonsense"), Err(WrongAnswer::NotHttp));
        let long = format!("HTTP/1.1 200 OK\r\nA: {}", "a".repeat(HEAD_LIMIT));
        let outcome = count(Mode::Http, long.as_bytes(), HEAD_LIMIT / 3);
        assert_eq!(outcome, Err(WrongAnswer::HeadTooLarge));
    }
}
