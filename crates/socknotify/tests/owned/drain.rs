//! Shutting down in good order; taking out by name.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvError, Sender, TryRecvError, channel};
use std::sync::{Arc, Barrier, Mutex, Weak};
use std::thread;
use std::time::{Duration, Instant};

use socknotify::owned::{
    BorrowedSocket, Event, Held, Interest, Listening, Port, Serving, SlowHandler, Source,
};
use socknotify::{Backend, Error};

use crate::support::{PATIENCE, Pair, port_with, uninterrupted, wait_until};
use crate::{Connection, TestWorker, connect, next, nothing, owning_port, ready};

const LONG: Duration = Duration::from_secs(3600);

#[track_caller]
fn draining(worker: &mut TestWorker) -> Held<Connection> {
    match next(worker) {
        Event::Draining(connection) => connection,
        other => panic!("{other:?}"),
    }
}

#[for_every_backend]
fn an_armed_connection_comes_out_as_draining(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend, 2)?;
    let mut worker = port.worker(4);
    let (connection, mut peer) = connect(&port)?;
    port.arm(connection, Interest::IN);
    assert!(!port.is_draining());
    port.drain(LONG);
    assert!(port.is_draining());
    drop(draining(&mut worker));
    assert_eq!(uninterrupted(|| peer.read(&mut [0]))?, 0);
    Ok(())
}

/// It is refused, and so is not the port's to cut off.
#[for_every_backend]
fn what_is_adopted_too_late_stays_open(backend: Backend) -> io::Result<()> {
    for _ in 0..100 {
        let port = owning_port(backend, 2)?;
        let mut worker = port.worker(1);
        let (_held, _peer) = connect(&port)?;
        let Pair { ours, mut theirs } = Pair::unix()?;
        let late = Connection {
            socket: ours,
            served: 0,
        };
        port.drain(Duration::ZERO);
        let begin = Barrier::new(2);
        let adopted = thread::scope(|scope| {
            scope.spawn(|| {
                begin.wait();
                assert_eq!(worker.process(None), Err(Error::Closed));
            });
            begin.wait();
            port.adopt(late)
        });
        if let Err(refused) = adopted {
            theirs.set_nonblocking(false)?;
            (&refused.into_inner().socket).write_all(b"x")?;
            assert_eq!(uninterrupted(|| theirs.read(&mut [0]))?, 1);
        }
    }
    Ok(())
}

/// One thread drops the last connection, while another one handles the result of work, which brings the next one.
#[for_every_backend]
fn o9_a_connection_that_a_result_brings_is_waited_for(backend: Backend) -> io::Result<()> {
    for _ in 0..100 {
        let port = owning_port(backend, 2)?;
        let mut worker = port.worker(1);
        let (last, _peer) = connect(&port)?;
        port.offload(|| 7)?;
        assert!(matches!(next(&mut worker), Event::Message(7)));
        let Pair {
            ours,
            theirs: _peer,
        } = Pair::unix()?;
        let next = Connection {
            socket: ours,
            served: 0,
        };
        port.drain(LONG);
        let begin = Barrier::new(2);
        let next = thread::scope(|scope| {
            scope.spawn(|| {
                begin.wait();
                drop(last);
            });
            begin.wait();
            let next = port.adopt(next);
            assert_eq!(worker.process(Some(Duration::ZERO)), Ok(0));
            next
        });
        assert_eq!(worker.process(Some(Duration::ZERO)), Ok(0), "it is open");
        drop(next?);
        assert_eq!(worker.process(None), Err(Error::Closed));
    }
    Ok(())
}

/// Both times have passed when a thread looks: the port has ended, and its connections are forgotten, when it comes to the second.
#[cfg(unix)]
#[for_every_backend]
fn the_end_of_draining_shuts_down_nothing_but_connections(backend: Backend) -> io::Result<()> {
    use std::os::fd::AsRawFd;

    let (ours, mut theirs) = std::os::unix::net::UnixStream::pair()?;
    // The least of all numbers, which is also what a number is that nobody has set.
    // SAFETY: no argument is a pointer, and nobody here reads the standard input.
    let stdin_is = |fd: &dyn AsRawFd| unsafe { libc::dup2(fd.as_raw_fd(), 0) };
    let stdin = rustix::io::dup(io::stdin())?;
    assert_eq!(stdin_is(&ours), 0);
    let port = owning_port(backend, 2)?;
    let mut worker = port.worker(4);
    let (_held, _peer) = connect(&port)?;
    port.drain(Duration::ZERO);
    port.drain(Duration::ZERO);
    thread::sleep(Duration::from_millis(10));
    assert_eq!(worker.process(None), Err(Error::Closed));
    assert_eq!(stdin_is(&stdin), 0);
    drop((&ours).write_all(b"x"));
    assert_eq!(theirs.read(&mut [0; 2])?, 1);
    Ok(())
}

