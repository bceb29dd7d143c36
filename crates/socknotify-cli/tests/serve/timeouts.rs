//! Clients that take their time.

use std::io::{self, ErrorKind, Read, Write};
use std::thread;
use std::time::{Duration, Instant};

use crate::clients::{GET, HttpClient, connect, is_closed, stats};
use crate::program::{PATIENCE, Server, one_of_three};

const TIMEOUT: Duration = Duration::from_secs(1);

#[test]
fn an_idle_client_is_closed_in_time_and_not_before() -> io::Result<()> {
    let idle = |mode: &'static str| -> io::Result<()> {
        let server = Server::start(mode, &["--idle-timeout", "1"])?;
        let start = Instant::now();
        let stream = connect(server.address)?;
        assert!(is_closed(&stream)?);
        let time = start.elapsed();
        assert!((TIMEOUT..PATIENCE / 4).contains(&time), "{mode}: {time:?}");
        server.stop()?;
        Ok(())
    };
    thread::scope(|scope| {
        let modes = ["echo", "discard", "http"].map(|mode| scope.spawn(move || idle(mode)));
        modes
            .into_iter()
            .try_for_each(|it| it.join().expect("no panic"))
    })
}

#[test]
fn a_client_that_says_something_stays() -> io::Result<()> {
    let server = Server::start("http", &["--idle-timeout", "1"])?;
    one_of_three(|| {
        let mut client = HttpClient::connect(server.address)?;
        let start = Instant::now();
        while start.elapsed() < 2 * TIMEOUT {
            assert_eq!(client.request(GET)?.status, 200);
        }
        Ok(())
    })?;
    server.stop()?;
    Ok(())
}

#[test]
fn a_request_has_to_be_complete_in_time_however_it_trickles() -> io::Result<()> {
    one_of_three(a_request_trickles)
}

fn a_request_trickles() -> io::Result<()> {
    let server = Server::start("http", &["--idle-timeout", "1"])?;
    let start = Instant::now();
    let mut stream = connect(server.address)?;
    stream.write_all(b"GET / HTTP/1.1\r\nA: ")?;
    // The time between two bytes.
    stream.set_read_timeout(Some(TIMEOUT / 20))?;
    loop {
        assert!(start.elapsed() < PATIENCE / 4, "it is still connected");
        match stream.read(&mut [0]) {
            // The second one is Windows' word.
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                if stream.write_all(b"a").is_err() {
                    break;
                }
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Ok(0) | Err(_) => break,
            // It is told that it was too slow.
            Ok(_) => {}
        }
    }
    assert!(start.elapsed() >= TIMEOUT);
    // It is idle if one of the two was held up before the first byte came.
    let errors = stats(server.address)?["client_errors"].as_u64();
    server.stop()?;
    match errors {
        Some(1) => Ok(()),
        _ => Err(io::Error::other("it was closed as an idle one")),
    }
}
