//! [`Buffered`]: a stream with a read buffer, as [`BufReader`], that can be armed.

use std::io::{self, BufRead, BufReader, IoSlice, IoSliceMut, Read, Write};

use crate::owned::{BorrowedSocket, Id, Source};

/// A stream with a [`BufReader`] for what is received from it. What is written goes to the stream itself.
///
/// While the `BufReader` has bytes, the connection is ready at once when it is armed for IN: so a handler may take one line or
/// message, and arm it for the next one. A handler that leaves a part of one in the buffer gets the connection again and
/// again: read what there is, as [`read_line`](BufRead::read_line) does; a stream that does not block keeps the rest in a
/// buffer of its own, such as [`Input`](crate::owned::Input).
///
/// # Examples
///
/// ```
/// use std::io::{BufRead, Read, Write};
/// use std::net::{TcpListener, TcpStream};
/// use socknotify::owned::{Buffered, Event, Interest, Port};
///
/// # fn main() -> std::io::Result<()> {
/// let listener = TcpListener::bind("127.0.0.1:0")?;
/// let mut client = TcpStream::connect(listener.local_addr()?)?;
/// let port = Port::<Buffered<TcpStream>>::new()?;
/// let mut worker = port.worker(1);
/// worker.arm(port.adopt(Buffered::new(listener.accept()?.0))?, Interest::IN);
///
/// client.write_all(b"one\ntwo\n")?;
/// for expected in ["one\n", "two\n"] {
///     worker.process(None)?;
///     let Some(Event::Ready(mut connection, _)) = worker.take() else { panic!() };
///     let mut line = String::new();
///     connection.read_line(&mut line)?;
///     assert_eq!(line, expected);
///     // The second line is in the buffer, and not in the socket.
///     worker.arm(connection, Interest::IN);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Buffered<S>(BufReader<S>);

impl<S: Read> Buffered<S> {
    /// Makes one with a buffer of the standard library's size, 8 KiB.
    pub fn new(stream: S) -> Self {
        Buffered(BufReader::new(stream))
    }

    /// Makes one with a buffer of this many bytes.
    pub fn with_capacity(bytes: usize, stream: S) -> Self {
        Buffered(BufReader::with_capacity(bytes, stream))
    }
}

impl<S> Buffered<S> {
    /// The stream. To receive from it directly misses what was read ahead.
    pub fn get_ref(&self) -> &S {
        self.0.get_ref()
    }

    /// The stream, as [`get_ref`](Self::get_ref).
    pub fn get_mut(&mut self) -> &mut S {
        self.0.get_mut()
    }

    /// What was read ahead.
    pub fn buffer(&self) -> &[u8] {
        self.0.buffer()
    }

    /// The stream. What was read ahead is lost.
    pub fn into_inner(self) -> S {
        self.0.into_inner()
    }
}

impl<S: Source> Source for Buffered<S> {
    fn socket(&self) -> BorrowedSocket<'_> {
        self.get_ref().socket()
    }

    fn has_buffered(&self) -> bool {
        !self.buffer().is_empty() || self.get_ref().has_buffered()
    }

    fn adopted(&mut self, id: Id) {
        self.get_mut().adopted(id);
    }
}

impl<S: Read> Read for Buffered<S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }

    fn read_vectored(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.0.read_vectored(buffers)
    }
}

impl<S: Read> BufRead for Buffered<S> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.0.fill_buf()
    }

    fn consume(&mut self, count: usize) {
        self.0.consume(count);
    }
}

impl<S: Write> Write for Buffered<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.get_mut().write(bytes)
    }

    fn write_vectored(&mut self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        self.get_mut().write_vectored(buffers)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.get_mut().flush()
    }
}
