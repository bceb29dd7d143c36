//! Unix sockets, pipes, and forked children.

use std::fs::File;
use std::future::{Future, poll_fn};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};

use futures_lite::{AsyncReadExt, AsyncWriteExt};
use socknotify_async::{
    Async, Runtime, UnixDatagram, UnixListener, UnixStream, interval, sleep, spawn, timeout,
};

const PATIENCE: Duration = Duration::from_secs(30);

fn run<T>(future: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    Runtime::new()?.block_on(async { timeout(PATIENCE, future).await? })
}

#[test]
fn unix_streams_are_echoed() -> io::Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("socket");
    run(async {
        let listener = UnixListener::bind(&path)?;
        let server = spawn(async move {
            for _ in 0..20 {
                let (stream, _) = listener.accept().await?;
                drop(spawn(async move {
                    futures_lite::io::copy(&stream, &stream).await
                }));
            }
            io::Result::Ok(())
        });
        for _ in 0..20 {
            let mut client = UnixStream::connect(&path).await?;
            client.write_all(b"ping").await?;
            client.close().await?;
            let mut answer = String::new();
            client.read_to_string(&mut answer).await?;
            assert_eq!(answer, "ping");
        }
        server.await?
    })
}

#[test]
fn outside_of_a_runtime_nothing_is_bound() -> io::Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("socket");
    assert!(std::panic::catch_unwind(|| UnixListener::bind(&path)).is_err());
    assert!(std::panic::catch_unwind(|| UnixDatagram::bind(&path)).is_err());
    assert!(!path.exists());
    Ok(())
}

#[test]
fn connect_waits_while_the_listener_s_queue_is_full() -> io::Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("socket");
    let runtime = Runtime::builder().places(1).build()?;
    runtime.block_on(async {
        let socket = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None)?;
        socket.bind(&socket2::SockAddr::unix(&path)?)?;
        socket.listen(1)?;
        let listener = std::os::unix::net::UnixListener::from(OwnedFd::from(socket));
        let listener = UnixListener::try_from(listener)?;
        let clients: Vec<_> = (0..8)
            .map(|_| {
                let path = path.clone();
                spawn(async move { UnixStream::connect(path).await })
            })
            .collect();
        for _ in 0..8 {
            timeout(PATIENCE, listener.accept()).await??;
        }
        for client in clients {
            client.await??;
        }
        Ok(())
    })
}

#[test]
fn unix_datagrams_are_received_once() -> io::Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("socket");
    run(async {
        let ours = UnixDatagram::bind(&path)?;
        let theirs = UnixDatagram::unbound()?;
        theirs.send_to(b"ping", &path).await?;
        let mut buffer = [0; 8];
        assert_eq!(ours.recv_from(&mut buffer).await?.0, 4);
        let (one, other) = UnixDatagram::pair()?;
        let other = Arc::new(other);
        // More than the queue holds.
        let receiver = Arc::clone(&other);
        let received = spawn(async move {
            for number in 0..1000u32 {
                let mut buffer = [0; 4];
                receiver.recv(&mut buffer).await?;
                assert_eq!(u32::from_ne_bytes(buffer), number);
            }
            io::Result::Ok(())
        });
        for number in 0..1000u32 {
            one.send(&number.to_ne_bytes()).await?;
        }
        received.await?
    })
}

/// The system reports room in the queue of a receiver only to those whose datagrams are in it.
#[test]
fn a_datagram_is_sent_when_others_have_filled_the_receiver_s_queue() -> io::Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("socket");
    run(async {
        let receiver = std::os::unix::net::UnixDatagram::bind(&path)?;
        receiver.set_nonblocking(true)?;
        let other = std::os::unix::net::UnixDatagram::unbound()?;
        other.set_nonblocking(true)?;
        while other.send_to(b"other", &path).is_ok() {}
        let ours = UnixDatagram::unbound()?;
        let mut send = std::pin::pin!(ours.send_to(b"ours", &path));
        // It has seen what was reported when the socket was registered.
        let early = timeout(Duration::from_millis(50), send.as_mut()).await;
        assert!(early.is_err());
        let mut buffer = [0; 8];
        while receiver.recv(&mut buffer).is_ok() {}
        assert_eq!(timeout(PATIENCE, send).await??, 4);
        assert_eq!(receiver.recv(&mut buffer)?, 4);
        Ok(())
    })
}

