//! [`serve`], with an axum `Router`.

use std::future::{pending, ready};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::routing::get;
use axum::{Extension, Router};
use socknotify_async::hyper_rt::{Peer, Serve, here, serve};
use socknotify_async::{Handle, JoinHandle, Runtime, TcpListener};

const GRACE: Duration = Duration::from_secs(60);

/// A runtime with tokio's context, which axum's websockets ask for.
fn runtime() -> (Runtime, tokio::runtime::Runtime) {
    let tokio = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    let context = tokio.handle().clone();
    let runtime = Runtime::builder().inside(move |run| {
        let _entered = context.enter();
        run();
    });
    (runtime.build().expect("a runtime"), tokio)
}

/// Begins to serve, and returns what ends it.
fn begin(
    runtime: &Runtime,
    router: Router,
    grace: Duration,
    with: impl FnOnce(Serve<Router>) -> Serve<Router>,
) -> (SocketAddr, impl FnOnce(), JoinHandle<usize>) {
    let (end, ended) = tokio::sync::oneshot::channel::<()>();
    let listener = runtime
        .block_on(async { TcpListener::bind("127.0.0.1:0") })
        .expect("a port is free");
    let address = listener.local_addr().expect("it is bound");
    let server = with(serve(listener, router));
    let served = runtime.spawn(server.until(async { drop(ended.await) }, grace));
    (address, move || drop(end), served)
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("it listens");
    stream
        .set_read_timeout(Some(GRACE))
        .expect("it is connected");
    stream
}

fn ask(stream: &mut TcpStream, path: &str) {
    write!(stream, "GET {path} HTTP/1.1\r\nHost: it\r\n\r\n").expect("it is open");
}

/// Receives until this.
fn expect(stream: &mut TcpStream, end: &str) -> String {
    let mut text = Vec::new();
    while !text.ends_with(end.as_bytes()) {
        let mut byte = [0];
        stream
            .read_exact(&mut byte)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&text)));
        text.extend(byte);
    }
    String::from_utf8_lossy(&text).into_owned()
}

#[test]
fn requests_are_answered_and_know_their_peer() {
    let (runtime, _tokio) = runtime();
    let whose = async |Extension(Peer(address)): Extension<Peer>| address.to_string();
    let router = Router::new().route("/", get(whose));
    let with = |it: Serve<Router>| it.head_time(Duration::MAX);
    let (address, end, served) = begin(&runtime, router, GRACE, with);
    let mut client = connect(address);
    let ours = client.local_addr().expect("it is connected").to_string();
    for _ in 0..3 {
        ask(&mut client, "/");
        let answer = expect(&mut client, &ours);
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    }
    end();
    assert_eq!(runtime.block_on(served).expect("no panic"), 0);
    assert_eq!(client.read(&mut [0]).expect("it is closed"), 0);
}

#[test]
fn what_has_begun_is_answered_at_the_end() {
    let (runtime, _tokio) = runtime();
    let (begun, has_begun) = mpsc::channel();
    let (go, goes) = mpsc::channel::<()>();
    let goes = std::sync::Arc::new(std::sync::Mutex::new(goes));
    // It blocks.
    let slow = async move || {
        begun.send(()).expect("the test waits");
        goes.lock()
            .expect("no panic")
            .recv()
            .expect("the test goes on");
        "done"
    };
    let router = Router::new().route("/", get(slow));
    let (address, end, served) = begin(&runtime, router, GRACE, |it| it);
    let (mut client, mut idle) = (connect(address), connect(address));
    ask(&mut client, "/");
    has_begun.recv().expect("it begins");
    end();
    assert_eq!(idle.read(&mut [0]).unwrap_or(0), 0, "it is idle");
    go.send(()).expect("it waits");
    expect(&mut client, "done");
    assert_eq!(client.read(&mut [0]).expect("it is closed"), 0);
    assert_eq!(runtime.block_on(served).expect("no panic"), 0);
    TcpStream::connect(address).expect_err("nobody listens");
}

#[test]
fn what_does_not_end_is_cut_off_and_counted() {
    let (runtime, _tokio) = runtime();
    let (begun, has_begun) = mpsc::channel();
    let never = async move || {
        begun.send(()).expect("the test waits");
        pending::<&'static str>().await
    };
    let router = Router::new().route("/", get(never));
    let grace = Duration::from_secs(3);
    let router = router.route("/idle", get(async || "idle"));
    let (address, end, served) = begin(&runtime, router, grace, |it| it);
    let mut clients = [connect(address), connect(address)];
    for client in &mut clients {
        ask(client, "/");
        has_begun.recv().expect("it begins");
    }
    // It is closed in time, and so not cut off.
    let mut idle = connect(address);
    ask(&mut idle, "/idle");
    expect(&mut idle, "idle");
    end();
    assert_eq!(runtime.block_on(served).expect("no panic"), 2);
    for client in &mut clients {
        assert!(matches!(client.read(&mut [0]), Ok(0) | Err(_)));
    }
}

