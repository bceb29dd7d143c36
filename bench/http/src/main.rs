//! The same service with several libraries: `http-servers KIND ADDRESS DATABASE`.
//!
//! `/nothing` answers at once, `/sleep` blocks its thread for 0.3 ms, `/compute` computes for as long, `/row` reads a row of SQLite.

use std::cell::RefCell;
use std::error::Error;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{env, io, thread};

use axum::Router;
use axum::extract::Request;
use http_body_util::Full;
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use may_minihttp::{HttpService, HttpServiceFactory};
use rusqlite::{Connection, OpenFlags};
use socknotify::owned::{Event, Interest, Port, Serving};

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

/// What a program does that knows its clients: it looks for the end of a head, and takes one call's bytes for whole.
fn by_hand(address: &str) -> io::Result<()> {
    const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
    let port = Port::<TcpStream>::new()?;
    let listener = TcpListener::bind(address)?;
    port.listen(listener, Interest::IN, |stream, _| stream)?;
    port.serve(Serving::default(), |worker, event| {
        let Event::Ready(mut stream, _) = event else {
            return;
        };
        let mut bytes = [0; 4096];
        match stream.read(&mut bytes) {
            Ok(length) if bytes[..length].ends_with(b"\r\n\r\n") => {
                if stream.write_all(ANSWER).is_err() {
                    return;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            _ => return,
        }
        worker.arm(stream, Interest::IN);
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