#[test]
fn a_pipe_is_read_and_written_as_a_file() -> io::Result<()> {
    run(async {
        let (read, write) = rustix::pipe::pipe()?;
        let mut write = Async::new(File::from(write))?;
        let mut read = Async::new(File::from(read))?;
        // More than it holds.
        let writes = spawn(async move { write.write_all(&[7; 300_000]).await });
        let mut bytes = Vec::new();
        read.read_to_end(&mut bytes).await?;
        writes.await??;
        assert_eq!(bytes, [7; 300_000]);
        Ok(())
    })
}

/// A listener whose queue holds few.
fn listen(path: &Path) -> io::Result<std::os::unix::net::UnixListener> {
    let socket = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None)?;
    socket.bind(&socket2::SockAddr::unix(path)?)?;
    socket.listen(1)?;
    Ok(OwnedFd::from(socket).into())
}

#[test]
fn connects_to_a_listener_that_has_stalled_are_given_up_in_time() -> io::Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("socket");
    let _listener = listen(&path)?;
    // Fewer threads than there are connects.
    let runtime = Runtime::builder().places(2).threads(4).build()?;
    runtime.block_on(async {
        let connects = (0..16).map(|_| {
            let path = path.clone();
            spawn(
                async move { timeout(Duration::from_millis(100), UnixStream::connect(path)).await },
            )
        });
        let connects: Vec<_> = connects.collect();
        let mut given_up = 0;
        for connect in connects {
            let connect = timeout(PATIENCE, connect).await??;
            given_up += usize::from(connect.is_err());
        }
        assert!(given_up >= 8, "{given_up}");
        io::Result::Ok(())
    })?;
    assert!(runtime.shutdown(PATIENCE));
    Ok(())
}

#[test]
fn a_listener_accepts_more_connects_of_its_own_runtime_than_there_are_threads() -> io::Result<()> {
    const CONNECTS: usize = 64;
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("socket");
    let runtime = Runtime::builder().places(2).threads(4).build()?;
    let accepting = listen(&path)?;
    runtime.block_on(async {
        let connects: Vec<_> = (0..CONNECTS)
            .map(|_| spawn(UnixStream::connect(path.clone())))
            .collect();
        let listener = UnixListener::try_from(accepting)?;
        let accepts = spawn(async move {
            for _ in 0..CONNECTS {
                listener.accept().await?;
            }
            io::Result::Ok(())
        });
        timeout(PATIENCE, accepts).await???;
        for connect in connects {
            connect.await??;
        }
        Ok(())
    })
}

/// How often a future is polled within this time, in which it does not end.
async fn polls<F: Future>(time: Duration, future: F) -> io::Result<u32> {
    let mut count = 0;
    let mut future = pin!(future);
    let counted = poll_fn(|cx| {
        count += 1;
        future.as_mut().poll(cx)
    });
    match timeout(time, counted).await {
        Ok(_) => Err(io::Error::other("it has ended")),
        Err(_) => Ok(count),
    }
}

#[test]
fn a_datagram_to_a_full_receiver_waits_and_is_not_tried_all_the_time() -> io::Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("receiver");
    run(async {
        let receiver = UnixDatagram::bind(&path)?;
        let sender = UnixDatagram::unbound()?;
        let mut sent = 0;
        while sender.get_ref().send_to(b"datagram", &path).is_ok() {
            sent += 1;
        }
        let tries = polls(Duration::from_millis(100), sender.send_to(b"last", &path)).await?;
        assert!(tries < 20, "{tries}");
        // When there is room, it goes on.
        let path = path.clone();
        let last = spawn(async move { sender.send_to(b"last", &path).await });
        let mut buffer = [0; 16];
        for _ in 0..sent {
            receiver.recv_from(&mut buffer).await?;
        }
        assert_eq!(receiver.recv_from(&mut buffer).await?.0, 4);
        assert_eq!(last.await??, 4);
        Ok(())
    })
}

