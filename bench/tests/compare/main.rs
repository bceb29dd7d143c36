//! The servers that `docs/COMPARE.md` compares: the same work, done with four libraries.
#![cfg(all(target_os = "linux", not(kqueue_stand_in)))]

mod mio_loop;
mod raw_epoll;
mod socknotify_owned;
mod tokio_tasks;

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::time::Duration;
use std::{fs, thread};

#[test]
fn socknotify_echoes() {
    expect_echo(socknotify_owned::serve);
}

#[test]
fn tokio_echoes() {
    expect_echo(|listener| {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_io()
            .build()?;
        listener.set_nonblocking(true)?;
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener)?;
            tokio_tasks::serve(listener).await
        })
    });
}

#[test]
fn mio_echoes() {
    expect_echo(|listener| {
        listener.set_nonblocking(true)?;
        mio_loop::serve(mio::net::TcpListener::from_std(listener))
    });
}

#[test]
fn raw_epoll_echoes() {
    expect_echo(raw_epoll::serve);
}

/// Lines of code: neither empty nor a comment.
#[test]
fn they_are_as_long_as_the_document_says() -> io::Result<()> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let document = fs::read_to_string(here.join("../docs/COMPARE.md"))?;
    for name in ["socknotify_owned", "tokio_tasks", "mio_loop", "raw_epoll"] {
        let program = fs::read_to_string(here.join(format!("tests/compare/{name}.rs")))?;
        let lines = program.lines().map(str::trim_start);
        let count = lines.filter(|it| !it.is_empty() && !it.starts_with("//"));
        let file = format!("bench/tests/compare/{name}.rs) | {} |", count.count());
        assert!(document.contains(&file), "{file}");
    }
    Ok(())
}

/// They echo, also to a client that reads late.
fn expect_echo(serve: impl FnOnce(TcpListener) -> io::Result<()> + Send + 'static) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let address = listener.local_addr().expect("an address");
    thread::spawn(|| serve(listener));
    let mut client = TcpStream::connect(address).expect("a connection");
    // Until the server has no room to answer, and so reads no more.
    let limit = Duration::from_millis(100);
    client.set_write_timeout(Some(limit)).expect("a limit");
    let mut sent = 0;
    while let Ok(length) = client.write(&[b'x'; 4096]) {
        sent += length;
    }
    let mut echoed = vec![0; sent];
    client.read_exact(&mut echoed).expect("everything");
    assert!(echoed.iter().all(|&byte| byte == b'x'));
}
