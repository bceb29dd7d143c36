//! The crate `tokio`: a task for each connection, on the threads of its runtime.

use std::io;
use std::net::TcpStream;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use super::{Protocol, Shape, Until, is_end};

pub(super) fn serve<P: Protocol>(
    shape: Shape,
    protocol: &P,
    streams: Vec<TcpStream>,
    until: Until<'_>,
) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(shape.threads)
        .enable_io()
        .build()?;
    let tasks: Vec<_> = streams
        .into_iter()
        .map(|stream| runtime.spawn(converse(stream, protocol.clone())))
        .collect();
    finish(&runtime, tasks, until)
}

/// Wait for the end, and then for all tasks, which end with their connections.
pub(super) fn finish(
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

async fn converse<P: Protocol>(stream: TcpStream, mut protocol: P) -> io::Result<()> {
    let mut stream = tokio::net::TcpStream::from_std(stream)?;
    let mut buffer = vec![0; P::ROOM];
    let mut answers = Vec::new();
    loop {
        let received = match stream.read(&mut buffer).await {
            Ok(0) => return Ok(()),
            Ok(length) => &buffer[..length],
            Err(error) if is_end(&error) => return Ok(()),
            Err(error) => return Err(error),
        };
        answers.clear();
        protocol.answer(received, &mut answers)?;
        match stream.write_all(&answers).await {
            Err(error) if is_end(&error) => return Ok(()),
            outcome => outcome?,
        }
    }
}
