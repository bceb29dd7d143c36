//! No handle is left: a listener rests, and accepts again later.
//!
//! Windows gives a process millions of them. `.ci/windows` runs this where Wine's server may open few descriptors.

#![cfg(windows)]

mod support;

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::time::Instant;

use socket2::{Domain, Socket, Type};
use socknotify::Backend;
use socknotify::owned::{Event, Interest, Port};

use crate::support::{PATIENCE, backends, port};

#[test]
#[ignore = "the system's limit has to be low"]
fn a_listener_rests_while_no_handle_is_left() -> io::Result<()> {
    backends().try_for_each(rests_and_comes_back)
}

fn rests_and_comes_back(backend: Backend) -> io::Result<()> {
    let port = Port::<TcpStream>::from(port(backend)?);
    let mut worker = port.worker(4);
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let id = port.listen(listener, Interest::IN, |stream, _| stream)?;
    let clients = (0..4).map(|_| Socket::new(Domain::IPV4, Type::STREAM, None));
    let clients: Vec<_> = clients.collect::<io::Result<_>>()?;

    let mut others = Vec::new();
    while let Ok(other) = UdpSocket::bind("127.0.0.1:0") {
        others.push(other);
        assert!(others.len() < 10_000, "there is no limit");
    }
    for client in &clients {
        client.connect(&address.into())?;
    }
    let end = Instant::now() + PATIENCE;
    let mut rests = 0;
    // More often than it accepts in advance: so it has paused in between.
    while rests < 40 {
        assert!(Instant::now() < end, "it pauses, and tries again: {rests}");
        worker.process(Some(PATIENCE))?;
        while let Some(event) = worker.take() {
            let Event::NotAccepting(it, _) = event else {
                panic!("{event:?}");
            };
            assert_eq!(it, id);
            rests += 1;
        }
    }

    drop(others);
    let mut served = 0;
    for mut client in &clients {
        client.write_all(b"x")?;
    }
    while served < clients.len() {
        assert!(Instant::now() < end, "all are accepted: {served}");
        worker.process(Some(PATIENCE))?;
        while let Some(event) = worker.take() {
            if let Event::Ready(mut connection, _) = event {
                assert_eq!(connection.read(&mut [0])?, 1);
                served += 1;
            }
        }
    }
    Ok(())
}
