//! What other threads have for a connection to send.

use std::io::{self, ErrorKind, Read};
use std::net::{TcpListener, TcpStream};
use std::thread;

use socknotify::Backend;
use socknotify::owned::{
    BorrowedSocket, Event, Held, Interest, Outbox, OutboxError, Port, Sender, Source, Worker,
};

use crate::support::{PATIENCE, port_with};

struct Client {
    stream: TcpStream,
    outbox: Outbox,
}

impl Source for Client {
    fn socket(&self) -> BorrowedSocket<'_> {
        self.stream.socket()
    }
}

fn outbox_port(backend: Backend) -> Port<Client> {
    Port::from(port_with(backend, 1).expect("a port"))
}

const LIMIT: usize = 64 * 1024;

/// A held connection, its sender, and its peer.
fn connection(port: &Port<Client>) -> (Held<Client>, Sender, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let peer = TcpStream::connect(listener.local_addr().expect("it is bound")).expect("it listens");
    let (stream, _) = listener.accept().expect("it has connected");
    stream.set_nonblocking(true).expect("it is open");
    let outbox = Outbox::new(LIMIT);
    let held = port
        .adopt(Client { stream, outbox })
        .expect("the port is open");
    let sender = held.outbox.sender(&held);
    (held, sender, peer)
}

/// Serve one connection as the documentation says, until the peer has closed it or sending is an error.
fn serve(worker: &mut Worker<Client>) -> io::Error {
    loop {
        worker.process(None).expect("the port is open");
        while let Some(event) = worker.take() {
            let (Event::Ready(mut held, _) | Event::Cancelled(mut held)) = event else {
                panic!("{event:?}");
            };
            let client = &mut *held;
            match (&client.stream).read(&mut [0; 16]) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Ok(_) => return ErrorKind::UnexpectedEof.into(),
                Err(error) => return error,
            }
            match client.outbox.send(&client.stream) {
                Ok(interest) => worker.arm(held, interest),
                Err(error) => return error,
            }
        }
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.outbox.fmt(f)
    }
}

/// Several threads send, each in its order; the peer reads slowly, so the outbox is full at times.
#[for_every_backend]
fn all_that_is_sent_arrives_in_order(backend: Backend) -> io::Result<()> {
    const SENDERS: u8 = 4;
    const MESSAGES: u32 = 20_000;
    let port = outbox_port(backend);
    let (held, sender, mut peer) = connection(&port);
    port.arm(held, Interest::IN);
    thread::scope(|scope| {
        let mut worker = port.worker(1);
        scope.spawn(move || serve(&mut worker));
        for number in 0..SENDERS {
            let sender = sender.clone();
            scope.spawn(move || {
                for message in 0..MESSAGES {
                    // Of 5 to 104 bytes.
                    let mut bytes = vec![number; 5 + message as usize % 100];
                    bytes[1..5].copy_from_slice(&message.to_le_bytes());
                    loop {
                        match sender.send(&bytes) {
                            Ok(()) => break,
                            Err(OutboxError::Full) => thread::yield_now(),
                            Err(error) => panic!("{error}"),
                        }
                    }
                }
            });
        }
        let mut next = [0; SENDERS as usize];
        for _ in 0..u32::from(SENDERS) * MESSAGES {
            let mut head = [0; 5];
            peer.read_exact(&mut head).expect("it arrives");
            let [number, message @ ..] = head;
            let message = u32::from_le_bytes(message);
            assert_eq!(message, next[usize::from(number)]);
            next[usize::from(number)] += 1;
            let mut rest = vec![0; message as usize % 100];
            peer.read_exact(&mut rest).expect("it arrives");
            assert!(rest.iter().all(|&it| it == number));
        }
        assert_eq!(next, [MESSAGES; SENDERS as usize]);
        drop(peer);
    });
    assert_eq!(sender.send(b"more"), Err(OutboxError::Gone));
    Ok(())
}

