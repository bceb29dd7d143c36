//! Unix sockets, pipes, and forked children.
#![cfg(unix)]

use std::fs::File;
use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use futures_lite::{AsyncReadExt, AsyncWriteExt};
use socknotify_async::{Async, Runtime, UnixDatagram, UnixListener, UnixStream, spawn, timeout};

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
