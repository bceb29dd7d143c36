//! What runtimes leave behind: descriptors and threads are the process's, so this is a program of its own.
#![cfg(target_os = "linux")]

use std::fs::read_dir;
use std::future::pending;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

use futures_lite::{AsyncReadExt, AsyncWriteExt};
use socknotify_async::{File, Runtime, TcpListener, TcpStream, sleep, spawn, timeout};

const PATIENCE: Duration = Duration::from_secs(30);

/// The process's descriptors, and its threads.
fn used() -> io::Result<[usize; 2]> {
    Ok([
        read_dir("/proc/self/fd")?.count(),
        read_dir("/proc/self/task")?.count(),
    ])
}

/// Leaves tasks that wait for a connection, a read, a timer, another task, and nothing.
async fn begins_much() -> io::Result<()> {
    let file = File::try_from(tempfile::tempfile()?)?;
    file.write_at(vec![7; 100], 0).await.0?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    drop(spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            drop(spawn(async move {
                futures_lite::io::copy(&stream, &stream).await
            }));
        }
    }));
    let mut client = TcpStream::connect(address).await?;
    client.write_all(b"x").await?;
    client.read_exact(&mut [0]).await?;
    drop(spawn(async move { client.read(&mut [0]).await }));
    drop(spawn(async {
        let late = spawn(sleep(PATIENCE * 100));
        timeout(PATIENCE * 100, late).await
    }));
    drop(spawn(pending::<()>()));
    Ok(())
}

#[test]
fn a_runtime_leaves_no_descriptor_and_no_thread() -> io::Result<()> {
    // They keep nothing of the system's.
    let mut handles = Vec::new();
    let mut runs = |round: usize| -> io::Result<()> {
        let runtime = Runtime::builder().places(2).build()?;
        handles.push(runtime.handle().clone());
        runtime.block_on(begins_much())?;
        match round % 2 {
            0 => drop(runtime),
            _ => assert!(!runtime.shutdown(Duration::ZERO)),
        }
        Ok(())
    };
    // What the process keeps for all runtimes is there after the first one.
    runs(0)?;
    let before = used()?;
    (0..20).try_for_each(&mut runs)?;
    let begin = Instant::now();
    let is_more = |used: [usize; 2]| used[0] > before[0] || used[1] > before[1];
    while is_more(used()?) {
        assert!(begin.elapsed() < PATIENCE, "{before:?} {:?}", used());
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}
