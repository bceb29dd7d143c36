//! [`Port::serve`]: threads as they are needed, handlers that block, and panics that end nothing.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};
use std::{collections::HashSet, sync::Mutex};

use socknotify::owned::{
    Event, Interest, Limited, Listening, Port, Serving, ServingThreads, SlowHandler, Worker,
};
use socknotify::{Backend, CompletionPort, Error};

use crate::support::{Gate, PATIENCE, SHORT, port_with, read_byte, uninterrupted, wait_until};

type StreamPort = Port<TcpStream, u32>;
type Handled<'a> = (&'a mut Worker<TcpStream, u32>, Event<TcpStream, u32>);

/// A port that listens, with connections in blocking mode.
fn listening(backend: Backend, permits: usize) -> io::Result<(StreamPort, SocketAddr)> {
    // A thread that blocks leaves its permit.
    let port = CompletionPort::builder().backend(backend);
    let port = Port::from(port.concurrency(permits).build()?);
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    port.listen(listener, Interest::IN, |client, _| {
        let set = client.set_nonblocking(false);
        let set = set.and_then(|()| client.set_read_timeout(Some(PATIENCE)));
        set.expect("it is a socket");
        client
    })?;
    Ok((port, address))
}

/// Serve while the test runs, and close the port at its end.
fn while_serving(
    port: &StreamPort,
    serving: Serving,
    handler: impl Fn(Handled<'_>) + Sync,
    test: impl FnOnce() -> io::Result<()>,
) -> io::Result<()> {
    thread::scope(|scope| {
        let handler = &handler;
        let serving =
            scope.spawn(move || port.serve(serving, |worker, event| handler((worker, event))));
        let outcome = {
            let _close = Closing(port);
            test()
        };
        assert_eq!(serving.join().expect("no panic"), Ok(()));
        outcome
    })
}

/// Opens a gate, also when a test fails.
struct Opening<'a>(&'a Gate);

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        self.0.open_for_all();
    }
}

/// Closes the port, also when a test fails.
struct Closing<'a>(&'a StreamPort);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

fn client(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// Send a byte, and expect it back.
fn exchange(mut stream: &TcpStream, byte: u8) -> io::Result<()> {
    stream.write_all(&[byte])?;
    let mut answer = [0];
    stream.read_exact(&mut answer)?;
    assert_eq!(answer, [byte]);
    Ok(())
}

/// Echo a byte; before that, do something about it.
fn echo((worker, event): Handled<'_>, work: impl FnOnce(&mut Worker<TcpStream, u32>, u8)) {
    if let Event::Ready(mut client, _) = event {
        let Ok(byte) = read_byte(&*client) else {
            return;
        };
        if let Some(byte) = byte {
            work(worker, byte);
            if client.write_all(&[byte]).is_err() {
                return;
            }
        }
        worker.arm(client, Interest::IN);
    }
}

#[for_every_backend]
fn serving_answers_many_clients_and_ends_when_the_port_is_closed(
    backend: Backend,
) -> io::Result<()> {
    let (port, address) = listening(backend, 2)?;
    let handler = |handled: Handled<'_>| echo(handled, |_, _| ());
    while_serving(&port, Serving::default(), handler, || {
        let clients = (0..50).map(|_| client(address));
        let clients = clients.collect::<io::Result<Vec<_>>>()?;
        (0..10).try_for_each(|round| clients.iter().try_for_each(|it| exchange(it, round)))
    })?;
    assert_eq!(port.connections(), 0);
    assert_eq!(
        port.serve(Serving::default(), |_, _| ()),
        Ok(()),
        "it is closed"
    );
    Ok(())
}

/// A slow database: every handler waits until all of them do, with one permit.
#[for_every_backend]
fn a_thread_is_started_for_each_handler_that_blocks(backend: Backend) -> io::Result<()> {
    const REQUESTS: usize = 20;
    let (port, address) = listening(backend, 1)?;
    let (waiting, gate) = (AtomicUsize::new(0), Gate::new());
    let handler = |handled: Handled<'_>| {
        echo(handled, |worker, byte| {
            if byte == b'w' {
                // Without a word to the port.
                let _ = &worker;
                waiting.fetch_add(1, Ordering::SeqCst);
                gate.pass();
            }
        });
    };
    while_serving(&port, Serving::default(), handler, || {
        let clients = (0..REQUESTS).map(|_| client(address));
        let clients = clients.collect::<io::Result<Vec<_>>>()?;
        let quick = client(address)?;
        let _open = Opening(&gate);
        for mut client in &clients {
            client.write_all(b"w")?;
        }
        wait_until("all handlers block", || {
            waiting.load(Ordering::SeqCst) == REQUESTS
        });
        // And another client is answered.
        exchange(&quick, 1)?;
        gate.open_for_all();
        for mut client in &clients {
            client.read_exact(&mut [0])?;
        }
        Ok(())
    })
}

