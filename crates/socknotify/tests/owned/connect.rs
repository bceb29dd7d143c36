//! Connections that go out.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};
use socknotify::Backend;
use socknotify::owned::{Event, Held, Interest, Port, Worker, connect_to};

use crate::support::{
    Kind, PATIENCE, PollFlags, SHORT, begin_connect, is_ready, port_with, refusing,
};

fn tcp_port(backend: Backend) -> io::Result<Port<TcpStream>> {
    Ok(Port::from(port_with(backend, 2)?))
}

#[track_caller]
fn next(worker: &mut Worker<TcpStream>) -> Event<TcpStream> {
    assert!(worker.process(Some(PATIENCE)).expect("it is open") > 0);
    worker.take().expect("an event")
}

#[track_caller]
fn connected(event: Event<TcpStream>) -> Held<TcpStream> {
    match event {
        Event::Connected(held) => held,
        other => panic!("{other:?}"),
    }
}

#[for_every_backend]
fn a_connection_is_made(backend: Backend) -> io::Result<()> {
    let port = tcp_port(backend)?;
    let mut worker = port.worker(4);
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let id = port.connect(address, PATIENCE, |stream| stream)?;
    let held = connected(next(&mut worker));
    assert_eq!(held.id(), id);
    assert_eq!(held.id().to_string(), id.to_string());
    let (theirs, _) = listener.accept()?;
    assert_eq!(held.local_addr()?, theirs.peer_addr()?);
    // From here on it is like any other.
    worker.arm(held, Interest::OUT);
    let Event::Ready(held, _) = next(&mut worker) else {
        panic!("it is writable");
    };
    worker.arm(held, Interest::IN.within(Duration::from_millis(1)));
    assert!(matches!(next(&mut worker), Event::TimedOut(_)));
    Ok(())
}

#[for_every_backend]
fn a_refused_connection_says_why(backend: Backend) -> io::Result<()> {
    let port = tcp_port(backend)?;
    let mut worker = port.worker(4);
    let (_keeps, address) = refusing(Kind::Tcp4)?;
    let address: SocketAddr = address.as_socket().expect("an address");
    let error = match port.connect(address, PATIENCE, |stream| stream) {
        Err(error) => error,
        Ok(id) => match next(&mut worker) {
            Event::Unconnected(held, error) => {
                assert_eq!(held.id(), id);
                error
            }
            other => panic!("{other:?}"),
        },
    };
    assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused, "{error}");
    assert_eq!(port.connections(), 0);
    Ok(())
}

/// A listener whose queue is full: the system drops what else comes.
fn silent() -> io::Result<(TcpListener, SocketAddr, Vec<Socket>)> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into())?;
    socket.listen(1)?;
    let listener = TcpListener::from(socket);
    let address = listener.local_addr()?;
    let mut queued = Vec::new();
    loop {
        let client = Kind::Tcp4.socket()?;
        begin_connect(&client, &address.into())?;
        // However late this thread asks, it is told of a connection that is there.
        let is_taken = is_ready(&client, PollFlags::OUT, Duration::from_millis(100));
        queued.push(client);
        if !is_taken {
            return Ok((listener, address, queued));
        }
        assert!(queued.len() < 1000, "its queue has no end");
    }
}

#[for_every_backend]
fn a_peer_that_does_not_answer_is_timed_out(backend: Backend) -> io::Result<()> {
    if cfg!(windows) {
        // There a full queue refuses.
        return Ok(());
    }
    let port = tcp_port(backend)?;
    let mut worker = port.worker(4);
    let (_listener, address, _queued) = silent()?;
    let time = Duration::from_millis(30);
    let begin = Instant::now();
    port.connect(address, time, |stream| stream)?;
    match next(&mut worker) {
        Event::Unconnected(_, error) => assert_eq!(error.kind(), io::ErrorKind::TimedOut),
        other => panic!("{other:?}"),
    }
    assert!(begin.elapsed() >= time);
    Ok(())
}

