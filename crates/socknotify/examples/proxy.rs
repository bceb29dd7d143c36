//! A proxy: it connects each client to the target, and passes on what either side sends.
//!
//! What it shows:
//!
//! - Each of a session's two connections is in the port by itself. What one side has received for the other is in the other's
//!   outbox, and `Port::cancel` wakes the side that has something to send, or room again.
//! - An outbox has a limit: a side that is faster than the other is not read from. It is not the library's, which wakes who is
//!   to send: here who is not read from is woken, too, when there is room again, and one is filled before its side is connected.
//! - The end of a stream is passed on as such (half-close), and an error ends both sides; but what one has sent to its end
//!   reaches the other all the same, which lingers then.
//! - A session without traffic is closed after five minutes, and at SIGTERM and Ctrl-C after half a second; all others then
//!   have ten seconds to finish.
//!
//! Run it with `cargo run -p socknotify --example proxy 127.0.0.1:7007 127.0.0.1:80`.
//!
//! ```toml
//! [dependencies]
//! ctrlc = { version = "3", features = ["termination"] }
//! socknotify = "0.1"
//! ```

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{env, mem};

use socknotify::Events;
use socknotify::owned::{
    BorrowedSocket, Event, Held, Id, Interest, Listening, Port, Serving, Source, Worker,
};

/// Clients beyond these wait in the listener's backlog.
const SESSIONS: usize = 10_000;
/// The most that waits for one side, in bytes.
const OUTBOX: usize = 256 * 1024;
const CONNECT_TIME: Duration = Duration::from_secs(10);
const IDLE: Duration = Duration::from_secs(300);
const LINGER: Duration = Duration::from_secs(2);
const IDLE_AT_THE_END: Duration = Duration::from_millis(500);

/// One of a session's two connections.
struct Side {
    stream: TcpStream,
    outbox: Arc<Mutex<Outbox>>,
    other: Arc<Mutex<Outbox>>,
    has_received_all: bool,
    has_sent_all: bool,
}

/// What one side is to be sent: the other fills it.
struct Outbox {
    bytes: VecDeque<u8>,
    /// Nothing follows these bytes.
    is_last: bool,
    /// The other side has failed.
    is_broken: bool,
    /// Whose it is, once it is connected.
    id: Option<Id>,
    active: Instant,
}

struct Proxy {
    port: Port<Side>,
    target: SocketAddr,
}

fn main() -> io::Result<()> {
    let mut arguments = env::args().skip(1);
    let address = arguments.next().unwrap_or("127.0.0.1:0".into());
    let target = arguments.next().and_then(|target| target.parse().ok());
    let proxy = Arc::new(Proxy {
        port: Port::new()?,
        target: target.ok_or(io::Error::other("a target is needed: ADDRESS:PORT"))?,
    });
    let ending = Arc::clone(&proxy);
    let handled = ctrlc::set_handler(move || ending.port.drain(Duration::from_secs(10)));
    handled.map_err(io::Error::other)?;

    let listener = TcpListener::bind(address)?;
    println!("listening on {}", listener.local_addr()?);
    let listening = Listening::reporting().at_most(2 * SESSIONS);
    let client = |stream, _| Side::new(stream, Outbox::new(), Outbox::new());
    proxy.port.listen(listener, listening, client)?;
    let handler = |worker: &mut _, event| proxy.handle(worker, event);
    Ok(proxy.port.serve(Serving::default(), handler)?)
}

impl Proxy {
    fn handle(&self, worker: &mut Worker<Side>, event: Event<Side>) {
        let (mut side, next) = match event {
            Event::Accepted(client) => {
                let next = self.connect(&client);
                (client, next)
            }
            Event::Connected(side) => {
                lock(&side.outbox).id = Some(side.id());
                self.turn(side, Events::empty())
            }
            Event::Ready(side, events) => self.turn(side, events),
            Event::Cancelled(side) | Event::Draining(side) => self.turn(side, Events::empty()),
            // Traffic in the other direction counts, too.
            Event::TimedOut(side) if side.idle_for() < self.idle_time() => {
                self.turn(side, Events::empty())
            }
            Event::TimedOut(side) | Event::Unconnected(side, _) | Event::Refused(side, _) => {
                (side, Ok(None))
            }
            _ => return,
        };
        match next {
            Ok(Some(interest)) => worker.arm(side, interest.within(self.idle_time())),
            Err(_) if side.has_sent_all => {
                self.end(&mut side);
                // What it sends yet must not destroy what it was sent.
                worker.linger(side, LINGER);
            }
            _ => self.end(&mut side),
        }
    }

    fn idle_time(&self) -> Duration {
        if self.port.is_draining() {
            IDLE_AT_THE_END
        } else {
            IDLE
        }
    }

