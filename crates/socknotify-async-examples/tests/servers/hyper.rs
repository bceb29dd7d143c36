//! hyper: servers and clients for HTTP/1 and HTTP/2.
//!
//! `/sleep` sleeps in its handler, and keeps nobody else waiting.

use std::convert::Infallible;
use std::io;
use std::time::Duration;

use http_body_util::{BodyExt, Empty, Full};
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response};
use socknotify_async::hyper_rt::Executor;
use socknotify_async::{TcpListener, TcpStream, spawn};
use socknotify_async_examples::{serve_http1, serve_http2};

async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let body = match request.uri().path() {
        "/sleep" => {
            std::thread::sleep(Duration::from_millis(200));
            "slept\n"
        }
        _ => "hello\n",
    };
    Ok(Response::new(Full::new(Bytes::from_static(
        body.as_bytes(),
    ))))
}

/// Serves HTTP/1.
pub async fn serve(listener: TcpListener) -> io::Result<()> {
    serve_http1(listener, answer).await
}

/// Serves HTTP/2, to clients that know that it does.
pub async fn serve2(listener: TcpListener) -> io::Result<()> {
    serve_http2(listener, answer).await
}

/// Gets a page by HTTP/1, as text.
pub async fn get(address: std::net::SocketAddr, path: &str) -> io::Result<String> {
    let stream = TcpStream::connect(address).await?;
    let connected = hyper::client::conn::http1::handshake(stream).await;
    let (mut sender, connection) = connected.map_err(io::Error::other)?;
    drop(spawn(connection));
    let request = request(path)?;
    let response = sender.send_request(request).await;
    text(response.map_err(io::Error::other)?).await
}

/// Gets a page many times at once by HTTP/2, over one connection.
pub async fn get2(
    address: std::net::SocketAddr,
    path: &str,
    times: usize,
) -> io::Result<Vec<String>> {
    let stream = TcpStream::connect(address).await?;
    let connected = hyper::client::conn::http2::handshake(Executor, stream).await;
    let (sender, connection) = connected.map_err(io::Error::other)?;
    drop(spawn(connection));
    let tasks: Vec<_> = (0..times)
        .map(|_| {
            let (mut sender, request) = (sender.clone(), request(path));
            spawn(async move {
                let response = sender.send_request(request?).await;
                text(response.map_err(io::Error::other)?).await
            })
        })
        .collect();
    let mut pages = Vec::new();
    for task in tasks {
        pages.push(task.await??);
    }
    Ok(pages)
}

fn request(path: &str) -> io::Result<Request<Empty<Bytes>>> {
    let request = Request::builder().uri(format!("http://localhost{path}"));
    let request = request.header("host", "localhost").body(Empty::new());
    request.map_err(io::Error::other)
}

async fn text(response: Response<Incoming>) -> io::Result<String> {
    let body = response.into_body().collect().await;
    let bytes = body.map_err(io::Error::other)?.to_bytes();
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
