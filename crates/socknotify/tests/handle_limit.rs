//! No handle is left: a listener rests, and accepts again later.
//!
//! Windows gives a process millions of them. `.ci/windows` runs this where Wine's server may open few descriptors.

#![cfg(windows)]

mod support;

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

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
    let mut clients = Vec::new();
    let mut rests = 0;
    while rests < 4 {
        // This finds no handle either, in the end.
        clients.extend(TcpStream::connect(address));
        assert!(clients.len() < 10_000, "there is no limit");
        worker.process(Some(Duration::from_millis(1)))?;
        while let Some(event) = worker.take() {
            let Event::NotAccepting(it, _) = event else {
                panic!("{event:?}");
            };
            assert_eq!(it, id);
            rests += 1;
        }
    }
    clients.truncate(clients.len() / 2);
    let end = Instant::now() + PATIENCE;
    let mut client = loop {
        assert!(Instant::now() < end, "handles are given back");
        worker.process(Some(Duration::from_millis(1)))?;
        // Those that were closed are dropped here.
        while worker.take().is_some() {}
        if let Ok(client) = TcpStream::connect(address) {
            break client;
        }
    };
    client.write_all(b"x")?;
    loop {
        assert!(Instant::now() < end, "it is accepted");
        worker.process(Some(PATIENCE))?;
        while let Some(event) = worker.take() {
            if let Event::Ready(mut connection, _) = event {
                if connection.read(&mut [0])? == 1 {
                    return Ok(());
                }
            }
        }
    }
}
