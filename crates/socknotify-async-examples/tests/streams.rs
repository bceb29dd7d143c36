//! Streams that are read by the traits of tokio and hyper.
#![cfg(unix)]

use std::cell::RefCell;
use std::future::poll_fn;
use std::io::{self, Write};
use std::mem::MaybeUninit;
use std::os::unix::net::UnixStream as Pair;
use std::pin::Pin;
use std::sync::mpsc;
use std::thread;

use futures_lite::AsyncWriteExt;
use socknotify_async::{Async, File, Handle, Runtime, TcpListener, TcpStream, UnixStream};

use crate::support::{PATIENCE, run};

#[allow(dead_code, reason = "these need no tokio")]
#[path = "support/run.rs"]
mod support;

/// One read by tokio's trait, into memory for 8 bytes of which 2 are filled.
async fn tokio_reads(mut stream: impl tokio::io::AsyncRead + Unpin) -> io::Result<Vec<u8>> {
    let mut memory = [MaybeUninit::uninit(); 8];
    let mut buffer = tokio::io::ReadBuf::uninit(&mut memory);
    buffer.put_slice(b"::");
    poll_fn(|cx| Pin::new(&mut stream).poll_read(cx, &mut buffer)).await?;
    Ok(buffer.filled().to_vec())
}

/// The same by hyper's.
async fn hyper_reads(mut stream: impl hyper::rt::Read + Unpin) -> io::Result<Vec<u8>> {
    let mut memory = [MaybeUninit::uninit(); 8];
    let mut buffer = hyper::rt::ReadBuf::uninit(&mut memory);
    buffer.unfilled().put_slice(b"::");
    poll_fn(|cx| Pin::new(&mut stream).poll_read(cx, buffer.unfilled())).await?;
    Ok(buffer.filled().to_vec())
}

#[test]
fn sockets_and_their_halves_are_read() -> io::Result<()> {
    run(async {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let mut client = TcpStream::connect(listener.local_addr()?).await?;
        let (server, _) = listener.accept().await?;
        client.write_all(b"abcdefghijklmnop").await?;
        assert_eq!(tokio_reads(&server).await?, b"::abcdef");
        assert_eq!(hyper_reads(&server).await?, b"::ghijkl");
        let (reads, _writes) = server.into_split();
        assert_eq!(tokio_reads(reads).await?, b"::mnop");
        let (mut client, server) = UnixStream::pair()?;
        client.write_all(b"abcdefgh").await?;
        assert_eq!(hyper_reads(&server).await?, b"::abcdef");
        client.close().await?;
        assert_eq!(tokio_reads(&server).await?, b"::gh");
        assert_eq!(hyper_reads(server).await?, b"::");
        Ok(())
    })
}

#[test]
fn any_source_and_files_are_read() -> io::Result<()> {
    run(async {
        let (mut peer, socket) = Pair::pair()?;
        peer.write_all(b"abcdefghij")?;
        let mut socket = Async::new(socket)?;
        assert_eq!(tokio_reads(&mut socket).await?, b"::abcdef");
        assert_eq!(hyper_reads(&mut socket).await?, b"::ghij");
        let mut file = File::open("Cargo.toml")?;
        assert_eq!(tokio_reads(&mut file).await?, b"::# Not ");
        assert_eq!(hyper_reads(&mut file).await?, b"::in the");
        Ok(())
    })
}

/// The buffer by way of which it reads is gone by then.
#[test]
fn a_source_is_read_as_its_thread_ends() -> io::Result<()> {
    struct Late(Async<Pair>, Handle, mpsc::Sender<io::Result<Vec<u8>>>);
    impl Drop for Late {
        fn drop(&mut self) {
            let _ = self.2.send(self.1.block_on(tokio_reads(&mut self.0)));
        }
    }
    thread_local! {
        static LATE: RefCell<Option<Late>> = const { RefCell::new(None) };
    }
    let runtime = Runtime::new()?;
    let (sender, late) = mpsc::channel();
    let handle = runtime.handle().clone();
    let thread = thread::spawn(move || {
        let _entered = handle.enter();
        let (mut peer, socket) = Pair::pair()?;
        peer.write_all(b"abcdefghij")?;
        let socket = Async::new(socket)?;
        LATE.with_borrow_mut(|it| {
            let late = it.insert(Late(socket, handle.clone(), sender));
            // The thread has its buffer from now on, which it drops before.
            handle.block_on(tokio_reads(&mut late.0))
        })
    });
    assert_eq!(thread.join().expect("no panic")?, b"::abcdef");
    let late = late.recv_timeout(PATIENCE).map_err(io::Error::other)?;
    assert_eq!(late?, b"::ghij");
    Ok(())
}