#[for_every_backend]
fn a_held_connection_comes_out_as_draining_when_it_is_armed(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend, 2)?;
    let mut worker = port.worker(4);
    let (connection, mut peer) = connect(&port)?;
    peer.write_all(b"x")?;
    port.drain(LONG);
    nothing(&mut worker);
    worker.arm(connection, Interest::IN);
    let connection = draining(&mut worker);
    // Once.
    worker.arm(connection, Interest::IN);
    drop(ready(next(&mut worker)));
    assert_eq!(worker.process(None), Err(Error::Closed));
    Ok(())
}

#[for_every_backend]
fn a_connection_that_is_cancelled_comes_out_as_draining_too(backend: Backend) -> io::Result<()> {
    for is_armed in [true, false] {
        for drains_first in [true, false] {
            let port = owning_port(backend, 2)?;
            let mut worker = port.worker(4);
            let (connection, _peer) = connect(&port)?;
            let id = connection.id();
            let mut held = Some(connection);
            if is_armed {
                port.arm(held.take().unwrap(), Interest::IN);
            }
            if drains_first {
                port.drain(LONG);
            }
            assert!(port.cancel(id));
            assert!(port.cancel(id));
            port.drain(LONG);
            // Each once, whatever the order.
            let mut seen = [0, 0];
            for _ in 0..2 {
                if let Some(connection) = held.take() {
                    worker.arm(connection, Interest::IN);
                }
                held = Some(match next(&mut worker) {
                    Event::Draining(connection) => {
                        seen[0] += 1;
                        connection
                    }
                    Event::Cancelled(connection) => {
                        seen[1] += 1;
                        connection
                    }
                    other => panic!("{other:?}"),
                });
            }
            assert_eq!(
                seen,
                [1, 1],
                "armed: {is_armed}, drains first: {drains_first}"
            );
            worker.arm(held.unwrap(), Interest::IN);
            nothing(&mut worker);
        }
    }
    Ok(())
}

#[for_every_backend]
fn what_is_adopted_later_comes_out_as_draining_too(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend, 2)?;
    let mut worker = port.worker(4);
    let (_first, _first_peer) = connect(&port)?;
    port.drain(LONG);
    let (connection, _peer) = connect(&port)?;
    worker.arm(connection, Interest::OUT);
    let connection = draining(&mut worker);
    worker.arm(connection, Interest::OUT);
    drop(ready(next(&mut worker)));
    Ok(())
}

#[for_every_backend]
fn a_connection_finishes_what_it_has_begun(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend, 2)?;
    let mut worker = port.worker(4);
    let (connection, mut peer) = connect(&port)?;
    port.arm(connection, Interest::IN);
    port.drain(LONG);
    let connection = draining(&mut worker);
    worker.arm(connection, Interest::IN);
    nothing(&mut worker);
    peer.write_all(b"x")?;
    let connection = ready(next(&mut worker));
    (&connection.socket).read_exact(&mut [0])?;
    (&connection.socket).write_all(b"y")?;
    drop(connection);
    let mut answer = Vec::new();
    uninterrupted(|| peer.read_to_end(&mut answer))?;
    assert_eq!(answer, b"y");
    assert_eq!(worker.process(None), Err(Error::Closed));
    Ok(())
}

#[for_every_backend]
fn the_port_closes_when_the_last_connection_has_gone(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend, 2)?;
    let mut worker = port.worker(4);
    let (first, _first_peer) = connect(&port)?;
    let (second, _second_peer) = connect(&port)?;
    port.drain(LONG);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| worker.process(None));
        drop(first);
        assert_eq!(port.connections(), 1);
        // One that is taken back is the port's no more.
        drop(second.into_inner());
        assert_eq!(waiting.join().expect("no panic"), Err(Error::Closed));
    });
    assert_eq!(port.connections(), 0);
    assert!(port.close().is_empty());
    Ok(())
}

