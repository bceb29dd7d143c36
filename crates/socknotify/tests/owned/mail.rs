//! Messages to one worker, and to all.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use socknotify::owned::{Event, Interest, Port, SendError, WorkerId};
use socknotify::{Backend, Error};

use crate::support::{PATIENCE, port, port_with, rounds, wait_until};
use crate::{Connection, TestWorker, connect, next, nothing, owning_port, ready};

fn message(event: Event<Connection, u64>) -> u64 {
    match event {
        Event::Message(message) => message,
        other => panic!("{other:?}"),
    }
}

#[for_every_backend]
fn a_message_to_one_worker_goes_to_that_one(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend, 2)?;
    let mut workers = [port.worker(4), port.worker(1), port.worker(4)];
    let names = workers.each_ref().map(|worker| worker.id());
    for (index, &name) in names.iter().enumerate() {
        port.send_to(name, index as u64)?;
    }
    for (index, worker) in workers.iter_mut().enumerate() {
        assert_eq!(message(next(worker)), index as u64);
        nothing(worker);
    }
    Ok(())
}

#[for_every_backend]
fn a_message_to_all_goes_to_each_once(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend, 2)?;
    assert_eq!(port.send_to_all(1), 0);
    let mut workers = [port.worker(4), port.worker(4), port.worker(4)];
    assert_eq!(port.send_to_all(2), 3);
    assert_eq!(port.send_to_all(3), 3);
    // It was not there at that time.
    nothing(&mut port.worker(4));
    for worker in &mut workers {
        assert_eq!(worker.process(Some(PATIENCE)), Ok(2));
        let both = [worker.take(), worker.take()].map(|it| message(it.expect("a message")));
        assert_eq!(both, [2, 3]);
        nothing(worker);
    }
    Ok(())
}

#[for_every_backend]
fn messages_to_one_come_in_order_and_before_other_events(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend, 2)?;
    let mut worker = port.worker(8);
    let (connection, mut peer) = connect(&port)?;
    peer.write_all(b"x")?;
    worker.arm(connection, Interest::IN);
    port.send(0)?;
    for number in 1..100 {
        port.send_to(worker.id(), number)?;
    }
    for number in 1..100 {
        assert_eq!(message(next(&mut worker)), number);
    }
    let mut rest = [next(&mut worker), next(&mut worker)];
    rest.sort_by_key(|event| matches!(event, Event::Message(_)));
    let [connection, last] = rest;
    drop(ready(connection));
    assert_eq!(message(last), 0);
    nothing(&mut worker);
    Ok(())
}

#[for_every_backend]
fn a_worker_that_waits_is_woken_and_no_other_takes_its_message(backend: Backend) -> io::Result<()> {
    for places in [1, 2, 8] {
        let port = owning_port(backend, places)?;
        let workers: Vec<_> = (0..5).map(|_| port.worker(4)).collect();
        let names: Vec<_> = workers.iter().map(|worker| worker.id()).collect();
        let (tell, told) = channel();
        thread::scope(|scope| -> io::Result<()> {
            for mut worker in workers {
                let tell = tell.clone();
                scope.spawn(move || {
                    while worker.process(None).is_ok() {
                        while let Some(event) = worker.take() {
                            tell.send((worker.id(), message(event))).expect("heard");
                        }
                    }
                });
            }
            let outcome = (|| {
                for number in 0..rounds(300) as u64 {
                    let name = names[fastrand::usize(0..5)];
                    if number % 3 == 0 {
                        wait_until("all wait", || port.snapshot().waiting == 5);
                    }
                    port.send_to(name, number)?;
                    assert_eq!(told.recv_timeout(PATIENCE), Ok((name, number)));
                }
                Ok(())
            })();
            port.close();
            outcome
        })?;
    }
    Ok(())
}

#[for_every_backend]
fn a_worker_that_is_busy_keeps_nobody_waiting(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend, 2)?;
    let [mut busy, mut other] = [port.worker(4), port.worker(4)];
    port.send(1)?;
    assert_eq!(message(next(&mut busy)), 1);
    port.send_to(busy.id(), 2)?;
    for number in 3..10 {
        port.send(number)?;
        assert_eq!(message(next(&mut other)), number);
        nothing(&mut other);
    }
    assert_eq!(message(next(&mut busy)), 2);
    Ok(())
}

