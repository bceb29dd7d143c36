//! What waits in a listener's backlog when it is to be closed.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use socknotify::owned::{
    BorrowedSocket, Event, Interest, Listen, Listening, Port, Serving, Source, Worker,
};
use socknotify::{Backend, CompletionPort, Error};

use crate::support::{PATIENCE, SHORT, wait_until};

const CLIENTS: usize = 100;
const LONG: Duration = Duration::from_secs(3600);

fn open(backend: Backend) -> io::Result<(Port<TcpStream>, TcpListener, SocketAddr)> {
    let port = CompletionPort::builder().backend(backend).build()?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    Ok((Port::from(port), listener, address))
}

/// A connection that was accepted already: as long as it is there, no other listener is given the address.
fn keep(listener: &TcpListener) -> io::Result<(TcpStream, TcpStream)> {
    let client = TcpStream::connect(listener.local_addr()?)?;
    Ok((client, listener.accept()?.0))
}

/// Closes the port, also when a test fails.
struct Closing<'a>(&'a Port<TcpStream>);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Clients that have connected and sent a byte.
fn clients(address: SocketAddr) -> io::Result<Vec<TcpStream>> {
    let connect = |_| {
        let mut client = TcpStream::connect(address)?;
        client.set_read_timeout(Some(PATIENCE))?;
        client.write_all(b"q")?;
        Ok(client)
    };
    (0..CLIENTS).map(connect).collect()
}

/// Each is answered, and sees the end of the stream.
#[track_caller]
fn expect_answers(clients: Vec<TcpStream>) {
    let answered = clients.into_iter().map(|mut client| {
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).map(|_| answer)
    });
    let answers: Vec<_> = answered.collect();
    let lost = answers
        .iter()
        .filter(|it| !matches!(it, Ok(a) if a == b"a"));
    assert_eq!(lost.count(), 0, "{answers:?}");
}

/// What the guide says a server does.
fn serve(worker: &mut Worker<TcpStream>, event: Event<TcpStream>) {
    match event {
        Event::Ready(mut client, _) => {
            let has_asked = client.read(&mut [0; 8]).is_ok_and(|length| length > 0);
            if has_asked && client.write_all(b"a").is_ok() {
                worker.linger(client, PATIENCE);
            }
        }
        Event::Accepted(client) => worker.arm(client, Interest::IN),
        Event::Draining(client) => worker.arm(client, Interest::IN.within(Duration::ZERO)),
        _ => {}
    }
}

fn kinds() -> [Listening; 3] {
    let idle = Listening::arming(Interest::IN);
    [idle, idle.at_most(1), Listening::reporting()]
}

#[for_every_backend]
fn who_connects_before_the_port_drains_is_answered(backend: Backend) -> io::Result<()> {
    for listening in kinds() {
        let (port, listener, address) = open(backend)?;
        port.listen(listener, listening, |stream, _| stream)?;
        thread::scope(|scope| {
            let _closing = Closing(&port);
            let serving = scope.spawn(|| port.serve(Serving::default(), serve));
            let clients = clients(address);
            port.drain(LONG);
            expect_answers(clients?);
            assert_eq!(serving.join().expect("no panic"), Ok(()));
            Ok::<_, io::Error>(())
        })?;
    }
    Ok(())
}

#[for_every_backend]
fn a_panic_in_making_one_of_a_backlog_loses_no_other(backend: Backend) -> io::Result<()> {
    let (port, listener, address) = open(backend)?;
    let made = AtomicUsize::new(0);
    let make = move |stream, _| {
        let number = made.fetch_add(1, Ordering::SeqCst);
        if number % 10 == 3 {
            std::panic::resume_unwind(Box::new("on purpose"));
        }
        stream
    };
    port.listen(listener, Interest::IN, make)?;
    let clients = clients(address)?;
    port.drain(LONG);
    let panics = AtomicUsize::new(0);
    let handler = |worker: &mut Worker<TcpStream>, event| {
        if let Event::Panicked(..) = event {
            panics.fetch_add(1, Ordering::SeqCst);
        }
        serve(worker, event);
    };
    thread::scope(|scope| {
        let _closing = Closing(&port);
        let serving = scope.spawn(|| port.serve(Serving::default(), handler));
        let answered = clients
            .into_iter()
            .filter_map(|mut it| it.read(&mut [0]).ok());
        assert_eq!(answered.sum::<usize>(), CLIENTS - CLIENTS / 10);
        assert_eq!(serving.join().expect("no panic"), Ok(()));
    });
    assert_eq!(panics.into_inner(), CLIENTS / 10);
    Ok(())
}

