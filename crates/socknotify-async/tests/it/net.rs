//! Sockets in tasks: streams, datagrams, and the contract of `futures-io` under abuse.

use std::future::{Future, poll_fn};
use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use futures_io::{AsyncRead, AsyncWrite};
use futures_lite::future::or;
use futures_lite::{AsyncReadExt, AsyncWriteExt};
use socket2::SockRef;
use socknotify_async::{
    Async, JoinHandle, Runtime, TcpListener, TcpStream, UdpSocket, sleep, spawn, timeout, unblock,
};

use crate::until_it_has_ended;

const PATIENCE: Duration = Duration::from_secs(30);

/// Under Wine each call is a message to another process.
const SLOW: usize = if cfg!(windows) { 10 } else { 1 };

/// Run a test's future. Nothing in it takes long.
fn run<T>(future: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    run_on(&Runtime::new()?, future)
}

fn run_on<T>(runtime: &Runtime, future: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    runtime.block_on(async { timeout(PATIENCE, future).await? })
}

async fn pair() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let client = TcpStream::connect(listener.local_addr()?).await?;
    Ok((client, listener.accept().await?.0))
}

/// A peer that blocks.
async fn pair_with_std() -> io::Result<(std::net::TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let client = std::net::TcpStream::connect(listener.local_addr()?)?;
    client.set_read_timeout(Some(PATIENCE))?;
    Ok((client, listener.accept().await?.0))
}

/// Whether a future is pending at its next poll.
fn is_pending<F: Future>(future: Pin<&mut F>) -> bool {
    let mut cx = Context::from_waker(Waker::noop());
    future.poll(&mut cx).is_pending()
}

#[test]
fn many_connections_are_echoed() -> io::Result<()> {
    run(async {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let server: JoinHandle<io::Result<()>> = spawn(async move {
            loop {
                let (stream, _) = listener.accept().await?;
                drop(spawn(async move {
                    futures_lite::io::copy(&stream, &stream).await
                }));
            }
        });
        let clients: Vec<JoinHandle<io::Result<()>>> = (0..100 / SLOW as u8)
            .map(|number| {
                spawn(async move {
                    let mut client = TcpStream::connect(address).await?;
                    for round in 0..20 {
                        client.write_all(&[number, round]).await?;
                        let mut answer = [0; 2];
                        client.read_exact(&mut answer).await?;
                        assert_eq!(answer, [number, round]);
                    }
                    client.close().await?;
                    assert_eq!(client.read(&mut [0; 1]).await?, 0);
                    Ok(())
                })
            })
            .collect();
        for client in clients {
            client.await??;
        }
        drop(server);
        Ok(())
    })
}

#[test]
fn more_than_the_buffers_hold_goes_both_ways_at_once() -> io::Result<()> {
    const LENGTH: usize = 8 << 20;
    run(async {
        let (ours, theirs) = pair().await?;
        let ends = [ours, theirs].map(|stream| {
            let (mut read, mut write) = stream.into_split();
            let writes = spawn(async move {
                let bytes: Vec<u8> = (0..LENGTH).map(|index| (index % 251) as u8).collect();
                write.write_all(&bytes).await?;
                write.close().await?;
                io::Result::Ok(write)
            });
            let reads = spawn(async move {
                let mut bytes = Vec::new();
                read.read_to_end(&mut bytes).await?;
                let is_right = bytes
                    .iter()
                    .enumerate()
                    .all(|(index, &byte)| byte == (index % 251) as u8);
                io::Result::Ok((read, bytes.len(), is_right))
            });
            (writes, reads)
        });
        let mut halves = Vec::new();
        for (writes, reads) in ends {
            let write = writes.await??;
            let (read, length, is_right) = reads.await??;
            assert_eq!((length, is_right), (LENGTH, true));
            halves.push((read, write));
        }
        let [one, other] = halves.try_into().expect("two");
        let (read, write) = one.0.reunite(other.1).expect_err("halves of two streams");
        assert!(read.reunite(one.1).is_ok() && other.0.reunite(write).is_ok());
        Ok(())
    })
}

#[test]
fn an_end_that_comes_with_the_last_bytes_is_seen() -> io::Result<()> {
    run(async {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        for round in 0..300 / SLOW {
            let peer = thread::spawn(move || {
                let mut peer = std::net::TcpStream::connect(address)?;
                peer.write_all(b"last")?;
                if round % 2 == 0 {
                    thread::yield_now();
                }
                io::Result::Ok(())
            });
            let (mut stream, _) = listener.accept().await?;
            let mut bytes = Vec::new();
            stream.read_to_end(&mut bytes).await?;
            assert_eq!(bytes, b"last");
            peer.join().expect("no panic")?;
        }
        Ok(())
    })
}

