//! What the front page says of other crates: what runs as it is, and what runs in tokio's context.

use std::cell::Cell;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_lite::{AsyncReadExt, AsyncWriteExt};
use http_body_util::{BodyExt, Empty};
use hyper::Uri;
use hyper::body::Bytes;
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::{Connected, Connection};
use socknotify_async::hyper_rt::Executor;
use socknotify_async::{Runtime, SlowTask, TcpListener, TcpStream, sleep, spawn, timeout, unblock};

use crate::support::{PATIENCE, run, run_with_tokio};

#[allow(
    dead_code,
    clippy::duplicate_mod,
    reason = "for the server and the client"
)]
#[path = "servers/hyper.rs"]
mod http;
#[path = "support/run.rs"]
mod support;
#[allow(dead_code, clippy::duplicate_mod, reason = "for the certificate")]
#[path = "servers/tls.rs"]
mod tls;

async fn pair() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let client = TcpStream::connect(listener.local_addr()?).await?;
    Ok((client, listener.accept().await?.0))
}

#[test]
fn a_slow_task_of_hypers_executor_is_named_by_its_caller() -> io::Result<()> {
    let (tell, told) = std::sync::mpsc::channel();
    let on_slow = move |task: &SlowTask| {
        // A thread that is late has no task yet.
        let _ = task.spawned_at.map(|at| tell.send(at));
    };
    let builder = Runtime::builder().on_slow(Duration::from_millis(20), on_slow);
    let (line, (end, ended)) = (line!() + 2, std::sync::mpsc::channel::<()>());
    builder.build()?.block_on(async move {
        hyper::rt::Executor::execute(&Executor, async move { ended.recv() });
        let at = told.recv_timeout(PATIENCE).expect("it is told of");
        assert_eq!((at.file(), at.line()), (file!(), line));
        drop(end);
    });
    Ok(())
}

#[test]
fn channels_locks_and_macros_of_tokio_run_as_they_are() -> io::Result<()> {
    use tokio::sync::{Notify, Semaphore, mpsc, oneshot, watch};
    run(async {
        let (sender, mut receiver) = mpsc::channel(1);
        let (answer, answered) = oneshot::channel();
        let (level, mut levels) = watch::channel(0);
        let (limit, is_over) = (Arc::new(Semaphore::new(2)), Arc::new(Notify::new()));
        let over = Arc::clone(&is_over);
        let task = spawn(async move {
            let mut sum = 0;
            loop {
                tokio::select! {
                    value = receiver.recv() => match value {
                        Some(value) => sum += value,
                        None => break,
                    },
                    () = sleep(PATIENCE) => return,
                }
            }
            let _ = answer.send(sum);
            over.notify_one();
        });
        for number in 0..100 {
            let _permit = limit.acquire().await.map_err(io::Error::other)?;
            sender.send(number).await.map_err(io::Error::other)?;
        }
        level.send_replace(7);
        levels.changed().await.map_err(io::Error::other)?;
        drop(sender);
        let (sum, ()) = tokio::join!(answered, is_over.notified());
        assert_eq!(sum.map_err(io::Error::other)?, 4950);
        task.await?;
        Ok(())
    })
}

#[test]
fn groups_of_tasks_are_cancelled_by_tokio_util() -> io::Result<()> {
    use tokio_util::sync::CancellationToken;
    use tokio_util::task::TaskTracker;
    run(async {
        let (token, group) = (CancellationToken::new(), TaskTracker::new());
        for _ in 0..10 {
            let token = token.clone();
            drop(spawn(
                group.track_future(async move { token.cancelled().await }),
            ));
        }
        group.close();
        assert!(
            timeout(Duration::from_millis(5), group.wait())
                .await
                .is_err()
        );
        token.cancel();
        group.wait().await;
        Ok(())
    })
}

/// Connects for hyper-util's client.
#[derive(Clone)]
struct Connector;

/// A connection of its pool.
struct Pooled(TcpStream);

impl Connection for Pooled {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

macro_rules! forward {
    ($self:ident, $trait:path, $method:ident, $($argument:expr),*) => {
        <TcpStream as $trait>::$method(Pin::new(&mut $self.0), $($argument),*)
    };
}

impl hyper::rt::Read for Pooled {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: hyper::rt::ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        forward!(self, hyper::rt::Read, poll_read, cx, buffer)
    }
}

impl hyper::rt::Write for Pooled {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        forward!(self, hyper::rt::Write, poll_write, cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        forward!(self, hyper::rt::Write, poll_flush, cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        forward!(self, hyper::rt::Write, poll_shutdown, cx)
    }
}

impl tower_service::Service<Uri> for Connector {
    type Response = Pooled;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Pooled>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        Box::pin(async move {
            let (host, port) = (uri.host().unwrap_or("localhost"), uri.port_u16());
            TcpStream::connect((host, port.unwrap_or(80)))
                .await
                .map(Pooled)
        })
    }
}

#[test]
fn hyper_util_s_client_keeps_connections() -> io::Result<()> {
    run(async {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        drop(spawn(http::serve(listener)));
        let client = legacy::Client::builder(Executor).build::<_, Empty<Bytes>>(Connector);
        let url: Uri = format!("http://{address}/")
            .parse()
            .map_err(io::Error::other)?;
        for _ in 0..10 {
            let response = client.get(url.clone()).await.map_err(io::Error::other)?;
            let body = response.into_body().collect().await;
            assert_eq!(body.map_err(io::Error::other)?.to_bytes(), "hello\n");
        }
        Ok(())
    })
}

