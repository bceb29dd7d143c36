//! An HTTPS server whose handlers are plain code that may block: it answers GET and POST, and writes an access log.
//!
//! - `rustls` reads what has come, so neither an idle connection nor a slow request has a thread. Answers are written in
//!   blocking mode.
//! - A client that asks whether it may send a body (`Expect: 100-continue`) is told so, or refused before it does.
//! - Limits: of a head, of a body, of connections, of the time for a request and for its answer, however slowly they come.
//! - A connection ends in order: the last answer says so, and it lingers, so that the system does not take the answer back.
//! - At SIGTERM and Ctrl-C what was received is answered.
//!
//! Run it: `cargo run -p socknotify-examples --features tls --bin https 127.0.0.1:7443 CERTIFICATE.pem KEY.pem`
//!
//! ```toml
//! [dependencies]
//! ctrlc = { version = "3", features = ["termination"] }
//! httparse = "1"
//! rustls = { version = "0.23", default-features = false, features = ["std", "ring"] }
//! socknotify = "0.1"
//! ```

use std::env;
use std::error::Error;
use std::io::{self, ErrorKind, Read, Write};
use std::mem;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use httparse::{EMPTY_HEADER, Request as Head, Status};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use rustls::{ServerConfig, ServerConnection};
use socknotify::owned::{BorrowedSocket, Event, Held, Interest, Limited};
use socknotify::owned::{Listening, Port, Serving, Source, Worker};

const CONNECTIONS: usize = 10_000;
const HEAD: usize = 16 * 1024;
const BODY: usize = 1024 * 1024;
const REQUEST_TIME: Duration = Duration::from_secs(30);
const ANSWER_TIME: Duration = Duration::from_secs(600);
const STALL: Duration = Duration::from_secs(10); // in which nothing of an answer is taken
const IDLE: Duration = Duration::from_secs(60);

struct Client {
    stream: TcpStream,
    tls: ServerConnection,
    address: SocketAddr,
    received: Vec<u8>,          // decrypted, and not answered yet
    was_told_to_continue: bool, // to send the body of this request
    /// When the connection, the request or the pause between two requests began.
    since: Instant,
}

impl Source for Client {
    fn socket(&self) -> BorrowedSocket<'_> {
        self.stream.socket()
    }
}

/// The application, which may block: on a database, a lock, another server. A status, and a body of plain text.
fn answer(head: &Head<'_, '_>, body: &[u8]) -> (&'static str, String) {
    match (head.method.unwrap_or(""), head.path.unwrap_or("")) {
        ("GET" | "HEAD", path) => ("200 OK", format!("you asked for {path}\n")),
        ("POST", "/length") => ("200 OK", format!("{} bytes\n", body.len())),
        _ => ("404 Not Found", "GET anything, or POST to /length\n".into()),
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
        was_told_to_continue: false,
        since: Instant::now(),
    })?;
    Ok(port.serve(Serving::default(), |worker, event| match event {
        Event::Ready(mut client, _) => match client.serve(port.is_draining()) {
            Ok(true) => worker.arm_with(client, |client| client.next(port.is_draining())),
            Ok(false) => finish(worker, client),
            Err(_) => {} // What is not armed again is closed.
        },
        Event::Draining(client) => worker.arm_with(client, |client| client.next(true)),
        Event::TimedOut(client) if !client.tls.is_handshaking() => finish(worker, client),
        _ => {}
    })?)
}

/// Send the last word of TLS, and linger.
fn finish(worker: &mut Worker<Client>, mut client: Held<Client>) {
    let Client { stream, tls, .. } = &mut *client;
    tls.send_close_notify();
    if rustls::Stream::new(tls, stream).flush().is_ok() {
        worker.linger(client, Duration::from_secs(2));
    }
}

impl Client {
    fn next(&self, is_draining: bool) -> Interest {
        let is_idle = self.received.is_empty();
        // At the end, too, what has come is answered.
        let pause = if is_draining { Duration::ZERO } else { IDLE };
        Interest::IN.until(self.since + if is_idle { pause } else { REQUEST_TIME })
    }

