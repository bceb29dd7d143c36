//! The example to copy, as a process: notes, events and websockets; and a stop by a signal under load.
#![cfg(unix)]

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use futures_util::{SinkExt, StreamExt};
use socknotify_async::{Runtime, timeout};

#[path = "../examples/service.rs"]
mod service;

const PATIENCE: Duration = Duration::from_secs(60);

/// Only in a process of its own.
#[test]
#[ignore = "the other tests run it"]
fn serves() {
    service::run("127.0.0.1:0", ":memory:").expect("it serves");
}

struct Server {
    process: Child,
    address: SocketAddr,
    /// What it logs.
    lines: mpsc::Receiver<String>,
}

impl Server {
    fn start() -> io::Result<Self> {
        let mut process = Command::new(std::env::current_exe()?)
            .args(["--exact", "serves", "--ignored", "--nocapture"])
            .stdout(Stdio::piped())
            .spawn()?;
        let output = BufReader::new(process.stdout.take().expect("it is piped"));
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        let address = loop {
            let line = lines.recv_timeout(PATIENCE).map_err(io::Error::other)?;
            if let Some((_, address)) = line.split_once("serving on ") {
                break address.parse().map_err(io::Error::other)?;
            }
        };
        Ok(Server {
            process,
            address,
            lines,
        })
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    fn stop(&self) {
        let id = libc::pid_t::try_from(self.process.id()).expect("a process");
        // SAFETY: it sends a signal to a child that was not waited for.
        assert_eq!(unsafe { libc::kill(id, libc::SIGTERM) }, 0);
    }

    /// It ends well.
    fn ended(mut self) -> io::Result<()> {
        let begin = Instant::now();
        loop {
            if let Some(status) = self.process.try_wait()? {
                assert!(status.success(), "{status}");
                return Ok(());
            }
            assert!(begin.elapsed() < PATIENCE, "it does not end");
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn curl(arguments: &[&str]) -> io::Result<String> {
    let output = Command::new("curl").arg("-sS").args(arguments).output()?;
    assert!(output.status.success(), "{output:?}");
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn notes_are_kept_and_logged_by_http1_and_http2() -> io::Result<()> {
    let server = Server::start()?;
    let url = server.url("/notes");
    curl(&["-d", "buy milk", &url])?;
    curl(&["--http2-prior-knowledge", "-d", "sell it", &url])?;
    assert_eq!(curl(&[&url])?, "buy milk\nsell it\n");
    let is_logged = |line: String| line.starts_with("POST /notes 201");
    let logged = (0..3).filter(|_| server.lines.recv_timeout(PATIENCE).is_ok_and(is_logged));
    assert_eq!(logged.count(), 2);
    server.stop();
    server.ended()
}

#[test]
fn notes_go_to_events_and_websockets_until_a_signal_comes() -> io::Result<()> {
    let server = Server::start()?;
    let mut events = Command::new("curl")
        .args(["-sSN", &server.url("/events")])
        .stdout(Stdio::piped())
        .spawn()?;
    let mut output = BufReader::new(events.stdout.take().expect("it is piped"));
    Runtime::new()?.block_on(async {
        let stream = socknotify_async::TcpStream::connect(server.address).await?;
        let url = format!("ws://{}/socket", server.address);
        let connected = tokio_tungstenite::client_async(url, stream).await;
        let (mut socket, _) = connected.map_err(io::Error::other)?;
        // curl may not listen yet.
        let mut line = String::new();
        let heard = thread::spawn(move || {
            while !line.contains("data:") {
                line.clear();
                output.read_line(&mut line)?;
            }
            io::Result::Ok((line, output))
        });
        while !heard.is_finished() {
            socket
                .send("hello".into())
                .await
                .map_err(io::Error::other)?;
            let answer = timeout(PATIENCE, socket.next()).await?.expect("one");
            assert_eq!(
                answer.map_err(io::Error::other)?.to_text().expect("text"),
                "hello"
            );
        }
        let (line, mut output) = heard.join().expect("no panic")?;
        assert_eq!(line, "data: hello\n");
        server.stop();
        // Both streams end.
        loop {
            let message = timeout(PATIENCE, socket.next()).await?;
            if message.is_none_or(|it| it.is_err() || it.is_ok_and(|it| it.is_close())) {
                break;
            }
        }
        output.read_to_string(&mut String::new())?;
        io::Result::Ok(())
    })?;
    assert!(events.wait()?.success());
    server.ended()
}

/// Notes by one connection, until it is closed. Counts those that were answered.
fn add_notes(address: SocketAddr, is_over: &AtomicBool, count: &AtomicUsize) -> io::Result<()> {
    let Ok(stream) = TcpStream::connect(address) else {
        return Ok(());
    };
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut reader = BufReader::new(&stream);
    loop {
        let request = "POST /notes HTTP/1.1\r\nhost: localhost\r\ncontent-length: 4\r\n\r\nnote";
        if (&stream).write_all(request.as_bytes()).is_err() {
            break;
        }
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            match reader.read_line(&mut head) {
                Ok(0) | Err(_) if head.is_empty() && is_over.load(Ordering::SeqCst) => {
                    return Ok(());
                }
                Ok(0) => return Err(io::Error::other("half an answer, or none before the stop")),
                Ok(_) => {}
                Err(error) => return Err(error),
            }
        }
        assert!(head.starts_with("HTTP/1.1 201"), "{head}");
        count.fetch_add(1, Ordering::SeqCst);
    }
    Ok(())
}

#[test]
fn a_signal_under_load_leaves_no_answer_unfinished() -> io::Result<()> {
    let server = Server::start()?;
    let (address, is_over, count) = (server.address, AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        let clients: Vec<_> = (0..16)
            .map(|_| scope.spawn(|| add_notes(address, &is_over, &count)))
            .collect();
        thread::sleep(Duration::from_millis(300));
        let begin = Instant::now();
        while count.load(Ordering::SeqCst) == 0 {
            assert!(begin.elapsed() < PATIENCE, "none is answered");
            thread::sleep(Duration::from_millis(1));
        }
        is_over.store(true, Ordering::SeqCst);
        server.stop();
        clients
            .into_iter()
            .try_for_each(|it| it.join().expect("no panic"))
    })?;
    server.ended()
}