/// Also those that were upgraded.
#[test]
fn no_more_connections_are_served_than_may_be() {
    let (runtime, _tokio) = runtime();
    let handle = runtime.handle().clone();
    let echo = move |upgrade: WebSocketUpgrade| {
        let handle = handle.clone();
        ready(upgrade.on_upgrade(here(async move |mut socket: WebSocket| {
            assert!(Handle::try_current().is_some(), "it runs on this runtime");
            assert!(handle.tasks() > 0);
            while let Some(Ok(Message::Text(text))) = socket.recv().await {
                socket.send(Message::Text(text)).await.expect("it is open");
            }
        })))
    };
    let router = Router::new()
        .route("/socket", get(echo))
        .route("/", get(async || "hello"));
    let (address, end, served) = begin(&runtime, router, GRACE, |it| it.connections(1));
    let mut socket = connect(address);
    socket
        .write_all(
            b"GET /socket HTTP/1.1\r\nHost: it\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
              Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
        )
        .expect("it is open");
    expect(&mut socket, "\r\n\r\n");
    // Another one waits in the backlog, until this one has ended.
    let mut other = connect(address);
    ask(&mut other, "/");
    // A masked text, "hi", with a mask of zeros.
    socket
        .write_all(&[0x81, 0x82, 0, 0, 0, 0, b'h', b'i'])
        .expect("it is open");
    expect(&mut socket, "hi");
    other.set_nonblocking(true).expect("it is open");
    let waits = other.read(&mut [0]).expect_err("it waits");
    assert_eq!(waits.kind(), std::io::ErrorKind::WouldBlock);
    other.set_nonblocking(false).expect("it is open");
    drop(socket);
    expect(&mut other, "hello");
    end();
    assert_eq!(runtime.block_on(served).expect("no panic"), 0);
}

#[test]
fn who_sends_no_head_in_time_is_disconnected() {
    let (runtime, _tokio) = runtime();
    let router = Router::new().route("/", get(async || "hello"));
    let time = Duration::from_millis(50);
    let (address, end, served) = begin(&runtime, router, GRACE, |it| it.head_time(time));
    let mut slow = connect(address);
    slow.write_all(b"GET / HTTP/1.1\r\nHo").expect("it is open");
    let mut rest = Vec::new();
    let _ = slow.read_to_end(&mut rest);
    let rest = String::from_utf8(rest).expect("text");
    assert!(
        rest.is_empty() || rest.starts_with("HTTP/1.1 408 "),
        "{rest}"
    );
    end();
    assert_eq!(runtime.block_on(served).expect("no panic"), 0);
}

/// Which version of HTTP it speaks is not known before its first bytes, or before it is no beginning of HTTP/2.
#[test]
fn who_begins_nothing_in_time_is_disconnected() {
    let (runtime, _tokio) = runtime();
    let router = Router::new().route("/", get(async || "hello"));
    let time = Duration::from_millis(50);
    let with = |it: Serve<Router>| it.head_time(time).connections(2);
    let (address, end, served) = begin(&runtime, router, GRACE, with);
    for begins_with in ["", "PRI * HT"] {
        let mut silent = connect(address);
        write!(silent, "{begins_with}").expect("it is open");
        let received = silent.read(&mut [0]).map_err(|error| error.kind());
        assert!(
            matches!(received, Ok(0) | Err(ErrorKind::ConnectionReset)),
            "{begins_with}: {received:?}"
        );
    }
    end();
    assert_eq!(runtime.block_on(served).expect("no panic"), 0);
}

/// Others would wait for its place for ever.
#[test]
fn who_takes_nothing_of_an_answer_is_disconnected() {
    let (runtime, _tokio) = runtime();
    let much = async || vec![b'x'; 64 << 20];
    let router = Router::new().route("/much", get(much));
    let router = router.route("/", get(async || "next"));
    let with = |it: Serve<Router>| it.connections(1).stall(Duration::from_millis(300));
    let (address, end, served) = begin(&runtime, router, GRACE, with);
    let mut stalls = connect(address);
    ask(&mut stalls, "/much");
    let mut next = connect(address);
    ask(&mut next, "/");
    expect(&mut next, "next");
    end();
    assert_eq!(runtime.block_on(served).expect("no panic"), 0);
}

/// More slowly than the system says that there is room; and it is there to the last.
#[test]
fn who_takes_an_answer_slowly_gets_all_of_it() {
    const LENGTH: usize = 16 << 20;
    let (runtime, _tokio) = runtime();
    let router = Router::new().route("/", get(async || vec![b'x'; LENGTH]));
    let with = |it: Serve<Router>| it.stall(Duration::from_secs(2));
    let (address, end, served) = begin(&runtime, router, GRACE, with);
    let mut client = connect(address);
    ask(&mut client, "/");
    expect(&mut client, "\r\n\r\n");
    let (begin, mut left) = (Instant::now(), LENGTH);
    while left > 0 {
        let mut bytes = vec![0; left.min(64 << 10)];
        client.read_exact(&mut bytes).expect("it is not given up");
        left -= bytes.len();
        if begin.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(100));
        }
    }
    end();
    assert_eq!(runtime.block_on(served).expect("no panic"), 0);
}

/// A server whose future is dropped closes its connections.
#[test]
fn a_server_that_is_dropped_cuts_off() {
    let (runtime, _tokio) = runtime();
    let router = Router::new().route("/", get(async || "hello"));
    let (address, _end, served) = begin(&runtime, router, GRACE, |it| it);
    let mut client = connect(address);
    ask(&mut client, "/");
    expect(&mut client, "hello");
    served.abort();
    assert!(matches!(client.read(&mut [0]), Ok(0) | Err(_)));
}