/// All threads are busy until its time is over, and then another deadline is reported first.
#[for_every_backend]
fn a_connection_that_was_made_in_time_is_not_timed_out(backend: Backend) -> io::Result<()> {
    let port = tcp_port(backend)?;
    let mut worker = port.worker(1);
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let idle = port.adopt(TcpStream::connect(address)?)?;
    port.arm(idle, Interest::IN.within(Duration::from_millis(1)));
    thread::sleep(SHORT);
    port.connect(address, SHORT, |stream| stream)?;
    let _theirs = (listener.accept()?, listener.accept()?);
    thread::sleep(2 * SHORT);
    match next(&mut worker) {
        Event::TimedOut(_) => drop(connected(next(&mut worker))),
        event => drop(connected(event)),
    }
    Ok(())
}

/// It was cancelled before its end was seen, and waits for data then, which do not come.
#[for_every_backend]
fn a_connection_that_is_there_and_waits_in_vain_is_timed_out(backend: Backend) -> io::Result<()> {
    let port = tcp_port(backend)?;
    let mut worker = port.worker(4);
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let id = port.connect(listener.local_addr()?, PATIENCE, |stream| stream)?;
    let _theirs = listener.accept()?;
    assert!(port.cancel(id));
    let Event::Cancelled(held) = next(&mut worker) else {
        panic!("it is cancelled");
    };
    worker.arm(held, Interest::IN.within(Duration::from_millis(5)));
    match next(&mut worker) {
        Event::TimedOut(_) => Ok(()),
        event => panic!("{event:?}"),
    }
}

/// All threads are busy, as above.
#[for_every_backend]
fn a_connect_that_was_refused_in_time_is_not_timed_out(backend: Backend) -> io::Result<()> {
    let port = tcp_port(backend)?;
    let mut worker = port.worker(1);
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let idle = port.adopt(TcpStream::connect(listener.local_addr()?)?)?;
    port.arm(idle, Interest::IN.within(Duration::from_millis(1)));
    thread::sleep(SHORT);
    let (_keeps, address) = refusing(Kind::Tcp4)?;
    let address = address.as_socket().expect("an address");
    // A system that takes its time to refuse is given it.
    let time = if cfg!(windows) { PATIENCE } else { SHORT };
    if port.connect(address, time, |stream| stream).is_err() {
        return Ok(());
    }
    thread::sleep(2 * SHORT);
    let error = loop {
        match next(&mut worker) {
            Event::TimedOut(_) => {}
            Event::Unconnected(_, error) => break error,
            event => panic!("{event:?}"),
        }
    };
    assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused, "{error}");
    Ok(())
}

#[for_every_backend]
fn a_connect_can_be_cancelled_and_goes_on(backend: Backend) -> io::Result<()> {
    if cfg!(windows) {
        return Ok(());
    }
    let port = tcp_port(backend)?;
    let mut worker = port.worker(4);
    let (_listener, address, _queued) = silent()?;
    let id = port.connect(address, PATIENCE, |stream| stream)?;
    assert!(port.cancel(id));
    let Event::Cancelled(held) = next(&mut worker) else {
        panic!("it is cancelled");
    };
    worker.arm(held, Interest::OUT.within(Duration::from_millis(5)));
    assert!(matches!(
        next(&mut worker),
        Event::Unconnected(_, error) if error.kind() == io::ErrorKind::TimedOut
    ));
    Ok(())
}

/// It was cancelled before it was done, and waits for data then: these come from a peer.
#[for_every_backend]
fn a_connect_that_waits_for_something_else_has_connected(backend: Backend) -> io::Result<()> {
    let port = tcp_port(backend)?;
    let mut worker = port.worker(4);
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let id = port.connect(listener.local_addr()?, PATIENCE, |stream| stream)?;
    assert!(port.cancel(id));
    let Event::Cancelled(held) = next(&mut worker) else {
        panic!("it is cancelled");
    };
    worker.arm(held, Interest::IN);
    let (mut theirs, _) = listener.accept()?;
    theirs.write_all(b"x")?;
    let mut held = connected(next(&mut worker));
    assert_eq!(held.read(&mut [0; 2])?, 1);
    Ok(())
}

#[for_every_backend]
fn a_connect_under_way_drains(backend: Backend) -> io::Result<()> {
    let port = tcp_port(backend)?;
    let mut worker = port.worker(4);
    let listener = TcpListener::bind("127.0.0.1:0")?;
    port.connect(listener.local_addr()?, PATIENCE, |stream| stream)?;
    port.drain(PATIENCE);
    let Event::Draining(held) = next(&mut worker) else {
        panic!("it drains");
    };
    worker.arm(held, Interest::OUT);
    drop(connected(next(&mut worker)));
    assert_eq!(worker.process(None), Err(socknotify::Error::Closed));
    Ok(())
}