/// Each message is sent when the peer has the one before: so while the connection may be armed, held, or sending.
#[for_every_backend]
fn no_wake_up_is_lost(backend: Backend) -> io::Result<()> {
    let port = outbox_port(backend);
    let (held, sender, mut peer) = connection(&port);
    port.arm(held, Interest::IN);
    thread::scope(|scope| {
        let mut worker = port.worker(1);
        scope.spawn(move || serve(&mut worker));
        for message in 0..20_000_u32 {
            sender.send(&message.to_le_bytes()).expect("it has room");
            let mut received = [0; 4];
            peer.read_exact(&mut received).expect("it arrives");
            assert_eq!(u32::from_le_bytes(received), message);
        }
        drop(peer);
    });
    Ok(())
}

#[for_every_backend]
fn what_has_no_room_is_refused_whole(backend: Backend) -> io::Result<()> {
    let port = outbox_port(backend);
    let (mut held, sender, mut peer) = connection(&port);
    assert_eq!(sender.send(&[1; LIMIT + 1]), Err(OutboxError::Full));
    assert!(held.outbox.is_empty());
    sender.send(&[1; LIMIT - 2]).expect("it has room");
    assert_eq!(sender.send(&[2; 3]), Err(OutboxError::Full));
    assert_eq!((sender.room(), held.outbox.len()), (2, LIMIT - 2));
    sender.send(&[3; 2]).expect("it has room");
    sender.send(&[]).expect("nothing needs no room");

    // Until the socket takes nothing more.
    let client = &mut *held;
    let mut total = LIMIT;
    while client.outbox.send(&client.stream).expect("it is open") == Interest::IN {
        sender.send(&[4; LIMIT]).expect("it has room");
        total += LIMIT;
    }
    let left = client.outbox.len();
    assert!(left > 0 && sender.room() == LIMIT - left);
    assert_eq!(
        sender.send(&[5; LIMIT]),
        Err(OutboxError::Full),
        "also what was taken to be sent counts"
    );
    let reader = thread::spawn(move || peer.read_to_end(&mut Vec::new()));
    while client.outbox.send(&client.stream).expect("it is open") != Interest::IN {
        thread::yield_now();
    }
    drop(held);
    let received = reader.join().expect("no panic").expect("it is closed");
    assert_eq!(received, total);
    Ok(())
}

#[for_every_backend]
fn a_connection_that_has_ended_is_gone(backend: Backend) -> io::Result<()> {
    let port = outbox_port(backend);
    let (held, sender, _peer) = connection(&port);
    drop(held);
    assert_eq!(sender.send(b"news"), Err(OutboxError::Gone));

    let (held, sender, _peer) = connection(&port);
    port.arm(held, Interest::IN);
    drop(port);
    assert_eq!(sender.send(b"news"), Err(OutboxError::Gone));
    Ok(())
}

#[for_every_backend]
fn a_port_that_has_closed_sends_nothing(backend: Backend) -> io::Result<()> {
    let port = outbox_port(backend);
    let (held, sender, _peer) = connection(&port);
    port.arm(held, Interest::IN);
    let left = port.close();
    assert_eq!(sender.send(b"news"), Err(OutboxError::Gone));
    drop(left);
    Ok(())
}

#[for_every_backend]
fn a_sender_can_end_the_connection(backend: Backend) -> io::Result<()> {
    let port = outbox_port(backend);
    let (held, sender, mut peer) = connection(&port);
    port.arm(held, Interest::IN);
    sender.end();
    assert_eq!(sender.send(b"news"), Err(OutboxError::Gone));
    let mut worker = port.worker(1);
    assert_eq!(
        serve(&mut worker).kind(),
        ErrorKind::ConnectionAborted,
        "it was woken"
    );
    assert_eq!(
        peer.read(&mut [0]).expect("it is closed in good order"),
        0,
        "what is not armed is closed"
    );
    Ok(())
}