#[test]
fn tasks_that_are_not_send_stay_on_a_thread() -> io::Result<()> {
    use std::rc::Rc;
    use tokio::task::{LocalSet, spawn_local};
    run(LocalSet::new().run_until(async {
        let (mut ours, mut theirs) = pair().await?;
        let sum = Rc::new(Cell::new(0));
        let seen = Rc::clone(&sum);
        let task = spawn_local(async move {
            let mut bytes = [0; 3];
            ours.read_exact(&mut bytes).await?;
            sleep(Duration::from_millis(1)).await;
            seen.set(bytes.into_iter().sum());
            io::Result::Ok(())
        });
        theirs.write_all(&[1, 2, 3]).await?;
        task.await??;
        assert_eq!(sum.get(), 6);
        Ok(())
    }))
}

#[test]
fn futures_rustls_speaks_to_tokio_rustls() -> io::Result<()> {
    use futures_rustls::rustls::pki_types::CertificateDer;
    use futures_rustls::rustls::pki_types::pem::PemObject;
    use futures_rustls::rustls::{ClientConfig, RootCertStore};
    run(async {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let stream = TcpStream::connect(listener.local_addr()?).await?;
        drop(spawn(tls::serve(listener)));
        let mut roots = RootCertStore::empty();
        let certificate = CertificateDer::from_pem_slice(tls::CERTIFICATE);
        roots
            .add(certificate.map_err(io::Error::other)?)
            .map_err(io::Error::other)?;
        let config = ClientConfig::builder()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = "localhost".try_into().map_err(io::Error::other)?;
        let connector = futures_rustls::TlsConnector::from(Arc::new(config));
        let mut stream = connector.connect(name, stream).await?;
        stream.write_all(b"ping").await?;
        stream.flush().await?;
        let mut answer = [0; 4];
        stream.read_exact(&mut answer).await?;
        assert_eq!(&answer, b"ping");
        Ok(())
    })
}

#[test]
fn async_tungstenite_speaks_on_both_sides() -> io::Result<()> {
    use async_tungstenite::tungstenite::Message;
    use async_tungstenite::{accept_async, client_async};
    run(async {
        let (client, server) = pair().await?;
        let server = spawn(async move {
            let mut socket = accept_async(server).await.map_err(io::Error::other)?;
            let message = futures_lite::StreamExt::next(&mut socket).await;
            let message = message.expect("one").map_err(io::Error::other)?;
            socket.send(message).await.map_err(io::Error::other)
        });
        let connected = client_async("ws://localhost/", client).await;
        let (mut socket, _) = connected.map_err(io::Error::other)?;
        let sent = socket.send(Message::text("hello")).await;
        sent.map_err(io::Error::other)?;
        let answer = futures_lite::StreamExt::next(&mut socket).await;
        let answer = answer.expect("one").map_err(io::Error::other)?;
        assert_eq!(answer.to_text().map_err(io::Error::other)?, "hello");
        server.await?
    })
}

#[test]
fn sockets_and_timers_of_async_io_run_as_they_are() -> io::Result<()> {
    run(async {
        let listener = async_net::TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let client = spawn(async move {
            let mut stream = async_net::TcpStream::connect(address).await?;
            async_io::Timer::after(Duration::from_millis(2)).await;
            stream.write_all(b"ping").await
        });
        let (mut stream, _) = listener.accept().await?;
        let mut text = [0; 4];
        stream.read_exact(&mut text).await?;
        client.await?
    })
}

#[test]
fn what_asks_for_tokio_s_context_has_it() -> io::Result<()> {
    run_with_tokio(async {
        tokio::time::sleep(Duration::from_millis(2)).await;
        let task = spawn(async {
            let late = tokio::time::timeout(Duration::from_millis(2), std::future::pending::<()>());
            assert!(late.await.is_err());
            tokio::spawn(async { 7 }).await
        });
        assert_eq!(task.await?.map_err(io::Error::other)?, 7);
        unblock(|| drop(tokio::runtime::Handle::current())).await?;
        // A task of this runtime that blocks keeps those of tokio from nothing.
        let blocks = spawn(async { std::thread::sleep(Duration::from_millis(20)) });
        tokio::time::sleep(Duration::from_millis(2)).await;
        blocks.await?;
        Ok(())
    })
}

#[test]
fn axum_serves_by_itself_in_tokio_s_context() -> io::Result<()> {
    run_with_tokio(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let address: SocketAddr = listener.local_addr()?;
        let router = axum::Router::new().route("/", axum::routing::get(|| async { "hello\n" }));
        let server = spawn(async move { axum::serve(listener, router).await });
        assert_eq!(http::get(address, "/").await?, "hello\n");
        server.abort();
        Ok(())
    })
}

#[test]
fn a_future_of_tokio_s_runs_in_async_compat() -> io::Result<()> {
    use async_compat::CompatExt;
    run(async {
        let future = async {
            tokio::time::sleep(Duration::from_millis(2)).await;
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
            listener.local_addr()
        };
        let address = spawn(future.compat()).await??;
        assert!(address.ip().is_loopback());
        Ok(())
    })
}
