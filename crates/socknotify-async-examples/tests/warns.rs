//! Handlers that run on tokio's threads, where they may not block, without anybody having said so.
#![cfg(all(unix, debug_assertions))]

use std::io::{self, Read, Write};
use std::net::{self, SocketAddr};
use std::process::Command;
use std::thread;

use axum::routing::get;
use axum::{Router, serve};
use socknotify_async::{TcpListener, TcpStream, hyper_rt};

use crate::support::{PATIENCE, run_with_tokio};

#[allow(dead_code, reason = "these need tokio")]
#[path = "support/run.rs"]
mod support;

/// For `axum::serve`, which spawns a task of tokio's for each connection.
struct Listener(TcpListener);

impl serve::Listener for Listener {
    type Io = TcpStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (TcpStream, SocketAddr) {
        self.0.accept().await.expect("a client comes")
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }
}

fn router() -> Router {
    Router::new().route("/", get(async || "hello"))
}

/// Asks once. When it is answered, the server may end.
fn asks(address: SocketAddr) -> tokio::sync::oneshot::Receiver<()> {
    let (answered, ends) = tokio::sync::oneshot::channel();
    thread::spawn(move || {
        let mut client = net::TcpStream::connect(address).expect("it listens");
        client.set_read_timeout(Some(PATIENCE)).expect("it is open");
        let request = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        client.write_all(request).expect("it is taken");
        let mut answer = String::new();
        client.read_to_string(&mut answer).expect("it is answered");
        assert!(answer.ends_with("hello"), "{answer}");
        answered.send(())
    });
    ends
}

/// Only in a process of its own.
#[test]
#[ignore = "another test runs it"]
fn by_axum() -> io::Result<()> {
    run_with_tokio(async {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let ended = asks(listener.local_addr()?);
        let server = axum::serve(Listener(listener), router());
        let ended = async { ended.await.expect("it is answered") };
        server.with_graceful_shutdown(ended).await
    })
}

/// The same.
#[test]
#[ignore = "another test runs it"]
fn by_ours() -> io::Result<()> {
    run_with_tokio(async {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let ended = asks(listener.local_addr()?);
        let ended = async { ended.await.expect("it is answered") };
        let cut_off = hyper_rt::serve(listener, router())
            .until(ended, PATIENCE)
            .await;
        assert_eq!(cut_off, 0);
        Ok(())
    })
}

/// How often a server warns.
fn warnings(server: &str) -> io::Result<usize> {
    let output = Command::new(std::env::current_exe()?)
        .args(["--exact", server, "--ignored", "--nocapture"])
        .output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    Ok(said
        .matches("on its thread, where nothing may block")
        .count())
}

#[test]
fn who_serves_on_tokio_s_threads_is_warned_once() -> io::Result<()> {
    assert_eq!(warnings("by_axum")?, 1);
    assert_eq!(warnings("by_ours")?, 0);
    Ok(())
}