/// A connection that says so when it is dropped.
struct Ends(TcpStream, Weak<Port<Ends, &'static str>>);

impl Source for Ends {
    fn socket(&self) -> BorrowedSocket<'_> {
        self.0.socket()
    }
}

impl Drop for Ends {
    fn drop(&mut self) {
        let port = self.1.upgrade().expect("the port is there");
        port.send("it has ended").expect("the port is open");
    }
}

/// Who waits for the port to close does not miss it.
#[for_every_backend]
fn the_port_is_open_until_the_last_connection_was_dropped(backend: Backend) -> io::Result<()> {
    let port = Arc::new(Port::from(port_with(backend, 2)?));
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let _peer = TcpStream::connect(listener.local_addr()?)?;
    let connection = port.adopt(Ends(listener.accept()?.0, Arc::downgrade(&port)))?;
    port.drain(LONG);
    drop(connection);
    assert_eq!(port.worker(4).process(None), Err(Error::Closed));
    assert_eq!(port.close().take_messages(), ["it has ended"]);
    Ok(())
}

#[for_every_backend]
fn an_empty_port_closes_at_once(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend, 2)?;
    port.drain(LONG);
    assert_eq!(port.worker(1).process(None), Err(Error::Closed));
    Ok(())
}

#[for_every_backend]
fn what_is_not_finished_in_time_is_cut_off_and_handed_back(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend, 2)?;
    let mut worker = port.worker(4);
    let mut peers = Vec::new();
    for _ in 0..3 {
        let (connection, peer) = connect(&port)?;
        worker.arm(connection, Interest::IN);
        peers.push(peer);
    }
    nothing(&mut worker);
    port.drain(PATIENCE);
    for number in 0..3 {
        let connection = draining(&mut worker);
        if number > 0 {
            worker.arm(connection, Interest::IN);
        }
    }
    let time = Duration::from_millis(100);
    let begin = Instant::now();
    port.drain(time);
    assert_eq!(worker.process(None), Err(Error::Closed));
    assert!(begin.elapsed() >= time);
    assert_eq!(port.connections(), 2);
    assert_eq!(port.close().len(), 2);
    assert_eq!(port.connections(), 0);
    Ok(())
}

#[for_every_backend]
fn a_held_connection_is_cut_off_when_it_is_armed_too_late(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend, 2)?;
    let mut worker = port.worker(4);
    let (connection, mut peer) = connect(&port)?;
    port.drain(Duration::from_millis(5));
    assert_eq!(worker.process(None), Err(Error::Closed));
    worker.arm(connection, Interest::IN);
    assert_eq!(uninterrupted(|| peer.read(&mut [0]))?, 0);
    assert_eq!(port.connections(), 0);
    assert!(port.close().is_empty());
    Ok(())
}

#[for_every_backend]
fn a_shorter_time_cuts_it_short(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend, 2)?;
    let mut worker = port.worker(4);
    let (connection, _peer) = connect(&port)?;
    port.drain(LONG);
    worker.arm(connection, Interest::IN);
    let connection = draining(&mut worker);
    worker.arm(connection, Interest::IN);
    nothing(&mut worker);
    port.drain(Duration::ZERO);
    assert_eq!(worker.process(None), Err(Error::Closed));
    assert_eq!(port.close().len(), 1);
    Ok(())
}

#[for_every_backend]
fn shared_sockets_do_not_keep_a_port_open(backend: Backend) -> io::Result<()> {
    let port = socknotify::owned::Port::<std::net::UdpSocket>::from(crate::support::port_with(
        backend, 2,
    )?);
    let socket = std::sync::Arc::new(std::net::UdpSocket::bind("127.0.0.1:0")?);
    let trigger = socknotify::owned::SharedTrigger::Level;
    port.share(std::sync::Arc::clone(&socket), Interest::IN, trigger)?;
    port.drain(LONG);
    assert_eq!(port.worker(1).process(None), Err(Error::Closed));
    assert_eq!(std::sync::Arc::strong_count(&socket), 1);
    Ok(())
}

