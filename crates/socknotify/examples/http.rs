//! A small HTTP/1.1 server: it answers each request with its method and path.
//!
//! What it shows:
//!
//! - Connections are kept alive, and requests may come one behind the other (pipelining).
//! - A request has to be complete, and its answer read, within a time. Bytes that trickle in do not
//!   extend it.
//! - Buffers are bounded: as long as there is something to write, nothing is read.
//! - A connection ends in order: it lingers. Otherwise a client that still sends might never see the last answer.
//! - At SIGTERM and Ctrl-C the requests that were received are answered, and the last answer says so.
//!
//! Run it with `cargo run -p socknotify --example http 127.0.0.1:7007`, and try
//! `curl http://127.0.0.1:7007/hello`. A second argument is the time for a request in seconds: 10 by default.
//!
//! ```toml
//! [dependencies]
//! ctrlc = { version = "3", features = ["termination"] }
//! httparse = "1"
//! socknotify = "0.1"
//! ```

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{env, mem};

use httparse::{EMPTY_HEADER, Request, Status};
use socknotify::owned::{BorrowedSocket, Event, Interest, Output, Port, Serving, Source};

const CLOSING_TIME: Duration = Duration::from_secs(2);
/// The most that a request may take, in bytes. It has no body.
const REQUEST: usize = 8 * 1024;

struct Client {
    stream: TcpStream,
    /// What was read and is not answered.
    requests: Vec<u8>,
    answers: Output,
    deadline: Instant,
    /// The time that each request has.
    time: Duration,
    /// The server ends: when all that is here is answered, the connection does.
    is_draining: bool,
    /// The last answer is on its way, or has gone.
    is_closing: bool,
}

fn main() -> io::Result<()> {
    let port = Arc::new(Port::new()?);
    let ending = Arc::clone(&port);
    let handled = ctrlc::set_handler(move || ending.drain(2 * CLOSING_TIME));
    handled.map_err(io::Error::other)?;

    let mut arguments = env::args().skip(1);
    let listener = TcpListener::bind(arguments.next().as_deref().unwrap_or("127.0.0.1:0"))?;
    let time = arguments.next().map_or(Ok(10), |time| time.parse());
    let time = Duration::from_secs(time.map_err(io::Error::other)?);
    println!("listening on {}", listener.local_addr()?);
    let first = Interest::IN.within(time);
    port.listen(listener, first, move |stream, _| Client::new(stream, time))?;
    port.serve(Serving::default(), |worker, event| {
        let mut client = match event {
            Event::Ready(client, _) | Event::Draining(client) => client,
            Event::TimedOut(client) => return worker.linger(client, CLOSING_TIME),
            _ => return,
        };
        client.is_draining = port.is_draining();
        match client.serve() {
            // A timeout is reported only if nothing else holds, and here something may always do.
            Ok(Some(interest)) if Instant::now() < client.deadline => {
                worker.arm_with(client, |client| interest.until(client.deadline));
            }
            Ok(_) => worker.linger(client, CLOSING_TIME),
            Err(_) => {} // It is closed.
        }
    })?;
    Ok(())
}

impl Client {
    fn new(stream: TcpStream, time: Duration) -> Self {
        Client {
            stream,
            requests: Vec::new(),
            answers: Output::new(),
            deadline: Instant::now() + time,
            time,
            is_draining: false,
            is_closing: false,
        }
    }

    /// Read, answer and write what can be. What to wait for next, if this was not the end.
    fn serve(&mut self) -> io::Result<Option<Interest>> {
        let mut chunk = [0; 4096];
        // Then others get their turn.
        for _ in 0..16 {
            if self.answers.send(&self.stream)? == Interest::OUT {
                return Ok(Some(Interest::OUT));
            }
            if self.is_closing {
                return Ok(None);
            }
            match self.stream.read(&mut chunk) {
                Ok(0) => return Ok(None),
                Ok(length) => {
                    self.requests.extend(&chunk[..length]);
                    while !self.is_closing && self.answer(length < chunk.len()) {}
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let is_over = self.is_draining && self.requests.is_empty();
                    return Ok((!is_over).then_some(Interest::IN));
                }
                Err(error) => return Err(error),
            }
        }
        let interest = self.answers.send(&self.stream)?;
        Ok((interest == Interest::OUT || !self.is_closing).then_some(interest))
    }

    /// Answer the next request. False if none is complete.
    fn answer(&mut self, is_all: bool) -> bool {
        let requests = mem::take(&mut self.requests);
        let mut headers = [EMPTY_HEADER; 32];
        let mut request = Request::new(&mut headers);
        let parsed = request.parse(&requests);
        let (mut has_body, mut is_last) = (false, request.version == Some(0));
        for header in request.headers.iter() {
            let value = header.value.to_ascii_lowercase();
            match header.name.to_ascii_lowercase().as_str() {
                "content-length" => has_body |= value != b"0",
                "transfer-encoding" => has_body = true,
                "connection" => is_last |= value == b"close",
                _ => {}
            }
        }
        let (length, status, body) = match parsed {
            Ok(Status::Partial) if requests.len() < REQUEST => {
                self.requests = requests;
                return false;
            }
            Ok(Status::Partial) => (0, "431 Request Header Fields Too Large", String::new()),
            Ok(Status::Complete(_)) if has_body => (0, "413 Content Too Large", String::new()),
            Err(_) => (0, "400 Bad Request", String::new()),
            Ok(Status::Complete(length)) => {
                let (method, path) = (request.method.unwrap_or(""), request.path.unwrap_or(""));
                (length, "200 OK", format!("{method} {path}\n"))
            }
        };
        let is_head = request.method == Some("HEAD");
        // As far as is known, nothing else was received.
        is_last |= self.is_draining && is_all && length == requests.len();
        self.is_closing = is_last || length == 0;
        self.deadline = Instant::now() + self.time;
        self.requests = requests;
        self.requests.drain(..length);
        let connection = if self.is_closing {
            "close"
        } else {
            "keep-alive"
        };
        let size = body.len();
        let body = if is_head { "" } else { &body };
        let answer = write!(
            self.answers,
            "HTTP/1.1 {status}\r\nConnection: {connection}\r\nContent-Length: {size}\r\n\r\n{body}"
        );
        answer.expect("memory takes it");
        true
    }
}

impl Source for Client {
    fn socket(&self) -> BorrowedSocket<'_> {
        self.stream.socket()
    }
}
