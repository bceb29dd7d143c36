//! A service to copy: an axum application whose handlers call a database directly, and keep nobody waiting.
//!
//! Notes in SQLite, websockets, server-sent events, a task at intervals, a limit of connections, an access log, and a graceful
//! end by SIGTERM or SIGINT. HTTP/1 and HTTP/2 on one port.
//!
//! ```toml
//! [dependencies]
//! socknotify-async = { version = "0.1", features = ["serve"] }
//! axum = { version = "0.8", default-features = false, features = ["http1", "tokio", "ws"] }
//! rusqlite = { version = "0.37", features = ["bundled"] }
//! signal-hook = "0.3"
//! tokio = { version = "1", features = ["macros", "rt-multi-thread", "sync", "time"] }
//! tokio-stream = { version = "0.1", features = ["sync"] }
//! ```
//!
//! Run it from `crates/socknotify-async-examples` with `cargo run --example service 127.0.0.1:7007 notes.db`, and try
//! `curl -d 'buy milk' 127.0.0.1:7007/notes`, `curl 127.0.0.1:7007/notes`, and `curl -N 127.0.0.1:7007/events`.

use std::convert::Infallible;
use std::error::Error;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::routing::get;
use rusqlite::Connection;
use signal_hook::consts::{SIGINT, SIGTERM};
use socknotify_async::hyper_rt::{here, serve};
use socknotify_async::{Async, Runtime, TcpListener, interval};
use tokio::sync::broadcast;
use tokio_stream::wrappers::BroadcastStream;
use tokio_stream::{Stream, StreamExt};

/// How many connections are open at once. Others wait in the listener's queue.
const CONNECTIONS: usize = 10_000;
/// How long requests have to end.
const GRACE: Duration = Duration::from_secs(10);

/// What the handlers share.
#[derive(Clone)]
struct Service {
    database: Arc<Mutex<Connection>>,
    /// New notes. `None` when the service ends, which ends the streams of who listens.
    news: Arc<Mutex<Option<broadcast::Sender<String>>>>,
}

#[allow(dead_code, reason = "not in the tests")]
fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next();
    let database = arguments.next();
    run(
        address.as_deref().unwrap_or("127.0.0.1:0"),
        database.as_deref().unwrap_or(":memory:"),
    )
}

/// Serves on this address until a signal comes.
pub fn run(address: &str, database: &str) -> Result<(), Box<dyn Error>> {
    // axum's websockets and the keep-alive of its events ask for tokio's context.
    let tokio = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_time()
        .build()?;
    let context = tokio.handle().clone();
    let runtime = Runtime::builder()
        .inside(move |run| {
            let _entered = context.enter();
            run();
        })
        .build()?;
    let service = Service {
        database: Arc::new(Mutex::new(open(database)?)),
        news: Arc::new(Mutex::new(Some(broadcast::channel(100).0))),
    };
    let cleanup = runtime.spawn(clean_up(service.clone()));
    runtime.block_on(async {
        let signals = signals()?;
        let listener = TcpListener::bind(address)?;
        println!("serving on {}", listener.local_addr()?);
        let end = async {
            if let Err(error) = signals.readable().await {
                eprintln!("signals: {error}");
            }
            // Those who listen get the end of their streams.
            cleanup.abort();
            drop(lock(&service.news).take());
        };
        // Who does not send a whole request in the same time is disconnected.
        let server = serve(listener, router(service.clone()))
            .connections(CONNECTIONS)
            .head_time(GRACE);
        let left = server.until(end, GRACE).await;
        if left > 0 {
            eprintln!("{left} connections have not ended in time");
        }
        io::Result::Ok(())
    })?;
    runtime.shutdown(Duration::from_secs(1));
    // Last: tasks may use it as they end.
    drop(tokio);
    Ok(())
}