/// One that is held is reported when it is armed next, even if it is armed for nothing.
#[for_every_backend]
fn what_comes_while_it_is_held_wakes_it_when_it_is_armed(backend: Backend) -> io::Result<()> {
    let port = outbox_port(backend);
    let (mut held, sender, mut peer) = connection(&port);
    let client = &mut *held;
    assert_eq!(
        client.outbox.send(&client.stream).expect("it is open"),
        Interest::IN
    );
    sender.send(b"news").expect("it has room");
    port.arm(held, Interest::NOTHING);
    let mut worker = port.worker(1);
    let found = worker.process(Some(PATIENCE));
    assert_eq!(found.expect("the port is open"), 1);
    let Some(Event::Cancelled(mut held)) = worker.take() else {
        panic!("it is woken");
    };
    let client = &mut *held;
    let sent = client.outbox.send(&client.stream);
    assert_eq!(sent.expect("it is open"), Interest::IN);
    let mut received = [0; 4];
    peer.read_exact(&mut received).expect("it arrives");
    assert_eq!(&received, b"news");
    Ok(())
}

/// Its own thread wakes nobody, and its bytes are in order with those of others.
#[for_every_backend]
fn what_its_own_thread_puts_in_wakes_nobody(backend: Backend) -> io::Result<()> {
    let port = outbox_port(backend);
    let (mut held, sender, mut peer) = connection(&port);
    let client = &mut *held;
    client.outbox.push(b"one ").expect("it has room");
    sender.send(b"two ").expect("it has room");
    client.outbox.push(b"three").expect("it has room");
    assert_eq!(client.outbox.push(&[0; LIMIT]), Err(OutboxError::Full));
    assert_eq!(client.outbox.send(&client.stream)?, Interest::IN);
    let mut received = [0; 13];
    peer.read_exact(&mut received)?;
    assert_eq!(&received, b"one two three");
    let mut worker = port.worker(1);
    worker.arm(held, Interest::IN);
    assert_eq!(worker.process(Some(PATIENCE))?, 1);
    let Some(Event::Cancelled(mut held)) = worker.take() else {
        panic!("the sender has woken it");
    };
    let client = &mut *held;
    client.outbox.push(b"four")?;
    assert_eq!(client.outbox.send(&client.stream)?, Interest::IN);
    worker.arm(held, Interest::IN);
    assert_eq!(worker.process(Some(std::time::Duration::ZERO))?, 0);
    Ok(())
}

/// It sends what came in its time in the first port, and what comes later, and nothing that a sender was refused.
#[for_every_backend]
fn a_connection_of_another_port_sends_on(backend: Backend) -> io::Result<()> {
    let (port, other) = (outbox_port(backend), outbox_port(backend));
    for waits in [&b""[..], b"first "] {
        let (held, old, mut peer) = connection(&port);
        old.send(waits).expect("it has room");
        let mut client = held.into_inner();
        if waits.is_empty() {
            assert_eq!(old.send(b"none"), Err(OutboxError::Gone));
            assert!(client.outbox.is_empty());
        }
        client = other.adopt(client).expect("the port is open").into_inner();
        let held = other.adopt(client).expect("the port is open");
        let sender = held.outbox.sender(&held);
        other.arm(held, Interest::IN);
        sender.send(b"news").expect("it has room");
        thread::scope(|scope| {
            let mut worker = other.worker(1);
            scope.spawn(move || serve(&mut worker));
            let mut received = vec![0; waits.len() + 4];
            peer.read_exact(&mut received).expect("it arrives");
            assert_eq!(received, [waits, b"news"].concat());
            drop(peer);
        });
    }
    Ok(())
}

#[cfg(any(target_os = "linux", target_os = "freebsd", target_vendor = "apple"))]
#[test]
fn a_peer_that_reads_a_little_progresses_and_one_that_reads_nothing_does_not() -> io::Result<()> {
    let port = Port::<Client>::new()?;
    let (mut held, sender, mut peer) = connection(&port);
    let client = &mut *held;
    assert!(!client.outbox.has_progressed(&client.stream), "it is empty");
    while client.outbox.send(&client.stream)? == Interest::IN {
        sender.send(&[1; LIMIT])?;
    }
    assert!(
        client.outbox.has_progressed(&client.stream),
        "the first time"
    );
    // What is on its way may still be acknowledged.
    while client.outbox.has_progressed(&client.stream) {}
    while !client.outbox.has_progressed(&client.stream) {
        peer.read_exact(&mut [0; 16 * 1024])?;
        // With nothing to send there is no progress.
        if client.outbox.send(&client.stream)? == Interest::IN {
            sender.send(&[1; LIMIT])?;
        }
    }
    Ok(())
}
