//! [`Readiness`]: whether a held connection is drained. One that is needs no readiness check when it is armed.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::TcpStream;
#[cfg(unix)]
use std::os::unix::net::UnixStream;

use crate::EventFilter;
use crate::os::{self, AsSocket, RawSocket};

/// Notes whether a held connection's socket is drained, or its send buffer full.
///
/// Before the port arms a connection, it asks the kernel whether the socket is ready already: its thread may have left
/// data in it. If the thread receives and sends through this, the port knows when nothing is left, and saves that
/// system call.
///
/// This only affects speed. If you receive past it, the port asks.
///
/// [`Held::split`](crate::owned::Held::split) returns it. For a `Held<TcpStream>`, reading and writing the `Held` itself has
/// the same effect.
///
/// # Examples
///
/// ```
/// use std::io::{Read, Write};
/// use std::net::{TcpListener, TcpStream};
/// use socknotify::owned::{Event, Interest, Port};
///
/// # fn main() -> std::io::Result<()> {
/// let listener = TcpListener::bind("127.0.0.1:0")?;
/// let mut theirs = TcpStream::connect(listener.local_addr()?)?;
/// let (ours, _) = listener.accept()?;
/// ours.set_nonblocking(true)?;
///
/// let port = Port::<TcpStream>::new()?;
/// let mut worker = port.worker(16);
/// worker.arm(port.adopt(ours)?, Interest::IN);
/// theirs.write_all(b"ping")?;
/// worker.process(None)?;
/// if let Some(Event::Ready(mut connection, _)) = worker.take() {
///     let mut buffer = [0; 1024];
///     // With a type of your own, take its stream here.
///     let (stream, readiness) = connection.split();
///     // A short read: the socket is drained.
///     let length = readiness.io(stream).read(&mut buffer)?;
///     assert_eq!(&buffer[..length], b"ping");
///     worker.arm(connection, Interest::IN);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Readiness {
    socket: RawSocket,
    /// Of IN and OUT, the conditions that held no more when the thread was done, as the bits of a filter.
    spent: u8,
    pub(super) phase: Phase,
}

/// Who has the events of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Open,
    /// It is not known yet to be connected, or not to be.
    Connecting,
    /// What its peer still sends is discarded: the port has its events.
    Lingering,
}

impl Readiness {
    pub(super) fn new(socket: RawSocket) -> Self {
        Readiness {
            socket,
            spent: 0,
            phase: Phase::Open,
        }
    }

    /// The number that the connection was adopted under.
    #[inline]
    pub(super) fn socket(&self) -> RawSocket {
        self.socket
    }

    /// Whether none of these conditions held any more when this was noted. From here on nothing is known.
    #[inline]
    pub(super) fn take(&mut self, filter: EventFilter) -> bool {
        let spent = EventFilter::from_bits_retain(std::mem::take(&mut self.spent).into());
        let asked = filter & (EventFilter::IN | EventFilter::OUT);
        spent.contains(asked)
    }

    #[inline]
    fn note(&mut self, is_spent: bool, condition: EventFilter) {
        if is_spent {
            self.spent |= condition.bits() as u8;
        }
    }

    /// Wraps the connection's stream, to receive and send with.
    ///
    /// For a stream of another socket, nothing is noted.
    #[inline]
    pub fn io<S: Stream>(&mut self, stream: S) -> Io<'_, S> {
        Io {
            is_own: os::raw(&stream) == self.socket,
            readiness: self,
            stream,
        }
    }

    /// Runs a call that receives from the connection's socket: `recv`, `accept` and the like, of any library. If it
    /// fails with [`WouldBlock`](io::ErrorKind::WouldBlock), the socket is drained.
    ///
    /// `receive` must return that error only if the system returned it for this socket. Otherwise the port misses data
    /// that are in the socket already.
    ///
    /// # Errors
    ///
    /// The call's own.
    #[inline]
    pub fn try_read<R>(&mut self, receive: impl FnOnce() -> io::Result<R>) -> io::Result<R> {
        receive().inspect_err(|error| self.note(would_block(error), EventFilter::IN))
    }

    /// Runs a call that sends on the connection's socket. If it fails with [`WouldBlock`](io::ErrorKind::WouldBlock),
    /// the send buffer is full.
    ///
    /// # Errors
    ///
    /// The call's own.
    #[inline]
    pub fn try_write<R>(&mut self, send: impl FnOnce() -> io::Result<R>) -> io::Result<R> {
        send().inspect_err(|error| self.note(would_block(error), EventFilter::OUT))
    }
}

fn would_block(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}

/// Streams without a buffer of their own.
///
/// For a TCP stream a short read means that the socket is drained. For a Unix stream it does not, since a read ends before
/// descriptors that were passed, before the bytes of another sender, and with a packet; there only
/// [`WouldBlock`](io::ErrorKind::WouldBlock) does. For other streams, also for a `TcpStream` that was made of a Unix socket, use
/// [`Readiness::try_read`].
pub trait Stream: sealed::Stream {}

impl<S: sealed::Stream> Stream for S {}

mod sealed {
    use super::AsSocket;
    use std::io::{Read, Write};

    pub trait Stream: Read + Write + AsSocket {
        /// A short read means that the socket is drained.
        const ENDS_SHORT: bool;
    }
}

impl sealed::Stream for TcpStream {
    const ENDS_SHORT: bool = true;
}
#[cfg(unix)]
impl sealed::Stream for UnixStream {
    const ENDS_SHORT: bool = false;
}
impl<'a, S: sealed::Stream> sealed::Stream for &'a S
where
    &'a S: Read + Write + AsSocket,
{
    const ENDS_SHORT: bool = S::ENDS_SHORT;
}
impl<S: sealed::Stream> sealed::Stream for &mut S {
    const ENDS_SHORT: bool = S::ENDS_SHORT;
}

/// A stream whose reads and writes are noted: see [`Readiness::io`].
#[derive(Debug)]
pub struct Io<'a, S> {
    readiness: &'a mut Readiness,
    stream: S,
    /// It is the connection's socket.
    is_own: bool,
}

/// A system reads into no more buffers at once.
const BUFFERS: usize = 1024;

impl<S: Stream> Io<'_, S> {
    #[inline]
    fn note_read(&mut self, outcome: &io::Result<usize>, room: usize) {
        let is_drained = match outcome {
            // 0 is the end, which holds from here on.
            Ok(length) => S::ENDS_SHORT && (1..room).contains(length),
            Err(error) => would_block(error),
        };
        self.readiness
            .note(is_drained && self.is_own, EventFilter::IN);
    }

    #[inline]
    fn note_write(&mut self, outcome: &io::Result<usize>) {
        let is_full = outcome.as_ref().is_err_and(would_block);
        self.readiness
            .note(is_full && self.is_own, EventFilter::OUT);
    }
}

impl<S: Stream> Read for Io<'_, S> {
    #[inline]
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let outcome = self.stream.read(buffer);
        self.note_read(&outcome, buffer.len());
        outcome
    }

    fn read_vectored(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let read_into = buffers.iter().take(BUFFERS);
        let room = read_into.map(|buffer| buffer.len()).sum();
        let outcome = self.stream.read_vectored(buffers);
        self.note_read(&outcome, room);
        outcome
    }
}

impl<S: Stream> Write for Io<'_, S> {
    #[inline]
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let outcome = self.stream.write(bytes);
        self.note_write(&outcome);
        outcome
    }

    fn write_vectored(&mut self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        let outcome = self.stream.write_vectored(buffers);
        self.note_write(&outcome);
        outcome
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}
