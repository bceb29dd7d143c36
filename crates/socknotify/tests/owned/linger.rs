//! Connections that linger: their peers get all that was sent to them.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use socknotify::owned::{Event, Held, Interest, Port, Worker};
use socknotify::{Backend, Error};

use crate::support::{PATIENCE, SHORT, port_with, tcp_streams, uninterrupted};

const LONG: Duration = Duration::from_secs(3600);

/// A connection, which is in blocking mode, and its peer.
fn connect(port: &Port<TcpStream>) -> io::Result<(Held<TcpStream>, TcpStream)> {
    let (ours, theirs) = tcp_streams()?;
    Ok((port.adopt(ours)?, theirs))
}

fn tcp_port(backend: Backend) -> io::Result<Port<TcpStream>> {
    Ok(Port::from(port_with(backend, 2)?))
}

/// Sees to it that there is no event, and goes on until the connection is closed.
fn until_closed(port: &Port<TcpStream>, worker: &mut Worker<TcpStream>) -> io::Result<()> {
    let start = Instant::now();
    while port.connections() > 0 {
        worker.process(Some(Duration::from_millis(10)))?;
        assert!(worker.take().is_none());
        assert!(start.elapsed() < PATIENCE, "it is closed in time");
    }
    Ok(())
}

/// Closed with unread data, the socket would be reset, and with it what the peer has not received yet.
#[for_every_backend]
fn a_peer_gets_all_that_was_sent_to_it_though_it_sends_more(backend: Backend) -> io::Result<()> {
    let port = tcp_port(backend)?;
    let mut worker = port.worker(4);
    let (mut ours, mut theirs) = connect(&port)?;
    ours.set_nonblocking(true)?;
    let mut sent = 0;
    while let Ok(length) = ours.write(&[7; 65_536]) {
        sent += length;
    }
    ours.set_nonblocking(false)?;
    theirs.write_all(b"more")?;
    // Now it is there, and nobody reads it.
    ours.peek(&mut [0])?;
    worker.linger(ours, LONG);
    thread::scope(|scope| {
        let reading = scope.spawn(move || {
            let mut received = Vec::new();
            uninterrupted(|| theirs.read_to_end(&mut received))
        });
        until_closed(&port, &mut worker)?;
        assert_eq!(reading.join().expect("no panic")?, sent);
        Ok(())
    })
}

#[for_every_backend]
fn a_peer_that_never_stops_sending_is_let_go_in_time(backend: Backend) -> io::Result<()> {
    let port = tcp_port(backend)?;
    let mut worker = port.worker(4);
    let (ours, mut theirs) = connect(&port)?;
    let begin = Instant::now();
    let time = Duration::from_millis(50);
    worker.linger(ours, time);
    thread::scope(|scope| {
        scope.spawn(move || while theirs.write_all(&[7; 4096]).is_ok() {});
        until_closed(&port, &mut worker)
    })?;
    assert!(begin.elapsed() >= time);
    Ok(())
}

#[for_every_backend]
fn a_drain_waits_for_what_lingers(backend: Backend) -> io::Result<()> {
    for drains_first in [false, true] {
        let port = tcp_port(backend)?;
        let mut worker = port.worker(4);
        let (ours, mut theirs) = connect(&port)?;
        match drains_first {
            true => {
                port.drain(LONG);
                worker.arm(ours, Interest::IN);
                worker.process(Some(PATIENCE))?;
                let Some(Event::Draining(ours)) = worker.take() else {
                    panic!("it drains");
                };
                worker.linger(ours, LONG);
            }
            false => {
                worker.linger(ours, LONG);
                port.drain(LONG);
            }
        }
        for _ in 0..3 {
            worker.process(Some(Duration::from_millis(1)))?;
            assert!(worker.take().is_none());
        }
        assert_eq!(port.connections(), 1);
        theirs.write_all(b"more")?;
        assert_eq!(uninterrupted(|| theirs.read(&mut [0]))?, 0, "its end");
        drop(theirs);
        let mut outcome = Ok(0);
        while outcome.is_ok() {
            outcome = worker.process(Some(PATIENCE));
            assert!(worker.take().is_none());
        }
        assert_eq!(outcome, Err(Error::Closed));
    }
    Ok(())
}

/// Whoever wakes a connection does not know that it has come to its end.
#[for_every_backend]
fn a_wake_up_does_not_end_what_lingers(backend: Backend) -> io::Result<()> {
    let port = tcp_port(backend)?;
    let mut worker = port.worker(4);
    let (mut ours, mut theirs) = connect(&port)?;
    let id = ours.id();
    theirs.write_all(b"not read")?;
    ours.write_all(b"answer")?;
    assert!(port.cancel(id));
    worker.linger(ours, LONG);
    for _ in 0..3 {
        worker.process(Some(Duration::from_millis(1)))?;
        assert!(worker.take().is_none());
        assert!(port.cancel(id));
    }
    theirs.write_all(b"more")?;
    let mut answer = String::new();
    theirs.read_to_string(&mut answer)?;
    assert_eq!(answer, "answer");
    drop(theirs);
    until_closed(&port, &mut worker)?;
    // Nor do they keep it for longer.
    let (ours, _theirs) = connect(&port)?;
    let id = ours.id();
    worker.linger(ours, SHORT);
    while port.connections() > 0 {
        port.cancel(id);
        worker.process(Some(Duration::from_millis(1)))?;
        assert!(worker.take().is_none());
    }
    Ok(())
}

#[for_every_backend]
fn what_lingers_can_be_taken(backend: Backend) -> io::Result<()> {
    let port = tcp_port(backend)?;
    let mut worker = port.worker(4);
    let (ours, mut theirs) = connect(&port)?;
    let id = ours.id();
    worker.linger(ours, LONG);
    assert_eq!(worker.process(Some(Duration::ZERO))?, 0);
    let ours = port.disarm(id).expect("it waits");
    theirs.write_all(b"x")?;
    worker.arm(ours, Interest::IN);
    worker.process(Some(PATIENCE))?;
    let Some(Event::Ready(mut ours, _)) = worker.take() else {
        panic!("it is an event again");
    };
    assert_eq!(ours.read(&mut [0; 2])?, 1);
    Ok(())
}