/// All others wait, too, and the one that has the place does not come back.
#[for_every_backend]
fn a_message_to_one_needs_no_more_than_one_place(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend, 1)?;
    let mut worker = port.worker(4);
    let name = worker.id();
    thread::scope(|scope| -> io::Result<()> {
        let waiting = scope.spawn(move || message(next(&mut worker)));
        wait_until("it waits", || port.snapshot().waiting == 1);
        for mut other in (0..3).map(|_| port.worker(4)) {
            scope.spawn(move || assert_eq!(other.process(None), Err(Error::Closed)));
        }
        wait_until("all wait", || port.snapshot().waiting == 4);
        port.send_to(name, 5)?;
        let got = waiting.join();
        port.close();
        assert_eq!(got.expect("no panic"), 5);
        Ok(())
    })
}

/// The one that has the place finds something whenever it comes back.
#[for_every_backend]
fn a_message_reaches_its_worker_however_busy_another_is(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend, 1)?;
    let mut worker = port.worker(4);
    let name = worker.id();
    let turns = AtomicU64::new(0);
    thread::scope(|scope| -> io::Result<()> {
        let busy = scope.spawn(|| {
            let mut busy = port.worker(8);
            for _ in 0..4 {
                port.send(0).expect("it is open");
            }
            while let Ok(1..) = busy.process(Some(PATIENCE)) {
                while let Some(event) = busy.take() {
                    assert_eq!(message(event), 0);
                    let _ = port.send(0);
                    turns.fetch_add(1, Ordering::SeqCst);
                }
            }
        });
        wait_until("it is busy", || turns.load(Ordering::SeqCst) > 100);
        // From here on nobody else has the place, unless it is given back.
        let waiting = scope.spawn(|| {
            loop {
                match message(next(&mut worker)) {
                    0 => port.send(0).expect("it is open"),
                    message => return message,
                }
            }
        });
        wait_until("it waits", || port.snapshot().waiting == 1);
        let begin = Instant::now();
        let sent = port.send_to(name, 5);
        let got = waiting.join();
        let passed = begin.elapsed();
        port.close();
        // It would take the message when its wait is over.
        assert!(passed < PATIENCE / 2, "{passed:?}");
        busy.join().expect("no panic");
        sent?;
        assert_eq!(got.expect("no panic"), 5);
        Ok(())
    })
}

#[for_every_backend]
fn a_worker_can_send_to_itself(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend, 1)?;
    let mut worker = port.worker(4);
    port.send_to(worker.id(), 0)?;
    for number in 0..100 {
        assert_eq!(message(next(&mut worker)), number);
        port.send_to(worker.id(), number + 1)?;
    }
    Ok(())
}

#[for_every_backend]
fn a_worker_that_is_gone_gets_nothing(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend, 1)?;
    let worker = port.worker(4);
    let name = worker.id();
    drop(worker);
    assert_eq!(port.send_to(name, 7), Err(SendError(7)));
    assert_eq!(port.send_to_all(8), 0);
    nothing(&mut port.worker(4));
    Ok(())
}

#[for_every_backend]
fn a_closed_port_takes_no_message_for_anybody(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend, 1)?;
    let mut worker = port.worker(4);
    port.send_to(worker.id(), 1)?;
    port.close();
    assert_eq!(port.send_to(worker.id(), 7), Err(SendError(7)));
    assert_eq!(port.send_to_all(8), 0);
    assert_eq!(worker.process(None), Err(Error::Closed));
    assert!(worker.take().is_none());
    Ok(())
}

#[for_every_backend]
fn what_a_worker_has_not_taken_is_dropped_with_it(backend: Backend) -> io::Result<()> {
    let port = Port::<Connection, Arc<()>>::from(port(backend)?);
    let message = Arc::new(());
    let mut worker = port.worker(4);
    port.send_to_all(Arc::clone(&message));
    worker.process(Some(PATIENCE))?;
    port.send_to(worker.id(), Arc::clone(&message))?;
    assert_eq!(Arc::strong_count(&message), 3);
    drop(worker);
    assert_eq!(Arc::strong_count(&message), 1);
    let worker = port.worker(4);
    port.send_to(worker.id(), Arc::clone(&message))?;
    port.close();
    assert_eq!(Arc::strong_count(&message), 1);
    Ok(())
}

#[for_every_backend]
fn a_name_is_not_given_again(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend, 1)?;
    let names: Vec<WorkerId> = (0..100).map(|_| port.worker(1).id()).collect();
    for (index, name) in names.iter().enumerate() {
        assert!(!names[..index].contains(name));
        assert!(port.send_to(*name, 1).is_err());
    }
    Ok(())
}