#[for_every_backend]
fn no_more_threads_serve_than_the_limit(backend: Backend) -> io::Result<()> {
    let (port, address) = listening(backend, 8)?;
    let (waiting, gate) = (AtomicUsize::new(0), Gate::new());
    let threads = Mutex::new(HashSet::<ThreadId>::new());
    let handler = |handled: Handled<'_>| {
        threads
            .lock()
            .expect("no panic")
            .insert(thread::current().id());
        echo(handled, |worker, _| {
            worker.blocking(|| {
                waiting.fetch_add(1, Ordering::SeqCst);
                gate.pass();
            });
        });
    };
    while_serving(&port, Serving::default().threads(3), handler, || {
        let clients = (0..6).map(|_| client(address));
        let clients = clients.collect::<io::Result<Vec<_>>>()?;
        let _open = Opening(&gate);
        for mut client in &clients {
            client.write_all(b"w")?;
        }
        wait_until("three block", || waiting.load(Ordering::SeqCst) == 3);
        let serving = port.serving();
        assert_eq!((serving.threads, serving.most, serving.waiting), (3, 3, 0));
        gate.open_for_all();
        clients
            .iter()
            .try_for_each(|mut client| client.read_exact(&mut [0]))
    })?;
    assert_eq!(port.serving(), ServingThreads::default());
    assert_eq!(threads.lock().expect("no panic").len(), 3);
    Ok(())
}

/// The clients of so many handlers that have waited at a gate at the same time, each for a `w`, and have answered.
fn block_at_once(
    count: usize,
    address: SocketAddr,
    waiting: &AtomicUsize,
    gate: &Gate,
) -> io::Result<Vec<TcpStream>> {
    let clients = (0..count).map(|_| client(address));
    let clients = clients.collect::<io::Result<Vec<_>>>()?;
    let _open = Opening(gate);
    for mut client in &clients {
        client.write_all(b"w")?;
    }
    wait_until("all block", || waiting.load(Ordering::SeqCst) == count);
    gate.open_for_all();
    for mut client in &clients {
        client.read_exact(&mut [0])?;
    }
    Ok(clients)
}

#[for_every_backend]
fn threads_that_have_nothing_to_do_end_but_for_one(backend: Backend) -> io::Result<()> {
    let (port, address) = listening(backend, 2)?;
    let (waiting, gate) = (AtomicUsize::new(0), Gate::new());
    let handler = |handled: Handled<'_>| {
        echo(handled, |worker, byte| {
            if byte == b'w' {
                worker.blocking(|| {
                    waiting.fetch_add(1, Ordering::SeqCst);
                    gate.pass();
                });
            }
        });
    };
    let serving = Serving::default().idle(SHORT);
    while_serving(&port, serving, handler, || {
        let clients = block_at_once(8, address, &waiting, &gate)?;
        wait_until("one waits", || port.snapshot().waiting == 1);
        // And others start when they are needed.
        (0..100).try_for_each(|round| exchange(&clients[round % 8], round as u8))
    })
}

