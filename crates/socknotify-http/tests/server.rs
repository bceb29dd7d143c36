//! A server and its clients, over real sockets.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use socket2::SockRef;
use socknotify_http::http::{HeaderValue, Method, StatusCode, Version, header};
use socknotify_http::{
    Handle, Limits, Request, Response, ResponseBody, Server, Serving, file_response,
};

/// Longer than anything takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server that is ended, and waited for, when this is dropped.
struct Running {
    address: SocketAddr,
    handle: Handle,
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl Running {
    fn start<F>(server: Server, handler: F) -> Self
    where
        F: Fn(&mut Request<'_>) -> Response + Send + Sync + 'static,
    {
        Running {
            address: server.local_addr().expect("it is bound"),
            handle: server.handle(),
            thread: Some(thread::spawn(move || server.serve(handler))),
        }
    }

    fn end(&mut self, within: Duration) -> io::Result<()> {
        self.handle.drain(within);
        let thread = self.thread.take().expect("it runs");
        thread.join().expect("no panic")
    }

    fn client(&self) -> io::Result<Client> {
        Client::connect(self.address)
    }

    /// One whose system takes little that it has not read.
    fn slow_client(&self) -> io::Result<Client> {
        let client = self.client()?;
        SockRef::from(client.0.get_ref()).set_recv_buffer_size(64 << 10)?;
        Ok(client)
    }

    /// The status and the text of the answer to this, and whether the connection ends with it.
    fn ask(&self, request: &str) -> io::Result<(u16, String, bool)> {
        let mut client = self.client()?;
        client.send(request)?;
        let answer = client.answer()?;
        Ok((answer.status, answer.text(), client.has_ended()?))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.thread.is_some() && !thread::panicking() {
            self.end(PATIENCE).expect("it ends");
        }
    }
}

fn server() -> Server {
    Server::bind("127.0.0.1:0").expect("a free port")
}

struct Client(BufReader<TcpStream>);

#[derive(Debug)]
struct Answer {
    status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Answer {
    fn header(&self, name: &str) -> Option<&str> {
        let mut found = self.headers.iter().filter(|it| it.0 == name);
        let value = found.next()?;
        assert!(found.next().is_none(), "{name} is there twice");
        Some(&value.1)
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

impl Client {
    fn connect(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        Ok(Client(BufReader::new(stream)))
    }

    fn send(&mut self, text: impl AsRef<[u8]>) -> io::Result<()> {
        self.0.get_mut().write_all(text.as_ref())
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        self.0.read_line(&mut line)?;
        match line.strip_suffix("\r\n") {
            Some(line) => Ok(line.to_owned()),
            None => Err(ErrorKind::UnexpectedEof.into()),
        }
    }

    fn head(&mut self) -> io::Result<Answer> {
        let first = self.line()?;
        let status = first.strip_prefix("HTTP/1.1 ").expect("a version");
        let mut answer = Answer {
            status: status[..3].parse().expect("a status"),
            headers: Vec::new(),
            body: Vec::new(),
        };
        loop {
            let line = self.line()?;
            if line.is_empty() {
                return Ok(answer);
            }
            let (name, value) = line.split_once(": ").expect("a header");
            answer.headers.push((name.to_lowercase(), value.to_owned()));
        }
    }

    fn answer(&mut self) -> io::Result<Answer> {
        let mut answer = self.head()?;
        if let Some(length) = answer.header("content-length") {
            answer.body = vec![0; length.parse().expect("a length")];
            self.0.read_exact(&mut answer.body)?;
        } else if answer.header("transfer-encoding") == Some("chunked") {
            loop {
                let length = usize::from_str_radix(&self.line()?, 16).expect("a length");
                let from = answer.body.len();
                answer.body.resize(from + length, 0);
                self.0.read_exact(&mut answer.body[from..])?;
                assert_eq!(self.line()?, "");
                if length == 0 {
                    break;
                }
            }
        }
        Ok(answer)
    }

    /// Whether the server has ended the connection, as it said or as it says nothing for a moment after another request.
    fn has_ended(&mut self) -> io::Result<bool> {
        if self.send("GET /again HTTP/1.1\r\nHost: a\r\n\r\n").is_err() {
            return Ok(true);
        }
        match self.0.fill_buf() {
            Ok(bytes) => Ok(bytes.is_empty()),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => Ok(true),
            Err(error) => Err(error),
        }
    }
}

/// The method, the target, and the body as it came.
fn echo(request: &mut Request<'_>) -> Response {
    let mut body = String::new();
    if let Err(error) = request.body_mut().read_to_string(&mut body) {
        body = error.to_string();
    }
    Response::new(format!("{} {} {body}", request.method(), request.uri()).into())
}

#[test]
fn requests_are_answered_in_order_on_one_connection() -> io::Result<()> {
    let running = Running::start(server(), echo);
    let mut client = running.client()?;
    for round in 0..3 {
        client.send(format!("GET /{round} HTTP/1.1\r\nHost: a\r\n\r\n"))?;
        let answer = client.answer()?;
        assert_eq!(
            (answer.status, answer.text()),
            (200, format!("GET /{round} "))
        );
        assert_eq!(
            answer.header("content-type"),
            Some("text/plain; charset=utf-8")
        );
        assert!(
            answer
                .header("date")
                .is_some_and(|date| date.ends_with(" GMT"))
        );
        assert_eq!(answer.header("connection"), None);
    }
    client.send("\r\n\r\n")?;
    // All at once, with bodies, of which one begins as a request does.
    let (mut text, mut expected) = (String::new(), Vec::new());
    for round in 0..200 {
        let body = "GET / HTTP/1.1\r\n".repeat(round % 40);
        let length = body.len();
        text += &match round % 2 {
            0 => format!("PUT /{round} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n{body}"),
            _ => format!(
                "PUT /{round} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{length:x};x=y\r\n{body}{}0\r\nX-Trailer: 1\r\n\r\n",
                if length > 0 { "\r\n" } else { "" }
            )
            .replace("0;x=y\r\n0\r\n", "0;x=y\r\n"),
        };
        expected.push(format!("PUT /{round} {body}"));
    }
    let mut writer = client.0.get_ref().try_clone()?;
    let sending = thread::spawn(move || writer.write_all(text.as_bytes()));
    for expected in expected {
        assert_eq!(client.answer()?.text(), expected);
    }
    sending.join().expect("no panic")
}

#[test]
fn a_request_may_come_byte_by_byte() -> io::Result<()> {
    let running = Running::start(server(), echo);
    let mut client = running.client()?;
    let text = "POST /a HTTP/1.1\r\nHost: b\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\nT: u\r\n\r\n";
    for _ in 0..2 {
        for byte in text.bytes() {
            client.send([byte])?;
        }
        assert_eq!(client.answer()?.text(), "POST /a abcde");
    }
    Ok(())
}

#[test]
fn what_is_not_well_formed_is_refused_and_ends_its_connection() -> io::Result<()> {
    let running = Running::start(server().limits(Limits::default().body(1000)), echo);
    for (request, status) in [
        ("GET /\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\n\r\n", 400),
        ("GET / HTTP/3.0\r\nHost: a\r\n\r\n", 505),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1, 1\r\n\r\na",
            400,
        ),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            400,
        ),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n",
            501,
        ),
        ("POST / HTTP/1.1\r\nHost: a\r\nExpect: more\r\n\r\n", 417),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1001\r\n\r\n",
            413,
        ),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3e9\r\n",
            413,
        ),
        (
            // The second chunk has not come; it says itself that they are too long together.
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n3e8\r\n",
            413,
        ),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n+1\r\na\r\n0\r\n\r\n",
            400,
        ),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n0\r\n\r\n",
            400,
        ),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\na\n0\n\n",
            400,
        ),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX : y\r\n\r\n",
            400,
        ),
    ] {
        let (got, text, has_ended) = running.ask(request)?;
        assert_eq!((got, has_ended), (status, true), "{request:?}: {text}");
    }
    let long = format!("GET /{} HTTP/1.1\r\n", "a".repeat(10_000));
    assert_eq!(running.ask(&long)?.0, 414);
    let long = format!("GET / HTTP/1.1\r\nX: {}", "a".repeat(20_000));
    assert_eq!(running.ask(&long)?.0, 431);
    assert_eq!(running.handle.metrics().server_errors, 2);
    Ok(())
}

#[test]
fn head_and_statuses_without_a_body_have_none() -> io::Result<()> {
    let running = Running::start(server(), |request| {
        let status = request.uri().path()[1..].parse().expect("a status");
        let mut response = Response::new("text".into());
        *response.status_mut() = status;
        response
    });
    let mut client = running.client()?;
    client.send("HEAD /200 HTTP/1.1\r\nHost: a\r\n\r\n")?;
    assert_eq!(client.head()?.header("content-length"), Some("4"));
    for status in ["204", "304"] {
        client.send(format!("GET /{status} HTTP/1.1\r\nHost: a\r\n\r\n"))?;
        let head = client.head()?;
        assert_eq!(head.header("content-length"), None);
        assert_eq!(head.header("transfer-encoding"), None);
    }
    // No answer at all, and the server says so.
    client.send("GET /100 HTTP/1.1\r\nHost: a\r\n\r\n")?;
    assert_eq!(client.answer()?.status, 500);
    assert!(client.has_ended()?);
    Ok(())
}

#[test]
fn the_version_and_both_sides_say_whether_a_connection_goes_on() -> io::Result<()> {
    let running = Running::start(server(), |request| {
        let mut response = Response::new("a".into());
        let says = match request.uri().path() {
            "/last" => "close",
            _ => "keep-alive",
        };
        let says = HeaderValue::from_static(says);
        response.headers_mut().insert(header::CONNECTION, says);
        response
    });
    for (request, has_ended) in [
        ("GET / HTTP/1.1\r\nHost: a\r\n\r\n", false),
        (
            "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
            true,
        ),
        ("GET / HTTP/1.0\r\n\r\n", true),
        ("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", false),
        ("GET /last HTTP/1.1\r\nHost: a\r\n\r\n", true),
    ] {
        let mut client = running.client()?;
        client.send(request)?;
        let answer = client.answer()?;
        let said = answer.header("connection");
        assert_eq!(said == Some("close"), has_ended, "{request}");
        assert_eq!(client.has_ended()?, has_ended, "{request}");
    }
    Ok(())
}

#[test]
fn a_body_is_asked_for_when_it_is_read() -> io::Result<()> {
    let running = Running::start(server(), |request| match request.uri().path() {
        "/read" => echo(request),
        _ => Response::new("no".into()),
    });
    let head = |path| {
        format!(
            "POST {path} HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n"
        )
    };
    let mut client = running.client()?;
    client.send(head("/read"))?;
    assert_eq!(client.head()?.status, 100);
    client.send("abc")?;
    assert_eq!(client.answer()?.text(), "POST /read abc");
    // Not asked for, it may come or not: so nothing may follow.
    client.send(head("/other"))?;
    let answer = client.answer()?;
    assert_eq!(
        (answer.status, answer.header("connection")),
        (200, Some("close"))
    );
    assert!(client.has_ended()?);
    Ok(())
}

