//! A chat server: each line that a client sends goes to all others.
//!
//! What it shows:
//!
//! - One thread has a connection, without a lock. What other threads have for it is in its outbox.
//! - A thread that puts something into an empty outbox cancels the connection's wait, so that it is reported and can
//!   write.
//! - A client that does not read fills its outbox up to a limit, and is dropped.
//! - At SIGTERM and Ctrl-C what the clients have said is still heard, and nobody leaves before everybody was. Then each
//!   client is sent what is in its outbox, and lingers: otherwise one that sends might not get the rest.
//!
//! Run it with `cargo run -p socknotify --example chat 127.0.0.1:7007`, and talk to it with
//! `nc 127.0.0.1 7007`.
//!
//! ```toml
//! [dependencies]
//! ctrlc = { version = "3", features = ["termination"] }
//! socknotify = "0.1"
//! ```

use std::collections::{HashMap, VecDeque};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{env, mem, time::Duration};

use socknotify::owned::{
    BorrowedSocket, Event, Held, Id, Interest, Listening, Port, Serving, Source, Worker,
};

/// How long clients may take at the end, and how long one may take to read what it was sent.
const GRACE: Duration = Duration::from_secs(5);
const LINGER: Duration = Duration::from_secs(2);
/// The longest line, in bytes. Who says more at once is dropped.
const LINE: usize = 16 * 1024;
/// The most that waits for one client, in bytes.
const OUTBOX: usize = 256 * 1024;

struct Client {
    stream: TcpStream,
    /// The beginning of a line.
    line: Vec<u8>,
    outbox: Arc<Mutex<Outbox>>,
}

/// What a client has yet to be sent. Everybody fills it; who holds the connection empties it.
#[derive(Default)]
struct Outbox {
    bytes: VecDeque<u8>,
    has_overflowed: bool,
    /// At the end: nothing more has come from this client.
    is_heard: bool,
}

struct Server {
    port: Port<Client>,
    outboxes: Mutex<HashMap<Id, Arc<Mutex<Outbox>>>>,
}

fn main() -> io::Result<()> {
    let server = Arc::new(Server {
        port: Port::new()?,
        outboxes: Mutex::default(),
    });
    let ending = Arc::clone(&server);
    let handled = ctrlc::set_handler(move || ending.port.drain(GRACE));
    handled.map_err(io::Error::other)?;

    let listener = TcpListener::bind(env::args().nth(1).as_deref().unwrap_or("127.0.0.1:0"))?;
    println!("listening on {}", listener.local_addr()?);
    let make = |stream, _| Client::new(stream);
    server.port.listen(listener, Listening::reporting(), make)?;
    server.port.serve(Serving::default(), |worker, event| {
        match event {
            Event::Accepted(client) => server.join(worker, client),
            // It is ready, or somebody has put something into its outbox, or the end has begun, or nothing more has come then.
            Event::Ready(client, _)
            | Event::Cancelled(client)
            | Event::Draining(client)
            | Event::TimedOut(client) => server.turn(worker, client),
            // What the system would not watch is dropped here, and so closed.
            _ => {}
        }
    })?;
    Ok(())
}

impl Server {
    /// Serve a client, and arm it again or let it go.
    fn turn(&self, worker: &mut Worker<Client>, mut client: Held<Client>) {
        let id = client.id();
        let heard = client.hear(|line| self.say(id, &format!("{id}: {line}")));
        let has_more = self.port.is_draining() && matches!(heard, Ok(false));
        if matches!(heard, Ok(true)) {
            self.is_heard(&client);
        }
        // Asked before it writes: then nothing more comes into its outbox.
        let is_over = self.port.is_draining() && self.all_are_heard();
        match heard.and_then(|_| client.write()) {
            Ok(Interest::IN) if is_over => {
                lock(&self.outboxes).remove(&id);
                worker.linger(client, LINGER);
            }
            // If nothing has come, that is reported at once.
            Ok(interest) if has_more => worker.arm(client, interest.within(Duration::ZERO)),
            Ok(interest) => worker.arm(client, interest),
            Err(reason) => {
                lock(&self.outboxes).remove(&id);
                self.say(id, &format!("* {id} has gone: {reason}\n"));
                self.is_heard(&client);
            }
        }
    }

    /// Nothing more has come from it. At the end, who waits for the last one to be heard is woken.
    fn is_heard(&self, client: &Client) {
        if self.port.is_draining() {
            let was_heard = mem::replace(&mut lock(&client.outbox).is_heard, true);
            if !was_heard && self.all_are_heard() {
                self.port.cancel_all();
            }
        }
    }

    fn all_are_heard(&self) -> bool {
        let outboxes = lock(&self.outboxes);
        outboxes.values().all(|outbox| lock(outbox).is_heard)
    }

    fn join(&self, worker: &mut Worker<Client>, client: Held<Client>) {
        let id = client.id();
        let greeting = format!("* you are {id}\n");
        lock(&client.outbox).bytes.extend(greeting.as_bytes());
        lock(&self.outboxes).insert(id, Arc::clone(&client.outbox));
        self.say(id, &format!("* {id} has come\n"));
        self.turn(worker, client);
    }

    /// Put a line into everybody else's outbox.
    fn say(&self, from: Id, line: &str) {
        lock(&self.outboxes).retain(|&id, outbox| {
            if id == from {
                return true;
            }
            let mut outbox = lock(outbox);
            let was_empty = outbox.bytes.is_empty();
            outbox.has_overflowed |= outbox.bytes.len() + line.len() > OUTBOX;
            if !outbox.has_overflowed {
                outbox.bytes.extend(line.as_bytes());
            }
            // Wake who is not about to write anyway. Who was closed without a word (a panic) leaves here.
            (!was_empty && !outbox.has_overflowed) || self.port.cancel(id)
        });
    }
}

impl Client {
    fn new(stream: TcpStream) -> Self {
        Client {
            stream,
            line: Vec::new(),
            outbox: Arc::default(),
        }
    }

    /// Read once, so that the others get their turn, and say every line that is complete. True if nothing has come.
    fn hear(&mut self, say: impl Fn(&str)) -> io::Result<bool> {
        let mut chunk = [0; 4096];
        match self.stream.read(&mut chunk) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(length) => self.line.extend(&chunk[..length]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(true),
            Err(error) => return Err(error),
        }
        while let Some(end) = self.line.iter().position(|&byte| byte == b'\n') {
            say(&String::from_utf8_lossy(&self.line[..=end]));
            self.line.drain(..=end);
        }
        match self.line.len() {
            0..=LINE => Ok(false),
            _ => Err(io::Error::other("its line is too long")),
        }
    }

    /// Write what the socket takes. What to wait for next.
    fn write(&mut self) -> io::Result<Interest> {
        let mut outbox = lock(&self.outbox);
        if outbox.has_overflowed {
            return Err(io::Error::other("it does not read"));
        }
        while !outbox.bytes.is_empty() {
            match self.stream.write(outbox.bytes.as_slices().0) {
                Ok(length) => drop(outbox.bytes.drain(..length)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    return Ok(Interest::IN | Interest::OUT);
                }
                Err(error) => return Err(error),
            }
        }
        // Whatever comes into the outbox from here on is followed by a cancellation.
        Ok(Interest::IN)
    }
}

impl Source for Client {
    fn socket(&self) -> BorrowedSocket<'_> {
        self.stream.socket()
    }
}

fn lock<V>(mutex: &Mutex<V>) -> MutexGuard<'_, V> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
