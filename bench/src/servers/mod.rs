//! How many requests a server answers whose handlers do not block: an HTTP responder, which parses each request with
//! `httparse`, keeps the connection alive, and answers with the same bytes.
//!
//! All serve the same connections in the same way, and differ in how a thread comes to hear of one that has something for it.
//! Ports have four threads, the others one for each processor that the server has.

mod raw_epoll;
mod socknotify;
pub(crate) mod tokio;

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::thread;

pub(crate) use self::socknotify::{serve_keys, serve_owned, take_events};
use crate::client::{self, Load};
use crate::compare::Options;

/// Serves connections, which are in non-blocking mode, on so many threads.
type Serve = fn(usize, Vec<TcpStream>, Until<'_>) -> io::Result<()>;

const SIDES: [(&str, Serve); 4] = [
    ("tokio", tokio::serve),
    ("raw epoll", |threads, streams, until| {
        raw_epoll::serve(threads, connections(streams, &Responder::default()), until)
    }),
    ("keys", |_, streams, until| {
        let connections = connections(streams, &Responder::default());
        serve_keys(THREADS, ROOM, connections, until)
    }),
    ("owned", |_, streams, until| {
        let connections = connections(streams, &Responder::default());
        serve_owned(THREADS, ROOM, connections, until)
    }),
];

/// Of a port.
const THREADS: usize = 4;

const CASES: [(&str, usize, bool); 4] = [
    ("HTTP, 100 connections", 100, true),
    ("HTTP, 1,000 connections", 1000, true),
    ("HTTP, 100 connections, shared processors", 100, false),
    ("HTTP, 1,000 connections, shared processors", 1000, false),
];

/// Notifications that a thread takes at once.
const ROOM: usize = 64;

/// With each server the rate is now one, now another, by half: see bench/README.md.
const ROUNDS: usize = 15;

pub(crate) fn run(options: &Options) -> io::Result<()> {
    for (case, connections, is_apart) in CASES {
        if !options.wants(case) {
            continue;
        }
        let threads = match is_apart {
            true => 1,
            false => thread::available_parallelism()?.get(),
        };
        // The first answers of all count, and come late: so many are not to be one in a hundred.
        let least = if connections > 100 { 3000 } else { 1000 };
        let milliseconds = options.milliseconds.max(least);
        options.compare(case, ROUNDS, &SIDES, |serve| {
            let serve = |streams: Vec<_>, until: Until<'_>| serve(threads, streams, until);
            client::measure(Load::Http, connections, milliseconds, is_apart, serve).map(Some)
        })?;
    }
    Ok(())
}

/// Waits until the server shall end.
pub(crate) type Until<'a> = &'a mut dyn FnMut() -> io::Result<()>;

/// The most that is received at once, in bytes.
pub(crate) const MOST: usize = 4096;

const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\n\
    Content-Type: text/plain\r\n\
    Content-Length: 14\r\n\r\n\
    Hello, world!\n";

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

/// A connection, and what is done with it.
pub(crate) struct Connection<S> {
    stream: TcpStream,
    session: S,
}

impl<S> AsFd for Connection<S> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

pub(crate) fn connections<S: Session>(streams: Vec<TcpStream>, session: &S) -> Vec<Connection<S>> {
    let connection = |stream| Connection {
        stream,
        session: session.clone(),
    };
    streams.into_iter().map(connection).collect()
}

/// Serves on a thread for each of these until the server shall end, and has them end.
pub(crate) fn on_threads<F>(
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

/// What has been received and not been answered.
#[derive(Clone, Default)]
struct Responder {
    received: Vec<u8>,
    answers: Vec<u8>,
}

impl Responder {
    /// Takes every complete request, and puts its answer down.
    fn answer(&mut self, received: &[u8]) -> io::Result<&[u8]> {
        self.answers.clear();
        self.received.extend_from_slice(received);
        let mut taken = 0;
        loop {
            let mut headers = [httparse::EMPTY_HEADER; 32];
            let mut request = httparse::Request::new(&mut headers);
            let outcome = request.parse(&self.received[taken..]);
            match outcome.map_err(io::Error::other)? {
                httparse::Status::Complete(length) => {
                    taken += length;
                    self.answers.extend_from_slice(RESPONSE);
                }
                httparse::Status::Partial => break,
            }
        }
        self.received.drain(..taken);
        Ok(&self.answers)
    }
}

impl Session for Responder {
    /// Receives what is there, and answers.
    fn serve<S: Read + Write>(&mut self, mut stream: S) -> io::Result<Outcome> {
        let mut buffer = [0; MOST];
        let length = match stream.read(&mut buffer) {
            Ok(0) => return Ok(Outcome::Ended),
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Outcome::Drained),
            Err(error) if is_end(&error) => return Ok(Outcome::Ended),
            Err(error) => return Err(error),
        };
        // The client reads answers as they come, so that there is always room.
        match stream.write_all(self.answer(&buffer[..length])?) {
            Err(error) if is_end(&error) => Ok(Outcome::Ended),
            Err(error) => Err(error),
            Ok(()) if length < MOST => Ok(Outcome::Drained),
            Ok(()) => Ok(Outcome::More),
        }
    }
}

/// Whether the client has gone.
pub(crate) fn is_end(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe
    )
}