#[test]
fn what_is_dropped_while_it_waits_loses_nothing() -> io::Result<()> {
    const BYTES: usize = 500;
    run(async {
        let (mut peer, stream) = pair_with_std().await?;
        let (wait, waits) = mpsc::channel();
        let writes = thread::spawn(move || {
            // One read has waited in any case: after that the peer may be as fast as it likes.
            waits.recv().map_err(io::Error::other)?;
            for number in 0..BYTES {
                peer.write_all(&[number as u8])?;
                if number % 16 == 0 {
                    thread::sleep(Duration::from_micros(200));
                }
            }
            io::Result::Ok(peer)
        });
        let mut number = 0;
        while number < BYTES {
            let mut byte = [0];
            let mut stream = &stream;
            let mut read = pin!(stream.read(&mut byte));
            // It is polled once, and dropped if it is not ready.
            let first = poll_fn(|cx| Poll::Ready(read.as_mut().poll(cx))).await;
            match first {
                Poll::Ready(count) => {
                    assert_eq!(count?, 1);
                    assert_eq!(byte, [number as u8]);
                    number += 1;
                }
                Poll::Pending => {
                    let _ = wait.send(());
                    let _ = timeout(Duration::from_millis(1), stream.readable()).await;
                }
            }
        }
        drop(writes.join().expect("no panic")?);
        Ok(())
    })
}

#[test]
fn who_tries_and_then_waits_goes_on_however_much_is_there() -> io::Result<()> {
    const BYTES: usize = 1000;
    async fn read_all(stream: TcpStream) -> io::Result<()> {
        for _ in 0..BYTES {
            let (mut byte, mut reader) = ([0], &stream);
            let mut read = pin!(reader.read(&mut byte));
            loop {
                match poll_fn(|cx| Poll::Ready(read.as_mut().poll(cx))).await {
                    Poll::Ready(count) => break assert_eq!(count?, 1),
                    Poll::Pending => stream.readable().await?,
                }
            }
        }
        Ok(())
    }
    run(async {
        let (mut peer, stream) = pair_with_std().await?;
        peer.write_all(&[7; BYTES])?;
        read_all(stream).await?;
        let (mut peer, stream) = pair_with_std().await?;
        peer.write_all(&[7; BYTES])?;
        spawn(read_all(stream)).await.map_err(io::Error::other)?
    })
}

#[test]
fn any_number_of_tasks_wait_for_one_socket() -> io::Result<()> {
    const TASKS: usize = 8;
    const DATAGRAMS: usize = 400;
    run(async {
        let socket = Arc::new(UdpSocket::bind("127.0.0.1:0")?);
        let address = socket.get_ref().local_addr()?;
        let received = Arc::new(AtomicUsize::new(0));
        let tasks: Vec<_> = (0..TASKS)
            .map(|_| {
                let (socket, received) = (Arc::clone(&socket), Arc::clone(&received));
                spawn(async move {
                    let mut buffer = [0; 4];
                    while socket.recv(&mut buffer).await? > 0 {
                        received.fetch_add(1, Ordering::SeqCst);
                    }
                    io::Result::Ok(())
                })
            })
            .collect();
        // One that has given up is not woken in place of another.
        for _ in 0..4 {
            let mut buffer = [0; 4];
            let waits = timeout(Duration::from_millis(1), socket.recv(&mut buffer));
            assert!(waits.await.is_err());
        }
        let sender = UdpSocket::bind("127.0.0.1:0")?;
        for number in 0..DATAGRAMS {
            sender.send_to(b"ping", address).await?;
            // No more of them than the socket's buffer holds.
            while received.load(Ordering::SeqCst) + 50 < number {
                sleep(Duration::from_millis(1)).await;
            }
        }
        while received.load(Ordering::SeqCst) < DATAGRAMS {
            sleep(Duration::from_millis(1)).await;
        }
        for _ in 0..TASKS {
            sender.send_to(b"", address).await?;
        }
        for task in tasks {
            task.await??;
        }
        assert_eq!(received.load(Ordering::SeqCst), DATAGRAMS);
        Ok(())
    })
}