#[test]
fn a_pipe_that_is_empty_is_not_readable() -> io::Result<()> {
    run(async {
        let (reads, writes) = rustix::pipe::pipe()?;
        let pipe = Async::new(File::from(reads))?;
        let soon = Duration::from_millis(20);
        assert!(timeout(soon, pipe.readable()).await.is_err());
        rustix::io::write(&writes, b"signal")?;
        pipe.readable().await?;
        // What is there already is reported, too.
        let (reads, writes) = rustix::pipe::pipe()?;
        rustix::io::write(&writes, b"signal")?;
        let pipe = Async::new(File::from(reads))?;
        pipe.readable().await
    })
}

/// There is nothing to flush.
#[test]
fn a_flush_of_a_full_socket_does_not_wait() -> io::Result<()> {
    run(async {
        let (ours, _theirs) = std::os::unix::net::UnixStream::pair()?;
        let mut ours = Async::new(ours)?;
        let much = ours.write_all(&[0; 1 << 22]);
        assert!(timeout(Duration::from_millis(20), much).await.is_err());
        ours.flush().await?;
        ours.close().await
    })
}

/// As what polls it for somebody else does.
#[test]
fn a_reader_that_has_a_new_waker_each_time_is_not_polled_for_ever() -> io::Result<()> {
    struct Passes(Waker);
    impl Wake for Passes {
        fn wake(self: Arc<Self>) {
            self.0.wake_by_ref();
        }
    }
    run(async {
        let (mut ours, mut theirs) = UnixStream::pair()?;
        let polls = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&polls);
        // Before the first tick, and until after the last one that counts: however long this or that takes.
        let begin = Instant::now();
        let task = spawn(async move {
            let mut byte = [0];
            let mut read = pin!(ours.read(&mut byte));
            let mut tick = interval(Duration::from_millis(1));
            poll_fn(|cx| {
                while tick.poll_tick(cx).is_ready() {}
                count.fetch_add(1, Ordering::SeqCst);
                let waker = Waker::from(Arc::new(Passes(cx.waker().clone())));
                read.as_mut().poll(&mut Context::from_waker(&waker))
            })
            .await
        });
        while polls.load(Ordering::SeqCst) < 30 {
            sleep(Duration::from_millis(1)).await;
        }
        sleep(Duration::from_millis(50)).await;
        let polls = polls.load(Ordering::SeqCst);
        let most = 2 * begin.elapsed().as_millis() as usize + 60;
        assert!(polls < most, "{polls}");
        theirs.write_all(b"x").await?;
        assert_eq!(task.await??, 1);
        Ok(())
    })
}

/// It waits for room in the listener's queue, outside of a task.
#[test]
fn a_connect_fails_when_the_runtime_shuts_down() -> io::Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("socket");
    let listener = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None)?;
    listener.bind(&socket2::SockAddr::unix(&path)?)?;
    listener.listen(0)?;
    let _first = std::os::unix::net::UnixStream::connect(&path)?;
    let runtime = Runtime::new()?;
    let handle = runtime.handle().clone();
    let waits = std::thread::spawn(move || {
        handle.block_on(async {
            let mut connect = pin!(UnixStream::connect(path));
            let mut cx = Context::from_waker(Waker::noop());
            assert!(connect.as_mut().poll(&mut cx).is_pending());
            drop(runtime);
            connect.await.map(drop)
        })
    });
    let connected = waits.join().expect("no panic");
    assert_eq!(connected.unwrap_err().kind(), io::ErrorKind::Other);
    Ok(())
}
