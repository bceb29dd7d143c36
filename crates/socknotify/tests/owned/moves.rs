//! Into the port and out of it.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
#[cfg(unix)]
use std::os::fd::AsRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use socket2::Socket;
use socknotify::owned::{BorrowedSocket, Event, Interest, Port, Source};
use socknotify::{Backend, EventFilter, Events, Registration, RegistrationError};

use crate::support::trigger::ONCE;
use crate::support::{PATIENCE, Pair, PortExt, as_told_by, counted, port, uninterrupted};
use crate::{connect, next, nothing, owning_port, ready};

#[for_every_backend]
fn what_is_armed_comes_out_when_it_is_ready(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend, 2)?;
    let mut worker = port.worker(4);
    let (connection, mut peer) = connect(&port)?;
    let id = connection.id();
    worker.arm(connection, Interest::IN);
    nothing(&mut worker);
    for served in 0..100 {
        peer.write_all(b"x")?;
        let mut connection = ready(next(&mut worker));
        assert_eq!((connection.id(), connection.served), (id, served));
        connection.served += 1;
        assert_eq!((&connection.socket).read(&mut [0; 8])?, 1);
        worker.arm(connection, Interest::IN);
    }
    nothing(&mut worker);
    Ok(())
}

#[for_every_backend]
fn a_call_arms_and_takes_together(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend, 2)?;
    let mut worker = port.worker(8);
    // It has a permit, and so keeps what it is to arm.
    port.send(0)?;
    assert!(matches!(next(&mut worker), Event::Message(0)));
    let mut peers = Vec::new();
    for _ in 0..8 {
        let (connection, mut peer) = connect(&port)?;
        peer.write_all(b"x")?;
        worker.arm(connection, Interest::IN);
        peers.push(peer);
    }
    for _ in 0..50 {
        worker.process(Some(PATIENCE))?;
        let mut count = 0;
        while let Some(event) = worker.take() {
            // It stays readable.
            let connection = ready(event);
            worker.arm(connection, Interest::IN);
            count += 1;
        }
        assert_eq!(count, 8);
    }
    Ok(())
}

/// The worker is to poll it for the arming before.
#[for_every_backend]
fn c4_what_was_taken_out_and_armed_for_something_else_is_reported(
    backend: Backend,
) -> io::Result<()> {
    let port = owning_port(backend, 2)?;
    let mut worker = port.worker(4);
    let (connection, _peer) = connect(&port)?;
    let id = connection.id();
    worker.arm(connection, Interest::IN | Interest::OUT);
    let connection = ready(next(&mut worker));
    worker.arm(connection, Interest::IN | Interest::OUT);
    let connection = port.disarm(id).expect("nobody has dequeued its event");
    port.arm(connection, Interest::OUT);
    assert_eq!(worker.process(Some(Duration::ZERO))?, 1);
    drop(worker.take().map(ready));
    Ok(())
}

#[for_every_backend]
fn events_that_were_not_taken_stay(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend, 2)?;
    let mut worker = port.worker(8);
    let mut peers = Vec::new();
    for _ in 0..3 {
        let (connection, mut peer) = connect(&port)?;
        peer.write_all(b"x")?;
        port.arm(connection, Interest::IN);
        peers.push(peer);
    }
    let first = ready(next(&mut worker));
    worker.arm(first, Interest::IN);
    // Two are there still, and the first one comes again after them.
    for _ in 0..2 {
        drop(ready(next(&mut worker)));
    }
    drop(ready(next(&mut worker)));
    assert_eq!(counted(port.snapshot().registrations), 0);
    Ok(())
}

#[for_every_backend]
fn the_events_are_those_that_were_asked_for(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend, 2)?;
    let mut worker = port.worker(4);
    let (connection, mut peer) = connect(&port)?;
    peer.write_all(b"x")?;
    let mut connection = Some(connection);
    for (interest, expected) in [
        (Interest::IN, Events::IN),
        (Interest::OUT, Events::OUT),
        (Interest::IN | Interest::OUT, Events::IN | Events::OUT),
    ] {
        worker.arm(connection.take().expect("it came back"), interest);
        match next(&mut worker) {
            Event::Ready(it, events) => {
                assert_eq!(events, expected);
                connection = Some(it);
            }
            other => panic!("{other:?}"),
        }
    }
    Ok(())
}