/// The connections of one whose threads do not get so far are cut off, and none is accepted after that.
#[for_every_backend]
fn closing_ends_what_is_accepted_last(backend: Backend) -> io::Result<()> {
    let (port, listener, address) = open(backend)?;
    let (port, made) = (Arc::new(port), Arc::new(AtomicUsize::new(0)));
    let (closes, counts) = (Arc::downgrade(&port), Arc::clone(&made));
    let make = move |stream, _| {
        if counts.fetch_add(1, Ordering::SeqCst) == 20 {
            closes.upgrade().expect("it is there").close();
        }
        stream
    };
    port.listen(listener, Interest::IN, make)?;
    let _clients = clients(address)?;
    port.drain(LONG);
    let mut worker = port.worker(8);
    while worker.process(None).is_ok() {
        while let Some(event) = worker.take() {
            serve(&mut worker, event);
        }
    }
    assert_eq!(made.load(Ordering::SeqCst), 21);
    assert_eq!(port.connections(), 0);
    Ok(())
}

/// A listener that has a connection, or this error, whenever it is asked.
struct Endless(TcpListener, io::ErrorKind, Arc<AtomicUsize>);

impl Source for Endless {
    fn socket(&self) -> BorrowedSocket<'_> {
        self.0.socket()
    }
}

impl Listen for Endless {
    type Stream = TcpStream;
    type Address = SocketAddr;

    fn accept_next(&self) -> io::Result<(TcpStream, SocketAddr)> {
        self.2.fetch_add(1, Ordering::SeqCst);
        Err(self.1.into())
    }

    fn prepare(&self) -> io::Result<()> {
        self.0.prepare()
    }
}

/// Clients that come and go for ever, and a system that never has memory again.
#[for_every_backend]
fn a_listener_is_closed_whatever_comes(backend: Backend) -> io::Result<()> {
    for (kind, drains) in [
        (io::ErrorKind::ConnectionAborted, true),
        (io::ErrorKind::ConnectionAborted, false),
        (io::ErrorKind::OutOfMemory, true),
        (io::ErrorKind::OutOfMemory, false),
    ] {
        let (port, listener, address) = open(backend)?;
        let _keeps = keep(&listener)?;
        let tries = Arc::default();
        let listener = Endless(listener, kind, Arc::clone(&tries));
        let id = port.listen(listener, Interest::IN, |stream, _| stream)?;
        let _client = TcpStream::connect(address)?;
        let mut worker = port.worker(8);
        let begin = Instant::now();
        match drains {
            true => port.drain(LONG),
            false => assert!(port.cancel(id)),
        }
        while TcpStream::connect(address).is_ok() {
            match worker.process(Some(Duration::from_millis(10))) {
                Err(Error::Closed) => break,
                outcome => assert!(outcome.is_ok()),
            }
            while worker.take().is_some() {}
        }
        assert!(TcpStream::connect(address).is_err());
        // It has tried again, for a second, sixteen times each.
        let tries = tries.load(Ordering::SeqCst) / 16;
        assert!((10..40).contains(&tries), "{tries}");
        assert!(begin.elapsed() > SHORT);
    }
    Ok(())
}

/// Clients that connect as fast as they can do not keep a listener open.
#[for_every_backend]
fn who_connects_all_the_time_keeps_no_listener_open(backend: Backend) -> io::Result<()> {
    let (port, listener, address) = open(backend)?;
    let _keeps = keep(&listener)?;
    let id = port.listen(listener, Interest::IN, |stream, _| stream)?;
    let connected = AtomicUsize::new(0);
    thread::scope(|scope| {
        let _closing = Closing(&port);
        let serving = scope.spawn(|| port.serve(Serving::default(), serve));
        let connect = || {
            // Until it is refused, or reset since it came too late.
            while let Ok(mut client) = TcpStream::connect(address) {
                connected.fetch_add(1, Ordering::SeqCst);
                if client.write_all(b"q").is_err() {
                    break;
                }
            }
        };
        let clients = [(); 2].map(|()| scope.spawn(connect));
        wait_until("clients connect", || connected.load(Ordering::SeqCst) > 100);
        assert!(port.cancel(id));
        for client in clients {
            client.join().expect("no panic");
        }
        port.drain(PATIENCE);
        assert_eq!(serving.join().expect("no panic"), Ok(()));
    });
    Ok(())
}

/// Panics when it is dropped.
struct Spiteful;

impl Drop for Spiteful {
    fn drop(&mut self) {
        assert!(thread::panicking(), "on purpose");
    }
}

#[for_every_backend]
fn a_drain_ends_though_closing_a_listener_panics(backend: Backend) -> io::Result<()> {
    let (port, listener, _) = open(backend)?;
    let spiteful = Spiteful;
    port.listen(listener, Interest::IN, move |stream, _| {
        let _ = &spiteful;
        stream
    })?;
    port.drain(LONG);
    let mut worker = port.worker(8);
    let end = Instant::now() + PATIENCE;
    while worker.process(Some(SHORT)).is_ok() {
        while worker.take().is_some() {}
        assert!(Instant::now() < end, "it does not end");
    }
    Ok(())
}
