//! What the tests and the comparison have in common.

use std::convert::Infallible;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use socknotify_async::hyper_rt::{Executor, Timer};
use socknotify_async::{TcpListener, TcpStream, sleep, spawn};

/// The service that is compared: a small answer, and before every so many a sleep, as of a slow disk or database.
#[derive(Debug, Default)]
pub struct Service {
    /// How many of a thousand requests sleep.
    pub sleep_per_mille: u64,
    requests: AtomicU64,
}

/// What is sent in bulk.
pub static LARGE: [u8; 1 << 20] = [b'.'; 1 << 20];

/// How long these sleep.
pub const SLEEP: Duration = Duration::from_millis(50);

impl Service {
    /// One of which so many requests in a thousand sleep.
    pub fn new(sleep_per_mille: u64) -> Self {
        Service {
            sleep_per_mille,
            requests: AtomicU64::new(0),
        }
    }

    /// Whether the next request sleeps: evenly spread.
    pub fn sleeps_next(&self) -> bool {
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        let before = number * self.sleep_per_mille / 1000;
        before != (number + 1) * self.sleep_per_mille / 1000
    }

    /// The answer to any request.
    pub fn answer(&self, slept: bool) -> Answer {
        let body = if slept {
            "slept for a while"
        } else {
            "Hello, World!"
        };
        Response::new(Full::new(Bytes::from_static(body.as_bytes())))
    }

    /// The handler: it may block, and does not say so. It reads what is sent to it, and `/large` is a large answer.
    pub async fn call(&self, request: Request<Incoming>) -> Result<Answer, Infallible> {
        if request.uri().path() == "/large" {
            return Ok(Response::new(Full::new(Bytes::from_static(&LARGE))));
        }
        if request.method() == Method::POST {
            let mut body = request.into_body();
            while let Some(Ok(_)) = body.frame().await {}
        }
        let sleeps = self.sleeps_next();
        if sleeps {
            std::thread::sleep(SLEEP);
        }
        Ok(self.answer(sleeps))
    }
}

/// What the service answers.
pub type Answer = Response<Full<Bytes>>;

/// Serves each connection that a listener accepts in a task of its own, for ever.
///
/// # Errors
///
/// Those of the connections are theirs alone. When no connection can be accepted, as there are no descriptors left, it waits
/// a while.
pub async fn serve<F>(
    listener: TcpListener,
    serve_connection: impl Fn(TcpStream) -> F,
) -> io::Result<()>
where
    F: Future<Output: Send> + Send + 'static,
{
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                // It fails if the peer has gone, which the connection finds out, too.
                let _ = stream.get_ref().set_nodelay(true);
                drop(spawn(serve_connection(stream)));
            }
            Err(_) => sleep(Duration::from_millis(50)).await,
        }
    }
}

/// Serves hyper's HTTP/1.
///
/// # Errors
///
/// As [`serve`].
pub async fn serve_http1<S, F>(listener: TcpListener, service: S) -> io::Result<()>
where
    S: Fn(Request<Incoming>) -> F + Clone + Send + 'static,
    F: Future<Output = Result<Answer, Infallible>> + Send + 'static,
{
    serve(listener, |stream| {
        let mut server = http1::Builder::new();
        server.timer(Timer);
        server.serve_connection(stream, service_fn(service.clone()))
    })
    .await
}

/// Serves HTTP/2, to clients that know that it does.
///
/// # Errors
///
/// As [`serve`].
pub async fn serve_http2<S, F>(listener: TcpListener, service: S) -> io::Result<()>
where
    S: Fn(Request<Incoming>) -> F + Clone + Send + 'static,
    F: Future<Output = Result<Answer, Infallible>> + Send + 'static,
{
    serve(listener, |stream| {
        let mut server = http2::Builder::new(Executor);
        server.timer(Timer);
        server.serve_connection(stream, service_fn(service.clone()))
    })
    .await
}
