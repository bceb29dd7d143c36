//! Messages, shared sockets, a port that is watched by another loop, and what other threads notice.

use std::io::{self, ErrorKind, Write};
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::{Duration, Instant};

use socket2::Socket;
use socknotify::owned::{Event, Id, Interest, Port, SendError, SharedTrigger};
use socknotify::{Backend, Entry, EventFilter, Events, Trigger};

#[cfg(unix)]
use crate::support::{AsSocket, PollFlags, is_ready};
use crate::support::{PATIENCE, Pair, PortExt, counted, port, uninterrupted};
use crate::{Connection, TestPort, TestWorker, connect, next, nothing, owning_port, ready};

#[for_every_backend]
fn messages_come_in_order(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend, 2)?;
    let mut worker = port.worker(3);
    for message in 0..100 {
        port.send(message).expect("it is open");
    }
    for expected in 0..100 {
        assert!(matches!(next(&mut worker), Event::Message(it) if it == expected));
    }
    nothing(&mut worker);
    port.close();
    assert_eq!(port.send(7), Err(SendError(7)));
    // Whatever it carries can be shown.
    let refused = port.offload(|| 7).expect_err("it is closed");
    assert!(format!("{refused:?}").contains("Closed"));
    let refused = port
        .send_after(Duration::ZERO, 7)
        .expect_err("it is closed");
    assert_eq!(format!("{refused:?}"), "SendError { .. }");
    Ok(())
}

#[for_every_backend]
fn a_message_keeps_its_turn_among_connections(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend, 2)?;
    let mut worker = port.worker(4);
    let (connection, mut peer) = connect(&port)?;
    port.arm(connection, Interest::IN);
    peer.write_all(b"x")?;
    port.send(1).expect("it is open");
    drop(ready(next(&mut worker)));
    assert!(matches!(next(&mut worker), Event::Message(1)));
    Ok(())
}

#[for_every_backend]
fn a_shared_socket_is_served_by_many_threads(backend: Backend) -> io::Result<()> {
    const DATAGRAMS: usize = 500;
    for trigger in [SharedTrigger::Level, SharedTrigger::Edge] {
        let port = Port::<UdpSocket>::from(port(backend)?);
        let socket = UdpSocket::bind("127.0.0.1:0")?;
        socket.set_nonblocking(true)?;
        let address = socket.local_addr()?;
        port.share(Arc::new(socket), Interest::IN, trigger)?;
        thread::scope(|scope| -> io::Result<()> {
            for _ in 0..4 {
                let mut worker = port.worker(2);
                scope.spawn(move || {
                    while worker.process(None).is_ok() {
                        while let Some(Event::Shared(socket, events)) = worker.take() {
                            assert!(events.contains(Events::IN));
                            let mut buffer = [0; 16];
                            while let Ok((length, from)) = socket.recv_from(&mut buffer) {
                                // Wine refuses while another thread sends, though there is room.
                                let sent = loop {
                                    match socket.send_to(&buffer[..length], from) {
                                        Err(error) if error.kind() == ErrorKind::WouldBlock => {
                                            thread::yield_now();
                                        }
                                        sent => break sent,
                                    }
                                };
                                assert_eq!(sent.expect("loopback"), length);
                            }
                        }
                    }
                });
            }
            let exchange = || -> io::Result<()> {
                let client = UdpSocket::bind("127.0.0.1:0")?;
                client.set_read_timeout(Some(PATIENCE))?;
                for number in 0..DATAGRAMS {
                    let message = (number as u64).to_le_bytes();
                    client.send_to(&message, address)?;
                    let mut answer = [0; 8];
                    uninterrupted(|| client.recv(&mut answer))?;
                    assert_eq!(answer, message);
                }
                Ok(())
            };
            let outcome = exchange();
            port.close();
            outcome
        })?;
    }
    Ok(())
}

