//! Servers with the crates of others, and what they are asked.
#![allow(clippy::duplicate_mod, reason = "each example has it")]

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::pin::Pin;
use std::process::Command;
use std::sync::{Arc, Barrier, LazyLock};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response};
use socknotify_async::{Runtime, TcpListener, TcpStream, spawn, timeout};
use socknotify_async_examples::{Answer, serve_http1};

#[path = "servers/axum.rs"]
mod axum;
#[path = "servers/hyper.rs"]
mod http;
#[path = "servers/tls.rs"]
mod tls;
#[path = "servers/websocket.rs"]
mod websocket;

const PATIENCE: Duration = Duration::from_secs(60);

/// Serve, and run a client beside.
fn with_server<S, C>(
    serve: fn(TcpListener) -> S,
    client: impl FnOnce(SocketAddr) -> C,
) -> io::Result<()>
where
    S: Future<Output = io::Result<()>> + Send + 'static,
    C: Future<Output = io::Result<()>>,
{
    let runtime = Runtime::builder().places(2).build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let server = spawn(serve(listener));
        timeout(PATIENCE, client(address)).await??;
        assert!(!server.is_finished());
        server.abort();
        io::Result::Ok(())
    })?;
    runtime.shutdown(Duration::from_millis(50));
    Ok(())
}

