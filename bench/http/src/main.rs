//! The same service with several libraries: `http-servers KIND ADDRESS DATABASE`.
//!
//! `/nothing` answers at once, `/sleep` blocks its thread for 0.3 ms, `/compute` computes for as long, `/row` reads a row of SQLite.

use std::cell::RefCell;
use std::error::Error;
use std::io::Write;
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use std::{env, io, thread};

use axum::Router;
use axum::extract::Request;
use http_body_util::Full;
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use may_minihttp::{HttpService, HttpServiceFactory};
use rusqlite::{Connection, OpenFlags};
use socknotify::owned::{BorrowedSocket, Event, Input, Interest, Limited, Port, Serving, Source};

const ROWS: u64 = 100_000;
const BLOCKED: Duration = Duration::from_micros(300);
/// Of those servers whose threads are as many as somebody says: one for each client of the comparison.
const THREADS: usize = 64;

/// A database, once.
fn make(path: &str) -> rusqlite::Result<()> {
    let mut database = Connection::open(path)?;
    database.execute_batch("CREATE TABLE t(id INTEGER PRIMARY KEY, name TEXT, note TEXT)")?;
    let transaction = database.transaction()?;
    for id in 0..ROWS {
        let row = (id, format!("name {id}"), "x".repeat(100));
        transaction.execute("INSERT INTO t VALUES (?, ?, ?)", row)?;
    }
    transaction.commit()
}

/// A row by chance. Each thread has a connection of its own.
fn row() -> rusqlite::Result<String> {
    thread_local!(static DATABASE: RefCell<Option<Connection>> = const { RefCell::new(None) });
    DATABASE.with_borrow_mut(|database| {
        if database.is_none() {
            let path = env::args().nth(3).expect("a database");
            let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
            *database = Some(Connection::open_with_flags(path, flags)?);
        }
        let database = database.as_ref().expect("it is open");
        let mut row = database.prepare_cached("SELECT name, note FROM t WHERE id = ?")?;
        row.query_row([fastrand::u64(..ROWS)], |row| {
            Ok(row.get::<_, String>(0)? + " " + &row.get::<_, String>(1)?)
        })
    })
}

fn answer(path: &str) -> String {
    match path {
        "/row" => row().expect("it is there"),
        "/sleep" => {
            thread::sleep(BLOCKED);
            "ok".into()
        }
        "/compute" => {
            let begin = Instant::now();
            while begin.elapsed() < BLOCKED {}
            "ok".into()
        }
        _ => "ok".into(),
    }
}