#[for_every_backend]
fn a_hundred_connections_are_made_at_once(backend: Backend) -> io::Result<()> {
    const CONNECTIONS: usize = 100;
    let port = tcp_port(backend)?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    port.listen(listener, Interest::IN, |stream, _| stream)?;
    for _ in 0..CONNECTIONS {
        port.connect(address, PATIENCE, |stream| stream)?;
    }
    let mut worker = port.worker(16);
    let mut made = Vec::new();
    while made.len() < CONNECTIONS {
        made.push(connected(next(&mut worker)));
    }
    Ok(())
}

/// Where the name has an IPv6 address too, that one is refused.
#[for_every_backend]
fn a_host_is_connected_to_by_its_name(backend: Backend) -> io::Result<()> {
    let port = Port::<TcpStream, io::Result<TcpStream>>::from(port_with(backend, 2)?);
    let mut worker = port.worker(4);
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let number = listener.local_addr()?.port();
    let host = format!("localhost:{number}");
    port.offload(move || connect_to(host, PATIENCE))?;
    assert_eq!(worker.process(Some(PATIENCE)), Ok(1));
    let Some(Event::Message(Ok(mut stream))) = worker.take() else {
        panic!("it connects");
    };
    let error = stream.read(&mut [0]).expect_err("nothing was sent");
    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    let (mut theirs, address) = listener.accept()?;
    assert_eq!(stream.local_addr()?, address);
    worker.arm(port.adopt(stream)?, Interest::IN);
    theirs.write_all(b"x")?;
    assert_eq!(worker.process(Some(PATIENCE)), Ok(1));
    assert!(matches!(worker.take(), Some(Event::Ready(..))));
    Ok(())
}

#[test]
fn each_address_of_a_host_is_tried_in_turn() -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let good = listener.local_addr()?;
    let (_keeps, refused) = refusing(Kind::Tcp4)?;
    let refused = refused.as_socket().expect("an address");
    let stream = connect_to(&[refused, refused, good][..], PATIENCE)?;
    assert_eq!(stream.peer_addr()?, good);
    let error = connect_to(&[refused, refused][..], PATIENCE).expect_err("nobody listens");
    assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused, "{error}");
    let error = connect_to(&[][..], PATIENCE).expect_err("it has no address");
    assert_eq!(error.kind(), io::ErrorKind::NotFound);
    let error = connect_to("no port", PATIENCE).expect_err("it has no port");
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    let error = connect_to(good, Duration::ZERO).expect_err("there is no time");
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    Ok(())
}

#[test]
fn an_address_that_does_not_answer_leaves_time_for_the_next() -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let (_listener, silent, _queued) = silent()?;
    let addresses = [silent, listener.local_addr()?];
    // A busy machine may use up the half that is left.
    let mut time = Duration::from_millis(500);
    loop {
        let begin = Instant::now();
        let stream = match connect_to(&addresses[..], time) {
            Err(error) if error.kind() == ErrorKind::TimedOut && time < PATIENCE => {
                time *= 2;
                continue;
            }
            outcome => outcome?,
        };
        assert_eq!(stream.peer_addr()?, addresses[1]);
        // On Windows a full queue refuses.
        assert!(cfg!(windows) || begin.elapsed() >= time / 2);
        return Ok(());
    }
}

#[cfg(unix)]
#[for_every_backend]
fn a_unix_socket_connects(backend: Backend) -> io::Result<()> {
    use std::os::unix::net::{UnixListener, UnixStream};

    let path = std::env::temp_dir().join(format!("socknotify-connect-{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let _listener = UnixListener::bind(&path)?;
    let port = Port::<UnixStream>::from(port_with(backend, 2)?);
    let mut worker = port.worker(4);
    port.connect(path.as_path(), PATIENCE, |stream| stream)?;
    std::fs::remove_file(&path)?;
    assert_eq!(worker.process(Some(PATIENCE)), Ok(1));
    assert!(matches!(worker.take(), Some(Event::Connected(_))));
    assert!(
        port.connect(path.as_path(), PATIENCE, |stream| stream)
            .is_err()
    );
    assert_eq!(port.connections(), 0);
    Ok(())
}
