//! The examples as processes of their own, and clients that talk to them.
#![cfg(unix)]

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Instant;

#[path = "../../socknotify/tests/support/example.rs"]
mod example;

use example::{Example, PATIENCE, expect, expect_end, much};

#[test]
fn tokio_echoes() -> io::Result<()> {
    it_echoes(env!("CARGO_BIN_EXE_tokio"), interrupt)
}

#[test]
fn the_selector_echoes() -> io::Result<()> {
    it_echoes(env!("CARGO_BIN_EXE_selector"), Example::stop)
}

/// A server, and how to end it.
fn it_echoes(program: &str, end: fn(Example) -> io::Result<()>) -> io::Result<()> {
    let server = Example::start(program, &[])?;
    thread::scope(|scope| {
        for _ in 0..8 {
            let client = server.connect().expect("it listens");
            scope.spawn(move || {
                for number in 0..200 {
                    let message = number.to_string();
                    (&client)
                        .write_all(message.as_bytes())
                        .expect("it is taken");
                    expect(&client, message.as_bytes());
                }
                client.shutdown(Shutdown::Write).expect("it is open");
                expect_end(&client);
            });
        }
    });
    end(server)
}

#[test]
fn tokio_holds_back_who_does_not_read() -> io::Result<()> {
    it_holds_back_who_does_not_read(env!("CARGO_BIN_EXE_tokio"), interrupt)
}

#[test]
fn the_selector_holds_back_who_does_not_read() -> io::Result<()> {
    it_holds_back_who_does_not_read(env!("CARGO_BIN_EXE_selector"), Example::stop)
}

fn it_holds_back_who_does_not_read(
    program: &str,
    end: fn(Example) -> io::Result<()>,
) -> io::Result<()> {
    let server = Example::start(program, &[])?;
    let client = server.connect()?;
    let much = much();
    thread::scope(|scope| {
        scope.spawn(|| -> io::Result<()> {
            (&client).write_all(&much)?;
            client.shutdown(Shutdown::Write)
        });
        let mut found = Vec::new();
        (&client).read_to_end(&mut found).expect("it comes back");
        assert!(found == much, "{} bytes", found.len());
    });
    end(server)
}

#[test]
fn tokio_serves_others_beside_one_that_sends_as_fast_as_it_can() -> io::Result<()> {
    beside_one_that_is_greedy(env!("CARGO_BIN_EXE_tokio"), interrupt, serves_others)
}

#[test]
fn the_selector_serves_others_beside_one_that_sends_as_fast_as_it_can() -> io::Result<()> {
    beside_one_that_is_greedy(env!("CARGO_BIN_EXE_selector"), Example::stop, serves_others)
}

fn serves_others(server: &Example) -> io::Result<()> {
    for _ in 0..40 {
        let client = server.connect()?;
        (&client).write_all(b"ping")?;
        expect(&client, b"ping");
    }
    Ok(())
}

#[test]
fn tokio_closes_its_listener_at_once_when_it_ends() -> io::Result<()> {
    beside_one_that_is_greedy(env!("CARGO_BIN_EXE_tokio"), interrupt, |server| {
        signal(server, rustix::process::Signal::TERM)?;
        while server.connect().is_ok() {}
        Ok(())
    })
}

#[test]
fn tokio_answers_who_has_connected_before_it_ends() -> io::Result<()> {
    use rustix::process::Signal;

    let server = Example::start(env!("CARGO_BIN_EXE_tokio"), &[])?;
    signal(&server, Signal::STOP)?;
    let mut clients = Vec::new();
    for _ in 0..100 {
        let mut client = server.connect()?;
        client.write_all(b"ping")?;
        clients.push(client);
    }
    signal(&server, Signal::TERM)?;
    signal(&server, Signal::CONT)?;
    for client in clients {
        expect(&client, b"ping");
        expect_end(&client);
    }
    interrupt(server)
}