#[test]
fn a_reset_ends_who_reads_and_who_writes() -> io::Result<()> {
    run(async {
        let (peer, stream) = pair_with_std().await?;
        let (mut read, mut write) = stream.into_split();
        let reads = spawn(async move { read.read_to_end(&mut Vec::new()).await });
        let writes = spawn(async move {
            loop {
                write.write_all(&[0; 65536]).await?;
            }
        });
        sleep(Duration::from_millis(10)).await;
        SockRef::from(&peer).set_linger(Some(Duration::ZERO))?;
        drop(peer);
        let read = reads.await?;
        let error: io::Result<()> = writes.await?;
        let kind = error.unwrap_err().kind();
        let kinds = [
            ErrorKind::ConnectionReset,
            ErrorKind::BrokenPipe,
            ErrorKind::ConnectionAborted,
        ];
        assert!(kinds.contains(&kind), "{kind:?}");
        // The system tells only one of the two of the reset; to the other one the stream has ended. Windows may say so to
        // both.
        let kinds = [read.err().map(|error| error.kind()), Some(kind)];
        let is_told = kinds.contains(&Some(ErrorKind::ConnectionReset));
        assert!(is_told || cfg!(windows), "{kinds:?}");
        Ok(())
    })
}

#[test]
fn connect_reports_why_it_failed() -> io::Result<()> {
    run(async {
        // A connection's end: nobody listens there, and nobody else is given the port meanwhile.
        let (_client, end) = pair().await?;
        let address = end.get_ref().local_addr()?;
        let refused = TcpStream::connect(address).await;
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::ConnectionRefused);
        let none = TcpStream::connect(&[][..]).await;
        assert_eq!(none.unwrap_err().kind(), ErrorKind::InvalidInput);
        // The second address answers.
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let addresses = [address, listener.local_addr()?];
        assert!(TcpStream::connect(&addresses[..]).await.is_ok());
        assert!(TcpStream::connect("not a name").await.is_err());
        Ok(())
    })
}

#[test]
fn a_connect_may_be_dropped_at_any_moment() -> io::Result<()> {
    run(async {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        for _ in 0..50 {
            let mut connect = pin!(TcpStream::connect(address));
            let _ = is_pending(connect.as_mut());
        }
        // Some of those are accepted first.
        let mut client = TcpStream::connect(address).await?;
        client.write_all(b"x").await?;
        loop {
            let (mut stream, _) = listener.accept().await?;
            if matches!(stream.read(&mut [0]).await, Ok(1)) {
                return Ok(());
            }
        }
    })
}

#[test]
fn what_is_closed_is_closed_at_once() -> io::Result<()> {
    run(async {
        let (mut peer, stream) = pair_with_std().await?;
        drop(stream);
        assert_eq!(peer.read(&mut [0])?, 0);
        // The address is free, unless another test is faster.
        let again = || {
            let listener = TcpListener::bind("127.0.0.1:0")?;
            let address = listener.local_addr()?;
            drop(listener);
            TcpListener::bind(address)
        };
        again().or_else(|_| again()).or_else(|_| again())?;
        Ok(())
    })
}

#[test]
fn numbers_that_are_used_again_keep_nobody_waiting() -> io::Result<()> {
    run(async {
        for round in 0..200 / SLOW {
            let (mut one, mut other) = pair().await?;
            let waits = spawn(async move {
                let mut byte = [0];
                other.read_exact(&mut byte).await?;
                other.write_all(&byte).await?;
                io::Result::Ok(other)
            });
            if round % 3 == 0 {
                sleep(Duration::from_micros(50)).await;
            }
            one.write_all(&[7]).await?;
            let mut byte = [0];
            one.read_exact(&mut byte).await?;
            drop(waits.await??);
            assert_eq!(one.read(&mut byte).await?, 0);
        }
        Ok(())
    })
}

#[test]
fn a_socket_that_was_taken_back_can_be_used_again() -> io::Result<()> {
    run(async {
        let (ours, theirs) = pair().await?;
        let std = ours.into_inner()?;
        let again = TcpStream::try_from(std)?;
        // Registered with one runtime, it is refused by another.
        let other = Runtime::new()?;
        let entered = other.handle().enter();
        let duplicate = again.get_ref().try_clone()?;
        drop(entered);
        drop(duplicate);
        let mut again = again;
        again.write_all(b"x").await?;
        let mut theirs = theirs;
        theirs.read_exact(&mut [0]).await?;
        assert!(!format!("{again:?}{theirs:?}").is_empty());
        Ok(())
    })
}

