//! Listening: connections that come by themselves.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use socknotify::owned::{
    BorrowedSocket, Event, Held, Interest, Listen, Listening, Port, Source, Worker,
};
use socknotify::{Backend, Error};

use crate::support::{PATIENCE, counted, port_with, uninterrupted, wait_until};

type TcpPort = Port<TcpStream>;

fn tcp_port(backend: Backend, permits: usize) -> io::Result<TcpPort> {
    Ok(Port::from(port_with(backend, permits)?))
}

fn loopback() -> io::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}

fn client(address: SocketAddr) -> io::Result<TcpStream> {
    let client = TcpStream::connect(address)?;
    client.set_read_timeout(Some(PATIENCE))?;
    Ok(client)
}

#[track_caller]
fn next(worker: &mut Worker<TcpStream>) -> Event<TcpStream> {
    let count = worker.process(Some(PATIENCE)).expect("it is open");
    assert!(count > 0, "something comes");
    worker.take().expect("an event")
}

#[track_caller]
fn ready(worker: &mut Worker<TcpStream>) -> Held<TcpStream> {
    match next(worker) {
        Event::Ready(held, _) => held,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn accepted(worker: &mut Worker<TcpStream>) -> Held<TcpStream> {
    match next(worker) {
        Event::Accepted(held) => held,
        other => panic!("{other:?}"),
    }
}

#[for_every_backend]
fn what_a_listener_accepts_is_armed(backend: Backend) -> io::Result<()> {
    let port = tcp_port(backend, 2)?;
    let (listener, address) = loopback()?;
    let seen = Arc::new(Mutex::new(None));
    let make = {
        let seen = Arc::clone(&seen);
        move |stream, address| {
            *seen.lock().expect("no panic") = Some(address);
            stream
        }
    };
    port.listen(listener, Interest::IN, make)?;
    let mut worker = port.worker(4);
    let mut theirs = client(address)?;
    assert_eq!(worker.process(Some(Duration::from_millis(20))), Ok(0));
    assert_eq!(*seen.lock().expect("no panic"), Some(theirs.local_addr()?));
    assert_eq!(port.connections(), 1);
    theirs.write_all(b"x")?;
    let ours = ready(&mut worker);
    assert_eq!(ours.peer_addr()?, theirs.local_addr()?);
    let mut buffer = [0; 2];
    assert_eq!((&*ours).read(&mut buffer)?, 1);
    // It does not block.
    let error = (&*ours).read(&mut buffer).expect_err("nothing is left");
    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    drop(ours);
    assert_eq!(port.connections(), 0);
    assert_eq!(uninterrupted(|| theirs.read(&mut [0]))?, 0);
    Ok(())
}

#[for_every_backend]
fn what_a_listener_accepts_is_reported_if_asked_for(backend: Backend) -> io::Result<()> {
    let port = tcp_port(backend, 2)?;
    let (listener, address) = loopback()?;
    port.listen(listener, Listening::reporting(), |stream, _| stream)?;
    let mut worker = port.worker(4);
    let mut theirs = client(address)?;
    theirs.write_all(b"x")?;
    let ours = accepted(&mut worker);
    assert_eq!(ours.peer_addr()?, theirs.local_addr()?);
    worker.arm(ours, Interest::IN);
    drop(ready(&mut worker));
    Ok(())
}

#[for_every_backend]
fn reported_connections_come_in_their_order(backend: Backend) -> io::Result<()> {
    let port = tcp_port(backend, 2)?;
    let (listener, address) = loopback()?;
    let clients: Vec<_> = (0..10)
        .map(|_| client(address))
        .collect::<io::Result<_>>()?;
    port.listen(listener, Listening::reporting(), |stream, _| stream)?;
    let mut worker = port.worker(4);
    for client in &clients {
        let ours = accepted(&mut worker);
        assert_eq!(ours.peer_addr()?, client.local_addr()?);
    }
    Ok(())
}

/// They do not wait for a round of all that is ready each.
#[for_every_backend]
fn connections_that_come_at_once_are_accepted_in_one_turn(backend: Backend) -> io::Result<()> {
    let port = tcp_port(backend, 2)?;
    let (listener, address) = loopback()?;
    let clients = (0..10).map(|_| client(address));
    let _clients: Vec<_> = clients.collect::<io::Result<_>>()?;
    port.listen(listener, Listening::reporting(), |stream, _| stream)?;
    let mut worker = port.worker(1);
    let _ours = accepted(&mut worker);
    assert_eq!(port.connections(), 10);
    Ok(())
}

#[for_every_backend]
fn several_listeners_feed_one_port(backend: Backend) -> io::Result<()> {
    let port = tcp_port(backend, 2)?;
    let mut addresses = Vec::new();
    for _ in 0..3 {
        let (listener, address) = loopback()?;
        port.listen(listener, Interest::OUT, |stream, _| stream)?;
        addresses.push(address);
    }
    let mut worker = port.worker(4);
    for &address in addresses.iter().chain(&addresses) {
        let _theirs = client(address)?;
        let ours = ready(&mut worker);
        assert_eq!(ours.local_addr()?, address);
    }
    assert_eq!(port.connections(), 0);
    Ok(())
}

#[for_every_backend]
fn a_bound_on_connections_is_kept_and_listening_goes_on(backend: Backend) -> io::Result<()> {
    const BOUND: usize = 3;
    let port = tcp_port(backend, 2)?;
    let (listener, address) = loopback()?;
    let listening = Listening::arming(Interest::OUT).at_most(BOUND);
    port.listen(listener, listening, |stream, _| stream)?;
    let clients: Vec<_> = (0..10)
        .map(|_| client(address))
        .collect::<io::Result<_>>()?;
    let mut worker = port.worker(16);
    let mut held = Vec::new();
    let mut count = 0;
    while count < clients.len() {
        while held.len() < BOUND.min(clients.len() - count) {
            held.push(ready(&mut worker));
        }
        assert_eq!(port.connections(), held.len());
        // What is beyond waits, and costs nothing.
        assert_eq!(worker.process(Some(Duration::from_millis(5))), Ok(0));
        // The end of one lets the next one in.
        held.pop();
        count += 1;
    }
    Ok(())
}

/// To accept takes a share of the bound for a moment, also where no connection waits.
#[for_every_backend]
fn a_listener_that_is_full_keeps_no_thread_busy(backend: Backend) -> io::Result<()> {
    let port = tcp_port(backend, 2)?;
    let (listener, full) = loopback()?;
    let listening = Listening::arming(Interest::OUT).at_most(1);
    port.listen(listener, listening, |stream, _| stream)?;
    let (listener, other) = loopback()?;
    let calls = Arc::new(AtomicUsize::new(0));
    let counting = Failing {
        listener,
        errors: Vec::new(),
        for_ever: false,
        calls: Arc::clone(&calls),
    };
    port.listen(counting, Interest::OUT, |stream, _| stream)?;
    let mut worker = port.worker(4);
    let _clients = [client(full)?, client(full)?];
    let first = ready(&mut worker);
    let _other = client(other)?;
    let second = ready(&mut worker);
    let nap = Duration::from_millis(20);
    assert_eq!(worker.process(Some(nap)), Ok(0));
    let before = calls.load(Ordering::SeqCst);
    assert_eq!(worker.process(Some(nap)), Ok(0));
    assert_eq!(calls.load(Ordering::SeqCst), before);
    // It goes on when there is room.
    drop((first, second));
    drop(ready(&mut worker));
    Ok(())
}

#[for_every_backend]
fn a_listener_that_is_full_is_woken_when_there_is_room(backend: Backend) -> io::Result<()> {
    let port = tcp_port(backend, 2)?;
    let (listener, full) = loopback()?;
    let listening = Listening::arming(Interest::OUT).at_most(2);
    port.listen(listener, listening, |stream, _| stream)?;
    let (listener, other) = loopback()?;
    port.listen(listener, Interest::OUT, |stream, _| stream)?;
    let mut worker = port.worker(4);
    let _clients = [client(full)?, client(full)?, client(full)?];
    let first = [ready(&mut worker), ready(&mut worker)];
    assert_eq!(worker.process(Some(Duration::from_millis(20))), Ok(0));
    let _other = client(other)?;
    let beyond = ready(&mut worker);
    assert_eq!(worker.process(Some(Duration::from_millis(20))), Ok(0));
    drop(beyond);
    assert_eq!(port.snapshot().queued, 0, "there are as many as may be");
    drop(first);
    drop(ready(&mut worker));
    Ok(())
}

#[for_every_backend]
fn a_listener_is_not_taken_out(backend: Backend) -> io::Result<()> {
    let port = tcp_port(backend, 2)?;
    let (listener, address) = loopback()?;
    let id = port.listen(listener, Interest::OUT, |stream, _| stream)?;
    assert!(port.disarm(id).is_none());
    let _client = client(address)?;
    drop(ready(&mut port.worker(4)));
    assert!(port.cancel(id));
    Ok(())
}

#[for_every_backend]
fn several_listeners_share_a_bound(backend: Backend) -> io::Result<()> {
    const BOUND: usize = 5;
    const CLIENTS: usize = 60;
    let port = tcp_port(backend, 2)?;
    let most = AtomicUsize::new(0);
    let mut addresses = Vec::new();
    for _ in 0..3 {
        let (listener, address) = loopback()?;
        let listening = Listening::arming(Interest::OUT).at_most(BOUND);
        port.listen(listener, listening, |stream, _| stream)?;
        addresses.push(address);
    }
    let served = AtomicUsize::new(0);
    thread::scope(|scope| -> io::Result<()> {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut worker = port.worker(2);
                while worker.process(None).is_ok() {
                    while let Some(event) = worker.take() {
                        most.fetch_max(port.connections(), Ordering::Relaxed);
                        served.fetch_add(1, Ordering::Relaxed);
                        drop(event);
                    }
                }
            });
        }
        let clients: io::Result<Vec<_>> = (0..CLIENTS)
            .map(|number| client(addresses[number % addresses.len()]))
            .collect();
        wait_until("all are served", || {
            served.load(Ordering::Relaxed) == CLIENTS || clients.is_err()
        });
        port.close();
        clients.map(drop)
    })?;
    assert!(most.into_inner() <= BOUND);
    Ok(())
}

