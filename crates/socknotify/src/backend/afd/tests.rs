//! How many calls of the kernel there are, and what edges do to a socket.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use crate::os::windows::{calls, port::is_wine};
use crate::{Backend, CompletionPort, Entry, EventFilter, Registration, Trigger};

fn port() -> CompletionPort {
    let port = CompletionPort::builder().backend(Backend::Afd).build();
    port.expect("a port")
}

/// Connected sockets, each with data to be read.
fn readable(count: usize) -> io::Result<Vec<(TcpStream, TcpStream)>> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    (0..count)
        .map(|_| {
            let mut peer = TcpStream::connect(listener.local_addr()?)?;
            let (socket, _) = listener.accept()?;
            send(&mut peer, &socket)?;
            Ok((socket, peer))
        })
        .collect()
}

/// Send something, and see that it has come.
fn send(peer: &mut TcpStream, socket: &TcpStream) -> io::Result<()> {
    peer.write_all(b"x")?;
    socket.peek(&mut [0]).map(drop)
}

/// What it takes to find out that a number still refers to the same socket, once the closes are known. Wine tells of
/// them late, and has to be asked.
fn check() -> usize {
    if is_wine() { 2 } else { 0 }
}

/// How many calls of the kernel this takes.
fn count(action: impl FnOnce()) -> usize {
    let before = calls::made();
    action();
    calls::made() - before
}

#[test]
fn a_packet_takes_as_many_calls_however_many_sockets_are_ready() -> io::Result<()> {
    let pairs = readable(300)?;
    let counts = [10, 300].map(|ready| {
        let port = port();
        for (socket, _) in &pairs[..ready] {
            let level = Trigger::PERSISTENT | Trigger::LEVEL;
            let entry = Registration::enable(socket, 1, EventFilter::IN, level);
            assert_eq!(port.register(entry), Ok(()));
        }
        // Of those that come out here there is one more to come.
        let mut entries = [Entry::default(); 3];
        assert_eq!(
            port.dequeue(&mut entries, None).map(|found| found.len()),
            Ok(3)
        );
        port.post(Entry::default()).expect("it is posted");
        let post = count(|| port.post(Entry::default()).expect("it is posted"));
        let socket = &pairs[ready - 1].0;
        let remove = count(|| assert_eq!(port.register(Registration::remove(socket)), Ok(())));
        (post, remove)
    });
    assert_eq!(counts[0], counts[1]);
    assert!(counts[0].0 <= 1 && counts[0].1 <= 3 + check(), "{counts:?}");
    Ok(())
}

#[test]
fn what_is_ready_when_it_is_armed_takes_few_calls() -> io::Result<()> {
    let port = port();
    let pairs = readable(1)?;
    for (mut socket, mut peer) in pairs {
        for round in 0..3 {
            let mut entries = [Entry::default(); 2];
            let once = Trigger::ONESHOT | Trigger::LEVEL;
            let mut batch = [Registration::enable(&socket, 1, EventFilter::IN, once)];
            let calls = count(|| {
                let found = port.process(&mut batch, &mut entries, None);
                assert_eq!(found.map(|found| found.len()), Ok(1));
            });
            // To poll, and to learn of closed sockets; and, if that was 100 µs ago, to ask whether more is ready. The first time,
            // the socket has to be identified.
            let few = 2 + check()..=3 + check();
            assert!(few.contains(&calls) || round == 0, "{calls}");
            socket.read_exact(&mut [0])?;
            send(&mut peer, &socket)?;
        }
    }
    Ok(())
}

/// Wine's server makes a socket non-blocking with the selection, and refuses to undo that while it lasts.
#[test]
fn after_an_edge_a_socket_blocks_as_before_but_under_wine() -> io::Result<()> {
    let port = port();
    let (mut socket, mut peer) = readable(1)?.remove(0);
    let edge = Trigger::PERSISTENT | Trigger::EDGE;
    let entry = Registration::enable(&socket, 1, EventFilter::IN, edge);
    assert_eq!(port.register(entry), Ok(()));
    socket.read_exact(&mut [0])?;
    send(&mut peer, &socket)?;
    assert!(port.dequeue_one(None).is_ok());
    socket.read_exact(&mut [0])?;
    // For so long it would wait.
    socket.set_read_timeout(Some(Duration::from_millis(1)))?;
    let error = socket.read(&mut [0]).expect_err("there is nothing");
    let undone = socket.set_nonblocking(false);
    if is_wine() {
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        assert!(undone.is_err());
    } else {
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        undone?;
    }
    Ok(())
}
