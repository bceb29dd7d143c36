//! [`Input`] and [`Output`]: buffers of a connection in non-blocking mode.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, ErrorKind, IoSlice, Read, Write};

use crate::os;
use crate::owned::{Interest, Source, source};

/// How much is received at once.
const RECEIVED: usize = 4096;

/// Bytes that were received, to be taken line by line, or by length.
///
/// Keep it in `T`, beside the stream. It uses no memory beyond the longest line or message and 4 KiB, however much the peer
/// sends, since it receives only when it is asked to.
///
/// # Examples
///
/// ```
/// use socknotify::owned::Input;
///
/// # fn main() -> std::io::Result<()> {
/// let mut input = Input::new(100);
/// let mut stream = &b"one\r\ntwo\nthr"[..]; // for example a `TcpStream`
/// assert!(input.receive(&mut stream)?);
/// assert_eq!(input.line(), Some(&b"one"[..]));
/// assert_eq!(input.line(), Some(&b"two"[..]));
/// assert_eq!(input.line(), None);
/// assert!(!input.receive(&mut stream)?, "the stream has ended");
/// # Ok(())
/// # }
/// ```
///
/// A protocol by length, here of one byte:
///
/// ```
/// use socknotify::owned::Input;
///
/// /// The next message, if it is complete.
/// fn message(input: &mut Input) -> Option<&[u8]> {
///     let length = usize::from(*input.bytes().first()?);
///     input.take(1 + length).map(|message| &message[1..])
/// }
///
/// # fn main() -> std::io::Result<()> {
/// let mut input = Input::new(1 + 255);
/// input.receive(&b"\x03one\x05th"[..])?;
/// assert_eq!(message(&mut input), Some(&b"one"[..]));
/// assert_eq!(message(&mut input), None);
/// input.receive(&b"ree"[..])?;
/// assert_eq!(message(&mut input), Some(&b"three"[..]));
/// # Ok(())
/// # }
/// ```
pub struct Input {
    /// Memory. What was received and not taken is in `start..end`.
    memory: Vec<u8>,
    start: usize,
    end: usize,
    /// Up to here there is no end of a line.
    searched: usize,
    longest: usize,
    /// Something was taken since it received last.
    has_taken: bool,
}

impl Input {
    /// Makes one for lines or messages of this many bytes. A longer one is an error, unless it is complete: so one may be longer
    /// by 4 KiB.
    pub const fn new(longest: usize) -> Self {
        Input {
            memory: Vec::new(),
            start: 0,
            end: 0,
            searched: 0,
            longest,
            has_taken: false,
        }
    }

