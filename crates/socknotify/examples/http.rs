//! A small HTTP/1.1 server: it answers each request with its method and path.
//!
//! What it shows:
//!
//! - Connections are kept alive, and requests may come one behind the other (pipelining).
//! - A request has to be complete, and its answer read, within a time. Bytes that trickle in do not
//!   extend it.
//! - Buffers are bounded: as long as there is something to write, nothing is read.
//! - A connection ends in order. What the client is still sending is thrown away, for a while;
//!   otherwise it might never see the last answer.
//!
//! Run it with `cargo run -p socknotify --example http 127.0.0.1:7007`, and try
//! `curl http://127.0.0.1:7007/hello`. It ends when its standard input does.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
#[cfg(unix)]
use std::os::fd::{AsFd as AsSocket, BorrowedFd as BorrowedSocket};
#[cfg(windows)]
use std::os::windows::io::{AsSocket, BorrowedSocket};
use std::time::{Duration, Instant};
use std::{env, thread};

use httparse::{EMPTY_HEADER, Request, Status};
use socknotify::owned::{Event, Held, Incoming, Interest, Port, Worker};

const THREADS: usize = 4;
const IDLE_TIME: Duration = Duration::from_secs(10);
const CLOSING_TIME: Duration = Duration::from_secs(2);
/// The most that a request may take, in bytes. It has no body.
const REQUEST: usize = 8 * 1024;

enum Socket {
    Listener(TcpListener),
    Client(Client),
}

struct Client {
    stream: TcpStream,
    /// What was read and is not answered.
    requests: Vec<u8>,
    /// What is not sent yet.
    answers: Vec<u8>,
    deadline: Instant,
    /// The last answer is on its way, or has gone.
    is_closing: bool,
}

fn main() -> io::Result<()> {
    let listener = TcpListener::bind(env::args().nth(1).as_deref().unwrap_or("127.0.0.1:0"))?;
    listener.set_nonblocking(true)?;
    println!("listening on {}", listener.local_addr()?);

    let port = Port::new()?;
    port.arm(port.adopt(Socket::Listener(listener))?, Interest::IN);
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| serve(&port, port.worker(64)));
        }
        let ended = io::copy(&mut io::stdin(), &mut io::sink());
        port.close();
        ended.map(drop)
    })
}

fn serve(port: &Port<Socket>, mut worker: Worker<Socket>) {
    // Until the port is closed.
    while worker.process(None).is_ok() {
        while let Some(event) = worker.take() {
            match event {
                Event::Ready(socket, _) => turn(port, &mut worker, socket),
                // The listener has had its rest. A client has had its time, and is closed.
                Event::TimedOut(socket) if matches!(*socket, Socket::Listener(_)) => {
                    worker.arm(socket, Interest::IN);
                }
                _ => {}
            }
        }
    }
}

/// Serve what has come out, and arm it again or let it go.
fn turn(port: &Port<Socket>, worker: &mut Worker<Socket>, mut socket: Held<Socket>) {
    match &mut *socket {
        Socket::Listener(listener) => {
            let mut incoming = Incoming::new(listener, 16);
            for (stream, _) in &mut incoming {
                let client = Socket::Client(Client {
                    stream,
                    requests: Vec::new(),
                    answers: Vec::new(),
                    deadline: Instant::now() + IDLE_TIME,
                    is_closing: false,
                });
                match port.adopt(client) {
                    Ok(client) => worker.arm(client, Interest::IN.within(IDLE_TIME)),
                    Err(error) => eprintln!("{error}"),
                }
            }
            let interest = incoming.interest();
            worker.arm(socket, interest);
        }
        Socket::Client(client) => match client.serve() {
            // It comes out as timed out only if nothing else holds, and here something may always do.
            Ok(Some(interest)) if Instant::now() < client.deadline => {
                let interest = interest.until(client.deadline);
                worker.arm(socket, interest);
            }
            _ => {}
        },
    }
}

impl Client {
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
                self.stream.shutdown(Shutdown::Write)?;
            }
            match self.stream.read(&mut chunk) {
                Ok(0) => return Ok(None),
                Ok(_) if self.is_closing => {}
                Ok(length) => self.requests.extend(&chunk[..length]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
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
        self.is_closing = is_last || length == 0;
        let (connection, time) = match self.is_closing {
            true => ("close", CLOSING_TIME),
            false => ("keep-alive", IDLE_TIME),
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

impl Socket {
    /// The socket in it.
    fn socket(&self) -> &dyn AsSocket {
        match self {
            Socket::Listener(listener) => listener,
            Socket::Client(client) => &client.stream,
        }
    }
}

impl AsSocket for Socket {
    #[cfg(unix)]
    fn as_fd(&self) -> BorrowedSocket<'_> {
        self.socket().as_fd()
    }

    #[cfg(windows)]
    fn as_socket(&self) -> BorrowedSocket<'_> {
        self.socket().as_socket()
    }
}
