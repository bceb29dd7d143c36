//! The examples as processes of their own, and clients that talk to them.
#![cfg(unix)]

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread;

#[path = "../../socknotify/tests/support/example.rs"]
mod example;

use example::{Example, expect, expect_end, much};

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
    const MOST: usize = 1 << 30;
    let server = Example::start(program, &[])?;
    let greedy = server.connect()?;
    let (echoed, is_done) = (AtomicUsize::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            let chunk = vec![b'x'; 1 << 20];
            while !is_done.load(Relaxed) && echoed.load(Relaxed) < MOST {
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
            while let Ok(length @ 1..) = (&greedy).read(&mut chunk) {
                echoed.fetch_add(length, Relaxed);
            }
        });
        let done = act(&server);
        is_done.store(true, Relaxed);
        done
    })?;
    assert!(echoed.into_inner() < MOST, "it was served alone");
    end(server)
}

#[cfg(all(target_os = "linux", feature = "tls"))]
mod https {
    use std::io::{BufRead, BufReader};
    use std::net::TcpStream;
    use std::sync::Arc;
    use std::time::Duration;

    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject;
    use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

    use super::*;

    const DIRECTORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/certificate");

    type Client = BufReader<StreamOwned<ClientConnection, TcpStream>>;

    fn start() -> io::Result<Example> {
        let files = ["certificate.pem", "key.pem"];
        Example::start(
            env!("CARGO_BIN_EXE_https"),
            &files.map(|file| format!("{DIRECTORY}/{file}")),
        )
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
                Some(("Content-Length", value)) => length = value.parse().expect("a number"),
                Some(("Connection", value)) => goes_on = value == "keep-alive",
                Some(_) => {}
                None => break,
            }
        }
        let mut body = vec![0; length];
        client.read_exact(&mut body)?;
        let status = status.split(' ').nth(1).unwrap_or_default().to_owned();
        Ok((status, goes_on, String::from_utf8(body).expect("text")))
    }

    #[test]
    fn https_answers_requests_that_come_one_behind_the_other() -> io::Result<()> {
        let server = start()?;
        // It does not keep others waiting.
        let _silent = server.connect()?;
        let mut client = connect(&server)?;
        let body = "x".repeat(50_000);
        let head = "POST /length HTTP/1.1\r\nContent-Length: 50000\r\n\r\n";
        let requests = format!("GET /1 HTTP/1.1\r\n\r\n{head}{body}GET /2 HT");
        client.get_mut().write_all(requests.as_bytes())?;
        client.get_mut().flush()?;
        let goes_on = |body: &str| ("200".to_owned(), true, body.to_owned());
        assert_eq!(answer(&mut client)?, goes_on("you asked for /1\n"));
        assert_eq!(answer(&mut client)?, goes_on("50000 bytes\n"));
        client.get_mut().write_all(b"TP/1.1\r\n\r\n")?;
        assert_eq!(answer(&mut client)?, goes_on("you asked for /2\n"));
        let last = b"GET /3 HTTP/1.1\r\nConnection: close\r\n\r\n";
        client.get_mut().write_all(last)?;
        let (_, goes_on, body) = answer(&mut client)?;
        assert_eq!((goes_on, &*body), (false, "you asked for /3\n"));
        expect_end(&mut client);
        interrupt(server)
    }

    #[test]
    fn https_tells_who_asks_to_send_the_body() -> io::Result<()> {
        let server = start()?;
        let mut client = connect(&server)?;
        let head = "POST /length HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: ";
        for _ in 0..2 {
            // It sends no byte more before it was told.
            write!(client.get_mut(), "{head}5\r\n\r\n")?;
            client.get_mut().flush()?;
            assert_eq!(answer(&mut client)?.0, "100");
            client.get_mut().write_all(b"he")?;
            client.get_mut().flush()?;
            client.get_mut().write_all(b"llo")?;
            assert_eq!(answer(&mut client)?.2, "5 bytes\n");
        }
        // It does not wait.
        write!(client.get_mut(), "{head}5\r\n\r\nhello")?;
        assert_eq!(answer(&mut client)?.2, "5 bytes\n");
        // It is refused.
        write!(client.get_mut(), "{head}9999999\r\n\r\n")?;
        assert_eq!(answer(&mut client)?.0, "413");
        expect_end(&mut client);
        interrupt(server)
    }

    #[test]
    fn https_refuses_what_is_too_large_and_the_answer_arrives() -> io::Result<()> {
        let server = start()?;
        for (request, status) in [
            ("what?\r\n\r\n".to_owned(), "400"),
            (
                "POST / HTTP/1.1\r\nContent-Length: 9999999\r\n\r\n".to_owned(),
                "413",
            ),
            (
                "POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n".to_owned(),
                "400",
            ),
            (
                "POST / HTTP/1.1\r\nContent-Length: 0\r\nContent-Length: 5\r\n\r\n".to_owned(),
                "400",
            ),
            (
                "POST / HTTP/1.1\r\nContent-Length: +5\r\n\r\n".to_owned(),
                "400",
            ),
            (
                "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n".to_owned(),
                "411",
            ),
            (format!("GET /{} HTTP/1.1\r\n", "x".repeat(20_000)), "431"),
        ] {
            let mut client = connect(&server)?;
            client.get_mut().write_all(request.as_bytes())?;
            client.get_mut().flush()?;
            // It goes on sending.
            let _ = client.get_mut().write_all(&[b'x'; 50_000]);
            thread::sleep(Duration::from_millis(20));
            let (found, goes_on, _) = answer(&mut client)?;
            assert_eq!((&*found, goes_on), (status, false), "{request:.60}");
            expect_end(&mut client);
        }
        interrupt(server)
    }

    #[test]
    fn https_has_no_thread_for_a_request_that_comes_slowly() -> io::Result<()> {
        const CLIENTS: usize = 50;
        let server = start()?;
        let mut clients = Vec::new();
        for _ in 0..CLIENTS {
            let mut client = connect(&server)?;
            let requests = b"GET /1 HTTP/1.1\r\n\r\nGET /2 HT";
            client.get_mut().write_all(requests)?;
            clients.push(client);
        }
        for client in &mut clients {
            assert_eq!(answer(client)?.2, "you asked for /1\n");
        }
        let tasks = format!("/proc/{}/task", server.process.id());
        let threads = std::fs::read_dir(tasks)?.count();
        assert!(threads < CLIENTS, "{threads} threads");
        for mut client in clients {
            client.get_mut().write_all(b"TP/1.1\r\n\r\n")?;
            assert_eq!(answer(&mut client)?.2, "you asked for /2\n");
        }
        interrupt(server)
    }

    #[test]
    fn https_answers_what_it_has_received_when_it_drains() -> io::Result<()> {
        const REQUESTS: usize = 500;
        let server = start()?;
        let mut client = connect(&server)?;
        client.get_mut().write_all(b"GET / HTTP/1.1\r\n\r\n")?;
        answer(&mut client)?;
        let requests = "GET / HTTP/1.1\r\n\r\n".repeat(REQUESTS);
        client.get_mut().write_all(requests.as_bytes())?;
        client.get_mut().flush()?;
        signal(&server, rustix::process::Signal::TERM)?;
        thread::sleep(Duration::from_millis(100));
        for _ in 0..REQUESTS {
            assert_eq!(answer(&mut client)?.0, "200");
        }
        expect_end(&mut client);
        interrupt(server)
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