/// Does something while a client sends as fast as it can, and asserts that it need not wait until that has no more.
fn beside_one_that_is_greedy(
    program: &str,
    end: fn(Example) -> io::Result<()>,
    act: fn(&Example) -> io::Result<()>,
) -> io::Result<()> {
    let server = Example::start(program, &[])?;
    let greedy = server.connect()?;
    let (begin, is_done) = (Instant::now(), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            let chunk = vec![b'x'; 1 << 20];
            while !is_done.load(Relaxed) && begin.elapsed() < PATIENCE {
                // It may end while others are served.
                if (&greedy).write_all(&chunk).is_err() {
                    break;
                }
            }
            let _ = greedy.shutdown(Shutdown::Write);
        });
        let mut chunk = vec![0; 1 << 20];
        (&greedy).read_exact(&mut chunk).expect("it is served");
        scope.spawn(|| {
            let mut chunk = chunk;
            while matches!((&greedy).read(&mut chunk), Ok(1..)) {}
        });
        let done = act(&server);
        is_done.store(true, Relaxed);
        done
    })?;
    assert!(begin.elapsed() < PATIENCE, "it was served alone");
    end(server)
}

#[cfg(all(target_os = "linux", feature = "tls"))]
mod https {
    use std::io::{BufRead, BufReader};
    use std::net::TcpStream;
    use std::path::Path;
    use std::sync::Arc;

    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject;
    use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

    use super::*;

    const DIRECTORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/certificate");

    type Client = BufReader<StreamOwned<ClientConnection, TcpStream>>;

    fn start(database: &Path) -> io::Result<Example> {
        let files = ["certificate.pem", "key.pem"];
        let mut arguments = files.map(|file| format!("{DIRECTORY}/{file}")).to_vec();
        arguments.push(database.display().to_string());
        Example::start(env!("CARGO_BIN_EXE_https"), &arguments)
    }

    fn connect(server: &Example) -> io::Result<Client> {
        let certificate = CertificateDer::from_pem_file(format!("{DIRECTORY}/certificate.pem"));
        let mut roots = RootCertStore::empty();
        let added = roots.add(certificate.map_err(io::Error::other)?);
        added.map_err(io::Error::other)?;
        let config = ClientConfig::builder().with_root_certificates(roots);
        let name = "localhost".try_into().expect("a name");
        let tls = ClientConnection::new(Arc::new(config.with_no_client_auth()), name);
        let stream = StreamOwned::new(tls.map_err(io::Error::other)?, server.connect()?);
        Ok(BufReader::new(stream))
    }

    /// The status, whether the connection goes on, and the body.
    fn answer(client: &mut Client) -> io::Result<(String, bool, String)> {
        let (mut status, mut line, mut length, mut goes_on) =
            (String::new(), String::new(), 0, true);
        client.read_line(&mut status)?;
        loop {
            line.clear();
            client.read_line(&mut line)?;
            match line.trim_end().split_once(": ") {
                Some(("content-length", value)) => length = value.parse().expect("a number"),
                Some(("connection", value)) => goes_on = value != "close",
                Some(_) => {}
                None => break,
            }
        }
        let mut body = vec![0; length];
        client.read_exact(&mut body)?;
        let status = status.split(' ').nth(1).unwrap_or_default().to_owned();
        Ok((status, goes_on, String::from_utf8(body).expect("text")))
    }

    /// What it was told is there after an end at SIGTERM, which answers what has come.
    #[test]
    fn https_keeps_notes() -> io::Result<()> {
        const NOTES: usize = 200;
        let directory = tempfile::tempdir()?;
        let database = directory.path().join("notes.db");
        let server = start(&database)?;
        // It does not keep others waiting.
        let _silent = server.connect()?;
        let mut client = connect(&server)?;
        let post = |text: &str| {
            let length = text.len();
            format!("POST /notes HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n{text}")
        };
        let get = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n");
        let note = "x".repeat(50_000);
        for (request, expected) in [
            (post("one"), ("201", "note 1\n")),
            (get("/notes/1"), ("200", "one")),
            (get("/notes/2"), ("404", "no such note\n")),
            (post(&note), ("201", "note 2\n")),
            (get("/notes/2"), ("200", &*note)),
            (get("/other"), ("404", "POST /notes, GET /notes/ID\n")),
        ] {
            client.get_mut().write_all(request.as_bytes())?;
            let (status, goes_on, body) = answer(&mut client)?;
            assert_eq!((&*status, &*body), expected, "{request:.60}");
            assert!(goes_on);
        }
        client
            .get_mut()
            .write_all(post("more").repeat(NOTES).as_bytes())?;
        client.get_mut().flush()?;
        assert_eq!(answer(&mut client)?.2, "note 3\n");
        signal(&server, rustix::process::Signal::TERM)?;
        let mut kept = 3;
        loop {
            let (status, goes_on, _) = answer(&mut client)?;
            assert_eq!(status, "201");
            kept += 1;
            if !goes_on {
                break;
            }
        }
        expect_end(&mut client);
        interrupt(server)?;
        let server = start(&database)?;
        let mut client = connect(&server)?;
        client
            .get_mut()
            .write_all(get(&format!("/notes/{kept}")).as_bytes())?;
        assert_eq!(answer(&mut client)?.2, "more");
        client
            .get_mut()
            .write_all(get(&format!("/notes/{}", kept + 1)).as_bytes())?;
        assert_eq!(answer(&mut client)?.0, "404");
        interrupt(server)
    }
}