/// More wait the more block. Those have waited in vain while many blocked, and are too many afterwards.
#[for_every_backend]
fn threads_that_waited_beside_many_that_blocked_end(backend: Backend) -> io::Result<()> {
    const BLOCKED: usize = 12;
    let (port, address) = listening(backend, 2)?;
    let (waiting, gate) = (AtomicUsize::new(0), Gate::new());
    let handler = |handled: Handled<'_>| {
        echo(handled, |worker, _| {
            worker.blocking(|| {
                waiting.fetch_add(1, Ordering::SeqCst);
                gate.pass();
            });
        });
    };
    while_serving(&port, Serving::default().idle(SHORT), handler, || {
        let clients = (0..BLOCKED).map(|_| client(address));
        let clients = clients.collect::<io::Result<Vec<_>>>()?;
        let _open = Opening(&gate);
        for mut client in &clients {
            client.write_all(b"w")?;
        }
        wait_until("all block", || waiting.load(Ordering::SeqCst) == BLOCKED);
        wait_until("others wait", || port.serving().waiting > 1);
        let begin = Instant::now();
        wait_until("in vain", || begin.elapsed() > 3 * SHORT);
        gate.open_for_all();
        for mut client in &clients {
            client.read_exact(&mut [0])?;
        }
        wait_until("one is left", || port.serving().threads == 1);
        Ok(())
    })
}

/// It ends as the others do, and then waits for them.
#[for_every_backend]
fn the_thread_that_calls_serve_does_not_count_once_it_has_ended(
    backend: Backend,
) -> io::Result<()> {
    let (port, address) = listening(backend, 2)?;
    let (entered, gates) = (Mutex::new(Vec::new()), [Gate::new(), Gate::new()]);
    let caller = Mutex::new(None);
    let handler = |handled: Handled<'_>| {
        echo(handled, |_, byte| {
            let this = thread::current().id();
            entered.lock().expect("no panic").push(this);
            let is_caller = *caller.lock().expect("no panic") == Some(this);
            if byte == b'w' {
                gates[usize::from(!is_caller)].pass();
            }
        });
    };
    let started = Arc::new(AtomicUsize::new(0));
    let start = Arc::clone(&started);
    let serving = Serving::default().threads(2).idle(SHORT);
    let serving = serving.on_start(move || {
        start.fetch_add(1, Ordering::SeqCst);
    });
    thread::scope(|scope| {
        let (port, handler, caller) = (&port, &handler, &caller);
        scope.spawn(move || {
            *caller.lock().expect("no panic") = Some(thread::current().id());
            port.serve(serving, |worker, event| handler((worker, event)))
        });
        let _close = Closing(port);
        let _open = gates.each_ref().map(Opening);
        let clients = [client(address)?, client(address)?];
        wait_until("both serve", || started.load(Ordering::SeqCst) == 2);
        loop {
            wait_until("one waits", || port.serving().waiting == 1);
            wait_until("there is one", || port.serving().threads == 1);
            entered.lock().expect("no panic").clear();
            exchange(&clients[0], b'x')?;
            if Some(entered.lock().expect("no panic")[0]) != *caller.lock().expect("no panic") {
                return Ok(());
            }
            // The caller is left. Have it wait before the other one does, so that it may end first.
            for mut client in &clients {
                client.write_all(b"w")?;
            }
            wait_until("both work", || entered.lock().expect("no panic").len() == 3);
            gates[0].open(1);
            wait_until("the caller waits", || port.serving().waiting == 1);
            gates[1].open(1);
            for mut client in &clients {
                client.read_exact(&mut [0])?;
            }
        }
    })
}

