//! A service that keeps notes: in files, so that each request blocks for a moment.
//!
//! What it shows:
//!
//! - Handlers that block, on threads that nobody has to count.
//! - Methods and paths by a `match`, bodies with a limit, a file as an answer.
//! - An access log, and metrics on a port of their own: they answer while all threads of the service are busy.
//! - At SIGTERM and Ctrl-C it answers what has come, and ends within ten seconds.
//!
//! Run it with `cargo run -p socknotify-http --example service 127.0.0.1:8080 127.0.0.1:8081 /tmp/notes`, and try
//! `curl -T README.md http://127.0.0.1:8080/first`, `curl http://127.0.0.1:8080/first` and `curl http://127.0.0.1:8081/`.
//!
//! ```toml
//! [dependencies]
//! socknotify-http = "0.1"
//! ```

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use std::{env, thread};

use socknotify_http::http::{Method, StatusCode};
use socknotify_http::{Limits, Metrics, Request, Response, ResponseBody, Server};

fn main() -> io::Result<()> {
    let mut arguments = env::args().skip(1);
    let mut address = || arguments.next().unwrap_or("127.0.0.1:0".into());
    let (service, admin) = (Server::bind(address())?, Server::bind(address())?);
    let folder = PathBuf::from(address());
    fs::create_dir_all(&folder)?;
    println!(
        "notes at {}, metrics at {}",
        service.local_addr()?,
        admin.local_addr()?
    );

    let (seen, ended) = (service.handle(), admin.handle());
    let metrics = thread::spawn(move || admin.serve(move |_| metrics(&seen.metrics())));
    service.end_on_signals(Duration::from_secs(10))?;
    let limits = Limits::default().body(64 << 10);
    let served = service
        .limits(limits)
        .log(io::stderr())
        .serve(move |request| {
            notes(&folder, request).unwrap_or_else(|error| match error.kind() {
                ErrorKind::NotFound => status(StatusCode::NOT_FOUND),
                _ => status(StatusCode::INTERNAL_SERVER_ERROR),
            })
        });
    ended.drain(Duration::from_secs(1));
    metrics.join().expect("it does not panic")?;
    served
}

/// A number for each file that is being written.
static NEXT: AtomicU64 = AtomicU64::new(0);

fn notes(folder: &Path, request: &mut Request<'_>) -> io::Result<Response> {
    let name = request.uri().path()[1..].to_owned();
    // No other folder, and no name that the system has a meaning for.
    if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return Ok(status(StatusCode::NOT_FOUND));
    }
    let path = folder.join(name);
    match *request.method() {
        Method::GET | Method::HEAD => Ok(Response::new(ResponseBody::file(File::open(path)?)?)),
        Method::PUT => {
            // Whoever reads it meanwhile has all of the one before, and of two that write one wins.
            let new = path.with_extension(NEXT.fetch_add(1, Ordering::Relaxed).to_string());
            let written = File::create(&new)
                .and_then(|mut file| io::copy(request.body_mut(), &mut file))
                .and_then(|_| fs::rename(&new, path));
            if written.is_err() {
                let _ = fs::remove_file(new);
            }
            written.map(|()| status(StatusCode::NO_CONTENT))
        }
        Method::DELETE => {
            fs::remove_file(path)?;
            Ok(status(StatusCode::NO_CONTENT))
        }
        _ => Ok(status(StatusCode::METHOD_NOT_ALLOWED)),
    }
}

fn metrics(it: &Metrics) -> Response {
    let busy = it.threads - it.waiting_threads.min(it.threads);
    let (good, bad) = (it.successful, it.client_errors + it.server_errors);
    let connections = it.connections;
    Response::new(
        format!("answers {good}\nerrors {bad}\nconnections {connections}\nbusy_threads {busy}\n")
            .into(),
    )
}

fn status(status: StatusCode) -> Response {
    let mut response = Response::new(().into());
    *response.status_mut() = status;
    response
}