#[test]
fn what_a_handler_leaves_of_a_body_is_dropped_or_ends_the_connection() -> io::Result<()> {
    let limits = Limits::default().body(10 << 20);
    let running = Running::start(server().limits(limits), |_| Response::new("no".into()));
    for (length, has_ended) in [
        (10_000, false),
        (64 << 10, false),
        ((64 << 10) + 1, true),
        (1 << 20, true),
    ] {
        let body = "a".repeat(length);
        for rest in [
            format!("Content-Length: {length}\r\n\r\n{body}"),
            format!("Transfer-Encoding: chunked\r\n\r\n{length:x}\r\n{body}\r\n0\r\n\r\n"),
        ] {
            let mut client = running.client()?;
            let sent = client.send(format!("POST / HTTP/1.1\r\nHost: a\r\n{rest}"));
            // The connection ends some seconds after the answer, and this thread may be late.
            assert!(sent.is_ok() || has_ended, "{sent:?}");
            assert_eq!(client.answer()?.text(), "no", "{length}");
            assert_eq!(client.has_ended()?, has_ended, "{length}");
        }
    }
    Ok(())
}

#[test]
fn answers_are_bytes_files_and_readers() -> io::Result<()> {
    let content: Arc<Vec<u8>> = Arc::new((0..3_000_000).map(|it| (it % 251) as u8).collect());
    let mut file = tempfile::NamedTempFile::new()?;
    file.write_all(&content)?;
    let (path, bytes) = (file.path().to_owned(), Arc::clone(&content));
    let running = Running::start(server(), move |request| {
        let open = || std::fs::File::open(&path);
        let all = || bytes.to_vec();
        let body = match request.uri().path() {
            "/bytes" => Ok(all().into()),
            "/file" => open().and_then(ResponseBody::file),
            "/part" => open().and_then(|file| ResponseBody::file_part(file, 1000, 2_000_000)),
            "/small" => open().and_then(|file| ResponseBody::file_part(file, 1000, 2000)),
            "/reader" => Ok(ResponseBody::reader(io::Cursor::new(all()))),
            "/length" => Ok(ResponseBody::reader_of(2_000_000, io::Cursor::new(all()))),
            _ => Ok(().into()),
        };
        Response::new(body.expect("the file is there"))
    });
    let mut client = running.client()?;
    for (path, expected) in [
        ("/bytes", &content[..]),
        ("/file", &content[..]),
        ("/part", &content[1000..2_001_000]),
        ("/small", &content[1000..3000]),
        ("/reader", &content[..]),
        ("/length", &content[..2_000_000]),
        ("/none", &[]),
    ] {
        client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"))?;
        let answer = client.answer()?;
        assert!(answer.body == expected, "{path}: {}", answer.body.len());
    }
    // Without chunks, the end of the connection is the end.
    let mut client = running.client()?;
    client.send("GET /reader HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")?;
    let head = client.head()?;
    assert_eq!(head.header("transfer-encoding"), None);
    assert_eq!(head.header("connection"), Some("close"));
    let mut body = Vec::new();
    client.0.read_to_end(&mut body)?;
    assert!(body == content[..]);
    Ok(())
}

#[test]
fn a_file_is_sent_as_far_as_it_is_asked_for() -> io::Result<()> {
    let content: Vec<u8> = (0..300_000).map(|it| (it % 251) as u8).collect();
    let directory = tempfile::tempdir()?;
    let root = directory.path().to_owned();
    std::fs::write(root.join("large"), &content)?;
    std::fs::write(root.join("empty"), "")?;
    let running = Running::start(server(), move |request| {
        let path = root.join(&request.uri().path()[1..]);
        if cfg!(unix) {
            let directory = std::fs::File::open(&root).expect("it is there");
            let error = file_response(request, directory, HeaderValue::from_static("a"));
            assert_eq!(error.expect_err("no file").kind(), ErrorKind::IsADirectory);
        }
        let mut file = std::fs::File::open(path).expect("it is there");
        // Where it is does not matter.
        io::copy(&mut (&mut file).take(7), &mut io::sink()).expect("it is readable");
        let kind = HeaderValue::from_static("text/x");
        file_response(request, file, kind).expect("a length")
    });
    let mut client = running.client()?;
    let mut ask = |line: &str, headers: &str| -> io::Result<Answer> {
        client.send(format!("{line} HTTP/1.1\r\nHost: a\r\n{headers}\r\n"))?;
        match line.starts_with("HEAD") || headers.starts_with("If-N") {
            true => client.head(),
            false => client.answer(),
        }
    };
    let whole = ask("GET /large", "")?;
    assert!(whole.status == 200 && whole.body == content);
    for (name, value) in [
        ("accept-ranges", "bytes"),
        ("content-type", "text/x"),
        ("content-length", "300000"),
    ] {
        assert_eq!(whole.header(name), Some(value));
    }
    let tag = whole.header("etag").expect("a tag").to_owned();
    assert!(whole.header("last-modified").is_some());
    for (headers, part) in [
        ("Range: bytes=0-0\r\n", 0..1),
        ("Range: bytes=1000-\r\n", 1000..300_000),
        ("Range: bytes=-7\r\n", 299_993..300_000),
    ] {
        let answer = ask("GET /large", headers)?;
        let range = format!("bytes {}-{}/300000", part.start, part.end - 1);
        assert_eq!(answer.header("content-range"), Some(&*range));
        assert!(answer.status == 206 && answer.body == content[part]);
    }
    for (line, headers, status) in [
        ("HEAD /large", "Range: bytes=0-0\r\n", 200),
        ("GET /large", "Range: bytes=300000-\r\n", 416),
        ("GET /large", "Range: bytes=0-0,2-2\r\n", 200),
        (
            "GET /large",
            "Range: bytes=0-0\r\nRange: bytes=0-0\r\n",
            200,
        ),
        ("GET /large", "Range: bytes=0-0\r\nIf-Range: \"a\"\r\n", 200),
        ("GET /large", "If-Match: \"a\"\r\n", 412),
        ("GET /large", &format!("If-None-Match: {tag}\r\n"), 304),
        ("GET /empty", "Range: bytes=-5\r\n", 200),
        ("GET /empty", "Range: bytes=0-\r\n", 416),
        ("GET /empty", "", 200),
    ] {
        let answer = ask(line, headers)?;
        assert_eq!(answer.status, status, "{line} {headers}");
        let names = ["content-type", "etag"].map(|it| answer.header(it));
        match status {
            304 => assert_eq!(names, [None, Some(&*tag)]),
            412 | 416 => assert_eq!(names[0], Some("text/plain; charset=utf-8")),
            _ => assert!(names[0] == Some("text/x") && names[1].is_some()),
        }
        if status == 416 {
            let range = format!(
                "bytes */{}",
                if line.ends_with("empty") { 0 } else { 300_000 }
            );
            assert_eq!(answer.header("content-range"), Some(&*range));
        }
    }
    Ok(())
}

/// What is not whole does not look so: the status says it, or the end of the connection.
#[test]
fn a_body_that_fails_is_told_or_breaks_its_connection_off() -> io::Result<()> {
    struct Failing;

    impl Read for Failing {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::other("it fails"))
        }
    }

    struct Panicking;

    impl Read for Panicking {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            panic!("as it was told to");
        }
    }

    let running = Running::start(server(), |request| {
        let some = vec![b'x'; 16 << 10];
        let some = io::Cursor::new(some);
        Response::new(match request.uri().path() {
            "/chunks" => ResponseBody::reader(some.chain(Failing)),
            "/short" => ResponseBody::reader_of(100_000, some),
            "/panic" => ResponseBody::reader(some.chain(Panicking)),
            "/length" => ResponseBody::reader_of(100_000, some.chain(Failing)),
            "/fails" => ResponseBody::reader(Failing),
            "/panics" => ResponseBody::reader_of(100_000, Panicking),
            "/nothing" => ResponseBody::reader_of(1, io::empty()),
            // A directory can be opened, and not be read.
            _ => ResponseBody::file_part(std::fs::File::open(".").expect("it is there"), 0, 1)
                .expect("it has a length"),
        })
    });
    let paths = ["/chunks", "/short", "/panic", "/length"];
    for path in paths {
        let mut client = running.client()?;
        client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"))?;
        let error = client.answer().expect_err(path);
        let is_end = matches!(
            error.kind(),
            ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset
        );
        assert!(is_end, "{error}");
    }
    while running.handle.metrics().connections > 0 {
        thread::yield_now();
    }
    let metrics = running.handle.metrics();
    assert_eq!((metrics.successful, metrics.failed_bodies), (4, 4));
    // Nothing was sent: so there can be another answer.
    let mut paths = vec!["/fails", "/panics", "/nothing"];
    if cfg!(unix) {
        paths.push("/directory");
    }
    for path in &paths {
        let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n");
        let (status, text, has_ended) = running.ask(&request)?;
        assert_eq!((status, has_ended), (500, true), "{path}");
        assert_eq!(text, "500 Internal Server Error\n");
    }
    let metrics = running.handle.metrics();
    let expected = (4, paths.len() as u64, 4 + paths.len() as u64);
    assert_eq!(
        (
            metrics.successful,
            metrics.server_errors,
            metrics.failed_bodies
        ),
        expected
    );
    Ok(())
}

#[test]
fn a_panic_is_answered_and_others_go_on() -> io::Result<()> {
    let running = Running::start(server(), |request| {
        assert!(request.uri() != "/panic", "as it was told to");
        Response::new("a".into())
    });
    let mut other = running.client()?;
    for _ in 0..20 {
        let (status, _, has_ended) = running.ask("GET /panic HTTP/1.1\r\nHost: a\r\n\r\n")?;
        assert_eq!((status, has_ended), (500, true));
        other.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")?;
        assert_eq!(other.answer()?.status, 200);
    }
    Ok(())
}

/// More handlers block at once than there are processors, until the last one has begun.
/// A body that panics when it is dropped.
struct Falls(usize);

impl Read for Falls {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = buffer.len().min(self.0);
        self.0 -= count;
        Ok(count)
    }
}

impl Drop for Falls {
    fn drop(&mut self) {
        panic!("as it was told to");
    }
}

#[test]
fn a_panic_where_something_is_dropped_leaves_nothing_behind() -> io::Result<()> {
    let kept = Kept::default();
    let limits = Limits::default().stall(Duration::from_millis(200));
    let server = server().limits(limits).log(kept.clone());
    let mut running = Running::start(server, |request| {
        if request.uri() == "/other" {
            let mut response =
                Response::new(ResponseBody::upgrade(|_| panic!("as it was told to")));
            *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
            return response;
        }
        let length = request.uri().path()[1..].parse().expect("a length");
        Response::new(ResponseBody::reader_of(length, Falls(length as usize)))
    });
    for path in ["10", "other", "100000000"] {
        let mut client = running.slow_client()?;
        client.send(format!("GET /{path} HTTP/1.1\r\nHost: a\r\n\r\n"))?;
        client.head()?;
        let begin = Instant::now();
        while running.handle.metrics().connections > 0
            || !running.handle.slow(Duration::ZERO).is_empty()
        {
            assert!(begin.elapsed() < PATIENCE / 6, "{path}");
            thread::sleep(Duration::from_millis(1));
        }
    }
    running.end(PATIENCE)?;
    assert_eq!(kept.text().lines().count(), 3);
    Ok(())
}

/// A thread that was sending had no processor for a tenth of a second. What it answers counts later.
fn is_left_behind(served: &io::Result<()>) -> bool {
    matches!(served, Err(error) if error.kind() == io::ErrorKind::TimedOut)
}