#[tokio::main]
async fn hyper(address: &str) -> io::Result<()> {
    let listener = tokio::net::TcpListener::bind(address).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        let answer = |request: hyper::Request<hyper::body::Incoming>| async move {
            let body = Full::<Bytes>::from(answer(request.uri().path()));
            let plain = ("content-type", "text/plain; charset=utf-8");
            hyper::Response::builder()
                .header(plain.0, plain.1)
                .body(body)
        };
        tokio::spawn(async move {
            let service = hyper::service::service_fn(answer);
            let connection = hyper::server::conn::http1::Builder::new();
            // A client that has gone is no error.
            let _ = connection
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

/// A client of `by_hand`.
struct Client(TcpStream, Input);

impl Source for Client {
    fn socket(&self) -> BorrowedSocket<'_> {
        self.0.socket()
    }
}

/// The most bytes of a head, and the most headers; how long a client may send or take nothing.
const HEAD: usize = 16 << 10;
const HEADERS: usize = 100;
const IDLE: Duration = Duration::from_secs(60);

fn append(out: &mut Vec<u8>, parts: &[&str]) {
    for part in parts {
        out.extend_from_slice(part.as_bytes());
    }
}

fn refuse(out: &mut Vec<u8>, status: &str) {
    append(
        out,
        &[
            "HTTP/1.1 ",
            status,
            "\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
        ],
    );
}

/// With the date of this second.
fn on_date(call: impl FnOnce(&str)) {
    thread_local!(static DATE: RefCell<(u64, String)> = const { RefCell::new((0, String::new())) });
    DATE.with_borrow_mut(|(second, text)| {
        let now = SystemTime::now();
        let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        if since.as_secs() != *second {
            (*second, *text) = (since.as_secs(), httpdate::fmt_http_date(now));
        }
        call(text);
    });
}

/// Answer the requests that are whole. True if the connection ends.
fn answer_all(input: &mut Input, out: &mut Vec<u8>) -> bool {
    loop {
        let mut headers = [const { MaybeUninit::uninit() }; HEADERS];
        let mut request = httparse::Request::new(&mut []);
        let length = match request.parse_with_uninit_headers(input.bytes(), &mut headers) {
            Ok(httparse::Status::Complete(length)) if length <= HEAD => length,
            Ok(httparse::Status::Partial) if input.bytes().len() <= HEAD => return false,
            Ok(_) | Err(httparse::Error::TooManyHeaders) => {
                refuse(out, "431 Request Header Fields Too Large");
                return true;
            }
            Err(_) => {
                refuse(out, "400 Bad Request");
                return true;
            }
        };
        let (mut hosts, mut has_body, mut closes) = (0, false, request.version != Some(1));
        for header in request.headers.iter() {
            let is = |name: &str| header.name.eq_ignore_ascii_case(name);
            hosts += usize::from(is("host"));
            has_body |= is("content-length") || is("transfer-encoding");
            closes |= is("connection") && header.value.eq_ignore_ascii_case(b"close");
        }
        if hosts != 1 || has_body {
            refuse(out, "400 Bad Request");
            return true;
        }
        let body = answer(request.path.unwrap_or_default());
        append(
            out,
            &["HTTP/1.1 200 OK\r\ncontent-type: text/plain; charset=utf-8\r\n"],
        );
        if closes {
            append(out, &["connection: close\r\n"]);
        }
        let mut digits = itoa::Buffer::new();
        append(
            out,
            &["content-length: ", digits.format(body.len()), "\r\ndate: "],
        );
        on_date(|date| append(out, &[date, "\r\n\r\n", &body]));
        input.take(length);
        if closes {
            return true;
        }
    }
}

/// What one writes on `Port::serve` for these requests alone, and with care: heads are parsed, and have a limit, as clients have times;
/// requests may come one behind the other. Bodies are refused.
fn by_hand(address: &str) -> io::Result<()> {
    let port = Port::<Client>::new()?;
    let idle = Interest::IN.within(IDLE);
    let client = |stream: TcpStream, _| {
        // An answer does not wait for the one before to be acknowledged.
        let _ = stream.set_nodelay(true);
        Client(stream, Input::new(HEAD))
    };
    port.listen(TcpListener::bind(address)?, idle, client)?;
    port.serve(Serving::default(), |worker, event| {
        let Event::Ready(mut held, _) = event else {
            return;
        };
        let (Client(stream, input), readiness) = held.split();
        // A short read empties the socket: then it is armed again without a system call.
        let Ok(true) = input.receive(readiness.io(&*stream)) else {
            return;
        };
        let mut out = Vec::with_capacity(512);
        let ends = answer_all(input, &mut out);
        if Limited::within(&*stream, IDLE).write_all(&out).is_err() {
            return;
        }
        match ends {
            true => worker.linger(held, Duration::from_secs(2)),
            false => worker.arm(held, idle),
        }
    })?;
    Ok(())
}

#[derive(Clone)]
struct May {
    /// It sleeps as a coroutine, and blocks no thread.
    parks: bool,
}

impl HttpService for May {
    fn call(
        &mut self,
        request: may_minihttp::Request<'_, '_, '_>,
        response: &mut may_minihttp::Response<'_>,
    ) -> io::Result<()> {
        if self.parks && request.path() == "/sleep" {
            may::coroutine::sleep(BLOCKED);
            response.body("ok");
        } else {
            response.body_vec(answer(request.path()).into_bytes());
        }
        Ok(())
    }
}

impl HttpServiceFactory for May {
    type Service = May;

    fn new_service(&self, _: usize) -> May {
        self.clone()
    }
}

#[tokio::main]
async fn axum(address: &str, blocks: bool) -> io::Result<()> {
    let direct = |request: Request| async move { answer(request.uri().path()) };
    let blocking = |request: Request| async move {
        let path = request.uri().path().to_owned();
        let answered = tokio::task::spawn_blocking(move || answer(&path)).await;
        answered.expect("no panic")
    };
    let service = match blocks {
        true => Router::new().fallback(blocking),
        false => Router::new().fallback(direct),
    };
    axum::serve(tokio::net::TcpListener::bind(address).await?, service).await
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = env::args().skip(1).collect();
    let [kind, address, database] = &arguments[..] else {
        return Err("http-servers KIND ADDRESS DATABASE".into());
    };
    if !Path::new(database).exists() {
        make(database)?;
    }
    match &kind[..] {
        "socknotify" => socknotify_http::Server::bind(address)?
            .serve(|request| socknotify_http::Response::new(answer(request.uri().path()).into()))?,
        "by-hand" => by_hand(address)?,
        "hyper" => hyper(address)?,
        "axum" => axum(address, false)?,
        "axum-spawn-blocking" => axum(address, true)?,
        "tiny_http" => {
            let server =
                Arc::new(tiny_http::Server::http(address).map_err(|error| error.to_string())?);
            let serve = || {
                let server = Arc::clone(&server);
                thread::spawn(move || {
                    for request in server.incoming_requests() {
                        let answer = answer(request.url());
                        // A client that has gone is no error.
                        let _ = request.respond(tiny_http::Response::from_string(answer));
                    }
                })
            };
            let threads: Vec<_> = std::iter::repeat_with(serve).take(THREADS).collect();
            threads
                .into_iter()
                .for_each(|it| it.join().expect("no panic"));
        }
        "rouille" => {
            let serve =
                |request: &rouille::Request| rouille::Response::text(answer(&request.url()));
            let server = rouille::Server::new(address, serve).map_err(|error| error.to_string())?;
            server.pool_size(THREADS).run();
        }
        "may_minihttp" | "may_minihttp-parks" => {
            may::config().set_workers(thread::available_parallelism()?.get());
            let parks = kind.ends_with("parks");
            let server = May { parks }.start(address)?;
            server.join().map_err(|_| "it has panicked")?;
        }
        other => return Err(format!("no such server: {other}").into()),
    }
    Ok(())
}