/// The packet that is to wake another worker makes no wait longer, and none shorter.
#[for_every_backend]
fn a_wait_for_another_workers_message_ends_in_time(backend: Backend) -> io::Result<()> {
    const TIME: Duration = Duration::from_millis(60);
    let port = owning_port(backend, 2)?;
    let mut others = port.worker(4);
    let name = others.id();
    let (is_over, count) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| -> io::Result<()> {
        scope.spawn(|| {
            while let Ok(1..) = others.process(None) {
                while let Some(event) = others.take() {
                    message(event);
                    count.fetch_add(1, Ordering::SeqCst);
                }
            }
        });
        let waiting = scope.spawn(|| {
            let mut worker = port.worker(4);
            for _ in 0..5 {
                let begin = Instant::now();
                assert_eq!(worker.process(Some(TIME)), Ok(0));
                let passed = begin.elapsed();
                assert!(passed >= TIME, "{passed:?}");
                assert!(passed < PATIENCE / 2, "{passed:?}");
            }
            is_over.store(true, Ordering::SeqCst);
        });
        let mut sent = 0;
        while !is_over.load(Ordering::SeqCst) && !waiting.is_finished() {
            port.send_to(name, sent)?;
            sent += 1;
            wait_until("it is taken", || count.load(Ordering::SeqCst) == sent);
        }
        port.close();
        Ok(())
    })
}

/// What one worker is to get, and has got.
#[derive(Default)]
struct Log {
    sent: VecDeque<u64>,
    got: VecDeque<u64>,
}

/// Messages to one, to all and to anybody, while connections are served, with more threads than places.
#[for_every_backend]
fn no_message_is_lost_among_many_workers(backend: Backend) -> io::Result<()> {
    const WORKERS: usize = 6;
    const ANYBODY: u64 = 1 << 40;
    for places in [1, 2, usize::MAX] {
        let port = Port::<Connection, u64>::from(port_with(backend, places)?);
        let messages = rounds(2000) as u64;
        let workers: Vec<TestWorker> = (0..WORKERS).map(|_| port.worker(4)).collect();
        let names: Vec<_> = workers.iter().map(|worker| worker.id()).collect();
        let logs: Vec<Mutex<Log>> = (0..WORKERS).map(|_| Mutex::default()).collect();
        let (anybody, got) = (AtomicU64::new(0), AtomicU64::new(0));
        let peers = (0..8).map(|_| {
            let (connection, peer) = connect(&port)?;
            port.arm(connection, Interest::IN);
            Ok(peer)
        });
        let peers = peers.collect::<io::Result<Vec<_>>>()?;
        thread::scope(|scope| -> io::Result<()> {
            for (mut worker, log) in workers.into_iter().zip(&logs) {
                let (anybody, got) = (&anybody, &got);
                scope.spawn(move || {
                    while worker.process(None).is_ok() {
                        while let Some(event) = worker.take() {
                            match event {
                                Event::Message(ANYBODY) => {
                                    anybody.fetch_add(1, Ordering::SeqCst);
                                }
                                Event::Message(it) => {
                                    log.lock().expect("no panic").got.push_back(it);
                                    got.fetch_add(1, Ordering::SeqCst);
                                }
                                Event::Ready(mut connection, _) => {
                                    let byte = &mut [0];
                                    // Until its peer has gone.
                                    if let Ok(1) = connection.socket.read(byte) {
                                        connection.socket.write_all(byte).expect("room");
                                        worker.arm(connection, Interest::IN);
                                    }
                                }
                                other => panic!("{other:?}"),
                            }
                        }
                    }
                });
            }
            let is_over = AtomicBool::new(false);
            let outcome = thread::scope(|scope| {
                for mut peer in peers {
                    let is_over = &is_over;
                    scope.spawn(move || -> io::Result<()> {
                        while !is_over.load(Ordering::SeqCst) {
                            peer.write_all(b"x")?;
                            peer.read_exact(&mut [0])?;
                        }
                        Ok(())
                    });
                }
                let outcome = (|| {
                    let mut due = 0;
                    for number in 0..messages {
                        match fastrand::u8(0..3) {
                            0 => {
                                let one = fastrand::usize(0..WORKERS);
                                port.send_to(names[one], number)?;
                                logs[one].lock().expect("no panic").sent.push_back(number);
                                due += 1;
                            }
                            1 => {
                                assert_eq!(port.send_to_all(number), WORKERS);
                                for log in &logs {
                                    log.lock().expect("no panic").sent.push_back(number);
                                }
                                due += WORKERS as u64;
                            }
                            _ => port.send(ANYBODY)?,
                        }
                        if number % 16 == 0 {
                            wait_until("all are taken", || got.load(Ordering::SeqCst) == due);
                        }
                    }
                    wait_until("all are taken", || got.load(Ordering::SeqCst) == due);
                    Ok(())
                })();
                is_over.store(true, Ordering::SeqCst);
                outcome
            });
            port.close();
            outcome
        })?;
        for log in logs {
            let Log { sent, got } = log.into_inner().expect("no panic");
            assert_eq!(sent, got);
        }
    }
    Ok(())
}
