//! A server that speaks TLS, and clients of `rustls`.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use socket2::{Domain, SockRef, Socket, Type};
use socknotify_http::http::StatusCode;
use socknotify_http::rustls::pki_types::pem::PemObject;
use socknotify_http::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use socknotify_http::rustls::version::TLS12;
use socknotify_http::rustls::{
    ALL_VERSIONS, ClientConfig, ClientConnection, RootCertStore, ServerConfig, StreamOwned,
    SupportedProtocolVersion,
};
use socknotify_http::{Handle, Limits, Request, Response, ResponseBody, Server, Serving};

/// Longer than anything takes.
const PATIENCE: Duration = Duration::from_secs(60);

const CERTIFICATE: &[u8] = include_bytes!("certificate/certificate.pem");
const KEY: &[u8] = include_bytes!("certificate/key.pem");

struct Running {
    address: SocketAddr,
    handle: Handle,
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl Running {
    fn start<F>(configure: impl FnOnce(Server) -> Server, handler: F) -> io::Result<Self>
    where
        F: Fn(&mut Request<'_>) -> Response + Send + Sync + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        Self::with_chain(1, listener, configure, handler)
    }

    /// The chain has so many certificates.
    fn with_chain<F>(
        length: usize,
        listener: TcpListener,
        configure: impl FnOnce(Server) -> Server,
        handler: F,
    ) -> io::Result<Self>
    where
        F: Fn(&mut Request<'_>) -> Response + Send + Sync + 'static,
    {
        let certificate = CertificateDer::from_pem_slice(CERTIFICATE).expect("a certificate");
        let key = PrivateKeyDer::from_pem_slice(KEY).expect("a key");
        let config = ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(vec![certificate; length], key)
            .expect("they fit");
        let server = configure(Server::from_listener(listener)?.tls(Arc::new(config)));
        Ok(Running {
            address: server.local_addr()?,
            handle: server.handle(),
            thread: Some(thread::spawn(move || server.serve(handler))),
        })
    }

    fn client(&self) -> io::Result<Client> {
        Client::on(TcpStream::connect(self.address)?, ALL_VERSIONS)
    }
}

impl Client {
    fn on(stream: TcpStream, versions: &[&'static SupportedProtocolVersion]) -> io::Result<Client> {
        let mut roots = RootCertStore::empty();
        let certificate = CertificateDer::from_pem_slice(CERTIFICATE).expect("a certificate");
        roots.add(certificate).expect("it is one");
        let config = ClientConfig::builder_with_protocol_versions(versions);
        let config = config.with_root_certificates(roots);
        let mut config = config.with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let name = "localhost".try_into().expect("a name");
        let session = ClientConnection::new(Arc::new(config), name).expect("it begins");
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        Ok(Client(BufReader::new(StreamOwned::new(session, stream))))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.handle.drain(PATIENCE);
        if let Some(thread) = self.thread.take().filter(|_| !thread::panicking()) {
            thread.join().expect("no panic").expect("it ends");
        }
    }
}

struct Client(BufReader<StreamOwned<ClientConnection, TcpStream>>);

impl Client {
    fn send(&mut self, text: &str) -> io::Result<()> {
        self.0.get_mut().write_all(text.as_bytes())?;
        self.0.get_mut().flush()
    }

    /// The head of an answer, and its body.
    fn answer(&mut self) -> io::Result<(String, Vec<u8>)> {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if self.0.read_line(&mut head)? == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
        let length = head.split("content-length: ").nth(1).expect("a length");
        let length = length.split("\r\n").next().and_then(|it| it.parse().ok());
        let mut body = vec![0; length.expect("a number")];
        self.0.read_exact(&mut body)?;
        Ok((head, body))
    }
}

fn echo(request: &mut Request<'_>) -> Response {
    let mut body = Vec::new();
    let read = request.body_mut().read_to_end(&mut body);
    assert!(read.is_ok() || request.uri() != "/whole");
    Response::new(body.into())
}

#[test]
fn requests_are_answered_in_order_with_bodies_of_all_sizes() -> io::Result<()> {
    let running = Running::start(|it| it.limits(Limits::default().body(10 << 20)), echo)?;
    let mut client = running.client()?;
    for length in [0, 1, 1000, 20_000, 100_000, 3_000_000] {
        let body = "ab".repeat(length / 2) + &"c".repeat(length % 2);
        for framing in [
            format!("Content-Length: {length}\r\n\r\n{body}"),
            format!("Transfer-Encoding: chunked\r\n\r\n{length:x}\r\n{body}\r\n0\r\n\r\n")
                .replace("\r\n\r\n0\r\n\r\n0\r\n", "\r\n\r\n0\r\n"),
        ] {
            client.send(&format!("POST /whole HTTP/1.1\r\nHost: a\r\n{framing}"))?;
            let (head, got) = client.answer()?;
            assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
            assert!(got == body.as_bytes(), "{length}");
        }
    }
    let session = &client.0.get_ref().conn;
    assert_eq!(session.alpn_protocol(), Some(&b"http/1.1"[..]));
    // Many at once: more than the server reads ahead.
    let text = format!(
        "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{}",
        "d".repeat(100)
    );
    client.send(&text.repeat(500))?;
    for _ in 0..500 {
        assert_eq!(client.answer()?.1, [b'd'; 100]);
    }
    Ok(())
}

/// The last answer is followed by the end of the session, and not only of the stream.
/// It says that it sends nothing more, at once or later, and waits for the server to say so.
#[test]
fn a_client_may_end_the_session_first() -> io::Result<()> {
    let running = Running::start(|it| it, echo)?;
    for is_later in [false, true] {
        let mut client = running.client()?;
        let stream = client.0.get_mut();
        stream.conn.complete_io(&mut stream.sock)?;
        let mut sent = Vec::new();
        let request = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
        stream.conn.writer().write_all(request)?;
        if !is_later {
            stream.conn.send_close_notify();
        }
        while stream.conn.wants_write() {
            stream.conn.write_tls(&mut sent)?;
        }
        stream.sock.write_all(&sent)?;
        client.answer()?;
        if is_later {
            client.0.get_mut().conn.send_close_notify();
            client.0.get_mut().flush()?;
        }
        assert_eq!(client.0.read(&mut [0])?, 0);
    }
    assert_eq!(running.handle.metrics().incomplete, 0);
    Ok(())
}

#[test]
fn a_connection_ends_in_order() -> io::Result<()> {
    let running = Running::start(|it| it, echo)?;
    let mut client = running.client()?;
    client.send("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")?;
    client.answer()?;
    // Without `close_notify` this would be an error.
    assert_eq!(client.0.read(&mut [0])?, 0);
    let mut idle = running.client()?;
    idle.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")?;
    idle.answer()?;
    running.handle.drain(PATIENCE);
    assert_eq!(idle.0.read(&mut [0])?, 0);
    Ok(())
}

#[test]
fn a_file_is_an_answer() -> io::Result<()> {
    let content: Vec<u8> = (0..3_000_000).map(|it| (it % 251) as u8).collect();
    let mut file = tempfile::NamedTempFile::new()?;
    file.write_all(&content)?;
    let path = file.path().to_owned();
    let running = Running::start(
        |it| it,
        move |_| {
            let file = std::fs::File::open(&path).and_then(ResponseBody::file);
            Response::new(file.expect("it is there"))
        },
    )?;
    let mut client = running.client()?;
    for _ in 0..2 {
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")?;
        assert!(client.answer()?.1 == content);
    }
    Ok(())
}

/// Long answers, of bytes and of a reader, that nobody takes yet.
#[test]
fn a_client_that_takes_its_answer_slowly_holds_no_thread() -> io::Result<()> {
    const LONG: usize = 16 << 20;
    let long: Vec<u8> = (0..LONG).map(|at| (at / 7) as u8).collect();
    let expected = long.clone();
    let running = Running::start(
        |it| it.serving(Serving::default().threads(2)),
        move |request| {
            Response::new(match request.uri().path() {
                "/bytes" => long.clone().into(),
                "/reader" => ResponseBody::reader_of(LONG as u64, io::Cursor::new(long.clone())),
                _ => "short".into(),
            })
        },
    )?;
    let mut slow = Vec::new();
    for number in 0..6 {
        let path = ["/bytes", "/reader"][number % 2];
        let mut client = running.client()?;
        client.send(&format!(
            "GET {path} HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n"
        ))?;
        assert_eq!(client.0.fill_buf()?[0], b'H');
        slow.push(client);
    }
    let mut client = running.client()?;
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")?;
    assert_eq!(client.answer()?.1, b"short");
    for client in &mut slow {
        assert!(client.answer()?.1 == expected);
        assert_eq!(client.answer()?.1, b"short");
    }
    Ok(())
}

/// Clients whose handshake, or request, does not go on.
#[test]
fn slow_handshakes_hold_no_thread() -> io::Result<()> {
    let limits = Limits::default().head_time(PATIENCE).idle(PATIENCE);
    let serving = Serving::default().threads(2);
    let running = Running::start(|it| it.limits(limits).serving(serving), echo)?;
    let mut slow = Vec::new();
    for number in 0..40 {
        let mut client = running.client()?;
        let mut hello = Vec::new();
        client.0.get_mut().conn.write_tls(&mut hello)?;
        let end = hello.len() * (number % 3) / 2;
        client.0.get_mut().sock.write_all(&hello[..end])?;
        slow.push((client, hello.split_off(end)));
    }
    // A record that is not whole, after a handshake that is.
    for _ in 0..10 {
        let mut client = running.client()?;
        client.send("GET / HTTP/1.1\r\n")?;
        let StreamOwned { conn, sock, .. } = client.0.get_mut();
        conn.writer().write_all(b"Host: a\r\n\r\n")?;
        let mut record = Vec::new();
        conn.write_tls(&mut record)?;
        sock.write_all(&record[..10])?;
        slow.push((client, record.split_off(10)));
    }
    let mut quick = running.client()?;
    for _ in 0..10 {
        quick.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")?;
        quick.answer()?;
    }
    for (number, (client, rest)) in slow.iter_mut().enumerate() {
        client.0.get_mut().sock.write_all(rest)?;
        if number < 40 {
            client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")?;
        }
        client.answer()?;
    }
    Ok(())
}

/// A chain may be longer than what the system takes at once: what is left of it is sent when there is room.
#[test]
fn a_handshake_goes_on_when_there_is_room() -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    SockRef::from(&listener).set_send_buffer_size(4096)?;
    let running = Running::with_chain(100, listener, |it| it, echo)?;
    for _ in 0..3 {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.set_recv_buffer_size(8192)?;
        socket.connect(&running.address.into())?;
        // One of TLS 1.2 says nothing before it has all of it.
        let mut client = Client::on(socket.into(), &[&TLS12])?;
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")?;
        client.answer()?;
    }
    Ok(())
}

/// Who does not speak TLS gets no answer, and neither does who is slow; others go on.
#[test]
fn what_is_no_handshake_ends_its_connection() -> io::Result<()> {
    const TIME: Duration = Duration::from_millis(700);
    let running = Running::start(|it| it.limits(Limits::default().head_time(TIME)), echo)?;
    for text in ["GET / HTTP/1.1\r\nHost: a\r\n\r\n", "\x16\x03", ""] {
        let mut stream = TcpStream::connect(running.address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(text.as_bytes())?;
        let mut answer = Vec::new();
        match stream.read_to_end(&mut answer) {
            Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
            read => drop(read?),
        }
        // An alert is no more than this.
        assert!(answer.len() < 10, "{text}");
    }
    assert_eq!(running.handle.metrics().client_errors, 0);
    let begin = Instant::now();
    loop {
        let since = Instant::now();
        let mut client = running.client()?;
        let sent = client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        let answer = sent.and_then(|()| client.answer());
        // On a busy machine one that speaks TLS may be slow, too.
        let is_slow = since.elapsed() >= TIME;
        if answer.is_ok() || !is_slow || begin.elapsed() >= PATIENCE {
            return answer.map(drop);
        }
    }
}

#[test]
fn another_protocol_takes_the_session() -> io::Result<()> {
    let running = Running::start(
        |it| it,
        |request| {
            assert!(request.body().tls().is_some());
            let mut response = Response::new(ResponseBody::upgrade(|upgraded| {
                let session = upgraded.tls.expect("it speaks TLS");
                let mut stream = StreamOwned::new(*session, upgraded.stream);
                let mut line = [0; 5];
                let ahead = upgraded.read_ahead.len();
                line[..ahead].copy_from_slice(&upgraded.read_ahead);
                stream.read_exact(&mut line[ahead..]).expect("it comes");
                line.reverse();
                stream.write_all(&line).expect("somebody reads");
                stream.flush().expect("somebody reads");
            }));
            *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
            response
        },
    )?;
    for parts in [["", "abcde"], ["abc", "de"], ["abcde", ""]] {
        let mut client = running.client()?;
        client.send(&format!("GET / HTTP/1.1\r\nHost: a\r\n\r\n{}", parts[0]))?;
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert!(client.0.read_line(&mut head)? > 0);
        }
        client.send(parts[1])?;
        let mut answer = [0; 5];
        client.0.read_exact(&mut answer)?;
        assert_eq!(&answer, b"edcba");
    }
    Ok(())
}