#[for_every_backend]
fn a_cancelled_listener_is_closed(backend: Backend) -> io::Result<()> {
    let port = tcp_port(backend, 2)?;
    let (listener, address) = loopback()?;
    let id = port.listen(listener, Interest::OUT, |stream, _| stream)?;
    let mut worker = port.worker(4);
    let theirs = client(address)?;
    let ours = ready(&mut worker);
    assert!(port.cancel(id));
    assert_eq!(worker.process(Some(Duration::ZERO)), Ok(0));
    assert!(TcpStream::connect(address).is_err());
    assert!(!port.cancel(id), "it is closed already");
    // What was accepted is not concerned.
    assert_eq!(ours.peer_addr()?, theirs.local_addr()?);
    worker.arm(ours, Interest::OUT);
    drop(ready(&mut worker));
    Ok(())
}

#[for_every_backend]
fn a_listener_is_closed_with_the_port(backend: Backend) -> io::Result<()> {
    let dropped = Arc::new(());
    let port = tcp_port(backend, 2)?;
    let (listener, address) = loopback()?;
    // As long as this connection is there, no other listener is given the address.
    let _keeps = (client(address)?, listener.accept()?);
    let kept = Arc::clone(&dropped);
    port.listen(listener, Interest::IN, move |stream, _| {
        let _ = &kept;
        stream
    })?;
    assert!(port.close().is_empty());
    assert!(TcpStream::connect(address).is_err());
    assert_eq!(
        Arc::strong_count(&dropped),
        1,
        "and what it makes them with"
    );
    let (listener, _) = loopback()?;
    assert!(
        port.listen(listener, Interest::IN, |stream, _| stream)
            .is_err()
    );
    Ok(())
}