#[for_every_backend]
fn an_armed_connection_can_wait_for_nothing(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend, 2)?;
    let mut worker = port.worker(4);
    let (connection, mut peer) = connect(&port)?;
    let id = connection.id();
    peer.write_all(b"x")?;
    worker.arm(connection, Interest::NOTHING);
    nothing(&mut worker);
    assert!(port.cancel(id));
    assert!(matches!(next(&mut worker), Event::Cancelled(it) if it.id() == id));
    Ok(())
}

#[for_every_backend]
fn what_was_taken_back_is_free(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend, 2)?;
    let other = crate::support::port(backend)?;
    let mut worker = port.worker(4);
    let (connection, mut peer) = connect(&port)?;
    peer.write_all(b"x")?;
    worker.arm(connection, Interest::IN);
    let connection = ready(next(&mut worker)).into_inner();
    assert_eq!(counted(port.snapshot().registrations), 0);
    other.enable(&connection.socket, 7, EventFilter::IN, ONCE)?;
    assert_eq!(other.dequeue_one(Some(PATIENCE))?.completion_key, 7);
    other.register(Registration::remove(&connection.socket))?;
    assert_eq!(other.dequeue_one(Some(PATIENCE))?.events(), Events::REMOVE);
    // And it may come back.
    port.arm(port.adopt(connection)?, Interest::IN);
    drop(ready(next(&mut worker)));
    Ok(())
}

#[cfg(unix)]
#[for_every_backend]
fn what_is_no_socket_is_not_adopted(backend: Backend) -> io::Result<()> {
    let port = Port::<std::fs::File>::from(port(backend)?);
    let file = std::fs::File::open("/dev/null")?;
    let error = port.adopt(file).expect_err("a file");
    assert!(error.to_string().contains("not taken"), "{error}");
    let file: std::fs::File = error.into_inner();
    drop(file);
    assert_eq!(counted(port.snapshot().registrations), 0);
    Ok(())
}

#[cfg(unix)]
#[for_every_backend]
fn x5_what_cannot_be_watched_is_not_adopted(backend: Backend) -> io::Result<()> {
    let port = Port::<std::fs::File>::from(port(backend)?);
    let mut files = vec![
        tempfile::tempfile()?,
        std::fs::File::open(std::env::temp_dir())?,
    ];
    // A kqueue has filters for devices.
    if backend.name() == "epoll" {
        files.push(std::fs::File::open("/dev/null")?);
    }
    for file in files {
        let number = file.as_raw_fd();
        let error = port.adopt_descriptor(file).expect_err("it is no socket");
        let refused = RegistrationError::NotWatchable.to_string();
        assert!(error.to_string().contains(&refused), "{error}");
        assert_eq!(error.into_inner().as_raw_fd(), number);
    }
    assert_eq!(counted(port.snapshot().registrations), 0);
    Ok(())
}

#[cfg(unix)]
#[for_every_backend]
fn x5_what_was_adopted_can_be_watched(backend: Backend) -> io::Result<()> {
    let port = Port::<std::fs::File>::from(port(backend)?);
    let (reader, writer) = rustix::pipe::pipe()?;
    // It has its end before it is armed.
    let held = port.adopt_descriptor(reader.into())?;
    drop(writer);
    let mut worker = port.worker(4);
    assert_eq!(worker.process(Some(Duration::ZERO))?, 0);
    port.arm(held, Interest::IN);
    assert_eq!(worker.process(Some(PATIENCE))?, 1);
    assert!(
        matches!(worker.take(), Some(Event::Ready(_, readiness)) if readiness.contains(Events::IN))
    );
    assert_eq!(counted(port.snapshot().registrations), 0);
    Ok(())
}

