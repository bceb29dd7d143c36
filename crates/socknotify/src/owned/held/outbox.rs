//! [`Outbox`]: a queue of bytes that any thread may fill, and only the thread that holds the connection sends.

use std::io::{self, ErrorKind, Write};
use std::sync::{Arc, Mutex, MutexGuard};
use std::{fmt, mem};

use crate::os::Process;
use crate::owned::{Held, Id, Interest, Output, Source};
use crate::support::lock::lock;

/// A bounded queue of bytes that other threads have for a connection to send.
///
/// Keep it in `T`, beside the stream, in non-blocking mode; give others its [`Sender`]s. Who puts something into an empty one wakes the
/// connection: it is reported as [`Event::Cancelled`](crate::owned::Event::Cancelled), at once if it is armed, otherwise when it is armed next. So
/// in **each** event of the connection, [send](Self::send), and arm it for what that returns.
///
/// It uses no memory while it is empty, and at most twice its limit.
///
/// # Examples
///
/// ```
/// use std::io::Read;
/// use std::net::{TcpListener, TcpStream};
/// use socknotify::owned::{BorrowedSocket, Event, Held, Interest, Outbox, Port, Source, Worker};
///
/// struct Client {
///     stream: TcpStream,
///     outbox: Outbox,
/// }
///
/// impl Source for Client {
///     fn socket(&self) -> BorrowedSocket<'_> {
///         self.stream.socket()
///     }
/// }
///
/// fn on_event(worker: &mut Worker<Client>, event: Event<Client>) {
///     let (Event::Ready(mut held, _) | Event::Cancelled(mut held)) = event else { return };
///     let client = &mut *held;
///     // Read here what it has sent. Then:
///     if let Ok(interest) = client.outbox.send(&client.stream) {
///         worker.arm(held, interest);
///     } // What is not armed again is closed.
/// }
///
/// # fn main() -> std::io::Result<()> {
/// # let listener = TcpListener::bind("127.0.0.1:0")?;
/// # let mut peer = TcpStream::connect(listener.local_addr()?)?;
/// # let stream = listener.accept()?.0;
/// # stream.set_nonblocking(true)?;
/// let port = Port::<Client>::new()?;
/// let held = port.adopt(Client { stream, outbox: Outbox::new(64 * 1024) })?;
/// let sender = held.outbox.sender(&held);
/// port.arm(held, Interest::IN);
///
/// let publisher = std::thread::spawn(move || sender.send(b"news\n"));
/// let mut worker = port.worker(1);
/// worker.process(None)?;
/// while let Some(event) = worker.take() {
///     on_event(&mut worker, event);
/// }
/// let mut received = [0; 5];
/// peer.read_exact(&mut received)?;
/// assert_eq!(&received, b"news\n");
/// assert!(publisher.join().unwrap().is_ok());
/// # Ok(())
/// # }
/// ```
#[doc(alias = "write_queue")]
pub struct Outbox {
    /// What was taken from the queue, and is being sent: without the lock.
    sending: Output,
    queue: Arc<Queue>,
}

struct Queue {
    limit: usize,
    process: Process,
    state: Mutex<State>,
}

impl Queue {
    /// `None` in a forked child: a thread that only the parent has may hold the lock.
    fn lock(&self) -> Option<MutexGuard<'_, State>> {
        self.process.is_this().then(|| lock(&self.state))
    }

    /// The same, while the connection is not to end.
    fn lock_open(&self) -> Option<MutexGuard<'_, State>> {
        self.lock().filter(|state| !state.has_ended)
    }

    /// The same, if there is room for so many bytes.
    fn lock_for(&self, length: usize) -> Result<MutexGuard<'_, State>, OutboxError> {
        let state = self.lock_open().ok_or(OutboxError::Gone)?;
        match length <= self.limit.saturating_sub(state.len()) {
            true => Ok(state),
            false => Err(OutboxError::Full),
        }
    }
}

#[derive(Default)]
struct State {
    bytes: Vec<u8>,
    /// How much of what was taken is not sent.
    sending: usize,
    /// The connection comes without another wake-up: it was woken, or waits for OUT.
    is_awaited: bool,
    /// It is to end, or has.
    has_ended: bool,
}

impl State {
    fn len(&self) -> usize {
        self.bytes.len() + self.sending
    }

    /// Put these in, for which there is room.
    fn push(&mut self, bytes: &[u8], limit: usize) {
        let needed = self.bytes.len() + bytes.len();
        if needed > self.bytes.capacity() {
            // Twice as much, but no more than can ever be there.
            let capacity = needed.saturating_mul(2).min(limit);
            self.bytes.reserve_exact(capacity - self.bytes.len());
        }
        self.bytes.extend(bytes);
    }
}

impl Outbox {
    /// Makes an empty one. At most so many bytes wait in it.
    pub fn new(limit: usize) -> Self {
        Outbox {
            sending: Output::new(),
            queue: Arc::new(Queue {
                limit,
                process: Process::this(),
                state: Mutex::default(),
            }),
        }
    }