#[for_every_backend]
fn a_panic_in_making_a_connection_leaves_the_listener(backend: Backend) -> io::Result<()> {
    let port = tcp_port(backend, 2)?;
    let (listener, address) = loopback()?;
    let panics = Arc::new(AtomicBool::new(true));
    let make = {
        let panics = Arc::clone(&panics);
        move |stream, _| {
            assert!(!panics.swap(false, Ordering::Relaxed), "on purpose");
            stream
        }
    };
    port.listen(listener, Interest::OUT, make)?;
    let mut theirs = client(address)?;
    let mut worker = port.worker(4);
    assert!(matches!(next(&mut worker), Event::Panicked(..)));
    assert_eq!(uninterrupted(|| theirs.read(&mut [0]))?, 0, "it is closed");
    assert_eq!(port.connections(), 0);
    let theirs = client(address)?;
    let ours = ready(&mut worker);
    assert_eq!(ours.peer_addr()?, theirs.local_addr()?);
    Ok(())
}

#[for_every_backend]
fn a_panic_at_one_listener_does_not_concern_the_others(backend: Backend) -> io::Result<()> {
    let port = tcp_port(backend, 2)?;
    let mut theirs = Vec::new();
    let mut listeners = Vec::new();
    for _ in 0..3 {
        let (listener, address) = loopback()?;
        theirs.push(client(address)?);
        let is_first = AtomicBool::new(true);
        listeners.push(port.listen(listener, Interest::OUT, move |stream, _| {
            assert!(!is_first.swap(false, Ordering::Relaxed), "on purpose");
            stream
        })?);
        theirs.push(client(address)?);
    }
    // Each listener panics once, and then its second connection is served; by workers that go at once.
    let mut panicked = Vec::new();
    let mut served = 0;
    while panicked.len() < 3 || served < 3 {
        let mut worker = port.worker(8);
        match next(&mut worker) {
            Event::Ready(..) => served += 1,
            Event::Panicked(Some(id), _) => panicked.push(id),
            other => panic!("{other:?}"),
        }
    }
    panicked.sort_unstable();
    assert_eq!(panicked, listeners);
    assert_eq!((served, port.connections()), (3, 0));
    Ok(())
}