#[for_every_backend]
fn a_connection_has_one_port(backend: Backend) -> io::Result<()> {
    let [first, second] = [owning_port(backend, 2)?, owning_port(backend, 2)?];
    let (connection, _peer) = connect(&first)?;
    // Another owner of the same descriptor, which only code outside of the types can make.
    let plain = port(backend)?;
    let taken = plain.enable(&connection.socket, 1, EventFilter::IN, ONCE);
    let refused = as_told_by(&plain, Err(RegistrationError::OtherPort));
    assert_eq!(taken, refused);
    let connection = connection.into_inner();
    let connection = second.adopt(connection)?;
    let wrong = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        first.arm(connection, Interest::IN)
    }));
    assert!(wrong.is_err());
    assert_eq!(
        counted(second.snapshot().registrations),
        0,
        "it was dropped"
    );
    Ok(())
}

#[for_every_backend]
fn an_id_is_never_given_again(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend, 2)?;
    let mut ids = std::collections::HashSet::new();
    for _ in 0..1000 {
        let (connection, _peer) = connect(&port)?;
        assert!(ids.insert(connection.id()));
        drop(connection);
    }
    for id in ids {
        assert!(!port.cancel(id));
    }
    Ok(())
}

#[for_every_backend]
fn a_worker_that_goes_leaves_its_events_to_others(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend, 2)?;
    let mut first = port.worker(8);
    let mut peers = Vec::new();
    for _ in 0..4 {
        let (connection, mut peer) = connect(&port)?;
        peer.write_all(b"x")?;
        port.arm(connection, Interest::IN);
        peers.push(peer);
    }
    port.send(5).expect("it is open");
    let again = ready(next(&mut first));
    first.arm(again, Interest::IN);
    drop(first);
    let mut second = port.worker(8);
    let (mut connections, mut messages) = (0, 0);
    while connections + messages < 5 {
        match next(&mut second) {
            Event::Ready(..) => connections += 1,
            Event::Message(5) => messages += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((connections, messages), (4, 1));
    Ok(())
}

#[for_every_backend]
fn a_panic_loses_the_connection_in_hand_and_no_other(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend, 2)?;
    let mut peers = Vec::new();
    for _ in 0..4 {
        let (connection, mut peer) = connect(&port)?;
        peer.write_all(b"x")?;
        port.arm(connection, Interest::IN);
        peers.push(peer);
    }
    let mut worker = port.worker(8);
    let thread = thread::spawn(move || {
        let again = ready(next(&mut worker));
        worker.arm(again, Interest::IN);
        let _in_hand = ready(next(&mut worker));
        panic!("on purpose");
    });
    assert!(thread.join().is_err());
    let mut worker = port.worker(8);
    for _ in 0..3 {
        drop(ready(next(&mut worker)));
    }
    nothing(&mut worker);
    assert_eq!(counted(port.snapshot().registrations), 0);
    // All of them are closed by now: one in the panic, three here.
    for mut peer in peers {
        let end = uninterrupted(|| peer.read(&mut [0]));
        assert!(
            end.as_ref().is_ok_and(|&length| length == 0)
                || end.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionReset)
        );
    }
    Ok(())
}

/// The socket behind the number was replaced, which only code outside of the types can do.
#[for_every_backend]
fn a_socket_that_the_system_refuses_comes_back(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend, 2)?;
    let mut worker = port.worker(4);
    let (connection, mut peer) = connect(&port)?;
    worker.arm(connection, Interest::IN);
    peer.write_all(b"x")?;
    let mut connection = ready(next(&mut worker));
    let other = Pair::unix()?.ours;
    let old = std::mem::replace(&mut connection.socket, other);
    drop(old);
    let id = connection.id();
    worker.arm(connection, Interest::IN);
    worker.process(Some(Duration::ZERO))?;
    match worker.take() {
        Some(Event::Refused(it, error)) => {
            assert_eq!((it.id(), error), (id, RegistrationError::NotASocket));
        }
        other => panic!("{other:?}"),
    }
    nothing(&mut worker);
    assert_eq!(counted(port.snapshot().registrations), 0);
    Ok(())
}