    /// Receives once, as much as there is memory for: 4 KiB at least, and no more than the longest line or message and 4 KiB.
    /// Returns false at the end of the stream. If nothing is there, that is no error.
    ///
    /// While more than the longest line or message is there, and something was taken since the last call, it receives nothing: take
    /// what is there.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidData`] if a line or message is too long: more than that is there, and nothing was taken since the last
    /// call; otherwise the stream's.
    pub fn receive(&mut self, mut stream: impl Read) -> io::Result<bool> {
        let has_taken = std::mem::take(&mut self.has_taken);
        if self.bytes().len() > self.longest {
            let error = || io::Error::new(ErrorKind::InvalidData, "a line or message is too long");
            return has_taken.then_some(true).ok_or_else(error);
        }
        if self.start == self.end {
            (self.start, self.end, self.searched) = (0, 0, 0);
        }
        if self.memory.len() - self.end < RECEIVED {
            self.make_room();
        }
        match stream.read(&mut self.memory[self.end..]) {
            Ok(length) => {
                self.end += length;
                Ok(length > 0)
            }
            Err(error) if is_temporary(&error) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Move what is there to the beginning, and double the memory if that does not do.
    #[cold]
    fn make_room(&mut self) {
        self.memory.copy_within(self.start..self.end, 0);
        self.searched -= self.start;
        self.end -= self.start;
        self.start = 0;
        if self.memory.len() - self.end < RECEIVED {
            let most = self.longest.saturating_add(RECEIVED);
            let room = (self.end * 2).min(most).max(self.end + RECEIVED);
            self.memory.resize(room, 0);
        }
    }

    /// The next complete line, without its end, `\n` or `\r\n`.
    pub fn line(&mut self) -> Option<&[u8]> {
        let unsearched = &self.memory[self.searched..self.end];
        let Some(length) = unsearched.iter().position(|&byte| byte == b'\n') else {
            self.searched = self.end;
            return None;
        };
        let length = self.searched + length + 1 - self.start;
        let line = self.take(length)?;
        let line = &line[..length - 1];
        Some(line.strip_suffix(b"\r").unwrap_or(line))
    }

    /// The same as a copy, for methods with `&mut self` of the type that has this `Input`, which a borrowed line would keep
    /// from being called.
    ///
    /// # Examples
    ///
    /// ```
    /// use socknotify::owned::Input;
    ///
    /// struct Client {
    ///     input: Input,
    ///     lines: usize,
    /// }
    ///
    /// impl Client {
    ///     fn on_line(&mut self, line: &[u8]) {
    ///         self.lines += usize::from(!line.is_empty());
    ///     }
    ///
    ///     fn serve(&mut self) {
    ///         while let Some(line) = self.input.owned_line() {
    ///             self.on_line(&line);
    ///         }
    ///     }
    /// }
    /// # let mut client = Client { input: Input::new(100), lines: 0 };
    /// # client.input.receive(&b"one\ntwo\n"[..]).unwrap();
    /// # client.serve();
    /// # assert_eq!(client.lines, 2);
    /// ```
    pub fn owned_line(&mut self) -> Option<Vec<u8>> {
        self.line().map(<[u8]>::to_vec)
    }

    /// What was received and not taken.
    ///
    /// For a parser: what it has used, [take](Self::take).
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.memory[self.start..self.end]
    }

    /// Takes the next bytes, this many. `None`, and nothing is taken, if fewer are there.
    #[doc(alias = "consume")]
    #[doc(alias = "advance")]
    pub fn take(&mut self, count: usize) -> Option<&[u8]> {
        if count > self.bytes().len() {
            return None;
        }
        let from = self.start;
        self.start += count;
        self.searched = self.searched.max(self.start);
        self.has_taken |= count > 0;
        Some(&self.memory[from..self.start])
    }

    /// Gives the memory back if nothing is in it. The next [`receive`](Self::receive) allocates it: for many connections that are
    /// idle.
    #[doc(alias = "shrink_to_fit")]
    pub fn shrink(&mut self) {
        if self.bytes().is_empty() {
            *self = Input {
                has_taken: self.has_taken,
                ..Input::new(self.longest)
            };
        }
    }
}

/// Bytes to send. Write to it, and then [send](Self::send).
///
/// Keep it in `T`, beside the stream. While it is not empty, receive nothing: so a peer that does not read cannot make it
/// grow. When it is empty and the connection is to end, [linger](crate::owned::Worker::linger): to close a socket with unread data
/// in it may destroy what was sent.
///
/// # Examples
///
/// ```
/// use std::io::Write;
/// use socknotify::owned::{Interest, Output};
///
/// # fn main() -> std::io::Result<()> {
/// let mut output = Output::new();
/// write!(output, "hello")?;
/// let mut stream = Vec::new(); // for example a `TcpStream`
/// assert_eq!(output.send(&mut stream)?, Interest::IN);
/// assert!(output.is_empty());
/// # Ok(())
/// # }
/// ```
#[derive(Default)]
pub struct Output {
    bytes: VecDeque<u8>,
    /// How many bytes the stream has ever accepted.
    accepted: u64,
    /// How many of those the peer had acknowledged when that was last asked, since all was sent. What it had not acknowledged
    /// says less: the same number of bytes may have been sent meanwhile.
    acknowledged: Option<u64>,
}

impl Output {
    /// Makes one with nothing to send.
    pub const fn new() -> Self {
        Output {
            bytes: VecDeque::new(),
            accepted: 0,
            acknowledged: None,
        }
    }

