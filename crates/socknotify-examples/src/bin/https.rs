//! An HTTPS server whose handlers are plain code that may block: it answers GET and POST, and writes an access log.
//!
//! What it shows:
//!
//! - Connections are in blocking mode, and `rustls` reads and writes them. An idle connection has no thread.
//! - Limits: of a head, of a body, of connections, of the time for a request and for its answer, however slowly they come.
//! - What was decrypted causes no event: a connection is armed only when nothing is left in it.
//! - A connection ends in order: the last answer says so, and the connection lingers. Otherwise the system might break it
//!   off, and take the answer back.
//! - At SIGTERM and Ctrl-C what was received is answered.
//!
//! Run it with `cargo run -p socknotify-examples --features tls --bin https 127.0.0.1:7443 CERTIFICATE.pem KEY.pem`, and try
//! `curl --insecure https://127.0.0.1:7443/hello`.
//!
//! ```toml
//! [dependencies]
//! ctrlc = { version = "3", features = ["termination"] }
//! httparse = "1"
//! rustls = { version = "0.23", default-features = false, features = ["std", "ring"] }
//! socknotify = "0.1"
//! ```

use std::error::Error;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{env, mem};

use httparse::{EMPTY_HEADER, Status};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection};
use socknotify::owned::{
    BorrowedSocket, Event, Interest, Limited, Listening, Port, Serving, Source,
};

const CONNECTIONS: usize = 10_000;
const HEAD: usize = 16 * 1024;
const BODY: usize = 1024 * 1024;
/// The longest time without a byte, in the middle of a request or an answer.
const STALL: Duration = Duration::from_secs(10);
const REQUEST_TIME: Duration = Duration::from_secs(30);
const ANSWER_TIME: Duration = Duration::from_secs(600);
const IDLE: Duration = Duration::from_secs(60);
const LINGER: Duration = Duration::from_secs(2);

struct Client {
    stream: TcpStream,
    tls: ServerConnection,
    address: SocketAddr,
    /// What was decrypted and is not answered.
    received: Vec<u8>,
}

struct Request {
    method: String,
    path: String,
    body: Vec<u8>,
    is_last: bool,
}

/// A status, and a body of plain text.
type Answer = (&'static str, String);

impl Source for Client {
    fn socket(&self) -> BorrowedSocket<'_> {
        self.stream.socket()
    }
}