#[for_every_backend]
fn a_shared_socket_comes_back_last(backend: Backend) -> io::Result<()> {
    let port = Port::<UdpSocket>::from(port(backend)?);
    let mut worker = port.worker(4);
    let socket = Arc::new(UdpSocket::bind("127.0.0.1:0")?);
    let shared = Arc::clone(&socket);
    let id = port.share(shared, Interest::OUT, SharedTrigger::Level)?;
    for _ in 0..3 {
        worker.process(Some(PATIENCE))?;
        assert!(matches!(worker.take(), Some(Event::Shared(_, Events::OUT))));
    }
    port.unshare(id)?;
    loop {
        worker.process(Some(PATIENCE))?;
        match worker.take() {
            Some(Event::Shared(..)) => {}
            Some(Event::Returned(it)) => {
                assert!(Arc::ptr_eq(&it, &socket));
                break;
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(port.unshare(id).is_err());
    assert_eq!(worker.process(Some(Duration::ZERO)), Ok(0));
    assert_eq!(Arc::strong_count(&socket), 1);
    assert_eq!(counted(port.snapshot().registrations), 0);
    Ok(())
}

/// A socket that is shared by any connection's type.
fn shareable() -> io::Result<(Arc<Connection>, Socket)> {
    let pair = Pair::unix()?;
    let socket = Connection {
        socket: pair.ours,
        served: 0,
    };
    Ok((Arc::new(socket), pair.theirs))
}

/// The next event of a shared socket's end.
#[track_caller]
fn returned(worker: &mut TestWorker) -> Arc<Connection> {
    loop {
        match next(worker) {
            Event::Shared(..) => {}
            Event::Returned(socket) => break socket,
            other => panic!("{other:?}"),
        }
    }
}

/// A thread has dequeued a packet of the shared socket. Before it takes the event, the socket is shared
/// no longer, and another connection has its index.
#[for_every_backend]
fn a_stale_packet_of_a_shared_socket_brings_out_no_later_connection(
    backend: Backend,
) -> io::Result<()> {
    let port = owning_port(backend, 2)?;
    let [mut first, mut second] = [port.worker(4), port.worker(4)];
    for _ in 0..3 {
        let (socket, _theirs) = shareable()?;
        let id = port.share(socket, Interest::OUT, SharedTrigger::Level)?;
        first.process(Some(PATIENCE))?;
        port.unshare(id)?;
        drop(returned(&mut second));
        let (connection, mut peer) = connect(&port)?;
        port.arm(connection, Interest::IN);
        let event = first.take();
        assert!(event.is_none(), "{event:?}");
        // The connection is armed still.
        peer.write_all(b"x")?;
        drop(ready(next(&mut second)));
    }
    Ok(())
}

#[for_every_backend]
fn an_old_id_does_not_end_a_later_sharing(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend, 2)?;
    let mut worker = port.worker(4);
    let (mut socket, _theirs) = shareable()?;
    let mut old = Vec::new();
    for _ in 0..3 {
        let id = port.share(socket, Interest::OUT, SharedTrigger::Level)?;
        for &old in &old {
            let error = port.unshare(old).expect_err("it is over");
            assert_eq!(error.kind(), io::ErrorKind::NotFound);
        }
        assert!(matches!(next(&mut worker), Event::Shared(..)));
        while worker.take().is_some() {}
        port.unshare(id)?;
        assert!(port.unshare(id).is_err(), "it is on its way");
        socket = returned(&mut worker);
        old.push(id);
    }
    Ok(())
}

/// One socket is shared over and over, and two threads end each sharing.
#[for_every_backend]
fn a_sharing_is_ended_once_however_many_threads_try(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend, 3)?;
    let mut worker = port.worker(4);
    let (socket, _theirs) = shareable()?;
    let current = Mutex::new(None);
    let done = AtomicBool::new(false);
    let end = Instant::now() + Duration::from_secs(1);
    thread::scope(|scope| -> io::Result<()> {
        let threads: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let mut ended = Vec::new();
                    while !done.load(Ordering::Relaxed) {
                        let id = *current.lock().expect("no panic");
                        ended.extend(id.filter(|&id| port.unshare(id).is_ok()));
                    }
                    ended
                })
            })
            .collect();
        let mut shared = Vec::new();
        while Instant::now() < end {
            let socket = Arc::clone(&socket);
            let id = port.share(socket, Interest::NOTHING, SharedTrigger::Level)?;
            *current.lock().expect("no panic") = Some(id);
            shared.push(id);
            drop(returned(&mut worker));
        }
        done.store(true, Ordering::Relaxed);
        let ended = threads
            .into_iter()
            .map(|thread| thread.join().expect("no panic"));
        let mut ended: Vec<Id> = ended.flatten().collect();
        ended.sort();
        shared.sort();
        assert_eq!(ended, shared);
        Ok(())
    })
}