/// Panics when it is dropped.
struct Spiteful;

impl Drop for Spiteful {
    fn drop(&mut self) {
        assert!(thread::panicking(), "on purpose");
    }
}

impl std::fmt::Debug for Spiteful {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("it is spiteful")
    }
}

impl std::fmt::Display for Spiteful {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("it is spiteful")
    }
}

impl std::error::Error for Spiteful {}

/// Fails once, with this.
struct FailsOnce(TcpListener, AtomicBool, fn() -> io::Error);

impl Source for FailsOnce {
    fn socket(&self) -> BorrowedSocket<'_> {
        self.0.socket()
    }
}

impl Listen for FailsOnce {
    type Stream = TcpStream;
    type Address = SocketAddr;

    fn accept_next(&self) -> io::Result<(TcpStream, SocketAddr)> {
        match self.1.swap(true, Ordering::SeqCst) {
            false => Err((self.2)()),
            true => self.0.accept_next(),
        }
    }

    fn prepare(&self) -> io::Result<()> {
        self.0.prepare()
    }
}

/// The packets of both listeners come in one call.
#[for_every_backend]
fn a_panic_in_dropping_an_error_stops_no_listener(backend: Backend) -> io::Result<()> {
    let port = tcp_port(backend, 2)?;
    let mut clients = Vec::new();
    for _ in 0..2 {
        let (listener, address) = loopback()?;
        let spiteful = || io::Error::other(Spiteful);
        let listener = FailsOnce(listener, AtomicBool::new(false), spiteful);
        port.listen(listener, Interest::OUT, |stream, _| stream)?;
        clients.push(client(address)?);
    }
    let mut worker = port.worker(4);
    drop([ready(&mut worker), ready(&mut worker)]);
    Ok(())
}