#[test]
fn a_body_that_panics_when_it_is_dropped_keeps_no_end_from_its_work() -> io::Result<()> {
    let kept = Kept::default();
    let server = server().log(kept.clone());
    let (address, handle) = (server.local_addr()?, server.handle());
    let ending = thread::spawn(move || {
        let mut clients = Vec::new();
        for _ in 0..5 {
            let mut client = Client::connect(address)?;
            client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")?;
            client.head()?;
            clients.push(client);
        }
        // All of them wait for room.
        let mut quiet = 0;
        while quiet < 100 {
            let metrics = handle.metrics();
            let waits = metrics.waiting_threads == metrics.threads;
            quiet = if waits { quiet + 1 } else { 0 };
            thread::yield_now();
        }
        handle.drain(Duration::from_millis(100));
        io::Result::Ok((handle, clients))
    });
    let served = server.serve(|_| Response::new(ResponseBody::reader_of(1 << 40, Falls(1 << 40))));
    if is_left_behind(&served) {
        return Ok(());
    }
    served?;
    let (handle, _clients) = ending.join().expect("no panic")?;
    assert_eq!(handle.metrics().incomplete, 5);
    assert_eq!(kept.text().lines().count(), 5);
    // This thread has nothing to do any more.
    assert_eq!(handle.slow(Duration::ZERO), []);
    Ok(())
}

/// What is not sent is dropped, however it does that.
#[test]
fn a_body_that_is_left_out_may_panic_when_it_is_dropped() -> io::Result<()> {
    let running = Running::start(server(), |request| {
        // It is too short.
        if request.uri() == "/500" {
            return Response::new(ResponseBody::reader_of(4, Falls(3)));
        }
        let mut response = Response::new(ResponseBody::reader_of(4, Falls(4)));
        *response.status_mut() = request.uri().path()[1..].parse().expect("a status");
        response
    });
    let mut client = running.client()?;
    for request in ["HEAD /200", "GET /204", "GET /304", "GET /500"] {
        client.send(format!("{request} HTTP/1.1\r\nHost: a\r\n\r\n"))?;
        assert!(request.ends_with(&client.head()?.status.to_string()));
    }
    Ok(())
}

#[test]
fn handlers_may_block() -> io::Result<()> {
    const AT_ONCE: usize = 40;
    let barrier = std::sync::Barrier::new(AT_ONCE);
    let running = Running::start(server(), move |request| {
        if request.uri() == "/together" {
            barrier.wait();
        }
        Response::new("a".into())
    });
    let clients: Vec<_> = (0..AT_ONCE)
        .map(|_| {
            let mut client = running.client()?;
            client.send("GET /together HTTP/1.1\r\nHost: a\r\n\r\n")?;
            Ok(client)
        })
        .collect::<io::Result<_>>()?;
    for mut client in clients {
        assert_eq!(client.answer()?.status, 200);
    }
    Ok(())
}

#[test]
fn slow_clients_are_told_and_hold_no_thread() -> io::Result<()> {
    const TIME: Duration = Duration::from_millis(300);
    let limits = Limits::default()
        .head_time(TIME)
        .body_time(TIME, 1 << 20)
        .idle(TIME)
        .stall(Duration::from_millis(200));
    let serving = Serving::default().threads(2);
    let running = Running::start(server().limits(limits).serving(serving), echo);
    // A client that has sent this in the time that it had for its first byte: on a busy machine one can be too late.
    let client = |text: &str| loop {
        let begin = Instant::now();
        let mut client = running.client()?;
        let sent = client.send(text);
        if begin.elapsed() < TIME {
            break sent.map(|()| client);
        }
    };
    // Heads that never end, of many clients.
    let slow = (0..100).map(|_| client("GET / HT"));
    let mut slow = slow.collect::<io::Result<Vec<_>>>()?;
    for _ in 0..20 {
        let mut client = client("GET / HTTP/1.1\r\nHost: a\r\n\r\n")?;
        assert_eq!(client.answer()?.status, 200);
    }
    for client in &mut slow {
        assert_eq!(client.answer()?.status, 408);
        assert!(client.has_ended()?);
    }
    // A body that never ends.
    let mut late = client("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nab")?;
    assert_eq!(late.answer()?.status, 408);
    // Nothing more.
    let mut idle = client("GET / HTTP/1.1\r\nHost: a\r\n\r\n")?;
    idle.answer()?;
    assert!(idle.0.fill_buf()?.is_empty(), "idle for too long");
    Ok(())
}

#[test]
fn a_client_that_breaks_off_is_not_answered() -> io::Result<()> {
    let (tell, told) = mpsc::channel();
    let tell = Mutex::new(tell);
    let running = Running::start(server(), move |request| {
        let error = request.body_mut().read_to_end(&mut Vec::new());
        let kind = error.expect_err("it is not whole").kind();
        tell.lock()
            .expect("no panic")
            .send(kind)
            .expect("somebody waits");
        Response::new("a".into())
    });
    for (framing, is_called) in [
        ("Content-Length: 5\r\n\r\n", false),
        ("Transfer-Encoding: chunked\r\n\r\n5\r\n", false),
        ("Content-Length: 100000\r\n\r\n", true),
        ("Transfer-Encoding: chunked\r\n\r\n20000\r\n", true),
    ] {
        let mut client = running.client()?;
        client.send(format!("POST / HTTP/1.1\r\nHost: a\r\n{framing}"))?;
        client.0.get_ref().shutdown(Shutdown::Write)?;
        if is_called {
            assert_eq!(told.recv_timeout(PATIENCE), Ok(ErrorKind::UnexpectedEof));
        }
        assert!(client.head().is_err());
    }
    assert!(told.try_recv().is_err());
    Ok(())
}

#[test]
fn an_end_answers_what_has_come() -> io::Result<()> {
    let (begin, begun) = mpsc::channel();
    let (begin, blocked) = (Mutex::new(begin), Mutex::new(None));
    let blocked = Arc::new(blocked);
    let waiting = Arc::clone(&blocked);
    let mut running = Running::start(server(), move |request| {
        if request.uri() == "/blocks" {
            let (release, released) = mpsc::channel::<()>();
            *waiting.lock().expect("no panic") = Some(release);
            begin
                .lock()
                .expect("no panic")
                .send(())
                .expect("it is waited for");
            let _ = released.recv_timeout(PATIENCE);
        }
        Response::new("a".into())
    });
    let mut idle = running.client()?;
    idle.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")?;
    assert_eq!(idle.answer()?.header("connection"), None);
    let mut busy = running.client()?;
    // Also what waits behind another request.
    let next = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    busy.send(format!(
        "GET /blocks HTTP/1.1\r\nHost: a\r\n\r\n{next}{next}"
    ))?;
    begun.recv_timeout(PATIENCE).expect("it has begun");
    let mut partial = running.client()?;
    partial.send("GET / HTTP/1.1\r\n")?;
    running.handle.drain(PATIENCE);
    assert!(idle.0.fill_buf()?.is_empty(), "it has nothing to finish");
    partial.send("Host: a\r\n\r\n")?;
    blocked.lock().expect("no panic").take();
    for _ in 0..2 {
        assert_eq!(busy.answer()?.header("connection"), None);
    }
    for client in [&mut partial, &mut busy] {
        let answer = client.answer()?;
        assert_eq!(
            (answer.status, answer.header("connection")),
            (200, Some("close"))
        );
    }
    drop((partial, busy, idle));
    running.end(PATIENCE)?;
    assert!(TcpStream::connect(running.address).is_err());
    Ok(())
}

/// Some clients send one behind a body.
#[test]
fn an_end_waits_for_nothing_behind_an_empty_line() -> io::Result<()> {
    let limits = Limits::default().head_time(PATIENCE);
    let mut running = Running::start(server().limits(limits), echo);
    let mut client = running.client()?;
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\na\r\n")?;
    client.answer()?;
    let begin = Instant::now();
    running.handle.drain(PATIENCE);
    assert!(client.0.fill_buf()?.is_empty());
    drop(client);
    running.end(PATIENCE)?;
    assert!(begin.elapsed() < PATIENCE / 2);
    Ok(())
}

#[test]
fn an_end_is_bounded_whatever_a_handler_does() -> io::Result<()> {
    let (begin, begun) = mpsc::channel();
    let begin = Mutex::new(begin);
    let mut running = Running::start(server(), move |_| {
        begin
            .lock()
            .expect("no panic")
            .send(())
            .expect("it is waited for");
        loop {
            thread::park();
        }
    });
    let mut client = running.client()?;
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")?;
    begun.recv_timeout(PATIENCE).expect("it has begun");
    let error = running
        .end(Duration::from_millis(100))
        .expect_err("it is left behind");
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    // Windows does not tell the thread's name.
    let name = if cfg!(windows) { "a thread" } else { "http" };
    let says = format!("1 handlers were left behind: {name} in ");
    assert!(error.to_string().starts_with(&says), "{error}");
    Ok(())
}

#[test]
fn another_protocol_takes_over() -> io::Result<()> {
    let running = Running::start(server(), |request| {
        let said = request.headers()[header::CONNECTION].clone();
        let mut response = Response::new(ResponseBody::upgrade(|mut upgraded| {
            let mut text = upgraded.read_ahead;
            while !text.contains(&b'\n') {
                let mut bytes = [0; 100];
                let count = upgraded.stream.read(&mut bytes).expect("it is there");
                text.extend_from_slice(&bytes[..count]);
            }
            text.reverse();
            upgraded.stream.write_all(&text).expect("somebody reads");
        }));
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        let protocol = HeaderValue::from_static("reverse");
        response.headers_mut().insert(header::UPGRADE, protocol);
        if request.uri() == "/again" {
            response.headers_mut().insert(header::CONNECTION, said);
        }
        response
    });
    for (head, parts) in [
        ("GET / HTTP/1.1\r\nConnection: upgrade", ["abc\n", ""]),
        ("GET / HTTP/1.1\r\nConnection: upgrade", ["", "abc\n"]),
        ("GET / HTTP/1.1\r\nConnection: upgrade", ["a", "bc\n"]),
        // As some browsers say it.
        (
            "GET /again HTTP/1.1\r\nConnection: keep-alive, Upgrade",
            ["abc\n", ""],
        ),
    ] {
        let mut client = running.client()?;
        client.send(format!(
            "{head}\r\nHost: a\r\nUpgrade: reverse\r\n\r\n{}",
            parts[0]
        ))?;
        let answer = client.head()?;
        assert_eq!(
            (answer.status, answer.header("upgrade")),
            (101, Some("reverse"))
        );
        assert_eq!(answer.header("connection"), Some("upgrade"));
        client.send(parts[1])?;
        let mut text = String::new();
        client.0.read_to_string(&mut text)?;
        assert_eq!(text, "\ncba");
    }
    Ok(())
}

/// A log that keeps what is written.
#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Vec<u8>>>);

impl Kept {
    fn text(&self) -> String {
        let bytes = self.0.lock().expect("no panic").clone();
        String::from_utf8(bytes).expect("text")
    }
}