#[for_every_backend]
fn a_shared_socket_cannot_be_cancelled(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend, 2)?;
    let mut worker = port.worker(4);
    let (socket, mut theirs) = shareable()?;
    let id = port.share(Arc::clone(&socket), Interest::IN, SharedTrigger::Level)?;
    assert!(!port.cancel(id));
    nothing(&mut worker);
    theirs.write_all(b"x")?;
    assert!(matches!(next(&mut worker), Event::Shared(_, Events::IN)));
    Ok(())
}

#[for_every_backend]
fn a_worker_that_goes_hands_on_events_of_shared_sockets(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend, 2)?;
    let (socket, mut theirs) = shareable()?;
    let id = port.share(socket, Interest::IN, SharedTrigger::Edge)?;
    theirs.write_all(b"x")?;
    let mut worker = port.worker(4);
    worker.process(Some(PATIENCE))?;
    drop(worker);
    let mut worker = port.worker(4);
    assert!(matches!(next(&mut worker), Event::Shared(_, Events::IN)));
    nothing(&mut worker);
    // And of its end.
    port.unshare(id)?;
    worker.process(Some(PATIENCE))?;
    drop(worker);
    assert!(matches!(next(&mut port.worker(4)), Event::Returned(_)));
    Ok(())
}

/// A connection that no two threads may use at once, such as one with a future in it.
#[allow(dead_code, reason = "it is never made")]
struct Lonely {
    socket: UdpSocket,
    state: std::cell::Cell<u32>,
}

impl socknotify::owned::Source for Lonely {
    fn socket(&self) -> socknotify::owned::BorrowedSocket<'_> {
        self.socket.socket()
    }
}

/// This holds when it compiles.
#[test]
fn connections_move_between_threads_without_being_sync() {
    fn moves<T: Send>() {}
    fn is_used_by_many<T: Sync>() {}
    moves::<socknotify::owned::Held<Lonely>>();
    moves::<socknotify::owned::Worker<Lonely>>();
    moves::<Port<Lonely>>();
    is_used_by_many::<Port<Lonely>>();
    is_used_by_many::<socknotify::owned::Held<UdpSocket>>();
}

/// A message that sends another one when it is dropped.
struct Sending(Weak<Port<UdpSocket, Sending>>);

impl Drop for Sending {
    fn drop(&mut self) {
        if let Some(port) = self.0.upgrade() {
            // This one would send, too.
            if let Err(SendError(message)) = port.send(Sending(Weak::new())) {
                drop(message);
            }
        }
    }
}

#[for_every_backend]
fn a_message_can_send_when_closing_drops_it(backend: Backend) -> io::Result<()> {
    let port = Arc::new(Port::<UdpSocket, Sending>::from(port(backend)?));
    for _ in 0..3 {
        let message = Sending(Arc::downgrade(&port));
        assert!(port.send(message).is_ok());
    }
    let (closed, waits) = channel();
    thread::spawn({
        let port = Arc::clone(&port);
        move || {
            port.close();
            let _ = closed.send(());
        }
    });
    let outcome = waits.recv_timeout(PATIENCE);
    assert!(outcome.is_ok(), "closing does not return");
    Ok(())
}