/// The packets of both listeners come in one call.
#[for_every_backend]
fn a_panic_in_closing_a_listener_does_not_concern_the_others(backend: Backend) -> io::Result<()> {
    let port = tcp_port(backend, 2)?;
    let mut worker = port.worker(8);
    let (listener, _) = loopback()?;
    let spiteful = Spiteful;
    let closed = port.listen(listener, Interest::IN, move |stream, _| {
        let _ = &spiteful;
        stream
    })?;
    let (listener, address) = loopback()?;
    port.listen(listener, Interest::OUT, |stream, _| stream)?;
    let theirs = client(address)?;
    port.cancel(closed);
    // With this the other listener's packet is queued.
    port.send(()).expect("it is open");
    let ours = loop {
        match next(&mut worker) {
            Event::Ready(held, _) => break held,
            Event::Message(()) => {}
            other => panic!("{other:?}"),
        }
    };
    assert!(!port.cancel(closed), "it is closed");
    assert_eq!(ours.peer_addr()?, theirs.local_addr()?);
    Ok(())
}

#[for_every_backend]
fn a_panic_in_closing_a_listener_leaves_no_connection_open(backend: Backend) -> io::Result<()> {
    let port = tcp_port(backend, 2)?;
    let (listener, address) = loopback()?;
    let mut theirs = client(address)?;
    port.arm(port.adopt(listener.accept()?.0)?, Interest::IN);
    let spiteful = Spiteful;
    port.listen(listener, Interest::IN, move |stream, _| {
        let _ = &spiteful;
        stream
    })?;
    drop(port);
    assert_eq!(uninterrupted(|| theirs.read(&mut [0]))?, 0);
    Ok(())
}

#[for_every_backend]
fn peers_that_vanish_before_they_are_served_are_no_trouble(backend: Backend) -> io::Result<()> {
    const PEERS: usize = 100;
    let port = tcp_port(backend, 2)?;
    let (listener, address) = loopback()?;
    port.listen(listener, Interest::IN, |stream, _| stream)?;
    let mut worker = port.worker(8);
    for number in 0..PEERS {
        let theirs = client(address)?;
        if number % 2 == 0 {
            // With a reset.
            socket2::Socket::from(theirs).set_linger(Some(Duration::ZERO))?;
        }
    }
    // A last one, behind them all.
    let mut theirs = client(address)?;
    theirs.write_all(b"x")?;
    loop {
        let ours = ready(&mut worker);
        if let Ok(1) = (&*ours).read(&mut [0]) {
            break;
        }
    }
    assert_eq!(port.connections(), 0);
    assert_eq!(counted(port.snapshot().registrations), 1);
    Ok(())
}

#[for_every_backend]
fn a_worker_that_goes_hands_on_what_was_accepted(backend: Backend) -> io::Result<()> {
    let port = tcp_port(backend, 2)?;
    let (listener, address) = loopback()?;
    let theirs = client(address)?;
    port.listen(listener, Listening::reporting(), |stream, _| stream)?;
    let mut first = port.worker(4);
    assert_eq!(first.process(Some(PATIENCE)), Ok(1));
    drop(first);
    let ours = accepted(&mut port.worker(4));
    assert_eq!(ours.peer_addr()?, theirs.local_addr()?);
    Ok(())
}

#[for_every_backend]
fn listening_outlives_the_thread_that_has_begun_it(backend: Backend) -> io::Result<()> {
    let port = tcp_port(backend, 2)?;
    let (listener, address) = loopback()?;
    let begin = || {
        port.listen(listener, Interest::OUT, |stream, _| stream)?;
        let _theirs = client(address)?;
        drop(ready(&mut port.worker(4)));
        io::Result::Ok(())
    };
    thread::scope(|scope| scope.spawn(begin).join().expect("no panic"))?;
    let mut worker = port.worker(4);
    for _ in 0..20 {
        let theirs = client(address)?;
        let ours = ready(&mut worker);
        assert_eq!(ours.peer_addr()?, theirs.local_addr()?);
    }
    Ok(())
}