/// Becomes readable when a signal comes.
fn signals() -> io::Result<Async<UnixStream>> {
    let (reads, writes) = UnixStream::pair()?;
    for signal in [SIGINT, SIGTERM] {
        signal_hook::low_level::pipe::register(signal, writes.try_clone()?)?;
    }
    Async::new(reads)
}

fn router(service: Service) -> Router {
    Router::new()
        .route("/notes", get(notes).post(add_note))
        .route("/events", get(events))
        .route("/socket", get(socket))
        .layer(middleware::from_fn(log_access))
        .with_state(service)
}

async fn log_access(request: Request, next: Next) -> Response {
    let begin = Instant::now();
    let line = format!("{} {}", request.method(), request.uri().path());
    let response = next.run(request).await;
    println!(
        "{line} {} {:?}",
        response.status().as_u16(),
        begin.elapsed()
    );
    response
}

type Failed = (StatusCode, String);

fn failed(error: impl Error) -> Failed {
    (StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
}

async fn notes(State(service): State<Service>) -> Result<String, Failed> {
    // The lock and the disk may take their time: other tasks go on.
    let database = lock(&service.database);
    let mut query = database
        .prepare_cached("select text from notes order by rowid")
        .map_err(failed)?;
    let notes = query.query_map((), |row| row.get::<_, String>(0));
    let notes = notes.and_then(|rows| rows.collect::<Result<Vec<_>, _>>());
    Ok(notes.map_err(failed)?.join("\n") + "\n")
}

async fn add_note(State(service): State<Service>, text: String) -> Result<StatusCode, Failed> {
    service.add(text).map_err(failed)?;
    Ok(StatusCode::CREATED)
}

impl Service {
    fn add(&self, text: String) -> rusqlite::Result<()> {
        lock(&self.database).execute("insert into notes (text) values (?1)", [&text])?;
        if let Some(news) = &*lock(&self.news) {
            // It fails if nobody listens.
            let _ = news.send(text);
        }
        Ok(())
    }

    /// New notes, until the service ends.
    fn listen(&self) -> impl Stream<Item = String> + use<> {
        let news = match &*lock(&self.news) {
            Some(news) => news.subscribe(),
            // It has ended.
            None => broadcast::channel(1).1,
        };
        // Who is too slow misses some.
        BroadcastStream::new(news).filter_map(Result::ok)
    }
}

async fn events(
    State(service): State<Service>,
) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let events = service.listen().map(|text| Ok(Event::default().data(text)));
    Sse::new(events).keep_alive(KeepAlive::default())
}

/// What comes is a note; and each note goes to who is connected.
async fn socket(State(service): State<Service>, upgrade: WebSocketUpgrade) -> Response {
    // Here, and not on tokio's thread, where nothing may block.
    upgrade.on_upgrade(here(async |socket| {
        let _ = exchange(service, socket).await;
    }))
}

async fn exchange(service: Service, mut socket: WebSocket) -> Result<(), axum::Error> {
    let mut news = std::pin::pin!(service.listen());
    loop {
        tokio::select! {
            text = news.next() => match text {
                Some(text) => socket.send(Message::text(text)).await?,
                None => return socket.send(Message::Close(None)).await,
            },
            message = socket.recv() => match message {
                Some(Ok(Message::Text(text))) => service.add(text.to_string()).map_err(axum::Error::new)?,
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return Ok(()),
            },
        }
    }
}

/// Deletes old notes, once per minute.
async fn clean_up(service: Service) {
    let mut minutes = interval(Duration::from_secs(60));
    loop {
        minutes.tick().await;
        let delete = "delete from notes where at < datetime('now', '-30 days')";
        if let Err(error) = lock(&service.database).execute(delete, ()) {
            eprintln!("cleanup: {error}");
        }
    }
}

fn open(path: &str) -> rusqlite::Result<Connection> {
    let database = Connection::open(path)?;
    database.execute_batch(
        "pragma journal_mode = wal;
         create table if not exists notes (text text not null, at text default current_timestamp);",
    )?;
    Ok(database)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
