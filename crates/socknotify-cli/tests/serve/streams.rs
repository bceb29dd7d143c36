//! Echo and discard: streams of bytes.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::process::{Command, Stdio};
use std::thread;

use crate::clients::{connect, is_closed};
use crate::program::{PROGRAM, Server};
use crate::system::BACKEND;

#[test]
fn whatever_is_sent_comes_back_in_order() -> io::Result<()> {
    let server = Server::start("echo", &[])?;
    // More than the buffers of the system take, so that sends do not fit.
    let sent: Vec<u8> = (0..8_000_000_u32)
        .map(|index| (index % 251) as u8)
        .collect();
    let mut received = Vec::new();
    let mut stream = connect(server.address)?;
    thread::scope(|scope| {
        let (mut sending, bytes) = (stream.try_clone()?, &sent);
        let sender = scope.spawn(move || {
            sending.write_all(bytes)?;
            sending.shutdown(Shutdown::Write)
        });
        stream.read_to_end(&mut received)?;
        sender.join().expect("no panic")
    })?;
    assert!(received == sent, "{} bytes", received.len());
    server.stop()?;
    Ok(())
}

#[test]
fn many_clients_are_served_by_one_thread() -> io::Result<()> {
    let server = Server::start("echo", &["--threads", "1", "--concurrency", "1"])?;
    let mut clients = Vec::new();
    for _ in 0..100 {
        clients.push(connect(server.address)?);
    }
    for round in 0..3_u8 {
        for client in &mut clients {
            client.write_all(&[round; 10])?;
        }
        for client in &mut clients {
            let mut answer = [0; 10];
            client.read_exact(&mut answer)?;
            assert_eq!(answer, [round; 10]);
        }
    }
    server.stop()?;
    Ok(())
}

#[test]
fn nothing_comes_back_from_discard() -> io::Result<()> {
    let server = Server::start("discard", &["--backend", BACKEND])?;
    let mut stream = connect(server.address)?;
    stream.write_all(&vec![b'x'; 1_000_000])?;
    stream.shutdown(Shutdown::Write)?;
    assert!(is_closed(&stream)?);
    let summary = server.stop()?;
    assert!(
        !summary.contains("dropped                   1"),
        "{summary}"
    );
    Ok(())
}

// Handles have no limit that a program comes near.
#[cfg(target_os = "linux")]
#[test]
fn clients_wait_while_there_are_no_descriptors_and_are_served_then() -> io::Result<()> {
    let server = Server::start_after("ulimit -n 40", "echo", &["--threads", "2"])?;
    let mut clients = Vec::new();
    for _ in 0..60 {
        clients.push(connect(server.address)?);
    }
    clients[0].write_all(b"first")?;
    clients[0].read_exact(&mut [0; 5])?;
    crate::program::eventually(
        "descriptors are used up",
        || Ok(server.descriptors()? >= 40),
    )?;
    let mut last = clients.pop().expect("there are sixty");
    last.write_all(b"last")?;
    drop(clients);
    last.read_exact(&mut [0; 4])?;
    server.stop()?;
    Ok(())
}

#[test]
fn an_address_that_is_taken_is_an_error() -> io::Result<()> {
    let server = Server::start("echo", &[])?;
    let address = server.address.to_string();
    let second = Command::new(PROGRAM)
        .args(["serve", "--listen", &address])
        .stdin(Stdio::null())
        .output()?;
    assert_eq!(second.status.code(), Some(1));
    let message = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(message.contains(&address), "{message}");
    server.stop()?;
    Ok(())
}