#[for_every_backend]
fn all_connections_are_cancelled_at_once(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend, 2)?;
    let mut worker = port.worker(16);
    let mut peers = Vec::new();
    for _ in 0..5 {
        let (connection, peer) = connect(&port)?;
        worker.arm(connection, Interest::IN);
        peers.push(peer);
    }
    let (held, _peer) = connect(&port)?;
    nothing(&mut worker);
    assert_eq!(port.cancel_all(), 6);
    for _ in 0..5 {
        assert!(matches!(next(&mut worker), Event::Cancelled(_)));
    }
    nothing(&mut worker);
    worker.arm(held, Interest::OUT);
    assert!(matches!(next(&mut worker), Event::Cancelled(_)));
    assert_eq!(port.cancel_all(), 0);
    Ok(())
}

#[for_every_backend]
fn an_armed_connection_is_taken_out(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend, 2)?;
    let mut worker = port.worker(4);
    let (connection, mut peer) = connect(&port)?;
    let id = connection.id();
    assert!(port.disarm(id).is_none(), "it is held");
    port.arm(connection, Interest::IN.within(Duration::from_millis(20)));
    let connection = port.disarm(id).expect("it is armed");
    assert_eq!(connection.id(), id);
    assert!(port.disarm(id).is_none(), "it is held");
    peer.write_all(b"x")?;
    // Neither what it waited for nor its deadline is reported.
    assert_eq!(worker.process(Some(Duration::from_millis(40))), Ok(0));
    worker.arm(connection, Interest::IN);
    drop(ready(next(&mut worker)));
    assert!(port.disarm(id).is_none(), "it is closed");
    Ok(())
}

#[for_every_backend]
fn what_has_come_out_is_not_taken(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend, 2)?;
    let mut worker = port.worker(4);
    let (connection, _peer) = connect(&port)?;
    let id = connection.id();
    worker.arm(connection, Interest::OUT);
    assert_eq!(worker.process(Some(PATIENCE)), Ok(1));
    assert!(port.disarm(id).is_none());
    let connection = ready(worker.take().expect("an event"));
    worker.arm(connection, Interest::IN);
    assert!(port.cancel(id));
    assert_eq!(worker.process(Some(PATIENCE)), Ok(1));
    assert!(port.disarm(id).is_none());
    Ok(())
}

#[for_every_backend]
fn what_was_taken_out_has_nothing_to_report(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend, 2)?;
    let mut worker = port.worker(4);
    for _ in 0..100 {
        let (connection, mut peer) = connect(&port)?;
        let id = connection.id();
        port.arm(connection, Interest::IN);
        peer.write_all(b"x")?;
        match port.disarm(id) {
            Some(connection) => {
                nothing(&mut worker);
                drop(connection);
            }
            None => drop(ready(next(&mut worker))),
        }
        nothing(&mut worker);
    }
    Ok(())
}

/// Whether times and wishes pass what is queued. Windows' own port has one queue for all.
fn passes_queues(backend: Backend) -> bool {
    backend.to_string() != "native"
}

#[for_every_backend]
fn draining_does_not_wait_behind_messages(backend: Backend) -> io::Result<()> {
    const MESSAGES: u64 = 200;
    let port = owning_port(backend, 1)?;
    let mut worker = port.worker(2);
    let (_held, _peer) = connect(&port)?;
    for message in 0..MESSAGES {
        port.send(message).expect("open");
    }
    port.drain(Duration::from_millis(20));
    let mut handled = 0;
    while let Ok(1..) = worker.process(Some(PATIENCE)) {
        while worker.take().is_some() {
            thread::sleep(Duration::from_millis(5));
            handled += 1;
        }
    }
    assert!(handled < MESSAGES || !passes_queues(backend), "{handled}");
    Ok(())
}

#[for_every_backend]
fn a_cancellation_and_a_deadline_do_not_wait_behind_messages(backend: Backend) -> io::Result<()> {
    if !passes_queues(backend) {
        return Ok(());
    }
    let port = owning_port(backend, 1)?;
    let mut worker = port.worker(1);
    let (cancelled, _peer) = connect(&port)?;
    let (late, _other_peer) = connect(&port)?;
    let id = cancelled.id();
    port.arm(cancelled, Interest::IN);
    port.arm(late, Interest::IN.within(Duration::from_millis(1)));
    for message in 0..4 {
        port.send(message).expect("open");
    }
    thread::sleep(Duration::from_millis(20));
    assert!(port.cancel(id));
    let mut order = Vec::new();
    for _ in 0..6 {
        worker.process(Some(PATIENCE))?;
        order.push(match worker.take().expect("an event") {
            Event::Cancelled(_) => "cancelled",
            Event::TimedOut(_) => "timed out",
            Event::Message(_) => "a message",
            other => panic!("{other:?}"),
        });
    }
    // The alarm may need a call to be noticed, which takes what is queued besides.
    order[..4].sort();
    assert_eq!(order[2..4], ["cancelled", "timed out"], "{order:?}");
    Ok(())
}

