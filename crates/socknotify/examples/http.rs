//! A small HTTP/1.1 server: it answers each request with its method and path.
//!
//! What it shows:
//!
//! - Connections are kept alive, and requests may come one behind the other (pipelining).
//! - A request has to be complete, and its answer read, within a time. Bytes that trickle in do not
//!   extend it.
//! - Buffers are bounded: as long as there is something to write, nothing is read.
//! - A connection ends in order: it lingers. Otherwise a client that still sends might never see the last answer.
//! - At the end, requests that have come are answered, and the last answer says so.
//!
//! Run it with `cargo run -p socknotify --example http 127.0.0.1:7007`, and try
//! `curl http://127.0.0.1:7007/hello`. A second argument is the time for a request in seconds: 10 by default. It
//! ends with Ctrl-C.

#[path = "end/mod.rs"]
mod end;

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};
use std::{env, thread};

use end::End;
use httparse::{EMPTY_HEADER, Request, Status};
use socknotify::owned::{BorrowedSocket, Event, Held, Interest, Port, Source, Worker};

const THREADS: usize = 4;
const CLOSING_TIME: Duration = Duration::from_secs(2);
/// The most that a request may take, in bytes. It has no body.
const REQUEST: usize = 8 * 1024;

struct Client {
    stream: TcpStream,
    /// What was read and is not answered.
    requests: Vec<u8>,
    /// What is not sent yet.
    answers: Vec<u8>,
    deadline: Instant,
    /// The time that each request has.
    time: Duration,
    /// The server ends: what has come is answered, and nothing more.
    is_ending: bool,
    /// The last answer is on its way, or has gone.
    is_closing: bool,
}

fn main() -> io::Result<()> {
    let end = End::new()?;
    let mut arguments = env::args().skip(1);
    let listener = TcpListener::bind(arguments.next().as_deref().unwrap_or("127.0.0.1:0"))?;
    let time = arguments.next().map_or(Ok(10), |time| time.parse());
    let time = Duration::from_secs(time.map_err(io::Error::other)?);
    println!("listening on {}", listener.local_addr()?);

    let port = Port::new()?;
    let first = Interest::IN.within(time);
    port.listen(listener, first, move |stream, _| Client::new(stream, time))?;
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| serve(port.worker(64)));
        }
        let ended = end.wait();
        port.drain(CLOSING_TIME);
        ended
    })
}

fn serve(mut worker: Worker<Client>) {
    // Until the port is closed.
    while worker.process(None).is_ok() {
        while let Some(event) = worker.take() {
            match event {
                Event::Ready(client, _) => turn(&mut worker, client),
                Event::Draining(mut client) => {
                    client.is_ending = true;
                    turn(&mut worker, client);
                }
                // It has had its time.
                Event::TimedOut(client) => worker.linger(client, CLOSING_TIME),
                _ => {}
            }
        }
    }
}

/// Serve a client, and arm it again or let it go.
fn turn(worker: &mut Worker<Client>, mut client: Held<Client>) {
    match client.serve() {
        // It comes out as timed out only if nothing else holds, and here something may always do.
        Ok(Some(interest)) if Instant::now() < client.deadline => {
            let interest = interest.until(client.deadline);
            worker.arm(client, interest);
        }
        Ok(_) => worker.linger(client, CLOSING_TIME),
        Err(_) => {}
    }
}

impl Client {
    fn new(stream: TcpStream, time: Duration) -> Self {
        Client {
            stream,
            requests: Vec::new(),
            answers: Vec::new(),
            deadline: Instant::now() + time,
            time,
            is_ending: false,
            is_closing: false,
        }
    }

    /// Whether something has come and was not read.
    fn has_more(&self) -> bool {
        self.stream.peek(&mut [0]).is_ok_and(|length| length > 0)
    }

    /// Read, answer and write what can be. What to wait for next, if this was not the end.
    fn serve(&mut self) -> io::Result<Option<Interest>> {
        let mut chunk = [0; 4096];
        // Then others get their turn.
        for _ in 0..16 {
            while !self.is_closing && self.answer() {}
            if !self.write()? {
                return Ok(Some(Interest::OUT));
            }
            if self.is_closing {
                return Ok(None);
            }
            match self.stream.read(&mut chunk) {
                Ok(0) => return Ok(None),
                Ok(length) => self.requests.extend(&chunk[..length]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let is_idle = self.requests.is_empty();
                    return Ok((!self.is_ending || !is_idle).then_some(Interest::IN));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Some(Interest::IN))
    }

    /// Answer the next request. False if none is complete.
    fn answer(&mut self) -> bool {
        let mut headers = [EMPTY_HEADER; 32];
        let mut request = Request::new(&mut headers);
        let parsed = request.parse(&self.requests);
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
            Ok(Status::Partial) if self.requests.len() < REQUEST => return false,
            Ok(Status::Partial) => (0, "431 Request Header Fields Too Large", String::new()),
            Ok(Status::Complete(_)) if has_body => (0, "413 Content Too Large", String::new()),
            Err(_) => (0, "400 Bad Request", String::new()),
            Ok(Status::Complete(length)) => {
                let (method, path) = (request.method.unwrap_or(""), request.path.unwrap_or(""));
                (length, "200 OK", format!("{method} {path}\n"))
            }
        };
        let is_newest = self.requests.len() == length && !self.has_more();
        self.is_closing = is_last || length == 0 || self.is_ending && is_newest;
        let (connection, time) = match self.is_closing {
            true => ("close", CLOSING_TIME),
            false => ("keep-alive", self.time),
        };
        self.deadline = Instant::now() + time;
        let size = body.len();
        let body = if request.method == Some("HEAD") {
            ""
        } else {
            &body
        };
        let head = format!("HTTP/1.1 {status}\r\nConnection: {connection}\r\n");
        let answer = format!("{head}Content-Length: {size}\r\n\r\n{body}");
        self.answers.extend(answer.bytes());
        self.requests.drain(..length);
        true
    }

    /// Write what the socket takes. True if that was all.
    fn write(&mut self) -> io::Result<bool> {
        while !self.answers.is_empty() {
            match self.stream.write(&self.answers) {
                Ok(length) => drop(self.answers.drain(..length)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

impl Source for Client {
    fn socket(&self) -> BorrowedSocket<'_> {
        self.stream.socket()
    }
}