    /// Whether all was sent.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The number of bytes to send.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Sends as much as the stream takes. Returns what to wait for next: [`Interest::OUT`] if something is left, otherwise
    /// [`Interest::IN`].
    ///
    /// # Errors
    ///
    /// The stream's; [`ErrorKind::WriteZero`] if it takes nothing any more.
    pub fn send(&mut self, mut stream: impl Write) -> io::Result<Interest> {
        while !self.is_empty() {
            let (first, second) = self.bytes.as_slices();
            match stream.write_vectored(&[IoSlice::new(first), IoSlice::new(second)]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(length) => {
                    self.bytes.drain(..length);
                    self.accepted = self.accepted.wrapping_add(length as u64);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if is_temporary(&error) => return Ok(Interest::OUT),
                Err(error) => return Err(error),
            }
        }
        self.acknowledged = None;
        Ok(Interest::IN)
    }

    /// Whether the peer has taken something since this was last asked, or since there is something to send.
    ///
    /// A system reports OUT only when much of its buffer is free. So a deadline for OUT also passes for a peer that reads
    /// slowly but steadily. Ask this then, and arm the connection again for the same time if it is so. The first time it
    /// is always so: a peer that reads nothing is found out at the second deadline.
    ///
    /// False if there is nothing to send; and on Windows, OpenBSD and DragonFly BSD, which do not tell.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::net::TcpStream;
    /// use std::time::Duration;
    /// use socknotify::owned::{Event, Interest, Output, Worker};
    /// # use socknotify::owned::{BorrowedSocket, Source};
    ///
    /// struct Client {
    ///     stream: TcpStream,
    ///     output: Output,
    /// }
    /// # impl Source for Client {
    /// #     fn socket(&self) -> BorrowedSocket<'_> {
    /// #         self.stream.socket()
    /// #     }
    /// # }
    ///
    /// fn on_event(worker: &mut Worker<Client>, event: Event<Client>) {
    ///     if let Event::TimedOut(mut client) = event {
    ///         let Client { stream, output } = &mut *client;
    ///         if output.has_progressed(stream) {
    ///             worker.arm(client, Interest::OUT.within(Duration::from_secs(30)));
    ///         } // What is not armed again is closed.
    ///     }
    /// }
    /// ```
    pub fn has_progressed<S: Source + ?Sized>(&mut self, source: &S) -> bool {
        !self.is_empty() && self.is_acknowledged(source)
    }

    /// The same, also if all was sent.
    pub(super) fn is_acknowledged<S: Source + ?Sized>(&mut self, source: &S) -> bool {
        let unacknowledged = unacknowledged(source);
        let now = unacknowledged.map(|bytes| self.accepted.wrapping_sub(bytes));
        let before = std::mem::replace(&mut self.acknowledged, now);
        now.is_some() && now != before
    }

    /// Send these next, in memory of their own. All others were sent.
    pub(super) fn fill(&mut self, bytes: Vec<u8>) {
        self.bytes = bytes.into();
    }
}

/// How many bytes of what was sent through a stream its peer has not acknowledged.
///
/// If it changes while nothing is sent, the peer's system has taken something: for programs that send without an
/// [`Output`], and want what [`Output::has_progressed`] says. Subtract it from what was sent if that goes on.
///
/// `None` if the system does not tell: on Windows, OpenBSD and DragonFly BSD, and if the socket has no such number.
///
/// # Examples
///
/// ```
/// use std::io::Write;
/// use std::net::{TcpListener, TcpStream};
/// use socknotify::owned::unacknowledged;
///
/// # fn main() -> std::io::Result<()> {
/// let listener = TcpListener::bind("127.0.0.1:0")?;
/// let mut stream = TcpStream::connect(listener.local_addr()?)?;
/// stream.write_all(b"hello")?;
/// // Loopback acknowledges at once, also what nobody has read yet; a peer that is full does not.
/// assert!(matches!(unacknowledged(&stream), Some(0..=5) | None));
/// # Ok(())
/// # }
/// ```
#[doc(alias = "SIOCOUTQ")]
#[doc(alias = "FIONWRITE")]
#[doc(alias = "SO_NWRITE")]
pub fn unacknowledged<S: Source + ?Sized>(source: &S) -> Option<u64> {
    os::fd(source::raw(source)).and_then(os::unacknowledged)
}

/// Adds bytes to send. It never fails, and sends nothing.
impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes.extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn is_temporary(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

impl fmt::Debug for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Input")
            .field("bytes", &self.bytes().len())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Output")
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(interleavings)))]
mod tests {
    use super::*;

