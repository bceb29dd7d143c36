//! A server with sixteen threads on one completion port.
//!
//! What it shows:
//!
//! - ONESHOT with LEVEL gives a socket to one thread at a time: the thread that dequeues its notification has
//!   it until the registration is enabled again.
//! - One call does both halves of the loop: it registers what the previous iteration has prepared, and
//!   dequeues the next packets. Until then nobody else removes a connection that this thread has.
//! - What a completion key refers to is freed when REMOVE was dequeued, not when it was requested.
//! - A posted packet ends the threads: each one passes it on.
//!
//! Run it with `cargo run -p socknotify --example multi_threaded_tcp`.
//!
//! ```toml
//! [dependencies]
//! socknotify = "0.1"
//! ```

use std::collections::HashMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;

use socknotify::{CompletionPort, Entry, EventFilter, Events, Registration, Trigger};

const THREADS: usize = 16;
const CLIENTS: usize = 100;
const SENDS: usize = 10;
const MESSAGE: [u8; 4] = *b"ping";

/// The completion key of the listener. Those of the connections count from 0.
const LISTENER: usize = usize::MAX - 1;
/// The completion key of the packet that ends a thread.
const EXIT: usize = usize::MAX;

/// What a thread decided, and its next call carries out.
enum Step {
    ArmListener,
    RemoveListener,
    Arm(usize, Arc<TcpStream>),
    Remove(Arc<TcpStream>),
}

struct Server {
    port: CompletionPort,
    listener: TcpListener,
    connections: Mutex<HashMap<usize, Arc<TcpStream>>>,
    accepted: AtomicUsize,
    received: AtomicUsize,
    removed: AtomicUsize,
}

fn main() -> io::Result<()> {
    let server = Server {
        port: CompletionPort::new()?,
        listener: TcpListener::bind("127.0.0.1:0")?,
        connections: Mutex::default(),
        accepted: AtomicUsize::new(0),
        received: AtomicUsize::new(0),
        removed: AtomicUsize::new(0),
    };
    server.listener.set_nonblocking(true)?;
    let address = server.listener.local_addr()?;
    let armed = server.registration(&Step::ArmListener);
    server.port.register(armed)?;

    thread::scope(|scope| {
        let mut threads = Vec::new();
        for _ in 0..THREADS {
            threads.push(scope.spawn(|| server.run().inspect_err(|_| server.port.close())));
        }
        for _ in 0..CLIENTS {
            // A client that fails ends the server, which would wait for it for ever.
            let client = || run_client(address).inspect_err(|_| server.port.close());
            threads.push(scope.spawn(client));
        }
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().expect("no thread panics"))
    })?;

    let received = server.received.load(Relaxed);
    println!("{CLIENTS} clients sent {received} bytes to {THREADS} threads and hung up");
    assert_eq!(received, CLIENTS * SENDS * MESSAGE.len());
    Ok(())
}

impl Server {
    fn run(&self) -> io::Result<()> {
        let mut steps: Vec<Step> = Vec::new();
        let mut entries = [Entry::default(); 3];
        loop {
            let mut batch: Vec<_> = steps.iter().map(|step| self.registration(step)).collect();
            let entries = self.port.process(&mut batch, &mut entries, None)?;
            for registration in &batch {
                registration.result()?;
            }
            steps.clear();
            for entry in entries {
                match entry.completion_key {
                    EXIT => return Ok(self.port.post(*entry)?), // for the next thread
                    _ if entry.events().contains(Events::REMOVE) => {
                        self.free(entry.completion_key)?
                    }
                    LISTENER => self.accept(&mut steps)?,
                    key => steps.push(self.receive(key)?),
                }
            }
        }
    }

    fn connections(&self) -> MutexGuard<'_, HashMap<usize, Arc<TcpStream>>> {
        self.connections.lock().expect("no thread panics")
    }

    fn registration<'a>(&'a self, step: &'a Step) -> Registration<'a> {
        const TRIGGER: Trigger = Trigger::ONESHOT.union(Trigger::LEVEL);
        const FILTER: EventFilter = EventFilter::IN.union(EventFilter::HANGUP);
        match step {
            Step::ArmListener => {
                Registration::enable(&self.listener, LISTENER, EventFilter::IN, TRIGGER)
            }
            Step::RemoveListener => Registration::remove(&self.listener),
            Step::Arm(key, connection) => Registration::enable(connection, *key, FILTER, TRIGGER),
            Step::Remove(connection) => Registration::remove(connection),
        }
    }

    /// Accepts a connection. Nobody else does: until it is armed again the listener is this thread's.
    fn accept(&self, steps: &mut Vec<Step>) -> io::Result<()> {
        match self.listener.accept() {
            Ok((connection, _)) => {
                connection.set_nonblocking(true)?;
                let connection = Arc::new(connection);
                let key = self.accepted.fetch_add(1, Relaxed);
                self.connections().insert(key, Arc::clone(&connection));
                steps.push(Step::Arm(key, connection));
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        let all_are_here = self.accepted.load(Relaxed) == CLIENTS;
        steps.push(if all_are_here {
            Step::RemoveListener
        } else {
            Step::ArmListener
        });
        Ok(())
    }

    /// Receives one chunk. If there is more, the registration is notified as soon as it is armed.
    fn receive(&self, key: usize) -> io::Result<Step> {
        let connection = Arc::clone(&self.connections()[&key]);
        match (&*connection).read(&mut [0; 512]) {
            Ok(0) => return Ok(Step::Remove(connection)),
            Ok(length) => self.received.fetch_add(length, Relaxed),
            Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
            Err(error) => return Err(error),
        };
        Ok(Step::Arm(key, connection))
    }

    /// The registration is over. The last one to go, the listener's included, ends the threads.
    fn free(&self, key: usize) -> io::Result<()> {
        self.connections().remove(&key);
        if self.removed.fetch_add(1, Relaxed) == CLIENTS {
            self.port.post(Entry::new(EXIT, 0, 0))?;
        }
        Ok(())
    }
}

fn run_client(server: SocketAddr) -> io::Result<()> {
    let mut connection = TcpStream::connect(server)?;
    for _ in 0..SENDS {
        connection.write_all(&MESSAGE)?;
    }
    Ok(()) // dropping the connection hangs up
}
