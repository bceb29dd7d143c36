//! Servers of many threads: ours, raw system calls, and the peers.
//!
//! All serve the same connections in the same way, and differ in how a thread comes to hear of one that
//! has something for it. Those with a set of sockets for each thread deal the connections out; with the
//! others any thread serves any connection, and arms it again after each time.

pub(crate) mod blocking;
pub(crate) mod files;
mod foreign;
mod mio;
mod polling;
mod raw_epoll;
mod raw_uring;
mod socknotify;
mod tokio;

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use ::socknotify::WakePolicy;
use ::socknotify::owned::Port;

use crate::foreign::Library;
use crate::implementation::Implementation;

/// What is answered to what is received. It belongs to one connection.
pub(crate) trait Protocol: Clone + Send + Sync + 'static {
    /// How much is received at once, in bytes; at most [`MOST`].
    const ROOM: usize = MOST;

    fn answer(&mut self, received: &[u8], answers: &mut Vec<u8>) -> io::Result<()>;
}

/// The most that is received at once.
const MOST: usize = 4096;

/// What is done with a connection that is ready.
pub(crate) trait Session: Clone + Send + Sync + 'static {
    fn serve<S: Read + Write>(&mut self, stream: S) -> io::Result<Outcome>;
}

/// What is left on a connection after it was served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Nothing more was there to receive.
    Drained,
    /// There may be more.
    More,
    Ended,
}

/// How a server is built.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) threads: usize,
    /// Notifications that a thread takes at once.
    pub(crate) room: usize,
}

/// Waits until the server shall end.
pub(crate) type Until<'a> = &'a mut dyn FnMut() -> io::Result<()>;

/// Serve these connections, which are in non-blocking mode.
pub(crate) fn serve<P: Protocol>(
    implementation: Implementation,
    shape: Shape,
    protocol: &P,
    streams: Vec<TcpStream>,
    until: Until<'_>,
) -> io::Result<()> {
    match implementation {
        Implementation::RawUring => raw_uring::serve(shape, protocol, streams, until),
        Implementation::Tokio => tokio::serve(shape, protocol, streams, until),
        _ => {
            let conversation = Conversation {
                protocol: protocol.clone(),
                answers: Vec::new(),
            };
            serve_ready(implementation, shape, &conversation, streams, until)
        }
    }
}

/// An echo server by a library in C, with so much computing for each message.
pub(crate) fn echo_foreign(
    library: Library,
    shape: Shape,
    work: Duration,
    streams: Vec<TcpStream>,
    until: Until<'_>,
) -> io::Result<()> {
    foreign::echo(library, shape, work, streams, until)
}

/// The same for those implementations that say which connection is ready.
pub(crate) fn serve_ready<S: Session>(
    implementation: Implementation,
    shape: Shape,
    session: &S,
    streams: Vec<TcpStream>,
    until: Until<'_>,
) -> io::Result<()> {
    let connections: Vec<_> = streams
        .into_iter()
        .map(|stream| Connection {
            stream,
            session: session.clone(),
        })
        .collect();
    match implementation {
        Implementation::RawEpoll => raw_epoll::serve_shared(shape, share(connections), until),
        Implementation::RawEpollEach => raw_epoll::serve_each(shape, connections, until),
        Implementation::Polling => polling::serve(shape, share(connections), until),
        Implementation::Mio => mio::serve(shape, connections, until),
        Implementation::Socknotify(backend) => {
            socknotify::serve(backend, shape, share(connections), until)
        }
        Implementation::Owned(backend) => {
            socknotify::serve_owned(Port::builder().backend(backend), shape, connections, until)
        }
        Implementation::Unwatched(backend) => {
            let builder = Port::builder().backend(backend).strict();
            socknotify::serve_owned(builder, shape, connections, until)
        }
        Implementation::Eager(backend) => {
            let builder = Port::builder().backend(backend);
            let builder = builder.wake_policy(WakePolicy::Eager);
            socknotify::serve_owned(builder, shape, connections, until)
        }
        _ => Err(io::Error::other(format!("{implementation} is no server"))),
    }
}

/// A connection that is one thread's alone.
struct Connection<S> {
    stream: TcpStream,
    session: S,
}

impl<S: Session> Connection<S> {
    fn serve(&mut self) -> io::Result<Outcome> {
        self.session.serve(&self.stream)
    }

    /// Serve it until nothing is left, as one has to after an edge. False at its end.
    fn drain(&mut self) -> io::Result<bool> {
        loop {
            match self.serve()? {
                Outcome::More => {}
                Outcome::Drained => return Ok(true),
                Outcome::Ended => return Ok(false),
            }
        }
    }
}

impl<S> AsFd for Connection<S> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// A connection that any thread may serve. One at a time does, so that the lock is free.
struct Shared<S> {
    stream: TcpStream,
    session: Mutex<S>,
}

impl<S: Session> Shared<S> {
    /// False at its end.
    fn serve(&self) -> io::Result<bool> {
        let mut session = self.session.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(session.serve(&self.stream)? != Outcome::Ended)
    }
}

fn share<S>(connections: Vec<Connection<S>>) -> Vec<Shared<S>> {
    let share = |Connection { stream, session }| Shared {
        stream,
        session: Mutex::new(session),
    };
    connections.into_iter().map(share).collect()
}

/// Each thread's part, where threads have sets of their own.
fn deal<T>(connections: Vec<T>, threads: usize) -> Vec<Vec<T>> {
    let mut hands: Vec<Vec<T>> = (0..threads).map(|_| Vec::new()).collect();
    for (index, connection) in connections.into_iter().enumerate() {
        hands[index % threads].push(connection);
    }
    hands
}

/// Serve on a thread for each of these until the server shall end, and have them end.
fn on_threads<F>(
    serve: impl Iterator<Item = F>,
    until: Until<'_>,
    end: impl FnOnce() -> io::Result<()>,
) -> io::Result<()>
where
    F: FnOnce() -> io::Result<()> + Send,
{
    thread::scope(|scope| {
        let threads: Vec<_> = serve.map(|serve| scope.spawn(serve)).collect();
        let outcome = until();
        end()?;
        for thread in threads {
            thread.join().expect("the server does not panic")?;
        }
        outcome
    })
}

/// Receives what is there, and answers.
#[derive(Clone)]
struct Conversation<P> {
    protocol: P,
    answers: Vec<u8>,
}

impl<P: Protocol> Session for Conversation<P> {
    fn serve<S: Read + Write>(&mut self, mut stream: S) -> io::Result<Outcome> {
        let mut buffer = [0; MOST];
        let received = match stream.read(&mut buffer[..P::ROOM]) {
            Ok(0) => return Ok(Outcome::Ended),
            Ok(length) => &buffer[..length],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Ok(Outcome::Drained);
            }
            Err(error) if is_end(&error) => return Ok(Outcome::Ended),
            Err(error) => return Err(error),
        };
        self.answers.clear();
        self.protocol.answer(received, &mut self.answers)?;
        // The client reads answers as they come, so that there is always room.
        match stream.write_all(&self.answers) {
            Err(error) if is_end(&error) => Ok(Outcome::Ended),
            Err(error) => Err(error),
            Ok(()) if received.len() < P::ROOM => Ok(Outcome::Drained),
            Ok(()) => Ok(Outcome::More),
        }
    }
}

/// Whether the client has gone.
fn is_end(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe
    )
}