impl Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("no panic").write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn what_was_done_is_counted_and_logged() -> io::Result<()> {
    let kept = Kept::default();
    let mut running = Running::start(server().log(kept.clone()), echo);
    running
        .ask("POST /a?b HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi")?;
    running.ask("nonsense\r\n\r\n")?;
    running.ask("\r\nGET /\"\x07 HTTP/1.1\r\nHost")?;
    running.ask("POST /long HTTP/1.1\r\nHost: a\r\nContent-Length: 9999999\r\n\r\na")?;
    let metrics = running.handle.metrics();
    assert_eq!((metrics.successful, metrics.client_errors), (1, 3));
    assert!(metrics.threads > 0);
    running.end(PATIENCE)?;
    let kept = kept.text();
    let lines: Vec<_> = kept.lines().collect();
    // The common log format: 127.0.0.1 - - [06/Nov/1994:08:49:37 +0000] "GET / HTTP/1.1" 200 12
    let (before, after) = lines[0].split_once("] ").expect("a time");
    let time = before.strip_prefix("127.0.0.1 - - [").expect(before);
    let shape = |it: char| if it.is_ascii_digit() { '0' } else { it };
    let shape: String = time.chars().map(shape).collect();
    assert!(shape.starts_with("00/") && shape.ends_with("/0000:00:00:00 +0000"));
    assert!(after.starts_with("\"POST /a?b HTTP/1.1\" 200 12 "));
    for (line, expected) in lines[1..].iter().zip([
        "\"nonsense\" 400 16 ",
        "\"GET /\\\"\\x07 HTTP/1.1\" 400 16 ",
        "\"POST /long HTTP/1.1\" 413 22 ",
    ]) {
        assert!(line.contains(expected), "{line}");
    }
    Ok(())
}

/// A log that panics once, and has something to do when it is dropped.
struct Fails(bool, Kept);

