//! A proxy: it connects each client to the target.
//!
//! What it shows:
//!
//! - Each direction is a connection of its own, with duplicates of both sockets.
//! - To wait for its other socket, a direction is taken out of the port and adopted again.
//! - The end of a stream is passed on as such (half-close), and an error ends both directions.
//!
//! Run it with `cargo run -p socknotify --example proxy 127.0.0.1:7007 127.0.0.1:80`. It ends with
//! Ctrl-C.

#[path = "end/mod.rs"]
mod end;

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::time::Duration;
use std::{env, thread};

use socknotify::EventFilter;
use socknotify::owned::{BorrowedSocket, Event, Held, Interest, Listening, Port, Source, Worker};

const THREADS: usize = 4;
const CONNECT_TIME: Duration = Duration::from_secs(10);

enum Socket {
    /// A client, before its connection to the target is begun.
    Client(TcpStream),
    Reading(Direction),
    Writing(Direction),
}

/// From one socket to another.
struct Direction {
    source: TcpStream,
    destination: TcpStream,
    buffer: Box<[u8]>,
    /// The part of the buffer that was read and is not written yet.
    unwritten: Range<usize>,
    is_over: bool,
}

struct Server {
    port: Port<Socket>,
    target: SocketAddr,
}

fn main() -> io::Result<()> {
    let mut arguments = env::args().skip(1);
    let address = arguments.next().unwrap_or("127.0.0.1:0".into());
    let target = arguments
        .next()
        .ok_or(io::Error::other("a target is needed: ADDRESS:PORT"))?;
    let end = end::End::new()?;
    let listener = TcpListener::bind(address)?;
    println!("listening on {}", listener.local_addr()?);

    let server = Server {
        port: Port::new()?,
        target: target.parse().map_err(io::Error::other)?,
    };
    let reporting = Listening::reporting();
    let client = |stream, _| Socket::Client(stream);
    server.port.listen(listener, reporting, client)?;
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| server.serve(server.port.worker(64)));
        }
        let ended = end.wait();
        server.port.close();
        ended
    })
}

impl Server {
    fn serve(&self, mut worker: Worker<Socket>) {
        // Until the port is closed.
        while worker.process(None).is_ok() {
            while let Some(event) = worker.take() {
                match event {
                    // What was not armed again is closed by now.
                    Event::Ready(socket, _) | Event::Connected(socket) => {
                        drop(self.turn(&mut worker, socket));
                    }
                    // What keeps one client from being served does not concern the others.
                    Event::Accepted(socket) => drop(self.connect(&mut worker, socket)),
                    // The target is not there, or not in time.
                    _ => {}
                }
            }
        }
    }

    fn turn(&self, worker: &mut Worker<Socket>, mut socket: Held<Socket>) -> io::Result<()> {
        let filter = match &mut *socket {
            Socket::Client(_) => return Ok(()),
            Socket::Reading(direction) | Socket::Writing(direction) => direction.pass_on()?,
        };
        let Some(filter) = filter else { return Ok(()) };
        // To the port, another socket inside is another connection.
        let is_reading = matches!(*socket, Socket::Reading(_));
        if is_reading != (filter == EventFilter::IN) {
            socket = self.port.adopt(match socket.into_inner() {
                Socket::Reading(direction) => Socket::Writing(direction),
                Socket::Writing(direction) => Socket::Reading(direction),
                client => client,
            })?;
        }
        worker.arm(socket, filter);
        Ok(())
    }

    /// Begin to connect a client to the target.
    fn connect(&self, worker: &mut Worker<Socket>, client: Held<Socket>) -> io::Result<()> {
        let Socket::Client(client) = client.into_inner() else {
            return Ok(());
        };
        let mut back = Err(io::ErrorKind::NotConnected.into());
        // Even if the client says no more, that can only be passed on when the target is there.
        self.port.connect(self.target, CONNECT_TIME, |target| {
            let ends = target
                .try_clone()
                .and_then(|target| Ok((target, client.try_clone()?)));
            back = ends.map(|(target, client)| Direction::new(target, client));
            Socket::Writing(Direction::new(client, target))
        })?;
        worker.arm(self.port.adopt(Socket::Reading(back?))?, Interest::IN);
        Ok(())
    }
}

impl Direction {
    fn new(source: TcpStream, destination: TcpStream) -> Self {
        Direction {
            source,
            destination,
            buffer: vec![0; 16 * 1024].into(),
            unwritten: 0..0,
            is_over: false,
        }
    }

    /// Pass on what is there. What to wait for next; nothing, if this was the end.
    fn pass_on(&mut self) -> io::Result<Option<EventFilter>> {
        // Then others get their turn.
        for _ in 0..16 {
            if self.unwritten.is_empty() {
                match unless_it_blocks(self.source.read(&mut self.buffer))? {
                    None => break,
                    Some(0) => {
                        self.destination.shutdown(Shutdown::Write)?;
                        self.is_over = true;
                        return Ok(None);
                    }
                    Some(length) => self.unwritten = 0..length,
                }
            }
            while !self.unwritten.is_empty() {
                let bytes = &self.buffer[self.unwritten.clone()];
                match unless_it_blocks(self.destination.write(bytes))? {
                    None => return Ok(Some(EventFilter::OUT)),
                    Some(length) => self.unwritten.start += length,
                }
            }
        }
        Ok(Some(EventFilter::IN))
    }
}

/// A direction that goes before its end takes the other one with it, which finds its sockets shut down.
impl Drop for Direction {
    fn drop(&mut self) {
        if !self.is_over {
            let _ = self.source.shutdown(Shutdown::Both);
            let _ = self.destination.shutdown(Shutdown::Both);
        }
    }
}

impl Source for Socket {
    fn socket(&self) -> BorrowedSocket<'_> {
        match self {
            Socket::Client(client) => client.socket(),
            Socket::Reading(direction) => direction.source.socket(),
            Socket::Writing(direction) => direction.destination.socket(),
        }
    }
}

fn unless_it_blocks(result: io::Result<usize>) -> io::Result<Option<usize>> {
    match result {
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
        result => result.map(Some),
    }
}