#[test]
fn an_operation_that_would_block_is_waited_for_once_it_was_told() -> io::Result<()> {
    run(async {
        let (mut peer, stream) = pair_with_std().await?;
        let stream = stream.as_async();
        let receive = |mut stream: &std::net::TcpStream| stream.read(&mut [0; 8]);
        // Windows tells only what comes from the first try on: so it is not waited for before the second one.
        for _ in 0..if cfg!(windows) { 2 } else { 1 } {
            let early = stream.try_read_with(receive);
            assert_eq!(early.unwrap_err().kind(), ErrorKind::WouldBlock);
        }
        assert!(
            timeout(Duration::from_millis(2), stream.readable())
                .await
                .is_err()
        );
        peer.write_all(b"x")?;
        stream.readable().await?;
        assert_eq!(stream.try_read_with(receive)?, 1);
        stream.writable().await?;
        assert_eq!(stream.try_write_with(|mut stream| stream.write(b"y"))?, 1);
        peer.read_exact(&mut [0])?;
        Ok(())
    })
}

#[test]
fn a_task_whose_socket_is_always_ready_keeps_no_other_waiting() -> io::Result<()> {
    let runtime = Runtime::builder().places(1).build()?;
    run_on(&runtime, async {
        let socket = UdpSocket::bind("127.0.0.1:0")?;
        // It never has to wait.
        let busy: JoinHandle<io::Result<()>> = spawn(async move {
            let address = socket.get_ref().local_addr()?;
            loop {
                socket.send_to(b"x", address).await?;
            }
        });
        for number in 0..20 {
            let task = spawn(async move {
                sleep(Duration::from_micros(10)).await;
                number
            });
            assert_eq!(task.await?, number);
        }
        busy.abort();
        assert!(busy.await.unwrap_err().is_cancelled());
        Ok(())
    })
}

#[test]
fn handlers_that_block_stall_nobody() -> io::Result<()> {
    // Windows shows only that a thread has used no time for a while.
    const BLOCKED: usize = if cfg!(windows) { 2 } else { 8 };
    let runtime = Runtime::builder().places(1).build()?;
    let (release, blocked) = mpsc::channel::<()>();
    let blocked = Arc::new(std::sync::Mutex::new(blocked));
    run_on(&runtime, async move {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        drop(spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await?;
                let blocked = Arc::clone(&blocked);
                drop(spawn(async move {
                    let mut kind = [0];
                    while stream.read(&mut kind).await? > 0 {
                        if kind == *b"b" {
                            // All but one of them wait for the lock, and this one for a message.
                            let _ = blocked.lock().map(|it| it.recv());
                        }
                        stream.write_all(&kind).await?;
                    }
                    io::Result::Ok(())
                }));
            }
            #[allow(unreachable_code)]
            io::Result::Ok(())
        }));
        let mut blocking = Vec::new();
        for _ in 0..BLOCKED {
            let mut client = TcpStream::connect(address).await?;
            client.write_all(b"b").await?;
            blocking.push(client);
        }
        let mut client = TcpStream::connect(address).await?;
        for _ in 0..50 {
            client.write_all(b"q").await?;
            client.read_exact(&mut [0]).await?;
        }
        // None of those has an answer yet.
        for client in &mut blocking {
            let early = timeout(Duration::ZERO, client.read(&mut [0])).await;
            assert!(early.is_err());
        }
        // In whatever order they get the lock.
        for _ in &blocking {
            let _ = release.send(());
        }
        for mut client in blocking {
            client.read_exact(&mut [0]).await?;
        }
        Ok(())
    })
}

#[test]
fn shutdown_under_load_closes_every_connection() -> io::Result<()> {
    const CLIENTS: usize = 32;
    let runtime = Runtime::new()?;
    let (address, server) = {
        let _entered = runtime.handle().enter();
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let server = spawn(async move {
            loop {
                let (stream, _) = listener.accept().await?;
                drop(spawn(async move {
                    futures_lite::io::copy(&stream, &stream).await
                }));
            }
            #[allow(unreachable_code)]
            io::Result::Ok(())
        });
        (address, server)
    };
    let answered = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                // It may have gone before.
                let Ok(mut client) = std::net::TcpStream::connect(address) else {
                    return;
                };
                client.set_read_timeout(Some(PATIENCE)).expect("a socket");
                // Until the server has gone.
                while client.write_all(&[7; 100]).is_ok() {
                    match client.read(&mut [0; 100]) {
                        Ok(1..) => answered.fetch_add(1, Ordering::SeqCst),
                        Err(error) if error.kind() == ErrorKind::WouldBlock => panic!("it waits"),
                        _ => return,
                    };
                }
            });
        }
        while answered.load(Ordering::SeqCst) < CLIENTS * 4 {
            thread::yield_now();
        }
        let handle = runtime.handle().clone();
        runtime.shutdown(Duration::from_millis(5));
        until_it_has_ended(&handle);
    });
    assert!(server.is_finished());
    Ok(())
}

