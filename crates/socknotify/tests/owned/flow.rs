//! What a worker gives back goes to other threads; and a handler or a function that blocks keeps nobody else waiting.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use socket2::Socket;
use socknotify::owned::{Event, Interest, Listening, Port, Serving, Worker};
use socknotify::{Backend, CompletionPort};

use crate::support::{PATIENCE, Pair, port_with, rounds, wait_until};
use crate::{TestPort, connect, next, owning_port, ready};

/// The peers of connections that are armed and ready.
fn ready_connections(port: &TestPort, count: usize) -> io::Result<Vec<Socket>> {
    let peers = (0..count).map(|_| {
        let (connection, mut peer) = connect(port)?;
        peer.write_all(b"x")?;
        port.arm(connection, Interest::IN);
        Ok(peer)
    });
    peers.collect()
}

#[for_every_backend(with_permits)]
fn f2_what_is_given_back_comes_in_order_and_before_later_ones(backend: Backend) -> io::Result<()> {
    for way in 0..3 {
        let port = owning_port(backend, 1)?;
        let mut worker = port.worker(8);
        (0..8).try_for_each(|number| port.send(number))?;
        assert_eq!(worker.process(Some(PATIENCE)), Ok(8));
        assert!(matches!(worker.take(), Some(Event::Message(0))));
        // What was handed back is armed.
        let (connection, mut peer) = connect(&port)?;
        worker.arm(connection, Interest::IN);
        (8..12).try_for_each(|number| port.send(number))?;
        match way {
            0 => worker.blocking(|| ()),
            1 => worker.release(),
            _ => drop(worker),
        }
        let mut other = port.worker(3);
        for number in 1..12 {
            assert!(matches!(next(&mut other), Event::Message(it) if it == number));
        }
        peer.write_all(b"x")?;
        drop(ready(next(&mut other)));
    }
    Ok(())
}

#[for_every_backend]
fn g4_closing_returns_what_a_worker_has_not_taken(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend, 2)?;
    let _peers = ready_connections(&port, 8)?;
    let mut worker = port.worker(64);
    while worker.process(Some(PATIENCE))? < 8 {
        worker.release();
    }
    let held = ready(worker.take().expect("an event"));
    let armed = ready(worker.take().expect("an event"));
    worker.arm(armed, Interest::IN);
    assert_eq!((port.connections(), port.close().len()), (8, 7));
    assert!(worker.take().is_none());
    drop(held);
    Ok(())
}

/// `serve` takes one event at a time.
#[for_every_backend(with_permits)]
fn f4_one_handler_that_blocks_keeps_no_other_event_waiting(backend: Backend) -> io::Result<()> {
    for concurrency in [1, 4] {
        let port = CompletionPort::builder().backend(backend);
        let port = TestPort::from(port.concurrency(concurrency).build()?);
        let _peers = ready_connections(&port, 10)?;
        let begun = AtomicUsize::new(0);
        port.serve(Serving::default(), |_, _| {
            if begun.fetch_add(1, SeqCst) == 0 {
                wait_until("all have begun", || begun.load(SeqCst) == 10);
                port.close();
            }
        })?;
    }
    Ok(())
}

#[for_every_backend]
fn c8_nothing_is_lost_or_served_by_two_while_handlers_block(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend, 2)?;
    let mut peers = ready_connections(&port, 16)?;
    let handler = |worker: &mut Worker<_, _>, event| {
        let mut connection = ready(event);
        let mut byte = [0];
        if connection.socket.read(&mut byte).is_ok_and(|it| it == 1) {
            connection.served += 1;
            let number = connection.served;
            worker.blocking(|| thread::sleep(Duration::from_micros(byte[0].into())));
            assert_eq!(connection.served, number);
            connection.socket.write_all(&byte).expect("room");
        }
        worker.arm(connection, Interest::IN);
    };
    thread::scope(|scope| {
        scope.spawn(|| port.serve(Serving::default(), handler));
        let outcome = (0..rounds(300)).try_for_each(|_| {
            for peer in &mut peers {
                peer.read_exact(&mut [0])?;
                peer.write_all(&[fastrand::u8(..)])?;
            }
            Ok(())
        });
        port.close();
        outcome
    })
}

/// Each function waits for that of the other client, and the first handler for the other one.
#[for_every_backend]
fn f4_a_listener_whose_function_blocks_lets_others_accept(backend: Backend) -> io::Result<()> {
    let port = Port::<TcpStream>::from(port_with(backend, 2)?);
    let meet = Barrier::new(2);
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    port.listen(listener, Listening::reporting(), move |stream, _| {
        meet.wait();
        stream
    })?;
    let _clients = [TcpStream::connect(address)?, TcpStream::connect(address)?];
    let accepted = AtomicUsize::new(0);
    Ok(port.serve(Serving::default(), |_, event| {
        assert!(matches!(event, Event::Accepted(_)));
        if accepted.fetch_add(1, SeqCst) == 0 {
            wait_until("both are there", || accepted.load(SeqCst) == 2);
            port.close();
        }
    })?)
}

#[for_every_backend]
fn f4_any_thread_is_notified_of_what_was_refused(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend, 2)?;
    let mut worker = port.worker(1);
    for _ in 0..2 {
        let (mut refused, _peer) = connect(&port)?;
        refused.socket = Pair::unix()?.ours;
        worker.arm(refused, Interest::IN);
    }
    assert!(matches!(next(&mut worker), Event::Refused(..)));
    let other = || assert!(matches!(next(&mut port.worker(1)), Event::Refused(..)));
    thread::scope(|scope| _ = scope.spawn(other));
    Ok(())
}