#[for_every_backend]
fn a_panic_closes_its_connection_and_ends_no_thread(backend: Backend) -> io::Result<()> {
    let (port, address) = listening(backend, 1)?;
    let [ids, closed] = [const { Mutex::new(Vec::new()) }; 2];
    let panics = Mutex::new(Vec::new());
    let handler = |(worker, event): Handled<'_>| match event {
        Event::Panicked(id, panic) => {
            ids.lock()
                .expect("no panic")
                .push(id.expect("a connection's"));
            let text = panic.downcast_ref::<String>().cloned();
            panics.lock().expect("no panic").push(text.expect("a text"));
            // This one is not reported again.
            panic!("on purpose");
        }
        Event::Ready(client, events) => {
            let id = client.id();
            echo((worker, Event::Ready(client, events)), |_, byte| {
                if byte == 13 {
                    closed.lock().expect("no panic").push(id);
                    panic!("on purpose: {byte}");
                }
            });
        }
        other => panic!("{other:?}"),
    };
    while_serving(&port, Serving::default().threads(1), handler, || {
        let other = client(address)?;
        exchange(&other, 1)?;
        for _ in 0..3 {
            let mut client = client(address)?;
            exchange(&client, 1)?;
            client.write_all(&[13])?;
            assert_eq!(uninterrupted(|| client.read(&mut [0]))?, 0, "it is closed");
            exchange(&other, 2)?;
        }
        assert_eq!(port.connections(), 1);
        Ok(())
    })?;
    assert_eq!(
        panics.into_inner().expect("no panic"),
        ["on purpose: 13"; 3]
    );
    let [ids, closed] = [ids, closed].map(|it| it.into_inner().expect("no panic"));
    assert_eq!((ids.len(), &ids), (3, &closed));
    Ok(())
}

/// Each thread begins to serve, and a thread more is started when one is needed, as the threads are counted.
#[for_every_backend]
fn a_panic_before_a_thread_serves_ends_no_thread(backend: Backend) -> io::Result<()> {
    let (port, address) = listening(backend, 2)?;
    let (panics, waiting, gate) = (AtomicUsize::new(0), AtomicUsize::new(0), Gate::new());
    let handler = |(worker, event): Handled<'_>| match event {
        Event::Panicked(None, _) => {
            panics.fetch_add(1, Ordering::SeqCst);
        }
        event => echo((worker, event), |worker, byte| {
            if byte == b'w' {
                worker.blocking(|| {
                    waiting.fetch_add(1, Ordering::SeqCst);
                    gate.pass();
                });
            }
        }),
    };
    let serving = Serving::default().on_start(|| panic!("on purpose"));
    while_serving(&port, serving, handler, || {
        let clients = block_at_once(4, address, &waiting, &gate)?;
        exchange(&clients[0], 1)
    })?;
    assert!(panics.load(Ordering::SeqCst) >= 4, "{panics:?}");
    Ok(())
}

/// A client that reads late gets all of a long answer, which `write_all` waits for; others are answered meanwhile.
#[for_every_backend]
fn a_client_that_reads_late_gets_the_whole_answer(backend: Backend) -> io::Result<()> {
    const LENGTH: usize = 20_000_000;
    let (port, address) = listening(backend, 2)?;
    let handler = |(worker, event): Handled<'_>| {
        if let Event::Ready(mut client, _) = event {
            let mut byte = [0];
            let _ = client.read(&mut byte);
            let answer = if byte == *b"l" { LENGTH } else { 1 };
            let written = client.write_all(&vec![byte[0]; answer]);
            if written.is_ok() {
                worker.arm(client, Interest::IN);
            }
        }
    };
    while_serving(&port, Serving::default(), handler, || {
        let (mut late, other) = (client(address)?, client(address)?);
        late.write_all(b"l")?;
        // Its handler is in the middle of the answer.
        late.peek(&mut [0])?;
        (0..100).try_for_each(|_| exchange(&other, b'x'))?;
        let mut answer = vec![0; LENGTH];
        late.read_exact(&mut answer)?;
        assert!(answer.iter().all(|&byte| byte == b'l'));
        exchange(&late, b'x')
    })
}

#[for_every_backend]
fn serving_ends_when_the_port_has_drained(backend: Backend) -> io::Result<()> {
    let (port, address) = listening(backend, 2)?;
    let handler = |handled: Handled<'_>| echo(handled, |_, _| ());
    thread::scope(|scope| {
        let serving = scope
            .spawn(|| port.serve(Serving::default(), |worker, event| handler((worker, event))));
        let mut client = client(address)?;
        exchange(&client, 1)?;
        port.drain(Duration::from_secs(3600));
        // What drains is dropped by the handler.
        assert_eq!(uninterrupted(|| client.read(&mut [0]))?, 0);
        assert_eq!(serving.join().expect("no panic"), Ok::<_, Error>(()));
        Ok(())
    })
}