#[test]
fn who_waits_for_a_socket_of_a_runtime_that_shuts_down_gets_an_error() -> io::Result<()> {
    let runtime = Runtime::new()?;
    let handle = runtime.handle().clone();
    let (peer, mut stream) = runtime.block_on(pair_with_std())?;
    let waits = thread::spawn(move || {
        let outcome = handle.block_on(stream.read(&mut [0]));
        (outcome, handle.block_on(TcpStream::connect("127.0.0.1:1")))
    });
    thread::sleep(Duration::from_millis(10));
    drop(runtime);
    let (read, connect) = waits.join().expect("no panic");
    assert_eq!(read.unwrap_err().to_string(), "the runtime has shut down");
    assert_eq!(
        connect.unwrap_err().to_string(),
        "the runtime has shut down"
    );
    drop(peer);
    Ok(())
}

#[test]
fn the_traits_are_those_of_futures_io() -> io::Result<()> {
    fn stream<S: AsyncRead + AsyncWrite + Unpin + Send + Sync>(_: &S) {}
    run(async {
        let (ours, mut theirs) = pair().await?;
        stream(&ours);
        stream(&&ours);
        stream(ours.as_async());
        let mut ours = ours.as_async();
        ours.write_all(b"ab").await?;
        ours.flush().await?;
        let mut buffers = [[0; 1]; 2];
        let [one, other] = &mut buffers;
        let mut slices = [io::IoSliceMut::new(one), io::IoSliceMut::new(other)];
        let count = theirs.read_vectored(&mut slices).await?;
        assert_eq!(count, 2);
        assert_eq!(buffers, [*b"a", *b"b"]);
        let slices = [io::IoSlice::new(b"c"), io::IoSlice::new(b"d")];
        assert_eq!(theirs.write_vectored(&slices).await?, 2);
        let mut bytes = [0; 2];
        ours.read_exact(&mut bytes).await?;
        assert_eq!(&bytes, b"cd");
        // What is shut down is at its end; to close it twice is no error.
        theirs.close().await?;
        theirs.close().await?;
        assert_eq!(ours.read(&mut bytes).await?, 0);
        assert!(theirs.write(b"e").await.is_err());
        theirs.shutdown(Shutdown::Read)?;
        Ok(())
    })
}

#[test]
fn listeners_accept_by_hand_too() -> io::Result<()> {
    run(async {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let client = spawn(async move { TcpStream::connect(address).await });
        let (_, peer) = poll_fn(|cx| listener.poll_accept(cx)).await?;
        let client = client.await??;
        assert_eq!(client.get_ref().local_addr()?, peer);
        Ok(())
    })
}

#[test]
fn a_udp_socket_may_be_connected() -> io::Result<()> {
    run(async {
        let ours = UdpSocket::bind("127.0.0.1:0")?;
        let theirs = UdpSocket::bind("127.0.0.1:0")?;
        ours.connect(theirs.local_addr()?)?;
        assert_eq!(ours.send(b"ping").await?, 4);
        let mut buffer = [0; 8];
        let (length, peer) = theirs.recv_from(&mut buffer).await?;
        assert_eq!((length, peer), (4, ours.local_addr()?));
        Ok(())
    })
}

#[test]
fn what_is_no_socket_is_refused() -> io::Result<()> {
    run(async {
        #[cfg(unix)]
        {
            let file = std::fs::File::open("Cargo.toml")?;
            assert!(Async::new(file).is_err());
        }
        // Two registrations of one socket, under two keys.
        let socket = std::net::UdpSocket::bind("127.0.0.1:0")?;
        let one = Async::new(socket)?;
        let duplicate = one.get_ref().try_clone()?;
        let other = Async::new(duplicate)?;
        drop(other);
        let address = one.get_ref().local_addr()?;
        one.write_with(|socket| socket.send_to(b"x", address))
            .await?;
        one.read_with(|socket| socket.recv(&mut [0])).await?;
        Ok(())
    })
}

