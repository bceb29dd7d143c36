//! The crate `tokio`: a task for each connection, on the threads of its runtime.

use std::io;
use std::net::TcpStream;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use super::{MOST, Responder, Until, is_end};

pub(super) fn serve(threads: usize, streams: Vec<TcpStream>, until: Until<'_>) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .enable_io()
        .build()?;
    let tasks = streams
        .into_iter()
        .map(|stream| runtime.spawn(converse(stream)));
    finish(&runtime, tasks.collect(), until)
}

/// Waits for the end, and then for all tasks, which end with their connections.
pub(crate) fn finish(
    runtime: &Runtime,
    tasks: Vec<JoinHandle<io::Result<()>>>,
    until: Until<'_>,
) -> io::Result<()> {
    until()?;
    runtime.block_on(async {
        for task in tasks {
            task.await.expect("the server does not panic")?;
        }
        Ok(())
    })
}

async fn converse(stream: TcpStream) -> io::Result<()> {
    let mut stream = tokio::net::TcpStream::from_std(stream)?;
    let mut responder = Responder::default();
    let mut buffer = vec![0; MOST];
    loop {
        let length = match stream.read(&mut buffer).await {
            Ok(0) => return Ok(()),
            Ok(length) => length,
            Err(error) if is_end(&error) => return Ok(()),
            Err(error) => return Err(error),
        };
        match stream.write_all(responder.answer(&buffer[..length])?).await {
            Err(error) if is_end(&error) => return Ok(()),
            outcome => outcome?,
        }
    }
}