    /// Receive once, and answer each request that is whole. False if that was the last.
    fn serve(&mut self, is_draining: bool) -> io::Result<bool> {
        self.receive()?;
        loop {
            let mut headers = [EMPTY_HEADER; 64];
            let mut head = Head::new(&mut headers);
            let (end, keeps_alive, (status, text)) = match parse(&mut head, &self.received) {
                Ok(Parsed::Partial { waits }) => {
                    if waits && !mem::replace(&mut self.was_told_to_continue, true) {
                        let leave = b"HTTP/1.1 100 Continue\r\n\r\n";
                        send(&mut self.tls, &self.stream, leave)?;
                    }
                    return Ok(true);
                }
                Ok(Parsed::Whole(body, end, keeps_alive)) => {
                    (end, keeps_alive, answer(&head, body))
                }
                Err(status) => (0, false, (status, String::new())),
            };
            // As far as is known, nothing else was received.
            let keeps_alive = keeps_alive && !(is_draining && self.received.len() == end);
            let connection = if keeps_alive { "keep-alive" } else { "close" };
            let length = text.len();
            let is_head = head.method == Some("HEAD");
            let text = if is_head { "" } else { &text };
            let bytes = format!(
                "HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\n\
                 Content-Length: {length}\r\nConnection: {connection}\r\n\r\n{text}"
            );
            let sent = send(&mut self.tls, &self.stream, bytes.as_bytes());
            // {:?}: nobody writes a line of his own into the log.
            let line = (head.method.unwrap_or(""), head.path.unwrap_or(""));
            let (address, time) = (self.address, self.since.elapsed().as_micros());
            eprintln!("{address} {line:?} {status:.3} {length} {time} µs");
            sent?;
            if !keeps_alive {
                return Ok(false);
            }
            self.received.drain(..end);
            self.was_told_to_continue = false;
            self.since = Instant::now();
        }
    }

    /// Receive once, and send what TLS has to say to it.
    fn receive(&mut self) -> io::Result<()> {
        if self.tls.read_tls(&mut self.stream)? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        let state = self.tls.process_new_packets();
        while self.tls.wants_write() {
            self.tls.write_tls(&mut self.stream)?;
        }
        let length = state.map_err(io::Error::other)?.plaintext_bytes_to_read();
        if self.received.is_empty() && length > 0 {
            self.since = Instant::now();
        }
        let mut decrypted = self.tls.reader().take(length as u64);
        decrypted.read_to_end(&mut self.received).map(drop)
    }
}

fn send(tls: &mut ServerConnection, stream: &TcpStream, bytes: &[u8]) -> io::Result<()> {
    let mut stream = Limited::within(stream, ANSWER_TIME);
    let mut stream = rustls::Stream::new(tls, &mut stream);
    stream.write_all(bytes)?;
    stream.flush()
}

enum Parsed<'a> {
    /// A part is missing. Whether the client waits to be told that it may send the body.
    Partial { waits: bool },
    /// The body, where it ends, and whether the connection may go on.
    Whole(&'a [u8], usize, bool),
}

/// Or the status of a refusal.
fn parse<'a>(head: &mut Head<'_, 'a>, received: &'a [u8]) -> Result<Parsed<'a>, &'static str> {
    const BAD: &str = "400 Bad Request";
    let begin = match head.parse(received).map_err(|_| BAD)? {
        Status::Complete(length) => length,
        Status::Partial if received.len() < HEAD => return Ok(Parsed::Partial { waits: false }),
        Status::Partial => return Err("431 Request Header Fields Too Large"),
    };
    let is_1_1 = head.version == Some(1);
    let (mut length, mut keeps_alive, mut waits) = (None, is_1_1, false);
    for header in &*head.headers {
        let value = std::str::from_utf8(header.value).unwrap_or("?").trim();
        match &*header.name.to_ascii_lowercase() {
            "content-length" if length.is_some() || value.starts_with('+') => return Err(BAD),
            "content-length" => length = Some(value.parse::<usize>().map_err(|_| BAD)?),
            "transfer-encoding" => return Err("411 Length Required"),
            "expect" => waits = is_1_1 && value.eq_ignore_ascii_case("100-continue"),
            "connection" => keeps_alive &= !value.eq_ignore_ascii_case("close"),
            _ => {}
        }
    }
    if length.unwrap_or(0) > BODY {
        return Err("413 Content Too Large");
    }
    let end = begin + length.unwrap_or(0);
    Ok(match received.get(begin..end) {
        Some(body) => Parsed::Whole(body, end, keeps_alive),
        // Who has begun with the body does not wait.
        None => Parsed::Partial {
            waits: waits && received.len() == begin,
        },
    })
}