/// It cannot return when the task's budget is spent.
#[test]
fn an_executor_inside_of_a_task_goes_on() -> io::Result<()> {
    async fn sends() -> io::Result<()> {
        let socket = UdpSocket::bind("127.0.0.1:0")?;
        let address = socket.get_ref().local_addr()?;
        for _ in 0..1000 {
            socket.send_to(b"x", address).await?;
        }
        Ok(())
    }
    let runtime = Runtime::builder().places(1).build()?;
    let (sender, sent) = mpsc::channel();
    for says_so in [false, true] {
        let sender = sender.clone();
        let block = move || sender.send(futures_lite::future::block_on(sends()));
        drop(runtime.spawn(async move {
            match says_so {
                true => drop(unblock(block).await),
                false => drop(block()),
            }
        }));
    }
    for _ in 0..2 {
        sent.recv_timeout(PATIENCE).expect("it goes on")?;
    }
    Ok(())
}

/// What is polled first uses up the budget of each poll.
#[test]
fn what_is_polled_behind_what_never_waits_is_done() -> io::Result<()> {
    async fn behind<T>(second: impl Future<Output = io::Result<T>>) -> io::Result<T> {
        let socket = UdpSocket::bind("127.0.0.1:0")?;
        let address = socket.local_addr()?;
        let sends = async {
            loop {
                socket.send_to(b"x", address).await?;
            }
        };
        let both = or(sends, second);
        timeout(PATIENCE / 3, both).await?
    }
    let runtime = Runtime::new()?;
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let mut client = TcpStream::connect(listener.local_addr()?).await?;
        let (mut server, _) = behind(listener.accept()).await?;
        client.write_all(b"xyz").await?;
        behind(server.readable()).await?;
        behind(server.read_exact(&mut [0; 3])).await?;
        behind(poll_fn(|cx| client.as_async().poll_writable(cx))).await?;
        behind(client.close()).await
    })
}

/// It waits for more sockets than its poll has operations.
#[test]
fn a_task_that_waits_for_many_sockets_sees_the_last_one() -> io::Result<()> {
    run(async {
        let bind = |_| TcpListener::bind("127.0.0.1:0");
        let listeners: Vec<_> = (0..140).map(bind).collect::<io::Result<_>>()?;
        let address = listeners[139].local_addr()?;
        let connects = spawn(async move {
            sleep(Duration::from_millis(20)).await;
            TcpStream::connect(address).await
        });
        let mut polls = 0;
        poll_fn(|cx| {
            polls += 1;
            let mut all = listeners.iter().map(|it| it.as_async().poll_readable(cx));
            all.find(Poll::is_ready).unwrap_or(Poll::Pending)
        })
        .await?;
        let accepts = |cx: &mut Context<'_>| {
            let mut all = listeners.iter().map(|it| it.poll_accept(cx));
            all.find(Poll::is_ready).unwrap_or(Poll::Pending)
        };
        poll_fn(accepts).await?;
        drop(connects.await??);
        assert!(polls < 20, "{polls}");
        Ok(())
    })
}

#[cfg(unix)]
#[test]
fn a_fresh_socket_is_not_readable_before_anything_has_come() -> io::Result<()> {
    run(async {
        let (mut client, server) = pair().await?;
        let soon = Duration::from_millis(20);
        assert!(timeout(soon, server.readable()).await.is_err());
        assert!(
            timeout(soon, poll_fn(|cx| server.as_async().poll_readable(cx)))
                .await
                .is_err()
        );
        server.writable().await?;
        client.write_all(b"some").await?;
        server.readable().await?;
        // It is, until an operation finds otherwise.
        server.readable().await?;
        poll_fn(|cx| server.as_async().poll_readable(cx)).await?;
        let listener = Async::new(std::net::TcpListener::bind("127.0.0.1:0")?)?;
        assert!(timeout(soon, listener.readable()).await.is_err());
        let _client = TcpStream::connect(listener.get_ref().local_addr()?).await?;
        listener.readable().await
    })
}

/// Part of what has come was read before it was reported.
#[test]
fn a_socket_that_was_read_before_is_readable_as_long_as_there_is_more() -> io::Result<()> {
    run(async {
        for _ in 0..100 {
            let (mut client, server) = pair().await?;
            client.write_all(b"some").await?;
            (&server).read_exact(&mut [0; 2]).await?;
            server.readable().await?;
            (&server).read_exact(&mut [0; 2]).await?;
        }
        Ok(())
    })
}