/// The time is over, and a timer is due whose function blocks.
#[for_every_backend]
fn a_drain_ends_in_its_time_though_the_function_of_a_timer_blocks(
    backend: Backend,
) -> io::Result<()> {
    let port = owning_port(backend, 2)?;
    let (connection, _peer) = connect(&port)?;
    let (end, until_end) = channel::<()>();
    port.arm(connection, Interest::NOTHING);
    let (closed, is_closed) = channel();
    thread::scope(|scope| {
        for _ in 0..2 {
            let closed = closed.clone();
            let port = &port;
            scope.spawn(move || {
                let mut worker = port.worker(4);
                while worker.process(None).is_ok() {
                    while let Some(event) = worker.take() {
                        if let Event::Draining(it) = event {
                            worker.arm(it, Interest::NOTHING);
                        }
                    }
                }
                let _ = closed.send(());
            });
        }
        wait_until("they wait", || port.snapshot().waiting == 2);
        // In the same tick, most often.
        let time = Duration::from_millis(50);
        let is_set = port.send_every_with(time, move || {
            let _ = until_end.recv();
            1
        });
        port.drain(time);
        let outcome = is_closed.recv_timeout(PATIENCE);
        drop(end);
        port.close();
        assert!(is_set.is_ok());
        assert_eq!(outcome, Ok(()), "a thread is told that the port is closed");
    });
    Ok(())
}

/// Clients that have connected and sent a byte, and that nobody has accepted yet.
fn waiting_clients(address: SocketAddr, count: usize) -> io::Result<Vec<TcpStream>> {
    let clients = (0..count).map(|_| {
        let mut client = TcpStream::connect(address)?;
        client.set_read_timeout(Some(PATIENCE))?;
        client.write_all(&[1])?;
        Ok(client)
    });
    clients.collect()
}

/// Answers each client that has sent its byte, until the port closes.
fn answer_all(port: &Port<TcpStream>) -> Result<(), Error> {
    port.serve(Serving::default(), |worker, event| match event {
        Event::Ready(mut client, _) | Event::Draining(mut client) => match client.read(&mut [0]) {
            Ok(1) => {
                let _ = client.write_all(&[2]);
                worker.linger(client, PATIENCE);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                worker.arm(client, Interest::IN);
            }
            _ => {}
        },
        Event::Accepted(client) => worker.arm(client, Interest::IN),
        _ => {}
    })
}

/// What waits in the backlog of a listener that is closed is accepted and answered, though the port has its limit of
/// connections: at the end of the port, and where only the listener is cancelled.
#[for_every_backend]
fn what_waits_in_the_backlog_is_answered(backend: Backend) -> io::Result<()> {
    const CLIENTS: usize = 100;
    let ways: [Listening; 3] = [
        Interest::IN.into(),
        Listening::arming(Interest::IN).at_most(1),
        Listening::reporting(),
    ];
    for (listening, is_cancelled) in ways.map(|it| [(it, false), (it, true)]).concat() {
        let port = Port::<TcpStream>::from(port_with(backend, 2)?);
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let id = port.listen(listener, listening, |client, _| client)?;
        let clients = waiting_clients(address, CLIENTS)?;
        if is_cancelled {
            assert!(port.cancel(id));
        } else {
            port.drain(PATIENCE);
        }
        thread::scope(|scope| -> io::Result<()> {
            let serving = scope.spawn(|| answer_all(&port));
            for mut client in clients {
                let mut answer = Vec::new();
                client.read_to_end(&mut answer)?;
                assert_eq!(answer, [2], "cancelled: {is_cancelled}, {listening:?}");
            }
            wait_until("it is closed behind those", || {
                TcpStream::connect(address).is_err()
            });
            port.drain(PATIENCE);
            serving.join().expect("no panic")?;
            Ok(())
        })?;
    }
    Ok(())
}

/// A port, what ends its handler, and how that waits for it.
type Stuck = (Arc<Port<TcpStream, u32>>, Sender<()>, Receiver<()>);