/// What another program says.
fn output(program: &str, arguments: &[&str]) -> io::Result<String> {
    let output = Command::new(program).args(arguments).output()?;
    assert!(output.status.success(), "{output:?}");
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn curl(arguments: &[&str]) -> io::Result<String> {
    output("curl", &[&["-sS"], arguments].concat())
}

/// Ask for so many pages over so many connections, and have all of them answered.
fn load(address: SocketAddr, pages: &str, connections: &str, more: &[&str]) -> io::Result<()> {
    let url = format!("http://{address}/");
    let arguments = [&["-n", pages, "-c", connections, &url], more].concat();
    let report = output("h2load", &arguments)?;
    let all = format!("{pages} succeeded, 0 failed");
    assert!(report.contains(&all), "{report}");
    Ok(())
}

#[test]
fn http1_is_served_to_our_client_and_to_curl() -> io::Result<()> {
    with_server(http::serve, async |address| {
        assert_eq!(http::get(address, "/").await?, "hello\n");
        assert_eq!(http::get(address, "/sleep").await?, "slept\n");
        assert_eq!(curl(&[&format!("http://{address}/")])?, "hello\n");
        // A connection that is kept.
        let page = format!("http://{address}/");
        assert_eq!(curl(&[&page, &page, &page])?, "hello\n".repeat(3));
        Ok(())
    })
}

#[test]
fn http2_is_served_to_our_client_and_to_curl() -> io::Result<()> {
    with_server(http::serve2, async |address| {
        let pages = http::get2(address, "/", 100).await?;
        assert!(pages.len() == 100 && pages.iter().all(|page| page == "hello\n"));
        let page = format!("http://{address}/");
        assert_eq!(curl(&["--http2-prior-knowledge", &page])?, "hello\n");
        Ok(())
    })
}

#[test]
fn http1_and_http2_are_served_to_many_connections() -> io::Result<()> {
    with_server(http::serve, async |address| {
        load(address, "5000", "500", &["--h1"])
    })?;
    with_server(http::serve2, async |address| {
        load(address, "5000", "50", &["-m", "10"])
    })
}

#[test]
fn many_connections_are_served_for_as_long_as_they_ask() -> io::Result<()> {
    with_server(http::serve, async |address| {
        let page = format!("http://{address}/");
        let report = output("wrk", &["-t1", "-c200", "-d1", "--timeout", "60s", &page])?;
        let has_failed = ["Socket errors", "Non-2xx"].map(|it| report.contains(it));
        assert!(report.contains("Requests/sec"), "{report}");
        assert_eq!(has_failed, [false; 2], "{report}");
        Ok(())
    })
}

/// Ten times as many as there are places.
const BLOCKED: usize = 20;

/// A handler that blocks, without saying so, until so many do.
async fn meet(request: Request<Incoming>) -> Result<Answer, Infallible> {
    static ALL: LazyLock<Barrier> = LazyLock::new(|| Barrier::new(BLOCKED));
    let body = match request.uri().path() {
        "/meet" => {
            ALL.wait();
            "met\n"
        }
        _ => "hello\n",
    };
    Ok(Response::new(Full::new(Bytes::from_static(
        body.as_bytes(),
    ))))
}

async fn serve_meetings(listener: TcpListener) -> io::Result<()> {
    serve_http1(listener, meet).await
}

#[test]
fn a_handler_that_blocks_keeps_no_other_connection_waiting() -> io::Result<()> {
    with_server(serve_meetings, async |address| {
        let meet = || spawn(async move { http::get(address, "/meet").await });
        let mut meeting: Vec<_> = (1..BLOCKED).map(|_| meet()).collect();
        for _ in 0..BLOCKED {
            assert_eq!(http::get(address, "/").await?, "hello\n");
        }
        // The last one lets all go on.
        meeting.push(meet());
        for page in meeting {
            assert_eq!(page.await??, "met\n");
        }
        Ok(())
    })
}

#[test]
fn an_axum_router_is_served() -> io::Result<()> {
    with_server(axum::serve, async |address| {
        assert_eq!(http::get(address, "/").await?, "hello\n");
        assert_eq!(http::get(address, "/greet/you").await?, "hello, you\n");
        assert_eq!(curl(&[&format!("http://{address}/blocks")])?, "slept\n");
        Ok(())
    })
}

#[test]
fn tls_is_spoken_to_a_client_that_blocks() -> io::Result<()> {
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject;
    use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

    with_server(tls::serve, async |address| {
        // In a thread of its own, as any peer.
        let client = std::thread::spawn(move || {
            let certificate = CertificateDer::from_pem_slice(tls::CERTIFICATE);
            let mut roots = RootCertStore::empty();
            roots
                .add(certificate.map_err(io::Error::other)?)
                .map_err(io::Error::other)?;
            let config = ClientConfig::builder()
                .with_root_certificates(roots)
                .with_no_client_auth();
            let name = "localhost".try_into().map_err(io::Error::other)?;
            let client = ClientConnection::new(Arc::new(config), name);
            let stream = std::net::TcpStream::connect(address)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            let mut stream = StreamOwned::new(client.map_err(io::Error::other)?, stream);
            // More than a record holds.
            let sent: Vec<u8> = (0..100_000).map(|index| (index % 251) as u8).collect();
            for part in sent.chunks(10_000) {
                stream.write_all(part)?;
                let mut received = vec![0; part.len()];
                stream.read_exact(&mut received)?;
                assert_eq!(received, part);
            }
            stream.conn.send_close_notify();
            stream.flush()?;
            assert_eq!(stream.read(&mut [0])?, 0);
            io::Result::Ok(())
        });
        socknotify_async::unblock(|| client.join().expect("no panic")).await?
    })
}

#[test]
fn a_websocket_echoes() -> io::Result<()> {
    with_server(websocket::serve, async |address| {
        let stream = TcpStream::connect(address).await?;
        let url = format!("ws://{address}/");
        let connected = tokio_tungstenite::client_async(url, stream).await;
        let (mut socket, _) = connected.map_err(io::Error::other)?;
        for length in [0, 5, 70_000] {
            let text = "x".repeat(length);
            socket
                .send(text.as_str().into())
                .await
                .map_err(io::Error::other)?;
            let answer = socket.next().await.expect("an answer");
            let answer = answer.map_err(io::Error::other)?;
            assert_eq!(answer.to_text().map_err(io::Error::other)?, text);
        }
        socket.close(None).await.map_err(io::Error::other)?;
        Ok(())
    })
}

/// A socket that, before it is read, has another stream read.
#[cfg(unix)]
struct Nested {
    socket: std::os::unix::net::UnixStream,
    other: std::sync::Mutex<socknotify_async::UnixStream>,
}

#[cfg(unix)]
impl std::os::fd::AsFd for Nested {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(unix)]
impl Read for &Nested {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut cx = Context::from_waker(Waker::noop());
        let other = &mut *self.other.lock().expect("no panic");
        assert!(read_once(other, &mut cx).is_pending());
        (&self.socket).read(buffer)
    }
}

