//! Cancelling, dropping, closing.

use std::collections::HashSet;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use socknotify::owned::{BorrowedSocket, Event, Id, Interest, Port, Source};
use socknotify::{Backend, Error};

use crate::support::{PATIENCE, counted, port_with, uninterrupted, wait_until};
use crate::{TestWorker, connect, next, nothing, owning_port, ready};

#[for_every_backend]
fn what_is_dropped_is_closed_and_forgotten(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend, 2)?;
    let mut worker = port.worker(4);
    for armed in [false, true] {
        let (connection, mut peer) = connect(&port)?;
        let connection = match armed {
            false => connection,
            true => {
                worker.arm(connection, Interest::OUT);
                ready(next(&mut worker))
            }
        };
        assert_eq!(counted(port.snapshot().registrations), 1);
        drop(connection);
        assert_eq!(counted(port.snapshot().registrations), 0);
        assert_eq!(uninterrupted(|| peer.read(&mut [0]))?, 0);
    }
    nothing(&mut worker);
    Ok(())
}

#[track_caller]
fn cancelled(worker: &mut TestWorker) -> socknotify::owned::Held<crate::Connection> {
    match next(worker) {
        Event::Cancelled(connection) => connection,
        other => panic!("{other:?}"),
    }
}

#[for_every_backend]
fn an_armed_connection_is_cancelled_by_another_thread(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend, 2)?;
    let mut worker = port.worker(4);
    let (connection, mut peer) = connect(&port)?;
    let id = connection.id();
    port.arm(connection, Interest::IN);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| cancelled(&mut worker));
        wait_until("it waits", || port.snapshot().waiting == 1);
        assert!(port.cancel(id));
        let connection = waiting.join().expect("no panic");
        assert_eq!(connection.id(), id);
        port.arm(connection, Interest::IN);
    });
    // It is as good as before.
    peer.write_all(b"x")?;
    drop(ready(next(&mut worker)));
    Ok(())
}

#[for_every_backend]
fn a_held_connection_is_cancelled_when_it_is_armed(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend, 2)?;
    let mut worker = port.worker(4);
    let (connection, mut peer) = connect(&port)?;
    peer.write_all(b"x")?;
    worker.arm(connection, Interest::IN);
    let connection = ready(next(&mut worker));
    assert!(port.cancel(connection.id()));
    nothing(&mut worker);
    worker.arm(connection, Interest::IN);
    let connection = cancelled(&mut worker);
    worker.arm(connection, Interest::IN);
    drop(ready(next(&mut worker)));
    nothing(&mut worker);
    Ok(())
}

#[for_every_backend]
fn an_adopted_connection_is_cancelled_when_it_is_armed(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend, 2)?;
    let mut worker = port.worker(4);
    let (connection, _peer) = connect(&port)?;
    assert!(port.cancel(connection.id()));
    worker.arm(connection, Interest::IN.within(Duration::from_secs(3600)));
    drop(cancelled(&mut worker));
    Ok(())
}

#[for_every_backend]
fn a_connection_that_is_notified_is_not_cancelled_before_it_is_armed_again(
    backend: Backend,
) -> io::Result<()> {
    let port = owning_port(backend, 2)?;
    let [mut first, mut second] = [port.worker(4), port.worker(4)];
    let (connection, mut peer) = connect(&port)?;
    let id = connection.id();
    peer.write_all(b"x")?;
    first.arm(connection, Interest::IN);
    // It is dequeued, and in nobody's hand yet.
    first.process(Some(PATIENCE))?;
    assert!(port.cancel(id));
    let connection = ready(first.take().expect("an event"));
    nothing(&mut second);
    second.arm(connection, Interest::IN);
    assert_eq!(cancelled(&mut second).id(), id);
    Ok(())
}

#[for_every_backend]
fn cancelling_again_changes_nothing(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend, 2)?;
    let mut worker = port.worker(4);
    let (connection, _peer) = connect(&port)?;
    let id = connection.id();
    assert!(port.cancel(id));
    assert!(port.cancel(id));
    worker.arm(connection, Interest::IN);
    let connection = cancelled(&mut worker);
    worker.arm(connection, Interest::IN);
    nothing(&mut worker);
    assert!(port.cancel(id));
    drop(cancelled(&mut worker));
    nothing(&mut worker);
    Ok(())
}

#[for_every_backend]
fn what_is_closed_cannot_be_cancelled(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend, 2)?;
    let (connection, _peer) = connect(&port)?;
    let id = connection.id();
    drop(connection);
    assert!(!port.cancel(id));
    let (connection, _peer) = connect(&port)?;
    assert!(!port.cancel(id), "the next one has the index");
    let mut worker = port.worker(1);
    worker.arm(connection, Interest::IN);
    nothing(&mut worker);
    Ok(())
}