/// A handler that does not end before it is told to, on a port whose only thread it has. Returns the port, and what ends it.
fn stuck(backend: Backend) -> io::Result<Stuck> {
    let port = Arc::new(Port::<TcpStream, u32>::from(port_with(backend, 1)?));
    port.send(1).expect("it is open");
    let (end, ended) = channel();
    Ok((port, end, ended))
}

/// How long the time of a drain is in these tests.
const SHORT_DRAIN: Duration = Duration::from_millis(20);

/// `serve_detached` returns though a handler does not, and says which one that is.
#[for_every_backend]
fn a_stuck_handler_is_left_behind_when_the_time_has_passed(backend: Backend) -> io::Result<()> {
    for (threads, is_closed) in [(1, false), (1, true), (8, false), (8, true)] {
        let (port, end, ended) = stuck(backend)?;
        let (drop_told, is_dropped) = channel();
        let draining = Arc::clone(&port);
        let ended = Mutex::new((ended, drop_told));
        let serving = Serving::default().threads(threads).name("stuck");
        let begin = Instant::now();
        let left = port.serve_detached(serving, move |_, event| {
            let Event::Message(1) = event else { return };
            if is_closed {
                draining.close();
            } else {
                draining.drain(SHORT_DRAIN);
            }
            let ended = ended.lock().expect("no panic");
            let _ = ended.0.recv();
        })?;
        assert!(is_closed || begin.elapsed() >= SHORT_DRAIN);
        assert_eq!(left.len(), 1);
        #[cfg(target_os = "linux")]
        assert_eq!(left[0].thread.name.as_deref(), Some("stuck"));
        assert_eq!(is_dropped.try_recv(), Err::<(), _>(TryRecvError::Empty));
        assert!(port.send(2).is_err(), "it is closed");
        wait_until("the others have ended", || port.serving().threads == 1);
        assert_eq!(port.serving().waiting, 0);
        // Its thread ends when it does, and drops what it has kept.
        end.send(()).expect("it waits");
        assert_eq!(is_dropped.recv(), Err(RecvError));
    }
    Ok(())
}

/// `serve` says who keeps it from returning, and returns when that one does.
#[for_every_backend]
fn a_stuck_handler_is_reported_when_the_time_has_passed(backend: Backend) -> io::Result<()> {
    let (port, end, ended) = stuck(backend)?;
    let ended = Mutex::new(ended);
    let reports = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&reports);
    let serving = Serving::default().threads(1).on_stuck(move |handlers| {
        assert_eq!(handlers.len(), 1);
        counted.fetch_add(1, Ordering::Relaxed);
        // As a program would end here.
        end.send(()).expect("it waits");
    });
    port.serve(serving, |_, _| {
        port.drain(SHORT_DRAIN);
        ended.lock().expect("no panic").recv().expect("told");
    })?;
    assert_eq!(reports.load(Ordering::Relaxed), 1);
    Ok(())
}

/// What ends in time is waited for, also without a connection, and nobody is stuck.
#[for_every_backend]
fn a_handler_that_ends_in_time_is_not_left_behind(backend: Backend) -> io::Result<()> {
    let (port, end, ended) = stuck(backend)?;
    let ended = Mutex::new(ended);
    let has_ended = Arc::new(AtomicUsize::new(0));
    let (draining, counted) = (Arc::clone(&port), Arc::clone(&has_ended));
    let serving = Serving::default().on_stuck(|handlers| panic!("{handlers:?}"));
    let left = port.serve_detached(serving, move |_, _| {
        // There is no connection: the port closes at once.
        draining.drain(PATIENCE);
        let end = end.clone();
        thread::spawn(move || end.send(()));
        ended.lock().expect("no panic").recv().expect("told");
        counted.fetch_add(1, Ordering::Relaxed);
    })?;
    assert!(left.is_empty());
    assert_eq!(has_ended.load(Ordering::Relaxed), 1);
    Ok(())
}

#[for_every_backend]
fn draining_waits_for_what_a_worker_has_not_taken(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend, 2)?;
    let (connection, mut peer) = connect(&port)?;
    peer.write_all(b"x")?;
    port.arm(connection, Interest::IN);
    let mut worker = port.worker(64);
    assert_eq!(worker.process(Some(PATIENCE)), Ok(1));
    port.drain(PATIENCE);
    worker.release();
    let connection = ready(next(&mut worker));
    worker.arm(connection, Interest::IN);
    assert!(matches!(next(&mut worker), Event::Draining(_)));
    assert!(worker.process(Some(PATIENCE)).is_err());
    Ok(())
}

