//! Clients of the server.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};

use serde_json::Value;

use crate::program::PATIENCE;

pub(crate) const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";

/// Connects. Nothing on the connection takes for ever.
pub(crate) fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address)?;
    be_patient(&stream)?;
    Ok(stream)
}

fn be_patient(stream: &TcpStream) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))
}

/// Whether the server has closed the connection, in whatever way.
pub(crate) fn is_closed(mut stream: &TcpStream) -> io::Result<bool> {
    match stream.read(&mut [0]) {
        Ok(length) => Ok(length == 0),
        // A process that was stopped, while it waited with a time.
        Err(error) if error.kind() == io::ErrorKind::Interrupted => is_closed(stream),
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(true),
        Err(error) => Err(error),
    }
}

pub(crate) struct HttpClient {
    pub(crate) stream: BufReader<TcpStream>,
}

#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<String>,
    pub(crate) body: String,
}

impl Answer {
    /// The value of the header with this name, in lower case.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let value = |line: &'_ str| line.to_lowercase().starts_with(&format!("{name}: "));
        let line = self.headers.iter().find(|line| value(line))?;
        Some(&line[name.len() + 2..])
    }

    pub(crate) fn has(&self, header: &str) -> bool {
        self.headers
            .iter()
            .any(|it| it.eq_ignore_ascii_case(header))
    }
}

impl HttpClient {
    /// On a connection of the test's own making.
    pub(crate) fn on(stream: TcpStream) -> io::Result<Self> {
        be_patient(&stream)?;
        let stream = BufReader::new(stream);
        Ok(HttpClient { stream })
    }

    pub(crate) fn connect(address: SocketAddr) -> io::Result<Self> {
        HttpClient::on(connect(address)?)
    }

    pub(crate) fn send(&mut self, text: &str) -> io::Result<()> {
        self.stream.get_mut().write_all(text.as_bytes())
    }

    pub(crate) fn request(&mut self, text: &str) -> io::Result<Answer> {
        self.send(text)?;
        self.answer()
    }

    /// The next answer.
    pub(crate) fn answer(&mut self) -> io::Result<Answer> {
        let answer = self.head()?;
        self.body(&answer)
    }

    /// The answer with this head, and its body.
    pub(crate) fn body(&mut self, head: &Answer) -> io::Result<Answer> {
        let mut answer = head.clone();
        let length = answer.header("content-length");
        let length = length.and_then(|length| length.parse().ok());
        let mut body = vec![0; length.unwrap_or(0)];
        self.stream.read_exact(&mut body)?;
        answer.body = String::from_utf8(body).map_err(io::Error::other)?;
        Ok(answer)
    }

    /// The head of the next answer, for when there is no body.
    pub(crate) fn head(&mut self) -> io::Result<Answer> {
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            if self.stream.read_line(&mut line)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            match line.trim_end() {
                "" => break,
                line => lines.push(line.to_owned()),
            }
        }
        let status = lines[0]
            .strip_prefix("HTTP/1.1 ")
            .and_then(|rest| rest.get(..3)?.parse().ok());
        Ok(Answer {
            status: status.unwrap_or_else(|| panic!("no status: {lines:?}")),
            headers: lines.split_off(1),
            body: String::new(),
        })
    }

    /// Whether the server closes the connection and says nothing more.
    pub(crate) fn is_at_end(&mut self) -> io::Result<bool> {
        Ok(self.stream.fill_buf()?.is_empty())
    }
}

/// What the server tells of itself.
pub(crate) fn stats(address: SocketAddr) -> io::Result<Value> {
    let mut client = HttpClient::connect(address)?;
    let answer = client.request("GET /stats HTTP/1.1\r\nHost: a\r\n\r\n")?;
    assert!(answer.has("Content-Type: application/json"), "{answer:?}");
    Ok(serde_json::from_str(&answer.body)?)
}