/// The application. It may block: on a database, a lock, another server.
fn answer(request: &Request) -> Answer {
    match (&*request.method, &*request.path) {
        ("GET" | "HEAD", path) => ("200 OK", format!("you asked for {path}\n")),
        ("POST", "/length") => ("200 OK", format!("{} bytes\n", request.body.len())),
        ("POST", _) => ("404 Not Found", "post to /length\n".into()),
        _ => ("501 Not Implemented", "GET, HEAD or POST\n".into()),
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = env::args().skip(1).collect();
    let [address, certificate, key] = &*arguments else {
        return Err("https ADDRESS CERTIFICATE.pem KEY.pem".into());
    };
    let chain = CertificateDer::pem_file_iter(certificate)?.collect::<Result<_, _>>()?;
    let key = PrivateKeyDer::from_pem_file(key)?;
    let config = ServerConfig::builder().with_no_client_auth();
    let config = Arc::new(config.with_single_cert(chain, key)?);

    let port = Arc::new(Port::<Client>::new()?);
    let ending = Arc::clone(&port);
    ctrlc::set_handler(move || ending.drain(Duration::from_secs(10)))?;
    let listener = TcpListener::bind(address)?;
    println!("listening on {}", listener.local_addr()?);
    let first = Listening::arming(Interest::IN.within(REQUEST_TIME));
    let listening = first.at_most(CONNECTIONS).blocking_mode(STALL);
    port.listen(listener, listening, move |stream, address| Client {
        stream,
        tls: ServerConnection::new(Arc::clone(&config)).expect("the configuration is complete"),
        address,
        received: Vec::new(),
    })?;
    port.serve(Serving::default(), |worker, event| {
        // At the end, what has come is answered: if nothing has, this time is over at once.
        let next = Interest::IN.within(if port.is_draining() {
            Duration::ZERO
        } else {
            IDLE
        });
        match event {
            Event::Ready(mut client, _) => match client.serve(port.is_draining()) {
                Ok(true) => worker.arm(client, next),
                Ok(false) => worker.linger(client, LINGER),
                Err(_) => {} // What is not armed again is closed.
            },
            Event::Draining(client) => worker.arm(client, next),
            Event::TimedOut(mut client) => {
                let finished = client.finish();
                if finished.is_ok() {
                    worker.linger(client, LINGER);
                }
            }
            _ => {}
        }
    })?;
    Ok(())
}

impl Client {
    /// Answer what is there. False if that was the last.
    fn serve(&mut self, is_draining: bool) -> io::Result<bool> {
        // Once, which does not wait: it may be a part of the handshake, and nothing follows yet.
        self.receive(Instant::now() + REQUEST_TIME)?;
        while let Some(request) = self.request()? {
            let begin = Instant::now();
            let (is_head, is_last) = match &request {
                Ok(request) => (request.method == "HEAD", request.is_last),
                Err(_) => (false, true),
            };
            let (line, (status, body)) = match &request {
                Ok(request) => (
                    format!("{} {}", request.method, request.path),
                    answer(request),
                ),
                Err(status) => (String::new(), (*status, String::new())),
            };
            // As far as is known, nothing else was received.
            let is_last = is_last || is_draining && self.received.is_empty();
            let connection = if is_last { "close" } else { "keep-alive" };
            let length = body.len();
            let mut bytes = format!(
                "HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\n\
                 Content-Length: {length}\r\nConnection: {connection}\r\n\r\n"
            );
            if !is_head {
                bytes += &body;
            }
            let mut stream = Limited::within(&self.stream, ANSWER_TIME);
            let sent = rustls::Stream::new(&mut self.tls, &mut stream).write_all(bytes.as_bytes());
            // {:?}: nobody writes a line of his own into the log.
            let (address, time) = (self.address, begin.elapsed().as_micros());
            eprintln!("{address} {line:?} {status:.3} {length} {time} µs");
            sent?;
            if is_last {
                return self.finish().map(|()| false);
            }
        }
        Ok(true)
    }

    /// The next request, or the status with which it is refused; none if nothing of one has been received.
    fn request(&mut self) -> io::Result<Option<Result<Request, &'static str>>> {
        let end = Instant::now() + REQUEST_TIME;
        while !self.received.is_empty() {
            let mut headers = [EMPTY_HEADER; 64];
            let mut head = httparse::Request::new(&mut headers);
            match head.parse(&self.received) {
                Err(_) => return Ok(Some(Err("400 Bad Request"))),
                Ok(Status::Partial) if self.received.len() >= HEAD => {
                    return Ok(Some(Err("431 Request Header Fields Too Large")));
                }
                Ok(Status::Partial) => {}
                Ok(Status::Complete(length)) => {
                    let (mut body, mut is_last) = (None, head.version == Some(0));
                    for header in head.headers.iter() {
                        let value = std::str::from_utf8(header.value).unwrap_or("?").trim();
                        match &*header.name.to_ascii_lowercase() {
                            "content-length" => match value.parse::<usize>() {
                                Ok(found)
                                    if !value.starts_with('+')
                                        && body.is_none_or(|body| body == found) =>
                                {
                                    body = Some(found);
                                }
                                _ => return Ok(Some(Err("400 Bad Request"))),
                            },
                            "transfer-encoding" => return Ok(Some(Err("411 Length Required"))),
                            "connection" => is_last |= value.eq_ignore_ascii_case("close"),
                            _ => {}
                        }
                    }
                    let body = body.unwrap_or(0);
                    if body > BODY {
                        return Ok(Some(Err("413 Content Too Large")));
                    }
                    if self.received.len() >= length + body {
                        let [method, path] =
                            [head.method, head.path].map(Option::unwrap_or_default);
                        let (method, path) = (method.to_owned(), path.to_owned());
                        let rest = self.received.split_off(length + body);
                        let body = mem::replace(&mut self.received, rest).split_off(length);
                        return Ok(Some(Ok(Request {
                            method,
                            path,
                            body,
                            is_last,
                        })));
                    }
                }
            }
            self.receive(end)?;
        }
        Ok(None)
    }

    /// Receive once, and send what TLS has to say to it.
    fn receive(&mut self, end: Instant) -> io::Result<()> {
        let mut stream = Limited::until(&self.stream, end);
        let length = self.tls.read_tls(&mut stream)?;
        let state = self.tls.process_new_packets();
        while self.tls.wants_write() {
            self.tls.write_tls(&mut stream)?;
        }
        let state = state.map_err(io::Error::other)?;
        let before = self.received.len();
        self.received
            .resize(before + state.plaintext_bytes_to_read(), 0);
        self.tls.reader().read_exact(&mut self.received[before..])?;
        if length == 0 || state.peer_has_closed() && self.received.is_empty() {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        Ok(())
    }

    /// The last word of TLS.
    fn finish(&mut self) -> io::Result<()> {
        self.tls.send_close_notify();
        while self.tls.wants_write() {
            self.tls
                .write_tls(&mut Limited::within(&self.stream, STALL))?;
        }
        Ok(())
    }
}