/// In non-blocking mode, too: what a handler waits for in its connection ends with the time of the drain.
#[for_every_backend]
fn the_end_of_draining_ends_what_a_handler_waits_for(backend: Backend) -> io::Result<()> {
    let port = StreamPort::from(port_with(backend, 1)?);
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    port.listen(listener, Listening::arming(Interest::OUT), |it, _| it)?;
    let waits = AtomicBool::new(false);
    let handler = |event| {
        if let Event::Ready(ours, _) = event {
            waits.store(true, Ordering::SeqCst);
            let read = Limited::within(&*ours, PATIENCE).read(&mut [0]);
            assert!(!read.is_err_and(|it| it.kind() == io::ErrorKind::TimedOut));
        }
    };
    thread::scope(|scope| {
        let serving = scope.spawn(|| port.serve(Serving::default(), |_, event| handler(event)));
        let _theirs = client(address)?;
        wait_until("the handler waits", || waits.load(Ordering::SeqCst));
        port.drain(SHORT);
        assert_eq!(serving.join().expect("no panic"), Ok::<_, Error>(()));
        Ok(())
    })
}

/// It runs in a thread that then waits no more: another one is started for what comes next.
#[for_every_backend]
fn a_thread_is_started_for_a_listener_whose_function_blocks(backend: Backend) -> io::Result<()> {
    let port = CompletionPort::builder().backend(backend);
    let port = StreamPort::from(port.concurrency(1).build()?);
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let gate = std::sync::Arc::new(Gate::default());
    let is_in_function = std::sync::Arc::new(AtomicUsize::new(0));
    let (closed, count) = (gate.clone(), is_in_function.clone());
    port.listen(listener, Interest::IN, move |client, _| {
        count.fetch_add(1, Ordering::SeqCst);
        closed.pass();
        client
    })?;
    let handled = AtomicUsize::new(0);
    let handler = |(_, event): Handled<'_>| {
        if matches!(event, Event::Message(7)) {
            handled.fetch_add(1, Ordering::SeqCst);
        }
    };
    while_serving(&port, Serving::default(), handler, || {
        let _open = Opening(&gate);
        let _client = client(address)?;
        wait_until("the function runs", || {
            is_in_function.load(Ordering::SeqCst) == 1
        });
        port.send(7).expect("open");
        wait_until("another thread handles the message", || {
            handled.load(Ordering::SeqCst) == 1
        });
        Ok(())
    })
}

/// A handler that waits for its client does not wait longer than the port drains.
#[for_every_backend]
fn draining_ends_what_handlers_wait_for(backend: Backend) -> io::Result<()> {
    let (port, address) = listening(backend, 2)?;
    let is_waiting = AtomicUsize::new(0);
    let begin = Instant::now();
    let handler = |(_, event): Handled<'_>| {
        if let Event::Ready(mut client, _) = event {
            let mut bytes = [0; 2];
            is_waiting.fetch_add(1, Ordering::SeqCst);
            let _ = client.read_exact(&mut bytes);
        }
    };
    thread::scope(|scope| {
        let serving = scope
            .spawn(|| port.serve(Serving::default(), |worker, event| handler((worker, event))));
        let _close = Closing(&port);
        let mut client = client(address)?;
        client.write_all(b"x")?;
        wait_until("a handler waits", || is_waiting.load(Ordering::SeqCst) == 1);
        port.drain(SHORT);
        assert_eq!(serving.join().expect("no panic"), Ok(()));
        Ok::<_, io::Error>(())
    })?;
    assert!(begin.elapsed() < PATIENCE / 2, "{:?}", begin.elapsed());
    Ok(())
}