#[cfg(feature = "websocket")]
mod websocket {
    use std::net::TcpStream;

    use tungstenite::protocol::frame::Frame;
    use tungstenite::protocol::frame::coding::{Data, OpCode};
    use tungstenite::{Error, Message, WebSocket};

    use super::*;

    const HANDSHAKE: &str = "GET /rooms/a HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\n\
        Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

    fn start() -> io::Result<Example> {
        Example::start(env!("CARGO_BIN_EXE_websocket"), &[])
    }

    fn join(server: &Example, room: &str) -> io::Result<WebSocket<TcpStream>> {
        let uri = format!("ws://{}/rooms/{room}", server.address);
        let joined = tungstenite::client(uri, server.connect()?);
        let (mut member, _) = joined.map_err(io::Error::other)?;
        assert_eq!(text(&mut member), "welcome");
        Ok(member)
    }

    #[track_caller]
    fn text(member: &mut WebSocket<TcpStream>) -> String {
        let message = member.read().expect("it is told");
        message.into_text().expect("it is text").to_string()
    }

    /// What it answers to a request that is the last, from its status on.
    fn answer(server: &Example, head: &str, body: &[u8]) -> io::Result<String> {
        let mut client = server.connect()?;
        let length = body.len();
        let head = format!("{head}\r\nHost: a\r\nConnection: close\r\nContent-Length: {length}");
        client.write_all(&[head.as_bytes(), b"\r\n\r\n", body].concat())?;
        let mut text = String::new();
        client.read_to_string(&mut text)?;
        Ok(text["HTTP/1.1 ".len()..].to_owned())
    }

    /// How many members it says there are.
    fn post(server: &Example, room: &str, text: &str) -> io::Result<usize> {
        let answer = answer(
            server,
            &format!("POST /rooms/{room} HTTP/1.1"),
            text.as_bytes(),
        )?;
        let count = answer.trim_end().rsplit_once("members: ");
        Ok(count.expect("it says so").1.parse().expect("a number"))
    }

    #[test]
    fn members_and_requests_talk_to_a_room() -> io::Result<()> {
        let server = start()?;
        let (mut one, mut two) = (join(&server, "a")?, join(&server, "a")?);
        let mut other = join(&server, "b")?;
        assert_eq!(post(&server, "a", "from outside")?, 2);
        assert_eq!(post(&server, "b", "to another")?, 1);
        assert_eq!(post(&server, "c", "to nobody")?, 0);
        one.send("from one".into()).expect("it is taken");
        for member in [&mut one, &mut two] {
            assert_eq!(text(member), "from outside");
            assert_eq!(text(member), "from one");
        }
        assert_eq!(text(&mut other), "to another");
        // The answer to a close frame.
        one.close(None).expect("it is taken");
        assert!(matches!(one.read(), Ok(Message::Close(None))));
        assert!(matches!(one.read(), Err(Error::ConnectionClosed)));
        drop((two, other));
        interrupt(server)
    }