#[test]
fn who_reads_a_stream_by_reference_is_not_forgotten_for_another_one() -> io::Result<()> {
    const READERS: usize = 20;
    run(async {
        let (mut client, server) = pair().await?;
        let server = Arc::new(server);
        let readers: Vec<_> = (0..READERS)
            .map(|_| {
                let server = Arc::clone(&server);
                spawn(async move { (&*server).read(&mut [0]).await })
            })
            .collect();
        // They wait, one after the other.
        sleep(Duration::from_millis(20)).await;
        for _ in 0..READERS {
            client.write_all(&[0]).await?;
            sleep(Duration::from_millis(1)).await;
        }
        for reader in readers {
            assert_eq!(reader.await??, 1);
        }
        Ok(())
    })
}

#[test]
fn a_name_is_resolved_elsewhere() -> io::Result<()> {
    let runtime = Runtime::builder().places(1).threads(1).build()?;
    let registrations = || runtime.handle().snapshot().and_then(|it| it.registrations);
    let (begin, begun) = mpsc::channel();
    let (release, blocked) = mpsc::channel::<()>();
    drop(runtime.spawn(async move {
        let _ = begin.send(());
        let _ = blocked.recv();
    }));
    begun.recv_timeout(PATIENCE).expect("it begins");
    run_on(&runtime, async {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        let name = format!("localhost:{port}");
        let mut connect = pin!(TcpStream::connect(&name));
        let before = registrations();
        // The only thread blocks: nobody resolves it yet, and so no socket is made.
        assert!(is_pending(connect.as_mut()));
        assert_eq!(registrations(), before);
        drop(release);
        connect.await?;
        TcpStream::connect(("localhost", port)).await?;
        TcpStream::connect(("127.0.0.1".to_owned(), port)).await?;
        TcpStream::connect(&[listener.local_addr()?][..]).await?;
        let error = TcpStream::connect("no port").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        let prepared = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)?;
        prepared.set_tcp_nodelay(true)?;
        let stream = TcpStream::connect_with(prepared, ([127, 0, 0, 1], port).into()).await?;
        assert!(stream.get_ref().nodelay()?);
        Ok(())
    })
}

/// A waker that waits for a word before it returns.
struct Blocks(std::sync::Mutex<mpsc::Receiver<()>>);

impl std::task::Wake for Blocks {
    fn wake(self: Arc<Self>) {
        let _ = self.0.lock().unwrap().recv_timeout(PATIENCE);
    }
}

#[test]
fn a_waker_of_another_runtime_that_blocks_keeps_no_task_waiting() -> io::Result<()> {
    use std::sync::atomic::AtomicBool;
    let runtime = Runtime::builder().places(1).build()?;
    let (release, blocked) = mpsc::channel();
    let waker = Waker::from(Arc::new(Blocks(blocked.into())));
    let (ours, mut theirs) = runtime.block_on(pair())?;
    let (foreign, mut wakes) = runtime.block_on(pair())?;
    let (mut reader, mut buffer) = (&foreign, [0]);
    let mut foreign_read = pin!(reader.read(&mut buffer));
    assert!(is_pending_for(foreign_read.as_mut(), &waker));
    let (sender, received) = mpsc::channel();
    drop(runtime.spawn(async move {
        let read = (&ours).read(&mut [0]).await;
        sender.send(read.is_ok()).expect("it is waited for");
    }));
    runtime.block_on(async { sleep(Duration::from_millis(5)).await });
    // Both come at once: the only place is taken meanwhile.
    let goes_on = Arc::new(AtomicBool::new(false));
    let (computes, begun) = mpsc::channel();
    let is_over = Arc::clone(&goes_on);
    drop(runtime.spawn(async move {
        computes.send(()).expect("it is waited for");
        while !is_over.load(Ordering::SeqCst) {
            std::hint::spin_loop();
        }
    }));
    begun.recv_timeout(PATIENCE).expect("it begins");
    runtime.block_on(async {
        wakes.write_all(&[0]).await?;
        theirs.write_all(&[0]).await
    })?;
    goes_on.store(true, Ordering::SeqCst);
    assert_eq!(received.recv_timeout(PATIENCE / 2), Ok(true));
    release.send(()).expect("it waits");
    Ok(())
}

fn is_pending_for(future: Pin<&mut impl Future>, waker: &Waker) -> bool {
    future.poll(&mut Context::from_waker(waker)).is_pending()
}

