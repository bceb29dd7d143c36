//! A proxy: whoever connects is connected to the target.
//!
//! What it shows:
//!
//! - Each direction is a connection of its own, with duplicates of both sockets.
//! - To wait for its other socket, a direction is taken out of the port and adopted anew.
//! - The end of a stream is passed on as such (half-close), and an error ends both directions.
//!
//! Run it with `cargo run -p socknotify --example proxy 127.0.0.1:7007 127.0.0.1:80`. It ends when its
//! standard input does.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
#[cfg(unix)]
use std::os::fd::{AsFd as AsSocket, BorrowedFd as BorrowedSocket};
#[cfg(windows)]
use std::os::windows::io::{AsSocket, BorrowedSocket};
use std::time::Duration;
use std::{env, thread};

use socket2::{Domain, Type};
use socknotify::EventFilter;
use socknotify::owned::{Event, Held, Incoming, Interest, Port, Worker};

const THREADS: usize = 4;
const CONNECT_TIME: Duration = Duration::from_secs(10);

/// What a connect says that has only begun.
#[cfg(unix)]
const CONNECTING: i32 = libc::EINPROGRESS;
#[cfg(windows)]
const CONNECTING: i32 = windows_sys::Win32::Networking::WinSock::WSAEWOULDBLOCK;

enum Socket {
    Listener(TcpListener),
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
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    println!("listening on {}", listener.local_addr()?);

    let server = Server {
        port: Port::new()?,
        target: target.parse().map_err(io::Error::other)?,
    };
    let listener = server.port.adopt(Socket::Listener(listener))?;
    server.port.arm(listener, Interest::IN);
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| server.serve(server.port.worker(64)));
        }
        let ended = io::copy(&mut io::stdin(), &mut io::sink());
        server.port.close();
        ended.map(drop)
    })
}

impl Server {
    fn serve(&self, mut worker: Worker<Socket>) {
        // Until the port is closed.
        while worker.process(None).is_ok() {
            while let Some(event) = worker.take() {
                match event {
                    // What was not armed again is closed by now.
                    Event::Ready(socket, _) => drop(self.turn(&mut worker, socket)),
                    // The listener has had its rest. Otherwise the target was not there in time.
                    Event::TimedOut(socket) if matches!(*socket, Socket::Listener(_)) => {
                        worker.arm(socket, Interest::IN);
                    }
                    _ => {}
                }
            }
        }
    }

    fn turn(&self, worker: &mut Worker<Socket>, mut socket: Held<Socket>) -> io::Result<()> {
        let filter = match &mut *socket {
            Socket::Listener(listener) => {
                let mut incoming = Incoming::new(listener, 16);
                for (client, _) in &mut incoming {
                    // What keeps one client from being served does not concern the listener.
                    let _ = self.connect(worker, client);
                }
                let interest = incoming.interest();
                worker.arm(socket, interest);
                return Ok(());
            }
            Socket::Reading(direction) | Socket::Writing(direction) => direction.pass_on()?,
        };
        let Some(filter) = filter else { return Ok(()) };
        // To the port, another socket inside is another connection.
        let is_reading = matches!(*socket, Socket::Reading(_));
        if is_reading != (filter == EventFilter::IN) {
            socket = self.port.adopt(match socket.into_inner() {
                Socket::Reading(direction) => Socket::Writing(direction),
                Socket::Writing(direction) => Socket::Reading(direction),
                listener => listener,
            })?;
        }
        worker.arm(socket, filter);
        Ok(())
    }

    /// Begin to connect a client to the target.
    fn connect(&self, worker: &mut Worker<Socket>, client: TcpStream) -> io::Result<()> {
        let target = socket2::Socket::new(Domain::for_address(self.target), Type::STREAM, None)?;
        target.set_nonblocking(true)?;
        match target.connect(&self.target.into()) {
            Err(error) if error.raw_os_error() != Some(CONNECTING) => return Err(error),
            _ => {}
        }
        let target = TcpStream::from(target);
        let direction = |source, destination| Direction {
            source,
            destination,
            buffer: vec![0; 16 * 1024].into(),
            unwritten: 0..0,
            is_over: false,
        };
        let back = direction(target.try_clone()?, client.try_clone()?);
        let there = direction(client, target);
        let back = self.port.adopt(Socket::Reading(back))?;
        // Even if the client says no more, that can only be passed on when the target is there.
        let there = self.port.adopt(Socket::Writing(there))?;
        worker.arm(back, Interest::IN);
        worker.arm(there, Interest::OUT.within(CONNECT_TIME));
        Ok(())
    }
}

impl Direction {
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

impl Socket {
    /// The socket in it.
    fn socket(&self) -> &dyn AsSocket {
        match self {
            Socket::Listener(listener) => listener,
            Socket::Reading(direction) => &direction.source,
            Socket::Writing(direction) => &direction.destination,
        }
    }
}

impl AsSocket for Socket {
    #[cfg(unix)]
    fn as_fd(&self) -> BorrowedSocket<'_> {
        self.socket().as_fd()
    }

    #[cfg(windows)]
    fn as_socket(&self) -> BorrowedSocket<'_> {
        self.socket().as_socket()
    }
}

fn unless_it_blocks(result: io::Result<usize>) -> io::Result<Option<usize>> {
    match result {
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
        result => result.map(Some),
    }
}