    /// Makes a handle with which other threads send to this connection, which must be the one that has this outbox.
    ///
    /// One that is adopted again needs new ones. It sends what still waits: for that it is woken.
    pub fn sender<T: Source + Send + 'static>(&self, connection: &Held<T>) -> Sender {
        let (id, connections) = (connection.id(), connection.connections());
        if self.queue.lock().is_some_and(|state| state.is_awaited) {
            // By an earlier `Id`, perhaps.
            connections.cancel(id);
        }
        let connections = Arc::downgrade(connections);
        Sender {
            queue: Arc::clone(&self.queue),
            id,
            wake: Arc::new(move || connections.upgrade().is_some_and(|it| it.cancel(id))),
        }
    }

    /// Puts all of these bytes in, or none, as [`Sender::send`] does, for the thread that has the connection: it wakes nobody, so
    /// [send](Self::send) after it.
    ///
    /// # Errors
    ///
    /// As [`Sender::send`].
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), OutboxError> {
        let mut state = self.queue.lock_for(bytes.len())?;
        state.push(bytes, self.queue.limit);
        Ok(())
    }

    /// Sends what is there, as much as the stream takes. Returns what to arm the connection for: [`Interest::IN`], and
    /// [`Interest::OUT`] if something is left.
    ///
    /// What is put in after this, from whatever thread, is followed by another event of the connection.
    ///
    /// # Errors
    ///
    /// The stream's; [`ErrorKind::WriteZero`] if it takes nothing any more; [`ErrorKind::ConnectionAborted`] after
    /// [`Sender::end`].
    #[doc(alias = "flush")]
    pub fn send(&mut self, mut stream: impl Write) -> io::Result<Interest> {
        let open = self.queue.lock_open();
        let mut state = open.ok_or(ErrorKind::ConnectionAborted)?;
        if self.sending.is_empty() {
            self.sending.fill(mem::take(&mut state.bytes));
            state.sending = self.sending.len();
        }
        drop(state);
        let sent = self.sending.send(&mut stream);
        if self.sending.is_empty() {
            self.sending.fill(Vec::new());
        }
        let mut state = lock(&self.queue.state);
        state.sending = self.sending.len();
        state.is_awaited = state.len() > 0;
        let interest = match state.is_awaited {
            true => Interest::IN | Interest::OUT,
            false => Interest::IN,
        };
        sent.map(|_| interest)
    }

    /// Whether the peer has taken something since this was last asked, or since there is something to send: as
    /// [`Output::has_progressed`](crate::owned::Output::has_progressed).
    pub fn has_progressed<S: Source + ?Sized>(&mut self, source: &S) -> bool {
        !self.is_empty() && self.sending.is_acknowledged(source)
    }

    /// The number of bytes that wait.
    pub fn len(&self) -> usize {
        self.queue.lock().map_or(0, |state| state.len())
    }

    /// Whether all was sent.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        if let Some(mut state) = self.queue.lock() {
            state.has_ended = true;
            state.bytes = Vec::new();
        }
    }
}

/// Sends to a connection from any thread, through its [`Outbox`]. No call of it drops a connection, so they may be made with a lock that
/// the connection's [`Drop`] takes.
#[derive(Clone)]
pub struct Sender {
    queue: Arc<Queue>,
    id: Id,
    /// False if there is no such connection.
    wake: Arc<dyn Fn() -> bool + Send + Sync>,
}

impl Sender {
    /// Puts all of these bytes in, or none. The connection sends them soon, in the order of these calls. What it has not sent when it
    /// ends, or begins to [linger](crate::owned::Worker::linger), is lost.
    ///
    /// # Errors
    ///
    /// [`OutboxError::Full`] if they and what waits are more than the limit; [`OutboxError::Gone`].
    pub fn send(&self, bytes: &[u8]) -> Result<(), OutboxError> {
        let mut state = self.queue.lock_for(bytes.len())?;
        if !bytes.is_empty() && !state.is_awaited {
            // Whom this wakes waits for the lock, until they are in.
            if !(self.wake)() {
                return Err(OutboxError::Gone);
            }
            state.is_awaited = true;
        }
        state.push(bytes, self.queue.limit);
        Ok(())
    }

    /// Ends the connection: it is woken, and its next [`Outbox::send`] is an error. For a peer that does not read.
    pub fn end(&self) {
        if let Some(mut state) = self.queue.lock() {
            state.has_ended = true;
            drop(state);
            (self.wake)();
        }
    }

    /// The number of bytes that may be put in now.
    pub fn room(&self) -> usize {
        let state = self.queue.lock_open();
        state.map_or(0, |state| self.queue.limit.saturating_sub(state.len()))
    }

    /// The connection's.
    pub fn id(&self) -> Id {
        self.id
    }
}

/// Why a [`Sender`] sends nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OutboxError {
    /// The outbox has no room for it: the peer reads more slowly than others send.
    Full,
    /// The connection has ended, or is to, or its port is closed.
    Gone,
}

impl fmt::Display for OutboxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            OutboxError::Full => "the outbox has no room for it",
            OutboxError::Gone => "the connection has ended",
        })
    }
}

impl std::error::Error for OutboxError {}

impl From<OutboxError> for io::Error {
    fn from(error: OutboxError) -> Self {
        let kind = match error {
            OutboxError::Full => ErrorKind::WouldBlock,
            OutboxError::Gone => ErrorKind::NotConnected,
        };
        io::Error::new(kind, error)
    }
}

impl fmt::Debug for Outbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outbox")
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(interleavings)))]
mod tests {
    use super::*;

    #[test]
    fn it_keeps_no_more_memory_than_twice_its_limit() {
        const PIECE: &[u8] = &[1; 4097];
        const LIMIT: usize = 16 * PIECE.len() + 1;
        let fill = |state: &mut State| {
            while state.len() < LIMIT {
                let room = LIMIT - state.len();
                state.push(&PIECE[..room.min(PIECE.len())], LIMIT);
            }
        };
        let mut state = State::default();
        fill(&mut state);
        // All is being sent, and one byte of it is left.
        let sending = mem::take(&mut state.bytes);
        state.sending = 1;
        fill(&mut state);
        assert_eq!((sending.len(), state.len()), (LIMIT, LIMIT));
        assert!(sending.capacity() + state.bytes.capacity() <= 2 * LIMIT);
    }
}