impl Write for Fails {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if std::mem::take(&mut self.0) {
            panic!("a fault");
        }
        self.1.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Fails {
    fn drop(&mut self) {
        thread::sleep(Duration::from_millis(20));
        let _ = self.1.write(b"the end\n");
    }
}

#[test]
fn a_log_that_panics_is_counted_and_written_to_again() -> io::Result<()> {
    let kept = Kept::default();
    let mut running = Running::start(server().log(Fails(true, kept.clone())), echo);
    while running.handle.metrics().log_left_out == 0 {
        running.ask("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")?;
    }
    running.ask("GET /last HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")?;
    running.end(PATIENCE)?;
    let text = kept.text();
    assert!(text.contains("\"GET /last HTTP/1.1\" 200 "));
    assert!(text.ends_with("the end\n"), "it is dropped by then");
    let metrics = running.handle.metrics();
    let written = text.lines().count() as u64 - 1;
    assert_eq!(metrics.log_left_out + written, metrics.successful);
    Ok(())
}

/// A body in chunks is as long as another.
#[test]
fn what_is_around_chunks_is_no_body() -> io::Result<()> {
    let kept = Kept::default();
    let mut running = Running::start(server().log(kept.clone()), |_| {
        Response::new(ResponseBody::reader(io::repeat(b'a').take(100_000)))
    });
    let mut client = running.client()?;
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")?;
    assert_eq!(client.answer()?.body.len(), 100_000);
    drop(client);
    running.end(PATIENCE)?;
    assert_eq!(running.handle.metrics().body_bytes, 100_000);
    assert!(kept.text().contains("\" 200 100000 "));
    Ok(())
}

/// A log that stands still keeps nobody waiting, nor the end.
#[test]
fn a_log_that_stands_still_keeps_nobody_waiting() -> io::Result<()> {
    struct Still(mpsc::Receiver<()>);

    impl Write for Still {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.0.recv();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    let (hold, still) = mpsc::channel();
    let mut running = Running::start(server().log(Still(still)), |_| Response::new("a".into()));
    let mut client = running.client()?;
    let requests = 20_000;
    let mut writer = client.0.get_ref().try_clone()?;
    let sending = thread::spawn(move || {
        (0..requests).try_for_each(|_| writer.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"))
    });
    for _ in 0..requests {
        client.answer()?;
    }
    sending.join().expect("no panic")?;
    assert!(running.handle.metrics().log_left_out > 0);
    let begin = Instant::now();
    drop(client);
    running.end(PATIENCE)?;
    assert!(begin.elapsed() < PATIENCE / 2);
    drop(hold);
    Ok(())
}

/// However long its lines are: each byte that is not printable has four there.
#[test]
fn a_log_that_stands_still_takes_a_bounded_memory() -> io::Result<()> {
    struct Still(mpsc::Receiver<()>, Kept);

    impl Write for Still {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.0.recv();
            self.1.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    const REQUESTS: usize = 200;
    let (hold, still) = mpsc::channel();
    let kept = Kept::default();
    let log = Still(still, kept.clone());
    let mut running = Running::start(server().log(log), echo);
    for _ in 0..REQUESTS {
        let mut client = running.client()?;
        client.send([&[1; 16_000][..], b"\r\n\r\n"].concat())?;
        assert_eq!(client.answer()?.status, 400);
    }
    drop(hold);
    running.end(PATIENCE)?;
    // Not before: a line is left out behind its answer.
    let left_out = running.handle.metrics().log_left_out as usize;
    let text = kept.text();
    assert_eq!(text.lines().count() + left_out, REQUESTS);
    assert!((1 << 19..2 << 20).contains(&text.len()), "{}", text.len());
    Ok(())
}

/// Clients that pipeline without end, and others beside them.
#[test]
fn one_that_sends_much_keeps_no_other_waiting() -> io::Result<()> {
    let served = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&served);
    let running = Running::start(server(), move |request| {
        counted.fetch_add(usize::from(request.uri() == "/much"), Ordering::Relaxed);
        Response::new("a".into())
    });
    let mut much = running.client()?;
    let mut writer = much.0.get_ref().try_clone()?;
    let text = "GET /much HTTP/1.1\r\nHost: a\r\n\r\n".repeat(100);
    let sending = thread::spawn(move || while writer.write_all(text.as_bytes()).is_ok() {});
    let reading = thread::spawn(move || while much.answer().is_ok() {});
    let begin = Instant::now();
    while served.load(Ordering::Relaxed) == 0 {
        assert!(begin.elapsed() < PATIENCE, "it does not begin");
        thread::yield_now();
    }
    for _ in 0..200 {
        assert_eq!(
            running
                .ask("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")?
                .0,
            200
        );
    }
    drop(running);
    reading.join().expect("no panic");
    sending.join().expect("no panic");
    Ok(())
}

#[test]
fn methods_are_the_handlers() -> io::Result<()> {
    let running = Running::start(server(), |request| {
        let mut response = Response::new(format!("{}", request.method()).into());
        if *request.method() == Method::TRACE {
            *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
        }
        response
    });
    for (method, status) in [
        ("GET", 200),
        ("BREW", 200),
        ("TRACE", 405),
        ("CONNECT", 501),
    ] {
        let target = if method == "CONNECT" { "a:1" } else { "/" };
        let request = format!("{method} {target} HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(running.ask(&request)?.0, status, "{method}");
    }
    Ok(())
}

/// While nobody accepts. One that finds no room tries again after a second, two, four and so on.
#[cfg(target_os = "linux")]
#[test]
fn many_clients_that_come_at_once_find_room() -> io::Result<()> {
    let most = std::fs::read_to_string("/proc/sys/net/core/somaxconn")?;
    let most: usize = most.trim().parse().map_err(io::Error::other)?;
    let server = Server::bind("127.0.0.1:0")?;
    let address = server.local_addr()?;
    let clients = (0..most.min(600)).map(|_| TcpStream::connect_timeout(&address, PATIENCE));
    clients.collect::<io::Result<Vec<_>>>().map(drop)
}

#[test]
fn limits_may_be_as_long_as_there_are_numbers() -> io::Result<()> {
    let limits = Limits::default()
        .head_time(Duration::MAX)
        .body_time(Duration::MAX, 1)
        .idle(Duration::MAX)
        .answer_time(Duration::MAX);
    let mut running = Running::start(server().limits(limits), echo);
    let mut client = running.client()?;
    for part in [
        "POST / HT",
        "TP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\n",
        "ab",
        "cd",
    ] {
        client.send(part)?;
        // So that it comes in parts.
        thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(client.answer()?.text(), "POST / abcd");
    // At the end, what has begun has the time of the end.
    client.send("GET / HT")?;
    let mut other = running.client()?;
    other.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")?;
    other.answer()?;
    running.handle.drain(PATIENCE);
    assert!(other.0.fill_buf()?.is_empty());
    client.send("TP/1.1\r\nHost: a\r\n\r\n")?;
    assert_eq!(client.answer()?.header("connection"), Some("close"));
    drop((client, other));
    running.end(PATIENCE)
}

/// A handler that makes GET of HEAD, as routers do, gets no body sent.
/// The memory of a request serves for the next one, and nothing that it had.
#[test]
fn a_request_has_nothing_of_the_one_before() -> io::Result<()> {
    let running = Running::start(server(), |request| {
        let (headers, extensions) = (request.headers().len(), request.extensions().len());
        let version = request.version();
        let text = format!(
            "{} {} {version:?} {headers} {extensions}",
            request.method(),
            request.uri()
        );
        let other = HeaderValue::from_static("b");
        request.headers_mut().append("x-other", other);
        request.extensions_mut().insert("other");
        *request.method_mut() = Method::PUT;
        *request.uri_mut() = "/other".parse().expect("a target");
        *request.version_mut() = Version::HTTP_2;
        assert!(headers != 4, "as it was told to");
        Response::new(text.into())
    });
    for round in 0..20 {
        let (status, _, _) =
            running.ask("GET / HTTP/1.1\r\nHost: a\r\nA: b\r\nC: d\r\nE: f\r\n\r\n")?;
        assert_eq!(status, 500);
        assert_eq!(
            running.ask("GET /# HTTP/1.1\r\nHost: a\r\nA: b\r\n\r\n")?.0,
            400
        );
        let mut client = running.client()?;
        for (request, text) in [
            (
                "GET /a HTTP/1.1\r\nHost: a\r\nX: y\r\n\r\n",
                "GET /a HTTP/1.1 2 0",
            ),
            ("HEAD / HTTP/1.1\r\nHost: a\r\n\r\n", ""),
            ("DELETE / HTTP/1.0\r\n\r\n", "DELETE / HTTP/1.0 0 0"),
        ] {
            client.send(request)?;
            match text {
                "" => drop(client.head()?),
                text => assert_eq!(client.answer()?.text(), text, "{round}"),
            }
        }
    }
    Ok(())
}

#[test]
fn head_stays_head_whatever_a_handler_does() -> io::Result<()> {
    let limits = Limits::default()
        .body(100)
        .body_time(Duration::from_millis(50), 1);
    let running = Running::start(server().limits(limits), |request| {
        *request.method_mut() = Method::GET;
        let mut response = Response::new("text".into());
        if request.uri() == "/none" {
            *response.status_mut() = StatusCode::CONTINUE;
        }
        response
    });
    let mut client = running.client()?;
    for _ in 0..2 {
        client.send("HEAD / HTTP/1.1\r\nHost: a\r\n\r\n")?;
        assert_eq!(client.head()?.header("content-length"), Some("4"));
    }
    // Nor has what the server says.
    for (rest, status) in [
        ("/ HTTP/1.1\r\nHost: a\r\nContent-Length: 101\r\n\r\n", 413),
        ("/none HTTP/1.1\r\nHost: a\r\n\r\n", 500),
        ("/ HTTP/1.1\r\n\r\n", 400),
        ("/ HTTP/1.1\r\nHost: a\r\nExpect: more\r\n\r\n", 417),
        ("/ HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n", 408),
    ] {
        let mut client = running.client()?;
        client.send(format!("HEAD {rest}"))?;
        assert_eq!(client.head()?.status, status);
        let mut body = Vec::new();
        client.0.read_to_end(&mut body)?;
        assert_eq!(body, b"", "{rest:?}");
    }
    Ok(())
}

/// Another protocol does not begin with what is left of a body.
#[test]
fn another_protocol_begins_where_the_request_ends() -> io::Result<()> {
    let (tell, told) = mpsc::channel();
    let tell = Mutex::new(tell);
    let running = Running::start(server(), move |_| {
        let tell = tell.lock().expect("no panic").clone();
        let mut response = Response::new(ResponseBody::upgrade(move |upgraded| {
            let _ = tell.send(upgraded.read_ahead);
        }));
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        response
    });
    let ask = |version: &str, headers: &str, body: &str| {
        let head = "\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: b";
        let mut client = running.client()?;
        client.send(format!(
            "POST / HTTP/{version}{head}\r\n{headers}\r\n\r\n{body}"
        ))?;
        client.head().map(|answer| answer.status)
    };
    let (long, expects) = (
        "Content-Length: 100000",
        "Expect: 100-continue\r\nContent-Length: 5",
    );
    assert_eq!(ask("1.1", long, "body")?, 500);
    assert_eq!(ask("1.1", expects, "")?, 500);
    let short = "Content-Length: 4";
    assert_eq!(ask("1.0", short, "body")?, 500);
    assert_eq!(ask("1.1", short, "bodymore")?, 101);
    assert_eq!(told.recv_timeout(PATIENCE), Ok(b"more".to_vec()));
    Ok(())
}

#[test]
fn a_server_that_is_told_to_end_before_it_begins_ends() -> io::Result<()> {
    for time in [PATIENCE, Duration::ZERO] {
        let server = server();
        server.handle().drain(time);
        server.serve(echo)?;
    }
    Ok(())
}

/// Its clients would wait for ever, and nobody else could listen there.
#[cfg(target_os = "linux")]
#[test]
fn a_server_that_cannot_begin_leaves_no_listener() -> io::Result<()> {
    // No system has room for such a stack.
    let server = server().serving(Serving::default().stack_size(1 << 60));
    let (address, handle) = (server.local_addr()?, server.handle());
    server.serve(echo).expect_err("there is no thread");
    let error = Client::connect(address).err().map(|it| it.kind());
    assert_eq!(error, Some(ErrorKind::ConnectionRefused));
    assert_eq!(handle.metrics().threads, 0);
    Ok(())
}

/// A client that takes a little now and then has no longer than the limit, also for a file.
#[test]
fn a_client_that_receives_slowly_has_a_limit() -> io::Result<()> {
    const LENGTH: u64 = 1 << 30;
    let file = tempfile::NamedTempFile::new()?;
    file.as_file().set_len(LENGTH)?;
    let path = file.path().to_owned();
    let limits = Limits::default()
        .answer_time(Duration::from_millis(500))
        .stall(Duration::from_millis(500));
    let running = Running::start(server().limits(limits), move |request| {
        let file = std::fs::File::open(&path).expect("it is there");
        Response::new(match request.uri().path() {
            "/file" => ResponseBody::file(file).expect("it has a length"),
            _ => ResponseBody::reader_of(LENGTH, file),
        })
    });
    for path in ["/file", "/reader"] {
        let mut client = running.client()?;
        client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"))?;
        // More slowly than it would be sent in time, and never so slowly that it stalls.
        let (mut received, mut bytes) = (0, vec![0; 64 << 10]);
        loop {
            received += client.0.get_mut().read(&mut bytes)? as u64;
            assert!((1..LENGTH / 16).contains(&received), "{path}: {received}");
            if running.handle.metrics().connections == 0 {
                break;
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
    Ok(())
}

/// Also when a handler is left behind, what was done is in the log.
#[test]
fn an_end_in_time_writes_the_log() -> io::Result<()> {
    /// Counts lines, and is slow with all but the first one.
    struct Slow(Arc<AtomicUsize>);

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if self.0.load(Ordering::SeqCst) > 0 {
                thread::sleep(Duration::from_millis(300));
            }
            let lines = bytes.iter().filter(|&&byte| byte == b'\n').count();
            self.0.fetch_add(lines, Ordering::SeqCst);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    let written = Arc::new(AtomicUsize::new(0));
    let server = server().log(Slow(Arc::clone(&written)));
    let (begin, begun) = mpsc::channel();
    let begin = Mutex::new(begin);
    let mut running = Running::start(server, move |request| {
        if request.uri() == "/hangs" {
            let _ = begin.lock().expect("no panic").send(());
            loop {
                thread::park();
            }
        }
        Response::new("a".into())
    });
    let mut hanging = running.client()?;
    hanging.send("GET /hangs HTTP/1.1\r\nHost: a\r\n\r\n")?;
    begun.recv_timeout(PATIENCE).expect("it has begun");
    let mut client = running.client()?;
    for _ in 0..3 {
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")?;
        client.answer()?;
    }
    let begin = Instant::now();
    let outcome = running.end(Duration::from_millis(100));
    assert!(outcome.is_err(), "one is left behind");
    // It waits up to a second for the log, whose thread may be late.
    let has_waited = begin.elapsed() >= Duration::from_secs(1);
    assert!(written.load(Ordering::SeqCst) == 3 || has_waited);
    Ok(())
}

/// What a body may take does not depend on how long a client may stand still.
#[test]
fn a_body_that_stands_still_has_no_longer_than_its_time() -> io::Result<()> {
    const STALL: Duration = Duration::from_secs(600);
    let (tell, told) = mpsc::channel();
    let tell = Mutex::new(tell);
    let tell = Arc::new(tell);
    let start = |body_time| {
        let limits = Limits::default().body_time(body_time, 1).stall(STALL);
        let tell = Arc::clone(&tell);
        Running::start(server().limits(limits), move |request| {
            if request.uri() == "/echo" {
                return echo(request);
            }
            // As long as ever.
            let tell = tell.lock().expect("no panic").clone();
            let mut response = Response::new(ResponseBody::upgrade(move |upgraded| {
                let _ = tell.send(upgraded.stream.read_timeout().ok().flatten());
            }));
            *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
            response
        })
    };
    let running = start(Duration::from_secs(2));
    let head = "POST /echo HTTP/1.1\r\nHost: a\r\n";
    let mut clients = Vec::new();
    for begin in [
        "Content-Length: 5\r\n\r\n",
        "Content-Length: 5\r\n\r\na",
        "Content-Length: 5000\r\n\r\n",
        "Transfer-Encoding: chunked\r\n\r\n5\r\na",
    ] {
        let mut client = running.client()?;
        client.send(format!("{head}{begin}"))?;
        clients.push((client, begin));
    }
    for (client, begin) in &mut clients {
        assert_eq!(client.answer()?.status, 408, "{begin}");
    }
    // However late this one is.
    let running = start(PATIENCE);
    let mut client = running.client()?;
    client.send(format!(
        "{head}Expect: 100-continue\r\nContent-Length: 1\r\n\r\n"
    ))?;
    assert_eq!(client.head()?.status, 100);
    client.send("a")?;
    assert_eq!(client.answer()?.text(), "POST /echo a");
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")?;
    assert_eq!(client.head()?.status, 101);
    assert_eq!(told.recv_timeout(PATIENCE), Ok(Some(STALL)));
    Ok(())
}

/// A client has no address there, and else what one of TCP has.
#[cfg(unix)]
#[test]
fn a_unix_socket_is_served() -> io::Result<()> {
    use std::os::unix::net::{UnixListener, UnixStream};

    let directory = tempfile::tempdir()?;
    let path = directory.path().join("socket");
    let server = Server::from_listener(UnixListener::bind(&path)?)?;
    let error = server.local_addr().expect_err("it has a path");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let handle = server.handle();
    let serving = thread::spawn(move || {
        server.serve(|request| match request.uri().path() {
            "/large" => Response::new(vec![b'x'; 3_000_000].into()),
            _ => Response::new(request.body().peer_addr().to_string().into()),
        })
    });
    let mut client = UnixStream::connect(&path)?;
    client.set_read_timeout(Some(PATIENCE))?;
    client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")?;
    client.write_all(b"GET /large HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    client.read_to_string(&mut text)?;
    assert!(text.contains("\r\n\r\n0.0.0.0:0HTTP/1.1 200 OK"));
    assert!(text.ends_with(&"x".repeat(3_000_000)));
    handle.drain(PATIENCE);
    serving.join().expect("no panic")
}

/// A read of a Unix socket ends behind the bytes that came with a descriptor, though more is there.
#[cfg(target_os = "linux")]
#[test]
fn what_is_behind_descriptors_of_a_unix_socket_is_read() -> io::Result<()> {
    use std::os::fd::AsFd;
    use std::os::unix::net::{UnixListener, UnixStream};

    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

    let directory = tempfile::tempdir()?;
    let path = directory.path().join("socket");
    let server = Server::from_listener(UnixListener::bind(&path)?)?
        .limits(Limits::default().head_time(PATIENCE))
        .serving(Serving::default().threads(1));
    let handle = server.handle();
    let (begin, begun) = mpsc::channel();
    let (release, released) = mpsc::channel();
    let released = Mutex::new(released);
    let serving = thread::spawn(move || {
        server.serve(move |request| {
            if request.uri() == "/blocks" {
                begin.send(()).expect("it is waited for");
                let released = released.lock().expect("no panic");
                released.recv().expect("it is released");
            }
            Response::new("a".into())
        })
    });
    let mut blocking = UnixStream::connect(&path)?;
    let mut client = UnixStream::connect(&path)?;
    client.set_read_timeout(Some(PATIENCE / 2))?;
    let mut answer = [0; 1000];
    // From its third request on, the connection is armed without a system call.
    for _ in 0..4 {
        client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")?;
        assert!(client.read(&mut answer)? > 0);
    }
    blocking.write_all(b"GET /blocks HTTP/1.1\r\nHost: a\r\n\r\n")?;
    begun.recv_timeout(PATIENCE).expect("it has begun");
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = [client.as_fd()];
    assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
    let bytes = [io::IoSlice::new(b"GET / HTT")];
    sendmsg(&client, &bytes, &mut control, SendFlags::empty())?;
    client.write_all(b"P/1.1\r\nHost: a\r\n\r\n")?;
    release.send(()).expect("it is waited for");
    assert!(client.read(&mut answer)? > 0);
    drop((client, blocking));
    handle.drain(PATIENCE);
    serving.join().expect("no panic")
}

/// What was sent before gets there, whatever the client sends meanwhile, and it is not the client that has failed.
#[test]
fn a_file_that_becomes_shorter_ends_its_connection() -> io::Result<()> {
    const HUGE: u64 = 256 << 20;
    let file = tempfile::NamedTempFile::new()?;
    file.as_file().set_len(HUGE)?;
    let path = file.path().to_owned();
    let mut running = Running::start(server(), move |_| {
        let file = std::fs::File::open(&path).expect("it is there");
        Response::new(ResponseBody::file(file).expect("a length"))
    });
    let mut client = running.client()?;
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")?;
    assert_eq!(client.head()?.header("content-length"), Some("268435456"));
    // It is not received before: so it is there when the connection ends.
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")?;
    file.as_file().set_len(100_000)?;
    let received = io::copy(&mut client.0, &mut io::sink())?;
    // Where it is copied, whole pieces of 16 KiB are.
    let least = if cfg!(target_os = "linux") {
        100_000
    } else {
        6 * (16 << 10)
    };
    assert!((least..HUGE).contains(&received), "{received}");
    // A client that goes is none of these.
    file.as_file().set_len(HUGE)?;
    let mut client = running.client()?;
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")?;
    client.head()?;
    drop(client);
    let handle = running.handle.clone();
    running.end(PATIENCE)?;
    assert_eq!(
        (handle.metrics().successful, handle.metrics().failed_bodies),
        (2, 1)
    );
    Ok(())
}

/// However many send their bodies slowly: a handler is called when its body is there.
#[test]
fn bodies_that_come_slowly_hold_no_thread() -> io::Result<()> {
    let limits = Limits::default()
        .body_time(PATIENCE, 1)
        .stall(PATIENCE)
        .idle(PATIENCE);
    let serving = Serving::default().threads(2);
    let running = Running::start(server().limits(limits).serving(serving), echo);
    let text = "b".repeat(60_000);
    let requests = [
        format!("Content-Length: 60000\r\n\r\n{text}"),
        format!("Transfer-Encoding: chunked\r\n\r\nea60\r\n{text}\r\n0\r\nT: u\r\n\r\n"),
    ];
    let mut slow = Vec::new();
    for number in 0..40 {
        let request = format!(
            "POST /{number} HTTP/1.1\r\nHost: a\r\n{}",
            requests[number % 2]
        );
        let mut client = running.client()?;
        let end = [50, request.len() - 1][number / 2 % 2];
        client.send(&request[..end])?;
        slow.push((client, request, end));
    }
    for _ in 0..10 {
        assert_eq!(running.ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n")?.0, 200);
    }
    for (number, (client, request, end)) in slow.iter_mut().enumerate() {
        client.send(&request[*end..])?;
        let expected = format!("POST /{number} {text}");
        assert!(client.answer()?.text() == expected, "{number}");
        assert!(!client.has_ended()?);
    }
    Ok(())
}

/// So long that no socket holds it.
const LONG: usize = 16 << 20;

/// With few threads, a server of long answers: bytes, a file, and readers.
fn server_of_long_answers(server: Server) -> Running {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let long: Vec<u8> = (0..LONG).map(|at| (at / 7) as u8).collect();
    file.as_file().write_all(&long).expect("there is room");
    // One waits for as long as all the others take.
    let limits = Limits::default().stall(10 * PATIENCE).idle(10 * PATIENCE);
    let server = server.limits(limits).serving(Serving::default().threads(2));
    Running::start(server, move |request| {
        let (open, long) = (std::fs::File::open(file.path()), long.clone());
        Response::new(match request.uri().path() {
            "/bytes" => long.into(),
            "/file" => ResponseBody::file(open.expect("it is there")).expect("it has a length"),
            "/chunks" => ResponseBody::reader(io::Cursor::new(long)),
            "/range" => {
                let kind = HeaderValue::from_static("a/b");
                return file_response(request, open.expect("it is there"), kind)
                    .expect("it can be read");
            }
            "/length" => ResponseBody::reader_of(LONG as u64, io::Cursor::new(long)),
            _ => "short".into(),
        })
    })
}

const LONG_ANSWERS: [&str; 4] = ["/bytes", "/file", "/chunks", "/length"];

/// However many take their answers slowly, others are answered; and each gets all of its own, and what it has asked for behind it.
#[test]
fn a_client_that_takes_its_answer_slowly_holds_no_thread() -> io::Result<()> {
    let running = server_of_long_answers(server());
    let mut slow = Vec::new();
    for number in 0..12 {
        let path = LONG_ANSWERS[number % 4];
        let mut client = running.slow_client()?;
        client.send(format!(
            "GET {path} HTTP/1.1\r\nHost: a\r\n\r\nGET /{number} HTTP/1.1\r\nHost: a\r\n\r\n\
             HEAD {path} HTTP/1.1\r\nHost: a\r\n\r\nGET /range HTTP/1.1\r\nHost: a\r\n\
             Range: bytes=7-{}\r\n\r\n",
            LONG - 8
        ))?;
        // It has begun.
        assert_eq!(client.0.fill_buf()?[0], b'H');
        slow.push((path, client));
    }
    for _ in 0..10 {
        assert_eq!(running.ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n")?.1, "short");
    }
    // None of the slow ones is done.
    while running.handle.metrics().successful < 20 {
        thread::yield_now();
    }
    assert_eq!(running.handle.metrics().successful, 20);
    // Nor is any of them looked at, though it has sent more.
    let mut quiet = 0;
    while quiet < 100 {
        let metrics = running.handle.metrics();
        let waits = metrics.waiting_threads == metrics.threads;
        quiet = if waits { quiet + 1 } else { 0 };
        thread::yield_now();
    }
    let expected: Vec<u8> = (0..LONG).map(|at| (at / 7) as u8).collect();
    for (path, client) in &mut slow {
        assert!(client.answer()?.body == expected, "{path}");
        assert_eq!(client.answer()?.text(), "short");
        client.head()?;
        let part = client.answer()?;
        assert_eq!(part.status, 206);
        assert!(part.body == expected[7..LONG - 7], "{path}");
        assert!(!client.has_ended()?);
    }
    while running.handle.metrics().successful < 80 {
        thread::yield_now();
    }
    assert_eq!(running.handle.metrics().incomplete, 0);
    Ok(())
}

/// An end waits for an answer that is taken slowly; but only for its time. What was sent of it is in the log.
#[test]
fn an_end_waits_for_a_slow_answer_within_its_time() -> io::Result<()> {
    for path in LONG_ANSWERS {
        let kept = Kept::default();
        let mut running = server_of_long_answers(server().log(kept.clone()));
        let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n");
        let (mut taking, mut stalling) = (running.slow_client()?, running.slow_client()?);
        for client in [&mut taking, &mut stalling] {
            client.send(&request)?;
            client.head()?;
        }
        running.handle.drain(PATIENCE);
        // Around each chunk are 8 bytes, which do not count; of the one that breaks off, no more than they do.
        let (around, length) = match path {
            "/chunks" => (8, LONG + LONG / (16 << 10) * 8 + 5),
            _ => (0, LONG),
        };
        taking.0.read_exact(&mut vec![0; length])?;
        assert_eq!(taking.0.read_to_end(&mut Vec::new())?, 0, "{path}");
        let begin = Instant::now();
        let ended = running.end(Duration::from_millis(100));
        assert!(begin.elapsed() < PATIENCE / 2, "{path}");
        if is_left_behind(&ended) {
            continue;
        }
        ended?;
        let mut rest = Vec::new();
        let _ = stalling.0.read_to_end(&mut rest);
        assert!(rest.len() < length, "{path}");
        let kept = kept.text();
        let lines: Vec<_> = kept.lines().collect();
        assert_eq!(lines.len(), 2, "{kept}");
        let line = format!("\"GET {path} HTTP/1.1\" 200 ");
        assert!(lines[0].contains(&format!("{line}{LONG} ")), "{kept}");
        assert!(lines[1].contains(&line), "{kept}");
        let words: Vec<_> = lines[1].rsplit(' ').collect();
        assert_eq!(words[0], "incomplete", "{kept}");
        let sent: usize = words[2].parse().expect("a length");
        let received = rest.len() - rest.len().div_ceil(16 << 10) * around;
        assert!((received..LONG).contains(&sent), "{kept}");
        assert!(words[1].parse::<f64>().expect("a time") > 0.0, "{kept}");
    }
    Ok(())
}

/// One that takes nothing is given up after the time of a stall, and one that takes a little is not.
#[cfg(target_os = "linux")]
#[test]
fn a_client_that_takes_nothing_of_its_answer_is_given_up() -> io::Result<()> {
    const STALL: Duration = Duration::from_secs(1);
    let kept = Kept::default();
    let limits = Limits::default().stall(STALL);
    let server = server().limits(limits).log(kept.clone());
    let mut running = Running::start(server, |_| Response::new(vec![0; 4 * LONG].into()));
    let (mut taking, mut stalling) = (running.slow_client()?, running.slow_client()?);
    // The time of a stall may have begun when the head is there.
    let begin = Instant::now();
    for client in [&mut taking, &mut stalling] {
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")?;
        client.head()?;
    }
    let mut taken = vec![begin];
    while running.handle.metrics().connections == 2 {
        let read = taking.0.read_exact(&mut [0; 20_000]);
        taken.push(Instant::now());
        if read.is_err() {
            break;
        }
        thread::sleep(STALL / 50);
    }
    taken.push(Instant::now());
    // The client's system says after some reads that there is room again. If they took long, this client has stalled, too.
    let mut some = taken.windows(taken.len().min(10));
    if some.any(|it| it[it.len() - 1] - it[0] > STALL / 2) {
        return Ok(());
    }
    assert!(begin.elapsed() >= STALL);
    assert_eq!(running.handle.metrics().incomplete, 1);
    // The system does not keep what it has not taken.
    let rest = stalling.0.read_to_end(&mut Vec::new());
    assert_eq!(
        rest.map_err(|it| it.kind()),
        Err(ErrorKind::ConnectionReset)
    );
    let ended = running.end(Duration::ZERO);
    if is_left_behind(&ended) {
        return Ok(());
    }
    ended?;
    let text = kept.text();
    assert_eq!(text.matches(" incomplete\n").count(), 2, "{text}");
    Ok(())
}

#[test]
fn empty_lines_do_not_keep_a_connection() -> io::Result<()> {
    let time = Duration::from_millis(300);
    let limits = Limits::default().idle(time).head_time(time);
    let serving = Serving::default().threads(1);
    let running = Running::start(server().limits(limits).serving(serving), echo);
    // One by one, and so many that there is always more to receive.
    thread::scope(|scope| {
        for lines in [1, 30_000, 30_000, 30_000, 30_000] {
            let mut client = running.client()?;
            scope.spawn(move || {
                let text = "\r\n".repeat(lines);
                let begin = Instant::now();
                while client.send(&text).is_ok() {
                    assert!(begin.elapsed() < PATIENCE, "{lines}");
                    if lines == 1 {
                        thread::sleep(time / 10);
                    }
                }
            });
        }
        Ok(())
    })
}

#[test]
fn trailers_that_are_too_long_are_refused() -> io::Result<()> {
    let running = Running::start(server(), echo);
    let mut client = running.client()?;
    let (body, trailer) = ("a".repeat(0xffff), "b".repeat(500_000));
    // It may be refused before it has come.
    let _ = client.send(format!(
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nffff\r\n{body}\r\n0\r\nT: {trailer}"
    ));
    assert_eq!(client.answer()?.status, 413);
    Ok(())
}

/// A handler that reads a part of a body answers also if the rest does not come.
#[test]
fn a_rest_that_does_not_come_changes_no_answer() -> io::Result<()> {
    let limits = Limits::default().stall(Duration::from_millis(300));
    let running = Running::start(server().limits(limits), |request| {
        let read = request.body_mut().read_exact(&mut [0; 10_000]);
        Response::new(format!("{read:?}").into())
    });
    let body = "x".repeat(70_000);
    let (_, text, has_ended) = running.ask(&format!(
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n11170\r\n{body}\r\n"
    ))?;
    assert_eq!((text.as_str(), has_ended), ("Ok(())", true));
    Ok(())
}

#[test]
fn a_line_of_the_log_is_no_longer_than_a_head_may_be() -> io::Result<()> {
    let kept = Kept::default();
    let mut running = Running::start(server().log(kept.clone()), echo);
    // Memory for a body takes as much at once.
    for _ in 0..20 {
        let mut client = running.client()?;
        let body = "x".repeat(60_000);
        client.send(format!(
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 60000\r\n\r\n{body}"
        ))?;
        client.answer()?;
        // It may be refused before it has come.
        let _ = client.send([1; 100_000]);
        assert_eq!(client.answer()?.status, 400);
    }
    running.end(PATIENCE)?;
    let text = kept.text();
    assert_eq!(text.lines().count(), 40);
    let longest = text.lines().map(str::len).max();
    assert!(longest < Some(4 * (16 << 10) + 100), "{longest:?}");
    Ok(())
}

/// It ends in its time, and says of each that it is not whole.
#[test]
fn an_end_cuts_off_answers_that_nobody_takes() -> io::Result<()> {
    let kept = Kept::default();
    let server = server().log(kept.clone());
    let mut running = Running::start(server, |_| Response::new(vec![0; 64 << 20].into()));
    let mut clients = Vec::new();
    for _ in 0..10 {
        let mut client = running.slow_client()?;
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")?;
        client.head()?;
        clients.push(client);
    }
    let begin = Instant::now();
    let ended = running.end(Duration::from_millis(100));
    assert!(begin.elapsed() < PATIENCE / 2);
    if is_left_behind(&ended) {
        return Ok(());
    }
    ended?;
    let metrics = running.handle.metrics();
    assert_eq!((metrics.incomplete, metrics.connections), (10, 0));
    for client in &mut clients {
        let received = io::copy(&mut client.0, &mut io::sink());
        assert!(received.is_err() || received.is_ok_and(|it| it < 64 << 20));
    }
    let kept = kept.text();
    let broken = kept.lines().filter(|line| line.ends_with(" incomplete"));
    assert_eq!(broken.count(), 10, "{kept}");
    Ok(())
}

/// Also one that a thread goes on with when the end comes.
#[test]
fn an_end_counts_and_logs_each_answer_that_it_cuts_off() -> io::Result<()> {
    const LENGTH: usize = 256 << 20;
    for _ in 0..20 {
        let kept = Kept::default();
        let server = server().log(kept.clone());
        let mut running = Running::start(server, |_| Response::new(vec![0; LENGTH].into()));
        let mut taking = Vec::new();
        for _ in 0..4 {
            let mut client = running.slow_client()?;
            client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")?;
            client.head()?;
            taking.push(thread::spawn(move || {
                let _ = io::copy(&mut client.0, &mut io::sink());
            }));
        }
        let handle = running.handle.clone();
        let ended = running.end(Duration::ZERO);
        for thread in taking {
            thread.join().expect("no panic");
        }
        if is_left_behind(&ended) {
            continue;
        }
        ended?;
        assert_eq!(handle.metrics().successful, 4);
        assert_eq!(kept.text().lines().count(), 4);
    }
    Ok(())
}

/// A client that goes, or takes nothing, in the middle of an answer.
#[test]
fn an_answer_that_breaks_off_is_logged_as_such() -> io::Result<()> {
    const LENGTH: usize = 64 << 20;
    let kept = Kept::default();
    let file = tempfile::NamedTempFile::new()?;
    file.as_file().set_len(LENGTH as u64)?;
    let path = file.path().to_owned();
    let mut running = Running::start(server().log(kept.clone()), move |request| {
        let body = match request.uri().path() {
            "/file" => ResponseBody::file(std::fs::File::open(&path).expect("it is there")),
            "/chunks" => Ok(ResponseBody::reader(io::repeat(1).take(LENGTH as u64))),
            _ => Ok(vec![0; LENGTH].into()),
        };
        Response::new(body.expect("it has a length"))
    });
    for path in ["/file", "/chunks", "/bytes"] {
        let mut client = running.client()?;
        client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"))?;
        client.0.read_exact(&mut vec![0; 1 << 20])?;
    }
    while running.handle.metrics().incomplete < 3 {
        thread::yield_now();
    }
    assert_eq!(running.handle.metrics().successful, 3);
    running.end(PATIENCE)?;
    let kept = kept.text();
    assert_eq!(kept.lines().count(), 3, "{kept}");
    for line in kept.lines() {
        let words: Vec<_> = line.rsplit(' ').collect();
        assert_eq!((words[0], words[3]), ("incomplete", "200"), "{line}");
        let length: usize = words[2].parse().expect("a length");
        assert!((500_000..LENGTH).contains(&length), "{line}");
    }
    Ok(())
}

#[test]
fn what_takes_long_is_known_by_its_path() -> io::Result<()> {
    let (begin, begun) = mpsc::channel();
    let begin = Mutex::new(begin);
    let running = Running::start(server(), move |request| {
        if request.uri().path() == "/blocks" {
            let (release, released) = mpsc::channel::<()>();
            begin
                .lock()
                .expect("no panic")
                .send(release)
                .expect("it is waited for");
            let _ = released.recv_timeout(PATIENCE);
        }
        Response::new("a".into())
    });
    let mut client = running.client()?;
    client.send("GET /blocks?secret HTTP/1.1\r\nHost: a\r\n\r\n")?;
    let release = begun.recv_timeout(PATIENCE).expect("it has begun");
    running.ask("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")?;
    let slow = running.handle.slow(Duration::ZERO);
    assert!(slow.iter().any(|it| it.1 == "GET /blocks"), "{slow:?}");
    assert!(running.handle.slow(PATIENCE).is_empty());
    drop(release);
    client.answer()?;
    while !running.handle.slow(Duration::ZERO).is_empty() {
        thread::yield_now();
    }
    Ok(())
}

/// It says that its end has come, and waits to be released.
struct Waits(mpsc::Sender<()>, mpsc::Receiver<()>);

impl Read for Waits {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        let _ = self.0.send(());
        let _ = self.1.recv_timeout(PATIENCE);
        Ok(0)
    }
}

/// What an answer waited for its client is no time of a thread's.
#[test]
fn what_takes_long_does_so_since_a_thread_is_with_it() -> io::Result<()> {
    let (begin, begun) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    let waits = Mutex::new(Some(Waits(begin, released)));
    let running = Running::start(server(), move |_| {
        let waits = waits.lock().expect("no panic").take();
        let waits = waits.expect("one request");
        Response::new(ResponseBody::reader(
            io::repeat(b'a').take(LONG as u64).chain(waits),
        ))
    });
    let mut client = running.slow_client()?;
    client.send("GET /long HTTP/1.1\r\nHost: a\r\n\r\n")?;
    client.0.fill_buf()?;
    while !running.handle.slow(Duration::ZERO).is_empty() {
        thread::yield_now();
    }
    thread::sleep(Duration::from_millis(50));
    // From here on the client takes all.
    let begin = Instant::now();
    let taking = thread::spawn(move || client.answer().map(|it| it.body.len()));
    begun.recv_timeout(PATIENCE).expect("it is taken");
    let (took, _) = running.handle.slow(Duration::ZERO)[0];
    assert!(took <= begin.elapsed(), "{took:?}");
    drop(release);
    assert_eq!(taking.join().expect("no panic")?, LONG);
    Ok(())
}

/// Valid and invalid requests, each in two parts, wherever it is cut: the answer is the same.
#[test]
fn where_a_request_is_cut_does_not_matter() -> io::Result<()> {
    let running = Running::start(server().limits(Limits::default().body(1000)), echo);
    for (request, status) in [
        ("GET /a?b=c HTTP/1.1\r\nHost: a\r\nAccept: */*\r\n\r\n", 200),
        ("\r\n\r\nGET / HTTP/1.1\r\nHost: a:80\r\n\r\n", 200),
        ("GET http://a/b HTTP/1.1\r\nHost: [::1]:80\r\n\r\n", 200),
        ("OPTIONS * HTTP/1.1\r\nHost:\r\nX:\r\n\r\n", 200),
        (
            "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\na\r\nb",
            200,
        ),
        (
            "PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n0A\r\n0123456789\r\n000\r\nT: u\r\n\r\n",
            200,
        ),
        ("GET / HTTP/1.1\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: a\r\nA : b\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: a\r\nA: b\r\n c\r\n\r\n", 400),
        ("GET / HTTP/1.1\nHost: a\n\n", 400),
        ("GET / HTTP/2.0\r\nHost: a\r\n\r\n", 505),
        (
            "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: +4\r\n\r\nabcd",
            400,
        ),
        (
            "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 1001\r\n\r\n",
            413,
        ),
        (
            "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            400,
        ),
        (
            "PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n",
            400,
        ),
        (
            "PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3 \r\nabc\r\n0\r\n\r\n",
            400,
        ),
        (
            "PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3e9\r\n",
            413,
        ),
        (
            "PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n3e8\r\n",
            413,
        ),
        (
            "PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
            501,
        ),
    ] {
        let mut same = None;
        let mut client = running.client()?;
        for cut in 1..request.len() {
            client.send(&request[..cut])?;
            // A refusal may come before the second part.
            let _ = client.send(&request[cut..]);
            let answer = client.answer()?;
            assert_eq!(answer.status, status, "{request:?} at {cut}");
            let text = same.get_or_insert(answer.text()).clone();
            assert_eq!(answer.text(), text, "{request:?} at {cut}");
            if status != 200 {
                client = running.client()?;
            }
        }
    }
    Ok(())
}

/// What signals do to a process.
#[cfg(unix)]
mod signals {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, Stdio};

    const CHILD: &str = "SOCKNOTIFY_HTTP_SIGNALS_CHILD";

    /// A process that runs one of the tests below.
    fn child(test: &str) -> Command {
        let program = std::env::current_exe().expect("it has a path");
        let mut command = Command::new(program);
        command.args(["--exact", test, "--ignored", "--nocapture"]);
        command.env(CHILD, "yes");
        command
    }

    #[test]
    fn after_the_end_of_the_last_server_signals_end_the_process() -> io::Result<()> {
        let mut child = child("signals::a_process_that_serves")
            .stdout(Stdio::piped())
            .spawn()?;
        let mut lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let mut wait_for = |line: &str| lines.any(|it| it.is_ok_and(|it| it.ends_with(line)));
        let id = child.id().to_string();
        let terminate = || Command::new("kill").args(["-TERM", &id]).status();
        assert!(wait_for("one has ended"));
        assert!(terminate()?.success());
        assert!(wait_for("both have ended"));
        assert!(terminate()?.success());
        let begin = Instant::now();
        while child.try_wait()?.is_none() && begin.elapsed() < PATIENCE {
            thread::sleep(Duration::from_millis(10));
        }
        let _ = child.kill();
        assert_eq!(child.wait()?.signal(), Some(15));
        Ok(())
    }

    /// Serves twice, and does something else then.
    #[test]
    #[ignore = "it is the child of the other one"]
    fn a_process_that_serves() -> io::Result<()> {
        if std::env::var_os(CHILD).is_none() {
            return Ok(());
        }
        let (one, other) = (server(), server());
        one.end_on_signals(PATIENCE)?;
        other.end_on_signals(PATIENCE)?;
        one.handle().drain(PATIENCE);
        one.serve(echo)?;
        println!("one has ended");
        other.serve(echo)?;
        println!("both have ended");
        loop {
            thread::park();
        }
    }

    /// A stop also interrupts calls of the clients in other tests.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_body_goes_on_after_a_stop() -> io::Result<()> {
        let child = child("signals::a_process_that_is_stopped").output()?;
        assert!(child.status.success(), "{child:?}");
        Ok(())
    }

    /// What stops a process and continues it breaks no body off.
    #[cfg(target_os = "linux")]
    #[test]
    #[ignore = "it is the child of the other one"]
    fn a_process_that_is_stopped() -> io::Result<()> {
        if std::env::var_os(CHILD).is_none() {
            return Ok(());
        }
        let (begin, begun) = mpsc::channel();
        let begin = Mutex::new(begin);
        // However slow the machine is.
        let server = server().limits(Limits::default().body_time(PATIENCE, 1));
        let running = Running::start(server, move |request| {
            let _ = begin.lock().expect("no panic").send(());
            echo(request)
        });
        let text = "a".repeat(0x20000);
        for (framing, end) in [
            ("Content-Length: 131072\r\n\r\n", ""),
            (
                "Transfer-Encoding: chunked\r\n\r\n20000\r\n",
                "\r\n0\r\n\r\n",
            ),
        ] {
            let mut client = running.client()?;
            client.send(format!("POST / HTTP/1.1\r\nHost: a\r\n{framing}"))?;
            begun.recv_timeout(PATIENCE).expect("it has begun");
            for _ in 0..3 {
                // Meanwhile it waits for the body.
                thread::sleep(Duration::from_millis(50));
                let stopped = Command::new("sh")
                    .args(["-c", "kill -STOP $0; kill -CONT $0"])
                    .arg(std::process::id().to_string())
                    .status()?;
                assert!(stopped.success());
            }
            client.send(format!("{text}{end}"))?;
            let expected = format!("POST / {text}");
            assert!(client.answer()?.text() == expected, "{framing}");
        }
        Ok(())
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn signals_take_one_thread_for_all_servers() -> io::Result<()> {
        assert!(
            child("signals::a_process_of_many_servers")
                .status()?
                .success()
        );
        Ok(())
    }

    #[cfg(target_os = "linux")]
    #[test]
    #[ignore = "it is the child of the other one"]
    fn a_process_of_many_servers() -> io::Result<()> {
        if std::env::var_os(CHILD).is_none() {
            return Ok(());
        }
        let count = |what: &str| Ok::<_, io::Error>(std::fs::read_dir(what)?.count());
        let counts = || Ok::<_, io::Error>((count("/proc/self/task")?, count("/proc/self/fd")?));
        let servers = || (0..20).map(|_| server()).collect::<Vec<_>>();
        let before = counts()?;
        let first = servers();
        let (threads, descriptors) = counts()?;
        let each = descriptors - before.1;
        // The thread, and what wakes it.
        first[0].end_on_signals(PATIENCE)?;
        let (_, with_signals) = counts()?;
        let own = with_signals - descriptors;
        assert_eq!(counts()?.0, threads + 1);
        for server in &first {
            server.end_on_signals(PATIENCE)?;
        }
        assert_eq!(counts()?, (threads + 1, with_signals));
        // Those that are gone keep nothing, and stop no signal from reaching others.
        drop(first);
        assert_eq!(counts()?, (before.0 + 1, before.1 + own));
        let second = servers();
        for server in &second {
            server.end_on_signals(PATIENCE)?;
        }
        assert_eq!(counts()?, (threads + 1, before.1 + own + each));
        let serve = |server: Server| thread::spawn(move || server.serve(echo));
        let serving: Vec<_> = second.into_iter().map(serve).collect();
        let id = std::process::id().to_string();
        assert!(
            Command::new("kill")
                .args(["-TERM", &id])
                .status()?
                .success()
        );
        for thread in serving {
            thread.join().expect("no panic")?;
        }
        Ok(())
    }
}

/// Odd requests, the statuses of their answers, and whether the connection is kept. `~` stands for `POST / HTTP/1.1`, a host and the
/// header of chunks.
#[test]
fn odd_requests_have_the_answer_that_the_table_says() -> io::Result<()> {
    const KEPT: bool = true;
    const CLOSED: bool = false;
    let table: &[(&str, &[u16], bool)] = &[
        // Lines.
        ("\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", &[200], KEPT),
        ("GET / HTTP/1.1\nHost: a\n\n", &[400], CLOSED),
        ("GET / HTTP/1.1\r\nHost: a\r\n\n", &[400], CLOSED),
        ("GET / HTTP/1.1 \r\nHost: a\r\n\r\n", &[400], CLOSED),
        ("GET\t/\tHTTP/1.1\r\nHost: a\r\n\r\n", &[400], CLOSED),
        ("GET / \r\n\r\n", &[400], CLOSED),
        // Versions.
        ("GET / HTTP/1.0\r\n\r\n", &[200], CLOSED),
        ("GET / HTTP/1.9\r\nHost: a\r\n\r\n", &[505], CLOSED),
        ("GET / HTTP/1.10\r\nHost: a\r\n\r\n", &[400], CLOSED),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &[505], CLOSED),
        ("GET / http/1.1\r\nHost: a\r\n\r\n", &[400], CLOSED),
        // Methods.
        ("get / HTTP/1.1\r\nHost: a\r\n\r\n", &[200], KEPT),
        ("G:T / HTTP/1.1\r\nHost: a\r\n\r\n", &[400], CLOSED),
        ("CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", &[501], CLOSED),
        ("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", &[200], KEPT),
        (
            "BASELINE-CONTROL-12345678901234567890 / HTTP/1.1\r\nHost: a\r\n\r\n",
            &[200],
            KEPT,
        ),
        // Targets and hosts.
        ("GET http://b/ HTTP/1.1\r\nHost: a\r\n\r\n", &[200], KEPT),
        (
            "GET http://u:p@a/ HTTP/1.1\r\nHost: a\r\n\r\n",
            &[400],
            CLOSED,
        ),
        ("GET a:80 HTTP/1.1\r\nHost: a\r\n\r\n", &[400], CLOSED),
        ("GET /%zz HTTP/1.1\r\nHost: a\r\n\r\n", &[200], KEPT),
        ("GET /a#b HTTP/1.1\r\nHost: a\r\n\r\n", &[400], CLOSED),
        ("GET /?\"a\" HTTP/1.1\r\nHost: a\r\n\r\n", &[400], CLOSED),
        ("GET / HTTP/1.1\r\nHost:\r\n\r\n", &[200], KEPT),
        ("GET / HTTP/1.1\r\nHost: u@a\r\n\r\n", &[400], CLOSED),
        ("GET / HTTP/1.1\r\nHost: a:b\r\n\r\n", &[400], CLOSED),
        ("GET / HTTP/1.1\r\nHost: [::1]:80\r\n\r\n", &[200], KEPT),
        (
            "GET http://a:b/ HTTP/1.1\r\nHost: a\r\n\r\n",
            &[400],
            CLOSED,
        ),
        ("GET / HTTP/1.1\r\nHost: a, b\r\n\r\n", &[400], CLOSED),
        (
            "GET / HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n",
            &[400],
            CLOSED,
        ),
        // Headers.
        ("GET / HTTP/1.1\r\nHost: a\r\nX_Y:\r\n\r\n", &[200], KEPT),
        ("GET / HTTP/1.1\r\nHost: a\r\nX(: b\r\n\r\n", &[400], CLOSED),
        (
            "GET / HTTP/1.1\r\nHost: a\r\nX: b\x07\r\n\r\n",
            &[400],
            CLOSED,
        ),
        (
            "GET / HTTP/1.1\r\nHost: a\r\nX: b\rc\r\n\r\n",
            &[400],
            CLOSED,
        ),
        // Lengths and codings. What is behind them is another request, or is not.
        (
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length:\t03\t\r\n\r\nabcGET / HTTP/1.1\r\nHost: a\r\n\r\n",
            &[200, 200],
            KEPT,
        ),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3, 3\r\n\r\nabcGET / HTTP/1.1\r\nHost: a\r\n\r\n",
            &[400],
            CLOSED,
        ),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1048577\r\n\r\n",
            &[413],
            CLOSED,
        ),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:\tChunked\r\n\r\n0\r\n\r\n",
            &[200],
            KEPT,
        ),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked,\r\n\r\n0\r\n\r\n",
            &[400],
            CLOSED,
        ),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
            &[501],
            CLOSED,
        ),
        // Chunks.
        (
            "~3;a=\"b\"\r\nabc\r\n0\r\nX: y\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
            &[200, 200],
            KEPT,
        ),
        ("~3 \r\nabc\r\n0\r\n\r\n", &[400], CLOSED),
        ("~3\r\nabcd\r\n0\r\n\r\n", &[400], CLOSED),
        ("~3\nabc\n0\n\n", &[400], CLOSED),
        ("~3\r\nabc\r\n0\r\nX : y\r\n\r\n", &[400], CLOSED),
        (
            "~0\r\nContent-Length: 5\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
            &[200, 200],
            KEPT,
        ),
        ("~100001\r\n", &[413], CLOSED),
        // Connections and expectations.
        (
            "GET / HTTP/1.1\r\nHost: a\r\nConnection: closed\r\n\r\n",
            &[200],
            KEPT,
        ),
        (
            "GET / HTTP/1.1\r\nHost: a\r\nConnection: ,close,\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
            &[200],
            CLOSED,
        ),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\nabc",
            &[200],
            KEPT,
        ),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nExpect: x\r\nContent-Length: 3\r\n\r\nabc",
            &[417],
            CLOSED,
        ),
    ];
    let running = Running::start(server(), echo);
    let chunked = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    // Whole, and byte by byte.
    for size in [usize::MAX, 1] {
        for (request, statuses, is_kept) in table {
            let mut client = running.client()?;
            for piece in request.replacen('~', chunked, 1).as_bytes().chunks(size) {
                // It may be refused before it has come.
                let _ = client.send(piece);
            }
            for status in *statuses {
                let mut answer = client.answer()?;
                if answer.status == 100 {
                    answer = client.answer()?;
                }
                assert_eq!(answer.status, *status, "{request:?} in {size}");
            }
            assert_eq!(!client.has_ended()?, *is_kept, "{request:?} in {size}");
        }
    }
    Ok(())
}

/// The statuses of the answers to this, when it comes in pieces of each of these sizes.
fn in_pieces(running: &Running, request: &str, sizes: &[usize]) -> io::Result<Vec<u16>> {
    let mut statuses = Vec::new();
    for &size in sizes {
        let mut client = running.client()?;
        let mut writer = client.0.get_ref().try_clone()?;
        let text = request.to_owned();
        // It may be refused before it has come.
        let sending = thread::spawn(move || {
            for piece in text.as_bytes().chunks(size) {
                if writer.write_all(piece).is_err() {
                    break;
                }
            }
        });
        statuses.push(client.answer()?.status);
        drop(client);
        sending.join().expect("no panic");
    }
    Ok(statuses)
}

#[test]
fn what_is_too_long_is_refused_however_it_comes() -> io::Result<()> {
    let running = Running::start(server(), echo);
    let line = |method: &str| format!("{method} / HTTP/1.1\r\nHost: a\r\n");
    let trailers = |length: usize| {
        let head = line("POST") + "Transfer-Encoding: chunked\r\n\r\n";
        format!("{head}0\r\nX: {}\r\n\r\n", "y".repeat(length))
    };
    for (request, status) in [
        (line(&"A".repeat(15_000)) + "\r\n", 414),
        // What is wrong is behind the limit.
        (format!("GET /{}\0", "a".repeat(15_000)), 414),
        (format!("{}X: {}\0", line("GET"), "y".repeat(20_000)), 431),
        (trailers(20_000), 413),
        (trailers(82_000), 413),
        (trailers(200_000), 413),
    ] {
        let statuses = in_pieces(&running, &request, &[1_000_000, 500])?;
        assert_eq!(statuses, [status, status], "{}", request.len());
    }
    Ok(())
}