    /// Begin to connect a client to the target. What it sends meanwhile waits in the target's outbox.
    fn connect(&self, client: &Held<Side>) -> io::Result<Option<Interest>> {
        lock(&client.outbox).id = Some(client.id());
        let (outbox, other) = (Arc::clone(&client.other), Arc::clone(&client.outbox));
        let make = |stream| Side::new(stream, outbox, other);
        self.port.connect(self.target, CONNECT_TIME, make)?;
        Ok(Some(Interest::IN))
    }

    /// Pass on what can be. What to wait for next; nothing, if that was all.
    fn turn(
        &self,
        mut side: Held<Side>,
        events: Events,
    ) -> (Held<Side>, io::Result<Option<Interest>>) {
        let next = side.receive(events, &self.port).and_then(|receiving| {
            let sending = side.send(&self.port)?;
            let is_over = side.has_received_all && side.has_sent_all;
            Ok((!is_over).then_some(receiving | sending))
        });
        (side, next)
    }

    /// This side is closed. Unless all was passed on, so is the other.
    fn end(&self, side: &mut Side) {
        if side.has_received_all && side.has_sent_all {
            return;
        }
        let mut other = lock(&side.other);
        other.is_broken = true;
        wake(&self.port, other.id);
    }
}

impl Side {
    fn new(stream: TcpStream, outbox: Arc<Mutex<Outbox>>, other: Arc<Mutex<Outbox>>) -> Self {
        Side {
            stream,
            outbox,
            other,
            has_received_all: false,
            has_sent_all: false,
        }
    }

    fn idle_for(&self) -> Duration {
        // One lock after the other: the other side takes them the other way round.
        let sent = lock(&self.outbox).active;
        let received = lock(&self.other).active;
        sent.max(received).elapsed()
    }

    /// Put what has arrived into the other's outbox.
    fn receive(&mut self, events: Events, port: &Port<Side>) -> io::Result<Interest> {
        if events.contains(Events::ERR) {
            self.stream.take_error()?.map_or(Ok(()), Err)?;
        }
        let mut chunk = [0; 16 * 1024];
        // Then others get their turn.
        for _ in 0..16 {
            // Only this side fills it.
            let room = OUTBOX.saturating_sub(lock(&self.other).bytes.len());
            if room == 0 || self.has_received_all {
                return Ok(Interest::NOTHING);
            }
            let room = room.min(chunk.len());
            let length = match self.stream.read(&mut chunk[..room]) {
                Ok(length) => length,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Interest::IN),
                Err(error) => return Err(error),
            };
            self.has_received_all = length == 0;
            let mut other = lock(&self.other);
            let was_empty = other.bytes.is_empty();
            other.bytes.extend(&chunk[..length]);
            other.is_last = self.has_received_all;
            other.active = Instant::now();
            // If it was not empty, the other side is about to send anyway.
            if was_empty {
                wake(port, other.id);
            }
        }
        Ok(Interest::IN)
    }

    /// Send what the socket takes.
    fn send(&mut self, port: &Port<Side>) -> io::Result<Interest> {
        let mut outbox = lock(&self.outbox);
        if outbox.is_broken && (!outbox.is_last || self.has_sent_all) {
            return Err(ErrorKind::ConnectionAborted.into());
        }
        let was_full = outbox.bytes.len() > OUTBOX / 2;
        let mut interest = Interest::NOTHING;
        while !outbox.bytes.is_empty() {
            match self.stream.write(outbox.bytes.as_slices().0) {
                Ok(length) => {
                    outbox.bytes.drain(..length);
                    outbox.active = Instant::now();
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    interest = Interest::OUT;
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        let is_empty = outbox.bytes.is_empty();
        if is_empty {
            // A session without traffic has no memory.
            drop(mem::take(&mut outbox.bytes));
        }
        if is_empty && outbox.is_last && !self.has_sent_all {
            self.has_sent_all = true;
            self.stream.shutdown(Shutdown::Write)?;
            if outbox.is_broken {
                return Err(ErrorKind::ConnectionAborted.into());
            }
        }
        let has_room = was_full && outbox.bytes.len() <= OUTBOX / 2;
        drop(outbox);
        if has_room {
            wake(port, lock(&self.other).id);
        }
        Ok(interest)
    }
}

impl Outbox {
    fn new() -> Arc<Mutex<Self>> {
        Arc::new(Mutex::new(Outbox {
            bytes: VecDeque::new(),
            is_last: false,
            is_broken: false,
            id: None,
            active: Instant::now(),
        }))
    }
}

impl Source for Side {
    fn socket(&self) -> BorrowedSocket<'_> {
        self.stream.socket()
    }
}

/// It is reported as cancelled: at once, or when the thread that holds it arms it.
fn wake(port: &Port<Side>, side: Option<Id>) {
    if let Some(id) = side {
        port.cancel(id);
    }
}

fn lock<V>(mutex: &Mutex<V>) -> MutexGuard<'_, V> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