#[for_every_backend]
fn packets_and_registrations_from_before_are_dropped(backend: Backend) -> io::Result<()> {
    let plain = port(backend)?;
    let Pair { ours, mut theirs } = Pair::unix()?;
    let mut keys = vec![0, 1, 63, 64, 4096, usize::MAX >> 1, u32::MAX as usize];
    keys.extend((0..8).map(|number| usize::MAX - number));
    for &key in &keys {
        for says in [
            0,
            Events::IN.bits(),
            Events::REMOVE.bits(),
            1 << 30,
            1 << 31,
        ] {
            plain.post(Entry::new(key, says, 0))?;
        }
    }
    let level = Trigger::PERSISTENT | Trigger::LEVEL;
    plain.enable(&ours, 0, EventFilter::IN, level)?;
    let port: TestPort = Port::from(plain);
    let mut worker = port.worker(128);
    let (connection, mut peer) = connect(&port)?;
    port.arm(connection, Interest::IN);
    nothing(&mut worker);
    // What is registered says that it is ready again and again. The connection is heard all the same.
    theirs.write_all(b"x")?;
    nothing(&mut worker);
    peer.write_all(b"x")?;
    let connection = ready(next(&mut worker));
    worker.arm(connection, Interest::OUT);
    drop(ready(next(&mut worker)));
    Ok(())
}

/// Whether a descriptor is readable, within some time.
#[cfg(unix)]
fn is_readable(descriptor: &impl AsSocket, time: Duration) -> io::Result<bool> {
    Ok(is_ready(descriptor, PollFlags::IN, time))
}

#[cfg(unix)]
#[for_every_backend]
fn the_port_can_be_watched(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend, 2)?;
    let mut worker = port.worker(4);
    let (connection, mut peer) = connect(&port)?;
    port.arm(connection, Interest::IN);
    nothing(&mut worker);
    assert!(!is_readable(&port, Duration::ZERO)?);
    for _ in 0..3 {
        peer.write_all(b"x")?;
        assert!(is_readable(&port, PATIENCE)?);
        worker.process(Some(Duration::ZERO))?;
        let connection = ready(worker.take().expect("an event"));
        io::Read::read_exact(&mut &connection.socket, &mut [0])?;
        worker.arm(connection, Interest::IN);
        nothing(&mut worker);
        assert!(!is_readable(&port, Duration::ZERO)?);
        port.send(1).expect("it is open");
        assert!(is_readable(&port, PATIENCE)?);
        assert!(matches!(next(&mut worker), Event::Message(1)));
        nothing(&mut worker);
        assert!(!is_readable(&port, Duration::ZERO)?);
    }
    // A deadline, too.
    let (connection, _peer) = connect(&port)?;
    let soon = socknotify::owned::Interest::IN.within(Duration::from_millis(5));
    port.arm(connection, soon);
    assert!(is_readable(&port, PATIENCE)?);
    assert!(matches!(next(&mut worker), Event::TimedOut(_)));
    Ok(())
}

#[cfg(unix)]
#[for_every_backend]
fn a_watched_port_stays_readable_while_something_is_left(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend, 2)?;
    let mut worker = port.worker(1);
    assert!(!is_readable(&port, Duration::ZERO)?);
    for message in 0..5 {
        port.send(message).expect("it is open");
    }
    for expected in 0..5 {
        assert!(is_readable(&port, Duration::ZERO)?);
        worker.process(Some(Duration::ZERO))?;
        assert!(matches!(worker.take(), Some(Event::Message(it)) if it == expected));
    }
    nothing(&mut worker);
    assert!(!is_readable(&port, Duration::ZERO)?);
    Ok(())
}
