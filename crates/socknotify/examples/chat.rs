//! A chat server: each line that a client sends goes to all others.
//!
//! What it shows:
//!
//! - One thread has a connection, without a lock. What other threads have for it is in its [`Outbox`], which wakes it.
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

use std::collections::HashMap;
use std::io::{self, ErrorKind, Read};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{env, time::Duration};

use socknotify::owned::{
    BorrowedSocket, Event, Held, Id, Interest, Listening, Outbox, OutboxError, Port, Sender,
    Serving, Source, Worker,
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
    outbox: Outbox,
}

struct Member {
    sender: Sender,
    /// At the end: nothing more has come from this client.
    is_heard: bool,
}

struct Server {
    port: Port<Client>,
    members: Mutex<HashMap<Id, Member>>,
}

fn main() -> io::Result<()> {
    let server = Arc::new(Server {
        port: Port::new()?,
        members: Mutex::default(),
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
    fn turn(&self, worker: &mut Worker<Client>, mut held: Held<Client>) {
        let id = held.id();
        let client = &mut *held;
        let heard = client.hear(|line| self.say(id, &format!("{id}: {line}")));
        let has_more = self.port.is_draining() && matches!(heard, Ok(false));
        if matches!(heard, Ok(true)) {
            self.is_heard(id);
        }
        // Asked before it writes: then nothing more comes into its outbox.
        let is_over = self.port.is_draining() && self.all_are_heard();
        match heard.and_then(|_| client.outbox.send(&client.stream)) {
            Ok(Interest::IN) if is_over => {
                lock(&self.members).remove(&id);
                worker.linger(held, LINGER);
            }
            // If nothing has come, that is reported at once.
            Ok(interest) if has_more => worker.arm(held, interest.within(Duration::ZERO)),
            Ok(interest) => worker.arm(held, interest),
            // Somebody has ended it.
            Err(error) if error.kind() == ErrorKind::ConnectionAborted => {
                self.leave(id, "it does not read");
            }
            Err(error) => self.leave(id, &error.to_string()),
        }
    }

    /// Nothing more has come from it. At the end, who waits for the last one to be heard is woken.
    fn is_heard(&self, id: Id) {
        if self.port.is_draining() {
            if let Some(member) = lock(&self.members).get_mut(&id) {
                member.is_heard = true;
            }
            if self.all_are_heard() {
                self.port.cancel_all();
            }
        }
    }

    fn all_are_heard(&self) -> bool {
        lock(&self.members).values().all(|it| it.is_heard)
    }

    fn join(&self, worker: &mut Worker<Client>, client: Held<Client>) {
        let (id, sender) = (client.id(), client.outbox.sender(&client));
        let _ = sender.send(format!("* you are {id}\n").as_bytes());
        let is_heard = false;
        lock(&self.members).insert(id, Member { sender, is_heard });
        self.say(id, &format!("* {id} has come\n"));
        self.turn(worker, client);
    }

    fn leave(&self, id: Id, reason: &str) {
        lock(&self.members).remove(&id);
        self.say(id, &format!("* {id} has gone: {reason}\n"));
        if self.port.is_draining() && self.all_are_heard() {
            self.port.cancel_all();
        }
    }

    /// Put a line into everybody else's outbox.
    fn say(&self, from: Id, line: &str) {
        lock(&self.members).retain(|&id, member| {
            id == from
                || match member.sender.send(line.as_bytes()) {
                    Ok(()) => true,
                    // It does not read: it is dropped when it wakes.
                    Err(OutboxError::Full) => {
                        member.sender.end();
                        true
                    }
                    // It has ended otherwise, by a panic say.
                    Err(_) => false,
                }
        });
    }
}

impl Client {
    fn new(stream: TcpStream) -> Self {
        Client {
            stream,
            line: Vec::new(),
            outbox: Outbox::new(OUTBOX),
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
}

impl Source for Client {
    fn socket(&self) -> BorrowedSocket<'_> {
        self.stream.socket()
    }
}

fn lock<V>(mutex: &Mutex<V>) -> MutexGuard<'_, V> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