/// Whoever looks at the time may be late: what ends with the port is not stuck even then.
#[for_every_backend(with_permits)]
fn a_handler_has_time_to_end_however_late_the_port_is_closed(backend: Backend) -> io::Result<()> {
    /// What a handler has from then on.
    const LEAVE: Duration = Duration::from_millis(100);
    for _ in 0..20 {
        let (reports, passed) = close_late(backend)?;
        // If its thread was held up for so long, it was stuck, as far as anybody can tell.
        if passed < LEAVE {
            assert!(reports.is_empty(), "{reports:?}");
            return Ok(());
        }
    }
    panic!("this machine is too slow to tell");
}

/// Who was reported to be stuck, and how long it took at most from the end of the port to that of its handler.
fn close_late(backend: Backend) -> io::Result<(Vec<Vec<SlowHandler>>, Duration)> {
    let (port, end, ended) = stuck(backend)?;
    let port = &*port;
    let ended = Mutex::new(ended);
    let reports = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&reports);
    let closing = Mutex::new(None);
    // This keeps the port open.
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let _peer = TcpStream::connect(listener.local_addr()?)?;
    let _held = port.adopt(listener.accept()?.0)?;
    // It blocks the thread that looks.
    let on_slow = move |_: &SlowHandler| {
        let _ = ended.lock().expect("no panic").recv();
    };
    let serving = Serving::default()
        .threads(1)
        .on_slow(Duration::from_millis(1), on_slow)
        .on_stuck(move |handlers| told.lock().expect("no panic").push(handlers.to_vec()));
    port.serve(serving, |_, event| {
        if let Event::Message(1) = event {
            thread::sleep(Duration::from_millis(50));
            port.drain(SHORT_DRAIN);
            thread::sleep(Duration::from_millis(300));
            *closing.lock().expect("no panic") = Some(Instant::now());
            // However often it is called.
            (0..100).for_each(|_| end.send(()).expect("it waits"));
            wait_until("it is closed", || port.send(2).is_err());
            // Looks follow each other faster than it ends.
            thread::sleep(Duration::from_millis(40));
        }
    })?;
    let closing = closing.into_inner().expect("no panic");
    let passed = closing.expect("it was handled").elapsed();
    let reports = reports.lock().expect("no panic").clone();
    Ok((reports, passed))
}

/// What a handler owns is dropped before `serve_detached` says that all have ended.
#[for_every_backend]
fn nothing_of_a_handler_is_left_when_all_have_ended(backend: Backend) -> io::Result<()> {
    for _ in 0..500 {
        let port = Arc::new(Port::<TcpStream, u32>::from(port_with(backend, 2)?));
        port.send(1).expect("it is open");
        let kept = Arc::new(());
        let (draining, owned) = (Arc::clone(&port), Arc::clone(&kept));
        let left = port.serve_detached(Serving::default(), move |_, _| {
            let _ = &owned;
            draining.drain(PATIENCE);
        })?;
        assert!(left.is_empty());
        assert_eq!(Arc::strong_count(&kept), 1, "the handler");
        assert_eq!(Arc::strong_count(&port), 1, "the port");
    }
    Ok(())
}

/// One that is in `blocking`, as the guide says.
#[for_every_backend]
fn a_handler_that_says_that_it_blocks_is_named(backend: Backend) -> io::Result<()> {
    let port = Arc::new(owning_port(backend, 1)?);
    let (connection, _peer) = connect(&port)?;
    let id = connection.id();
    port.arm(connection, Interest::OUT);
    let (end, ended) = channel::<()>();
    let draining = Arc::clone(&port);
    let ended = Mutex::new(ended);
    let left = port.serve_detached(Serving::default().name("stuck"), move |worker, event| {
        draining.drain(SHORT_DRAIN);
        let ended = ended.lock().expect("no panic");
        let _ = worker.blocking(|| ended.recv());
        drop(event);
    })?;
    drop(end);
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].id, Some(id));
    #[cfg(target_os = "linux")]
    assert_eq!(left[0].thread.name.as_deref(), Some("stuck"));
    Ok(())
}