#[for_every_backend]
fn closing_hands_back_what_is_armed(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend, 2)?;
    let mut worker = port.worker(4);
    let mut peers = Vec::new();
    for _ in 0..3 {
        let (connection, peer) = connect(&port)?;
        port.arm(connection, Interest::IN.within(PATIENCE));
        peers.push(peer);
    }
    let (held, _peer) = connect(&port)?;
    let connections = port.close();
    assert_eq!(connections.len(), 3);
    for (connection, mut peer) in connections.iter().zip(&peers) {
        (&connection.socket).write_all(b"x")?;
        peer.read_exact(&mut [0])?;
    }
    assert_eq!(port.close().len(), 0);
    worker.arm(held, Interest::IN);
    assert_eq!(worker.process(None), Err(Error::Closed));
    Ok(())
}

#[for_every_backend]
fn closing_releases_threads_and_leaves_them_what_they_hold(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend, 2)?;
    let (connection, mut peer) = connect(&port)?;
    port.arm(connection, Interest::OUT);
    let mut worker = port.worker(4);
    let held = ready(next(&mut worker));
    thread::scope(|scope| {
        let waiting: Vec<_> = (0..4)
            .map(|_| port.worker(2))
            .map(|mut worker| scope.spawn(move || worker.process(None)))
            .collect();
        wait_until("they wait", || port.snapshot().waiting == 4);
        assert_eq!(port.close().len(), 0);
        for thread in waiting {
            assert_eq!(thread.join().expect("no panic"), Err(Error::Closed));
        }
    });
    (&held.socket).write_all(b"x")?;
    peer.read_exact(&mut [0])?;
    drop(held);
    assert_eq!(uninterrupted(|| peer.read(&mut [0]))?, 0);
    Ok(())
}

#[for_every_backend]
fn after_closing_every_call_says_so(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend, 2)?;
    let (held, mut peer) = connect(&port)?;
    let id = held.id();
    port.close();
    assert!(port.send(1).is_err());
    port.arm(held, Interest::IN);
    assert_eq!(uninterrupted(|| peer.read(&mut [0]))?, 0, "it is closed");
    assert!(!port.cancel(id));
    let pair = crate::support::Pair::unix()?;
    let connection = crate::Connection {
        socket: pair.ours,
        served: 0,
    };
    let error = port.adopt(connection).expect_err("it is closed");
    assert_eq!(error.into_inner().served, 0);
    Ok(())
}

#[for_every_backend]
fn dropping_the_port_closes_what_is_armed(backend: Backend) -> io::Result<()> {
    // Its descriptors go with it, whoever has a worker still.
    let port = owning_port(backend, 2)?;
    let (connection, mut peer) = connect(&port)?;
    let worker = port.worker(2);
    port.arm(connection, Interest::IN);
    drop(port);
    assert_eq!(uninterrupted(|| peer.read(&mut [0]))?, 0);
    drop(worker);
    Ok(())
}

/// A connection that is in a table as long as it lives.
struct Listed {
    socket: TcpStream,
    id: Option<Id>,
    table: Arc<Mutex<HashSet<Id>>>,
}

impl Source for Listed {
    fn socket(&self) -> BorrowedSocket<'_> {
        self.socket.socket()
    }

    fn adopted(&mut self, id: Id) {
        self.id = Some(id);
        assert!(self.table.lock().expect("no panic").insert(id));
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        let id = self.id.expect("it was adopted");
        assert!(self.table.lock().expect("no panic").remove(&id));
    }
}

#[for_every_backend]
fn a_connection_learns_its_id_and_is_dropped_at_its_end(backend: Backend) -> io::Result<()> {
    let port = Port::<Listed>::from(port_with(backend, 2)?);
    let table = Arc::new(Mutex::new(HashSet::new()));
    let make = {
        let table = Arc::clone(&table);
        move |socket| Listed {
            socket,
            id: None,
            table: Arc::clone(&table),
        }
    };
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let adopted = port.adopt(make(TcpStream::connect(address)?))?;
    assert_eq!(adopted.id, Some(adopted.id()));
    let ids = |count| {
        let table = table.lock().expect("no panic");
        assert_eq!(table.len(), count);
        table.clone()
    };
    assert!(ids(1).contains(&adopted.id()));
    let connecting = port.connect(address, PATIENCE, &make)?;
    assert!(ids(2).contains(&connecting));
    port.listen(listener, Interest::OUT, move |stream, _| make(stream))?;
    let mut worker = port.worker(8);
    let mut held = Vec::new();
    while held.len() < 3 {
        worker.process(Some(PATIENCE))?;
        while let Some(event) = worker.take() {
            match event {
                Event::Ready(it, _) | Event::Connected(it) => {
                    assert_eq!(it.id, Some(it.id()));
                    held.push(it);
                }
                _ => panic!("something else"),
            }
        }
    }
    ids(4);
    drop(held);
    assert!(ids(1).contains(&adopted.id()));
    port.arm(adopted, Interest::IN);
    drop(port.close());
    ids(0);
    Ok(())
}
