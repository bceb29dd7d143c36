//! What a server sends back.

use std::fmt;

use httparse::Status;

use super::Mode;

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
pub(crate) struct WrongAnswer;

impl fmt::Display for WrongAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the server's answer is wrong")
    }
}

impl std::error::Error for WrongAnswer {}

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
                let count = count_answers(&mut rest, body, is_in_body)?;
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
            return Err(WrongAnswer);
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
            Ok(Status::Complete(length)) if answer.code == Some(200) => {
                *body = body_length(answer.headers).ok_or(WrongAnswer)?;
                *is_in_body = true;
                *rest = &rest[length..];
            }
            Ok(Status::Partial) if rest.len() < HEAD_LIMIT => return Ok(count),
            _ => return Err(WrongAnswer),
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
    fn wrong_answers_are_told() {
        for (mode, text) in [
            (Mode::Echo, &b"abd"[..]),
            (
                Mode::Http,
                b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n",
            ),
            (Mode::Http, b"HTTP/1.1 200 OK\r\n\r\n"),
            (Mode::Http, b"nonsense"),
        ] {
            assert_eq!(count(mode, text, 100), Err(WrongAnswer));
        }
    }
}
