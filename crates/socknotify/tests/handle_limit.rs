//! No handle is left: a listener rests, and accepts again later.
//!
//! Windows gives a process millions of them. `.ci/windows` runs this where Wine's server may open few descriptors.

#![cfg(windows)]

mod support;

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

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
    assert!(worker.process(Some(PATIENCE))? > 0);
    let first = worker.take();
    assert!(
        matches!(first, Some(Event::NotAccepting(it, _)) if it == id),
        "{first:?}"
    );
    // It tries again meanwhile, and says so once.
    assert_eq!(worker.process(Some(Duration::from_millis(120))), Ok(0));

    drop(others);
    let (mut served, mut again) = (0, 0);
    for mut client in &clients {
        client.write_all(b"x")?;
    }
    while served < clients.len() {
        assert!(Instant::now() < end, "all are accepted: {served}");
        worker.process(Some(PATIENCE))?;
        while let Some(event) = worker.take() {
            match event {
                Event::Ready(mut connection, _) => {
                    assert_eq!(connection.read(&mut [0])?, 1);
                    served += 1;
                }
                Event::Accepting(it) if it == id => again += 1,
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!(again, 1);
    Ok(())
}
