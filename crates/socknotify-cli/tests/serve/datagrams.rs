//! Datagrams that go back to where they have come from.

use std::io;
use std::net::UdpSocket;
use std::process::{Command, Stdio};

use crate::program::{PATIENCE, PROGRAM, Server};
use crate::support::started;

#[test]
fn each_datagram_goes_back_to_its_sender_whole() -> io::Result<()> {
    // Under Wine a send fails with `WSAEWOULDBLOCK` while another thread sends on the socket, and the answer is lost.
    let threads = if cfg!(windows) { "1" } else { "16" };
    let server = Server::start("udp-echo", &["--threads", threads])?;
    let clients = (0..20)
        .map(|_| {
            let client = UdpSocket::bind("127.0.0.1:0")?;
            client.set_read_timeout(Some(PATIENCE))?;
            client.connect(server.address)?;
            Ok(client)
        })
        .collect::<io::Result<Vec<_>>>()?;
    // Not even the largest one is cut, of which the system holds a few only; and an empty one is a datagram, too.
    for (length, at_once) in [(0, 20), (1, 20), (1000, 20), (65_507, 1)] {
        let datagram = |index: usize| vec![index as u8; length];
        for clients in clients.chunks(at_once) {
            for (index, client) in clients.iter().enumerate() {
                client.send(&datagram(index))?;
            }
            for (index, client) in clients.iter().enumerate() {
                let mut answer = vec![0; 65_536];
                let received = client.recv(&mut answer)?;
                assert_eq!(answer[..received], datagram(index));
            }
        }
    }
    let summary = server.stop()?;
    assert!(summary.contains("requests                 80"), "{summary}");
    Ok(())
}

#[test]
fn an_address_that_is_taken_is_an_error() -> io::Result<()> {
    let taken = UdpSocket::bind("127.0.0.1:0")?;
    let address = taken.local_addr()?.to_string();
    let output = started(|| {
        Command::new(PROGRAM)
            .args(["serve", "--mode", "udp-echo", "--listen", &address])
            .stdin(Stdio::null())
            .output()
    })?;
    assert_eq!(output.status.code(), Some(1));
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(message.contains(&address), "{message}");
    Ok(())
}