#[for_every_backend]
fn connections_beyond_a_bound_wait_in_their_order(backend: Backend) -> io::Result<()> {
    let port = tcp_port(backend, 2)?;
    let (listener, address) = loopback()?;
    let listening = Listening::reporting().at_most(2);
    port.listen(listener, listening, |stream, _| stream)?;
    let clients: Vec<_> = (0..40)
        .map(|_| client(address))
        .collect::<io::Result<_>>()?;
    let mut worker = port.worker(4);
    for client in &clients {
        let ours = accepted(&mut worker);
        assert_eq!(ours.peer_addr()?, client.local_addr()?);
        assert!(port.connections() <= 2);
    }
    Ok(())
}

#[for_every_backend]
fn a_listener_that_belongs_to_another_port_is_refused(backend: Backend) -> io::Result<()> {
    let [port, other] = [tcp_port(backend, 2)?, tcp_port(backend, 2)?];
    let (listener, _) = loopback()?;
    let shared = Arc::new(listener);
    let listeners = Port::<Arc<TcpListener>>::from(port_with(backend, 2)?);
    let held = listeners.adopt(Arc::clone(&shared))?;
    let again = TcpListenerOf(Arc::clone(&shared));
    assert!(
        port.listen(again, Interest::IN, |stream, _| stream)
            .is_err()
    );
    // The socket stays open, so it is taken out, and not dropped.
    drop(held.into_inner());
    // It is free again, and nothing is left of the attempt.
    let again = TcpListenerOf(Arc::clone(&shared));
    other.listen(again, Interest::OUT, |stream, _| stream)?;
    let _theirs = client(shared.local_addr()?)?;
    drop(ready(&mut other.worker(4)));
    assert_eq!(counted(port.snapshot().registrations), 0);
    assert!(matches!(
        port.worker(1).process(Some(Duration::ZERO)),
        Ok(0)
    ));
    port.close();
    assert_eq!(port.worker(1).process(None), Err(Error::Closed));
    Ok(())
}

/// A listener that somebody else has, too.
struct TcpListenerOf(Arc<TcpListener>);

impl socknotify::owned::Source for TcpListenerOf {
    fn socket(&self) -> socknotify::owned::BorrowedSocket<'_> {
        self.0.socket()
    }
}

impl socknotify::owned::Listen for TcpListenerOf {
    type Stream = TcpStream;
    type Address = SocketAddr;

    fn accept_next(&self) -> io::Result<(TcpStream, SocketAddr)> {
        self.0.accept_next()
    }

    fn prepare(&self) -> io::Result<()> {
        self.0.prepare()
    }
}