/// All threads are at work: so no thread waits that would look.
#[for_every_backend(with_permits)]
fn f4_serving_tells_of_a_slow_handler_and_its_connection(backend: Backend) -> io::Result<()> {
    let (port, address) = listening(backend, 1)?;
    let gate = Gate::new();
    let slow = Mutex::new(None);
    let handler = |(worker, event): Handled<'_>| {
        let (id, thread) = (event.id(), thread::current().id());
        echo((worker, event), |_, _| {
            *slow.lock().expect("no panic") = Some((id, thread));
            gate.pass();
        });
    };
    let told = Arc::new(Mutex::new(Vec::<SlowHandler>::new()));
    // A busy machine may make others slow, too.
    let of_this = || {
        let (id, thread) = (*slow.lock().expect("no panic"))?;
        let mut told = told.lock().expect("no panic").clone();
        told.retain(|it| (it.id, it.thread.thread) == (id, thread));
        Some(told)
    };
    let tell = Arc::clone(&told);
    let serving = Serving::default().threads(1);
    let serving = serving.on_slow(2 * SHORT, move |handler| {
        tell.lock().expect("no panic").push(handler.clone());
        panic!("this ends nothing");
    });
    while_serving(&port, serving, handler, || {
        let mut client = client(address)?;
        let _open = Opening(&gate);
        client.write_all(b"w")?;
        wait_until("it is told of three times", || {
            of_this().is_some_and(|told| told.len() >= 3)
        });
        assert!(port.slow(2 * SHORT).iter().any(|it| it.id.is_some()));
        gate.open_for_all();
        client.read_exact(&mut [0])
    })?;
    let told = of_this().expect("it was handled");
    let mut least = 2 * SHORT;
    for it in &*told {
        assert!(it.thread.time >= least, "{told:?}");
        least = it.thread.time * 2;
    }
    Ok(())
}

/// A thread with many events has each of them for as long as it takes.
#[for_every_backend(with_permits)]
fn f4_a_thread_is_slow_since_it_took_its_event(backend: Backend) -> io::Result<()> {
    let port: StreamPort = Port::from(port_with(backend, 1)?);
    let mut worker = port.worker(8);
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let peers = (0..2).map(|_| {
        let peer = TcpStream::connect(listener.local_addr()?)?;
        port.arm(port.adopt(listener.accept()?.0)?, Interest::OUT);
        Ok(peer)
    });
    let _peers = peers.collect::<io::Result<Vec<_>>>()?;
    port.send(7).expect("it is open");
    each_is_seen_anew(&port, &mut worker, 3)?;
    // Those stand behind the others.
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let _clients = [(); 3].map(|()| TcpStream::connect(address).expect("connected"));
    port.listen(listener, Listening::reporting(), |stream, _| stream)?;
    port.send(8).expect("it is open");
    each_is_seen_anew(&port, &mut worker, 4)
}

/// The thread dequeues this many events, takes them, and is seen with each for a while.
fn each_is_seen_anew(
    port: &StreamPort,
    worker: &mut Worker<TcpStream, u32>,
    count: usize,
) -> io::Result<()> {
    let mut events = 0;
    while events < count {
        // A call that finds events to take dequeues nothing.
        worker.release();
        events = worker.process(Some(PATIENCE))?;
    }
    for _ in 0..count {
        let event = worker.take().expect("there is one");
        let slow = port.slow(Duration::ZERO);
        assert!(
            matches!(&slow[..], [it] if it.id == event.id() && it.thread.time == Duration::ZERO),
            "{event:?} {slow:?}"
        );
        wait_until("it is slow", || !port.slow(SHORT).is_empty());
    }
    Ok(())
}

/// It has two workers, of one port or of two.
#[for_every_backend(with_permits)]
fn f4_a_thread_is_slow_with_the_event_that_it_took_last(backend: Backend) -> io::Result<()> {
    let ports = [(); 2].map(|()| port_with(backend, 4).map(StreamPort::from));
    let [first, second] = ports;
    let (first, second) = (first?, second?);
    for other in [&first, &second] {
        let (mut worker, mut last) = (first.worker(4), other.worker(4));
        first.send(1).expect("it is open");
        assert_eq!(worker.process(Some(PATIENCE))?, 1);
        drop(worker.take());
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let _peer = TcpStream::connect(listener.local_addr()?)?;
        let held = other.adopt(listener.accept()?.0)?;
        let id = held.id();
        last.arm(held, Interest::OUT);
        assert_eq!(last.process(Some(PATIENCE))?, 1);
        let _event = last.take().expect("there is one");
        let slow = other.slow(Duration::ZERO);
        assert!(matches!(&slow[..], [it] if it.id == Some(id)), "{slow:?}");
    }
    Ok(())
}