/// However long the call may wait, and whatever else is armed with it.
#[for_every_backend]
fn a_refused_socket_ends_the_wait(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend, 2)?;
    for timeout in [None, Some(PATIENCE)] {
        let mut worker = port.worker(4);
        let (mut connection, _peer) = connect(&port)?;
        let (other, mut other_peer) = connect(&port)?;
        connection.socket = Pair::unix()?.ours;
        let id = connection.id();
        worker.arm(connection, Interest::IN);
        worker.arm(other, Interest::IN);
        let (done, waits) = channel();
        let begin = Instant::now();
        thread::spawn(move || {
            let outcome = worker.process(timeout);
            let _ = done.send((outcome, worker));
        });
        let returned = waits.recv_timeout(PATIENCE / 2);
        let (outcome, mut worker) = returned.expect("the call returns");
        assert!(begin.elapsed() < PATIENCE / 2);
        outcome?;
        match worker.take() {
            Some(Event::Refused(it, RegistrationError::NotASocket)) => assert_eq!(it.id(), id),
            other => panic!("{other:?}"),
        }
        other_peer.write_all(b"x")?;
        drop(ready(next(&mut worker)));
    }
    Ok(())
}

#[for_every_backend]
fn a_foreign_connection_is_refused_where_it_is_armed(backend: Backend) -> io::Result<()> {
    let [port, other] = [owning_port(backend, 2)?, owning_port(backend, 2)?];
    let mut worker = port.worker(8);
    let mut peers = Vec::new();
    for _ in 0..3 {
        let (connection, peer) = connect(&port)?;
        worker.arm(connection, Interest::IN);
        peers.push(peer);
    }
    let (foreign, mut foreign_peer) = connect(&other)?;
    let wrong = catch_unwind(AssertUnwindSafe(|| worker.arm(foreign, Interest::IN)));
    assert!(wrong.is_err());
    assert_eq!(uninterrupted(|| foreign_peer.read(&mut [0]))?, 0, "closed");
    assert_eq!(counted(other.snapshot().registrations), 0);
    // The others are armed as if nothing had been.
    nothing(&mut worker);
    for mut peer in &peers {
        peer.write_all(b"x")?;
        drop(ready(next(&mut worker)));
    }
    Ok(())
}

#[for_every_backend]
fn a_panic_after_a_foreign_connection_does_not_abort(backend: Backend) -> io::Result<()> {
    let [port, other] = [owning_port(backend, 2)?, owning_port(backend, 2)?];
    let mut peers = Vec::new();
    let mut worker = port.worker(8);
    for _ in 0..3 {
        let (connection, mut peer) = connect(&port)?;
        peer.write_all(b"x")?;
        port.arm(connection, Interest::IN);
        peers.push(peer);
    }
    let (foreign, _peer) = connect(&other)?;
    let thread = thread::spawn(move || {
        let again = ready(next(&mut worker));
        worker.arm(again, Interest::IN);
        worker.arm(foreign, Interest::IN);
        panic!("on purpose");
    });
    assert!(thread.join().is_err());
    let mut worker = port.worker(8);
    for _ in 0..3 {
        drop(ready(next(&mut worker)));
    }
    nothing(&mut worker);
    Ok(())
}

/// A connection whose descriptor cannot be had at times.
#[derive(Debug)]
struct Fragile {
    socket: Socket,
    panics: Arc<AtomicBool>,
}

impl Source for Fragile {
    fn socket(&self) -> BorrowedSocket<'_> {
        assert!(!self.panics.load(Ordering::Relaxed), "on purpose");
        self.socket.socket()
    }
}