#[cfg(unix)]
#[for_every_backend]
fn unix_sockets_are_accepted(backend: Backend) -> io::Result<()> {
    use std::os::unix::net::{UnixListener, UnixStream};

    let path = std::env::temp_dir().join(format!("socknotify-listen-{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let port = Port::<UnixStream>::from(port_with(backend, 2)?);
    port.listen(UnixListener::bind(&path)?, Interest::IN, |stream, _| stream)?;
    let mut worker = port.worker(4);
    let mut theirs = UnixStream::connect(&path)?;
    std::fs::remove_file(&path)?;
    theirs.write_all(b"x")?;
    assert_eq!(worker.process(Some(PATIENCE)), Ok(1));
    assert!(matches!(worker.take(), Some(Event::Ready(..))));
    Ok(())
}

/// A listener whose first accepts fail, with these kinds or, when it has none left, with the last one for ever.
struct Failing {
    listener: TcpListener,
    errors: Vec<io::ErrorKind>,
    for_ever: bool,
    calls: Arc<AtomicUsize>,
}

impl Source for Failing {
    fn socket(&self) -> BorrowedSocket<'_> {
        self.listener.socket()
    }
}

impl Listen for Failing {
    type Stream = TcpStream;
    type Address = SocketAddr;

    fn accept_next(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let call = self.calls.fetch_add(1, Ordering::SeqCst);
        match self.errors.get(call) {
            Some(&kind) => Err(kind.into()),
            None if self.for_ever => Err(self.errors[self.errors.len() - 1].into()),
            None => self.listener.accept_next(),
        }
    }

    fn prepare(&self) -> io::Result<()> {
        self.listener.prepare()
    }
}

#[for_every_backend]
fn an_error_of_one_connection_stops_nobody_else(backend: Backend) -> io::Result<()> {
    use io::ErrorKind::*;

    let port = tcp_port(backend, 2)?;
    let (listener, address) = loopback()?;
    let errors = vec![
        PermissionDenied,
        HostUnreachable,
        NetworkUnreachable,
        NetworkDown,
        TimedOut,
        ConnectionAborted,
    ];
    let calls = Arc::default();
    let listener = Failing {
        listener,
        errors,
        for_ever: false,
        calls: Arc::clone(&calls),
    };
    port.listen(listener, Listening::reporting(), |stream, _| stream)?;
    let _theirs = client(address)?;
    // Nothing else comes before it, such as that the listener had stopped.
    drop(accepted(&mut port.worker(4)));
    assert!(calls.load(Ordering::SeqCst) > 6);
    Ok(())
}

/// What the system says of one connection, and where no kind says it.
#[cfg(target_os = "linux")]
#[for_every_backend]
fn a_protocol_error_of_one_connection_stops_nobody_else(backend: Backend) -> io::Result<()> {
    let port = tcp_port(backend, 2)?;
    let (listener, address) = loopback()?;
    let error = || rustix::io::Errno::PROTO.into();
    let listener = FailsOnce(listener, AtomicBool::new(false), error);
    port.listen(listener, Listening::reporting(), |stream, _| stream)?;
    let _theirs = client(address)?;
    drop(accepted(&mut port.worker(4)));
    Ok(())
}

#[for_every_backend]
fn a_listener_says_once_that_it_has_stopped_and_once_that_it_goes_on(
    backend: Backend,
) -> io::Result<()> {
    let port = tcp_port(backend, 2)?;
    let (listener, address) = loopback()?;
    let calls = Arc::default();
    let listener = Failing {
        listener,
        // Sixteen in a row are not those of single connections.
        errors: vec![io::ErrorKind::OutOfMemory; 3 * 16],
        for_ever: false,
        calls: Arc::clone(&calls),
    };
    let id = port.listen(listener, Listening::reporting(), |stream, _| stream)?;
    let mut worker = port.worker(1);
    let begin = Instant::now();
    let _theirs = client(address)?;
    let mut events = Vec::new();
    while events.len() < 3 {
        events.push(match next(&mut worker) {
            Event::NotAccepting(it, error) => {
                assert_eq!(it, id);
                assert_eq!(error.kind(), io::ErrorKind::OutOfMemory);
                "stops"
            }
            Event::Accepting(it) if it == id => "goes on",
            Event::Accepted(_) => "accepted",
            other => panic!("{other:?}"),
        });
    }
    assert_eq!(events[0], "stops");
    events.sort_unstable();
    assert_eq!(events, ["accepted", "goes on", "stops"]);
    // After each of the three it has paused.
    assert!(begin.elapsed() >= Duration::from_millis(150));
    assert_eq!(worker.process(Some(Duration::ZERO))?, 0);
    Ok(())
}

/// A filter of system calls, for example, refuses each accept, and the connection stays.
#[for_every_backend]
fn a_listener_that_fails_for_ever_pauses_whatever_the_error_says(
    backend: Backend,
) -> io::Result<()> {
    let port = tcp_port(backend, 2)?;
    let (listener, address) = loopback()?;
    let calls = Arc::default();
    let listener = Failing {
        listener,
        errors: vec![io::ErrorKind::PermissionDenied],
        for_ever: true,
        calls: Arc::clone(&calls),
    };
    let id = port.listen(listener, Interest::IN, |stream, _| stream)?;
    let _theirs = client(address)?;
    let event = next(&mut port.worker(4));
    assert!(
        matches!(event, Event::NotAccepting(it, _) if it == id),
        "{event:?}"
    );
    assert!((16..32).contains(&calls.load(Ordering::SeqCst)));
    Ok(())
}