    /// Gives this many bytes at a time, and then nothing.
    struct Trickle<'a>(&'a [u8], usize);

    impl Read for Trickle<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let length = self.1.min(self.0.len()).min(buffer.len());
            if length == 0 {
                return Err(ErrorKind::WouldBlock.into());
            }
            let (now, later) = self.0.split_at(length);
            buffer[..length].copy_from_slice(now);
            self.0 = later;
            Ok(length)
        }
    }

    #[test]
    fn lines_come_whole_however_they_arrive() {
        let text = b"one\n\r\ntwo and more\r\n\nthree\nrest";
        for step in 1..text.len() {
            let (mut stream, mut input) = (Trickle(text, step), Input::new(64));
            let mut lines = Vec::new();
            for _ in 0..=text.len() / step + 1 {
                assert!(input.receive(&mut stream).expect("no error"));
                while let Some(line) = input.line() {
                    lines.push(line.to_vec());
                }
            }
            assert_eq!(lines, [&b"one"[..], b"", b"two and more", b"", b"three"]);
            assert_eq!(input.bytes(), b"rest");
        }
    }

    #[test]
    fn a_line_that_is_too_long_is_an_error_and_others_are_taken_before() {
        let mut text = b"short\n".to_vec();
        text.extend([b'x'; 100_000]);
        let (mut stream, mut input) = (Trickle(&text, usize::MAX), Input::new(1000));
        let mut lines = 0;
        let error = loop {
            match input.receive(&mut stream) {
                Ok(is_open) => assert!(is_open),
                Err(error) => break error,
            }
            while input.line().is_some() {
                lines += 1;
            }
        };
        assert_eq!((lines, error.kind()), (1, ErrorKind::InvalidData));
        assert!(input.bytes().len() <= 1000 + RECEIVED);
    }

    #[test]
    fn what_is_taken_by_length_comes_whole_however_it_arrives() {
        let mut text = Vec::new();
        let messages: Vec<_> = (0..50)
            .map(|length| vec![length as u8; length * 40])
            .collect();
        for message in &messages {
            text.extend(u16::try_from(message.len()).expect("it fits").to_be_bytes());
            text.extend(message);
        }
        for step in [1, 2, 3, 1000, 4096, 10_000] {
            let (mut stream, mut input) = (Trickle(&text, step), Input::new(2 + 1960));
            let mut taken = Vec::new();
            while taken.len() < messages.len() {
                assert!(input.receive(&mut stream).expect("none is too long"));
                // One for each call, as with one event for each.
                let Some(&[high, low]) = input.bytes().first_chunk() else {
                    continue;
                };
                let length = usize::from(u16::from_be_bytes([high, low]));
                taken.extend(input.take(2 + length).map(|it| it[2..].to_vec()));
                assert!(input.bytes().len() <= 1962 + RECEIVED);
            }
            assert_eq!(taken, messages);
            assert_eq!(input.bytes(), b"");
            input.shrink();
            assert_eq!(input.memory.capacity(), 0);
        }
    }

    #[test]
    fn a_message_that_is_too_long_is_an_error() {
        let text = [7; 20_000];
        let (mut stream, mut input) = (Trickle(&text, usize::MAX), Input::new(1000));
        assert!(input.receive(&mut stream).expect("it may be complete"));
        assert_eq!(input.take(10_000), None);
        let error = input.receive(&mut stream).expect_err("it is too long");
        assert_eq!(error.kind(), ErrorKind::InvalidData);
        // What is there can still be taken.
        assert_eq!(input.take(1).map(<[u8]>::len), Some(1));
        assert!(input.receive(&mut stream).expect("something was taken"));
    }

    /// Takes this many bytes, in steps.
    struct Narrow(Vec<u8>, usize);

    impl Write for Narrow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let length = bytes.len().min(7).min(self.1);
            if length == 0 {
                return Err(ErrorKind::WouldBlock.into());
            }
            self.1 -= length;
            self.0.extend_from_slice(&bytes[..length]);
            Ok(length)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[cfg(any(target_os = "linux", target_os = "freebsd", target_vendor = "apple"))]
    #[test]
    fn a_peer_that_reads_a_little_progresses_and_one_that_reads_nothing_does_not() -> io::Result<()>
    {
        use std::net::{TcpListener, TcpStream};

        let listener = TcpListener::bind("127.0.0.1:0")?;
        let mut peer = TcpStream::connect(listener.local_addr()?)?;
        let (stream, _) = listener.accept()?;
        stream.set_nonblocking(true)?;
        let mut output = Output::new();
        assert!(!output.has_progressed(&stream), "there is nothing to send");
        output.write_all(&vec![1; 64 << 20])?;
        assert_eq!(output.send(&stream)?, Interest::OUT);
        assert!(output.has_progressed(&stream), "the first time");
        // What is on its way may still be acknowledged.
        while output.has_progressed(&stream) {}
        // When it has read much, its system says so.
        while !output.has_progressed(&stream) {
            peer.read_exact(&mut [0; 16 * 1024])?;
            let _ = output.send(&stream)?;
        }
        Ok(())
    }

    /// The stream has accepted as much as the peer has taken.
    #[cfg(any(target_os = "linux", target_os = "freebsd", target_vendor = "apple"))]
    #[test]
    fn a_peer_progresses_also_if_as_much_is_sent_as_it_has_taken() -> io::Result<()> {
        use std::net::{TcpListener, TcpStream};

        let listener = TcpListener::bind("127.0.0.1:0")?;
        let mut peer = TcpStream::connect(listener.local_addr()?)?;
        let (stream, _) = listener.accept()?;
        let mut output = Output::new();
        for _ in 0..3 {
            output.write_all(b"answer")?;
            // A stream that accepts this much, and no more.
            let mut narrow = Narrow(Vec::new(), 5);
            assert_eq!(output.send(&mut narrow)?, Interest::OUT);
            (&stream).write_all(&narrow.0)?;
            peer.read_exact(&mut [0; 5])?;
            while unacknowledged(&stream) != Some(0) {
                std::thread::yield_now();
            }
            assert!(output.has_progressed(&stream));
            assert!(!output.has_progressed(&stream));
        }
        Ok(())
    }

    #[test]
    fn output_is_sent_as_the_stream_takes_it() -> io::Result<()> {
        let (mut stream, mut output) = (Narrow(Vec::new(), 0), Output::new());
        assert_eq!(output.send(&mut stream)?, Interest::IN, "it is empty");
        for round in 0..20 {
            writeln!(output, "answer {round}")?;
            stream.1 = 5;
            assert_eq!(output.send(&mut stream)?, Interest::OUT);
        }
        stream.1 = 1000;
        assert_eq!(output.send(&mut stream)?, Interest::IN);
        assert!(output.is_empty());
        let expected: String = (0..20).map(|round| format!("answer {round}\n")).collect();
        assert_eq!(stream.0, expected.as_bytes());
        Ok(())
    }

    #[test]
    fn output_that_is_never_all_sent_takes_no_more_memory() -> io::Result<()> {
        let (mut stream, mut output) = (Narrow(Vec::new(), 0), Output::new());
        output.write_all(b"more")?;
        for _ in 0..1000 {
            output.write_all(b"answer")?;
            stream.1 = 6;
            assert_eq!(output.send(&mut stream)?, Interest::OUT);
            assert_eq!(output.len(), 4);
        }
        assert!(output.bytes.capacity() <= 64);
        let all = [&b"more"[..], &b"answer".repeat(1000)].concat();
        assert_eq!(stream.0, all[..6000]);
        Ok(())
    }
}
