//! The server.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;
use std::{env, thread};

use socknotify::owned::{BorrowedSocket, Event, Interest, Port, Source, Worker};
use tokio::io::unix::AsyncFd;
use tokio::net::TcpListener;

/// A client that gets back what it sends.
struct Client {
    stream: TcpStream,
    /// What was read and is not written yet. Until it is, no more is read.
    unwritten: Vec<u8>,
}

/// The message that ends the program.
struct Stop;

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn main() -> io::Result<()> {
    let address = env::args().nth(1).unwrap_or("127.0.0.1:0".into());
    let listener = TcpListener::bind(address).await?;
    println!("listening on {}", listener.local_addr()?);

    let port = Arc::new(Port::with_messages()?);
    let mut worker = port.worker(64);
    // Its successor is unsafe, and asks for what a borrowed descriptor promises.
    #[allow(deprecated)]
    let watched = AsyncFd::with_interest(port.as_fd(), tokio::io::Interest::READABLE)?;
    thread::spawn({
        let port = Arc::clone(&port);
        move || {
            let _ = io::copy(&mut io::stdin(), &mut io::sink());
            port.send(Stop)
        }
    });
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    if let Err(error) = adopt(&port, stream) {
                        eprintln!("not adopted: {error}");
                    }
                }
                Err(error) => {
                    eprintln!("not accepted: {error}");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            },
            readable = watched.readable() => {
                let mut readable = readable?;
                match worker.process(Some(Duration::ZERO)) {
                    // Only now does tokio have to watch again.
                    Ok(0) => readable.clear_ready(),
                    Ok(_) => if serve(&mut worker).is_break() {
                        return Ok(());
                    },
                    Err(error) => return Err(error.into()),
                }
            }
        }
    }
}

/// Move a connection from tokio to the port.
fn adopt(port: &Port<Client, Stop>, stream: tokio::net::TcpStream) -> io::Result<()> {
    let client = Client {
        stream: stream.into_std()?,
        unwritten: Vec::new(),
    };
    // At once: a worker would arm it with its next call, and nobody calls before something comes.
    port.arm(port.adopt(client)?, Interest::IN);
    Ok(())
}

fn serve(worker: &mut Worker<Client, Stop>) -> ControlFlow<()> {
    while let Some(event) = worker.take() {
        match event {
            Event::Ready(mut client, _) => match client.echo() {
                // The next `process` arms it.
                Ok(Some(interest)) => worker.arm(client, interest),
                Ok(None) => {}
                Err(error) => eprintln!("closed: {error}"),
            },
            Event::Message(Stop) => return ControlFlow::Break(()),
            Event::Refused(_, error) => eprintln!("closed: {error}"),
            _ => {}
        }
    }
    ControlFlow::Continue(())
}

impl Client {
    /// Write what was read, or read what is there. What to wait for next, if this was not the end.
    fn echo(&mut self) -> io::Result<Option<Interest>> {
        if self.unwritten.is_empty() {
            let mut chunk = [0; 4096];
            match self.stream.read(&mut chunk) {
                Ok(0) => return Ok(None),
                Ok(length) => self.unwritten.extend(&chunk[..length]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        while !self.unwritten.is_empty() {
            match self.stream.write(&self.unwritten) {
                Ok(length) => drop(self.unwritten.drain(..length)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    return Ok(Some(Interest::OUT));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Some(Interest::IN))
    }
}

impl Source for Client {
    fn socket(&self) -> BorrowedSocket<'_> {
        self.stream.socket()
    }
}