#[for_every_backend]
fn a_panicking_descriptor_harms_no_other_connection(backend: Backend) -> io::Result<()> {
    let port = Port::<Fragile>::from(port(backend)?);
    let mut worker = port.worker(8);
    let mut peers = Vec::new();
    for number in 0..4 {
        let Pair { ours, theirs } = Pair::unix()?;
        theirs.set_nonblocking(false)?;
        let connection = port.adopt(Fragile {
            socket: ours,
            panics: Arc::default(),
        })?;
        connection.panics.store(number == 2, Ordering::Relaxed);
        let arm = || worker.arm(connection, Interest::IN);
        let armed = catch_unwind(AssertUnwindSafe(arm));
        assert_eq!(armed.is_err(), number == 2);
        peers.push(theirs);
    }
    assert_eq!(worker.process(Some(Duration::ZERO)), Ok(0));
    let mut broken = peers.remove(2);
    assert_eq!(uninterrupted(|| broken.read(&mut [0]))?, 0, "closed");
    for mut peer in &peers {
        peer.write_all(b"x")?;
        worker.process(Some(PATIENCE))?;
        assert!(matches!(worker.take(), Some(Event::Ready(..))));
    }
    assert_eq!(counted(port.snapshot().registrations), 0);
    Ok(())
}

#[for_every_backend]
fn a_connection_whose_descriptor_panics_is_not_counted(backend: Backend) -> io::Result<()> {
    let port = Port::<Fragile>::from(port(backend)?);
    let fragile = |socket| Fragile {
        socket,
        panics: Arc::new(true.into()),
    };
    let socket = Pair::unix()?.ours;
    assert!(catch_unwind(AssertUnwindSafe(|| port.adopt(fragile(socket)))).is_err());
    assert_eq!(port.connections(), 0);

    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    port.listen(listener, Interest::IN, move |stream, _| {
        fragile(stream.into())
    })?;
    let _theirs = TcpStream::connect(address)?;
    let mut worker = port.worker(8);
    worker.process(Some(PATIENCE))?;
    assert!(matches!(worker.take(), Some(Event::Panicked(..))));
    assert_eq!(port.connections(), 0);
    Ok(())
}

#[for_every_backend]
fn a_connect_whose_descriptor_panics_is_closed_and_not_counted(backend: Backend) -> io::Result<()> {
    let port = Port::<Fragile>::from(port(backend)?);
    let mut worker = port.worker(8);
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let panics = Arc::new(AtomicBool::new(false));
    let make = |stream: TcpStream| Fragile {
        socket: stream.into(),
        panics: Arc::clone(&panics),
    };
    port.connect(listener.local_addr()?, PATIENCE, make)?;
    worker.process(Some(PATIENCE))?;
    panics.store(true, Ordering::Relaxed);
    assert!(catch_unwind(AssertUnwindSafe(|| worker.take())).is_err());
    let mut theirs = listener.accept()?.0;
    assert_eq!(uninterrupted(|| theirs.read(&mut [0]))?, 0, "closed");
    assert_eq!(port.connections(), 0);
    assert_eq!(counted(port.snapshot().registrations), 0);
    Ok(())
}

/// A shared socket that answers with another one from the second time on.
struct Changing([std::net::UdpSocket; 2], AtomicUsize);

impl Source for Changing {
    fn socket(&self) -> BorrowedSocket<'_> {
        let calls = self.1.fetch_add(1, Ordering::Relaxed);
        self.0[calls.min(1)].socket()
    }
}

#[for_every_backend]
fn a_shared_socket_that_answers_otherwise_ends_no_other(backend: Backend) -> io::Result<()> {
    use socknotify::owned::SharedTrigger::Level;

    let port = Port::<Changing>::from(port(backend)?);
    let udp = || std::net::UdpSocket::bind("127.0.0.1:0");
    let [first, other] = [udp()?, udp()?];
    let changing = Arc::new(Changing([first, other], 0.into()));
    let id = port.share(Arc::clone(&changing), Interest::OUT, Level)?;
    // Another one of the port has the socket that it answers with from now on.
    let theirs = port.share(Arc::clone(&changing), Interest::OUT, Level)?;
    let refused = port.unshare(id).expect_err("it is another socket");
    let expected = io::Error::from(RegistrationError::NotFound);
    assert_eq!(refused.to_string(), expected.to_string());
    // Which is still registered.
    port.unshare(theirs)
}