/// By tokio's trait.
#[cfg(unix)]
fn read_once(
    stream: &mut (impl tokio::io::AsyncRead + Unpin),
    cx: &mut Context<'_>,
) -> Poll<io::Result<Vec<u8>>> {
    let mut bytes = [0; 8];
    let mut buffer = tokio::io::ReadBuf::new(&mut bytes);
    let read = Pin::new(stream).poll_read(cx, &mut buffer);
    read.map_ok(|()| buffer.filled().to_vec())
}

#[cfg(unix)]
#[test]
fn a_read_may_read_another_stream() -> io::Result<()> {
    let runtime = Runtime::new()?;
    runtime.block_on(async {
        let (socket, mut peer) = std::os::unix::net::UnixStream::pair()?;
        let (other, _open) = socknotify_async::UnixStream::pair()?;
        let other = other.into();
        let mut stream = socknotify_async::Async::new(Nested { socket, other })?;
        peer.write_all(b"outer")?;
        let read = poll_fn(|cx| read_once(&mut stream, cx));
        assert_eq!(timeout(PATIENCE, read).await??, b"outer");
        Ok(())
    })
}

/// The names of this crate hide those of no other.
#[test]
fn all_names_may_be_used_at_once() {
    #[allow(unused_imports, reason = "that is the test")]
    use socknotify_async::*;
    assert_eq!(hyper::Method::GET, "GET");
    assert_eq!(tokio::io::ReadBuf::new(&mut []).remaining(), 0);
}

#[cfg(unix)]
#[test]
fn a_thread_that_ends_may_read() -> io::Result<()> {
    struct ReadsLast(
        socknotify_async::UnixStream,
        std::sync::mpsc::Sender<Vec<u8>>,
    );
    impl Drop for ReadsLast {
        fn drop(&mut self) {
            let mut cx = Context::from_waker(Waker::noop());
            if let Poll::Ready(Ok(bytes)) = read_once(&mut self.0, &mut cx) {
                let _ = self.1.send(bytes);
            }
        }
    }
    thread_local! {
        static LAST: std::cell::RefCell<Option<ReadsLast>> = const { std::cell::RefCell::new(None) };
    }
    let runtime = Runtime::new()?;
    let (sender, received) = std::sync::mpsc::channel();
    let (mut first, mut peer) = (None, None);
    runtime.block_on(async {
        let (ours, theirs) = socknotify_async::UnixStream::pair()?;
        (first, peer) = (Some(ours), Some(theirs));
        io::Result::Ok(())
    })?;
    let (mut stream, peer) = (first.expect("one"), peer.expect("one"));
    peer.get_ref().write_all(b"at first")?;
    let reads = std::thread::spawn(move || {
        LAST.with(|it| it.replace(None));
        let mut cx = Context::from_waker(Waker::noop());
        // What it keeps for that is gone when it ends.
        let read = read_once(&mut stream, &mut cx);
        peer.get_ref().write_all(b"last").expect("there is room");
        LAST.with(|it| it.replace(Some(ReadsLast(stream, sender))));
        read
    });
    let Poll::Ready(read) = reads.join().expect("no panic") else {
        panic!("it was there");
    };
    assert_eq!(read?, b"at first");
    assert_eq!(
        received.recv_timeout(PATIENCE).expect("it was read"),
        b"last"
    );
    Ok(())
}
