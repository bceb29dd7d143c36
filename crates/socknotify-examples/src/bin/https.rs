//! An HTTPS service that keeps notes in SQLite: each request waits for the database, on a thread that nobody has to count.
//!
//! - Methods and paths by a `match`. Each thread has a connection to the database of its own.
//! - Limits of bytes, time and connections, an access log, keep-alive: `socknotify-http` has them.
//! - At SIGTERM and Ctrl-C it answers what has come, and ends within ten seconds.
//! - Handlers that take long are named, with the path of their request.
//!
//! Run it: `cargo run -p socknotify-examples --features tls --bin https 127.0.0.1:7443 CERTIFICATE.pem KEY.pem NOTES.db`, and try
//! `curl --cacert CERTIFICATE.pem -d 'buy milk' https://localhost:7443/notes`, and `…/notes/1`.
//!
//! ```toml
//! [dependencies]
//! rusqlite = { version = "0.37", features = ["bundled"] }
//! socknotify-http = { version = "0.1", features = ["tls"] }
//! ```

use std::cell::RefCell;
use std::error::Error;
use std::io::{ErrorKind, Read};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use std::{env, io};

use rusqlite::{Connection, OptionalExtension, Row};
use socknotify_http::http::header::LOCATION;
use socknotify_http::http::{HeaderValue, Method, StatusCode};
use socknotify_http::rustls::ServerConfig;
use socknotify_http::rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use socknotify_http::{Limits, Request, Response, ResponseBody, Server, Serving};

const SLOW: Duration = Duration::from_millis(500);
const SCHEMA: &str = "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;
    CREATE TABLE IF NOT EXISTS notes (id INTEGER PRIMARY KEY AUTOINCREMENT, text TEXT NOT NULL)";

thread_local! {
    static DATABASE: RefCell<Option<Connection>> = const { RefCell::new(None) };
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = env::args().skip(1).collect();
    let [address, certificate, key, database] = <[_; 4]>::try_from(arguments)
        .map_err(|_| "https ADDRESS CERTIFICATE.pem KEY.pem DATABASE")?;
    let chain = CertificateDer::pem_file_iter(certificate)?.collect::<Result<_, _>>()?;
    let key = PrivateKeyDer::from_pem_file(key)?;
    let config = ServerConfig::builder().with_no_client_auth();
    let config = config.with_single_cert(chain, key)?;
    open(Path::new(&database))?.execute_batch(SCHEMA)?;

    let server = Server::bind(address)?.tls(Arc::new(config));
    println!("listening on {}", server.local_addr()?);
    server.end_on_signals(Duration::from_secs(10))?;
    let handle = server.handle();
    let serving = Serving::default().on_slow(SLOW, move |_| {
        for (time, request) in handle.slow(SLOW) {
            eprintln!("slow: {request} for {time:?}");
        }
    });
    let server = server.serving(serving).log(io::stderr());
    server
        .limits(Limits::default().body(64 << 10))
        .serve(move |request| {
            DATABASE.with_borrow_mut(|mine| {
                let mut answer = || {
                    let database = match mine {
                        Some(database) => database,
                        None => mine.insert(open(Path::new(&database))?),
                    };
                    answer(database, request)
                };
                answer().unwrap_or_else(|error| {
                    eprintln!("{error}");
                    respond(StatusCode::INTERNAL_SERVER_ERROR, "it failed\n")
                })
            })
        })?;
    Ok(())
}

fn open(path: &Path) -> rusqlite::Result<Connection> {
    let database = Connection::open(path)?;
    database.busy_timeout(Duration::from_secs(5))?;
    Ok(database)
}

fn answer(database: &Connection, request: &mut Request<'_>) -> Result<Response, Box<dyn Error>> {
    let path = request.uri().path().to_owned();
    let parts: Vec<_> = path.split('/').skip(1).collect();
    let text = |row: &Row<'_>| row.get::<_, String>(0);
    Ok(match (request.method(), &*parts) {
        (&Method::GET | &Method::HEAD, ["notes", id]) => {
            let mut query = database.prepare_cached("SELECT text FROM notes WHERE id = ?1")?;
            match query.query_row([id], text).optional()? {
                Some(text) => respond(StatusCode::OK, text),
                None => respond(StatusCode::NOT_FOUND, "no such note\n"),
            }
        }
        (&Method::POST, ["notes"]) => {
            let mut note = String::new();
            match request.body_mut().read_to_string(&mut note) {
                Err(error) if error.kind() == ErrorKind::InvalidData => {
                    return Ok(respond(StatusCode::BAD_REQUEST, "notes are text\n"));
                }
                read => read?,
            };
            let mut insert = database.prepare_cached("INSERT INTO notes (text) VALUES (?1)")?;
            let id = insert.insert([note])?;
            let mut response = respond(StatusCode::CREATED, format!("note {id}\n"));
            let location = HeaderValue::try_from(format!("/notes/{id}"))?;
            response.headers_mut().insert(LOCATION, location);
            response
        }
        (_, ["notes"] | ["notes", _]) => respond(StatusCode::METHOD_NOT_ALLOWED, "not so\n"),
        _ => respond(StatusCode::NOT_FOUND, "POST /notes, GET /notes/ID\n"),
    })
}

fn respond(status: StatusCode, body: impl Into<ResponseBody>) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response
}
