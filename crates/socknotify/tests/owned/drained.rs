//! What a thread knows of its connection's readiness saves the port a question, and never a notification (D2).

use std::io::{self, ErrorKind, IoSliceMut, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use socket2::SockRef;
use socknotify::owned::{Event, Held, Interest, Port, Worker};
use socknotify::{Backend, Events};

use crate::support::{
    AsSocket, PATIENCE, PollFlags, end_shows_behind_data, port_with, rounds, tcp_streams,
    uninterrupted, wait_readiness, wait_until,
};

type StreamPort = Port<TcpStream>;

fn owning_port(backend: Backend, permits: usize) -> io::Result<StreamPort> {
    Ok(Port::from(port_with(backend, permits)?))
}

fn pair() -> io::Result<(TcpStream, TcpStream)> {
    let (ours, theirs) = tcp_streams()?;
    ours.set_nonblocking(true)?;
    Ok((ours, theirs))
}

fn connect(port: &StreamPort) -> io::Result<(Held<TcpStream>, TcpStream)> {
    let (ours, theirs) = pair()?;
    Ok((port.adopt(ours)?, theirs))
}

#[track_caller]
fn next(worker: &mut Worker<TcpStream>) -> (Held<TcpStream>, Events) {
    worker.process(Some(PATIENCE)).expect("something comes");
    match worker.take() {
        Some(Event::Ready(connection, events)) => (connection, events),
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn nothing(worker: &mut Worker<TcpStream>) {
    let outcome = worker.process(Some(Duration::ZERO));
    assert_eq!(outcome, Ok(0), "{:?}", worker.take());
}

/// Wait until this has come to the other end.
fn arrived(socket: &impl AsSocket) {
    wait_readiness(socket, PollFlags::IN);
}

/// A port with one thread's worker and a connection that was [served].
fn start(
    backend: Backend,
) -> io::Result<(StreamPort, Worker<TcpStream>, Held<TcpStream>, TcpStream)> {
    let port = owning_port(backend, 1)?;
    let mut worker = port.worker(4);
    let (connection, theirs) = served(&port, &mut worker)?;
    Ok((port, worker, connection, theirs))
}

/// A connection that has been armed and notified once, so that from here on it stays armed where it can.
fn served(
    port: &StreamPort,
    worker: &mut Worker<TcpStream>,
) -> io::Result<(Held<TcpStream>, TcpStream)> {
    let (connection, mut theirs) = connect(port)?;
    worker.arm(connection, Interest::IN);
    theirs.write_all(b"first")?;
    let connection = expect_bytes(worker, b"first")?;
    worker.arm(connection, Interest::IN);
    theirs.write_all(b"second")?;
    let connection = expect_bytes(worker, b"second")?;
    Ok((connection, theirs))
}

/// The connection that is notified has exactly these bytes to receive: none at the end.
#[track_caller]
fn expect_bytes(worker: &mut Worker<TcpStream>, bytes: &[u8]) -> io::Result<Held<TcpStream>> {
    let (mut connection, _) = next(worker);
    assert_eq!(read(&mut connection, 64)?, bytes);
    Ok(connection)
}

/// The same, after it was armed.
#[track_caller]
fn expect_more(
    worker: &mut Worker<TcpStream>,
    connection: Held<TcpStream>,
    bytes: &[u8],
) -> io::Result<Held<TcpStream>> {
    worker.arm(connection, Interest::IN);
    expect_bytes(worker, bytes)
}

fn read(connection: &mut Held<TcpStream>, room: usize) -> io::Result<Vec<u8>> {
    let mut buffer = vec![0; room];
    let length = connection.read(&mut buffer)?;
    buffer.truncate(length);
    Ok(buffer)
}

#[for_every_backend]
fn d2_what_comes_after_a_connection_was_drained_is_notified(backend: Backend) -> io::Result<()> {
    let (_port, mut worker, mut connection, mut theirs) = start(backend)?;
    for way in 0..30 {
        match way % 3 {
            // Less than there was room for.
            0 => {}
            1 => {
                let error = connection.read(&mut [0; 8]).expect_err("nothing is there");
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
            }
            _ => {
                let (stream, readiness) = connection.split();
                let outcome = readiness.try_read(|| stream.peek(&mut [0; 8]));
                assert_eq!(
                    outcome.map_err(|error| error.kind()),
                    Err(ErrorKind::WouldBlock)
                );
            }
        }
        worker.arm(connection, Interest::IN);
        nothing(&mut worker);
        theirs.write_all(b"more")?;
        let events;
        (connection, events) = next(&mut worker);
        assert_eq!(events, Events::IN);
        let mut halves = ([0; 3], [0; 3]);
        let mut buffers = [
            IoSliceMut::new(&mut halves.0),
            IoSliceMut::new(&mut halves.1),
        ];
        assert_eq!(connection.read_vectored(&mut buffers)?, 4);
    }
    Ok(())
}

#[for_every_backend]
fn d2_what_comes_while_a_drained_connection_is_held_is_notified(
    backend: Backend,
) -> io::Result<()> {
    let (_port, mut worker, connection, mut theirs) = start(backend)?;
    theirs.write_all(b"third")?;
    arrived(&*connection);
    drop(expect_more(&mut worker, connection, b"third")?);
    Ok(())
}

/// Others need not wait for the thread that has handed it back. Elsewhere it takes a system call, which the next call makes.
#[cfg(all(target_os = "linux", not(kqueue_stand_in)))]
#[for_every_backend]
fn d2_a_drained_connection_is_armed_before_the_next_call(backend: Backend) -> io::Result<()> {
    let (port, mut worker, mut connection, mut theirs) = start(backend)?;
    let mut other = port.worker(4);
    let soon = Interest::IN.within(PATIENCE);
    for interest in [Interest::IN, soon, soon, Interest::IN] {
        worker.arm(connection, interest);
        theirs.write_all(b"more")?;
        assert_eq!(other.process(Some(PATIENCE)), Ok(1));
        let taken = other.take();
        let Some(Event::Ready(it, Events::IN)) = taken else {
            panic!("{taken:?}")
        };
        connection = it;
        assert_eq!(read(&mut connection, 64)?, b"more");
    }
    Ok(())
}

/// A thread that waits is told by the kernel of what comes, and has nobody to give it to. It is not forgotten.
#[for_every_backend]
fn d2_what_another_thread_hears_of_while_a_drained_connection_is_held_is_notified(
    backend: Backend,
) -> io::Result<()> {
    let port = owning_port(backend, 2)?;
    let (mut connection, mut theirs) = served(&port, &mut port.worker(4))?;
    let (give, given) = channel();
    thread::scope(|scope| -> io::Result<()> {
        let mut worker = port.worker(4);
        scope.spawn(move || {
            while worker.process(None).is_ok() {
                if let Some(Event::Ready(connection, _)) = worker.take() {
                    give.send(connection).expect("the test goes on");
                }
            }
        });
        let _close = CloseAtEnd(&port);
        for _ in 0..rounds(500) {
            wait_until("the other thread waits", || port.snapshot().waiting == 1);
            theirs.write_all(b"third")?;
            arrived(&*connection);
            port.arm(connection, Interest::IN);
            connection = given.recv_timeout(PATIENCE).expect("it is notified");
            assert_eq!(read(&mut connection, 64)?, b"third");
        }
        Ok(())
    })
}

#[for_every_backend]
fn d2_what_was_left_behind_is_notified(backend: Backend) -> io::Result<()> {
    let (_port, mut worker, connection, mut theirs) = start(backend)?;
    theirs.write_all(b"a long request")?;
    worker.arm(connection, Interest::IN);
    let (mut connection, _) = next(&mut worker);
    wait_for_bytes(&connection, 14)?;
    // Exactly as much as there was room for, then nothing at all, then past the port's knowledge.
    assert_eq!(read(&mut connection, 6)?, b"a long");
    worker.arm(connection, Interest::IN);
    let (connection, _) = next(&mut worker);
    worker.arm(connection, Interest::IN);
    let (connection, _) = next(&mut worker);
    assert_eq!((&*connection).read(&mut [0; 1])?, 1);
    let connection = expect_more(&mut worker, connection, b"request")?;
    worker.arm(connection, Interest::IN);
    nothing(&mut worker);
    Ok(())
}

fn wait_for_bytes(stream: &TcpStream, bytes: usize) -> io::Result<()> {
    let mut buffer = vec![0; bytes];
    loop {
        match uninterrupted(|| stream.peek(&mut buffer)) {
            Ok(length) if length >= bytes => return Ok(()),
            Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error),
            // Not every system has it there when the peer's call returns.
            _ => thread::yield_now(),
        }
    }
}

/// Where the system shows it before the data are received.
fn wait_for_the_end(connection: &TcpStream) {
    if end_shows_behind_data() {
        wait_readiness(connection, PollFlags::RDHUP);
    }
}

#[for_every_backend]
fn d2_the_end_behind_the_data_is_notified(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend, 1)?;
    let mut worker = port.worker(4);
    for is_armed_before in [false, true] {
        let (connection, mut theirs) = served(&port, &mut worker)?;
        let mut connection = if is_armed_before {
            worker.arm(connection, Interest::IN);
            nothing(&mut worker);
            theirs.write_all(b"last")?;
            drop(theirs);
            next(&mut worker).0
        } else {
            theirs.write_all(b"last")?;
            drop(theirs);
            wait_for_the_end(&connection);
            worker.arm(connection, Interest::IN);
            next(&mut worker).0
        };
        wait_for_the_end(&connection);
        assert_eq!(read(&mut connection, 64)?, b"last");
        drop(expect_more(&mut worker, connection, b"")?);
    }
    Ok(())
}

#[for_every_backend]
fn d2_the_end_that_comes_after_the_data_is_notified(backend: Backend) -> io::Result<()> {
    let (_port, mut worker, mut connection, mut theirs) = start(backend)?;
    theirs.write_all(b"last")?;
    connection = expect_more(&mut worker, connection, b"last")?;
    drop(theirs);
    wait_readiness(&*connection, PollFlags::RDHUP);
    drop(expect_more(&mut worker, connection, b"")?);
    Ok(())
}

#[for_every_backend]
fn d2_the_end_is_notified_again(backend: Backend) -> io::Result<()> {
    let (_port, mut worker, mut connection, theirs) = start(backend)?;
    drop(theirs);
    for _ in 0..5 {
        connection = expect_more(&mut worker, connection, b"")?;
    }
    Ok(())
}

#[for_every_backend]
fn d2_a_reset_behind_the_data_is_notified(backend: Backend) -> io::Result<()> {
    let (_port, mut worker, mut connection, mut theirs) = start(backend)?;
    theirs.write_all(b"last")?;
    connection = expect_more(&mut worker, connection, b"last")?;
    SockRef::from(&theirs).set_linger(Some(Duration::ZERO))?;
    drop(theirs);
    wait_readiness(&*connection, PollFlags::HUP);
    worker.arm(connection, Interest::IN);
    (connection, _) = next(&mut worker);
    // Wine shows it as an end.
    let outcome = connection.read(&mut [0; 8]).map_err(|error| error.kind());
    assert!(
        matches!(outcome, Ok(0) | Err(ErrorKind::ConnectionReset)),
        "{outcome:?}"
    );
    Ok(())
}

/// A receive ends before urgent data, though more is behind it.
#[for_every_backend]
fn d2_what_is_behind_urgent_data_is_notified(backend: Backend) -> io::Result<()> {
    let (_port, mut worker, mut connection, mut theirs) = start(backend)?;
    theirs.write_all(b"before")?;
    SockRef::from(&theirs).send_out_of_band(b"!")?;
    theirs.write_all(b"behind")?;
    // What is sent on this machine has come when the call that sends it returns.
    arrived(&*connection);
    for expected in [&b"before"[..], b"behind"] {
        connection = expect_more(&mut worker, connection, expected)?;
    }
    worker.arm(connection, Interest::IN);
    nothing(&mut worker);
    Ok(())
}

#[for_every_backend]
fn d2_room_is_notified_after_there_was_none(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend, 1)?;
    let mut worker = port.worker(4);
    let (connection, mut theirs) = connect(&port)?;
    worker.arm(connection, Interest::OUT);
    let (mut connection, _) = next(&mut worker);
    for _ in 0..3 {
        let mut sum = 0;
        let error = loop {
            match connection.write(&[0; 65536]) {
                Ok(length) => sum += length,
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        worker.arm(connection, Interest::OUT);
        while worker.process(Some(Duration::ZERO)) == Ok(0) {
            // Some of it, until there is room.
            let mut buffer = [0; 65536];
            assert!(theirs.read(&mut buffer)? > 0, "{sum} bytes were sent");
        }
        match worker.take() {
            Some(Event::Ready(it, events)) => {
                assert_eq!(events, Events::OUT);
                connection = it;
            }
            other => panic!("{other:?}"),
        }
    }
    Ok(())
}

#[for_every_backend]
fn d2_a_connection_is_accepted_after_there_was_none(backend: Backend) -> io::Result<()> {
    let port = Port::<TcpListener>::from(port_with(backend, 1)?);
    let mut worker = port.worker(4);
    let listener = TcpListener::bind("127.0.0.1:0")?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    worker.arm(port.adopt(listener)?, Interest::IN);
    for _ in 0..10 {
        let _client = TcpStream::connect(address)?;
        worker.process(Some(PATIENCE)).expect("it is notified");
        let Some(Event::Ready(mut held, _)) = worker.take() else {
            panic!("the listener is ready");
        };
        let (listener, readiness) = held.split();
        readiness.try_read(|| listener.accept())?;
        let outcome = readiness.try_read(|| listener.accept());
        assert_eq!(
            outcome.map_err(|error| error.kind()).err(),
            Some(ErrorKind::WouldBlock)
        );
        worker.arm(held, Interest::IN);
        assert_eq!(worker.process(Some(Duration::ZERO)), Ok(0));
    }
    Ok(())
}

#[for_every_backend]
fn d2_a_cancelled_connection_that_was_drained_is_notified(backend: Backend) -> io::Result<()> {
    let (port, mut worker, connection, mut theirs) = start(backend)?;
    let id = connection.id();
    theirs.write_all(b"third")?;
    arrived(&*connection);
    worker.arm(connection, Interest::IN);
    // The notification is in the queue, or about to be, and gives way.
    assert!(port.cancel(id));
    worker.process(Some(PATIENCE)).expect("it is cancelled");
    let Some(Event::Cancelled(connection)) = worker.take() else {
        panic!("it was cancelled");
    };
    drop(expect_more(&mut worker, connection, b"third")?);
    Ok(())
}

/// What another thread is told of while the connection is held, and its holder receives, is over.
#[for_every_backend]
fn d2_a_drained_connection_gives_no_notification_for_nothing(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend, 2)?;
    let (mut connection, mut theirs) = served(&port, &mut port.worker(4))?;
    let (give, given) = channel();
    thread::scope(|scope| -> io::Result<()> {
        let mut worker = port.worker(4);
        scope.spawn(move || {
            while worker.process(None).is_ok() {
                give.send(worker.take()).expect("the test goes on");
            }
        });
        let _close = CloseAtEnd(&port);
        for _ in 0..rounds(500) {
            wait_until("the other thread waits", || port.snapshot().waiting == 1);
            theirs.write_all(b"third")?;
            wait_for_bytes(&connection, 5)?;
            assert_eq!(read(&mut connection, 64)?, b"third");
            let id = connection.id();
            port.arm(connection, Interest::IN);
            assert!(port.cancel(id));
            match given.recv_timeout(PATIENCE).expect("it is cancelled") {
                Some(Event::Cancelled(it)) => connection = it,
                other => panic!("{other:?}"),
            }
        }
        Ok(())
    })
}

#[for_every_backend]
fn d2_a_read_of_another_socket_says_nothing(backend: Backend) -> io::Result<()> {
    let (_port, mut worker, connection, mut theirs) = start(backend)?;
    let (other, _its_peer) = pair()?;
    theirs.write_all(b"third")?;
    arrived(&*connection);
    worker.arm(connection, Interest::IN);
    let (mut connection, _) = next(&mut worker);
    let (_, readiness) = connection.split();
    let error = readiness
        .io(&other)
        .read(&mut [0; 8])
        .expect_err("nothing is there");
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    drop(expect_more(&mut worker, connection, b"third")?);
    Ok(())
}

struct CloseAtEnd<'a>(&'a StreamPort);

