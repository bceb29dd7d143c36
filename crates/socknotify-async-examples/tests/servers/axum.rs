//! An axum `Router`, which is a `tower` service, over hyper.

use std::io;
use std::thread;
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::routing::get;
use hyper::server::conn::http1;
use hyper_util::service::TowerToHyperService;
use socknotify_async::hyper_rt::Timer;
use socknotify_async::{TcpListener, unblock};

/// Serves the router.
pub async fn serve(listener: TcpListener) -> io::Result<()> {
    let router = Router::new()
        .route("/", get(|| async { "hello\n" }))
        .route("/greet/{name}", get(greet))
        .route("/blocks", get(blocks))
        .with_state("hello");
    socknotify_async_examples::serve(listener, |stream| {
        let mut server = http1::Builder::new();
        server.timer(Timer);
        let service = TowerToHyperService::new(router.clone());
        let connection = server.serve_connection(stream, service);
        connection.with_upgrades()
    })
    .await
}

async fn greet(State(greeting): State<&'static str>, Path(name): Path<String>) -> String {
    format!("{greeting}, {name}\n")
}

async fn blocks() -> &'static str {
    // Said or not: other requests go on.
    thread::sleep(Duration::from_millis(50));
    let _ = unblock(|| thread::sleep(Duration::from_millis(50))).await;
    "slept\n"
}