    #[test]
    fn a_frame_that_comes_with_the_handshake_is_told() -> io::Result<()> {
        let server = start()?;
        let mut client = server.connect()?;
        let mut bytes = HANDSHAKE.as_bytes().to_vec();
        let mut frame = Frame::message("first", OpCode::Data(Data::Text), true);
        frame.header_mut().mask = Some([1, 2, 3, 4]);
        frame.format(&mut bytes).expect("memory takes everything");
        client.write_all(&bytes)?;
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(0);
            let end = head.len() - 1;
            client.read_exact(&mut head[end..])?;
        }
        let head = String::from_utf8(head).expect("text").to_lowercase();
        assert!(head.starts_with("http/1.1 101 "), "{head}");
        let accept = "\r\nsec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo=\r\n";
        assert!(head.contains(accept), "{head}");
        expect(&client, b"\x81\x07welcome\x81\x05first");
        drop(client);
        interrupt(server)
    }

    #[test]
    fn pings_are_answered() -> io::Result<()> {
        let server = start()?;
        let mut member = join(&server, "a")?;
        let ping = Message::Ping("what".into());
        member.send(ping).expect("it is taken");
        let pong = member.read().expect("it is answered");
        assert_eq!(pong, Message::Pong("what".into()));
        drop(member);
        interrupt(server)
    }

    #[test]
    fn what_is_wrong_is_refused() -> io::Result<()> {
        let server = start()?;
        for (request, body, status) in [
            ("GET /", &b""[..], "200"),
            ("GET /rooms/a/b", b"", "404"),
            ("DELETE /rooms/a", b"", "405"),
            ("POST /rooms/a", b"\xff", "400"),
            ("POST /rooms/a", &[b'a'; 20_000], "413"),
        ] {
            let answer = answer(&server, &format!("{request} HTTP/1.1"), body)?;
            assert!(answer.starts_with(status), "{request}: {answer}");
        }
        for line in [
            "Upgrade: websocket\r\n",
            "Connection: Upgrade\r\n",
            "Sec-WebSocket-Version: 13\r\n",
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n",
        ] {
            let handshake = HANDSHAKE.replace(line, "");
            let mut client = server.connect()?;
            client.write_all(handshake.as_bytes())?;
            expect(&client, b"HTTP/1.1 400 ");
        }
        let mut member = join(&server, "a")?;
        // It is not read to its end.
        let _ = member.send("a".repeat(20_000).into());
        assert!(matches!(
            member.read(),
            Ok(Message::Close(None)) | Err(Error::Io(_))
        ));
        interrupt(server)
    }

    #[test]
    fn a_member_that_does_not_read_is_dropped_while_others_go_on() -> io::Result<()> {
        /// More than fits in the buffers of a connection, and in the queue.
        const MOST: usize = 4_096;
        let server = start()?;
        let (slow, mut other) = (join(&server, "a")?, join(&server, "a")?);
        let message = "x".repeat(16 << 10);
        let (begin, mut told) = (Instant::now(), 0);
        while post(&server, "a", &message)? == 2 {
            assert_eq!(text(&mut other), message);
            told += 1;
            assert!(told < MOST, "it is not dropped");
        }
        assert_eq!(text(&mut other), message);
        assert!(begin.elapsed() < PATIENCE, "the others waited for it");
        let received = io::copy(&mut slow.into_inner(), &mut io::sink())?;
        let most = told * message.len();
        assert!((1..most as u64).contains(&received), "{received} of {most}");
        assert_eq!(post(&server, "a", "more")?, 1);
        assert_eq!(text(&mut other), "more");
        drop(other);
        interrupt(server)
    }

    #[test]
    fn members_are_told_when_it_ends() -> io::Result<()> {
        let mut server = start()?;
        let (one, two) = (join(&server, "a")?, join(&server, "b")?);
        signal(&server, rustix::process::Signal::TERM)?;
        for mut member in [one, two] {
            assert!(matches!(member.read(), Ok(Message::Close(None))));
            assert!(matches!(member.read(), Err(Error::ConnectionClosed)));
        }
        let status = server.process.wait()?;
        assert!(status.success(), "{status}");
        Ok(())
    }
}

fn signal(server: &Example, signal: rustix::process::Signal) -> io::Result<()> {
    let process = rustix::process::Pid::from_child(&server.process);
    Ok(rustix::process::kill_process(process, signal)?)
}

/// It ends in good order, also if it is about to end.
fn interrupt(mut server: Example) -> io::Result<()> {
    let _ = signal(&server, rustix::process::Signal::INT);
    let status = server.process.wait()?;
    assert!(status.success(), "{status}");
    Ok(())
}