impl Drop for CloseAtEnd<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// The system reads into the first 1,024 buffers, fills them, and leaves the rest.
#[for_every_backend]
fn d2_what_a_read_of_too_many_buffers_has_left_is_notified(backend: Backend) -> io::Result<()> {
    let (_port, mut worker, connection, mut theirs) = start(backend)?;
    worker.arm(connection, Interest::IN);
    theirs.write_all(&[7; 3000])?;
    let mut connection = next(&mut worker).0;
    wait_for_bytes(&connection, 3000)?;
    // Wine's read of more than these fails.
    let mut memory = [0; if cfg!(windows) { 1024 } else { 2000 }];
    let mut buffers: Vec<_> = memory.chunks_mut(1).map(IoSliceMut::new).collect();
    let length = connection.read_vectored(&mut buffers)?;
    let _served = expect_more(&mut worker, connection, &vec![7; 3000 - length][..64])?;
    Ok(())
}

#[cfg(unix)]
mod unix {
    use super::*;
    use std::os::fd::{AsFd, BorrowedFd};
    use std::os::unix::net::UnixStream;

    use rustix::net::{self, SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

    type Served = (
        Port<UnixStream>,
        Worker<UnixStream>,
        Held<UnixStream>,
        UnixStream,
    );

    /// A connection that was served before, and its peer.
    fn served(backend: Backend, pair: (UnixStream, UnixStream)) -> io::Result<Served> {
        let port = Port::<UnixStream>::from(port_with(backend, 1)?);
        let mut worker = port.worker(4);
        let (ours, mut theirs) = pair;
        ours.set_nonblocking(true)?;
        worker.arm(port.adopt(ours)?, Interest::IN);
        theirs.write_all(b"x")?;
        let mut connection = next(&mut worker);
        assert_eq!(connection.read(&mut [0; 64])?, 1);
        Ok((port, worker, connection, theirs))
    }

    #[track_caller]
    fn next(worker: &mut Worker<UnixStream>) -> Held<UnixStream> {
        worker.process(Some(PATIENCE)).expect("something comes");
        match worker.take() {
            Some(Event::Ready(connection, _)) => connection,
            other => panic!("{other:?}"),
        }
    }

    fn send_with(stream: &UnixStream, bytes: &[u8], descriptor: BorrowedFd<'_>) -> io::Result<()> {
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors = [descriptor];
        assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
        let bytes = [io::IoSlice::new(bytes)];
        let sent = net::sendmsg(stream, &bytes, &mut control, SendFlags::empty())?;
        assert_eq!(sent, bytes[0].len());
        Ok(())
    }

    #[for_every_backend]
    fn d2_what_is_behind_passed_descriptors_is_notified(backend: Backend) -> io::Result<()> {
        let (_port, mut worker, connection, theirs) = served(backend, UnixStream::pair()?)?;
        worker.arm(connection, Interest::IN);
        send_with(&theirs, b"one", theirs.as_fd())?;
        send_with(&theirs, b"two", theirs.as_fd())?;
        let mut connection = next(&mut worker);
        let mut all = Vec::new();
        while all.len() < 6 {
            let mut buffer = [0; 64];
            let length = connection.read(&mut buffer)?;
            all.extend_from_slice(&buffer[..length]);
            worker.arm(connection, Interest::IN);
            if all.len() < 6 {
                connection = next(&mut worker);
            } else {
                break;
            }
        }
        assert_eq!(all, b"onetwo");
        Ok(())
    }

    #[cfg(target_os = "linux")]
    #[for_every_backend]
    fn d2_the_next_packet_of_a_seqpacket_socket_is_notified(backend: Backend) -> io::Result<()> {
        let kinds = (net::AddressFamily::UNIX, net::SocketType::SEQPACKET);
        let (one, two) = net::socketpair(kinds.0, kinds.1, net::SocketFlags::empty(), None)?;
        let (_port, mut worker, connection, mut theirs) =
            served(backend, (one.into(), two.into()))?;
        worker.arm(connection, Interest::IN);
        theirs.write_all(b"one")?;
        theirs.write_all(b"two")?;
        let mut connection = next(&mut worker);
        let mut buffer = [0; 64];
        assert_eq!(connection.read(&mut buffer)?, 3);
        worker.arm(connection, Interest::IN);
        let mut connection = next(&mut worker);
        assert_eq!(connection.read(&mut buffer)?, 3);
        assert_eq!(&buffer[..3], b"two");
        Ok(())
    }
}