/// What is there before is read, and many a short connection ends, without that.
#[test]
fn an_accepted_connection_is_registered_when_it_would_block() -> io::Result<()> {
    let runtime = Runtime::new()?;
    let registrations = || runtime.handle().snapshot().and_then(|it| it.registrations);
    run_on(&runtime, async {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let before = registrations();
        for waits_first in [false, true] {
            let mut client = std::net::TcpStream::connect(listener.local_addr()?)?;
            client.set_read_timeout(Some(PATIENCE))?;
            let mut stream = listener.accept().await?.0;
            client.write_all(b"ab")?;
            let mut bytes = [0; 8];
            if waits_first {
                stream.readable().await?;
                stream.read_exact(&mut bytes[..2]).await?;
            } else {
                // What is sent may be on its way for a moment.
                while !matches!(stream.get_ref().peek(&mut bytes), Ok(2)) {
                    thread::yield_now();
                }
                // A byte, and then all there is.
                stream.read_exact(&mut bytes[..1]).await?;
                assert_eq!(stream.read(&mut bytes).await?, 1);
                stream.write_all(b"c").await?;
                client.read_exact(&mut bytes[..1])?;
                assert_eq!(registrations(), before);
            }
            let mut reads = pin!(stream.read(&mut bytes));
            assert!(is_pending(reads.as_mut()));
            assert_eq!(registrations(), before.map(|count| count + 1));
            client.write_all(b"d")?;
            assert_eq!(reads.await?, 1);
            drop(stream);
            assert_eq!(registrations(), before);
        }
        Ok(())
    })
}

#[cfg(unix)]
#[test]
fn an_accepted_connection_is_non_blocking_and_not_inherited() -> io::Result<()> {
    run(async {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let client = std::net::TcpStream::connect(address)?;
        let (stream, peer) = listener.accept().await?;
        assert_eq!(peer, client.local_addr()?);
        let nothing = Read::read(&mut stream.get_ref(), &mut [0]);
        assert_eq!(nothing.unwrap_err().kind(), ErrorKind::WouldBlock);
        let flags = rustix::io::fcntl_getfd(&stream)?;
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
        Ok(())
    })
}

/// A task that waits is registered when its poll is over; in the poll, if it asks again; and never, if the connection has ended by then.
#[cfg(unix)]
#[test]
fn what_a_task_waits_for_is_registered_if_it_still_waits_at_the_end_of_its_poll() -> io::Result<()>
{
    let runtime = Runtime::new()?;
    let registrations = {
        let handle = runtime.handle().clone();
        move || handle.snapshot().and_then(|it| it.registrations)
    };
    let listener = run_on(&runtime, async { TcpListener::bind("127.0.0.1:0") })?;
    let address = listener.local_addr()?;
    let before = registrations();
    for asks in 1..=2 {
        for ends in [false, true] {
            let registrations = registrations.clone();
            let client = std::net::TcpStream::connect(address)?;
            let (mut stream, _) = run_on(&runtime, listener.accept())?;
            let mut bytes = [0; 8];
            let (waits, waited) = mpsc::channel();
            let task = runtime.spawn(async move {
                let mut polls = 0;
                poll_fn(|cx| {
                    polls += 1;
                    let mut read = || Pin::new(&mut stream).poll_read(cx, &mut bytes);
                    let is_pending = read().is_pending();
                    if polls > 1 {
                        assert!(!is_pending);
                        return Poll::Ready(());
                    }
                    assert!(is_pending);
                    assert_eq!(registrations(), before);
                    if asks == 2 {
                        assert!(read().is_pending());
                        assert_eq!(registrations(), before.map(|count| count + 1));
                    }
                    let _ = waits.send(());
                    match ends {
                        true => Poll::Ready(()),
                        false => Poll::Pending,
                    }
                })
                .await;
                drop(stream);
            });
            waited.recv().expect("it waits");
            (&client).write_all(b"a")?;
            runtime.block_on(task)?;
        }
    }
    assert_eq!(registrations(), before);
    Ok(())
}

/// An executor inside of a task, that polls with the task's own waker: it blocks until something has come.
#[cfg(unix)]
#[test]
fn a_task_that_waits_inside_of_its_poll_is_told_what_comes() -> io::Result<()> {
    let runtime = Runtime::new()?;
    let (mut client, mut stream) = run_on(&runtime, pair_with_std())?;
    let (waits, waited) = mpsc::channel();
    let task = runtime.spawn(poll_fn(move |cx| {
        let mut bytes = [0; 8];
        loop {
            match Pin::new(&mut stream).poll_read(cx, &mut bytes) {
                Poll::Pending => {
                    let _ = waits.send(());
                    thread::yield_now();
                }
                Poll::Ready(read) => return Poll::Ready(read.map(|count| count == 1)),
            }
        }
    }));
    waited.recv().expect("it waits");
    client.write_all(b"a")?;
    assert!(runtime.block_on(task)??);
    Ok(())
}
