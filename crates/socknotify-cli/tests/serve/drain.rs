//! The end of the server.

use std::io;
use std::net::TcpStream;

use crate::clients::{GET, HttpClient};
use crate::program::Server;

/// A client between requests, and one within a request; the server knows both.
fn two_clients(server: &Server) -> io::Result<(HttpClient, HttpClient)> {
    let mut idle = HttpClient::connect(server.address)?;
    idle.request(GET)?;
    let mut busy = HttpClient::connect(server.address)?;
    // The answer to the first one tells that what has come with it was seen.
    busy.request(&format!("{GET}GET / HTTP/1.1\r\n"))?;
    Ok((idle, busy))
}

#[test]
fn what_has_begun_is_finished_and_idle_clients_are_let_go() -> io::Result<()> {
    let server = Server::start("http", &[])?;
    let (mut idle, mut busy) = two_clients(&server)?;
    server.interrupt()?;
    assert!(idle.is_at_end()?);
    let answer = busy.request("Host: a\r\n\r\n")?;
    assert_eq!(answer.body, "Hello, world!\n");
    assert!(answer.has("Connection: close"), "{answer:?}");
    assert!(busy.is_at_end()?);
    let address = server.address;
    let (status, summary) = server.ended()?;
    assert_eq!(status.code(), Some(0), "{summary}");
    assert!(summary.contains("requests                  3"), "{summary}");
    assert!(TcpStream::connect(address).is_err());
    Ok(())
}

/// It takes a process that is stopped for a while.
#[cfg(unix)]
#[test]
fn requests_that_have_come_before_the_end_are_answered() -> io::Result<()> {
    let server = Server::start("http", &["--threads", "1"])?;
    let mut clients = Vec::new();
    for _ in 0..400 {
        let mut client = HttpClient::connect(server.address)?;
        client.request(GET)?;
        clients.push(client);
    }
    // It finds the requests and the signal at the same time.
    server.signal(rustix::process::Signal::STOP)?;
    for client in &mut clients {
        client.send(GET)?;
    }
    server.interrupt()?;
    // By then it is time for it to look for a signal. If it is not, the test shows less.
    std::thread::sleep(std::time::Duration::from_millis(100));
    server.signal(rustix::process::Signal::CONT)?;
    for client in &mut clients {
        assert_eq!(client.answer()?.status, 200);
        assert!(client.is_at_end()?);
    }
    let (status, summary) = server.ended()?;
    assert_eq!(status.code(), Some(0), "{summary}");
    assert!(summary.contains("requests                800"), "{summary}");
    Ok(())
}

#[test]
fn what_is_not_finished_in_time_is_cut_off() -> io::Result<()> {
    let server = Server::start("http", &[])?;
    let (_idle, mut busy) = two_clients(&server)?;
    let summary = server.stop()?;
    assert!(busy.is_at_end()?, "{summary}");
    Ok(())
}

#[test]
fn a_second_interrupt_ends_it_at_once() -> io::Result<()> {
    let server = Server::start("http", &[])?;
    let (mut idle, _busy) = two_clients(&server)?;
    server.interrupt()?;
    assert!(idle.is_at_end()?);
    server.interrupt()?;
    let (status, summary) = server.ended()?;
    assert_eq!((status.code(), &*summary), (Some(130), ""));
    Ok(())
}
